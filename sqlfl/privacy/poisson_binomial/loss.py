"""What one coordinate of the Poisson binomial mechanism tells, at worst.

Of N = honest·bins coins of the honest slots the sum is seen: what others add they know. Neighbours
differ in the values of `moved` slots, each from any x to any x' in [−C, C].

A coin of probability ½ + θ x/C is a mixture of coins of ½ + θ ("high") and of ½ − θ ("low"), so
that a release is a mixture, over the number t of high coins, of R_t, the sum of t high and N − t
low ones. Let the same coins be high on both sides where slots do not move: t and t' then differ by
at most j = moved·bins. Divergences of distributions are jointly convex, so that that of a pair of
neighbours is at most the largest of R_t and R_t'; there all values are at the ends, ±C. For s < t
the ratio R_t/R_s grows with the sum (a coin more is a convolution of what is log-concave), so that
the hockey stick sup_A R_t(A) − e^ε R_s(A) is at a set {sum ≥ c}, which R_t hits the more often
the larger t is: it is largest where t = s + j. All f-divergences are integrals of it, so that this
holds for Rényi's. The other direction is the same, for N − R_t is R_{N−t}. What is left is the
largest over s = 0, …, N − j: all are looked at, since neither end is always the worst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import MAX_BINS
from sqlfl.privacy.events import PoissonBinomial
from sqlfl.privacy.poisson_binomial.sampling import check

MAX_COINS = 2 * MAX_BINS
"""Maximum coins. More would take long: fewer slots then count as honest, which gives a larger ε."""
NEVER = -1e9
"""The logarithm of probability 0: finite, so that differences are numbers."""
MIN_MASS = 1e-200
"""Minimum mass, so that division by it does not overflow."""
WORK = 1 << 20
"""Pairs times points of the grid, at most."""
FINEST, COARSEST = 64, 8
"""Points of the grid in a standard deviation of the loss."""


@dataclass(frozen=True)
class Coordinate:
    """One release of a slot's number, for the loss."""

    bins: int
    theta: float
    honest: int
    moved: int

    @property
    def coins(self) -> int:
        return self.bins * self.honest

    @property
    def apart(self) -> int:
        """Number of high coins by which neighbours differ."""
        return self.bins * self.moved

    @property
    def pairs(self) -> int:
        """Number of values of s."""
        return self.coins - self.apart + 1

    @property
    def largest(self) -> float:
        """The maximum privacy loss."""
        return self.apart * (math.log1p(2.0 * self.theta) - math.log1p(-2.0 * self.theta))


def coordinate(event: PoissonBinomial) -> Coordinate:
    """Return the coordinate of an event, with as many honest slots as MAX_COINS allows. Raise
    InternalError for invalid bins or theta, or unless 1 ≤ moved ≤ honest.
    """
    check(event.bins, event.theta)
    if not 1 <= event.moved <= event.honest:
        raise InternalError(f"{event.moved} of {event.honest} honest slots change")
    honest = max(event.moved, min(event.honest, MAX_COINS // event.bins))
    return Coordinate(event.bins, event.theta, honest, event.moved)


def renyi(
    release: Coordinate, orders: Sequence[float], worst_of: Sequence[int] | None = None
) -> Array:
    """Return Rényi divergences of these orders, all above 1: float64 (orders,).

    It is the maximum over all s, or over `worst_of`, which gives a lower bound.
    """
    logs = _log_masses(release)
    chosen = slice(None) if worst_of is None else np.asarray(worst_of)
    low = logs[: release.pairs][chosen]
    losses = logs[-release.pairs :][chosen] - low
    divergences = np.empty(len(orders))
    for place, order in enumerate(orders):
        terms = low + order * losses
        largest = terms.max(axis=1)
        sums = largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1))
        divergences[place] = sums.max() / (order - 1.0)
    return np.maximum(divergences, 0.0)


def ends(release: Coordinate) -> tuple[int, int]:
    """The s where all others are low, and where all are high: of Rényi's divergences these have
    been the worst wherever all were looked at."""
    return 0, release.pairs - 1


def deviation(release: Coordinate) -> float:
    """The standard deviation of the loss, of the pair where all others are low."""
    low, high = _log_masses(release)[[0, -release.pairs]]
    losses, masses = high - low, np.exp(high)
    return float(np.sqrt(masses @ np.square(losses - masses @ losses)))


