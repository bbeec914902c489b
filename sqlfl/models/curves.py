"""Curves and tables of predictions beside the truth, of rows with weights w (N,), or 1 each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class Curve:
    """Of thresholds, from the largest down: what is at or above each is taken for positive.

    All (T,). The first threshold is infinite: nothing is.
    """

    thresholds: Array
    true: Array
    """Σ w of positive rows that are taken for positive."""
    false: Array
    """Σ w of negative rows that are."""


def curve(scores: Array, positive: Array, weights: Array | None = None) -> Curve:
    """At every score that occurs (N,); `positive` is bool (N,)."""
    w = np.ones(len(scores)) if weights is None else weights
    order = np.argsort(-scores, kind="stable")
    scores, positive, w = scores[order], positive[order], w[order]
    ends = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1)
    true, false = np.cumsum(w * positive)[ends], np.cumsum(w * ~positive)[ends]
    start = np.zeros(1)
    return Curve(
        np.concatenate([[np.inf], scores[ends]]),
        np.concatenate([start, true]),
        np.concatenate([start, false]),
    )


def corners(found: Curve) -> Curve:
    """Without the thresholds in the middle of two steps that are alike: the same curve."""
    false, true = found.false[1:], found.true[1:]
    bends = (np.diff(false, 2) != 0.0) | (np.diff(true, 2) != 0.0)
    kept = np.concatenate([[True, True], bends, [True]])[: len(found.true)]
    return _picked(found, np.flatnonzero(kept))


def thinned(found: Curve, points: int, least: float = 1.0) -> Curve:
    """At most so many thresholds, and at least `least` counted between two of them that follow each
    other, but for the last."""
    counted = found.true + found.false
    picked = np.arange(len(counted))
    if len(picked) > points:
        wanted = np.linspace(0.0, counted[-1], points)
        picked = np.unique(np.searchsorted(counted, wanted).clip(max=len(picked) - 1))
    if least > 1.0:
        picked = picked[_apart(counted[picked], least)]
    return _picked(found, picked)


def _apart(ascending: Array, least: float) -> Array:
    """Places of the first and the last number, and of some between them that are `least` apart."""
    places, last = [0], len(ascending) - 1
    while (after := int(np.searchsorted(ascending, ascending[places[-1]] + least))) <= last:
        places.append(after)
    if len(places) == 1:
        places.append(last)
    places[-1] = last
    return np.unique(places)


def _picked(found: Curve, places: Array) -> Curve:
    return Curve(found.thresholds[places], found.true[places], found.false[places])


def average_precision(found: Curve) -> float | None:
    """Σ (R_t − R_{t−1}) P_t, the area under the steps of precision over recall; None where no row
    is positive."""
    if not found.true[-1] > 0.0:
        return None
    precision = found.true[1:] / (found.true[1:] + found.false[1:]).clip(np.finfo(float).tiny)
    return float(np.diff(found.true / found.true[-1]) @ precision)


def confusion(taken: Array, true: Array, classes: int, weights: Array | None = None) -> Array:
    """Σ w of rows of each class (rows of the matrix) that are taken for each: (K, K)."""
    cells = true.astype(np.intp) * classes + taken.astype(np.intp)
    return np.bincount(cells, weights, classes * classes).reshape(classes, classes).astype(float)


def edges(values: Array, bins: int, strategy: str, weights: Array | None, span: bool) -> Array:
    """Of at most so many bins of values (N,), ascending; `span`: uniform ones are of 0 to 1.

    Values that are equal are in one bin. Of 'quantile' they are as `numpy.quantile` has them, or
    with weights where so much of their sum lies below.
    """
    if strategy == "uniform":
        low, high = (0.0, 1.0) if span else (float(values.min()), float(values.max()))
        return np.linspace(low, high, bins + 1)
    shares = np.linspace(0.0, 1.0, bins + 1)
    if weights is None:
        return np.unique(np.percentile(values, shares * 100.0))
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    places = np.searchsorted(below, shares * below[-1]).clip(max=len(values) - 1)
    return np.unique(values[order][places])


def binned(values: Array, found: Array) -> Array:
    """The bin of each value by the bins' edges, as scikit-learn's calibration_curve has them: a
    value at an inner edge is in the bin below. (N,)"""
    return np.searchsorted(found[1:-1], values)


def joined_bins(places: Array, counts: Array, least: float) -> Array:
    """The places (N,) of bins once neighbours are joined until each counts `least`, and numbered
    from 0; those that count nothing are gone."""
    groups = np.zeros(len(counts), np.intp)
    group, held = 0, 0.0
    for number, count in enumerate(counts.tolist()):  # bins, not rows
        if held >= least:
            group, held = group + 1, 0.0
        groups[number] = group
        held += count
    if held < least and group:
        groups[groups == group] = group - 1
    found: Array = groups[places]
    return found
