"""INFERENCE OF MODEL: standard errors, tests and intervals of coefficients.

Each client tells its active rows' encoded columns in a basis of its own choice. What standard
errors are made of, (Σ w φ'' z zᵀ)⁻¹ and the like, is in that basis too; a client that gets its
block of the covariance turns it back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from sqlfl.aggregation.slot_aggregation import merge_names
from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.estimates import Estimation, OutputEstimate, Resolved, Rotations
from sqlfl.coordinator.findings import remark_on_features
from sqlfl.coordinator.inference_result import say, table
from sqlfl.coordinator.preparation import Joined
from sqlfl.coordinator.scoring import (
    Labelled,
    Scoring,
    class_values,
    labelled,
    loss_of_model,
)
from sqlfl.coordinator.weighting import class_weights
from sqlfl.messages import (
    Errors,
    Rotated,
    SendErrors,
    SendRotated,
)
from sqlfl.messages.checks import ReplyChannel, ask, refused
from sqlfl.models.aliasing import ZERO, Relations, relations_of, span
from sqlfl.models.clipped import Huber, Quantile
from sqlfl.models.inference import (
    FAMILIES,
    RANK,
    Estimated,
    Family,
    Fit,
    estimated,
    firth,
    fit_of,
    huber,
    quantile,
    sums,
)
from sqlfl.models.multinomial import (
    MULTINOMIAL,
    fit_of_classes,
    null_space,
    separation_of_classes,
    sums_of_classes,
)
from sqlfl.models.separation import Separation, separation
from sqlfl.options.diagnostics import Inference
from sqlfl.options.resolve import kept_options
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model

SAME_BASIS = 1e-9
"""Relative distance of one vector in the bases of two clients, up to which these count as one."""
_SAME_SECRET = (
    "a basis follows from the secret of a party's databases: give their agents one file, "
    "organisation = 'party.secret', and see that they run this version of sqlfl, unchanged"
)
MAX_COLUMNS = 5000
"""Encoded columns of all tables: a matrix of them is inverted."""
EXACT = 1e-6
"""Largest error of rounding in columns that mark rows without partner."""


def infer(
    plan: FederatedPlan,
    asked: Inference,
    model: Model,
    channel: ReplyChannel,
    run: str,
    said: Scoring,
) -> pa.Table:
    """Return a row per encoded column (of several classes, per class but the first), one for the
    intercept, and one per measure of the fit.

    Raise ModelError for too few rows or too many columns, and as EVALUATE does.
    """
    rows = labelled(plan, model, channel, run, said)
    _check_target(model, rows)
    said.tell("asking for columns")
    rotations = _rotations(plan, asked, model, rows.joined, channel, run)
    remark_on_features(plan, rows.joined, channel, run, said.remark)
    said.tell("standard errors")
    estimate = _estimate_of_classes if len(model.intercept) > 1 else _estimate
    estimation = estimate(plan, asked, model, rotations, rows)
    replies = [_errors(plan, asked, model, part, channel, run) for part in estimation.parts]
    say(plan, model, asked, estimation, replies, said)
    return table(plan, model, asked, estimation, replies)


def _estimate(
    plan: FederatedPlan, asked: Inference, model: Model, rotations: Rotations, rows: Labelled
) -> Estimation:
    """Return the estimation of a model with one output."""
    theta = rotations.theta.copy()
    theta[0] = float(model.intercept[0])
    h = rotations.scores(theta[0])
    loss_of_model(model).predict(h[:, None])  # which refuses means beyond all numbers
    units = _units(plan, asked, rows.joined)
    number = None if units is None else _number(units, rows.weights)
    shares = _class_shares(model, rows)
    finite = None
    if asked.firth:
        _check_firth(model, shares)
        finite = firth(rotations.design, rows.y, rows.weights, rows.joined.offset)
        theta, h = finite.theta, finite.scores
    family = _family(model, h, rows)
    if shares is not None:
        family = replace(family, likely=False)
        rows, shares = _reweighted(rows, shares)
    fit = fit_of(family, h, rows.y, rows.weights, rows.joined.offset)
    apart = None if finite is not None else _separation(family, rotations, h, rows)
    counted = rows.weights
    if apart is not None and apart.any:
        counted = np.where(apart.rows, 0.0, 1.0 if counted is None else counted)
    penalty = 0.0 if finite is not None else _penalty(model, fit)
    nothing = finite.nothing if finite is not None else None if apart is None else apart.nothing
    robust = asked.robust or shares is not None
    if apart is not None and not apart.any and not robust and units is None and not family.bend:
        moments = apart.moments  # the same sums
    else:
        moments = sums(
            family,
            rotations.design,
            h,
            rows.y,
            counted,
            robust=robust,
            units=units,
            shares=shares,
        )
    estimates = estimated(
        family,
        moments,
        rotations.theta,
        penalty,
        fit,
        number,
        nothing,
        quasi=asked.quasi,
    )
    if estimates is None:
        raise _too_few(fit, number)
    resolved = _resolved(rotations, rows, estimates, apart, theta, penalised=penalty > 0)
    ratio = None if finite is None else finite.ratio
    part = OutputEstimate(rotations, resolved, estimates, 0, -1)
    return Estimation(family, estimates, fit, number, (part,), ratio, by_class=shares is not None)


def _estimate_of_classes(
    plan: FederatedPlan, asked: Inference, model: Model, rotations: Rotations, rows: Labelled
) -> Estimation:
    """Return the estimation of a model with several classes: differences from the first one."""
    y = rows.y.astype(np.intp)
    classes, width = len(model.intercept), len(rotations.theta)
    weights = rotations.weights.copy()
    weights[0] = model.intercept
    h = np.column_stack(
        [replace(rotations, theta=rotations.weights[:, k]).scores(float(weights[0, k]))
         for k in range(classes)]
    )  # fmt: skip
    units = _units(plan, asked, rows.joined)
    number = None if units is None else _number(units, rows.weights)
    shares = _class_shares(model, rows)
    family = MULTINOMIAL
    if shares is not None:
        family = replace(family, likely=False)
        rows, shares = _reweighted(rows, shares)
    fit = fit_of_classes(h, y, rows.weights)
    apart, never = separation_of_classes(rotations.design, h, y, rows.weights)
    counted = np.arange(len(y)) if rows.weights is None else np.flatnonzero(rows.weights > 0)
    nothing = null_space(rotations.design, counted)
    penalty = _penalty(model, fit)
    differences = weights[:, 1:] - weights[:, :1]
    inner = differences.copy()
    inner[0] = 0.0
    estimates = estimated(
        family,
        sums_of_classes(
            rotations.design,
            h,
            y,
            rows.weights,
            never if apart.any else None,
            robust=asked.robust or shares is not None,
            units=units,
            shares=shares,
        ),
        inner.T.reshape(-1),
        penalty,
        fit,
        number,
        np.asarray(np.kron(np.eye(classes - 1), nothing), np.float64),
        classes=classes,
    )
    if estimates is None:
        raise _too_few(fit, number)
    parts = []
    for k in range(classes - 1):
        place = slice(k * width, (k + 1) * width)
        of_class = replace(
            estimates, covariance=estimates.covariance[place, place], nothing=nothing
        )
        alone = replace(apart, directions=span(apart.directions[place]), nothing=nothing)
        only = replace(rotations, theta=inner[:, k])
        resolved = _resolved(only, rows, of_class, alone, differences[:, k], penalised=penalty > 0)
        parts.append(OutputEstimate(only, resolved, of_class, k + 1, 0))
    return Estimation(
        family, estimates, fit, number, tuple(parts), None, by_class=shares is not None
    )


def _penalty(model: Model, fit: Fit) -> float:
    """Return λ."""
    return float(str(model.options.get("l2", 0.0))) * fit.rows


def _reweighted(rows: Labelled, shares: Array) -> tuple[Labelled, Array]:
    """Return the rows with their weights times the shares, and the scaled shares. The weights are
    scaled so that their sum stays: some classes count more, but there are no more rows."""
    number = float(len(shares) if rows.weights is None else rows.weights.sum())
    weights = shares if rows.weights is None else rows.weights * shares
    scale = number / weights.sum()
    return replace(rows, weights=weights * scale), shares * scale


def _too_few(fit: Fit, number: int | None) -> ModelError:
    return ModelError(
        f"{fit.rows:g} joined rows"
        + ("" if number is None else f" in {number} clusters")
        + " are too few for standard errors",
        hint="more rows than the model has parameters are needed"
        + ("" if number is None else ", in two clusters or more"),
    )


def _check_firth(model: Model, shares: Array | None) -> None:
    if shares is not None:
        raise ModelError(
            f"model {model.name} was trained with class_weight, by which rows are no more or fewer "
            "rows, and Firth's likelihood counts rows",
            hint="train it without class_weight, or leave firth out",
        )


def _family(model: Model, h: Float, rows: Labelled) -> Family:
    """Return the distribution of targets around the model's predictions."""
    family = FAMILIES.get(model.kind)
    if family is not None:
        return family
    loss = loss_of_model(model).fitted(rows.y, rows.weights)
    (constant,) = loss.initial_intercept(rows.y, rows.weights).tolist()
    if isinstance(loss, Huber):
        return huber(loss.delta, constant)
    assert isinstance(loss, Quantile)
    return quantile(loss, constant, h, rows.y, rows.weights)


