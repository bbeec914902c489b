"""benchmarks/speed.py at toy size: the generated joins, the optimum, both sides, the tables."""

from __future__ import annotations

import json
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

from tests.benchmarks.scripts import imported
from tests.depth import spread

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "benchmarks"
NAMES = ("speed", "measuring", "materialised", "workloads")
KINDS = ("linear_regression", "logistic_regression", "softmax_regression")


@pytest.fixture(scope="module")
def speed() -> Iterator[SimpleNamespace]:
    """The modules of the benchmark, as attributes."""
    with imported(*NAMES) as found:
        yield found


def generated(speed, name: str, **shape):
    stars = speed.workloads
    make = {"star": stars.star, "many": stars.many_to_many, "grid": stars.grid}[name]
    return make(speed.workloads.Shape(**{"rows": 2000, "fan_out": 5, **shape}))


@pytest.mark.parametrize("slots", [2, 5])
@pytest.mark.parametrize("name", ["star", "many"])
def test_a_join_has_its_size_however_many_clients(speed, name: str, slots: int) -> None:
    rows = 1 if name == "star" else 5 ** (slots - 1)
    whole = generated(speed, name, rows=400 * rows, slots=slots).joined()
    parts = generated(speed, name, rows=400 * rows, slots=slots, clients=3).joined()
    assert parts.sort_by([(c, "ascending") for c in parts.schema.names]).equals(
        whole.sort_by([(c, "ascending") for c in whole.schema.names])
    )
    if name == "star":
        assert len(whole) == 400
    else:
        assert len(whole) == pytest.approx(400 * rows, rel=0.8)


def test_a_grid_has_rows_without_a_partner_and_no_tree(speed) -> None:
    """Every pair of the sides is looked for, also where a client has a part of them."""
    whole = generated(speed, "grid", rows=2000, fan_out=20).joined()
    parts = generated(speed, "grid", rows=2000, fan_out=20, clients=2).joined()
    assert len(whole) == len(parts) == pytest.approx(2000, rel=0.3)
    assert 0 < whole["a2"].null_count < 0.5 * len(whole)
    assert parts["a2"].null_count == whole["a2"].null_count
    with pytest.raises(ValueError, match="three tables"):
        generated(speed, "grid", slots=4)


@pytest.mark.parametrize("name", ["star", "many"])
def test_equal_seeds_give_equal_joins(speed, name: str) -> None:
    one, again, other = (generated(speed, name, seed=seed).joined() for seed in (4, 4, 5))
    assert one.equals(again)
    assert not one.equals(other)


def test_draws_of_a_row_are_independent(speed) -> None:
    """Ranks of two draws, and how often both are high, go together by chance alone."""
    draws = speed.workloads.Draws(3)
    names = ["a1", "b1", "c1", "y", "z", "k1", "k2", "b1 length", "b1 angle"]
    asked = ", ".join(f"{draws.uniform(name, 'i')} AS u{j}" for j, name in enumerate(names))
    with duckdb.connect() as con:
        drawn = con.sql(f"SELECT {asked} FROM (SELECT range AS i FROM range(100000))")
        values = np.column_stack(list(drawn.fetchnumpy().values()))
    assert values.min() >= 0
    assert values.max() < 1
    seen = np.column_stack([values, *(values > level for level in (0.25, 0.5, 0.75))])
    related = np.abs(np.corrcoef(seen.T))
    number = np.arange(len(related)) % len(names)
    assert related[number[:, None] != number].max() < 0.02, "6 standard deviations"


@pytest.mark.parametrize("name", ["star", "many"])
def test_labels_follow_from_the_features_by_chance(speed, name: str) -> None:
    task = generated(speed, name, rows=20_000, measures=1)
    with task.database() as con:
        best = speed.materialised.optimum(con, task).objective
    share = task.joined()["y"].cast("int32").to_numpy().mean()
    constant = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert 0.3 < share < 0.7
    assert 0.6 * constant < best < 0.95 * constant


def test_a_shape_that_no_join_has_is_refused(speed) -> None:
    with pytest.raises(ValueError, match="1 tables"):
        speed.workloads.Shape(rows=100, slots=1)


