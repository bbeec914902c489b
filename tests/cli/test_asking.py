"""Statements and the status of a coordinator, at the command line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner, Result

from sqlfl.cli.main import cli
from sqlfl.service.service import Service
from tests.cli.study import MADE, QUERY, joined

TRAIN = f"TRAIN MODEL m USING logistic_regression TARGET churned FROM ({QUERY})"


@pytest.fixture(scope="module")
def study() -> Iterator[tuple[Service, str]]:
    with joined() as found:
        yield found


def ask(place: str, *arguments: str, given: str | None = None, study: str = "churn") -> Result:
    command, *rest = arguments
    own = ["--to", place, "--insecure", "--analyst", "alice", "--study", study]
    return CliRunner().invoke(cli, [command, *own, *rest], input=given)


def test_sql(study: tuple[Service, str]) -> None:
    _, place = study
    found = ask(place, "sql", TRAIN)
    assert found.exit_code == 0, found.output
    assert "logistic_regression" in found.stdout
    told = json.loads(ask(place, "sql", "--format", "json", "SHOW PARTIES").stdout)
    assert told.keys() == {"columns", "rows", "notes", "warnings"}
    assert {row[0] for row in told["rows"]} == {"bank", "shop"}
    text = ask(place, "sql", "--format", "csv", given="SHOW PARTIES;\nSHOW MODELS;").stdout
    assert text.splitlines()[1].startswith("m,logistic_regression,")


def test_parameters(study: tuple[Service, str]) -> None:
    query = f"{QUERY} WHERE b.balance > $least AND b.churned = $churned"
    text = f"PREDICT MODEL m FROM ({query})"
    _, place = study
    assert ask(place, "sql", TRAIN.replace("MODEL", "OR REPLACE MODEL")).exit_code == 0
    own = ("--format", "json", "-p", "least=0.5", "-p")
    few = json.loads(ask(place, "sql", text, *own, "churned=true").stdout)
    none = json.loads(ask(place, "sql", text, *own, "churned=null").stdout)
    assert 0 < len(few["rows"]) < 200
    assert none.get("rows", []) == []


def test_remarks_are_beside_the_answer(study: tuple[Service, str]) -> None:
    _, place = study
    query = QUERY.replace("b.balance", "7.0 AS same, b.balance")
    text = f"TRAIN OR REPLACE MODEL few USING linear_regression TARGET churned FROM ({query})"
    found = ask(place, "sql", text)
    assert "Warning: " in found.stderr
    assert "Warning: " not in found.stdout
    found = ask(place, "sql", "--format", "json", text)
    assert json.loads(found.stdout)["warnings"]
    assert not found.stderr


def test_status(study: tuple[Service, str]) -> None:
    service, place = study
    own = service.board.begin("churn", "alice", "TRAIN")
    other = service.board.begin("churn", "bob", "TRAIN")
    try:
        told = json.loads(ask(place, "status", "--format", "json").stdout)
    finally:
        service.board.end(own, "done")
        service.board.end(other, "done")
    assert [row["number"] for row in told["running"]] == [own.number]
    assert {row["party"]: row["connected"] for row in told["parties"]} == {
        "bank": True, "shop": True,
    }  # fmt: skip
    found = ask(place, "status", study="other")
    assert "nothing of yours is running" in found.stdout
    assert "bank" not in found.stdout  # it is of another study


MISTAKES = {
    "parse": (("sql", "SHOW PARTY"), "ParseError: expected"),
    "unknown": (("sql", "DROP MODEL away"), "ModelError: there is no model away"),
    "empty": (("sql", "  "), "there is no statement"),
    "study": (("sql", "SHOW MODELS", "--study", "away"), "there is no study 'away' of analyst"),
    "analyst": (("sql", "SHOW MODELS", "--analyst", "eve"), "there is no study 'churn' of analyst"),
    "name": (("sql", "SHOW MODELS", "--analyst", "a b"), "there is no study 'churn' of analyst"),
    "port": (("sql", "SHOW MODELS", "--to", "grpc://127.0.0.1:1"), "cannot connect to grpc://127"),
    "far": (("status", "--to", "grpc://10.0.0.5:8815"), "--insecure is for this machine alone"),
    "tls": (("status", "--to", "grpc+tls://10.0.0.5:8815"), "with TLS, and --insecure without"),
    "place": (("status", "--to", "localhost"), "'localhost' is no place to connect to"),
    "config": (("status", "--config", "away.toml"), "cannot read away.toml: No such file"),
    "export": (("sql", "EXPORT MODEL m TO 'x'"), "is not built for parties on other machines"),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(study: tuple[Service, str], arguments: tuple[str, ...], said: str) -> None:
    found = ask(study[1], *arguments)
    assert found.exit_code == 1
    assert said in found.output


def test_errors_are_json_where_answers_are(study: tuple[Service, str]) -> None:
    found = ask(study[1], "sql", "--format", "json", "SHOW PARTY")
    assert found.exit_code == 1
    told = json.loads(found.stdout)
    assert told["error"] == "ParseError"
    assert "line 1, column 6" in told["message"]
    assert json.loads(ask("localhost", "status", "--format", "json").stdout)["hint"]


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("sql SHOW", 1, "no coordinator is named"),
        ("sql SHOW --to grpc+tls://127.0.0.1:1", 1, "asks for a certificate"),
        ("sql SHOW --to grpc://127.0.0.1:1", 1, "is without TLS"),
        ("sql SHOW --to grpc://127.0.0.1:1 --insecure", 1, "nobody is said to ask"),
        ("sql SHOW --to grpc://127.0.0.1:1 --insecure --analyst a", 1, "no study is named"),
        ("sql SHOW PARTIES", 2, "statements come from one argument"),
        ("sql SHOW -p least", 2, "a parameter is NAME=VALUE, got 'least'"),
        ("sql SHOW -p a=1 -p a=2", 2, "the parameter a is given twice"),
        ("status --format csv", 2, "'csv' is not one of"),
        ("shel", 2, "there is no command 'shel'; did you mean shell?"),
        ("shell", 1, "sqlfl shell needs a terminal"),
    ],
)
def test_what_is_missing(
    line: str, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SQLFL_CONFIG", raising=False)
    found = CliRunner().invoke(cli, line.split())
    assert found.exit_code == status
    assert said in found.output


def test_settings_name_the_coordinator(study: tuple[Service, str], tmp_path: Path) -> None:
    path = tmp_path / "alice.toml"
    path.write_text(f'coordinator = "{study[1]}"\nname = "alice"\nstudy = "churn"\n')
    found = CliRunner().invoke(
        cli, ["sql", "--insecure", "SHOW PARTIES"], env={"SQLFL_CONFIG": str(path)}
    )
    assert found.exit_code == 0, found.output
    assert "shop" in found.stdout


def test_who_asks_when_the_coordinator_ends_is_told() -> None:
    """The training ends at the end of its round, and nothing more begins."""
    options = "WITH (algorithm = 'sgd', epochs = 1000000, tolerance = 0)"
    long = TRAIN.replace(" FROM (", f" {options} FROM (", 1)
    with joined() as (service, place):
        answers: list[Result] = []
        asking = threading.Thread(target=lambda: answers.append(ask(place, "sql", long)))
        asking.start()
        pause = threading.Event()
        for _ in range(1000):
            if any(row["epoch"] > 1 for row in service.board.told()["statements"]):
                break
            pause.wait(0.02)
        service.close(20.0)
        asking.join(20)
    (found,) = answers
    assert found.exit_code == 0, found.output
    assert "(interrupted)" in found.stdout


def test_databases_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bank", "shop"):
        with duckdb.connect(f"{name}.duckdb") as con:
            con.execute(MADE)
    text = TRAIN.replace("FROM", "WITH (l2 = $l2) FROM", 1)
    Path("train.sql").write_text(f"-- \u00fc\n{text};", "utf-16")
    own = ["bank=bank.duckdb", "shop=shop.duckdb"]

    def run(*arguments: str, given: str | None = None, status: int = 0) -> str:
        found = CliRunner().invoke(cli, ["sql", *arguments], input=given)
        assert found.exit_code == status, found.output
        return found.output

    assert "l2 = 0.25" in run("-f", "train.sql", "-p", "l2=0.25", "--models", "m.duckdb", *own)
    assert "\nm,logistic" in run(
        "-c", "SHOW MODELS", "--models", "m.duckdb", "--format", "csv", *own
    )
    assert "400" in run(*own, f"EVALUATE MODEL m FROM ({QUERY})", "--models", "m.duckdb")
    assert "bank" in run(*own, given="SHOW PARTIES")
    two = run("both=bank.duckdb", "both=shop.duckdb", "SHOW PARTIES", "--format", "csv")
    assert "both,2,False" in two
    assert "there is no file none.duckdb" in run("a=none.duckdb", "SHOW MODELS", status=1)
    assert "statements come from one" in run("-c", "SHOW MODELS", "SHOW MODELS", status=2)
    assert "cannot read no.sql" in run("-f", "no.sql", *own, status=1)
    assert "--to is of a coordinator" in run("--to", "grpc://a:1", "SHOW MODELS", *own, status=1)
    assert "TRAIN [OR REPLACE] MODEL" in run("HELP TRAIN")
    assert not Path("none.duckdb").exists()