def _class_shares(model: Model, rows: Labelled) -> Array | None:
    """Return the factors of the joined rows' weights by class_weight, float64 (N,); None without
    that option."""
    option = kept_options(model.options, ("class_weight",)).get("class_weight")
    if option is None or model.classes is None:
        return None
    codes = rows.y.astype(np.intp)
    counts = np.bincount(codes, rows.weights, len(model.classes)).astype(np.float64)
    shares: Array = class_weights(option, counts, model.classes)[codes]
    return shares


def _resolved(
    rotations: Rotations,
    rows: Labelled,
    estimates: Estimated,
    apart: Separation | None,
    theta: Float,
    *,
    penalised: bool,
) -> Resolved:
    """Return the estimates with the relations between the columns resolved. `theta` (P,): the
    estimates, the intercept at the centres first."""
    relations, adjusted = relations_of(estimates.nothing, rotations.places)
    if penalised:
        adjusted = np.eye(len(adjusted))
    partnerless, constants = {}, {}
    for slot, place in rotations.places.items():
        related, origin = relations[slot], rotations.origin[place]
        taken = related.constants + origin @ related.within
        function = related.within @ np.where(np.abs(taken) > ZERO * _length(origin), taken, 0.0)
        without = _partnerless(rotations, slot, rows.weights, related)
        if without is not None:
            weights, constant, partner = without
            partnerless[slot] = weights, partner
            own_taken = (constant + origin @ weights) / _length(weights)
            if abs(own_taken) > ZERO * _length(origin):
                function = function + weights * (own_taken / _length(weights))
        constants[slot] = np.zeros_like(function) if penalised else function
    origin = rotations.origin @ adjusted
    moved = float(np.linalg.norm(origin - rotations.origin))
    return Resolved(
        relations,
        adjusted @ theta - rotations.theta,
        adjusted @ estimates.covariance @ adjusted.T,
        np.zeros((len(theta), 0)) if apart is None else apart.directions,
        origin,
        float(origin @ theta),
        moved > ZERO * _length(rotations.origin),
        partnerless,
        constants,
        penalised,
    )