def design(rows) -> np.ndarray:
    """Standardised numbers, NULLs as the mean, with an indicator; one-hots."""
    frame = rows.drop_columns(["y"]).to_pandas()
    blocks = []
    for name in frame.columns:
        column = frame[name]
        if not np.issubdtype(rows[name].type.to_pandas_dtype(), np.number):
            blocks += [column == value for value in column.unique()]
            continue
        values = column.astype(float)
        parts = [values.fillna(values.mean())]
        parts += [values.isna().astype(float)] if values.isna().any() else []
        blocks += [(part - part.mean()) / part.std(ddof=0) for part in parts]
    return np.column_stack([np.asarray(block, float) for block in blocks])


def least(kind: str, rows) -> float:
    """By scikit-learn."""
    x, y = design(rows), rows["y"].to_numpy(zero_copy_only=False)
    if kind == "linear_regression":
        model = Ridge(1e-4 * len(y)).fit(x, y)
        loss = np.mean((model.predict(x) - y) ** 2) / 2
    else:
        model = LogisticRegression(C=1e4 / len(y), tol=1e-10, max_iter=5000).fit(x, y)
        p = model.predict_proba(x)[np.arange(len(y)), np.unique(y, return_inverse=True)[1]]
        loss = -np.mean(np.log(p))
    return float(loss + 1e-4 / 2 * (model.coef_**2).sum())


