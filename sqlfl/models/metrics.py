"""Metrics of predictions over joined rows. y: numbers (N,) or class codes (N,)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

Array = npt.NDArray[Any]


def rmse(prediction: Array, y: Array) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((prediction - y) ** 2)))


def accuracy(probability: Array, codes: Array) -> float:
    """The share of rows whose most probable class, the first of equals, is the true one."""
    return float(np.mean(probability.argmax(axis=1) == codes))


def regression_metrics(prediction: Array, y: Array) -> dict[str, float | None]:
    """rmse, mae and r2 of predictions (N,); r2 is None where the target is constant."""
    error = prediction - y
    total = float(np.sum((y - y.mean()) ** 2))
    squared = float(np.sum(error**2))
    return {
        "rmse": rmse(prediction, y),
        "mae": float(np.mean(np.abs(error))),
        "r2": 1.0 - squared / total if total > 0 else None,
    }


def classification_metrics(probability: Array, codes: Array) -> dict[str, float | None]:
    """accuracy, auc (two classes; None otherwise or where one is absent) and log_loss.

    probability: (N, K) by class; codes: (N,) the true class. The predicted class is the most
    probable one, the first of equals.
    """
    chosen = probability[np.arange(len(codes)), codes]
    auc = None
    if probability.shape[1] == 2:
        auc = area_under_curve(probability[:, 1], codes == 1)
    return {
        "accuracy": accuracy(probability, codes),
        "auc": auc,
        "log_loss": float(-np.mean(np.log(np.maximum(chosen, np.finfo(np.float64).tiny)))),
    }


def area_under_curve(score: Array, positive: Array) -> float | None:
    """The probability that a positive row scores above a negative one; ties count half."""
    hits = int(np.count_nonzero(positive))
    misses = len(positive) - hits
    if hits == 0 or misses == 0:
        return None
    ranks = rankdata(score)
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))
