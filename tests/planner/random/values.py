"""Expressions that are texts, dates, lists and structs; lambdas and comprehensions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.planner.random.expressions import Place
from tests.planner.random.numbers import Numbers
from tests.planner.random.scopes import variable
from tests.planner.random.world import DATE, INT, LIST, MAP, MOMENT, PAIR, PAIRS, TEXT, TEXTS


@dataclass
class Values(Numbers):
    def text(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            return self.leaf((TEXT,), at, ("'a'", "'1'", "''", "'x''y'", "$$k$$"))

        def changed(at: Place) -> str:
            inner = self.text(at.deeper())
            return self.draws.pick(
                (
                    f"upper({inner})",
                    f"{inner} || 'k'",
                    f"concat({inner}, 'n')",
                    f"({inner})[1:2]",
                    f"{self.integer(at.deeper())} + 1 || {inner}",
                )
            )

        def called(at: Place) -> str:
            self.note("method")
            return self.text_value(at.deeper()) + self.draws.pick((".upper()", ".lower().trim()"))

        def from_number(at: Place) -> str:
            inner = self.integer(at.deeper())
            return self.draws.pick((f"({inner})::VARCHAR", f"CAST({inner} AS VARCHAR)"))

        def chosen(at: Place) -> str:
            a, b = self.text(at.deeper()), self.text(at.deeper())
            return f"CASE WHEN {self.condition(at.deeper())} THEN {a} ELSE {b} END"

        def dated(at: Place) -> str:
            return f"strftime({self.date(at.deeper())}, '%d')"

        return self.choose(
            place,
            leaf,
            (
                (2, changed),
                (2, called),
                (2, from_number),
                (1, chosen),
                (1, dated),
                (1, self._type_of),
                (1, self._of_texts),
            ),
        )

    def _type_of(self, place: Place) -> str:
        self.note("typeof")
        return self.draws.pick(
            (
                f"typeof({self.column(INT, place) or 'NULL'})",
                f"typeof({self.column(TEXT, place) or 'NULL'})",
                f"typeof({self.integer(place.deeper())})",
                f"typeof({self.list(place.deeper())})",
                f"typeof({self.text(place.deeper())})",
            )
        )

    def _of_texts(self, place: Place) -> str:
        found = self.texts(place.deeper())
        return self.draws.pick(
            (f"({found})[1]", f"array_to_string({found}, '')", f"{found}.list_extract(-1)")
        )

    def texts(self, place: Place) -> str:
        """A list of texts."""
        found = self.column(TEXTS, place)
        if found is not None and not self.draws.chance(30):
            self.note("texts")
            return found
        a = self.text(place.deeper())
        return self.draws.pick((f"[{a}]", f"[{a}, NULL]", f"map_keys({self.map(place.deeper())})"))

    def map(self, place: Place) -> str:
        self.note("map")
        found = self.column(MAP, place)
        if found is not None and not self.draws.chance(20):
            return found
        return f"MAP {{'a': ({self.integer(place.deeper())})::INTEGER}}"

    def date(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            return self.leaf((DATE,), at, ("DATE '2024-01-03'", "'2024-01-02'::DATE"))

        def shifted(at: Place) -> str:
            return f"({self.date(at.deeper())} + {self.operand(self.integer_value(at.deeper()))})"

        def cut(at: Place) -> str:
            return f"({self.moment(at.deeper())})::DATE"

        return self.choose(place, leaf, ((1, shifted), (1, cut)))

    def moment(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            literals = ("TIMESTAMP '2024-01-03 01:00:00'", "DATE '2024-01-02'::TIMESTAMP")
            return self.leaf((MOMENT,), at, literals)

        def later(at: Place) -> str:
            return f"({self.moment(at.deeper())} + INTERVAL 1 DAY)"

        return self.choose(place, leaf, ((1, later),))

    # -- lists and structs -------------------------------------------------------------------------

    def list(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            return self.leaf((LIST,), at, ("[1, 2]", "[3]", "range(3)"))

        def literal(at: Place) -> str:
            return f"[{self.integer(at.deeper())}, {self.integer(at.deeper())}]"

        def mapped(at: Place) -> str:
            self.note("lambda")
            name = variable(self.draws, at.scope)
            inner = self.integer(at.inside(name))
            return f"list_transform({self.list(at.deeper())}, lambda {name}: {inner})"

        def filtered(at: Place) -> str:
            self.note("lambda")
            name = variable(self.draws, at.scope)
            inner = self.condition(at.inside(name))
            found = self.list(at.deeper())
            if self.draws.chance(40):
                self.note("method")
                return f"({found}).list_filter(lambda {name}: {inner})"
            return f"list_filter({found}, lambda {name}: {inner})"

        def comprehension(at: Place) -> str:
            self.note("comprehension")
            name = variable(self.draws, at.scope)
            inner = self.integer(at.inside(name))
            test = f" IF {self.condition(at.inside(name))}" if self.draws.chance(40) else ""
            return f"[{inner} FOR {name} IN {self.list(at.deeper())}{test}]"

        def two(at: Place) -> str:
            self.note("lambda")
            a, b = variable(self.draws, at.scope), variable(self.draws, at.scope)
            if a.lower() == b.lower():
                b = "j" if a != "j" else "i"
            inside = replace(at, scope=at.scope.inside(a).inside(b), depth=at.depth - 1)
            return (
                f"list_transform({self.list(at.deeper())}, lambda {a}, {b}: {self.integer(inside)})"
            )

        def joined(at: Place) -> str:
            a, b = self.list(at.deeper()), self.list(at.deeper())
            self.note("list sum")
            return self.draws.pick(
                (
                    f"({a} || [{self.integer(at.deeper())}])",
                    f"({a} + {b})",
                    f"({a} + NULL)",
                    f"list_concat({a}, {b})",
                    f"({a})[2:]",
                )
            )

        def of_map(at: Place) -> str:
            return f"map_values({self.map(at.deeper())})"

        def of_pairs(at: Place) -> str:
            found = self.column(PAIRS, at)
            self.note("pairs")
            return f"[p.f FOR p IN {found}]" if found else f"[({self.struct(at.deeper())}).k]"

        return self.choose(
            place,
            leaf,
            (
                (1, literal),
                (3, mapped),
                (2, filtered),
                (3, comprehension),
                (1, two),
                (3, joined),
                (1, of_map),
                (1, of_pairs),
            ),
        )

    def struct(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            return self.leaf((PAIR,), at, ("{'f': 1, 'k': 2}", "{f: 2, k: 1}"))

        def made(at: Place) -> str:
            a, b = self.integer(at.deeper()), self.integer(at.deeper())
            return self.draws.pick(
                (
                    f"{{'f': ({a})::INTEGER, 'k': ({b})::INTEGER}}",
                    f"struct_pack(f := ({a})::INT, k := 1)",
                )
            )

        return self.choose(place, leaf, ((1, made),))
