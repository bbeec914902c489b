"""DuckDB files: their names, and how they are opened and made."""
