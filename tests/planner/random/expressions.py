"""Expressions over the columns of one party, by the type of their value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.planner.random.draws import Draws
from tests.planner.random.scopes import Scope, columns_of, variable, written
from tests.planner.random.world import (
    BIG,
    BOOL,
    DATE,
    DOUBLE,
    INT,
    LIST,
    MOMENT,
    MONEY,
    PAIR,
    ROW,
    TEXT,
)


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
COMPARISONS = ("=", "<", ">", "<=", ">=", "<>", "!=", "==", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


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

    def _choose(self, place: Place, leaf: Production, rest: tuple[tuple[int, Production], ...]) -> str:
        if place.depth <= 0:
            return leaf(place)
        return self.draws.weighted(((sum(w for w, _ in rest) // 2 + 1, leaf), *rest))(place)

    def operand(self, text: str) -> str:
        """In parentheses, or trusting in precedence."""
        return text if self.draws.chance(30) else f"({text})"

    # -- numbers -----------------------------------------------------------------------------------

    def integer(self, place: Place) -> str:
        return self._choose(
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
            ),
        )

    def _integer_leaf(self, place: Place) -> str:
        if place.scope.variables and self.draws.chance(50):
            return place.scope.variables[-1]
        aliases = [c for c in place.scope.aliases if c.type == INT and c.party in (place.home, None)]
        if aliases and self.draws.chance(25):
            self.note("lateral alias")
            return self.draws.pick(aliases).name
        return self.leaf((INT, BIG), place, ("1", "2", "0", "-1", "3"))

    def _arithmetic(self, place: Place) -> str:
        a, b = self.integer(place.deeper()), self.integer(place.deeper())
        operator = self.draws.pick(("+", "-", "*", "% 3 +", "+ 1 -", "// 2 -"))
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

        return self._choose(place, leaf, ((2, halved), (2, rounded), (1, chosen)))

    # -- text, dates -------------------------------------------------------------------------------

    def text(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            return self.leaf((TEXT,), at, ("'a'", "'1'", "''", "'x''y'", "$$k$$"))

        def changed(at: Place) -> str:
            inner = self.text(at.deeper())
            return self.draws.pick(
                (f"upper({inner})", f"{inner} || 'k'", f"concat({inner}, 'n')", f"({inner})[1:2]")
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

        return self._choose(
            place, leaf, ((2, changed), (2, called), (2, from_number), (1, chosen), (1, dated))
        )

    def date(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            return self.leaf((DATE,), at, ("DATE '2024-01-03'", "'2024-01-02'::DATE"))

        def shifted(at: Place) -> str:
            return f"({self.date(at.deeper())} + {self.operand(self.integer_value(at.deeper()))})"

        def cut(at: Place) -> str:
            return f"({self.moment(at.deeper())})::DATE"

        return self._choose(place, leaf, ((1, shifted), (1, cut)))

    def moment(self, place: Place) -> str:
        def leaf(at: Place) -> str:
            literals = ("TIMESTAMP '2024-01-03 01:00:00'", "DATE '2024-01-02'::TIMESTAMP")
            return self.leaf((MOMENT,), at, literals)

        def later(at: Place) -> str:
            return f"({self.moment(at.deeper())} + INTERVAL 1 DAY)"

        return self._choose(place, leaf, ((1, later),))

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
            return f"list_transform({self.list(at.deeper())}, lambda {a}, {b}: {self.integer(inside)})"

        def joined(at: Place) -> str:
            return f"({self.list(at.deeper())} || [{self.integer(at.deeper())}])"

        return self._choose(
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
                (f"{{'f': ({a})::INTEGER, 'k': ({b})::INTEGER}}", f"struct_pack(f := ({a})::INT, k := 1)")
            )

        return self._choose(place, leaf, ((1, made),))

    # -- conditions --------------------------------------------------------------------------------

    def condition(self, place: Place) -> str:
        return self._choose(
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
        b, c = self.operand(self.integer(place.deeper())), self.operand(self.integer(place.deeper()))
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
            (f"({a} OR {b})", f"({a}) AND ({b})", f"NOT ({a})", f"NOT ({a} AND {b})", f"({a}) = ({b})")
        )

    def _rows(self, place: Place) -> str:
        a, b, c = (self.integer(place.deeper()) for _ in range(3))
        return self.draws.pick(
            (f"({a}, {b}) = ({c}, {b})", f"({a}, 1) < ({b}, {c})", f"({a}, {b}) IN (({c}, 1), (1, 2))")
        )

    def _of_lists(self, place: Place) -> str:
        found, a = self.list(place.deeper()), self.integer(place.deeper())
        return self.draws.pick(
            (f"list_contains({found}, {a})", f"{self.operand(a)} IN ({found})" if found[0] == "[" else
             f"len({found}) > 1", f"{self.operand(a)} = ANY({found})")
        )

    # -- subqueries, which another module writes ---------------------------------------------------

    def scalar_subquery(self, place: Place) -> str:
        raise NotImplementedError

    def subquery_test(self, place: Place) -> str:
        raise NotImplementedError
