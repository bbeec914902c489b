"""PREDICT and EVALUATE: scores of saved blocks, summed over the mapping; and diagnostics of
predictions against the truth, as tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.base.sanitize import line, listed
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import remark_on_features, remark_on_join
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.preparation import Joined, Targets, prepare, sent_specification, with_offsets
from sqlfl.coordinator.privacy_planning import accuracy_estimate, true_label_epsilon
from sqlfl.coordinator.protection import check_run
from sqlfl.coordinator.weighting import sample_weights, targets
from sqlfl.coordinator.writing import write
from sqlfl.messages import Message, Score, ScoreExactly, SendIdentifiers
from sqlfl.messages.checks import ReplyChannel, ask, refused
from sqlfl.models import thresholds
from sqlfl.models.head import Head
from sqlfl.models.losses import Loss, loss_of
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
from sqlfl.options.resolve import kept_options
from sqlfl.planner.explain.card import upwards
from sqlfl.planner.federated.into import class_type
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model

# -- diagnostics of predictions --------------------------------------------------------------------

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
    for index in np.flatnonzero(hidden.sum(axis=1) == 1):
        others = np.where(hidden[index], np.inf, rows[index])
        hidden[index, int(others.argmin())] = True
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
            ("precision", number, _defined(precision[number])),
            ("recall", number, _defined(recall[number])),
            ("f1", number, _defined(f1[number])),
        ]
    return metrics


def _part(part: Array, whole: Array) -> Array:
    """Return part / whole; NaN for an empty whole."""
    shares: Array = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return shares


def _defined(value: float) -> float | None:
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


# -- scores and predictions ------------------------------------------------------------------------

MAX_DIGITS = 38
ARROW_TYPES: Mapping[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "HUGEINT": pa.decimal128(MAX_DIGITS, 0),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
}
"""Types that `class_type` returns, except decimals."""


@dataclass(frozen=True)
class Scoring:
    """Receivers of a scoring's progress, warnings and notes."""

    tell: Callable[[str], None] = lambda _: None
    remark: Callable[[str], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None
    """Receives notes below the result."""
    lasting: LastingJoin | None = None
    """The join that lasts whose rows the plan uses."""


def predict(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring = Scoring()
) -> pa.Table:
    """Return a row per joined row: identifiers, `prediction`, and `probability_<class>` of
    classifiers. If the plan has INTO, let clients write these into tables, and return a row per
    table.
    """
    joined = prepare(plan, channel, run, said.tell, lasting=said.lasting)
    remark_on_join(plan, joined, said.remark)
    joined = with_offsets(plan, joined, channel, run)
    said.tell("scoring")
    prediction = _score(plan, model, joined, channel, run)
    remark_on_features(plan, joined, channel, run, said.remark)
    if plan.into is not None:
        return write(plan.into, joined, prediction, channel, run)
    names: list[str] = []
    columns: list[Any] = []
    for name, column in identifiers(plan, joined, channel, run):
        names.append(name)
        columns.append(column)
    names += [name for name, _ in prediction_columns(model)]
    if model.classes is None:
        columns.append(pa.array(prediction[:, 0]))
    else:
        classes = class_values(model)
        columns.append(classes.take(pa.array(prediction.argmax(axis=1))))
        columns += [pa.array(prediction[:, number]) for number in range(len(model.classes))]
    return pa.Table.from_arrays(columns, names=names)


def prediction_columns(model: Model) -> list[tuple[str, pa.DataType]]:
    """Return names and types of the columns that PREDICT adds to the identifiers."""
    if model.classes is None:
        return [("prediction", pa.float64())]
    of_classes = [(f"probability_{text}", pa.float64()) for text in model.classes]
    return [("prediction", class_values(model).type), *of_classes]


@dataclass(frozen=True, eq=False)
class Outcome:
    """A model's predictions of joined rows, beside their targets."""

    rows: int
    prediction: Array
    """(N, 1) numbers, or (N, K) probabilities."""
    y: Array
    """(N,): numbers, or the places of classes among the model's."""
    weights: Array | None
    """(N,)"""


def evaluate(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring = Scoring()
) -> pa.Table:
    """Return one row: rows, loss, and the metrics of the model's kind, weighted if the plan is. For
    noised labels it also has `labels`, which says so, and `accuracy_estimate` of a classifier. If
    the plan has a diagnostic, return its table (`sqlfl.coordinator.scoring`).

    Raise ModelError for an empty join, a class that the model does not know, and weights that are
    none. Raise PartyError if labels were not noised as planned.
    """
    return measured(plan, model, _outcome(plan, model, channel, run, said))


def measured(plan: FederatedPlan, model: Model, outcome: Outcome) -> pa.Table:
    """Return the table that EVALUATE, or the plan's diagnostic, makes of an outcome."""
    if plan.look is not None:
        classes = None if model.classes is None else class_values(model)
        return look(plan.look, classes, outcome.prediction, outcome.y, outcome.weights)
    loss = loss_of_model(model)
    metrics = loss.metrics(outcome.prediction, outcome.y, outcome.weights)
    value = loss.of_prediction(outcome.prediction, outcome.y, outcome.weights)
    row: dict[str, object] = {"rows": outcome.rows, "loss": value, **metrics}
    kinds = {"rows": pa.int64(), "labels": pa.string()}
    if plan.privacy is not None:
        if model.classes is not None:
            row["accuracy_estimate"] = accuracy_estimate(
                plan.privacy, float(metrics["accuracy"] or 0.0)
            )
        row["labels"] = f"noised, ε = {upwards(true_label_epsilon(plan.privacy))}"
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in row])
    return pa.Table.from_pylist([row], schema=schema)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Joined rows and their targets."""

    joined: Joined
    y: Array
    """(N,): numbers, or the places of classes among the model's."""
    weights: Array | None
    """(N,)"""


