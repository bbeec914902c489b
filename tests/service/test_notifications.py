"""An owner is notified of requests that wait, once each; a bad command harms nobody."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import ApprovalError, Error
from sqlfl.governance.owner import Owner
from sqlfl.service import notifications
from sqlfl.service.notifications import Notifier, run_command
from sqlfl.service.settings import PartySettings, read_settings
from tests.governance.clinic import PATIENTS, TESTS, TRAIN, ruled
from tests.open_databases import in_memory

STUDY = """CREATE STUDY stay PURPOSE 'how long\npatients <b>stay</b> \x1b[31m'
  FOR TRAIN (age), JOIN (pid), LABEL (days) ON clinic.patients
  AND TRAIN (crp), JOIN (pid) ON lab.tests WITH (runs = 4, until = '2100-01-01')"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "LOOK", 0.01)
    monkeypatch.setattr(notifications, "POLL", 0.005)


@pytest.fixture
def clinic() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as con:
        con.execute(PATIENTS)
        ruled(con, "approval = 'first_time'")
        yield con


@pytest.fixture
def fed(clinic: duckdb.DuckDBPyConnection) -> Iterator[sqlfl.Federation]:
    with in_memory() as lab, sqlfl.connect(analyst="acme", progress=False) as found:
        lab.execute(TESTS)
        found.attach("clinic", clinic)
        found.attach("lab", lab)
        yield found


def asks(fed: sqlfl.Federation, text: str = TRAIN) -> None:
    try:
        fed.sql(text)
    except ApprovalError:
        return


def script(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "notify"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path), str(folder / "told"))


TELL = """cat > "$1.$$" && mv "$1.$$" "$1.json.$$" """


