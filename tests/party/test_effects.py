"""Errors of effects: the uncertain strength of a category."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import quad

from sqlfl.models.gram import GramMatrix
from sqlfl.party.effects import Precision

TOTAL = 1000.0
COUNTS = np.array([400.0, 300.0, 200.0, 90.0, 10.0, 0.0])


def precision(ridge: float, dispersion: float = 1.0 / TOTAL) -> Precision:
    """Columns of two numbers and a category of 6 values, the last of which no row has."""
    gram = GramMatrix(
        np.eye(2) * TOTAL, np.zeros((6, 2)), sparse.csr_array(np.diag(COUNTS)),
        np.r_[0.0, 0.0, COUNTS], TOTAL,
    )  # fmt: skip
    return Precision(gram, np.zeros(8), TOTAL, 0.25, np.full(8, ridge), dispersion)


def by_hand(ridge: float, weights: np.ndarray, dispersion: float, directions: int) -> np.ndarray:
    """The mean square of error over standard deviations σ = 1/√λ, all as likely before, by
    quadrature, less the error at the strength that was found."""
    bend = 0.25 * COUNTS / TOTAL
    scores = (bend + ridge)[:, None] * weights

    def density(sigma: float) -> float:
        variance = dispersion * bend[:-1] + dispersion * bend[:-1] ** 2 * sigma**2
        squares = np.sum(scores[:-1] ** 2, axis=1)
        logs = -0.5 * (directions * np.log(variance / dispersion / bend[:-1]) + squares / variance)
        base = -0.5 * squares / (dispersion * bend[:-1])
        return float(np.exp(np.sum(logs - base)))

    largest = 1.0 / np.sqrt(1e-3 * bend[:-1].mean())

    places = np.geomspace(1e-4, largest, 4)
    whole = quad(density, 0, largest, points=places, limit=400)[0]
    found = np.zeros_like(weights)
    for k in range(len(bend)):
        for output in range(weights.shape[1]):

            def error(sigma: float, k: int = k, output: int = output) -> float:
                now = 1.0 / (bend[k] + 1.0 / max(sigma, 1e-9) ** 2)
                share = directions / weights.shape[1] if weights.shape[1] > 1 else 1.0
                moved = scores[k, output] * now - weights[k, output]
                return density(sigma) * (dispersion * share * now + moved**2)

            found[k, output] = quad(error, 0, largest, points=places, limit=400)[0] / whole
    outputs = weights.shape[1]
    share = directions / outputs if outputs > 1 else 1.0
    return np.maximum(found - dispersion * share / (bend + ridge)[:, None], 0.0)


@pytest.mark.parametrize("ridge", [1e-3, 1e-2, 1e4])
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_error_of_an_unknown_strength_is_that_of_a_quadrature(
    ridge: float, outputs: int
) -> None:
    weights = np.random.default_rng(4).normal(size=(6, outputs)) * 0.3
    weights[-1] = 0.0
    if ridge > 1:
        weights /= 1e5
    own = precision(ridge)
    found = own.strength_squares(slice(2, 8), weights_of(weights))
    wanted = by_hand(ridge, weights, own.dispersion, max(outputs - 1, 1))
    np.testing.assert_allclose(found[:5], wanted[:5], rtol=0.02, atol=1e-7)


def weights_of(weights: np.ndarray) -> np.ndarray:
    return np.vstack([np.ones((2, weights.shape[1])), weights])


def test_a_strength_at_its_limit_leaves_a_band() -> None:
    """Twelve categories whose differences are within chance may differ all the same."""
    own = precision(1e4)
    weights = weights_of(np.full((6, 1), 1e-7))
    added = np.sqrt(own.strength_squares(slice(2, 8), weights))
    assert np.sqrt(own.dispersion / 1e4) < 1e-3
    assert (added[:5] > 0.02).all()


def test_many_categories_say_what_their_strength_is() -> None:
    rng = np.random.default_rng(5)
    counts = np.full(400, 25.0)
    bend = 0.25 * counts / counts.sum()
    dispersion = 1.0 / counts.sum()
    gram = GramMatrix(
        np.zeros((0, 0)), np.zeros((400, 0)), sparse.csr_array(np.diag(counts)), counts,
        counts.sum(),
    )  # fmt: skip
    ridge = dispersion / 0.5**2
    scores = rng.normal(size=400) * np.sqrt(dispersion * (bend + bend**2 / ridge))
    own = Precision(gram, np.zeros(400), counts.sum(), 0.25, np.full(400, ridge), dispersion)
    weights = (scores / (bend + ridge))[:, None]
    added = own.strength_squares(slice(0, 400), weights)[:, 0]
    assert np.mean(added) < 0.05 * dispersion / (bend[0] + ridge)
