"""Select lists, with stars of every kind, and plain SELECTs over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.planner.random.expressions import Place
from tests.planner.random.scopes import Column, Scope, Source, fresh, name_of
from tests.planner.random.sources import From, Sources
from tests.planner.random.world import BIG, BOOL, DATE, DOUBLE, INT, LIST, PAIR, TEXT

SHOWN = (INT, BIG, DOUBLE, TEXT, BOOL)
"""Types that a feature can have."""


@dataclass
class Selects(Sources):
    def plain(
        self, found: From, depth: int, *, stars: bool = True, top: bool = False
    ) -> tuple[str, tuple[Column, ...]]:
        """SELECT ... FROM ... WHERE; `top`: every column is of a type that a feature can have."""
        star = stars and self.draws.chance(25)
        parts, columns = (
            self.star(found.scope, top) if star else self.items(found.scope, (), depth, top=top)
        )
        where = self.where(found, depth, columns)
        if self.draws.chance(10):
            self.note("from first")
            if star and parts == ["*"] and self.draws.chance(50):
                return f"FROM {found.text}{where}", tuple(columns)
            return f"FROM {found.text} SELECT {', '.join(parts)}{where}", tuple(columns)
        trailing = "," if self.draws.chance(3) else ""
        return f"SELECT {', '.join(parts)}{trailing} FROM {found.text}{where}", tuple(columns)

    def where(self, found: From, depth: int, columns: Sequence[Column] = ()) -> str:
        parts = list(found.conditions)
        scope = found.scope
        if columns and self.draws.chance(10):
            scope = replace(scope, aliases=tuple(columns))
        while self.draws.chance(30) and len(parts) < 4:
            parts.append(self.one_sided(scope, min(depth, 2)))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def items(
        self, scope: Scope, parties: tuple[str, ...], depth: int, *, top: bool = False
    ) -> tuple[list[str], list[Column]]:
        """Expressions with names; each over one party's columns."""
        texts: list[str] = []
        columns: list[Column] = []
        for _ in range((2 if top else 1) + self.draws.below(3)):
            homes = [p for p in scope.parties() if not parties or p in parties]
            home = self.draws.pick(homes) if homes else None
            place = Place(replace(scope, aliases=tuple(columns)), home, min(depth, 3))
            if scope.equal and not parties and self.draws.chance(40):
                text, column = self._of_equal(scope, columns)
            elif len(scope.parties()) > 1 and not parties and self.draws.chance(8):
                text, column = self._interaction(scope, columns)
            else:
                text, column = self._named(place, columns, top)
            texts.append(text)
            columns.append(column)
        return texts, columns

    def _named(self, place: Place, before: Sequence[Column], top: bool) -> tuple[str, Column]:
        own = [
            (source, column)
            for source, column in place.scope.columns
            if column.party in (place.home, None) and (not top or column.type in SHOWN)
        ]
        taken = [column.name for column in before]
        if own and self.draws.chance(40):
            source, column = self.draws.pick(own)
            if column.folded not in {name.strip('"').lower() for name in taken}:
                merged = any(c.folded == column.folded for c in place.scope.merged)
                plain = (
                    merged or sum(c.folded == column.folded for _, c in place.scope.columns) == 1
                )
                way = "bare" if plain and self.draws.chance(50) else "qualified"
                return name_of(way, source, column), column
        if self.draws.chance(3):
            return self._several_rows(place, taken)
        types = (INT, INT, INT, TEXT, DOUBLE, BOOL)
        type_ = self.draws.pick(types if top else (*types, LIST, PAIR, DATE))
        near = [name for source, c in own for name in (c.name, source.alias)]
        text, name = self.of(type_, place), fresh(self.draws, taken, near=near)
        column = Column(name, type_, place.home)
        if self.draws.chance(5):
            self.note("prefix alias")
            return f"{name}: {text}", column
        return f"{text} {self.draws.weighted(((9, 'AS '), (1, '')))}{name}", column

    def _of_equal(self, scope: Scope, before: Sequence[Column]) -> tuple[str, Column]:
        """A value that a FULL JOIN makes of a column of each side."""
        self.note("column of a full join")
        text, column = self.draws.pick(scope.equal)
        name = fresh(self.draws, [c.name for c in before])
        return f"{text} AS {name}", replace(column, name=name)

    def _interaction(self, scope: Scope, before: Sequence[Column]) -> tuple[str, Column]:
        """A value of two parties' columns."""
        self.note("interaction")
        a, b = (Place(scope, home, 1) for home in self.draws.some(scope.parties(), 2, 2))
        test, value = self.condition(a), self.integer(b)
        types = {
            f"CASE WHEN {test} THEN {value} ELSE {self.integer(b)} END": INT,
            f"({test}) AND ({self.condition(b)})": BOOL,
            f"coalesce({self.integer(a)}, {value})": INT,
            f"if({test}, {self.text(b)}, 'x')": TEXT,
            f"{self.operand(self.integer(a))} * {self.operand(value)}": INT,
            f"{self.operand(self.integer(a))} = {self.operand(value)}": BOOL,
        }
        text = self.draws.pick(tuple(types))
        name = fresh(self.draws, [column.name for column in before])
        return f"{text} AS {name}", Column(name, types[text], f"{a.home}{b.home}")

    def _several_rows(self, place: Place, taken: Sequence[str]) -> tuple[str, Column]:
        """A function that gives several rows, or none, for one."""
        self.note("several rows")
        found = self.list_value(place.deeper())
        text = self.draws.pick((f"unnest({found})", f"generate_subscripts({found}, 1)"))
        name = fresh(self.draws, taken)
        return f"{text} AS {name}", Column(name, BIG, place.home)

    # -- stars -------------------------------------------------------------------------------------

    def star(self, scope: Scope, top: bool) -> tuple[list[str], Sequence[Column]]:
        """`*` or `t.*`, with EXCLUDE, RENAME and REPLACE, so that no name comes twice."""
        self.note("star")
        if self.draws.chance(10):
            return self._matching(scope, top)
        source: Source | None = None
        if len(scope.sources) > 1 and self.draws.chance(40):
            source = self.draws.pick(scope.sources)
        shown = list(scope.shown() if source is None else source.columns)
        text = "*" if source is None else f"{source.alias}.*"
        away = [] if source is not None else self._repeated(scope)
        gone = {(s.alias, c.folded) for s, c, _ in away}
        shown = self._left(scope, gone) if away else shown
        names = [written for _, _, written in away]
        if not [c for c in shown if not top or c.type in SHOWN]:
            return self.items(scope, (), 1, top=top)
        heavy = [c for c in shown if top and c.type not in SHOWN]
        if self.draws.chance(25) and len(shown) > len(heavy) + 1:
            heavy.append(self.draws.pick([c for c in shown if c not in heavy]))
        names += [c.name for c in heavy]
        shown = [c for c in shown if c not in heavy]
        if names:
            self.note("exclude")
            word = self.draws.pick(("EXCLUDE", "EXCLUDE", "EXCEPT"))
            text += f" {word} ({', '.join(names)})"
        text, shown = self._replaced(scope, text, shown)
        text, shown = self._renamed(text, shown, scope, source)
        return [text], tuple(shown)

    def _matching(self, scope: Scope, top: bool) -> tuple[list[str], Sequence[Column]]:
        """Columns whose names match a pattern."""
        self.note("columns")
        names = [c.name for c in scope.shown() if c.type in SHOWN and '"' not in c.name]
        if not names:
            return self.items(scope, (), 1, top=top)
        name = self.draws.pick(names)
        shown = [column for column in scope.shown() if column.folded == name.lower()]
        way = self.draws.pick(
            ("COLUMNS('^{}$')", "* LIKE '{}'", "* SIMILAR TO '{}'", "* ILIKE '{}'")
        )
        more = "" if self.draws.chance(50) else ", 1 AS one"
        columns = [*shown, *([Column("one", INT, None)] if more else [])]
        return [way.format(name) + more], columns

    def _repeated(self, scope: Scope) -> list[tuple[Source, Column, str]]:
        """Columns to exclude: all but one of each name, called by their tables."""
        found: list[tuple[Source, Column, str]] = []
        merged = {column.folded for column in scope.merged}
        seen = set(merged)
        for source, column in scope.columns:
            if column.folded in merged:
                continue
            if column.folded in seen:
                found.append((source, column, f"{source.alias}.{column.name}"))
            seen.add(column.folded)
        return found

    @staticmethod
    def _left(scope: Scope, gone: set[tuple[str, str]]) -> list[Column]:
        merged = {column.folded for column in scope.merged}
        rest = [
            column
            for source, column in scope.columns
            if column.folded not in merged and (source.alias, column.folded) not in gone
        ]
        return [*scope.merged, *rest]

    def _replaced(self, scope: Scope, text: str, shown: list[Column]) -> tuple[str, list[Column]]:
        numbers = [c for c in shown if c.type == INT]
        if not numbers or not self.draws.chance(20):
            return text, shown
        self.note("replace")
        column = self.draws.pick(numbers)
        value = self.integer(Place(scope, column.party, 1))
        return f"{text} REPLACE ({value} AS {column.name})", shown

    def _renamed(
        self, text: str, shown: list[Column], scope: Scope, source: Source | None
    ) -> tuple[str, list[Column]]:
        if not shown or not self.draws.chance(20):
            return text, shown
        self.note("rename")
        column = self.draws.pick(shown)
        owner = next((s.alias for s, c in scope.columns if c is column), None)
        called = column.name
        if owner is not None and self.draws.chance(30):
            called = f"{owner}.{column.name}"
        near = [c.name for _, c in scope.columns]
        name = fresh(self.draws, [c.name for c in shown], near=near)
        after = [replace(c, name=name) if c is column else c for c in shown]
        return f"{text} RENAME ({called} AS {name})", after
