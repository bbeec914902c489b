"""Attaching: connections, paths, lists and stores; what fails leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import duckdb
import pandas
import pyarrow as pa
import pytest

import sqlfl
from tests import lasting
from tests.conftest import Open
from tests.depth import SEED
from tests.lasting import FILES, evaluate, is_free, kept_runs, train


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
    for again in (False, True):
        with sqlfl.connect(folder / "c.duckdb") as fed:
            fed.attach("census", [folder / FILES[0], folder / FILES[1]], stores)
            fed.attach("geo", folder / FILES[2])
            if again:
                assert evaluate(fed) > 0
            fed.sql(train(head="TRAIN OR REPLACE MODEL", epochs=1))
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
            engined = f", engine = '{engine}'"
            fed.sql(train(head="TRAIN OR REPLACE MODEL", epochs=1, more=engined))
            assert evaluate(fed) > 0
            assert len(fed.sql(lasting.PREDICT)) == 70
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


def test_a_failed_attach_leaves_nothing(fed: sqlfl.Federation, folder: Path) -> None:
    cases = list(broken(folder).items())
    Random(SEED).shuffle(cases)  # none may stand in the way of another
    before = sorted(path.name for path in folder.iterdir())
    audit = len(fed.audit())
    for case, (source, store, text) in cases:
        with pytest.raises(sqlfl.Error, match=text):
            fed.attach("geo", source, store)  # type: ignore[arg-type]
        assert sorted(path.name for path in folder.iterdir()) == before, case
        assert len(fed.audit()) == audit, case
        assert "geo" not in repr(fed), case
        assert is_free(folder / FILES[2]), case
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
    store, empty = folder / "store.duckdb", folder / "empty.duckdb"
    duckdb.connect(str(empty)).close()
    before = sorted(path.name for path in folder.iterdir())
    with sqlfl.connect() as fed, contextlib.closing(duckdb.connect()) as con:
        for kept in (store, [store], empty, con):
            with pytest.raises(sqlfl.Error, match=r"(?s)store.*connect"):
                fed.attach("geo", folder / FILES[2], kept)
            assert sorted(path.name for path in folder.iterdir()) == before
            assert is_free(folder / FILES[2])
            assert is_free(empty)
        for kept, said in ((folder, "is a folder"), (folder / FILES[2], "is the source itself")):
            with pytest.raises(sqlfl.PartyError, match=said):
                fed.attach("geo", folder / FILES[2], kept)
    with sqlfl.owner(folder / FILES[2], store) as owner:
        owner.sql("CREATE TRAINING POLICY p")
    with sqlfl.connect() as fed:
        fed.attach("geo", folder / FILES[2], store)
        assert not is_free(store)
    assert is_free(store)


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


# -- one database, once ----------------------------------------------------------------------------


def twice(folder: Path) -> dict[str, list[object]]:
    """One database in two ways."""
    path, link, hard = (folder / name for name in (FILES[2], "link.duckdb", "hard.duckdb"))
    link.symlink_to(path)
    os.link(path, hard)
    con = duckdb.connect()
    con.execute(lasting.TOWNS)
    inner = duckdb.connect()
    inner.execute(f"ATTACH '{path}' AS inside (READ_ONLY)")
    inner.execute("USE inside")
    return {
        "a connection": [con, con],
        "a cursor": [con, con.cursor()],
        "two cursors": [con.cursor(), con.cursor()],
        "a path": [path, str(path)],
        "a link": [path, link],
        "a hard link": [hard, path],
        "a path and its connection": [duckdb.connect(str(path), read_only=True), path],
        "one that has attached it": [path, inner],
    }


TWICE = [
    "a connection", "a cursor", "two cursors", "a path", "a link", "a hard link",
    "a path and its connection", "one that has attached it",
]  # fmt: skip


@pytest.mark.parametrize("how", TWICE)
def test_one_database_is_not_two_clients(how: str, folder: Path) -> None:
    """Each of its rows would count twice."""
    ways = twice(folder)
    assert list(ways) == TWICE
    with contextlib.ExitStack() as stack:
        for way in ways.values():
            for item in way:
                if isinstance(item, duckdb.DuckDBPyConnection):
                    stack.callback(item.close)
        fed = stack.enter_context(sqlfl.connect())
        with pytest.raises(sqlfl.PartyError, match=r"geo/1: its database is that of client geo/0"):
            fed.attach("geo", ways[how])  # type: ignore[arg-type]
        assert "geo" not in repr(fed)
        with pytest.raises(sqlfl.PartyError, match=r"geo/2: .* that of client geo/1"):
            fed.attach("geo", [folder / FILES[0], *ways[how]])  # type: ignore[list-item]


def test_two_databases_of_one_instance_are_two_clients(database: Open) -> None:
    """Chosen by USE; but a path that names one of them at both clients is one table twice."""
    con = database(
        "ATTACH ':memory:' AS north",
        "ATTACH ':memory:' AS south",
        "CREATE SCHEMA north.more",
        *(
            f"CREATE TABLE {place}.t AS SELECT i AS x, 2 * i AS y FROM range({n}) r(i)"
            for place, n in (("north", 20), ("north.more", 10), ("south", 5))
        ),
    )
    cursors = [con.cursor() for _ in range(3)]
    for cursor, place in zip(cursors, ("north", "north.more", "south"), strict=True):
        cursor.execute(f"USE {place}")
    text = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM (FROM bank.{})"
    with sqlfl.connect() as fed:
        fed.attach("bank", cursors)
        fed.sql(text.format("t"))
        assert fed.model("m").metrics["rows"] == 35
        for path in ("north.t", "north.main.t", "north.more.t"):
            with pytest.raises(sqlfl.PlanError, match="is the same table at clients 0 and"):
                fed.sql(text.format(path))
    with sqlfl.connect() as fed:
        fed.attach("bank", con)
        fed.sql(text.format("north.t"))
        assert fed.model("m").metrics["rows"] == 20
    for cursor in cursors:
        cursor.close()


def test_one_database_under_two_names(database: Open) -> None:
    """Is a warning only where a union takes the same rows of both."""
    con = database("CREATE TABLE t AS SELECT i AS id, i % 3 AS x, i AS y FROM range(30) r(i)")
    with sqlfl.connect() as fed:
        fed.attach("a", con)
        fed.attach("b", con.cursor())
        train = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM ({})"
        fed.sql(train.format("SELECT p.x, q.y FROM a.t p JOIN b.t q ON p.id = q.id"))
        half = "SELECT x, y FROM {} WHERE y {} 10"
        fed.sql(train.format(f"{half.format('a.t', '<')} UNION ALL {half.format('b.t', '>=')}"))
        assert fed.model("m").metrics["rows"] == 30
        both = "SELECT x, y FROM a.t UNION ALL SELECT x, y FROM b.t"
        with pytest.warns(sqlfl.Warning, match="parties a and b have one database"):
            fed.sql(train.format(both))
        assert fed.model("m").metrics["rows"] == 60


def test_settings_of_a_session_are_told(database: Open) -> None:
    con = database("SET TimeZone = 'Asia/Tokyo'", "SET integer_division = true")
    with sqlfl.connect() as fed:
        with pytest.warns(sqlfl.Warning, match="TimeZone = '.*', integer_division = 'false'") as w:
            fed.attach("a", con)
        assert len(w) == 1
        assert w[0].filename == __file__


def test_tables_of_other_libraries_are_attached() -> None:
    frame = pandas.DataFrame({"k": [1, 2, 3, 4], "x": [1.0, 2.0, None, 4.0]}, index=list("abcd"))
    rows = pa.table({"k": [1, 2, 3, 4], "y": [2.0, 4.0, 6.0, 8.0], "c": ["a", "b", "a", "b"]})

    class Stream:
        """Whatever has Arrow's interface, as polars has."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return rows.__arrow_c_stream__(requested_schema)

    with sqlfl.connect(progress=False) as fed:
        fed.attach("lab", {"tests": frame, 'odd "name"': rows.to_batches()[0]})
        fed.attach("clinic", [{"visits": Stream()}, {"visits": rows.slice(0, 0)}])
        assert fed.sql("DESCRIBE lab.tests").fetchall() == [("k", "BIGINT", 1), ("x", "DOUBLE", 1)]
        assert fed.table('lab."odd ""name"""').columns == ("k", "y", "c")
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y WITH (l2 = 0) FROM (SELECT t.x, v.y "
            "FROM lab.tests t JOIN clinic.visits v USING (k))"
        )
        frame.loc["a", "k"] = 99  # a copy was taken
        found = fed.sql("PREDICT MODEL m ID (t.k) FROM (SELECT t.x FROM lab.tests t)")
        fed.attach("again", {"predicted": found})
        assert sorted(found["k"].to_pylist()) == [1, 2, 3, 4]
        assert fed.table("again.predicted").types == ("BIGINT", "DOUBLE")
        fed.detach("again")


