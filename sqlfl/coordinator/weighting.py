"""Targets and weights of joined rows: sample weights, class weights, and validation rows.

A joined row's weight is its sample weight times its class's weight; a validation row has weight 0.
A weight of 2 counts the row twice: in the objective, in the statistics, and in second moments.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sqlfl.aggregation.slot_aggregation import merge_classes
from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.base.sanitize import listed
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.lasting import LastingJoin
from sqlfl.coordinator.preparation import (
    Joined,
    Targets,
    Weighting,
    deviations,
    fit,
    merge_encodings,
    sent_specification,
)
from sqlfl.messages import Ready, SendLabels, SendSplit, SendWeights, Split, Weigh, Weights
from sqlfl.messages.checks import Expected, ReplyChannel, ask
from sqlfl.models.folds import deal
from sqlfl.models.kinds import kind_of
from sqlfl.options.types import ClassWeight
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import Slot

MAX_TARGET = 1e30


def targets(
    plan: FederatedPlan,
    joined: Joined,
    channel: ReplyChannel,
    run: str,
    lasting: LastingJoin | None = None,
) -> Targets:
    """Return the target of every joined row, in clear, from the clients of the target's slot."""
    return labels(plan, joined, channel, run, lasting).spread(joined)


def labels(
    plan: FederatedPlan,
    joined: Joined,
    channel: ReplyChannel,
    run: str,
    lasting: LastingJoin | None = None,
) -> Targets:
    """Return the targets of the active rows of their slot. Raise ModelError for a value that the
    model or the messages do not take.

    lasting: the join that lasts whose rows the plan uses.
    """
    index = next(slot.index for slot in plan.ucq.slots if slot.target)
    slot = joined.slots[index]
    requests = {a: SendLabels(run, index) for a in slot.addresses}
    type_ = plan.ucq.target_type or "VARCHAR"
    if lasting is not None and plan.join is not None and plan.join.labels:
        replies = lasting.labels(plan)
    else:
        replies = ask(
            channel,
            requests,
            lambda a: expected.labels(sent_specification(plan, a), slot.active[a], type_),
        )
        if lasting is not None:
            lasting.keep_labels(plan, replies)
    parts = [replies[address] for address in slot.addresses]
    if plan.regression:
        every = [part.values for part in parts]
        numbers = np.concatenate(every) if len(every) > 1 else every[0]
        if max(numbers.max(initial=0.0), -numbers.min(initial=0.0)) > MAX_TARGET:
            raise ModelError(
                f"target {plan.ucq.target} has values beyond ±{MAX_TARGET:g}, which do not fit "
                "the 4-byte numbers of messages",
                hint="divide the target by a power of ten",
            )
        kind = kind_of(plan.kind)
        least, lowest = kind.least, numbers.min(initial=np.inf)
        if least is not None and (lowest < least or (kind.above and lowest == least)):
            where = f"below {least:g}" if lowest < least else f"that are {least:g}"
            raise ModelError(
                f"target {plan.ucq.target} has values {where}, which a {plan.kind} does not take",
                hint="correct them, or leave their rows out with WHERE",
            )
        return Targets(numbers, None, index)
    classes, codes = merge_classes(parts, type_)
    # The codes may be as many as the joined rows.
    return Targets(codes.astype(np.min_scalar_type(len(classes))), classes, index)


MAX_WEIGHT = 1e30


def weigh(
    plan: FederatedPlan, joined: Joined, target: Targets, channel: ReplyChannel, run: str
) -> Joined:
    """Return the join with its weighting, and send all clients the weights of their rows.

    It returns the join unchanged if the plan is not weighted. Raise ModelError for invalid weights
    (NULL, negative, infinite), and if no row is left to train on or to validate with. Raise it also
    if training rows have one class, and for class weights of unknown classes.
    """
    if not plan.weighted:
        return joined
    weighting = weighting_of(
        plan,
        sample_weights(plan, joined, channel, run),
        _validation(plan, joined, channel, run),
        target,
    )
    total = float(weighting.weights.sum())
    samples = None if plan.ucq.weight is None else weighting.samples
    requests = _counts(plan, joined, weighting, run, samples)
    counted = {a: float(request.counts.sum()) for a, request in requests.items()}
    replies = ask(
        channel,
        requests,
        lambda a: expected.encoded(sent_specification(plan, a), counted[a], now=True),
    )
    towers = {slot: joined.slots[slot] for _, slot in requests}
    replies |= fit(plan, towers, replies, counted, channel)
    merge_encodings(towers, replies, total, deviations(plan), channel)
    return replace(joined, weighting=weighting)


