"""Noise of labels, and of choices: the probability to keep a class, and the largest of scores."""

from __future__ import annotations

import math

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.privacy.samplers import LAPLACE_SLACK, Entropy, Words, add_laplace, grid, system, words

MAX_KEEP_PROBABILITY = 1.0 - 2.0**-50
"""Maximum probability to keep a label. Above it, the remaining probability could not be
distinguished from 0.
"""


def keep_probability(epsilon: float, classes: int) -> float:
    """Return e^ε / (e^ε + K − 1) of randomised response, rounded down: its ε never exceeds the one
    asked for. Raise InternalError for fewer than 2 classes, or ε that is not positive.
    """
    _check(epsilon, classes)
    return _floored(1.0 / (1.0 + (classes - 1) * math.exp(-epsilon)))


def laplace_keep(epsilon: float, classes: int) -> float:
    """The probability that the true one of K scores is the largest, after Laplace noise.

    The scores are 1 for the true class and 0 for the others, a change of label moves them by 2 in
    ℓ1, and the noise has b = 2/ε. With density f and distribution F of the noise it is
    ∫ f(x − 1) F(x)^(K−1) dx: by symmetry the mechanism is randomised response that keeps a label
    with this probability. With q = e^(−1/b), the parts below 0 and above 1 are in closed form,
    and x = 1 − b s between them. InternalError as for `keep_probability`.
    """
    _check(epsilon, classes)
    length = 0.5 * epsilon
    q = math.exp(-length)
    below = 0.5**classes * q / classes
    above = 0.5 if q < 1e-300 else -math.expm1(classes * math.log1p(-0.5 * q)) / (classes * q)

    panels = np.linspace(0.0, min(length, 45.0), 91)  # beyond, e^(−s) is less than rounding
    nodes, weights = np.polynomial.legendre.leggauss(16)
    half = 0.5 * np.diff(panels)[:, None]
    s = panels[:-1, None] + half * (1.0 + nodes)
    density = 0.5 * np.exp(-s) * (1.0 - 0.5 * np.exp(s - length)) ** (classes - 1)
    return _floored(below + float((half * weights * density).sum()) + above)


def true_epsilon(keep: float, classes: int) -> float:
    """ln(p (K − 1)/(1 − p)) of randomised response that keeps a label with probability p."""
    if classes < 2 or not 0.0 < keep < 1.0:
        raise InternalError(f"randomised response of {classes} classes that keeps {keep!r}")
    return abs(math.log(keep) + math.log(classes - 1) - math.log1p(-keep))


def label_epsilon(mechanism: str, epsilon: float, classes: int | None) -> float:
    """Return the actual ε of one label; `classes` is None for numbers.

    Laplace over classes discloses only the class with the largest score, and so less than its
    nominal ε. Raise InternalError for another mechanism, or for randomised response of numbers.
    """
    if mechanism == "laplace":
        return epsilon if classes is None else true_epsilon(laplace_keep(epsilon, classes), classes)
    if mechanism != "randomized_response" or classes is None:
        raise InternalError(f"label mechanism {mechanism!r} of {classes} classes")
    _check(epsilon, classes)
    return epsilon


def _floored(probability: float) -> float:
    """Round down to less than the exact probability; `probability` has rounding errors."""
    return min(MAX_KEEP_PROBABILITY, (math.floor(probability * 2.0**52) - 1.0) * 2.0**-52)


def _check(epsilon: float, classes: int) -> None:
    if classes < 2 or not epsilon > 0.0:
        raise InternalError(f"label noise of ε = {epsilon!r} for {classes} classes")


# Report-noisy-max: which of several scores is the largest, and nothing else.
#
# Of scores that the change of one row moves by at most Δ each, with noise of scale b = 2Δ/ε₀:
#
# - Gumbel noise makes it the exponential mechanism (McSherry and Talwar, 2007), whose ratios of
#   log-probabilities lie in an interval of length ε₀ (Durfee and Rogers, 2019): it is ε₀²/8-zCDP
#   (Cesar and Rogers, 2021), and ε₀-DP.
# - Laplace noise is what the paper has; ε₀-DP, and so ε₀²/2-zCDP.
#
# The noisy score itself is not released: it would tell more. Scores are rounded to a grid that
# depends on the scale alone, and noise is a multiple of it too, as in `samplers`.
GUMBEL, LAPLACE = "gumbel", "laplace"
MECHANISMS = (GUMBEL, LAPLACE)
BITS = 40
"""The grid of the noise is 2⁻⁴⁰ of its scale, or somewhat finer."""


def noisy_max(scores: Array, scale: float, mechanism: str, entropy: Entropy = system) -> int:
    """Return the place of the largest of the scores (k,) with noise; among equal ones, each with
    the same probability.

    Scores that are not numbers count as 0. Raise InternalError for no scores, for another
    mechanism, and unless `scale` is positive and finite.
    """
    if not len(scores):
        raise InternalError("a choice among no scores")
    finite = np.nan_to_num(np.asarray(scores, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if mechanism == GUMBEL:
        noised = _add_gumbel(finite, scale, words(len(finite), entropy))
    elif mechanism == LAPLACE:
        noised = add_laplace(finite, scale, words(2 * len(finite), entropy).reshape(-1, 2))
    else:
        raise InternalError(f"a choice by {mechanism!r}")
    best = np.flatnonzero(noised == noised.max())
    return int(best[int(words(1, entropy)[0] % np.uint64(len(best)))])


def standard_gumbel(drawn: Words) -> Array:
    """A Gumbel number of each word: float64, of the words' shape. Exact in both tails, as far as
    64 bits reach."""
    low = (drawn.astype(np.float64) + 0.5) * 2.0**-64
    high = ((~drawn).astype(np.float64) + 0.5) * 2.0**-64
    exponential = np.where(low < 0.5, -np.log(low), -np.log1p(-np.minimum(high, 0.5)))
    numbers: Array = -np.log(exponential)
    return numbers


def _add_gumbel(scores: Array, scale: float, drawn: Words) -> Array:
    step = grid(scale, BITS)
    factor = scale * (1.0 + LAPLACE_SLACK) / step
    noised: Array = (np.rint(scores / step) + np.rint(standard_gumbel(drawn) * factor)) * step
    return noised
