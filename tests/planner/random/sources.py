"""What stands in FROM: tables, derived tables, functions, and all the ways to join them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.planner.random.conditions import Conditions
from tests.planner.random.expressions import Place
from tests.planner.random.scopes import POOL, Column, Scope, Source, columns_of, fresh, written
from tests.planner.random.world import (
    BIG,
    BOOL,
    DATE,
    DOUBLE,
    HUGE,
    IDENTIFIER,
    INT,
    MOMENT,
    MONEY,
    MOOD,
    PARTIES,
    SINGLE_ONLY,
    TABLES,
    TEXT,
    TIME,
    VIEWS,
    ZONED,
    ZONED_TIME,
    Table,
)

JOINABLE = (INT, BIG)
ANY = (INT, BIG, TEXT, DOUBLE, MONEY, HUGE, MOOD)
PAIRS = (
    ((TEXT,), (TEXT,)),
    ((DOUBLE, MONEY), JOINABLE),
    ((DATE,), (DATE, MOMENT)),
    ((MOMENT,), (DATE,)),
    ((TEXT,), JOINABLE),
    ((BOOL,), (BOOL,)),
    ((MONEY,), (DOUBLE,)),
    ((HUGE,), JOINABLE),
    (JOINABLE, (HUGE,)),
    ((MOOD,), (TEXT, MOOD)),
    ((ZONED,), (MOMENT, DATE)),
    ((IDENTIFIER,), (IDENTIFIER,)),
    ((TIME,), (TIME, ZONED_TIME)),
    ((ZONED_TIME,), (TIME,)),
)
"""Types of the two sides of an equality, which are compared as a common type."""


@dataclass(frozen=True)
class From:
    """The text after FROM, what it names, and the conditions that its commas need in WHERE."""

    text: str
    scope: Scope
    conditions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cte:
    name: str
    columns: tuple[Column, ...]
    unstable: bool = False
    """It may have other rows each time that it is evaluated."""


@dataclass
class Sources(Conditions):
    single: tuple[str, ...] = PARTIES
    """Parties of one client."""
    ctes: list[Cte] = field(default_factory=list)

    # -- items -------------------------------------------------------------------------------------

    def tables(self, parties: tuple[str, ...]) -> list[Table]:
        return [
            table
            for table in (*TABLES, *VIEWS)
            if table.party in parties
            and (table.party in self.single or table.path not in SINGLE_ONLY)
        ]

    def item(
        self, parties: tuple[str, ...], taken: tuple[str, ...], outer: Scope | None, depth: int
    ) -> tuple[str, Source]:
        """An item of FROM and its name, which is none of `taken`."""
        known = [cte for cte in self.ctes if {c.party for c in cte.columns} <= {*parties, None}]
        rest, local = int(depth > 0), int(len(parties) == 1)
        kind = self.draws.weighted(
            (
                (20, "table"),
                (18 * rest, "derived"),
                (20 if any(cte.unstable for cte in known) else 6 * bool(known), "cte"),
                (2 * local, "range"),
                (1 + local, "values"),
                (local, "macro"),
            )
        )
        if kind == "derived":
            return self._derived(parties, taken, outer, depth)
        if kind == "cte":
            return self._cte(self.draws.pick(known), taken)
        if kind == "range":
            return self._range(taken)
        if kind == "values":
            return self._values(taken)
        if kind == "macro" and "a" in parties:
            return self._table_macro(taken)
        tables = self.tables(parties)
        return self._table(self.draws.pick(tables), taken) if tables else self._values(taken)

    def alias(self, taken: tuple[str, ...], wanted: str | None = None) -> str:
        folded = {name.strip('"').lower() for name in taken}
        if wanted is not None and wanted.strip('"').lower() not in folded and self.draws.chance(40):
            return wanted
        return fresh(self.draws, taken, "q")

    def _table(self, table: Table, taken: tuple[str, ...]) -> tuple[str, Source]:
        columns = tuple(Column(name, type_, table.party) for name, type_ in table.columns)
        if "." in table.path:
            self.note("three parts")
        if {HUGE, MOOD, ZONED, IDENTIFIER, TIME, ZONED_TIME} & {
            type_ for _, type_ in table.columns
        }:
            self.note("rare types")
        bare = table.name.strip('"').lower() not in {name.strip('"').lower() for name in taken}
        if bare and not self.draws.chance(60):
            return table.text, Source(table.name, columns, table.text)
        alias = self.alias(taken, table.name)
        if self.draws.chance(10):
            self.note("column aliases")
            count = 1 + self.draws.below(len(columns))
            names: list[str] = []
            for _ in range(count):
                names.append(fresh(self.draws, names))
            columns = tuple(
                replace(c, name=names[n]) if n < count else c for n, c in enumerate(columns)
            )
            return f"{table.text} AS {alias}({', '.join(names)})", Source(alias, columns)
        between = self.draws.pick((" AS ", " "))
        return f"{table.text}{between}{alias}", Source(alias, columns)

    def _derived(
        self, parties: tuple[str, ...], taken: tuple[str, ...], outer: Scope | None, depth: int
    ) -> tuple[str, Source]:
        self.note("derived")
        text, columns = self.derived(parties, outer, depth - 1)
        alias = self.alias(taken, self.draws.pick(POOL))
        if self.draws.chance(10):
            self.note("column aliases")
            names: list[str] = []
            for _ in columns:
                names.append(fresh(self.draws, names))
            columns = tuple(replace(c, name=n) for c, n in zip(columns, names, strict=True))
            return f"({text}) AS {alias}({', '.join(names)})", Source(alias, columns)
        return f"({text}) {self.draws.pick(('', 'AS '))}{alias}", Source(alias, columns)

    def _cte(self, cte: Cte, taken: tuple[str, ...]) -> tuple[str, Source]:
        self.note("unstable cte" if cte.unstable else "cte")
        if cte.name not in taken and not self.draws.chance(50):
            return cte.name, Source(cte.name, cte.columns)
        alias = self.alias(taken, cte.name)
        return f"{cte.name} AS {alias}", Source(alias, cte.columns)

    def _range(self, taken: tuple[str, ...]) -> tuple[str, Source]:
        self.note("table function")
        alias = self.alias(taken, "r")
        if self.draws.chance(60):
            name = self.draws.pick(("i", *POOL))
            return f"range(3) {alias}({name})", Source(alias, (Column(name, BIG, None),))
        return f"range(2) {alias}", Source(alias, (Column(alias, BIG, None),))

    def _values(self, taken: tuple[str, ...]) -> tuple[str, Source]:
        self.note("values")
        alias = self.alias(taken)
        names = [self.draws.pick(POOL)]
        names.append(fresh(self.draws, names))
        columns = tuple(Column(name, INT, None) for name in names)
        rows = self.draws.pick(("(1, 2), (2, 3)", "(1, 1)", "(2, NULL), (3, 1), (2, 0)"))
        return f"(VALUES {rows}) {alias}({', '.join(names)})", Source(alias, columns)

    def _table_macro(self, taken: tuple[str, ...]) -> tuple[str, Source]:
        self.note("table macro")
        alias = self.alias(taken, "near")
        columns = tuple(Column(name, INT, "a") for name in ("id", "k", "n"))
        return f"near({self.draws.below(4)}) AS {alias}", Source(alias, columns)

    # -- joins -------------------------------------------------------------------------------------

    def from_(
        self, parties: tuple[str, ...], outer: Scope | None, depth: int, most: int = 3
    ) -> From:
        """Items joined in every way; `most` is their number."""
        count = 1 + self.draws.below(most)
        return self._tree(parties, (), outer, depth, count)

    def _tree(
        self,
        parties: tuple[str, ...],
        taken: tuple[str, ...],
        outer: Scope | None,
        depth: int,
        count: int,
        commas: bool = True,
    ) -> From:
        found = self._operand(parties, taken, outer, depth)
        segment = found.scope  # since the last comma
        for _ in range(count - 1):
            names = (*taken, *(source.alias for source in found.scope.sources))
            if self.draws.chance(12):
                reading = self._reading(parties, found, segment, names)
                if reading is not None:
                    found, segment = reading
                    continue
            right = self._operand(parties, names, outer, depth)
            kind = self.draws.weighted(
                (
                    (7, "on"),
                    (5 * commas, ","),
                    (4, "using"),
                    (3, "natural"),
                    (1, "cross"),
                    (3, "odd"),
                    (3, "full"),
                )
            )
            joined = self._join(kind, found, segment, right)
            segment = right.scope if kind == "," else self._together(segment, right, joined)
            found = joined
        return found

    def _reading(
        self, parties: tuple[str, ...], left: From, segment: Scope, taken: tuple[str, ...]
    ) -> tuple[From, Scope] | None:
        """Join an item that reads the tables before it, or the nearest row by ASOF. Return what
        stands since the last comma too; None where no columns fit.
        """
        ways = (self._asof, self._asof, self._lateral, self._list)
        made = self.draws.pick(ways)(parties, left, segment, self.alias(taken))
        if made is None:
            return None
        text, source = made
        before = () if text.startswith(",") else segment.sources
        scope = replace(left.scope, sources=(*left.scope.sources, source))
        joined = replace(left, text=f"{left.text}{text}", scope=scope)
        return joined, replace(segment, sources=(*before, source))

    def _asof(
        self, parties: tuple[str, ...], left: From, segment: Scope, alias: str
    ) -> tuple[str, Source] | None:
        """The nearest of rows of which no two have one key and one day or number."""
        days = bool(columns_of(replace(segment, outer=None), DATE, None))
        times = (DATE,) if days and self.draws.chance(70) else JOINABLE
        tables = [t for t in self.tables(parties) if self._pairs(t, JOINABLE, times)]
        ends = [self._end(segment, types, left.scope) for types in (JOINABLE, times)]
        if not tables or None in ends:
            return None
        self.note("nearest by days" if times == (DATE,) else "nearest by numbers")
        table = self.draws.pick(tables)
        key, time = self.draws.pick(self._pairs(table, JOINABLE, times))
        names = ["k", "t", "v"]
        value = self.draws.pick([c for c, type_ in table.columns if type_ in JOINABLE])
        way = self.draws.pick((f"max({value})", "count(*)"))
        side = self.draws.pick(("", "LEFT "))
        sign, difference = self.draws.pick(
            (("<=", "{1} - {0}"), ("<", "{1} - {0}"), (">=", "{0} - {1}"), (">", "{0} - {1}"))
        )
        on = f"{alias}.k = {ends[0]} AND {alias}.t {sign} {ends[1]}"
        if self.draws.chance(85):
            away = difference.format(f"{alias}.t", ends[1])
            on += f" AND {away} <= {self.draws.pick((0, 1, 2, 5))}"
        columns = tuple(
            Column(name, type_, table.party)
            for name, type_ in zip(names, (INT, times[0], BIG), strict=True)
        )
        rows = f"SELECT {key} AS k, {time} AS t, {way} AS v FROM {table.text} GROUP BY ALL"
        return f" ASOF {side}JOIN ({rows}) AS {alias} ON {on}", Source(alias, columns)

    @staticmethod
    def _pairs(
        table: Table, first: tuple[str, ...], second: tuple[str, ...]
    ) -> list[tuple[str, str]]:
        """Return two columns of these types, in every way."""
        return [
            (a, b)
            for a, a_type in table.columns
            for b, b_type in table.columns
            if a_type in first and b_type in second and a != b
        ]

    def _lateral(
        self, parties: tuple[str, ...], left: From, segment: Scope, alias: str
    ) -> tuple[str, Source] | None:
        """A subquery of one row, or of several, for each row of the tables before it."""
        tables = [t for t in self.tables(parties) if self._pairs(t, JOINABLE, JOINABLE)]
        end = self._end(segment, JOINABLE, left.scope)
        if not tables or end is None:
            return None
        table = self.draws.pick(tables)
        key, value = self.draws.pick(self._pairs(table, JOINABLE, JOINABLE))
        if self.draws.chance(45):
            return self._lateral_rows(tables, table, f"w.{key} = {end}", alias)
        self.note("lateral row")
        ways = (
            f"max(w.{value}) AS most, count(*) AS many",
            f"avg(w.{value}) AS most, count(w.{value}) AS many",
        )
        shown, order = self.draws.pick(ways), ""
        if self.draws.chance(30):
            shown, order = f"w.{value} AS most, w.{key} AS many", f" ORDER BY w.{value} LIMIT 1"
        types = (DOUBLE if "avg" in shown else INT, BIG)
        names = ("most", "many")
        columns = tuple(
            Column(name, type_, table.party) for name, type_ in zip(names, types, strict=True)
        )
        query = f"(SELECT {shown} FROM {table.text} AS w WHERE w.{key} = {end}{order}) AS {alias}"
        join = self.draws.pick((" LEFT JOIN LATERAL {} ON true", " CROSS JOIN LATERAL {}"))
        return join.format(query), Source(alias, columns)

    def _lateral_rows(
        self, tables: list[Table], table: Table, test: str, alias: str
    ) -> tuple[str, Source]:
        """All rows with an equal key, of one table or of two."""
        self.note("lateral rows")
        shown = [c for c in table.columns if '"' not in c[0]]
        items, text = [(f"w.{name}", type_, table.party) for name, type_ in shown], ""
        if self.draws.chance(30):
            other = self.draws.pick(tables)
            ends = [
                self.draws.pick([name for name, type_ in t.columns if type_ in JOINABLE])
                for t in (table, other)
            ]
            text = f" JOIN {other.text} AS w2 ON w2.{ends[1]} = w.{ends[0]}"
            items.append((f"w2.{ends[1]}", dict(other.columns)[ends[1]], other.party))
        chosen = self.draws.some(items, 1, 2)
        names = ("most", "many")
        shown_text = ", ".join(f"{c[0]} AS {n}" for c, n in zip(chosen, names, strict=False))
        columns = tuple(Column(n, c[1], c[2]) for c, n in zip(chosen, names, strict=False))
        query = f"(SELECT {shown_text} FROM {table.text} AS w{text} WHERE {test}) AS {alias}"
        ways = (" JOIN LATERAL {} ON true", " LEFT JOIN LATERAL {} ON true", ", LATERAL {}")
        return self.draws.pick(ways).format(query), Source(alias, columns)

    def _list(
        self, parties: tuple[str, ...], left: From, segment: Scope, alias: str
    ) -> tuple[str, Source] | None:
        """A row for each element of a list of one table."""
        alone = replace(segment, outer=None)
        own = [item for type_ in JOINABLE for item in columns_of(alone, type_, None)]
        own = [item for item in own if item[2].party is not None]
        if not own:
            return None
        self.note("list in from")
        _, source, column = self.draws.pick(own)
        name = f"{source.alias}.{column.name}"
        rows = self.draws.pick(
            (f"unnest([1, {name}])", f"range(0, {name} % 3)", f"unnest([{name}])")
        )
        join = self.draws.pick((", {}", " CROSS JOIN {}"))
        made = Source(alias, (Column("e", BIG, column.party),))
        return join.format(f"{rows} AS {alias}(e)"), made

    def _operand(
        self, parties: tuple[str, ...], taken: tuple[str, ...], outer: Scope | None, depth: int
    ) -> From:
        if depth > 0 and self.draws.chance(12):
            self.note("parentheses")
            inner = self._tree(parties, taken, outer, depth - 1, 2, False)
            return replace(inner, text=f"({inner.text})")
        text, source = self.item(parties, taken, outer, depth)
        return From(text, Scope((source,), outer=outer))

    @staticmethod
    def _together(segment: Scope, right: From, joined: From) -> Scope:
        sources = (*segment.sources, *right.scope.sources)
        return replace(segment, sources=sources, merged=joined.scope.merged)

    def _join(self, kind: str, left: From, segment: Scope, right: From) -> From:
        sources = (*left.scope.sources, *right.scope.sources)
        scope = replace(left.scope, sources=sources)
        scope = replace(scope, merged=(*left.scope.merged, *right.scope.merged))
        conditions = (*left.conditions, *right.conditions)
        side = self.draws.weighted(
            ((6, ""), (4, "LEFT "), (2, "RIGHT "), (1, "LEFT OUTER "), (1, "INNER "))
        )
        if kind == ",":
            self.note("comma")
            equality = self.equality(left.scope, right.scope, scope)
            more = () if equality is None else (equality,)
            return From(f"{left.text}, {right.text}", scope, (*conditions, *more))
        if kind == "cross":
            return From(f"{left.text} CROSS JOIN {right.text}", scope, conditions)
        if kind == "full":
            return self._full_join(left, segment, right, scope, conditions)
        if kind in ("using", "natural"):
            return self._named_join(kind, side, left, segment, right, scope, conditions)
        self.note("outer join" if side.strip() in ("LEFT", "RIGHT", "LEFT OUTER") else "join")
        if kind == "odd":
            side = self.draws.pick(("LEFT ", "FULL ", "SEMI ", "ANTI ", "ASOF ", "ASOF LEFT "))
            self.note(f"{side.strip().lower()} join")
            if side in ("SEMI ", "ANTI "):
                scope = left.scope
        on = self._on(segment if self.draws.chance(90) else left.scope, right.scope)
        if side.startswith("ASOF") and " = " in on:
            on = on.replace(" = ", " >= ", 1)
        return From(f"{left.text} {side}JOIN {right.text} ON {on}", scope, conditions)

    def _named_join(
        self,
        kind: str,
        side: str,
        left: From,
        segment: Scope,
        right: From,
        scope: Scope,
        conditions: tuple[str, ...],
    ) -> From:
        theirs = {c.folded: c for c in right.scope.shown()}
        common = [c for c in segment.shown() if c.folded in theirs]
        common = [c for n, c in enumerate(common) if c.folded not in {x.folded for x in common[:n]}]
        if not common:
            on = self._on(segment, right.scope)
            return From(f"{left.text} {side}JOIN {right.text} ON {on}", scope, conditions)
        self.note(kind)
        if kind == "using":
            common = self.draws.some(common, 1)
        stays = theirs if side.startswith("RIGHT") else {c.folded: c for c in common}
        merged = tuple(stays[c.folded] for c in common)
        before = tuple(c for c in scope.merged if c.folded not in {m.folded for m in merged})
        scope = replace(scope, merged=(*before, *merged))
        if kind == "natural":
            return From(f"{left.text} NATURAL {side}JOIN {right.text}", scope, conditions)
        names = ", ".join(c.name for c in common)
        return From(f"{left.text} {side}JOIN {right.text} USING ({names})", scope, conditions)

    def _full_join(
        self, left: From, segment: Scope, right: From, scope: Scope, conditions: tuple[str, ...]
    ) -> From:
        """A FULL JOIN by columns of the same name, whose rows have the one or the other."""
        theirs = {c.folded: c for c in right.scope.shown()}
        pairs = {c.folded: (c, theirs[c.folded]) for c in segment.shown() if c.folded in theirs}
        alike = [
            pair
            for pair in pairs.values()
            if pair[0].type == pair[1].type or {c.type for c in pair} <= {*JOINABLE}
        ]
        text = f"{left.text} FULL JOIN {right.text}"
        if not alike:
            return From(f"{text} ON {self._on(segment, right.scope)}", scope, conditions)
        self.note("full join")
        chosen = self.draws.some(alike, 1)
        made = tuple(
            replace(
                one,
                type=one.type if one.type == other.type else BIG,
                party="".join(sorted({*(one.party or ""), *(other.party or "")})) or None,
            )
            for one, other in chosen
        )
        if self.draws.chance(50):
            self.note("full join by name")
            before = tuple(c for c in scope.merged if c.folded not in {m.folded for m in made})
            names = ", ".join(c.name for c in made)
            return From(
                f"{text} USING ({names})", replace(scope, merged=(*before, *made)), conditions
            )
        self.note("full join by coalesce")
        ends = []
        for one, _ in chosen:
            both = []
            for side in (segment, right.scope):
                known = next((t for t, c in side.equal if c.folded == one.folded), None)
                holder = next((s.alias for s, c in side.columns if c.folded == one.folded), "")
                both.append(known or f"{holder}.{one.name}")
            ends.append((both[0], both[1]))
        on = " AND ".join(f"{a} = {b}" for a, b in ends)
        if self.draws.chance(10):
            on += f" AND {self.one_sided(replace(scope, merged=()), 1)}"
        equal = tuple(
            (f"coalesce({a}, {b})", column) for column, (a, b) in zip(made, ends, strict=True)
        )
        return From(f"{text} ON {on}", replace(scope, equal=equal), conditions)

    def _on(self, left: Scope, right: Scope) -> str:
        both = replace(left, sources=(*left.sources, *right.sources), merged=())
        equality = self.equality(left, right, both) or "1 = 1"
        parts = [equality]
        if self.draws.chance(15):
            second = self.equality(left, right, both)
            parts += [] if second is None else [second]
        if self.draws.chance(25):
            self.note("condition in on")
            parts.append(self.one_sided(both, 1))
        if self.draws.chance(8):
            self.note("or in on")
            other = self.equality(left, right, both) or "1 = 1"
            others = (self.one_sided(both, 1), other, f"{other} AND {self.one_sided(both, 1)}")
            parts = [f"({' AND '.join(parts)} OR {self.draws.pick(others)})"]
        if self.draws.chance(8):
            parts.append(self._window(left, right, both) or "1 = 1")
        return " AND ".join(parts)

    def _window(self, left: Scope, right: Scope, both: Scope) -> str | None:
        """Columns of each side that are close to each other."""
        types = self.draws.pick((JOINABLE, (DATE,), (MOMENT,)))
        ends = [self._end(scope, types, both) for scope in (left, right)]
        if None in ends:
            return None
        self.note("window in on")
        forms = [
            "{0} BETWEEN {1} - {n} AND {1} + {n}",
            "{0} - {1} BETWEEN 0 AND {n}",
            "{0} - {1} = {n}",
        ]
        forms += ["abs({0} - {1}) <= {n}", "{0} >= {1} AND {0} < {1} + {n}", "{0} > {1}"]
        if types == (MOMENT,):
            forms = ["{0} BETWEEN {1} - {n} AND {1}", "{0} >= {1} AND {0} - {1} <= {n}"]
        width = self.draws.pick(("1", "2"))
        width = f"INTERVAL {width} DAY" if types == (MOMENT,) else width
        a, b = self.draws.some(ends, 2, 2)
        return self.draws.pick(forms).format(a, b, n=width)

    def equality(self, left: Scope, right: Scope, both: Scope) -> str | None:
        """A column of each, equal, in one of the ways to say so; now and then an expression."""
        types = self.draws.weighted(((14, (JOINABLE, JOINABLE)), *((1, pair) for pair in PAIRS)))
        ends = [
            self._end(scope, own, both) for scope, own in zip((left, right), types, strict=True)
        ]
        if None in ends:
            ends = [self._end(scope, ANY, both) for scope in (left, right)]
        if None in ends:
            return None
        forms = ["{0} == {1}", "NOT ({0} <> {1})", "{0} IN ({1})", "({0}, 1) = ({1}, 1)"]
        forms += ["{0} = ANY ([{1}])", "{0} = ALL ([{1}])"]
        forms += ["{0} IS NOT DISTINCT FROM {1}", "row({0}) = row({1})", "({0}) = {1}"]
        return self.draws.pick(["{0} = {1}"] * 40 + forms).format(*ends)

    def _end(self, scope: Scope, types: tuple[str, ...], both: Scope) -> str | None:
        own = replace(scope, outer=None)
        found = [item for type_ in types for item in columns_of(own, type_, None)]
        if not found:
            return None
        _, source, column = self.draws.pick(found)
        text = written(self.draws, both, both, source, column)
        if self.draws.chance(10) and column.type in JOINABLE:
            return self.draws.pick(("{} + 0", "coalesce({}, 1)", "abs({})")).format(text)
        return text

    def one_sided(self, scope: Scope, depth: int) -> str:
        """A condition over columns of one party, as far as there are any."""
        homes = scope.parties()
        home = self.draws.pick(homes) if homes else None
        return self.operand(self.condition(Place(scope, home, depth)))

    # -- written elsewhere -------------------------------------------------------------------------

    def derived(
        self, parties: tuple[str, ...], outer: Scope | None, depth: int
    ) -> tuple[str, tuple[Column, ...]]:
        raise NotImplementedError
