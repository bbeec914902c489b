"""Databases in memory, each of which is empty when a test gets it.

To open an instance of DuckDB takes longer than many a test. So a few are kept, and what a test gets
is a connection of its own to one: its database is a new one of the name `memory`, and settings of
a session, temporary tables and `USE` go with the connection.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import duckdb

_MOST = 12
"""Instances that are kept, of each number of threads."""
_idle: defaultdict[int | None, list[duckdb.DuckDBPyConnection]] = defaultdict(list)


@contextlib.contextmanager
def in_memory(threads: int | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database, with as many threads as DuckDB takes unless told. Settings that an
    instance shares are to be left as they are, which `close` looks at."""
    root = _idle[threads].pop() if _idle[threads] else _instance(threads)
    try:
        with contextlib.closing(root.cursor()) as con:
            yield con
    finally:
        if len(_idle[threads]) < _MOST and _emptied(root):
            _idle[threads].append(root)
        else:
            root.close()


def close() -> None:
    """All that are kept. Fails where one is not as a new one: a test changed what others get."""
    for threads, kept in _idle.items():
        with contextlib.closing(_instance(threads)) as new:
            expected = _shared(new)
        while kept:
            with contextlib.closing(kept.pop()) as root:
                assert _shared(root) == expected, "a test that changes this opens its own instance"


def _instance(threads: int | None) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={} if threads is None else {"threads": threads})


def _emptied(root: duckdb.DuckDBPyConnection) -> bool:
    """Not where somebody still uses what is in it."""
    try:
        root.execute('ATTACH \':memory:\' AS "next one"; USE "next one"')
        attached = "SELECT database_name FROM duckdb_databases() WHERE NOT internal"
        for (name,) in root.execute(attached).fetchall():
            if name != "next one":
                quoted = name.replace('"', '""')
                root.execute(f'DETACH "{quoted}"')
        root.execute("ATTACH ':memory:' AS memory; USE memory; DETACH \"next one\"")
    except duckdb.Error:
        return False
    return True


def _shared(root: duckdb.DuckDBPyConnection) -> list[Any]:
    """What all connections of an instance share, other than its databases."""
    return [
        root.execute(f"SELECT * FROM ({query}) ORDER BY ALL").fetchall()
        for query in (
            "SELECT name, value FROM duckdb_settings() WHERE scope = 'GLOBAL'",
            "SELECT function_name, parameters FROM duckdb_functions() WHERE NOT internal",
            "SELECT name FROM duckdb_secrets()",
            "SELECT extension_name FROM duckdb_extensions() WHERE loaded",
        )
    ]
