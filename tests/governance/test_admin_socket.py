"""Owners' statements while an agent has the database open."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

import sqlfl
from sqlfl.cli.main import cli
from sqlfl.governance.admin_socket import Door, door_of, through
from sqlfl.governance.owner import Owner

POLICY = "CREATE TRAINING POLICY p WITH (min_rows = 20)"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "bank.duckdb"
    with duckdb.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS x")
    return path


@pytest.fixture
def opened(database: Path) -> Iterator[Path]:
    with duckdb.connect(database) as con, Door(door_of(database), Owner(con)):
        yield database


def test_statements_go_through(opened: Path) -> None:
    place = door_of(opened)
    assert "min_rows = 20" in str(through(place, POLICY))
    assert through(place, "GRANT TRAIN (x) ON t TO 'acme' UNDER p") is not None
    with pytest.raises(sqlfl.Error, match="there is no training policy q"):
        through(place, "GRANT TRAIN (x) ON t TO 'acme' UNDER q")
    assert "acme" in str(through(place, "SHOW GRANTS"))


def test_the_command_finds_it(opened: Path) -> None:
    done = CliRunner().invoke(cli, ["owner", str(opened), POLICY, "SHOW GRANTS"])
    assert (done.exit_code, "min_rows = 20" in done.output) == (0, True)
    whole = CliRunner().invoke(cli, ["owner", str(opened), "--format", "lines", "SHOW POLICIES"])
    assert "min_rows = 20" in whole.output
    assert "│" not in whole.output
    wrong = CliRunner().invoke(cli, ["owner", str(opened), "SHOW NOTHING"])
    assert wrong.exit_code == 1


def test_it_is_its_users_alone_and_goes(database: Path) -> None:
    place = door_of(database)
    with duckdb.connect(database) as con:
        with Door(place, Owner(con)):
            assert place.stat().st_mode & 0o777 == 0o600
            with pytest.raises(sqlfl.Error, match=r"an agent has .* open already"):
                Door(place, Owner(con)).__enter__()
        assert not place.exists()
        assert through(place, "SHOW GRANTS") is None
    done = CliRunner().invoke(cli, ["owner", str(database), POLICY])
    assert done.exit_code == 0


def test_one_that_was_killed_leaves_nothing_in_the_way(database: Path) -> None:
    place = door_of(database)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    assert place.exists()
    assert through(place, "SHOW GRANTS") is None
    with duckdb.connect(database) as con, Door(place, Owner(con)):
        assert through(place, "") is not None


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x" * (2 << 20)], ids=["no text", "too long"])
def test_what_is_no_statement_harms_nothing(opened: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(door_of(opened)))
        try:
            asked.sendall(data)
            asked.shutdown(socket.SHUT_WR)
        except OSError:
            pass
    assert through(door_of(opened), POLICY) is not None


def test_a_path_that_is_too_long_is_said(tmp_path: Path) -> None:
    with (
        duckdb.connect() as con,
        pytest.raises(sqlfl.Error, match="too long for a socket"),
    ):
        Door(tmp_path / ("x" * 120), Owner(con))


def test_a_file_in_its_place_stays(database: Path) -> None:
    place = door_of(database)
    place.write_text("mine")
    with duckdb.connect(database) as con, pytest.raises(sqlfl.Error, match="cannot make"):
        Door(place, Owner(con)).__enter__()
    assert place.read_text() == "mine"
