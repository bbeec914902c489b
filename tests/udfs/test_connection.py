"""Which database a connection has open, and what its cursors do not share."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pytest

from sqlfl.udfs.blocks.block_tables import current_database
from sqlfl.udfs.connection import (
    MEANING,
    files,
    has_open_transaction,
    idle,
    instances,
    located,
    session_settings,
)
from tests.conftest import Open

WITHOUT_MEANING = [
    "approximate_join_order_threshold", "asof_loop_join_threshold", "checkpoint_on_detach",
    "delim_join_as_cte", "disable_parquet_prefetching", "dynamic_or_filter_threshold",
    "enable_geoparquet_conversion", "enable_profiling", "enable_progress_bar",
    "enable_progress_bar_print", "errors_as_json", "http_retry_quota_throttled",
    "http_retry_throttled_wait_ms", "late_materialization_max_rows",
    "log_query_path", "max_execution_time", "max_expression_depth", "max_streaming_buffer_size",
    "merge_join_threshold", "nested_loop_join_threshold", "operator_memory_limit",
    "ordered_aggregate_threshold", "pandas_analyze_sample", "parquet_metadata_cache",
    "parquet_prefetch_column_gap", "partitioned_write_flush_threshold",
    "partitioned_write_max_open_files", "perfect_ht_threshold", "pivot_filter_threshold",
    "prefer_range_joins", "prefetch_all_parquet_files", "progress_bar_time",
    "python_enable_replacements", "python_scan_all_frames", "search_path", "streaming_buffer_size",
]  # fmt: skip
"""How a connection works or what it shows; USE, which sets the search path, counts as it was."""

VALUES = {
    "BOOLEAN": ("true", "false"),
    "VARCHAR": (
        "'x'", "'Asia/Tokyo'", "'japanese'", "'nocase'", "'nulls_first'", "'desc'", "'json'",
        "'1MB'", "'disabled'", "'main'", "'full'",
    ),
}  # fmt: skip


def own_value(con: duckdb.DuckDBPyConnection, name: str, kind: str) -> bool:
    """Whether some SET changes the setting for its connection, and not for a cursor of it."""
    asked = "SELECT value FROM duckdb_settings() WHERE name = ?"
    for value in VALUES.get(kind, ("7", "1")):
        with con.cursor() as changed, con.cursor() as cursor:
            try:
                changed.execute(f"SET {name} = {value}")
                here, there = (c.execute(asked, [name]).fetchone() for c in (changed, cursor))
            except duckdb.Error:
                continue
            if here != there:
                return True
    return False


def test_every_setting_of_a_session_is_known(database: Open) -> None:
    """Tried on DuckDB itself: a new version may bring one that changes what an expression is."""
    con = database(own=True)
    settings = con.execute("SELECT name, input_type FROM duckdb_settings()").fetchall()
    found = {n for n, kind in settings if "thread" not in n and own_value(con, n, kind)}
    assert found <= {*MEANING, *WITHOUT_MEANING}


def test_the_settings_are_a_sessions_own(database: Open) -> None:
    con = database()
    for name in ("TimeZone", "integer_division", "Calendar"):
        kind = con.execute("SELECT input_type FROM duckdb_settings() WHERE name = ?", [name])
        assert own_value(con, name, kind.fetchall()[0][0])
        assert name in MEANING
    assert not {*MEANING} & {*WITHOUT_MEANING}


def test_settings_that_cursors_do_not_share(database: Open) -> None:
    con = database("SET integer_division = true", "SET TimeZone = 'Asia/Tokyo'", "SET threads = 1")
    with con.cursor() as cursor:
        zone = cursor.execute("SELECT current_setting('TimeZone')").fetchone()
        assert zone is not None
        assert session_settings(con) == {"TimeZone": zone[0], "integer_division": "false"}
        assert session_settings(cursor) == {}
    everywhere = database("SET GLOBAL integer_division = true", "SET default_collation = 'nocase'")
    assert session_settings(everywhere) == {}


def test_nothing_ends_an_open_result(database: Open) -> None:
    con = database("SET integer_division = true")
    result = con.execute("FROM range(100000)")
    assert result.fetchone() == (0,)
    assert session_settings(con)
    assert not has_open_transaction(con)
    located(current_database(con))
    instances([con, con])
    assert result.fetchone() == (1,)


def test_a_transaction_is_seen(database: Open) -> None:
    con = database("CREATE TABLE t (x INTEGER)")
    assert not has_open_transaction(con)
    con.execute("SELECT count(*) FROM t").fetchone()  # more may come, for all that DuckDB knows
    assert not has_open_transaction(con)
    con.execute("INSERT INTO t VALUES (1)")
    assert not has_open_transaction(con)
    con.begin()
    assert has_open_transaction(con)
    con.execute("INSERT INTO t VALUES (2)")
    assert has_open_transaction(con)
    with pytest.raises(duckdb.Error):
        con.execute("SELECT error('no')").fetchall()
    assert has_open_transaction(con)
    con.rollback()
    assert not has_open_transaction(con)
    assert con.execute("SELECT x FROM t").fetchall() == [(1,)]


def test_instances_are_told_apart(database: Open) -> None:
    one, other, named = database(), database(), database(path=":memory:shared_by_name")
    again = database(path=":memory:shared_by_name")
    cons = [one, other, one.cursor(), named, one, again, other.cursor(), database()]
    assert instances(cons) == [0, 1, 0, 3, 0, 3, 1, 7]
    assert instances([]) == []
    for con in cons[2:7:4]:
        con.close()


def test_a_database_is_the_file_that_it_lies_in(tmp_path: Path, database: Open) -> None:
    path, link, hard = (tmp_path / f"{name}.duckdb" for name in ("a", "link", "hard"))
    duckdb.connect(str(path)).close()
    os.symlink(path, link)
    os.link(path, hard)
    found = []
    for name in (path, link, hard):
        with duckdb.connect(str(name), read_only=True) as con:
            found.append(located(current_database(con)))
    memory = database(f"ATTACH '{path}' AS b (READ_ONLY)")
    assert not located(current_database(memory)).file
    memory.execute("USE b")
    found.append(located(current_database(memory)))
    assert len({place.file for place in found}) == 1
    assert all(place.is_same(found[0], one_instance=False) for place in found)
    assert list(files(memory)) == ["b"]
    other = database("CREATE SCHEMA s", "USE s")
    with database().cursor() as empty:
        found = [located(current_database(con)) for con in (empty, other)]
        assert not found[0].is_same(found[1], one_instance=True)


def test_a_closed_connection_is_not_idle(database: Open) -> None:
    con = database()
    assert idle(con)
    con.close()
    assert not idle(con)
