"""Checks of a training statement that need the query's names and types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlfl.base.errors import ModelError, OptionError, PlanError
from sqlfl.contract.transforms import AUTO, COLUMN, Transform
from sqlfl.models.kinds import ANY_CLASSES, kind_of, other
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import TrainingOptions
from sqlfl.options.tuning import Tuning
from sqlfl.options.types import shown
from sqlfl.planner.federated.engines import DEFAULT_LIMIT, NUMBER_BYTES, bytes_of, readable
from sqlfl.planner.federated.exchanges import inner_weights
from sqlfl.planner.grammar.statements import Option, Span, TrainModel
from sqlfl.planner.query import types
from sqlfl.planner.query.items import PlacedItem
from sqlfl.planner.query.ucq import BOOLEAN, NUMERIC, Feature, Slot, Ucq, tied
from sqlfl.store.registry import Model

OFFSET_KINDS = ("poisson_regression", "gamma_regression", "logistic_regression")
SHAPE = ("hidden", "activation", "head", "embedding")
"""Options that define the shape of a model's parameters."""
COPIES = 4
"""Copies of a tower's parameters during training: values, gradient, and two moments of Adam."""


def check_shape(model: Model, options: TrainingOptions) -> None:
    """Raise ModelError unless the towers have the same shape: a warm start copies parameters."""
    listed = options.listed()
    for name in SHAPE:
        trained_value, wanted = shown(model.options.get(name)), shown(listed.get(name))
        if trained_value != wanted:
            had = f"{name} = {trained_value}" if name in model.options else f"no {name}"
            asked = f"{name} = {wanted}" if name in listed else f"no {name}"
            raise ModelError(
                f"model {model.name} has {had}, and this statement {asked}: a warm start takes "
                "towers of the same shape",
                hint=f"add {had}, or leave warm_start out"
                if name in model.options
                else "leave warm_start out",
            )


def check_mentioned(ucq: Ucq, statement: TrainModel) -> None:
    if any(not item.columns for item in statement.transforms):
        return  # `auto` alone mentions all
    every = [feature for slot in ucq.slots for feature in slot.features]
    rest = [feature.name for feature in every if feature.transform is None]
    if statement.transforms_only and rest:
        raise PlanError(
            f"TRANSFORM ONLY: the query has column{'s' * (len(rest) > 1)} {', '.join(rest)}, which "
            "no item mentions",
            hint="leave what is no feature out of the query, or write it as an item",
            sql=statement.sql,
            span=statement.transforms[0].span,
        )


CURVED = (
    "linear_regression",
    "logistic_regression",
    "softmax_regression",
    "poisson_regression",
    "gamma_regression",
    "huber_regression",
)
"""Kinds of models that `auto` finds curves for."""


def with_lines(
    transforms: Sequence[PlacedItem],
    kind: str,
    privacy: Privacy | None,
    candidates: Sequence[TrainingOptions],
) -> tuple[tuple[PlacedItem, ...], tuple[str, ...]]:
    """Return the items and notes. Where the run supports only straight lines, items of `auto`
    become columns.
    """
    if not any(item.transform.function == AUTO for item in transforms):
        return tuple(transforms), ()
    reason = next(
        (why for candidate in candidates if (why := _straight(kind, privacy, candidate))), ""
    )
    if not reason:
        return tuple(transforms), ()
    kept = tuple(
        replace(item, transform=replace(item.transform, function=COLUMN, count=0))
        if item.transform.function == AUTO
        else item
        for item in transforms
        if item.transform.columns
    )
    return kept, (f"TRANSFORM (auto) made no curves: {reason}. Numbers are straight lines",)


def unit_of(
    statement: TrainModel,
    transforms: Sequence[PlacedItem],
    candidates: Sequence[TrainingOptions],
    tuning: Tuning | None,
) -> Option | None:
    """Return the option `unit` where it is an expression. Raise OptionError where it does not go
    with other parts of the statement, or decides nothing."""
    units = {candidate.method.unit_expression for candidate in candidates}
    if units == {None}:
        return None
    given = next(option for option in statement.options if option.name == "unit")
    curves = any(item.transform.function == AUTO for item in transforms)
    validates = tuning is not None or candidates[0].validation_fraction > 0.0
    message = hint = ""
    if len(units) > 1 or isinstance(given.value, tuple):
        message = "option unit is the same in all fits of TUNE where it is an expression"
        hint = "give one expression, or choose between 'table' and 'rows'"
    elif statement.privacy is not None:
        message = "an expression as unit does not go with PRIVACY, of which a row is the unit"
        hint = "leave unit out, or PRIVACY"
    elif tuning is not None and tuning.groups is not None:
        message = f"unit = '{given.value}' draws the folds, and groups = '{tuning.groups}' too"
        hint = "leave one of them out"
    elif not curves and not validates:
        message = f"unit = '{given.value}' decides nothing here, and would send its hashes"
        hint = "it goes with TRANSFORM (auto), validation_fraction and TUNE"
    if message:
        raise OptionError(message, hint=hint, sql=statement.sql, span=given.span)
    return given


