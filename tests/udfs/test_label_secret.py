"""The secret of label noise: on disk before it is used, and never made anew in silence."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import duckdb
import pytest

from sqlfl.base.errors import Error
from sqlfl.contract.schema import Client
from sqlfl.udfs.blocks.block_tables import blocks_of, current_database
from sqlfl.udfs.describe import ListingCache, place_of
from sqlfl.udfs.labels import label_secret as ls
from sqlfl.udfs.labels.label_secret import (
    BesideFile,
    Holders,
    InDatabase,
    LabelSecret,
    label_secret,
)
from tests.conftest import Open

CLIENT = Client("Clinic", 0)
BESIDE = "clinic.duckdb.label-secret"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "clinic.duckdb"
    duckdb.connect(str(found)).close()
    return found


def schemas(con: duckdb.DuckDBPyConnection) -> set[str]:
    return {name for (name,) in con.execute("SELECT schema_name FROM duckdb_schemas()").fetchall()}


def test_in_memory_it_goes_with_the_session(database: Open) -> None:
    con = database()
    first, second = label_secret(con, CLIENT), label_secret(con, CLIENT)
    assert first.fleeting == second.fleeting == "is in memory"
    assert first.get() == first.get() != second.get()
    assert "sqlfl" not in schemas(con)


def test_it_lies_beside_a_database_that_keeps_no_models(database: Open, path: Path) -> None:
    con = database(path=str(path))
    found = label_secret(con, CLIENT)
    assert found.fleeting == ""
    assert not (path.parent / BESIDE).exists()  # before it is needed
    secret = found.get()
    assert stat.S_IMODE((path.parent / BESIDE).stat().st_mode) == 0o600
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, BESIDE]
    assert "sqlfl" not in schemas(con)
    con.close()
    # by another name, and where sqlfl has opened it to be read
    with duckdb.connect(str(path), read_only=True) as reader:
        assert label_secret(reader, Client("other", 3), given=False).get() == secret
        assert label_secret(reader, CLIENT).get() == secret  # by a caller who only reads
        assert label_secret(reader, CLIENT).fleeting == ""


def test_a_path_that_sqlfl_reads_only_has_a_place_too(path: Path) -> None:
    with duckdb.connect(str(path), read_only=True) as con:
        assert label_secret(con, CLIENT).fleeting == "is read-only"  # as its caller has asked
        assert not (path.parent / BESIDE).exists()
        assert label_secret(con, CLIENT, given=False).fleeting == ""


def test_a_folder_that_may_not_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ls, "may_be_written", lambda path: False)
    with duckdb.connect(str(path), read_only=True) as con:
        assert label_secret(con, CLIENT, given=False).fleeting == "is read-only"


def test_it_lies_in_a_database_that_keeps_models(database: Open, path: Path) -> None:
    """And stays when the last model goes, whatever the coordinator."""
    con = database(path=str(path))
    secret = label_secret(con, CLIENT, keeps=True).get()
    assert not (path.parent / BESIDE).exists()
    blocks = blocks_of(con, "coordinator", str(CLIENT))
    blocks.keep("run")
    blocks.secret("split")
    blocks.drop("run")
    blocks.collect([])
    rows = con.execute("FROM duckdb_tables() SELECT table_name").fetchall()
    assert rows == [("label_secrets",)]
    assert ListingCache().listing(con, place_of(con))[1] == ()
    assert "sqlfl" not in {place.schema for place in ListingCache().listing(con, place_of(con))[0]}
    assert label_secret(con, Client("else", 1), keeps=True).get() == secret
    assert label_secret(con, CLIENT).get() == secret
    con.close()
    copy = path.with_name("copy.duckdb")
    copy.write_bytes(path.read_bytes())
    with duckdb.connect(str(copy), read_only=True) as reader:
        assert label_secret(reader, CLIENT).get() == secret


def test_its_way_into_the_database_is_not_open_to_others(path: Path) -> None:
    """The log has what is not in the database's file yet."""
    path.chmod(0o600)
    before = os.umask(0o022)
    try:
        with duckdb.connect(str(path)) as con:
            secret = label_secret(con, CLIENT, keeps=True).get()
            log = path.with_name(f"{path.name}.wal")
            assert secret in log.read_bytes()
            assert stat.S_IMODE(log.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_one_that_lies_beside_moves_into_the_database(database: Open, path: Path) -> None:
    con = database(path=str(path))
    secret = label_secret(con, CLIENT).get()
    assert label_secret(con, CLIENT, keeps=True).get() == secret
    (path.parent / BESIDE).unlink()
    assert label_secret(con, CLIENT).get() == secret


def test_a_store_has_one_for_each_client(database: Open, tmp_path: Path) -> None:
    store = database(path=str(tmp_path / "store.duckdb"))
    con = database()
    first = label_secret(con, CLIENT, store)
    assert first.fleeting == ""
    assert first.get() == label_secret(database(), Client("CLINIC", 0), store).get()
    assert first.get() != label_secret(con, Client("clinic", 1), store).get()
    assert sorted(p.name for p in tmp_path.iterdir() if "wal" not in p.name) == ["store.duckdb"]


def test_the_databases_own_goes_before_the_stores(
    database: Open, path: Path, tmp_path: Path
) -> None:
    """With a store nothing is written at the source, but what is there holds."""
    con, store = database(path=str(path)), database(path=str(tmp_path / "store.duckdb"))
    kept = label_secret(con, CLIENT, store).get()
    assert not (path.parent / BESIDE).exists()
    beside = label_secret(con, CLIENT).get()
    assert beside != kept
    assert label_secret(con, CLIENT, store).get() == beside


def test_who_is_quicker_is_right(path: Path) -> None:
    """As two processes that only read the database would do it."""
    places = [BesideFile(str(path)) for _ in range(8)]
    found: list[bytes] = []
    gate = threading.Barrier(len(places))

    def make(number: int) -> None:
        gate.wait()
        found.append(places[number].keep(bytes([number]) * ls.BYTES))

    threads = [threading.Thread(target=make, args=(n,)) for n in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(places)
    assert len(set(found)) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, BESIDE]


def test_clients_of_one_process_make_one(database: Open, path: Path) -> None:
    con = database(path=str(path))
    clients = [label_secret(con, CLIENT, keeps=bool(n % 2)) for n in range(6)]
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda c=c: found.append(c.get())) for c in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(clients)
    assert len(set(found)) == 1


