"""Sums of draws against the ε that is claimed for them, and against builds that break it."""

from __future__ import annotations

from functools import reduce
from itertools import product

import numpy as np
import pytest
from scipy import stats

from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.events import PoissonBinomial
from sqlfl.privacy.poisson_binomial.sampling import draw

Array = np.ndarray
DELTA = 1e-3
EVENT = PoissonBinomial("embeddings", bins=3, theta=0.1, honest=3, count=3)
CLAIMED = epsilon_of([EVENT], DELTA)


def masses(values: tuple[float, ...], theta: float) -> Array:
    """Of the sum of draws of these values in [−1, 1]."""
    coins = np.arange(EVENT.bins + 1)
    draws = (stats.binom.pmf(coins, EVENT.bins, 0.5 + theta * value) for value in values)
    found: Array = reduce(np.convolve, draws)
    return found


def delta(
    pairs: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...], epsilon: float, theta: float
) -> float:
    """The hockey stick of all sums together, each of a pair of inputs."""
    upper, lower = (
        reduce(np.multiply.outer, [masses(pair[side], theta) for pair in pairs]) for side in (0, 1)
    )
    return float(np.maximum(upper - np.exp(epsilon) * lower, 0.0).sum())


def worst(epsilon: float, theta: float, honest: int, inputs: tuple[float, ...]) -> float:
    """Over what the others have in each of the sums, and both ways that the own value moves."""
    pairs = [
        ((own, *others), (other, *others))
        for others in product(inputs, repeat=honest - 1)
        for own, other in product(inputs, repeat=2)
        if others == tuple(sorted(others)) and own != other
    ]
    chosen = product(pairs, repeat=EVENT.count)
    return max(delta(found, epsilon, theta) for found in chosen if list(found) == sorted(found))


def test_no_inputs_of_several_sums_have_a_larger_delta_than_is_claimed() -> None:
    assert 0.9 * DELTA < worst(CLAIMED, EVENT.theta, EVENT.honest, (-1.0, 1.0)) <= DELTA
    assert worst(CLAIMED, EVENT.theta, EVENT.honest, (-1.0, 0.2)) <= 0.9 * DELTA


@pytest.mark.parametrize(
    ("theta", "honest"),
    [(1.3 * EVENT.theta, EVENT.honest), (EVENT.theta, EVENT.honest - 1)],
    ids=["theta + 30 %", "one honest fewer"],
)
def test_a_broken_build_has_a_larger_delta(theta: float, honest: int) -> None:
    assert worst(CLAIMED, theta, honest, (-1.0, 1.0)) > 2 * DELTA


# -- by the draws themselves ----------------------------------------------------------------------

RUNS = 60_000
AUDITED = PoissonBinomial("embeddings", bins=16, theta=0.05, honest=3, count=4)
AUDIT_DELTA = 0.05


def told(value: float, theta: float, honest: int, seed: int) -> Array:
    """The sums of a run added up, which tells nearly all of one's own value; all others are at the
    lower end: float64 (RUNS,)."""
    entropy = np.random.default_rng(seed).bytes
    total = np.zeros(RUNS)
    for own in (value, *[-1.0] * (honest - 1)):
        values = np.full((RUNS, AUDITED.count), own)
        total += draw(values, 1.0, AUDITED.bins, theta, entropy).sum(axis=1)
    return total


def audited(theta: float, honest: int) -> float:
    """Less than the δ of the draws at the claimed ε, but for a chance of 10⁻⁵: P{sum ≥ c} − e^ε
    Q{sum ≥ c}, with the c that is the best of other runs."""
    claimed = np.exp(epsilon_of([AUDITED], AUDIT_DELTA))
    upper, lower, more_upper, more_lower = (
        told(value, theta, honest, seed) for seed, value in enumerate((1.0, -1.0, 1.0, -1.0))
    )
    cuts = np.unique(upper)
    sticks = [(upper >= cut).mean() - claimed * (lower >= cut).mean() for cut in cuts]
    cut = cuts[int(np.argmax(sticks))]
    hits, false = int((more_upper >= cut).sum()), int((more_lower >= cut).sum())
    least = stats.beta.ppf(5e-6, hits, RUNS - hits + 1)
    most = stats.beta.ppf(1 - 5e-6, false + 1, RUNS - false)
    return float(least - claimed * most)


def test_draws_keep_the_delta_that_is_claimed() -> None:
    assert audited(AUDITED.theta, AUDITED.honest) <= AUDIT_DELTA


@pytest.mark.parametrize(
    ("theta", "honest"),
    [(1.3 * AUDITED.theta, AUDITED.honest), (AUDITED.theta, AUDITED.honest - 1)],
    ids=["theta + 30 %", "one honest fewer"],
)
def test_draws_of_a_broken_build_are_found_out(theta: float, honest: int) -> None:
    assert audited(theta, honest) > AUDIT_DELTA
