"""Which functions and types an analyst's expressions may have."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from sqlfl.governance.growth import GROWTH
from sqlfl.governance.names import MACROS, SPECIAL, Functions, every_function, functions_of
from tests.governance.test_tree import MADE
from tests.open_databases import in_memory


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        found.execute(MADE)
        yield found


@pytest.fixture(scope="module")
def own(con: duckdb.DuckDBPyConnection) -> Functions:
    return functions_of(con)


def test_what_follows_from_its_arguments_is_allowed(own: Functions) -> None:
    for name in ("round", "ROUND", "lower", "+", "sum", "max", "list_transform", "date_trunc",
                 "count_star", "row", "struct_pack", *MACROS, *SPECIAL):  # fmt: skip
        assert own.allows(name), name


@pytest.mark.parametrize(
    "name",
    [
        "json_serialize_sql", "json_serialize_plan", "json_deserialize_sql", "version",
        "parse_duckdb_log_message", "hive_partition_component", "to_aggregate_state", "finalize",
        "combine", "bitstring_agg", "reservoir_quantile", "json_transform", "json_pretty",
        "collate_de", "enum_range", "typeof", "create_sort_key", "variant_extract",
        "getenv", "current_setting", "getvariable", "nextval", "currval", "setval",
        "random", "uuid", "gen_random_uuid", "setseed", "now", "today", "current_date",
        "current_user", "current_database", "current_schema", "current_query", "in_search_path",
        "pg_typeof", "write_log", "error", "sleep_ms", "txid_current", "has_table_privilege",
        "stats", "read_csv", "read_text", "glob", "query", "query_table", "duckdb_settings",
        "pragma_table_info", "json_execute_serialized_sql", "twice", "rows", "gone", "",
    ],
)  # fmt: skip
def test_what_tells_of_else_is_not_allowed(own: Functions, name: str) -> None:
    assert not own.allows(name)
    assert not own.allows(name.upper())


def test_what_somebody_has_defined_is_not_allowed_whatever_its_name(
    con: duckdb.DuckDBPyConnection, own: Functions
) -> None:
    assert not own.allows("abs")
    with in_memory() as other:
        assert functions_of(other).allows("abs")
        assert functions_of(other).allows("nullif")
        other.execute("CREATE MACRO nullif(x, y) AS 7; CREATE MACRO list_sum(x) AS TABLE SELECT 1")
        assert not functions_of(other).allows("nullif")
        assert not functions_of(other).allows("list_sum")


def test_what_is_internal_or_a_collation_is_not_allowed(own: Functions) -> None:
    assert not [name for name in own.known if name.startswith(("__", "collate_", "icu_"))]


def test_functions_are_few_and_each_has_a_rule(own: Functions) -> None:
    assert own.known <= GROWTH.keys()
    assert len(own.known) < 520


def test_functions_that_have_a_rule_are_of_the_database() -> None:
    with in_memory() as other:
        assert functions_of(other).known == GROWTH.keys()


def test_types_that_are_built_in(own: Functions) -> None:
    assert {"integer", "varchar", "double", "array", "list", "struct"} <= own.types
    assert "mood" not in own.types
    assert all(name == name.lower() for name in own.types)


def test_functions_of_several_rows(own: Functions) -> None:
    assert {"sum", "max", "count", "count_star", "list", "first"} <= own.aggregates
    assert not {"round", "lower", "list_sum"} & own.aggregates


def test_all_that_there_is_where_no_policy_decides(con: duckdb.DuckDBPyConnection) -> None:
    found = every_function(con)
    for name in ("version", "random", "twice", "abs", "read_csv", *SPECIAL):
        assert found.allows(name), name
    assert not found.allows("gone")
    assert {"mood", "integer", "array"} <= found.types
    assert "sum" in found.aggregates
