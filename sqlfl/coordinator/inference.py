"""INFERENCE OF MODEL: standard errors, tests and intervals of coefficients.

Each client tells its active rows' encoded columns in a basis of its own choice. What standard
errors are made of, (Σ w φ'' z zᵀ)⁻¹ and the like, is in that basis too; a client that gets its
block of the covariance turns it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from sqlfl.aggregation.slot_aggregation import merge_names
from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.base.sanitize import listed
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import remark_on_features
from sqlfl.coordinator.names import categories_of, features_of, hashed_note, kinds_of
from sqlfl.coordinator.preparation import Joined
from sqlfl.coordinator.scoring import Labelled, Scoring, labelled, loss_of_model
from sqlfl.coordinator.weighting import class_weights
from sqlfl.messages import (
    PARTNERLESS,
    PROVIDED,
    TOLD,
    Errors,
    Rotated,
    SendErrors,
    SendRotated,
)
from sqlfl.messages.replies import ReplyChannel, ask, refused
from sqlfl.models.aliasing import ZERO, Relations, relations_of, touches
from sqlfl.models.clipped import Huber, Quantile
from sqlfl.models.firth import firth
from sqlfl.models.inference import (
    FAMILIES,
    RANK,
    Estimated,
    Family,
    Fit,
    Tests,
    estimated,
    fit_of,
    huber,
    quantile,
    ratio_p,
    sums,
    tests_of,
    variances_of,
)
from sqlfl.models.kinds import INTERCEPT
from sqlfl.models.separation import Separation, separation
from sqlfl.options.diagnostics import Inference
from sqlfl.options.resolve import kept_options
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model

MOST = 5000
"""Encoded columns of all tables: a matrix of them is inverted."""
RIGHT = 1e-9
"""The share of a constant's deviance below which nothing is left to estimate errors from."""
EXACT = 1e-6
"""Largest error of rounding in columns that mark rows without partner."""
NAMED = 20
"""Columns that a warning lists."""
AWAY = 0.05
"""Standard errors that the model may be away from the estimate of these rows, unsaid."""


@dataclass(frozen=True, eq=False)
class Rotations:
    """The design: the constant 1, then what each slot's clients told."""

    joined: Joined
    values: Mapping[int, Float]
    """By slot (n_i, d_i)."""
    theta: Float
    """(P,): 0 for the constant."""
    origin: Float
    """(P,): the row whose score is the intercept in the features' own units."""

    @cached_property
    def rows(self) -> dict[int, Array]:
        """By slot int (N,): the row that each joined row comes from."""
        return {slot: self.joined.slots[slot].rows for slot in self.values}

    @cached_property
    def places(self) -> dict[int, slice]:
        """By slot, its columns of the design."""
        ends = np.cumsum([1, *(values.shape[1] for values in self.values.values())]).tolist()
        return {slot: slice(ends[k], ends[k + 1]) for k, slot in enumerate(self.values)}

    def design(self, rows: Array) -> Float:
        found = np.empty((len(rows), len(self.theta)))
        found[:, 0] = 1.0
        for slot, place in self.places.items():
            found[:, place] = self.values[slot][self.rows[slot][rows]]
        return found

    def scores(self, intercept: float) -> Float:
        """H (N,)"""
        found = np.full(self.joined.total, intercept)
        if self.joined.offset is not None:
            found += self.joined.offset
        for slot, place in self.places.items():
            found += (self.values[slot] @ self.theta[place])[self.rows[slot]]
        return found