@pytest.mark.parametrize("few", [10**9, 0], ids=["equal rows once", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_optimum_is_scikit_learns(speed, monkeypatch, kind: str, few: int) -> None:
    monkeypatch.setattr(speed.materialised, "FEW", few)
    monkeypatch.setattr(speed.materialised, "SAMPLE", 500)
    task = generated(speed, "star", kind=kind, measures=1)
    table = "SELECT CASE WHEN abs(b) < 1 THEN b END AS b, * EXCLUDE (b)"  # with NULLs
    rows = tuple(f"{table} FROM ({part})" for part in task.tables["d1.facets"])
    task = replace(task, tables={**task.tables, "d1.facets": rows})
    with task.database() as con:
        best = speed.materialised.optimum(con, task)
    joined = task.joined()
    assert joined["b1"].null_count > 100
    assert best.rows == len(joined)
    assert best.objective == pytest.approx(least(kind, joined), rel=1e-7)


def test_sums_of_products_lead_to_the_optimum(speed) -> None:
    task = generated(speed, "many", kind="linear_regression")
    with task.database() as con:
        products = speed.materialised.Products.of(con, task.query)
        assert len(products.side) == speed.materialised.optimum(con, task).width + 1
        with pytest.raises(ValueError, match="NULLs"):
            speed.materialised.Products.of(
                con, f"SELECT * REPLACE (nullif(b1, b1) AS b1) FROM ({task.query})"
            )
    found = products.objective(products.solve())
    assert found == pytest.approx(least(task.kind, task.joined()), rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "solver"),
    [
        ("linear_regression", "cholesky"),
        ("linear_regression", "sums"),
        ("logistic_regression", "lbfgs"),
        ("logistic_regression", "newton-cg"),
        ("logistic_regression", "newton-cholesky"),
        ("softmax_regression", "lbfgs"),
        ("softmax_regression", "newton-cholesky"),
    ],
)
def test_a_central_fit_comes_to_the_optimum(speed, kind: str, solver: str, tmp_path: Path) -> None:
    stored = speed.workloads.Stored.of(
        generated(speed, "star", kind=kind, clients=2), tmp_path / "a"
    )
    with stored.centre() as con:
        best = speed.materialised.optimum(con, stored.task).objective
    found = speed.materialised.fit(stored, speed.materialised.Solver(solver, 1e-6), (), {})
    assert found["objective"] == pytest.approx(best, rel=1e-5)


def test_the_fastest_solver_is_chosen_of_those_that_come_to_the_goal(speed, tmp_path: Path) -> None:
    stored = speed.workloads.Stored.of(generated(speed, "star"), tmp_path / "a")
    with stored.centre() as con:
        best = speed.materialised.optimum(con, stored.task).objective
    chosen = speed.materialised.choose(stored, best * 1.0001)
    assert speed.materialised.fit(stored, chosen, (), {})["objective"] <= best * 1.0001
    with pytest.raises(speed.measuring.Failed, match="no solver"):
        speed.materialised.choose(stored, best * 0.99)


def test_a_central_network_learns(speed, tmp_path: Path) -> None:
    task = generated(speed, "star", kind="mlp_classifier", rows=4000)
    stored = speed.workloads.Stored.of(task, tmp_path / "a")
    options = {**speed.workloads.TOWERS, "batch_size": 200}
    torch = speed.materialised.Solver("torch")
    found = speed.materialised.fit(stored, torch, speed.materialised.TOY, options)
    classes = task.joined()["y"].value_counts().field("counts").to_numpy() / 4000
    assert 0.3 < found["objective"] < 0.97 * -(classes * np.log(classes)).sum()


def test_the_peak_is_the_process_s_own(speed) -> None:
    held = np.ones(60_000_000)
    assert speed.measuring.peak() > held.nbytes
    assert speed.measuring.fresh(speed.measuring.peak) < held.nbytes / 2


def test_a_process_that_is_ended_has_failed(speed) -> None:
    with pytest.raises(speed.measuring.Failed, match="was ended"):
        speed.measuring.fresh(signal.raise_signal, signal.SIGKILL)


@pytest.fixture
def here(speed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are no processes of their own, which would import everything anew; what goes to them
    and comes back is pickled as there."""

    def fresh(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        sent = pickle.loads(pickle.dumps((function, args, kwargs)))
        return pickle.loads(pickle.dumps(sent[0](*sent[1], **sent[2])))

    monkeypatch.setattr(speed.speed, "fresh", fresh)
    monkeypatch.setattr(speed.measuring, "BLOCK", 1 << 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(["star", "flights", "many"], 1))
@pytest.mark.usefixtures("here")
def test_both_sides_come_to_the_gap(
    speed,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept, page = tmp_path / "results.json", tmp_path / "page.md"
    page.write_text("<!-- speed: begin -->\n<!-- speed: end -->\n")
    size = ("--rows", "2000", "--fan-out", "5", "--fraction", "0.02", "--repeats", "1")
    arguments = ["--workloads", name, *size, "--results", str(kept), "--page", str(page)]
    monkeypatch.setattr(sys, "argv", ["speed.py", *arguments])
    speed.speed.main()
    printed = capsys.readouterr().out
    results = json.loads(kept.read_text())
    (found,) = (value for key, value in results.items() if key != "about")
    for side, phases in (("ours", 5), ("central", 3)):
        assert -1e-6 < found[side]["gap"] <= 1e-4  # below 0 by what float32 rounds
        assert len(found[side]["phases"]) == phases
        assert sum(found[side]["phases"].values()) == pytest.approx(
            found[side]["seconds"], rel=0.05
        )
        assert min(found[side]["phases"].values()) > 0
        assert found[side]["peak"] >= found[side]["before"] > 0
    assert found["bound"] == 4 * found["rows"] * (3 if name == "star" else 4) / found["bandwidth"]
    assert page.read_text().split("\n\n", 1)[1].split("\n\n<!--")[0] in printed


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_side_that_cannot_says_why(
    speed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = ("--workloads", "star", "--rows", "2000", "--repeats", "1")
    arguments = [*size, "--sides", "central", "--memory", "1e-9"]
    monkeypatch.setattr(sys, "argv", ["speed.py", *arguments])
    speed.speed.main()
    assert "central: the matrix and what it is made of need" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_linear_models_are_set_beside_sums_in_sql_too(speed, tmp_path: Path) -> None:
    task = generated(speed, "star", kind="linear_regression")
    work = speed.workloads.Workload(task, task)
    compared = speed.speed.Comparison.of(work, tmp_path / "work", 1e9)
    found = compared.run(speed.speed.SIDES, 1)
    assert all(-1e-6 < found[side]["gap"] <= 1e-4 for side in ("ours", "central", "sums"))
    lines = speed.speed.lines("toy", found).splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| toy", "| toy, sums in SQL"]
    page = speed.speed.render({"toy": found})
    assert page.count("\n| toy | ") == 4
