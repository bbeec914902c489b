"""What is charged for the rows of tables is more than the coordinator holds of them.

Parties are in the same process, and work in exchanges alone: what is held more after one is theirs.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pytest

from sqlfl.base import arrays
from sqlfl.contract.schema import Client
from sqlfl.coordinator import preparation
from sqlfl.coordinator.join import factorised, join_limits
from sqlfl.coordinator.rounds import chunks, passes
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.transport.base import Transport
from tests.conftest import Open
from tests.depth import spread
from tests.federations import federation

FEW, MANY = 15_000, 40_000
"""Rows of the facts: what is held of neither is no matter."""
DIMENSION = 50
"""Rows of the other tables."""


class Weighing:
    """Passes everything on, and sees how many bytes the coordinator holds meanwhile."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._others = tracemalloc.get_traced_memory()[0]
        self.held = 0

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        self.look()
        before = tracemalloc.get_traced_memory()[0]
        # Arrow's memory is not traced
        self._hold(before + sum(data.size for _, data in requests))
        replies = self._inner.exchange(requests)
        self._others += _settled() - before
        found = [pa.py_buffer(data.to_pybytes()) for data in replies]
        del replies
        tracemalloc.reset_peak()
        return found

    def look(self) -> None:
        self._hold(tracemalloc.get_traced_memory()[1])

    def _hold(self, traced: int) -> None:
        self.held = max(self.held, traced - self._others)


def _settled() -> int:
    """Return the bytes that are traced once the parties' threads have let go of what they sent."""
    before, now = -1, tracemalloc.get_traced_memory()[0]
    while now != before:
        time.sleep(0.002)
        before, now = now, tracemalloc.get_traced_memory()[0]
    return now


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Cycles are freed between statements, and so never amid a measurement."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that of few rows, too, they are nothing beside what is held of all."""
    monkeypatch.setattr(join_limits, "MANY", 1)
    monkeypatch.setattr(arrays, "PART", 512)
    monkeypatch.setattr(chunks, "SPREAD", 512)
    monkeypatch.setattr(factorised, "CHUNK", 512)
    for name in ("CHUNK", "LARGE", "WALKED", "DIRECTIONS"):
        monkeypatch.setattr(passes, name, 1024)
    monkeypatch.setattr(passes, "SAMPLED", 512)


@pytest.fixture(autouse=True, scope="module")
def imported() -> None:
    """What a first statement imports is not held of its rows."""
    parties = {"a": [duckdb.connect()]}
    parties["a"][0].execute("CREATE TABLE t AS SELECT i AS x, 2 * i AS y FROM range(9) r(i)")
    with federation(parties) as fed:
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT x, y FROM a.t)")


class Shape(NamedTuple):
    tables: Mapping[str, str]
    """By party; `rows` is the number of facts."""
    query: str


def drawn(name: str, seed: int, values: object) -> str:
    return f"((hash(hash(i, {seed})) >> 20) % ({values}))::INT AS {name}"


def table(name: str, columns: str, rows: object, where: str = "true") -> str:
    return f"CREATE TABLE {name} AS SELECT {columns} FROM range({rows}) r(i) WHERE {where}"


def facts(values: int = DIMENSION) -> str:
    """Of a second key each, and of a first one with so many values."""
    keys = f"{drawn('k', 1, values)}, {drawn('m', 2, DIMENSION)}"
    return table("f", f"{keys}, (hash(i, 5) % 64) / 8.0 AS y", "{rows}")


def dimension(name: str, times: int = 1) -> str:
    """So many rows of each key."""
    columns = f"(i % {DIMENSION})::INT AS id, (i % 7)::FLOAT AS {name}x"
    return table(name, columns, times * DIMENSION)


