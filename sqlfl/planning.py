"""From a parsed statement to its federated plan: options, normal form, blocks of the model."""

from __future__ import annotations

from dataclasses import replace

from sqlfl import options as option_table
from sqlfl.errors import Error, ModelError, PlanError, StatementError
from sqlfl.planner import federated, types
from sqlfl.planner.federated import FederatedPlan
from sqlfl.planner.rules import to_ucq
from sqlfl.planner.statements import EvaluateModel, PredictModel, Span, TrainModel
from sqlfl.planner.ucq import BOOLEAN, NUMERIC, Slot, Ucq
from sqlfl.registry import Model, ModelBlock
from sqlfl.schema import Catalog


def plan_training(statement: TrainModel, catalog: Catalog) -> FederatedPlan:
    """Raises OptionError and PlanError with the place in the statement."""
    if statement.privacy is not None:
        raise Error("the PRIVACY clause is not built yet", hint="leave it out")
    if statement.weight is not None:
        raise StatementError(
            "WEIGHT is not built yet",
            hint="leave it out",
            sql=statement.sql,
            span=statement.weight.span,
        )
    options = option_table.resolve(statement.kind, statement.options, statement.sql)
    ucq = to_ucq(
        statement.query,
        statement.sql,
        catalog,
        target=statement.target,
        allow_cross_join=bool(options["allow_cross_join"]),
    )
    _check_target(ucq, statement.kind, statement.sql, statement.target.span)
    return federated.plan(
        federated.TRAIN, statement.name, statement.kind, ucq, options, statement.sql
    )


def plan_scoring(
    statement: EvaluateModel | PredictModel, model: Model, catalog: Catalog
) -> FederatedPlan:
    """Raises PlanError for the query, and ModelError where it does not fit the model."""
    cross = bool(model.options["allow_cross_join"])
    if isinstance(statement, EvaluateModel):
        purpose = federated.EVALUATE
        ucq = to_ucq(
            statement.query,
            statement.sql,
            catalog,
            target=model.target,
            allow_cross_join=cross,
        )
        _check_target(ucq, model.kind, statement.sql, None)
    else:
        if statement.into is not None:
            raise StatementError(
                "PREDICT ... INTO is not built yet",
                hint="leave INTO out; the predictions are the statement's result",
                sql=statement.sql,
                span=statement.into.span,
            )
        purpose = federated.PREDICT
        ucq = to_ucq(
            statement.query,
            statement.sql,
            catalog,
            identifiers=tuple((path.parts, path.span) for path in statement.identifiers),
            allow_cross_join=cross,
        )
        ucq = _without(ucq, model.target, model)
    ucq, model_slots = _match(ucq, model)
    return federated.plan(
        purpose, model.name, model.kind, ucq, model.options, statement.sql, model_slots
    )


def _check_target(ucq: Ucq, kind: str, sql: str, span: Span | None) -> None:
    """A regression's target is a number, known from the type before anything runs."""
    if kind in federated.CLASSIFIERS or types.kind(ucq.target_type or "") in (NUMERIC, BOOLEAN):
        return
    raise PlanError(
        f"the target of {kind} must be a number, and {ucq.target} is {ucq.target_type}",
        hint="cast it to a number, or train a classifier: USING softmax_regression",
        sql=sql,
        span=span,
    )


def _without(ucq: Ucq, name: str, model: Model) -> Ucq:
    """PREDICT takes the query that trained the model, target and all; the target stays at home."""
    if name.lower() in (feature.lower() for feature in model.features):
        return ucq
    slots = tuple(_slot_without(slot, name) for slot in ucq.slots)
    return replace(
        ucq, slots=slots, columns=tuple(c for c in ucq.columns if c.lower() != name.lower())
    )


def _slot_without(slot: Slot, name: str) -> Slot:
    dropped = {f.name for f in slot.features if f.name.lower() == name.lower()}
    if not dropped:
        return slot
    fragments = []
    for fragment in slot.fragments:
        select = fragment.select.copy()
        kept = [item for item in select.expressions if item.alias_or_name not in dropped]
        select.set("expressions", kept)
        fragments.append(replace(fragment, select=select))
    return replace(
        slot,
        features=tuple(f for f in slot.features if f.name not in dropped),
        fragments=tuple(fragments),
    )


def _match(ucq: Ucq, model: Model) -> tuple[Ucq, dict[int, int]]:
    """The query's slots with their features in the model's order, and slot -> block."""
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
            hint="take them out of the SELECT list; PREDICT returns other columns by ID (...)",
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
            away = [c for c in slot.clients if c not in block.clients]
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
    by_name = {f.name.lower(): f for f in slot.features}
    features = tuple(by_name[name.lower()] for name, _, _ in block.features)
    for feature, (_, kind, width) in zip(features, block.features, strict=True):
        if (feature.kind == "category") != (kind == "category") or feature.width != width:
            raise ModelError(
                f"column {feature.name} is {feature.type} ({feature.kind}) here; model "
                f"{model.name} was trained on a {kind} column",
                hint="cast it to the type that it was trained on",
            )
    return replace(slot, features=features)
