"""What is opened and made: who can read it, and what of it reaches the disk."""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import duckdb

import sqlfl
from sqlfl import messages as ms
from sqlfl.contract.schema import (
    Client,
    FeatureSpecification,
    SlotSpecification,
    specifications_to_json,
)
from sqlfl.databases.files import open_source
from sqlfl.messages.wire import encode, received
from sqlfl.party.party import PartyClient, Secrets

MARK = "Bellerophon"
SLOT = SlotSpecification(
    slot=0,
    features=(FeatureSpecification("c", "category"),),
    target=False, classes=False, identifiers=(), keys=(), fragments=(0,), shared=False,
    secret="organisation", engine="arrays",
)  # fmt: skip


def test_a_snapshot_is_spilled_encrypted_or_not_at_all(tmp_path: Path) -> None:
    """DuckDB encrypts with a library that it may have to be given; without it, it refuses."""
    with duckdb.connect(str(tmp_path / "a.duckdb")) as con:
        con.execute("CREATE TABLE t AS SELECT i FROM range(400000) r(i)")
    spilled = tmp_path / "spilled"
    with contextlib.closing(open_source(tmp_path / "a.duckdb")) as con:
        con.execute("SET threads = 1")
        con.execute("SET memory_limit = '20MB'")
        con.execute(f"SET temp_directory = '{spilled}'")
        client = PartyClient(Client("a"), con, Secrets(b"\7" * 32, b"\7" * 32))
        select = f"SELECT '{MARK}' || (i * 7919) || md5(i::VARCHAR) AS c FROM t"
        request = ms.Prepare("run", -1, specifications_to_json((SLOT,)), (select,))
        reply = received(client.handle(encode(request)))
        on_disk = [path for path in spilled.glob("*") if MARK.encode() in path.read_bytes()]
        client.close()
    assert on_disk == []
    if isinstance(reply, ms.Failure):
        assert "its memory does not suffice" in reply.text
        assert "hint: " in reply.text
        assert MARK not in reply.text


def test_a_source_that_is_open_already_keeps_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    asked = "SELECT current_setting('temp_file_encryption')"
    with duckdb.connect(str(path)) as own, contextlib.closing(open_source(path)):
        assert own.execute(asked).fetchall() == [(False,)]
    with contextlib.closing(open_source(path)) as con:
        assert con.execute(asked).fetchall() == [(True,)]


def test_the_log_of_a_table_that_predict_makes_is_as_private_as_its_database(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute("CREATE TABLE t AS SELECT i AS id, i * 1.0 AS x FROM range(9) r(i)")
    path.chmod(0o600)
    with duckdb.connect(str(path)) as con, sqlfl.Federation(progress=False) as fed:
        fed.attach("a", con)
        fed.sql("TRAIN MODEL m USING linear_regression TARGET x FROM (SELECT id, x FROM a.t)")
        fed.sql("PREDICT MODEL m ID (a.t.id) FROM (SELECT id FROM a.t) INTO a.scored")
        log = path.with_name("a.duckdb.wal")
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
