"""Results of statements: the names and types of columns before a statement runs, and tables after.

Results of TUNE, CHECK, WEIGHTS and CURVES are one table each, with text and markup.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa

from sqlfl.base.engine import empty_database
from sqlfl.base.errors import ModelError
from sqlfl.base.result import Result, table_to_html
from sqlfl.contract.fragment_columns import identifier
from sqlfl.contract.schema import Catalog, folded
from sqlfl.coordinator import checking, diagnostics, inference_result, writing
from sqlfl.coordinator.checking import parts_of
from sqlfl.coordinator.diagnostics import added_columns
from sqlfl.coordinator.scoring import Outcome, Scoring, measured, prediction_columns
from sqlfl.coordinator.training import Trained
from sqlfl.coordinator.tuning import Tuned
from sqlfl.coordinator.weights import curves, schema_of_weights, weights
from sqlfl.federation import exporting, joins, listing, rehearsal, studies
from sqlfl.federation.saving import Saving
from sqlfl.options.diagnostics import ContributionsOptions, Importance, Inference, SkewOptions
from sqlfl.options.tuning import Tuning
from sqlfl.options.types import shown
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar import statements as st
from sqlfl.planner.grammar.statements import CurvesOfModel
from sqlfl.plots.registry import Picture
from sqlfl.store.registry import CARD, Model, Registry
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


DROPPED = pa.schema([("dropped", pa.string())])
PLAN = pa.schema([("plan", pa.string())])
_BY_STATEMENT: dict[type, pa.Schema] = {
    st.TrainModel: CARD,
    st.ResumeModel: CARD,
    st.ImportModel: CARD,
    st.DescribeModel: CARD,
    st.CommentOnModel: CARD,
    st.ExportModel: exporting.SCHEMA,
    st.CheckQuery: checking.SCHEMA,
    st.DropModel: DROPPED,
    st.ShowTables: listing.TABLES,
    st.ShowParties: listing.PARTIES,
    st.CreateJoin: joins.SCHEMA,
    st.ShowJoins: joins.SCHEMA,
    **dict.fromkeys((st.CreateStudy, st.DropStudy, st.UseStudy, st.ShowStudies), studies.SCHEMA),
    st.DropJoin: DROPPED,
    st.DescribeTable: listing.COLUMNS,
    st.ShowFeatures: listing.FEATURES,
}
"""Statements whose results always have the same columns."""


def schema_of(
    statement: st.Statement,
    registry: Registry,
    plan: Callable[[], FederatedPlan],
    catalog: Callable[[], Catalog],
) -> pa.Schema:
    """Return the schema of the statement's result.

    Only EVALUATE, PREDICT, their variants and TUNE are planned; `plan` then asks parties for names
    and types. ID columns have the types that the parties report, with the time zone of their
    session. Raises planning errors, and ModelError for an unknown model.
    """
    match statement:
        case st.ExplainStatement():
            return rehearsal.SCHEMA if statement.analyze else PLAN
        case st.TuneModel() if not (statement.if_not_exists and statement.name in registry):
            tuning = plan().tuning
            assert tuning is not None
            return schema_of_tuning(tuning)
        case st.TuneModel():
            return CARD
        case st.EvaluateModel():
            return _of_evaluation(plan(), registry.get(statement.name))
        case st.PredictModel():
            return _of_prediction(plan(), registry.get(statement.name), catalog())
        case st.WeightsOfModel():
            return schema_of_weights(registry.get(statement.name))
        case st.ShowHistory():
            return registry.get(statement.name).history.schema
        case st.ShowModels():
            return registry.table().schema
    return _BY_STATEMENT[type(statement)]


def _of_evaluation(plan: FederatedPlan, model: Model) -> pa.Schema:
    """Return the schema of the table that the same code makes from one made-up row a class."""
    match plan.look:
        case Inference():
            return inference_result.schema_of(model)
        case Importance():
            return diagnostics.IMPORTANCE_SCHEMA
    rows = 2 if model.classes is None else len(model.classes)
    y = np.arange(rows) if model.classes is not None else np.arange(float(rows))
    prediction = np.ones((rows, 1)) if model.classes is None else np.eye(rows) * 0.5 + 0.5 / rows
    weights = None if plan.ucq.weight is None else np.ones(rows)
    return measured(plan, model, Outcome(rows, prediction, y, weights)).schema


def _of_prediction(plan: FederatedPlan, model: Model, catalog: Catalog) -> pa.Schema:
    if isinstance(plan.look, SkewOptions):
        return diagnostics.SKEW_SCHEMA
    if plan.into is not None:
        return writing.SCHEMA
    names = [item.name for item in plan.ucq.identifiers]
    identifiers = zip(names, _identifier_types(plan, catalog), strict=True)
    if isinstance(plan.look, ContributionsOptions):
        return pa.schema([*identifiers, *added_columns(plan, plan.look, model)])
    return pa.schema([*identifiers, *prediction_columns(model)])


def _identifier_types(plan: FederatedPlan, catalog: Catalog) -> list[pa.DataType]:
    """Return the type of each ID column; for a union, the first type that holds those of all
    clients.
    """
    by_column: dict[int, list[str]] = {}
    for slot in (slot for slot in plan.ucq.slots if slot.identifiers):
        fragments = [f for f in slot.fragments if not f.virtual]
        for fragment in (part for f in fragments for part in f.parts or (f,)):
            columns = catalog.describe(fragment.client, fragment.sql)
            types = {folded(column.name): column.type for column in columns}
            for number in slot.identifiers:
                by_column.setdefault(number, []).append(types[folded(identifier(number))])
    return [_common(arrow_types(by_column[n])) for n in range(len(plan.ucq.identifiers))]


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    schemas = [pa.schema([("x", kind)]) for kind in types]
    return pa.unify_schemas(schemas, promote_options="permissive").field("x").type


def arrow_types(types: Sequence[str]) -> list[pa.DataType]:
    """The Arrow types in which values of these DuckDB types arrive: an ENUM as text, and an
    extension type as its storage. A type that this process does not know is text."""
    with empty_database() as con:
        return [_arrow_type(con, text) for text in types]


def _arrow_type(con: duckdb.DuckDBPyConnection, text: str) -> pa.DataType:
    try:
        known = duckdb.sqltype(text)  # reads types alone: no other SQL passes
        table = con.sql(f"SELECT CAST(NULL AS {known}) AS x LIMIT 0").to_arrow_table()
    except duckdb.Error:
        return pa.string()
    return _plain(table.schema.field(0).type)


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return kind.value_type if pa.types.is_dictionary(kind) else kind
