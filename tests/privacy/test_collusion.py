"""Whose draws count as secret, against every coalition that there may be."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.collusion import colluding, honest_slots, others


@dataclass(frozen=True)
class Table:
    """As much of a slot as is asked for."""

    index: int
    parties: tuple[str, ...]
    features: tuple[str, ...] = ("x",)


def slots(*tables: tuple[str, ...] | Table) -> tuple[Slot, ...]:
    found = (t if isinstance(t, Table) else Table(number, t) for number, t in enumerate(tables))
    return cast(tuple[Slot, ...], tuple(found))


A, B, C = ("a",), ("b",), ("c",)


@pytest.mark.parametrize(
    ("tables", "at", "honest", "expected"),
    [
        ((A, B, C), None, None, (2, 2, 2)),
        ((A, B, C), None, 3, (3, 3, 3)),
        ((A, B, C), None, 2, (2, 2, 2)),
        ((A, B, C), None, 1, (1, 1, 1)),
        ((A, B), None, None, (1, 1)),
        ((A, B), None, 2, (2, 2)),
        ((A,), None, None, (1,)),
        ((A, A, B), None, None, (2, 2, 1)),  # b's row: a tells both of its tables' draws
        ((A, A, B, C), None, None, (3, 3, 2, 2)),
        ((A, B, C), "A", None, (2, 1, 1)),  # b's row: the coordinator is a, and c tells
        ((A, B, C), "a", 2, (2, 2, 2)),
        ((A, B, C), "elsewhere", None, (2, 2, 2)),
        ((("a", "b"), C), None, None, (1, 1)),
        ((("a", "b"), C), None, 3, (2, 2)),
        ((("a", "b"), C, C), None, None, (1, 2, 2)),
        ((("a", "b"), ("b", "c"), C), None, 2, (1, 2, 1)),
    ],
)
def test_honest_slots(
    tables: tuple[tuple[str, ...], ...],
    at: str | None,
    honest: int | None,
    expected: tuple[int, ...],
) -> None:
    own = slots(*tables)
    assert tuple(honest_slots(own, slot, at, honest) for slot in own) == expected


def test_slots_without_features_draw_nothing() -> None:
    own = slots(Table(0, A), Table(1, B, ()), Table(2, C))
    assert honest_slots(own, own[0], None, 3) == 2
    assert honest_slots(own, own[0], None, 2) == 1  # b may be the honest one


NAMES = "abcd"


@st.composite
def queries(draw: st.DrawFn) -> tuple[tuple[Slot, ...], str | None, int | None]:
    parties = st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True).map(tuple)
    tables = [
        Table(number, draw(parties), draw(st.sampled_from([("x",), ("x",), ()])))
        for number in range(draw(st.integers(1, 5)))
    ]
    there = {name for table in tables for name in table.parties}
    honest = draw(st.one_of(st.none(), st.integers(1, len(there))))
    return slots(*tables), draw(st.sampled_from([None, *NAMES])), honest


def left(own: tuple[Slot, ...], slot: Slot, party: str, coalition: set[str]) -> int:
    """Slots that draw, and of which no party that could have the row colludes."""
    assert party not in coalition
    return 1 + sum(
        bool(other.features) and not coalition & set(other.parties)
        for other in own
        if other.index != slot.index
    )


@given(queries())
def test_no_coalition_that_is_covered_leaves_less(
    query: tuple[tuple[Slot, ...], str | None, int | None],
) -> None:
    own, at, honest = query
    for slot in own:
        claimed = honest_slots(own, slot, at, honest)
        least = []
        for party in slot.parties:
            rest = others(own, party, at)
            forced = {at} if at is not None and at != party else set()
            least += [
                left(own, slot, party, forced | set(some))
                for some in combinations(rest, colluding(own, party, at, honest))
            ]
        assert 1 <= claimed <= min(least)
        if all(len(other.parties) == 1 for other in own):
            assert claimed == min(least)
