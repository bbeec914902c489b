"""Combine the clients of a party: from here on the plan treats each such party as one client.

Before this rule all clients are separate, so that queries with another result on the union of their
tables than on the parts have been refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from sqlfl.contract.schema import Client
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.ucq import Block, Fragment, Slot, Ucq

Part: TypeAlias = tuple[object, ...]
"""Identity of fragments that clients of one party evaluate alike."""


def combine_clients(draft: Draft) -> Draft:
    """Merge fragments with the same part in the query, at clients of one party."""
    assert draft.ucq is not None
    return replace(draft, ucq=_combined(draft.ucq))


def _combined(ucq: Ucq) -> Ucq:
    merged = [_Combined.of(ucq, slot) for slot in ucq.slots]
    slots = tuple(
        replace(slot, fragments=slot_parts.fragments)
        for slot, slot_parts in zip(ucq.slots, merged, strict=True)
    )
    return replace(ucq, slots=slots, blocks=tuple(_renumbered(b, merged) for b in ucq.blocks))


def _renumbered(block: Block, merged: Sequence[_Combined]) -> Block:
    def of_slot(slot: int, numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(merged[slot].places[number] for number in numbers))

    return replace(
        block,
        members=tuple((slot, of_slot(slot, numbers)) for slot, numbers in block.members),
        virtual=tuple((slot, merged[slot].places[number]) for slot, number in block.virtual),
        kept=tuple((slot, of_slot(slot, numbers)) for slot, numbers in block.kept),
    )


@dataclass(frozen=True)
class _Combined:
    """One slot's merged fragments, and the place of each original among them."""

    fragments: tuple[Fragment, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, ucq: Ucq, slot: Slot) -> _Combined:
        groups: dict[tuple[Client, Part, int], list[Fragment]] = {}
        met: dict[tuple[Client, Part], int] = {}
        group_of = []
        for fragment in slot.fragments:
            client, part = fragment.client, _part(ucq, slot, fragment)
            number = met[client, part] = met.get((client, part), -1) + 1
            group = (
                (client.whole, part, number) if client.combined else (client, (), fragment.index)
            )
            group_of.append(group)
            groups.setdefault(group, []).append(fragment)
        order = list(groups)
        places = tuple(order.index(group) for group in group_of)
        made = (_one(parts, place, places) for place, parts in enumerate(groups.values()))
        return cls(tuple(made), places)


def _part(ucq: Ucq, slot: Slot, fragment: Fragment) -> Part:
    """Return the blocks that use the fragment, and its role in each."""
    identity: list[object] = [fragment.virtual]
    if fragment.beside is not None:
        identity.append(_part(ucq, slot, slot.fragments[fragment.beside]))
    for block in ucq.blocks:
        for among in (block.members, block.kept):
            numbers = dict(among).get(slot.index, ())
            identity.append(numbers.count(fragment.index))
        identity.append(dict(block.virtual).get(slot.index) == fragment.index)
    return tuple(identity)


def _one(parts: Sequence[Fragment], place: int, places: Sequence[int]) -> Fragment:
    """Return the merged fragment of these parts, at this place."""
    first = parts[0]
    beside = None if first.beside is None else places[first.beside]
    if not first.client.combined:
        return replace(first, index=place, beside=beside)
    rows = [part.rows for part in parts]
    return replace(
        first,
        index=place,
        client=first.client.whole,
        rows=None if None in rows else sum(r for r in rows if r is not None),
        beside=beside,
        parts=tuple(replace(part, index=place, beside=beside) for part in parts),
    )
