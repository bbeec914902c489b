"""Names that may come to a coordinator, by the file of its settings as it is just now."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.flight as flight
import pytest

from sqlfl.base.errors import Error, PolicyError
from sqlfl.gateway import messages as ms
from sqlfl.gateway.calls import PREPARE
from sqlfl.service.members import Roster
from sqlfl.service.settings import CoordinatorSettings, Member, StudySettings
from tests.gateway.test_coordinator import OWN, bearer, connected, dialled, options
from tests.gateway.test_gateway import MADE, waited
from tests.service.study import Running, settings, studied, write_settings


def without(own: CoordinatorSettings, analyst: str = "", agent: str = "") -> CoordinatorSettings:
    studies = {
        name: StudySettings(
            parties=study.parties, analysts=tuple(n for n in study.analysts if n != analyst)
        )
        for name, study in own.studies.items()
    }
    parties = {
        name: Member(agents=tuple(n for n in party.agents if n != agent))
        for name, party in own.parties.items()
    }
    return replace(own, studies=studies, parties=parties)


def test_names_that_are_taken_out_of_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, path = settings(tmp_path, {"bank": 2}), tmp_path / "coordinator.toml"
    alone = Roster(own, None)
    write_settings(path, own)
    roster = Roster(own, path)
    for known in (alone, roster):
        assert known.analyst("heart", "alice")
        assert known.agent("bank", 1)
        assert not known.analyst("lung", "alice")
        assert not known.analyst("none", "alice")
    write_settings(path, without(own, "alice", "bank1.example"))
    assert not roster.analyst("heart", "alice")
    assert roster.analyst("heart", "carol")
    assert [roster.agent("bank", number) for number in (0, 1)] == [True, False]
    assert alone.analyst("heart", "alice")
    # new names come with the next start
    more = without(own, "alice")
    lung = StudySettings(parties=("bank",), analysts=("alice", "carol"))
    write_settings(path, replace(more, studies={**more.studies, "lung": lung}))
    assert not roster.analyst("lung", "alice")
    assert roster.agent("bank", 1)
    # a file that cannot be read takes nobody out, and brings nobody back
    for change in (lambda: path.write_text("name ="), path.unlink):
        change()
        with caplog.at_level(logging.ERROR):
            assert roster.analyst("heart", "carol")
            assert not roster.analyst("heart", "alice")
    assert len([r for r in caplog.records if "cannot be read" in r.message]) == 2
    write_settings(path, own)
    assert roster.analyst("heart", "alice")


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        cons = {name: stack.enter_context(duckdb.connect()) for name in ("bank", "shop")}
        for con in cons.values():
            con.execute(MADE)
        path = tmp_path / "coordinator.toml"
        yield stack.enter_context(studied(tmp_path, cons, path=path, flight_sql=True))


def take_out(study: Running, analyst: str = "", agent: str = "") -> None:
    own = study.service._settings
    write_settings(study.folder / "coordinator.toml", without(own, analyst, agent))


def query(text: str) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(ms.pack(ms.CommandStatementQuery(text)))


def test_an_analyst_who_is_taken_out_is_refused_at_the_next_call(study: Running) -> None:
    said = "no study 'heart' of analyst 'alice'"
    token = options(bearer(length=dt.timedelta(hours=2)))
    with (
        dialled(study) as client, study.analyst() as python,
        connected(study, "carol") as carol, carol.cursor() as other,
    ):  # fmt: skip
        body = ms.pack(ms.ActionCreatePreparedStatementRequest("SHOW TABLES"))
        (made,) = client.do_action(flight.Action(PREPARE, body), token)
        handle = ms.unpack(made.body.to_pybytes()).prepared_statement_handle
        prepared = flight.FlightDescriptor.for_command(
            ms.pack(ms.CommandPreparedStatementQuery(handle))
        )
        ticket = client.get_flight_info(prepared, token).endpoints[0].ticket
        assert python.parties == ("bank", "shop")
        take_out(study, "alice")
        for call in (
            lambda: client.get_flight_info(prepared, token),
            lambda: client.get_flight_info(query("SHOW PARTIES"), token),
            lambda: client.do_get(ticket, token).read_all(),
            lambda: list(client.list_actions(token)),
            lambda: list(client.do_action(flight.Action(PREPARE, body), token)),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError, match=said):
                call()
        with pytest.raises(Error, match=said):
            python.sql("SHOW PARTIES")
        with pytest.raises(Error, match=said), study.analyst() as again:
            again.sql("SHOW PARTIES")
        other.execute("SHOW PARTIES")
        assert len(other.fetchall()) == 2


@pytest.mark.parametrize("how", ["analyst", "agent"])
def test_a_training_ends_with_its_analyst_or_agent(study: Running, how: str) -> None:
    """Parties are asked nothing more; they are told that the run is over."""

    def trains() -> bool:
        rows = study.service.board.told_to("heart", "alice", ("bank", "shop"))["statements"]
        return any(row["ended"] is None and (row["epoch"] or 0) > 1 for row in rows)

    def take() -> None:
        assert waited(trains)
        take_out(study, **{how: "alice" if how == "analyst" else "bank0.example"})

    said = {"analyst": "no study 'heart' of", "agent": "the agent of bank/0 may not come"}[how]
    thread = threading.Thread(target=take)
    with dialled(study) as client:
        thread.start()
        with pytest.raises(flight.FlightUnauthorizedError, match=said):
            client.get_flight_info(query(OWN), options(bearer()))
        thread.join()
        began = time.monotonic()
        assert waited(lambda: not study.hosts["bank"].working)
        assert time.monotonic() - began < 20
    if how == "agent":
        with study.analyst() as python, pytest.raises(PolicyError, match=said):
            python.sql("DESCRIBE bank.customers")
