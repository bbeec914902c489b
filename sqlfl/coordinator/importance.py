"""IMPORTANCE OF MODEL: what a metric loses where a feature's values are those of other rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array, Float
from sqlfl.base.interrupts import checkpoint
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import remark_on_features
from sqlfl.coordinator.scoring import (
    Labelled,
    Scoring,
    labelled,
    loss_of_model,
    predicted,
    slot_scores,
)
from sqlfl.messages import PermuteExactly, ScorePermuted
from sqlfl.messages.replies import ReplyChannel, ask
from sqlfl.models.head import Head
from sqlfl.models.weighted import mean_of
from sqlfl.options.diagnostics import Importance
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Slot
from sqlfl.store.registry import Model

SCHEMA = pa.schema(
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
    """A row per table position, of feature NULL, and one per feature of it.

    Raises ModelError as EVALUATE does.
    """
    rows = labelled(plan, model, channel, run, said)
    said.tell("scoring")
    scores = slot_scores(plan, model, rows.joined, channel, run)
    remark_on_features(plan, rows.joined, channel, run, said.remark)
    whole = _measured(asked, model, rows, scores)
    lines: list[dict[str, object]] = []
    for slot in (slot for slot in plan.ucq.slots if slot.features):
        said.tell(f"permuting features of {slot.name}")
        for feature, permuted, variance in _permuted(
            plan, asked, model, rows, slot, scores, channel, run
        ):
            losses = [
                _worse(asked, whole, _measured(asked, model, rows, {**scores, slot.index: values}))
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
    return pa.Table.from_pylist(lines, schema=SCHEMA)


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
    """A feature, what its slot's rows add to the scores each time that it is permuted, and the
    variance of what they add; first all of them, whose rows are permuted here, at no message."""
    slot_scores = scores[slot.index]
    seed = asked.seed
    chance = np.random.default_rng(None if seed is None else [seed, slot.index])
    whole = (slot_scores[chance.permutation(len(slot_scores))] for _ in range(asked.repeats))
    yield None, whole, _variance(model, slot_scores, rows, slot)
    for place in slot.permuted:
        told = (
            _told(plan, asked, model, rows, slot, place, repeat, channel, run)
            for repeat in range(asked.repeats)
        )
        yield slot.features[place].name, told, None


def _told(
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
    """Over joined rows, of what the slot adds to the scores, summed over these."""
    added = Head(model.intercept, model.head).weights
    parts: Float = slot_scores.astype(np.float64) if added is None else slot_scores @ added
    values = parts[rows.joined.slots[slot.index].rows]
    return sum(
        mean_of((column - mean_of(column, rows.weights)) ** 2, rows.weights) for column in values.T
    )


def _measured(
    asked: Importance, model: Model, rows: Labelled, scores: Mapping[int, Array]
) -> float | None:
    prediction = predicted(model, rows.joined, scores)
    loss = loss_of_model(model)
    if asked.metric == "loss":
        return loss.of_prediction(prediction, rows.y, rows.weights)
    value = loss.metrics(prediction, rows.y, rows.weights)[asked.metric]
    return None if value is None else float(value)


def _worse(asked: Importance, before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return before - after if asked.metric in HIGHER_IS_BETTER else after - before


def _mean(losses: list[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return float(np.mean(known)) if known else None


def _deviation(losses: list[float | None]) -> float | None:
    """Between permutations; None of one."""
    known = [loss for loss in losses if loss is not None]
    return float(np.std(known, ddof=1)) if len(known) > 1 else None


def _say(asked: Importance, whole: float | None, said: Scoring) -> None:
    measured = "undefined" if whole is None else f"{whole:.6g}"
    said.note(
        f"Importance is by how much {asked.metric} is worse, {measured} as it is, on average over "
        f"{asked.repeats} permutations; a row without a feature is of all features of the table "
        "together, and variance that of what the table adds to the scores."
    )
