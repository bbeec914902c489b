"""The coordinator's own DuckDB, which joins hashed keys."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager

import duckdb

_idle: list[tuple[int, duckdb.DuckDBPyConnection]] = []
"""At most one empty connection, with the process that opened it. Opening a connection takes as long
as planning a statement.
"""


@contextmanager
def own_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield an empty database. Its files on disk are in a private folder, which is deleted at the
    end. Register tables on it; they are forgotten at the end.
    """
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
    """Return True if the connection is as it was when opened. It is not if it has put data on
    disk.
    """
    con.execute("RESET memory_limit; RESET threads")
    try:
        con.execute("SET temp_directory = ''")
    except duckdb.Error:
        return False
    return True
