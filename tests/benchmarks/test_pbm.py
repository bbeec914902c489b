"""benchmarks/pbm.py at toy size: aligned tables, what is noised and counted, tables, the join."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest

from sqlfl.aggregation import packing
from tests.benchmarks.scripts import imported

NAMES = ("aligned", "pbm")
P = 16


@pytest.fixture(scope="module")
def modules() -> Iterator[SimpleNamespace]:
    with imported(*NAMES) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Phishing.parquet and windows.parquet of other rows, with something to learn."""
    found = tmp_path_factory.mktemp("data")
    columns = ", ".join(f"(hash(i, {k}) % 3)::INT - 1 AS x{k}" for k in range(30))
    score = " + ".join(f"x{k}" for k in range(0, 30, 2))
    with duckdb.connect() as con:
        con.execute(
            f"COPY (SELECT *, CASE WHEN {score} > 0 THEN 1 ELSE -1 END AS result "
            f"FROM (SELECT i AS id, {columns} FROM range(500) r(i))) "
            f"TO '{found}/phishing.parquet'"
        )
        con.execute(
            "COPY (SELECT id AS window_id, id % 30 AS subject, 'a' AS fold, "
            "* EXCLUDE (id, result), "
            "CASE WHEN id % 4 = 0 THEN 'test' ELSE 'train' END AS split, "
            f"CASE WHEN x0 > 0 THEN 3 ELSE x2 + 1 END AS activity FROM '{found}/phishing.parquet') "
            f"TO '{found}/windows.parquet'"
        )
    return found


