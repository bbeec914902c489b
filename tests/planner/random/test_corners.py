"""Statements written by hand, one for each corner of DuckDB's SQL, over the same tables.

What is not marked in tests/fixtures/corners as one that may be refused must be taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.depth import THOROUGH, spread
from tests.planner.random.statements import Statement
from tests.planner.random.truth import EQUAL, UNCLEAR, check
from tests.planner.random.world import SINGLE_ONLY, World, opened

FIXTURES = Path(__file__).parents[2] / "fixtures" / "corners"
SEEDS = (1188, 2001, 910) if THOROUGH else (1188,)
"""Of worlds in which no table is empty."""
NOT_SPLIT = re.compile(rf"\b({'|'.join(SINGLE_ONLY)})\b")
"""Tables that mean something else where a party has several clients."""
MARK = "-- may be refused"


def corners() -> Iterator[tuple[str, bool]]:
    """Statements, and whether each must be taken."""
    for file in sorted(FIXTURES.glob("*.sql")):
        text = re.sub(r"\A(--.*\n)+", "", file.read_text())
        for statement in re.split(r"(?<=;)\n|(?<=refused)\n", text):
            if statement.strip():
                yield statement.removesuffix(MARK).strip().removesuffix(";"), MARK not in statement


CORNERS = tuple(corners())


@pytest.fixture(scope="module", params=SEEDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with opened(request.param) as found:
        yield found


@pytest.mark.parametrize("place", range(0, len(CORNERS), 5))
def test_corners(world: World, place: int) -> None:
    for query, taken in CORNERS[place : place + 5]:
        verdict = check(world, Statement(query, (1, 1, 1), cross=True))
        told = f"{verdict.kind}: {verdict.detail}\n{query}"
        assert verdict.good, told
        assert not taken or verdict.kind in (EQUAL, UNCLEAR), told


@pytest.mark.parametrize("place", spread(range(0, len(CORNERS), 5), 50))
def test_corners_over_several_clients(world: World, place: int) -> None:
    for query in (q for q, _ in CORNERS[place : place + 5] if not NOT_SPLIT.search(q)):
        verdict = check(world, Statement(query, (2, 2, 3), cross=True))
        assert verdict.good, f"{verdict.kind}: {verdict.detail}\n{query}"
