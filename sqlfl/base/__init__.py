"""Errors, types of arrays, JSON, results and threads: what needs nothing else of ours."""