def test_data_are_split_and_standardised_by_rows_for_training(modules: Any, folder: Path) -> None:
    data = modules.aligned.phishing(folder, 1)
    assert (data.train.shape, data.test.shape) == ((400, 30), (100, 30))
    assert (data.measure, data.classes) == ("AUPRC", 2)
    np.testing.assert_allclose(data.train.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(data.train.std(axis=0), 1.0)
    other = modules.aligned.phishing(folder, 2)
    assert not np.array_equal(other.targets, data.targets)
    own = modules.aligned.activity(folder)
    assert (own.train.shape, own.test.shape, own.classes) == ((375, 30), (125, 30), 4)
    assert own.measure == "accuracy"


@pytest.mark.parametrize("task", ["phishing", "activity"])
def test_a_run_learns_and_counts_what_the_paper_counts(
    modules: Any, folder: Path, task: str
) -> None:
    name = str(folder)
    setting = modules.aligned.Setting(5, epochs=4, optimizer="adam")
    plain = modules.pbm.trained(task, name, setting)
    drawn = modules.pbm.trained(task, name, modules.aligned.replace(setting, bins=64, theta=0.25))
    assert [row["epoch"] for row in plain] == [1, 2, 3, 4]
    assert plain[-1]["train"] > plain[0]["train"]
    assert plain[-1]["test seen"] == plain[-1]["test"]
    assert drawn[-1]["test"] == pytest.approx(plain[-1]["test"], abs=0.1)
    rows = 400 if task == "phishing" else 375
    for found, most in ((plain, 1 << 24), (drawn, 64)):
        width = packing.width(5, most)
        sums = [packing.size(n * P, width) for n in (*(100,) * (rows // 100), rows % 100)]
        up = found[-1]["up"] - found[-2]["up"]
        assert 5 * sum(sums) <= up <= 5 * sum(sums) + 2000
        down = found[-1]["down"] - found[-2]["down"]
        assert 5 * rows * (P * 4 + 4) <= down <= 5 * rows * (P * 4 + 8) + 3000


def test_what_the_coordinator_sees_has_the_noise_that_is_asked_for(modules: Any) -> None:
    aligned = modules.aligned
    embeddings = np.random.default_rng(0).uniform(-1, 1, (5, 4000, P))
    drawn = aligned.Setting(5, 16, 0.2)
    for setting, variance in (
        (drawn, ((0.25 - (0.2 * embeddings) ** 2).sum(axis=0) / (0.2**2 * 16)).mean()),
        (aligned.replace(drawn, local=True), 5 * 2 * 5 / (16 * 0.2**2)),
    ):
        noise = aligned.seen(embeddings, setting) - embeddings.sum(axis=0)
        assert noise.var() == pytest.approx(variance, rel=0.05)
        assert abs(noise.mean()) < 5 * np.sqrt(variance / noise.size)
    exact = aligned.seen(embeddings, aligned.Setting(5))
    np.testing.assert_array_equal(exact, embeddings.sum(axis=0))


def test_local_noise_is_learned_from(modules: Any, folder: Path) -> None:
    """What the coordinator sees of rows for training is noised, and as many bytes as without."""
    aligned = modules.aligned
    data = aligned.phishing(folder, 0)
    plain = aligned.Setting(5, epochs=6, optimizer="adam")
    local = aligned.replace(plain, bins=8, theta=0.1, local=True)
    assert (plain.method, local.method) == ("NPQ", "LDP")
    assert local.variance == pytest.approx(10 / (8 * 0.01))
    found = [aligned.run(data, setting)[-1] for setting in (plain, local)]
    assert found[0]["up"] == found[1]["up"]
    assert found[0]["train seen"] > found[1]["train seen"] + 0.1


def test_settings_that_show_most_come_first(modules: Any) -> None:
    found = modules.pbm.settings(3, 20)
    assert len(found) == len(set(found)) == 3 * 2 * (1 + 2 * 4 * 5)
    assert found[0] == modules.aligned.Setting(5, epochs=20)
    assert [own.method for own in found[1:3]] == ["PBM", "PBM"]
    assert {own.theta for own in found[1:11]} == {0.25}
    assert all(own.seed == 0 and own.parties == 5 for own in found[:41])


def epochs(*train: float, test: float = 0.9) -> dict[str, Any]:
    """A run whose epochs reach so much."""
    return {
        "epochs": [
            {
                "epoch": place + 1,
                "train seen": value,
                "test seen": test,
                "test": test + 0.01,
                "up": 1e6 * (place + 1),
                "down": 2e6 * (place + 1),
            }
            for place, value in enumerate(train)
        ]
    }


def test_tables_stand_beside_the_papers(modules: Any, tmp_path: Path) -> None:
    tables = modules.pbm
    found = {
        tables.run_key("phishing", 5, "NPQ", 0, 0.0, 0, 3): epochs(0.8, 0.91, 0.95),
        tables.run_key("phishing", 5, "PBM", 64, 0.25, 0, 3): epochs(0.7, 0.8, 0.92, test=0.8),
        tables.run_key("phishing", 5, "PBM", 64, 0.25, 1, 3): epochs(0.8, 0.95, 0.95, test=0.7),
        tables.run_key("phishing", 5, "PBM", 8, 0.25, 0, 3): epochs(0.6, 0.7, 0.8),
        tables.run_key("phishing", 10, "LDP", 8, 0.1, 0, 3): epochs(0.6, 0.7, 0.8, test=0.5),
        "join": {
            "runs": [
                {"method": m, "rows": 1000, "auc": 0.7, "accuracy": 0.8, "up": 3e6, "down": 4e6}
                | {"seconds": 5.0}
                for m in ("NPQ", "PBM")
            ]
        },
    }
    text = tables.render(found)
    assert "| NPQ | 2 | 2.00 | 6.0 | 2 | 0.09 | 0.900 | - | - | - |" in text
    assert "| b = 64, θ = 0.25 | 2.5 | 2.50 | 7.5 | 2 | 0.05 | 0.750 | - | - | - |" in text
    assert "| b = 8, θ = 0.25 | > 3 | - | - | 23 | 0.58 | 0.900 | - | - | - |" in text
    assert "| b = 8, θ = 0.1 | - | - | - | > 100 | - | - | - | - | 0.500 |" in text
    assert "| PBM, 1 runs | 1,000 | 70.00 % | 80.00 % | 3 | 4 | 5 |" in text
    assert "Activity" not in text
    tables.draw(found, tmp_path / "pbm.png")
    assert (tmp_path / "pbm.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_join_is_trained_with_draws_and_without(modules: Any) -> None:
    plain, drawn = modules.pbm.joined(1, 1, rows=300)
    assert (plain["method"], drawn["method"]) == ("NPQ", "PBM")
    assert plain["rows"] == drawn["rows"] > 400
    assert plain["test rows"] == drawn["test rows"] > 50
    assert drawn["up"] < plain["up"]
    for found in (plain, drawn):
        assert 0.3 < found["auc"] < 1
