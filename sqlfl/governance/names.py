"""Names in an analyst's queries: tables, functions and types, as DuckDB looks them up.

A name of a table means a table of the catalog, never a file. Which functions and types expressions
may have, the database's catalog and two short lists decide. Functions of the catalog are built in,
and depend on their arguments alone: not on a session, a file, a sequence, a variable or chance.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
from sqlglot import Dialect, exp
from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import folded
from sqlfl.governance.growth import GROWTH
from sqlfl.governance.scopes import Table
from sqlfl.udfs import sql


@dataclass
class Listed:
    """Tables that were listed just now, by their paths, folded."""

    columns: dict[Table, tuple[str, ...]] = field(default_factory=dict)
    types: dict[Table, tuple[str, ...]] = field(default_factory=dict)
    views: set[Table] = field(default_factory=set)

    def add(
        self, table: Table, columns: tuple[str, ...], types: tuple[str, ...], *, view: bool
    ) -> None:
        self.columns[_key(table)], self.types[_key(table)] = columns, types
        if view:
            self.views.add(_key(table))


class NameLookup:
    """Lookup of names. `place`: database and schema of names without them. `cursor` : returns a new
    one, without temporary tables, where one is needed: tables in `listed` are not looked up again.
    """

    def __init__(
        self,
        cursor: Callable[[], sql.Connection],
        place: tuple[str, str],
        listed: Listed | None = None,
    ) -> None:
        self.cursor, self._place = cursor, place
        self._known: dict[Table, tuple[Table, tuple[str, ...]] | None] = {}
        self._listed = Listed() if listed is None else listed
        self._views, self._types = set(self._listed.views), dict(self._listed.types)

    def table(self, parts: Sequence[str]) -> tuple[Table, tuple[str, ...]] | None:
        """Return the table or view, in full, and its columns; None if there is none, or if a
        temporary view has its name.
        """
        catalog, schema = self._place
        match tuple(parts):
            case (name,):
                return self._found((catalog, schema, name))
            case (first, name):
                is_schema = self._is_schema(catalog, first)
                return self._found((catalog, first, name) if is_schema else (first, "main", name))
            case (first, second, name):
                return self._found((first, second, name))
        return None

    def _found(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        key = _key(table)
        if key not in self._known:
            columns = self._listed.columns.get(key)
            self._known[key] = self._looked_up(table) if columns is None else (table, columns)
        return self._known[key]

    def _is_schema(self, catalog: str, name: str) -> bool:
        rows = sql.fetch(self.cursor(), _SCHEMAS, {"catalog": catalog, "name": name})
        return bool(rows)

    def types(self, table: Table) -> tuple[str, ...]:
        """Return the types of the columns of a table that `table` has returned, in their order."""
        return self._types[_key(table)]

    def is_view(self, table: Table) -> bool:
        """Return True if a table that `table` has returned was a view then."""
        return _key(table) in self._views

    def _looked_up(self, table: Table) -> tuple[Table, tuple[str, ...]] | None:
        catalog, schema, name = table
        quoted = sql.to_sql(exp.table_(name, db=schema, catalog=catalog, quoted=True))
        try:
            rows = sql.fetch(self.cursor(), _FOUND, {"path": quoted, "name": name})
        except (duckdb.CatalogException, duckdb.BinderException):
            return None  # also a view of a missing table
        views = {_key((a, b, c)) for place, c, _, a, b in rows if place < 0}
        if any(database == "temp" for database, *_ in views):
            return None
        if _key(table) in views:
            self._views.add(_key(table))
        columns = [row for row in sorted(rows) if row[0] >= 0]
        self._types[_key(table)] = tuple(row[2] for row in columns)
        return table, tuple(row[1] for row in columns)


def _key(table: Table) -> Table:
    return folded(table[0]), folded(table[1]), folded(table[2])


_SCHEMAS = sql.constant(
    sql.query(
        """SELECT 1 AS one FROM duckdb_schemas()
        WHERE database_name = $catalog AND lower(schema_name) = lower($name)"""
    )
)
_FOUND = sql.constant(
    exp.Var(
        this="""SELECT cid, name, type, '' AS a, '' AS b FROM pragma_table_info($path)
        UNION ALL SELECT -1, view_name, '', database_name, schema_name FROM duckdb_views()
        WHERE lower(view_name) = lower($name)"""
    )
)
"""Its columns, and all views of its name, in one instant: two statements take longer."""


def base_tables(con: sql.Connection, path: Sequence[str]) -> frozenset[str]:
    """Return the tables from which the rows of a table or view come: the table itself, or those
    that the view reads, also through other views and macros. Nothing runs. Files are none.
    """
    return frozenset(_scanned(_plan(con, path)))


def _plan(con: sql.Connection, path: Sequence[str]) -> list[dict[str, Any]]:
    """Return DuckDB's plan of reading a table or view, whose steps have names and children."""
    table = exp.Table()
    for part, name in zip(("this", "db", "catalog"), reversed(path), strict=False):
        table.set(part, exp.to_identifier(name, quoted=True))
    plans = con.execute(f"EXPLAIN (FORMAT json) SELECT * FROM {sql.to_sql(table)}").fetchall()
    return [step for _, plan in plans for step in json.loads(plan)]


