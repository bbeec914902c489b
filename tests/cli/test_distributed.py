"""docs/distributed.md, command by command: keys, a coordinator, two parties, an analyst, and the
end of all of them, as processes of their own over TLS."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sqlfl.__main__ import main
from sqlfl.service.agent import Agent
from sqlfl.service.hosting import hosted
from sqlfl.service.settings import PartySettings, read_settings
from tests.cli.processes import ROOT, Process, process, ran
from tests.service.party import running

PAGE = (ROOT / "docs/distributed.md").read_text()
MADE = (
    "CREATE TABLE customers AS SELECT i AS pid, sin(i) AS balance, cos(i) AS spent, "
    "i * i % 7 < 3 AS churned FROM range(400) AS r(i)"
)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


def commands(place: str) -> list[list[str]]:
    """Of the page in order, without `sqlfl`; `place` is where its coordinator is here.

    Commands of the gateway are left out: tests/cli/test_gateway.py runs them.
    """
    found = re.sub(r"grpc\+tls://[\w.]+:8815", place, "\n".join(blocks("sh")))
    return [
        shlex.split(line)[1:] for line in found.splitlines() if re.match("sqlfl (?!gateway)", line)
    ]


def write_settings(folder: Path, place: str) -> None:
    for text in blocks("toml"):
        name = re.match(r"# (\S+\.toml)", text)[1]  # type: ignore[index]
        text = re.sub(r"grpc\+tls://[\w.]+:8815", place, text)
        text = text.replace("# coordinator_name", "coordinator_name")
        (folder / name).write_text(text)
        if name == "bank.toml":
            (folder / "shop.toml").write_text(text.replace("bank", "shop"))


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_settings(tmp_path, "grpc+tls://127.0.0.1:0")
    for name in ("bank", "shop"):
        with duckdb.connect(f"{name}.duckdb") as con:
            con.execute(MADE)
    services: list[Process] = []
    with ExitStack() as stack:
        place = "grpc+tls://127.0.0.1:0"
        for number in range(len(commands(place))):
            own = commands(place)[number]
            if own[0] == "coordinator":
                services.append(stack.enter_context(process(own, tmp_path)))
                port = services[0].wait_for(r"listening at \S+:(\d+)")[1]
                place = f"grpc+tls://127.0.0.1:{port}"
                write_settings(tmp_path, place)
            elif own[0] == "owner":
                main(own)
                main([text.replace("bank", "shop") for text in own])
            elif own[0] == "party":
                for name in ("bank", "shop"):
                    ours = [text.replace("bank", name) for text in own]
                    services.append(
                        stack.enter_context(process([*ours, "--log-format", "json"], tmp_path))
                    )
                for service in services[1:]:
                    service.wait_for("connected to coordinator.example")
            elif own[0] == "sql" and "SHOW MODELS" in own:
                found = ran(own, tmp_path, SQLFL_CONFIG="alice.toml")
                assert found.returncode == 0, found.stderr
                told = json.loads(found.stdout)
                assert [row[0] for row in told["rows"]] == ["churn"]
            else:
                monkeypatch.setenv("SQLFL_CONFIG", "alice.toml")
                capsys.readouterr()
                main(own)
                said = capsys.readouterr().out
                assert own != ["sql", "SHOW PARTIES"] or ("bank" in said and "shop" in said)
                assert own != ["status"] or "nothing of yours is running" in said
        assert len(services) == 3
        assert_private(tmp_path)
        for service in (services[1], services[0], services[2]):
            service.signal(signal.SIGTERM)
        assert [service.ended() for service in services] == [0, 0, 0]
    assert_logs(services)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert {name for name in left if name.endswith((".wal", ".tmp", ".new"))} == set()
    with duckdb.connect("coordinator/churn/alice.example.duckdb", read_only=True) as con:
        assert con.sql("SELECT count(*) FROM sqlfl.models").fetchall() == [(1,)]
    assert_own_database_runs()


def assert_own_database_runs() -> None:
    """The bank's process coordinates, and the shop's agent dials in to it."""
    (block,) = (text for text in blocks("python") if "sqlfl.connect(" in text)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"grpc+tls://127.0.0.1:{free.getsockname()[1]}"
    own = read_settings(PartySettings, "shop.toml")
    credentials = own.credentials()
    with hosted(own, credentials) as host:
        agent = Agent(place, own.name, 1, host, credentials, server=own.coordinator)
        namespace: dict[str, Any] = {}
        with running(agent):
            text = re.sub(r"grpc\+tls://[\w.]+:8815", place, block)
            exec(compile(text, "docs/distributed.md", "exec"), namespace)
    namespace["con"].close()
    assert "churn" in str(namespace["card"])


def assert_private(folder: Path) -> None:
    for path in (*folder.glob("*.key"), *folder.rglob("alice.example.duckdb")):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (folder / "coordinator").stat().st_mode & 0o077 == 0


def assert_logs(services: list[Process]) -> None:
    """They say what happened, and neither texts of statements nor secrets."""
    coordinator, *parties = ("".join(service.said) for service in services)
    assert "TRAIN begins study=churn analyst=alice.example statement=2" in coordinator
    assert re.search(r"TRAIN: done after [\d.]+ s", coordinator)
    assert re.search(r"bank/0 is connected party=bank", coordinator)
    for text in (coordinator, *parties):
        assert not re.search(r"balance|PRIVATE KEY|signature|Traceback", text), text
    for text, name in zip(parties, ("bank", "shop"), strict=True):
        told = [json.loads(line) for line in text.splitlines()]
        assert {row["party"] for row in told if "connected" in row["message"]} == {name}
        assert told[-1]["message"] == "ended"
