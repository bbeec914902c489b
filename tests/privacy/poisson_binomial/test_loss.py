"""What a coordinate tells, against all inputs that there are, in exact convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from sqlfl.base.errors import InternalError
from sqlfl.privacy.events import PoissonBinomial
from sqlfl.privacy.poisson_binomial import loss
from sqlfl.privacy.poisson_binomial.loss import (
    Coordinate,
    coordinate,
    deviation,
    ends,
    loss_masses,
    renyi,
    step,
)

Array = np.ndarray
ORDERS = (1.01, 1.25, 2.0, 3.0, 8.0, 32.0, 128.0)
SMALL = [
    Coordinate(bins, theta, honest, moved)
    for (bins, honest, moved), theta in zip(
        [(1, 1, 1), (1, 3, 1), (2, 2, 1), (3, 3, 1), (4, 2, 1), (2, 3, 2), (3, 2, 2)],
        [0.25, 0.1, 0.2, 0.05, 0.25, 0.15, 0.01],
        strict=True,
    )
]
SMALLS = pytest.mark.parametrize("own", SMALL, ids=str)


def masses(values: Sequence[float], bins: int, theta: float) -> Array:
    """Of the sum of draws of these values in [−1, 1]."""
    found = np.ones(1)
    for value in values:
        found = np.convolve(found, stats.binom.pmf(np.arange(bins + 1), bins, 0.5 + theta * value))
    return found


def neighbours(own: Coordinate, shares: Sequence[float]) -> list[tuple[Array, Array]]:
    """The sums of all pairs of inputs from `shares`."""
    found = []
    for others in product(shares, repeat=own.honest - own.moved):
        moving = list(product(shares, repeat=own.moved))
        sums = [masses((*moved, *others), own.bins, own.theta) for moved in moving]
        found += list(product(sums, repeat=2))
    return found


def divergence(pair: tuple[Array, Array], order: float) -> float:
    upper, lower = np.log(pair)
    return float(logsumexp(order * upper - (order - 1) * lower)) / (order - 1)


def stick(upper: Array, lower: Array, epsilon: float) -> float:
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


def dominating(own: Coordinate, interval: float) -> tuple[Array, Array]:
    """Losses and masses."""
    first, found = loss_masses(own, interval)
    return (first + np.arange(len(found))) * interval, found


def stick_of(losses: Array, found: Array, epsilon: float) -> float:
    return float(found @ -np.expm1(np.minimum(epsilon - losses, 0.0)))


# -- masses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("coins", "theta"), [(1, 0.25), (9, 0.05), (24, 0.25), (31, 1e-4)])
def test_masses_are_exact_to_the_last_digits(coins: int, theta: float) -> None:
    high = Fraction(1, 2) + Fraction(theta)
    own = Coordinate(1, theta, coins, 1)
    logs, tails = loss._log_masses(own), loss._log_tails(own)
    for t in range(coins + 1):
        exact = [Fraction(1)]
        for coin in range(coins):
            p = high if coin < t else 1 - high
            exact = [(1 - p) * a + p * b for a, b in zip([*exact, 0], [0, *exact], strict=True)]
        assert np.exp(logs[t]) == pytest.approx([float(mass) for mass in exact], rel=1e-12)
        sums = [float(sum(exact[x:])) for x in range(coins + 2)]
        assert np.exp(tails[t]) == pytest.approx(sums, rel=1e-12)


def test_only_the_masses_of_pairs_are_worked_out() -> None:
    every = loss._log_masses(Coordinate(1, 0.2, 12, 1))
    for own in (Coordinate(3, 0.2, 4, 1), Coordinate(3, 0.2, 4, 3), Coordinate(12, 0.2, 1, 1)):
        found = loss._log_masses(own)
        assert np.array_equal(found[: own.pairs], every[: own.pairs])
        assert np.array_equal(found[-own.pairs :], every[own.apart :])
    assert len(loss._log_masses(Coordinate(1000, 0.2, 3, 3))) == 2


def test_masses_of_many_coins_are_distributions_with_their_moments() -> None:
    coins, theta = 1280, 0.25
    found, x = np.exp(loss._log_masses(Coordinate(1, theta, coins, 1))), np.arange(coins + 1)
    means = found @ x
    assert found.sum(axis=1) == pytest.approx(1.0, abs=1e-11)
    assert means == pytest.approx(coins * (0.5 - theta) + 2 * theta * x, rel=1e-10)
    assert found @ x**2 - means**2 == pytest.approx(coins * (0.25 - theta**2), rel=1e-7)


# -- Rényi's divergence ---------------------------------------------------------------------------


@SMALLS
def test_the_divergence_is_the_formula_over_every_number_of_coins_that_differ(
    own: Coordinate,
) -> None:
    """P = Bin(k + j, ½ + θ) * Bin(N − j − k, ½ − θ), Q with k for k + j, j from 1, both ways."""
    sums = []
    for high in range(own.coins + 1):
        kinds = ((high, 0.5 + own.theta), (own.coins - high, 0.5 - own.theta))
        sums.append(np.convolve(*(stats.binom.pmf(np.arange(n + 1), n, p) for n, p in kinds)))
    pairs = [
        (sums[k + j], sums[k]) for j in range(1, own.apart + 1) for k in range(own.coins - j + 1)
    ]
    pairs += [pair[::-1] for pair in pairs]
    for order, found in zip(ORDERS, renyi(own, ORDERS), strict=True):
        assert found == pytest.approx(max(divergence(pair, order) for pair in pairs), rel=1e-9)


@SMALLS
def test_no_inputs_have_a_larger_divergence_and_those_at_the_ends_attain_it(
    own: Coordinate,
) -> None:
    found = renyi(own, ORDERS)
    inner, outer = neighbours(own, (-1.0, -0.6, 0.1, 1.0)), neighbours(own, (-1.0, 1.0))
    for order, most in zip(ORDERS, found, strict=True):
        assert max(divergence(pair, order) for pair in inner) <= most * (1 + 1e-9)
        assert max(divergence(pair, order) for pair in outer) == pytest.approx(most, rel=1e-9)
        inside = neighbours(own, (-0.9, 0.0, 0.9))
        assert max(divergence(pair, order) for pair in inside) < 0.95 * most


@given(
    bins=st.integers(1, 12),
    honest=st.integers(1, 6),
    theta=st.floats(1e-3, 0.25),
    moved=st.integers(1, 6),
    order=st.floats(1.01, 2000.0),
)
def test_all_others_at_one_end_have_been_the_worst(
    bins: int, honest: int, theta: float, moved: int, order: float
) -> None:
    own = Coordinate(bins, theta, honest, min(honest, moved))
    all_of_them, guessed = renyi(own, [order]), renyi(own, [order], ends(own))
    assert guessed == pytest.approx(all_of_them, rel=1e-9)


@pytest.mark.parametrize("own", [Coordinate(16, 0.15, 5, 1), Coordinate(64, 0.05, 4, 1)], ids=str)
def test_the_usual_estimate_of_the_divergence_is_too_small(own: Coordinate) -> None:
    """8αbθ²/n is right for small θ and low orders only."""
    rough = np.array([8 * a * own.bins * own.theta**2 / own.honest for a in ORDERS[:5]])
    ratios = renyi(own, ORDERS[:5]) / rough
    assert np.all((ratios > 1.0) & (ratios < 1.8))


# -- the distribution of losses -------------------------------------------------------------------


@SMALLS
@pytest.mark.parametrize("fineness", [3.0, 50.0])
def test_no_inputs_have_a_larger_hockey_stick(own: Coordinate, fineness: float) -> None:
    losses, found = dominating(own, deviation(own) / fineness)
    pairs = neighbours(own, (-1.0, -0.6, 0.1, 1.0))
    for epsilon in np.linspace(-own.largest, own.largest, 41):
        worst = max(stick(upper, lower, epsilon) for upper, lower in pairs)
        assert worst <= stick_of(losses, found, epsilon) + 1e-12


@SMALLS
def test_on_the_grid_the_hockey_stick_is_the_largest_of_all_pairs(own: Coordinate) -> None:
    interval = deviation(own) / 9.0
    losses, found = dominating(own, interval)
    sums = np.exp(loss._log_masses(replace(own, bins=1, honest=own.coins, moved=1)))
    for epsilon in losses:
        worst = max(
            stick(sums[s + own.apart], sums[s], epsilon) for s in range(own.coins - own.apart + 1)
        )
        assert stick_of(losses, found, epsilon) == pytest.approx(worst, rel=1e-9, abs=1e-13)
    assert found.sum() == pytest.approx(1.0, abs=1e-10)
    assert found @ np.exp(-losses) == pytest.approx(1.0, abs=1e-9)


def test_for_the_hockey_stick_the_ends_are_not_the_worst() -> None:
    """So one pair does not stand for all, as it does of Rényi's divergence."""
    own = Coordinate(1, 0.15, 3, 1)
    sums = np.exp(loss._log_masses(own))
    first, middle, last = (stick(sums[s + 1], sums[s], 0.0) for s in range(3))
    assert middle > 1.19 * max(first, last)
    assert stick_of(*dominating(own, step(own)), 0.0) >= middle - 1e-12


