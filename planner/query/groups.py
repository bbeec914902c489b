"""Aggregates over rows of several databases of a party, merged from groups of each database.

`SELECT k, avg(x) AS mean FROM b.u GROUP BY k` becomes a query over groups: each database makes a
sum and a count of its own rows of each k, and one of them merges the groups of equal k. The
databases send their groups to each other, sealed (`sqlfl.party.groups`).

`PIVOT b.u ON kind IN ('x', 'y') USING sum(n) GROUP BY k` is such a query too: `SELECT k, sum(n)
FILTER (kind = 'x') AS x, sum(n) FILTER (kind = 'y') AS y FROM b.u GROUP BY k`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.fragment_columns import GROUP_KEY, GROUP_PART, GROUPS, RESERVED
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import function_name, has_hints, is_aggregate
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import plan_error
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.names import chain_of
from sqlfl.planner.query.scalars import has_calls, one_value

MERGED = {
    "bit_and": "bit_and", "bit_or": "bit_or", "bit_xor": "bit_xor", "bool_and": "bool_and",
    "bool_or": "bool_or", "count": "sum", "count_if": "sum", "count_star": "sum",
    "countif": "sum", "fsum": "fsum", "kahan_sum": "fsum", "max": "max", "min": "min",
    "product": "product", "sum": "sum", "sumkahan": "fsum",
}  # fmt: skip
"""Aggregates of one argument, and the aggregate of their values over groups."""
_COUNTS = frozenset(("count", "count_star"))
_MEANS = frozenset(("avg", "mean"))
_ROWS = frozenset(("with_", "expressions", "from_", "where"))
_GROUPED = _ROWS | {"group", "having", "order"}
_SETS = (exp.Cube, exp.GroupingSets, exp.Rollup)
OF_NUMBERS = "sqlfl_of_numbers"
"""Mark of a join with constant numbers, which each database makes of its own rows alike, and of
their query."""


def outermost_aggregates(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the outermost calls of aggregates, with their FILTER and WITHIN GROUP."""
    for child in node.iter_expressions():
        called = isinstance(child, exp.Filter | exp.WithinGroup) or is_aggregate(child)
        if called and not isinstance(child.parent, exp.Dot | exp.Window):
            yield child
        elif not isinstance(child, exp.Query):
            yield from outermost_aggregates(child)


def as_grouped(query: exp.Expr) -> exp.Expr:
    """Return SELECT DISTINCT and GROUP BY ALL as GROUP BY the numbers of columns."""
    if not isinstance(query, exp.Select) or any(_stars(query)):
        return query
    group, distinct = query.args.get("group"), query.args.get("distinct")
    shown = [projection.unalias() for projection in query.expressions]
    aggregated = [any(outermost_aggregates(exp.Paren(this=node.copy()))) for node in shown]
    by_all = group is not None and _given(group) == ["all"]
    plain = distinct is not None and not _given(distinct) and group is None
    plain = plain and not query.args.get("having") and not any(aggregated)
    keys = [n for n, called in enumerate(aggregated) if not called]
    # a constant would be the number of a column
    if not (by_all or plain) or not keys or any(shown[n].find(exp.Column) is None for n in keys):
        return query
    grouped = query.copy()
    numbers = [exp.Literal.number(n + 1) for n in keys]
    grouped.set("group", exp.Group(expressions=numbers))
    grouped.set("distinct", None)
    return grouped


def _stars(select: exp.Select) -> Iterator[exp.Expr]:
    """Yield the columns of a SELECT that stand for any number of columns, or have such in them."""
    for projection in select.expressions:
        if (
            projection.find(exp.Columns)
            or isinstance(projection.unalias(), exp.Star)
            or (isinstance(projection, exp.Column) and isinstance(projection.this, exp.Star))
        ):
            yield projection


def is_unpivot(query: exp.Expr, known: Environment) -> bool:
    """Return whether the query is an UNPIVOT of the rows of one table, row by row."""
    if isinstance(query, exp.Pivot):
        return bool(query.args.get("unpivot")) and _has_rows_of_table(query.this, {}, known)
    if not isinstance(query, exp.Select) or not {*_given(query)} <= _ROWS:
        return False
    item = query.args["from_"].this
    pivots = item.args.get("pivots") or []
    parts = [*query.expressions, query.args.get("where")]
    return (
        len(pivots) == 1
        and bool(pivots[0].args.get("unpivot"))
        and _has_rows_of_table(item, _ctes_of(query), known)
        and not any(
            part is not None and (has_calls(part) or part.find(exp.Query)) for part in parts
        )
    )


