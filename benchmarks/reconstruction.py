"""What a coordinator that knows the tower recovers of a row's features from what it sees of it.

Three parties have three numbers and three yes-or-no columns each, all independent; their towers
are those that training begins with, which tell most of the columns. The attacker has as many rows
of the party with their features as it attacks, and learns the features from what it sees of them:
by a decoder of two layers, of the same kind for every view.

- exact: the party's embedding, as `algorithm = 'sgd'` sends it;
- gaussian: the same with noise, as `predictions = 'gaussian'` adds it, and their mean;
- sum: of all parties' embeddings, as `algorithm = 'pbm'` without PRIVACY shows it;
- draws: the sum of binomial draws, once and as the mean over so many epochs of one tower;
- draws, others collude: the party's own draws, of which all others' are taken off.

    python benchmarks/reconstruction.py [--rows 4000] [--page docs/privacy.md]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from results import insert, table
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPRegressor

from sqlfl.models.towers import TowerShape, first_parameters
from sqlfl.privacy.poisson_binomial.sampling import draw, estimate

Array = npt.NDArray[Any]
PARTIES, P = 3, 16
NUMBERS, TRUTHS = 3, 3
"""Columns of each party: numbers, then those that are true or false."""
HIDDEN = (32, 16)
NOISE = 2.0
"""Standard deviation of each number of a gaussian prediction."""
DRAWS = ((64, 0.25), (16, 0.25), (16, 0.1))
"""Bins and θ."""
EPOCHS = (1, 20)


def main() -> None:
    parser = argparse.ArgumentParser(description="features that a coordinator recovers")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args()
    text = "\n".join(measured(arguments.rows))
    print(text)
    if arguments.page is not None:
        insert(arguments.page, "reconstruction", text)


def measured(rows: int) -> list[str]:
    """The table: half of the rows are attacked, the others are known."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(PARTIES, rows, NUMBERS + TRUTHS))
    features[:, :, NUMBERS:] = np.where(features[:, :, NUMBERS:] > 0, 1.0, -1.0)
    embeddings = np.stack([embedded(own, slot) for slot, own in enumerate(features)])
    lines = []
    for name, view in views(embeddings, rng):
        explained, area = recovered(view, features[0])
        lines.append([name, f"{explained:.3f}", f"{area:.3f}"])
    return table(["what the coordinator sees", "R² of numbers", "AUC of yes or no"], lines)


def embedded(x: Array, slot: int) -> Array:
    """h of rows (n, d) by the tower that a slot begins with: (n, P)."""
    shape = TowerShape(x.shape[1], HIDDEN, P, "relu", bounded=True)
    parameters = first_parameters(shape, x.shape[1], seed=1, slot=slot)
    return shape.forward(x @ parameters[0], parameters)


def views(embeddings: Array, rng: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """(M, n, P) -> what is seen of the first party's rows: (n, P)."""
    own, total = embeddings[0], embeddings.sum(axis=0)
    yield "exact", own
    for epochs in EPOCHS:
        noise = NOISE / np.sqrt(epochs) * rng.normal(size=own.shape)
        yield f"gaussian, σ = {NOISE:g}, {_times(epochs)}", own + noise
    yield "sum", total
    for bins, theta in DRAWS:
        for epochs in EPOCHS:
            name = f"b = {bins}, θ = {theta:g}, {_times(epochs)}"
            yield f"draws, {name}", _drawn(embeddings, bins, theta, epochs)
            yield f"draws, others collude, {name}", _drawn(embeddings[:1], bins, theta, epochs)


def _times(epochs: int) -> str:
    return f"{epochs} epochs" if epochs > 1 else "1 epoch"


def _drawn(embeddings: Array, bins: int, theta: float, epochs: int) -> Array:
    parties = len(embeddings)
    sums = (draw(embeddings, 1.0, bins, theta).sum(axis=0) for _ in range(epochs))
    found: Array = sum(estimate(own, parties, 1.0, bins, theta) for own in sums) / epochs
    return found


def recovered(view: Array, features: Array) -> tuple[float, float]:
    """R² of the numbers and AUC of the others, of the second half of the rows, means over columns:
    0 and ½ where nothing is."""
    half = len(view) // 2
    spread = view[:half].std(axis=0)
    inputs = (view - view[:half].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    decoder = MLPRegressor(
        hidden_layer_sizes=(64, 64), max_iter=200, early_stopping=True, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        decoder.fit(inputs[:half], features[:half])
    found, wanted = decoder.predict(inputs[half:]), features[half:]
    left = ((found - wanted) ** 2).sum(axis=0)
    explained = 1.0 - left / ((wanted - wanted.mean(axis=0)) ** 2).sum(axis=0)
    truths = range(NUMBERS, NUMBERS + TRUTHS)
    areas = [roc_auc_score(wanted[:, place] > 0, found[:, place]) for place in truths]
    return float(explained[:NUMBERS].mean()), float(np.mean(areas))


if __name__ == "__main__":
    main()
