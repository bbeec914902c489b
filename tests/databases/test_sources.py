"""Where tables may lie: schemas, other databases of a connection, views, files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pytest

import sqlfl
from tests.conftest import Open
from tests.open_databases import in_memory

ROWS = "SELECT range AS id, range % 7 AS x, 3 * (range % 7) + range % 2 AS y FROM range(40)"
OTHER = "SELECT range AS id, sin(range) AS z FROM range(40)"
LABELS = f"CREATE TABLE labels AS SELECT id, y FROM ({ROWS})"
OPTIONS = "USING linear_regression TARGET y"


@contextlib.contextmanager
def federation(*parties: tuple[str, duckdb.DuckDBPyConnection]) -> Iterator[sqlfl.Federation]:
    with sqlfl.Federation(progress=False) as fed:
        for name, con in parties:
            fed.attach(name, con)
        yield fed


def predictions(fed: sqlfl.Federation, query: str, ids: str) -> list[tuple[object, ...]]:
    """Trains and predicts; the columns of ID, then the prediction, in order."""
    fed.sql(f"TRAIN OR REPLACE MODEL m {OPTIONS} FROM ({query})")
    found = fed.sql(f"PREDICT MODEL m ID ({ids}) FROM ({query})")
    return sorted((*row[:-1], round(row[-1], 4)) for row in found.fetchall())  # type: ignore[type-var]


@pytest.fixture(scope="module")
def expected() -> list[tuple[object, ...]]:
    """What a plain table of the party gives."""
    with in_memory() as con, in_memory() as owner, contextlib.ExitStack() as stack:
        con.execute(f"CREATE TABLE t AS {ROWS}")
        owner.execute(LABELS)
        fed = stack.enter_context(federation(("a", con), ("b", owner)))
        return predictions(fed, "SELECT t.x, l.y FROM a.t JOIN b.labels l ON t.id = l.id", "a.t.id")


SOURCES = {
    "catalog": (["ATTACH ':memory:' AS far", f"CREATE TABLE far.t AS {ROWS}"], "far.t"),
    "catalog in full": (
        ["ATTACH ':memory:' AS far", f"CREATE TABLE far.t AS {ROWS}"],
        "far.main.t",
    ),
    "schema of a catalog": (
        ["ATTACH ':memory:' AS far", "CREATE SCHEMA far.s", f"CREATE TABLE far.s.t AS {ROWS}"],
        "far.s.t",
    ),
    "schema": (["CREATE SCHEMA s", f"CREATE TABLE s.t AS {ROWS}"], "s.t"),
    "its own database in full": (
        ["CREATE SCHEMA s", f"CREATE TABLE s.t AS {ROWS}"],
        "memory.s.t",
    ),
    "its own database": ([f"CREATE TABLE t AS {ROWS}"], "memory.t"),
    "main": ([f"CREATE TABLE t AS {ROWS}"], "main.t"),
    "schema named as a catalog": (
        [
            "CREATE SCHEMA far",
            f"CREATE TABLE memory.far.t AS {ROWS}",
            "ATTACH ':memory:' AS far",
            "CREATE TABLE far.main.t AS SELECT 1 AS id",
        ],
        "memory.far.t",
    ),
    "names that need quotes": (
        [
            "ATTACH ':memory:' AS \"far off\"",
            'CREATE SCHEMA "far off"."select"',
            f'CREATE TABLE "far off"."select".t AS {ROWS}',
        ],
        '"far off"."select".t',
    ),
    "another case": (
        ["ATTACH ':memory:' AS Far", "CREATE SCHEMA far.S", f"CREATE TABLE far.s.T AS {ROWS}"],
        "FAR.s.t",
    ),
    "view over another database": (
        [
            "ATTACH ':memory:' AS far",
            f"CREATE TABLE far.u AS {ROWS}",
            "CREATE VIEW t AS FROM far.u",
        ],
        "t",
    ),
}


@pytest.mark.parametrize(("statements", "path"), SOURCES.values(), ids=SOURCES)
def test_a_table_is_found_wherever_it_lies(
    statements: Sequence[str], path: str, expected: list[tuple[object, ...]], database: Open
) -> None:
    con, owner = database(*statements), database(LABELS)
    with federation(("a", con), ("b", owner)) as fed:
        query = f"SELECT q.x, l.y FROM a.{path} q JOIN b.labels l ON q.id = l.id"
        assert predictions(fed, query, "q.id") == expected
        # without an alias, in FROM, before columns and in ID
        query = f"SELECT a.{path}.x, l.y FROM a.{path} JOIN b.labels l ON a.{path}.id = l.id"
        assert predictions(fed, query, f"a.{path}.id") == expected
        # in a subquery that goes to the party whole
        inner = f"SELECT a.{path}.id, max(a.{path}.x) AS x FROM a.{path} GROUP BY a.{path}.id"
        query = f"SELECT q.x, l.y FROM ({inner}) q JOIN b.labels l ON q.id = l.id"
        assert predictions(fed, query, "q.id") == expected


@pytest.mark.parametrize("table", ["far.s.t.x", "s.t.x", "t.x"])
def test_a_column_may_be_named_by_the_end_of_its_tables_path(
    table: str, expected: list[tuple[object, ...]], database: Open
) -> None:
    con = database(
        "ATTACH ':memory:' AS far", "CREATE SCHEMA far.s", f"CREATE TABLE far.s.t AS {ROWS}"
    )
    with federation(("a", con), ("b", database(LABELS))) as fed:
        query = f"SELECT {table}, l.y FROM a.far.s.t JOIN b.labels l ON t.id = l.id"
        assert predictions(fed, query, "t.id") == expected


def test_fields_of_a_column_in_another_database(
    expected: list[tuple[object, ...]], database: Open
) -> None:
    con = database(
        "ATTACH ':memory:' AS far",
        f"CREATE TABLE far.t AS SELECT id, {{'inner': {{'x': x}}}} AS s FROM ({ROWS})",
    )
    with federation(("a", con), ("b", database(LABELS))) as fed:
        query = (
            "SELECT a.far.main.t.s.inner.x, l.y FROM a.far.main.t "
            "JOIN b.labels l ON a.far.main.t.id = l.id"
        )
        assert predictions(fed, query, "a.far.main.t.id") == expected


def test_tables_of_one_name_are_told_apart(database: Open) -> None:
    con = database(
        "CREATE TABLE t AS SELECT 1 AS own",
        "CREATE SCHEMA s",
        "CREATE TABLE s.t AS SELECT 1 AS inner_one",
        "ATTACH ':memory:' AS far",
        "CREATE TABLE far.t AS SELECT 1 AS far_one",
        "CREATE SCHEMA far.s",
        "CREATE TABLE far.s.t AS SELECT 1 AS deep",
        "ATTACH ':memory:' AS near",
        "CREATE TABLE near.t AS SELECT 1 AS near_one",
    )
    owner = database("CREATE TABLE labels AS SELECT 1 AS id, 2 AS y")
    columns = {
        "t": "own",
        "s.t": "inner_one",
        "far.t": "far_one",
        "far.s.t": "deep",
        "near.t": "near_one",
    }
    with federation(("a", con), ("b", owner)) as fed:
        for path, column in columns.items():
            query = f"SELECT q.{column}, l.y FROM a.{path} q JOIN b.labels l ON q.{column} = l.id"
            plan = fed.explain(f"TRAIN MODEL m {OPTIONS} FROM ({query})")
            assert [f.name for f in plan.ucq.slots[0].features] == [column]


def test_a_schema_that_is_a_database_too_is_ambiguous(database: Open) -> None:
    con = database(
        "CREATE SCHEMA far",
        f"CREATE TABLE memory.far.t AS {ROWS}",
        "ATTACH ':memory:' AS far",
        f"CREATE TABLE far.main.u AS {ROWS}",
    )
    with pytest.raises(duckdb.BinderException, match="Ambiguous"):
        con.execute("FROM far.t")
    with federation(("a", con), ("b", database(LABELS))) as fed:
        query = "SELECT x, l.y FROM a.far.t JOIN b.labels l ON t.id = l.id"
        with pytest.raises(sqlfl.PlanError, match="far is a schema and a database of a") as caught:
            fed.explain(f"TRAIN MODEL m {OPTIONS} FROM ({query})")
        assert caught.value.hint == "write a.memory.far.table, or a.far.main.table"
        assert "FROM a.far.t JOIN" in str(caught.value)
        assert "^" * len("a.far.t") in str(caught.value)


def test_what_is_not_there_is_an_error_with_the_nearest_name(database: Open) -> None:
    con = database("ATTACH ':memory:' AS far", f"CREATE TABLE far.main.flights AS {ROWS}")
    with federation(("a", con)) as fed:
        for path, hint in (
            ("far.flight", "did you mean far.main.flights?"),
            ("far.main.flight", "did you mean far.main.flights?"),
            ("far.sqlfl.blocks", None),
        ):
            with pytest.raises(sqlfl.PlanError, match="has no table") as caught:
                fed.explain(f"TRAIN MODEL m {OPTIONS} FROM (SELECT x, y FROM a.{path})")
            assert hint is None or caught.value.hint == hint
        con.execute("CREATE TEMP TABLE drafts AS FROM far.main.flights")
        with pytest.raises(sqlfl.PlanError, match=r"(?s)there is far\.main\.flights; temp.*CREATE"):
            fed.explain(f"TRAIN MODEL m {OPTIONS} FROM (SELECT x, y FROM a.drafts)")
        with pytest.raises(sqlfl.PlanError, match="too many parts"):
            fed.explain(f"TRAIN MODEL m {OPTIONS} FROM (SELECT x, y FROM a.b.c.d.e)")


def test_a_database_attached_meanwhile_is_seen(
    expected: list[tuple[object, ...]], database: Open
) -> None:
    con = database()
    with federation(("a", con), ("b", database(LABELS))) as fed:
        query = "SELECT x, l.y FROM a.far.t JOIN b.labels l ON t.id = l.id"
        with pytest.raises(sqlfl.PlanError, match=r"no table far\.t"):
            predictions(fed, query, "t.id")
        con.execute("ATTACH ':memory:' AS far")
        con.execute(f"CREATE TABLE far.t AS {ROWS}")
        assert predictions(fed, query, "t.id") == expected
        con.execute("DETACH far")
        with pytest.raises(sqlfl.PlanError, match=r"no table far\.t"):
            predictions(fed, query, "t.id")


def test_use_counts_as_it_was_when_the_party_was_attached(
    expected: list[tuple[object, ...]], database: Open
) -> None:
    con = database(
        "CREATE TABLE t AS SELECT 1 AS wrong",
        "ATTACH ':memory:' AS far",
        "CREATE SCHEMA far.s",
        f"CREATE TABLE far.s.t AS {ROWS}",
        "USE far.s",
    )
    with federation(("a", con), ("b", database(LABELS))) as fed:
        con.execute("USE memory.main")
        for path in ("t", "s.t", "far.t", "far.s.t"):
            query = f"SELECT q.x, l.y FROM a.{path} q JOIN b.labels l ON q.id = l.id"
            assert predictions(fed, query, "q.id") == expected
        assert con.execute("SELECT current_schema()").fetchall() == [("main",)]
        con.execute("DETACH far")
        with pytest.raises(sqlfl.PartyError, match=r"far\.s is gone"):
            predictions(fed, query, "q.id")


def test_attaching_leaves_the_connection_as_it_is(database: Open) -> None:
    con = database("ATTACH ':memory:' AS far", "USE far")
    con.begin()
    con.execute("CREATE TABLE mine AS SELECT 1 AS x")
    con.execute("FROM range(9000)")
    assert con.fetchmany(2) == [(0,), (1,)]
    with federation(("a", con)):
        assert con.fetchmany(2) == [(2,), (3,)]
    con.complete()
    con.rollback()
    with pytest.raises(duckdb.CatalogException):
        con.execute("FROM mine")


def test_a_connection_whose_transaction_failed_can_be_attached(
    expected: list[tuple[object, ...]], database: Open
) -> None:
    con = database("ATTACH ':memory:' AS far", f"CREATE TABLE far.t AS {ROWS}", "USE far")
    con.begin()
    with pytest.raises(duckdb.Error):
        con.execute("SELECT error('no')").fetchall()
    with federation(("b", database(LABELS))) as fed:
        with pytest.warns(sqlfl.Warning, match="a/0: .*open transaction"):
            fed.attach("a", con)
        query = "SELECT t.x, l.y FROM a.t JOIN b.labels l ON t.id = l.id"
        assert predictions(fed, query, "a.t.id") == expected
    con.rollback()


FILES = {
    "parquet": "COPY ({}) TO '{}' (FORMAT parquet)",
    "csv": "COPY ({}) TO '{}' (FORMAT csv)",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_view_over_a_file(
    kind: str, expected: list[tuple[object, ...]], database: Open, tmp_path: Path
) -> None:
    path = tmp_path / f"rows.{kind}"
    con = database(FILES[kind].format(ROWS, path), f"CREATE VIEW t AS FROM '{path}'")
    with federation(("a", con), ("b", database(LABELS))) as fed:
        query = "SELECT t.x, l.y FROM a.t JOIN b.labels l ON t.id = l.id"
        assert predictions(fed, query, "a.t.id") == expected
        path.unlink()
        with pytest.raises(sqlfl.PlanError, match="party a cannot evaluate this"):
            fed.sql(f"EVALUATE MODEL m FROM ({query})")


def test_a_read_only_file_attached_to_the_connection(
    expected: list[tuple[object, ...]], database: Open, tmp_path: Path
) -> None:
    path = tmp_path / "far.duckdb"
    with contextlib.closing(duckdb.connect(path)) as con:
        con.execute(f"CREATE TABLE t AS {ROWS}")
    con = database(f"ATTACH '{path}' AS far (READ_ONLY)")
    with federation(("a", con), ("b", database(LABELS))) as fed:
        query = "SELECT t.x, l.y FROM a.far.t JOIN b.labels l ON t.id = l.id"
        assert predictions(fed, query, "t.id") == expected


def test_an_enum_of_another_database_is_a_category(database: Open) -> None:
    con = database(
        "ATTACH ':memory:' AS far",
        "CREATE SCHEMA far.s",
        "CREATE TYPE far.s.colour AS ENUM ('red', 'blue')",
        "CREATE TABLE far.s.t (id INTEGER, c far.s.colour)",
        "INSERT INTO far.s.t SELECT range, CASE range % 2 WHEN 0 THEN 'red' ELSE 'blue' END "
        "FROM range(40)",
        "CREATE VIEW v AS SELECT * FROM far.s.t",
    )
    owner = database(
        "CREATE TABLE labels AS SELECT range AS id, range % 2 * 5.0 AS y FROM range(40)"
    )
    with federation(("a", con), ("b", owner)) as fed:
        for path in ("far.s.t", "v"):
            query = f"SELECT q.c, l.y FROM a.{path} q JOIN b.labels l ON q.id = l.id"
            found = predictions(fed, query, "q.c")
            assert {(c, round(p, 2)) for c, p in found} == {("red", 0.0), ("blue", 5.0)}  # type: ignore[call-overload]


def test_one_party_may_join_its_databases(
    expected: list[tuple[object, ...]], database: Open
) -> None:
    con = database(
        "ATTACH ':memory:' AS far",
        f"CREATE TABLE far.t AS SELECT id, x FROM ({ROWS})",
        LABELS,
    )
    with federation(("a", con)) as fed:
        query = "SELECT t.x, l.y FROM a.far.t JOIN a.labels l ON t.id = l.id"
        found = predictions(fed, query, "t.id")
    assert [row[0] for row in found] == [row[0] for row in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.parametrize("extension", ["sqlite", "postgres"])
def test_databases_of_other_kinds(
    extension: str, expected: list[tuple[object, ...]], database: Open, tmp_path: Path
) -> None:
    """Where the extension can be loaded without a network; PostgreSQL needs a server besides."""
    con = database("SET autoinstall_known_extensions = false")
    try:
        con.execute(f"LOAD {extension}")
    except duckdb.Error as error:
        pytest.skip(f"the extension {extension} is not installed: {str(error).splitlines()[0]}")
    if extension == "postgres":
        pytest.skip("there is no PostgreSQL server")
    con.execute(f"ATTACH '{tmp_path / 'far.sqlite'}' AS far (TYPE sqlite)")
    con.execute(f"CREATE TABLE far.t AS {ROWS}")
    with federation(("a", con), ("b", database(LABELS))) as fed:
        query = "SELECT t.x, l.y FROM a.far.t JOIN b.labels l ON t.id = l.id"
        assert predictions(fed, query, "t.id") == expected
