"""Binomial draws of numbers in [−C, C], and the estimate of sums from sums of draws."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import MAX_BINS, MAX_THETA
from sqlfl.privacy.samplers import Entropy, system, words

STEPS = 1 << 32
"""Probabilities are multiples of 1/STEPS."""
CHUNK = 1 << 14
"""Numbers at a time, so that their coins stay in the cache."""
LEVELS = 8
"""Bits of all coins at once; 1/2⁸ of the coins are open after them."""


def draw(
    values: Array, bound: float, bins: int, theta: float, entropy: Entropy = system
) -> npt.NDArray[np.int64]:
    """A draw of Binomial(bins, ½ + theta·value/bound) of each value: int64 of their shape.

    The probability is rounded to a multiple p of 2⁻³², never out of [½ − theta, ½ + theta], and
    the draw is exactly Binomial(bins, p), of as many coins of random bits. So it has exactly the
    privacy of the mechanism at a value, in [−bound, bound], that differs by about
    2⁻³³ bound/theta; by so much it is biased, too. InternalError for values that are not finite or
    beyond the bound, for a bound that is not positive and finite, for bins not from 1 to
    MAX_BINS, for theta not from 2⁻²⁰ to MAX_THETA.
    """
    check(bins, theta)
    thresholds = _thresholds(_checked(values, bound), bound, theta).reshape(-1)
    draws = np.zeros(len(thresholds), np.int64)
    for start in range(0, len(draws), CHUNK):
        part = slice(start, start + CHUNK)
        draws[part] = _heads(thresholds[part], bins, entropy)
    return draws.reshape(np.shape(values))


def estimate(
    sums: npt.NDArray[np.integer], parties: int, bound: float, bins: int, theta: float
) -> Array:
    """Return the estimate of the parties' sum from the sum of their draws: float64 of that shape.

    It is bound/(theta·bins) (sum − bins·parties/2): unbiased, but for the rounding that `draw` has,
    with variance `variance`. Raise InternalError for sums that so many draws cannot have, for no
    parties, and for other arguments that `draw` refuses.
    """
    check(bins, theta)
    _check_bound(bound)
    if parties < 1:
        raise InternalError(f"a sum of draws of {parties} parties")
    if sums.size and not (sums.min() >= 0 and sums.max() <= bins * parties):
        raise InternalError(f"a sum is not of {parties} draws from 0 to {bins}")
    centred: Array = sums.astype(np.float64) - bins * parties / 2.0
    return centred * (bound / (theta * bins))


def check(bins: int, theta: float) -> None:
    """InternalError for bins not from 1 to MAX_BINS, theta not from 2⁻²⁰ to MAX_THETA."""
    if not 1 <= bins <= MAX_BINS:
        raise InternalError(f"binomial draws of {bins} bins")
    if not 2.0**-20 <= theta <= MAX_THETA:
        raise InternalError(f"binomial draws with θ = {theta!r}")


def _checked(values: Array, bound: float) -> Array:
    _check_bound(bound)
    numbers = np.asarray(values, np.float64)
    if not (np.abs(numbers) <= bound).all():  # false of NaN
        raise InternalError("values to be drawn of are not within their bound")
    return numbers


def _check_bound(bound: float) -> None:
    if not (math.isfinite(bound) and bound > 0.0):
        raise InternalError(f"binomial draws with bound {bound!r}")


def _thresholds(values: Array, bound: float, theta: float) -> npt.NDArray[np.uint32]:
    """2³² times the probabilities; theta·STEPS is exact, and so are both ends."""
    half, reach = STEPS // 2, math.floor(theta * STEPS)
    nearest = np.rint(half + values / bound * (theta * STEPS))
    thresholds: npt.NDArray[np.uint32] = np.clip(nearest, half - reach, half + reach).astype(
        np.uint32
    )
    return thresholds


def _heads(
    thresholds: npt.NDArray[np.uint32], bins: int, entropy: Entropy
) -> npt.NDArray[np.int64]:
    """Return how many of `bins` coins each, of 32 random bits, are less than their threshold.

    Bit by bit, from the highest on, of all coins at once: a coin stays open where its bit is the
    threshold's, and else is less where the threshold's is 1. Whether the bits are alike is a fair
    coin itself, and independent of the bits before: all that is drawn of a level is how many of the
    open coins have one that is. A coin takes two bits of chance on average. The few that LEVELS
    bits leave open are drawn one by one.
    """
    heads = np.zeros(len(thresholds), np.int16)
    open_ = np.full(len(thresholds), bins, np.int16)
    for level in range(LEVELS):
        alike = _ones(open_, entropy)
        bit = (thresholds >> np.uint32(31 - level)).astype(np.int16) & 1
        heads += bit * (open_ - alike)
        open_ = alike
    of = np.repeat(np.arange(len(thresholds)), open_)
    rest = words(-(-len(of) // 2), entropy).view(np.uint32)[: len(of)] >> np.uint32(LEVELS)
    less = rest < (thresholds[of] & np.uint32((1 << (32 - LEVELS)) - 1))
    return heads + np.bincount(of[less], minlength=len(thresholds))


def _ones(coins: npt.NDArray[np.int16], entropy: Entropy) -> npt.NDArray[np.int16]:
    """Return, for each number of coins, how many of so many fresh random bits are 1."""
    most = int(coins.max(initial=0))
    size = next((size for size in (8, 16, 32) if most <= size), 64)
    kind = np.dtype(f"u{size // 8}")
    ones = np.zeros(len(coins), np.int16)
    for start in range(0, most, size):
        drawn = words(-(-len(coins) * kind.itemsize // 8), entropy).view(kind)[: len(coins)]
        spare = np.clip(size + start - coins, 0, size).astype(kind)
        ones += np.bitwise_count(drawn >> spare)  # all bits are shifted out where all are spare
    return ones
