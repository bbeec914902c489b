"""What a fragment reads, held against what is granted: each column by what its place is for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import duckdb
import pytest

from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import FeatureSpecification, KeySpecification, SlotSpecification
from sqlfl.governance import fragments
from sqlfl.governance.copies import copies
from sqlfl.governance.fragments import MAX_KEPT_CHARACTERS, MAX_KEPT_TEXTS, Fragments, roles_of
from sqlfl.governance.names import functions_of
from sqlfl.governance.policies import Grant, Roles, Ruling
from sqlfl.governance.scopes import NONE, Reads, ScopeColumn, SelectOutput, Table
from sqlfl.governance.tree import NullTest, SelectReading
from sqlfl.options.policies import TrainingPolicy
from tests.open_databases import in_memory

TABLE: Table = ("memory", "main", "t")
GRANTED = {
    "train": ("a", "b"), "join": ("k",), "label": ("y",), "identify": ("i",), "filter": ("b",),
}  # fmt: skip
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
        fragments_of(con).check(lambda: con, slot(**of_slot), text, held)
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
        ("k", ""), ("CAST(k AS VARCHAR)", ""), ("k::HUGEINT::VARCHAR", ""), ("k::BIGINT", ""),
        ("lower(k::VARCHAR)", KEY_SAID), ("coalesce(k, 0)", KEY_SAID), ("k::INTEGER", KEY_SAID),
        ("k::DOUBLE", KEY_SAID), ("try_cast(k AS VARCHAR)", KEY_SAID), ("k::BOOLEAN", KEY_SAID),
        ("k::VARCHAR::ENUM('1')", KEY_SAID), ("CASE WHEN FALSE THEN k END", KEY_SAID),
        ("0", ""), ("''", ""), ("CAST('0' AS BIGINT)", ""), ("'00:00:00'", ""),
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
        (SelectOutput("f", frozenset({ScopeColumn(TABLE, "k")}), ScopeColumn(TABLE, "k")), False),
        # a neutral constant that is not all it is made of, and one column that is not
        (SelectOutput("f", frozenset({ScopeColumn(TABLE, "k")}), None, "0"), True),
        (
            SelectOutput(
                "f", frozenset(ScopeColumn(TABLE, n) for n in "ak"), ScopeColumn(TABLE, "k")
            ),
            True,
        ),
        (SelectOutput("f", frozenset(), ScopeColumn(TABLE, "k"), "1"), True),
        (SelectOutput("f", frozenset(), None, "1"), True),
        (SelectOutput("f", frozenset(), None, None), True),
        (SelectOutput("f", frozenset(), None, "0"), False),
    ],
)
def test_a_join_key_is_a_column_and_nothing_else(
    own: Fragments, output: SelectOutput, refused: bool
) -> None:
    found = SelectReading((output,), {}, NONE, frozenset(), nobodys=True)
    if not refused:
        own._check_key(output, found, RULING)
        return
    with pytest.raises(PolicyError, match=KEY_SAID):
        own._check_key(output, found, RULING)


FILTERED = "column {} of main.t is not granted to acme for FILTER, and {} decides by it"


@pytest.mark.parametrize(
    ("rest", "name", "place"),
    [
        ("FROM t WHERE b > 0", "", ""),
        ("FROM t WHERE a > 0", "a", "WHERE"),
        ("FROM t WHERE y", "y", "WHERE"),
        ("FROM t WHERE a IS NOT NULL", "a", "WHERE"),
        ("FROM t WHERE k IS NULL", "k", "WHERE"),
        ("FROM t WHERE k = 5", "k", "WHERE"),
        ("FROM t WHERE y IS NOT NULL AND k = i", "i", "an equality"),
        ("FROM t JOIN t AS o ON t.k = o.k", "", ""),
        ("FROM t JOIN t AS o ON t.k = o.a", "a", "an equality"),
        ("FROM t JOIN t AS o ON t.k = CAST(o.k AS INTEGER)", "k", "an equality"),
        ("FROM t JOIN t AS o ON CAST(t.k AS HUGEINT) = o.k", "", ""),
        ("FROM t JOIN t AS o ON t.y = CAST(o.a AS BOOLEAN)", "a", "an equality"),
        ("FROM t JOIN t AS o ON t.k::VARCHAR = o.k", "k", "an equality"),
        ("FROM t JOIN t AS o USING (k)", "", ""),
        ("FROM t JOIN t AS o USING (a)", "a", "an equality"),
        ("FROM t JOIN (VALUES (1)) AS v(k) USING (k)", "k", "USING"),
        ("FROM t JOIN (SELECT 1 AS k UNION ALL SELECT 2) AS v USING (k)", "k", "USING"),
        ("FROM t JOIN t AS o ON t.k = o.k AND t.a > o.a", "a", "a join"),
        ("FROM t GROUP BY k, t.a", "a", "an equality"),
        ("FROM t ORDER BY k LIMIT 5", "k", "ORDER BY"),
        ("FROM t HAVING max(y)", "y", "HAVING"),
        ("FROM t QUALIFY row_number() OVER (ORDER BY y) = 1", "y", "QUALIFY"),
        ("FROM (SELECT DISTINCT t.a, t.b FROM t) AS t", "a", "an equality"),
        ("FROM (SELECT DISTINCT t.a + 0.5 AS a FROM t) AS t", "a", "DISTINCT"),
        ("FROM (SELECT a FROM t UNION SELECT a FROM t) AS t", "a", "UNION"),
        ("FROM (SELECT a FROM t EXCEPT SELECT b FROM t) AS t", "a", "EXCEPT"),
        ("FROM t WHERE k IN (SELECT k FROM t)", "", ""),
        ("FROM t WHERE k NOT IN (SELECT k FROM t)", "k", "WHERE"),
        ("FROM t ANTI JOIN t AS o ON t.k = o.k", "k", "a join"),
    ],
)
def test_conditions_are_of_columns_that_are_granted_for_them(
    con: duckdb.DuckDBPyConnection, rest: str, name: str, place: str
) -> None:
    text = f"SELECT t.a {rest}"
    found = said(con, text, features=(ONE,))
    assert found.startswith(FILTERED.format(name, place)) if name else found == ""
    never = replace(RULING, policies={"r": TrainingPolicy(conditions="never")})
    found = said(con, text, never, features=(ONE,))
    told = f"its owner's policy has conditions = 'never', and {place} decides by column {name} of"
    if rest == "FROM t WHERE b > 0":
        told = told.format().replace("and  decides by column  of", "and WHERE decides by column b")
        assert found.startswith(told)
    else:
        assert found.startswith(told) if name else found == ""


@pytest.mark.parametrize(
    ("rest", "place"),
    [
        ("FROM t LIMIT 5", "LIMIT"), ("FROM t OFFSET 5", "LIMIT"),
        ("FROM t WHERE (SELECT count(*) FROM t) > 5", "WHERE"),
        ("FROM t HAVING count(*) > 1", "HAVING"),
        ("FROM t QUALIFY row_number() OVER () = 1", "QUALIFY"),
        ("FROM t WHERE 1 = 1", ""), ("FROM t WHERE FALSE", ""),
        # by the name of what says nothing of values
        ("FROM (SELECT a, row_number() OVER () AS n FROM t) AS t WHERE n <= 5", "WHERE"),
        ("FROM (SELECT a, count(*) OVER () AS n FROM t) AS t WHERE t.n % 2 = 0", "WHERE"),
        ("FROM (SELECT k, max(a) AS a, count(*) AS n FROM t GROUP BY k) AS t WHERE n > 2", "WHERE"),
        ("FROM t JOIN (SELECT k, count(*) + 1 AS n FROM t GROUP BY k) AS o ON t.k = o.k AND n = 4",
         "a join"),
        ("FROM t JOIN (SELECT count(*) AS n FROM t) AS o ON 3 = (o.n)", "a join"),
        ("FROM (SELECT a, nullif(row_number() OVER (), 7) AS n FROM t) AS t WHERE n IS NOT NULL",
         "WHERE"),
        ("FROM (SELECT a, n FROM (SELECT a, 1 AS n FROM t) AS o JOIN (SELECT count(*) AS n FROM t) "
         "AS u USING (n)) AS t", "USING"),
        ("FROM (SELECT DISTINCT k, n, 1 AS a FROM (SELECT k, count(*) AS n FROM t GROUP BY k) o) "
         "AS t", "DISTINCT"),
        ("FROM (SELECT n, 1 AS a FROM (SELECT k, count(*) AS n FROM t GROUP BY k) AS o GROUP BY n) "
         "AS t", "GROUP BY"),
        ("FROM (SELECT count(*) AS a FROM t GROUP BY k EXCEPT SELECT 3) AS t", "EXCEPT"),
        ("FROM t WHERE 3 IN (SELECT count(*) FROM t GROUP BY k)", "WHERE"),
        ("FROM (WITH c AS (SELECT a, row_number() OVER () AS n FROM t) SELECT a FROM c "
         "WHERE c.n <= 5) AS t", "WHERE"),
        ("FROM (SELECT 1 AS a FROM (VALUES ((SELECT count(*) FROM t))) AS v(n) WHERE v.n > 3) AS t",
         "WHERE"),
        ("FROM (SELECT a, count(*) FILTER (WHERE n > 3) OVER () AS m FROM (SELECT a, "
         "row_number() OVER () AS n FROM t) AS o) AS t", "FILTER"),
        ("FROM (SELECT k, max(a) AS a, count(*) AS n FROM t GROUP BY k) AS t WHERE n IS NOT NULL",
         ""),
    ],
)  # fmt: skip
def test_rows_that_are_chosen_by_no_value(
    con: duckdb.DuckDBPyConnection, rest: str, place: str
) -> None:
    text = f"SELECT a {rest}"
    assert said(con, text, features=(ONE,)) == ""
    never = replace(RULING, policies={"r": TrainingPolicy(labels="never")})
    told = f"its owner's policy has conditions = 'never', and {place} decides which rows there are"
    assert said(con, text, never, features=(ONE,)) == told * bool(place)


def test_a_number_of_rows_as_a_target(con: duckdb.DuckDBPyConnection) -> None:
    """Rows without a target are left out: none is without a count."""
    never = replace(RULING, policies={"r": TrainingPolicy(labels="never")})
    inner = "(SELECT k, max(a) AS a, {} AS n FROM t GROUP BY k)"
    told = "its owner's policy has conditions = 'never', and a target that may be NULL decides"
    for value, refused in (("count(*)", False), ("nullif(count(*), 3)", True)):
        text = f"SELECT a, n AS sqlfl_target FROM {inner.format(value)} AS t"
        found = said(con, text, never, features=(ONE,), target=True)
        assert (told in found) == refused, found


def test_join_keys_that_are_not_null(con: duckdb.DuckDBPyConnection) -> None:
    """The planner adds it: a key that is NULL joins nothing."""
    keyed: dict[str, Any] = {"features": (ONE,), "keys": (KEY,)}
    for test in ("k IS NOT NULL", "NOT k IS NULL", "CAST(k AS HUGEINT) IS NOT NULL"):
        assert said(con, f"SELECT a, k FROM t WHERE {test}", **keyed) == ""
        assert FILTERED.format("k", "WHERE") in said(
            con, f"SELECT a FROM t WHERE {test}", features=(ONE,)
        )
    text = "SELECT a, k FROM (SELECT a, k FROM t WHERE k IS NOT NULL) AS t"
    assert FILTERED.format("k", "WHERE") in said(con, text, **keyed)


@pytest.mark.parametrize(
    ("expression", "fails"),
    [
        ("a", False), ("a + 1", True), ("TRY(a + 1)", False), ("CAST(a AS TINYINT)", True),
        ("CAST(a AS BIGINT)", False), ("CAST(a AS DOUBLE) * 2", False), ("a / 2", False),
        ("a % 2", True), ("a > 5", False), ("a > 5.5", False), ("a = 'x'", True),
        ("CASE WHEN a > 5 THEN 1 ELSE 0 END", False), ("CASE WHEN a > 5 THEN 1 ELSE b END", False),
        ("CASE WHEN a = 5 THEN CAST('x' AS INTEGER) ELSE 0 END", True),
        ("CASE WHEN a = 5 THEN CAST('1' AS INTEGER) ELSE 0 END", False),
        ("TRY_CAST(CAST(a AS VARCHAR) AS ENUM('1'))", False), ("b > a", False),
        ("CAST(CAST(a AS VARCHAR) AS ENUM('1'))", True), ("(SELECT a)", True), ("sqrt(b)", True),
        ("a > 1.0000000000000000000000000000000000000", True), ("ln(b)", True),
        ("a BETWEEN 1 AND 9 AND a IN (1, 2) AND NOT a IS NULL", False), ("coalesce(a, 0)", False),
        ("CASE WHEN a > 5 THEN error('x') ELSE 0 END", True), ("abs(b)", False), ("abs(a)", True),
        ("avg(a) OVER ()", True), ("b ^ 2", True),
    ],
)  # fmt: skip
def test_expressions_that_may_fail(
    con: duckdb.DuckDBPyConnection, expression: str, fails: bool
) -> None:
    text = f"SELECT {expression} AS f FROM t"
    noised = replace(RULING, policies={"r": TrainingPolicy(predictions="noised")})
    found = said(con, text, noised, features=(ONE,))
    if "error" in expression:
        assert "function error is not among" in found
        return
    assert ("may fail on some of its values" in found) is fails
    assert bool(found) is fails
    assert said(con, text, features=(ONE,)) == ""
    inner = said(con, f"SELECT b AS f FROM (SELECT b, {expression} AS x FROM t) AS q", noised,
                 features=(ONE,))  # fmt: skip
    assert bool(inner) is fails
    assert bool(said(con, f"SELECT 1 AS sqlfl_row, {expression} FROM t", noised)) is True


@pytest.mark.parametrize(
    ("expression", "tells"),
    [
        ("y", False), ("NOT y", False), ("y = TRUE", False), ("CAST(y AS VARCHAR)", False),
        ("CASE WHEN y THEN 1 ELSE 0 END", False), ("CASE WHEN y THEN 1 END", True),
        ("nullif(y, TRUE)", True), ("CASE WHEN y THEN NULL ELSE 1 END", True), ("TRY(y)", True),
        ("CASE WHEN y THEN 1 ELSE CAST('nan' AS DOUBLE) END", True),
    ],
)  # fmt: skip
def test_targets_that_make_null_of_a_label(
    con: duckdb.DuckDBPyConnection, expression: str, tells: bool
) -> None:
    """Rows without a label are left out of the join, which shows."""
    text, labelled = f"SELECT {expression} AS f FROM t", {"target": True}
    noised = replace(RULING, policies={"r": TrainingPolicy(labels="noised")})
    assert said(con, text, **labelled) == ""
    assert bool(said(con, text, noised, **labelled)) is tells


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
    assert said(con, "SELECT a, b > 0 AS sqlfl_kept FROM t", **trained) == ""
    words = FILTERED.format("y", "WHERE")
    for test in ("y", "y IS NULL", "y IS NOT NULL"):
        assert said(con, f"SELECT a, {test} AS sqlfl_kept FROM t", **trained).startswith(words)
    # but for the target's own, which a row is to have
    labelled = {"target": True}
    assert said(con, "SELECT y, (y IS NOT NULL) IS TRUE AS sqlfl_kept FROM t", **labelled) == ""
    text = "SELECT y, (k IS NOT NULL) IS TRUE AS sqlfl_kept FROM t"
    assert said(con, text, **labelled).startswith(FILTERED.format("k", "WHERE"))
    text = "SELECT a, z > 0 AS sqlfl_kept FROM t"
    assert said(con, text, **trained) == UNKNOWN.format("z")


def test_what_is_granted_for_nothing_is_none_whatever_was_read_before(
    own: Fragments, monkeypatch: pytest.MonkeyPatch
) -> None:
    z, k = frozenset({ScopeColumn(TABLE, "z")}), frozenset({ScopeColumn(TABLE, "k")})

    def check(item: SlotSpecification, output: SelectOutput, filters: Reads, links: Reads) -> None:
        tests = (NullTest(links, "WHERE", None, frozenset()),)
        found = SelectReading(
            (output,), dict.fromkeys(filters, "WHERE"), links, frozenset({TABLE}), tests=tests
        )
        monkeypatch.setattr(Fragments, "read", lambda *_: found)
        own.check(None, item, "", RULING)  # type: ignore[arg-type]

    trained, one = slot(features=(ONE,)), SelectOutput("f")
    check(trained, one, NONE, NONE)
    check(slot(base=True), SelectOutput("f", k), NONE, NONE)
    for item, output, filters, links in (
        (trained, SelectOutput("f", z), NONE, NONE), (trained, one, z, NONE),
        (trained, one, NONE, z), (slot(base=True), SelectOutput("f", z), NONE, NONE),
        (slot(), SelectOutput("sqlfl_kept", z), z, NONE),
        (slot(keys=(KEY,)), SelectOutput("f", z, ScopeColumn(TABLE, "z")), NONE, NONE),
    ):  # fmt: skip
        with pytest.raises(PolicyError, match=r"a whole row of main\.t has columns that are not"):
            check(item, output, filters, links)


def test_a_fragment_of_rows_alone(con: duckdb.DuckDBPyConnection) -> None:
    assert said(con, "SELECT 1 AS sqlfl_row FROM t") == ""
    assert said(con, "SELECT 1 AS sqlfl_row, 2 AS x FROM t") == "a fragment of 2 columns, of 1"


def outputs(*names: str) -> tuple[SelectOutput, ...]:
    return tuple(SelectOutput(name) for name in names)


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
            own.check(lambda: con, slot(keys=(KEY,)), text, RULING)


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
        own.read(lambda: con, text, RULING)
    assert looked == [text]
    own.read(lambda: con, text, ruling(train=("a",)))  # another one
    assert looked == [text] * 2
    fits = f"SELECT a FROM t {' ' * (MAX_KEPT_CHARACTERS - 16)}"
    for long, times in ((fits, 1), (f"{fits} ", 2)):
        looked.clear()
        for _ in range(2):
            own.read(lambda: con, long, RULING)
        assert len(looked) == times
    for number in range(MAX_KEPT_TEXTS):
        own.read(lambda: con, f"SELECT a + {number} AS f FROM t", RULING)
    assert len(own._kept) == MAX_KEPT_TEXTS
    looked.clear()
    own.read(lambda: con, "SELECT a + 0 AS f FROM t", RULING)
    own.read(lambda: con, fits, RULING)
    assert looked == [fits]


def test_names_are_looked_up_again_once_they_are_to_be_forgotten(
    con: duckdb.DuckDBPyConnection, own: Fragments
) -> None:
    con.execute("CREATE OR REPLACE TABLE n (k BIGINT, z BIGINT)")
    held = ruling("", ("memory", "main", "n"), join=("k", "z"))
    own.read(lambda: con, "SELECT z FROM n", held)
    con.execute("CREATE OR REPLACE TABLE n (k BIGINT)")
    own.read(lambda: con, "SELECT z FROM n", held)
    own.forget()
    with pytest.raises(PolicyError, match="column z is not granted"):
        own.read(lambda: con, "SELECT z FROM n", held)


@pytest.mark.parametrize(
    ("expression", "spreads"),
    [
        ("a", False), ("max(a) OVER ()", True), ("max(CASE WHEN a = 5 THEN b END) OVER ()", True),
        ("sum(a) OVER ()", False), ("sum(CASE WHEN a = 5 THEN b ELSE 0 END) OVER ()", True),
        ("avg(a) OVER (PARTITION BY b)", False), ("avg(a) OVER (PARTITION BY a = 5)", False),
        ("sum(a) OVER (ORDER BY b)", True), ("sum(a) OVER (ORDER BY a = 5)", True),
        ("count(*) OVER (PARTITION BY a)", False),
        ("count(CASE WHEN a = 5 THEN 1 END) OVER ()", True),
        ("count(a) OVER ()", True), ("count(*) FILTER (WHERE b > 5) OVER ()", True),
        ("first_value(a) OVER (ORDER BY b)", True), ("median(a) OVER ()", True),
        ("lag(a) OVER (ORDER BY b)", False), ("lag(a, 2, 0) OVER (ORDER BY b)", False),
        ("lag(a, a) OVER (ORDER BY b)", True), ("lag(a IGNORE NULLS) OVER (ORDER BY b)", True),
        ("lead(a, 1, a + 90) OVER (PARTITION BY b ORDER BY a)", False),
        ("rank() OVER (ORDER BY a)", False), ("rank() OVER (ORDER BY a = 5)", True),
        ("ntile(4) OVER (ORDER BY a)", False), ("sum(DISTINCT a) OVER ()", True),
        ("avg(a) OVER (ORDER BY b ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)", False),
        ("sum(a) OVER (ORDER BY b ROWS BETWEEN UNBOUNDED PRECEDING AND a PRECEDING)", True),
        ("sum(a) OVER (ORDER BY b RANGE BETWEEN UNBOUNDED PRECEDING AND 5 PRECEDING)", True),
        ("sum(a) OVER (ORDER BY b GROUPS BETWEEN 2 PRECEDING AND 1 PRECEDING)", True),
        ("sum(a) OVER (ORDER BY b RANGE UNBOUNDED PRECEDING EXCLUDE GROUP)", True),
        ("sum(a) OVER (ORDER BY b ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING)", False),
        ("a - avg(a) OVER ()", False), ("(a - avg(a) OVER ()) / stddev(a) OVER ()", False),
        ("(SELECT max(q.a) FROM t AS q)", True), ("(SELECT avg(q.a) FROM t AS q)", False),
        ("(SELECT avg(q.a * 2) FROM t AS q)", True), ("(SELECT count(*) FROM t AS q)", True),
        ("(SELECT q.a FROM t AS q LIMIT 1)", True), ("coalesce((SELECT min(a) FROM t), 0)", True),
        ("(SELECT avg(q.a) FROM t AS q WHERE q.b > 5)", True), ("(SELECT a)", False),
        ("(SELECT max(q.a) FROM t AS q WHERE q.k = t.k)", False),
        ("(SELECT count(*) FROM t AS q WHERE q.k = t.k)", False),
        ("(SELECT avg(x) FROM (SELECT a AS x FROM t) AS q)", False),
        ("5 IN (SELECT q.a FROM t AS q)", True), ("a + 1 IN (SELECT q.a FROM t AS q)", True),
        ("a > ANY (SELECT q.a FROM t AS q)", True), ("max(a) OVER (PARTITION BY b)", False),
        ("max(a) OVER (ORDER BY b ROWS 2 PRECEDING)", False),
        ("(SELECT max(q.a) FROM t AS q WHERE q.k = k)", True),
        ("(SELECT max(q.a) OVER () FROM t AS q WHERE q.k = t.k)", True),
        ("(SELECT (SELECT max(r.a) FROM t AS r WHERE r.k = q.k) FROM t AS q WHERE q.k = t.k)",
         True),
        ("EXISTS (SELECT 1 FROM t AS q WHERE q.k = t.k)", False),
        ("CASE WHEN max(a) OVER () > 5 THEN a ELSE 0 END", True),
        ("(WITH c AS (SELECT max(a) AS m FROM t) SELECT m FROM c)", True),
    ],
)  # fmt: skip
def test_many_rows_do_not_tell_a_value_of_few(
    con: duckdb.DuckDBPyConnection, expression: str, spreads: bool
) -> None:
    exact = replace(RULING, policies={"r": TrainingPolicy(conditions="exact")})
    few = "min_cell = 3, and f may give many rows a value of few"
    for text in (
        f"SELECT {expression} AS f FROM t",
        f"SELECT q.f FROM (SELECT *, {expression} AS f FROM t) AS q",
        f"SELECT q.f + 1 AS f FROM (SELECT *, {expression} AS f FROM t) AS q",
        f"SELECT a AS f FROM t UNION ALL SELECT {expression} AS f FROM t",
    ):
        assert (few in said(con, text, exact, features=(ONE,))) is spreads, text
        alone = replace(RULING, policies={"r": TrainingPolicy(conditions="exact", min_cell=1)})
        assert said(con, text, alone, features=(ONE,)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "WITH {} AS ({}) SELECT (SELECT avg(a) FROM {}) AS f FROM t",
        "SELECT (WITH {} AS ({}) SELECT avg(a) FROM {}) AS f FROM t",
        "WITH {} AS ({}) SELECT f FROM (SELECT (SELECT avg(a) FROM {}) AS f FROM t) AS q",
    ],
)
@pytest.mark.parametrize("name", ["c", "more"])
def test_a_query_of_with_that_has_few_rows_is_no_table(
    con: duckdb.DuckDBPyConnection, text: str, name: str
) -> None:
    """Also where it has the name of a table with the same columns."""
    con.execute("CREATE TABLE IF NOT EXISTS more AS SELECT a FROM t")
    with pytest.raises(PolicyError, match="cannot be counted"):
        copies(con, text.format(name, "SELECT a FROM t LIMIT 1", name), 3)


def test_labels_do_not_tell_many_rows_a_value_of_few(con: duckdb.DuckDBPyConnection) -> None:
    refused = said(con, "SELECT max(y) OVER () FROM t", target=True)
    assert "min_cell = 3, and the target or a weight may give many rows a value of few" in refused


def test_a_value_is_in_a_list_of_values_by_a_condition(con: duckdb.DuckDBPyConnection) -> None:
    """IN is judged as EXISTS with the equality is."""
    for text in ("a IN (SELECT q.a FROM t AS q)", "NOT a IN (SELECT q.a FROM t AS q)"):
        assert "not granted to acme for FILTER, and an equality" in said(
            con, f"SELECT {text} AS f FROM t", features=(ONE,)
        )
    linked = ruling(train=("a", "k"), join=("k",))
    text = "SELECT k IN (SELECT q.k FROM t AS q) AS f FROM t"
    assert said(con, text, linked, features=(ONE,)) == ""