def step(release: Coordinate) -> float:
    """The step of the grid of losses: as fine as WORK allows."""
    spread = deviation(release)
    points = 2.0 * release.largest / spread * release.pairs
    return spread / min(FINEST, max(COARSEST, WORK / points))


@lru_cache(maxsize=32)
def loss_masses(release: Coordinate, interval: float) -> tuple[int, Array]:
    """A distribution of losses that dominates every pair of neighbours: the place of its first
    mass on the grid, in intervals, and the masses (points,).

    Its hockey stick is on the grid the largest that any s has, and between the points the chord,
    in e^ε, of what is convex: so it is nowhere less, and pairs of several releases are dominated by
    its convolutions, also where a release depends on those before (Zhu, Dong and Wang, 2022). Of
    the largest at each point let P and Q be the tails of the two sides; what they lose from point
    to point is split between both, so that both sides keep it ("connect the dots", Doroshenko et
    al., 2022).
    """
    reach = math.ceil(release.largest / interval * (1.0 + 1e-12))
    grid = np.arange(-reach, reach + 1) * interval
    upper, lower = _largest_tails(release, grid)
    lost = np.append(upper[:-1] - upper[1:], upper[-1])
    lost_below = np.append(lower[:-1] - lower[1:] * math.exp(-interval), lower[-1])
    to_next = np.clip((lost - lost_below) / -math.expm1(-interval), 0.0, None)
    masses = np.maximum(lost - to_next, MIN_MASS)
    masses[1:] += to_next[:-1]
    masses.flags.writeable = False
    return -reach, masses


def _largest_tails(release: Coordinate, grid: Array) -> tuple[Array, Array]:
    """Return P{loss > ε} and e^ε Q{loss > ε} of the pair with the largest hockey stick
    at each ε.
    """
    logs, tails = _log_masses(release), _log_tails(release)
    worst = np.full(len(grid), -1.0)
    upper, lower = np.zeros(len(grid)), np.zeros(len(grid))
    for s in range(release.pairs):
        t = s - release.pairs  # from the end, where the rows of s + apart are
        first = np.searchsorted(logs[t] - logs[s], grid, side="right")
        above, below = tails[t][first], tails[s][first] + grid
        own_upper = np.exp(above)
        stick = own_upper * -np.expm1(np.minimum(below - above, 0.0))
        larger = stick > worst
        worst[larger] = stick[larger]
        upper[larger] = own_upper[larger]
        lower[larger] = own_upper[larger] - stick[larger]
    return upper, lower


@lru_cache(maxsize=1)
def _log_masses(release: Coordinate) -> Array:
    """log R_t(x), the mass of x among t high coins and N − t low ones: float64 (rows, x).

    A row of each t that is an s, the first `pairs`, or an s + apart, the last ones. Of g = R_t,
    with p = ½ + theta and q = ½ − theta, the generating function is (q + p z)^t (p + q z)^(N − t),
    so that p q (x + 1) g(x + 1) is
    (t p² + (N − t) q² − (p² + q²) x) g(x) + p q (N − x + 1) g(x − 1). Where the first factor is
    positive nothing cancels; beyond, R_t(x) = R_{N−t}(N − x) is used, where it is positive.
    """
    p, q, coins = 0.5 + release.theta, 0.5 - release.theta, release.coins
    t = np.union1d(np.arange(release.pairs), np.arange(release.apart, coins + 1)).astype(np.float64)
    start, squares = t * p * p + (coins - t) * q * q, p * p + q * q
    ratios = np.empty((coins, len(t)))  # [x, t]: g(x + 1) / g(x)
    before = np.full(len(t), np.inf)
    for x in range(coins):
        factor = np.maximum(start - squares * x, 0.0)
        before = (factor / (p * q) + (coins - x + 1) / before) / (x + 1)
        ratios[x] = before
    stable = start >= squares * np.arange(coins)[:, None]
    ratios = np.where(stable, ratios, 1.0 / ratios[::-1, ::-1])
    logs = np.empty((len(t), coins + 1))
    logs[:, 0] = t * math.log(q) + (coins - t) * math.log(p)
    np.log(ratios.T, out=logs[:, 1:])
    return np.cumsum(logs, axis=1, out=logs)


def _log_tails(release: Coordinate) -> Array:
    """log R_t{sum ≥ x}: float64 (rows, x), x from 0 to N + 1."""
    logs = _log_masses(release)
    log_tails = np.full((len(logs), release.coins + 2), NEVER)
    np.logaddexp.accumulate(logs[:, ::-1], axis=1, out=log_tails[:, release.coins :: -1])
    return log_tails