@dataclass(frozen=True)
class WrittenPivot:
    """A PIVOT of an item of FROM whose columns are of values that it lists."""

    item: exp.Expr
    fields: tuple[exp.In, ...]
    """ON or FOR, each with its values."""
    aggregates: tuple[exp.Expr, ...]
    by: tuple[exp.Expr, ...]
    """Columns of GROUP BY; empty for all that the others do not read."""

    @classmethod
    def of(cls, node: exp.Expr) -> WrittenPivot | None:
        """Return the PIVOT that is a query, or that hangs on an item of FROM. None for others."""
        item = node.copy()
        if isinstance(node, exp.Pivot):
            pivot, item = node, node.this
            fields, aggregates = pivot.expressions, pivot.args.get("using") or []
        elif len(node.args.get("pivots") or []) == 1:
            (pivot,) = node.args["pivots"]
            item.set("pivots", None)
            item.set("joins", None)
            fields, aggregates = pivot.args.get("fields") or [], pivot.expressions
        else:
            return None
        group = pivot.args.get("group")
        listed = all(isinstance(f, exp.In) and f.expressions and _values(f) for f in fields)
        if pivot.args.get("unpivot") or not fields or not listed:
            return None
        count = exp.Anonymous(this="count", expressions=[exp.Star()])
        by = () if group is None else tuple(group.expressions)
        return cls(item, tuple(fields), tuple(aggregates) or (count,), by)

    def select(self, names: Sequence[str]) -> exp.Select | None:
        """Return the PIVOT as GROUP BY; its columns have these names. None if their number is
        another one: DuckDB has read the PIVOT in another way."""
        combinations = list(product(*map(_values, self.fields)))
        number = len(names) - len(combinations) * len(self.aggregates)
        if number < 1 or (self.by and number != len(self.by)):
            return None
        by = self.by or tuple(exp.column(name, quoted=True) for name in names[:number])
        shown = [
            *by,
            *(
                self._filtered(aggregate.unalias(), values)
                for values in combinations
                for aggregate in self.aggregates
            ),
        ]
        # names of columns of PIVOT may be those of columns that its aggregates read
        hidden = [f"{_COLUMN}{place}" for place in range(len(names))]
        grouped = exp.select(
            *(exp.alias_(e.copy(), name) for e, name in zip(shown, hidden, strict=True)),
            copy=False,
        ).from_(self.item.copy(), copy=False)
        grouped.set("group", exp.Group(expressions=[key.copy() for key in by]))
        columns = (exp.column(name, table=_COLUMN) for name in hidden)
        return exp.select(
            *(exp.alias_(c, n, quoted=True) for c, n in zip(columns, names, strict=True)),
            copy=False,
        ).from_(exp.Subquery(this=grouped, alias=exp.TableAlias(this=_COLUMN)), copy=False)

    def _filtered(self, aggregate: exp.Expr, values: Sequence[exp.Expr]) -> exp.Expr:
        """Return the aggregate of the rows with these values, which are compared as texts."""
        tests = [
            exp.NullSafeEQ(
                this=trees.cast(field.this.copy(), "VARCHAR"),
                expression=trees.cast(value.copy(), "VARCHAR"),
            )
            for field, value in zip(self.fields, values, strict=True)
        ]
        holder = exp.Paren(this=aggregate.copy())
        for call in list(outermost_aggregates(holder)):
            own = [call.expression.this] if isinstance(call, exp.Filter) else []
            inner = call.this if isinstance(call, exp.Filter) else call
            where = exp.and_(*(exp.Paren(this=test) for test in own), *tests)
            call.replace(exp.Filter(this=inner.copy(), expression=exp.Where(this=where)))
        result: exp.Expr = holder.this
        return result


_COLUMN = f"{RESERVED}pivot_"


def is_pivot_of_groups(query: exp.Expr) -> bool:
    """Return whether the query is the GROUP BY that a PIVOT has become."""
    return isinstance(query, exp.Select) and query.expressions[0].alias.startswith(_COLUMN)


def _values(field: exp.In) -> list[exp.Expr]:
    """Return the listed values; none if they are no constants. A name stands for its text."""
    values = []
    for listed in field.expressions:
        value = listed.this if isinstance(listed, exp.PivotAlias) else listed
        if isinstance(value, exp.Column) and not value.table:
            value = exp.Literal.string(value.name)
        if value.find(exp.Column, exp.Query, exp.Tuple):
            return []
        values.append(value)
    return values


def is_grouped(select: exp.Expr, known: Environment) -> bool:
    """Return whether the query groups the rows of one table by expressions."""
    if not isinstance(select, exp.Select):
        return False
    given = {key for key, value in select.args.items() if value}
    group = select.args.get("group")
    plain = (
        group is not None
        and set(_given(group)) == {"expressions"}
        and not any(isinstance(node, _SETS) for node in group.expressions)
    )
    return plain and given <= {*_GROUPED, "joins"} and is_of_rows(select, known, grouped=True)


