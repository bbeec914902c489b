"""Synthetic rows, made from a table's column types and the query alone.

They follow from names, types, and constants of the query: two databases with tables of the same
types have the same rows, whatever the tables contain.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import duckdb
from sqlglot import exp

from sqlfl.base.errors import Error
from sqlfl.messages import MADE_UP
from sqlfl.udfs import sql

MAX_CONSTANTS = 100
"""Maximum constants of the query among a column's values."""
TEXTS = 5
"""Distinct values of a column that is no number."""
NOTHING = "sqlfl_nothing"
"""The column of a table without used columns."""
_ROOM = {"TINYINT": 100, "UTINYINT": 100, "SMALLINT": 30_000, "USMALLINT": 30_000}
"""Numbers that small types have."""
_WHOLE = (
    *_ROOM, "INTEGER", "BIGINT", "HUGEINT", "UINTEGER", "UBIGINT", "UHUGEINT", "BIGNUM",
)  # fmt: skip
_BROKEN = ("FLOAT", "DOUBLE", "DECIMAL")
_DAYS = (
    "DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE",
)  # fmt: skip
_TIMES = ("TIME", "TIME_NS", "TIME WITH TIME ZONE")
_PLAIN = ("VARCHAR", "BLOB", "JSON", "VARIANT")


@dataclass(frozen=True)
class SyntheticColumn:
    """A query's use of a column, which decides its synthetic values. A key's values are all
    distinct, and the same at every party; others are drawn.
    """

    key: bool = False
    bounds: tuple[float, float] | None = None
    """Least and largest value of numbers."""
    listed: tuple[str, ...] = ()
    """All values, as texts."""
    beside: tuple[str | None, ...] = ()
    """Constants of the query that some values take, as texts; None for NULL."""


def made_up(columns: Mapping[str, tuple[str, SyntheticColumn]], table: str) -> exp.Select:
    """Return a SELECT of MADE_UP rows with these columns: name -> type and use. Raise Error for a
    type without synthetic values.
    """
    every = [
        sql.named(_column(name, kind_of(told), use, f"{table}.{name}"), name)
        for name, (told, use) in columns.items()
    ] or [sql.named(sql.number(1), NOTHING)]
    return sql.query(
        "SELECT $columns FROM range($rows) AS made(number)", columns=every, rows=sql.number(MADE_UP)
    )


def _column(name: str, kind: TypeTree, use: SyntheticColumn, salt: str) -> exp.Expr:
    try:
        if use.key:
            return _key(kind, use, salt)
        value = _drawn(kind, _chance(salt), use.bounds)
        if use.listed:
            return _one_of(use.listed, kind, value, salt)
        return _beside(kind, value, use, salt)
    except Error as error:
        raise Error(f"column {name}: {error.message}", hint=error.hint) from None


def _key(kind: TypeTree, use: SyntheticColumn, salt: str) -> exp.Expr:
    """Few are constants of the query, which joined tables may have in common: they multiply."""
    value = _numbered(kind, sql.expression("number + 1"))
    texts = _texts(use)
    if not texts:
        return value
    some = sql.expression("number % 50 = 0")
    return sql.call("coalesce", sql.when(some, _same(kind, _pick(texts, salt))), value)


# -- values of a type ------------------------------------------------------------------------------


def _numbered(kind: TypeTree, number: exp.Expr) -> exp.Expr:
    """Return the value of that number, from 0 up; values differ as long as the type has enough."""
    if kind.name in _ROOM:
        number = sql.expression("$n % $room", n=number, room=sql.number(_ROOM[kind.name]))
    if kind.name == "DECIMAL":
        width, scale = kind.numbers
        room = 10 ** min(width - scale or scale, 6)
        shown = "$n % $room" if width > scale else "($n % $room) / $room"
        number = sql.expression(shown, n=number, room=sql.number(room))
    elif kind.name == "BOOLEAN":
        number = sql.expression("$n % 2 = 0", n=number)
    elif kind.name == "BIT":
        number = sql.cast(number, "INTEGER")
    elif kind.name == "UUID":
        number = sql.call("lpad", sql.text(number), sql.number(32), sql.string("0"))
    elif kind.name in _DAYS:
        number = sql.expression(
            "CAST('2020-01-01' AS DATE) + CAST($n % 100000 AS INTEGER)", n=number
        )
    elif kind.name in _TIMES:
        number = sql.expression("CAST('00:00:00' AS TIME) + to_seconds($n % 86400)", n=number)
    elif kind.name == "INTERVAL":
        number = sql.expression("to_days(CAST($n % 10000 AS INTEGER))", n=number)
    elif kind.name in _PLAIN:
        number = sql.text(number)
    elif kind.parts:
        number = _of_parts(kind, number, _numbered)
    elif kind.name == '"NULL"':
        return exp.Null()
    elif kind.name not in (*_WHOLE, *_BROKEN):
        raise Error(
            f"no values are made up of type {kind.text}",
            hint="leave the column out, or grant a view that makes a number or a text of it",
        )
    return _as(number, kind)


