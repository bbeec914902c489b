"""Attaching: connections, paths, lists and stores; what fails leaves nothing behind."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import sqlfl
from tests import lasting
from tests.lasting import FILES, evaluate, kept_runs, train


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lasting.make(tmp_path)
    return tmp_path


@pytest.fixture
def fed(folder: Path) -> Iterator[sqlfl.Federation]:
    """With a coordinator's file, and census attached."""
    with sqlfl.Federation(folder / "coordinator.duckdb", progress=False) as made:
        made.attach("census", [folder / FILES[0], folder / FILES[1]])
        yield made


def is_free(path: Path) -> bool:
    """Whether another process may open the file to write, that is, nothing here has it open."""
    code = "import duckdb, sys; duckdb.connect(sys.argv[1]).close()"
    return subprocess.run([sys.executable, "-c", code, path], capture_output=True).returncode == 0


def test_a_path_is_read_only_unless_it_keeps_blocks(folder: Path) -> None:
    with sqlfl.connect() as fed:
        fed.attach("geo", folder / FILES[2])
        with contextlib.closing(duckdb.connect(str(folder / FILES[2]), read_only=True)):
            pass  # another configuration would be refused
    with sqlfl.connect(folder / "c.duckdb") as fed:
        fed.attach("geo", folder / FILES[2], folder / "store.duckdb")
        with contextlib.closing(duckdb.connect(str(folder / FILES[2]), read_only=True)):
            pass
    with sqlfl.connect(folder / "c.duckdb") as fed:
        fed.attach("geo", folder / FILES[2])
        with pytest.raises(duckdb.ConnectionException):
            duckdb.connect(str(folder / FILES[2]), read_only=True)
    assert is_free(folder / FILES[2])


@pytest.mark.parametrize("how", ["path", "connection", "list"])
def test_a_store_keeps_the_blocks(how: str, fed: sqlfl.Federation, folder: Path) -> None:
    store = folder / "store.duckdb"
    before = (folder / FILES[2]).read_bytes()
    with contextlib.ExitStack() as stack:
        given: object = str(store)
        if how == "connection":
            given = stack.enter_context(contextlib.closing(duckdb.connect(str(store))))
        elif how == "list":
            given = [store]
        fed.attach("geo", folder / FILES[2], given)  # type: ignore[arg-type]
        assert store.exists()
        fed.sql(train())
        assert fed.model("m").lasting
        fed.close()
        if isinstance(given, duckdb.DuckDBPyConnection):
            assert given.execute("SELECT count(*) FROM sqlfl.blocks").fetchall() == [(1,)]
    assert [client for client, _ in kept_runs(store)] == ["geo/0"]
    assert (folder / FILES[2]).read_bytes() == before


def test_one_store_for_each_client(folder: Path) -> None:
    stores = [folder / "s0.duckdb", folder / "s1.duckdb"]
    for _ in range(2):
        with sqlfl.connect(folder / "c.duckdb") as fed:
            fed.attach("census", [folder / FILES[0], folder / FILES[1]], stores)
            fed.attach("geo", folder / FILES[2])
            fed.sql(train(head="TRAIN OR REPLACE MODEL"))
            assert evaluate(fed) > 0
    assert [kept_runs(store)[0][0] for store in stores] == ["census/0", "census/1"]
    assert kept_runs(folder / FILES[0]) == []


