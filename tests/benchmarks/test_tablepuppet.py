"""benchmarks/tablepuppet.py on a small data set of the shape of MovieLens-1M."""

from __future__ import annotations

import json
import sys
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.benchmarks.scripts import imported
from tests.depth import SEED, THOROUGH

USERS, MOVIES, RATINGS = 60, 80, 1500
GENRES = ("Comedy", "Drama", "Horror", "Western")
EPOCHS, BATCH, INNER = 3, 900, 10
SETTINGS = ("linear/plain", "linear/titles", "nn/plain", "nn/titles")
METHODS = {"linear": 10, "nn": 7}
SYLLABLES = ("ba", "ko", "mi", "ru", "te", "la", "so", "ne", "gu", "fi")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "movielens"
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = ["".join(rng.choice(SYLLABLES, 4)) for _ in range(MOVIES)]
    movie_id = np.arange(1, MOVIES + 1, dtype=np.int32)
    user_id = np.arange(1, USERS + 1, dtype=np.int32)
    year = rng.integers(1930, 2000, MOVIES).astype(np.int16)
    genres = [rng.choice(GENRES, rng.integers(1, 4), replace=False) for _ in range(MOVIES)]
    age = rng.choice([1, 18, 25, 35, 56], USERS).astype(np.int8)
    pairs = rng.choice(USERS * MOVIES, RATINGS, replace=False)
    user, movie = pairs // MOVIES, pairs % MOVIES
    level = 3.5 + 0.6 * (age[user] > 25) - 0.01 * (year[movie] - 1965)
    rating = np.clip(np.round(level + rng.normal(size=RATINGS)), 1, 5).astype(np.int8)
    files = {
        "users": {
            "user_id": user_id,
            "gender": rng.choice(["F", "M"], USERS),
            "age": age,
            "occupation": rng.integers(0, 5, USERS).astype(np.int8),
        },
        "movies": {
            "movie_id": movie_id,
            "title": [f"{name} ({y})" for name, y in zip(names, year, strict=True)],
            "year": year,
        },
        "movie_genres": {
            "movie_id": np.repeat(movie_id, [len(g) for g in genres]),
            "genre": np.concatenate(genres),
        },
        "ratings": {
            "user_id": user_id[user],
            "movie_id": movie_id[movie],
            "rating": rating,
        },
    }
    for name, columns in files.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return folder


@pytest.mark.slow
def test_the_comparison_runs_and_is_rendered(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One test, so that workers do not each make the runs."""
    work, page = tmp_path / "work", tmp_path / "page.md"
    page.write_text("# Results\n\n<!-- tablepuppet: begin -->\n<!-- tablepuppet: end -->\n\nend\n")
    settings = SETTINGS if THOROUGH else (SETTINGS[SEED % len(SETTINGS)],)
    only = "" if THOROUGH else settings[0]
    into = ["--page", str(page), "--figures", str(tmp_path / "figures")]
    few = ["--only", f"{settings[0]}/RFL"]
    calls = (few, ["--only", only, *into], ["--render"])
    first, then, rendered = _run(source, work, monkeypatch, capsys, *calls)
    total = sum(METHODS[setting.partition("/")[0]] for setting in settings)
    begun = [line for line in (first + then).splitlines() if line.endswith(" ...")]
    assert len(begun) == len(set(begun)) == total, "only what is missing is to be made"
    results = json.loads((work / "results.json").read_text())
    runs = [name for name, value in results.items() if "epochs" in value]
    assert len(runs) == total
    assert all(np.isfinite(row["rmse"]) for name in runs for row in results[name]["epochs"])
    for setting in settings:
        _check_rounds(results, setting)
        _check_bytes_without_reduction(results, setting)
        if setting.startswith("linear"):
            _check_optimum(results, setting)
    _check_files(rendered, page.read_text(), tmp_path / "figures", len(settings))


def _run(
    source: Path,
    work: Path,
    patch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *more: list[str],
) -> list[str]:
    """What the program prints with each of the lists of arguments, one after the other."""
    usual = [str(source), "--work", str(work), "--epochs", str(EPOCHS), "--batch", str(BATCH)]
    told = []
    with imported("tablepuppet") as found:
        for arguments in more:
            patch.setattr(sys, "argv", ["tablepuppet.py", *usual, *arguments])
            found.tablepuppet.main()
            told.append(capsys.readouterr().out)
    return told


def _check_rounds(results: dict[str, Any], setting: str) -> None:
    """Per epoch, those of the paper."""
    batches = ceil(results["data"]["train"] / BATCH)
    expected = {
        "VFL-SGD": batches,
        "VFL-ADMM": 1,
        "RFL-SGD-V": batches,
        "RFL-ADMM-V": 1,
        "RFL-SGD": 2 * batches,
        "RFL-ADMM, consensus": 1 + INNER,
    }
    if setting.startswith("linear"):
        expected |= {"RFL-ADMM, exact": 2, "L-BFGS, 1 client": 1, "L-BFGS, 2 clients": 2}
    found = {name: _per_epoch(results[f"{setting}/{name}"], "rounds") for name in expected}
    assert found == expected


def _check_bytes_without_reduction(results: dict[str, Any], setting: str) -> None:
    """A value per joined row and table, and for ADMM two down; a penalty goes with each reply."""
    values = results["data"]["train"] * 2 * 4
    sgd, admm = (results[f"{setting}/VFL-{name}"] for name in ("SGD", "ADMM"))
    assert _per_epoch(sgd, "bytes_up") == pytest.approx(values, rel=0.02)
    assert _per_epoch(sgd, "bytes_down") == pytest.approx(values, rel=0.02)
    assert _per_epoch(admm, "bytes_up") == pytest.approx(values, rel=0.02)
    assert _per_epoch(admm, "bytes_down") == pytest.approx(2 * values, rel=0.02)


def _check_optimum(results: dict[str, Any], setting: str) -> None:
    best = results[f"{setting}/optimum"]
    for name in ("VFL-ADMM", "RFL-ADMM-V", "RFL-ADMM, exact", "RFL-ADMM, consensus",
                 "L-BFGS, 1 client", "L-BFGS, 2 clients"):  # fmt: skip
        last = results[f"{setting}/{name}"]["epochs"][-1]
        assert last["rmse"] == pytest.approx(best["rmse"], abs=0.01), name
        assert last["objective"] >= best["objective"] * (1 - 1e-6), name
        exact = 1e-4 if name.startswith("L-BFGS") else 1e-2
        assert last["objective"] == pytest.approx(best["objective"], rel=exact), name


def _check_files(rendered: str, page: str, figures: Path, settings: int) -> None:
    assert rendered.count("| RFL-ADMM-V |") == settings
    assert all(line in rendered for line in page.splitlines() if line.startswith("|"))
    assert page.startswith("# Results")
    assert page.endswith("end\n")
    assert "without titles" not in page
    made = sorted(figures.glob("*.png"))
    assert [figure.stem for figure in made] == [
        "tablepuppet-epochs",
        "tablepuppet-us-uk",
        "tablepuppet-us-us",
    ]
    assert all(0 < figure.stat().st_size < 150_000 for figure in made)


def _per_epoch(run: dict[str, Any], name: str) -> float:
    rows = run["epochs"][:-1]  # the last has what measures the gradient besides
    return float(rows[-1][name] - rows[0][name]) / (len(rows) - 1)
