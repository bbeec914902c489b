"""A table of several clients in every way that one is trained on, beside its plain union; and how
tests of the plain union are run again."""

from __future__ import annotations

from typing import Any

import numpy as np

import sqlfl
from tests.conftest import Open
from tests.federations import Parties, federation, merging, probabilities
from tests.strategies import predict_sql, train_sql


def again(test: Any, *given: object) -> None:
    """A property test of another module, with what its strategies would draw."""
    test.hypothesis.inner_test(*given)


LEFT = """
CREATE TABLE people AS SELECT
  i AS id, sin(i * 1.7) AS x, cos(i * 0.3)::FLOAT AS z,
  CASE WHEN i % 11 = 0 THEN NULL ELSE i % 7 END AS q,
  CASE WHEN i > 200 THEN 'late' ELSE 'c' || (i % 5) END AS c, 1 + i % 3 AS w,
  sin(i * 12.9898) > 0.4 * cos(i * 0.3) AS y, ['a', 'b', 'c'][1 + i % 3] AS k,
  sin(i * 1.7) + i % 5 AS n
FROM range({}, {}) r(i)
"""
RIGHT = """
CREATE TABLE visits AS SELECT (i * 7919) % 300 AS id, ln(1 + i) AS v, i % 4 AS kind
FROM range({}, {}) r(i)
"""
QUERY = """SELECT p.x, p.z, p.q, p.c, v.v, v.kind, p.{} AS y
  FROM bank.people p JOIN lab.visits v ON p.id = v.id"""
BOUNDS = ((0, 100), (100, 100), (100, 300))
"""The second client has no row."""


def divided(database: Open) -> Parties:
    return {
        "bank": [database(LEFT.format(*bounds)) for bounds in BOUNDS],
        "lab": [database(RIGHT.format(*bounds)) for bounds in ((0, 250), (250, ROWS))],
    }


ROWS = 300
"""Of the join; steps over all of them, for batches are drawn by the order of rows."""
WAYS: dict[str, tuple[str, str, dict[str, object]]] = {
    "lbfgs": ("logistic_regression", "y", {"epochs": 3}),
    "lbfgs over classes": ("softmax_regression", "k", {"epochs": 3}),
    "lbfgs without l2": ("linear_regression", "n", {"epochs": 3, "l2": 0}),
    "sgd": (
        "softmax_regression", "k",
        {"algorithm": "sgd", "epochs": 3, "batch_size": ROWS, "learning_rate": 0.5},
    ),
    "adam without l2": (
        "linear_regression", "n",
        {"algorithm": "sgd", "optimizer": "adam", "l2": 0, "epochs": 3, "batch_size": ROWS},
    ),
    "admm": ("logistic_regression", "y", {"algorithm": "admm", "epochs": 3}),
    "admm without l2": ("linear_regression", "n", {"algorithm": "admm", "epochs": 3, "l2": 0}),
    "classes weighed": ("softmax_regression", "k", {"epochs": 3, "class_weight": "balanced"}),
    "towers": ("mlp_regressor", "n", {"epochs": 2, "hidden": [5], "batch_size": ROWS}),
    "towers with a head": (
        "mlp_classifier", "k",
        {"epochs": 2, "hidden": [4], "head": "linear", "embedding": 3, "batch_size": ROWS},
    ),
}  # fmt: skip
UNION = """SELECT t.x, t.c, v.v, t.n FROM (
  SELECT id, x, c, n FROM bank.people UNION ALL SELECT id, x, c, n FROM club.people
) t JOIN lab.visits v ON t.id = v.id"""


def trained(
    parties: Parties, way: str, engine: str, *, combine: bool = False, **more: object
) -> tuple[sqlfl.Model, np.ndarray, dict[str, object]]:
    """The model, what it predicts, and what EVALUATE says; `more`: options beside the way's."""
    kind, target, options = WAYS[way]
    query = QUERY.format(target)
    with federation(parties, combine=combine) as fed, merging():
        fed.sql(train_sql("m", kind, "y", query, seed=3, engine=engine, **options, **more))
        found = fed.sql(predict_sql("m", query, ("bank.people.id", "lab.visits.v"))).arrow()
        found = found.sort_by([("id", "ascending"), ("v", "ascending")])
        (row,) = fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().to_pylist()
        numbers = "linear_regression" if kind == "mlp_regressor" else kind
        return fed.model("m"), probabilities(found, numbers), row
