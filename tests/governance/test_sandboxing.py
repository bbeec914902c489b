"""Databases that sqlfl opens by their path, whose owners have policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import duckdb
import pytest

import sqlfl
from sqlfl.governance.sandboxing import close_off
from sqlfl.options.policies import TrainingPolicy
from tests.governance.clinic import GRANT, PATIENTS, TESTS, TRAIN, ruled
from tests.open_databases import in_memory

OFF = (
    "enable_external_access", "autoload_known_extensions", "autoinstall_known_extensions",
    "allow_community_extensions", "allow_persistent_secrets", "python_enable_replacements",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "clinic.duckdb"
    with duckdb.connect(found) as con:
        con.execute(PATIENTS)
        ruled(con)
    return found


@contextmanager
def attached(
    path: Path | duckdb.DuckDBPyConnection, file: Path | None = None, analyst: str = "acme"
) -> Iterator[sqlfl.Federation]:
    with sqlfl.connect(file, analyst=analyst, progress=False) as fed, in_memory() as lab:
        lab.execute(TESTS)
        fed.attach("lab", lab)
        fed.attach("clinic", path)
        yield fed


def connection(fed: sqlfl.Federation) -> duckdb.DuckDBPyConnection:
    (con,) = fed._parties._opened["clinic"]
    return con


def setting(con: duckdb.DuckDBPyConnection, name: str) -> object:
    ((value,),) = con.execute("SELECT current_setting(?)", [name]).fetchall()
    return value


@pytest.mark.parametrize("kept", [True, False], ids=["a file", "in memory"])
def test_it_is_closed_and_trains(path: Path, tmp_path: Path, kept: bool) -> None:
    with duckdb.connect(path) as con:
        ruled(con, "memory = '300MiB', threads = 1", grant="")
    with attached(path, tmp_path / "coordinator.duckdb" if kept else None) as fed:
        fed.sql(TRAIN)
        con = connection(fed)
        assert {name for name in OFF if setting(con, name) is not False} == set()
        assert setting(con, "memory_limit") == "300.0 MiB"
        assert setting(con, "threads") == 1
        for text in (
            "SET threads = 8", "SET enable_external_access = true",
            "SET lock_configuration = false",
            "INSTALL httpfs", "LOAD httpfs", f"ATTACH '{tmp_path / 'other.duckdb'}'",
            "SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM glob('/*')",
            f"COPY patients TO '{tmp_path / 'stolen.csv'}'",
        ):  # fmt: skip
            with pytest.raises(duckdb.Error):
                con.execute(text).fetchall()
        assert fed.sql(f"EVALUATE MODEL m FROM ({TRAIN.partition('FROM (')[2]}").arrow().num_rows
    with duckdb.connect(path) as con:
        assert con.execute("SELECT count(*) FROM sqlfl.chain").fetchall() != [(0,)]
        assert setting(con, "enable_external_access") is True  # it is no property of the file


def test_the_strictest_of_all_policies_counts(path: Path) -> None:
    with sqlfl.owner(path) as owner:
        owner.sql("CREATE TRAINING POLICY s WITH (memory = '1GiB', threads = 2)")
        owner.sql("CREATE TRAINING POLICY t WITH (memory = '400MiB', threads = 3)")
    with attached(path) as fed:
        assert setting(connection(fed), "memory_limit") == "400.0 MiB"
        assert setting(connection(fed), "threads") == 2


def test_without_policies_nothing_is_set(tmp_path: Path) -> None:
    path = tmp_path / "clinic.duckdb"
    with duckdb.connect(path) as con:
        con.execute(PATIENTS)
    with attached(path) as fed:
        fed.sql(TRAIN)
        con = connection(fed)
        assert setting(con, "enable_external_access") is True
        assert setting(con, "lock_configuration") is False


def test_an_open_connection_is_left_as_it_is(path: Path) -> None:
    with duckdb.connect(path) as con, attached(con) as fed:
        fed.sql(TRAIN)
        assert setting(con, "enable_external_access") is True
        assert setting(con, "lock_configuration") is False


def test_so_is_one_of_the_same_file_and_the_user_is_told(path: Path) -> None:
    with duckdb.connect(path) as con:
        with ExitStack() as stack:
            with pytest.warns(sqlfl.Warning, match="files, extensions, memory and threads stay"):
                fed = stack.enter_context(attached(path))
            fed.sql(TRAIN)
        assert setting(con, "enable_external_access") is True


@pytest.mark.parametrize("kept", [True, False], ids=["files", "in memory"])
def test_two_federations_have_it_open(path: Path, tmp_path: Path, kept: bool) -> None:
    files = [tmp_path / f"{name}.duckdb" if kept else None for name in "ab"]
    with attached(path, files[0]) as one, attached(path, files[1]) as other:
        for fed in (one, other):
            fed.sql(TRAIN)
            assert setting(connection(fed), "enable_external_access") is False


# -- views over files ------------------------------------------------------------------------------

VIEWS = {
    "a function": "FROM read_parquet('{folder}/*.parquet')",
    "a name": "FROM '{folder}/patients.parquet'",
    "another format": "SELECT * FROM read_csv('{folder}/patients.csv')",
}


@pytest.fixture(params=VIEWS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A database with a view over files of a folder, and the folder."""
    path, folder = tmp_path / "clinic.duckdb", tmp_path / "files"
    folder.mkdir()
    with duckdb.connect(path) as con:
        con.execute(PATIENTS)
        con.execute(f"COPY patients TO '{folder / 'patients.parquet'}'")
        con.execute(f"COPY patients TO '{folder / 'patients.csv'}'")
        con.execute("DROP TABLE patients")
        con.execute(f"CREATE VIEW patients AS {VIEWS[request.param].format(folder=folder)}")
        ruled(con)
    return path, folder