def test_a_read_only_connection_in_every_statement(folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        *census, geo = (
            stack.enter_context(
                contextlib.closing(duckdb.connect(str(folder / name), read_only=True))
            )
            for name in FILES
        )
        fed = stack.enter_context(sqlfl.connect(folder / "c.duckdb"))
        fed.attach("census", census)
        fed.attach("geo", geo)
        for engine in ("sql", "arrays"):
            fed.sql(train(head="TRAIN OR REPLACE MODEL", more=f", engine = '{engine}'"))
            assert evaluate(fed) > 0
            predict = f"PREDICT MODEL m ID (census.people.id) {lasting.QUERY}"
            assert len(fed.sql(predict)) == 70
        fed.sql("SHOW MODELS")
        fed.sql("DESCRIBE MODEL m")
        fed.explain(train("n"))
        fed.sql("DROP MODEL m")


def broken(folder: Path) -> dict[str, tuple[object, object, str]]:
    """Source, store and what the error says."""
    (folder / "text.duckdb").write_text("hello\n" * 900)
    geo, store = folder / FILES[2], folder / "new.duckdb"
    closed = duckdb.connect()
    closed.close()
    return {
        "no file": (folder / "nowhere.duckdb", None, "there is no database file"),
        "no database": (folder / "text.duckdb", None, "not a DuckDB database"),
        "a folder": (folder, None, "is a folder"),
        "a closed connection": (closed, None, "connection is closed"),
        "a number": (7, None, "connection or a path"),
        "the second of a list": ([geo, folder / "nowhere.duckdb"], None, "no database file"),
        "the coordinator's file": (folder / "coordinator.duckdb", None, "coordinator's own file"),
        "a store that is a folder": (geo, folder, "is a folder"),
        "a store in no folder": (geo, folder / "no" / "s.duckdb", "there is no folder"),
        "a store that is no database": (geo, folder / "text.duckdb", "not a DuckDB database"),
        "a store that is the source": (geo, geo, "is the source itself"),
        "a store that is the coordinator's": (
            geo, folder / "coordinator.duckdb", "coordinator's own file"),
        "a store that is a number": (geo, 7, "must be a path"),
        "a store in memory": (geo, duckdb.connect(), "its store is in memory"),
        "a closed store": (geo, closed, "connection is closed"),
        "too many stores": (geo, [store, store], "1 clients, and store has 2 entries"),
        "a second store that fails": ([geo, geo], [store, folder], "is a folder"),
        "a source that fails beside a new store": ([geo, 7], store, "connection or a path"),
    }  # fmt: skip


CASES = [
    "no file", "no database", "a folder", "a closed connection", "a number",
    "the second of a list", "the coordinator's file", "a store that is a folder",
    "a store in no folder", "a store that is no database", "a store that is the source",
    "a store that is the coordinator's", "a store that is a number", "a store in memory",
    "a closed store", "too many stores", "a second store that fails",
    "a source that fails beside a new store",
]  # fmt: skip


@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES)
def test_a_failed_attach_leaves_nothing(case: str, fed: sqlfl.Federation, folder: Path) -> None:
    cases = broken(folder)
    assert list(cases) == CASES
    source, store, text = cases[case]
    before = sorted(path.name for path in folder.iterdir())
    audit = len(fed.audit())
    with pytest.raises(sqlfl.Error, match=text):
        fed.attach("geo", source, store)  # type: ignore[arg-type]
    assert sorted(path.name for path in folder.iterdir()) == before
    assert len(fed.audit()) == audit
    assert "geo" not in repr(fed)
    assert is_free(folder / FILES[2])
    fed.attach("geo", folder / FILES[2])
    fed.sql(train())
    assert evaluate(fed) > 0


def test_a_party_that_refuses_to_collect_is_not_attached(
    fed: sqlfl.Federation, folder: Path
) -> None:
    """Its schema `sqlfl` has tables of the names of ours that are not ours."""
    with duckdb.connect(str(folder / FILES[2])) as con:
        con.execute("CREATE SCHEMA sqlfl")
        for name in ("blocks", "secrets"):
            con.execute(f"CREATE TABLE sqlfl.{name} (x INTEGER)")
    with pytest.raises(sqlfl.PartyError, match="geo/0"):
        fed.attach("geo", folder / FILES[2])
    assert is_free(folder / FILES[2])
    fed.attach("geo", folder / FILES[2], folder / "store.duckdb")
    fed.sql(train())
    assert fed.model("m").lasting


def test_a_store_needs_a_coordinator_that_keeps_models(folder: Path) -> None:
    with sqlfl.connect() as fed, pytest.raises(sqlfl.Error, match=r"(?s)store.*connect"):
        fed.attach("geo", folder / FILES[2], folder / "store.duckdb")
    assert not (folder / "store.duckdb").exists()


def test_a_file_that_is_open_with_another_configuration(
    fed: sqlfl.Federation, folder: Path
) -> None:
    with contextlib.closing(duckdb.connect(str(folder / FILES[2]), read_only=True)) as con:
        with pytest.raises(sqlfl.PartyError, match=r"(?s)another configuration.*store="):
            fed.attach("geo", folder / FILES[2])
        fed.attach("geo", con)
        fed.sql(train())
        assert "geo/0 is read-only" in fed.model("m").kept


def test_a_file_that_another_process_reads(fed: sqlfl.Federation, folder: Path) -> None:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1], read_only=True); print(); input()"
    command = [sys.executable, "-c", code, str(folder / FILES[2])]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(sqlfl.PartyError, match=r"(?s)open in another process.*store="):
            fed.attach("geo", folder / FILES[2])
        fed.attach("geo", folder / FILES[2], folder / "store.duckdb")
        other.communicate("\n")
    fed.sql(train())
    assert fed.model("m").lasting


def test_the_database_that_use_has_chosen_keeps_the_blocks(
    fed: sqlfl.Federation, folder: Path
) -> None:
    with contextlib.closing(duckdb.connect()) as con:
        con.execute(f"ATTACH '{folder / FILES[2]}' AS other")
        con.execute("USE other")
        fed.attach("geo", con)
        fed.sql(train())
        assert fed.model("m").lasting
        assert con.execute("SELECT count(*) FROM other.sqlfl.blocks").fetchall() == [(1,)]


def test_tables_of_the_schema_are_hidden(fed: sqlfl.Federation, folder: Path) -> None:
    fed.attach("geo", folder / FILES[2])
    fed.sql(train())
    text = (
        "TRAIN MODEL n USING linear_regression TARGET slot FROM (SELECT slot FROM geo.sqlfl.blocks)"
    )
    with pytest.raises(sqlfl.PlanError):
        fed.sql(text)
