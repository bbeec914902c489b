"""Expressions that are texts, dates, lists and structs; lambdas and comprehensions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.planner.random.expressions import Place
from tests.planner.random.numbers import Numbers
from tests.planner.random.scopes import variable
from tests.planner.random.world import DATE, LIST, MOMENT, PAIR, TEXT


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
            place, leaf, ((2, changed), (2, called), (2, from_number), (1, chosen), (1, dated))
        )

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
            return f"({self.list(at.deeper())} || [{self.integer(at.deeper())}])"

        return self.choose(
            place,
            leaf,
            ((1, literal), (3, mapped), (2, filtered), (3, comprehension), (1, two), (1, joined)),
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
