"""SELECTs: derived tables, subqueries of expressions, common table expressions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.planner.random.expressions import Place
from tests.planner.random.scopes import POOL, Column, Scope, fresh
from tests.planner.random.selects import Selects
from tests.planner.random.sources import JOINABLE, Cte, From
from tests.planner.random.world import BIG, BOOL, DATE, DOUBLE, INT, PARTIES, TEXT, Table

KEPT = (INT, BIG, DOUBLE, TEXT, BOOL)
Query = tuple[str, tuple[Column, ...]]


def home_of(parties: tuple[str, ...]) -> str | None:
    """The party of a query over one party; None where it touches none."""
    return parties[0] if parties else None


@dataclass
class Queries(Selects):
    # -- derived tables ----------------------------------------------------------------------------

    def derived(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        """A query for a derived table: mostly of one party, then of any kind."""
        if len(parties) > 1 and self.draws.chance(75):
            parties = (self.draws.pick(parties),)
        if len(parties) > 1:
            if self.draws.chance(35):
                return self._union_of_parties(parties, depth)
            return self.plain(self.from_(parties, outer, depth, 2), depth)
        kind = self.draws.weighted(
            (
                (9, self._plain),
                (4, self._grouped),
                (3, self._windowed),
                (2, self._distinct),
                (2, self._limited),
                (2, self._several),
                (2, self._united),
                (1, self._with),
                (1, self._unpivoted),
                (1, self._pivoted),
                (2, self._merged),
            )
        )
        return kind(parties, outer, depth)

    def _plain(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        return self.plain(self.from_(parties, outer, depth, 2), depth)

    def _grouped(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        self.note("grouped")
        found = self.from_(parties, outer, depth, 2)
        place = Place(found.scope, home_of(parties), 1)
        key, name = self.integer(place), self.draws.pick(POOL)
        items, columns = [f"{key} AS {name}"], [Column(name, INT, home_of(parties))]
        for _ in range(1 + self.draws.below(2)):
            other = fresh(self.draws, [c.name for c in columns])
            value, type_ = self.aggregate(place)
            items.append(f"{value} AS {other}")
            columns.append(Column(other, type_, home_of(parties)))
        way = self.draws.pick(("GROUP BY 1", "GROUP BY ALL", f"GROUP BY {key}"))
        having = self.draws.pick(("", "", " HAVING count(*) > 1"))
        where = self.where(found, 1)
        return f"SELECT {', '.join(items)} FROM {found.text}{where} {way}{having}", tuple(columns)

    def _merged(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        """Distinct rows, or groups of all columns, of one table: of several databases together."""
        tables = self.tables(parties)
        if not tables:
            return self._grouped(parties, outer, depth)
        table = self.draws.pick(tables)
        own = [Column(name, type_, table.party) for name, type_ in table.columns if type_ in KEPT]
        columns = self.draws.some(own, 1, 3)
        names = ", ".join(column.name for column in columns)
        if self.draws.chance(50):
            self.note("distinct of one table")
            return f"SELECT DISTINCT {names} FROM {table.text}", tuple(columns)
        self.note("groups of one table")
        name = fresh(self.draws, [column.name for column in columns])
        number = next((c.name for c in own if c.type in (INT, BIG)), None)
        ways = [("count(*)", BIG), *([(f"max({number})", INT)] if number else [])]
        value, type_ = self.draws.pick(ways)
        text = f"SELECT {names}, {value} AS {name} FROM {table.text} GROUP BY ALL"
        return text, (*columns, Column(name, type_, table.party))

    def aggregate(self, place: Place) -> tuple[str, str]:
        self.note("aggregate")
        a = self.integer(place.deeper())
        return self.draws.pick(
            (
                ("count(*)", BIG),
                (f"max({a})", INT),
                (f"count(DISTINCT {a})", BIG),
                (f"avg({a})", DOUBLE),
                (f"mean_of({a})", DOUBLE),
                (f"main.most({a})", INT),
                (f"count({a}) FILTER (WHERE {self.condition(place.deeper())})", BIG),
                (f"main.sum(({a})::DOUBLE)", DOUBLE),
                (f"list_sum(list({a} ORDER BY {a}))::DOUBLE", DOUBLE),
                (f"({a}).max()", INT),
                (f"bool_or({self.condition(place.deeper())})", BOOL),
            )
        )

    def _windowed(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        self.note("window")
        found = self.from_(parties, outer, depth, 2)
        place = Place(found.scope, home_of(parties), 1)
        a, b = self.integer(place), self.integer(place)
        window = self.draws.pick(
            (
                f"rank() OVER (ORDER BY {a})",
                f"count(*) OVER (PARTITION BY {a})",
                f"sum({b}) OVER (PARTITION BY {a} ORDER BY {b})::BIGINT",
                f"max({b}) OVER w",
                f"dense_rank() OVER (PARTITION BY {a} ORDER BY {b} DESC NULLS LAST)",
            )
        )
        items, columns = self.items(found.scope, parties, 1)
        name = fresh(self.draws, [c.name for c in columns])
        items.append(f"{window} AS {name}")
        where = self.where(found, 1)
        named = f" WINDOW w AS (PARTITION BY {a})" if window.endswith("OVER w") else ""
        last = ""
        if self.draws.chance(30):
            self.note("qualify")
            last = f" QUALIFY rank() OVER (ORDER BY {a}, {b}) <= 2"
        text = f"SELECT {', '.join(items)} FROM {found.text}{where}{named}{last}"
        return text, (*columns, Column(name, BIG, home_of(parties)))

    def _distinct(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        self.note("distinct")
        text, columns = self.plain(self.from_(parties, outer, depth, 2), depth, stars=False)
        if self.draws.chance(25) and "GROUP" not in text:
            self.note("distinct on")
            names = ", ".join(str(n) for n in range(1, len(columns) + 1))
            distinct = text.replace("SELECT", "SELECT DISTINCT ON (1)", 1)
            return f"{distinct} ORDER BY {names}", columns
        return text.replace("SELECT", "SELECT DISTINCT", 1), columns

    def _limited(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        self.note("limit")
        text, columns = self.plain(self.from_(parties, outer, depth, 2), depth, stars=False)
        order = ", ".join(str(number) for number in range(1, len(columns) + 1))
        order = self.draws.pick(("ALL", order))
        return (
            f"{text} ORDER BY {order}{self.draws.pick((' LIMIT 3', '', ' LIMIT 2 OFFSET 1'))}",
            columns,
        )

    def _several(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        self.note("several rows")
        found = self.from_(parties, outer, depth, 1)
        place = Place(found.scope, home_of(parties), 1)
        items, columns = self.items(found.scope, parties, 1)
        name = fresh(self.draws, [c.name for c in columns])
        value = self.draws.pick(
            (
                f"unnest({self.list_value(place)})",
                f"generate_subscripts({self.list_value(place)}, 1)",
                f"steps({self.integer_value(place)})",
            )
        )
        text = f"SELECT {', '.join([*items, f'{value} AS {name}'])} FROM {found.text}"
        return text + self.where(found, 1), (*columns, Column(name, BIG, home_of(parties)))

    def _unpivoted(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        """The whole numbers of a table, a row for each; or a table with a column for each key."""
        tables = [t for t in self.tables(parties) if sum(k == INT for _, k in t.columns) > 1]
        if not tables:
            return self._plain(parties, outer, depth)
        self.note("unpivot")
        table = self.draws.pick(tables)
        numbers = [name for name, type_ in table.columns if type_ == INT]
        chosen = self.draws.some(numbers, 2)
        others = [c for c in table.columns if c[0] not in chosen and '"' not in c[0]]
        kept = self.draws.some(others, 0, 2)
        columns = tuple(Column(name, type_, table.party) for name, type_ in kept)
        more = (Column("name", TEXT, table.party), Column("value", INT, table.party))
        shown = ", ".join([*(name for name, _ in kept), *chosen])
        nulls = self.draws.pick(("", " INCLUDE NULLS"))
        source = f"(SELECT {shown} FROM {table.text})"
        if self.draws.chance(50):
            text = f"FROM {source} UNPIVOT{nulls} (value FOR name IN ({', '.join(chosen)}))"
            return text, (*columns, *more)
        into = "INTO NAME name VALUE value"
        if nulls:
            return f"UNPIVOT {source} ON {', '.join(chosen)} {into}", (*columns, *more)
        pattern = "|".join(name.strip('"') for name in chosen)
        return f"UNPIVOT {source} ON COLUMNS('^({pattern})$') {into}", (*columns, *more)

    def _pivoted(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        """A row for each value of one column, with a column for each value of another."""
        tables = [t for t in self.tables(parties) if sum(k == INT for _, k in t.columns) > 1]
        if not tables:
            return self._plain(parties, outer, depth)
        self.note("pivot")
        table = self.draws.pick(tables)
        key, on = self.draws.some([name for name, type_ in table.columns if type_ == INT], 2, 2)
        call = self.draws.pick(("count(*)", f"max({key})", f"min({on})"))
        named = self.draws.chance(40)
        shown = tuple(f'"{n}{"_of" if named else ""}"' for n in (1, 2))
        type_ = BIG if call == "count(*)" else INT
        columns = (Column(key, INT, table.party), *(Column(n, type_, table.party) for n in shown))
        using = f"USING {call}{' AS of' if named else ''} GROUP BY {key}"
        return f"PIVOT (SELECT {key}, {on} FROM {table.text}) ON {on} IN (1, 2) {using}", columns

    def _united(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        self.note("union")
        return self._union(parties, parties, outer, depth, home_of(parties))

    def _union_of_parties(self, parties: tuple[str, ...], depth: int) -> Query:
        self.note("union of parties")
        a, b = self.draws.some(parties, 2, 2)
        return self._union((a,), (b,), None, depth, "".join(sorted(a + b)))

    def _union(
        self,
        left: tuple[str, ...],
        right: tuple[str, ...],
        outer: Scope | None,
        depth: int,
        label: str,
    ) -> Query:
        types = [self.draws.pick((INT, INT, DOUBLE, TEXT)) for _ in range(1 + self.draws.below(3))]
        names: list[str] = []
        for _ in types:
            names.append(fresh(self.draws, names))
        way = "UNION ALL"
        if len(left) == 1 and left == right:
            ways = ("UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT ALL")
            way = self.draws.pick(ways)
        by_name = way == "UNION ALL" and self.draws.chance(20)
        a = self._typed(left, outer, depth, types, names)
        order = list(range(len(types)))
        if by_name:
            self.note("by name")
            order = self.draws.some(order, len(order))
            way += " BY NAME"
        elif self.draws.chance(50):
            names = []
            for _ in types:
                names.append(fresh(self.draws, names))
        b = self._typed(right, outer, depth, [types[n] for n in order], [names[n] for n in order])
        columns = tuple(replace(c, party=label) for c in a[1])
        return f"{a[0]} {way} {b[0]}", columns

    def _typed(
        self,
        parties: tuple[str, ...],
        outer: Scope | None,
        depth: int,
        types: list[str],
        names: list[str],
    ) -> Query:
        found = self.from_(parties, outer, depth - 1, 1)
        items, columns = [], []
        for type_, name in zip(types, names, strict=True):
            value = self.of(type_, Place(found.scope, home_of(parties), 1))
            if self.draws.chance(8):
                self.note("bare null")
                value = "NULL"
            items.append(f"{value} AS {name}")
            columns.append(Column(name, type_, home_of(parties)))
        return f"SELECT {', '.join(items)} FROM {found.text}{self.where(found, 1)}", tuple(columns)

    # -- common table expressions ------------------------------------------------------------------

    def _with(self, parties: tuple[str, ...], outer: Scope | None, depth: int) -> Query:
        before = list(self.ctes)
        self.ctes = []
        text, cte = self.cte(parties, depth)
        self.ctes = [*(c for c in before if c.name != cte.name), cte]
        query, columns = self.plain(self.from_(parties, outer, depth - 1, 2), depth - 1)
        self.ctes = before
        return f"WITH {text} {query}", columns

    def cte(self, parties: tuple[str, ...], depth: int) -> tuple[str, Cte]:
        """A common table expression; its name is often that of a table."""
        self.note("with")
        name = fresh(self.draws, [cte.name for cte in self.ctes], "c")
        if self.draws.chance(12):
            self.note("recursive")
            column = self.draws.pick(("n", "k", "i"))
            text = (
                f"RECURSIVE {name}({column}) AS (SELECT 1 UNION ALL "
                f"SELECT {column} + 1 FROM {name} WHERE {column} < 3)"
            )
            return text, Cte(name, (Column(column, INT, None),))
        if self.draws.chance(25) and parties:
            text, columns = self._unstable(parties)
            return f"{name} AS ({text})", Cte(name, columns, True)
        text, columns = self.derived(parties, None, max(depth - 1, 0))
        hint = self.draws.weighted(((8, ""), (1, "MATERIALIZED "), (1, "NOT MATERIALIZED ")))
        if self.draws.chance(15):
            names: list[str] = []
            for _ in columns:
                names.append(fresh(self.draws, names))
            columns = tuple(replace(c, name=n) for c, n in zip(columns, names, strict=True))
            return f"{name}({', '.join(names)}) AS {hint}({text})", Cte(name, columns)
        return f"{name} AS {hint}({text})", Cte(name, columns)

    def _unstable(self, parties: tuple[str, ...]) -> Query:
        """Rows of one table that a sample, a LIMIT or the order of rows chooses."""
        tables = self.tables((self.draws.pick(parties),))
        table = self.draws.pick([t for t in tables if t.view is None])
        found = From(*self._alone(table))
        items, columns = self.items(found.scope, (), 0)
        shown = f"SELECT {', '.join(items)} FROM {found.text}"
        if "sample" not in self.seen and self.draws.chance(50):
            self.note("sample")
            ways = (
                " USING SAMPLE 2 ROWS",
                " TABLESAMPLE reservoir(1 ROWS)",
                " USING SAMPLE 50 PERCENT (bernoulli)",
            )
            return shown + self.draws.pick(ways), tuple(columns)
        self.note("cut")
        name, value = columns[0], items[0].removesuffix(f" AS {columns[0].name}")
        if self.draws.chance(40) and value != items[0]:
            call = self.draws.pick(("first({})", "last({})", "list({})[1]", "any_value({})"))
            called = call.format(value)
            return f"SELECT {called} AS {name.name} FROM {found.text}", (name,)
        return shown + self.draws.pick((" LIMIT 2", " LIMIT 1", " LIMIT 2 OFFSET 1")), tuple(
            columns
        )

    def _alone(self, table: Table) -> tuple[str, Scope]:
        text, source = self._table(table, ())
        return text, Scope((source,))

    # -- subqueries in expressions -----------------------------------------------------------------

    def _inner(self, place: Place) -> tuple[From, Place]:
        """A FROM of the party of the place, or of several parties, and a place inside of it."""
        homes = [place.home] if place.home is not None else place.scope.parties()
        if place.scope.outer is None and self.draws.chance(30):
            self.note("of another party")
            homes = [party for party in PARTIES if party not in homes] or list(PARTIES)
        home = self.draws.pick(homes) if homes else None
        parties = tuple(party for party in PARTIES if party == home)
        if place.scope.outer is None and self.draws.chance(12):
            self.note("over a join of parties")
            home, parties = None, PARTIES
        outer = place.scope
        self.note("subquery in subquery" if outer.depth() else "subquery")
        found = self.from_(parties, outer, int(place.depth > 0 or self.draws.chance(30)), 2)
        return found, Place(found.scope, home, min(place.depth - 1, 2))

    def _correlated(self, found: From, at: Place, outer: Place) -> str:
        """WHERE with an equality to what is outside, more often than not."""
        parts = list(found.conditions)
        apart = at.home is not None and outer.home is not None and at.home != outer.home
        if self.draws.chance(90 if apart else 70):
            inner = replace(at, scope=replace(at.scope, outer=None), depth=0)
            around = replace(at, scope=replace(outer.scope), depth=0)
            self.note("correlated")
            signs = ("=",) * 12 + ("<",) if apart else ("=", "<", "=")
            parts.append(f"{self.integer(inner)} {self.draws.pick(signs)} {self.integer(around)}")
            if self.draws.chance(15):
                self.note("window in subquery")
                parts[-self.draws.below(2) :] = [self._near(inner, around)]
        if self.draws.chance(40):
            parts.append(self.condition(replace(at, depth=max(at.depth, 1))))
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _near(self, inner: Place, around: Place) -> str:
        """Values of the subquery's rows that are close to one of outside."""
        a, b = self.operand(self.integer(inner)), self.operand(self.integer(around))
        days = [self.column(DATE, place) for place in (inner, around)]
        if None not in days and self.draws.chance(60):
            a, b = map(str, days)
        forms = ("{0} BETWEEN {1} - 1 AND {1}", "{1} - {0} BETWEEN 0 AND 2")
        forms += ("abs({0} - {1}) <= 1", "{0} > {1} AND {0} <= {1} + 1", "{0} - {1} = 1")
        return self.draws.pick(forms).format(a, b)

    def scalar_subquery(self, place: Place) -> str:
        if place.scope.variables:  # DuckDB takes none in a lambda
            return self.integer(place.deeper())
        found, at = self._inner(place)
        own = at if self.draws.chance(10) else replace(at, scope=replace(at.scope, outer=None))
        value = self.integer(own.deeper())
        if self.draws.chance(12):
            self.note("first of rows")
            way = self.draws.pick((value, "1", "ALL", f"1 + ({value}) DESC NULLS FIRST"))
            where = self._correlated(found, at, place)
            return f"(SELECT {value} FROM {found.text}{where} ORDER BY {way} LIMIT 1)"
        if self.draws.chance(8):  # many of them have several rows, which is an error
            self.note("value of a row")
            return f"(SELECT {value} FROM {found.text}{self._correlated(found, at, place)})"
        shown = self.draws.pick(
            (
                "count(*)",
                f"max({value})",
                f"min({value})",
                f"sum({value})::BIGINT",
                f"count_if({value} > 1)::BIGINT",
                f"avg({value})::BIGINT",
                f"coalesce(sum({value}), -1)::BIGINT",
            )
        )
        return f"(SELECT {shown} FROM {found.text}{self._correlated(found, at, place)})"

    def subquery_test(self, place: Place) -> str:
        if place.scope.variables:
            return self.condition(replace(place, depth=0))
        if place.scope.outer is None and self.draws.chance(12):
            return self._test_of_tables(place)
        found, at = self._inner(place)
        where = self._correlated(found, at, place)
        value, needle = self.integer(at.deeper()), self.operand(self.integer(place.deeper()))
        if self.draws.chance(15):
            self.note("row in")
            other = self.integer(replace(place, depth=0))
            second = self.integer(replace(at, scope=replace(at.scope, outer=None), depth=0))
            rows = f"(SELECT {value}, {second} FROM {found.text}{where})"
            return f"({needle}, {other}) {self.draws.pick(('IN', 'IN', 'NOT IN'))} {rows}"
        if self.draws.chance(8):
            self.note("in a union")
            other = self.integer(replace(at, scope=replace(at.scope, outer=None), depth=0))
            way = self.draws.pick(("UNION", "UNION ALL"))
            rows = f"SELECT {value} FROM {found.text}{where} {way} SELECT {other} FROM {found.text}"
            return f"{needle} {self.draws.pick(('IN', 'NOT IN'))} ({rows})"
        return self.draws.pick(
            (
                f"EXISTS (SELECT 1 FROM {found.text}{where})",
                f"NOT EXISTS (FROM {found.text}{where})",
                f"{needle} IN (SELECT {value} FROM {found.text}{where})",
                f"{needle} NOT IN (SELECT {value} FROM {found.text}{where})",
                f"{needle} = ANY (SELECT {value} FROM {found.text}{where})",
                f"{needle} >= ALL (SELECT {value} FROM {found.text}{where})",
            )
        )

    def _test_of_tables(self, place: Place) -> str:
        """EXISTS or IN over a join of tables that each may be compared with one outside."""
        self.note("by keys of several tables")
        around = replace(place, depth=0)
        tables = [table for table in self.tables(PARTIES) if self._keys(table)]
        chosen = [self.draws.pick(tables) for _ in range(self.draws.weighted(((3, 2), (1, 3))))]
        keys = [self._keys(table) for table in chosen]
        text, tests = f"{chosen[0].text} AS j0", []
        for number, table in enumerate(chosen[1:], 1):
            before = self.draws.below(number)
            own, other = self.draws.pick(keys[number]), self.draws.pick(keys[before])
            text += f" JOIN {table.text} AS j{number} ON j{number}.{own} = j{before}.{other}"
        if len(chosen) > 2 and self.draws.chance(40):
            self.note("cycle in subquery")
            tests.append(f"j2.{self.draws.pick(keys[2])} = j0.{self.draws.pick(keys[0])}")
        for number in range(len(chosen)):
            if self.draws.chance(65):
                own = f"j{number}.{self.draws.pick(keys[number])}"
                tests.append(f"{own} = {self.operand(self.integer(around))}")
        where = f" WHERE {' AND '.join(tests)}" if tests else ""
        value = f"j0.{self.draws.pick(keys[0])}"
        needle = self.operand(self.integer(around))
        return self.draws.pick(
            (
                f"EXISTS (SELECT 1 FROM {text}{where})",
                f"NOT EXISTS (SELECT 1 FROM {text}{where})",
                f"{needle} NOT IN (SELECT {value} FROM {text}{where})",
                f"{needle} IN (SELECT {value} FROM {text}{where})",
            )
        )

    @staticmethod
    def _keys(table: Table) -> list[str]:
        return [name for name, type_ in table.columns if type_ in JOINABLE and '"' not in name]
