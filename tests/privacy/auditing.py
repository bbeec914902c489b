"""Lower bounds of ε from attacks: from many runs, and from one run with many canaries."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

Array = np.ndarray

CONFIDENCE = 0.95


def from_rates(hits: int, of_hits: int, false: int, of_false: int, delta: float) -> float:
    """ε that a test with these hits and false alarms proves, at 95 %: 0 where it proves none.

    (ε, δ)-DP has TPR ≤ e^ε FPR + δ (Kairouz, Oh and Viswanath, 2015); the rates are bounded by
    Clopper and Pearson, each with half of what may go wrong.
    """
    risk = (1.0 - CONFIDENCE) / 2
    least = stats.beta.ppf(risk, hits, of_hits - hits + 1) if hits else 0.0
    most = stats.beta.ppf(1.0 - risk, false + 1, of_false - false) if false < of_false else 1.0
    return math.log((least - delta) / most) if least - delta > most else 0.0


def from_scores(one: Array, other: Array, delta: float) -> float:
    """ε that scores prove, of runs in two worlds: (runs, attacks) each; larger speaks for `one`.

    The attack, its threshold and the side that it takes are chosen by the first half of the runs,
    and judged by the second.
    """
    middle = len(one) // 2
    first = one[:middle], other[:middle]
    best = (-1.0, 0, 0.0, 1.0)
    for number in range(one.shape[1]):
        for side in (1.0, -1.0):
            yes, no = (np.sort(side * scores[:, number]) for scores in first)
            thresholds = np.quantile(np.concatenate([yes, no]), np.linspace(0.02, 0.98, 49))
            for threshold in thresholds:
                found = _exceeding(yes, no, threshold, side, delta)
                best = max(best, (found, number, float(threshold), side))
    _, number, threshold, side = best
    yes, no = side * one[middle:, number], side * other[middle:, number]
    return _exceeding(yes, no, threshold, side, delta)


def _exceeding(yes: Array, no: Array, threshold: float, side: float, delta: float) -> float:
    """`side` −1: it is the other world that a score above the threshold speaks for."""
    if side < 0:
        yes, no = no, yes
    hits, false = int((yes > threshold).sum()), int((no > threshold).sum())
    return from_rates(hits, len(yes), false, len(no), delta)


def from_one_run(canaries: int, guesses: int, right: int, delta: float) -> float:
    """ε that one run proves, at 95 %: so many of the guesses about canaries were right.

    Each canary was one of two rows by a fair coin. Steinke, Nasr and Jagielski, Privacy Auditing
    with One (1) Training Run (2023), theorem 5.2 as their appendix D computes it. It needs no more
    than that flipping a coin gives a neighbouring data set, so it holds for changes of a row.
    """
    low, high = 0.0, 1.0
    while _luck(canaries, guesses, right, high, delta) < 1.0 - CONFIDENCE:
        high *= 2.0
    for _ in range(40):
        middle = (low + high) / 2
        if _luck(canaries, guesses, right, middle, delta) < 1.0 - CONFIDENCE:
            low = middle
        else:
            high = middle
    return low


def _luck(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses under (ε, δ)-DP."""
    chance = 1.0 / (1.0 + math.exp(-epsilon))
    beta = float(stats.binom.sf(right - 1, guesses, chance))
    sums = np.cumsum(stats.binom.pmf(right - np.arange(1, right + 1), guesses, chance))
    alpha = float(np.max(sums / np.arange(1, right + 1), initial=0.0))
    return min(1.0, beta + 2.0 * canaries * delta * alpha)


def guesses_right(scores: Array, coins: Array, share: float) -> tuple[int, int]:
    """Guesses about the `share` of canaries that scores tell most of, and how many are right.

    scores (m,): positive where the coin (m,) is thought to be 1, and not −1.
    """
    taken = np.argsort(-np.abs(scores))[: int(share * len(scores))]
    return len(taken), int((np.sign(scores[taken]) == coins[taken]).sum())