STAR = "SELECT d.dx, e.ex, f.y FROM a.f f {} b.d d ON f.k = d.id JOIN c.e e ON f.m = e.id"
CHAIN = "SELECT e.ex, f.y FROM a.f f JOIN b.g g ON f.k = g.k JOIN c.e e ON g.m = e.id"
BRIDGE = table("g", f"{drawn('k', 3, '{rows} // 10')}, {drawn('m', 4, DIMENSION)}", "{rows} // 2")
HUNG = table("f", f"{drawn('k', 1, '{rows} // 10')}, (hash(i, 5) % 64) / 8.0 AS y", "{rows}")
APART = table("f", f"i AS k, {drawn('m', 2, DIMENSION)}, (hash(i, 5) % 64) / 8.0 AS y", "{rows}")
SHAPES = {
    "star": Shape({"a": facts(), "b": dimension("d"), "c": dimension("e")}, STAR.format("JOIN")),
    "not all joined": Shape(
        {"a": facts(DIMENSION + 1), "b": dimension("d"), "c": dimension("e")}, STAR.format("JOIN")
    ),
    "left": Shape(
        {"a": facts(2 * DIMENSION), "b": dimension("d"), "c": dimension("e")},
        STAR.format("LEFT JOIN"),
    ),
    "union": Shape(
        {"a": facts(2 * DIMENSION), "b": dimension("d"), "c": dimension("e")},
        f"{STAR.format('JOIN')} AND d.dx < 3 UNION ALL {STAR.format('JOIN')} AND d.dx >= 2",
    ),
    "several rows of a key": Shape(
        {"a": facts(), "b": dimension("d", 3), "c": dimension("e")}, STAR.format("JOIN")
    ),
    "several of two keys": Shape(
        {"a": facts(DIMENSION + 1), "b": dimension("d", 2), "c": dimension("e", 2)},
        STAR.format("JOIN"),
    ),
    "several on both sides": Shape({"a": HUNG, "b": BRIDGE, "c": dimension("e")}, CHAIN),
    "one to one": Shape(
        {"a": APART, "b": table("g", f"i AS k, {drawn('m', 4, DIMENSION)}", "{rows} - 5"),
         "c": dimension("e")},
        CHAIN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", spread(SHAPES, 2))
def test_no_more_is_held_than_is_charged(
    database: Open, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    most = 0.0
    for _ in range(4):
        held, charged = _of_each_row(database, monkeypatch, SHAPES[name])
        assert held < charged
        most = max(most, held)
        if most > charged / 3:
            return
    # what a party's thread frees late is not seen as the coordinator's
    raise AssertionError(f"{charged} bytes are charged, and {most} held")


def test_of_rows_in_files_no_more_is_held_than_is_charged(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what DuckDB takes while it joins."""
    monkeypatch.setattr(preparation, "factorised_join", lambda *_: None)
    monkeypatch.setattr(join_limits, "FIXED", 1 << 50)
    held, charged = _of_each_row(database, monkeypatch, SHAPES["not all joined"])
    assert 0 < held < charged


def _of_each_row(
    database: Open, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> tuple[float, float]:
    """Bytes held and charged: what a statement holds in any case is not in the difference."""
    few, many = (_trained(database, monkeypatch, shape, rows) for rows in (FEW, MANY))
    held, charged = ((b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True))
    return held, charged


def _trained(
    database: Open, monkeypatch: pytest.MonkeyPatch, shape: Shape, rows: int
) -> tuple[int, int]:
    """Bytes that the coordinator held, at most, and what it charged."""
    charged: list[int] = []

    def checked(plan: FederatedPlan, need: int, what: str) -> None:
        charged.append(need)

    monkeypatch.setattr(join_limits, "_check_bytes", checked)
    seen: list[Weighing] = []

    def wrapped(inner: Transport) -> Transport:
        seen.append(Weighing(inner))
        return seen[0]

    parties = {}
    for name, made in shape.tables.items():
        parts = 2 if name == "a" else 1
        parties[name] = [
            database(made.format(rows=rows) + (f" AND i % {parts} = {part}" if parts > 1 else ""))
            for part in range(parts)
        ]
    gc.collect()
    tracemalloc.start()
    try:
        with federation(parties, wrapped) as fed:
            fed.sql(
                "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH (epochs = 2) "
                f"FROM ({shape.query})"
            )
            (own,) = seen
            own.look()
    finally:
        tracemalloc.stop()
    return own.held, max(charged)
