"""Plan a parsed statement: resolve its options, normalise its query, and match the
model's blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlfl.base.errors import ModelError, PlanError, nearest
from sqlfl.contract.request import Verdict
from sqlfl.contract.schema import COMBINED, Catalog, Client
from sqlfl.coordinator.privacy_evaluation import notes_of, resolve_evaluation, settled_evaluation
from sqlfl.coordinator.privacy_planning import Clause, check_budget, settled, slots_of
from sqlfl.federation.block_matching import drifted, matched_with, without
from sqlfl.federation.diagnostics import check_bases, check_combined, check_look, with_units
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
    with_lines,
    with_tables,
)
from sqlfl.options.diagnostics import (
    Diagnostic,
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
from sqlfl.options.tuning import resolve_tuning
from sqlfl.planner.explain.explained import ExplainedPlan, explained
from sqlfl.planner.explain.report import expected_report
from sqlfl.planner.federated import plan as federated
from sqlfl.planner.federated.into import plan_into
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.grammar.statements import (
    CheckQuery,
    CreateJoin,
    EvaluateModel,
    Option,
    PredictModel,
    TrainModel,
    TuneModel,
)
from sqlfl.planner.query import types
from sqlfl.planner.query.clock import asks_the_time
from sqlfl.planner.query.differences import differences
from sqlfl.planner.query.items import PlacedItem, placed
from sqlfl.planner.query.rules import to_ucq
from sqlfl.planner.query.ucq import NUMERIC, Ucq
from sqlfl.store.registry import Model

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
) -> FederatedPlan:
    """Plan TRAIN or TUNE.

    `models` returns the model of a warm start by name; `at` is the coordinator's party; `remark`
    receives warnings, such as deprecated spellings. Raises OptionError and PlanError with the place
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
    ucq = to_ucq(
        statement.query,
        statement.sql,
        catalog,
        target=statement.target,
        allow_cross_join=options.allow_cross_join,
        weight=statement.weight,
        offset=statement.offset,
        exposure=statement.exposure,
        split=options.validation_fraction > 0.0 or (tuning is not None and not tuning.groups),
        folds=tuning is not None,
        noised=privacy is not None and privacy.labels,
        transforms=transforms,
    )
    confirm_fragments(ucq)
    if tuning is not None and tuning.groups is not None:
        ucq = with_units(ucq, tuning.groups, "groups")
    elif tuning is not None:
        tuning = replace(tuning, groups=next((s.name for s in ucq.slots if s.units), None))
    check_target(ucq, statement.kind, statement.sql, statement.target.span)
    check_mentioned(ucq, statement)
    check_fitted(ucq, transforms, privacy, options, statement.sql)
    check_stragglers(ucq, statement, options)
    for candidate in [options] if tuning is None else [c.options for c in tuning.candidates]:
        check_offset(statement, candidate)
    told = None
    if privacy is not None:
        clause = Clause.of(statement.privacy or (), statement.sql)
        privacy = settled(privacy, statement.kind, ucq, clause)
        options = with_tables(ucq, statement, options, privacy.epsilon)
        check_budget(privacy, statement.kind, ucq, options, clause, at)
        told = slots_of(privacy, statement.kind, ucq)
    slots, run = None, None
    if options.warm_start is not None:
        model = models(options.warm_start)
        if model.kind != statement.kind:
            raise ModelError(
                f"model {model.name} is a {model.kind}, which a {statement.kind} cannot start from",
                hint=f"USING {model.kind}, or leave warm_start out",
            )
        check_shape(model, options)
        check_same(model, ucq.transforms)
        ucq, slots = matched_with(
            ucq, model, "leave them out of the SELECT list, or warm_start out"
        )
        run = model.run
    return federated.plan(
        federated.TRAIN,
        statement.name,
        statement.kind,
        ucq,
        options,
        statement.sql,
        slots,
        run,
        at=at,
        privacy=privacy,
        slots=told,
        fleeting=_fleeting(ucq, catalog),
        governed=_governed(ucq, catalog),
        notes=(*notes, *auto_notes(ucq, transforms)),
        tuning=tuning,
        exposure=statement.exposure,
    )


def explain(
    plan: FederatedPlan,
    verdicts: Mapping[Client, tuple[Verdict, ...]] | None = None,
    links: Mapping[str, str] | None = None,
) -> ExplainedPlan:
    """Return the plan with its expected privacy, the owners' verdicts and the parties' links."""
    report = None if plan.privacy is None else expected_report(plan)
    return explained(plan, report, verdicts, links)


def _fleeting(ucq: Ucq, catalog: Catalog) -> Mapping[Client, str]:
    """Return clients with noised labels that keep no secret for them -> reason."""
    clients = [client for slot in ucq.slots if slot.noised for client in slot.databases]
    reasons = {client: catalog.fleeting(client) for client in clients}
    return {client: reason for client, reason in reasons.items() if reason}