def _drawn(kind: TypeTree, chance: exp.Expr, bounds: tuple[float, float] | None = None) -> exp.Expr:
    """Return a value from a random whole number. Numbers are positive by default, for logarithms
    and roots.
    """
    if kind.name in (*_WHOLE, *_BROKEN):
        usual = _between(kind, chance, *_range(kind))
        if bounds is None:
            return _as(usual, kind)
        return sql.call("coalesce", _try(_between(kind, chance, *bounds), kind), _as(usual, kind))
    if kind.name in _DAYS and kind.name != "DATE":
        moment = sql.expression(
            "CAST('2020-01-01' AS TIMESTAMP) + to_seconds($n % 126230400)", n=chance
        )
        return _as(moment, kind)
    if kind.name in ("DATE", *_TIMES, "INTERVAL"):
        return _numbered(kind, sql.expression("$n % 1461", n=chance))
    if kind.parts:
        return _as(_of_parts(kind, chance, _drawn), kind)
    return _numbered(kind, sql.expression("1 + $n % $texts", n=chance, texts=sql.number(TEXTS)))


def _range(kind: TypeTree) -> tuple[float, float]:
    if kind.name != "DECIMAL":
        return 1.0, 100.0
    width, scale = kind.numbers
    high = min(100.0, 10.0 ** (width - scale) - 1.0) or 0.9
    return min(1.0, high / 9), high


def _between(kind: TypeTree, chance: exp.Expr, low: float, high: float) -> exp.Expr:
    if kind.name in _WHOLE:
        least = math.ceil(low)
        room = max(1, math.floor(high) - least + 1)
        return sql.expression("$low + $n % $room", n=chance, low=_number(least), room=_number(room))
    return sql.expression(
        "$low + $room * ($n % 1000003) / 1000003.0",
        n=chance, low=_number(low), room=_number(high - low),
    )  # fmt: skip


def _of_parts(
    kind: TypeTree, number: exp.Expr, make: Callable[[TypeTree, exp.Expr], exp.Expr]
) -> exp.Expr:
    """Return a value made of parts, each from a number of its own, the first from the number
    itself.
    """

    def part(place: int) -> exp.Expr:
        return make(kind.parts[place], _hashed(number, sql.number(place)) if place else number)

    match kind.name:
        case "LIST" | "ARRAY":
            length = kind.numbers[0] if kind.numbers else 3
            inner = make(kind.parts[0], _hashed(number, sql.column("element")))
            made = exp.Lambda(this=inner, expressions=[_element()])
            return sql.call("list_transform", sql.call("range", sql.number(length)), made)
        case "MAP":
            both = (sql.call("list_value", part(place)) for place in (0, 1))
            return sql.call("map", *both)
        case "UNION":
            return sql.call("union_value", _called(kind.labels[0], part(0)))
    parts = (_called(label, part(place)) for place, label in enumerate(kind.labels))
    return sql.call("struct_pack", *parts)


def _element() -> exp.Identifier:
    return exp.to_identifier("element", quoted=True)


def _called(label: str, value: exp.Expr) -> exp.Expr:
    return exp.PropertyEQ(this=exp.to_identifier(label, quoted=True), expression=value)


def _as(value: exp.Expr, kind: TypeTree) -> exp.Cast:
    return exp.Cast(this=value, to=exp.Var(this=kind.text))


def _number(value: float) -> exp.Expr:
    return exp.Literal.number(value) if value >= 0 else exp.Neg(this=exp.Literal.number(-value))


