"""Samplers against their distributions, on a public grid, and blind to the low bits of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from sqlfl.base.errors import InternalError
from sqlfl.privacy import samplers
from sqlfl.privacy.samplers import (
    CHUNK,
    GAUSSIAN_BITS,
    LAPLACE_BITS,
    Entropy,
    add_gaussian,
    add_laplace,
    gaussian,
    grid,
    randomised_response,
    standard_normal,
    words,
)

Array = np.ndarray
N = 20_000
WRONG = (0.7, 1.3)
SIGNIFICANT = 1e-6
CELLS = 40


def seeded(seed: int = 0) -> Entropy:
    return np.random.default_rng(seed).bytes


def normal(scale: float) -> Array:
    return add_gaussian(np.full(N, 3.0), scale, seeded()) - 3.0


def laplace(scale: float) -> Array:
    return add_laplace(np.full(N, 3.0), scale, words(2 * N, seeded()).reshape(N, 2)) - 3.0


CONTINUOUS = pytest.mark.parametrize(
    ("draw", "distribution"), [(normal, stats.norm), (laplace, stats.laplace)]
)


def p_values(sample: Array, distribution: stats.rv_continuous) -> tuple[float, float]:
    """Of Kolmogorov-Smirnov, and of χ² over cells of equal probability."""
    edges = distribution.ppf(np.linspace(0, 1, CELLS + 1))
    counts = np.histogram(sample, np.clip(edges, -1e9, 1e9))[0]
    return stats.kstest(sample, distribution.cdf).pvalue, stats.chisquare(counts).pvalue


@CONTINUOUS
def test_noise_has_its_distribution_at_its_scale(
    draw: Callable[[float], Array], distribution: stats.rv_continuous
) -> None:
    assert min(p_values(draw(2.5) / 2.5, distribution)) > 0.01


@CONTINUOUS
@pytest.mark.parametrize("factor", WRONG)
def test_noise_of_another_scale_is_found_out(
    draw: Callable[[float], Array], distribution: stats.rv_continuous, factor: float
) -> None:
    assert max(p_values(draw(2.5 * factor) / 2.5, distribution)) < SIGNIFICANT


def responses(keep: float, classes: int = 4) -> Array:
    codes = np.full(N, 2, np.int32)
    drawn = randomised_response(codes, classes, keep, words(2 * N, seeded()).reshape(N, 2))
    assert drawn.dtype == codes.dtype
    return np.bincount(drawn, minlength=classes)


def expected(keep: float, classes: int = 4) -> Array:
    others = np.full(classes, N * (1 - keep) / (classes - 1))
    others[2] = N * keep
    return others


def test_randomised_response_keeps_and_moves_as_often_as_it_says() -> None:
    assert stats.chisquare(responses(0.6), expected(0.6)).pvalue > 0.01


@pytest.mark.parametrize("factor", WRONG)
def test_randomised_response_of_another_probability_is_found_out(factor: float) -> None:
    assert stats.chisquare(responses(0.6 * factor), expected(0.6)).pvalue < SIGNIFICANT


def test_two_classes_are_swapped_and_empty_codes_stay_empty() -> None:
    codes = np.array([0, 1, 1, 0])
    drawn = words(8, seeded()).reshape(4, 2)
    kept = drawn[:, 0] < np.uint64(2**63)
    found = randomised_response(codes, 2, 0.5, drawn)
    assert 0 < kept.sum() < 4
    assert np.array_equal(found, np.where(kept, codes, 1 - codes))
    assert randomised_response(codes[:0], 2, 0.5, drawn[:0]).shape == (0,)


def test_draws_of_long_noise_do_not_repeat() -> None:
    drawn = gaussian((2, CHUNK), 1.0, seeded(3))
    assert drawn.shape == (2, CHUNK)
    assert abs(np.corrcoef(drawn)[0, 1]) < 0.02
    assert drawn.std() == pytest.approx(1.0, abs=0.01)


def test_the_system_never_draws_the_same_twice() -> None:
    values = np.zeros(8)
    assert not np.any(add_gaussian(values, 1.0) == add_gaussian(values, 1.0))
    assert not np.any(words(8) == words(8))


# -- the grid -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.7, 3e-8, 1e9])
def test_the_grid_depends_on_the_scale_alone(scale: float) -> None:
    step = grid(scale, 40)
    assert np.frexp(step)[0] == 0.5
    assert 2.0**-41 < step / scale <= 2.0**-40
    values = np.random.default_rng(1).normal(size=500) * scale * 10
    noised = add_gaussian(values, scale, seeded())
    coarse = grid(scale, LAPLACE_BITS)
    labels = add_laplace(values, scale, words(1000, seeded()).reshape(500, 2))
    assert np.array_equal(noised / step, np.rint(noised / step))
    assert np.array_equal(labels / coarse, np.rint(labels / coarse))
    # an addition of floating-point noise is on no grid
    naive = values + np.random.default_rng(2).normal(size=500) * scale
    assert not np.array_equal(naive / step, np.rint(naive / step))


def test_low_bits_of_a_value_leave_no_trace() -> None:
    step = grid(1.0, GAUSSIAN_BITS)
    coarse = grid(1.0, LAPLACE_BITS)
    base = np.rint(np.random.default_rng(1).normal(size=400) * 2.0**20) * 2.0**-20
    moved = base + 0.4 * step * np.random.default_rng(2).uniform(-1, 1, 400)
    drawn = words(800, seeded()).reshape(400, 2)
    assert np.any(base != moved)
    assert np.array_equal(add_gaussian(base, 1.0, seeded()), add_gaussian(moved, 1.0, seeded()))
    assert np.array_equal(add_laplace(base, 1.0, drawn), add_laplace(moved, 1.0, drawn))
    noise = gaussian((400,), 1.0, seeded()) * 1.1
    assert not np.array_equal(base + noise, moved + noise)
    # and a step away, the same outputs are reached from both
    shifted = add_gaussian(base + coarse, 1.0, seeded()) - add_gaussian(base, 1.0, seeded())
    assert np.array_equal(shifted, np.full(400, coarse))


def test_values_far_above_the_noise_are_rounded_as_their_exact_sum() -> None:
    """The output is a function of the exact sum on the grid, so rounding it shows nothing more."""
    values = np.array([1e6, -3.3e9, 7.7e15, 1e300, 0.1])
    noise = gaussian(values.shape, 1.0, seeded())
    step = grid(1.0, GAUSSIAN_BITS)
    found = add_gaussian(values, 1.0, seeded())
    for value, own, got in zip(values, noise, found, strict=True):
        multiple = round(Fraction(float(value)) / Fraction(step))
        assert got == float(multiple * Fraction(step) + Fraction(float(own)))


def test_tails_reach_beyond_eight_deviations_and_are_symmetric() -> None:
    drawn = np.array([0, 1, 2**64 - 2, 2**64 - 1], np.uint64)
    low, high, inner, other = standard_normal(drawn)
    assert -9.2 < low < -9.0
    assert high == -low
    assert inner == other == 0.0
    extreme = add_laplace(np.zeros(2), 1.0, drawn[[0, 3, 3, 0]].reshape(2, 2))
    assert extreme[0] == -extreme[1] == pytest.approx(45.05, abs=0.01)


def test_a_draw_of_few_words_still_reaches_every_point_of_the_grid() -> None:
    """In the tail of one draw, where its points are rarer than the grid's, the other fills in."""
    step = grid(1.0, GAUSSIAN_BITS)
    tail = np.full(2000, 2, np.uint64)  # 9 deviations: neighbouring words are some 10⁹ steps apart
    gap = np.diff(standard_normal(np.array([2, 4], np.uint64)))[0]
    assert gap > 1e9 * step
    drawn = iter([np.stack([tail, words(2000, seeded())]).tobytes()])
    found = gaussian((2000,), 1.0, lambda _: next(drawn)) / step
    remainders = np.mod(found, 256.0)
    assert stats.kstest(remainders / 256.0, "uniform").pvalue > 0.01
    drawn_of_laplace = np.stack([tail, words(2000, seeded())], axis=1)
    points = add_laplace(np.zeros(2000), 1.0, drawn_of_laplace) / grid(1.0, LAPLACE_BITS)
    assert stats.kstest(np.mod(points, 256.0) / 256.0, "uniform").pvalue > 0.01


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e-300])
def test_noise_of_no_scale_is_refused(scale: float) -> None:
    with pytest.raises(InternalError, match="noise of scale"):
        add_gaussian(np.zeros(2), scale)
    with pytest.raises(InternalError, match="noise of scale"):
        add_laplace(np.zeros(2), scale, words(4).reshape(2, 2))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(InternalError, match="not finite"):
        add_gaussian(np.array([0.0, value]), 1.0)
    with pytest.raises(InternalError, match="not finite"):
        add_laplace(np.array([value]), 1.0, words(2).reshape(1, 2))


