"""EVALUATE and PREDICT, and the diagnostics of a model over the same rows.

CONTRIBUTIONS: what each table adds to the score of every joined row. IMPORTANCE: what a metric
loses where a feature's values are those of other rows. SKEW: differences of features from those of
the rows that the model was trained on. `inference` has standard errors and tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.base.interrupts import checkpoint
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected, scoring
from sqlfl.coordinator.findings import remark_on_features, remark_on_join
from sqlfl.coordinator.inference import infer
from sqlfl.coordinator.preparation import Joined, Weighting, prepare, with_offsets
from sqlfl.coordinator.scoring import (
    Labelled,
    Scoring,
    class_values,
    identifiers,
    labelled,
    loss_of_model,
    predicted,
    prediction_columns,
    scores_of_sums,
    slot_scores,
    summed,
)
from sqlfl.coordinator.weighting import reweigh, sample_weights
from sqlfl.messages import (
    PermuteExactly,
    ScorePermuted,
    SendContributions,
    SendExactContributions,
    SendSkew,
)
from sqlfl.messages import Skew as Reply
from sqlfl.messages.checks import ReplyChannel, ask
from sqlfl.models.head import Head
from sqlfl.models.weighted import mean_of
from sqlfl.options.diagnostics import ContributionsOptions, Importance, Inference, SkewOptions
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
    """Return a row per joined row: identifiers, prediction, score, intercept, and the contribution
    of each table to the score; on request, also that of each feature. With several outputs, each of
    these has a column per output."""
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
    """Return names and types of the columns that `contributions` adds to the identifiers."""
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
    """Return the contributions of a slot's rows to the scores: (n, d_c)."""
    return values.astype(np.float64) if head.weights is None else values @ head.weights


def _named(model: Model, name: str, values: Array) -> list[tuple[str, pa.Array]]:
    """Return the values as a column with its name; with several outputs, one for each class."""
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
    """Yield each feature, and its contributions to the scores of the slot's rows: (n, d_c)."""
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


IMPORTANCE_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("party", "table", "feature")),
        *((name, pa.float64()) for name in ("importance", "deviation", "variance")),
    ]
)
HIGHER_IS_BETTER = ("accuracy", "auc", "r2")


def importance(
    plan: FederatedPlan,
    asked: Importance,
    model: Model,
    channel: ReplyChannel,
    run: str,
    said: Scoring,
) -> pa.Table:
    """Return a row per table position, with feature NULL, and one per feature of it.

    Raise ModelError as EVALUATE does.
    """
    rows = labelled(plan, model, channel, run, said)
    said.tell("scoring")
    scores = slot_scores(plan, model, rows.joined, channel, run)
    remark_on_features(plan, rows.joined, channel, run, said.remark)
    rows = replace(rows, y=_small(rows.y))
    everything = scores_of_sums(model, rows.joined, summed(model, rows.joined, scores))
    whole = _measured(asked, model, rows, everything)
    lines: list[dict[str, object]] = []
    for slot in (slot for slot in plan.ucq.slots if slot.features):
        said.tell(f"permuting features of {slot.name}")
        others = {number: values for number, values in scores.items() if number != slot.index}
        with_slot = _Replaced(model, rows.joined, slot.index, summed(model, rows.joined, others))
        # in the same order of addition as below, so that a feature without weight has exactly 0
        unpermuted = _measured(asked, model, rows, with_slot.scores(scores[slot.index]))
        for feature, permuted, variance in _permuted(
            plan, asked, model, rows, slot, scores, channel, run
        ):
            losses = [
                _worse(asked, unpermuted, _measured(asked, model, rows, with_slot.scores(values)))
                for values in permuted
            ]
            lines.append({
                "party": ", ".join(slot.parties),
                "table": slot.name,
                "feature": feature,
                "importance": _mean(losses),
                "deviation": _deviation(losses),
                "variance": variance,
            })  # fmt: skip
    _say(asked, whole, said)
    return pa.Table.from_pylist(lines, schema=IMPORTANCE_SCHEMA)