# -- chance ----------------------------------------------------------------------------------------


def _chance(*salt: str) -> exp.Expr:
    """A whole number below 10⁹ that follows from the row's number and the salt."""
    return _hashed(sql.column("number"), *map(sql.string, salt))


def _hashed(*of: exp.Expr) -> exp.Expr:
    return sql.expression("CAST(hash($of) % 1000000007 AS BIGINT)", of=list(of))


def _pick(texts: tuple[str, ...], salt: str) -> exp.Expr:
    texts = texts[:MAX_CONSTANTS]
    every = sql.call("list_value", *map(sql.string, texts))
    place = sql.expression("1 + $n % $many", n=_chance(salt, "which"), many=sql.number(len(texts)))
    return sql.call("list_extract", every, place)


def _one_of(texts: tuple[str, ...], kind: TypeTree, otherwise: exp.Expr, salt: str) -> exp.Expr:
    """Return the value of one of the texts, or `otherwise` if it does not fit the type."""
    return sql.call("coalesce", _try(_pick(texts, salt), kind), otherwise)


def _beside(kind: TypeTree, value: exp.Expr, use: SyntheticColumn, salt: str) -> exp.Expr:
    """Return a value; half of them are constants of the query, or lie near them. In each fourth row
    all columns take constants, so that rows fulfil conditions on several.
    """
    texts = _texts(use)
    if texts:
        pick = _pick(texts, salt)
        some = sql.expression("number % 4 = 0 OR $n % 2 = 0", n=_chance(salt, "whether"))
        near = _near(kind, pick, salt)
        value = sql.call("coalesce", sql.when(some, near), value)
    if None in use.beside:
        some = sql.expression("number % 8 = 0 OR $n % 8 = 0", n=_chance(salt, "null"))
        value = sql.when(some, exp.Null(), value)
    return value


def _texts(use: SyntheticColumn) -> tuple[str, ...]:
    return tuple(sorted(text for text in use.beside if text is not None))


def _same(kind: TypeTree, pick: exp.Expr) -> exp.Expr:
    """Return the constant as a value of the type, or NULL; for a year, a day in it."""
    same: exp.Expr = _try(pick, kind)
    if kind.name not in _DAYS:
        return same
    day = sql.when(
        sql.expression("length($pick) = 4", pick=pick), sql.join_text(pick, sql.string("-06-15"))
    )
    return sql.call("coalesce", same, _try(day, kind))


def _near(kind: TypeTree, pick: exp.Expr, salt: str) -> exp.Expr:
    """The constant, or one more, or one less: comparisons are true of some."""
    same = _same(kind, pick)
    off = sql.expression("$n % 3 - 1", n=_chance(salt, "near"))
    if kind.name in (*_WHOLE, *_BROKEN):
        moved: exp.Expr = sql.expression(
            "$value + $off", value=sql.try_cast(pick, "DOUBLE"), off=off
        )
    elif kind.name in _DAYS:
        moved = sql.expression("$value + to_days(CAST($off AS INTEGER))", value=same, off=off)
    else:
        return same
    return sql.when(sql.equal(off, sql.number(0)), same, _try(sql.call("try", moved), kind))


def _try(value: exp.Expr, kind: TypeTree) -> exp.TryCast:
    return exp.TryCast(this=value, to=exp.Var(this=kind.text))


# Parser of DuckDB's types, in the form in which it writes them.

_NAMED = re.compile(r'("(?:[^"]|"")*"|[^"\s]+)\s+(.*)', re.DOTALL)
_ELEMENTS = re.compile(r"(.*)\[(\d*)\]", re.DOTALL)
_QUOTED = re.compile(r"""("(?:[^"]|"")*"|'(?:[^']|'')*')""")


