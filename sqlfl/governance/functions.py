"""Functions and types that an analyst's expressions may have. The database's catalog and two short
lists decide.

Functions of the catalog are built in, and depend on their arguments alone: not on a session, a
file, a sequence, a variable or chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlfl.governance.growth import GROWTH
from sqlfl.udfs import sql

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