def _length(vector: Float) -> float:
    """Return the length; 1 for a length of 0."""
    return float(np.linalg.norm(vector)) or 1.0


def _partnerless(
    rotations: Rotations, slot: int, counted: Array | None, relations: Relations
) -> tuple[Float, float, Float] | None:
    """Return weights w (d,) and a constant c with values · w + c = 1 in rows without a partner and
    0 in others; and the row of a missing partner (d,).

    Return None if the columns do not determine these rows, and if there are none or no others.
    """
    members = rotations.joined.slots[slot]
    if not len(members.virtual):
        return None
    mapped = members.rows if counted is None else members.rows[counted > 0]
    used = np.bincount(mapped, minlength=int(members.offsets[-1])) > 0
    alone = members.made_up[used]
    values = rotations.values[slot][used]
    if alone.all() or not alone.any():
        return None
    partner = values[np.argmax(alone)]
    if not np.allclose(values[alone], partner, atol=EXACT):
        return None
    mean = values.mean(axis=0)
    centred, target = values - mean, alone - alone.mean()
    moments, vectors = np.linalg.eigh(centred.T @ centred)
    kept = moments > RANK * moments[-1]
    weights = vectors[:, kept] @ ((vectors[:, kept].T @ (centred.T @ target)) / moments[kept])
    if np.abs(centred @ weights - target).max() > EXACT:
        return None
    constant = float(alone.mean() - mean @ weights)
    along = relations.within.T @ weights
    return (
        weights - relations.within @ along,
        constant - float(relations.constants @ along),
        partner,
    )


