"""An owner's records in a store, apart from a database that is only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import duckdb
import pytest

import sqlfl
from sqlfl.base.errors import Error, OptionError
from tests.conftest import Open

POLICY = "CREATE TRAINING POLICY research WITH (min_rows = 20)"
GRANT = "GRANT TRAIN (age), JOIN (pid) ON patients TO 'acme' UNDER research"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as con:
        con.execute("CREATE TABLE patients (pid INTEGER, age INTEGER)")
        con.execute("CREATE VIEW old AS SELECT pid, age FROM patients WHERE age > 80")
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "records.duckdb"


@pytest.fixture
def con(source: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(source, read_only=True) as found:
        yield found


def roles(source: Path | duckdb.DuckDBPyConnection, store: Path) -> list[str]:
    with sqlfl.owner(source, store) as owner:
        return list(owner.sql("SHOW GRANTS").arrow().column("roles").to_pylist())


def test_the_first_policy_makes_it_for_its_owner_alone(source: Path, store: Path) -> None:
    before = source.read_bytes()
    with sqlfl.owner(source, store=store) as owner:
        assert not store.exists()
        owner.sql(POLICY)
        owner.sql(GRANT)
        made = sorted(path for path in store.parent.iterdir() if path != source)
        assert [path.name for path in made] == ["records.duckdb", "records.duckdb.wal"]
        assert {S_IMODE(path.stat().st_mode) for path in made} == {0o600}
    assert roles(source, store) == ["TRAIN (age), JOIN (pid)"]
    assert source.read_bytes() == before
    with duckdb.connect(store) as kept:
        assert kept.sql("SELECT name, definition FROM sqlfl.grants").fetchall() == [
            ("patients", "")
        ]


def test_the_source_is_only_read(con: duckdb.DuckDBPyConnection, source: Path, store: Path) -> None:
    """Beside `con`, it can be opened in no other way."""
    for given in (source, con):
        with sqlfl.owner(given, store) as owner:
            owner.sql(POLICY.replace("CREATE", "CREATE OR REPLACE"))
            owner.sql(GRANT)
        assert len(roles(given, store)) == 1 + (given is con)


def test_a_file_of_no_bytes_is_none(source: Path, store: Path) -> None:
    store.touch()
    with sqlfl.owner(source, store) as owner:
        owner.sql(POLICY)
    assert roles(source, store) == []


def test_a_connection_may_be_a_store_and_a_source(
    con: duckdb.DuckDBPyConnection, database: Open
) -> None:
    kept = database("SELECT 1")
    with sqlfl.owner(con, store=kept) as owner:
        owner.sql(POLICY)
        owner.sql(GRANT)
        owner.sql(GRANT.replace("patients", "old"))
    found = kept.execute('SELECT "database", name, definition FROM sqlfl.grants').fetchall()
    assert [row[:2] for row in found] == [("clinic", "patients"), ("clinic", "old")]
    assert [len(row[2]) for row in found] == [0, 64]
    schemas = con.execute("SELECT schema_name FROM duckdb_schemas()").fetchall()
    assert ("sqlfl",) not in schemas


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SHOW REQUESTS", "there is no store .*records.duckdb"),
        (GRANT, "there is no store"),
        ("CREATE TRAINING POLICY p WITH (min_row = 1)", "there is no rule min_row"),
    ],
)
def test_what_fails_makes_no_store(source: Path, store: Path, text: str, said: str) -> None:
    with sqlfl.owner(source, store) as owner, pytest.raises(Error, match=said):
        owner.sql(text)
    assert list(store.parent.iterdir()) == [source]


def test_what_is_no_store(source: Path, store: Path, tmp_path: Path, database: Open) -> None:
    (tmp_path / "text.duckdb").write_text("hello\n" * 900)
    con = database("CREATE TABLE patients (pid INTEGER)")
    con.execute("ATTACH ':memory:' AS records")
    beside = con.cursor()
    beside.execute("USE records")
    cases: list[tuple[object, object, str]] = [
        (source, source, "is the source itself"),
        (source, tmp_path, "is a folder"),
        (source, tmp_path / "text.duckdb", "is not a DuckDB database"),
        (source, 7, "must be a path"),
        (tmp_path / "no.duckdb", store, "there is no database file"),
        (con, con, "open on the connection of the tables"),
        (con, beside, "open on the connection of the tables"),
    ]
    for given, kept, said in cases:
        with pytest.raises(Error, match=said):
            sqlfl.owner(given, kept)  # type: ignore[arg-type]
    with pytest.raises(Error, match="there is no folder"):
        sqlfl.owner(source, tmp_path / "no" / "s.duckdb").sql(POLICY)
    assert not store.exists()
    with duckdb.connect(source):  # and it is closed
        pass


def test_a_database_that_is_only_read_takes_none_itself(
    con: duckdb.DuckDBPyConnection, source: Path
) -> None:
    before = source.read_bytes()
    with sqlfl.owner(con) as owner:
        for what in ("POLICIES", "GRANTS", "REQUESTS", "BUDGETS", "DISCLOSURES"):
            assert len(owner.sql(f"SHOW {what}").arrow()) == 0
        with pytest.raises(Error, match=r"(?s)clinic is read-only.*store="):
            owner.sql(POLICY)
    assert source.read_bytes() == before


def test_a_store_that_is_only_read_takes_none(source: Path, store: Path) -> None:
    with sqlfl.owner(source, store) as owner:
        owner.sql(POLICY)
    with duckdb.connect(store, read_only=True) as kept, sqlfl.owner(source, kept) as owner:
        assert len(owner.sql("SHOW POLICIES").arrow()) == 1
        with pytest.raises(Error, match="records is read-only"):
            owner.sql(GRANT)


def test_policies_are_in_one_place(source: Path, store: Path) -> None:
    with sqlfl.owner(source) as owner:
        owner.sql(POLICY)
    with sqlfl.owner(source, store) as owner, pytest.raises(Error) as error:
        owner.sql(POLICY)
    assert str(source) in str(error.value)
    assert str(store) in str(error.value)
    assert not store.exists()
    with sqlfl.owner(source) as owner:
        owner.sql("DROP TRAINING POLICY research")
    with sqlfl.owner(source, store) as owner:
        owner.sql(POLICY)
        owner.sql(GRANT)
    with sqlfl.owner(source) as owner:  # which cannot know
        owner.sql(POLICY)
    with sqlfl.owner(source, store) as owner:
        for text in (GRANT, POLICY.replace("research", "other")):
            with pytest.raises(Error, match="in two places"):
                owner.sql(text)
        assert len(owner.sql("SHOW GRANTS").arrow()) == 1
        owner.sql("REVOKE ALL ON patients FROM 'acme'; DROP TRAINING POLICY research")


def test_a_wrong_option_has_its_place(source: Path, store: Path) -> None:
    with sqlfl.owner(source, store) as owner, pytest.raises(OptionError) as error:
        owner.sql("CREATE TRAINING POLICY p WITH (min_rows = 0)")
    assert error.value.column == 43