def labelled(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring
) -> Labelled:
    """Return the joined rows with their targets. Raise ModelError as `evaluate` does."""
    joined = prepare(plan, channel, run, said.tell, lasting=said.lasting)
    if joined.total == 0:
        raise ModelError(
            f"the join has no rows to evaluate model {model.name} on",
            hint="check the WHERE conditions, that the join keys of the tables do match, and that "
            "the target is not NULL in all rows",
        )
    remark_on_join(plan, joined, said.remark)
    target = targets(plan, joined, channel, run, said.lasting)
    weights = None if plan.ucq.weight is None else sample_weights(plan, joined, channel, run)
    if weights is not None and not weights.any():
        raise ModelError(
            f"weight {plan.ucq.weight} is 0 in all rows", hint="at least one must be positive"
        )
    joined = with_offsets(plan, joined, channel, run)
    return Labelled(joined, _known(model, target), weights)


def _outcome(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring
) -> Outcome:
    rows = labelled(plan, model, channel, run, said)
    said.tell("scoring")
    prediction = _score(plan, model, rows.joined, channel, run)
    remark_on_features(plan, rows.joined, channel, run, said.remark)
    if plan.privacy is not None:
        check_run(plan, rows.joined, None, channel, run, ())
    return Outcome(rows.joined.total, prediction, rows.y, rows.weights)


def loss_of_model(model: Model) -> Loss:
    options = kept_options(model.options, ("threshold", "quantile"))
    return loss_of(model.kind, 1 if model.classes is None else len(model.classes), options)


def _known(model: Model, target: Targets) -> Array:
    """Return the targets, with classes as the model numbers them: (N,)."""
    if model.classes is None or target.classes is None:
        return target.values
    unknown = [text for text in target.classes if text not in model.classes]
    if unknown:
        raise ModelError(
            f"target {model.target} has classes that model {model.name} was not trained on: "
            + listed(unknown),
            hint=f"the model knows {listed(model.classes)}",
        )
    known = np.array([model.classes.index(text) for text in target.classes])
    codes: Array = known[target.values]
    return codes


def _score(
    plan: FederatedPlan, model: Model, joined: Joined, channel: ReplyChannel, run: str
) -> Array:
    """Return the predicted number of each joined row (N, 1), or its probabilities (N, K)."""
    return predicted(model, joined, slot_scores(plan, model, joined, channel, run))