def sample_weights(plan: FederatedPlan, joined: Joined, channel: ReplyChannel, run: str) -> Array:
    """Return the weight column of every joined row, or 1: float64 (N,)."""
    slot = next((slot for slot in plan.ucq.slots if slot.weight), None)
    if slot is None:
        return np.ones(joined.total)
    joined_slot = joined.slots[slot.index]
    requests = {a: SendWeights(run, slot.index) for a in joined_slot.addresses}
    replies = ask(channel, requests, lambda a: Expected(Weights, {"active": joined_slot.active[a]}))
    values = np.concatenate([replies[address].values for address in joined_slot.addresses])
    name = plan.ucq.weight
    refused = (
        (np.isnan(values), "NULL or NaN", f"isfinite({name})", "; for NULL: coalesce(..., 1)"),
        (values < 0, "negative", f"{name} >= 0", ""),
        (
            values > MAX_WEIGHT,
            f"beyond {MAX_WEIGHT:g}",
            f"{name} <= {MAX_WEIGHT:g}",
            "",
        ),
    )
    for rows, what, condition, instead in refused:
        if rows.any():
            raise ModelError(
                f"weight {name} is {what} in {int(rows.sum())} of the {len(values)} rows that "
                "occur in the join",
                hint=f"filter them out: WHERE {condition}{instead}",
            )
    samples: Array = values[joined_slot.rows]
    return samples


def _validation(plan: FederatedPlan, joined: Joined, channel: ReplyChannel, run: str) -> Array:
    """Return which joined rows are for validation: bool (N,)."""
    if plan.draws_units:
        return _drawn_units(plan, joined)
    slot: Slot | None = next((slot for slot in plan.ucq.slots if slot.split), None)
    if slot is None or plan.tuning is not None:
        return np.zeros(joined.total, bool)
    joined_slot = joined.slots[slot.index]
    requests = {a: SendSplit(run, slot.index) for a in joined_slot.addresses}
    replies = ask(channel, requests, lambda a: Expected(Split, {"active": joined_slot.active[a]}))
    drawn = np.concatenate([replies[address].validation for address in joined_slot.addresses])
    validation: Array = drawn.astype(bool)[joined_slot.rows]
    return validation


def _drawn_units(plan: FederatedPlan, joined: Joined) -> Array:
    """Draw units for validation, with all their joined rows: bool (N,)."""
    slot = next(slot for slot in plan.ucq.slots if slot.units)
    units, number = joined.units_of(slot.index)
    order = np.random.default_rng(plan.training.seed).permutation(number)
    held = np.zeros(number, bool)
    held[order] = deal(np.zeros(number, np.int64), 1, plan.training.validation_fraction)
    validation: Array = held[units]
    return validation


def reweigh(
    plan: FederatedPlan,
    joined: Joined,
    weighting: Weighting,
    channel: ReplyChannel,
    run: str,
    samples: Array | None = None,
) -> None:
    """Send clients new weights of their rows, from those of the joined rows. The encoding
    stays, but of slots that are `refitted`. These receive `samples` (N,) too, if there are some:
    weights to encode by.
    """
    requests = _counts(plan, joined, weighting, run, samples, again=True)
    ask(channel, requests, lambda address: Expected(Ready))


def _counts(
    plan: FederatedPlan,
    joined: Joined,
    weighting: Weighting,
    run: str,
    samples: Array | None = None,
    *,
    again: bool = False,
) -> dict[Address, Weigh]:
    """Sums of joined rows' weights (N,) for each client's rows, and of `samples` alone: `again`
    for slots that are `refitted`.
    """
    weights, rows = weighting.weights, weighting.trained
    total = float(weights.sum())
    requests: dict[Address, Weigh] = {}
    for slot in plan.ucq.slots:
        if slot.features:
            members = joined.slots[slot.index]
            counts = np.bincount(members.rows, weights, int(members.offsets[-1]))
            alone: Array = np.zeros(0)
            if samples is not None and (slot.refitted or not again):
                alone = np.bincount(members.rows, samples, int(members.offsets[-1]))
            for number, address in enumerate(members.addresses):
                mine = slice(members.offsets[number], members.offsets[number + 1])
                requests[address] = Weigh(run, slot.index, counts[mine], total, alone[mine], rows)
    return requests


