"""Whose draws nobody tells: what of a secret sum hides one row, where parties collude.

The coordinator gets sums over all slots that draw. A party knows its own draws, and is told
residuals, which are functions of these sums: one that colludes with the coordinator takes its part
off them. At most m others do, and n slots are left, the row's own among them. A slot of several
parties is not left where one of them colludes, for a joined row's may be that one's.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlfl.planner.query.ucq import Slot


def parties(slots: Iterable[Slot], at: str | None) -> tuple[str, ...]:
    """Those with tables, without the one that the coordinator is `at`: it is no other than it."""
    found = dict.fromkeys(name for slot in slots for name in slot.parties)
    return tuple(name for name in found if not _same(name, at))


def colluding(slots: Iterable[Slot], at: str | None, honest_parties: int | None) -> int:
    """m: of `parties` but the row's own, so many may collude with the coordinator; one where
    nothing is said."""
    most = len(parties(slots, at))
    usual = max(most - 1, 1)
    return max(most - (usual if honest_parties is None else honest_parties), 0)


def honest_slots(
    slots: Iterable[Slot], slot: Slot, at: str | None, honest_parties: int | None
) -> int:
    """n of a row of `slot`: at least so many slots draw in a sum, and are not told of.

    Those that have features draw, in each joined row. Whichever parties collude, each takes no
    more slots than it is at: the m that are at most slots are taken.
    """
    slots = tuple(slots)
    left = colluding(slots, at, honest_parties)
    drawing = [other for other in slots if other.features and other.index != slot.index]
    return 1 + min(_others(drawing, own, slots, at, left) for own in slot.parties)


def _others(drawing: list[Slot], own: str, slots: Iterable[Slot], at: str | None, left: int) -> int:
    """Of other slots, those that are left to a row of the party `own`."""
    if at is not None and not _same(own, at):
        drawing = [slot for slot in drawing if not any(_same(name, at) for name in slot.parties)]
    taken = sorted(
        sum(name in slot.parties for slot in drawing) for name in parties(slots, at) if name != own
    )
    return max(len(drawing) - sum(taken[len(taken) - min(left, len(taken)) :]), 0)


def _same(name: str, other: str | None) -> bool:
    return other is not None and name.lower() == other.lower()
