"""Fragments and the coordinator's mapping query, built as syntax trees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from sqlfl.errors import InternalError
from sqlfl.planner.ucq import Block, Join, Ucq

if TYPE_CHECKING:
    from sqlfl.planner.relations import Source

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# duckdb_keywords(): reserved, and those that are not a plain column name
_RESERVED = """
all analyse analyze and any array as asc asymmetric both case cast check collate column
constraint create default deferrable desc describe distinct do else end except false fetch for
foreign from group having in initially intersect into lambda lateral leading limit not null
offset on only or order pivot pivot_longer pivot_wider placing primary qualify references
returning select show some summarize symmetric table then to trailing true union unique unpivot
using variadic when where window with
anti asof at authorization binary by collation columns concurrently cross freeze full generated
glob ilike inner is isnull join left like map natural notnull outer overlaps positional right
semi similar struct tablesample try_cast tuple unpack verbose
between bigint bit boolean char character coalesce dec decimal exists extract float grouping
grouping_id inout int integer interval national nchar none nullif numeric out overlay position
precision real row setof smallint substring time timestamp treat trim values varchar
xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot
xmlserialize xmltable
current_date current_time current_timestamp localtime localtimestamp current_user session_user
user current_role current_catalog current_schema date
"""
_KEYWORDS = frozenset(_RESERVED.split())


def identifier(name: str) -> exp.Identifier:
    """The name, quoted only where DuckDB needs it."""
    plain = _PLAIN.fullmatch(name) is not None and name.lower() not in _KEYWORDS
    return exp.to_identifier(name, quoted=not plain)


def table(name: str, schema: str | None = None) -> exp.Table:
    return exp.Table(this=identifier(name), db=identifier(schema) if schema else None)


def cast(expression: exp.Expr, type_: str) -> exp.Cast:
    return exp.Cast(this=expression.copy(), to=exp.DataType.build(type_, dialect=DuckDB))


def fragment_select(
    sources: Sequence[Source],
    projections: Iterable[tuple[exp.Expr, str]],
    filters: Iterable[exp.Expr],
) -> exp.Select:
    """SELECT the projections, each (expression, name), FROM the sources WHERE all filters.

    Expressions name sources by their ids. With one source and no subquery in an expression names
    go unqualified; else each source has an alias that no expression uses.
    """
    shown = [(expression.copy(), name) for expression, name in projections]
    kept: dict[str, exp.Expr] = {}
    for condition in filters:
        kept.setdefault(condition.sql(dialect=DuckDB), condition.copy())
    everything = [*(e for e, _ in shown), *kept.values()]
    aliases = _aliases(sources, everything)
    shown = [(_named(e, aliases), name) for e, name in shown]
    select = exp.select(*(_projection(e, name) for e, name in shown), copy=False)
    for place, source in enumerate(sources):
        item = source.item.copy()
        alias = aliases[source.id]
        if alias is not None and not (isinstance(item, exp.Table) and item.name == alias):
            item.set("alias", exp.TableAlias(this=identifier(alias)))
        if place == 0:
            select = select.from_(item, copy=False)
        else:
            select = select.join(item, join_type="cross", copy=False)
    conditions = [_named(e, aliases) for e in kept.values()]
    return select.where(*conditions, copy=False) if conditions else select


def _aliases(sources: Sequence[Source], expressions: list[exp.Expr]) -> dict[str, str | None]:
    subqueries = [q for e in expressions for q in e.find_all(exp.Query)]
    if len(sources) == 1 and not subqueries:
        return {sources[0].id: None}
    taken = {t.alias_or_name.lower() for q in subqueries for t in q.find_all(exp.Table)}
    taken |= {t.name.lower() for q in subqueries for t in q.find_all(exp.TableAlias)}
    aliases: dict[str, str | None] = {}
    for source in sources:
        alias, number = source.name, 1
        while alias.lower() in taken:
            number += 1
            alias = f"{source.name}_{number}"
        taken.add(alias.lower())
        aliases[source.id] = alias
    return aliases


def _named(expression: exp.Expr, aliases: dict[str, str | None]) -> exp.Expr:
    for node in list(expression.find_all(exp.Column)):
        if node.table in aliases:
            alias = aliases[node.table]
            node.set("table", None if alias is None else identifier(alias))
    return expression


def _projection(expression: exp.Expr, name: str) -> exp.Expr:
    if isinstance(expression, exp.Column) and expression.name == name:
        return expression
    return exp.Alias(this=expression, alias=identifier(name))


# -- the mapping query -----------------------------------------------------------------------------


def mapping_query(ucq: Ucq) -> exp.Query:
    """The rows of the slots that each joined row comes from, over the slots' join keys.

    Reads tables `slot_<i>(fragment USMALLINT, row INTEGER, key_<j> INTEGER, ...)` of every slot;
    gives a column `slot_<i>` for every slot with features, target or identifiers, a row per joined
    row, ordered by the target's slot, then by the others.
    """
    shown = [s.index for s in ucq.slots if s.features or s.target or s.identifiers]
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


def _mapping_block(ucq: Ucq, block: Block, shown: list[int]) -> exp.Select:
    fragments = dict(block.members)
    placed: list[int] = []
    select = exp.select(
        *(
            exp.Alias(
                this=exp.column("row", table=f"slot_{i}"), alias=exp.to_identifier(f"slot_{i}")
            )
            for i in shown
        ),
        copy=False,
    )
    for slot in _join_order(block):
        ready = [j for j in block.joins if slot in (j.left, j.right)]
        ready = [j for j in ready if (j.right if j.left == slot else j.left) in placed]
        item = exp.to_table(f"slot_{slot}")
        if not placed:
            select = select.from_(item, copy=False)
        elif ready:
            condition = exp.and_(*(_equal(j, slot) for j in ready))
            select = select.join(item, on=condition, copy=False)
        else:
            select = select.join(item, join_type="cross", copy=False)
        placed.append(slot)
    for slot, taken in block.members:
        if len(taken) < len(ucq.slots[slot].fragments):
            column = exp.column("fragment", table=f"slot_{slot}")
            numbers = [exp.Literal.number(i) for i in fragments[slot]]
            one = len(numbers) == 1
            select = select.where(
                exp.EQ(this=column, expression=numbers[0])
                if one
                else exp.In(this=column, expressions=numbers),
                copy=False,
            )
    return select


def _join_order(block: Block) -> list[int]:
    """The slots, each as early as it joins one before it."""
    waiting = [slot for slot, _ in block.members]
    placed: list[int] = []
    while waiting:
        linked = {j.left for j in block.joins if j.right in placed}
        linked |= {j.right for j in block.joins if j.left in placed}
        slot = next((s for s in waiting if s in linked), waiting[0])
        waiting.remove(slot)
        placed.append(slot)
    return placed


def _equal(join: Join, slot: int) -> exp.EQ:
    other = join.left if join.right == slot else join.right
    return exp.EQ(
        this=exp.column(f"key_{join.key}", table=f"slot_{other}"),
        expression=exp.column(f"key_{join.key}", table=f"slot_{slot}"),
    )