def _separation(
    family: Family, rotations: Rotations, h: Float, rows: Labelled
) -> Separation | None:
    """Return the separation of the rows; None for a family whose estimates are always finite."""
    if not family.separable:
        return None
    return separation(family, rotations.design, h, rows.y, rows.weights)


def _number(units: Array, weights: Array | None) -> int:
    """Return the number of units that have a weight."""
    return len(np.unique(units if weights is None else units[weights > 0]))


def _check_target(model: Model, rows: Labelled) -> None:
    counted = rows.y if rows.weights is None else rows.y[rows.weights > 0]
    if (counted == counted[0]).all():
        raise ModelError(
            f"target {model.target} is the same in all {len(counted):,} joined rows, which tell "
            "nothing of the coefficients",
            hint="take the query that the model was trained on",
        )
    if len(model.intercept) > 1 and not (counted == 0).any():
        first = class_values(model)[0].as_py()
        raise ModelError(
            f"no joined row has target {model.target} = {first!r}, the class that coefficients of "
            "the others are compared with",
            hint="take the query that the model was trained on",
        )


def _rotations(
    plan: FederatedPlan,
    asked: Inference,
    model: Model,
    joined: Joined,
    channel: ReplyChannel,
    run: str,
) -> Rotations:
    outputs = len(model.intercept)
    active = {a: n for slot in plan.blocks for a, n in joined.slots[slot].active.items()}
    compared = {
        slot: asked.compared(f.name for f in plan.ucq.slots[slot].features) for slot in plan.blocks
    }
    requests = {
        a: SendRotated(run, a[1], model.run, plan.blocks[a[1]], *compared[a[1]]) for a in active
    }
    replies = ask(channel, requests, lambda a: expected.rotated(active[a], outputs))
    values, weights, origin = {}, [np.zeros((1, outputs))], [np.ones(1)]
    for slot in plan.blocks:
        addresses = joined.slots[slot].addresses
        parts = [replies[address] for address in addresses]
        for address, part in zip(addresses, parts, strict=True):
            if not _alike(part, parts[0]):
                what = f"is in another basis than that of {addresses[0][0]}"
                raise refused(address[0], requests[address], what, _SAME_SECRET)
        values[slot] = np.concatenate([part.values for part in parts])
        weights.append(parts[0].weights)
        origin.append(parts[0].origin)
    theta = np.concatenate(weights)
    rotations = Rotations(joined, values, theta[:, 0], theta, np.concatenate(origin))
    if len(theta) * max(outputs - 1, 1) > MAX_COLUMNS:
        raise ModelError(
            f"model {model.name} has {len(theta) - 1:,} encoded columns"
            + (f" and {outputs} classes" if outputs > 1 else "")
            + f", and standard errors are worked out of {MAX_COLUMNS - 1:,} parameters at most",
            hint="train with fewer categories; IMPORTANCE OF MODEL has no such limit",
        )
    return rotations