def _straight(kind: str, privacy: Privacy | None, options: TrainingOptions) -> str:
    """Why there are no curves; empty where there are."""
    if kind not in CURVED:
        return f"{kind} has none"
    if privacy is not None and privacy.features:
        return "PRIVACY protects features, and knots and strengths follow from single rows"
    if options.algorithm != "lbfgs":
        return f"algorithm = '{options.algorithm}' finds no strengths"
    if options.method.secure:
        return "union = 'secure' shows nothing but sums"
    if not options.l2 > 0.0:
        return "l2 = 0 asks for no penalty, and a curve has one"
    return ""


def auto_notes(ucq: Ucq, transforms: Sequence[PlacedItem]) -> tuple[str, ...]:
    """Return warnings if `auto` leaves columns of combined databases unchanged, or adds no
    pairs."""
    asked = any(item.transform.function == AUTO for item in transforms)
    names = [s.name for s in ucq.slots if s.databases != s.clients and s.features]
    if not asked:
        return ()
    if not names:
        paired = any(
            item.transform.function == AUTO and item.transform.count for item in transforms
        )
        if not paired:
            return ()
        if not any(slot.pairs for slot in ucq.slots):
            return (
                "TRANSFORM (auto) adds no pairs: no table has two numbers, booleans or categories "
                "that auto has with pairs. Features of two tables, and categories of a table at "
                "several databases, are in none",
            )
        hashed = [
            slot.name
            for slot in ucq.slots
            if len(slot.clients) > 1
            and any(f.pairs and f not in slot.paired for f in slot.features)
        ]
        return tuple(
            f"TRANSFORM (auto) takes no categories of {name} into pairs: its databases know each "
            "other's as hashes"
            for name in hashed
        )
    tables = ", ".join(names)
    return (
        f"TRANSFORM (auto) made no curves of {tables}, whose databases their party combines: that "
        "is not built. Numbers are straight lines",
    )


def check_fitted(
    ucq: Ucq,
    transforms: Sequence[PlacedItem],
    privacy: Privacy | None,
    options: TrainingOptions,
    sql: str,
) -> None:
    """Raise PlanError for a fitted item whose column is spread over parties, or protected by
    PRIVACY. Fitting needs all joined rows in one place and discloses values.
    """
    spans = {item.transform.name: item.span for item in transforms if item.transform.fitted}
    for slot in ucq.slots:
        for feature in slot.features:
            if feature.transform is None or feature.name not in spans:
                continue
            call, span = feature.transform.call, spans[feature.name]
            if privacy is not None and privacy.features:
                raise PlanError(
                    f"{call} is fitted to the rows, which PRIVACY protects: values of single rows, "
                    "such as the least one, would be in the model",
                    hint=_WITH_BOUNDS,
                    sql=sql,
                    span=span,
                )
            if len(slot.databases) > 1 and (why := _apart(slot, feature, options)):
                raise PlanError(
                    f"{call} is fitted to all rows of {slot.name}, and these are at "
                    f"{len(slot.databases)} databases{why}",
                    hint=_WITH_BOUNDS,
                    sql=sql,
                    span=span,
                )


def _apart(slot: Slot, feature: Feature, options: TrainingOptions) -> str:
    """Why it cannot be fitted to rows of several databases; empty where it can."""
    step = None if feature.made is None else feature.made.step
    if step is not None and not step.needs_summaries:
        return ": it does not follow from what each of them could tell"
    if slot.databases != slot.clients:
        return ", which their party combines: that is not built"
    if options.method.secure:
        return ", of which union = 'secure' shows nothing but sums: that is not built"
    return ""


_WITH_BOUNDS = (
    "give the numbers: bucketize(x, [b1, b2, ...]) or impute(x, 0), or scale by known bounds in "
    "the query: (x - 10) / 50 AS x"
)