def told(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in folder.glob("told.json.*")]
    return sorted(found, key=lambda one: one["request"])


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_runs_and_studies_are_notified_once(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    owner = Owner(clinic)
    asks(fed)  # before the agent starts
    with Notifier(owner, "clinic", script(tmp_path, TELL)):
        until(lambda: len(told(tmp_path)) == 1)
        asks(fed)
        asks(fed, STUDY)
        until(lambda: len(told(tmp_path)) == 2)
        until(lambda: not owner.unnotified())
    with Notifier(owner, "clinic", script(tmp_path, TELL)):  # after a restart
        time.sleep(0.1)
    run, study = told(tmp_path)
    rows = owner.sql("SHOW REQUESTS").arrow().to_pylist()
    for one, row in zip((run, study), rows, strict=True):
        assert "\n".join(one["summary"]) == row["summary"]
        assert "\n".join(one["warnings"]) == row["warnings"]
        assert (one["party"], one["request"], one["analyst"], one["tables"], one["run"]) == (
            "clinic", row["request"], "acme", row["tables"], row["run"],
        )  # fmt: skip
        assert row["summary"] in one["text"]
        assert "\x1b" not in one["text"]
    assert run["text"].startswith("Request 1 waits at clinic: train linear_regression by lbfgs")
    assert "REFUSE REQUEST 2 BECAUSE" in study["text"]


def test_a_request_that_was_decided_is_not_notified(
    fed: sqlfl.Federation, clinic: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    owner = Owner(clinic)
    asks(fed)
    owner.sql("APPROVE REQUEST 1")
    with Notifier(owner, "clinic", script(tmp_path, TELL)):
        time.sleep(0.1)
    assert not told(tmp_path)


def test_a_command_that_fails_runs_again_later(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notifications, "FIRST_PAUSE", 0.1)
    caplog.set_level(logging.INFO, "sqlfl.owner")
    failing = f'[ -e "$1" ] || {{ touch "$1"; echo no route >&2; exit 3; }}; {TELL}'
    asks(fed)
    with Notifier(Owner(clinic), "clinic", script(tmp_path, failing)):
        until(lambda: told(tmp_path))
        until(lambda: "its owner was notified" in caplog.text)
    assert caplog.text.count("request 1: `notify` ended with status 3: no route") == 1


def test_a_command_that_hangs_is_ended_with_its_children(
    fed: sqlfl.Federation,
    clinic: duckdb.DuckDBPyConnection,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a second after it has said which child it has."""
    monkeypatch.setattr(notifications, "SECONDS", 0.5)
    told_child, began = tmp_path / "told.pid", 0.0

    def monotonic() -> float:
        nonlocal began
        if not (told_child.exists() and told_child.stat().st_size):
            return 0.0
        began = began or time.monotonic()
        return time.monotonic() - began

    monkeypatch.setattr(notifications, "time", SimpleNamespace(monotonic=monotonic))
    hanging = 'sleep 600 & echo $! > "$1.pid"; yes >&2; wait'
    asks(fed)
    with Notifier(Owner(clinic), "clinic", script(tmp_path, hanging)):
        until(lambda: "took longer than 0.5 seconds" in caplog.text)
        Owner(clinic).sql("APPROVE REQUEST 1")
        fed.sql(TRAIN)  # trains meanwhile as ever
    child = int(told_child.read_text())
    until(lambda: not is_running(child))
    assert "yes" not in caplog.text
    assert max(map(len, caplog.text.splitlines())) < 500


def is_running(process: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def test_the_agent_ends_while_a_command_runs(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    assert run_command(script(tmp_path, "sleep 60"), "{}", {}, stop)
    assert time.monotonic() - began < 10


def test_a_command_gets_no_keys_and_may_read_nothing(tmp_path: Path) -> None:
    own = PartySettings(
        name="bank", coordinator="c", database="b", secret="env:SECRET", key="env:KEY",
        notify=script(tmp_path, 'env > "$1"'),
    )  # fmt: skip
    assert own.environment() == {"SECRET", "KEY"}
    environment = {n: v for n, v in {**os.environ, "SECRET": "x"}.items() if n != "SECRET"}
    assert own.notify is not None
    why = run_command(own.notify, "x" * 1_000_000, environment, threading.Event())  # type: ignore[arg-type]
    assert why == ""
    assert "SECRET" not in (tmp_path / "told").read_text()
    assert run_command(("/nowhere",), "", {}, threading.Event()) == (
        "cannot run /nowhere: No such file or directory"
    )


def test_records_that_cannot_be_read_do_not_end_it(
    clinic: duckdb.DuckDBPyConnection,
    fed: sqlfl.Federation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(notifications, "FIRST_PAUSE", 0.05)
    owner, failures = Owner(clinic), iter([duckdb.IOException("no space")])
    unnotified = owner.unnotified

    def once() -> list[dict[str, object]]:
        for failure in failures:
            raise failure
        return unnotified()

    monkeypatch.setattr(owner, "unnotified", once)
    asks(fed)
    with Notifier(owner, "clinic", script(tmp_path, TELL)):
        until(lambda: told(tmp_path))
    assert "requests that wait cannot be read" in caplog.text


SETTINGS = 'name = "b"\ncoordinator = "c"\ndatabase = "b.duckdb"\nsecret = "env:S"\nnotify = '


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('["./notify", "a b"]', ("notify", "a b")),
        ("\"./notify 'a b' c; $x\"", ("notify", "a b", "c;", "$x")),
    ],
)
def test_a_command_is_words_without_a_shell(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    script(tmp_path, "true")
    (tmp_path / "b.toml").write_text(SETTINGS + text)
    own = read_settings(PartySettings, tmp_path / "b.toml")
    assert own.notify == (str(tmp_path / words[0]), *words[1:])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "notify names no program"),
        ('""', "notify names no program"),
        ('"mail \'x"', "notify is no command: No closing quotation"),
        ('"no-such-program x"', "there is no program no-such-program that can be run"),
        ('["./b.toml"]', "b.toml that can be run"),
        ("7", "notify must be"),
        ("[1]", "notify"),
    ],
)
def test_what_is_no_command(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "b.toml").write_text(SETTINGS + text)
    with pytest.raises(Error, match=r"b\.toml") as caught:
        read_settings(PartySettings, tmp_path / "b.toml")
    assert said in str(caught.value)