# -- what is no database ---------------------------------------------------------------------------


def no_databases(folder: Path) -> dict[str, tuple[object, str, str]]:
    """Source, what the error says and what its hint does."""
    (folder / "rows").mkdir()
    with contextlib.closing(sqlite3.connect(folder / "crm.db")) as other:
        other.execute("CREATE TABLE t (x INTEGER)")
        other.commit()
    frame = pandas.DataFrame({"x": [1]})
    closed = duckdb.connect()
    closed.close()
    attach, table = "ATTACH '.*' AS db .TYPE {}, READ_ONLY.", "CREATE {} t AS FROM {}"
    view = table.format("VIEW", "'.*{}'")
    return {
        "memory": (":memory:", "new and empty", "give the open connection"),
        "a close name": (folder / "noth.duckdb", "no database file", "did you mean .*north.duckdb"),
        "no folder": (folder / "no" / "x.duckdb", "there is no folder", "working directory"),
        "a folder": (folder, "is a folder", r'attach\("geo", \['),
        "an empty folder": (folder / "rows", "is a folder", "path of a file"),
        "parquet": ("rows/t.parquet", "is a Parquet file", view.format("t.parquet")),
        "csv": (folder / "t.csv.gz", "is a CSV file", view.format("t.csv.gz")),
        "several": ("rows/*.parquet", "is a Parquet file", view.format(r"\*.parquet")),
        "databases": ("parts/*.duckdb", "is a pattern of files", "glob.glob"),
        "arrow": ("t.arrow", "is an Arrow file", table.format("TABLE", "rows")),
        "postgres": ("postgres://me:secret@h/db", "PostgreSQL", attach.format("postgres")),
        "libpq": ("dbname=w host=h", "PostgreSQL", attach.format("postgres")),
        "mysql": ("mysql://h/db", "MySQL", attach.format("mysql")),
        "s3": ("s3://b/t.parquet", "a s3 URL", "let a connection read it"),
        "sqlite": (folder / "crm.db", "is an SQLite database", attach.format("sqlite")),
        "a frame": (frame, "got a pandas DataFrame", r'attach\("geo", \{"t": df\}\)'),
        "arrow table": (pa.table({"x": [1]}), "got an Arrow table", r'\{"t": df\}'),
        "the module": (duckdb, "got module", "default_connection"),
        "a relation": (duckdb.sql("SELECT 1"), "DuckDBPyRelation", r"relation.create"),
        "closed": (closed, "connection is closed", "open it again"),
        "no tables": ({}, "no tables to attach", r'\{"t": df\}'),
        "a dictionary": ({"north": duckdb.connect()}, "got _duckdb.DuckDB", "are a list"),
        "a list": ({"north": [1, 2]}, "'north' must be a pandas, polars", "pyarrow.table"),
        "a name": ({1: frame}, "the name of a table must be text", ""),
        "columns": ({"t": pandas.DataFrame({"x": [1, "a"]})}, "columns that Arrow cannot", ""),
        "none": ({"t": pa.table({})}, "'t' cannot be made", ""),
        "nothing": (None, "got NoneType", r"duckdb.connect\(\)"),
    }


NO_DATABASES = [
    "memory", "a close name", "no folder", "a folder", "an empty folder", "parquet", "csv",
    "several", "databases", "arrow", "postgres", "libpq", "mysql", "s3", "sqlite", "a frame",
    "arrow table", "the module", "a relation", "closed", "no tables", "a dictionary", "a list",
    "a name", "columns", "none", "nothing",
]  # fmt: skip


def test_what_is_no_database_has_a_cure(folder: Path) -> None:
    cases = no_databases(folder)
    assert list(cases) == NO_DATABASES
    with sqlfl.connect() as fed:
        for case, (source, message, hint) in cases.items():
            with pytest.raises(sqlfl.PartyError) as caught:
                fed.attach("geo", source)  # type: ignore[arg-type]
            error = caught.value
            assert re.search(message, error.message), (case, error)
            assert error.hint or not hint, case
            assert re.search(hint, error.hint or ""), (case, error)
            assert "secret" not in str(error)
        with pytest.raises(sqlfl.Error, match="the name comes first"):
            fed.attach(duckdb.connect(), "geo")  # type: ignore[arg-type]