def infer(
    plan: FederatedPlan,
    asked: Inference,
    model: Model,
    channel: ReplyChannel,
    run: str,
    said: Scoring,
) -> pa.Table:
    """A row per encoded column, one for the intercept, and one per measure of the fit.

    Raises ModelError where there are too few rows or too many columns, and as EVALUATE does.
    """
    rows = labelled(plan, model, channel, run, said)
    _check_target(model, rows)
    said.tell("asking for columns")
    told = _rotations(plan, asked, model, rows.joined, channel, run)
    remark_on_features(plan, rows.joined, channel, run, said.remark)
    said.tell("standard errors")
    theta = told.theta.copy()
    theta[0] = float(model.intercept[0])
    h = told.scores(theta[0])
    loss_of_model(model).predict(h[:, None])  # which refuses means beyond all numbers
    units = _units(plan, asked, rows.joined)
    number = None if units is None else _number(units, rows.weights)
    shares = _class_shares(model, rows)
    finite = None
    if asked.firth:
        _check_firth(model, shares)
        finite = firth(told.design, rows.y, rows.weights, rows.joined.offset)
        theta, h = finite.theta, finite.scores
    family = _family(model, h, rows)
    if shares is not None:
        # rows of some classes count more, and are no more rows
        family = replace(family, likely=False)
        number_of_rows = float(len(shares) if rows.weights is None else rows.weights.sum())
        own = shares if rows.weights is None else rows.weights * shares
        rows = replace(rows, weights=own * (number_of_rows / own.sum()))
        shares = shares * (number_of_rows / own.sum())
    fit = fit_of(family, h, rows.y, rows.weights, rows.joined.offset)
    apart = None if finite is not None else _separation(family, told, h, rows)
    counted = rows.weights
    if apart is not None and apart.any:
        counted = np.where(apart.rows, 0.0, 1.0 if counted is None else counted)
    penalty = 0.0 if finite is not None else float(str(model.options.get("l2", 0.0))) * fit.rows
    nothing = finite.nothing if finite is not None else None if apart is None else apart.nothing
    found = estimated(
        family,
        sums(
            family,
            told.design,
            h,
            rows.y,
            counted,
            robust=asked.robust or shares is not None,
            units=units,
            shares=shares,
        ),
        told.theta,
        penalty,
        fit,
        number,
        nothing,
        quasi=asked.quasi,
    )
    if found is None:
        raise ModelError(
            f"{fit.rows:g} joined rows"
            + ("" if number is None else f" in {number} clusters")
            + " are too few for standard errors",
            hint="more rows than the model has parameters are needed"
            + ("" if number is None else ", in two clusters or more"),
        )
    resolved = _resolved(told, rows, found, apart, theta, penalised=penalty > 0)
    replies = _errors(plan, asked, model, told, resolved, channel, run)
    _say(plan, model, asked, told, resolved, found, fit, number, replies, said, shares is not None)
    ratio = None if finite is None else finite.ratio
    return _table(plan, family, asked, told, resolved, found, fit, number, replies, ratio)


def _check_firth(model: Model, shares: Array | None) -> None:
    if shares is not None:
        raise ModelError(
            f"model {model.name} was trained with class_weight, by which rows are no more or fewer "
            "rows, and Firth's likelihood counts rows",
            hint="train it without class_weight, or leave firth out",
        )


def _family(model: Model, h: Float, rows: Labelled) -> Family:
    """Return the distribution of targets around the model's predictions."""
    found = FAMILIES.get(model.kind)
    if found is not None:
        return found
    loss = loss_of_model(model).fitted(rows.y, rows.weights)
    (constant,) = loss.initial_intercept(rows.y, rows.weights).tolist()
    if isinstance(loss, Huber):
        return huber(loss.delta, constant)
    assert isinstance(loss, Quantile)
    return quantile(loss, constant, h, rows.y, rows.weights)


def _class_shares(model: Model, rows: Labelled) -> Array | None:
    """float64 (N,): by what class_weight multiplies what each joined row counts; None without."""
    option = kept_options(model.options, ("class_weight",)).get("class_weight")
    if option is None or model.classes is None:
        return None
    codes = rows.y.astype(np.intp)
    counts = np.bincount(codes, rows.weights, len(model.classes)).astype(np.float64)
    found: Array = class_weights(option, counts, model.classes)[codes]
    return found