def test_a_view_reads_what_a_policy_names(files: tuple[Path, Path]) -> None:
    path, folder = files
    with sqlfl.owner(path) as owner:
        owner.sql(f"CREATE TRAINING POLICY files WITH (folders = ['{folder}'])")
    with attached(path) as fed:
        fed.sql(TRAIN)
        with pytest.raises(duckdb.PermissionException):
            connection(fed).execute("SELECT * FROM read_text('/etc/passwd')")


def test_and_else_what_is_to_be_done_is_said(files: tuple[Path, Path]) -> None:
    path, folder = files
    with attached(path) as fed, pytest.raises(sqlfl.Error) as error:
        fed.sql(TRAIN)
    assert "may not open what it was asked to read, as a file behind a view" in str(error.value)
    assert "WITH (folders = ['/path'])" in str(error.value)
    assert str(folder) not in str(error.value)


def test_other_tables_are_as_ever(files: tuple[Path, Path]) -> None:
    path, _ = files
    with duckdb.connect(path) as con:
        con.execute(PATIENTS.replace("TABLE patients", "TABLE people"))
        ruled(con, grant=GRANT.replace("patients", "people"))
    with attached(path) as fed:
        fed.sql(TRAIN.replace("clinic.patients", "clinic.people"))


def test_folders_of_policies_add_to_those_of_the_connection() -> None:
    with duckdb.connect() as con:
        con.execute("SET allowed_directories = ['/own']")
        assert close_off(con, TrainingPolicy(folders=("/more",)))
        folders = setting(con, "allowed_directories")
        assert isinstance(folders, list)
        assert {"/own/", "/more/"} < set(folders)  # and one for data that memory does not hold


@pytest.mark.parametrize("folders", ["['data']", "['']", "[]", "3", "['/data', 3]"])
def test_folders_are_absolute_paths(path: Path, folders: str) -> None:
    with sqlfl.owner(path) as owner, pytest.raises(sqlfl.Error, match="absolute paths of folders"):
        owner.sql(f"CREATE TRAINING POLICY f WITH (folders = {folders})")


def test_one_that_may_only_be_read_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlfl.party.attachment.may_be_written", lambda _: False)
    with (
        sqlfl.connect(analyst="acme", progress=False) as fed,
        pytest.raises(sqlfl.PartyError, match="what leaves is to be kept in it"),
    ):
        fed.attach("clinic", path)


def test_one_that_is_closed_stays_as_it_is() -> None:
    with duckdb.connect() as con, closing(con.cursor()) as other:
        assert not close_off(con, TrainingPolicy(threads=1))  # there is another connection
        assert setting(con, "enable_external_access") is True
        other.close()
        assert close_off(con, TrainingPolicy(threads=1))
        assert close_off(con, TrainingPolicy(threads=2))
        assert (setting(con, "threads"), setting(con, "enable_external_access")) == (1, False)