def test_a_finer_grid_tells_less_and_the_own_one_is_fine_enough() -> None:
    own = Coordinate(4, 0.05, 3, 1)
    exact = renyi(own, [8.0])[0]
    found = []
    for interval in (deviation(own) / 4, step(own), deviation(own) / 500):
        losses, found_masses = dominating(own, interval)
        found.append(float(logsumexp(7.0 * losses, b=found_masses)) / 7.0)
    assert found[0] > found[1] > found[2] >= exact
    assert found[1] < found[2] * 1.001


# -- what a coordinate is -------------------------------------------------------------------------


def test_of_many_slots_fewer_count_as_honest() -> None:
    event = PoissonBinomial("embeddings", 128, 0.1, 10)
    assert coordinate(event) == Coordinate(128, 0.1, 10, 1)
    many = coordinate(PoissonBinomial("embeddings", 1000, 0.1, 10))
    assert many == Coordinate(1000, 0.1, 2, 1)
    assert coordinate(PoissonBinomial("embeddings", 1000, 0.1, 10, moved=3)).honest == 3
    tells = [renyi(Coordinate(8, 0.1, n, 1), [4.0])[0] for n in (1, 2, 3, 9)]
    assert tells == sorted(tells, reverse=True)


@pytest.mark.parametrize(
    ("bins", "theta", "honest", "moved", "message"),
    [
        (0, 0.1, 3, 1, "0 bins"),
        (16, 0.3, 3, 1, "θ = 0.3"),
        (16, 0.1, 0, 1, "1 of 0 honest"),
        (16, 0.1, 3, 4, "4 of 3 honest"),
        (16, 0.1, 3, 0, "0 of 3 honest"),
    ],
)
def test_draws_that_there_are_not_have_no_loss(
    bins: int, theta: float, honest: int, moved: int, message: str
) -> None:
    with pytest.raises(InternalError, match=message):
        coordinate(PoissonBinomial("embeddings", bins, theta, honest, moved=moved))
