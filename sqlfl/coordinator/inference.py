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

from sqlfl.arrays import Array, Float
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import remark_on_features
from sqlfl.coordinator.names import INTERCEPT, categories_of, hashed_note, kinds_of
from sqlfl.coordinator.preparation import Joined
from sqlfl.coordinator.scoring import Labelled, Scoring, labelled, loss_of_model
from sqlfl.coordinator.weighting import class_weights
from sqlfl.errors import ModelError
from sqlfl.messages import Errors, Rotated, SendErrors, SendRotated
from sqlfl.messages.replies import Channel, ask, refused
from sqlfl.models.clipped import Huber, Quantile
from sqlfl.models.inference import (
    FAMILIES,
    Estimated,
    Family,
    Fit,
    Tests,
    estimated,
    fit_of,
    huber,
    quantile,
    sums,
    tests_of,
    variances_of,
)
from sqlfl.models.separation import Separation, separation
from sqlfl.options.looks import Inference
from sqlfl.options.resolve import kept_options
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.printing import listed
from sqlfl.schema import Address
from sqlfl.store.registry import Model
from sqlfl.unions import merge_names

MOST = 5000
"""Encoded columns of all tables: a matrix of them is inverted."""
RIGHT = 1e-9
"""The share of a constant's deviance below which nothing is left to estimate errors from."""
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
    channel: Channel,
    run: str,
    said: Scoring,
) -> pa.Table:
    """A row per encoded column, one for the intercept, and one per measure of the fit.

    Raises ModelError where there are too few rows or too many columns, and as EVALUATE does.
    """
    rows = labelled(plan, model, channel, run, said)
    _check_target(model, rows)
    said.tell("asking for columns")
    told = _rotations(plan, model, rows.joined, channel, run)
    remark_on_features(plan, rows.joined, channel, run, said.remark)
    said.tell("standard errors")
    h = told.scores(float(model.intercept[0]))
    loss_of_model(model).predict(h[:, None])  # which refuses means beyond all numbers
    units = _units(plan, asked, rows.joined)
    number = None if units is None else _number(units, rows.weights)
    family = _family(model, h, rows)
    shares = _class_shares(model, rows)
    if shares is not None:
        # rows of some classes count more, and are no more rows
        family = replace(family, likely=False)
        counted = float(len(shares) if rows.weights is None else rows.weights.sum())
        own = shares if rows.weights is None else rows.weights * shares
        rows = replace(rows, weights=own * (counted / own.sum()))
        shares = shares * (counted / own.sum())
    fit = fit_of(family, h, rows.y, rows.weights, rows.joined.offset)
    apart = _separation(family, told, h, rows)
    counted = rows.weights
    if apart is not None and apart.any:
        counted = np.where(apart.rows, 0.0, 1.0 if counted is None else counted)
    penalty = float(str(model.options.get("l2", 0.0))) * fit.rows
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
        0 if apart is None else apart.directions.shape[1],
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
    replies = _errors(plan, model, told, rows.joined, found, apart, channel, run)
    _say(model, asked, found, fit, number, replies, penalty, said, shares is not None)
    return _table(plan, model, family, asked, told, found, fit, number, replies)


def _family(model: Model, h: Float, rows: Labelled) -> Family:
    """How targets are distributed around what the model predicts."""
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
    plan: FederatedPlan, model: Model, joined: Joined, channel: Channel, run: str
) -> Rotations:
    active = {a: n for slot in plan.blocks for a, n in joined.slots[slot].active.items()}
    requests = {a: SendRotated(run, a[1], model.run, plan.blocks[a[1]]) for a in active}
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
    model: Model,
    told: Rotations,
    joined: Joined,
    found: Estimated,
    apart: Separation | None,
    channel: Channel,
    run: str,
) -> dict[int, Errors]:
    """By slot, what its clients make of the covariance."""
    requests: dict[Address, SendErrors] = {}
    endless = np.zeros_like(found.untold)
    if apart is not None:
        endless = apart.directions @ apart.directions.T
    for slot, place in told.places.items():
        own = SendErrors(
            run,
            slot,
            model.run,
            plan.blocks[slot],
            found.covariance[place, place],
            found.untold[place, place],
            endless[place, place],
        )
        requests |= dict.fromkeys(joined.slots[slot].addresses, own)
    replies = ask(channel, requests, lambda a: expected.errors(len(requests[a].covariance)))
    merged: dict[int, Errors] = {}
    for slot in told.places:
        addresses = joined.slots[slot].addresses
        parts = [replies[address] for address in addresses]
        for address, part in zip(addresses, parts, strict=True):
            if not _same(part, parts[0]):
                what = f"is of other coefficients than that of {addresses[0][0]}"
                raise refused(address[0], requests[address], what)
        merged[slot] = merge_names(parts)
    return merged


def _same(part: Errors, first: Errors) -> bool:
    """Of clients of one slot, but for the categories that they know, and for rounding."""
    numbers = ("coefficients", "errors", "told", "finite", "bases")
    return part.features == first.features and all(
        np.allclose(getattr(part, name), getattr(first, name), rtol=1e-6, atol=1e-9)
        for name in numbers
    )


# -- what is shown --------------------------------------------------------------------------------