@dataclass(frozen=True, eq=False)
class Resolved:
    """Estimates once relations between tables leave columns out, and what is left to their owners.

    All is in the bases of `Rotations`.
    """

    relations: Mapping[int, Relations]
    """Relations within each slot."""
    shift: Float
    """(P,): the estimates, with relations between tables resolved, less the model's parameters."""
    covariance: Float
    """(P, P)"""
    endless: Float
    """(P, k): directions without a finite estimate."""
    origin: Float
    """(P,): the intercept as a function of the parameters, before owners leave columns out."""
    intercept: float
    partnerless: Mapping[int, tuple[Float, Float]]
    """Weights (d,) that mark a slot's rows without partner, and their row (d,), by slot."""
    constants: Mapping[int, Float]
    """Change of the intercept (d,) by the relations left out within a slot, by slot."""

    penalised: bool
    """A penalty decides what the rows do not tell."""

    @property
    def moving(self) -> list[int]:
        """Slots whose owners may move the intercept."""
        return [slot for slot, constants in self.constants.items() if constants.any()]

    def is_intercept_known(self, told: Rotations, replies: Mapping[int, Errors]) -> bool:
        """Return whether replies tell a finite intercept: at most one slot may move it."""
        parts = [self.endless[told.places[slot]] for slot in self.moving]
        ends = touches(self.origin[None, :], self.endless)[0]
        ends |= any(np.abs(part).max(initial=0.0) > ZERO for part in parts)
        return bool(not ends and len(parts) < 2 and all(r.foreseen for r in replies.values()))


def _resolved(
    told: Rotations,
    rows: Labelled,
    found: Estimated,
    apart: Separation | None,
    theta: Float,
    *,
    penalised: bool,
) -> Resolved:
    """`theta` (P,): the estimates, the intercept at the centres first."""
    relations, adjusted = relations_of(found.nothing, told.places)
    if penalised:
        adjusted = np.eye(len(adjusted))
    partnerless, constants = {}, {}
    for slot, place in told.places.items():
        own, origin = relations[slot], told.origin[place]
        taken = own.constants + origin @ own.within
        function = own.within @ np.where(np.abs(taken) > ZERO * _length(origin), taken, 0.0)
        without = _partnerless(told, slot, rows.weights, own)
        if without is not None:
            weights, constant, partner = without
            partnerless[slot] = weights, partner
            own_taken = (constant + origin @ weights) / _length(weights)
            if abs(own_taken) > ZERO * _length(origin):
                function = function + weights * (own_taken / _length(weights))
        constants[slot] = np.zeros_like(function) if penalised else function
    return Resolved(
        relations,
        adjusted @ theta - told.theta,
        adjusted @ found.covariance @ adjusted.T,
        np.zeros((len(theta), 0)) if apart is None else apart.directions,
        told.origin @ adjusted,
        float(told.origin @ adjusted @ theta),
        partnerless,
        constants,
        penalised,
    )


def _length(vector: Float) -> float:
    """At least 1 where it has no element."""
    return float(np.linalg.norm(vector)) or 1.0


def _partnerless(
    told: Rotations, slot: int, counted: Array | None, relations: Relations
) -> tuple[Float, float, Float] | None:
    """Weights w (d,) and a constant c with values · w + c = 1 in rows without a partner and 0 in
    others; and the row of a missing partner (d,).

    None where the columns do not tell these rows, or where there are none, or no others.
    """
    own = told.joined.slots[slot]
    if not len(own.virtual):
        return None
    mapped = own.rows if counted is None else own.rows[counted > 0]
    used = np.bincount(mapped, minlength=int(own.offsets[-1])) > 0
    alone = own.made_up[used]
    values = told.values[slot][used]
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


def _separation(family: Family, told: Rotations, h: Float, rows: Labelled) -> Separation | None:
    """None of a family whose estimates are always finite."""
    if not family.separable:
        return None
    return separation(family, told.design, h, rows.y, rows.weights)


def _number(units: Array, weights: Array | None) -> int:
    """Of units that weigh anything."""
    return len(np.unique(units if weights is None else units[weights > 0]))


