"""Clients of Flight SQL at a coordinator's own port, by certificate and pass."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager
import duckdb
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from adbc_driver_flightsql import DatabaseOptions as Options

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.gateway import messages as ms
from sqlfl.gateway.calls import PREPARE, FlightSqlCalls
from sqlfl.service import certificates as ct
from sqlfl.service import passes, streams
from sqlfl.service.passes import issue, to_bearer
from sqlfl.service.server import SQL_METHODS
from sqlfl.service.service import Service
from sqlfl.service.stream import Credentials
from sqlfl.service.streams import Most, Streams
from tests.depth import THOROUGH
from tests.gateway.frames import send_frames
from tests.gateway.test_gateway import ENDLESS, MADE, QUERY, TRAIN, refused, run, waited
from tests.service.study import COORDINATOR, Running, identity, settings, studied

OWN = ENDLESS.replace("shop.customers s ON b.pid = s.pid", "bank.customers s USING (pid)")
"""A training of which no policy says anything."""
HOUR = dt.timedelta(hours=1)
POLICY = """CREATE TRAINING POLICY p WITH (min_rows = 5);
GRANT TRAIN (balance, spent), JOIN (pid), LABEL (churned), PREDICT ON customers
  TO 'alice' UNDER p"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    cons = {name: duckdb.connect() for name in ("bank", "shop")}
    with ExitStack() as stack:
        for con in cons.values():
            stack.enter_context(con)
            con.execute(MADE)
        with sqlfl.owner(cons["shop"]) as owner:
            owner.sql(POLICY)
        folder = tmp_path_factory.mktemp("study")
        yield stack.enter_context(studied(folder, cons, flight_sql=True))


def bearer(
    name: str = "alice",
    study: str = "heart",
    coordinator: str = COORDINATOR,
    length: dt.timedelta = HOUR,
    now: dt.datetime | None = None,
) -> str:
    own = identity(name)
    assert own.key is not None
    assert own.certificate is not None
    return to_bearer(issue(own.key, own.certificate, coordinator, study, length, now))


def connected(
    study: Running, name: str = "alice", token: str | None = None, own: Credentials | None = None
) -> flight_sql.Connection:
    own = identity(name) if own is None else own
    given = {
        Options.TLS_OVERRIDE_HOSTNAME.value: COORDINATOR,
        Options.TLS_ROOT_CERTS.value: (identity(name).authority or b"").decode(),
        Options.AUTHORIZATION_HEADER.value: f"Bearer {bearer(name) if token is None else token}",
    }
    if own.certificate is not None and own.key is not None:
        given[Options.MTLS_CERT_CHAIN.value] = own.certificate.decode()
        given[Options.MTLS_PRIVATE_KEY.value] = own.key.decode()
    return flight_sql.connect(study.location, db_kwargs=given, autocommit=True)


def dialled(study: Running, name: str = "alice") -> flight.FlightClient:
    own = identity(name)
    return flight.FlightClient(
        study.location, override_hostname=COORDINATOR, tls_root_certs=own.authority,
        cert_chain=own.certificate, private_key=own.key,
    )  # fmt: skip


def options(token: str) -> flight.FlightCallOptions:
    header = (b"authorization", f"Bearer {token}".encode())
    return flight.FlightCallOptions(headers=[header], timeout=20)


def test_analysts_do_not_see_each_other(study: Running) -> None:
    """Nor do studies of one analyst. What a policy grants to `alice` it does not to `carol`."""
    with (
        connected(study) as alice, connected(study, "carol") as carol, alice.cursor() as hers,
        connected(study, "carol", bearer("carol", "lung")) as lung, carol.cursor() as other,
        lung.cursor() as third,
    ):  # fmt: skip
        hers.execute(TRAIN)
        assert hers.fetchone() == ("name", "m")
        for cursor, models in ((hers, ["m"]), (other, []), (third, [])):
            cursor.execute("SHOW MODELS")
            assert [row[0] for row in cursor.fetchall()] == models
        said = refused(other, TRAIN)
        assert "shop has no table customers" in said
        third.execute("SHOW PARTIES")
        assert [row[0] for row in third.fetchall()] == ["bank"]
        hers.execute(f"PREDICT MODEL m ID (b.pid) FROM ({QUERY} WHERE b.pid < ?)", [100])
        assert hers.fetch_arrow_table().num_rows == 100
        assert "hint: did you mean balance?" in refused(
            hers, f"EVALUATE MODEL m FROM ({QUERY})".replace("b.balance", "b.balanse")
        )
        objects = alice.adbc_get_objects(depth="tables").read_all().to_pylist()
        assert [catalog["catalog_name"] for catalog in objects] == ["bank", "shop"]
    with study.analyst() as python:  # at the same desk
        assert python.models == ("m",)
        assert python.statements().arrow()["verb"].to_pylist().count("PREDICT") == 1


