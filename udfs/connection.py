"""Properties of a party's connection: its current database, and settings that its cursors do not
share.

Nothing here changes a database, or ends a result that the owner has open: DuckDB reports names and
settings while it binds a query that is not run.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache

import duckdb
from sqlglot import exp

from sqlfl.udfs import sql
from sqlfl.udfs.blocks.block_tables import Database
from sqlfl.udfs.describe import bound, choosing

MEANING = (
    "Calendar", "TimeZone", "binary_as_string", "default_collation", "default_null_order",
    "default_order", "disable_timestamptz_casts", "error_on_division_by_zero", "file_search_path",
    "home_directory", "ieee_floating_point_ops", "ignore_unknown_crs", "integer_division",
    "legacy_disable_null_type", "order_by_non_integer_literal", "pivot_limit",
    "regex_match_operator_semantics", "scalar_subquery_error_on_multiple_rows",
)  # fmt: skip
"""Settings of a connection that change the meaning of an expression, or the file that a
path names.
"""

_ROUNDS = 3
_NOTHING = "-"


@dataclass(frozen=True)
class TableLocation:
    """The database and schema of a client's tables."""

    catalog: str
    schema: str
    file: str
    """The database's file, the same for every path to it; empty for one in memory."""

    @property
    def name(self) -> str:
        return f"{self.catalog}.{self.schema}"

    def is_same(self, other: TableLocation, *, one_instance: bool) -> bool:
        """Return whether both name the same tables. `one_instance`: one DuckDB instance has both
        open.
        """
        if self.schema.lower() != other.schema.lower():
            return False
        if self.file or other.file:
            return self.file == other.file
        return one_instance and self.catalog.lower() == other.catalog.lower()


def located(database: Database) -> TableLocation:
    file = _file(database.path, database.kind) if database.path else ""
    return TableLocation(database.catalog, database.schema, file)


def files(con: sql.Connection) -> dict[str, str]:
    """Return name -> identity of the connection's databases, without those in memory.

    A file's identity is its resolved path, so that links and other spellings count as one; a
    server's database has its type and name.
    """
    columns = [sql.column(name) for name in ("database_name", "path", "type")]
    query = sql.select(exp.Table(this=sql.call("duckdb_databases")), columns)
    return {name: _file(path, kind) for name, path, kind in sql.fetch(con, query) if path}


def instances(connections: Sequence[sql.Connection]) -> list[int]:
    """Return for each connection the place of the first one of the same DuckDB instance.

    An instance numbers its connections as they are opened. Cursors made here in sequence have
    consecutive numbers only within one instance.
    """
    first, second = numbers(connections), numbers(connections)
    firsts = list(range(len(connections)))
    for place, con in enumerate(connections):
        if second[place] == first[place] + 1:
            continue
        for other in range(place):
            if firsts[other] == other and _same_instance(connections[other], con):
                firsts[place] = other
                break
    return firsts


def numbers(connections: Iterable[sql.Connection]) -> list[int]:
    """Return for each connection the number that its instance gives to a new connection.

    Consecutive numbers mean that no other connection was opened in between. So one pass over many
    others, which opens a connection of each, shows whether any is of the same instance.
    """
    return [_number(con) for con in connections]


def idle(con: sql.Connection) -> bool:
    """Return whether it is open and no thread uses it now."""
    try:
        con.cursor().close()
    except (duckdb.ConnectionException, duckdb.ResourceInUseException):
        return False
    return True


def session_settings(con: sql.Connection) -> dict[str, str]:
    """Return the settings of `MEANING` that `con` has set itself, with the values on
    its cursors.
    """
    with closing(sql.system_cursor(con)) as cursor:
        shared = _shared(cursor)
    given = tuple((name, shared[name]) for name in MEANING if name in shared)
    differing = bound(con, _differing(given))
    return {name: str(shared[name]) for name in differing if name != _NOTHING}


def has_open_transaction(con: sql.Connection) -> bool:
    """Return whether the connection's owner has an open transaction. False if a result of the
    connection is unread, because it is then unknown.
    """
    number = bound(con, _transaction())
    if any(bound(con, _transaction()) != number for _ in range(_ROUNDS)):
        return False
    try:
        con.sql("SELECT 1").fetchall()  # in the owner's transaction, or refused
    except duckdb.ResourceInUseException:
        return False
    except duckdb.TransactionException:  # it has failed, and waits for its end
        return True
    return True


def size_of(text: str) -> int | None:
    """Return bytes of a size as DuckDB prints it; None for larger units than exist."""
    number, _, unit = text.partition(" ")
    power = _UNITS.find(unit[:1])
    return None if power < 0 else int(float(number) * 1024**power)


_UNITS = "bKMGT"


def _file(path: str, kind: str) -> str:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return f"{kind}:{path}"
    return f"{status.st_dev}:{status.st_ino}"


def _number(con: sql.Connection) -> int:
    with closing(sql.system_cursor(con)) as cursor:
        return int(sql.fetch(cursor, _NUMBER)[0][0])


_NUMBER = sql.constant(sql.query("SELECT current_connection_id()"))


def _same_instance(one: sql.Connection, other: sql.Connection) -> bool:
    """Several times, for other threads may open connections too."""
    return all(_number(one) < _number(other) < _number(one) for _ in range(_ROUNDS))


def _shared(cursor: sql.Connection) -> dict[str, str | None]:
    """Return the values of those `MEANING` settings that exist: some come with extensions."""
    try:
        return dict(zip(MEANING, sql.fetch(cursor, _meaning())[0], strict=True))
    except duckdb.CatalogException:
        names = [sql.column("name"), sql.column("value")]
        listed = sql.select(exp.Table(this=sql.call("duckdb_settings")), names)
        return dict(sql.fetch(cursor, listed))


@lru_cache(maxsize=1)
def _meaning() -> exp.Var:
    settings = (sql.text(sql.call("current_setting", sql.string(name))) for name in MEANING)
    return sql.constant(exp.select(*settings))


@lru_cache(maxsize=64)
def _differing(shared: tuple[tuple[str, str | None], ...]) -> str:
    """Return a query whose columns are the settings with other values, and `_NOTHING`."""
    chosen: list[exp.Expr] = [sql.string(_NOTHING)]
    for name, value in shared:
        setting = sql.text(sql.own_call("current_setting", sql.string(name)))
        other = exp.Null() if value is None else sql.string(value)
        differs = exp.NullSafeNEQ(this=setting, expression=other)
        chosen.append(sql.when(differs, sql.string(name), sql.string(_NOTHING)))
    return choosing([_NOTHING, *(name for name, _ in shared)], chosen)


@lru_cache(maxsize=1)
def _transaction() -> str:
    """Return a query whose column is the last digit of the transaction's number, which changes with
    each query outside a transaction.
    """
    digit = sql.own_call("mod", sql.own_call("txid_current"), sql.number(10))
    return choosing(list(string.digits), [sql.text(digit)])
