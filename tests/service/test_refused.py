"""Who and what is refused, at each end and by each door."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sqlfl import messages as ms
from sqlfl.base.errors import Error, PolicyError
from sqlfl.messages.wire import encoded, received
from sqlfl.service import certificates as ct
from sqlfl.service.agent import HELLO, PARTY, WELCOME
from sqlfl.service.calls import MAX_TEXT_BYTES
from sqlfl.service.federation import AnalystConnection
from sqlfl.service.frames import Frame
from sqlfl.service.hosting import Host
from sqlfl.service.passes import Passes, PassIssuer, issue
from sqlfl.service.service import ANALYST, PASS
from sqlfl.service.settings import AnalystSettings
from sqlfl.service.stream import PING, PONG, Credentials, Stream
from tests.conftest import Open
from tests.service import study as own
from tests.service.party import AUTHORITY, AUTHORITY_KEY, Admitting, at, serving
from tests.service.party import credentials as plainly
from tests.service.processes import until
from tests.service.study import COORDINATOR, SECRET, Running, identity, settings, written

NOW = dt.datetime.now(dt.UTC)
OTHER_KEY, OTHER = ct.make_authority("authority")
LAST_YEAR = NOW - dt.timedelta(days=400)


def made(
    name: str, *hosts: str, key: bytes = AUTHORITY_KEY, authority: bytes = AUTHORITY,
    now: dt.datetime | None = None,
) -> Credentials:  # fmt: skip
    """Of a site that itself trusts the right authority."""
    private = ct.make_key()
    request = ct.signing_request(private, name, hosts)
    return Credentials(private, ct.sign(request, key, authority, now=now), AUTHORITY)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("refused")
    made = settings(folder, {"bank": 1}, lease=2.0, heartbeat=0.2)
    with own.serving(folder, made) as running:
        yield running


def told(
    study: Running, given: Credentials, door: str, hello: dict[str, Any], location: str = ""
) -> tuple[str, str]:
    """What the coordinator says to a hello; or that there is no connection."""
    try:
        with Stream(location or study.location, given, door, COORDINATOR) as stream:
            frame = stream.greeted(Frame(HELLO, hello))
            return frame.kind, frame.text("why", "")
    except (pa.ArrowException, OSError, EOFError) as error:
        return "no connection", str(error)


def party_hello(**changed: Any) -> dict[str, Any]:
    return {"versions": [1], "name": "bank", "clients": 1, "boot": "b", **changed}


def analyst_hello(
    given: Credentials, study: str = "heart", coordinator: str = COORDINATOR, **changed: Any
) -> dict[str, Any]:
    assert given.key is not None
    assert given.certificate is not None
    speaker = issue(given.key, given.certificate, coordinator, study)
    return {"versions": [1], "study": study, "pass": speaker, "end": "e" * 32, **changed}


BAD: dict[str, Callable[[str], Credentials]] = {
    "no certificate": lambda name: Credentials(authority=AUTHORITY),
    "another authority's": lambda name: made(name, key=OTHER_KEY, authority=OTHER),
    "expired": lambda name: made(name, now=LAST_YEAR),
    "not yet": lambda name: made(name, now=NOW + dt.timedelta(days=1)),
    "signed by one that is no authority": lambda name: _signed_by_a_party(name),
}


def _signed_by_a_party(name: str) -> Credentials:
    party = identity("bank0.example")
    assert party.key is not None
    assert party.certificate is not None
    return made(name, key=party.key, authority=party.certificate)


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("who", ["party", "analyst"])
def test_certificates_that_do_not_connect(study: Running, what: str, who: str) -> None:
    if who == "party":
        found = told(study, BAD[what]("bank0.example"), PARTY, party_hello())
    else:
        found = told(study, BAD[what]("alice"), ANALYST, analyst_hello(identity("alice")))
    assert found[0] == "no connection"


def test_certificates_that_do(study: Running) -> None:
    """Of what is refused, all else is right."""
    assert told(study, made("bank0.example"), PARTY, party_hello())[0] == WELCOME
    assert told(study, made("alice"), ANALYST, analyst_hello(made("alice")))[0] == WELCOME


@pytest.mark.parametrize(
    ("given", "hello"),
    [
        ("eve", {}),
        ("alice", {}),  # an analyst's is no party's
        ("bank0.example", {"name": "clinic"}),
        ("bank0.example", {"name": "bank0.example"}),
    ],
)
def test_a_party_of_another_name(study: Running, given: str, hello: dict[str, Any]) -> None:
    kind, why = told(study, made(given), PARTY, party_hello(**hello))
    assert (kind, why.startswith("there is no agent")) == ("refused", True), why


ALICE, CAROL, EVE = identity("alice"), identity("carol"), identity("eve")
WRONG_PASSES: dict[str, tuple[Credentials, dict[str, Any], str]] = {
    "who is in no study": (EVE, analyst_hello(EVE), "there is no study 'heart' of analyst 'eve'"),
    "not of this study": (ALICE, analyst_hello(ALICE, "lung"), "no study 'lung' of analyst"),
    "a study that is none": (ALICE, analyst_hello(ALICE, "x"), "no study 'x'"),
    "another analyst's pass": (ALICE, analyst_hello(CAROL), "another analyst than the certificate"),
    "a pass for another study": (
        CAROL, analyst_hello(CAROL, "lung") | {"study": "heart"}, "another study"),
    "a pass for another coordinator": (
        ALICE, analyst_hello(ALICE, coordinator="other.example"), "another coordinator"),
    "no pass": (ALICE, analyst_hello(ALICE) | {"pass": "alice"}, "no analyst's pass"),
    "a party's certificate": (
        identity("bank0.example"), analyst_hello(identity("bank0.example")), "no study 'heart'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_PASSES.values(), ids=WRONG_PASSES)
def test_analysts_who_are_sent_away(
    study: Running, case: tuple[Credentials, dict[str, Any], str]
) -> None:
    given, hello, said = case
    kind, why = told(study, given, ANALYST, hello)
    assert kind == "refused"
    assert said in why, why


@pytest.mark.parametrize(("hours", "said"), [(-48, "is over"), (48, "clocks may differ")])
def test_a_pass_that_is_over_or_has_not_begun(study: Running, hours: int, said: str) -> None:
    assert ALICE.key is not None
    assert ALICE.certificate is not None
    text = issue(ALICE.key, ALICE.certificate, COORDINATOR, "heart",
                 now=dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours))  # fmt: skip
    kind, why = told(study, ALICE, ANALYST, analyst_hello(ALICE) | {"pass": text})
    assert (kind, said in why) == ("refused", True), why


@pytest.mark.parametrize("door", [PARTY, ANALYST])
def test_versions(study: Running, door: str) -> None:
    """A newer minor version offers what the older ones speak, too."""
    given = identity("bank0.example") if door == PARTY else ALICE
    hello = party_hello() if door == PARTY else analyst_hello(ALICE)
    assert told(study, given, door, hello | {"versions": [1, 2]})[0] == WELCOME
    assert told(study, given, door, hello | {"versions": [1, 2], "more": [{}]})[0] == WELCOME
    for offered in ([2], [], ["1"], None, {"1": 1}):
        kind, why = told(study, given, door, hello | {"versions": offered})
        assert (kind, "version" in why) == ("refused", True), why
    kind, why = told(study, given, door, hello | {"versions": [2, 3]})
    assert "versions 2, 3 of the format are offered, and 1 is the newest" in why


def test_a_door_that_is_none(study: Running) -> None:
    assert told(study, ALICE, "owner", analyst_hello(ALICE)) == (
        "refused", "there is nothing called 'owner' here")  # fmt: skip


def test_plaintext_to_tls_and_tls_to_plaintext(study: Running) -> None:
    where = f"grpc://127.0.0.1:{study.service.port}"
    assert told(study, Credentials(), PARTY, party_hello(), where)[0] == "no connection"
    with serving(Admitting("bank"), secure=False) as server:
        where = f"grpc+tls://127.0.0.1:{server.port}"
        given = identity("bank0.example")
        assert told(study, given, PARTY, party_hello(), where)[0] == "no connection"


COORDINATORS: dict[str, Callable[[], Credentials]] = {
    "another authority's": lambda: made(COORDINATOR, key=OTHER_KEY, authority=OTHER),
    "expired": lambda: made(COORDINATOR, now=LAST_YEAR),
    "of another name": lambda: made("other.example", "localhost", "127.0.0.1"),
    "a party's": lambda: made("bank0.example"),
}


@pytest.mark.parametrize("what", COORDINATORS)
def test_a_coordinator_that_is_not_trusted(
    study: Running, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By parties, and by analysts."""
    admits = Admitting("bank")
    monkeypatch.setattr("tests.service.party.SERVER", COORDINATORS[what]())
    with serving(admits, secure=True) as server:
        where = at(server, secure=True)
        found = told(study, plainly("bank"), PARTY, party_hello(), where)
        analyst = AnalystSettings(**written(tmp_path, "alice"), coordinator_name=COORDINATOR)
        with pytest.raises(Error, match="cannot connect to"):
            AnalystConnection(where, "heart", analyst, "alice")
    assert found[0] == "no connection"
    assert not admits.there["bank"].is_set()


