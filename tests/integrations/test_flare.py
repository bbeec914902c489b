"""Conformance of NVFlare: its own calls over its own line, and whole jobs in its simulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import Error, LostError
from sqlfl.contract.schema import Client
from sqlfl.integrations.nvflare.flare_job import write_job
from sqlfl.service import wrapping
from sqlfl.service.passes import issue
from sqlfl.transport.base import Handler, Transport
from sqlfl.transport.local import LocalTransport
from tests.conftest import Open
from tests.integrations.test_flare_job import settings
from tests.service.processes import until
from tests.service.study import COORDINATOR, SECRET, identity, written
from tests.service.test_federation import PATIENTS, QUERY, TESTS, TRAIN
from tests.transport.conformance import (
    PASS,
    A,
    ElsewhereConformance,
    Interrupting,
    doubling,
)

if TYPE_CHECKING:
    from tests.integrations.cells import Line

pytestmark = pytest.mark.integration

LEASE = 2.0
ALLOWED = {
    "class_allow_list": [
        "nvflare.collab.runtime.controller.CollabController",
        "nvflare.collab.runtime.executor.CollabExecutor",
        "sqlfl.integrations.nvflare.flare.Study",
        "sqlfl.integrations.nvflare.flare_site.Site",
    ]
}
"""What is to be allowed at a server and a site."""


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    from tests.integrations.cells import Line

    with closing(Line()) as found:
        yield found


class TestNVFlare(ElsewhereConformance):
    line: Line
    folder: Path

    @pytest.fixture(autouse=True)
    def _line(self, line: Line, tmp_path: Path) -> None:
        self.line, self.folder = line, tmp_path

    @contextmanager
    def lines(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> Iterator[tuple[Transport, Callable[[Client], None]]]:
        from tests.integrations.cells import Handled, ends_of

        sites = {c.party: Handled(c, h, interrupts.get(c)) for c, h in handlers.items()}
        with self.line.connected(self.folder, sites) as (proxies, stops):
            found = ends_of(proxies, LEASE)
            with closing(
                LocalTransport(
                    {Client(party): own[0].handle for party, own in found.items()},
                    {Client(party): own[0].interrupt for party, own in found.items()},
                )
            ) as transport:
                yield transport, lambda client: stops[client.party]()

    @contextmanager
    def opened(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> Iterator[Transport]:
        with self.lines(handlers, interrupts) as (transport, _):
            yield transport

    @contextmanager
    def losing(
        self, handlers: Mapping[Client, Handler]
    ) -> Iterator[tuple[Transport, Callable[[Client], None]]]:
        with self.lines(handlers, {}) as found:
            yield found

    @contextmanager
    def federated(
        self, parties: Mapping[str, duckdb.DuckDBPyConnection]
    ) -> Iterator[sqlfl.Federation]:
        from tests.integrations.cells import Hosted, ends_of

        sites = {name: Hosted(name, con) for name, con in parties.items()}
        with (
            self.line.connected(self.folder, sites) as (proxies, _),
            sqlfl.Federation(progress=False, analyst=PASS) as fed,
        ):
            for name, own in ends_of(proxies).items():
                fed.admit(name, own)
            yield fed


# -- a site ----------------------------------------------------------------------------------------


def failing(data: pa.Buffer) -> pa.Buffer:
    raise ValueError("row 17 is 4711")


def test_what_fails_at_a_site_is_said_there_alone(
    line: Line, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from nvflare.collab import CollabCallError

    from tests.integrations.cells import Handled, ends_of

    with line.connected(tmp_path, {"a": Handled(A, failing, None)}) as (proxies, _):
        end = ends_of(proxies, LEASE)["a"][0]
        with pytest.raises(LostError, match=r"party a/0: has failed: .*its log says how") as caught:
            end.handle(pa.py_buffer(b""))
        told = caught.value.__cause__
        assert isinstance(told, CollabCallError)
        assert "4711" not in f"{told} {told.remote_traceback}"
    assert "row 17 is 4711" in caplog.text


def test_an_aborted_job_ends_what_waits(line: Line, tmp_path: Path) -> None:
    from tests.integrations.cells import Handled, ends_of

    begun, ended = threading.Event(), threading.Event()

    def slow(data: pa.Buffer) -> pa.Buffer:
        begun.set()
        assert ended.wait(120)
        return data

    with line.connected(tmp_path, {"a": Handled(A, slow, None)}) as (proxies, _):
        end = ends_of(proxies)["a"][0]
        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(end.handle, pa.py_buffer(b"x"))
            assert begun.wait(120)
            line.abort.trigger(True)
            try:
                with pytest.raises(LostError, match="party a/0: cannot be asked: the job was"):
                    work.result(60)
            finally:
                line.abort.reset()
                ended.set()


@pytest.mark.parametrize("way", ["who", "exchange", "interrupt"])
def test_no_call_is_served_but_for_the_server(way: str) -> None:
    from nvflare.collab.api.context import set_call_context

    from tests.integrations.cells import Handled

    site = Handled(A, doubling, None)
    context = SimpleNamespace(caller="site-2")
    given = {"who": (), "exchange": (1, b"", [], 1.0, "heart", PASS), "interrupt": ("heart", PASS)}
    site._host = site._handling
    set_call_context(context)
    try:
        with pytest.raises(RuntimeError, match="site-2 is not served"):
            getattr(site, way)(*given[way])
    finally:
        set_call_context(None)


def test_sites_are_whom_the_coordinator_takes_them_for(line: Line, tmp_path: Path) -> None:
    from sqlfl.integrations.nvflare.flare import ends
    from tests.integrations.cells import SPEAKING, Handled, named

    with line.connected(tmp_path, {"a": Handled(A, doubling, None)}) as (proxies, _):
        (name,) = named(proxies)["a"]
        with pytest.raises(Error, match=f"site {name} serves a/0, and not b/0"):
            ends(proxies.values(), {"b": [name]}, SPEAKING)
        with pytest.raises(Error, match="party b: the job has no site other"):
            ends(proxies.values(), {"b": ["other"]}, SPEAKING)


def test_which_party_a_site_serves_is_said_at_the_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlfl.integrations.nvflare.flare_site import settings_of

    monkeypatch.delenv("SQLFL_PARTY", raising=False)
    with pytest.raises(Error, match="site north: the variable SQLFL_PARTY does not say"):
        settings_of("north")
    monkeypatch.setenv("SQLFL_PARTY", str(tmp_path / "bank.toml"))
    assert settings_of("north") == tmp_path / "bank.toml"
    monkeypatch.setenv("SQLFL_PARTY", str(tmp_path))
    assert settings_of("north") == tmp_path / "north.toml"


def test_a_site_without_certificates_serves_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nvflare.collab.api.context import set_call_context

    from sqlfl.integrations.nvflare.flare_site import Site

    path = tmp_path / "bank.toml"
    path.write_text(
        'name = "bank"\ncoordinator = "c"\ndatabase = "bank.duckdb"\nsecret = "secret"\nopen = true'
    )
    monkeypatch.setenv("SQLFL_PARTY", str(path))
    set_call_context(SimpleNamespace(app=SimpleNamespace(name="north")))
    try:
        with pytest.raises(Error, match="the configuration has no key and no certificate"):
            Site().begin()
    finally:
        set_call_context(None)


# -- a job -----------------------------------------------------------------------------------------

COORDINATES = f"""
name = "{COORDINATOR}"
authority = "alice.authority"
[parties.clinic]
agents = ["site-1"]
[parties.lab]
agents = ["site-2"]
[studies.heart]
parties = ["clinic", "lab"]
analysts = ["alice"]
[studies.lung]
parties = ["clinic", "nowhere"]
analysts = ["alice"]
"""


def speaker(name: str, study: str, coordinator: str = COORDINATOR) -> str:
    own = identity(name)
    assert own.key
    assert own.certificate
    return issue(own.key, own.certificate, coordinator, study)


@pytest.mark.parametrize(
    ("study", "given", "match"),
    [
        ("heart", ("carol", "heart"), "no study 'heart' of analyst 'carol' here"),
        ("liver", ("alice", "liver"), "no study 'liver' of analyst 'alice' here"),
        ("heart", ("alice", "liver"), "pass"),
        ("heart", ("alice", "heart", "elsewhere.example"), "pass"),
        ("lung", ("alice", "lung"), "parties that are not configured: nowhere"),
    ],
)
def test_who_may_train_in_which_study_is_said_at_the_server(
    study: str,
    given: tuple[str, ...],
    match: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sqlfl.integrations.nvflare.flare import Study

    monkeypatch.setenv("SQLFL_COORDINATOR", str(tmp_path / "coordinator.toml"))
    monkeypatch.setenv("SQLFL_STATE", str(tmp_path / "state"))
    written(tmp_path, "alice")
    (tmp_path / "coordinator.toml").write_text(COORDINATES)
    with pytest.raises(Error, match=match):
        Study(["SHOW MODELS"], study, speaker(*given)).run()
    assert not (tmp_path / "state").exists()


def test_a_server_without_settings_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlfl.integrations.nvflare.flare import Study

    monkeypatch.delenv("SQLFL_COORDINATOR", raising=False)
    with pytest.raises(Error, match="the variable SQLFL_COORDINATOR does not say"):
        Study(["SHOW MODELS"], "heart", speaker("alice", "heart")).run()


@pytest.mark.parametrize("text", ["EXPORT MODEL m TO 'x'", "SHOW MODELS; IMPORT MODEL m FROM 'x'"])
def test_a_job_writes_and_reads_no_file_of_the_server_s(text: str) -> None:
    from sqlfl.integrations.nvflare.flare import Study

    with pytest.raises(Error, match="EXPORT and IMPORT MODEL are not built"):
        Study([TRAIN, text], "heart", speaker("alice", "heart")).run()


def test_a_model_that_was_trained_in_one_job_is_there_in_the_next(
    line: Line, tmp_path: Path, database: Open
) -> None:
    from tests.integrations.cells import Hosted, ends_of

    parties = {
        name: database(text, path=str(tmp_path / f"{name}.duckdb"))
        for name, text in {"clinic": PATIENTS, "lab": TESTS}.items()
    }
    for job, text in enumerate((TRAIN, f"PREDICT MODEL m FROM ({QUERY})")):
        sites = {name: Hosted(name, con) for name, con in parties.items()}
        with (
            line.connected(tmp_path / str(job), sites) as (proxies, _),
            sqlfl.Federation(tmp_path / "state.duckdb", progress=False, analyst=PASS) as fed,
        ):
            for name, own in ends_of(proxies).items():
                fed.admit(name, own)
            found = fed.sql(text)
    assert len(found.arrow()) == 400


@pytest.mark.slow
def test_a_job_s_model_is_bit_equal_to_that_of_one_process(tmp_path: Path) -> None:
    weights = "WEIGHTS OF MODEL m"
    for number, (party, text) in enumerate({"clinic": PATIENTS, "lab": TESTS}.items(), 1):
        with duckdb.connect(str(tmp_path / f"{party}.duckdb")) as con:
            con.execute(text)
        agent = f"{party}{number}.example"
        told = {
            **written(tmp_path, agent), "name": party, "coordinator": COORDINATOR,
            "database": f"../{party}.duckdb", "secret": "../secret",
        }  # fmt: skip
        (tmp_path / "sites").mkdir(exist_ok=True)
        lines = [f'{name} = "{value}"' for name, value in told.items()]
        (tmp_path / "sites" / f"site-{number}.toml").write_text("\n".join([*lines, "open = true"]))
    agents = ("clinic1.example", "lab2.example")
    own = {name: identity(name).certificate or b"" for name in agents}
    (tmp_path / "secret").write_text(wrapping.wrap(SECRET, own))
    job = write_job(
        tmp_path / "heart",
        [f"{TRAIN}; {weights}"],
        sites=["site-1", "site-2"],
        config=settings(tmp_path),
    )
    (tmp_path / "coordinator.toml").write_text(COORDINATES)
    local = tmp_path / "workspace" / "local"
    local.mkdir(parents=True)
    (local / "resources.json").write_text(json.dumps({"format_version": 2, **ALLOWED}))
    command = ["-m", "nvflare.cli", "simulator", "-c", "site-1,site-2", "-t", "2", "-w"]
    state = tmp_path / "state"
    try:
        done = subprocess.run(
            [sys.executable, *command, str(tmp_path / "workspace"), str(job)],
            env={
                **os.environ,
                "PYTHONPATH": os.getcwd(),
                "SQLFL_PARTY": str(tmp_path / "sites"),
                "SQLFL_COORDINATOR": str(tmp_path / "coordinator.toml"),
                "SQLFL_STATE": str(state),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        until(lambda: not processes_with(state), seconds=60.0)  # the simulator's own
    finally:
        for process in processes_with(state):
            os.kill(process, signal.SIGKILL)
    paths = list((tmp_path / "workspace").rglob("sqlfl/2.arrow"))
    assert paths, done.stdout[-5000:]
    with sqlfl.connect(progress=False) as fed:
        for party in ("clinic", "lab"):
            fed.attach(party, tmp_path / f"{party}.duckdb")
        fed.sql(TRAIN)
        expected = fed.sql(weights).arrow()
    assert pa.ipc.open_file(paths[0]).read_all().equals(expected)
    with sqlfl.connect(state / "heart" / "alice.duckdb", progress=False, analyst="alice") as fed:
        assert fed.models == ("m",)
    assert not list((tmp_path / "workspace").rglob("custom/*"))


def processes_with(state: Path) -> list[int]:
    """Processes that were begun with the variable SQLFL_STATE of this value."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            if f"SQLFL_STATE={state}".encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found
