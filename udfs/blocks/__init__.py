"""Blocks of models: in memory, tables and files."""