def slot_scores(
    plan: FederatedPlan, model: Model, joined: Joined, channel: ReplyChannel, run: str
) -> dict[int, Array]:
    """Return each slot's part of the scores of its active rows: (n_i, P), float64 if the model is
    exact, else float32."""
    head = Head(model.intercept, model.head)
    active: dict[Address, int] = {}
    for slot in plan.blocks:
        active |= joined.slots[slot].active
    kind = ScoreExactly if model.exact else Score
    requests = {a: kind(run, a[1], model.run, plan.blocks[a[1]]) for a in active}
    replies = ask(
        channel, requests, lambda a: expected.scores(active[a], head.inputs, exact=model.exact)
    )
    return {
        slot: np.concatenate([replies[a].values for a in joined.slots[slot].addresses])
        for slot in plan.blocks
    }


def predicted(model: Model, joined: Joined, scores: Mapping[int, Array]) -> Array:
    """Return the prediction of each joined row by `slot_scores`: the number (N, 1), or the
    probabilities (N, K).
    """
    return predicted_of_sums(model, joined, summed(model, joined, scores))


def summed(model: Model, joined: Joined, scores: Mapping[int, Array]) -> Float:
    """Return Σ of these slots' scores of each joined row: (N, P)."""
    sums = np.zeros((joined.total, Head(model.intercept, model.head).inputs))
    for slot, values in scores.items():
        sums += values[joined.slots[slot].rows]
    return sums


def predicted_of_sums(model: Model, joined: Joined, sums: Float) -> Array:
    """Return `predicted` of the sums of all slots."""
    return loss_of_model(model).predict(scores_of_sums(model, joined, sums))


def scores_of_sums(model: Model, joined: Joined, sums: Float) -> Float:
    """Return the scores (N, d_c) of the sums of all slots."""
    scores = Head(model.intercept, model.head).scores(sums)
    return scores if joined.offset is None else scores + joined.offset[:, None]


def identifiers(
    plan: FederatedPlan, joined: Joined, channel: ReplyChannel, run: str
) -> list[tuple[str, pa.Array]]:
    slots = [joined.slots[slot.index] for slot in plan.ucq.slots if slot.identifiers]
    active = {address: count for slot in slots for address, count in slot.active.items()}
    requests = {address: SendIdentifiers(run, address[1]) for address in active}
    replies = ask(
        channel, requests, lambda a: expected.identifiers(sent_specification(plan, a), active[a])
    )
    columns: dict[int, pa.Array] = {}
    for slot in plan.ucq.slots:
        for position, identifier in enumerate(slot.identifiers):
            parts = {
                address: replies[address].columns[position]
                for address in joined.slots[slot.index].addresses
            }
            column = pa.concat_arrays(_same_type(parts, requests))
            columns[identifier] = column.take(pa.array(joined.slots[slot.index].rows))
    return [(item.name, columns[number]) for number, item in enumerate(plan.ucq.identifiers)]


def _same_type(
    parts: Mapping[Address, pa.Array], requests: Mapping[Address, Message]
) -> list[pa.Array]:
    """Return the first type that holds all of them: clients may differ in width, such as INTEGER
    and BIGINT."""
    common: pa.DataType | None = None
    for (client, slot), part in parts.items():
        fields = [pa.schema([("x", kind)]) for kind in (common or part.type, part.type)]
        try:
            common = pa.unify_schemas(fields, promote_options="permissive").field("x").type
        except pa.ArrowException:
            what = f"has identifiers of type {part.type}, beside {common}"
            raise refused(client, requests[client, slot], line(what)) from None
    return [part if part.type == common else part.cast(common) for part in parts.values()]


def class_values(model: Model) -> pa.Array:
    """Return the model's classes as values of the target's type, or as texts if Arrow lacks it.

    A HUGEINT of more than 38 digits, which Arrow lacks, makes all of them text.
    """
    assert model.classes is not None
    text = pa.array(model.classes, pa.string())
    kind = class_type(model.target_type)
    if kind.startswith("DECIMAL("):
        precision, scale = (int(n) for n in kind[len("DECIMAL(") : -1].split(","))
        return text.cast(pa.decimal128(precision, scale))
    digits = max(len(name.lstrip("-")) for name in model.classes)
    if kind == "HUGEINT" and digits > MAX_DIGITS:
        return text
    return text.cast(ARROW_TYPES[kind])
