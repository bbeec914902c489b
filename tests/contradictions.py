"""Queries that DuckDB answers in two ways: with its optimizer and without it.

A federation is measured against DuckDB's answer to the same query over all tables in one database.
Where the two differ, a random test asks the database again, without the optimizer. If that answer
is another one, DuckDB contradicts itself, and the case says nothing about the federation: it is
left out, reported as a warning, and counted. `tests/thorough.md` lists the causes that are known.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator

import duckdb

MAX_NOTED = 10
"""Contradictions that one process leaves out. A random plan in some ten thousand has one."""

_noted: list[str] = []


@contextlib.contextmanager
def unoptimized(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Have the connection run its queries as they are written."""
    con.execute("SET enable_optimizer = false")
    try:
        yield
    finally:
        con.execute("RESET enable_optimizer")


def contradicts_itself(con: duckdb.DuckDBPyConnection, query: str) -> bool:
    """Whether the query has other rows, or another error, without the optimizer.

    Only for queries whose rows are determined: none with a LIMIT, or with `first`.
    """
    usual = _answer(con, query)
    with unoptimized(con):
        return _answer(con, query) != usual


def _answer(con: duckdb.DuckDBPyConnection, query: str) -> Counter[str] | str:
    try:
        return Counter(map(repr, con.execute(query).fetchall()))
    except duckdb.Error as error:
        return str(error).splitlines()[0]


def note_contradiction(query: str) -> None:
    """Report a case that is left out. Raise AssertionError where there are too many of them."""
    _noted.append(query)
    assert len(_noted) <= MAX_NOTED, f"DuckDB contradicts itself too often: {_noted}"
    warnings.warn(f"DuckDB contradicts itself, and the case is left out: {query}", stacklevel=2)