class _Replaced:
    """Scores of the joined rows with other values of one slot.

    `rest` (N, P): the sums of the other slots' values.
    """

    def __init__(self, model: Model, joined: Joined, slot: int, rest: Float) -> None:
        self._model, self._joined = model, joined
        self._places = joined.slots[slot].rows
        self._added = Head(model.intercept, model.head).weights is None
        # without a linear head the scores are sums, so all but the slot is added up once
        self._rest = scores_of_sums(model, joined, rest) if self._added else rest
        self._sums = np.empty_like(self._rest)

    def scores(self, values: Array) -> Float:
        """Return the scores (N, d_c). The next call overwrites them. `values`: (n_i, P)."""
        values = values.astype(np.float64, copy=False)
        np.take(values, self._places, axis=0, out=self._sums, mode="clip")  # it needs no copy
        np.add(self._rest, self._sums, out=self._sums)
        return self._sums if self._added else scores_of_sums(self._model, self._joined, self._sums)


def _small(y: Array) -> Array:
    """Return classes in as few bytes as they need; numbers as they are."""
    return y if y.dtype.kind == "f" else y.astype(np.min_scalar_type(int(y.max(initial=0))))


def _permuted(
    plan: FederatedPlan,
    asked: Importance,
    model: Model,
    rows: Labelled,
    slot: Slot,
    scores: Mapping[int, Array],
    channel: ReplyChannel,
    run: str,
) -> Iterator[tuple[str | None, Iterator[Array], float | None]]:
    """Yield each feature, the contributions of its slot's rows to the scores at each permutation,
    and the variance of its contributions; None if it is not known.

    The first is the whole slot, as None: its rows are permuted here, without a message."""
    slot_scores = scores[slot.index]
    seed = asked.seed
    chance = np.random.default_rng(None if seed is None else [seed, slot.index])
    whole = (slot_scores[chance.permutation(len(slot_scores))] for _ in range(asked.repeats))
    yield None, whole, _variance(model, slot_scores, rows, slot)
    for place in slot.permuted:
        permuted = (
            _permuted_scores(plan, asked, model, rows, slot, place, repeat, channel, run)
            for repeat in range(asked.repeats)
        )
        yield slot.features[place].name, permuted, None


def _permuted_scores(
    plan: FederatedPlan,
    asked: Importance,
    model: Model,
    rows: Labelled,
    slot: Slot,
    feature: int,
    repeat: int,
    channel: ReplyChannel,
    run: str,
) -> Array:
    checkpoint()
    joined = rows.joined.slots[slot.index]
    seed = -1 if asked.seed is None else asked.seed
    kind = PermuteExactly if model.exact else ScorePermuted
    request = kind(run, slot.index, model.run, plan.blocks[slot.index], feature, repeat, seed)
    outputs = Head(model.intercept, model.head).inputs
    requests = dict.fromkeys(joined.addresses, request)
    replies = ask(
        channel, requests, lambda a: expected.scores(joined.active[a], outputs, exact=model.exact)
    )
    return np.concatenate([replies[address].values for address in joined.addresses])


def _variance(model: Model, slot_scores: Array, rows: Labelled, slot: Slot) -> float:
    """Return the variance of the slot's contributions over joined rows, summed over the scores."""
    added = Head(model.intercept, model.head).weights
    parts: Float = slot_scores.astype(np.float64) if added is None else slot_scores @ added
    values = parts[rows.joined.slots[slot.index].rows]
    return sum(
        mean_of((column - mean_of(column, rows.weights)) ** 2, rows.weights) for column in values.T
    )


def _measured(asked: Importance, model: Model, rows: Labelled, scores: Float) -> float | None:
    """Return the metric of predictions by the scores (N, d_c) of the joined rows."""
    loss = loss_of_model(model)
    if asked.metric == "loss":
        return loss.of_scores(scores, rows.y, rows.weights)
    value = loss.metrics(loss.predict(scores), rows.y, rows.weights)[asked.metric]
    return None if value is None else float(value)