def test_a_cancel_ends_a_training_at_its_round(study: Running) -> None:
    with connected(study) as alice, alice.cursor() as cursor, study.analyst() as python:

        def trains() -> bool:
            rows = python.statements().arrow().to_pylist()
            return any(row["ended"] is None and (row["epoch"] or 0) > 1 for row in rows)

        def cancel() -> None:
            waited(trains)
            cursor.adbc_cancel()

        threading.Thread(target=cancel).start()
        assert "CANCELLED" in refused(cursor, OWN)
        assert waited(lambda: "long" in python.models)


def test_handles_are_of_who_has_made_them(study: Running) -> None:
    with dialled(study) as client, dialled(study, "carol") as other:
        body = ms.pack(ms.ActionCreatePreparedStatementRequest("SHOW MODELS"))
        (made,) = client.do_action(flight.Action(PREPARE, body), options(bearer()))
        handle = ms.unpack(made.body.to_pybytes()).prepared_statement_handle
        command = flight.FlightDescriptor.for_command(
            ms.pack(ms.CommandPreparedStatementQuery(handle))
        )
        with pytest.raises(flight.FlightError, match="no such prepared statement"):
            other.get_flight_info(command, options(bearer("carol")))
        info = client.get_flight_info(command, options(bearer()))
        ticket = info.endpoints[0].ticket
        with pytest.raises(flight.FlightError, match="no such result"):
            other.do_get(ticket, options(bearer("carol"))).read_all()
        assert client.do_get(ticket, options(bearer())).read_all().schema.names[0] == "name"


def test_who_is_sent_away(study: Running) -> None:
    now = dt.datetime.now(dt.UTC)
    for token, said in (
        (bearer("carol"), "of another analyst than the certificate"),
        (bearer(study="lung"), "no study 'lung' of analyst 'alice'"),
        (bearer(coordinator="other.example"), "for another coordinator"),
        (bearer(now=now - 2 * HOUR), "the analyst's pass is over"),
        (bearer(now=now + HOUR), "the analyst's pass begins at"),
        (bearer(length=25 * HOUR), "over, or too long"),
        (bearer()[:-40], "no analyst's pass"),
        ("", "no analyst's pass"),
        ("alice", "no analyst's pass"),
    ):
        with (
            pytest.raises(adbc_driver_manager.Error, match=said),
            connected(study, token=token) as own,
        ):
            run(own)
    with dialled(study) as client:
        nothing = flight.FlightCallOptions(timeout=20)
        with pytest.raises(flight.FlightUnauthenticatedError, match="the analyst's pass is needed"):
            list(client.list_actions(nothing))
        with pytest.raises(pa.ArrowException, match="nothing of this kind"):
            list(client.list_flights(b"", options(bearer())))


def test_a_pass_is_nothing_without_its_certificate(study: Running) -> None:
    """Whoever copies a pass cannot use it here: TLS asks for the analyst's key."""
    key, authority = ct.make_authority("elsewhere")
    made = ct.make_key()
    signed = ct.sign(ct.signing_request(made, "alice"), key, authority)
    for own, said in (
        (identity("carol"), "of another analyst than the certificate"),
        (identity("bank0.example"), "of another analyst than the certificate"),
        (Credentials(made, signed, authority), "Unavailable"),
        (Credentials(), "Unavailable"),
    ):
        with (
            pytest.raises(adbc_driver_manager.Error, match=said),
            connected(study, token=bearer(), own=own) as stranger,
        ):
            run(stranger)


