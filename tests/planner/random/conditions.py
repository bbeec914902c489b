"""Expressions that are true or false."""

from __future__ import annotations

from dataclasses import dataclass

from tests.planner.random.expressions import Place
from tests.planner.random.values import Values
from tests.planner.random.world import BOOL, DATE, DOUBLE, INT, LIST, TEXT

DISTINCT = ("IS DISTINCT FROM", "IS NOT DISTINCT FROM")
COMPARISONS = ("=", "<", ">", "<=", ">=", "<>", "!=", "==", *DISTINCT)


@dataclass
class Conditions(Values):
    def condition(self, place: Place) -> str:
        return self.choose(
            place,
            self._comparison,
            (
                (3, self._null_test),
                (2, self._membership),
                (2, self._pattern),
                (2, self._combined),
                (2, self._rows),
                (2, self._of_lists),
                (4, self.subquery_test),
            ),
        )

    def _comparison(self, place: Place) -> str:
        type_ = self.draws.pick((INT, INT, DOUBLE, TEXT, DATE, BOOL))
        if type_ == BOOL:
            found = self.column(BOOL, place)
            if found is not None:
                return found
            type_ = INT
        at = place.deeper()
        a, b = self.of(type_, at), self.of(type_, at)
        return f"{self.operand(a)} {self.draws.pick(COMPARISONS)} {self.operand(b)}"

    def _null_test(self, place: Place) -> str:
        type_ = self.draws.pick((INT, TEXT, DOUBLE, LIST))
        tests = ("IS NULL", "IS NOT NULL", "ISNULL", "NOTNULL")
        return f"{self.operand(self.of(type_, place.deeper()))} {self.draws.pick(tests)}"

    def _membership(self, place: Place) -> str:
        a = self.operand(self.integer(place.deeper()))
        b = self.operand(self.integer(place.deeper()))
        c = self.operand(self.integer(place.deeper()))
        return self.draws.pick(
            (
                f"{a} IN ({b}, {c})",
                f"{a} BETWEEN {b} AND {c}",
                f"{a} NOT IN ({b}, 2)",
                f"{a} NOT BETWEEN {b} AND {c}",
                f"{a} IN ({b})",
            )
        )

    def _pattern(self, place: Place) -> str:
        a = self.operand(self.text(place.deeper()))
        return self.draws.pick(
            (
                f"{a} LIKE '%1%'",
                f"{a} NOT LIKE 'a%'",
                f"{a} GLOB '[0-9]*'",
                f"{a} ILIKE 'b%'",
                f"{a} SIMILAR TO '[a-z]+'",
                f"regexp_matches({a}, '^.$')",
                f"starts_with({a}, '1')",
                f"{a} ~ '.*1'",
            )
        )

    def _combined(self, place: Place) -> str:
        a, b = self.condition(place.deeper()), self.condition(place.deeper())
        return self.draws.pick(
            (
                f"({a} OR {b})",
                f"({a}) AND ({b})",
                f"NOT ({a})",
                f"NOT ({a} AND {b})",
                f"({a}) = ({b})",
                f"{a} AND {b}",
                f"NOT {a}",
                f"({a}) IS NOT TRUE",
            )
        )

    def _rows(self, place: Place) -> str:
        a, b, c = (self.integer(place.deeper()) for _ in range(3))
        return self.draws.pick(
            (
                f"({a}, {b}) = ({c}, {b})",
                f"({a}, 1) < ({b}, {c})",
                f"({a}, {b}) IN (({c}, 1), (1, 2))",
            )
        )

    def _of_lists(self, place: Place) -> str:
        found, a = self.list(place.deeper()), self.integer(place.deeper())
        return self.draws.pick(
            (
                f"list_contains({found}, {a})",
                f"{self.operand(a)} IN ({found})" if found[0] == "[" else f"len({found}) > 1",
                f"{self.operand(a)} = ANY({found})",
                f"{self.operand(a)} <> ALL({found})",
                f"{self.operand(a)} = ANY([{a}, {a}])",
                f"{self.operand(self.text(place.deeper()))} = ANY({self.texts(place.deeper())})",
                f"({found} + [{a}])[2] = {a}",
            )
        )
