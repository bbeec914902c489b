"""Binomial draws against their distribution, coin by coin, and what sums of them tell."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sqlfl.base.errors import InternalError
from sqlfl.privacy.poisson_binomial import sampling
from sqlfl.privacy.poisson_binomial.sampling import CHUNK, LEVELS, draw, estimate
from sqlfl.privacy.samplers import Entropy

Array = np.ndarray
N = 40_000
WRONG = (0.7, 1.3)
SIGNIFICANT = 1e-6


def seeded(seed: int = 0) -> Entropy:
    return np.random.default_rng(seed).bytes


def p_value(drawn: Array, bins: int, probability: float) -> float:
    """Of χ² over the values, the rare ones together."""
    expected = stats.binom.pmf(np.arange(bins + 1), bins, probability) * len(drawn)
    counts, often = np.bincount(drawn, minlength=bins + 1), expected >= 10
    cells = [np.append(kind[often], kind[~often].sum()) for kind in (counts, expected)]
    kept = cells[1] > 0
    return float(stats.chisquare(cells[0][kept], cells[1][kept], sum_check=False).pvalue)


CASES = pytest.mark.parametrize(
    ("share", "bins", "theta"),
    [(1.0, 16, 0.15), (-0.6, 16, 0.25), (1.0, 64, 0.05), (-1.0, 65, 0.25), (0.7, 300, 0.1)],
)


@CASES
def test_draws_are_binomial(share: float, bins: int, theta: float) -> None:
    drawn = draw(np.full(N, 3.0 * share), 3.0, bins, theta, seeded())
    assert drawn.dtype == np.int64
    assert p_value(drawn, bins, 0.5 + theta * share) > 0.01


@CASES
@pytest.mark.parametrize("factor", WRONG)
def test_draws_of_another_theta_are_found_out(
    share: float, bins: int, theta: float, factor: float
) -> None:
    wrong = theta * factor if theta * factor <= 0.25 else theta / factor
    drawn = draw(np.full(N, 3.0 * share), 3.0, bins, wrong, seeded())
    assert p_value(drawn, bins, 0.5 + theta * share) < SIGNIFICANT


def test_each_value_has_its_own_draw_over_all_chunks() -> None:
    values = np.tile([-1.0, 0.0, 1.0, 0.5], (3, CHUNK // 2))
    drawn = draw(values, 1.0, 65, 0.25, seeded())
    assert drawn.shape == values.shape
    assert draw(values[:0], 1.0, 8, 0.25).shape == (0, 2 * CHUNK)
    assert draw(np.float64(0.5), 1.0, 8, 0.25).shape == ()
    for start, value in enumerate(values[0, :4]):
        assert p_value(drawn[:, start::4].ravel(), 65, 0.5 + 0.25 * value) > 0.01
    halves = drawn.reshape(-1)[: 2 * CHUNK] - 65 * (0.5 + 0.25 * values.reshape(-1)[: 2 * CHUNK])
    assert abs(np.corrcoef(halves.reshape(2, -1))[0, 1]) < 0.03


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_a_coin_is_a_comparison_of_32_bits(off: int) -> None:
    """Of a coin each, whose bits are those of the threshold, or of the number beside it."""
    values = np.random.default_rng(4).uniform(-1, 1, 48)
    thresholds = sampling._thresholds(values, 1.0, 0.2).astype(np.int64)
    bits = thresholds + off
    alike = ~(bits ^ thresholds)
    given = [
        # the other bits of a byte, and all once a coin is decided, are not to count
        ((alike >> (31 - level) & 1) << 7 | 0x55).astype(np.uint8).tobytes()
        for level in range(LEVELS)
    ]
    same = bits >> 32 - LEVELS == thresholds >> 32 - LEVELS
    given.append((bits[same] << LEVELS & 0xFFFFFFFF).astype("<u4").tobytes())
    left = iter(given)
    found = draw(values, 1.0, 1, 0.2, lambda count: next(left).ljust(count, b"\0"))
    assert np.array_equal(found, bits < thresholds)
    assert next(left, None) is None


@given(
    st.lists(st.floats(-1, 1), max_size=9),
    st.integers(1, 200),
    st.floats(0.001, 0.25),
    st.integers(0, 10**6),
)
def test_draws_are_those_of_a_slow_count(
    values: list[float], bins: int, theta: float, seed: int
) -> None:
    """Level by level, of the same random bytes, coin by coin."""
    drawn: list[bytes] = []

    def entropy(count: int) -> bytes:
        drawn.append(generator.bytes(count))
        return drawn[-1]

    generator = np.random.default_rng(seed)
    found = draw(np.array(values), 1.0, bins, theta, entropy)
    given, heads = iter(drawn), [0] * len(values)
    thresholds = sampling._thresholds(np.array(values), 1.0, theta).tolist()
    open_ = [bins] * len(values)
    for level in range(LEVELS if values else 0):
        most = max(open_)
        size = next((size for size in (1, 2, 4) if most <= 8 * size), 8)
        ones = [0] * len(values)
        for start in range(0, most, 8 * size):
            words = next(given)
            for place, coins in enumerate(open_):
                own = int.from_bytes(words[place * size : (place + 1) * size], "little")
                shown = f"{own:0{8 * size}b}"[: max(0, coins - start)]
                ones[place] += shown.count("1")
        for place, threshold in enumerate(thresholds):
            if threshold >> (31 - level) & 1:
                heads[place] += open_[place] - ones[place]
        open_ = ones
    rest = iter(np.frombuffer(next(given, b""), "<u4").tolist())
    for place, threshold in enumerate(thresholds):
        last = [next(rest) >> LEVELS for _ in range(open_[place])]
        heads[place] += sum(value < threshold % (1 << (32 - LEVELS)) for value in last)
    assert found.tolist() == heads


@given(theta=st.floats(2.0**-20, 0.25), bound=st.floats(1e-300, 1e300), share=st.floats(-1, 1))
def test_probabilities_stay_within_theta_and_are_off_by_a_rounding(
    theta: float, bound: float, share: float
) -> None:
    """So a draw has the privacy of the mechanism at some value within the bound."""
    value = share * bound
    low, found, high = (
        int(sampling._thresholds(np.array([v]), bound, theta)[0]) for v in (-bound, value, bound)
    )
    exact = Fraction(theta) * sampling.STEPS
    half = sampling.STEPS // 2
    assert half - exact <= low <= found <= high <= half + exact
    assert high - (half + exact) > -1
    wanted = half + exact * Fraction(value) / Fraction(bound)
    assert abs(found - wanted) <= 1
    assert high + low == 2 * half


def test_the_system_never_draws_the_same_twice() -> None:
    values = np.zeros(200)
    assert np.any(draw(values, 1.0, 64, 0.1) != draw(values, 1.0, 64, 0.1))


# -- the estimate ---------------------------------------------------------------------------------

PARTIES = np.array([[-2.0, 0.3], [1.7, 0.0], [2.0, -0.9]])
"""Values of 3 parties, in [−2, 2]."""


def variance(bins: int, theta: float) -> Array:
    """Return the variance of the estimated sums: 2²/(theta² bins) Σ (¼ − theta² value²/2²)."""
    return (0.25 - (theta * PARTIES / 2) ** 2).sum(axis=0) * 4 / (theta**2 * bins)


def estimates(bins: int, theta: float, of: float) -> Array:
    """By draws with θ = `of`: (draws, 2)."""
    values = np.repeat(PARTIES[:, None], N, axis=1)
    return estimate(draw(values, 2.0, bins, of, seeded()).sum(axis=0), 3, 2.0, bins, theta)


@pytest.mark.parametrize(("bins", "theta"), [(1, 0.25), (16, 0.1), (130, 0.2)])
def test_the_estimate_is_unbiased_and_has_its_variance(bins: int, theta: float) -> None:
    found, spread = estimates(bins, theta, theta), variance(bins, theta)
    errors = (found.mean(axis=0) - PARTIES.sum(axis=0)) / np.sqrt(spread / N)
    assert np.abs(errors).max() < 4
    assert found.var(axis=0) / spread == pytest.approx(1.0, abs=5 * math.sqrt(2 / N))


@pytest.mark.parametrize("factor", WRONG)
def test_an_estimate_by_another_theta_is_biased(factor: float) -> None:
    found, spread = estimates(16, 0.15, 0.15 * factor), variance(16, 0.15)
    assert abs(found.mean(axis=0) - PARTIES.sum(axis=0))[0] > 20 * math.sqrt(spread[0] / N)


def test_the_ends_of_the_range_of_sums_are_estimated() -> None:
    assert estimate(np.array([0, 24, 48]), 3, 2.0, 16, 0.25).tolist() == [-12.0, 0.0, 12.0]
    assert estimate(np.zeros(0, np.uint64), 3, 2.0, 16, 0.25).shape == (0,)
    assert estimate(np.array([4, 44], np.uint8), 3, 2.0, 16, 0.25).tolist() == [-10.0, 10.0]


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.0 + 1e-15, -2.0])
def test_values_beyond_their_bound_are_refused(value: float) -> None:
    values = np.array([0.0, value])
    with pytest.raises(InternalError, match="not within their bound"):
        draw(values, 1.0, 16, 0.1)


@pytest.mark.parametrize(
    ("bound", "bins", "theta", "message"),
    [
        (0.0, 16, 0.1, "with bound 0.0"),
        (math.nan, 16, 0.1, "with bound nan"),
        (math.inf, 16, 0.1, "with bound inf"),
        (1.0, 0, 0.1, "of 0 bins"),
        (1.0, 1025, 0.1, "of 1025 bins"),
        (1.0, 16, 0.0, "θ = 0.0"),
        (1.0, 16, 0.26, "θ = 0.26"),
        (1.0, 16, math.nan, "θ = nan"),
    ],
)
def test_draws_that_make_no_sense_are_refused(
    bound: float, bins: int, theta: float, message: str
) -> None:
    with pytest.raises(InternalError, match=message):
        draw(np.zeros(2), bound, bins, theta)
    with pytest.raises(InternalError, match=message):
        estimate(np.zeros(2, np.int64), 1, bound, bins, theta)


@pytest.mark.parametrize(("sums", "parties"), [([0, 33], 2), ([-1, 3], 2), ([0, 1], 0)])
def test_sums_that_no_draws_have_are_refused(sums: list[int], parties: int) -> None:
    with pytest.raises(InternalError, match="a sum"):
        estimate(np.array(sums), parties, 1.0, 16, 0.1)
