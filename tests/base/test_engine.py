"""The empty database of a process: connections apart, for threads and after a fork."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from sqlfl.base import engine
from sqlfl.base.engine import empty_database


def test_connections_are_apart_and_of_one_instance() -> None:
    with empty_database() as one, empty_database() as other:
        one.execute("CREATE TEMP TABLE t AS SELECT 1 AS x")
        assert other.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
        one.execute("CREATE TABLE memory.main.shared AS SELECT 1 AS x")
        assert other.execute("FROM shared").fetchall() == [(1,)]
        one.execute("DROP TABLE memory.main.shared")


def test_threads_use_it_at_once() -> None:
    def squares(number: int) -> list[tuple[int]]:
        with empty_database() as con:
            return con.execute("SELECT sum(i * i) FROM range($1) r(i)", [number]).fetchall()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(squares, range(1, 40)))
    assert found == [[(sum(i * i for i in range(number)),)] for number in range(1, 40)]


def test_a_fork_opens_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_instances", dict(engine._instances))
    with empty_database() as parent:
        parent.execute("CREATE TABLE memory.main.of_parent AS SELECT 1 AS x")
        try:
            monkeypatch.setattr(os, "getpid", lambda: -1)
            with empty_database() as child:
                assert child.execute("SELECT count(*) FROM duckdb_tables()").fetchall() == [(0,)]
            engine._instances[-1].close()
        finally:
            parent.execute("DROP TABLE memory.main.of_parent")