def test_entropy_that_runs_dry_is_refused() -> None:
    with pytest.raises(InternalError, match="8 random bytes, where 16"):
        words(2, lambda _: bytes(8))


@pytest.mark.parametrize(
    ("codes", "classes", "keep", "shape", "message"),
    [
        ([0, 1], 2, 1.0, (2, 2), "keeps"),
        ([0, 1], 2, 0.3, (2, 2), "keeps"),
        ([0, 0], 1, 0.5, (2, 2), "1 classes"),
        ([0, 2], 2, 0.5, (2, 2), "out of the range"),
        ([0, -1], 2, 0.5, (2, 2), "out of the range"),
        ([0, 1], 2, 0.5, (2, 1), "words"),
    ],
)
def test_responses_that_make_no_sense_are_refused(
    codes: list[int], classes: int, keep: float, shape: tuple[int, int], message: str
) -> None:
    with pytest.raises(InternalError, match=message):
        randomised_response(np.array(codes), classes, keep, np.zeros(shape, np.uint64))


def test_labels_need_as_many_words() -> None:
    with pytest.raises(InternalError, match="words"):
        add_laplace(np.zeros(3), 1.0, words(2))


# -- what is left of (ε, 0) for numbers -----------------------------------------------------------


def laplace_delta(bits: int, grid_bits: int, epsilon: float) -> tuple[float, float]:
    """(δ, ε) of two labels that are about ε scales apart, by all pairs of words of so many bits.

    In the sampler such a word has its bits on top, and the middle of the rest below.
    """
    half, numbers = np.uint64(1 << (63 - bits)), np.arange(1 << bits, dtype=np.uint64)
    words = (numbers << np.uint64(64 - bits)) | half
    step = 2.0**-grid_bits
    apart = round(epsilon / step)
    reach = int((bits + 2) * math.log(2.0) / step) + 2
    counts = np.zeros(2 * reach + 1)
    for word in words:
        pairs = np.stack([np.full_like(words, word), words], axis=1)
        noise = samplers.add_laplace(np.zeros(len(words)), 1.0, pairs)
        counts += np.bincount(np.rint(noise / step).astype(int) + reach, minlength=len(counts))
    share, none = counts / counts.sum(), np.zeros(apart)
    near, far = np.concatenate([share, none]), np.concatenate([none, share])
    factor = math.exp(apart * step)
    both = (near - factor * far, far - factor * near)
    return max(float(np.maximum(0.0, d).sum()) for d in both), apart * step


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0])
def test_laplace_noise_of_short_words_has_a_small_delta(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """δ < 0.19 g e^ε 2^−b for words of b bits on a grid of 2^−g scales, and not much less: the
    noise ends at ln 2^(b + 1) scales. With b = 64 and g = 41 that is less than e^ε 2^−61."""
    monkeypatch.setattr(samplers, "LAPLACE_SLACK", 0.0)
    for bits, grid_bits in ((9, 4), (10, 5), (10, 6)):
        monkeypatch.setattr(samplers, "LAPLACE_BITS", grid_bits)
        delta, exact = laplace_delta(bits, grid_bits, epsilon)
        bound = 0.19 * grid_bits * math.exp(exact) * 2.0**-bits
        assert bound / 3 < delta <= bound
    assert 0.19 * 41 * 2.0**-64 < 2.0**-61
