"""What is written of an owner's rules and of what has happened: whole, in turn, or not at all."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import duckdb
import pytest

from sqlfl.base.errors import Error
from sqlfl.governance import records as recording
from sqlfl.governance.policies import Governance
from sqlfl.governance.records import RECORD, TABLES, Records, time_of
from sqlfl.options.policies import TrainingPolicy
from sqlfl.udfs import sql
from tests.open_databases import in_memory

RUNS = "SELECT run FROM t ORDER BY run"


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        yield found


@pytest.fixture
def records(con: duckdb.DuckDBPyConnection) -> Records:
    return Records(con, "memory")


def run(name: str) -> tuple[object, ...]:
    return name, "acme", "digest", dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def runs(records: Records) -> list[str]:
    with closing(records.cursor()) as cursor:
        return [name for (name,) in records.rows(cursor, RUNS, "runs")]


def tables(con: duckdb.DuckDBPyConnection) -> set[str]:
    text = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 'sqlfl'"
    return {name for (name,) in con.execute(text).fetchall()}


def test_changes_exclude_one_another(records: Records, con: duckdb.DuckDBPyConnection) -> None:
    """A number that a change has counted still holds when it commits."""
    seen: list[int] = []

    def later() -> None:
        other = Records(con, "memory")
        with other.writing() as cursor:
            ((count,),) = other.rows(cursor, "SELECT count(*) FROM t", "runs")
            seen.append(count)

    with records.writing():
        pass
    thread = threading.Thread(target=later)
    with records.writing() as cursor:
        records.insert(cursor, "runs", run("r"))
        thread.start()
        thread.join(0.5)
        assert not seen
    thread.join()
    assert seen == [1]


def test_tables_are_made_once_something_is_written(
    con: duckdb.DuckDBPyConnection, records: Records
) -> None:
    assert runs(records) == []
    assert not tables(con)
    with records.writing() as cursor:
        records.insert(cursor, "runs", run("r"))
    assert tables(con) == {*TABLES}
    assert runs(records) == runs(Records(con, "memory")) == ["r"]
    con.execute("DROP TABLE sqlfl.seen")  # and where some are gone
    with Records(con, "memory").writing():
        pass
    assert tables(con) == {*TABLES}
    assert runs(records) == ["r"]


def test_what_fails_is_not_written(con: duckdb.DuckDBPyConnection, records: Records) -> None:
    with records.writing() as cursor:
        records.insert(cursor, "runs", run("r"))
    before = Records.changes
    with pytest.raises(duckdb.ConversionException), records.writing() as cursor:
        _wrong(records, cursor)
    assert (runs(records), Records.changes) == (["r"], before)
    first = Records(con, "memory")
    con.execute("DROP SCHEMA sqlfl CASCADE")
    with pytest.raises(duckdb.ConversionException), first.writing() as cursor:
        _wrong(first, cursor)
    assert not tables(con)  # nor are tables taken to be there
    with first.writing() as cursor:
        first.insert(cursor, "runs", run("t"))
    assert runs(first) == ["t"]


def _wrong(records: Records, cursor: sql.Connection) -> None:
    records.insert(cursor, "runs", run("s"))
    records.insert(cursor, "runs", ("t", "acme", "digest", "no time"))


def test_rules_that_may_have_changed_are_counted(records: Records) -> None:
    Governance(records).put_policy("r", TrainingPolicy(), replace=False)
    before = Records.changes
    with records.writing():
        pass
    after = Records.changes
    assert after > before
    records.in_turn(lambda cursor, turn: None)
    assert Records.changes == after


def test_turns_are_numbered(records: Records) -> None:
    Governance(records).put_policy("r", TrainingPolicy(), replace=False)
    found: list[int] = []
    for _ in range(2):
        records.in_turn(lambda cursor, turn: found.append(turn))
    assert found[1] == found[0] + 1


def test_without_turns_nothing_is_done(records: Records) -> None:
    with records.writing():
        pass
    done: list[int] = []
    with pytest.raises(Error, match="turns has no row"):
        records.in_turn(lambda cursor, turn: done.append(turn))
    assert not done


def test_who_is_in_conflict_comes_again(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    Governance(records).put_policy("r", TrainingPolicy(), replace=False)
    monkeypatch.setattr(recording, "TRIES", 3)
    tried: list[int] = []

    def work(cursor: sql.Connection, turn: int) -> None:
        tried.append(turn)
        records.insert(cursor, "runs", run(f"r{len(tried)}"))
        if len(tried) < fails:
            raise duckdb.TransactionException("a conflict")

    fails = 3
    records.in_turn(work)
    assert (len(tried), runs(records)) == (3, ["r3"])
    tried.clear()
    fails = 4
    with pytest.raises(duckdb.TransactionException):
        records.in_turn(work)
    assert (len(tried), runs(records)) == (3, ["r3"])
    tried.clear()

    def other(cursor: sql.Connection, turn: int) -> None:
        tried.append(turn)
        raise duckdb.ConstraintException("another error")

    with pytest.raises(duckdb.ConstraintException):
        records.in_turn(other)
    assert len(tried) == 1


def test_a_database_that_is_only_read_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    duckdb.connect(path).close()
    with duckdb.connect(path, read_only=True) as con:
        records = Records(con, "clinic")
        with pytest.raises(Error, match="the database clinic is read-only"), records.writing():
            pass
        assert runs(records) == []


def test_what_is_on_its_way_is_read_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as con:
        path.chmod(0o600)
        records = Records(con, "clinic")
        with records.writing() as cursor:
            records.insert(cursor, "runs", run("r"))
        assert Path(f"{path}.wal").stat().st_mode & 0o777 == 0o600


def test_a_database_that_is_gone(con: duckdb.DuckDBPyConnection) -> None:
    with attached(con) as records:
        records.check_attached()
    with pytest.raises(Error, match="gone from its connection"):
        records.check_attached()
    assert runs(records) == []


@contextmanager
def attached(con: duckdb.DuckDBPyConnection) -> Iterator[Records]:
    con.execute("ATTACH ':memory:' AS store")
    try:
        yield Records(con, "store")
    finally:
        con.execute("DETACH store")


def test_many_rows_at_once(con: duckdb.DuckDBPyConnection, records: Records) -> None:
    rows = [
        (n, 10**15 + n, "clinic", "acme", name, "up", "labels", 7, "digest", "", f"head {n}")
        for n, name in ((1, "r"), (2, "s"))
    ]
    with records.writing() as cursor:
        records.append(cursor, "chain", RECORD, rows)
        records.append(cursor, "chain", RECORD, [(3, *rows[0][1:])])
    found = con.execute("SELECT * EXCLUDE (noted_at), epoch_us(noted_at) FROM sqlfl.chain "
                        "ORDER BY seq").fetchall()  # fmt: skip
    expected = [*rows, (3, *rows[0][1:])]
    assert found == [(row[0], *row[2:], row[1]) for row in expected]


def test_the_same_by_another_connection(con: duckdb.DuckDBPyConnection, records: Records) -> None:
    with records.writing() as cursor:
        records.insert(cursor, "runs", run("r"))
    with closing(con.cursor()) as other:
        beside = records.by(other)
        with beside.writing() as cursor:
            beside.insert(cursor, "runs", run("s"))
    assert runs(records) == ["r", "s"]


def test_times_are_of_utc() -> None:
    assert time_of(None) is None
    assert time_of(1_000_001) == dt.datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=dt.UTC)