def check_same(model: Model, transforms: tuple[Transform, ...]) -> None:
    """Raise ModelError unless a warm start has the same TRANSFORM as the model."""
    had, wanted = ({str(t).lower() for t in given} for given in (model.transforms, transforms))
    if had != wanted:
        written = ", ".join(map(str, model.transforms))
        raise ModelError(
            f"model {model.name} was trained with "
            + (f"TRANSFORM ({written})" if written else "no TRANSFORM")
            + ", and a warm start takes columns that are made alike",
            hint="write the same TRANSFORM, or leave warm_start out",
        )


def check_towers(statement: TrainModel, options: TrainingOptions) -> None:
    """Towers that fit no memory are refused before anything has run."""
    if options.tower is None:
        return
    hidden = options.tower.hidden
    need = COPIES * NUMBER_BYTES * inner_weights(hidden)
    limit = bytes_of(options.memory_limit) or DEFAULT_LIMIT
    if need > limit:
        option = next(o for o in statement.options if o.name == "hidden")
        raise OptionError(
            f"towers with hidden = {shown(hidden)} have {inner_weights(hidden):,} weights between "
            f"their layers, about {readable(need)} in training; memory_limit is {readable(limit)}",
            hint="fewer hidden units, or a larger memory_limit",
            sql=statement.sql,
            span=option.span,
        )


def check_stragglers(ucq: Ucq, statement: TrainModel, options: TrainingOptions) -> None:
    """Raise OptionError if a step cannot go on without a late client."""
    if options.method.waits is None:
        return
    slots = [slot for slot in ucq.slots if slot.features]
    if len(tied([slot.clients for slot in slots])) > 1:
        return
    option = next(o for o in statement.options if o.name == "stragglers")
    raise OptionError(
        f"a step cannot go on without one of the clients: {', '.join(s.name for s in slots)} are "
        "trained by all of them together",
        hint="stragglers is of joins of tables of different parties; leave it out",
        sql=statement.sql,
        span=option.span,
    )


def with_tables(
    ucq: Ucq, statement: TrainModel, options: TrainingOptions, epsilon: float | None
) -> TrainingOptions:
    """Return the options with those of the method that depend on the query's tables."""
    slots = [slot for slot in ucq.slots if slot.features]
    labelled = any(slot.target for slot in slots)
    try:
        return replace(options, method=options.method.with_tables(len(slots), labelled, epsilon))
    except OptionError as error:
        given = {option.name: option.span for option in statement.options}
        span = next((at for name, at in given.items() if f"option {name} " in error.message), None)
        raise OptionError(error.message, hint=error.hint, sql=statement.sql, span=span) from None


def check_offset(statement: TrainModel, options: TrainingOptions) -> None:
    """An offset goes with models of a link, which the coordinator fits by all scores."""
    offset = statement.offset
    if offset is None:
        return
    clause = "EXPOSURE" if statement.exposure else "OFFSET"
    sql, span = statement.sql, offset.span
    if statement.kind not in OFFSET_KINDS or (
        statement.exposure and statement.kind == "logistic_regression"
    ):
        hint = f"{clause} goes with {', '.join(OFFSET_KINDS)}"
        if statement.exposure:
            hint = "EXPOSURE goes with poisson_regression and gamma_regression"
        elif not kind_of(statement.kind).classifies:
            hint += f"; of a {statement.kind}, subtract it from the target in the query"
        raise PlanError(
            f"{clause} does not go with a {statement.kind}", hint=hint, sql=sql, span=span
        )
    if statement.privacy is not None:
        raise PlanError(
            f"{clause} does not go with PRIVACY: offsets leave as they are, and what noise in "
            "scores does beside them has not been reckoned",
            hint=f"leave PRIVACY out, or make {offset} a feature",
            sql=sql,
            span=span,
        )
    if options.algorithm != "lbfgs":
        raise PlanError(
            f"{clause} is not built for algorithm = '{options.algorithm}'",
            hint="WITH (algorithm = 'lbfgs')",
            sql=sql,
            span=span,
        )


def check_target(ucq: Ucq, kind: str, sql: str, span: Span | None) -> None:
    """A regression's target is a number, known from the type before anything runs."""
    if kind_of(kind).classifies or types.kind(ucq.target_type or "") in (NUMERIC, BOOLEAN):
        return
    raise PlanError(
        f"the target of {kind} must be a number, and {ucq.target} is {ucq.target_type}",
        hint=f"cast it to a number, or train a classifier: USING {other(kind, ANY_CLASSES)}",
        sql=sql,
        span=span,
    )
