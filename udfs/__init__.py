"""Functions that run inside a party's DuckDB; each takes a connection."""

from sqlfl.udfs.blocks.register import register

__all__ = ["register"]
