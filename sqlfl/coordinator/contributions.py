"""CONTRIBUTIONS OF MODEL: what each table adds to the score of every joined row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array, Float
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import remark_on_features, remark_on_join
from sqlfl.coordinator.preparation import Joined, prepare, with_offsets
from sqlfl.coordinator.scoring import (
    Scoring,
    class_values,
    identifiers,
    predicted,
    prediction_columns,
    slot_scores,
)
from sqlfl.messages import SendContributions, SendExactContributions
from sqlfl.messages.replies import ReplyChannel, ask
from sqlfl.models.head import Head
from sqlfl.options.diagnostics import ContributionsOptions
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Slot
from sqlfl.store.registry import Model


def contributions(
    plan: FederatedPlan,
    asked: ContributionsOptions,
    model: Model,
    channel: ReplyChannel,
    run: str,
    said: Scoring,
) -> pa.Table:
    """A row per joined row: identifiers, prediction, score, intercept, and what each table, and
    each feature where that is asked for, adds to the score; of several outputs, each for each."""
    joined = prepare(plan, channel, run, said.tell, lasting=said.lasting)
    remark_on_join(plan, joined, said.remark)
    joined = with_offsets(plan, joined, channel, run)
    said.tell("scoring")
    scores = slot_scores(plan, model, joined, channel, run)
    remark_on_features(plan, joined, channel, run, said.remark)
    columns: list[tuple[str, Any]] = list(identifiers(plan, joined, channel, run))
    prediction = predicted(model, joined, scores)
    columns.append(("prediction", _prediction(model, prediction)))
    head = Head(model.intercept, model.head)
    added = {slot: _added(head, values) for slot, values in scores.items()}
    total = np.tile(head.intercept, (joined.total, 1))
    for slot, values in added.items():
        total += values[joined.slots[slot].rows]
    if joined.offset is not None:
        total += joined.offset[:, None]
    columns += _named(model, "score", total)
    columns += _named(model, "intercept", np.tile(head.intercept, (joined.total, 1)))
    if joined.offset is not None:
        columns.append(("offset", pa.array(joined.offset)))
    for table in (slot for slot in plan.ucq.slots if slot.features):
        rows = joined.slots[table.index].rows
        columns += _named(model, f"by_{table.name}", added[table.index][rows])
        if asked.features:
            said.tell(f"features of {table.name}")
            for feature, values in _of_features(plan, model, joined, table, channel, run):
                columns += _named(model, f"by_{table.name}.{feature}", values[rows])
    names, arrays = zip(*columns, strict=True)
    return pa.Table.from_arrays(list(arrays), names=list(names))


def added_columns(
    plan: FederatedPlan, asked: ContributionsOptions, model: Model
) -> list[tuple[str, pa.DataType]]:
    """Names and types of the columns that `contributions` adds to the identifiers."""
    names = ["score", "intercept"]
    for slot in (slot for slot in plan.ucq.slots if slot.features):
        names.append(f"by_{slot.name}")
        names += [f"by_{slot.name}.{feature.name}" for feature in slot.features if asked.features]
    none = np.zeros((0, len(model.intercept)))
    numbers = [column for name in names for column in _named(model, name, none)]
    prediction = prediction_columns(model)[0]
    return [prediction, *((name, values.type) for name, values in numbers)]


def _prediction(model: Model, prediction: Array) -> pa.Array:
    if model.classes is None:
        return pa.array(prediction[:, 0])
    return class_values(model).take(pa.array(prediction.argmax(axis=1)))


def _added(head: Head, values: Array) -> Float:
    """To the scores, of the rows of a slot: (n, d_c)."""
    return values.astype(np.float64) if head.weights is None else values @ head.weights


def _named(model: Model, name: str, values: Array) -> list[tuple[str, pa.Array]]:
    """A column; of several outputs one for each class."""
    if values.shape[1] == 1 or model.classes is None:
        return [(name, pa.array(values[:, 0]))]
    return [(f"{name}_{text}", pa.array(values[:, k])) for k, text in enumerate(model.classes)]


def _of_features(
    plan: FederatedPlan,
    model: Model,
    joined: Joined,
    slot: Slot,
    channel: ReplyChannel,
    run: str,
) -> Iterator[tuple[str, Float]]:
    """Each feature, and what it adds to the scores of the slot's rows: (n, d_c)."""
    members = joined.slots[slot.index]
    outputs = len(model.intercept)
    kind = SendExactContributions if model.exact else SendContributions
    request = kind(run, slot.index, model.run, plan.blocks[slot.index])
    requests = dict.fromkeys(members.addresses, request)
    parts = outputs * len(slot.features)
    replies = ask(
        channel,
        requests,
        lambda a: expected.contributions(members.active[a], parts, exact=model.exact),
    )
    values = np.concatenate([replies[address].values for address in members.addresses])
    for place, feature in enumerate(slot.features):
        yield feature.name, values[:, place * outputs : (place + 1) * outputs].astype(np.float64)
