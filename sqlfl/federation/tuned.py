"""The comparison of TUNE, as a result."""

from __future__ import annotations

import html
from dataclasses import replace

import pyarrow as pa

from sqlfl.base.result import Result, table_to_html
from sqlfl.coordinator.training import Trained
from sqlfl.coordinator.tuning import Tuned
from sqlfl.options.tuning import Tuning
from sqlfl.options.types import shown
from sqlfl.plots.registry import Picture
from sqlfl.store.registry import Model


def with_comparison(tuned: Tuned, tuning: Tuning) -> Trained:
    """Return the last fit, with the chosen candidate's metric on held-out rows."""
    mean = next(score.mean for score in tuned.scores if score.candidate is tuned.best)
    metrics = {**tuned.trained.metrics, f"held_out_{tuning.metric}": mean}
    return replace(tuned.trained, metrics=metrics)


def tuned_result(model: Model, tuned: Tuned, tuning: Tuning) -> Result:
    """A row for each candidate, best ones first: its options, the mean of the metric over the
    folds, its standard deviation, epochs and seconds of all its fits, each fold's value."""
    sign = -1.0 if tuning.greater else 1.0
    order = sorted(tuned.scores, key=lambda score: (score.mean is None, sign * (score.mean or 0.0)))
    columns: dict[str, pa.Array] = {
        name: _column([score.candidate.values[name] for score in order]) for name in tuning.tuned
    }
    columns[tuning.metric] = pa.array([score.mean for score in order], pa.float64())
    columns["deviation"] = pa.array([score.deviation for score in order], pa.float64())
    columns["epochs"] = pa.array([score.epochs for score in order], pa.int64())
    columns["seconds"] = pa.array([score.seconds for score in order], pa.float64())
    columns["folds"] = pa.array([list(score.folds) for score in order], pa.list_(pa.float64()))
    table = pa.table(columns)
    chosen = ", ".join(f"{n} = {shown(v)}" for n, v in tuned.best.values.items())
    said = (
        f"model {model.name} was trained on all rows{f' with {chosen}' if chosen else ''}; "
        f"compared: {tuning.words}"
    )

    def markup() -> str:
        return f"{table_to_html(table)}<p>{html.escape(said)}</p>"

    return Result(
        table,
        text=f"{Result(table)!r}\n{said}",
        markup=markup,
        figure=Picture("tune", model.name),
    )


def schema_of_tuning(tuning: Tuning) -> pa.Schema:
    """Names and types of the columns of `tuned_result`."""
    options = {n: _column([c.values[n] for c in tuning.candidates]).type for n in tuning.tuned}
    measures = {
        tuning.metric: pa.float64(),
        "deviation": pa.float64(),
        "epochs": pa.int64(),
        "seconds": pa.float64(),
        "folds": pa.list_(pa.float64()),
    }
    return pa.schema(list({**options, **measures}.items()))


def _column(values: list[object]) -> pa.Array:
    """Return an array of one type, or of texts as a statement writes them."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([shown(value) for value in values])