def _given(node: exp.Expr) -> list[str]:
    return [key for key, value in node.args.items() if value]


def is_of_rows(query: exp.Expr, known: Environment, *, grouped: bool = False) -> bool:
    """Return whether the query over several databases has the rows that it has over each: it reads
    one table, and evaluates rows one by one.
    """
    if not isinstance(query, exp.Select):
        return False
    given = {key for key, value in query.args.items() if value}
    from_ = query.args.get("from_")
    if all(OF_NUMBERS in join.meta for join in query.args.get("joins") or []):
        given -= {"joins"}
    if from_ is None or not given <= (_GROUPED if grouped else _ROWS):
        return False
    own = [*query.expressions, query.args.get("where"), query.args.get("group")]
    own.append(query.args.get("having"))
    if any(node.find(exp.Query, exp.Window) for node in own if node is not None):
        return False
    if not grouped and has_hints(query):
        return False
    item = from_.this
    return not item.args.get("pivots") and _has_rows_of_table(item, _ctes_of(query), known)


def _ctes_of(query: exp.Expr) -> dict[str, exp.Expr]:
    """Return the CTEs that a query itself defines, by their names in lower case."""
    with_ = query.args.get("with_")
    return {cte.alias.lower(): cte.this for cte in ([] if with_ is None else with_.expressions)}


def _has_rows_of_table(item: exp.Expr, ctes: dict[str, exp.Expr], known: Environment) -> bool:
    """Return whether an item of FROM is one table, or a query of its rows one by one. `ctes` are
    those of the query itself.
    """
    if not {*_given(item)} <= {"this", "alias", "db", "catalog", "pivots"}:
        return False
    if isinstance(item, exp.Subquery):
        return is_of_rows(item.this, known)
    if not isinstance(item, exp.Table) or isinstance(item.this, exp.Func):
        return False
    if item.db:
        return True
    if item.name.lower() in ctes:
        return is_of_rows(ctes[item.name.lower()], known)
    cte = known.get(item.name.lower())
    return cte is not None and not cte.calls_itself and is_of_rows(cte.query, cte.environment)


def over_groups(select: exp.Select, sql: str, columns: frozenset[str] | None = None) -> exp.Select:
    """Return the grouped query over groups, which stand in its FROM as the subquery GROUPS: the
    query of each database. `columns` are those of its table in lower case, None if not known.

    Raise PlanError for an aggregate that cannot be made of its values in parts of the rows.
    """
    return _OverGroups(select, sql, columns).query()


