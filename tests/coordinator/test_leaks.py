"""TRAIN warns of a table that alone explains the target, and of no other."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import sqlfl
from tests.open_databases import in_memory

LEAKS = [
    ("logistic_regression", "y", "t.eq", "feature eq (of t) alone explains 100% of y"),
    ("logistic_regression", "y", "t.near", "feature near (of t) alone explains 9"),
    ("logistic_regression", "y", "t.x, t.eq", "t, with features x, eq, alone explains 100% of y"),
    ("softmax_regression", "y", "t.eq", "feature eq (of t) alone explains 100% of y"),
    ("linear_regression", "num", "t.nearly", "feature nearly (of t) alone explains 100% of num"),
    ("poisson_regression", "eq", "t.y AS own", "feature own (of t) alone explains 100% of eq"),
    ("quantile_regression", "num", "t.num AS same", "feature same (of t) alone explains"),
    ("logistic_regression", "y", "t.x", None),
    ("linear_regression", "num", "t.half", None),  # u has the other half
    ("poisson_regression", "eq", "t.x", None),
]


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    with in_memory() as a, in_memory() as b:
        a.execute(
            "CREATE TABLE t AS SELECT i AS id, sin(i * 1.7) AS x, sin(i * 5) > 0 AS y, "
            "(sin(i * 5) > 0) <> (i % 97 = 0) AS near, (sin(i * 5) > 0)::INT AS eq, "
            "1000 + cos(i * 3) + cos(i * 2) AS num, 1000 + cos(i * 3) + cos(i * 2) + sin(i) / 50 "
            "AS nearly, cos(i * 3) AS half FROM range(600) r(i)"
        )
        b.execute("CREATE TABLE u AS SELECT i AS id, cos(i * 2) AS z FROM range(600) r(i)")
        with sqlfl.connect(progress=False) as found:
            found.attach("a", a)
            found.attach("b", b)
            yield found


@pytest.mark.parametrize(("kind", "target", "columns", "said"), LEAKS)
def test_what_is_said(
    fed: sqlfl.Federation, kind: str, target: str, columns: str, said: str | None
) -> None:
    query = f"SELECT {columns}, u.z, t.{target} FROM a.t AS t JOIN b.u AS u USING (id)"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fed.sql(f"TRAIN OR REPLACE MODEL m USING {kind} TARGET {target} FROM ({query})")
    texts = [str(w.message) for w in caught if "alone explains" in str(w.message)]
    assert len(texts) == (said is not None)
    if said is not None:
        assert said in texts[0]
        assert said in " ".join(fed.model("m").remarks)
