"""Syntax trees: nodes that sqlglot does not have, and copies and lists of nodes in a third of
sqlglot's time.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar, overload

from sqlglot import exp

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
