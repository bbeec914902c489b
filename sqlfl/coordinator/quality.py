"""Diagnostics of a model's predictions against the truth, as tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.models import thresholds
from sqlfl.models.metrics import log_loss
from sqlfl.models.weighted import mean_of
from sqlfl.options.diagnostics import (
    Binned,
    CalibrationOptions,
    Confusion,
    Diagnostic,
    Metrics,
    ResidualsOptions,
    Roc,
)

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of residuals in the table."""


def look(
    asked: Diagnostic, classes: pa.Array | None, prediction: Array, y: Array, weights: Array | None
) -> pa.Table:
    """Return the diagnostic as a table.

    prediction: (N, 1) numbers, or (N, K) probabilities of `classes`; y: (N,) numbers, or indices of
    classes; weights: (N,) or None.
    """
    match asked:
        case Roc():
            assert classes is not None
            return _roc(asked, classes, prediction, y, weights)
        case Confusion():
            assert classes is not None
            return _confusion(asked, classes, prediction, y, weights)
        case CalibrationOptions():
            return _calibration(asked, classes, prediction, y, weights)
        case ResidualsOptions():
            return _residuals(asked, prediction[:, 0], y, weights)
        case Metrics():
            return _metrics(asked, classes, prediction, y, weights)
    raise AssertionError(asked.word)


def _of_classes(classes: pa.Array, prediction: Array) -> list[int]:
    """Return the classes that are compared with the rest: of two classes, only the second."""
    return [1] if prediction.shape[1] == 2 else list(range(len(classes)))


