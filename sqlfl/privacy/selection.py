"""Report-noisy-max: which of several scores is the largest, and nothing else.

Of scores that the change of one row moves by at most Δ each, with noise of scale b = 2Δ/ε₀:

- Gumbel noise makes it the exponential mechanism (McSherry and Talwar, 2007), whose log-probability
  ratios lie in an interval of length ε₀ (Durfee and Rogers, 2019): it is ε₀²/8-zCDP (Cesar and
  Rogers, 2021), and ε₀-DP.
- Laplace noise is what the paper has; ε₀-DP, and so ε₀²/2-zCDP.

The noisy score itself is not released: it would tell more. Scores are rounded to a grid that
depends on the scale alone, and noise is a multiple of it too, as in `samplers`.
"""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.privacy.samplers import LAPLACE_SLACK, Entropy, Words, add_laplace, grid, system, words

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
