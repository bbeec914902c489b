"""benchmarks/reconstruction.py at small size: what is seen decides what is recovered."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def module() -> Iterator[Any]:
    others = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    yield import_module("reconstruction")
    sys.path.remove(str(FOLDER))
    for name in {path.stem for path in FOLDER.glob("*.py")} - others:
        sys.modules.pop(name, None)


def test_noise_of_the_views_is_that_of_so_many_epochs(module: Any) -> None:
    embeddings = np.random.default_rng(0).uniform(-1, 1, (3, 3000, 4))
    own, total = embeddings[0], embeddings.sum(axis=0)
    found = dict(module.views(embeddings, np.random.default_rng(1)))
    np.testing.assert_array_equal(found["exact"], own)
    np.testing.assert_array_equal(found["sum"], total)
    share = (0.25 - (0.1 * embeddings) ** 2) / (0.1**2 * 16)
    for epochs, words in ((1, "1 epoch"), (20, "20 epochs")):
        noise = found[f"gaussian, σ = 2, {words}"] - own
        assert noise.var() == pytest.approx(4 / epochs, rel=0.05)
        name = f"b = 16, θ = 0.1, {words}"
        drawn = found[f"draws, {name}"] - total
        assert drawn.var() == pytest.approx(share.sum(axis=0).mean() / epochs, rel=0.05)
        alone = found[f"draws, others collude, {name}"] - own
        assert alone.var() == pytest.approx(share[0].mean() / epochs, rel=0.05)


@pytest.mark.slow
def test_exact_embeddings_tell_and_noise_hides(module: Any) -> None:
    heads, _, *rows = (line.strip("| ").split(" | ") for line in module.measured(1500))
    assert heads[1:] == ["R² of numbers", "AUC of yes or no"]
    found = {name: (float(r2), float(area)) for name, r2, area in rows}
    assert found["exact"][0] > 0.8
    assert found["exact"][1] > 0.95
    assert found["sum"][0] < found["exact"][0] - 0.2
    hidden = found["draws, b = 16, θ = 0.1, 1 epoch"]
    assert hidden[0] < 0.1
    assert hidden[1] < 0.65
    assert found["draws, others collude, b = 16, θ = 0.1, 20 epochs"][0] > 0.3
