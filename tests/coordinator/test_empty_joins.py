"""A join without rows, and a client without joined rows: each message that is sent has its form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import product

import pytest

import sqlfl
from sqlfl.base.errors import ModelError
from tests.open_databases import in_memory

QUERY = "SELECT t.x, u.c, u.z, u.v, {} FROM a.t JOIN b.u ON t.k = u.k"
NUMBER, CLASS, COUNT = "t.y", "t.c AS y", "t.n AS y"
KINDS = {
    "linear_regression": NUMBER,
    "logistic_regression": CLASS,
    "softmax_regression": CLASS,
    "poisson_regression": COUNT,
    "mlp_classifier": CLASS,
}
WAYS = (
    "combined linear_regression",
    "combined softmax_regression",
    "mlp_regressor WITH (epochs = 1)",
    "lasso WITH (radius = 1)",
    "linear_regression WITH (algorithm = 'admm')",
    "linear_regression WITH (algorithm = 'sgd', epochs = 1)",
    "linear_regression WITH (engine = 'sql', epochs = 2)",
    "linear_regression WITH (validation_fraction = 0.3)",
    "softmax_regression WITH (class_weight = 'balanced')",
    "linear_regression WITH (union = 'secure', epochs = 2)",
)
COMBINED = "combined "
NONE, SOME = (100, 200), (0, 100)
"""Numbers added to the keys of each client of b; the keys of `a.t` are 0 to 29."""


@pytest.fixture(scope="module")
def federations() -> Iterator[dict[tuple[tuple[int, ...], bool], sqlfl.Federation]]:
    found = {}
    with ExitStack() as stack:
        for offsets, combined in product((NONE, SOME), (False, True)):
            own = stack.enter_context(in_memory())
            own.execute(
                "CREATE TABLE t AS SELECT i AS k, sin(i) AS x, cos(i) AS y, 'w' || i % 2 AS c, "
                "i % 3 AS n FROM range(30) r(i)"
            )
            others = [stack.enter_context(in_memory()) for _ in offsets]
            for con, offset in zip(others, offsets, strict=True):
                con.execute(
                    f"CREATE TABLE u AS SELECT i + {offset} AS k, 'g' || i % 3 AS c, "
                    "if(i % 4 = 0, NULL, sin(2 * i)) AS z, "
                    "[sin(3 * i), cos(5 * i)]::DOUBLE[2] AS v FROM range(30) r(i)"
                )
            fed = stack.enter_context(sqlfl.connect(progress=False))
            fed.attach("a", own)
            fed.attach("b", others, combine=combined)
            found[offsets, combined] = fed
        yield found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [*KINDS, *WAYS])
def test_no_joined_rows(
    federations: dict[tuple[tuple[int, ...], bool], sqlfl.Federation], way: str
) -> None:
    combined = way.startswith(COMBINED)
    kind, _, options = way.removeprefix(COMBINED).partition(" ")
    query = QUERY.format(KINDS.get(kind, NUMBER))
    statement = f"TRAIN OR REPLACE MODEL m USING {kind} TARGET y {options} FROM ({query})"
    with pytest.raises(ModelError, match="the join has no rows"):
        federations[NONE, combined].sql(statement)
    federations[SOME, combined].sql(statement)
    evaluated = f"EVALUATE MODEL m FROM ({query})"
    assert federations[SOME, combined].sql(evaluated).fetchall()
    with pytest.raises(ModelError):
        federations[SOME, combined].sql(f"{evaluated[:-1]} WHERE t.x > 5)")
