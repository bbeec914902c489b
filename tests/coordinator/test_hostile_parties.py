"""Whatever a party answers, the coordinator says whose answer it was, and makes nothing of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import sqlfl
from sqlfl.base.errors import PartyError
from sqlfl.transport.base import Transport
from tests.federations import Parties, federation
from tests.hostile import CASES, MODEL, STATEMENTS, Case, Twisting, but, opened
from tests.open_databases import in_memory


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[sqlfl.Federation, Twisting, Parties]]:
    """With a model m, at whose parties replies can be crafted."""
    held: list[Twisting] = []

    def wrap(inner: Transport) -> Transport:
        held.append(Twisting(inner))
        return held[0]

    databases = opened()
    with federation(databases, wrap=wrap) as made:
        made.sql(MODEL)
        yield made, held[0], databases
    for clients in databases.values():
        for con in clients:
            con.close()


@pytest.fixture
def fed(
    whole: tuple[sqlfl.Federation, Twisting, Parties],
) -> Iterator[tuple[sqlfl.Federation, Twisting]]:
    """One for all tests, from which each takes away what it has made, however it ends."""
    federated, twisting, databases = whole
    try:
        yield federated, twisting
    finally:
        twisting.set(None)
        federated.sql("DROP MODEL IF EXISTS n")
        for con in databases["home"]:
            con.execute("DROP TABLE IF EXISTS predicted")


@pytest.mark.parametrize("name", CASES)
def test_a_crafted_reply_is_an_error_of_its_party(
    name: str, fed: tuple[sqlfl.Federation, Twisting]
) -> None:
    federated, twisting = fed
    case = CASES[name]
    twisting.set(case)
    with pytest.raises(sqlfl.Error) as caught:
        federated.sql(STATEMENTS[case.statement])
    twisting.set(None)
    error = caught.value
    if case.kind == "columns":  # which the planner tells with the place in the statement
        assert isinstance(error, sqlfl.PlanError)
        assert f"party {case.party} " in str(error)
        error = error.__cause__  # type: ignore[assignment]
    assert isinstance(error, sqlfl.PartyError)
    assert error.party.startswith(case.party)
    said = str(error)
    assert len(said) < 5000
    assert "\x1b" not in said
    assert [row[0] for row in federated.sql("SHOW MODELS").fetchall()] == ["m"]


@pytest.mark.parametrize("statement", sorted({case.statement for case in CASES.values()}))
def test_the_honest_replies_make_no_error(
    statement: str, fed: tuple[sqlfl.Federation, Twisting]
) -> None:
    federated, twisting = fed
    twisting.set(Case(statement, "no such kind", lambda reply: b""))
    federated.sql(STATEMENTS[statement])


@pytest.mark.parametrize("share", [1e-13, 1e-3])
def test_bases_of_two_databases_are_one_but_for_rounding(share: float) -> None:
    """Two machines round their drawn bases unlike."""
    twists: list[Twisting] = []

    def wrap(inner: Transport) -> Transport:
        twists.append(Twisting(inner))
        return twists[-1]

    def turned(values: np.ndarray) -> np.ndarray:
        return values * (1 + share * np.arange(values.size).reshape(values.shape))

    with in_memory() as one, in_memory() as two, in_memory() as other:
        for number, con in enumerate((one, two)):
            rows = f"range({number}, 200, 2) r(i)"
            con.execute(f"CREATE TABLE t AS SELECT i, sin(i) AS x, cos(i * i) AS z FROM {rows}")
        other.execute("CREATE TABLE u AS SELECT i, i % 7 + sin(i) AS y FROM range(200) r(i)")
        with federation({"lab": [one, two], "shop": [other]}, wrap) as fed:
            query = "SELECT t.x, t.z, u.y FROM lab.t JOIN shop.u USING (i)"
            fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({query})")
            honest = fed.sql(f"INFERENCE OF MODEL m FROM ({query})").df()
            twists[0].set(Case("", "rotated", but(weights=turned, origin=turned), at=2))
            if share > 1e-9:
                with pytest.raises(
                    PartyError, match="in another basis than that of lab/0"
                ) as caught:
                    fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
                assert "organisation = 'party.secret'" in str(caught.value.hint)
                return
            told = fed.sql(f"INFERENCE OF MODEL m FROM ({query})").df()
    assert twists[0].client is not None
    np.testing.assert_allclose(told.standard_error, honest.standard_error, rtol=1e-9)
