"""Federations over the databases of a case, and what they predict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import assume

import sqlfl
from sqlfl.coordinator.join import equal_rows
from sqlfl.transport.base import Transport
from tests import oracle
from tests.oracle import Central, Fitted
from tests.strategies import Case, Databases

Parties = dict[str, list[duckdb.DuckDBPyConnection]]


@contextlib.contextmanager
def merging(least: int = 1) -> Iterator[None]:
    """Equal rows are merged in joins of so many rows."""
    with mock.patch.object(equal_rows, "MIN_JOINED_ROWS", least):
        yield


_COMBINE = ContextVar("combine", default=False)


@contextlib.contextmanager
def combining() -> Iterator[None]:
    """Parties of several clients combine them."""
    token = _COMBINE.set(True)
    try:
        yield
    finally:
        _COMBINE.reset(token)


@contextlib.contextmanager
def federation(
    databases: Databases | Parties,
    wrap: Callable[[Transport], Transport] | None = None,
    *,
    combine: bool = False,
) -> Iterator[sqlfl.Federation]:
    """`combine`: as in `combining`."""
    combine = combine or _COMBINE.get()
    parties = databases.parties if isinstance(databases, Databases) else databases
    with sqlfl.Federation(progress=False, wrap=wrap) as fed:
        for party, clients in parties.items():
            fed.attach(party, clients if len(clients) > 1 else clients[0], combine=combine)
        yield fed


def trainable(case: Case, databases: Databases, l2: float = oracle.L2) -> Central:
    """The central data of a case; discards cases without rows, or with a label of one class."""
    data = oracle.central(
        databases.whole, case.identified_query(), case.kind, case.target, case.row_ids, l2
    )
    assume(len(data.y) > 0)
    assume(case.kind in oracle.NUMBERS or len(data.classes) > 1)
    assume(case.kind != "poisson_regression" or data.y.any())
    return data


def probabilities(table: pa.Table, kind: str) -> np.ndarray:
    """(n, classes) of a PREDICT's result, (n, 1) where it gives numbers."""
    names = [n for n in table.column_names if n.startswith("probability_")]
    if kind in oracle.NUMBERS:
        assert not names
        names = ["prediction"]
    return np.column_stack([table.column(n).to_numpy() for n in names])


def assert_predictions_equal(
    case: Case,
    databases: Databases,
    data: Central,
    fitted: Fitted,
    result: sqlfl.Result,
    *,
    wide: bool = False,
    atol: float = 1e-5,
) -> None:
    """Row by row along the identifiers; as multisets where a name in ID would be ambiguous."""
    rows = oracle.materialised(databases.whole, case.identified_query(wide=wide))
    expected = data.predict(fitted, rows)
    found = probabilities(result.arrow(), case.kind)
    assert found.shape == expected.shape
    if case.identifiers:
        given = [numbers(result.arrow().column(n)) for n in result.columns[: len(case.row_ids)]]
        known = [numbers(rows.column(n)) for n in case.row_ids]
        theirs, ours = order(given), order(known)
        for mine, central in zip(given, known, strict=True):
            np.testing.assert_array_equal(mine[theirs], central[ours])
        assert_close(found[theirs], expected[ours], atol)
        if case.kind not in oracle.NUMBERS:
            assert_classes(result.arrow(), data, found)
    else:
        assert_close(np.sort(found, axis=0), np.sort(expected, axis=0), atol)


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Identifiers, NULL as -1."""
    return column.fill_null(-1).to_numpy()


def assert_classes(table: pa.Table, data: Central, found: np.ndarray) -> None:
    chosen = [data.classes[k] for k in found.argmax(axis=1)]
    assert table.column("prediction").to_pylist() == chosen


def assert_close(found: np.ndarray, expected: np.ndarray, atol: float) -> None:
    """To `atol`, relative to the largest value expected where that exceeds 1."""
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol * scale)


def order(keys: Sequence[np.ndarray]) -> np.ndarray:
    return np.lexsort(list(reversed(keys)))
