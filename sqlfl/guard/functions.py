"""Which functions and types an analyst's expressions may have: the database's catalog and two short
lists decide.

Those of the catalog are built in, and follow from their arguments alone: nothing of a session, a
file, a sequence, a variable or chance.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.udfs import sql

UNSAFE = (
    "json_serialize_sql", "json_serialize_plan", "json_deserialize_sql", "parse_duckdb_log_message",
    "version", "hive_partition_component", "to_aggregate_state", "finalize", "combine", "range",
    "generate_series", "repeat",
)  # fmt: skip
"""Built in and constant, and nothing that a feature needs; or what makes much of little."""
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
"""Built in as macros, over functions of the catalog."""
SPECIAL = ("ifnull", "iif", "not", "try")
"""Functions to the parser alone."""


@dataclass(frozen=True)
class Functions:
    """Names in lower case."""

    known: frozenset[str]
    types: frozenset[str]
    aggregates: frozenset[str]

    def allows(self, name: str) -> bool:
        return name.lower() in self.known


def functions_of(con: sql.Connection) -> Functions:
    """What the database of `con` has, but for what somebody has defined, whatever its name."""
    rows = sql.fetch(con, _FUNCTIONS)
    own = {name for name, internal, _ in rows if not internal}
    known = {name for name, internal, _ in rows if internal}
    aggregates = frozenset(name for name, _, aggregate in rows if aggregate)
    macros = {name for name, _ in sql.fetch(con, _MACROS)}
    allowed = (known - {*UNSAFE} | {*MACROS, *SPECIAL}) - own - macros
    types = {name.lower() for (name,) in sql.fetch(con, _TYPES)}
    plain = {name for name in allowed if not name.startswith("__internal")}
    return Functions(frozenset(plain), frozenset({*types, "array"}), aggregates)


def every_function(con: sql.Connection) -> Functions:
    """All that the database of `con` has, whatever it does: what is no policy's to decide on."""
    known = frozenset(name for (name,) in sql.fetch(con, _NAMES)) | {*SPECIAL}
    types = frozenset(name for (name,) in sql.fetch(con, _EVERY_TYPE)) | {"array"}
    return Functions(known, types, functions_of(con).aggregates)


_NAMES = sql.constant(
    sql.query("SELECT lower(function_name) AS name FROM duckdb_functions() GROUP BY ALL")
)
_EVERY_TYPE = sql.constant(
    sql.query("SELECT lower(type_name) AS name FROM duckdb_types() GROUP BY ALL")
)
_FUNCTIONS = sql.constant(
    sql.query(
        """SELECT lower(function_name) AS name, internal, function_type = 'aggregate'
    FROM duckdb_functions()
    WHERE function_type IN ('scalar', 'aggregate') AND (NOT internal OR stability = 'CONSISTENT')
    GROUP BY ALL"""
    )
)
_MACROS = sql.constant(
    sql.query(
        """SELECT lower(function_name) AS name, function_type FROM duckdb_functions()
    WHERE NOT internal AND function_type IN ('macro', 'table_macro') GROUP BY ALL"""
    )
)
_TYPES = sql.constant(sql.query("SELECT type_name FROM duckdb_types() WHERE internal GROUP BY ALL"))
