"""GROUP BY over tables of several parties, as a join with a table that is grouped before.

`SELECT p.age, avg(v.cost) FROM a.p JOIN b.v ON v.pid = p.id GROUP BY p.id, p.age` has a row for
each group of v: it joins p with `(SELECT pid, avg(cost) FROM b.v GROUP BY pid)`. This holds where
the groups determine each key that v is joined by, and where no two rows of the other tables are in
one group. The first is read off the query; the coordinator checks the second (`Slot.single`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.contract.schema import Client, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.parsing import is_from
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import plan_error
from sqlfl.planner.query import types
from sqlfl.planner.query.correlated import over_none
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import BYTES, collation, conjuncts, equality
from sqlfl.planner.query.groups import aggregate_of, as_grouped, outermost_aggregates
from sqlfl.planner.query.names import listed, nearest
from sqlfl.planner.query.nulls import is_null_over_nulls, rejects_nulls
from sqlfl.planner.query.relations import DraftBlock, ids_of, operand

_CLAUSES = frozenset(
    ("with_", "expressions", "from_", "joins", "where", "group", "having", "order")
)
_OF_COPIES = frozenset((
    "avg", "bit_and", "bit_or", "bool_and", "bool_or", "max", "mean", "median", "min", "stddev_pop",
    "var_pop",
))  # fmt: skip
"""Aggregates that are the same over rows and over as many copies of each."""
_OF_NULLS = frozenset((
    "array_agg", "json_group_array", "json_group_object", "json_group_structure", "list",
))  # fmt: skip
"""Aggregates that do not leave NULL out."""
_KEY, _VALUE = f"{RESERVED}group_", f"{RESERVED}value_"
"""Names of columns of the grouped table: expressions that it is grouped by, and aggregates."""

_Column = tuple[str, str]
"""(item of FROM, column), in lower case."""


@dataclass(frozen=True)
class GroupedJoin:
    select: exp.Select
    """The query without GROUP BY."""
    items: frozenset[str]
    """Names of the items of FROM that are groups now, in lower case."""
    inferred: tuple[tuple[_Column, _Column], ...]
    """Equal columns: where the first has one value in a group, the second must have one."""


def grouped_join(
    query: exp.Expr,
    columns: Callable[[exp.Expr], frozenset[str]],
    clients: Callable[[exp.Expr], tuple[Client, ...]],
    sql: str,
) -> GroupedJoin | None:
    """Return the query as a join with groups; None if it has another form. Raise PlanError for a
    column or an aggregate that it may not have.

    columns, clients: the columns of an item of FROM, in lower case, and the clients that hold it.
    """
    select = as_grouped(query).copy()
    if not isinstance(select, exp.Select) or not select.args.get("group"):
        return None
    if not {key for key, value in select.args.items() if value} <= _CLAUSES:
        return None
    if {key for key, value in select.args["group"].args.items() if value} != {"expressions"}:
        return None
    try:
        candidates = _Join(select, columns, clients, sql).candidates()
    except _OtherForm:
        return None
    for items in candidates:
        try:
            return _Join(select.copy(), columns, clients, sql).grouped(items)
        except _OtherForm:
            continue
    return None


def check_inferred(made: GroupedJoin, block: DraftBlock, draft: Draft, group: exp.Expr) -> None:
    """Check that a column has one value in a group where it equals one. '7' and '07' both equal the
    number 7, and 'a' and 'A' are equal with the collation NOCASE.

    Raise PlanError, at `group`, for a column that may have several.
    """
    items = {folded(item.name): item for item in block.items}
    for ends in made.inferred:
        terms = [term for name, column in ends if (term := items[name].find(column)) is not None]
        read = [[r for r in block.relations if ids_of(term) & {*r.ids}] for term in terms]
        if [len(relations) for relations in read] != [1, 1]:
            continue
        sides = [(relations[0], term) for relations, term in zip(read, terms, strict=True)]
        left, right = (
            types.union_type(draft.types(relation, [term])[0]) or types.NULL_TYPE
            for relation, term in sides
        )
        compared = types.comparison_type(left, right)
        if compared is None:
            continue  # which the join refuses
        table, name = ends[1]
        if not types.keeps_unlike(right, compared):
            raise draft.error(
                f"{table}.{name} is {right} and compared as {compared}, so a group of GROUP BY may "
                "have several values of it",
                group,
                f"cast it before the join: JOIN (SELECT {name}::{compared} AS {name}, ... FROM "
                f"party.table) AS {table}",
            )
        texts = sides if compared == "VARCHAR" else []
        if any(collation(draft, relation, [term]) != BYTES for relation, term in texts):
            raise draft.error(
                f"a collation makes unlike texts of {table}.{name} equal, so a group of GROUP BY "
                "may have several of them",
                group,
                "join by what it makes equal, in both tables: (SELECT encode(lower("
                f"{name})) AS {name}, ... FROM party.table) AS {table}",
            )


class _OtherForm(Exception):
    """The query is no join with groups, or it is not known to be one."""


@dataclass(frozen=True)
class _Condition:
    node: exp.Expr
    left_join_of: str | None
    """The item that it joins by a LEFT JOIN; None of a condition of WHERE or of an inner join."""
    tables: frozenset[str]


@dataclass
class _Grouped:
    """An item of FROM that is grouped."""

    item: exp.Expr
    keys: dict[str, exp.Expr] = field(default_factory=dict)
    """Columns and expressions that it is grouped by: their names behind it."""
    conditions: list[exp.Expr] = field(default_factory=list)
    values: dict[str, exp.Expr] = field(default_factory=dict)
    """Aggregates, by their texts."""

    def subquery(self, name: exp.Identifier) -> exp.Subquery:
        shown = [exp.alias_(node.copy(), key, quoted=True) for key, node in self.keys.items()]
        shown += [
            exp.alias_(node.copy(), f"{_VALUE}{n}") for n, node in enumerate(self.values.values())
        ]
        inner = exp.select(*shown).from_(self.item.copy(), copy=False)
        inner.set("group", exp.Group(expressions=[node.copy() for node in self.keys.values()]))
        if self.conditions:
            inner.where(*(node.copy() for node in self.conditions), copy=False)
        return exp.Subquery(this=inner, alias=exp.TableAlias(this=name.copy()))


class _Join:
    def __init__(
        self,
        select: exp.Select,
        columns: Callable[[exp.Expr], frozenset[str]],
        clients: Callable[[exp.Expr], tuple[Client, ...]],
        sql: str,
    ) -> None:
        self._select = select
        self._sql = sql
        self._clients = clients
        self._joins: list[exp.Join] = select.args.get("joins") or []
        self._items = {_name(item): item for item in self._nodes()}
        if len(self._items) < 1 + len(self._joins):
            raise _OtherForm
        self._columns = {name: columns(item) for name, item in self._items.items()}
        self._optional = {_name(join.this) for join in self._joins if _is_left(join)}
        self._write_names()
        self._write_aliases()
        self._conditions = list(self._read_conditions())
        self._groups = [self._group(node) for node in select.args["group"].expressions]
        self._texts = {self._text(node): node for node in self._groups}
        self._parts = [*select.expressions, select.args.get("having")]
        self._grouped: dict[str, _Grouped] = {}
        self._inferred: list[tuple[_Column, _Column]] = []

    def grouped(self, items: Sequence[str]) -> GroupedJoin:
        """Return the query with these items grouped."""
        self._grouped = {name: _Grouped(self._items[name]) for name in items}
        self._check_clients()
        self._divide_conditions()
        self._check_determined()
        for node in self._groups:
            (name,) = self._tables(node)
            if name in self._grouped and not isinstance(node, exp.Column):
                if name in self._optional:
                    raise _OtherForm  # it may have a value where there is no row
                keys = self._grouped[name].keys
                keys[f"{_KEY}{len(keys)}"] = node
            elif name in self._grouped:
                self._grouped[name].keys[folded(node.name)] = node
        self._rewrite()
        return GroupedJoin(self._select, frozenset(self._grouped), tuple(self._inferred))

    # -- reading -----------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[exp.Expr]:
        """Yield the items of FROM, each a table or a derived table."""
        for item in (self._select.args["from_"].this, *(join.this for join in self._joins)):
            table = isinstance(item, exp.Table) and not isinstance(item.this, exp.Func)
            derived = isinstance(item, exp.Subquery) and not is_from(item.this)
            if not (table or derived) or any(
                item.args.get(k) for k in ("joins", "pivots", "sample")
            ):
                raise _OtherForm
            yield item

    def _write_names(self) -> None:
        """Write USING as ON, and each column whose item is known with no more than its item."""
        merged: dict[str, str] = {}
        for place, join in enumerate(self._joins, 1):
            tests = []
            for name in (folded(node.name) for node in join.args.get("using") or []):
                before = [item for item in [*self._items][:place] if name in self._columns[item]]
                holder = merged.get(name, before[0] if len(before) == 1 else "")
                if not holder or name not in self._columns[_name(join.this)]:
                    raise _OtherForm
                merged[name] = holder
                ends = (exp.column(name, table=t, quoted=True) for t in (holder, _name(join.this)))
                tests.append(exp.EQ(this=next(ends), expression=next(ends)))
            if tests:
                join.set("using", None)
                join.set("on", exp.and_(*tests, copy=False))
        for node in list(self._select.find_all(exp.Column)):
            words = tuple(folded(node.text(part)) for part in ("catalog", "db", "table"))
            named = [name for name, item in self._items.items() if _is_path(words, item)]
            item = merged.get(folded(node.name), "") if not any(words) else "".join(named[:1])
            if item and isinstance(node.this, exp.Identifier) and (words[1] or not any(words)):
                node.replace(exp.Column(this=node.this, table=exp.to_identifier(item, quoted=True)))

    def _write_aliases(self) -> None:
        """Write the expression of an output where its alias stands."""
        aliases: dict[str, exp.Expr] = {}
        clauses = (self._select.args.get(key) for key in ("where", "group", "having"))
        for part in (*self._select.expressions, *clauses):
            for node in [] if part is None else list(part.find_all(exp.Column)):
                name = folded(node.name)
                alone = not isinstance(part, exp.Group) or node.parent is part
                if name in aliases and alone and not node.table and not self._holders(name):
                    value = operand(aliases[name].copy())
                    node.replace(exp.alias_(value, name) if node is part else value)
            if isinstance(part, exp.Alias):
                aliases.setdefault(folded(part.alias), part.this)

    def _read_conditions(self) -> Iterator[_Condition]:
        for join in self._joins:
            kind, side = join.kind.upper(), join.side.upper()
            if join.method or side not in ("", "LEFT"):
                raise _OtherForm
            if kind not in ("", "INNER", "CROSS", "OUTER"):
                raise _OtherForm
            on = join.args.get("on")
            of = _name(join.this) if _is_left(join) else None
            for node in [] if on is None else conjuncts(on):
                yield _Condition(node, of, self._tables(node))
        where = self._select.args.get("where")
        for node in [] if where is None else conjuncts(where.this):
            if any(outermost_aggregates(exp.Paren(this=node.copy()))):
                raise _OtherForm
            yield _Condition(node, None, self._tables(node))

    def _group(self, node: exp.Expr) -> exp.Expr:
        """Return an expression of GROUP BY; a position means an output."""
        if isinstance(node, exp.Literal) and node.is_int:
            place = int(node.this) - 1
            if not 0 <= place < len(self._select.expressions):
                raise _OtherForm
            node = self._select.expressions[place].unalias()
        node = operand(node.copy()).unnest()
        if len(self._tables(node)) != 1 or any(outermost_aggregates(exp.Paren(this=node))):
            raise _OtherForm
        return node

    def _holders(self, name: str) -> list[str]:
        """Return the items that have a column of this name."""
        return [item for item, columns in self._columns.items() if name in columns]

    def _column(self, node: exp.Column) -> _Column:
        name = folded(node.name)
        if not isinstance(node.this, exp.Identifier) or node.args.get("db"):
            raise _OtherForm
        holders = [folded(node.table)] if node.table else self._holders(name)
        known = self._columns.get(holders[0]) if len(holders) == 1 else None
        if known is None or (name not in known and self._holders(holders[0])):
            raise _OtherForm
        if name not in known:
            message = f"{node.table} has no column {node.name}"
            raise plan_error(message, self._sql, node, nearest(name, known) or listed(known))
        return holders[0], name

    def _tables(self, node: exp.Expr) -> frozenset[str]:
        """Return the items whose columns the expression reads."""
        if node.find(exp.Query, exp.Window, exp.Columns, exp.PositionalColumn, exp.Lambda):
            raise _OtherForm
        return frozenset(self._column(column)[0] for column in node.find_all(exp.Column))

    def _text(self, node: exp.Expr) -> str:
        """Return its text with the item before each column."""
        holder = exp.Paren(this=node.copy())
        for column in list(holder.find_all(exp.Column)):
            table, name = self._column(column)
            column.replace(exp.column(name, table=table, quoted=True))
        return to_sql(holder.this.unnest())

    def _equal(self, condition: _Condition) -> tuple[_Column, _Column] | None:
        """Return the columns of two items that it compares; None for another condition."""
        equal = equality(condition.node)
        sides = [] if equal is None or equal.nulls else [equal.left.unnest(), equal.right.unnest()]
        if len(sides) != 2 or len(condition.tables) != 2:
            return None
        left, right = sides
        if not isinstance(left, exp.Column) or not isinstance(right, exp.Column):
            return None
        return self._column(left), self._column(right)

    # -- which items are grouped -------------------------------------------------------------------

    def _aggregates(self) -> Iterator[exp.Expr]:
        for part in self._parts:
            if part is not None:
                yield from outermost_aggregates(exp.Paren(this=part.copy()))

    def candidates(self) -> list[list[str]]:
        """Return the items to group, those with aggregates. Where only count(*) counts rows, each
        item may be the one whose rows are counted; those with fewer columns in GROUP BY come first.
        """
        calls = [(call, self._tables(call)) for call in self._aggregates()]
        if not calls or any(len(tables) > 1 for _, tables in calls):
            raise _OtherForm
        items = sorted({name for _, tables in calls for name in tables})
        counted = next((call for call, tables in calls if not tables), None)
        if len(items) > 1 and not all(_is_of_copies(call) for call, _ in calls):
            raise _OtherForm
        optional = sorted(self._optional & {*(items or self._items)})
        if counted is not None and optional:
            raise self._of_nulls(counted, optional[0])
        grouped_by = [name for node in self._groups for name in self._tables(node)]
        return [items] if items else [[name] for name in sorted(self._items, key=grouped_by.count)]

    def _check_clients(self) -> None:
        """Tables of one client are joined there, and the coordinator cannot count its groups."""
        parts: tuple[list[Client], list[Client]] = ([], [])
        for name, item in self._items.items():
            parts[name in self._grouped].extend(self._clients(item))
        if {*parts[0]} & {*parts[1]} or not parts[0]:
            raise _OtherForm

    def _divide_conditions(self) -> None:
        """Take the conditions of the grouped items, and make the columns keys that join them."""
        for condition in self._conditions:
            names = condition.tables & self._grouped.keys()
            if condition.left_join_of in self._grouped.keys() - names:
                raise _OtherForm  # rows with the keys of a group may be without it
            equal = self._equal(condition)
            if equal is not None:
                for name, column in equal:
                    if name in names:
                        key = exp.column(column, table=name, quoted=True)
                        self._grouped[name].keys[column] = key
            elif names:
                (name, *others) = condition.tables
                if others or (name in self._optional and condition.left_join_of != name):
                    raise _OtherForm
                if condition.left_join_of not in (None, name):
                    raise _OtherForm
                self._grouped[name].conditions.append(condition.node)
                condition.node.replace(exp.true())

    def _check_determined(self) -> None:
        """Each key of a grouped item has one value in a group."""
        known = {self._column(node) for node in self._groups if isinstance(node, exp.Column)}
        pairs = [(c, e) for c in self._conditions if (e := self._equal(c)) is not None]
        before = -1
        while len(known) != before:
            before = len(known)
            for condition, pair in pairs:
                for one, other in (pair, pair[::-1]):
                    inner = condition.left_join_of in (None, other[0])
                    if inner and one in known and other not in known:
                        known.add(other)
                        self._inferred.append((one, other))
        for name in self._grouped.keys() & self._optional:
            beside = {c[0] for _, pair in pairs if name in (pair[0][0], pair[1][0]) for c in pair}
            if len(beside) > 2 or (beside - {name}) & self._optional:
                raise _OtherForm
            # rows without a partner are told apart by what they lack one for
            on = [pair for condition, pair in pairs if condition.left_join_of == name]
            if any(column[0] != name and column not in known for pair in on for column in pair):
                raise _OtherForm
        keys = {(name, key) for name, made in self._grouped.items() for key in made.keys}
        if not keys <= known or not all(made.keys for made in self._grouped.values()):
            raise _OtherForm

    # -- writing -----------------------------------------------------------------------------------

    def _rewrite(self) -> None:
        select = self._select
        select.set("expressions", [self._output(node) for node in select.expressions])
        having = select.args.get("having")
        select.set("group", None)
        select.set("having", None)
        select.set("order", None)
        select.set("with_", None)
        if having is not None:
            select.where(self._over(having.this), copy=False)
        for item in list(self._nodes()):
            if (made := self._grouped.get(_name(item))) is not None:
                item.replace(made.subquery(trees.identifier(item.alias_or_name)))

    def _output(self, node: exp.Expr) -> exp.Expr:
        value = node.unalias()
        over = self._over(value)
        if node.alias or isinstance(value.unnest(), exp.Column):
            return exp.alias_(over, trees.identifier(node.alias or value.unnest().name))
        return exp.alias_(over, trees.identifier(to_sql(value)))

    def _over(self, value: exp.Expr) -> exp.Expr:
        """Return the value over the join with groups."""
        if value.find(exp.Query):
            raise _OtherForm
        holder = exp.Paren(this=value.copy())
        aggregates = {id(call) for call in outermost_aggregates(holder)}
        self._replace(holder, aggregates)
        result: exp.Expr = holder.this
        return result

    def _replace(self, parent: exp.Expr, aggregates: Collection[int]) -> None:
        for child in list(parent.iter_expressions()):
            if id(child) in aggregates:
                child.replace(self._value(child))
            elif (text := self._text(child)) in self._texts:
                (name,) = self._tables(self._texts[text])
                made = self._grouped.get(name)
                if made is not None and not isinstance(child, exp.Column):
                    key = next(k for k, node in made.keys.items() if self._text(node) == text)
                    child.replace(exp.column(key, table=name, quoted=True))
            elif isinstance(child, exp.Column):
                raise plan_error(
                    f"{to_sql(child)} is neither grouped by nor in an aggregate",
                    self._sql,
                    child,
                    "write it as GROUP BY does, or in an aggregate",
                )
            elif isinstance(child, exp.Dot | exp.Star):
                raise _OtherForm
            else:
                self._replace(child, aggregates)

    def _value(self, call: exp.Expr) -> exp.Expr:
        """Return the column of an aggregate."""
        name = next(iter(self._tables(call)), next(iter(self._grouped)))
        made = self._grouped[name]
        if name in self._optional and not self._leaves_nulls_out(call, name):
            raise self._of_nulls(call, name)
        text = self._text(call)
        made.values.setdefault(text, call.copy())
        column = exp.column(f"{_VALUE}{list(made.values).index(text)}", table=name)
        return over_none(call, column) if name in self._optional else column

    def _of_nulls(self, call: exp.Expr, name: str) -> PlanError:
        return plan_error(
            f"{to_sql(call)} may count the row of NULLs that a LEFT JOIN adds",
            self._sql,
            call,
            f"aggregate a column: LEFT JOIN (SELECT key, ... AS x FROM party.table) AS {name} ON "
            f"..., and count({name}.x) for the number of rows",
        )

    def _leaves_nulls_out(self, call: exp.Expr, name: str) -> bool:
        """Return whether a row of NULLs changes nothing in an aggregate over the item."""
        holder = exp.Paren(this=call.copy())
        for column in list(holder.find_all(exp.Column)):
            column.set("table", exp.to_identifier(name))
        inner = holder.this
        while isinstance(inner, exp.Filter):
            if rejects_nulls(inner.expression.this, {name}):
                return True
            inner = inner.this
        arguments = inner.expressions[:1]
        while arguments and isinstance(arguments[0], exp.Order | exp.Distinct):
            node = arguments[0]
            arguments = [node.this] if isinstance(node, exp.Order) else node.expressions[:1]
        plain = not isinstance(inner, exp.WithinGroup) and function_name(inner) not in _OF_NULLS
        return plain and all(is_null_over_nulls(argument, {name}) for argument in arguments)


def _name(item: exp.Expr) -> str:
    return folded(item.alias_or_name)


def _is_path(words: Sequence[str], item: exp.Expr) -> bool:
    """Return whether words before a column, empty ones first, name a table without an alias."""
    if not isinstance(item, exp.Table) or item.alias:
        return False
    path = [folded(item.text(part)) for part in ("catalog", "db", "this")]
    return all(word in ("", part) for word, part in zip(words, path, strict=True))


def _is_left(join: exp.Join) -> bool:
    return bool(join.side.upper() == "LEFT")


def _is_of_copies(call: exp.Expr) -> bool:
    inner = aggregate_of(call)
    distinct = inner.find(exp.Distinct) is not None
    plain = not isinstance(inner, exp.WithinGroup) and inner.find(exp.Order) is None
    lists = len(inner.expressions) > 1  # max(x, 2) gives the two greatest values
    return plain and (distinct or (function_name(inner) in _OF_COPIES and not lists))
