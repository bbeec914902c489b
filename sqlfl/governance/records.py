"""Tables of the schema `sqlfl`, in which a party keeps its owner's rules and the record of allowed
runs: in its own database, or in its store (sqlfl.governance.policy_store).
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache, cached_property, lru_cache
from typing import Any, overload

import duckdb
from sqlglot import exp, parse_one

from sqlfl.base.errors import Error
from sqlfl.databases.files import private_log
from sqlfl.transport.audit_chain import COLUMNS
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_tables import Database, database_of
from sqlfl.udfs.describe import use

SCHEMA = "sqlfl"
TRIES = 200
POLICIES = {
    "name": "VARCHAR",
    "version": "INTEGER",
    "rules": "VARCHAR",
    "made_at": "TIMESTAMPTZ",
    "dropped_at": "TIMESTAMPTZ",
}
GRANTS = {
    "number": "INTEGER",
    "analyst": "VARCHAR",
    "database": "VARCHAR",
    "schema": "VARCHAR",
    "name": "VARCHAR",
    "roles": "VARCHAR",
    "policy": "VARCHAR",
    "until": "TIMESTAMPTZ",
    "definition": "VARCHAR",
    "granted_at": "TIMESTAMPTZ",
    "revoked_at": "TIMESTAMPTZ",
}
REQUESTS = {
    "number": "INTEGER",
    "digest": "VARCHAR",
    "analyst": "VARCHAR",
    "tables": "VARCHAR",
    "request": "VARCHAR",
    "fragments": "VARCHAR",
    "asked_at": "TIMESTAMPTZ",
    "state": "VARCHAR",
    "because": "VARCHAR",
    "decided_at": "TIMESTAMPTZ",
}
REQUEST_COLUMNS = {"number": "INTEGER", "specification": "VARCHAR", "columns": "VARCHAR"}
"""Specification of each request, and its columns by role; none for those of earlier versions."""
STUDIES = {"number": "INTEGER", "name": "VARCHAR", "study": "VARCHAR"}
"""Studies, by the numbers of their requests."""
STUDY_RUNS = {
    "number": "INTEGER",
    "run": "VARCHAR",
    "digest": "VARCHAR",
    "begun_at": "TIMESTAMPTZ",
}
"""Runs that have begun within a study."""
OUTSIDE = {"number": "INTEGER", "study": "VARCHAR", "differences": "VARCHAR"}
"""Requests of runs that exceeded the study which they named, with the differences."""
NOTIFIED = {"number": "INTEGER", "notified_at": "TIMESTAMPTZ"}
"""Requests of which the owner's command was told."""
RUNS = {
    "run": "VARCHAR",
    "analyst": "VARCHAR",
    "digest": "VARCHAR",
    "begun_at": "TIMESTAMPTZ",
}
LEDGER = {
    "number": "INTEGER",
    "run": "VARCHAR",
    "analyst": "VARCHAR",
    "database": "VARCHAR",
    "schema": "VARCHAR",
    "name": "VARCHAR",
    "what": "VARCHAR",
    "multiplier": "DOUBLE",
    "epsilon": "DOUBLE",
    "delta": "DOUBLE",
    "identity": "VARCHAR",
    "state": "VARCHAR",
    "reserved_at": "TIMESTAMPTZ",
    "ended_at": "TIMESTAMPTZ",
}
DRAWS = {
    "identity": "VARCHAR",
    "state": "VARCHAR",
    "most": "INTEGER",
    "who": "BLOB",
    "what": "BLOB",
    "drawn_at": "TIMESTAMPTZ",
}
"""States that tables had in draws of labels: hashes that no earlier state has, and the maximum
number of draws of one row by then; 0 if rows are not recognised.
"""
SEEN = {
    "analyst": "VARCHAR",
    "database": "VARCHAR",
    "schema": "VARCHAR",
    "name": "VARCHAR",
    "family": "VARCHAR",
    "digest": "VARCHAR",
    "marks": "BLOB",
    "counts": "BLOB",
    "seen_at": "TIMESTAMPTZ",
}
MODELS = {"run": "VARCHAR", "analyst": "VARCHAR", "kept_at": "TIMESTAMPTZ"}
"""Analyst of the run of kept blocks."""
TRAINED = {
    "run": "VARCHAR",
    "analyst": "VARCHAR",
    "model": "VARCHAR",
    "database": "VARCHAR",
    "schema": "VARCHAR",
    "name": "VARCHAR",
    "trained_at": "TIMESTAMPTZ",
    "dropped_at": "TIMESTAMPTZ",
}
"""Tables of kept models' features, a row each; one without a name for a model of none."""
LOCKS = {
    "analyst": "VARCHAR",
    "database": "VARCHAR",
    "schema": "VARCHAR",
    "name": "VARCHAR",
    "locked_at": "TIMESTAMPTZ",
}
"""Locks of REVOKE ... AND MODELS: earlier models of the analyst on the table are locked."""
RECORD = COLUMNS
"""Record of messages (sqlfl.transport.audit_chain)."""
TURNS = {"number": "BIGINT"}
"""One row, which every change in turn changes, so that two at once are in conflict."""
TABLES = {
    "policies": POLICIES,
    "grants": GRANTS,
    "requests": REQUESTS,
    "request_columns": REQUEST_COLUMNS,
    "studies": STUDIES,
    "study_runs": STUDY_RUNS,
    "outside": OUTSIDE,
    "notified": NOTIFIED,
    "runs": RUNS,
    "ledger": LEDGER,
    "draws": DRAWS,
    "seen": SEEN,
    "models": MODELS,
    "trained": TRAINED,
    "locks": LOCKS,
    "chain": RECORD,
    "turns": TURNS,
}


