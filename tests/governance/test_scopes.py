"""What a name may mean, and what is told of columns that get other names or are put together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqlfl.base.errors import PolicyError
from sqlfl.governance.scopes import (
    ScopeColumn,
    ScopeSource,
    SelectOutput,
    SelectScope,
    Table,
    all_common,
    by_name,
    meanings,
    merged,
    named,
    renamed,
    with_aliases,
)

TABLE: Table = ("memory", "main", "t")


def output(name: str, *reads: str) -> SelectOutput:
    columns = [ScopeColumn(TABLE, own) for own in reads or (name,)]
    return SelectOutput(name, frozenset(columns), columns[0] if len(columns) == 1 else None)


A, B = output("a"), output("b")
T = ScopeSource((A, B), TABLE)


def found(names: str, scope: SelectScope) -> tuple[list[str], list[str]]:
    sure, unsure = meanings(names.split("."), scope)
    return tuple(  # type: ignore[return-value]
        [" ".join(sorted(column.name for column in own.reads)) for own in several]
        for several in (sure, unsure)
    )


def test_what_a_name_may_mean() -> None:
    scope = SelectScope(sources={"t": T})
    assert found("a", scope) == (["a"], [])
    assert found("A", scope) == (["a"], [])
    assert found("t.a", scope) == (["a"], [])
    assert found("main.t.b", scope) == (["b"], [])
    assert found("t", scope) == (["a b"], [])
    assert found("c", scope) == ([], [])
    assert found("t.c", scope) == ([], [])
    # a field of a column, whatever it is called
    assert found("a.t", scope) == (["a"], [])
    # a field of a column of a table that has the column's name too
    assert found("x.t.a", SelectScope(sources={"t": T, "u": ScopeSource((output("x"),))})) == (
        ["a", "x"],
        [],
    )


def test_a_column_of_a_table_is_no_field_of_a_column_of_its_name() -> None:
    t = ScopeSource((*T.outputs, output("t")), TABLE)
    only, two = SelectScope(sources={"t": t}), SelectScope(sources={"t": t, "u": T})
    assert found("t.a", only) == (["a"], [])
    assert found("t.c", only) == (["t"], [])
    assert found("t.a", two) == (["a"], [])
    assert found("t.c", two) == (["t"], [])
    # a SEMI JOIN has it out of sight
    assert found("t.a", replace(two, looked_up={"t"})) == (["a", "t"], [])
    outer = SelectScope(sources={"u": ScopeSource((output("t", "outer"),))})
    assert found("t.a", SelectScope(outer, sources={"t": t})) == (["a"], [])
    nearer = SelectScope(only, sources={"u": ScopeSource((output("t", "inner"),))})
    assert found("t.a", nearer) == (["inner", "a", "t"], [])
    unnamed = SelectScope(only, sources={"u": ScopeSource((output("", "inner"),))})
    assert found("t.a", unnamed) == (["a", "t"], ["inner"])


def test_a_parameter_of_a_lambda_is_no_column() -> None:
    scope = SelectScope(SelectScope(sources={"t": T}), names=frozenset({"a", "t"}))
    assert found("a", scope) == ([], [])
    assert found("t", scope) == ([], [])
    assert found("b", scope) == (["b"], [])
    assert found("a.b", scope) == (["a"], [])  # a field of the column comes before the parameter's


def test_the_whole_row_is_meant_by_its_name_alone() -> None:
    scope = SelectScope(sources={"t": T, "u": ScopeSource((output("x"),))})
    assert found("t", scope)[0] == ["a b"]
    assert found("x.t", scope)[0] == ["x"]
    assert found("main.t", scope)[0] == []


def test_a_column_of_from_is_meant_before_what_is_farther_out() -> None:
    outer = SelectScope(sources={"u": ScopeSource((output("a", "outer"), output("c", "outer")))})
    inner = SelectScope(outer, sources={"t": T})
    assert found("a", inner) == (["a"], [])
    assert found("c", inner) == (["outer"], [])
    # with points it may be a column of a table farther out
    assert found("a.b", inner) == (["a", "outer"], [])
    assert found("u.a", inner) == (["outer"], [])
    aliased = SelectScope(outer, sources={"t": T}, aliases={"a": (output("a", "b"),)})
    assert found("a", aliased) == (["a", "b"], [])
    # an alias alone does not hide what is farther out
    other = SelectScope(outer, sources={"t": T}, aliases={"c": (output("c", "b"),)})
    assert found("c", other) == (["b", "outer"], [])


def test_columns_without_a_name_may_be_meant() -> None:
    scope = SelectScope(
        sources={"t": ScopeSource((A, SelectOutput("", frozenset({ScopeColumn(TABLE, "b")}))))}
    )
    assert found("a", scope) == (["a"], ["b"])
    assert found("c", scope) == ([], ["b"])


def test_columns_that_get_other_names() -> None:
    assert renamed((A, B), []) == (A, B)
    assert renamed((A, B), ["K"]) == (output("k", "a"), B)
    assert renamed((A, B), ["k", "l"]) == (output("k", "a"), output("l", "b"))
    constant = SelectOutput("c", constant="1")
    assert renamed((constant,), ["k"]) == (SelectOutput("k", constant="1"),)
    with pytest.raises(PolicyError, match="3 names for 2 columns"):
        renamed((A, B), ["k", "l", "m"])
    with pytest.raises(PolicyError, match="1 names for 0 columns"):
        renamed((), ["k"])


def test_columns_of_one_name() -> None:
    assert named([A, B, output("a", "c")], "A") == [A, output("a", "c")]
    both = with_aliases([A, SelectOutput(""), output("a", "b")])
    assert both == {"a": (A, output("a", "b"))}
    scope = SelectScope(sources={"t": T, "u": ScopeSource((output("a", "c"),))})
    assert {c.name for found in by_name(scope, "a") for c in found.reads} == {"a", "c"}


def test_the_parts_of_a_union_are_one_column_where_they_are_the_same() -> None:
    assert merged((A, A)) == A
    both = merged((A, B))
    assert (both.name, both.same) == ("a", None)
    assert {column.name for column in both.reads} == {"a", "b"}
    assert merged((A, SelectOutput("x", constant="1"))).same is None
    # rows of one table that have different columns, and what another part has made
    other = SelectOutput("a", frozenset({ScopeColumn(("memory", "main", "u"), "a")}))
    computed = SelectOutput("a", computed=True)
    parts = ((A, A), (A, other), (A, B), (A, computed), (merged((A, other)), B))
    assert [merged(part).computed for part in parts] == [False, False, True, True, True]
    # a constant beside it is not the same in every row
    assert (
        merged((SelectOutput("x", constant="1"), SelectOutput("x", constant="2"))).constant is None
    )


def test_with_that_is_nearer_hides_what_is_farther_out() -> None:
    outer = SelectScope(common={"q": ScopeSource((A,)), "r": ScopeSource((A,))})
    inner = SelectScope(outer, common={"q": ScopeSource((B,))})
    assert all_common(inner) == {"q": ScopeSource((B,)), "r": ScopeSource((A,))}
