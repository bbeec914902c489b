"""Noised second moments of one block at one client, and the bound of K that ADMM makes of them.

ADMM's θ-update needs a matrix K that is no smaller than ρ r/N Σ cnt x̃ x̃ᵀ + l2 I, in the sense that
vᵀKv is no smaller for any v: with r as large as the number of blocks it then converges to the same
point, however much larger K is, but slower. (It is a proximal ADMM: what K has beyond the quadratic
of the θ-update is the proximal term. The fixed points are those of the gradient, which does not
come from K.) So a few noised numbers do for K, and no cross terms are released at all.

**What is released.** The p×p block of the numeric columns, of rows whose numeric part is scaled to
a norm of R at most, and of each category the count Σ cnt. Where one row changes, which at most F
joined rows have, F(x xᵀ − x′x′ᵀ) has a norm (Frobenius) of at most F √(‖x‖⁴ + ‖x′‖⁴) ≤ F √2 R²;
each of k category features moves two counts by F: F √(2R⁴ + 2k) in all. Every number gets noise of
one standard deviation σ; with Q clients summed, of s = √Q σ. The block is made symmetric then,
which leaves s on its diagonal and s/√2 beside it.

**Without cross terms.** Split v into its parts v_g by groups of columns: the numeric ones, and each
category feature. Of G groups, (Σ_g x̃_gᵀv_g)² ≤ G Σ_g (x̃_gᵀv_g)² for every row, so that G times the
groups' own blocks bound the whole.

**Centring.** A row's entry c of a category feature with the centre μ gives (v_c − μᵀv)², or (μᵀv)²
where it is none of the entries. With W = Σ cnt, the counts n_c and m = n/W, the sum over rows is
Σ n_c v_c² − W (mᵀv)² + W ((μ − m)ᵀv)². The second term is dropped. In the third,
((μ − m)ᵀv)² ≤ (Σ|μ_c − m_c|) Σ |μ_c − m_c| v_c²: the count n_c is increased by t |W μ_c − n_c| with
t = Σ|μ_c − m_c| ≤ 1 + Σ μ_c. Centres are frequencies, exact or noised: this is little. Where μ = 0,
the last two terms cancel, and nothing is added.

**Noise.** The symmetric noise E of the block has a largest eigenvalue of s (√(2p) + u) or more with
a probability of at most exp(−u²/2): its mean is at most s √(2p), and it is a Lipschitz function of
the noise. Of the q counts, one is too low by s u or more with a probability of at most
q exp(−u²/2). Negative eigenvalues and counts are set to 0, which only adds to them, for the true
ones are not negative; then these margins are added, with u such that each of the two probabilities
is `RISK`. So K is nowhere smaller than the margins either, and noise of a gradient is not blown up
where the rows say nothing. If a margin should fail, ADMM may take more epochs; privacy does not
depend on it, for all this is post-processing.

A row that is scaled to R is in K by what is left of it. Its gradients are clipped too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.party.steps import Engine

RISK = 0.01
"""Probability that the margin of the numeric block, or one of those of the counts, is too small."""
_VALUES = 1 << 22
"""Values of numeric columns that are in memory at once."""


def noised_moments(engine: Engine, guard: ReleaseGuard) -> GramMatrix:
    """Return a client's release of its rows: the noised numeric block and, as a diagonal, the
    counts.

    Other parts are 0. Raise InternalError if there are numeric rows without a bound, and if the
    moments were released already.
    """
    p, q = engine.numeric, engine.width - engine.numeric
    numeric, counts = clipped_moments(engine, guard.privacy.row_bound)
    noised = guard.moments(np.concatenate([numeric.ravel(), counts]))
    block = noised[: p * p].reshape(p, p)
    onehot = _diagonal(noised[p * p :])
    weight = float(engine.counts.sum())  # of the join and the weights, which are not protected
    return GramMatrix((block + block.T) / 2, np.zeros((q, p)), onehot, np.zeros(p + q), weight)


def clipped_moments(engine: Engine, bound: float) -> tuple[Array, Array]:
    """Return Σ cnt x xᵀ of the numeric columns (p, p), with rows scaled to a norm of at most
    `bound`, and Σ cnt of each category (q,).

    It uses only the engine's products, some columns at a time.
    """
    p = engine.numeric
    if p and not bound > 0.0:
        raise InternalError(f"second moments of rows bounded by {bound}")
    counts = engine.counts
    size = max(1, _VALUES // max(engine.rows, 1))
    chunks = [np.arange(start, min(start + size, p)) for start in range(0, p, size)]
    norms = np.zeros(engine.rows)
    for chunk in chunks:
        columns = _columns(engine, chunk)
        norms = np.hypot(norms, np.sqrt(np.einsum("rp,rp->r", columns, columns)))
    numeric = np.zeros((p, p))
    weights = counts * np.square(bound / np.maximum(norms, bound)) if p else counts
    for chunk in chunks:
        numeric[:, chunk] = engine.gradient(_columns(engine, chunk) * weights[:, None])[:p]
    sums = engine.gradient(counts[:, None])[p:, 0] + engine.centre[p:] * counts.sum()
    return numeric, sums


def majorant(
    gram: GramMatrix, centre: Array, offsets: Sequence[int], deviation: float
) -> GramMatrix:
    """Return a bound of Σ cnt x̃ x̃ᵀ from the released moments of one client, or of several in sum.

    centre: (d,), that of the engine; offsets: of its category features. deviation: s, of the noise
    in each number of `gram`. The result is centred: its moments and weight are 0.
    """
    p, q = len(gram.numeric), len(gram.cross)
    groups = (p > 0) + len(offsets) - 1
    values, vectors = np.linalg.eigh(gram.numeric)
    values = np.maximum(values, 0.0) + deviation * (math.sqrt(2 * p) + _quantile(1))
    numeric = (vectors * values) @ vectors.T
    margin = deviation * _quantile(q)
    counts = np.maximum(gram.onehot.diagonal(), 0.0) + margin
    for start, end in pairwise(offsets):
        columns = slice(start - p, end - p)
        counts[columns] += _moved(gram, centre[start:end], columns, deviation, margin)
    numeric = groups * (numeric + numeric.T) / 2
    return GramMatrix(numeric, gram.cross, _diagonal(groups * counts), np.zeros(p + q), 0.0)


def _moved(
    gram: GramMatrix, centre: Array, columns: slice, deviation: float, margin: float
) -> Array | float:
    """Return the addition to the counts of one category feature for a centre other than the
    mean.
    """
    if gram.weight <= 0.0 or not centre.any():
        return 0.0
    distance = np.abs(gram.weight * centre - gram.onehot.diagonal()[columns])
    # the sum of n absolute normal numbers is less than this with a probability of 1 − RISK
    slack = deviation * (0.8 * len(centre) + _quantile(1) * math.sqrt(len(centre)))
    share = min((distance.sum() + slack) / gram.weight, 1.0 + np.abs(centre).sum())
    moved: Array = share * (distance + margin)
    return moved


def _quantile(numbers: int) -> float:
    """Return the bound that the largest of so many standard normal numbers exceeds with a
    probability below RISK.
    """
    return math.sqrt(2.0 * math.log(max(numbers, 1) / RISK))


def _columns(engine: Engine, chunk: Array) -> Array:
    """Return numeric columns (rows, chunk)."""
    unit = np.zeros((engine.width, len(chunk)))
    unit[chunk, np.arange(len(chunk))] = 1.0
    return engine.predict(unit)


def _diagonal(values: Array) -> sparse.csr_array:
    """Return a diagonal with an entry for every value, including 0: their number is stated
    beforehand.
    """
    size = len(values)
    entries = (np.array(values, np.float64), np.arange(size), np.arange(size + 1))
    return sparse.csr_array(entries, shape=(size, size))
