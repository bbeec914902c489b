"""Fragments and the coordinator's mapping query (LEFT JOINs and their virtual rows included), as
syntax trees.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    conditions = [*late, *_restrictions(ucq, block, _plain(block, core))]
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
    ends = _ends(block)
    waiting, later = [s for s in slots if ends.get(s, s) == s], list(lefts)
    open_ = _edges(joins, ends)
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
            item = _item(ucq, block, slot)
            on = exp.and_(*(_equal(j, virtual) for j in usable)) if usable else None
            joined.append(exp.Join(this=item, on=on) if on else exp.Join(this=item, kind="CROSS"))
    return _item(ucq, block, placed[0]), joined, [_equal(j, virtual) for j in open_]


@dataclass(frozen=True)
class _Edge:
    """A join, with the first slots of subqueries in place of their other slots."""

    join: Join
    left: int
    right: int
    subqueries: frozenset[int]
    """These first slots."""

    @property
    def virtual(self) -> bool:
        return self.join.virtual

    def of_subquery(self, end: int) -> bool:
        return end in self.subqueries


def _ends(block: Block) -> dict[int, int]:
    """Return the first slot of the subquery for each slot of `Block.existences`."""
    return {slot: slots[0] for slots in block.existences for slot in slots}


def _plain(block: Block, slots: Sequence[int]) -> list[int]:
    """Return the slots of no subquery of `Block.existences`."""
    ends = _ends(block)
    return [slot for slot in slots if slot not in ends]


def _edges(joins: Sequence[Join], ends: Mapping[int, int]) -> list[_Edge]:
    """Return the joins but those within a subquery."""
    firsts = frozenset(ends.values())
    edges = (_Edge(j, ends.get(j.left, j.left), ends.get(j.right, j.right), firsts) for j in joins)
    return [edge for edge in edges if edge.left != edge.right]


def _item(ucq: Ucq, block: Block, slot: int) -> exp.Expr:
    """Return the item of FROM that has the rows of a slot, or of the subquery that it stands for.

    The latter is a derived table with a row for each combination of keys outside. It joins only
    rows that have the keys of rows outside.
    """
    slots = next((own for own in block.existences if own[0] == slot), None)
    if slots is None:
        return exp.to_table(f"slot_{slot}")
    inside = [j for j in block.every_join if j.left in slots and j.right in slots]
    tests = [exp.EQ(this=_key(j.left, j.key), expression=_key(j.right, j.key)) for j in inside]
    items: list[exp.Expr] = [exp.to_table(f"slot_{own}") for own in slots]
    keys: dict[tuple[int, int], exp.Expr] = {}
    outside: dict[int, list[tuple[int, int]]] = {}
    row = exp.column("row", table=f"slot_{slot}")
    shown = [exp.alias_(_of_first("fragment", slot, row), "fragment")]
    for join in block.every_join:
        if (join.left in slots) == (join.right in slots):
            continue
        own, other = (join.left, join.right) if join.left in slots else (join.right, join.left)
        if join.virtual and own == join.left:
            shown.append(exp.alias_(_of_first(f"key_{join.key}", own, row), _shown_key(own, join)))
        elif (own, join.key) not in keys:
            keys[own, join.key] = _key(own, join.key)
            shown.append(exp.alias_(_key(own, join.key), _shown_key(own, join)))
            outside.setdefault(other, []).append((own, join.key))
    for other, pairs in outside.items():
        name = f"outside_{other}"
        columns = dict.fromkeys(exp.column(f"key_{key}") for _, key in pairs)
        rows = exp.select(*columns).from_(exp.to_table(f"slot_{other}")).distinct()
        items.append(exp.Subquery(this=rows, alias=exp.TableAlias(this=exp.to_identifier(name))))
        for own, key in pairs:
            test = exp.EQ(this=_key(own, key), expression=exp.column(f"key_{key}", table=name))
            tests.append(test)
    shown.insert(0, exp.alias_(exp.func("min", row.copy()), "row"))
    first, *others = items
    select = exp.select(*shown, copy=False).from_(first, copy=False)
    select.set("joins", [exp.Join(this=item, kind="CROSS") for item in others] or None)
    select = select.where(*tests, *_restrictions(ucq, block, slots), copy=False)
    select = select.group_by(*(key.copy() for key in keys.values()), copy=False)
    return exp.Subquery(this=select, alias=exp.TableAlias(this=exp.to_identifier(f"slot_{slot}")))


def _of_first(name: str, slot: int, row: exp.Expr) -> exp.Expr:
    """Return the column of a slot in the first of a group's rows."""
    column = exp.column(name, table=f"slot_{slot}")
    return exp.Anonymous(this="arg_min", expressions=[column, row.copy()])


def _shown_key(slot: int, join: Join) -> str:
    return f"key_{join.key}_{slot}"


def _key(slot: int, key: int) -> exp.Column:
    return exp.column(f"key_{key}", table=f"slot_{slot}")


def _linked(slot: int, joins: Sequence[_Edge], placed: Sequence[int], virtual: bool) -> bool:
    ends = [(j.left, j.right) for j in joins if virtual or not j.virtual]
    return any((a == slot and b in placed) or (b == slot and a in placed) for a, b in ends)


def _outside(left: LeftJoin) -> set[int]:
    """Return the slots before a LEFT JOIN that its ON compares."""
    return {j.left for j in left.on}


def _left_join(ucq: Ucq, block: Block, left: LeftJoin) -> exp.Join:
    virtual = dict(block.virtual)
    first, joins, late = _placed(ucq, block, left.slots, left.joins, left.lefts)
    first.set("joins", joins or None)
    on: list[exp.Expr] = [_equal(j, virtual) for j in _edges(left.on, _ends(block))]
    on += [*late, *_restrictions(ucq, block, _plain(block, left.slots))]
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


def _equal(edge: _Edge, virtual: Mapping[int, int]) -> exp.EQ:
    join = edge.join
    left: exp.Expr = _end(join.left, edge.left, edge)
    if join.virtual:
        virtual_key = _virtual(join.left, f"key_{join.key}", virtual[join.left])
        left = exp.Case(ifs=[exp.If(this=_missing(edge.left), true=virtual_key)], default=left)
    return exp.EQ(this=left, expression=_end(join.right, edge.right, edge))


def _end(slot: int, end: int, edge: _Edge) -> exp.Column:
    """Return the key of a slot as the FROM item of the slot `end` has it."""
    if not edge.of_subquery(end):
        return _key(slot, edge.join.key)
    return exp.column(_shown_key(slot, edge.join), table=f"slot_{end}")
