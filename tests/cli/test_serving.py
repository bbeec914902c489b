"""Reasons that keep a coordinator or a party from starting, refused ends, and log lines."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import sqlfl
from sqlfl.cli.main import cli
from sqlfl.cli.serving import logging_to, serving
from sqlfl.service import certificates as ct
from sqlfl.service.stream import Stream
from tests.cli.processes import ROOT, surroundings
from tests.cli.study import MADE, listening
from tests.service.party import AUTHORITY, AUTHORITY_KEY

log = logging.getLogger("sqlfl.tests")
VALUE = "4711-secret"


def fail() -> None:
    raise ValueError(VALUE)


def say() -> None:
    log.info("bank/0 is\nconnected", extra={"party": "bank", "run": "", "study": None})
    log.debug("of nobody's interest")
    try:
        fail()
    except ValueError:
        log.exception("it failed", extra={"run": "r1"})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("few rows", sqlfl.Warning, stacklevel=1)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to("json", party="shop"):
        say()
    log.warning("nobody hears it here")
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [row["message"] for row in told] == ["bank/0 is\nconnected", "it failed", "few rows"]
    assert [row["party"] for row in told] == ["bank", "shop", "shop"]
    assert [row["level"] for row in told] == ["info", "error", "warning"]
    assert told[0].keys() == {"time", "level", "message", "party"}
    assert told[1]["run"] == "r1"
    assert told[1]["fault"].startswith("ValueError < test_serving.py:")
    assert VALUE not in json.dumps(told)


def test_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to("text"):
        say()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("connected party=bank")
    assert "fault=ValueError < test_serving.py:" in lines[1]
    assert VALUE not in "".join(lines)


def test_it_leaves_logging_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    own = logging.getLogger("sqlfl")
    before = own.level, own.propagate, list(own.handlers), warnings.showwarning
    with pytest.raises(KeyError), logging_to("text"):
        raise KeyError
    assert (own.level, own.propagate, list(own.handlers), warnings.showwarning) == before


PARTY = """\
name = "bank"
certificate = "bank.crt"
key = "bank.key"
authority = "authority.crt"
coordinator = "here"
database = "bank.duckdb"
secret = "parties.secret"
"""
COORDINATOR = """\
name = "here"
certificate = "here.crt"
key = "here.key"
authority = "authority.crt"
[parties.bank]
agents = ["bank"]
[studies.churn]
parties = ["bank"]
analysts = ["alice"]
"""
AWAY = "grpc+tls://127.0.0.1:1"
NOW = dt.datetime.now(dt.UTC)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("authority.crt").write_bytes(AUTHORITY)
    for name in ("bank", "here", "shop"):
        key = ct.make_key()
        ct.write_private(Path(f"{name}.key"), key)
        request = ct.signing_request(key, name)
        Path(f"{name}.crt").write_bytes(ct.sign(request, AUTHORITY_KEY, AUTHORITY))
        old = ct.sign(request, AUTHORITY_KEY, AUTHORITY, days=1, now=NOW - dt.timedelta(days=9))
        Path(f"{name}-old.crt").write_bytes(old)
    Path("bank.toml").write_text(PARTY)
    Path("here.toml").write_text(COORDINATOR)
    with duckdb.connect("bank.duckdb") as con:
        con.execute(MADE)
    run("keygen secret --to bank.crt")
    return tmp_path


def run(line: str, status: int = 0) -> str:
    found = CliRunner().invoke(cli, line.split())
    assert found.exit_code == status, found.output
    return found.output


OF_PARTIES = {
    "no policy": ("", "", "its database has no training policies"),
    "no database": ("bank.duckdb", "away.duckdb", "there is no database "),
    "no secret": ("parties.secret", "away", "secret: cannot read "),
    "no variable": ("parties.secret", "env:AWAY", "there is no variable AWAY"),
    "wrong secret": ("parties.secret", "authority.crt", "this is no file of the parties' secret"),
    "no entry": ('database = "bank.duckdb"', "", "the entry database is missing"),
    "name": ("name", 'agent = "shop"\nname', "is of bank, and the configuration says shop"),
    "other key": ("bank.key", "shop.key", "the key is not that of the certificate of bank"),
    "expired": ("bank.crt", "bank-old.crt", "the certificate of bank has expired, on "),
    "other secret": (
        "bank.crt\"\nkey = \"bank.key", "shop.crt\"\nkey = \"shop.key",
        "the parties' secret was not wrapped for shop, but for bank",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), OF_PARTIES.values(), ids=OF_PARTIES)
def test_a_party_that_does_not_start(folder: Path, old: str, new: str, said: str) -> None:
    text = PARTY.replace(old, new, 1)
    Path("bank.toml").write_text(text)
    before = signal.getsignal(signal.SIGTERM)
    files = {path.name for path in folder.iterdir()}
    assert said in run(f"party --join {AWAY} --config bank.toml", 1)
    assert signal.getsignal(signal.SIGTERM) is before
    assert {path.name for path in folder.iterdir()} == files


def test_a_key_that_others_can_read_is_told(folder: Path) -> None:
    Path("bank.key").chmod(0o640)
    assert "others on this machine can read the key" in run(
        f"party --join {AWAY} --config bank.toml", 1
    )


def test_what_does_not_start_says_so_in_its_log(folder: Path) -> None:
    said = run(f"party --join {AWAY} --config bank.toml --log-format json", 1)
    (told,) = map(json.loads, said.splitlines())
    assert told["level"] == "error"
    assert "its database has no training policies" in told["message"]
    assert run("party --config bank.toml", 2).count("Missing option '--join'")


OF_COORDINATORS = {
    "name": ('name = "here"', 'name = "there"', "is of here, and the configuration says there"),
    "expired": ("here.crt", "here-old.crt", "the certificate of here has expired, on "),
    "no key": ('key = "here.key"\n', "", "the configuration has no key"),
    "study": ('parties = ["bank"]', 'parties = ["shop"]', "parties that are not configured: shop"),
    "agent": ('agents = ["bank"]', 'agents = ["a b"]', "'a b' is no name of a certificate"),
}


@pytest.mark.parametrize(("old", "new", "said"), OF_COORDINATORS.values(), ids=OF_COORDINATORS)
def test_a_coordinator_that_does_not_start(folder: Path, old: str, new: str, said: str) -> None:
    assert old in COORDINATOR
    Path("here.toml").write_text(COORDINATOR.replace(old, new))
    line = "coordinator --listen grpc+tls://127.0.0.1:0 --state s --config here.toml"
    assert said in run(line, 1)
    assert not Path("s").exists()


def test_a_coordinator_that_cannot_listen(folder: Path) -> None:
    line = "coordinator --config here.toml --insecure --listen"
    assert "is for this machine alone" in run(f"{line} grpc://0.0.0.0:0 --state s", 1)
    with listening() as (_, place):
        said = run(f"{line} {place} --state s", 1)
        assert f"cannot listen at {place}: Address already in use" in said
    assert not Path("s").exists()
    said = run(f"{line} grpc://127.0.0.1:0 --state s --status 1.2.3.4:0", 1)
    assert "would be shown to whoever reaches it" in said
    assert not Path("s").exists()
    said = run(f"{line} grpc://127.0.0.1:0 --state bank.key", 1)
    assert "bank.key cannot be a folder for files: File exists" in said


def test_a_party_that_is_not_taken(folder: Path) -> None:
    run("keygen secret --plain --out plain.secret")
    plain = PARTY.replace("parties.secret", "plain.secret") + "open = true\n"
    own = "party --insecure --config bank.toml"
    with listening() as (_, place):
        for text, said in (
            (plain.replace('"bank"', '"shop"'), "there is no agent 'shop' of a party 'shop' here"),
            (plain + 'agent = "shop-one"', "there is no agent 'shop-one' of a party 'bank' here"),
            (plain + "index = 1", "`index` in its configuration is to be 0"),
        ):
            Path("bank.toml").write_text(text)
            assert said in run(f"{own} --join {place}", 1)
        Path("bank.toml").write_text(plain)
        assert "'shop' of a party 'shop'" in run(f"{own} --join {place} --name shop", 1)
        assert "there is no database away" in run(f"{own} --join {place} --database away", 1)


def test_a_party_ends_by_ctrl_c(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("keygen secret --plain --out plain.secret")
    text = PARTY.replace("parties.secret", "plain.secret") + "open = true\n"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    Path("bank.toml").write_text(f'{text}page = {port}\nnotify = "false"\n')
    with listening() as (service, place):

        def away() -> bool:
            """Return True once the coordinator has seen the party go."""
            pause = threading.Event()
            for _ in range(1000):
                if not service.board.told()["parties"][0]["connected"]:
                    return True
                pause.wait(0.02)
            return False

        welcomed = threading.Event()
        watch = Stream.watch

        def watching(stream: Stream, heartbeat: float) -> None:
            welcomed.set()  # the agent has said so, which the coordinator does not wait for
            watch(stream, heartbeat)

        monkeypatch.setattr(Stream, "watch", watching)

        def end() -> None:
            welcomed.wait(20.0)
            os.kill(os.getpid(), signal.SIGINT)

        ending = threading.Thread(target=end)
        ending.start()
        said = run(f"party --insecure --config bank.toml --join {place}")
        ending.join()
        assert "connected to here" in said
        assert "info ended" in said
        assert f"its owner's page is http://127.0.0.1:{port}" in said
        assert away()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sqlfl-no")]
    with socket.create_server(("127.0.0.1", port)), duckdb.connect("bank.duckdb"):
        pass  # nobody has them any more


def test_an_agent_loads_no_coordinator() -> None:
    """And of the planner the grammar alone, by which it reads its owner's statements."""
    code = "import sqlfl.cli.serving, sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=surroundings({}), capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    loaded = done.stdout.split()
    parts = (
        "sqlfl.planner.query",
        "sqlfl.planner.federated",
        "sqlfl.coordinator",
        "sqlfl.service.service",
        "sqlfl.service.federation",
        "sqlfl.federation.session",
    )
    assert not [name for name in loaded if name.startswith(parts)]


def test_a_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("sqlfl.cli.serving.os._exit", ended.append)
    with serving("text") as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        assert not ended
        signal.raise_signal(signal.SIGINT)
    assert ended == [128 + signal.SIGINT]
