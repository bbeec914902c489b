"""What a fragment reads, held against what is granted: each column by what its place is for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import duckdb
import pytest

from sqlfl.errors import PolicyError
from sqlfl.guard import fragments
from sqlfl.guard.fragments import LONGEST_KEPT, MOST_KEPT, Fragments, roles_of
from sqlfl.guard.functions import functions_of
from sqlfl.guard.governance import Grant, Roles, Ruling
from sqlfl.guard.scopes import NONE, Column, Output, Reads, Table
from sqlfl.guard.tree import Reading
from sqlfl.options.policies import TrainingPolicy
from sqlfl.schema import FeatureSpecification, KeySpecification, SlotSpecification
from tests.databases import in_memory

TABLE: Table = ("memory", "main", "t")
GRANTED = {"train": ("a", "b"), "join": ("k",), "label": ("y",), "identify": ("i",)}
KEY = KeySpecification(0, ("BIGINT",))
ONE = FeatureSpecification("f", "numeric")


def ruling(definition: str = "", table: Table = TABLE, **roles: tuple[str, ...]) -> Ruling:
    own = Grant(1, "acme", table, Roles(roles or GRANTED), "r", None, definition)
    return Ruling("acme", (own,), {"r": TrainingPolicy()})


RULING = ruling()


def slot(**own: Any) -> SlotSpecification:
    return SlotSpecification(
        0, **{"features": (), "target": False, "classes": False, "identifiers": (), "keys": (),
        "fragments": (0,), "shared": False, "secret": "", "engine": "sql", **own},
    )  # fmt: skip


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        found.execute(
            "CREATE TABLE t (k BIGINT, a INTEGER, b DOUBLE, y BOOLEAN, i INTEGER, z INTEGER)"
        )
        found.execute("CREATE TABLE other (k BIGINT)")
        yield found


_functions = lru_cache(maxsize=1)(functions_of)


def fragments_of(con: duckdb.DuckDBPyConnection) -> Fragments:
    """Which functions there are is looked up once: it takes longer than all else."""
    found = Fragments("acme", ("memory", "main"))
    found._functions = _functions(con)
    return found


@pytest.fixture
def own(con: duckdb.DuckDBPyConnection) -> Fragments:
    return fragments_of(con)


def said(con: duckdb.DuckDBPyConnection, text: str, held: Ruling = RULING, **of_slot: Any) -> str:
    """Empty where it is taken."""
    try:
        fragments_of(con).check(con, slot(**of_slot), text, held)
    except PolicyError as error:
        return error.message
    return ""


NOT, UNKNOWN = "column {} of main.t is not granted to acme for {}", "column {} is not granted"
PARTS: dict[str, dict[str, Any]] = {
    "TRAIN": {"features": (ONE,)}, "LABEL": {"target": True}, "IDENTIFY": {"identifiers": (0,)},
    "JOIN": {"keys": (KEY,)},
}  # fmt: skip


@pytest.mark.parametrize("role", PARTS)
def test_columns_are_read_for_what_they_are_granted_for(
    con: duckdb.DuckDBPyConnection, role: str
) -> None:
    for name in ("a", "b", "y", "i", "k", "z"):
        found = said(con, f"SELECT {name} AS f FROM t", **PARTS[role])
        if name in GRANTED[role.lower()]:
            assert found == ""
        elif name == "z":
            assert found == UNKNOWN.format(name)
        else:
            assert found == NOT.format(name, role)
    if role != "JOIN":
        granted, other = GRANTED[role.lower()][0], {"TRAIN": "y"}.get(role, "a")
        text = f"SELECT {granted}::INTEGER + {other}::INTEGER AS f FROM t"
        assert said(con, text, **PARTS[role]) == NOT.format(other, role)


def test_weights_are_read_as_labels(con: duckdb.DuckDBPyConnection) -> None:
    assert said(con, "SELECT y, y FROM t", target=True, weight=True) == ""
    assert said(con, "SELECT y, a FROM t", target=True, weight=True) == NOT.format("a", "LABEL")


KEY_SAID = "a join key is to be a column that is granted for JOIN"


@pytest.mark.parametrize(
    ("key", "refused"),
    [
        ("k", ""), ("CAST(k AS VARCHAR)", ""), ("lower(k::VARCHAR)", ""), ("coalesce(k, 0)", ""),
        ("0", ""), ("''", ""), ("CAST('0' AS BIGINT)", ""), ("'00:00:00'", ""),
        ("CASE WHEN FALSE THEN k END", ""),
        ("1", KEY_SAID), ("'x'", KEY_SAID), ("k + 1", KEY_SAID), ("coalesce(k, 7)", KEY_SAID),
        ("k + a", KEY_SAID), ("a + 1", KEY_SAID), ("[k]", KEY_SAID), ("max(k)", KEY_SAID),
        ("NULL", KEY_SAID), ("0 + 0", KEY_SAID),
        # that it is compared with something of one's choice would tell of one value
        ("CASE WHEN k = 5 THEN k END", KEY_SAID),
        ("a", NOT.format("a", "JOIN")), ("z", UNKNOWN.format("z")),
    ],
)  # fmt: skip
def test_a_join_key_is_a_granted_column(
    con: duckdb.DuckDBPyConnection, key: str, refused: str
) -> None:
    found = said(con, f"SELECT {key} AS f FROM t", keys=(KEY,))
    assert found[: len(refused)] == refused
    assert bool(found) == bool(refused)


@pytest.mark.parametrize(
    ("output", "refused"),
    [
        (Output("f", frozenset({Column(TABLE, "k")}), Column(TABLE, "k")), False),
        # a neutral constant that is not all it is made of, and one column that is not
        (Output("f", frozenset({Column(TABLE, "k")}), None, "0"), True),
        (Output("f", frozenset(Column(TABLE, n) for n in "ak"), Column(TABLE, "k")), True),
        (Output("f", frozenset(), Column(TABLE, "k"), "1"), True),
        (Output("f", frozenset(), None, "1"), True),
        (Output("f", frozenset(), None, None), True),
        (Output("f", frozenset(), None, "0"), False),
    ],
)
def test_a_join_key_is_a_column_and_nothing_else(
    own: Fragments, output: Output, refused: bool
) -> None:
    if not refused:
        own._check_key(output, RULING)
        return
    with pytest.raises(PolicyError, match=KEY_SAID):
        own._check_key(output, RULING)


def test_conditions_are_of_columns_that_are_trained_on(con: duckdb.DuckDBPyConnection) -> None:
    trained = {"features": (ONE,)}
    assert said(con, "SELECT a FROM t WHERE b > 0", **trained) == ""
    words = NOT.format("y", "TRAIN, as a condition on its values takes")
    assert said(con, "SELECT a FROM t WHERE y", **trained) == words
    assert said(con, "SELECT a FROM t WHERE z > 0", **trained) == UNKNOWN.format("z")
    # whether it is NULL, or another column, is a link: granted for anything
    assert said(con, "SELECT a FROM t WHERE y IS NOT NULL AND k = i", **trained) == ""
    assert said(con, "SELECT a FROM t WHERE z IS NULL", **trained) == UNKNOWN.format("z")
    assert said(con, "SELECT a FROM t WHERE z = k", **trained) == UNKNOWN.format("z")


def test_what_rows_are_drawn_by(con: duckdb.DuckDBPyConnection) -> None:
    drawn: dict[str, Any] = {"target": True, "base": True}
    # the whole row, with what is not granted of it, or what is granted for anything
    assert said(con, "SELECT y, t AS sqlfl_base FROM t", **drawn) == ""
    assert said(con, "SELECT y, row(k, i) AS sqlfl_base FROM t", **drawn) == ""
    assert said(con, "SELECT y, row(k, z) AS sqlfl_base FROM t", **drawn) == UNKNOWN.format("z")
    text = "SELECT y, q AS sqlfl_base FROM (SELECT y, z FROM t) AS q"
    assert said(con, text, **drawn) == UNKNOWN.format("z")


def test_whether_a_row_is_kept_is_a_condition(con: duckdb.DuckDBPyConnection) -> None:
    trained = {"features": (ONE,)}
    assert said(con, "SELECT a, y IS NULL AS sqlfl_kept FROM t", **trained) == ""
    assert said(con, "SELECT a, b > 0 AS sqlfl_kept FROM t", **trained) == ""
    words = NOT.format("y", "TRAIN, as a condition on its values takes")
    assert said(con, "SELECT a, y AS sqlfl_kept FROM t", **trained) == words
    assert said(con, "SELECT a, z > 0 AS sqlfl_kept FROM t", **trained) == UNKNOWN.format("z")


def test_what_is_granted_for_nothing_is_none_whatever_was_read_before(
    own: Fragments, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, k = frozenset({Column(TABLE, "z")}), frozenset({Column(TABLE, "k")})

    def check(item: SlotSpecification, output: Output, filters: Reads, links: Reads) -> None:
        found = Reading((output,), filters, links, frozenset({TABLE}))
        monkeypatch.setattr(Fragments, "read", lambda *_: found)
        own.check(None, item, "", RULING)  # type: ignore[arg-type]

    trained, one = slot(features=(ONE,)), Output("f")
    check(trained, one, NONE, NONE)
    check(slot(base=True), Output("f", k), NONE, k)
    for item, output, filters, links in (
        (trained, Output("f", z), NONE, NONE), (trained, one, z, NONE), (trained, one, NONE, z),
        (slot(base=True), Output("f", z), NONE, NONE), (slot(), Output("sqlfl_kept", z), z, NONE),
        (slot(keys=(KEY,)), Output("f", z, Column(TABLE, "z")), NONE, NONE),
    ):  # fmt: skip
        with pytest.raises(PolicyError, match="column z is not granted"):
            check(item, output, filters, links)


def test_a_fragment_of_rows_alone(con: duckdb.DuckDBPyConnection) -> None:
    assert said(con, "SELECT 1 AS sqlfl_row FROM t") == ""
    assert said(con, "SELECT 1 AS sqlfl_row, 2 AS x FROM t") == "a fragment of 2 columns, of 1"


def outputs(*names: str) -> tuple[Output, ...]:
    return tuple(Output(name) for name in names)


def test_roles_are_by_place() -> None:
    item = slot(
        features=(ONE, ONE), target=True, weight=True, base=True, identifiers=(0,),
        keys=(KEY, KeySpecification(1, ("BIGINT", "VARCHAR"))),
    )  # fmt: skip
    every = ["train"] * 2 + ["label"] * 2 + ["sqlfl_base", "identify"] + ["join"] * 3
    names = tuple("abcdefghi")
    assert roles_of(item, outputs(*names)) == every
    assert roles_of(item, outputs(*names, "sqlfl_kept")) == [*every, "sqlfl_kept"]
    assert roles_of(slot(), outputs("x")) == ["sqlfl_row"]
    assert roles_of(slot(), outputs("sqlfl_kept")) == ["sqlfl_kept"]


@pytest.mark.parametrize(
    "names",
    ["", "a", "a b c", "a sqlfl_kept c", "a b sqlfl_kept d", "sqlfl_kept", "a b c sqlfl_kept"],
)
def test_a_fragment_has_as_many_columns_as_it_is_to_have(names: str) -> None:
    found = outputs(*names.split())
    with pytest.raises(PolicyError, match=f"a fragment of {len(found)} columns, of 2"):
        roles_of(slot(features=(ONE, ONE)), found)


def test_tables_that_are_not_granted_are_none(
    con: duckdb.DuckDBPyConnection, own: Fragments
) -> None:
    for text in ("SELECT k FROM other", "SELECT k FROM gone"):
        with pytest.raises(PolicyError, match=r"table (other|gone) is not granted"):
            own.check(con, slot(keys=(KEY,)), text, RULING)


def test_a_view_is_what_it_was_when_it_was_granted(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE OR REPLACE VIEW v AS SELECT k FROM t")
    held = ruling("another", ("memory", "main", "v"), join=("k",))
    assert "view main.v, or what it reads, is another" in said(
        con, "SELECT k AS f FROM v", held, keys=(KEY,)
    )
    assert "main.t, or what it reads" in said(
        con, "SELECT k AS f FROM t", ruling("another"), keys=(KEY,)
    )


def test_what_a_text_read_is_remembered_for_few_short_texts(
    con: duckdb.DuckDBPyConnection, own: Fragments, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    before = fragments.read

    def read(cursor: Any, text: str, *others: Any) -> Any:
        looked.append(text)
        return before(cursor, text, *others)

    monkeypatch.setattr(fragments, "read", read)
    text = "SELECT a FROM t"
    for _ in range(2):
        own.read(con, text, RULING)
    assert looked == [text]
    own.read(con, text, ruling(train=("a",)))  # another one
    assert looked == [text] * 2
    fits = f"SELECT a FROM t {' ' * (LONGEST_KEPT - 16)}"
    for long, times in ((fits, 1), (f"{fits} ", 2)):
        looked.clear()
        for _ in range(2):
            own.read(con, long, RULING)
        assert len(looked) == times
    for number in range(MOST_KEPT):
        own.read(con, f"SELECT a + {number} AS f FROM t", RULING)
    assert len(own._kept) == MOST_KEPT
    looked.clear()
    own.read(con, "SELECT a + 0 AS f FROM t", RULING)
    own.read(con, fits, RULING)
    assert looked == [fits]


def test_names_are_looked_up_again_once_they_are_to_be_forgotten(
    con: duckdb.DuckDBPyConnection, own: Fragments
) -> None:
    con.execute("CREATE OR REPLACE TABLE n (k BIGINT, z BIGINT)")
    held = ruling("", ("memory", "main", "n"), join=("k", "z"))
    own.read(con, "SELECT z FROM n", held)
    con.execute("CREATE OR REPLACE TABLE n (k BIGINT)")
    own.read(con, "SELECT z FROM n", held)
    own.forget()
    with pytest.raises(PolicyError, match="column z is not granted"):
        own.read(con, "SELECT z FROM n", held)
