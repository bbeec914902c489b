"""Whose draws nobody tells: what of a secret sum hides one row, where parties collude.

The coordinator gets sums over all slots that draw. A party knows its own draws, and is told
residuals, which are functions of these sums: one that colludes with the coordinator takes its part
off them. The party that the coordinator is at always does, but for its own rows. Of the others at
most m do, and n slots are left, the row's own among them. A slot of several parties is not left
where one of them colludes, for a joined row's may be that one's.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlfl.planner.query.ucq import Slot


def others(slots: Iterable[Slot], own: str, at: str | None) -> tuple[str, ...]:
    """Parties with tables but a row's `own`, and the one that the coordinator is `at`."""
    found = dict.fromkeys(name for slot in slots for name in slot.parties)
    return tuple(name for name in found if name != own and not _same(name, at))


def colluding(slots: Iterable[Slot], own: str, at: str | None, honest_parties: int | None) -> int:
    """m, of the `others`: all that are not honest, where it is said how many are, the row's own
    among them; else one, if there is one."""
    most = len(others(slots, own, at))
    return min(most, 1) if honest_parties is None else max(most + 1 - honest_parties, 0)


def honest_slots(
    slots: Iterable[Slot], slot: Slot, at: str | None, honest_parties: int | None
) -> int:
    """n of a row of `slot`: at least so many slots draw in a sum, and are not told of.

    Those that have features draw, in each joined row. Whichever parties collude, each takes no
    more slots than it is at: the m that are at most slots are taken.
    """
    slots = tuple(slots)
    return min(_left(slots, slot, own, at, honest_parties) for own in slot.parties)


def _left(
    slots: tuple[Slot, ...], slot: Slot, own: str, at: str | None, honest_parties: int | None
) -> int:
    """To a row that is the party `own`'s."""
    drawing = [other for other in slots if other.features and other.index != slot.index]
    if not _same(own, at):
        drawing = [other for other in drawing if not any(_same(p, at) for p in other.parties)]
    there = others(slots, own, at)
    sizes = sorted(
        (sum(name in other.parties for other in drawing) for name in there), reverse=True
    )
    taken = sum(sizes[: colluding(slots, own, at, honest_parties)])
    return 1 + max(len(drawing) - taken, 0)


def _same(name: str, other: str | None) -> bool:
    return other is not None and name.lower() == other.lower()
