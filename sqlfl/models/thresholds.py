"""Curves and tables of predictions against the truth, for rows with weights w (N,), or 1 each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class Curve:
    """Curve over thresholds, from the largest down. Scores at or above a threshold count as
    positive.

    All arrays are (T,). The first threshold is infinite: no score reaches it.
    """

    thresholds: Array
    true: Array
    """Σ w of positive rows that count as positive."""
    false: Array
    """Σ w of negative rows that count as positive."""


def curve(scores: Array, positive: Array, weights: Array | None = None) -> Curve:
    """Return the curve at every score that occurs (N,); `positive` is bool (N,)."""
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


def corners(curve: Curve) -> Curve:
    """Return the same curve without thresholds between two equal steps."""
    false, true = curve.false[1:], curve.true[1:]
    bends = (np.diff(false, 2) != 0.0) | (np.diff(true, 2) != 0.0)
    kept = np.concatenate([[True, True], bends, [True]])[: len(curve.true)]
    return _picked(curve, np.flatnonzero(kept))


def thinned(curve: Curve, points: int, least: float = 1.0) -> Curve:
    """Return at most `points` thresholds. At least `least` rows lie between two consecutive ones,
    except at the last.
    """
    counted = curve.true + curve.false
    picked = np.arange(len(counted))
    if len(picked) > points:
        wanted = np.linspace(0.0, counted[-1], points)
        picked = np.unique(np.searchsorted(counted, wanted).clip(max=len(picked) - 1))
    if least > 1.0:
        picked = picked[_apart(counted[picked], least)]
    return _picked(curve, picked)


def _apart(ascending: Array, least: float) -> Array:
    """Return the places of the first and the last number, and of some between them that are `least`
    apart.
    """
    places, last = [0], len(ascending) - 1
    while (after := int(np.searchsorted(ascending, ascending[places[-1]] + least))) <= last:
        places.append(after)
    if len(places) == 1:
        places.append(last)
    places[-1] = last
    return np.unique(places)


def _picked(curve: Curve, places: Array) -> Curve:
    return Curve(curve.thresholds[places], curve.true[places], curve.false[places])


def average_precision(curve: Curve) -> float | None:
    """Return Σ (R_t − R_{t−1}) P_t, the area under the steps of precision over recall; None without
    positive rows.
    """
    if not curve.true[-1] > 0.0:
        return None
    precision = curve.true[1:] / (curve.true[1:] + curve.false[1:]).clip(np.finfo(float).tiny)
    return float(np.diff(curve.true / curve.true[-1]) @ precision)


def confusion(taken: Array, true: Array, classes: int, weights: Array | None = None) -> Array:
    """Return Σ w of rows of each class (rows of the matrix) that are predicted as each class: (K,
    K).
    """
    cells = true.astype(np.intp) * classes + taken.astype(np.intp)
    return np.bincount(cells, weights, classes * classes).reshape(classes, classes).astype(float)


def edges(values: Array, bins: int, strategy: str, weights: Array | None, span: bool) -> Array:
    """Return the edges of at most `bins` bins of values (N,), ascending. With `span`, uniform ones
    range from 0 to 1.

    Equal values are in one bin. For 'quantile' the edges are as in `numpy.quantile`. With weights
    they are the values below which that share of the weight lies.
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


def binned(values: Array, edges: Array) -> Array:
    """Return the bin of each value by the edges, as scikit-learn's calibration_curve does: a value
    at an inner edge is in the bin below. (N,)
    """
    return np.searchsorted(edges[1:-1], values)


def joined_bins(places: Array, counts: Array, least: float) -> Array:
    """Return the places (N,) of bins after joining neighbours until each counts `least`. They are
    numbered from 0; empty ones vanish.
    """
    groups = np.zeros(len(counts), np.intp)
    group, held = 0, 0.0
    for number, count in enumerate(counts.tolist()):  # bins, not rows
        if held >= least:
            group, held = group + 1, 0.0
        groups[number] = group
        held += count
    if held < least and group:
        groups[groups == group] = group - 1
    joined: Array = groups[places]
    return joined
