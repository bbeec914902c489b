"""A warm start begins with the old model's predictions, whatever the new rows are like."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import Open
from tests.depth import combinations
from tests.federations import federation
from tests.strategies import train_sql

SELECT = (
    "SELECT v.x, v.gap, v.c, {extra}p.z, p.d FROM clinic.{table} v JOIN lab.patients p USING (k)"
)


def visits(table: str, first: int, last: int, shift: int) -> str:
    return (
        f"CREATE TABLE {table} AS SELECT i AS id, i % 9 AS k, {shift} + {shift} * sin(i * i) AS x, "
        f"CASE WHEN i % 5 > 0 THEN {shift} * cos(i) END AS gap, 1 + i % 3 AS w, "
        f"'c' || (i % (2 + {shift})) AS c, (i * i) % 7 + sin(i) AS y "
        f"FROM range({first}, {last}) r(i)"
    )


PATIENTS = (
    "CREATE TABLE patients AS SELECT i AS k, i * 0.5 AS z, 'd' || (i % 4) AS d FROM range(9) r(i)"
)


@pytest.mark.parametrize(
    ("engine", "weighted", "clients"), combinations(("sql", "arrays"), (False, True), (1, 2))
)
def test_the_first_scores_are_those_of_the_old_model_but_for_the_intercept(
    database: Open, engine: str, weighted: bool, clients: int
) -> None:
    bounds = [(0, 80)] if clients == 1 else [(0, 33), (33, 80)]
    clinic = [database(visits("old", *b, 1), visits("new", *b, 4)) for b in bounds]
    with federation({"clinic": clinic, "lab": [database(PATIENTS)]}) as fed:
        old = SELECT.format(extra="v.y, ", table="old")
        fed.sql(train_sql("old", "linear_regression", "y", old, epochs=3, engine=engine))
        extra = "v.y, v.w, " if weighted else "v.y, "
        still = {"algorithm": "sgd", "epochs": 1, "learning_rate": 1e-12, "engine": engine}
        statement = train_sql(
            "new", "linear_regression", "y", SELECT.format(extra=extra, table="new"),
            **still, warm_start="old",
        )  # fmt: skip
        if weighted:
            statement = statement.replace("TARGET y", "TARGET y WEIGHT w")
        fed.sql(statement)
        found = []
        for model in ("old", "new"):
            table = fed.sql(
                f"PREDICT MODEL {model} ID (clinic.new.id) FROM "
                f"({SELECT.format(extra='', table='new')})"
            ).arrow()
            found.append(table.column("prediction").to_numpy()[np.argsort(table.column("id"))])
        before, after = found
        assert np.ptp(before) > 0.5
        assert np.ptp(after - before) < 1e-5 * np.ptp(before)
        weights = 1 + np.arange(80) % 3 if weighted else np.ones(80)
        y = (np.arange(80) ** 2) % 7 + np.sin(np.arange(80))
        assert np.average(after - y, weights=weights) == pytest.approx(0.0, abs=1e-4)