def _check_target(model: Model, rows: Labelled) -> None:
    counted = rows.y if rows.weights is None else rows.y[rows.weights > 0]
    if (counted == counted[0]).all():
        raise ModelError(
            f"target {model.target} is the same in all {len(counted):,} joined rows, which tell "
            "nothing of the coefficients",
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
    active = {a: n for slot in plan.blocks for a, n in joined.slots[slot].active.items()}
    compared = {
        slot: asked.compared(f.name for f in plan.ucq.slots[slot].features) for slot in plan.blocks
    }
    requests = {
        a: SendRotated(run, a[1], model.run, plan.blocks[a[1]], *compared[a[1]]) for a in active
    }
    replies = ask(channel, requests, lambda a: expected.rotated(active[a]))
    values, theta, origin = {}, [np.zeros(1)], [np.ones(1)]
    for slot in plan.blocks:
        addresses = joined.slots[slot].addresses
        parts = [replies[address] for address in addresses]
        for address, part in zip(addresses, parts, strict=True):
            if not _alike(part, parts[0]):
                what = f"is in another basis than that of {addresses[0][0]}"
                raise refused(address[0], requests[address], what)
        values[slot] = np.concatenate([part.values for part in parts])
        theta.append(parts[0].weights)
        origin.append(parts[0].origin)
    found = Rotations(joined, values, np.concatenate(theta), np.concatenate(origin))
    if len(found.theta) > MOST:
        raise ModelError(
            f"model {model.name} has {len(found.theta) - 1:,} encoded columns, and standard errors "
            f"are worked out of {MOST - 1:,} at most",
            hint="train with fewer categories; IMPORTANCE OF MODEL has no such limit",
        )
    return found


def _alike(part: Rotated, first: Rotated) -> bool:
    return np.array_equal(part.weights, first.weights) and np.array_equal(part.origin, first.origin)


def _units(plan: FederatedPlan, asked: Inference, joined: Joined) -> Array | None:
    """int (N,): which joined rows may depend on each other; those without a partner in the table
    depend on no other."""
    if asked.cluster is None:
        return None
    slot = next(s for s in plan.ucq.slots if s.units)
    return joined.slots[slot.index].units[0]


def _errors(
    plan: FederatedPlan,
    asked: Inference,
    model: Model,
    told: Rotations,
    own: Resolved,
    channel: ReplyChannel,
    run: str,
) -> dict[int, Errors]:
    """By slot, what its clients make of the covariance."""
    requests: dict[Address, SendErrors] = {}
    crossed = own.covariance @ own.origin
    for slot, place in told.places.items():
        relations = own.relations[slot]
        none = np.zeros(place.stop - place.start)
        weights, partner = own.partnerless.get(slot, (none, none))
        request = SendErrors(
            run,
            slot,
            model.run,
            plan.blocks[slot],
            *asked.compared(f.name for f in plan.ucq.slots[slot].features),
            int(own.penalised),
            own.covariance[place, place],
            relations.within @ relations.within.T,
            relations.between @ relations.between.T,
            relations.later @ relations.later.T,
            own.endless[place] @ own.endless[place].T,
            own.shift[place],
            weights,
            partner,
            own.constants[slot],
            crossed[place],
        )
        requests |= dict.fromkeys(told.joined.slots[slot].addresses, request)
    replies = ask(channel, requests, lambda a: expected.errors(len(requests[a].covariance)))
    merged: dict[int, Errors] = {}
    for slot in told.places:
        addresses = told.joined.slots[slot].addresses
        parts = [replies[address] for address in addresses]
        for address, part in zip(addresses, parts, strict=True):
            if not _same(part, parts[0]):
                what = f"is of other coefficients than that of {addresses[0][0]}"
                raise refused(address[0], requests[address], what)
        merged[slot] = merge_names(parts)
    return merged


def _same(part: Errors, first: Errors) -> bool:
    """Of clients of one slot, but for the categories that they know, and for rounding."""
    numbers = ("coefficients", "errors", "told", "finite", "bases", "foreseen", "moved", "spread")
    return part.features == first.features and all(
        np.allclose(getattr(part, name), getattr(first, name), rtol=1e-6, atol=1e-9)
        for name in numbers
    )


# -- what is shown --------------------------------------------------------------------------------


def _table(
    plan: FederatedPlan,
    family: Family,
    asked: Inference,
    told: Rotations,
    resolved: Resolved,
    found: Estimated,
    fit: Fit,
    units: int | None,
    replies: Mapping[int, Errors],
    ratio: float | None,
) -> pa.Table:
    """`ratio`: of Firth's penalised likelihoods."""
    tables = [_intercept(asked, told, resolved, found, replies)]
    for slot, reply in replies.items():
        own = plan.ucq.slots[slot]
        size = len(reply.kinds)
        is_told = _is_told(slot, replies)
        shown = is_told | (reply.bases > 0) | resolved.penalised
        coefficients = np.where(shown, reply.coefficients, np.nan)
        errors = np.where(is_told & (reply.errors > 0), reply.errors, np.nan)
        kinds = np.where(reply.bases > 0, "base", np.array(kinds_of(reply), dtype=object))
        of = {
            "party": pa.array([", ".join(own.parties)] * size, pa.string()),
            "table": pa.array([own.name] * size, pa.string()),
            "feature": pa.array(features_of(reply), pa.string()),
            "category": pa.array(categories_of(reply), pa.string()),
            "kind": pa.array(kinds.tolist(), pa.string()),
        }
        tables.append(_with_tests(of, coefficients, errors, found, asked))
    tables.append(_measures(family, asked, resolved, found, fit, units, ratio))
    return pa.concat_tables(tables)


def _is_told(slot: int, replies: Mapping[int, Errors]) -> Array:
    """bool (d,): the coefficients of the slot's columns that the rows tell."""
    later = [reply for other, reply in replies.items() if other > slot]
    foreseen = all(reply.foreseen for reply in later)
    found: Array = (replies[slot].told == TOLD) | (foreseen & (replies[slot].told == PROVIDED))
    return found


def _intercept(
    asked: Inference,
    told: Rotations,
    own: Resolved,
    found: Estimated,
    replies: Mapping[int, Errors],
) -> pa.Table:
    origin, moved, spread = own.origin[None, :], 0.0, 0.0
    for slot in own.moving:
        moved, spread = moved + replies[slot].moved, spread + replies[slot].spread
    variance = float(variances_of(origin, own.covariance)[0]) + spread
    known = own.is_intercept_known(told, replies)
    penalised = own.penalised
    if penalised:
        known &= not touches(told.origin[None, :], found.nothing)[0]
    of = _labels([None], [None], [INTERCEPT], [None], [INTERCEPT])
    values = np.array([own.intercept - moved if known or penalised else np.nan])
    errors = np.array([np.sqrt(variance) if known and variance > 0 else np.nan])
    return _with_tests(of, values, errors, found, asked)


ORDER = [
    *("table", "feature", "category", "coefficient", "party", "kind"),
    *("statistic", "standard_error", "p", "lower", "upper"),
]
"""Of the columns: where they are too many for a line, those in the middle are not shown."""
_LABELS = ("party", "table", "feature", "category", "kind")
SCHEMA = pa.schema([(n, pa.string() if n in _LABELS else pa.float64()) for n in ORDER])


def _labels(
    parties: list[str | None],
    tables: list[str | None],
    features: list[str | None],
    categories: list[str | None],
    kinds: list[str | None],
) -> dict[str, pa.Array]:
    columns = (parties, tables, features, categories, kinds)
    return {name: pa.array(c, pa.string()) for name, c in zip(_LABELS, columns, strict=True)}


def _with_tests(
    of: dict[str, pa.Array],
    coefficients: Float,
    errors: Float,
    found: Estimated,
    asked: Inference,
) -> pa.Table:
    tests = tests_of(coefficients, errors, found.degrees, asked.confidence)
    return _rows(of, coefficients, errors, tests)


def _rows(of: dict[str, pa.Array], coefficients: Float, errors: Float, tests: Tests) -> pa.Table:
    numbers = {
        "coefficient": coefficients,
        "standard_error": errors,
        "statistic": tests.statistic,
        "p": tests.p,
        "lower": tests.lower,
        "upper": tests.upper,
    }
    columns = {n: pa.array(v, pa.float64(), from_pandas=True) for n, v in numbers.items()}
    return pa.table(of | columns).select(ORDER)


def _measures(
    family: Family,
    asked: Inference,
    resolved: Resolved,
    found: Estimated,
    fit: Fit,
    units: int | None,
    ratio: float | None,
) -> pa.Table:
    """Of the fit as a whole."""
    likely = family.likely and not asked.quasi
    linear = family is FAMILIES["linear_regression"]
    values: dict[str, float] = {
        "rows": fit.rows,
        "parameters": float(found.rank),
        **({} if units is None else {"clusters": float(units)}),
    }
    if likely:
        values["log_likelihood"] = fit.log_likelihood
        values["null_log_likelihood"] = fit.null_log_likelihood
    if family.likely:
        values |= {"deviance": fit.deviance, "null_deviance": fit.null_deviance}
    if likely and ratio is None:
        values |= {"aic": fit.aic(found.rank), "bic": fit.bic(found.rank)}
    if linear:
        values["residual_deviation"] = float(np.sqrt(found.scale))
    elif family.likely:
        values["dispersion"] = fit.dispersion(found.rank)
    if likely:
        values["likelihood_ratio"] = fit.ratio if ratio is None else ratio
    names = list(values)
    empty: list[str | None] = [None] * len(names)
    of = _labels(empty, empty, list(names), empty, ["measure"] * len(names))
    none = np.full(len(names), np.nan)
    p = none.copy()
    if likely and not resolved.penalised:
        p[-1] = ratio_p(values["likelihood_ratio"], found.rank)
    return _rows(of, np.array(list(values.values())), none, Tests(none, p, none, none))


def _names(table: str, reply: Errors, which: Array) -> list[str]:
    """Columns in words."""
    words = [f" ({word})" if word else "" for word in categories_of(reply)]
    own = [f" of {table}" if kind == PARTNERLESS else "" for kind in reply.kinds.tolist()]
    names = zip(features_of(reply), words, own, which, strict=True)
    return [f"{feature}{word}{of}" for feature, word, of, named in names if named]


def _shown(names: list[str]) -> str:
    shown = listed(names[:NAMED])
    return shown + f" and {len(names) - NAMED:,} more" * (len(names) > NAMED)


def _say(
    plan: FederatedPlan,
    model: Model,
    asked: Inference,
    told: Rotations,
    resolved: Resolved,
    found: Estimated,
    fit: Fit,
    units: int | None,
    replies: Mapping[int, Errors],
    said: Scoring,
    by_class: bool,
) -> None:
    test = "t tests" if found.degrees is not None else "z tests"
    how = "standard errors from the model's own variance"
    if units is not None:
        how = f"standard errors by {units:,} clusters, the rows of {asked.cluster}"
    elif asked.robust or by_class:
        how = f"robust standard errors ({'HC1' if model.kind == 'linear_regression' else 'HC0'})"
    elif asked.quasi:
        how += f" times the dispersion {found.scale:.4g}"
    elif model.kind == "quantile_regression":
        how = "standard errors from the density of residuals at 0, the same for all rows"
    elif model.kind == "huber_regression":
        how = "standard errors from the clipped residuals, of one distribution (H2)"
    freedom = "" if found.degrees is None else f" with {found.degrees:g} degrees of freedom"
    said.note(f"{how[0].upper()}{how[1:]}; {test}{freedom}.")
    if by_class:
        said.note(
            "Rows count by their class, as class_weight says, and are no more or fewer rows by "
            "that: standard errors are robust, and there is no likelihood. Without class_weight "
            "there is, and a different intercept."
        )
    if asked.firth:
        said.note(
            "Estimates maximise Firth's penalised likelihood over these rows: the model keeps its "
            "own. Errors are of its information, p is by Wald's test, and likelihood_ratio is of "
            "penalised likelihoods."
        )
    if any(reply.bases.any() for reply in replies.values()):
        said.note(
            "Coefficients of categories are differences from the one of kind 'base'; the intercept "
            "is of a row of base categories whose numbers are 0."
        )
    tables = {slot: plan.ucq.slots[slot].name for slot in replies}
    without = [tables[s] for s, reply in replies.items() if (reply.kinds == PARTNERLESS).any()]
    if without:
        said.note(
            f"'no partner' of {listed(without)} is a row that a LEFT JOIN found no partner for, "
            "beside one whose numbers are at their mean in training and whose categories are the "
            "bases; 'is missing' and 'is NULL' are NULLs beyond that."
        )
    endless = [
        name for s, reply in replies.items() for name in _names(tables[s], reply, reply.finite == 0)
    ]
    if endless:
        text = (
            f"separation: there is no finite estimate of {_shown(endless)}: along these the "
            "likelihood rises for ever, so they have no standard error and no p"
        )
        said.remark(text)
        said.note(f"{text[0].upper()}{text[1:]}.")
    untold, open_ = [], []
    for slot, reply in replies.items():
        own = (reply.finite > 0) & (reply.bases == 0) & ~_is_told(slot, replies)
        untold += _names(tables[slot], reply, own & (reply.told == 0))
        open_ += _names(tables[slot], reply, own & (reply.told == PROVIDED))
    if untold and resolved.penalised:
        said.note(
            f"These rows do not tell {_shown(untold)}, which have no standard error: their columns "
            "follow from others, or are the same in all rows."
        )
    elif untold:
        said.note(
            f"Left out are {_shown(untold)}, which are NULL: their columns follow from those above "
            "them, or are the same in all rows."
        )
    moving = [tables[slot] for slot in resolved.moving]
    if len(moving) > 1 and not resolved.is_intercept_known(told, replies):
        said.note(
            f"The intercept is NULL: of columns of {listed(moving)} that are left out a part is "
            "its, which their owners alone know. Leave them out of the query."
        )
    if open_:
        said.note(
            f"These rows do not tell {_shown(open_)}, which are NULL: their columns follow from "
            "several of a later table. Leave one of those out of the query."
        )
    exact = [
        feature
        for reply in replies.values()
        for feature, told, error in zip(features_of(reply), reply.told, reply.errors, strict=True)
        if told and not error
    ]
    if exact and (asked.robust or units is not None):
        deciding, option = "rows that the model fits exactly", "robust"
        if units is not None:
            deciding, option = "clusters in which residuals add up to 0", "cluster"
        said.note(
            f"Some coefficients of {', '.join(dict.fromkeys(exact))} have no standard error: only "
            f"{deciding}, whatever the targets are, decide them. Without {option} they have one."
        )
    if resolved.penalised:
        said.note(
            f"The model was trained with l2 = {model.options['l2']}: estimates are shrunk towards "
            "0, and intervals do not cover what that moved them by. Train with l2 = 0 for tests."
        )
    if fit.deviance <= RIGHT * fit.null_deviance:
        said.note(
            "The model is right in all rows but for rounding: standard errors and tests mean "
            "nothing."
        )
    elif found.distance > AWAY and not asked.firth:
        text = (
            f"model {model.name} is up to {found.distance:.2g} standard errors away from the best "
            "parameters of these rows: they are not those of training, weigh otherwise, or the "
            "training ended early (tolerance, epochs)"
        )
        said.remark(text)
        said.note(f"{text[0].upper()}{text[1:]}.")
    note = hashed_note(list(replies.values()))
    if note is not None:
        said.note(note)