@dataclass(frozen=True)
class TypeTree:
    """A type and its parts."""

    text: str
    """The type as DuckDB reads it."""
    name: str
    """'DECIMAL', 'LIST', 'ARRAY', 'STRUCT', 'MAP', 'UNION' and so on, in upper case."""
    numbers: tuple[int, ...] = ()
    """The numbers of DECIMAL(9,2), or the length of an array."""
    parts: tuple[TypeTree, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the parts."""


def kind_of(text: str) -> TypeTree:
    """Parse a type. The values of an ENUM are left out: it is a text.

    >>> kind_of("STRUCT(a DECIMAL(4,1)[], \\"b c\\" ENUM('x, y'))").text
    'STRUCT("a" DECIMAL(4,1)[], "b c" VARCHAR)'
    """
    text = text.strip()
    elements = _ELEMENTS.fullmatch(text)
    if elements is not None:
        inner = kind_of(elements[1])
        numbers = (int(elements[2]),) if elements[2] else ()
        name = "ARRAY" if numbers else "LIST"
        return TypeTree(f"{inner.text}[{elements[2]}]", name, numbers, (inner,))
    head, bracket, rest = text.partition("(")
    name, inside = head.strip().upper(), rest.rpartition(")")[0]
    if name == "ENUM":  # with its values, or without
        return TypeTree("VARCHAR", "VARCHAR")
    if not bracket or name not in ("DECIMAL", "STRUCT", "MAP", "UNION"):
        return TypeTree(text, name)
    pieces = tuple(_pieces(inside))
    if name == "DECIMAL":
        return TypeTree(text, name, tuple(int(piece) for piece in pieces))
    if name == "MAP":
        parts = tuple(kind_of(piece) for piece in pieces)
        return TypeTree(f"MAP({', '.join(p.text for p in parts)})", name, (), parts)
    fields = [match for piece in pieces if (match := _NAMED.fullmatch(piece.strip()))]
    labels = tuple(_plain(match[1]) for match in fields)
    parts = tuple(kind_of(match[2]) for match in fields)
    named = (f"{_quoted(a)} {b.text}" for a, b in zip(labels, parts, strict=True))
    return TypeTree(f"{name}({', '.join(named)})", name, (), parts, labels)


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts between commas outside brackets and quotes."""
    depth, piece = 0, ""
    for token in _QUOTED.split(text):
        if token[:1] in ("'", '"'):
            piece += token
            continue
        for letter in token:
            depth += (letter == "(") - (letter == ")")
            if letter == "," and not depth:
                yield piece
                piece = ""
            else:
                piece += letter
    if piece.strip():
        yield piece


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name[:1] == '"' else name


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# A database in memory with synthetic tables, isolated from everything else.

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "threads": "1",
        "memory_limit": "1GB",
        "temp_directory": "",
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
    }
)
"""Settings for few rows; they forbid loading extensions and reading files."""
_IN_MEMORY = "memory"
"""DuckDB's name for the first database of such a connection."""


def staged(
    tables: Mapping[tuple[str, str, str], Mapping[str, tuple[str, SyntheticColumn]]],
    place: tuple[str, str],
) -> sql.Connection:
    """Return a connection to a new database with these tables: (database, schema, name) -> column
    name -> type and use.

    Names without them belong to `place`, a database and a schema. Raises Error for a type without
    synthetic values.
    """
    con = duckdb.connect(":memory:", config=dict(SETTINGS))
    try:
        places = {place, *((table[0], table[1]) for table in tables)}
        for catalog in sorted({catalog.lower(): catalog for catalog, _ in places}.values()):
            if catalog.lower() != _IN_MEMORY:
                _run(con, "ATTACH ':memory:' AS", exp.to_identifier(catalog, quoted=True))
        for catalog, schema in sorted(places):
            named = exp.table_(schema, db=catalog, quoted=True)
            _run(con, "CREATE SCHEMA IF NOT EXISTS", named)
        for table, columns in tables.items():
            catalog, schema, name = table
            named = exp.table_(name, db=schema, catalog=catalog, quoted=True)
            _run(con, "CREATE TABLE", named, made_up(columns, ".".join(table)))
        _run(con, "USE", exp.table_(place[1], db=place[0], quoted=True))
        _run(con, "SET enable_external_access = false")
        _run(con, "SET lock_configuration = true")
    except BaseException:
        con.close()
        raise
    return con


def _run(con: sql.Connection, words: str, what: exp.Expr | None = None,
         rows: exp.Select | None = None) -> None:  # fmt: skip
    named = "" if what is None else f" {sql.to_sql(what)}"
    made = "" if rows is None else f" AS {sql.to_sql(rows)}"
    sql.run(con, exp.Var(this=f"{words}{named}{made}"))