def test_nobody_is_there(tmp_path: Path) -> None:
    analyst = AnalystSettings(**written(tmp_path, "alice"), coordinator_name=COORDINATOR)
    with pytest.raises(Error, match="cannot connect to grpc"):
        AnalystConnection("grpc+tls://127.0.0.1:1", "heart", analyst, "alice")


def test_a_pass_that_follows_is_the_same_analysts(study: Running) -> None:
    with Stream(study.location, ALICE, ANALYST, COORDINATOR) as stream:
        assert stream.greeted(Frame(HELLO, analyst_hello(ALICE))).kind == WELCOME
        desk = study.service._desks["heart", "alice"]
        before, another = desk._speaker, passed(ALICE)
        stream.sender.send(Frame(PASS, {"pass": another}))
        stream.sender.send(Frame(PING))
        assert stream.receive().kind == PONG
        assert desk._speaker == another != before
        stream.sender.send(Frame(PASS, {"pass": passed(CAROL)}))
        assert "another analyst" in stream.receive().text("why")
        assert desk._speaker == another


@pytest.mark.parametrize("frame", [Frame("gossip"), Frame("call", {"number": -1}), Frame("call")])
def test_an_analyst_who_breaks_the_rules(study: Running, frame: Frame) -> None:
    with Stream(study.location, ALICE, ANALYST, COORDINATOR) as stream:
        assert stream.greeted(Frame(HELLO, analyst_hello(ALICE))).kind == WELCOME
        stream.sender.send(frame)
        found = stream.receive()
        assert found.kind == "refused"
        assert frame.kind in found.text("why")


