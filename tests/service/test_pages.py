"""A coordinator is watched: what is shown, to whom, and what is never."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sqlfl.base.errors import Error
from sqlfl.service import pages
from sqlfl.service.pages import Pages, read_place
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.service import Service
from sqlfl.service.status import ServiceStatus
from tests.service.study import Running, joined, serving, settings
from tests.service.test_federation import PATIENTS, QUERY, TESTS, TRAIN
from tests.test_imports import SOURCES, imported

WRITTEN = ("patients", "tests", "crp", "nowhere", "secretly", "objective")
"""Names of tables and columns, a model's name, a comment and a stage's words."""
FAILING = f"/*secretly*/ TRAIN MODEL secretly USING logistic_regression TARGET ill FROM ({QUERY})"
FAILING = FAILING.replace("t.day", "t.nowhere")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two parties of three have come; one statement is done, and one has failed."""
    folder = tmp_path_factory.mktemp("pages")
    own = settings(folder, {"clinic": 1, "lab": 1, "ward": 1}, lease=5.0, heartbeat=0.5)
    with ExitStack() as stack:
        running = stack.enter_context(serving(folder, own, status="127.0.0.1:0"))
        for party, text in (("clinic", PATIENTS), ("lab", TESTS)):
            con = stack.enter_context(closing(duckdb.connect()))
            con.execute(text)
            stack.enter_context(joined(running, party, con, open=True))
        with running.analyst() as fed:
            fed.sql(TRAIN)
            with pytest.raises(Error, match="nowhere"):
                fed.sql(FAILING)
        yield running


def ask(
    port: int | None, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as line:
        line.request(method, path, headers=headers)
        reply = line.getresponse()
        return reply, reply.read().decode()


def raw(port: int | None, data: bytes) -> bytes:
    """What comes to bytes that are no good request."""
    with socket.create_connection(("127.0.0.1", port or 0), timeout=10) as line:
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        found = b""
        while piece := line.recv(65536):
            found += piece
        return found


def status(study: Running) -> dict[str, Any]:
    reply, text = ask(study.service.status_port, "/status.json")
    assert reply.status == 200
    assert reply.getheader("Content-Type") == "application/json"
    found: dict[str, Any] = json.loads(text)
    return found


# -- what is shown ------------------------------------------------------------------------------


def test_parties_and_statements_are_shown(study: Running) -> None:
    told = status(study)
    parties = {party["party"]: party for party in told["parties"]}
    assert {name: own["connected"] for name, own in parties.items()} == {
        "clinic": True, "lab": True, "ward": False,
    }  # fmt: skip
    assert parties["clinic"]["requests"] > 5
    assert min(parties["lab"]["bytes_up"], parties["lab"]["bytes_down"]) > 400
    done, failed = told["statements"]
    assert (done["verb"], done["outcome"], done["study"], done["analyst"]) == (
        "TRAIN", "done", "heart", "alice",
    )  # fmt: skip
    assert (failed["verb"], failed["outcome"]) == ("TRAIN", "failed")
    assert done["bytes"] > 0
    epochs, values = zip(*done["curve"], strict=True)
    assert len(epochs) == 5 == done["epochs"]
    assert list(epochs) == sorted(epochs)
    assert values[0] > values[-1] > 0
    assert told["closing"] is False


def test_nothing_that_an_analyst_wrote_is_shown(study: Running) -> None:
    for path in ("/status.json", "/metrics"):
        text = ask(study.service.status_port, path)[1].lower()
        assert "clinic" in text
        for word in WRITTEN:
            assert word not in text, (path, word)
    metrics = ask(study.service.status_port, "/metrics")[1]
    assert "alice" not in metrics
    assert "heart" not in metrics


def test_an_analyst_is_told_names_and_errors_of_own_statements_alone(study: Running) -> None:
    board = study.service.board
    own = board.told_to("heart", "alice", {"clinic"})
    assert "nowhere" in own["statements"][1]["error"]
    assert own["statements"][0]["name"] == "m"
    assert [party["party"] for party in own["parties"]] == ["clinic"]
    assert [set(party) for party in own["parties"]] == [
        {"party", "client", "connected", "away_seconds"}
    ]  # counts are of other studies too
    assert board.told_to("heart", "carol", {"clinic"})["statements"] == []
    assert board.told_to("lung", "alice", {"clinic"})["statements"] == []


def test_an_analyst_is_told_of_the_studys_parties_alone(study: Running) -> None:
    with study.analyst("carol", "lung") as fed:
        assert [row[0] for row in fed.status()] == ["clinic"]


def test_metrics_are_read_by_prometheus(study: Running) -> None:
    reply, text = ask(study.service.status_port, "/metrics")
    assert str(reply.getheader("Content-Type")).startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    lab = ("client", "0"), ("party", "lab")
    ward = ("client", "0"), ("party", "ward")
    assert samples["sqlfl_party_connected", *lab] == 1
    assert samples["sqlfl_party_connected", *ward] == 0
    line = study.service._lines["lab"][0]
    assert samples["sqlfl_party_requests_total", *lab] == line.requests > 0
    assert samples["sqlfl_party_reconnections_total", *lab] == 0
    client, party = lab
    for direction, count in {"down": line.bytes_down, "up": line.bytes_up}.items():
        found = samples["sqlfl_party_bytes_total", client, ("direction", direction), party]
        assert found == count > 0
    for outcome in ("done", "failed"):
        key = ("sqlfl_statements_total", ("outcome", outcome), ("verb", "TRAIN"))
        assert samples[key] == 1
    assert samples["sqlfl_statements_running",] == 0
    assert samples["sqlfl_border_bytes_total",] == status(study)["statements"][0]["bytes"]
    assert samples["sqlfl_statement_seconds_bucket", ("le", "+Inf")] == 2
    assert samples["sqlfl_statement_seconds_count",] == 2
    took = sum(own["seconds"] for own in status(study)["statements"])
    assert samples["sqlfl_statement_seconds_sum",] == pytest.approx(took, abs=0.01)


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=1.0.0", "text/plain; escaping=none; version=x", ";=,;"],
)
def test_whatever_format_is_asked_for_metrics_come(study: Running, accept: str) -> None:
    reply, text = ask(study.service.status_port, "/metrics", Accept=accept)
    assert reply.status == 200
    assert ("# EOF" in text) == ("openmetrics" in accept)


