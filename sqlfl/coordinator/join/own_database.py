"""The coordinator's own DuckDB, in which hashed keys are joined."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager

import duckdb

_idle: list[tuple[int, duckdb.DuckDBPyConnection]] = []
"""At most one that is empty, with the process that opened it: to open one takes as long as to plan
a statement."""


@contextmanager
def own_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty one. What it puts on disk is in a folder that nobody else can look into, and is gone
    at the end. Tables are to be registered, and are forgotten then."""
    with tempfile.TemporaryDirectory(prefix="sqlfl-") as folder:
        con = _opened()
        try:
            con.execute("SET temp_directory = ?", [folder])
            with closing(con.cursor()) as cursor:
                yield cursor
            whole = _emptied(con)
        except BaseException:
            con.close()
            raise
        if whole and not _idle:
            _idle.append((os.getpid(), con))
        else:
            con.close()


def _opened() -> duckdb.DuckDBPyConnection:
    try:
        process, con = _idle.pop()
    except IndexError:
        return duckdb.connect()
    return con if process == os.getpid() else duckdb.connect()


def _emptied(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether it is as it was opened; not where it has put something on disk."""
    con.execute("RESET memory_limit; RESET threads")
    try:
        con.execute("SET temp_directory = ''")
    except duckdb.Error:
        return False
    return True
