"""Expressions that are numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.planner.random.expressions import Expressions, Place
from tests.planner.random.world import BIG, DOUBLE, INT, LIST, MONEY, PAIR, PAIRS, ROW, TEXT, UNLIKE


@dataclass
class Numbers(Expressions):
    def integer(self, place: Place) -> str:
        return self.choose(
            place,
            self._integer_leaf,
            (
                (4, self._arithmetic),
                (3, self._case),
                (3, self._function),
                (3, self._method),
                (2, self._macro),
                (2, self._field),
                (3, self._of_list),
                (3, self.scalar_subquery),
                (1, self._cast_to_integer),
                (1, self._of_text),
                (1, self._of_date),
                (2, self._of_map),
                (2, self._of_unlike),
            ),
        )

    def _integer_leaf(self, place: Place) -> str:
        if place.scope.variables and self.draws.chance(50):
            return place.scope.variables[-1]
        aliases = [
            c for c in place.scope.aliases if c.type == INT and c.party in (place.home, None)
        ]
        if aliases and self.draws.chance(25):
            self.note("lateral alias")
            return self.draws.pick(aliases).name
        return self.leaf((INT, BIG), place, ("1", "2", "0", "-1", "3"))

    def _arithmetic(self, place: Place) -> str:
        a, b = self.integer(place.deeper()), self.integer(place.deeper())
        if self.draws.chance(12):  # two signs would begin a comment
            a = self.operand(a) if not a.startswith("-") else f"({a})"
            return self.draws.pick(("-{}", "- {} % 2", "-{}::INTEGER", "-{}::VARCHAR::INT")).format(
                a
            )
        operator = self.draws.pick(("+", "-", "*", "% 3 +", "+ 1 -", "// 2 -", "&", "|"))
        return f"{self.operand(a)} {operator} {self.operand(b)}"

    def _case(self, place: Place) -> str:
        self.note("case")
        test, a = self.condition(place.deeper()), self.integer(place.deeper())
        b = self.integer(place.deeper())
        return self.draws.pick(
            (
                f"CASE WHEN {test} THEN {a} ELSE {b} END",
                f"CASE {a} WHEN 1 THEN {b} WHEN {b} THEN 2 END",
                f"if({test}, {a}, {b})",
                f"coalesce({a}, {b})",
                f"nullif({a}, {b})",
            )
        )

    def _function(self, place: Place) -> str:
        a, b = self.integer(place.deeper()), self.integer(place.deeper())
        prefix = self.draws.weighted(((6, ""), (1, "main."), (1, "system.main.")))
        if prefix:
            self.note("qualified function")
        return self.draws.pick(
            (
                f"{prefix}abs({a})",
                f"{prefix}greatest({a}, {b})" if not prefix else f"{prefix}abs({b})",
                f"least({a}, {b})",
                f"{prefix}sign({a})::INTEGER",
                f"{prefix}mod({a}, 3)",
            )
        )

    def _method(self, place: Place) -> str:
        self.note("method")
        a = self.integer_value(place.deeper())
        return self.draws.pick(
            (
                f"{a}.abs()",
                f"{a}.plus(2)",
                f"{a}.abs().plus({self.integer(place.deeper())})",
                f"{a}.pick({self.integer(place.deeper())})",
                f"{self.text_value(place.deeper())}.length()",
                f"{self.list_value(place.deeper())}.len()",
            )
        )

    def integer_value(self, place: Place) -> str:
        """A column, or something in parentheses: what a method can be called on."""
        return self.column(INT, place) or f"({self.integer(place)})"

    def text_value(self, place: Place) -> str:
        return self.column(TEXT, place) or f"({self.text(place)})"

    def list_value(self, place: Place) -> str:
        return self.column(LIST, place) or self.list(replace(place, depth=1))

    def _macro(self, place: Place) -> str:
        self.note("macro")
        a, b = self.integer(place.deeper()), self.integer(place.deeper())
        return self.draws.pick(
            (
                f"plus({a})",
                f"main.plus({a})",
                f"plus({a}, k := {b})",
                f"pick({a}, {b})",
                f"total({a})",
                f"Pick(k := {a}, n := {b})",
            )
        )

    def _field(self, place: Place) -> str:
        self.note("field")
        pair = self.column(PAIR, place)
        row = self.column(ROW, place)
        if pair is None and row is None:
            name = self.draws.pick(("f", "k", "n"))
            return f"({{'{name}': {self.integer(place.deeper())}, 'x': 2}}).{name}"
        value, names = (pair, ("f", "k")) if pair is not None else (row, ("n", "k", "id"))
        name = self.draws.pick(names)
        return self.draws.pick(
            (
                f"{value}.{name}",
                f"({value}).{name}",
                f"{value}['{name}']",
                f"struct_extract({value}, '{name}')",
                f"{value}.{name}.abs()",
            )
        )

    def _of_list(self, place: Place) -> str:
        found = self.list(place.deeper())
        return self.draws.pick(
            (
                f"len({found})",
                f"list_sum({found})",
                f"({found})[1]",
                f"list_max({found})",
                f"list_reduce([0] || {found}, lambda k, n: k + n)",
                f"coalesce(list_position({found}, {self.integer(place.deeper())}), 0)",
            )
        )

    def _of_map(self, place: Place) -> str:
        found, pairs = self.map(place.deeper()), self.column(PAIRS, place)
        texts = self.texts(place.deeper())
        return self.draws.pick(
            (
                f"({found})['a']",
                f"map_extract({found}, 'b')[1]",
                f"cardinality({found})::INTEGER",
                f"element_at({found}, {self.text(place.deeper())})[1]",
                f"len({texts})",
                f"{pairs}[1].f" if pairs else f"len({texts})",
            )
        )

    def _of_unlike(self, place: Place) -> str:
        """A column that each database of its party types for itself, cast."""
        found = self.column(UNLIKE, place)
        if found is None:
            return self._of_list(place)
        self.note("unlike")
        return self.draws.pick((f"{found}::INTEGER", f"CAST({found} AS BIGINT)"))

    def _cast_to_integer(self, place: Place) -> str:
        value = self.draws.pick((self.text, self.number, self.condition))(place.deeper())
        return self.draws.pick((f"TRY_CAST({value} AS INTEGER)", f"try_cast(({value}) AS BIGINT)"))

    def _of_text(self, place: Place) -> str:
        value = self.text(place.deeper())
        return self.draws.pick((f"length({value})", f"strpos({value}, '1')", f"ascii({value})"))

    def _of_date(self, place: Place) -> str:
        value = self.date(place.deeper())
        return self.draws.pick(
            (
                f"extract(day FROM {value})",
                f"date_diff('day', DATE '2024-01-01', {value})",
                f"month({value})",
                f"date_part('dow', {value})",
            )
        )

    def number(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            return self.leaf((DOUBLE, MONEY), at, ("0.5", "1.5", "2e0", "1"))

        def halved(at: Place) -> str:
            return f"{self.operand(self.integer(at.deeper()))} / 2"

        def rounded(at: Place) -> str:
            return self.draws.pick(("round({}, 1)", "({}) * 0.5", "-({})", "({})::DOUBLE")).format(
                self.number(at.deeper())
            )

        def chosen(at: Place) -> str:
            return f"CASE WHEN {self.condition(at.deeper())} THEN {self.number(at.deeper())} END"

        def unlike(at: Place) -> str:
            found = self.column(UNLIKE, at)
            return halved(at) if found is None else f"{found}::DOUBLE"

        return self.choose(place, leaf, ((2, halved), (2, rounded), (1, chosen), (2, unlike)))