DAMAGED = {
    "empty": b"",
    "not JSON": b"{",
    "short": b'{"label_secret": "00ff"}',
    "no text": b"\xff\xfe",
    "another": b'{"secret": "00"}',
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_an_error_and_not_a_new_secret(
    content: bytes, database: Open, path: Path
) -> None:
    beside = path.parent / BESIDE
    beside.write_bytes(content)
    found = label_secret(database(path=str(path)), CLIENT)
    with pytest.raises(Error, match=f"noise, in {BESIDE} beside its database") as raised:
        found.get()
    assert "drawn anew" in (raised.value.hint or "")
    assert found.fleeting == ""
    assert beside.read_bytes() == content


def test_a_damaged_row_is_an_error(database: Open, path: Path) -> None:
    con = database(path=str(path))
    label_secret(con, CLIENT, keeps=True).get()
    con.execute("UPDATE sqlfl.label_secrets SET secret = 'short'::BLOB")
    with pytest.raises(Error, match=r"in sqlfl\.label_secrets, is damaged"):
        label_secret(con, CLIENT).get()
    con.execute("CREATE OR REPLACE TABLE sqlfl.label_secrets AS SELECT 1 AS x")
    with pytest.raises(Error, match="is not the table"):
        label_secret(con, CLIENT).get()


def test_where_it_cannot_be_written_no_other_is_used(
    database: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = database(path=str(path))

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Error, match=r"cannot be kept beside its database.*No space left"):
        label_secret(con, CLIENT).get()
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no half of it
    monkeypatch.undo()
    label_secret(con, CLIENT).get()


def test_a_database_whose_file_is_gone_keeps_no_secret(database: Open, path: Path) -> None:
    con = database(path=str(path))
    found = label_secret(con, CLIENT, keeps=True)
    path.rename(path.with_name("elsewhere.duckdb"))
    with pytest.raises(Error, match="deleted or replaced"):
        found.get()


def test_a_transaction_in_the_way_is_said(database: Open, path: Path) -> None:
    con = database(path=str(path))
    found = LabelSecret((), InDatabase(con, current_database(con), ls.OWN))
    con.execute("BEGIN; CREATE SCHEMA sqlfl; CREATE TABLE sqlfl.label_secrets (x INTEGER)")
    with pytest.raises(Error, match=r"cannot be written into sqlfl\.label_secrets") as raised:
        found.get()
    assert "roll back" in (raised.value.hint or "")
    con.execute("ROLLBACK")
    assert len(found.get()) == ls.BYTES


def test_copies_of_a_database_are_told_apart() -> None:
    holders = Holders()
    one, two, other = b"1" * 32, b"1" * 32, b"2" * 32
    assert holders.number(one, CLIENT) == 0
    assert holders.number(two, Client("b", 0)) == 1
    assert holders.number(other, Client("b", 0)) == 0
    assert holders.number(one, Client("clinic", 0)) == 0
    assert holders.number(one, Client("b", 0)) == 1