def _alike(part: Rotated, first: Rotated) -> bool:
    """Return whether two clients of a slot have one basis. Their machines may round unlike."""
    pairs = ((part.weights, first.weights), (part.origin, first.origin))
    return all(
        matrix.shape == other.shape
        and np.linalg.norm(matrix - other) <= SAME_BASIS * np.linalg.norm(other)
        for matrix, other in pairs
    )


def _units(plan: FederatedPlan, asked: Inference, joined: Joined) -> Array | None:
    """Return the units of the joined rows, int (N,): rows of one unit may depend on each other. A
    row without a partner in the table is a unit of its own. Return None without `cluster`."""
    if asked.cluster is None:
        return None
    slot = next(s for s in plan.ucq.slots if s.units)
    return joined.slots[slot.index].units[0]


def _errors(
    plan: FederatedPlan,
    asked: Inference,
    model: Model,
    part: OutputEstimate,
    channel: ReplyChannel,
    run: str,
) -> dict[int, Errors]:
    """Return for each slot the errors that its clients compute."""
    rotations, resolved = part.rotations, part.resolved
    requests: dict[Address, SendErrors] = {}
    roots = resolved.roots(rotations)
    directions = roots.shape[2]
    taken = 1
    for slot, place in rotations.places.items():
        relations = resolved.relations[slot]
        none = np.zeros(place.stop - place.start)
        weights, partner = resolved.partnerless.get(slot, (none, none))
        endless = span(resolved.endless[place])
        rows, starts = np.zeros((2, len(none), 0)), np.zeros((2, 0))
        if slot in resolved.moving:
            rows, starts = roots[:, taken : taken + len(none)], np.zeros((2, directions))
            if slot == resolved.moving[0]:
                starts = roots[:, 0]
            taken += len(none)
        request = SendErrors(
            run,
            slot,
            model.run,
            plan.blocks[slot],
            part.output,
            part.reference,
            *asked.compared(f.name for f in plan.ucq.slots[slot].features),
            int(resolved.penalised),
            resolved.covariance[place, place],
            relations.within @ relations.within.T,
            relations.between @ relations.between.T,
            relations.later @ relations.later.T,
            endless @ endless.T,
            resolved.shift[place],
            weights,
            partner,
            resolved.constants[slot],
            np.ascontiguousarray(rows),
            np.ascontiguousarray(starts),
        )
        requests |= dict.fromkeys(rotations.joined.slots[slot].addresses, request)
    replies = ask(channel, requests, lambda a: expected.errors(*requests[a].roots.shape[1:]))
    merged: dict[int, Errors] = {}
    for slot in rotations.places:
        addresses = rotations.joined.slots[slot].addresses
        own_replies = [replies[address] for address in addresses]
        for address, reply in zip(addresses, own_replies, strict=True):
            if not _same(reply, own_replies[0]):
                what = f"is of other coefficients than that of {addresses[0][0]}"
                raise refused(address[0], requests[address], what)
        merged[slot] = merge_names(own_replies)
    return merged


def _same(part: Errors, first: Errors) -> bool:
    """Return True if two clients of one slot agree, but for their categories and rounding."""
    numbers = ("coefficients", "errors", "told", "finite", "bases", "foreseen", "moved", "turned")
    return part.features == first.features and all(
        np.allclose(getattr(part, name), getattr(first, name), rtol=1e-6, atol=1e-9)
        for name in numbers
    )