def test_without_the_package_metrics_say_what_to_install(
    study: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "find_spec", lambda name: None)
    reply, text = ask(study.service.status_port, "/metrics")
    assert reply.status == 501
    assert "sqlfl[metrics]" in text
    assert ask(study.service.status_port, "/status.json")[0].status == 200


def test_health_follows_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(
        settings(tmp_path, {"clinic": 1}), "grpc+tls://127.0.0.1:0", None,
        insecure=False, status="localhost:0",
    )  # fmt: skip
    port, end, seen = service.status_port, service._server.shutdown, []

    def ending() -> None:
        seen.append(ask(port, "/healthz"))
        end()

    monkeypatch.setattr(service._server, "shutdown", ending)
    reply, text = ask(port, "/healthz")
    assert (reply.status, text) == (200, "ok\n")
    service.close()
    ((reply, text),) = seen
    assert (reply.status, text) == (503, "closing\n")
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/healthz")


def test_without_a_place_nothing_is_served(tmp_path: Path) -> None:
    with serving(tmp_path, settings(tmp_path, {"clinic": 1})) as running:
        assert running.service.status_port is None


# -- the page -----------------------------------------------------------------------------------


class Read(HTMLParser):
    """What of a page would be fetched or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def test_the_page_fetches_nothing_of_others_and_runs_its_own_script_alone(study: Running) -> None:
    reply, text = ask(study.service.status_port, "/")
    policy = dict(
        part.split(" ", 1) for part in str(reply.getheader("Content-Security-Policy")).split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"].startswith("'sha256-")
    assert policy["style-src"].startswith("'sha256-")
    assert "unsafe" not in str(policy)
    read = Read()
    read.feed(text)
    assert read.tags.count("script") == read.tags.count("style") == 1
    assert not {"src", "href", "style"} & read.attributes
    assert not [name for name in read.attributes if name.startswith("on")]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text


NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)


@pytest.mark.integration
def test_the_page_in_a_browser(
    study: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = study.service.board.told()
    other = {"number": 3, "analyst": "<b>bold</b><img src=x>", "outcome": "running", "curve": []}
    told["statements"].append({**told["statements"][0], **other})
    monkeypatch.setattr(study.service.board, "told", lambda: told)
    text = shown(study.service.status_port, tmp_path)
    head, tables = text.split("<main>")
    assert "2 of 3 connected, 1 running" in head
    for party, state in {"clinic": "connected", "lab": "connected", "ward": "away for"}.items():
        assert f"<tr><td>{party}</td><td>0</td><td class=" in tables
        assert state in tables.split(f"<td>{party}</td>")[1].split("</tr>")[0]
    points = tables.split('<polyline class="curve" points="')[1].split('"')[0].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert len(heights) == 5
    assert heights[0] < heights[-1], "a curve that falls ends lower, where y is larger"
    assert "TRAIN 1: from 0." in tables
    assert "&lt;b&gt;bold&lt;/b&gt;" in tables
    assert "<img" not in tables


def shown(port: int | None, folder: Path) -> str:
    """The page as it stands after its script has run for a while."""
    assert BROWSER is not None, f"none of {', '.join(NAMES)} is installed"
    done = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--disable-extensions", f"--user-data-dir={folder}",
            "--virtual-time-budget=1500", "--dump-dom", f"http://127.0.0.1:{port}/",
        ],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return done.stdout.split("<script>")[0]


# -- who asks what is not there -----------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/../service.py", "/%2e%2e/service.py", "/status.html", "/status.json/",
        "/metrics?x", "/..", "/etc/passwd", "/static/", "*", "http://127.0.0.1/status.json",
    ],
)  # fmt: skip
def test_other_paths_are_not_there(study: Running, path: str) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", study.service.status_port)) as line:
        line.putrequest("GET", "/")
        line._buffer[0] = f"GET {path} HTTP/1.1".encode()  # type: ignore[attr-defined]
        line.endheaders()
        reply = line.getresponse()
        assert (reply.status, reply.read()) == (404, b"not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "X"])
def test_other_methods_are_refused(study: Running, method: str) -> None:
    reply, text = ask(study.service.status_port, "/status.json", method)
    assert reply.status == 405
    assert reply.getheader("Allow") == "GET, HEAD"
    assert text == "only GET and HEAD\n"


def test_head_is_get_without_its_body(study: Running) -> None:
    for path in ("/", "/healthz", "/nowhere"):
        full, text = ask(study.service.status_port, path)
        head, empty = ask(study.service.status_port, path, "HEAD")
        assert (head.status, empty) == (full.status, "")
        assert head.getheader("Content-Length") == str(len(text.encode()))
    found = raw(study.service.status_port, b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert found.endswith(b"\r\n\r\n")


def test_every_answer_has_its_headers_and_says_no_version(study: Running) -> None:
    for path, method in (("/", "GET"), ("/metrics", "GET"), ("/x", "GET"), ("/", "POST")):
        reply = ask(study.service.status_port, path, method)[0]
        told = dict(reply.getheaders())
        assert "default-src 'none'" in told["Content-Security-Policy"]
        assert told["X-Content-Type-Options"] == "nosniff"
        assert told["Cache-Control"] == "no-store"
        assert "Server" not in told
        assert "Access-Control-Allow-Origin" not in told
        assert "Python" not in str(told)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 17_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 4_000 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET /status.json\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),
        (b"GET <script>alert(1)</script> x HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", 421),
        (b"GET /healthz HTTP/1.1\r\nHost: LOCALHOST:1\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\nHost: [::1]:8816\r\n\r\n", 200),
    ],
)  # fmt: skip
def test_requests_that_are_none(study: Running, data: bytes, status: int) -> None:
    found = raw(study.service.status_port, data)
    assert found.startswith(f"HTTP/1.0 {status} ".encode()), found[:80]
    assert b"script" not in found.split(b"\r\n\r\n", 1)[1]
    assert ask(study.service.status_port, "/healthz")[0].status == 200


def test_who_still_sends_is_not_reset_before_the_answer_is_read(study: Running) -> None:
    place = ("127.0.0.1", study.service.status_port or 0)
    with socket.create_connection(place, timeout=10) as line:
        line.sendall(b"GET /" + b"a" * 20_000)
        assert line.recv(65536).startswith(b"HTTP/1.0 414 ")
        for _ in range(3):
            line.sendall(b"a" * 1000)
            time.sleep(0.02)


def test_one_connection_has_one_request(study: Running) -> None:
    two = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n" * 2
    assert raw(study.service.status_port, two).count(b"HTTP/1.0 200") == 1


@pytest.fixture
def alone() -> Iterator[Pages]:
    found = Pages("127.0.0.1:0", ServiceStatus([PartyConnection("clinic", 1.0)]), lambda: False)
    found.start()
    with closing(found):
        yield found


def test_who_is_slow_is_hung_up_on(alone: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is for all of a request, so that a byte now and then does not hold it open."""
    monkeypatch.setattr(pages, "SECONDS", 0.3)
    monkeypatch.setattr(pages, "LINGER", 0.1)
    with socket.create_connection(("127.0.0.1", alone.port), timeout=20) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012
            for _ in range(5000):
                line.sendall(b"X")
                time.sleep(0.002)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", alone.port), timeout=20) as line:
        assert line.recv(1) == b""
    assert time.monotonic() > began + 0.25
    monkeypatch.setattr(pages, "SECONDS", 0.0)
    assert raw(alone.port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n") == b""


def test_who_comes_while_many_do_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "AT_ONCE", 2)
    own = Pages("127.0.0.1:0", ServiceStatus([]), lambda: False)
    own.start()
    with closing(own), ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(("127.0.0.1", own.port), timeout=5))
            for _ in range(2)
        ]
        for line in held:
            line.sendall(b"GET")
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            ask(own.port, "/healthz")
        for line in held:
            line.sendall(b" /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            line.shutdown(socket.SHUT_WR)
            assert b"200" in line.recv(65536)
            while line.recv(65536):
                pass
        for _ in range(1000):  # their places are free once their threads have ended
            try:
                assert ask(own.port, "/healthz")[0].status == 200
                break
            except (http.client.RemoteDisconnected, ConnectionResetError):
                threading.Event().wait(0.02)
        else:
            pytest.fail("no place has become free")


# -- where --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "coordinator.example:1", "127.1:1", "[::ffff:7f00:1]:1"],
)
def test_other_machines_see_it_only_where_that_is_said(place: str) -> None:
    with pytest.raises(Error, match="no login"):
        read_place(place, "the status", open=False)
    assert read_place(place, "the status", open=True)[1] == 1


