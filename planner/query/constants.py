"""Items of FROM that read no party's table: VALUES, range(...), unnest([...])."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.schema import Client, folded
from sqlfl.planner.grammar.parsing import is_from, items_of
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.equalities import conjuncts, equality
from sqlfl.planner.query.push import Pusher


@dataclass(frozen=True)
class Constants:
    """Finder of constants in a FROM, and of the clients that get them."""

    pusher: Pusher

    def homes(
        self, first: exp.Expr, joins: list[exp.Join], known: Environment, where: exp.Expr | None
    ) -> dict[int, Client]:
        """Return the clients that get the constants of a FROM, by the ids of their nodes.

        Constants go to a client whose tables conditions compare with them, else to the first client
        of the tables.
        """
        items = [first, *(join.this for join in joins)]
        constants = [item for item in items if self.is_constant(item, known)]
        if not constants or len(constants) == len(items):
            return {}
        tables = [
            (node, clients[0])
            for item in items
            for node in items_of(exp.select().from_(item.copy(), copy=False))
            if (clients := self.pusher.clients(node, known))
        ]
        if not tables:
            return {}
        tests = [*(join.args.get("on") for join in joins), where]
        named = {folded(node.alias_or_name): client for node, client in reversed(tables)}
        terms = [
            part
            for test in tests
            if test is not None
            for part in conjuncts(test)
            if not isinstance(part, exp.Or)
        ]
        found: dict[int, Client] = {}
        # an equality may be of two parties, other comparisons are of one
        for term in sorted(terms, key=lambda term: equality(term) is not None):
            names = {folded(c.table) for c in nodes(term, exp.Column)} & set(named)
            for item in constants:
                if names and _names(term, item):
                    found.setdefault(id(item), named[min(names)])
        return {id(item): tables[0][1] for item in constants} | found

    def is_constant(self, node: object, known: Environment) -> bool:
        """Return whether the item of FROM reads no table of a party and no item beside it."""
        if isinstance(node, exp.Table) and node.db:
            return False
        if not isinstance(node, exp.Values | exp.Unnest | exp.Table | exp.Subquery):
            return False
        if node.args.get("joins") or (isinstance(node, exp.Subquery) and is_from(node.this)):
            return False
        calls = isinstance(node, exp.Unnest | exp.Values)
        calls = calls or isinstance(node.this, exp.Func | exp.UDTF)
        if calls and node.find(exp.Column) is not None:
            return False
        try:
            return not self.pusher.clients(node, known)
        except PlanError:
            return False


def _names(value: exp.Expr, item: exp.Expr) -> bool:
    return any(folded(c.table) == folded(called(item)) for c in nodes(value, exp.Column))


def alone(item: object) -> object:
    """Return the item of FROM without the joins that hang on it."""
    if not isinstance(item, exp.Expr) or not item.args.get("joins"):
        return item
    bare = item.copy()
    bare.set("joins", None)
    return bare


def called(item: exp.Expr) -> str:
    """Return the name of rows of constants; before a JOIN the parser leaves it with the rows."""
    held = isinstance(item, exp.Table) and isinstance(item.this, exp.UDTF) and not item.alias
    name: str = (item.this if held else item).alias_or_name
    return name
