"""The source of noise, and noise from it: normal, Laplace, and randomised response, from random
words of 64 bits.

Floating-point numbers are not real ones: which doubles a sum with continuous noise can hit tells
the low bits of the value that was noised (Mironov, 2012). So a value is rounded to the multiples of
a power of two, which depends on the noise's scale alone, and the noise is a multiple of it too.
That noise is a continuous draw, rounded; and to round what is added to a value that is on the grid
already is to round the sum, which is post-processing of the continuous mechanism. What is left is
that rounding values may move two neighbours apart by a step in each number. The processor rounds
the sum of two multiples as their exact sum: where that is no double, this is post-processing, too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError

Entropy: TypeAlias = Callable[[int], bytes]
"""A function that returns this many random bytes. Each sampler takes one, so that tests can repeat
a draw; the public interface cannot set it.
"""


def system(count: int) -> bytes:
    """`count` random bytes of the operating system."""
    return os.urandom(count)


Words = npt.NDArray[np.uint64]

GAUSSIAN_BITS = 40
"""The grid of normal noise is 2⁻⁴⁰ of its standard deviation, or somewhat finer."""
LAPLACE_BITS = 40
LAPLACE_SLACK = 2.0**-20
"""Relative enlargement of Laplace noise. It makes up for the step by which rounding may move two
values apart, for ε ≥ 2⁻²⁰.
"""
CHUNK = 1 << 16


def words(count: int, entropy: Entropy = system) -> Words:
    """Random words: uint64 (count,)."""
    drawn = entropy(8 * count)
    if len(drawn) != 8 * count:
        raise InternalError(f"{len(drawn)} random bytes, where {8 * count} were asked for")
    return np.frombuffer(drawn, np.uint64)


def standard_normal(drawn: Words) -> Array:
    """A standard normal number of each word: float64, of the words' shape.

    The lowest bit is the sign, the others are the rank within that half, in steps of 2⁻⁶⁴.
    """
    ranks = ((drawn >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64
    return _signed(ndtri(ranks), drawn)


def gaussian(shape: tuple[int, ...], sigma: float, entropy: Entropy = system) -> Array:
    """Normal noise of standard deviation `sigma`, on its grid: float64 of that shape.

    Each number is the sum of two draws of variance σ²/2 on the grid. Of one draw the tails beyond
    5.6 σ would have gaps, for there words are rarer than grid points, and the gaps move with the
    value; the other draw fills them. InternalError unless `sigma` is positive and finite.
    """
    step = grid(sigma, GAUSSIAN_BITS)
    noise = np.empty(math.prod(shape))
    factor = sigma * math.sqrt(0.5) / step
    for start in range(0, len(noise), CHUNK):
        part = noise[start : start + CHUNK]
        drawn = standard_normal(words(2 * len(part), entropy).reshape(2, -1))
        np.sum(np.rint(drawn * factor), axis=0, out=part)
    return (noise * step).reshape(shape)


def add_gaussian(values: Array, sigma: float, entropy: Entropy = system) -> Array:
    """Values, rounded to the grid, plus normal noise: float64 of the same shape.

    Of a vector of d numbers the sensitivity grows by at most 2⁻⁴⁰ σ √d, for which
    `calibration.SLACK` makes up. InternalError unless `sigma` is positive and finite, and all
    values are finite.
    """
    exact = _checked(values)
    noise = gaussian(exact.shape, sigma, entropy)
    return _rounded(exact, grid(sigma, GAUSSIAN_BITS)) + noise


def add_laplace(values: Array, scale: float, drawn: Words) -> Array:
    """Values (n,), rounded to the grid, plus Laplace noise from the words (n, 2): float64 (n,).

    With `scale` = Δ/ε it is ε-DP for values that differ by at most Δ, where ε ≥ 2⁻²⁰: the noise is
    larger by `LAPLACE_SLACK`. It is the difference of two exponential draws: in the tails, where
    the points of one draw are rarer than the grid's, the other fills in. InternalError unless
    `scale` is positive and finite, values are finite, and there are two words of each.
    """
    exact = _checked(values)
    if drawn.shape != (*exact.shape, 2):
        raise InternalError(f"words {drawn.shape} for values {exact.shape}")
    step = grid(scale, LAPLACE_BITS)
    sizes = -np.log((drawn.astype(np.float64) + 0.5) * 2.0**-64)
    noise = np.rint((sizes[:, 0] - sizes[:, 1]) * (scale * (1.0 + LAPLACE_SLACK) / step)) * step
    return _rounded(exact, step) + noise


def randomised_response(codes: Array, classes: int, keep: float, drawn: Words) -> Array:
    """Codes (n,) from 0 to classes − 1, each kept with probability `keep`, or else one of the
    others, all alike: of the codes' type. Words (n, 2).

    The first word decides, to 2⁻⁶⁴; the second one chooses. InternalError for another shape, codes
    out of range, fewer than 2 classes, or `keep` not from 1/classes to below 1.
    """
    if classes < 2 or not (1.0 - 1e-9) / classes <= keep < 1.0:
        raise InternalError(f"randomised response of {classes} classes that keeps {keep!r}")
    if drawn.shape != (len(codes), 2):
        raise InternalError(f"words {drawn.shape} for {len(codes)} codes")
    if len(codes) and not (codes.min() >= 0 and codes.max() < classes):
        raise InternalError("codes are out of the range of the classes")
    kept = drawn[:, 0] < np.uint64(int(keep * 2.0**64))
    moved = (drawn[:, 1] % np.uint64(classes - 1)).astype(np.int64) + 1
    answers: Array = np.where(kept, codes, (codes.astype(np.int64) + moved) % classes)
    return answers.astype(codes.dtype)


def grid(scale: float, bits: int) -> float:
    """Return the step of the grid: the largest power of two that is at most 2⁻ᵇⁱᵗˢ of the scale.
    Raise InternalError unless the scale is positive, finite, and large enough for a normal step.
    """
    if not (math.isfinite(scale) and scale > 2.0**-900):
        raise InternalError(f"noise of scale {scale!r}")
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - bits)


def _signed(values: Array, drawn: Words) -> Array:
    """Change the sign where the lowest bit of the word is set."""
    bits = values.view(np.uint64) ^ ((drawn & np.uint64(1)) << np.uint64(63))
    return bits.view(np.float64)


def _checked(values: Array) -> Array:
    checked = np.asarray(values, np.float64)
    if not np.isfinite(checked).all():
        raise InternalError("values to be noised are not finite")
    return checked


def _rounded(values: Array, step: float) -> Array:
    """Round to the nearest multiples of the step; exact, because the step is a power of two."""
    with np.errstate(over="ignore"):
        rounded = np.rint(values / step) * step
        # doubles beyond 2⁵³ steps are multiples of it already, and might overflow here
        multiples: Array = np.where(np.abs(values) > 2.0**53 * step, values, rounded)
    return multiples
