"""Names in their original spelling: words between dots, then calls and fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.planner.grammar.writing import to_sql
from sqlfl.planner.query.relations import operand


@dataclass(frozen=True)
class DottedName:
    """`a.b.c.f(x).d`: the words a, b and c, then the call of f, then the field d."""

    words: tuple[exp.Identifier, ...]
    links: tuple[exp.Expr, ...] = ()
    """Nodes from the first call on."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(word.name for word in self.words)

    @property
    def is_method(self) -> bool:
        """A call follows the words: they are a column, or the schema of a function."""
        return bool(self.links)

    @property
    def written(self) -> str:
        return ".".join(to_sql(word) for word in self.words)


def chain_of(node: exp.Expr) -> DottedName | None:
    """Return the names in a column, or in dots above one; None for any other expression."""
    links: list[exp.Expr] = []
    base = node
    while isinstance(base, exp.Dot):
        links.append(base.expression)
        base = base.this
    if not isinstance(base, exp.Column) or not isinstance(base.this, exp.Identifier):
        return None
    words = list(base.parts)
    links.reverse()
    while links and isinstance(links[0], exp.Identifier):
        words.append(links.pop(0))
    return DottedName(tuple(w for w in words if isinstance(w, exp.Identifier)), tuple(links))


def column_of(words: Sequence[exp.Expr]) -> exp.Expr:
    """The words with dots between them; a column, as the parser has it, where they are few."""
    names = [word.copy() for word in words]
    column: exp.Expr = exp.Column(
        **dict(zip(("this", "table", "db", "catalog"), reversed(names[:4]), strict=False))
    )
    for name in names[4:]:
        column = exp.Dot(this=column, expression=name)
    return column


def with_links(target: exp.Expr, links: Sequence[exp.Expr]) -> exp.Expr:
    """Calls and fields after an expression: a method `x.f(y)` becomes the call `f(x, y)`."""
    for link in links:
        target = field(target, link) if isinstance(link, exp.Identifier) else _called(target, link)
    return target


def field(target: exp.Expr, name: exp.Expr) -> exp.Expr:
    return exp.Dot(this=operand(target), expression=name.copy())


OF_TABLE = "sqlfl_of_table"
"""Mark of a column `x.y` for which a table x of outside goes before a column x with fields."""


def is_of_table(node: object) -> bool:
    """Return whether the column, or the one below its dots, has the mark OF_TABLE."""
    while isinstance(node, exp.Dot):
        node = node.this
    return isinstance(node, exp.Column) and bool(node.meta_get(OF_TABLE))


_WRAPPERS = (exp.Order, exp.Distinct, exp.Limit, exp.IgnoreNulls, exp.RespectNulls, exp.HavingMax)


def _called(target: exp.Expr, call: exp.Expr) -> exp.Expr:
    made = call.copy()
    arguments = made.expressions
    if isinstance(made, exp.Anonymous) and not any(isinstance(a, _WRAPPERS) for a in arguments):
        made.set("expressions", [target.copy(), *arguments])
        return made
    # `x.list(ORDER BY y)`: the parentheses hold no argument that x could precede
    return exp.Dot(this=exp.Paren(this=target.copy()), expression=made)
