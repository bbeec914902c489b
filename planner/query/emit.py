"""Fragments and the coordinator's mapping query (LEFT JOINs and their virtual rows included), as
syntax trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from sqlglot import exp

from sqlfl.base.errors import InternalError
from sqlfl.contract import fragment_columns
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import copied, identifier, nodes
from sqlfl.planner.query.relations import LeftOn, Source
from sqlfl.planner.query.ucq import Block, Join, LeftJoin, Ucq

NAMES_MARK = "sqlfl_names"
"""Key in the meta of a subquery: names, in lower case, that must not be aliases around it."""

ROW = fragment_columns.ROW
"""In an expression, `Column(ROW, table='@n')` is the whole row of a source, as a struct."""
MARKS = ("#", "@")
"""Prefixes of names of relations and sources in a plan in progress."""
MARKED = re.compile(r"[#@][0-9]+")


def whole_row(sources: Sequence[Source]) -> exp.Expr:
    """The rows of all sources as one value."""
    rows: list[exp.Expr] = [
        exp.Column(this=exp.to_identifier(ROW), table=exp.to_identifier(s.id)) for s in sources
    ]
    if len(rows) == 1:
        return rows[0]
    parts = enumerate(rows, 1)
    return exp.Struct(
        expressions=[
            exp.PropertyEQ(this=exp.to_identifier(f"s{n}"), expression=row) for n, row in parts
        ]
    )


def fragment_select(
    sources: Sequence[Source],
    projections: Iterable[tuple[exp.Expr, str]],
    filters: Iterable[exp.Expr],
    virtual: bool = False,
    alone: bool = False,
) -> exp.Select:
    """Return SELECT of the projections, each (expression, name), FROM the sources WHERE all
    filters.

    Expressions name sources by their ids. Each source has an alias that differs from all other
    names of the SELECT, columns and schemas, and each column is written `alias.column`. So no name
    is ambiguous.

    With `virtual`, all columns of the sources are NULL, in one row. `alone` is for a test whether
    the SELECT binds. If an expression then has a subquery, sources offer only the named columns,
    under new names. So no name inside the subquery can refer to another column of a source.
    """
    shown = [(copied(expression), name) for expression, name in projections]
    kept: dict[str, exp.Expr] = {}
    for condition in filters:
        kept.setdefault(to_sql(condition), copied(condition))
    edges = {e.id: [t.expression for t in e.on] for s in sources for e in s.lefts}
    everything = [*(e for e, _ in shown), *kept.values(), *(e for on in edges.values() for e in on)]
    alone = alone and any(e.find(exp.Query) is not None for e in everything)
    names = _Names(sources, everything, [name for _, name in shown], alone)
    shown = [(names.given(e), name) for e, name in shown]
    select = exp.select(*(_projection(e, name) for e, name in shown), copy=False)
    first, joins = _from(sources, names, 0)
    if virtual:
        one = exp.select(exp.alias_(exp.Literal.number(1), ROW)).subquery()
        right = exp.Subquery(this=_with_joins(first, joins)) if joins else first
        select = select.from_(one, copy=False)
        select = select.join(right, on=exp.false(), join_type="left", copy=False)
    else:
        select = select.from_(first, copy=False)
        select.set("joins", joins or None)
    conditions = [names.given(e) for e in kept.values()]
    return select.where(*conditions, copy=False) if conditions else select


def _from(sources: Sequence[Source], names: _Names, depth: int) -> tuple[exp.Expr, list[exp.Join]]:
    """Return the first source and the joins after it, for sources inside `depth` LEFT JOINs."""
    items: list[tuple[exp.Expr, LeftOn | None]] = []
    for edge, group in groupby(sources, key=lambda s: s.lefts[depth : depth + 1]):
        if not edge:
            items += [(names.item(source), None) for source in group]
            continue
        inner, joins = _from(list(group), names, depth + 1)
        items.append((exp.Subquery(this=_with_joins(inner, joins)) if joins else inner, edge[0]))
    (first, _), *rest = items
    return first, [_join(item, edge, names) for item, edge in rest]


def _join(item: exp.Expr, edge: LeftOn | None, names: _Names) -> exp.Join:
    if edge is None:
        return exp.Join(this=item, kind="CROSS")
    on = [names.given(term.expression.copy()) for term in edge.on]
    return exp.Join(this=item, side="LEFT", on=exp.and_(*on) if on else exp.true())


def _with_joins(item: exp.Expr, joins: list[exp.Join]) -> exp.Expr:
    item.set("joins", [*(item.args.get("joins") or []), *joins])
    return item


class _Names:
    """Names of the sources and their columns in one SELECT."""

    def __init__(
        self,
        sources: Sequence[Source],
        expressions: Sequence[exp.Expr],
        outputs: Sequence[str],
        alone: bool,
    ) -> None:
        taken = {folded(name) for name in outputs}
        taken |= {name for source in sources for name in source.names}
        for expression in (*expressions, *(source.item for source in sources)):
            for node in expression.walk():
                if isinstance(node, exp.Identifier) and not node.name.startswith(MARKS):
                    taken.add(folded(node.name))
                taken |= node.meta_get(NAMES_MARK) or frozenset()
        self._aliases = {source.id: _free(source.name, taken) for source in sources}
        named = [c for e in expressions for c in nodes(e, exp.Column)] if alone else []
        rows = {column.table for column in named if column.name == ROW}
        hiding = (source.id for source in sources if alone and source.id not in rows)
        self._columns: dict[str, dict[str, exp.Alias]] = {id_: {} for id_ in hiding}
        """Sources that offer only these columns, each under a new name."""
        for column in named:
            columns = self._columns.get(column.table)
            if columns is not None:
                name = f"sqlfl_column_{len(columns)}"
                shown = exp.Alias(this=exp.column(column.this.copy()), alias=identifier(name))
                columns.setdefault(folded(column.name), shown)

    def item(self, source: Source) -> exp.Expr:
        item: exp.Expr = copied(source.item)
        columns = self._columns.get(source.id)
        if columns is not None:
            shown: list[exp.Expr] = [*columns.values()]
            shown = shown or [exp.alias_(exp.Literal.number(1), ROW)]
            item = exp.select(*shown).from_(item).subquery()
        item.set("alias", exp.TableAlias(this=identifier(self._aliases[source.id])))
        return item

    def given(self, expression: exp.Expr) -> exp.Expr:
        """Rename the expression's columns, in place."""
        for node in nodes(expression, exp.Column):
            alias, columns = self._aliases.get(node.table), self._columns.get(node.table)
            if alias is not None and node.name == ROW:
                node.set("this", identifier(alias))
                node.set("table", None)
            elif alias is not None:
                if columns is not None:
                    node.set("this", identifier(columns[folded(node.name)].alias))
                node.set("table", identifier(alias))
        return expression


