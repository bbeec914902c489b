"""Plan a parsed statement: resolve its options, normalise its query, and match the
model's blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlglot import exp

from sqlfl.base.errors import ModelError, OptionError, PlanError, nearest
from sqlfl.base.sanitize import listed
from sqlfl.contract.fragment_columns import ROW
from sqlfl.contract.request import Verdict
from sqlfl.contract.schema import COMBINED, Catalog, Client, folded
from sqlfl.coordinator.privacy_planning import (
    Clause,
    check_budget,
    notes_of,
    resolve_evaluation,
    settled,
    settled_evaluation,
    slots_of,
)
from sqlfl.federation.parser_cross_check import confirm_fragments
from sqlfl.federation.training_checks import (
    auto_notes,
    check_fitted,
    check_mentioned,
    check_offset,
    check_same,
    check_shape,
    check_stragglers,
    check_target,
    check_towers,
    unit_of,
    with_lines,
    with_tables,
)
from sqlfl.models.kinds import kind_of
from sqlfl.options.diagnostics import (
    ContributionsOptions,
    Diagnostic,
    Importance,
    Inference,
    SkewOptions,
    resolve_check,
    resolve_look,
)
from sqlfl.options.privacy import FORMER_EXACT, Privacy
from sqlfl.options.resolve import (
    check_kind,
    resolve_privacy,
    resolve_scoring,
    resolve_training,
    usual_algorithm,
)
from sqlfl.options.training import TrainingOptions
from sqlfl.options.tuning import resolve_tuning
from sqlfl.planner.explain.document import ExplainedPlan, explained
from sqlfl.planner.explain.report import expected_report
from sqlfl.planner.federated.into import Into, plan_into
from sqlfl.planner.federated.plan import (
    FederatedPlan,
    Noising,
    ScoredModel,
    Setting,
    WarmStart,
    check_plan,
    evaluation_plan,
    join_plan,
    prediction_plan,
    training_plan,
)
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import (
    CheckQuery,
    CreateJoin,
    EvaluateModel,
    Option,
    PredictModel,
    TrainModel,
    TuneModel,
)
from sqlfl.planner.grammar.trees import copied
from sqlfl.planner.query import types
from sqlfl.planner.query.checks import with_unit
from sqlfl.planner.query.clock import asks_the_time
from sqlfl.planner.query.draft import Roles
from sqlfl.planner.query.items import PlacedItem, placed
from sqlfl.planner.query.party_databases import differences
from sqlfl.planner.query.rules import to_ucq
from sqlfl.planner.query.ucq import ARRAY, BOOLEAN, CATEGORY, NUMERIC, Fragment, Slot, Ucq
from sqlfl.store.registry import Model, ModelBlock

FORMER_SPELLING = (
    "PRIVACY option predictions = 'none' is deprecated: write 'exact', which it means, or "
    "'gaussian', which protects rows from the coordinator and the other parties too"
)
SURPLUS = "take them out of the SELECT list; PREDICT returns other columns by ID (...)"


def plan_training(
    statement: TrainModel,
    catalog: Catalog,
    models: Callable[[str], Model],
    at: str | None = None,
    remark: Callable[[str], None] = lambda _: None,
    convert: Callable[..., Ucq] = to_ucq,
) -> FederatedPlan:
    """Plan TRAIN or TUNE.

    `models` returns the model of a warm start by name; `at` is the coordinator's party; `remark`
    receives warnings, such as deprecated spellings; `convert` is `to_ucq`, or looks a query up that
    it converted before. Raises OptionError and PlanError with the place
    in the statement. Raises ModelError if the model of a warm start is missing or does not fit, and
    PrivacyError if a budget cannot be met.
    """
    at = place_of_coordinator(at, catalog)
    privacy = _asked(statement)
    for option in statement.privacy or ():
        if option.name == "predictions" and str(option.value).lower() == FORMER_EXACT:
            remark(FORMER_SPELLING)
    transforms = placed(statement.transforms, statement.sql)
    tuning = None
    if isinstance(statement, TuneModel):
        tuning = resolve_tuning(statement.kind, statement.options, statement.sql)
        options = tuning.candidates[0].options
    else:
        options = resolve_training(statement.kind, statement.options, statement.sql, privacy)
    candidates = [options] if tuning is None else [c.options for c in tuning.candidates]
    for candidate in candidates:
        check_towers(statement, candidate)
    transforms, notes = with_lines(transforms, statement.kind, privacy, candidates)
    unit = unit_of(statement, transforms, candidates, tuning)
    ucq = convert(
        statement.query
        if unit is None
        else with_unit(statement.query, str(unit.value), statement.sql, unit.span),
        statement.sql,
        catalog,
        Roles(
            target=statement.target,
            weight=statement.weight,
            offset=statement.offset,
            exposure=statement.exposure,
            unit=None if unit is None else str(unit.value),
        ),
        allow_cross_join=options.allow_cross_join,
        split=unit is None
        and (options.validation_fraction > 0.0 or (tuning is not None and not tuning.groups)),
        folds=tuning is not None,
        noised=privacy is not None and privacy.labels,
        transforms=transforms,
    )
    confirm_fragments(ucq)
    if tuning is not None and tuning.groups is not None:
        ucq = with_units(ucq, tuning.groups, "groups")
    elif tuning is not None:
        groups = next((s.name for s in ucq.slots if s.units), None)
        tuning = replace(tuning, groups=groups if ucq.unit is None else ucq.unit.unit)
    check_target(ucq, statement.kind, statement.sql, statement.target.span)
    check_mentioned(ucq, statement)
    check_fitted(ucq, transforms, privacy, options, statement.sql)
    check_stragglers(ucq, statement, options)
    for candidate in candidates:
        check_offset(statement, candidate)
    noising = None
    if privacy is not None:
        clause = Clause.of(statement.privacy or (), statement.sql)
        privacy = settled(privacy, statement.kind, ucq, clause)
        options = with_tables(ucq, statement, options, privacy.epsilon)
        check_budget(privacy, statement.kind, ucq, options, clause, at)
        noising = Noising(privacy, slots_of(privacy, ucq))
    warm = None
    if options.warm_start is not None:
        ucq, warm = _started_from(models(options.warm_start), statement.kind, options, ucq)
    return training_plan(
        statement.name,
        statement.kind,
        ucq,
        options,
        statement.sql,
        _setting(ucq, catalog, at),
        warm=warm,
        noising=noising,
        tuning=tuning,
        notes=(*notes, *auto_notes(ucq, transforms)),
        exposure=statement.exposure,
    )


def _started_from(
    model: Model, kind: str, options: TrainingOptions, ucq: Ucq
) -> tuple[Ucq, WarmStart]:
    """Return the query with its slots in the model's order, and the start from its blocks. Raise
    ModelError if the model does not fit.
    """
    if model.kind != kind:
        raise ModelError(
            f"model {model.name} is a {model.kind}, which a {kind} cannot start from",
            hint=f"USING {model.kind}, or leave warm_start out",
        )
    check_shape(model, options)
    check_same(model, ucq.transforms)
    ucq, blocks = matched_with(ucq, model, "leave them out of the SELECT list, or warm_start out")
    return ucq, WarmStart(model.run, blocks)


def explain(
    plan: FederatedPlan,
    verdicts: Mapping[Client, tuple[Verdict, ...]] | None = None,
    links: Mapping[str, str] | None = None,
) -> ExplainedPlan:
    """Return the plan with its expected privacy, the owners' verdicts and the parties' links."""
    report = None if plan.privacy is None else expected_report(plan)
    return explained(plan, report, verdicts, links)


def _setting(ucq: Ucq, catalog: Catalog, at: str | None) -> Setting:
    """Return which parties have policies, and which keep no secret for noised labels."""
    clients = {client for slot in ucq.slots for client in slot.databases}
    noised = [client for slot in ucq.slots if slot.noised for client in slot.databases]
    reasons = {client: catalog.fleeting(client) for client in noised}
    return Setting(
        at,
        frozenset(client for client in clients if catalog.governed(client)),
        {client: reason for client, reason in reasons.items() if reason},
    )


def _asked(statement: TrainModel) -> Privacy | None:
    if statement.privacy is None:
        return None
    algorithm = usual_algorithm(statement.kind, statement.options, statement.privacy, statement.sql)
    return resolve_privacy(statement.kind, statement.privacy, statement.sql, algorithm)


def plan_scoring(
    statement: EvaluateModel | PredictModel,
    model: Model,
    catalog: Catalog,
    at: str | None = None,
    remark: Callable[[str], None] = lambda _: None,
    convert: Callable[..., Ucq] = to_ucq,
) -> FederatedPlan:
    """Plan EVALUATE, PREDICT or a diagnostic.

    `at` is the coordinator's party; `remark` receives differences between the query and training;
    `convert` is as for `plan_training`.
    Raises PlanError for the query, and ModelError if it does not fit the model.
    """
    at = place_of_coordinator(at, catalog)
    look, given = _look(statement, model)
    options = resolve_scoring(model.kind, model.options, given, statement.sql)
    cross = options.allow_cross_join
    privacy = None
    if isinstance(statement, EvaluateModel):
        ucq, privacy = _evaluated(statement, model, catalog, convert, cross=cross)
    else:
        ucq = _predicted(statement, model, look, catalog, convert, cross=cross)
    weighs = isinstance(statement, EvaluateModel) or isinstance(look, SkewOptions)
    if weighs and model.weight is not None and ucq.weight is None:
        remark(
            f"model {model.name} was trained with WEIGHT {model.weight}, which the query does "
            "not have: all rows count alike"
        )
    if isinstance(look, Inference) and look.cluster is not None:
        ucq = with_units(ucq, look.cluster, "cluster")
    ucq, blocks = matched_with(ucq, model, SURPLUS)
    check_combined(look, ucq)
    check_bases(look, ucq)
    for text in drifted(ucq, model):
        remark(text)
    scored = ScoredModel(
        model.name, model.kind, blocks, model.exact, private=bool(model.privacy.assumptions)
    )
    setting = _setting(ucq, catalog, at)
    exposure = model.exposure and ucq.offset is not None
    if isinstance(statement, PredictModel):
        into = _into(statement, model, ucq, catalog)
        return prediction_plan(
            scored, ucq, options, statement.sql, setting, look=look, into=into, exposure=exposure
        )
    noising = None
    if privacy is not None:
        noising = Noising(privacy, slots_of(privacy, ucq))
    return evaluation_plan(
        scored,
        ucq,
        options,
        statement.sql,
        setting,
        noising=noising,
        look=look,
        notes=notes_of(model, privacy),
        exposure=exposure,
    )


def _evaluated(
    statement: EvaluateModel,
    model: Model,
    catalog: Catalog,
    convert: Callable[..., Ucq],
    *,
    cross: bool,
) -> tuple[Ucq, Privacy | None]:
    """Return the query of EVALUATE, which has the target, and the settled PRIVACY of its labels."""
    privacy = None
    if statement.privacy is not None:
        privacy = resolve_evaluation(model.kind, statement.privacy, statement.sql)
    ucq = convert(
        statement.query,
        statement.sql,
        catalog,
        Roles(
            target=model.target,
            weight=model.weight,
            weight_may_lack=True,
            offset=model.offset,
            exposure=model.exposure,
        ),
        allow_cross_join=cross,
        noised=privacy is not None,
        transforms=_placed_transforms(model),
    )
    confirm_fragments(ucq)
    check_target(ucq, model.kind, statement.sql, None)
    if privacy is not None:
        clause = Clause.of(statement.privacy or (), statement.sql)
        privacy = settled_evaluation(privacy, model, ucq, clause)
    return ucq, privacy


def _predicted(
    statement: PredictModel,
    model: Model,
    look: Diagnostic | None,
    catalog: Catalog,
    convert: Callable[..., Ucq],
    *,
    cross: bool,
) -> Ucq:
    """Return the query of PREDICT, or of a diagnostic without a target. Columns of the target and
    the weight are left out if it has them.
    """
    skew = isinstance(look, SkewOptions)
    ucq = convert(
        statement.query,
        statement.sql,
        catalog,
        Roles(
            identifiers=statement.identifiers,
            weight=model.weight if skew else None,
            weight_may_lack=True,
            offset=None if skew else model.offset,
            exposure=model.exposure,
        ),
        allow_cross_join=cross,
        transforms=_placed_transforms(model),
    )
    confirm_fragments(ucq)
    return without(ucq, (model.target, model.offset if skew else model.weight), model)


def _placed_transforms(model: Model) -> tuple[PlacedItem, ...]:
    return tuple(PlacedItem(transform) for transform in model.transforms)


def _into(statement: PredictModel, model: Model, ucq: Ucq, catalog: Catalog) -> Into | None:
    """Return the tables that INTO makes; None without it."""
    if statement.into is None:
        return None
    return plan_into(
        statement.into,
        statement.identifiers,
        ucq,
        catalog,
        model.classes or (),
        model.target_type,
        statement.sql,
        statement.query if statement.replace else None,
    )


def plan_check(
    statement: CheckQuery,
    catalog: Catalog,
    at: str | None = None,
    convert: Callable[..., Ucq] = to_ucq,
) -> FederatedPlan:
    """Plan CHECK, a query without a model. `convert` is as for `plan_training`. Raises OptionError
    and PlanError.
    """
    at = place_of_coordinator(at, catalog)
    look, given = resolve_check(statement.options, statement.sql)
    kind = statement.kind
    if kind is not None:
        check_kind(kind, sql=statement.sql, span=kind.span)
    options = resolve_scoring(NUMBERS, {}, given, statement.sql)
    unlike = differences(statement.query, statement.sql, catalog)
    try:
        ucq = convert(
            statement.query,
            statement.sql,
            catalog,
            Roles(target=statement.target),
            allow_cross_join=options.allow_cross_join,
        )
        confirm_fragments(ucq)
    except PlanError as error:
        if unlike:
            error.advise(f"databases differ: {'; '.join(each.text for each in unlike)}")
        raise
    chosen = str(kind or "") or _kind_of(ucq)
    if statement.target is not None:
        check_target(ucq, chosen, statement.sql, statement.target.span)
    plan = check_plan(chosen, ucq, options, statement.sql, _setting(ucq, catalog, at), look=look)
    return replace(plan, differences=unlike)


def plan_join(statement: CreateJoin, catalog: Catalog, at: str | None = None) -> FederatedPlan:
    """Plan CREATE JOIN, whose output columns may have any role in later statements. Raises
    PlanError.
    """
    at = place_of_coordinator(at, catalog)
    if asks_the_time(statement.query):
        raise PlanError(
            "a join that lasts cannot depend on the time: its statements run at different times",
            hint="write the time as a constant, such as DATE '2026-01-31'",
            sql=statement.sql,
            span=statement.place,
        )
    ucq = to_ucq(statement.query, statement.sql, catalog, allow_cross_join=True)
    confirm_fragments(ucq)
    combined = sorted({c.party for slot in ucq.slots for c in slot.clients if c.index == COMBINED})
    if combined:
        raise PlanError(
            "a join that lasts is not built for parties that combine their databases: "
            f"{combined[0]}",
            hint="write FROM ( query ) in each statement, or attach it without combine = True",
        )
    options = resolve_scoring(NUMBERS, {}, (), statement.sql)
    setting = _setting(ucq, catalog, at)
    return join_plan(statement.name, NUMBERS, ucq, options, statement.sql, setting)


NUMBERS, CLASSES = "linear_regression", "softmax_regression"
"""Kinds of models to assume for a target if the statement names none."""


def _kind_of(ucq: Ucq) -> str:
    """Return the kind by the type of the target."""
    number = ucq.target is None or types.kind(ucq.target_type or "") == NUMERIC
    return NUMBERS if number else CLASSES


def _look(
    statement: EvaluateModel | PredictModel, model: Model
) -> tuple[Diagnostic | None, tuple[Option, ...]]:
    """Return the diagnostic of the statement, and its options of scoring."""
    if not statement.look:
        return None, statement.options
    threshold = statement.threshold if isinstance(statement, EvaluateModel) else None
    look, given = resolve_look(
        statement.look, model.kind, statement.options, statement.sql, threshold
    )
    check_look(look, model)
    return look, given


def place_of_coordinator(at: str | None, catalog: Catalog) -> str | None:
    """Return the party in its original spelling. Raise PlanError for an unknown party."""
    known = catalog.parties()
    match = next((p for p in known if at is not None and p.lower() == at.lower()), None)
    if at is None or match is not None:
        return match
    meant = nearest(at, known)
    listed = f"the parties are {', '.join(known)}" if known else "no party is attached yet"
    raise PlanError(
        f"the coordinator is to run at {at}, and there is no such party",
        hint=f"did you mean {meant}?" if meant else f"attach it first; {listed}",
    )


# Match the slots of a query with the blocks of a model, for scoring or a warm start.


def drifted(ucq: Ucq, model: Model) -> list[str]:
    """Return sentences about features whose values have another meaning than in training."""
    kinds = {name.lower(): kind for block in model.blocks for name, kind, _ in block.features}
    notes = []
    for feature in (f for slot in ucq.slots for f in slot.features):
        was = kinds[feature.name.lower()]
        if (was, feature.kind) == (BOOLEAN, NUMERIC):
            notes.append(
                f"feature {feature.name} is {feature.type} here and was a BOOLEAN when model "
                f"{model.name} was trained: to it 0 is false and 1 is true, and other numbers are "
                "beyond both"
            )
        elif (was, feature.kind) == (NUMERIC, BOOLEAN):
            notes.append(
                f"feature {feature.name} is a BOOLEAN here and was a number when model "
                f"{model.name} was trained: to it false is 0 and true is 1"
            )
    return notes


def without(ucq: Ucq, names: tuple[str | None, ...], model: Model) -> Ucq:
    """Scoring takes the query that trained the model, with columns that it does not need: the
    target of PREDICT and the weight stay at home."""
    features = {feature.lower() for feature in model.features}
    unneeded = {name.lower() for name in names if name is not None} - features
    return replace(
        ucq,
        slots=tuple(_slot_without(slot, unneeded) for slot in ucq.slots),
        columns=tuple(c for c in ucq.columns if c.lower() not in unneeded),
    )


def _slot_without(slot: Slot, unneeded: set[str]) -> Slot:
    kept = [n for n, f in enumerate(slot.features) if f.name.lower() not in unneeded]
    return slot if len(kept) == len(slot.features) else _picked(slot, kept)


def _picked(slot: Slot, places: list[int]) -> Slot:
    """The slot with only these of its features, in this order, in its fragments too."""

    def picked(fragment: Fragment) -> Fragment:
        select = copied(fragment.select)
        items = select.expressions
        outputs = [items[place] for place in places] + items[len(slot.features) :]
        select.set("expressions", outputs or [exp.alias_(exp.Literal.number(1), ROW)])
        return replace(fragment, select=select, parts=tuple(map(picked, fragment.parts)))

    features = tuple(slot.features[place] for place in places)
    return replace(slot, features=features, fragments=tuple(map(picked, slot.fragments)))


def matched_with(ucq: Ucq, model: Model, advice: str) -> tuple[Ucq, dict[int, int]]:
    """Return the query's slots with features in the model's order, and slot -> block. `advice` is
    the hint for columns that the model does not have.
    """
    wanted = {name.lower() for name in model.features}
    given = {f.name.lower(): f.name for slot in ucq.slots for f in slot.features}
    missing = [name for name in model.features if name.lower() not in given]
    if missing:
        raise ModelError(
            f"model {model.name} needs the columns {', '.join(missing)}, which the query lacks",
            hint="select them, or rename columns with AS; the statement that trained the model: "
            f"DESCRIBE MODEL {model.name}",
        )
    surplus = [name for folded, name in given.items() if folded not in wanted]
    if surplus:
        raise ModelError(
            f"model {model.name} was not trained on the columns {', '.join(surplus)}",
            hint=advice,
        )
    slots: list[Slot] = []
    matched: dict[int, int] = {}
    for slot in ucq.slots:
        if slot.features:
            block = _block(slot, model)
            slot = _ordered(slot, block, model)
            matched[slot.index] = block.slot
        slots.append(slot)
    return replace(ucq, slots=tuple(slots)), matched


def _block(slot: Slot, model: Model) -> ModelBlock:
    names = {f.name.lower() for f in slot.features}
    for block in model.blocks:
        if {name.lower() for name, _, _ in block.features} == names:
            away = [c for c in slot.databases if c not in block.clients]
            if away:
                raise ModelError(
                    f"the block of {block.name} of model {model.name} is kept by "
                    f"{', '.join(str(c) for c in block.clients)}, and {away[0]} has none",
                    hint="take these columns from a table of the party that trained them",
                )
            return block
    blocks = "; ".join(f"{b.name}: {', '.join(f[0] for f in b.features)}" for b in model.blocks)
    raise ModelError(
        f"the columns {', '.join(f.name for f in slot.features)} come from one table position "
        f"({slot.name}), but are not one block of model {model.name} ({blocks})",
        hint="write the joins as in the statement that trained the model",
    )


def _ordered(slot: Slot, block: ModelBlock, model: Model) -> Slot:
    places = {f.name.lower(): place for place, f in enumerate(slot.features)}
    picked = _picked(slot, [places[name.lower()] for name, _, _ in block.features])
    for feature, (_, kind, width) in zip(picked.features, block.features, strict=True):
        alike = all((feature.kind == one) == (kind == one) for one in (CATEGORY, ARRAY))
        if not alike or feature.width != width:
            raise ModelError(
                f"column {feature.name} is {feature.type} ({feature.kind}) here; model "
                f"{model.name} was trained on a {kind} column",
                hint="cast it to the type that it was trained on",
            )
    return picked


# Additional planning for statements of diagnostics, beside that of EVALUATE and PREDICT.

PROTECTING = ("epsilon", "noise_multiplier", "bins", "theta")
"""Options of PRIVACY that protect features."""


def check_look(look: Diagnostic, model: Model) -> None:
    """Raise ModelError for a diagnostic that would disclose, row by row, features that PRIVACY
    protected in training, mixed or multiplied by a weight.
    """
    if isinstance(look, SkewOptions) and _protects_features(model):
        raise ModelError(
            f"model {model.name} was trained with PRIVACY of features: its parties keep bounds, or "
            "numbers with noise, and not what the rows of training were like"
        )
    each = isinstance(look, ContributionsOptions) and look.features
    if (each or isinstance(look, Inference | Importance)) and _protects_features(model):
        statement = f"{look.word.upper()}{' with features = true' * each}"
        towers = kind_of(model.kind).towers
        raise ModelError(
            f"model {model.name} was trained with PRIVACY of features, and for {statement} its "
            f"parties "
            "would tell of every row what its features come to",
            hint=None if towers else f"WEIGHTS OF MODEL {model.name} shows what PRIVACY covers",
        )


def check_combined(look: Diagnostic | None, ucq: Ucq) -> None:
    """PlanError where a party combines its databases, and SKEW is asked for."""
    combined = [s.name for s in ucq.slots if s.features and any(f.parts for f in s.fragments)]
    if isinstance(look, SkewOptions) and combined:
        raise PlanError(
            f"SKEW is not built for databases that a party combines, as those of "
            f"{listed(combined)}",
            hint="the party's own connections show what its rows are like",
        )


def check_bases(look: Diagnostic | None, ucq: Ucq) -> None:
    """OptionError for a base category of a feature that the query does not have."""
    names = [feature.name for slot in ucq.slots for feature in slot.features]
    given = (look.base or {}) if isinstance(look, Inference) else {}
    for name in given:
        if name not in names:
            close = nearest(name, names)
            raise OptionError(
                f"base names {name}, and the query has no such feature",
                hint=f"did you mean {close}?" if close else f"they are {', '.join(names)}",
            )


def _protects_features(model: Model) -> bool:
    if not model.privacy.assumptions:
        return False
    statement = parse(model.sql)
    given = statement.privacy if isinstance(statement, TrainModel) else None
    return any(option.name in PROTECTING for option in given or ())


def with_units(ucq: Ucq, alias: str, option: str) -> Ucq:
    """Return the query with the slot of this alias marked as a unit, identified in every joined
    row. `option` names the option for errors. Raises OptionError for an unknown alias.
    """
    names = [slot.name for slot in ucq.slots]
    unit = next((name for name in names if folded(name) == folded(alias)), None)
    if unit is None:
        close = nearest(alias, names)
        raise OptionError(
            f"{option} = '{alias}', and the query has no such table position",
            hint=f"did you mean {close}?" if close else f"they are {', '.join(names)}",
        )
    slots = (replace(s, units=True) if s.name == unit else s for s in ucq.slots)
    return replace(ucq, slots=tuple(slots))