@dataclass
class _OverGroups:
    select: exp.Select
    sql: str
    columns: frozenset[str] | None
    parts: dict[str, exp.Expr] = field(default_factory=dict)
    """Aggregates of a database's groups, by their text."""

    def query(self) -> exp.Select:
        keys = [self._key(node) for node in self.select.args["group"].expressions]
        shown = [self._output(node, keys) for node in self.select.expressions]
        having = self.select.args.get("having")
        test = None if having is None else self._over(having.this, keys)
        columns = [exp.column(f"{GROUP_KEY}{n}", table=GROUPS) for n in range(len(keys))]
        clauses = ("with_", "from_", "joins", "where")
        inner = exp.Select(**{k: self.select.args.get(k) for k in clauses})
        inner = inner.copy()
        named = [(f"{GROUP_KEY}{n}", key) for n, key in enumerate(keys)]
        named += [(f"{GROUP_PART}{n}", part) for n, part in enumerate(self.parts.values())]
        inner.set("expressions", [exp.alias_(node.copy(), name) for name, node in named])
        inner.set("group", exp.Group(expressions=[key.copy() for key in keys]))
        outer = exp.select(*shown).from_(
            exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(GROUPS))),
            copy=False,
        )
        outer.set("group", exp.Group(expressions=columns))
        if test is not None:
            outer.set("having", exp.Having(this=test))
        return outer

    def _key(self, node: exp.Expr) -> exp.Expr:
        """Return what a row is grouped by: a position or an alias means an output."""
        outputs = self.select.expressions
        if isinstance(node, exp.Literal) and node.is_int:
            place = int(node.this) - 1
            if not 0 <= place < len(outputs):
                message = f"GROUP BY {node.this}: there is no such column"
                raise self._error(message, node, f"the SELECT has {len(outputs)}")
            output: exp.Expr = outputs[place].unalias()
            return output
        chain = chain_of(node)
        if chain is not None and len(chain.words) == 1:
            name = chain.parts[0].lower()
            aliased = [o for o in outputs if isinstance(o, exp.Alias) and o.alias.lower() == name]
            same = [o for o in aliased if to_sql(o.this) == to_sql(node)]
            if len(aliased) == 1 and self.columns is not None and name not in self.columns:
                return aliased[0].unalias()
            if aliased and not same:
                raise self._error(
                    f"GROUP BY {name} may mean a column of the table or of the result",
                    node,
                    "write the expression itself in GROUP BY",
                )
        return node

    def _output(self, node: exp.Expr, keys: list[exp.Expr]) -> exp.Expr:
        value = node.unalias()
        chain = chain_of(value.unnest())
        name = node.alias or (chain.parts[-1] if chain is not None and not chain.is_method else "")
        if not name:
            raise self._error(
                "a column of an aggregate over several databases has no name",
                node,
                "name it: avg(x) AS mean",
            )
        return exp.Alias(this=self._over(value, keys), alias=trees.identifier(name))

    def _over(self, value: exp.Expr, keys: list[exp.Expr]) -> exp.Expr:
        """Return the value over groups: columns for what is grouped by, and merged aggregates."""
        holder = exp.Paren(this=value.copy())
        places = {self._text(key): n for n, key in enumerate(keys)}
        self._replace(holder, places)
        result: exp.Expr = holder.this
        return result

    def _replace(self, parent: exp.Expr, places: dict[str, int]) -> None:
        for child in list(parent.iter_expressions()):
            place = places.get(self._text(child))
            called = isinstance(child, exp.Filter | exp.WithinGroup) or is_aggregate(child)
            if place is not None:
                child.replace(exp.column(f"{GROUP_KEY}{place}", table=GROUPS))
            elif called:
                child.replace(self._merged(child))
            elif isinstance(child, exp.Column) or chain_of(child) is not None:
                raise self._error(
                    f"{to_sql(child)} is neither grouped by nor in an aggregate",
                    child,
                    "write it as GROUP BY does, or in an aggregate",
                )
            elif isinstance(child, exp.Expr):
                self._replace(child, places)

    def _text(self, node: exp.Expr) -> str:
        """Return the text of an expression without the name of the one table in FROM."""
        if not isinstance(node, exp.Expr) or isinstance(node, exp.Identifier):
            return ""
        holder = exp.Paren(this=node.copy())
        table = self.select.args["from_"].this.alias_or_name.lower()
        for column in list(holder.find_all(exp.Column)):
            # s.k is the field of a column where s is not the table
            if column.table.lower() == table != column.db.lower():
                for part in ("table", "db", "catalog"):
                    column.set(part, None)
            column.set("this", exp.to_identifier(column.name.lower(), quoted=True))
        return to_sql(holder.this.unnest())

    def _merged(self, call: exp.Expr) -> exp.Expr:
        """Return an aggregate as one of its values in groups."""
        inner, name = aggregate_of(call), function_name(aggregate_of(call))
        odd = isinstance(inner, exp.WithinGroup) or inner.find(exp.Distinct, exp.Order) is not None
        if odd or len(inner.expressions) > 1 or not (name in MERGED or name in _MEANS):
            raise self._error(
                f"{name}() over several databases of a party cannot be made of its values in each",
                call,
                "take count, sum, avg, min, max, product, count_if, bool_or or bool_and; or attach "
                "the databases under names of their own, and make a column of each",
            )
        if name in _MEANS:
            total, number = (self._part(call, part) for part in ("sum", "count"))
            over = trees.cast(_call("sum", total), "DOUBLE")
            return exp.Paren(this=exp.Div(this=over, expression=_call("sum", number)))
        merged = _call(MERGED[name], self._part(call, name))
        return trees.cast(merged, "BIGINT") if name in _COUNTS else merged

    def _part(self, call: exp.Expr, name: str) -> exp.Expr:
        """Return the column of groups with the call, by an aggregate of this name."""
        part = call.copy()
        aggregate_of(part).set("this", name)
        place = list(self.parts).index(to_sql(part)) if to_sql(part) in self.parts else None
        if place is None:
            place = len(self.parts)
            self.parts[to_sql(part)] = part
        return exp.column(f"{GROUP_PART}{place}", table=GROUPS)

    def _error(self, message: str, node: exp.Expr, hint: str | None = None) -> PlanError:
        return plan_error(message, self.sql, node, hint)


def aggregate_of(call: exp.Expr) -> exp.Expr:
    while isinstance(call, exp.Filter):
        call = call.this
    return call


def _call(name: str, *arguments: exp.Expr) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=list(arguments))


def with_tests(groups: exp.Expr) -> exp.Query:
    """Return the query of groups in a form that binds only if each expression of the derived tables
    below it is one value per row, as a macro may be an aggregate.
    """
    tested = groups.copy()
    assert isinstance(tested, exp.Query)
    for select in list(tested.find_all(exp.Select)):
        called = [e.unalias() for e in select.expressions if has_calls(e)]
        if select is not tested and called and OF_NUMBERS not in select.meta:
            select.where(*(one_value(e) for e in called), copy=False)
    return tested