def test_a_pass_that_ends_ends_its_training(
    study: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parties refuse what comes by it, whatever the coordinator does."""
    ahead = dt.timedelta()

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return dt.datetime.now(tz) + ahead

    clock = SimpleNamespace(datetime=Clock, timedelta=dt.timedelta, UTC=dt.UTC)
    monkeypatch.setattr(passes, "dt", clock)
    desk = study.service._desk("heart", "carol")
    monkeypatch.setattr(desk, "_until", dt.datetime.min.replace(tzinfo=dt.UTC))

    def trains() -> bool:
        rows = study.service.board.told_to("heart", "carol", ("bank", "shop"))["statements"]
        return any(row["ended"] is None and (row["epoch"] or 0) > 1 for row in rows)

    begun: list[bool] = []

    def pass_time() -> None:
        nonlocal ahead
        begun.append(waited(trains))
        ahead = 2 * HOUR

    token = bearer("carol")
    command = flight.FlightDescriptor.for_command(ms.pack(ms.CommandStatementQuery(OWN)))
    with dialled(study, "carol") as client:
        thread = threading.Thread(target=pass_time)
        thread.start()
        header = (b"authorization", f"Bearer {token}".encode())
        with pytest.raises(flight.FlightError, match="pass"):
            client.get_flight_info(command, flight.FlightCallOptions(headers=[header], timeout=60))
        thread.join()
        assert begun == [True]
        with pytest.raises(flight.FlightUnauthenticatedError, match="pass is over"):
            list(client.list_actions(options(token)))


def test_a_short_pass_takes_no_longer_one_away(
    study: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = study.service._desk("heart", "alice")
    monkeypatch.setattr(desk, "_until", dt.datetime.min.replace(tzinfo=dt.UTC))
    with connected(study, token=bearer(length=2 * HOUR)) as own:
        run(own)
        before = desk._speaker
        with connected(study, token=bearer(length=dt.timedelta(minutes=1))) as short:
            run(short)
        assert desk._speaker == before
        with connected(study, token=bearer(length=3 * HOUR)) as longer:
            run(longer)
        assert desk._speaker != before


def test_statements_at_once_are_bounded(study: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever client they come from."""
    with connected(study) as own, own.cursor() as cursor:
        run(own)
        monkeypatch.setattr(study.service._desks["heart", "alice"], "_running", 4)
        assert "4 statements of alice are running" in refused(cursor, "SHOW MODELS")


def test_frames_that_no_client_sends(study: Running) -> None:
    with dialled(study) as client:
        send_frames(client, bearer(), 20_000 if THOROUGH else 200)
    with connected(study) as own:
        run(own)


def test_where_it_is_not_served(tmp_path: Path) -> None:
    own = settings(tmp_path, {"bank": 1}, flight_sql=True)
    with pytest.raises(Error, match="there are none without TLS"):
        Service(own, "grpc://127.0.0.1:0", None, insecure=True, flight_sql=FlightSqlCalls)


# -- connections ----------------------------------------------------------------------------------


def test_who_sends_no_values_is_cut_off(study: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DoPut without its batch; a connection without calls stays."""
    monkeypatch.setattr(streams, "HELLO", 0.5)
    with dialled(study) as client, dialled(study) as other:
        list(other.list_actions(options(bearer())))
        held = set(study.service._server._streams._staying)
        assert held
        body = ms.pack(ms.ActionCreatePreparedStatementRequest("SHOW MODELS"))
        (made,) = client.do_action(flight.Action(PREPARE, body), options(bearer()))
        handle = ms.unpack(made.body.to_pybytes()).prepared_statement_handle
        command = flight.FlightDescriptor.for_command(
            ms.pack(ms.CommandPreparedStatementQuery(handle))
        )
        writer, _ = client.do_put(command, pa.schema([("1", pa.int64())]), options(bearer()))
        assert waited(lambda: len(study.service._server._streams._calls) == 3)
        assert waited(lambda: len(study.service._server._streams._calls) == 2)
        with pytest.raises((pa.ArrowException, OSError)):
            writer.close()
        assert held & set(study.service._server._streams._staying)


def test_which_connections_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [("127.0.0.1", port) for port in range(4)]
    gone: list[tuple[str, int]] = []
    monkeypatch.setattr(
        streams, "cut", lambda port, which: gone.extend(peer for peer in peers if which(peer))
    )
    own = Streams(Most(each=2), 60.0, SQL_METHODS)
    info = SimpleNamespace(method=flight.FlightMethod.GET_FLIGHT_INFO)
    call = None
    for peer in peers[:3]:  # the first of one analyst's three has no place
        call = own.start_call(info, {"authorization": ["Bearer x"]})
        call.peer = peer
        call.known("alice")
        call.enter()
        call.stay()
        if peer != peers[2]:
            call.call_completed(None)
    own.look(1)
    assert gone == []
    own._since = {peer: when - streams.HELLO - 1 for peer, when in own._since.items()}
    own.look(1)
    assert gone == [peers[0], peers[3]]
    peers = peers[1:3]
    gone.clear()
    assert call is not None
    with call.works():  # a long statement
        call.last -= 3600
        own.look(1)
        assert gone == []
    call.last -= 3600
    own._since[peers[0]] -= 2 * streams.IDLE
    own.look(1)
    assert gone == peers
    with pytest.raises(flight.FlightUnauthenticatedError):
        own.start_call(info, {"authorization": ["Basic x"]})
