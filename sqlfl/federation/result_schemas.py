"""Names and types of the columns of a statement's result, before the statement runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from sqlfl.base.engine import empty_database
from sqlfl.contract.fragment_columns import identifier
from sqlfl.contract.schema import Catalog, folded
from sqlfl.coordinator import checking, diagnostics, inference_result, writing
from sqlfl.coordinator.diagnostics import added_columns
from sqlfl.coordinator.scoring import Outcome, measured, prediction_columns
from sqlfl.coordinator.weights import schema_of_weights
from sqlfl.federation import exporting, joins, listing, rehearsal, studies
from sqlfl.federation.result_views import schema_of_tuning
from sqlfl.options.diagnostics import ContributionsOptions, Importance, Inference, SkewOptions
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar import statements as st
from sqlfl.store.registry import CARD, Model, Registry

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
