"""Result of INFERENCE OF MODEL: its table, notes and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array, Float
from sqlfl.base.sanitize import listed
from sqlfl.coordinator.estimates import Estimation, OutputEstimate, Resolved, Rotations
from sqlfl.coordinator.scoring import Scoring, class_values
from sqlfl.coordinator.weights import categories_of, features_of, hashed_note, kinds_of
from sqlfl.messages import PARTNERLESS, PROVIDED, TOLD, Errors
from sqlfl.models.aliasing import touches
from sqlfl.models.inference import (
    FAMILIES,
    Estimated,
    Tests,
    ratio_p,
    tests_of,
)
from sqlfl.models.kinds import INTERCEPT
from sqlfl.models.multinomial import MULTINOMIAL
from sqlfl.options.diagnostics import Inference
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model

RIGHT = 1e-9
"""The share of a constant's deviance below which nothing is left to estimate errors from."""
NAMED = 20
"""Columns that a warning lists."""
AWAY = 0.05
"""Standard errors that the model may be away from the estimate of these rows, unsaid."""


def table(
    plan: FederatedPlan,
    model: Model,
    asked: Inference,
    estimation: Estimation,
    replies: Sequence[Mapping[int, Errors]],
) -> pa.Table:
    """Return the result. replies: of each part, by slot."""
    tables = []
    for part, of_slots in zip(estimation.parts, replies, strict=True):
        rows = pa.concat_tables(_part(plan, asked, part, of_slots))
        tables.append(_of_class(model, rows, part.output))
    tables.append(_of_class(model, _measures(asked, estimation), None))
    return pa.concat_tables(tables)


def schema_of(model: Model) -> pa.Schema:
    """Return names and types of the columns of `table`."""
    return _of_class(model, SCHEMA.empty_table(), None).schema


def _of_class(model: Model, rows: pa.Table, number: int | None) -> pa.Table:
    """Add the class, where there are several."""
    if len(model.intercept) < 2:
        return rows
    values = class_values(model).take(pa.array([number] * len(rows), pa.int64()))
    return rows.add_column(rows.column_names.index("category") + 1, "class", values)


def _part(
    plan: FederatedPlan, asked: Inference, part: OutputEstimate, replies: Mapping[int, Errors]
) -> list[pa.Table]:
    resolved, estimates = part.resolved, part.estimated
    tables = [_intercept(asked, part.rotations, resolved, estimates, replies)]
    for slot, reply in replies.items():
        slot_plan = plan.ucq.slots[slot]
        size = len(reply.kinds)
        is_told = _is_told(slot, replies)
        shown = is_told | (reply.bases > 0) | resolved.penalised
        coefficients = np.where(shown, reply.coefficients, np.nan)
        errors = np.where(is_told & (reply.errors > 0), reply.errors, np.nan)
        kinds = np.where(reply.bases > 0, "base", np.array(kinds_of(reply), dtype=object))
        of = {
            "party": pa.array([", ".join(slot_plan.parties)] * size, pa.string()),
            "table": pa.array([slot_plan.name] * size, pa.string()),
            "feature": pa.array(features_of(reply), pa.string()),
            "category": pa.array(categories_of(reply), pa.string()),
            "kind": pa.array(kinds.tolist(), pa.string()),
        }
        tables.append(_with_tests(of, coefficients, errors, estimates, asked))
    return tables


def _is_told(slot: int, replies: Mapping[int, Errors]) -> Array:
    """Return which coefficients of the slot's columns the rows determine: bool (d,)."""
    later = [reply for other, reply in replies.items() if other > slot]
    foreseen = all(reply.foreseen for reply in later)
    known: Array = (replies[slot].told == TOLD) | (foreseen & (replies[slot].told == PROVIDED))
    return known


def _is_foreseen(resolved: Resolved, replies: Mapping[int, Errors]) -> bool:
    """Return whether owners leave out what the intercept takes them to."""
    return not resolved.open or all(reply.foreseen for reply in replies.values())


def _intercept(
    asked: Inference,
    rotations: Rotations,
    resolved: Resolved,
    estimates: Estimated,
    replies: Mapping[int, Errors],
) -> pa.Table:
    value, variance, finite = resolved.intercept_of(replies)
    known = finite and _is_foreseen(resolved, replies)
    penalised = resolved.penalised
    if penalised:
        known &= not touches(rotations.origin[None, :], estimates.nothing)[0]
    of = _labels([None], [None], [INTERCEPT], [None], [INTERCEPT])
    values = np.array([value if known or penalised else np.nan])
    errors = np.array([np.sqrt(variance) if known and variance > 0 else np.nan])
    return _with_tests(of, values, errors, estimates, asked)


