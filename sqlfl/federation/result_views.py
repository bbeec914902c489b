"""Results of TUNE, CHECK, WEIGHTS and CURVES: one table each, with its text and markup."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from sqlfl.base.errors import ModelError
from sqlfl.base.result import Result, table_to_html
from sqlfl.coordinator.checking import parts_of
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.training import Trained
from sqlfl.coordinator.tuning import Tuned
from sqlfl.coordinator.weights import curves, weights
from sqlfl.federation.saving import Saving
from sqlfl.options.tuning import Tuning
from sqlfl.options.types import shown
from sqlfl.planner.grammar.statements import CurvesOfModel
from sqlfl.plots.registry import Picture
from sqlfl.store.registry import Model, Registry
from sqlfl.transport.base import Channel


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


TITLES = {
    "query": "The query",
    "database": "Differences between the databases of a party",
    "key": "Join keys, each by itself: rows that have a partner, and how many partners these have",
    "table": "Tables: rows that are in the join, and how often these are",
    "target": "The target",
    "feature": "Features, over the joined rows",
}
CLEAN = "nothing looks like a mistake"
PICTURE = Picture("check", "")


def checked(table: pa.Table) -> Result:
    """Return the rows of `sqlfl.coordinator.checking.check`, with its findings below them."""
    findings = [text for text in table.column("finding").to_pylist() if text] or [CLEAN]
    shown = [(TITLES[name], part) for name, part in parts_of(table)]

    def markup() -> str:
        parts = [f"<h4>{html.escape(title)}</h4>{table_to_html(part)}" for title, part in shown]
        items = "".join(f"<li>{html.escape(text)}</li>" for text in findings)
        return "".join([*parts, f"<h4>Findings</h4><ul>{items}</ul>"])

    text = [f"{title}\n{Result(part)!r}" for title, part in shown]
    listed = "\n".join(f"- {finding}" for finding in findings)
    return Result(table, text="\n".join([*text, "Findings", listed]), markup=markup, figure=PICTURE)


def askable(model: Model, registry: Registry, sql: Callable[[str], Result]) -> Model:
    """Return the model with a function that runs statements about it by `sql` while it exists."""

    def ask(text: str) -> Result:
        if registry.get(model.name).run != model.run:
            raise ModelError(
                f"model {model.name} has been replaced, and its weights are gone",
                hint=f"fed.model({model.name!r}) is the one that took its place",
            )
        return sql(text)

    return replace(model, ask=ask)


def weights_of(name: str, saving: Saving, channel: Channel) -> Result:
    """Return the result of `WEIGHTS OF MODEL`. Raise ModelError for an unknown model, a model
    without weights, or a missing party.
    """
    with saving.held(name) as model:
        saving.check_here(model)
        notes: list[str] = []
        table = weights(model, channel, Scoring(note=notes.append))
        return Result(table, notes=notes, figure=Picture("weights", model.name))


def curves_of(statement: CurvesOfModel, saving: Saving, channel: Channel) -> Result:
    """Return the result of `CURVES OF MODEL`. Raise ModelError for an unknown model or feature, a
    model without curves, or a missing party.
    """
    with saving.held(statement.name) as model:
        saving.check_here(model)
        notes: list[str] = []
        feature = None if statement.feature is None else str(statement.feature)
        table = curves(model, feature, channel, Scoring(note=notes.append))
        return Result(table, notes=notes, figure=Picture("curves", model.name))
