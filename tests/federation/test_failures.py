"""What is said where a party's database fails on its data: which part it is, and no value."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

import sqlfl
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.query import ucq as places
from tests.conftest import Open
from tests.federations import federation
from tests.open_databases import in_memory
from tests.planner import plans
from tests.strategies import train_sql

SECRET = "77x"
LEFT = (
    "CREATE TABLE t AS SELECT i AS id, i % 3 AS y, 120 + i AS n, 'd' || i AS day, "
    f"CASE i WHEN 5 THEN '{SECRET}' ELSE i::VARCHAR END AS s FROM range(9) r(i)",
    "CREATE VIEW broken AS SELECT id, y, s::INT AS v FROM t",
)
RIGHT = (
    "CREATE TABLE u AS SELECT i AS id, i AS z, "
    f"CASE i WHEN 7 THEN '{SECRET}' ELSE i::VARCHAR END AS k FROM range(9) r(i)",
)
CAST = "cannot be cast"
FAILURES = {
    "SELECT z, t.s::INT AS f, y FROM a.t t JOIN b.u u ON t.id = u.id": (
        "a", "column f", "t.s", CAST,
    ),
    "SELECT z, t.s::INT AS y FROM a.t t JOIN b.u u ON t.id = u.id": (
        "a", "the target", "t.s", CAST,
    ),
    "SELECT z, y FROM a.t t JOIN b.u u ON t.id = u.k::INT": ("b", "a join key", "u.k", CAST),
    "SELECT z, y FROM a.t t JOIN b.u u ON t.id = u.k": ("b", "a join key", "u.k", CAST),
    "SELECT z, y FROM a.t t JOIN b.u u ON t.id = u.id WHERE z > 2 AND k::INT < 50 AND y > 0": (
        "b", "a condition", "k::INT < 50", CAST,
    ),
    "SELECT z, y, n::UTINYINT * 2::UTINYINT AS m FROM a.t t JOIN b.u u ON t.id = u.id": (
        "a", "column m", "n::UTINYINT * 2", "range",
    ),
    "SELECT z, y, year(day::DATE) AS d FROM a.t t JOIN b.u u ON t.id = u.id": (
        "a", "column d", "year(day::DATE)", CAST,
    ),
    "SELECT z, y, (SELECT id FROM a.t x WHERE x.y = t.y) AS one FROM a.t t JOIN b.u u USING (id)": (
        "a", "column one", None, "more than one row",
    ),
    "SELECT z, y, v FROM a.broken t JOIN b.u u ON t.id = u.id": ("a", "column v", "v", CAST),
    "SELECT z, y FROM a.t t LEFT JOIN b.u u ON t.id = u.id WHERE k::INT < 50 OR k IS NULL": (
        "b", "a condition", "k::INT < 50 OR k", CAST,
    ),
    "SELECT w + 1 AS w, y FROM a.t t JOIN (SELECT k::INT AS w, id FROM b.u) u ON t.id = u.id": (
        "b", "column w", "w + 1", CAST,
    ),
}  # fmt: skip


def marked(text: str) -> str | None:
    """The characters that an error marks."""
    lines = text.split("\n")
    for line, below in pairwise(lines):
        if set(below.strip()) == {"^"}:
            return line[below.index("^") : below.rindex("^") + 1]
    return None


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    with in_memory() as left, in_memory() as right:
        for con, statements in ((left, LEFT), (right, RIGHT)):
            for statement in statements:
                con.execute(statement)
        with federation({"a": [left], "b": [right]}) as made:
            yield made


@pytest.mark.parametrize("query", FAILURES)
def test_the_part_that_fails_is_named_with_its_place(query: str, fed: sqlfl.Federation) -> None:
    party, words, place, kind = FAILURES[query]
    with pytest.raises(sqlfl.PartyError) as caught:
        fed.sql(train_sql("m", "linear_regression", "y", query))
    text = str(caught.value)
    assert text.startswith(f"party {caught.value.party}: {words} cannot be evaluated: ")
    assert caught.value.party == f"{party}/0"
    assert kind in text
    assert SECRET not in text
    assert "d0" not in text
    assert "sqlfl.party" in (caught.value.hint or "")
    if place is not None:
        assert marked(text) == place
    # the run is over, and the next one finds the party as it was
    assert fed.sql("SHOW MODELS").fetchall() == []
    assert not any(server.working for server in fed._servers.values())


def test_after_a_failure_the_party_is_as_it_was(fed: sqlfl.Federation) -> None:
    good = "SELECT z, y FROM a.t t JOIN b.u u ON t.id = u.id"
    for query in FAILURES:
        with pytest.raises(sqlfl.PartyError):
            fed.sql(train_sql("m", "linear_regression", "y", query))
        fed.sql(train_sql("m", "linear_regression", "y", good, epochs=2))
        assert fed.model("m").metrics["rows"] == 9
        fed.sql("DROP MODEL m")


def test_the_client_that_fails_is_named(database: Open) -> None:
    second = database(*(part.replace("WHEN 7", "WHEN 70") for part in RIGHT))
    with federation({"a": [database(*LEFT)], "b": [second, database(*RIGHT)]}) as fed:
        query = "SELECT z, y, k::INT AS k FROM a.t t JOIN b.u u ON t.id = u.id"
        with pytest.raises(sqlfl.PartyError, match="column k cannot be evaluated") as caught:
            fed.sql(train_sql("m", "linear_regression", "y", query))
        assert caught.value.party == "b/1"


@pytest.mark.parametrize(
    "at", ["", "0", "0 0", "0 0 0 0", "9 0 0", "0 9 0", "0 0 99", "-1 0 0", "a b c", "0 0 1e3"]
)
def test_what_is_no_part_of_the_statement_is_left_out(at: str) -> None:
    assert places.found(plans.flights(), "airline/0", at) is None


def test_another_clients_fragment_is_none_of_its_own() -> None:
    ucq = plans.flights()
    assert places.found(ucq, "airline/0", "0 0 0") == ("column distance", None)
    assert places.found(ucq, "meteo/0", "0 0 0") is None


def test_a_place_is_that_of_the_term() -> None:
    span: Span = (3, 8)
    ucq = plans.flights()
    places.placed(ucq.slots[0].fragments[0].select.expressions[1], span)
    assert places.found(ucq, "airline/0", "0 0 1") == ("column carrier", span)
