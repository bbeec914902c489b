"""DuckDB files: how they are named, opened and made."""