def _roc(
    asked: Roc, classes: pa.Array, prediction: Array, y: Array, weights: Array | None
) -> pa.Table:
    tables = []
    for number in _of_classes(classes, prediction):
        curve = thresholds.curve(prediction[:, number], y == number, weights)
        curve = thresholds.thinned(thresholds.corners(curve), asked.points, asked.min_cell)
        positive, negative = curve.true[-1], curve.false[-1]
        columns: dict[str, Any] = {
            "class": classes.take(pa.array(np.full(len(curve.true), number))),
            "threshold": curve.thresholds,
            "recall": _shares(curve.true, positive),
            "false_positive_rate": _shares(curve.false, negative),
            "precision": _shares(curve.true, curve.true + curve.false),
            "true_positives": curve.true,
            "false_positives": curve.false,
            "true_negatives": negative - curve.false,
            "false_negatives": positive - curve.true,
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _shares(part: Array, whole: Array | float) -> pa.Array:
    """Return part / whole; NULL for an empty whole."""
    whole = np.broadcast_to(whole, part.shape)
    none = whole == 0.0
    return pa.array(part / np.where(none, 1.0, whole), mask=none)


def _taken(prediction: Array, threshold: float | None) -> Array:
    """Return the predicted class of each row: (N,)."""
    if threshold is None or prediction.shape[1] != 2:
        taken: Array = prediction.argmax(axis=1)
        return taken
    return (prediction[:, 1] >= threshold).astype(np.intp)


def _confusion(
    asked: Confusion, classes: pa.Array, prediction: Array, y: Array, weights: Array | None
) -> pa.Table:
    taken = _taken(prediction, asked.threshold)
    counts = thresholds.confusion(taken, y, len(classes), weights)
    hidden = _hidden(taken, y, len(classes), asked.min_cell)
    actual, predicted = (places.reshape(-1) for places in np.indices(counts.shape))
    totals = np.broadcast_to(counts.sum(axis=1, keepdims=True), counts.shape).reshape(-1)
    flat, mask = counts.reshape(-1), hidden.reshape(-1)
    none = mask | (totals == 0.0)
    return pa.table(
        {
            "actual": classes.take(pa.array(actual)),
            "predicted": classes.take(pa.array(predicted)),
            "rows": pa.array(flat, mask=mask),
            "share_of_actual": pa.array(flat / np.where(none, 1.0, totals), mask=none),
        }
    )


def _hidden(taken: Array, y: Array, classes: int, least: int) -> Array:
    """Return the hidden cells: (K, K). These have fewer rows than `least`. If only one cell of a
    line would be hidden, its row total would disclose it, so another one is hidden too.

    A cell without rows is shown.
    """
    rows = thresholds.confusion(taken, y, classes)
    hidden: Array = (rows > 0) & (rows < least)
    for line in np.flatnonzero(hidden.sum(axis=1) == 1):
        others = np.where(hidden[line], np.inf, rows[line])
        hidden[line, int(others.argmin())] = True
    return hidden


def _bins(values: Array, asked: Binned, weights: Array | None, span: bool) -> tuple[Array, int]:
    """Return the bin of each row, and the number of bins."""
    edges = thresholds.edges(values, asked.bins, asked.strategy, weights, span)
    places = thresholds.binned(values, edges)
    counts = np.bincount(places, minlength=max(len(edges) - 1, 1))
    places = thresholds.joined_bins(places, counts, asked.min_cell)
    _, places = np.unique(places, return_inverse=True)
    return places, int(places.max()) + 1


def _calibration(
    asked: CalibrationOptions,
    classes: pa.Array | None,
    prediction: Array,
    y: Array,
    weights: Array | None,
) -> pa.Table:
    tables = []
    numbers = [0] if classes is None else _of_classes(classes, prediction)
    for number in numbers:
        values = prediction[:, number]
        truth = y if classes is None else (y == number).astype(np.float64)
        places, bins = _bins(values, asked, weights, classes is not None)
        means = _means(places, bins, (values, truth), weights)
        low, high = _ends(values, places, bins)
        of = {} if classes is None else {"class": classes.take(pa.array(np.full(bins, number)))}
        columns = {
            **of,
            "bin": np.arange(1, bins + 1),
            "lowest": low,
            "highest": high,
            "rows": np.bincount(places, minlength=bins),
            "predicted": means[0],
            "actual": means[1],
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _means(
    places: Array, bins: int, columns: tuple[Array, ...], weights: Array | None
) -> list[pa.Array]:
    """Return means of each bin; NULL if its rows have no weight."""
    w = np.ones(len(places)) if weights is None else weights
    total = np.bincount(places, w, bins)
    return [_shares(np.bincount(places, w * column, bins), total) for column in columns]


def _ends(values: Array, places: Array, bins: int) -> tuple[Array, Array]:
    low, high = np.full(bins, np.inf), np.full(bins, -np.inf)
    np.minimum.at(low, places, values)
    np.maximum.at(high, places, values)
    return low, high


def _residuals(asked: ResidualsOptions, values: Array, y: Array, weights: Array | None) -> pa.Table:
    places, bins = _bins(values, asked, weights, False)
    residual = y - values
    predicted, mean, square = _means(places, bins, (values, residual, residual**2), weights)
    low, high = _ends(values, places, bins)
    columns: dict[str, Any] = {
        "bin": np.arange(1, bins + 1),
        "lowest": low,
        "highest": high,
        "rows": np.bincount(places, minlength=bins),
        "predicted": predicted,
        "residual": mean,
        "rmse": np.sqrt(square.to_numpy(zero_copy_only=False)),
    }
    quantiles = np.array([_quantiles(residual, places == n, weights) for n in range(bins)])
    for number, share in enumerate(SHARES):
        columns[f"q{round(100 * share):02d}"] = quantiles[:, number]
    return pa.table(columns)


def _quantiles(residual: Array, rows: Array, weights: Array | None) -> Array:
    if weights is None:
        return np.quantile(residual[rows], SHARES)
    values, w = residual[rows], weights[rows]
    if not w.any():
        return np.full(len(SHARES), np.nan)
    quantiles: Array = np.quantile(values, SHARES, weights=w, method="inverted_cdf")
    return quantiles


def _metrics(
    asked: Metrics,
    classes: pa.Array | None,
    prediction: Array,
    y: Array,
    weights: Array | None,
) -> pa.Table:
    """Return a row for each metric, and for each class and metric."""
    if weights is not None and weights.any():  # products of tiny ones would be 0
        weights = weights / weights.max()
    if classes is None:
        names, values = zip(*_of_numbers(prediction[:, 0], y, weights), strict=True)
        return pa.table({"metric": pa.array(names), "value": pa.array(values, pa.float64())})
    names, of, values = zip(*_of_labels(asked, prediction, y, weights), strict=True)
    return pa.table(
        {
            "metric": pa.array(names),
            "class": classes.take(pa.array(of, pa.int64())),
            "value": pa.array(values, pa.float64()),
        }
    )


def _of_numbers(
    prediction: Array, y: Array, weights: Array | None
) -> list[tuple[str, float | None]]:
    error = y - prediction
    mean = mean_of(y, weights)
    spread = mean_of((y - mean) ** 2, weights)
    w = np.ones(len(y)) if weights is None else weights
    constant = not spread > 0.0 or len(np.unique(y[w > 0])) < 2
    rest = mean_of((error - mean_of(error, weights)) ** 2, weights)
    size = np.abs(y)
    return [
        ("rows", float(len(y))),
        ("rmse", float(np.sqrt(mean_of(error**2, weights)))),
        ("mae", mean_of(np.abs(error), weights)),
        ("median_absolute_error", _median(np.abs(error), w)),
        ("max_error", float(np.abs(error[w > 0]).max())),
        ("mean_error", mean_of(-error, weights)),
        (
            "mape",
            None
            if (size == 0).any()
            else mean_of(np.abs(error) / np.where(size == 0, 1.0, size), weights),
        ),
        ("r2", None if constant else 1.0 - mean_of(error**2, weights) / spread),
        ("explained_variance", None if constant else 1.0 - rest / spread),
    ]


def _median(values: Array, weights: Array) -> float:
    """Return the mean of the two middle values, as scikit-learn does with and without weights."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    half = 0.5 * below[-1]
    low = int(np.searchsorted(below, half * (1.0 - 1e-12)))
    high = int(np.searchsorted(below, half * (1.0 + 1e-12), side="right"))
    sorted_values = values[order]
    return float(0.5 * (sorted_values[low] + sorted_values[min(high, len(values) - 1)]))


def _of_labels(
    asked: Metrics, prediction: Array, y: Array, weights: Array | None
) -> list[tuple[str, int | None, float | None]]:
    classes = prediction.shape[1]
    taken = _taken(prediction, asked.threshold)
    cells = thresholds.confusion(taken, y, classes, weights)
    true, actual, claimed = cells.diagonal(), cells.sum(axis=1), cells.sum(axis=0)
    total = cells.sum()
    recall, precision = _part(true, actual), _part(true, claimed)
    f1 = _part(2.0 * true, actual + claimed)
    seen = actual > 0
    metrics: list[tuple[str, int | None, float | None]] = [
        ("rows", None, float(len(y))),
        ("accuracy", None, float(true.sum() / total)),
        ("balanced_accuracy", None, float(np.mean(recall[seen]))),
        ("f1_macro", None, float(np.mean(f1[seen | (claimed > 0)]))),
        ("matthews", None, _matthews(cells)),
        ("log_loss", None, log_loss(prediction, y.astype(np.intp), weights)),
        ("brier", None, _brier(prediction, y, weights)),
    ]
    for number in [1] if classes == 2 else range(classes):
        metrics += [
            (f"{name}", number, value)
            for name, value in _areas(prediction[:, number], y == number, weights)
        ]
    for number in range(classes):
        metrics += [
            ("rows", number, float(np.sum(y == number))),
            ("precision", number, _known(precision[number])),
            ("recall", number, _known(recall[number])),
            ("f1", number, _known(f1[number])),
        ]
    return metrics


def _part(part: Array, whole: Array) -> Array:
    """Return part / whole; NaN for an empty whole."""
    shares: Array = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return shares


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _areas(scores: Array, positive: Array, weights: Array | None) -> list[tuple[str, float | None]]:
    curve = thresholds.curve(scores, positive, weights)
    negative, area = curve.false[-1], None
    if curve.true[-1] > 0 and negative > 0:
        area = float(np.trapezoid(curve.true, curve.false) / (curve.true[-1] * negative))
    return [("auc", area), ("pr_auc", thresholds.average_precision(curve))]


def _matthews(cells: Array) -> float | None:
    """Return the coefficient of a matrix of K classes (Gorodkin 2004); None if all rows have, or
    are predicted as, one class.
    """
    total, right = cells.sum(), np.trace(cells)
    actual, claimed = cells.sum(axis=1), cells.sum(axis=0)
    spread = (total**2 - claimed @ claimed) * (total**2 - actual @ actual)
    return None if spread <= 0 else float((right * total - actual @ claimed) / np.sqrt(spread))


def _brier(prediction: Array, y: Array, weights: Array | None) -> float:
    """Return the mean squared error of the probabilities: of the second of two classes, or summed
    over more classes.
    """
    if prediction.shape[1] == 2:
        return mean_of((prediction[:, 1] - (y == 1)) ** 2, weights)
    truth = np.arange(prediction.shape[1]) == y[:, None]
    return mean_of(((prediction - truth) ** 2).sum(axis=1), weights)
