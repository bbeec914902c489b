"""A weight is a number of copies: the same model as from the table with its rows repeated."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import Open
from tests.depth import combinations
from tests.federations import Parties, federation, probabilities
from tests.strategies import predict_sql, train_sql

SELECT = (
    "SELECT v.y, v.x, v.gap, v.c, {weight}p.z, p.d FROM clinic.visits v JOIN lab.patients p "
    "USING (k)"
)
WIDE = SELECT.replace("v.y, ", "").format(weight="")
ROWS = 80
PARTS = ((0, ROWS), (0, 33), (33, ROWS))
"""Of one client, or of two."""


def visits(first: int, last: int, copies: str, factor: float) -> tuple[str, ...]:
    """Every fourth row weighs nothing; it alone has some categories, and values far away."""
    return (
        "CREATE TABLE every AS SELECT i AS id, i % 9 AS k, "
        "CASE WHEN i % 4 = 3 THEN 1000 + i ELSE sin(i * i) END AS x, "
        "CASE WHEN i % 4 = 3 OR i % 5 = 0 THEN NULL ELSE cos(i) END AS gap, "
        "CASE WHEN i % 4 = 3 THEN 'rare' || (i % 8) ELSE 'c' || (i % 3) END AS c, "
        f"[2, 1, 3, 0][1 + i % 4] AS copies, copies * {factor}::DOUBLE AS w, "
        f"(i * i) % 3 AS y FROM range({first}, {last}) r(i)",
        f"CREATE TABLE visits AS SELECT e.* FROM every e, range({copies}) r(n)",
    )


PATIENTS = (
    "CREATE TABLE patients AS SELECT i % 9 AS k, i * 0.5 AS z, 'd' || (i % 4) AS d "
    "FROM range(12) r(i)",
)


def parties(database: Open, clients: int, *, repeated: bool, factor: float = 1.0) -> Parties:
    parts = PARTS[:1] if clients == 1 else PARTS[1:]
    copies = "e.copies" if repeated else "1"
    return {
        "clinic": [database(*visits(first, last, copies, factor)) for first, last in parts],
        "lab": [database(*PATIENTS)],
    }


def predictions(found: Parties, statement: str) -> np.ndarray:
    """Of all rows, those of weight 0 too, sorted."""
    with federation(found) as fed:
        fed.sql(statement)
        for con in found["clinic"]:
            con.execute("CREATE OR REPLACE TABLE visits AS FROM every")
        table = fed.sql(predict_sql("m", WIDE, ("clinic.visits.id", "lab.patients.z"))).arrow()
        order = np.lexsort([table.column(n).to_numpy() for n in ("z", "id")])
        kind = "linear_regression" if "linear" in statement else "softmax_regression"
        return probabilities(table, kind)[order]


@pytest.mark.parametrize(
    ("algorithm", "kind", "clients", "engine"),
    combinations(
        ("lbfgs", "admm", "sgd"),
        ("linear_regression", "softmax_regression"),
        (1, 2),
        ("sql", "arrays"),
    ),
)
def test_a_weight_is_a_number_of_copies(
    database: Open, algorithm: str, kind: str, clients: int, engine: str
) -> None:
    options: dict[str, object] = {"algorithm": algorithm, "epochs": 4, "engine": engine}
    if algorithm == "sgd":
        options["learning_rate"] = 0.2
    if algorithm == "admm":
        options["epochs"] = 6  # its power rounds start at random
    statement = train_sql("m", kind, "y", SELECT.format(weight=""), **options)
    expected = predictions(parties(database, clients, repeated=True), statement)
    weighted = train_sql("m", kind, "y", SELECT.format(weight="v.w, "), **options)
    weighted = weighted.replace("TARGET y", "TARGET y WEIGHT w")
    found = predictions(parties(database, clients, repeated=False), weighted)
    assert found.shape == expected.shape
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("clients", [1, 2])
def test_only_the_proportions_of_weights_matter(database: Open, clients: int) -> None:
    statement = train_sql("m", "softmax_regression", "y", SELECT.format(weight="v.w, "), epochs=5)
    statement = statement.replace("TARGET y", "TARGET y WEIGHT w")
    expected = predictions(parties(database, clients, repeated=False), statement)
    for factor in (1e-25, 1e25):
        found = predictions(parties(database, clients, repeated=False, factor=factor), statement)
        np.testing.assert_allclose(found, expected, atol=2e-4, err_msg=f"factor {factor}")
