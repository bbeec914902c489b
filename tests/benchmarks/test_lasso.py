"""benchmarks/lasso.py at toy size: parties with columns of the same rows, budgets, tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.scripts import imported


@pytest.fixture(scope="module")
def lasso() -> Iterator[Any]:
    with imported("lasso") as modules:
        yield modules.lasso


def test_parties_together_reach_the_optimum_of_one_place(lasso: Any) -> None:
    task = lasso.Task.drawn(400, 30, 4, 1)
    run = lasso.train(task, {"tolerance": 1e-12, "epochs": 300})
    assert task.loss(run.theta) == pytest.approx(task.optimum, rel=1e-3)
    assert task.loss(run.theta) == pytest.approx(run.steps[-1].objective, rel=1e-6)
    assert np.abs(run.theta).sum() <= task.radius * (1 + 1e-9)
    assert 5 <= run.told < 30
    assert 4 * 400 * run.told < run.up < 4 * 400 * 30


def test_a_budget_bounds_what_is_found(lasso: Any) -> None:
    task = lasso.Task.drawn(2_000, 20, 2, 1)
    options = {"epochs": 5, "step": "corrective"}
    rich = lasso.private(task, 1e5, options, 0)
    poor = lasso.private(task, 0.2, options, 0)
    assert task.loss(rich.theta) < 0.3 * task.loss(np.zeros(20))
    assert task.loss(poor.theta) > task.loss(rich.theta)
    assert rich.up < 4 * 20 * 2_000
    theta = lasso.central(task, 1e5, 40, 0)
    assert task.loss(theta) < 0.3 * task.loss(np.zeros(20))
    assert np.abs(theta).sum() <= task.radius * (1 + 1e-9)


def test_columns_that_weigh_alike_tell_what_their_share_is(lasso: Any) -> None:
    task = lasso.Task.spread(3_000, 60, 3, 1)
    run = lasso.train(task, {"epochs": 10, "tolerance": 0.0})
    left = (run.steps[-1].objective - task.optimum) / (task.loss(np.zeros(60)) - task.optimum)
    assert run.told in (30, 33)
    assert 0.25 < left < 0.6  # half of them are known


def test_tables_have_every_run(lasso: Any) -> None:
    found: dict[str, Any] = {
        "convergence/search/5": {"gaps": [1.0 / (t + 1) for t in range(2000)]},
        "convergence/corrective/all": {"gaps": [0.0] * 2000},
        "private/1000/100/4/1": dict.fromkeys(
            ("nothing", "ours", "fixed", "central", "ours up", "fixed up"), 0.5
        ),
        "join": {"runs": [{"name": "lasso", "rows": 9, "rmse": 1.0, "r2": 0.5, "iterations": 3,
                           "told": None, "up": 2e6}]},
    }  # fmt: skip
    for kind in ("sparse", "spread"):
        for epsilon in (1.0, 8.0, 64.0):
            found[f"slopes/{kind}/{epsilon:g}"] = {
                "iterations": 2, "central": epsilon**-0.5, "fixed": 1.0 / epsilon,
                "corrective": 1.0, "fixed up": epsilon, "corrective up": 2.0,
            }  # fmt: skip
    text = lasso.render(found)
    assert "| search, 5 columns | 1.0e-02 |" in text
    assert text.count("-1.00") == 3
    assert "| sparse | -0.50 | -1.00 | " in text
    assert "2.0 MB" in text
    assert "reached" in text


def test_the_join_is_trained_and_measured(lasso: Any) -> None:
    name, kind, options, epsilon = lasso.SETTINGS[1]
    assert (kind, epsilon) == ("lasso", 0.0)
    found = lasso._run(name, kind, options, epsilon)
    assert 0.5 < found["r2"] < 1.0
    assert found["told"] >= 4
    assert set(lasso.BOUNDS) >= {"distance", "temp", "seats"}