def test_a_text_that_is_too_long(study: Running) -> None:
    """It is not read whole."""
    with Stream(study.location, ALICE, ANALYST, COORDINATOR) as stream:
        assert stream.greeted(Frame(HELLO, analyst_hello(ALICE))).kind == WELCOME
        long = pa.py_buffer(bytes(MAX_TEXT_BYTES + 1))
        with suppress(pa.ArrowException, OSError, EOFError):  # it may be gone amid it
            with suppress(pa.ArrowException, OSError):
                stream.sender.send(Frame("call", {"number": 1, "what": "sql"}, long))
            assert "a size that is not 0 to 4,194,304" in stream.receive().text("why")
        with pytest.raises((EOFError, pa.ArrowException)):
            stream.receive()


class Hurried(PassIssuer):
    """Renews a pass soon, and not only at half its time."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.half = 0.2


def test_a_pass_is_renewed_before_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlfl.service.federation.PassIssuer", Hurried)
    made = settings(tmp_path, {"bank": 1}, lease=60.0, heartbeat=20.0)
    analyst = AnalystSettings(**written(tmp_path, "alice"), coordinator_name=COORDINATOR)
    with own.serving(tmp_path, made) as running:
        line = AnalystConnection(running.location, "heart", analyst, "alice")
        desk = running.service._desks["heart", "alice"]
        stream, before = line._stream, desk._speaker
        until(lambda: desk._speaker != before)
        assert line._stream is stream
        line.close()


# -- at the party ----------------------------------------------------------------------------------


def passed(given: Credentials, study: str = "heart", coordinator: str = COORDINATOR,
           hours: float = 0.0) -> str:  # fmt: skip
    assert given.key is not None
    assert given.certificate is not None
    now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)
    return issue(given.key, given.certificate, coordinator, study, now=now)


AT_A_PARTY = {
    "none": "",
    "of another study": passed(ALICE, "lung"),
    "for another coordinator": passed(ALICE, coordinator="other.example"),
    "that is over": passed(ALICE, hours=-48),
    "that has not begun": passed(ALICE, hours=48),
    "of another authority": passed(made("alice", key=OTHER_KEY, authority=OTHER)),
    "of another key": json.dumps(
        json.loads(passed(ALICE)) | {"certificate": (EVE.certificate or b"").decode()}
    ),
}


@pytest.mark.parametrize("speaker", AT_A_PARTY.values(), ids=AT_A_PARTY)
def test_passes_at_a_party(database: Open, speaker: str) -> None:
    """Whatever the coordinator says, the party looks itself."""
    con = database("CREATE TABLE t AS SELECT 1 AS a", own=True)
    with Host("bank", con, secret=SECRET, known=Passes(AUTHORITY, COORDINATOR), open=True) as host:
        host.welcome(COORDINATOR, "s")
        data = pa.py_buffer(encoded(ms.ListTables("", -1)))
        reply = received(host.handle(0, data, "heart", speaker))
        assert isinstance(reply, ms.Failure)
        assert reply.error == "PolicyError"
        good = received(host.handle(0, data, "heart", passed(ALICE)))
        assert isinstance(good, ms.Tables)


OVER = -24.01
"""Hours: a pass that is over since half a minute."""


FIRST = {"analyst": "alice", "coordinator": COORDINATOR, "study": "heart",
         "begins": "0001-01-01T00:00:00+00:00", "ends": "0001-01-01T00:00:00+00:00"}  # fmt: skip


def test_a_run_is_ended_by_a_pass_that_is_over(database: Open) -> None:
    """Its own: and nothing else is done by one, nor by one that never held here."""
    con = database("CREATE TABLE t AS SELECT 1 AS a", own=True)
    finish = pa.py_buffer(encoded(ms.Finish("r", -1)))
    lists = pa.py_buffer(encoded(ms.ListTables("", -1)))
    interrupted: list[str] = []
    with Host("bank", con, secret=SECRET, known=Passes(AUTHORITY, COORDINATOR), open=True) as host:
        host.welcome(COORDINATOR, "s")
        over = passed(ALICE, hours=OVER)
        assert received(host.handle(0, finish, "heart", over)).kind == "failure"  # nothing to end
        host.handle(0, lists, "heart", passed(ALICE))
        host.handle(0, lists, "lung", passed(ALICE, "lung"))
        (own, other) = host._ends.values()
        own.interrupt = lambda: interrupted.append("heart")  # type: ignore[method-assign]
        other.interrupt = lambda: interrupted.append("lung")  # type: ignore[method-assign]
        assert received(host.handle(0, finish, "heart", over)).kind == "ready"
        host.interrupt(0, "heart", over)
        assert interrupted == ["heart"]
        assert received(host.handle(0, lists, "heart", over)).kind == "failure"
        never = [
            passed(ALICE, "lung", hours=OVER),
            passed(ALICE, coordinator="other.example", hours=OVER),
            passed(ALICE, hours=48),
            passed(EVE, hours=OVER),
            passed(made("alice", key=OTHER_KEY, authority=OTHER), hours=OVER),
            json.dumps(json.loads(over) | {"certificate": (EVE.certificate or b"").decode()}),
            json.dumps(json.loads(over) | {"claim": FIRST}),
            "",
        ]
        for speaker in never:
            assert received(host.handle(0, finish, "heart", speaker)).kind == "failure"
            host.interrupt(0, "heart", speaker)
        assert interrupted == ["heart"]
        assert len(host._ends) == 2


def test_a_clock_that_is_off(database: Open) -> None:
    """By minutes it may be; an analyst's clock that is further off is refused."""
    known = Passes(AUTHORITY, COORDINATOR)
    assert known("heart", passed(ALICE, hours=4 / 60)) == "alice"
    with pytest.raises(PolicyError, match="clocks may differ by 5 minutes"):
        known("heart", passed(ALICE, hours=10 / 60))