def _governed(ucq: Ucq, catalog: Catalog) -> frozenset[Client]:
    """Return clients whose owners have training policies."""
    clients = {client for slot in ucq.slots for client in slot.databases}
    return frozenset(client for client in clients if catalog.governed(client))


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
) -> FederatedPlan:
    """Plan EVALUATE, PREDICT or a diagnostic.

    `at` is the coordinator's party; `remark` receives differences between the query and training.
    Raises PlanError for the query, and ModelError if it does not fit the model.
    """
    at = place_of_coordinator(at, catalog)
    look, given = _look(statement, model)
    options = resolve_scoring(model.kind, model.options, given, statement.sql)
    cross = options.allow_cross_join
    transforms = tuple(PlacedItem(transform) for transform in model.transforms)
    privacy = None
    if isinstance(statement, EvaluateModel):
        purpose = federated.EVALUATE
        if statement.privacy is not None:
            privacy = resolve_evaluation(model.kind, statement.privacy, statement.sql)
        ucq = to_ucq(
            statement.query,
            statement.sql,
            catalog,
            target=model.target,
            allow_cross_join=cross,
            weight=model.weight,
            offset=model.offset,
            exposure=model.exposure,
            weight_may_lack=True,
            noised=privacy is not None,
            transforms=transforms,
        )
        confirm_fragments(ucq)
        check_target(ucq, model.kind, statement.sql, None)
        if privacy is not None:
            clause = Clause.of(statement.privacy or (), statement.sql)
            privacy = settled_evaluation(privacy, model, ucq, clause)
    else:
        purpose = federated.PREDICT
        ucq = to_ucq(
            statement.query,
            statement.sql,
            catalog,
            identifiers=tuple((path.parts, path.span) for path in statement.identifiers),
            allow_cross_join=cross,
            weight=model.weight if isinstance(look, SkewOptions) else None,
            weight_may_lack=True,
            offset=None if isinstance(look, SkewOptions) else model.offset,
            exposure=model.exposure,
            transforms=transforms,
        )
        confirm_fragments(ucq)
        beside = model.offset if isinstance(look, SkewOptions) else model.weight
        ucq = without(ucq, (model.target, beside), model)
    weighs = isinstance(statement, EvaluateModel) or isinstance(look, SkewOptions)
    if weighs and model.weight is not None and ucq.weight is None:
        remark(
            f"model {model.name} was trained with WEIGHT {model.weight}, which the query does "
            "not have: all rows count alike"
        )
    if isinstance(look, Inference) and look.cluster is not None:
        ucq = with_units(ucq, look.cluster, "cluster")
    ucq, model_slots = matched_with(ucq, model, SURPLUS)
    check_combined(look, ucq)
    check_bases(look, ucq)
    for text in drifted(ucq, model):
        remark(text)
    into = None
    if isinstance(statement, PredictModel) and statement.into is not None:
        into = plan_into(
            statement.into,
            statement.identifiers,
            ucq,
            catalog,
            model.classes or (),
            model.target_type,
            statement.sql,
            statement.query if statement.replace else None,
        )
    return federated.plan(
        purpose,
        model.name,
        model.kind,
        ucq,
        options,
        statement.sql,
        model_slots,
        into=into,
        at=at,
        privacy=privacy,
        slots=None if privacy is None else slots_of(privacy, model.kind, ucq),
        findings=not model.privacy.assumptions,
        fleeting=_fleeting(ucq, catalog),
        governed=_governed(ucq, catalog),
        notes=notes_of(model, privacy) if purpose == federated.EVALUATE else (),
        look=look,
        exact=model.exact,
        exposure=model.exposure and ucq.offset is not None,
    )


def plan_check(statement: CheckQuery, catalog: Catalog, at: str | None = None) -> FederatedPlan:
    """Plan CHECK, a query without a model. Raises OptionError and PlanError."""
    at = place_of_coordinator(at, catalog)
    look, given = resolve_check(statement.options, statement.sql)
    kind = statement.kind
    if kind is not None:
        check_kind(kind, sql=statement.sql, span=kind.span)
    options = resolve_scoring(NUMBERS, {}, given, statement.sql)
    unlike = differences(statement.query, statement.sql, catalog)
    try:
        ucq = to_ucq(
            statement.query,
            statement.sql,
            catalog,
            target=statement.target,
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
    plan = federated.plan(
        federated.CHECK,
        "",
        chosen,
        ucq,
        options,
        statement.sql,
        at=at,
        findings=False,
        look=look,
        governed=_governed(ucq, catalog),
    )
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
    return federated.plan(
        federated.JOIN,
        statement.name,
        NUMBERS,
        ucq,
        options,
        statement.sql,
        at=at,
        findings=False,
        governed=_governed(ucq, catalog),
    )


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
