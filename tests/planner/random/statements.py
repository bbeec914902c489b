"""Whole statements: blocks over several parties, unions of them, WITH in front."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tests.planner.random.draws import Draws
from tests.planner.random.expressions import Place
from tests.planner.random.queries import Queries
from tests.planner.random.scopes import Column
from tests.planner.random.sources import From
from tests.planner.random.world import BIG, DOUBLE, INT, LAYOUTS, MONEY, PARTIES

NUMBERS = (INT, BIG, DOUBLE, MONEY)


@dataclass(frozen=True)
class Statement:
    """A query, and what is asked of it."""

    query: str
    layout: tuple[int, int, int]
    """Clients of each party."""
    target: str | None = None
    identifiers: tuple[tuple[str, ...], ...] = ()
    """Paths of columns that PREDICT is to return."""
    identified: str | None = None
    """The query for the central database, which shows the identifiers after all else."""
    cross: bool = False
    """Cross products are allowed."""
    weight: str | None = None
    split: bool = False
    """Rows for validation are to be drawn."""
    seen: frozenset[str] = frozenset()
    """What kinds of things it has."""

    def __str__(self) -> str:
        asked = f"target {self.target}, " if self.target else ""
        asked += f"weight {self.weight}, " if self.weight else ""
        asked += "split, " if self.split else ""
        asked += (
            f"ID {', '.join('.'.join(i) for i in self.identifiers)}, " if self.identifiers else ""
        )
        return f"{asked}clients {self.layout}, cross joins {self.cross}\n{self.query}"


@dataclass
class Statements(Queries):
    def statement(self) -> Statement:
        layout = self.draws.weighted(tuple(zip((6, 2, 1, 1), LAYOUTS, strict=True)))
        self.single = tuple(p for p, n in zip(PARTIES, layout, strict=True) if n == 1)
        parties = self.draws.weighted(((6, PARTIES), (2, ("a", "b")), (2, ("a",)), (1, ("b", "c"))))
        cross = self.draws.chance(40)
        depth = self.draws.weighted(((4, 1), (4, 2), (1, 3)))
        kind = self.draws.weighted(((10, "block"), (2, "union"), (2, "identified")))
        before = ""
        for _ in range(self.draws.weighted(((10, 0), (3, 1), (1, 2)))):
            party = self.draws.pick((*((p,) for p in parties), parties))
            text, cte = self.cte(party, depth)
            self.ctes.append(cte)
            before += f", {text}" if before else f"WITH {text}"
        if "RECURSIVE" in before:
            before = before.replace("RECURSIVE ", "").replace("WITH ", "WITH RECURSIVE ", 1)
        before += " " if before else ""
        if kind == "union":
            query, columns = self._union_of_blocks(parties, depth)
            return self._asked(before + query, columns, layout, cross)
        found = self.from_(parties, None, depth, 1 + self.draws.below(4))
        if kind == "identified":
            return self._identified(before, found, layout, cross, depth)
        if len(parties) == 1 and self.draws.chance(40):
            self.note("whole")
            query, columns = self.derived(parties, None, depth)
        else:
            query, columns = self.plain(found, depth, top=True)
        if self.draws.chance(4):
            self.note("order")
            query += f" ORDER BY {columns[0].name}" if columns else ""
        return self._asked(before + query, columns, layout, cross)

    def _asked(
        self, query: str, columns: tuple[Column, ...], layout: tuple[int, int, int], cross: bool
    ) -> Statement:
        numbers = [c.name.strip('"') for c in columns if c.type in NUMBERS]
        if self.draws.chance(5):
            self.note("comment")
            comments = ("SELECT /* FROM a.t, 'x */", "SELECT -- it's ( one\n", "SELECT\n\t")
            query = query.replace("SELECT", self.draws.pick(comments), 1)
        if not numbers or len(columns) < 2 or not self.draws.chance(50):
            return Statement(query, layout, cross=cross, seen=frozenset(self.seen))
        target = self.draws.pick(numbers)
        if self.draws.chance(10):
            target = target.replace("ß", "ẞ").upper()  # SS is another name
        others = [name for name in numbers if name.lower() != target.lower()]
        weight = self.draws.pick(others) if others and self.draws.chance(20) else None
        split = self.draws.chance(15)
        self.seen |= (
            {"target"} | ({"weight"} if weight else set()) | ({"split"} if split else set())
        )
        return Statement(
            query,
            layout,
            target,
            cross=cross,
            weight=weight,
            split=split,
            seen=frozenset(self.seen),
        )

    def _identified(
        self, before: str, found: From, layout: tuple[int, int, int], cross: bool, depth: int
    ) -> Statement:
        self.note("identifiers")
        items, columns = self.items(found.scope, (), depth, top=True)
        where = self.where(found, depth)
        known = [(s, c) for s, c in found.scope.columns if c.party in PARTIES and '"' not in c.name]
        chosen = self.draws.some(known, 1, 2) if known else []
        shown = [f"{s.alias}.{c.name} AS sqlfl_{n}" for n, (s, c) in enumerate(chosen)]
        ends = f" FROM {found.text}{where}"
        numbers = [c.name.strip('"') for c in columns if c.type in NUMBERS]
        return Statement(
            f"{before}SELECT {', '.join(items)}{ends}",
            layout,
            self.draws.pick(numbers) if numbers and self.draws.chance(50) else None,
            tuple((s.alias.strip('"'), c.name) for s, c in chosen),
            f"{before}SELECT {', '.join([*items, *shown])}{ends}",
            cross,
            seen=frozenset(self.seen),
        )

    def _union_of_blocks(
        self, parties: tuple[str, ...], depth: int
    ) -> tuple[str, tuple[Column, ...]]:
        """Blocks over the same FROM, each with expressions and conditions of its own."""
        self.note("union of blocks")
        found = self.from_(parties, None, 1, 2)
        items, columns = self.items(found.scope, (), depth, top=True)
        parts = [f"SELECT {', '.join(items)} FROM {found.text}{self.where(found, depth)}"]
        by_name = self.draws.chance(25)
        order = list(range(len(columns)))
        for _ in range(1 + self.draws.below(2)):
            if by_name:
                self.note("by name")
                order = self.draws.some(range(len(columns)), 1)
            texts = []
            for n in order:
                value = self.of(columns[n].type, Place(found.scope, columns[n].party, depth))
                name = f" AS {columns[n].name}" if by_name or self.draws.chance(50) else ""
                texts.append(f"{value}{name}")
            parts.append(f"SELECT {', '.join(texts)} FROM {found.text}{self.where(found, depth)}")
        return (" UNION ALL BY NAME " if by_name else " UNION ALL ").join(parts), tuple(columns)


def made(source: Random | list[int]) -> tuple[Statement, list[int]]:
    """A statement and the choices that it comes from."""
    draws = Draws(source)
    statement = Statements(draws).statement()
    return replace(statement, seen=frozenset(statement.seen)), draws.made
