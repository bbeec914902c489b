"""Blocks of models in a schema of the client's database or store."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from sqlglot import exp

from sqlfl.base.errors import Error, ModelError
from sqlfl.databases.files import FileIdentity, private_log
from sqlfl.udfs import sql
from sqlfl.udfs.blocks.blocks import FORMAT, ClientBlocks, MemoryBlocks, SavedBlock
from sqlfl.udfs.describe import current_place

SCHEMA = "sqlfl"
# later formats of a row keep the columns coordinator, client, run, slot, format
BLOCKS = {
    "coordinator": "VARCHAR",
    "client": "VARCHAR",
    "run": "VARCHAR",
    "slot": "INTEGER",
    "model": "VARCHAR",
    "saved_at": "TIMESTAMPTZ",
    "format": "INTEGER",
    "block": "BLOB",
}
OBJECTS = ("table", "view", "function", "type", "sequence")
"""Kinds of objects in a schema, named as in the DuckDB function that lists them."""
SECRETS = {"coordinator": "VARCHAR", "client": "VARCHAR", "purpose": "VARCHAR", "secret": "BLOB"}

_WRITING = threading.Lock()
"""Several clients may share a store, and their first saves would collide in its catalog."""


class DatabaseBlocks(MemoryBlocks):
    """Blocks in the schema `sqlfl` of the database `catalog` of `con`.

    The schema is made when the first block is kept, and goes with the last one, unless the secret
    of noised labels lies there too (sqlfl.udfs.labels.label_secret). Rows carry the ids of the
    coordinator and of the client, so that several of either share a database. `con` is worked on by
    cursors only.

    Where the database is only to be read (`reason` says why), what it has is loaded, and nothing
    that is saved lasts.
    """

    def __init__(
        self,
        con: sql.Connection,
        catalog: str,
        coordinator: str,
        client: str,
        *,
        path: str | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(reason)
        self._con = con
        self._catalog = catalog
        self._path = path
        self._file = None if path is None else FileIdentity(path)
        self._owner: dict[str, object] = {"coordinator": coordinator, "client": client}

    @property
    def lasting(self) -> bool:
        return not self.reason

    @property
    def runs(self) -> frozenset[str]:
        with self._reading() as cursor:
            kept = self._kept_runs(cursor) if self._tables(cursor) else set()
        return super().runs | kept

    def keep(self, run: str) -> None:
        if self.reason:
            super().keep(run)
        if self._file is not None and not self._file.holds:
            raise Error(
                "the file of the database that is to keep its blocks has been deleted or replaced "
                "since it was opened",
                hint="put the file back, open it again, and attach that",
            )
        with _WRITING, self._transaction() as cursor:
            self._make_tables(cursor)
            for slot, (name, block) in self._blocks.get(run, {}).items():
                row = {
                    "run": run,
                    "slot": slot,
                    "model": name,
                    "saved_at": dt.datetime.now(dt.UTC),
                    "format": block.format,
                    "block": block.to_bytes(),
                }
                self._insert(cursor, "blocks", self._owner | row)
            kept = {purpose for (purpose,) in self._select(cursor, "secrets", ["purpose"])}
            for purpose in self._secrets.keys() - kept:
                row = {"purpose": purpose, "secret": self._secrets[purpose]}
                self._insert(cursor, "secrets", self._owner | row)
        super().drop(run)

    def load(self, run: str, slot: int) -> SavedBlock | None:
        held = super().load(run, slot)
        if held is not None:
            return held
        with self._reading() as cursor:
            if not self._tables(cursor):
                return None
            place: dict[str, object] = {"run": run, "slot": slot}
            rows = self._select(cursor, "blocks", ["format", "block"], place)
        if not rows:
            return None
        name, data = rows[0]
        if name is not None and name > FORMAT:
            raise ModelError(
                f"the block was saved by a newer sqlfl, in format {name}; this one reads {FORMAT}",
                hint="upgrade sqlfl",
            )
        try:
            block = SavedBlock.from_bytes(data)
            if len(rows) > 1 or name != block.format:
                raise ValueError
            return block
        except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException) as error:
            raise ModelError(
                f"its block of the model, in {SCHEMA}.blocks with run = '{run}', is damaged",
                hint="restore the database from a backup, or train the model again",
            ) from error

    def drop(self, run: str) -> None:
        super().drop(run)
        self._remove({run})

    def collect(self, keep: Collection[str]) -> None:
        super().collect(keep)
        with self._reading() as cursor:
            self._refuse_foreign(cursor)
            if self.reason or not self._tables(cursor):
                return
            orphans = self._kept_runs(cursor).difference(keep)
        self._remove(orphans, tidy=True)

    def secret(self, purpose: str) -> bytes:
        if purpose not in self._secrets:
            with self._reading() as cursor:
                if self._tables(cursor):
                    wanted: dict[str, object] = {"purpose": purpose}
                    for (value,) in self._select(cursor, "secrets", ["secret"], wanted):
                        self._secrets[purpose] = value
        return super().secret(purpose)

    # -- statements -------------------------------------------------------------------------------

    def _remove(self, runs: Collection[str], *, tidy: bool = False) -> None:
        """Delete the blocks of these runs, and with the client's last block its secrets. `tidy`:
        remove empty tables even if there is nothing to delete.
        """
        if self.reason:
            return
        with _WRITING, self._transaction() as cursor:
            if not self._tables(cursor):
                return
            runs = self._kept_runs(cursor).intersection(runs)
            if not runs and not tidy:
                return
            for run in sorted(runs):
                self._delete(cursor, "blocks", {"run": run})
            if not self._kept_runs(cursor):
                self._delete(cursor, "secrets", {})
            if not sql.fetch(cursor, _any(self._catalog)):
                self._drop_tables(cursor)

    def _drop_tables(self, cursor: sql.Connection) -> None:
        """Drop the tables, and the schema unless the owner has put other objects into it."""
        for name in ("blocks", "secrets"):
            sql.drop_as(cursor, "DROP TABLE t", self._table(name))
        if not any(self._names(cursor, kind) for kind in OBJECTS):
            sql.drop_as(cursor, "DROP SCHEMA t", exp.table_(SCHEMA, db=self._catalog, quoted=True))

    def _tables(self, cursor: sql.Connection) -> bool:
        """Return whether the schema's tables exist."""
        return self._names(cursor, "table") >= {"blocks", "secrets"}

    def _names(self, cursor: sql.Connection, kind: str) -> set[str]:
        """Return the names of a kind of object in the schema, in lower case."""
        rows = _listed(cursor, self._catalog, kind, [f"{kind}_name"])
        return {row[0].lower() for row in rows}

    def _refuse_foreign(self, cursor: sql.Connection) -> None:
        """Raise Error if the owner has made other tables or views with our names."""
        tables = own_tables(cursor, self._catalog)
        for name, wanted in (("blocks", BLOCKS), ("secrets", SECRETS)):
            missing = wanted.keys() - tables.get(name, wanted.keys())
            if missing:
                raise Error(
                    f"its {SCHEMA}.{name} is not the table that sqlfl keeps models in: the columns "
                    f"{', '.join(sorted(missing))} are missing",
                    hint="rename what is there, or give a store=...",
                )

    def _make_tables(self, cursor: sql.Connection) -> None:
        for statement in _making(self._catalog):
            sql.run(cursor, statement)

    def _kept_runs(self, cursor: sql.Connection) -> set[str]:
        return {run for (run,) in self._select(cursor, "blocks", ["run"])}

    def _select(
        self,
        cursor: sql.Connection,
        table: str,
        columns: Sequence[str],
        place: dict[str, object] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return the client's rows of a table, or only those at `place`."""
        conditions = self._owner | (place or {})
        query = _selecting(self._catalog, table, tuple(columns), tuple(conditions))
        return sql.fetch(cursor, query, conditions)

    def _insert(self, cursor: sql.Connection, table: str, row: dict[str, object]) -> None:
        sql.run(cursor, _inserting(self._catalog, table, tuple(row)), row)

    def _delete(self, cursor: sql.Connection, table: str, place: dict[str, object]) -> None:
        conditions = self._owner | place
        sql.run(cursor, _deleting(self._catalog, table, tuple(conditions)), conditions)

    def _table(self, name: str) -> exp.Table:
        return _table(self._catalog, name)

    @contextmanager
    def _reading(self) -> Iterator[sql.Connection]:
        """Yield a cursor in one transaction, so that tables cannot disappear between queries."""
        cursor = sql.cursor(self._con)
        try:
            cursor.begin()
            yield cursor
        finally:
            cursor.close()  # which rolls back

    @contextmanager
    def _transaction(self) -> Iterator[sql.Connection]:
        with self._reading() as cursor:
            yield cursor
            private_log(self._path)
            cursor.commit()


@dataclass(frozen=True)
class Database:
    """The current database of a connection, and its current schema."""

    catalog: str
    schema: str
    path: str | None
    """None for a database in memory."""
    read_only: bool
    kind: str
    """'duckdb', or the type of another attached database."""

    @property
    def reason(self) -> str:
        """Why it can be given no blocks, to follow its owner's name; empty where it can."""
        if self.kind != "duckdb":
            return f"is a database of type {self.kind}"
        if self.read_only:
            return "is read-only"
        return "" if self.path else "is in memory"


def current_database(con: sql.Connection) -> Database:
    """Return the database of tables named without one."""
    return database_of(con, *current_place(con))


def database_of(con: sql.Connection, catalog: str, schema: str = "main") -> Database:
    """The one of that name."""
    cursor = sql.system_cursor(con)
    try:
        ((path, read_only, kind),) = sql.fetch(cursor, _one_database(), {"catalog": catalog})
    finally:
        cursor.close()
    return Database(catalog, schema, path or None, read_only, kind)


@lru_cache(maxsize=1)
def _one_database() -> exp.Var:
    source = exp.Table(this=sql.call("duckdb_databases"))
    query = sql.select(source, [sql.column(name) for name in ("path", "readonly", "type")])
    named = sql.equal(sql.column("database_name"), sql.parameter("catalog"))
    return sql.constant(query.where(named))


def own_tables(cursor: sql.Connection, catalog: str) -> dict[str, set[str]]:
    """The tables and views of the schema `sqlfl`, each with its columns, in small letters."""
    columns: dict[str, set[str]] = {}
    for table, column in _listed(cursor, catalog, "column", ["table_name", "column_name"]):
        columns.setdefault(table.lower(), set()).add(column.lower())
    return columns


def blocks_of(
    con: sql.Connection, coordinator: str, client: str, database: Database | None = None
) -> ClientBlocks:
    """Blocks in the current database of `con`; one that may not be written is read only.

    `database` is that database, where it has been asked for already.
    """
    database = database or current_database(con)
    if database.kind != "duckdb" or not database.path:
        return MemoryBlocks(database.reason)
    return DatabaseBlocks(
        con, database.catalog, coordinator, client, path=database.path, reason=database.reason
    )


def _listed(
    cursor: sql.Connection, catalog: str, kind: str, columns: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return the database's listing of the schema `sqlfl`, whose name may be in any case."""
    return sql.fetch(cursor, _listing(catalog, kind, tuple(columns)))


# -- statements, which a client runs repeatedly ----------------------------------------------------


@lru_cache(maxsize=64)
def _listing(catalog: str, kind: str, columns: tuple[str, ...]) -> exp.Var:
    source = exp.Table(this=sql.call(f"duckdb_{kind}s"))
    query = sql.select(source, [sql.column(name) for name in columns]).where(
        sql.equal(sql.column("database_name"), sql.string(catalog)),
        sql.equal(sql.call("lower", sql.column("schema_name")), sql.string(SCHEMA)),
    )
    return sql.constant(query)


@lru_cache(maxsize=16)
def _making(catalog: str) -> tuple[exp.Var, ...]:
    schema = exp.table_(SCHEMA, db=catalog, quoted=True)
    statements = [exp.Create(this=schema, kind="SCHEMA", exists=True)]
    for name, columns in (("blocks", BLOCKS), ("secrets", SECRETS)):
        definitions = [
            exp.ColumnDef(this=exp.to_identifier(c, quoted=True), kind=exp.DataType.build(t))
            for c, t in columns.items()
        ]
        table = exp.Schema(this=_table(catalog, name), expressions=definitions)
        statements.append(exp.Create(this=table, kind="TABLE", exists=True))
    return tuple(sql.constant(statement) for statement in statements)


@lru_cache(maxsize=64)
def _selecting(
    catalog: str, table: str, columns: tuple[str, ...], place: tuple[str, ...]
) -> exp.Var:
    query = sql.select(_table(catalog, table), [sql.column(name) for name in columns])
    return sql.constant(query.where(_all_equal(place)))


@lru_cache(maxsize=64)
def _inserting(catalog: str, table: str, row: tuple[str, ...]) -> exp.Var:
    values = exp.select(*(sql.parameter(name) for name in row))
    names = [exp.to_identifier(name, quoted=True) for name in row]
    into = exp.Schema(this=_table(catalog, table), expressions=names)
    return sql.constant(exp.Insert(this=into, expression=values))


@lru_cache(maxsize=64)
def _deleting(catalog: str, table: str, place: tuple[str, ...]) -> exp.Var:
    return sql.constant(exp.delete(_table(catalog, table), where=_all_equal(place)))


@lru_cache(maxsize=16)
def _any(catalog: str) -> exp.Var:
    """A row where anybody keeps a block."""
    return sql.constant(exp.select(sql.number(1)).from_(_table(catalog, "blocks")).limit(1))


def _table(catalog: str, name: str) -> exp.Table:
    return exp.table_(name, db=SCHEMA, catalog=catalog, quoted=True)


def _all_equal(place: Sequence[str]) -> exp.Expr:
    """Parties' names are compared as in SQL, ignoring case."""

    def matched(name: str) -> exp.Expr:
        pair: tuple[exp.Expr, exp.Expr] = (sql.column(name), sql.parameter(name))
        if name == "client":
            pair = sql.call("lower", pair[0]), sql.call("lower", pair[1])
        return sql.equal(*pair)

    return exp.and_(*(matched(name) for name in place))
