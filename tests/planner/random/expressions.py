"""What all expressions share: the columns that they may name, and how deep they go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.planner.random.draws import Draws
from tests.planner.random.scopes import Scope, columns_of, written


@dataclass(frozen=True)
class Place:
    """Where an expression stands."""

    scope: Scope
    home: str | None
    """The party whose columns it may use; None: any."""
    depth: int = 3

    def deeper(self) -> Place:
        return replace(self, depth=self.depth - 1)

    def inside(self, name: str) -> Place:
        return replace(self, scope=self.scope.inside(name), depth=self.depth - 1)


Production = Callable[[Place], str]


@dataclass
class Expressions:
    """Writes expressions; `seen` gathers what kinds of things the statement has."""

    draws: Draws
    seen: set[str] = field(default_factory=set)

    def note(self, what: str) -> None:
        self.seen.add(what)

    def of(self, type_: str, place: Place) -> str:
        match type_:
            case "INTEGER" | "BIGINT":
                return self.integer(place)
            case "DOUBLE" | "DECIMAL(9,2)":
                return self.number(place)
            case "VARCHAR":
                return self.text(place)
            case "BOOLEAN":
                return self.condition(place)
            case "INTEGER[]":
                return self.list(place)
            case "DATE":
                return self.date(place)
            case "TIMESTAMP":
                return self.moment(place)
        return self.struct(place)

    def column(self, type_: str, place: Place) -> str | None:
        found = columns_of(place.scope, type_, place.home)
        if not found:
            return None
        if self.draws.chance(50):
            names = place.scope.names()
            found = [item for item in found if names[item[2].folded] > 1] or found
        owner, source, column = self.draws.pick(found)
        if owner is not place.scope:
            self.note("outer name")
        return written(self.draws, place.scope, owner, source, column)

    def leaf(self, types: tuple[str, ...], place: Place, otherwise: tuple[str, ...]) -> str:
        known = [t for t in types if columns_of(place.scope, t, place.home)]
        if known and not self.draws.chance(12):
            found = self.column(self.draws.pick(known), place)
            assert found is not None
            return found
        return self.draws.pick(otherwise)

    def choose(
        self, place: Place, leaf: Production, rest: tuple[tuple[int, Production], ...]
    ) -> str:
        if place.depth <= 0:
            return leaf(place)
        return self.draws.weighted(((sum(w for w, _ in rest) // 2 + 1, leaf), *rest))(place)

    def operand(self, text: str) -> str:
        """In parentheses, or trusting in precedence."""
        return text if self.draws.chance(30) else f"({text})"

    # -- written by the classes that build on this one ---------------------------------------------

    def integer(self, place: Place) -> str:
        raise NotImplementedError

    def number(self, place: Place) -> str:
        raise NotImplementedError

    def text(self, place: Place) -> str:
        raise NotImplementedError

    def date(self, place: Place) -> str:
        raise NotImplementedError

    def moment(self, place: Place) -> str:
        raise NotImplementedError

    def list(self, place: Place) -> str:
        raise NotImplementedError

    def struct(self, place: Place) -> str:
        raise NotImplementedError

    def texts(self, place: Place) -> str:
        raise NotImplementedError

    def map(self, place: Place) -> str:
        raise NotImplementedError

    def condition(self, place: Place) -> str:
        raise NotImplementedError

    def scalar_subquery(self, place: Place) -> str:
        raise NotImplementedError

    def subquery_test(self, place: Place) -> str:
        raise NotImplementedError
