"""Copies of trees are whole and apart; nodes come in the order of sqlglot's walk."""

from __future__ import annotations

import copy

import pytest
from sqlglot import exp

from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import EvaluateModel
from sqlfl.planner.grammar.trees import copied, nodes

QUERIES = (
    "SELECT t.x, -u.z AS z, CASE WHEN t.y > 0 THEN [1, 2][1] END FROM a.t t JOIN b.u USING (k)",
    "WITH q AS (SELECT * FROM a.t WHERE x IN (SELECT 1)) SELECT x::INT, 'b' FROM q ORDER BY 1",
    f"SELECT x {'+ 1 ' * 2000}AS x FROM a.t",
)


def tree_of(query: str) -> exp.Expr:
    statement = parse(f"EVALUATE MODEL m FROM ({query})")
    assert isinstance(statement, EvaluateModel)
    return statement.query


@pytest.mark.parametrize("query", QUERIES)
def test_a_copy_is_whole_and_apart(query: str) -> None:
    tree = tree_of(query)
    tree.meta["mark"] = 1
    copy = copied(tree)
    originals = {id(node) for node in tree.walk()}
    for node, other in zip(tree.walk(), copy.walk(), strict=True):
        assert type(node) is type(other)
        assert id(other) not in originals
        assert node._meta == other._meta
        assert (node.arg_key, node.index) == (other.arg_key, other.index)
        assert other.parent is None or other in other.parent.iter_expressions()
        assert node.args.keys() == other.args.keys()
    text = to_sql(copy)
    copy.meta["mark"] = 2
    copy.set("limit", exp.Limit(expression=exp.Literal.number(3)))
    assert tree.meta["mark"] == 1
    assert to_sql(tree) == text != to_sql(copy)


def test_a_part_is_copied_without_what_is_around_it() -> None:
    part = tree_of(QUERIES[0]).selects[1]
    assert copied(part).parent is None
    assert copied(part) == part


@pytest.mark.parametrize("query", QUERIES)
def test_nodes_are_those_of_find_all(query: str) -> None:
    tree = tree_of(query)
    kinds = (exp.Column, exp.Literal, exp.Table)
    for wanted in ((), kinds[:1], kinds):
        expected = list(tree.find_all(*wanted) if wanted else tree.walk())
        assert all(a is b for a, b in zip(nodes(tree, *wanted), expected, strict=True))


def test_statements_can_be_copied() -> None:
    statement = parse("EVALUATE MODEL m WITH (threshold = 0.5) FROM (SELECT t.x FROM a.t t)")
    assert isinstance(statement, EvaluateModel)
    copied_statement = copy.deepcopy(statement)
    assert copied_statement.name == "m"
    assert copied_statement.name.span == statement.name.span
