"""Metrics of predictions over joined rows. y: numbers (N,) or class codes (N,).

Weights s (N,), where they are given, are not negative and some of them positive: a row of weight 2
counts as two rows, one of weight 0 as none.
"""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from sqlfl.arrays import Array
from sqlfl.models.weighted import mean_of

Metrics = dict[str, float | None]


def rmse(prediction: Array, y: Array, weights: Array | None = None) -> float:
    """Root mean squared error."""
    return float(np.sqrt(mean_of((prediction - y) ** 2, weights)))


def accuracy(probability: Array, codes: Array, weights: Array | None = None) -> float:
    """The share of rows whose most probable class, the first of equals, is the true one."""
    return mean_of(probability.argmax(axis=1) == codes, weights)


def log_loss(probability: Array, codes: Array, weights: Array | None = None) -> float:
    """Mean of −log of the probability of the true class, which counts as 1e-308 at least."""
    chosen = probability[np.arange(len(codes)), codes]
    return -mean_of(np.log(np.maximum(chosen, np.finfo(np.float64).tiny)), weights)


def regression_metrics(prediction: Array, y: Array, weights: Array | None = None) -> Metrics:
    """rmse, mae and r2 of predictions (N,); r2 is None where the target is constant."""
    error = prediction - y
    total = _sum((y - mean_of(y, weights)) ** 2, weights)
    squared = _sum(error**2, weights)
    # the weighted mean of equal numbers need not be that number
    constant = weights is not None and bool(np.ptp(y[weights > 0]) == 0)
    return {
        "rmse": rmse(prediction, y, weights),
        "mae": mean_of(np.abs(error), weights),
        "r2": 1.0 - squared / total if total > 0 and not constant else None,
    }


def poisson_metrics(prediction: Array, y: Array, weights: Array | None = None) -> Metrics:
    """deviance, rmse and mae of predicted means (N,) of counts y ≥ 0.

    deviance: mean of 2 (y log(y/μ) − y + μ), 0 where all predictions are right; a mean of 0 counts
    as 1e-308.
    """
    least = np.maximum(prediction, np.finfo(np.float64).tiny)
    units = 2.0 * (xlogy(y, y) - xlogy(y, least) - y + prediction)
    return {
        "deviance": mean_of(units, weights),
        "rmse": rmse(prediction, y, weights),
        "mae": mean_of(np.abs(prediction - y), weights),
    }


def classification_metrics(
    probability: Array, codes: Array, weights: Array | None = None
) -> Metrics:
    """accuracy, auc (two classes; None otherwise or where one is absent) and log_loss.

    probability: (N, K) by class; codes: (N,) the true class. The predicted class is the most
    probable one, the first of equals.
    """
    auc = None
    if probability.shape[1] == 2:
        auc = area_under_curve(probability[:, 1], codes == 1, weights)
    return {
        "accuracy": accuracy(probability, codes, weights),
        "auc": auc,
        "log_loss": log_loss(probability, codes, weights),
    }


def area_under_curve(score: Array, positive: Array, weights: Array | None = None) -> float | None:
    """The probability that a positive row scores above a negative one; ties count half."""
    if weights is not None:
        return _weighted_area(score, positive, weights)
    hits = int(np.count_nonzero(positive))
    misses = len(positive) - hits
    if hits == 0 or misses == 0:
        return None
    from scipy.stats import rankdata  # which takes longer to import than all else of a federation

    ranks = rankdata(score)
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def _weighted_area(score: Array, positive: Array, weights: Array) -> float | None:
    hits, misses = np.where(positive, weights, 0.0), np.where(positive, 0.0, weights)
    if not (hits.any() and misses.any()):
        return None
    _, group = np.unique(score, return_inverse=True)
    above = np.bincount(group, hits / hits.sum())
    below = np.bincount(group, misses / misses.sum())
    return float(above @ (np.cumsum(below) - 0.5 * below))


def _sum(values: Array, weights: Array | None) -> float:
    return float(np.sum(values) if weights is None else weights @ values)
