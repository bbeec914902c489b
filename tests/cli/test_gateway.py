"""`sqlfl gateway`, as a process of its own."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import adbc_driver_flightsql.dbapi as flight_sql
import duckdb
import pytest
from click.testing import CliRunner

from sqlfl.cli.main import cli
from tests.cli.study import MADE, joined


def place_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"listening at (\S+?),", line)
        if found:
            return found[1]
    raise AssertionError("it has ended")


def asked(place: str, token: str, text: str) -> list[tuple[object, ...]]:
    given = {"username": "me", "password": token}
    with (
        flight_sql.connect(place, db_kwargs=given, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(text)
        found: list[tuple[object, ...]] = cursor.fetchall()
        return found


@pytest.mark.slow
def test_a_gateway_to_databases_here(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "bank.duckdb") as con:
        con.execute(MADE)
    command = [sys.executable, "-m", "sqlfl", "gateway", "--listen", "grpc://127.0.0.1:0"]
    token = tmp_path / "token"
    own = ["bank=bank.duckdb", "--token", "token", "--models", "models.duckdb"]
    for known in ([], ["m"]):
        with subprocess.Popen(
            [*command, *own],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            place = place_of(process)
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
            word = token.read_text().strip()
            assert [name for name, *_ in asked(place, word, "SHOW MODELS")] == known
            train = "TRAIN OR REPLACE MODEL m USING logistic_regression TARGET churned FROM "
            asked(place, word, f"{train} (SELECT balance, churned FROM bank.customers)")
            assert asked(place, word, "SHOW MODELS")[0][0] == "m"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


@pytest.mark.slow
def test_a_gateway_to_a_coordinator() -> None:
    with joined() as (_, there):
        own = ["--to", there, "--insecure", "--analyst", "alice", "--study", "churn"]
        command = [sys.executable, "-m", "sqlfl", "gateway", "--listen", "grpc://127.0.0.1:0"]
        with subprocess.Popen(
            [*command, *own], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            place = place_of(process)
            assert process.stdout is not None
            word = process.stdout.readline().removeprefix("token: ").strip()
            assert sorted(name for name, *_ in asked(place, word, "SHOW PARTIES")) == [
                "bank", "shop",
            ]  # fmt: skip
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--listen grpc://0.0.0.0:1 a=a.duckdb", "there is no file a.duckdb"),
        ("--listen grpc://0.0.0.0:1 --models m.duckdb", "is for this machine alone"),
        ("--client bi --models m.duckdb", "--client is of certificates"),
        ("--listen grpc+tls://127.0.0.1:1 --token t", "--token is of a gateway without TLS"),
        ("--listen grpc+tls://127.0.0.1:1 --models m.duckdb", "TLS needs your key"),
        ("--models m.duckdb --study heart", "--study is of a coordinator"),
        ("", "no coordinator is named"),
        ("--token short --models m.duckdb", "less than 16 characters"),
        ("bank", "a database is PARTY=FILE"),
    ],
)
def test_a_gateway_that_does_not_start(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SQLFL_CONFIG", raising=False)
    Path("short").write_text("secret")
    found = CliRunner().invoke(cli, ["gateway", *line.split()])
    assert found.exit_code
    assert said in found.output
    assert not list(tmp_path.glob("t*"))
