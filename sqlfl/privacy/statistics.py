"""Noised statistics of features: what a row moves them by, and what is made of them.

A client measures, each active row counting once: of every numeric column of bounds [lo, hi], with
u = (x − lo)/(hi − lo), x clipped to the bounds, the sums Σ 1, Σ u and Σ u² over the rows that have
a value; of every category feature the rows of each category. It adds normal noise to each number.

**Sensitivity.** A change of one row takes its old part from these numbers and adds its new one. Of
a numeric column the part is (0, 0, 0) or (1, u, u²), with u in [0, 1]: two differ by at most √3 in
ℓ2, which (0, 0, 0) and (1, 1, 1) do. Of a category feature one count falls by 1 and one rises by 1:
√2. Together √(3 k + 2 c), with k numeric columns and c category features.

**Categories to be found.** Where nobody says which categories there are, a client shows those whose
noised count is above τ, and of others nothing. Let two tables D, D' differ in one row, σ be the
noise's standard deviation, p = P[1 + N(0, σ²) > τ], q = P[N(0, σ²) > τ] < p, and c such features.
In each of them D alone has one category at most, of count 1, and so has D'. Let V be the mechanism
that measures all categories of D and D' together, those of count 0 too: with noise for the
sensitivity above it is (ε, δ)-DP. What D shows is what V(D) does where it shows no category of D'
alone; it shows none with probability (1 − q)^c at least, whatever else it shows. For a set S of
outcomes let S₁ be those that have no category of D or of D' alone, and x = P[D shows S₁]. Then

    (1 − q)^c x ≤ P[V(D) in S₁] ≤ e^ε P[V(D') in S₁] + δ ≤ e^ε P[D' shows S] + δ,
    P[D shows S] ≤ c p + x ≤ c p + c q + e^ε P[D' shows S] + δ,

for D shows a category of its own alone with probability c p at most, and x ≤ 1. With
p = `delta`/(2 c) the first two terms are below `delta`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from sqlfl.base.arrays import Array
from sqlfl.contract.schema import FeatureSpecification, SlotSpecification

DOUBT = 4.0
"""Standard deviations of its noise that a number must be above for being taken as more than 0."""


def sensitivity(features: Sequence[FeatureSpecification]) -> float:
    """Return √(3 k + 2 c): ℓ2 sensitivity of a client's measures of a slot to a change
    of one row.
    """
    numeric = sum(f.width for f in features if f.kind != "category")
    categories = sum(1 for f in features if f.kind == "category")
    return math.sqrt(3.0 * numeric + 2.0 * categories)


def deviation(slot: SlotSpecification) -> float:
    """Return the standard deviation of the noise that a client adds to each number; 0 without
    noise.
    """
    privacy = slot.privacy
    if privacy is None or privacy.statistics != "noised":
        return 0.0
    return privacy.statistics_noise * sensitivity(slot.features)


def threshold(sigma: float, delta: float, features: int) -> float:
    """Return τ: a category of one row exceeds it with probability `delta`/2, in one of the
    features. `features` of the slot, at least one, have categories to be found.
    """
    return 1.0 - sigma * float(ndtri(delta / (2.0 * features)))


def settle(
    present: Array, first: Array, second: Array, missing: Array, rows: int, sigma: float
) -> tuple[Array, Array, Array]:
    """Mean and scale of u, and how many rows miss a feature, from noised sums.

    present, first, second: (numeric,), Σ 1, Σ u, Σ u²; missing: (numeric features,); `rows` active
    ones; `sigma` the standard deviation of the noise in each number. Results have the same shapes.

    The mean is in [0, 1]; the scale, of the imputed column, in (0, ½], and not below what the noise
    lets tell from 0. Where so few values are present that they may be none, mean and scale are ½.
    Missing rows are 0 where they are fewer than `DOUBT` deviations of the noise: a feature has an
    indicator column only for gaps that show.
    """
    size = float(max(rows, 1))
    known = present > DOUBT * sigma
    divisor = np.where(known, present, 1.0)
    mean = np.where(known, np.clip(first / divisor, 0.0, 1.0), 0.5)
    least = min(max(2.0 * sigma / size, 1e-24), 0.25)
    spread = np.clip((second - first**2 / divisor) / size, least, 0.25)
    scale = np.where(known, np.sqrt(spread), 0.5)
    return mean, scale, np.where(missing > DOUBT * sigma, np.clip(missing, 0.0, rows), 0.0)