ORDER = [
    *("feature", "category", "coefficient", "table", "party", "kind"),
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
    estimates: Estimated,
    asked: Inference,
) -> pa.Table:
    tests = tests_of(coefficients, errors, estimates.degrees, asked.confidence)
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


def _measures(asked: Inference, estimation: Estimation) -> pa.Table:
    """Return the measures of the fit as a whole."""
    family, estimates, fit = estimation.family, estimation.estimated, estimation.fit
    units, ratio = estimation.units, estimation.ratio
    likely = family.likely and not asked.quasi
    linear = family is FAMILIES["linear_regression"]
    values: dict[str, float] = {
        "rows": fit.rows,
        "parameters": float(estimates.rank),
        **({} if units is None else {"clusters": float(units)}),
    }
    if likely:
        values["log_likelihood"] = fit.log_likelihood
        values["null_log_likelihood"] = fit.null_log_likelihood
    if family.likely:
        values |= {"deviance": fit.deviance, "null_deviance": fit.null_deviance}
    if likely and ratio is None:
        values |= {"aic": fit.aic(estimates.rank), "bic": fit.bic(estimates.rank)}
    if linear:
        values["residual_deviation"] = float(np.sqrt(estimates.scale))
    elif family.likely and family is not MULTINOMIAL:
        values["dispersion"] = fit.dispersion(estimates.rank)
    if likely:
        values["likelihood_ratio"] = fit.ratio if ratio is None else ratio
    names = list(values)
    empty: list[str | None] = [None] * len(names)
    of = _labels(empty, empty, list(names), empty, ["measure"] * len(names))
    none = np.full(len(names), np.nan)
    p = none.copy()
    if likely and not estimation.parts[0].resolved.penalised:
        p[-1] = ratio_p(values["likelihood_ratio"], estimates.rank, len(estimation.parts))
    figures = np.array(list(values.values()))
    figures[np.isinf(figures)] = np.nan  # beyond the largest number
    return _rows(of, figures, none, Tests(none, p, none, none))


def _names(table: str, reply: Errors, which: Array) -> list[str]:
    """Return the columns in words."""
    words = [f" ({word})" if word else "" for word in categories_of(reply)]
    owners = [f" of {table}" if kind == PARTNERLESS else "" for kind in reply.kinds.tolist()]
    names = zip(features_of(reply), words, owners, which, strict=True)
    return [f"{feature}{word}{of}" for feature, word, of, named in names if named]


def _shown(names: list[str]) -> str:
    shown = listed(names[:NAMED])
    return shown + f" and {len(names) - NAMED:,} more" * (len(names) > NAMED)


def _endless(
    model: Model,
    tables: Mapping[int, str],
    estimation: Estimation,
    replies: Sequence[Mapping[int, Errors]],
) -> list[str]:
    """Return the columns without a finite estimate, in words; with the classes, if several."""
    classes: dict[str, list[str]] = {}
    for part, of_slots in zip(estimation.parts, replies, strict=True):
        for slot, reply in of_slots.items():
            for name in _names(tables[slot], reply, reply.finite == 0):
                label = "" if model.classes is None else model.classes[part.output]
                classes.setdefault(name, []).append(label)
    if len(model.intercept) < 2:
        return list(classes)
    return [f"{name} for {listed(labels)}" for name, labels in classes.items()]


def say(
    plan: FederatedPlan,
    model: Model,
    asked: Inference,
    estimation: Estimation,
    replies_of_parts: Sequence[Mapping[int, Errors]],
    said: Scoring,
) -> None:
    """Write notes and warnings. replies_of_parts: of each part, by slot."""
    resolved, replies = estimation.parts[0].resolved, replies_of_parts[0]
    tables = {slot: plan.ucq.slots[slot].name for slot in replies}
    _say_errors(model, asked, estimation, said)
    _say_meaning(model, asked, estimation, replies, said)
    without = [tables[s] for s, reply in replies.items() if (reply.kinds == PARTNERLESS).any()]
    if without:
        said.note(
            f"'no partner' of {listed(without)} is a row that a LEFT JOIN found no partner for, "
            "beside one whose numbers are at their mean in training and whose categories are the "
            "bases; 'is missing' and 'is NULL' are NULLs beyond that."
        )
    endless = _endless(model, tables, estimation, replies_of_parts)
    if endless:
        text = (
            f"separation: there is no finite estimate of {_shown(endless)}: along these the "
            "likelihood rises for ever, so they have no standard error and no p"
        )
        said.remark(text)
        said.note(f"{text[0].upper()}{text[1:]}.")
    _say_untold(tables, resolved, replies, said)
    _say_exact(asked, estimation, replies_of_parts, said)
    _say_worth(model, asked, estimation, said)
    note = hashed_note(list(replies.values()))
    if note is not None:
        said.note(note)