def _free(name: str, taken: set[str]) -> str:
    """Return an alias that starts like the name and is free; mark it as taken."""
    letter = next((c for c in folded(name) if c.isascii() and c.isalpha()), "t")
    alias, number = letter, 1
    while alias in taken:
        number += 1
        alias = f"{letter}{number}"
    taken.add(alias)
    return alias


def _projection(expression: exp.Expr, name: str) -> exp.Expr:
    if isinstance(expression, exp.Column) and expression.name == name:
        return expression
    return exp.Alias(this=expression, alias=identifier(name))


# -- the mapping query -----------------------------------------------------------------------------


def mapping_query(ucq: Ucq) -> exp.Query:
    """Return the query that maps each joined row to its slots' rows, over the slots' join keys.

    It reads tables `slot_<i>(fragment USMALLINT, row INTEGER, key_<j> INTEGER, ...)` of every slot.
    It returns a row per joined row, ordered by the target's slot, then by the others. Each slot
    that joined rows need has a column `slot_<i>`. A joined row without a partner in a LEFT JOIN has
    the slot's virtual row.
    """
    shown = ucq.mapped
    if not shown:
        raise InternalError("no slot of the query has a column")
    first = [s.index for s in ucq.slots if s.target]
    order = [exp.column(f"slot_{i}") for i in (*first, *(i for i in shown if i not in first))]
    query: exp.Query | None = None
    for block in ucq.blocks:
        select = _mapping_block(ucq, block, shown)
        query = select if query is None else exp.union(query, select, distinct=False, copy=False)
    if query is None:
        raise InternalError("the query has no block")
    if isinstance(query, exp.Select):
        return query.order_by(*order, copy=False)
    # ORDER BY of a union binds to the whole
    query.set("order", exp.Order(expressions=[exp.Ordered(this=c) for c in order]))
    return query


def _mapping_block(ucq: Ucq, block: Block, shown: Sequence[int]) -> exp.Select:
    virtual = dict(block.virtual)
    select = exp.select(
        *(exp.Alias(this=_row(i, virtual), alias=exp.to_identifier(f"slot_{i}")) for i in shown),
        copy=False,
    )
    core = [slot for slot, _ in block.members if slot not in virtual]
    first, joins, late = _placed(ucq, block, core, block.joins, block.lefts)
    select = select.from_(first, copy=False)
    select.set("joins", joins or None)
    conditions = [*late, *_restrictions(ucq, block, core)]
    conditions += [_keeps(slot, kept, virtual[slot]) for slot, kept in block.kept]
    return select.where(*conditions, copy=False) if conditions else select