def weighting_of(
    plan: FederatedPlan, samples: Array, validation: Array, target: Targets
) -> Weighting:
    """Return the weighting of joined rows with these sample weights. The rows of `validation`
    (bool) are held out.
    """
    split = _check_split(plan, samples, validation)
    weights = np.where(validation, 0.0, samples)
    if not weights.any():
        raise ModelError(
            f"weight {plan.ucq.weight} is 0 in all rows to train on{split}",
            hint="at least one weight must be positive",
        )
    held = samples - weights
    if target.classes is None:
        return Weighting(weights, samples, validation, held)
    counts = np.bincount(target.values, weights, len(target.classes))
    by_class = class_weights(plan.training.class_weight, counts, target.classes)
    with np.errstate(over="ignore", invalid="ignore"):
        weights, held = weights * by_class[target.values], held * by_class[target.values]
        sums = counts * by_class
    if not np.isfinite(sums.sum() + held.sum()):
        raise ModelError(
            "the weights of rows times class_weight are beyond the largest number",
            hint="divide the weights, or those of class_weight, by a power of ten",
        )
    trained = [name for name, sum_ in zip(target.classes, sums, strict=True) if sum_]
    if len(target.classes) > 1 and len(trained) < 2:
        classes = f"of class {listed(trained)} only" if trained else "of no class"
        raise ModelError(
            f"the rows to train on that weigh anything are {classes}{split}",
            hint="a classifier needs rows of at least two classes with a weight above 0",
        )
    return Weighting(weights, samples, validation, held)


def _check_split(plan: FederatedPlan, samples: Array, validation: Array) -> str:
    """Return words about the split for an error. Raise ModelError if one of its sides is empty."""
    fraction = plan.training.validation_fraction
    if not fraction:
        return ""
    rows, drawn = len(validation), int(validation.sum())
    split = f"validation_fraction = {fraction} drew {drawn} of {rows} joined rows for validation"
    if drawn == rows:
        raise ModelError(
            f"{split}: none is left to train on", hint="choose a smaller validation_fraction"
        )
    if drawn == 0:
        raise ModelError(
            f"{split}: there is nothing to validate with",
            hint="choose a larger validation_fraction, or 0 to train without validation",
        )
    if not samples[validation].any():
        raise ModelError(
            f"{split}, and weight {plan.ucq.weight} is 0 in all of them",
            hint="choose a larger validation_fraction, or filter out the rows of weight 0",
        )
    return f" ({split})"


def class_shares(plan: FederatedPlan, samples: Array, target: Targets) -> Array | None:
    """Return the factor of class_weight for rows of each class: float64 (K,). The training rows
    have the weights `samples`. Return None for numbers.
    """
    if target.classes is None:
        return None
    counts = np.bincount(target.values, samples, len(target.classes))
    return class_weights(plan.training.class_weight, counts, target.classes)


def class_weights(option: ClassWeight | None, counts: Array, classes: tuple[str, ...]) -> Array:
    """Return the weight of each class, float64 (K,). `counts` are the sums of weights of each
    class's training rows."""
    if option is None:
        return np.ones(len(classes))
    if isinstance(option, str):  # 'balanced' is the only one
        present = counts > 0
        even = counts.sum() / np.count_nonzero(present)
        with np.errstate(over="ignore"):
            balanced: Array = np.where(present, even / np.where(present, counts, 1.0), 0.0)
        return balanced
    unknown = [name for name in option if name not in classes]
    if unknown:
        raise ModelError(
            f"class_weight names {', '.join(unknown)}, and the target has no such class",
            hint=f"the classes are {listed(classes)}",
        )
    return np.array([option.get(name, 1.0) for name in classes])
