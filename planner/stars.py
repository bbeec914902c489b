"""`*`, `t.*` and their EXCLUDE, REPLACE and RENAME."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from sqlfl.planner.names import Scope, nearest
from sqlfl.planner.push import Pusher
from sqlfl.planner.relations import Output, Term
from sqlfl.planner.spans import plan_error, span_of

if TYPE_CHECKING:
    from sqlfl.planner.bind import Environment


def is_star(node: exp.Expr) -> bool:
    return isinstance(node, exp.Star) or (
        isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
    )


def expand_star(node: exp.Expr, scope: Scope, pusher: Pusher, known: Environment) -> list[Output]:
    """The outputs that the star stands for, in the order of FROM."""
    table = node.table if isinstance(node, exp.Column) else ""
    star = node.this if isinstance(node, exp.Column) else node
    items = [i for i in scope.items if not table or i.name.lower() == table.lower()]
    if not items:
        raise plan_error(
            f"{table}.*: there is no table {table} in FROM",
            scope.sql,
            node,
            nearest(table, (i.name for i in scope.items)),
        )
    span = span_of(node, scope.sql)
    shown = [
        Output(name, Term(term.expression.copy(), span))
        for item in items
        for name, term in (item.columns if table else item.shown())
    ]
    excluded = {e.name.lower() for e in star.args.get("except_") or []}
    replaced = {e.alias.lower(): e for e in star.args.get("replace") or []}
    renamed = {e.this.name.lower(): e.alias for e in star.args.get("rename") or []}
    names = {o.name.lower() for o in shown}
    for name in (*excluded, *replaced, *renamed):
        if name not in names:
            raise plan_error(
                f"the star has no column {name}",
                scope.sql,
                node,
                nearest(name, (o.name for o in shown)),
            )
    outputs = []
    for output in shown:
        name = output.name.lower()
        if name in excluded:
            continue
        term = output.term
        if name in replaced:
            term = pusher.term(replaced[name].this, scope, known, ())
        outputs.append(Output(renamed.get(name, output.name), term))
    return outputs
