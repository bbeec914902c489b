"""The command line: `sqlfl`, or `python -m sqlfl`. A module for each group of commands."""
