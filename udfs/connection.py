"""What a party's connection is: which database it has open, and what its cursors do not share.

Nothing here changes a database, and nothing ends a result that the owner has open: names and
settings are asked while DuckDB binds a query that is not run.
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
from sqlfl.udfs.binding import bound, choosing
from sqlfl.udfs.blocks.block_tables import Database

MEANING = (
    "Calendar", "TimeZone", "binary_as_string", "default_collation", "default_null_order",
    "default_order", "disable_timestamptz_casts", "error_on_division_by_zero", "file_search_path",
    "home_directory", "ieee_floating_point_ops", "ignore_unknown_crs", "integer_division",
    "legacy_disable_null_type", "order_by_non_integer_literal", "pivot_limit",
    "regex_match_operator_semantics", "scalar_subquery_error_on_multiple_rows",
)  # fmt: skip
"""Settings of a connection that change what an expression is, or which file a path names."""

_ROUNDS = 3
_NOTHING = "-"


@dataclass(frozen=True)
class TableLocation:
    """Which schema of which database the tables of a client are of."""

    catalog: str
    schema: str
    file: str
    """Of the database, the same for every way to it; empty where it is in memory."""

    @property
    def name(self) -> str:
        return f"{self.catalog}.{self.schema}"

    def is_same(self, other: TableLocation, *, one_instance: bool) -> bool:
        """Both name the same tables. `one_instance`: of DuckDB, which has both open."""
        if self.schema.lower() != other.schema.lower():
            return False
        if self.file or other.file:
            return self.file == other.file
        return one_instance and self.catalog.lower() == other.catalog.lower()


def located(database: Database) -> TableLocation:
    file = _file(database.path, database.kind) if database.path else ""
    return TableLocation(database.catalog, database.schema, file)


def files(con: sql.Connection) -> dict[str, str]:
    """By name, the databases of the connection that are not in memory: what tells each apart.

    For a file that is where it is on its disk, so that links and other spellings count as one; for
    a database on a server, its type and how it was named.
    """
    columns = [sql.column(name) for name in ("database_name", "path", "type")]
    query = sql.select(exp.Table(this=sql.call("duckdb_databases")), columns)
    return {name: _file(path, kind) for name, path, kind in sql.fetch(con, query) if path}


def instances(connections: Sequence[sql.Connection]) -> list[int]:
    """For each connection the place of the first one that is of the same instance of DuckDB.

    An instance numbers its connections as they are opened. Cursors of one open in the order in
    which they are made here, and between two of its own another instance has room for none.
    """
    first, second = numbers(connections), numbers(connections)
    found = list(range(len(connections)))
    for place, con in enumerate(connections):
        if second[place] == first[place] + 1:
            continue
        for other in range(place):
            if found[other] == other and _same_instance(connections[other], con):
                found[place] = other
                break
    return found


def numbers(connections: Iterable[sql.Connection]) -> list[int]:
    """What its instance numbers a connection that is opened now, for each.

    The next number comes next where none was opened in between: so one look at many others, which
    opens a connection of each, tells whether any is of the same instance.
    """
    return [_number(con) for con in connections]


def idle(con: sql.Connection) -> bool:
    """It is open, and no thread works on it just now."""
    try:
        con.cursor().close()
    except (duckdb.ConnectionException, duckdb.ResourceInUseException):
        return False
    return True


def session_settings(con: sql.Connection) -> dict[str, str]:
    """Those of `MEANING` that `con` has set for itself, with the values on its cursors."""
    with closing(sql.cursor(con)) as cursor:
        shared = _shared(cursor)
    given = tuple((name, shared[name]) for name in MEANING if name in shared)
    differing = bound(con, _differing(given))
    return {name: str(shared[name]) for name in differing if name != _NOTHING}


def has_open_transaction(con: sql.Connection) -> bool:
    """Whether the connection's owner has begun a transaction and not ended it.

    False where a result of the connection has not been read to its end: nobody can tell then.
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
    """Bytes, of a size as DuckDB shows it; None for what is more than there is of anything."""
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
    with closing(sql.cursor(con)) as cursor:
        return int(sql.fetch(cursor, exp.select(sql.call("current_connection_id")))[0][0])


def _same_instance(one: sql.Connection, other: sql.Connection) -> bool:
    """Several times, for other threads may open connections too."""
    return all(_number(one) < _number(other) < _number(one) for _ in range(_ROUNDS))


def _shared(cursor: sql.Connection) -> dict[str, str | None]:
    """The values of `MEANING`, of those that there are: some come with extensions."""
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
    """A query whose columns are the settings that are not as given, and `_NOTHING`."""
    chosen: list[exp.Expr] = [sql.string(_NOTHING)]
    for name, value in shared:
        setting = sql.text(sql.own_call("current_setting", sql.string(name)))
        other = exp.Null() if value is None else sql.string(value)
        differs = exp.NullSafeNEQ(this=setting, expression=other)
        chosen.append(sql.when(differs, sql.string(name), sql.string(_NOTHING)))
    return choosing([_NOTHING, *(name for name, _ in shared)], chosen)


@lru_cache(maxsize=1)
def _transaction() -> str:
    """A query whose column is the last digit of the transaction's number, which is another for each
    query where none has been begun."""
    digit = sql.own_call("mod", sql.own_call("txid_current"), sql.number(10))
    return choosing(list(string.digits), [sql.text(digit)])
