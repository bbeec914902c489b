"""Metrics of predictions, by scikit-learn."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy
from sklearn import metrics


def regression_metrics(y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """r2 where the targets vary, so that there is one."""
    found = {
        "loss": float(np.mean((predicted - y) ** 2) / 2),
        "rmse": float(np.sqrt(metrics.mean_squared_error(y, predicted))),
        "mae": float(metrics.mean_absolute_error(y, predicted)),
    }
    if np.ptp(y) > 0:
        found["r2"] = float(metrics.r2_score(y, predicted))
    return found


def poisson_metrics(y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """`y` (n,) counts, `predicted` (n,) means."""
    return {
        "loss": float(np.mean(predicted - xlogy(y, predicted))),
        "deviance": float(metrics.mean_poisson_deviance(y, predicted)),
        "rmse": float(np.sqrt(metrics.mean_squared_error(y, predicted))),
        "mae": float(metrics.mean_absolute_error(y, predicted)),
    }


def classification_metrics(codes: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """`codes` (n,) class numbers, `probabilities` (n, classes)."""
    classes = np.arange(probabilities.shape[1])
    loss = float(metrics.log_loss(codes, probabilities, labels=classes))
    found = {
        "loss": loss,
        "log_loss": loss,
        "accuracy": float(metrics.accuracy_score(codes, probabilities.argmax(axis=1))),
    }
    if probabilities.shape[1] == 2:
        found["auc"] = float(metrics.roc_auc_score(codes, probabilities[:, 1]))
    return found
