"""Cursors of a party's connection, on which its requests run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import duckdb

from sqlfl.base.errors import Error
from sqlfl.party.failures import REOPEN
from sqlfl.udfs import sql
from sqlfl.udfs.describe import current_place, use


class Cursors:
    """Open cursors, each of which another thread may interrupt.

    On each, names mean the same as on the connection when this object was made. Raise
    duckdb.ConnectionException if the connection is closed.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self.place = current_place(con)
        """The database and schema of names without one."""
        self._open: set[duckdb.DuckDBPyConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, *, named: bool = True) -> duckdb.DuckDBPyConnection:
        """Return a new cursor. Raise Error if the connection is closed, or if its database is no
        longer attached. `named`: names without a database are those of `place`; otherwise they are
        DuckDB's own, which takes one query less.
        """
        try:
            cursor = sql.waiting(self._con.cursor)
        except duckdb.ConnectionException as error:
            raise Error("its connection is closed", hint=REOPEN) from error
        self._open.add(cursor)
        try:
            if named:
                use(cursor, self.place)
            else:
                sql.search(cursor, [])
        except BaseException as error:
            self.end(cursor)
            if isinstance(error, duckdb.CatalogException):
                raise self.gone() from error
            raise
        return cursor

    def gone(self) -> Error:
        """Return the error about a database that is no longer attached."""
        return Error(f"its database {'.'.join(self.place)} is gone")

    def end(self, cursor: duckdb.DuckDBPyConnection) -> None:
        self._open.discard(cursor)
        cursor.close()

    @contextlib.contextmanager
    def opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a cursor for a while."""
        cursor = self.begin()
        try:
            yield cursor
        finally:
            self.end(cursor)

    def interrupt(self) -> None:
        """End the running queries; called from another thread."""
        for cursor in tuple(self._open):
            with contextlib.suppress(duckdb.ConnectionException):
                cursor.interrupt()
