"""PREDICT and EVALUATE: scores of saved blocks, summed over the mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.base.sanitize import line, listed
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import remark_on_features, remark_on_join
from sqlfl.coordinator.join.labels import targets
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.preparation import Joined, Targets, prepare, sent_specification, with_offsets
from sqlfl.coordinator.privacy_evaluation import accuracy_estimate, true_label_epsilon
from sqlfl.coordinator.protection import check_run
from sqlfl.coordinator.quality import look
from sqlfl.coordinator.weighting import sample_weights
from sqlfl.coordinator.writing import write
from sqlfl.messages import Message, Score, ScoreExactly, SendIdentifiers
from sqlfl.messages.replies import ReplyChannel, ask, refused
from sqlfl.models.head import Head
from sqlfl.models.losses import Loss, loss_of
from sqlfl.options.resolve import kept_options
from sqlfl.planner.explain.card import upwards
from sqlfl.planner.federated.into import class_type
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model

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
    """A row per joined row: identifiers, `prediction`, and `probability_<class>` of classifiers.

    Where the plan says INTO, tables of these at the clients instead, and a row per table.
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
    """Names and types of the columns that PREDICT adds to the identifiers."""
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
    """One row: rows, loss, and the metrics of the model's kind, weighed where the plan is. Where
    labels are noised, also `accuracy_estimate` of a classifier, and `labels`, which says so. Where
    the plan has a diagnostic, its table (`sqlfl.coordinator.quality`).

    Raises ModelError for an empty join, a class that the model does not know, and weights that are
    none, and PartyError where labels were not noised as planned.
    """
    return measured(plan, model, _outcome(plan, model, channel, run, said))


def measured(plan: FederatedPlan, model: Model, outcome: Outcome) -> pa.Table:
    """The table that EVALUATE, or the plan's look, makes of an outcome."""
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
    """The targets, classes as the model numbers them: (N,)."""
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
    """Per joined row: the predicted number (N, 1), or probabilities (N, K)."""
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
    """Per joined row: the number (N, 1) or the probabilities (N, K) of `slot_scores`."""
    head = Head(model.intercept, model.head)
    embedding = np.zeros((joined.total, head.inputs))
    for slot, values in scores.items():
        embedding += values[joined.slots[slot].rows]
    totals = head.scores(embedding)
    if joined.offset is not None:
        totals = totals + joined.offset[:, None]
    return loss_of_model(model).predict(totals)


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
    """Clients may differ in width (INTEGER, BIGINT): the first type that holds all of them."""
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
    """The model's classes as values of the target's type, where Arrow has it; else as text.

    A HUGEINT of more than 38 digits, which Arrow has not, makes all of them text.
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