def _say_errors(model: Model, asked: Inference, estimation: Estimation, said: Scoring) -> None:
    """Name the standard errors and the tests."""
    estimates, units, by_class = estimation.estimated, estimation.units, estimation.by_class
    test = "t tests" if estimates.degrees is not None else "z tests"
    how = "standard errors from the model's own variance"
    if units is not None:
        how = f"standard errors by {units:,} clusters, the rows of {asked.cluster}"
    elif asked.robust or by_class:
        how = f"robust standard errors ({'HC1' if model.kind == 'linear_regression' else 'HC0'})"
    elif asked.quasi:
        how += f" times the dispersion {estimates.scale:.4g}"
    elif model.kind == "quantile_regression":
        how = "standard errors from the density of residuals at 0, the same for all rows"
    elif model.kind == "huber_regression":
        how = "standard errors from the clipped residuals, of one distribution (H2)"
    freedom = "" if estimates.degrees is None else f" with {estimates.degrees:g} degrees of freedom"
    said.note(f"{how[0].upper()}{how[1:]}; {test}{freedom}.")


def _say_meaning(
    model: Model,
    asked: Inference,
    estimation: Estimation,
    replies: Mapping[int, Errors],
    said: Scoring,
) -> None:
    """Say what coefficients are of."""
    if estimation.by_class:
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
    if len(model.intercept) > 1:
        assert model.classes is not None
        said.note(
            f"Coefficients of a class are of its log odds against {model.classes[0]}, the first "
            "class: the model's weights of the class less those of the first one."
        )
    if any(reply.bases.any() for reply in replies.values()):
        said.note(
            "Coefficients of categories are differences from the one of kind 'base'; the intercept "
            "is of a row of base categories whose numbers are 0."
        )


def _say_untold(
    tables: Mapping[int, str], resolved: Resolved, replies: Mapping[int, Errors], said: Scoring
) -> None:
    """Name the columns that the rows do not determine."""
    untold, open_ = [], []
    for slot, reply in replies.items():
        undetermined = (reply.finite > 0) & (reply.bases == 0) & ~_is_told(slot, replies)
        untold += _names(tables[slot], reply, undetermined & (reply.told == 0))
        open_ += _names(tables[slot], reply, undetermined & (reply.told == PROVIDED))
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
    if not _is_foreseen(resolved, replies):
        open_.insert(0, "the intercept")
    if open_:
        said.note(
            f"These rows do not tell {_shown(open_)}, which are NULL: their columns follow from "
            "several of a later table. Leave one of those out of the query."
        )


def _say_exact(
    asked: Inference,
    estimation: Estimation,
    replies_of_parts: Sequence[Mapping[int, Errors]],
    said: Scoring,
) -> None:
    """Name coefficients without a standard error that have an estimate."""
    units = estimation.units
    exact = [
        feature
        for of_slots in replies_of_parts
        for reply in of_slots.values()
        for feature, known, error in zip(features_of(reply), reply.told, reply.errors, strict=True)
        if known and not error
    ]
    if exact and (asked.robust or units is not None):
        deciding, option = "rows that the model fits exactly", "robust"
        if units is not None:
            deciding, option = "clusters in which residuals add up to 0", "cluster"
        said.note(
            f"Some coefficients of {', '.join(dict.fromkeys(exact))} have no standard error: only "
            f"{deciding}, whatever the targets are, decide them. Without {option} they have one."
        )


def _say_worth(model: Model, asked: Inference, estimation: Estimation, said: Scoring) -> None:
    """Say where errors and tests mean less than they seem to."""
    estimates, fit = estimation.estimated, estimation.fit
    freedom = model.metrics.get("effective_parameters")
    if estimation.parts[0].resolved.penalised and freedom is not None:
        said.note(
            "TRANSFORM (auto) found in training how much to shrink curves, values, categories and "
            "indicators: errors and p are as if that were known, and bands of whole curves are in "
            "CURVES OF MODEL. aic, bic and degrees of freedom count all columns, which come to "
            f"{freedom:.1f} parameters. For tests train straight lines with l2 = 0."
        )
    elif estimation.parts[0].resolved.penalised:
        said.note(
            f"The model was trained with l2 = {model.options['l2']}: estimates are shrunk towards "
            "0, and intervals do not cover what that moved them by. Train with l2 = 0 for tests."
        )
    if fit.deviance <= RIGHT * fit.null_deviance:
        said.note(
            "The model is right in all rows but for rounding: standard errors and tests mean "
            "nothing."
        )
    elif estimates.distance > AWAY and not asked.firth:
        text = (
            f"model {model.name} is up to {estimates.distance:.2g} standard errors away from the "
            "best parameters of these rows: they are not those of training, weigh otherwise, or "
            "the training ended early (tolerance, epochs)"
        )
        said.remark(text)
        said.note(f"{text[0].upper()}{text[1:]}.")
