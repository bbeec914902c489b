"""Syntax trees: nodes that sqlglot does not have, names as trees, and places in the text.

Copies and lists of nodes take a third of sqlglot's time. Names of tables and columns are quoted
where DuckDB needs it.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, TypeVar, overload

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar.statements import Span

Tree = TypeVar("Tree", bound=exp.Expr)


class Infix(exp.Expression, exp.Binary):
    """`this operator expression`, for an operator that sqlglot has no rules for, or other ones."""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "expression": True, "operator": True}


class Prefix(exp.Unary):
    """`operator this`"""

    arg_types: ClassVar[dict[str, bool]] = {"this": True, "operator": True}


class Verbatim(exp.Expression, exp.Condition):
    """A literal in its original spelling: `this` is its text."""


def copied(tree: Tree) -> Tree:
    """Return a copy without a parent. It shares the values of the nodes' marks, which nobody
    changes.
    """
    root = _bare(tree)
    open_nodes: list[tuple[exp.Expr, exp.Expr]] = [(tree, root)]
    while open_nodes:
        node, copy = open_nodes.pop()
        parts = copy.args
        for key, part in node.args.items():
            if isinstance(part, exp.Expr):
                parts[key] = child = _bare(part)
                child.parent, child.arg_key = copy, key
                open_nodes.append((part, child))
            elif type(part) is list:
                items = parts[key] = []
                for index, item in enumerate(part):
                    if isinstance(item, exp.Expr):
                        child = _bare(item)
                        child.parent, child.arg_key, child.index = copy, key, index
                        open_nodes.append((item, child))
                        items.append(child)
                    else:
                        items.append(item)
            else:
                parts[key] = part
    return root


def _bare(node: Tree) -> Tree:
    """Return a node of this kind with the same comments, type and marks, and without parts."""
    copy = node.__class__()
    if node.comments is not None:
        copy.comments = [*node.comments]
    if node._type is not None:
        copy._type = node._type.copy()
    if node._meta is not None:
        copy._meta = {**node._meta}
    copy._hash = node._hash
    return copy


@overload
def nodes(tree: exp.Expr) -> list[exp.Expr]: ...


@overload
def nodes(tree: exp.Expr, *kinds: type[Tree]) -> list[Tree]: ...


def nodes(tree: exp.Expr, *kinds: type[exp.Expr]) -> list[Any]:
    """Return the nodes of these kinds, or all, from the top down, in the order of `find_all`."""
    every = [tree]
    for node in every:  # which grows
        for part in node.args.values():
            if isinstance(part, exp.Expr):
                every.append(part)
            elif type(part) is list:
                every += [item for item in part if isinstance(item, exp.Expr)]
    return [node for node in every if isinstance(node, kinds)] if kinds else every


def span_of(node: exp.Expr | None, sql: str) -> Span | None:
    """The characters that the node was read from; its nearest ancestor's where it has no trace."""
    while node is not None:
        inner = node.this if isinstance(node, exp.Alias) else node
        places = [_place(n) for n in inner.walk()] if isinstance(inner, exp.Expr) else []
        known = [p for p in places if p is not None]
        if known:
            span = min(s for s, _ in known), max(e for _, e in known)
            if isinstance(inner, exp.Select):
                span = _with_keyword(span, sql)
            else:
                span = _with_exists(span, sql)
            return _closed(span, sql, isinstance(inner, exp.Func))
        node = node.parent
    return None


def _place(node: exp.Expr) -> Span | None:
    start, end = node.meta_get("start"), node.meta_get("end")
    if isinstance(node, exp.Star) and end == 0:
        return None  # the star of a query without SELECT
    return (start, end + 1) if isinstance(start, int) and isinstance(end, int) else None


def _with_keyword(span: Span, sql: str) -> Span:
    """Extend the span to SELECT, which leaves no trace in its tree."""
    match = re.search(r"select(\s+distinct)?\s+\(*[\w.]*\(?$", sql[: span[0]], re.IGNORECASE)
    return (match.start(), span[1]) if match else span


def _with_exists(span: Span, sql: str) -> Span:
    """Extend a span that has a FROM, and begins inside EXISTS, to the EXISTS."""
    start, end = span
    match = re.search(r"exists\s*\(\s*select(\s+distinct)?\s*$", sql[:start], re.IGNORECASE)
    inside = match is not None and re.search(r"\bfrom\b", sql[start:end], re.IGNORECASE)
    return (match.start(), end) if match is not None and inside else span


def _closed(span: Span, sql: str, call: bool) -> Span:
    """Widen the span to the name of a call, and to parentheses that are open at the end."""
    start, end = span
    before = sql[:start].rstrip()
    if call and before.endswith("("):
        start = len(before) - 1
        while start and (sql[start - 1].isalnum() or sql[start - 1] == "_"):
            start -= 1
    text = sql[start:end]
    missing = text.count("(") - text.count(")")
    while missing > 0 and end < len(sql):
        missing -= {")": 1, "(": -1}.get(sql[end], 0)
        end += 1
    return start, end


def plan_error(
    message: str, sql: str, where: exp.Expr | Span | None, hint: str | None = None
) -> PlanError:
    span = where if where is None or isinstance(where, tuple) else span_of(where, sql)
    return PlanError(message, hint=hint, sql=sql, span=span)


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# duckdb_keywords(): reserved words, and words that cannot be plain column names
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
    plain = _PLAIN.fullmatch(name) is not None and folded(name) not in _KEYWORDS
    return exp.to_identifier(name, quoted=not plain)


def table(name: str, schema: str | None = None, catalog: str | None = None) -> exp.Table:
    return exp.Table(
        this=identifier(name),
        db=identifier(schema) if schema else None,
        catalog=identifier(catalog) if catalog else None,
    )


def cast(expression: exp.Expr, type_: str) -> exp.Cast:
    """The expression as a type, which is written as DuckDB writes it."""
    to = exp.DataType(this=exp.DType.USERDEFINED, kind=type_)
    return exp.Cast(this=expression.copy(), to=to)
