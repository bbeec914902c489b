"""A coordinator's file that somebody else has made: nothing of it is run, nothing odd is read."""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.stored_arrow import read_numbers
from tests import lasting
from tests.lasting import opened, train

NAME = "coordinator.duckdb"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A coordinator's file with a model m."""
    folder = tmp_path_factory.mktemp("trained")
    lasting.make(folder)
    with opened(folder) as fed:
        fed.sql(train())
    return (folder / NAME).read_bytes()


@pytest.fixture
def path(trained: bytes, tmp_path: Path) -> Path:
    """A copy of it."""
    (tmp_path / NAME).write_bytes(trained)
    return tmp_path / NAME


@contextlib.contextmanager
def editing(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with contextlib.closing(duckdb.connect(str(path))) as con:
        con.execute("SET schema = 'sqlfl'")
        yield con


SPYING = "SELECT content FROM read_text('/etc/hostname')"
TRAPS = {
    "a view of models": (
        "ALTER TABLE models RENAME TO kept; CREATE VIEW models AS SELECT name, run, created_at, "
        f"({SPYING}) AS document, history FROM kept",
        "it has a view sqlfl.models"),
    "a view of the audit": (
        "ALTER TABLE audit RENAME TO kept; CREATE VIEW audit AS FROM kept",
        "it has a view sqlfl.audit"),
    "a view of the coordinator": (
        "ALTER TABLE coordinator RENAME TO kept; CREATE VIEW coordinator AS FROM kept",
        "it has a view sqlfl.coordinator"),
    "a function": (
        f"CREATE MACRO max(x) AS ({SPYING})", "it has a function sqlfl.max"),
    "a function that lists": (
        f"CREATE MACRO duckdb_tables() AS TABLE ({SPYING})", "it has a function sqlfl.duckdb_t"),
    "a trigger": (
        "CREATE TABLE more (x INTEGER); CREATE TRIGGER t AFTER INSERT ON models FOR EACH STATEMENT "
        "INSERT INTO more VALUES (1)", "it has a trigger sqlfl.t"),
    "a column that is generated": (
        "ALTER TABLE models RENAME TO kept; CREATE TABLE models (name VARCHAR, run VARCHAR, "
        "created_at TIMESTAMPTZ, document VARCHAR AS (name || run), history BLOB)",
        "the column document of sqlfl.models is generated"),
    "another type": (
        "ALTER TABLE models ALTER document TYPE JSON", "the column document of sqlfl.models is"),
}  # fmt: skip


@pytest.mark.parametrize("trap", TRAPS)
def test_what_would_run_is_refused(trap: str, path: Path) -> None:
    change, text = TRAPS[trap]
    with editing(path) as con:
        con.execute(change)
    before = path.read_bytes()
    with pytest.raises(sqlfl.Error, match=text) as caught:
        sqlfl.connect(path)
    assert "backup" in str(caught.value)
    assert path.read_bytes() == before


def test_what_is_beside_the_tables_stays_alone(path: Path) -> None:
    """Also functions of the names of those that are called here, in another schema."""
    with editing(path) as con:
        con.execute("SET schema = 'main'")
        for name in ("max", "lower", "duckdb_tables", "current_database"):
            con.execute(f"CREATE MACRO {name}(x := 1) AS error('run')")
        con.execute("CREATE VIEW sqlfl.mine AS SELECT 1 AS x; CREATE TABLE t AS SELECT 1 AS x")
    with sqlfl.connect(path) as fed:
        assert fed.sql("SHOW MODELS").arrow().num_rows == 1
        assert fed.audit().arrow().num_rows > 0


def test_the_file_reaches_nothing_else(path: Path) -> None:
    with sqlfl.connect(path) as fed:
        assert fed._file is not None
        con = fed._file._con
        for statement in (SPYING, f"ATTACH '{path}2'", f"COPY (SELECT 1) TO '{path}3'"):
            with pytest.raises(duckdb.PermissionException):
                con.execute(statement)
        with pytest.raises(duckdb.InvalidInputException, match="locked"):
            con.execute("SET enable_external_access = true")


def altered(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document | fields


DOCUMENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a name that is a number": altered(name=7),
    "another name": altered(name="n"),
    "another run": altered(run="0" * 32),
    "a kind that there is not": altered(kind="oracle"),
    "features that are text": altered(features="abc"),
    "blocks without clients": altered(blocks=[{"slot": 0, "name": "p", "features": []}]),
    "a block of negative slots": altered(blocks=[{"slot": "x"}]),
    "an intercept of text": altered(intercept=["a"]),
    "an intercept that is not finite": altered(intercept=[float("nan")]),
    "a head of rows of several lengths": altered(head=[[1.0], [1.0, 2.0]]),
    "metrics of lists": altered(metrics={"loss": [1]}),
    "a report of numbers": altered(privacy_report=[1]),
    "a report of other releases": altered(privacy_report={"releases": [7], "promises": []}),
    "a moment that is none": altered(created_at="yesterday"),
    "a moment of no zone": altered(created_at="2024-01-01T00:00:00"),
    "an epoch of text": altered(epoch="3"),
    "no cost": altered(cost=None),
    "a number": lambda document: 7,
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_document_that_is_none(case: str, path: Path) -> None:
    with editing(path) as con:
        ((text,),) = con.execute("SELECT document FROM models").fetchall()
        changed = json.dumps(DOCUMENTS[case](json.loads(text)))
        con.execute("UPDATE models SET document = ?", [changed])
    with pytest.raises(sqlfl.Error, match="damaged: what it holds of model m cannot be read"):
        sqlfl.connect(path)


def test_a_document_that_is_nested_without_end(path: Path) -> None:
    with editing(path) as con:
        con.execute("UPDATE models SET document = repeat('[', 1000000)")
    with pytest.raises(sqlfl.Error, match="model m cannot be read"):
        sqlfl.connect(path)


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


STREAMS = {
    "text": (stream(pa.table({"epoch": ["a"]})), "hold no numbers"),
    "nested": (stream(pa.table({"epoch": [[1]]})), "hold no numbers"),
    "compressed": (stream(pa.table({"epoch": [0] * 10**6}), "zstd"), "a compressed record batch"),
    "compressed otherwise": (stream(pa.table({"epoch": [0] * 99}), "lz4"), "a compressed record"),
    "very wide": (
        stream(pa.table({f"c{k}": pa.array([], pa.int8()) for k in range(2000)})), "a schema of"),
    "cut": (stream(pa.table({"epoch": [0] * 99}))[:-300], "no Arrow stream"),
    "nothing": (b"", "no Arrow stream"),
    "something else": (b"PK\x03\x04" * 99, "no Arrow stream"),
    "no bytes": (None, "no bytes"),
    "a dictionary": (
        stream(pa.table({"epoch": pa.array(["a"]).dictionary_encode()})), "a message dictionary"),
}  # fmt: skip


@pytest.mark.parametrize("case", STREAMS)
def test_a_stream_that_is_no_history(case: str) -> None:
    data, text = STREAMS[case]
    with pytest.raises(ValueError, match=text):
        read_numbers(data)


def test_a_stream_of_numbers_is_read() -> None:
    table = pa.table({"epoch": [1, 2], "loss": [0.5, None]})
    assert read_numbers(stream(table)).equals(table)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask allows; and the logs while they are there."""
    lasting.make(tmp_path)
    own = os.umask(0)
    try:
        with sqlfl.connect(tmp_path / "c.duckdb") as fed:
            fed.attach("census", [tmp_path / name for name in lasting.FILES[:2]])
            fed.attach("geo", tmp_path / lasting.FILES[2], tmp_path / "store.duckdb")
            fed.sql(train())
            made = [p for p in tmp_path.iterdir() if p.name.startswith(("c.", "store."))]
            assert {p.name for p in made} >= {"c.duckdb", "store.duckdb"}
            assert {p.name: oct(mode(p)) for p in made if mode(p) != 0o600} == {}
        assert mode(tmp_path / "c.duckdb") == mode(tmp_path / "store.duckdb") == 0o600
        assert not list(tmp_path.glob("*.new"))
    finally:
        os.umask(own)


def test_who_may_not_read_a_partys_file_may_not_read_its_log(tmp_path: Path) -> None:
    lasting.make(tmp_path)
    source = tmp_path / lasting.FILES[2]
    source.chmod(0o600)
    own = os.umask(0)
    try:
        with opened(tmp_path) as fed:
            fed.sql(train())
            assert [p for p in tmp_path.glob(f"{source.name}*") if mode(p) != 0o600] == []
    finally:
        os.umask(own)
