"""The database that an owner's statements are about, and the one that keeps their results."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import duckdb

from sqlfl.base.errors import Error
from sqlfl.databases.files import (
    Connection,
    may_be_written,
    open_database,
    open_or_make,
    open_source,
    there,
    to_path,
)
from sqlfl.databases.sources import database_path
from sqlfl.governance.policy_store import check_single, one_instance, reachable
from sqlfl.governance.records import Records
from sqlfl.udfs.describe import current_place

Given: TypeAlias = "duckdb.DuckDBPyConnection | str | os.PathLike[str]"


class Places:
    """The source, with its connection `con`, and the store, if given. `close` closes the files
    opened here.

    missing : path of a store that is yet to be made. Then `records` are those of the source, and
        must not be used.
    """

    def __init__(self, source: Given, store: Given | None) -> None:
        self.missing: Path | None = None
        with ExitStack() as stack:
            self._stack = stack
            self.con = self._source(source, keeps=store is None)
            self.own = Records(self.con, current_place(self.con)[0])
            self.records = self.own if store is None else self._store(source, store)
            self._stack = stack.pop_all()

    def check_single(self) -> None:
        """Check before an addition to the store. Raise Error if the source has policies."""
        if self.missing is not None or self.records is not self.own:
            check_single(self.own, self.missing or self.records)

    def make(self) -> None:
        """Make the missing store."""
        assert self.missing is not None
        con, _ = open_or_make(self.missing)
        self.records = self._apart(self._opened(con))
        self.missing = None

    def close(self) -> None:
        self._stack.close()

    def _source(self, source: Given, *, keeps: bool) -> Connection:
        if isinstance(source, duckdb.DuckDBPyConnection):
            return source
        path = database_path(source, "owner")
        return self._opened(open_source(path, read_only=not (keeps and may_be_written(path))))

    def _store(self, source: Given, store: Given) -> Records:
        if isinstance(store, duckdb.DuckDBPyConnection):
            return self._apart(store)
        path = to_path(store, "a store")
        given = isinstance(source, duckdb.DuckDBPyConnection)
        if not given and path == to_path(source, "a source"):
            raise Error(
                f"the store {path} is the source itself",
                hint="leave store out: all is then kept in the source",
            )
        if not there(path):
            self.missing = path
            return self.own
        return self._apart(self._opened(open_database(path, read_only=not may_be_written(path))))

    def _apart(self, kept: Connection) -> Records:
        if one_instance(self.con, kept):
            raise reachable()
        return Records(kept, current_place(kept)[0])

    def _opened(self, con: Connection) -> Connection:
        self._stack.callback(con.close)
        return con
