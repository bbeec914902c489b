"""Match the slots of a query with the blocks of a model, for scoring or a warm start."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from sqlfl.base.errors import ModelError
from sqlfl.contract.fragment_columns import ROW
from sqlfl.planner.query.ucq import ARRAY, BOOLEAN, CATEGORY, NUMERIC, Fragment, Slot, Ucq
from sqlfl.store.registry import Model, ModelBlock


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
        select = fragment.select.copy()
        items = select.expressions
        found = [items[place] for place in places] + items[len(slot.features) :]
        select.set("expressions", found or [exp.alias_(exp.Literal.number(1), ROW)])
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
