"""Honest slots: the draws that hide a row in a secure sum if parties collude.

The coordinator receives sums over all slots that draw. A party knows its own draws, and receives
residuals, which are functions of these sums. A party that colludes with the coordinator subtracts
its draws. The coordinator's own party always does, except for its own rows. Of the others at most m
do, and n slots remain, the row's own included. A slot of several parties does not remain if one of
them colludes, because a joined row may have that one's row.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlfl.planner.query.ucq import Slot


def others(slots: Iterable[Slot], owner: str, at: str | None) -> tuple[str, ...]:
    """Return parties with tables, without the row's `own` party and the coordinator's (`at`)."""
    parties = dict.fromkeys(name for slot in slots for name in slot.parties)
    return tuple(name for name in parties if name != owner and not _same(name, at))


def colluding(slots: Iterable[Slot], owner: str, at: str | None, honest_parties: int | None) -> int:
    """Return m of the `others`: all without the honest ones, if their number is given, the row's
    own included; else one, if there is one.
    """
    most = len(others(slots, owner, at))
    return min(most, 1) if honest_parties is None else max(most + 1 - honest_parties, 0)


def honest_slots(
    slots: Iterable[Slot], slot: Slot, at: str | None, honest_parties: int | None
) -> int:
    """Return n for a row of `slot`: the minimum number of slots in a sum whose draws stay secret.

    Slots with features draw, in each joined row. A colluding party takes the slots where it has a
    table; the m parties with most slots are assumed to collude.
    """
    slots = tuple(slots)
    return min(_left(slots, slot, owner, at, honest_parties) for owner in slot.parties)


def _left(
    slots: tuple[Slot, ...], slot: Slot, owner: str, at: str | None, honest_parties: int | None
) -> int:
    """Return n for a row of the party `own`."""
    drawing = [other for other in slots if other.features and other.index != slot.index]
    if not _same(owner, at):
        drawing = [other for other in drawing if not any(_same(p, at) for p in other.parties)]
    there = others(slots, owner, at)
    sizes = sorted(
        (sum(name in other.parties for other in drawing) for name in there), reverse=True
    )
    taken = sum(sizes[: colluding(slots, owner, at, honest_parties)])
    return 1 + max(len(drawing) - taken, 0)


def _same(name: str, other: str | None) -> bool:
    return other is not None and name.lower() == other.lower()