@pytest.mark.parametrize(
    "place",
    ["", "8816", ":8816", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000",
     "a@127.0.0.1:1", "http://127.0.0.1:1", "127.0.0.1:1/x", "127.0.0.1:1?x", "[::1:1"],
)  # fmt: skip
def test_what_is_no_place(place: str) -> None:
    with pytest.raises(Error, match="no place"):
        read_place(place, "the status", open=True)


def test_a_service_is_not_begun_where_its_status_cannot_be(tmp_path: Path) -> None:
    own = settings(tmp_path, {"clinic": 1})
    with pytest.raises(Error, match="no login"):
        Service(own, "grpc+tls://127.0.0.1:0", None, insecure=False, status="0.0.0.0:0")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Error, match="cannot listen at"):
            Service(own, "grpc+tls://127.0.0.1:0", None, insecure=False, status=place)


def test_a_status_does_not_outlive_a_service_that_cannot_begin(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    own = settings(tmp_path, {"clinic": 1})
    with pytest.raises(Error, match="cannot listen at grpc"):
        Service(own, "grpc+tls://192.0.2.1:0", None, insecure=False, status=place)
    with socket.socket() as again:
        again.bind(("127.0.0.1", int(place.split(":")[1])))
        again.listen()


def test_open_it_answers_to_any_name(caplog: pytest.LogCaptureFixture) -> None:
    own = Pages("127.0.0.1:0", ServiceStatus([]), lambda: False, open=True)
    own.start()
    with closing(own):
        assert "whoever reaches it" in caplog.text
        assert ask(own.port, "/healthz", Host="coordinator.example")[0].status == 200


def test_a_coordinator_that_is_not_watched_needs_no_package_for_it() -> None:
    for module, path in SOURCES.items():
        if module.startswith("sqlfl.service") and module != "sqlfl.service.metrics":
            names = imported(path, lazily=False)
            assert not names & {"prometheus_client", "sqlfl.service.metrics"}, module
