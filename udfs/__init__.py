"""What runs inside a party's DuckDB; every function takes a connection."""

from sqlfl.udfs.blocks.register import register

__all__ = ["register"]
