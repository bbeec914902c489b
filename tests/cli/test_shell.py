"""The prompt: what ends a statement, what completes it, what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import sqlfl
from sqlfl.cli.shell import ends, history_file, loop, session
from sqlfl.service.federation import RemoteFederation
from tests.cli.study import MADE, QUERY, joined

TAB, CTRL_C, CTRL_D, UP = "\t", "\x03", "\x04", "\x1b[A"
TRAIN = f"TRAIN OR REPLACE MODEL m USING logistic_regression TARGET churned FROM ({QUERY});"


@pytest.fixture(scope="module")
def fed() -> Iterator[RemoteFederation]:
    with joined() as (_, place), RemoteFederation(place, study="churn", analyst="alice") as found:
        yield found


def typed(fed: RemoteFederation, text: str, history: Path) -> None:
    """Until the shell has ended."""
    with create_pipe_input() as keys:
        keys.send_text(text)
        loop(fed, session(fed, history, input=keys, output=DummyOutput()))


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("SHOW MODELS", False),
        ("SHOW MODELS;", True),
        ("SHOW MODELS; -- all\n", True),
        ("SHOW MODELS; DROP", False),
        ("COMMENT ON MODEL m IS 'a;", False),
        ("SHOW /* ;", False),
        ("SHOW MODELS -- ;", False),
        ("\\q", True),
        ("exit", True),
        ("exit now", False),
        (" ", True),
    ],
)
def test_what_ends_a_statement(text: str, whole: bool) -> None:
    assert ends(text) is whole


def test_statements_of_several_lines(
    fed: RemoteFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history"
    typed(fed, TRAIN.replace("\n", "\r") + "\rSHOW\rMODELS;\rSHOW MODEL;\r\\q\r", history)
    said = capsys.readouterr().out
    assert "accuracy" in said
    assert "ParseError: " in said  # and it goes on
    assert "m" in fed.models
    kept = history.read_text()
    assert kept.index("+SHOW\n+MODELS;") > kept.index("+TRAIN")


def test_what_was_entered_comes_again(
    fed: RemoteFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "history"
    typed(fed, "SHOW PARTIES;\r" + CTRL_D, history)
    typed(fed, UP + "\r" + CTRL_D, history)
    assert capsys.readouterr().out.count("shop") == 2


def test_commands(
    fed: RemoteFederation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(fed, f"SHOW MOD{CTRL_C}\\?\r\\x\r;\r\r\\q\rSHOW PARTIES;\r", tmp_path / "history")
    said = capsys.readouterr().out
    assert "TAB completes" in said
    assert "there is no \\x" in said
    assert "shop" not in said
    typed(fed, f"help\rexit\rSHOW PARTIES;\r{CTRL_C}{CTRL_D}", tmp_path / "history")
    typed(fed, f"quit;\rSHOW PARTIES;\r{CTRL_C}{CTRL_D}", tmp_path / "history")
    said = capsys.readouterr().out
    assert "TAB completes" in said
    assert "shop" not in said
    assert "Error" not in said


def test_completion(fed: RemoteFederation, tmp_path: Path) -> None:
    def found(text: str) -> list[str]:
        prompts = session(fed, tmp_path / "history", input=keys, output=DummyOutput())
        assert prompts.completer is not None
        return [own.text for own in prompts.completer.get_completions(Document(text), None)]  # type: ignore[arg-type]

    with create_pipe_input() as keys:
        assert "TRAIN" in found("TR")
        assert "bank.customers" in found("TRAIN MODEL n USING linear_regression FROM (FROM ba")
        assert "balance" in found("PREDICT MODEL m FROM (SELECT spent FROM bank.customers WHERE b")
        assert not found("SELECT 'TR")


def test_the_history_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "sqlfl").mkdir()
    (tmp_path / "sqlfl" / "history").touch(0o644)
    path = history_file()
    assert path == tmp_path / "sqlfl" / "history"
    assert path.stat().st_mode & 0o777 == 0o600
    assert history_file() == path


@pytest.fixture(scope="module")
def here() -> Iterator[sqlfl.Federation]:
    with duckdb.connect() as con, sqlfl.connect(progress=False) as found:
        con.execute(MADE)
        found.attach("bank", con)
        yield found


def test_databases_here(
    here: sqlfl.Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.sql"
    script.write_text(
        "TRAIN OR REPLACE MODEL here USING logistic_regression TARGET churned WITH (l2 = $l2)\n"
        "FROM (SELECT balance, churned FROM bank.customers WHERE balance > $least);\n"
        "EVALUATE MODEL here FROM (SELECT balance, churned FROM bank.customers)"
    )
    lines = ["\\d", "\\d bank.customers", "\\set least -0.5", "\\set l2 0.125",
             "\\set city \"a b\"",
             "\\set", f"\\i {script}", "\\dm", "\\h CHECK", "help tune;", "\\h epochs",
             "\\i nothing.sql", "\\set x", "\\h nonsens", "\\q"]  # fmt: skip
    typed(here, "\r".join(lines) + "\r", tmp_path / "history")
    said = capsys.readouterr().out
    assert here.model("here").options["l2"] == 0.125
    for text in (
        "bank.customers", "spent", "$city = 'a b'", "auc", "logistic_regression",
        "CHECK [USING kind]", "TUNE ...", "epochs: a whole number", "cannot read nothing.sql",
        "a variable is set by", "there is no statement, option or algorithm nonsens",
    ):  # fmt: skip
        assert text in said