_CHANGES = itertools.count(1)
_LOCKS: dict[str | None, threading.RLock] = {}
"""Lock of each database, by its path; one for all in memory. DuckDB's transactions do not exclude
one another where they insert rows by what they have counted.
"""


class Records:
    """Records of the database `catalog` of `con`. Only cursors work on it."""

    changes = 0
    """Number of changes, in any database, by statements of this process. It is the only one that
    can write to its open databases.
    """

    def __init__(self, con: sql.Connection, catalog: str) -> None:
        self.con, self._catalog = con, catalog
        self._made = False
        """True if the tables existed at the last write."""

    def by(self, con: sql.Connection) -> Records:
        """Return the same records, by another connection to them."""
        records = Records(con, self._catalog)
        records._made, records.database = self._made, self.database
        return records

    @cached_property
    def database(self) -> Database:
        return database_of(self.con, self._catalog)

    def cursor(self) -> sql.Connection:
        """Return a cursor for reading; the caller closes it."""
        return sql.system_cursor(self.con)

    def check_attached(self) -> None:
        """Raise Error if the connection no longer has the database: `rows` would find none."""
        with closing(self.cursor()) as cursor:
            try:
                use(cursor, (self._catalog, "main"))
            except duckdb.CatalogException:
                raise Error(
                    "the store, which may have its owner's policies, is gone from its connection",
                    hint="attach the store's database there again, and the party with it",
                ) from None

    def rows(
        self,
        cursor: sql.Connection,
        text: str,
        table: str,
        parameters: dict[str, object] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return the rows; none if the table is missing, because the owner has made no policy or
        grant.
        """
        query = _of_table(text, self._catalog, table)
        try:
            return cursor.execute(sql.again(cursor, query), parameters or {}).fetchall()
        except duckdb.CatalogException:
            return []

    def insert(self, cursor: sql.Connection, table: str, row: tuple[object, ...]) -> None:
        places = ", ".join("?" * len(row))
        query = _of_table(f"INSERT INTO t VALUES ({places})", self._catalog, table)
        cursor.execute(sql.again(cursor, query), list(row)).fetchall()

    def append(
        self,
        cursor: sql.Connection,
        table: str,
        columns: Mapping[str, str],
        rows: Sequence[tuple[object, ...]],
    ) -> None:
        """Append many rows, numbered by the first column; times are whole µs since 1970, UTC."""
        first, *others = ([*column] for column in zip(*rows, strict=True))
        same = tuple(column.count(column[0]) == len(column) for column in others)
        query = _of_table(_appending(tuple(columns.values()), same), self._catalog, table)
        values = [first, *(c[0] if one else c for c, one in zip(others, same, strict=True))]
        cursor.execute(sql.again(cursor, query), values).fetchall()

    def writing(self) -> AbstractContextManager[sql.Connection]:
        """Return a cursor in a transaction in which the tables exist. It excludes all others, so
        that what it counts is so when it commits. Raise Error if the database is read-only.
        """
        return self._writing(rules=True)

    def in_turn(self, work: Callable[[sql.Connection, int], None]) -> None:
        """Work in a transaction that excludes the others of its kind: the later one is repeated. It
        receives its number; the next one's is one more.
        """
        for left in reversed(range(TRIES)):
            try:
                with self._writing(rules=False) as cursor:
                    taken = self.rows(
                        cursor, "UPDATE t SET number = number + 1 RETURNING number", "turns"
                    )
                    if not taken:
                        raise Error(
                            f"schema {SCHEMA} of its database is damaged: turns has no row",
                            hint="its owner makes a policy anew; nothing leaves until then",
                        )
                    work(cursor, taken[0][0])
                return
            except duckdb.TransactionException:
                if not left:
                    raise
                time.sleep(random.uniform(0.001, 0.01))

    @contextmanager
    def _writing(self, *, rules: bool) -> Iterator[sql.Connection]:
        """Open a transaction. `rules`: the rules may change."""
        if self.database.read_only:
            raise Error(
                f"the database {self._catalog} is read-only, and takes no records",
                hint='sqlfl.owner(source, store="records.duckdb") keeps them in a store',
            )
        lock = _LOCKS.setdefault(self.database.path, threading.RLock())
        with lock, closing(self.cursor()) as cursor:
            cursor.begin()
            try:
                if not self._made:
                    self._make(cursor)
                yield cursor
                private_log(self.database.path)
                cursor.commit()
            except BaseException:
                self._made = False
                cursor.rollback()
                raise
        self._made = True
        if rules:
            Records.changes = next(_CHANGES)

    def _make(self, cursor: sql.Connection) -> None:
        if sql.fetch(cursor, _THERE, {"catalog": self._catalog})[0][0] == len(TABLES):
            return
        schema = exp.Create(
            kind="SCHEMA", this=exp.table_(SCHEMA, db=self._catalog, quoted=True), exists=True
        )
        cursor.execute(sql.to_sql(schema)).fetchall()
        for name, columns in TABLES.items():
            told = ", ".join(f'"{column}" {kind}' for column, kind in columns.items())
            text = f"CREATE TABLE IF NOT EXISTS t ({told})"
            cursor.execute(_of_table(text, self._catalog, name)).fetchall()


_THERE = sql.constant(
    sql.query(
        f"""SELECT count(*) AS n FROM duckdb_tables() WHERE database_name = $catalog
        AND schema_name = '{SCHEMA}' AND table_name IN ({", ".join(f"'{n}'" for n in TABLES)})"""
    )
)


@cache
def _appending(types: tuple[str, ...], same: tuple[bool, ...]) -> str:
    """Return the statement. One list for a column takes a fifth of the time of a place for each
    value; one value less, if it is the `same` in all rows. The first column is a list.
    """
    ones = (False, *same)
    places = (f"${n}" if one else f"unnest(${n})" for n, one in enumerate(ones, 1))
    given = (
        f"make_timestamptz({place})" if kind.startswith("TIMESTAMP") else place
        for place, kind in zip(places, types, strict=True)
    )
    return f"INSERT INTO t SELECT {', '.join(given)}"


@lru_cache(maxsize=256)
def _of_table(text: str, catalog: str, table: str) -> str:
    """Return the statement, with this table of the schema in place of `t`."""
    tree = parse_one(text, dialect="duckdb")
    named = exp.table_(table, db=SCHEMA, catalog=catalog, quoted=True)
    for place in list(tree.find_all(exp.Table)):
        place.replace(named.copy())
    return sql.to_sql(tree)


@overload
def time_of(microseconds: int) -> dt.datetime: ...


@overload
def time_of(microseconds: int | None) -> dt.datetime | None: ...


def time_of(microseconds: int | None) -> dt.datetime | None:
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return None if microseconds is None else epoch + dt.timedelta(microseconds=microseconds)