def _placed(
    ucq: Ucq,
    block: Block,
    slots: Sequence[int],
    joins: Sequence[Join],
    lefts: Sequence[LeftJoin],
) -> tuple[exp.Expr, list[exp.Join], list[exp.Expr]]:
    """Order slots and LEFT JOINs so that each follows the tables that it joins.

    Returns the first slot, the joins after it, and conditions that none of them could hold.
    """
    virtual = dict(block.virtual)
    waiting, later, open_ = list(slots), list(lefts), list(joins)
    placed: list[int] = []
    joined: list[exp.Join] = []
    while waiting or later:
        slot = next((s for s in waiting if _linked(s, open_, placed, False)), None)
        if slot is None and placed:
            ready = next((n for n in later if _outside(n) <= {*placed}), None)
            if ready is not None and (not waiting or any(j.virtual for j in open_)):
                later.remove(ready)
                joined.append(_left_join(ucq, block, ready))
                placed += ready.within
                continue
            slot = next((s for s in waiting if _linked(s, open_, placed, True)), None)
        slot = waiting[0] if slot is None else slot
        waiting.remove(slot)
        placed.append(slot)
        usable = [j for j in open_ if slot in (j.left, j.right) and {j.left, j.right} <= {*placed}]
        open_ = [j for j in open_ if j not in usable]
        if len(placed) > 1:
            item = exp.to_table(f"slot_{slot}")
            on = exp.and_(*(_equal(j, virtual) for j in usable)) if usable else None
            joined.append(exp.Join(this=item, on=on) if on else exp.Join(this=item, kind="CROSS"))
    return exp.to_table(f"slot_{placed[0]}"), joined, [_equal(j, virtual) for j in open_]


def _linked(slot: int, joins: Sequence[Join], placed: Sequence[int], virtual: bool) -> bool:
    ends = [(j.left, j.right) for j in joins if virtual or not j.virtual]
    return any((a == slot and b in placed) or (b == slot and a in placed) for a, b in ends)


def _outside(left: LeftJoin) -> set[int]:
    """Return the slots before a LEFT JOIN that its ON compares."""
    return {j.left for j in left.on}


def _left_join(ucq: Ucq, block: Block, left: LeftJoin) -> exp.Join:
    virtual = dict(block.virtual)
    first, joins, late = _placed(ucq, block, left.slots, left.joins, left.lefts)
    first.set("joins", joins or None)
    on: list[exp.Expr] = [_equal(j, virtual) for j in left.on]
    on += [*late, *_restrictions(ucq, block, left.slots)]
    item = exp.Subquery(this=first) if joins else first
    return exp.Join(this=item, side="LEFT", on=exp.and_(*on) if on else exp.true())


def _restrictions(ucq: Ucq, block: Block, slots: Sequence[int]) -> list[exp.Expr]:
    return [
        _is_one_of(slot, taken)
        for slot, taken in block.members
        if slot in slots and len(taken) < len(ucq.slots[slot].fragments)
    ]


def _is_one_of(slot: int, fragments: Sequence[int]) -> exp.Expr:
    column = exp.column("fragment", table=f"slot_{slot}")
    numbers = [exp.Literal.number(i) for i in fragments]
    if len(numbers) == 1:
        return exp.EQ(this=column, expression=numbers[0])
    return exp.In(this=column, expressions=numbers)


def _virtual(slot: int, name: str, fragment: int) -> exp.Subquery:
    """Return a column of the slot's virtual row; NULL without one."""
    table = exp.to_table(f"slot_{slot}").as_("v")
    chosen = exp.EQ(this=exp.column("fragment", table="v"), expression=exp.Literal.number(fragment))
    return exp.select(exp.column(name, table="v")).from_(table).where(chosen).subquery()


def _row(slot: int, virtual: Mapping[int, int]) -> exp.Expr:
    column = exp.column("row", table=f"slot_{slot}")
    if slot not in virtual:
        return column
    return exp.Coalesce(this=column, expressions=[_virtual(slot, "row", virtual[slot])])


def _missing(slot: int) -> exp.Is:
    return exp.Is(this=exp.column("row", table=f"slot_{slot}"), expression=exp.Null())


def _keeps(slot: int, fragments: Sequence[int], virtual: int) -> exp.Expr:
    exists = exp.Not(this=exp.Is(this=_virtual(slot, "row", virtual), expression=exp.Null()))
    return exp.or_(_is_one_of(slot, fragments), exp.and_(_missing(slot), exists))


def _equal(join: Join, virtual: Mapping[int, int]) -> exp.EQ:
    left: exp.Expr = exp.column(f"key_{join.key}", table=f"slot_{join.left}")
    if join.virtual:
        virtual_key = _virtual(join.left, f"key_{join.key}", virtual[join.left])
        left = exp.Case(ifs=[exp.If(this=_missing(join.left), true=virtual_key)], default=left)
    right = exp.column(f"key_{join.key}", table=f"slot_{join.right}")
    return exp.EQ(this=left, expression=right)