def _table(
    plan: FederatedPlan,
    model: Model,
    family: Family,
    asked: Inference,
    told: Rotations,
    found: Estimated,
    fit: Fit,
    units: int | None,
    replies: Mapping[int, Errors],
) -> pa.Table:
    tables = [_intercept(model, asked, told, found)]
    for slot, reply in replies.items():
        own = plan.ucq.slots[slot]
        size = len(reply.kinds)
        is_told = reply.told > 0
        shown = is_told | (reply.bases > 0) | _penalised(model)
        coefficients = np.where(shown, reply.coefficients, np.nan)
        errors = np.where(is_told & (reply.errors > 0), reply.errors, np.nan)
        kinds = np.where(reply.bases > 0, "base", np.array(kinds_of(reply), dtype=object))
        of = {
            "party": pa.array([", ".join(own.parties)] * size, pa.string()),
            "table": pa.array([own.name] * size, pa.string()),
            "feature": pa.array(reply.features, pa.string()),
            "category": pa.array(categories_of(reply), pa.string()),
            "kind": pa.array(kinds.tolist(), pa.string()),
        }
        tables.append(_with_tests(of, coefficients, errors, found, asked))
    tables.append(_measures(family, model, asked, found, fit, units))
    return pa.concat_tables(tables)


def _intercept(model: Model, asked: Inference, told: Rotations, found: Estimated) -> pa.Table:
    value = float(model.intercept[0] + told.origin @ told.theta)
    untold = float(told.origin @ found.untold @ told.origin)
    size = float(told.origin @ told.origin)
    error = float(np.sqrt(variances_of(told.origin[None, :], found.covariance)[0]))
    known = untold <= UNTOLD * size
    of = _labels([None], [None], [INTERCEPT], [None], [INTERCEPT])
    values = np.array([value if known or _penalised(model) else np.nan])
    errors = np.array([error if known and error > 0 else np.nan])
    return _with_tests(of, values, errors, found, asked)


def _penalised(model: Model) -> bool:
    """What the rows do not tell of its parameters, the penalty does."""
    return bool(model.options.get("l2"))


ORDER = [
    *("table", "feature", "category", "coefficient", "party", "kind"),
    *("statistic", "standard_error", "p", "lower", "upper"),
]
"""Of the columns: where they are too many for a line, those in the middle are not shown."""
_LABELS = ("party", "table", "feature", "category", "kind")
SCHEMA = pa.schema([(n, pa.string() if n in _LABELS else pa.float64()) for n in ORDER])
UNTOLD = 1e-6
"""The share of the intercept that may lie in what the rows do not tell."""


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
    family: Family, model: Model, asked: Inference, found: Estimated, fit: Fit, units: int | None
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
    if likely:
        values |= {"aic": fit.aic(found.rank), "bic": fit.bic(found.rank)}
    if linear:
        values["residual_deviation"] = float(np.sqrt(found.scale))
    elif family.likely:
        values["dispersion"] = fit.dispersion(found.rank)
    if likely:
        values["likelihood_ratio"] = fit.ratio
    names = list(values)
    empty: list[str | None] = [None] * len(names)
    of = _labels(empty, empty, list(names), empty, ["measure"] * len(names))
    none = np.full(len(names), np.nan)
    p = none.copy()
    if likely and not _penalised(model):
        p[-1] = fit.ratio_p(found.rank)
    return _rows(of, np.array(list(values.values())), none, Tests(none, p, none, none))


def _endless(reply: Errors) -> list[str]:
    """Columns without a finite coefficient, in words."""
    words = categories_of(reply)
    return [
        feature if word is None else f"{feature} ({word})"
        for feature, word, finite in zip(reply.features, words, reply.finite, strict=True)
        if not finite
    ]


def _say(
    model: Model,
    asked: Inference,
    found: Estimated,
    fit: Fit,
    units: int | None,
    replies: Mapping[int, Errors],
    penalty: float,
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
    if any(reply.bases.any() for reply in replies.values()):
        said.note(
            "Coefficients of categories are differences from the one of kind 'base', the most "
            "frequent in training; the intercept is of a row of base categories whose numbers are "
            "0."
        )
    endless = [name for reply in replies.values() for name in _endless(reply)]
    if endless:
        shown = listed(endless[:NAMED])
        if len(endless) > NAMED:
            shown += f" and {len(endless) - NAMED:,} more"
        text = (
            f"separation: there is no finite estimate of {shown}: along these the likelihood rises "
            "for ever, so they have no standard error and no p"
        )
        said.remark(text)
        said.note(f"{text[0].upper()}{text[1:]}.")
    untold = [
        feature
        for reply in replies.values()
        for feature, known, finite in zip(
            reply.features, reply.told | reply.bases, reply.finite, strict=True
        )
        if finite and not known
    ]
    if untold:
        said.note(
            f"These rows do not tell some coefficients of {', '.join(dict.fromkeys(untold))}, "
            f"which {'have no standard error' if penalty else 'are NULL'}: their columns follow "
            "from others, or are the same in all rows."
        )
    exact = [
        feature
        for reply in replies.values()
        for feature, told, error in zip(reply.features, reply.told, reply.errors, strict=True)
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
    if penalty:
        said.note(
            f"The model was trained with l2 = {model.options['l2']}: estimates are shrunk towards "
            "0, and intervals do not cover what that moved them by. Train with l2 = 0 for tests."
        )
    if fit.deviance <= RIGHT * fit.null_deviance:
        said.note(
            "The model is right in all rows but for rounding: standard errors and tests mean "
            "nothing."
        )
    elif found.distance > AWAY:
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
