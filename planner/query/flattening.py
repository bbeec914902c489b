"""A GROUP BY over a derived join, as one over the tables of the join."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.relations import fitted

_OUTER = frozenset(("with_", "expressions", "from_", "where", "group", "having"))
_INNER = frozenset(("expressions", "from_", "joins", "where"))
_KEEPING = (exp.Query, exp.Window, exp.Columns, exp.PositionalColumn, exp.Lambda, exp.Explode)
"""Nodes that do not stand for one value of a row, or have names of their own."""


def flattened(query: exp.Select, known: Environment) -> exp.Select:
    """Return `SELECT k, sum(x) FROM (SELECT a.k, b.x FROM a JOIN b ON ...) AS d GROUP BY k` as
    `SELECT a.k, sum(b.x) FROM a JOIN b ON ... GROUP BY a.k`; other queries as they are.
    """
    if not {key for key, value in query.args.items() if value} <= _OUTER:
        return query
    item = query.args["from_"].this
    inner = _query_of(item, known)
    if inner is None or not {key for key, value in inner.args.items() if value} <= _INNER:
        return query
    if not inner.args.get("joins"):
        return query
    values = _values(inner, item)
    outside = [query.args.get(key) for key in ("where", "group", "having")]
    parts = [*query.expressions, *(part for part in outside if part is not None)]
    if values is None or any(part.find(*_KEEPING, exp.Star) for part in parts if not _counts(part)):
        return query
    made = query.copy()
    made.set("with_", None)
    made.set("from_", inner.args["from_"].copy())
    holder = [*made.expressions, *(made.args.get(key) for key in ("where", "group", "having"))]
    columns = [c for part in holder if part is not None for c in part.find_all(exp.Column)]
    if not all(_replaced(node, values, item) for node in columns):
        return query
    for projection, written in zip([*made.expressions], query.expressions, strict=True):
        if isinstance(written, exp.Column):
            projection.replace(exp.alias_(projection.copy(), written.name, quoted=True))
    made.set("joins", [join.copy() for join in inner.args["joins"]])
    where = inner.args.get("where")
    return made if where is None else made.where(where.this.copy(), copy=False)


def _query_of(item: exp.Expr, known: Environment) -> exp.Select | None:
    """Return the SELECT over parties' tables that an item of FROM stands for."""
    if any(item.args.get(key) for key in ("joins", "pivots", "sample")):
        return None
    inner: exp.Expr | None = None
    if isinstance(item, exp.Subquery):
        inner = item.this
    elif isinstance(item, exp.Table) and not item.db and folded(item.name) in known:
        cte = known[folded(item.name)]
        inner = None if cte.calls_itself or cte.columns else cte.query
    if not isinstance(inner, exp.Select) or inner.args.get("from_") is None:
        return None
    tables = all(table.db for table in inner.find_all(exp.Table))
    return inner if tables else None


def _counts(part: exp.Expr) -> bool:
    """Return whether its stars are those of count(*)."""
    stars = list(part.find_all(exp.Star))
    calls = all(isinstance(star.parent, exp.Func) for star in stars)
    return bool(stars) and calls and not part.find(*_KEEPING)


def _values(inner: exp.Select, item: exp.Expr) -> Mapping[str, exp.Expr] | None:
    """Return the columns of a derived table by their names in lower case. None if one has a name
    that only a database knows.
    """
    values: dict[str, exp.Expr] = {}
    for projection in inner.expressions:
        value = projection.unalias()
        name = projection.alias or (value.name if isinstance(value, exp.Column) else "")
        if not name or folded(name) in values or value.find(*_KEEPING, exp.Star):
            return None
        values[folded(name)] = value
    names = item.alias_column_names if isinstance(item, exp.Subquery | exp.Table) else []
    if len(names) > len(values):
        return None
    rest = list(values)[len(names) :]
    renamed = [*(folded(name) for name in names), *rest]
    return (
        dict(zip(renamed, values.values(), strict=True)) if len({*renamed}) == len(values) else None
    )


def _replaced(node: exp.Column, values: Mapping[str, exp.Expr], item: exp.Expr) -> bool:
    """Put what a column stands for in its place. False if it is no column of the derived table."""
    value = values.get(folded(node.name))
    if value is None or node.args.get("db"):
        return False
    if node.table and folded(node.table) != folded(item.alias_or_name):
        return False
    node.replace(fitted(value.copy(), node.parent))
    return True