def _worse(asked: Importance, before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return before - after if asked.metric in HIGHER_IS_BETTER else after - before


def _mean(losses: list[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return float(np.mean(known)) if known else None


def _deviation(losses: list[float | None]) -> float | None:
    """Return the standard deviation between permutations; None for a single one."""
    known = [loss for loss in losses if loss is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def _say(asked: Importance, whole: float | None, said: Scoring) -> None:
    measured = "undefined" if whole is None else f"{whole:.6g}"
    said.note(
        f"Importance is by how much {asked.metric} is worse, {measured} as it is, on average over "
        f"{asked.repeats} permutations; a row without a feature is of all features of the table "
        "together, and variance that of what the table adds to the scores."
    )


SKEW_SCHEMA = pa.schema(
    [
        ("client", pa.string()),
        ("feature", pa.string()),
        ("trained_mean", pa.float64()),
        ("mean", pa.float64()),
        ("trained_missing", pa.float64()),
        ("missing", pa.float64()),
        ("unseen", pa.float64()),
        ("distance", pa.float64()),
        ("psi", pa.float64()),
        ("jensen_shannon", pa.float64()),
        ("drifted", pa.bool_()),
    ]
)


def skew(
    plan: FederatedPlan,
    asked: SkewOptions,
    model: Model,
    channel: ReplyChannel,
    run: str,
    said: Scoring,
) -> pa.Table:
    """Return a row for each feature of each database. Unknown numbers, and numbers of too few rows,
    are NULL. Raise ModelError for an empty join.
    """
    joined = prepare(plan, channel, run, said.tell, lasting=said.lasting)
    remark_on_join(plan, joined, said.remark)
    if not joined.total:
        raise ModelError("the join is empty: there are no rows to compare with those of training")
    if plan.ucq.weight is not None:
        weights = sample_weights(plan, joined, channel, run)
        if not weights.any():
            raise ModelError(
                f"weight {plan.ucq.weight} is 0 in all rows", hint="at least one must be positive"
            )
        none = np.zeros(len(weights))
        weighting = Weighting(weights, weights, none.astype(bool), none)
        reweigh(plan, joined, weighting, channel, run)
    said.tell("comparing features")
    rows: list[dict[str, object]] = []
    for slot in (slot for slot in plan.ucq.slots if slot.features):
        joined_slot = joined.slots[slot.index]
        request = SendSkew(run, slot.index, model.run, plan.blocks[slot.index], asked.min_cell)
        requests = dict.fromkeys(joined_slot.addresses, request)
        replies = _asked(channel, requests, len(slot.features))
        for (client, _), reply in ((a, r) for a, r in replies.items() if joined_slot.active[a]):
            for place, feature in enumerate(slot.features):
                distance = _number(reply.distances[place])
                rows.append(
                    {
                        "client": str(client),
                        "feature": feature.name,
                        "trained_mean": _number(reply.trained_means[place]),
                        "mean": _number(reply.means[place]),
                        "trained_missing": _number(reply.trained_missing[place]),
                        "missing": _number(reply.missing[place]),
                        "unseen": _number(reply.unseen[place]),
                        "distance": distance,
                        "psi": _number(reply.indices[place]),
                        "jensen_shannon": _number(reply.divergences[place]),
                        "drifted": None if distance is None else distance > asked.threshold,
                    }
                )
    return pa.Table.from_pylist(rows, schema=SKEW_SCHEMA)


def _asked(
    channel: ReplyChannel, requests: Mapping[Address, SendSkew], features: int
) -> dict[Address, Reply]:
    return ask(channel, requests, lambda _: expected.skew(features))


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def evaluate(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring
) -> pa.Table:
    """Return the plan's diagnostic, or else the metrics in one row."""
    match plan.look:
        case Inference():
            return infer(plan, plan.look, model, channel, run, said)
        case Importance():
            return importance(plan, plan.look, model, channel, run, said)
    return scoring.evaluate(plan, model, channel, run, said)


def predict(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring
) -> pa.Table:
    """Return the plan's diagnostic, or else the predictions."""
    if isinstance(plan.look, ContributionsOptions):
        return contributions(plan, plan.look, model, channel, run, said)
    if isinstance(plan.look, SkewOptions):
        return skew(plan, plan.look, model, channel, run, said)
    return scoring.predict(plan, model, channel, run, said)
