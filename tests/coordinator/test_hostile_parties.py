"""Whatever a party answers, the coordinator says whose answer it was, and makes nothing of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sqlfl
from sqlfl.transport.base import Transport
from tests.federations import Parties, federation
from tests.hostile import CASES, MODEL, STATEMENTS, Case, Twisting, opened


@pytest.fixture(scope="module")
def fed() -> Iterator[tuple[sqlfl.Federation, Twisting, Parties]]:
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


@pytest.mark.thinned(17)
@pytest.mark.parametrize("name", CASES)
def test_a_crafted_reply_is_an_error_of_its_party(
    name: str, fed: tuple[sqlfl.Federation, Twisting, Parties]
) -> None:
    federated, twisting, databases = fed
    case = CASES[name]
    twisting.set(case)
    try:
        with pytest.raises(sqlfl.Error) as caught:
            federated.sql(STATEMENTS[case.statement])
    finally:
        twisting.set(None)
        for con in databases["home"]:
            con.execute("DROP TABLE IF EXISTS predicted")
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


@pytest.mark.thinned(5)
@pytest.mark.parametrize("statement", sorted({case.statement for case in CASES.values()}))
def test_the_honest_replies_make_no_error(
    statement: str, fed: tuple[sqlfl.Federation, Twisting, Parties]
) -> None:
    federated, twisting, databases = fed
    twisting.set(Case(statement, "no such kind", lambda reply: b""))
    federated.sql(STATEMENTS[statement])
    if "MODEL n" in STATEMENTS[statement]:
        federated.sql("DROP MODEL n")
    for con in databases["home"]:
        con.execute("DROP TABLE IF EXISTS predicted")