def _scanned(steps: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the tables that steps of a plan read."""
    for step in steps:
        name = step["extra_info"].get("Table")
        if name is not None:
            yield folded(str(name))
        yield from _scanned(step["children"])


CHANGING = (
    "current_connection_id", "current_date", "current_localtime", "current_localtimestamp",
    "current_query", "current_query_id", "current_setting", "current_time", "current_timestamp",
    "current_transaction_id", "currval", "gen_random_uuid", "get_current_time",
    "get_current_timestamp", "getvariable", "localtime", "localtimestamp", "nextval", "now",
    "random", "setseed", "setval", "stats", "today", "transaction_timestamp", "txid_current",
    "uuid", "uuidv4", "uuidv7", "vector_type",
)  # fmt: skip
"""Functions that give other values though their arguments are the same."""
_BARE = ("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp")
"""Functions of these that are written without brackets."""
_AGE = "age"
"""A function that reads the clock where it has one argument."""
_INDIRECT = ("json_execute_serialized_sql", "query", "query_table")
"""Functions of tables whose text may name anything."""
_OF_SYSTEM = ("duckdb_", "pragma_")
"""Beginnings of names of functions and views that show the state of the database."""
ROW_GROUP = 122_880
"""Rows of a table that one thread reads at a time."""
_ORDERLESS = frozenset((
    "approx_count_distinct", "bit_and", "bit_or", "bit_xor", "bitstring_agg", "bool_and", "bool_or",
    "count", "count_if", "count_star", "countif", "cume_dist", "dense_rank", "histogram", "mad",
    "max", "median", "min", "percent_rank", "quantile", "quantile_cont", "quantile_disc", "rank",
    "rank_dense", "sum_no_overflow",
))  # fmt: skip
"""Aggregates and windows that give the same in whatever order rows come. Sums of numbers with a
fraction do not: their last digits differ. `sum_no_overflow` is DuckDB's sum of short integers.
"""
_CALL = re.compile(r'(\w+)"?\(')
_CALLING = ("AGGREGATE", "GROUP_BY", "WINDOW")
_CUTTING = ("LIMIT", "TOP_N", "ASOF", "POSITIONAL", "SAMPLE")
"""Parts of names of steps that call functions over several rows, and of those whose result depends
on the order of rows."""
_ROWLESS = ("COLUMN_DATA_SCAN", "CTE_SCAN", "DELIM_SCAN", "DUMMY_SCAN", "EMPTY_RESULT")
"""Steps without children that read rows of no table, or of another step."""


def unsteady(con: sql.Connection, table: Table) -> bool:
    """Return True if rows of a table or view may be others each time that they are read, though
    nothing has changed: by chance, the clock or a sequence, also in a view or macro below it; or
    by the order in which several threads read rows.

    Names of views and macros count wherever they stand, whatever their schema. So True may be too
    strict, and False is certain.
    """
    first, texts = folded(table[2]), _texts(con, _DEFINED)
    if first not in texts:
        return False
    for name, macros in _texts(con, _MACRO_TEXTS).items():
        texts.setdefault(name, []).extend(macros)
    waiting, read = {first}, set[str]()
    while waiting:
        read |= waiting
        every = [_words(text) for name in waiting for text in texts[name]]
        if any(_changes(words, place) for words in every for place in range(len(words))):
            return True
        waiting = ({word for words in every for word, _ in words} & texts.keys()) - read
    sizes = {".".join(map(folded, path)): int(size) for *path, size in sql.fetch(con, _SIZES)}
    return any(_order_decides(step, sizes) for step in _plan(con, table))


def _order_decides(step: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
    """Return True if rows of a step of a plan may depend on chance, or on the order in which
    threads read. `sizes`: rows of each table, by its name.
    """
    name, facts = str(step["name"]), step["extra_info"]
    calls = [facts.get(key) or () for key in ("Aggregates", "Projections")]
    texts = [text for call in calls for text in ([call] if isinstance(call, str) else call)]
    called = {match.lower() for text in texts for match in _CALL.findall(text)}
    if "SAMPLE" in name or "Sample Method" in facts:
        return True
    ordered = any(part in name for part in _CUTTING) or (
        any(part in name for part in _CALLING) and not called <= _ORDERLESS
    )
    if ordered and _rows_below(step, sizes) > ROW_GROUP:
        return True
    return any(_order_decides(child, sizes) for child in step["children"])


def _rows_below(step: Mapping[str, Any], sizes: Mapping[str, int]) -> float:
    """Return the rows of the tables below a step; infinity if several threads may read however few
    there are, as the parts of a union, or if their number is not known.
    """
    name, children = str(step["name"]), step["children"]
    if name == "UNION":
        return math.inf
    if children:
        return sum(_rows_below(child, sizes) for child in children)
    table = step["extra_info"].get("Table")
    if table is not None:
        return sizes.get(folded(str(table)).replace('"', ""), math.inf)
    return 0 if name in _ROWLESS else math.inf


def _texts(con: sql.Connection, query: exp.Expr) -> dict[str, list[str]]:
    """Return the definitions by their names, folded; several schemas may have one name."""
    texts: dict[str, list[str]] = {}
    for name, text in sql.fetch(con, query):
        texts.setdefault(folded(name), []).append(text)
    return texts


def _words(text: str) -> list[tuple[str, bool]]:
    """Return the words of a definition in lower case, each with True if it is written in quotes.
    Texts are left out; of a table there are its generated columns alone, and no defaults.
    """
    tokens = Dialect.get_or_raise("duckdb").tokenize(text)
    words = [
        (folded(token.text), token.token_type is TokenType.IDENTIFIER)
        for token in tokens
        if token.token_type is not TokenType.STRING
    ]
    plain = [word for word, _ in words]
    if plain[:2] != ["create", "table"]:
        return words
    starts = (n for n in range(len(plain)) if plain[n : n + 3] == ["generated", "always", "as"])
    return [word for start in starts for word in words[start + 3 : _end(plain, start + 3)]]


def _end(words: Sequence[str], start: int) -> int:
    """Return the place behind the brackets that open at `start`."""
    depth = 0
    for place in range(start, len(words)):
        depth += (words[place] == "(") - (words[place] == ")")
        if not depth:
            return place + 1
    return len(words)


def _changes(words: Sequence[tuple[str, bool]], place: int) -> bool:
    """Return True if the word at this place calls a function that gives other values each time."""
    word, quoted = words[place]
    if (word in _BARE and not quoted) or word.startswith(_OF_SYSTEM):
        return True
    if place + 1 == len(words) or words[place + 1][0] != "(":
        return False
    if word != _AGE:
        return word in CHANGING or word in _INDIRECT
    plain = [other for other, _ in words]
    given, depth, commas = plain[place + 1 : _end(plain, place + 1)], 0, 0
    for other in given:
        depth += (other == "(") - (other == ")")
        commas += other == "," and depth == 1
    return not commas


_DEFINED = sql.constant(
    exp.Var(
        this="""SELECT table_name AS name, sql AS text FROM duckdb_tables()
        WHERE contains(sql, 'GENERATED ALWAYS')
        UNION ALL SELECT view_name, sql FROM duckdb_views() WHERE NOT internal AND NOT temporary"""
    )
)
_SIZES = sql.constant(
    sql.query("SELECT database_name, schema_name, table_name, estimated_size FROM duckdb_tables()")
)
_MACRO_TEXTS = sql.constant(
    sql.query(
        """SELECT function_name AS name, macro_definition AS text FROM duckdb_functions()
        WHERE NOT internal AND macro_definition IS NOT NULL"""
    )
)


MACROS = (
    "array_append", "array_pop_back", "array_pop_front", "array_prepend", "array_push_back",
    "array_push_front", "array_reverse", "array_to_string", "date_add", "days_in_month", "fdiv",
    "fmod", "geomean", "geometric_mean", "if", "json", "list_any_value", "list_append", "list_avg",
    "list_bool_and", "list_bool_or", "list_count", "list_first", "list_last", "list_max",
    "list_median", "list_min", "list_mode", "list_prepend", "list_product", "list_reverse",
    "list_stddev_pop", "list_stddev_samp", "list_sum", "list_var_pop", "list_var_samp",
    "map_contains_entry", "map_contains_value", "md5_number_lower", "md5_number_upper", "nullif",
    "split_part", "wavg", "weighted_avg",
)  # fmt: skip
"""Built-in macros over functions of the catalog."""
SPECIAL = ("ifnull", "iif", "not", "try")
"""Functions that only the parser knows."""


@dataclass(frozen=True)
class Functions:
    """Allowed functions; names in lower case."""

    known: frozenset[str]
    types: frozenset[str]
    aggregates: frozenset[str]

    bounded: bool = True
    """True if the sizes of their results must have bounds (`sqlfl.governance.measuring`)."""

    def allows(self, name: str) -> bool:
        return name.lower() in self.known

    def check_call(self, node: Mapping[str, Any]) -> None:
        """Raise PolicyError unless the function of a call may be called."""
        path = [str(part) for part in (node.get("qualified_name") or {}).get("path") or ()]
        name = str(node.get("function_name"))
        near = [p.lower() for p in path[:-1]] in ([], ["main"], ["pg_catalog"], ["system", "main"])
        if not near or not self.allows(name) or path[-1:] not in ([name], []):
            raise PolicyError(
                f"function {'.'.join(path) or name} is not among those that are allowed"
            )

    def check_type(self, node: Mapping[str, Any]) -> None:
        """Raise PolicyError unless values may have this type."""
        path = [str(part) for part in (node.get("qualified_name") or {}).get("path") or ()]
        name = str(node.get("type_name"))
        if len(path) > 1 or name.lower() not in self.types:
            raise PolicyError(f"type {'.'.join(path) or name} is not one that is allowed")


def functions_of(con: sql.Connection) -> Functions:
    """Return the functions of the database of `con`, without user-defined ones of any name."""
    return _allowed(sql.fetch(con, _FUNCTIONS), con)


def every_function(con: sql.Connection) -> Functions:
    """Return all functions of the database of `con`, for queries that no policy decides on."""
    rows = sql.fetch(con, _FUNCTIONS)
    known = frozenset(row[0] for row in rows) | {*SPECIAL}
    types = frozenset(name for (name,) in sql.fetch(con, _EVERY_TYPE)) | {"array"}
    return Functions(known, types, _allowed(rows, con).aggregates, bounded=False)


def _allowed(rows: list[tuple[Any, ...]], con: sql.Connection) -> Functions:
    called = [row for row in rows if row[2] in CALLED and (row[3] or not row[1])]
    defined = {
        name for name, internal, kind, _ in rows if not internal and kind in (*CALLED, *DEFINED)
    }
    known = {name for name, internal, _, _ in called if internal}
    aggregates = frozenset(name for name, _, kind, _ in called if kind == "aggregate")
    allowed = ((known | {*MACROS, *SPECIAL}) & GROWTH.keys()) - defined
    types = {name.lower() for (name,) in sql.fetch(con, _TYPES)}
    return Functions(frozenset(allowed), frozenset({*types, "array"}), aggregates)


CALLED = ("scalar", "aggregate")
DEFINED = ("macro", "table_macro")
_EVERY_TYPE = sql.constant(
    sql.query("SELECT lower(type_name) AS name FROM duckdb_types() GROUP BY ALL")
)
# all at once: listing them takes 10 ms, whichever are asked for
_FUNCTIONS = sql.constant(
    sql.query(
        """SELECT lower(function_name) AS name, internal, function_type,
      stability = 'CONSISTENT' AS consistent FROM duckdb_functions() GROUP BY ALL"""
    )
)
_TYPES = sql.constant(sql.query("SELECT type_name FROM duckdb_types() WHERE internal GROUP BY ALL"))
