"""Models that are trained with a seed, for tests that train them again.

A program of its own: python -m tests.seeded SEED THREADS. It trains all of `CASES`, and prints what
they are as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

import sqlfl
from tests.open_databases import in_memory

ORDERS = (
    "CREATE TABLE orders AS SELECT i AS id, (i * 7919) % 211 AS customer, sin(i) AS amount, "
    "CASE WHEN i % 6 > 0 THEN 'p' || (i * 31) % 17 END AS product, "
    "cos(i) + (i % 17) / 9.0 + ((i * 7919) % 211) % 5 AS paid FROM range(500) r(i)"
)
CUSTOMERS = (
    "CREATE TABLE customers AS SELECT i AS id, CASE WHEN i % 8 > 0 THEN i % 5 END AS class, "
    "'town ' || i % 23 AS town, [sin(i), cos(3 * i)]::DOUBLE[2] AS place FROM range(190) r(i) "
    "WHERE i % {clients} = {part}"
)
JOIN = (
    "SELECT o.amount, o.product, o.paid, c.class, c.town, c.place FROM shop.orders o "
    "{join} bureau.customers c ON o.customer = c.id {where}"
)
INNER_JOIN = JOIN.format(join="JOIN", where="")
UNION = " UNION ALL ".join(
    JOIN.format(join="JOIN", where=f"WHERE o.amount {test}") for test in ("> 0", "<= 0.2")
)
MEANS = (
    "SELECT o.amount, o.paid, c.mean, c.town FROM shop.orders o JOIN (SELECT town, avg(class) AS "
    "mean, min(id) AS id FROM bureau.customers GROUP BY town) c ON o.customer = c.id"
)
BATCHES = "algorithm = 'sgd', batch_size = 100, epochs = 3"
CASES: dict[str, tuple[str, str, int, str]] = {
    "batches": ("linear_regression", BATCHES, 1, INNER_JOIN),
    "batches over three clients": (
        "linear_regression",
        f"{BATCHES}, optimizer = 'adam'",
        3,
        INNER_JOIN,
    ),
    "batches of a LEFT JOIN": (
        "linear_regression",
        BATCHES,
        2,
        JOIN.format(join="LEFT JOIN", where=""),
    ),
    "batches of a union": ("linear_regression", BATCHES, 2, UNION),
    "batches, validation, patience": (
        "linear_regression",
        f"{BATCHES}, validation_fraction = 0.3, patience = 2",
        3,
        INNER_JOIN,
    ),
    "queries at the parties": ("linear_regression", f"{BATCHES}, engine = 'sql'", 1, MEANS),
    "classes": ("softmax_regression", BATCHES, 3, INNER_JOIN),
    "lbfgs": ("linear_regression", "epochs = 3", 3, INNER_JOIN),
    "admm": ("linear_regression", "algorithm = 'admm', epochs = 3", 3, INNER_JOIN),
    "consensus": (
        "linear_regression",
        "algorithm = 'admm', union = 'consensus', inner_rounds = 2, epochs = 3",
        3,
        INNER_JOIN,
    ),
    "towers": (
        "mlp_regressor",
        "batch_size = 100, epochs = 2, hidden = [5], dropout = 0.2",
        3,
        INNER_JOIN,
    ),
    "towers by admm": (
        "mlp_regressor",
        "algorithm = 'admm', batch_size = 64, epochs = 2, hidden = [5]",
        3,
        INNER_JOIN,
    ),
}


@contextlib.contextmanager
def federation(clients: int, threads: int) -> Iterator[sqlfl.Federation]:
    with contextlib.ExitStack() as stack:

        def database(statement: str) -> duckdb.DuckDBPyConnection:
            con = stack.enter_context(in_memory(threads))
            con.execute(statement)
            return con

        fed = stack.enter_context(sqlfl.Federation(progress=False))
        fed.attach("shop", database(ORDERS))
        parts = [database(CUSTOMERS.format(clients=clients, part=k)) for k in range(clients)]
        fed.attach("bureau", parts)
        yield fed


def trained(
    names: Sequence[str], seeds: Sequence[int | None], threads: int = 4
) -> dict[str, list[dict[str, Any]]]:
    """What the models of these cases are, by case, with each of the seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for clients in sorted({CASES[name][2] for name in names}):
        with federation(clients, threads) as fed:
            for name in names:
                if CASES[name][2] == clients:
                    found[name] = [_model(fed, name, seed) for seed in seeds]
    return found


def _model(fed: sqlfl.Federation, name: str, seed: int | None) -> dict[str, Any]:
    """All of a trained model that is a number, and its predictions."""
    kind, options, _, query = CASES[name]
    if seed is not None:
        options += f", seed = {seed}"
    if kind == "softmax_regression":
        query = query.replace("o.paid", "(2 * o.paid)::INTEGER // 3 AS paid")
    fed.sql(f"TRAIN OR REPLACE MODEL m USING {kind} TARGET paid WITH ({options}) FROM ({query})")
    found = fed.model("m")
    predictions = fed.sql(f"PREDICT MODEL m FROM ({query})").arrow()
    numbers = [n for n in predictions.column_names if n != "prediction" or "softmax" not in kind]
    return {
        "losses": [
            [row["train_loss"], row["train_metric"], row["valid_loss"]]
            for row in found.history.to_pylist()
        ],
        "intercept": found.intercept.tolist(),
        "epoch": found.epoch,
        "predictions": [sorted(predictions.column(n).to_pylist()) for n in numbers],
    }


if __name__ == "__main__":
    print(json.dumps(trained(list(CASES), [int(sys.argv[1])], int(sys.argv[2]))))
