"""Tables that an owner's statements open: what may be read then, and mistakes of a beginner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from sqlfl.base.errors import Error
from sqlfl.databases.sql_sources import SqlSources
from sqlfl.governance.sandboxing import close_off_sources
from sqlfl.options.policies import TrainingPolicy
from tests.open_databases import in_memory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a Parquet file, a CSV file and a DuckDB file."""
    folder = tmp_path / "data"
    folder.mkdir()
    with in_memory() as con:
        con.execute(f"COPY (SELECT 1 AS pid, 20 AS age) TO '{folder}/patients.parquet'")
        con.execute(f"COPY (SELECT 1 AS pid, 0.5 AS crp) TO '{folder}/tests.csv'")
        con.execute(f"COPY (SELECT 'hidden' AS it) TO '{tmp_path}/secret.csv'")
    with duckdb.connect(folder / "crm.duckdb") as con:
        con.execute("CREATE TABLE visits AS SELECT 1 AS pid, 2 AS visits")
    return folder


def sources(data: Path, text: str, **given: object) -> SqlSources:
    text = text.replace("{data}", str(data))
    return SqlSources("bank.sql", text, data.parent / "store.duckdb", **given)  # type: ignore[arg-type]


OPENING = """\
-- as the page on sources has it; a comment may have ; in it
SET allowed_directories = ['{data}'];
ATTACH '{data}/crm.duckdb' AS crm (READ_ONLY);
CREATE VIEW patients AS FROM read_parquet('{data}/*.parquet');
CREATE VIEW tests AS FROM '{data}/tests.csv';
CREATE VIEW visits AS FROM crm.visits;
"""


@pytest.fixture
def opened(data: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    own = sources(data, OPENING)
    with closing(own.open()) as con:
        close_off_sources(con, own, None)
        yield con


def test_views_and_attached_databases_can_be_read(opened: duckdb.DuckDBPyConnection) -> None:
    with opened.cursor() as cursor:
        query = (
            "SELECT age, crp, visits FROM patients JOIN tests USING (pid) JOIN visits USING (pid)"
        )
        assert cursor.execute(query).fetchall() == [(20, 0.5, 2)]
        assert cursor.execute("FROM crm.visits").fetchall() == [(1, 2)]


ATTACKS = (
    "FROM read_csv('{data}/../secret.csv')",
    "FROM read_text('{data}/../secret.csv')",
    "FROM read_blob('/etc/passwd')",
    "FROM '{data}/../secret.csv'",
    "SELECT (SELECT content FROM read_text('{data}/../secret.csv'))",
    "FROM glob('{data}/../*')",
    "FROM read_parquet(['{data}/patients.parquet', '{data}/../secret.csv'])",
    "FROM read_duckdb('{data}/../other.duckdb')",
    "FROM query('FROM read_text(''{data}/../secret.csv'')')",
    "ATTACH '{data}/../other.duckdb' AS other (READ_ONLY)",
    "COPY (SELECT 1) TO '{data}/../stolen.csv'",
    "COPY patients FROM '{data}/../secret.csv'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET allowed_directories = ['/']",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET allowed_directories",
    "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "EXPORT DATABASE '{data}/../all'",
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_else_can(opened: duckdb.DuckDBPyConnection, data: Path, attack: str) -> None:
    with duckdb.connect(data.parent / "other.duckdb") as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS a")
    before = sorted(data.parent.rglob("*"))
    with opened.cursor() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(attack.replace("{data}", str(data))).fetchall()
    assert sorted(data.parent.rglob("*")) == before


def test_values_are_seen_by_statements_alone(data: Path) -> None:
    own = sources(
        data,
        "CREATE SECRET s (TYPE http, BEARER_TOKEN getvariable('token'));"
        "CREATE TABLE t AS SELECT getvariable('token') = 'it''s; -- --' AS same",
        variables={"token": "it's; -- --"},
    )
    assert "it's" not in repr(own)
    with closing(own.open()) as con:
        close_off_sources(con, own, None)
        for each in (con, con.cursor()):
            assert each.execute("SELECT getvariable('token'), same FROM t").fetchall() == [
                (None, True)
            ]
        assert "it's" not in str(con.execute("FROM duckdb_secrets()").fetchall())


MISTAKES = {
    "no SQL": ("SELECT 1;\nATACH 'x' AS y;", r'line 2 is no SQL of DuckDB: .*near "ATACH"'),
    "an open text": ("SELECT 1;\nSELECT 'x;", "line 2 is no SQL of DuckDB: .*unterminated"),
    "no file": (
        "SET threads = 1;\n\nATTACH '{data}/away.duckdb' AS y (READ_ONLY);",
        "bank.sql, line 3: ATTACH failed: .*away.duckdb.*does not exist",
    ),
    "no rows": (
        "CREATE VIEW t AS FROM '{data}/away/*.parquet'",
        "line 1: CREATE VIEW failed: .*No files found that match the pattern",
    ),
    "a relative path": (
        "CREATE VIEW t AS FROM 'patients.parquet'",
        "No files found(.|\n)*hint: look at the path, and write paths in full",
    ),
    "no table": (
        "ATTACH '{data}/crm.duckdb' AS crm (READ_ONLY);\n-- this\nCREATE VIEW t AS FROM crm.visit",
        "line 3: CREATE VIEW failed: Catalog Error: Table with name visit does not exist!.*visits",
    ),
    "twice": (
        "CREATE VIEW t AS SELECT 1 AS a;\nCREATE VIEW t AS SELECT 2 AS a",
        'line 2: CREATE VIEW failed: Catalog Error: View with name "t" already exists',
    ),
    "in its place": (
        "CREATE OR REPLACE TEMP VIEW t AS FROM nothing",
        "line 1: CREATE VIEW failed: Catalog Error: Table with name nothing does not exist",
    ),
    "two databases of a name": (
        "ATTACH '{data}/crm.duckdb' AS c (READ_ONLY);\nATTACH ':memory:' AS c (READ_WRITE)",
        'line 2: ATTACH failed: .*database with name "c" already exists',
    ),
    "open to be written": (
        "ATTACH '{data}/new.duckdb' AS c",
        "line 1: ATTACH says neither READ_ONLY nor READ_WRITE",
    ),
    "words elsewhere": (
        "ATTACH '{data}/READ_ONLY.duckdb' AS \"READ_ONLY\" -- READ_ONLY",
        "line 1: ATTACH says neither READ_ONLY nor READ_WRITE",
    ),
    "no extension": (
        "ATTACH '{data}/crm.sqlite' AS c (TYPE sqlite, READ_ONLY)",
        "line 1: ATTACH failed: (.|\n)*hint: INSTALL sqlite_scanner; LOAD sqlite_scanner; before",
    ),
    "no extension for a place": (
        "CREATE VIEW t AS FROM 's3://bucket/t.parquet'",
        "line 1: CREATE VIEW failed: (.|\n)*hint: INSTALL httpfs; LOAD httpfs; before",
    ),
    "no extension for a function": (
        "CREATE VIEW t AS FROM read_xlsx('{data}/t.xlsx')",
        "line 1: CREATE VIEW failed: (.|\n)*hint: INSTALL excel; LOAD excel; before",
    ),
    "no such setting": ("SET alowed_directories = ['/x']", "line 1: SET failed: .*alowed_direct"),
    "a secret for ever": (
        "CREATE OR REPLACE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
        "line 1: secrets are made anew at each start",
    ),
    "no variable": (
        "CREATE SECRET s (TYPE http, BEARER_TOKEN getvariable('tokn'))",
        r"reads getvariable\('tokn'\), and there is no(.|\n)*did you mean token",
    ),
    "nothing": ("SELECT 1", "bank.sql makes no table or view"),
    "empty": ("-- to come", "bank.sql makes no table or view"),
    "temporary": ("CREATE TEMP VIEW t AS SELECT 1 AS a", "bank.sql makes no table or view"),
    "a folder of keys": (
        "SET allowed_directories = ['{data}/..']; CREATE VIEW t AS SELECT 1 AS a",
        "lets queries read .*, where .*bank.key lies(.|\n)*folder of its own",
    ),
    "a key": (
        "SET allowed_paths = ['{data}/../bank.key']; CREATE VIEW t AS SELECT 1 AS a",
        "lets queries read .*, where .*bank.key lies",
    ),
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(data: Path, text: str, said: str) -> None:
    before = sorted(data.parent.rglob("*"))
    own = sources(data, text, variables={"token": "x"}, private=(data.parent / "bank.key",))
    with pytest.raises(Error, match=said) as caught:
        own.open()
    assert "bank.sql" in str(caught.value)
    assert sorted(data.parent.rglob("*")) == before


def test_a_view_that_no_query_may_read(data: Path) -> None:
    own = sources(data, "CREATE VIEW t AS FROM '{data}/tests.csv'; CREATE VIEW u AS SELECT 1 AS a")
    with closing(own.open()) as con, pytest.raises(Error) as caught:
        close_off_sources(con, own, None)
    assert "bank.sql: the view t reads a file that no query may open" in caught.value.message
    assert "SET allowed_directories = ['/data/visits']" in str(caught.value)


def test_a_view_whose_columns_do_not_fit(data: Path) -> None:
    own = sources(data, "CREATE VIEW u AS SELECT 1 AS a; CREATE VIEW t AS FROM u; DROP VIEW u")
    with closing(own.open()) as con, pytest.raises(Error, match="the view t cannot be read: "):
        close_off_sources(con, own, None)


RESTRICTED = {
    "locked": ("SET lock_configuration = true", None, "the configuration has been locked"),
    "closed": (
        "SET enable_external_access = false",
        TrainingPolicy(folders=("/data",)),
        "allowed_directories",
    ),
    "too large": (
        "CREATE TABLE big AS SELECT random() AS x FROM range(4000000)",
        TrainingPolicy(memory=1 << 20),
        "(.|\n)*must fit into the memory of all policies",
    ),
}


@pytest.mark.parametrize(("text", "rules", "said"), RESTRICTED.values(), ids=RESTRICTED)
def test_statements_that_prevent_a_restriction(
    data: Path, text: str, rules: TrainingPolicy | None, said: str
) -> None:
    own = sources(data, f"CREATE TABLE t AS SELECT 1 AS a; {text}")
    said = f"bank.sql: queries cannot be restricted afterwards: .*{said}"
    with closing(own.open()) as con, pytest.raises(Error, match=said):
        close_off_sources(con, own, rules)


def test_other_connections_to_it_do_not_keep_it_open(data: Path) -> None:
    """Extensions have some of their own, as DuckLake to its catalog."""
    own = sources(data, OPENING)
    with closing(own.open()) as con, con.cursor() as other:
        close_off_sources(con, own, None)
        with pytest.raises(duckdb.PermissionException):
            other.execute("FROM read_text('/etc/passwd')")


def test_a_statement_that_is_several_to_duckdb(data: Path) -> None:
    own = sources(data, "CREATE TABLE t AS PIVOT (SELECT 1 AS a, 'x' AS b) ON b USING sum(a);")
    with closing(own.open()) as con:
        assert con.execute("SELECT x FROM t").fetchall() == [(1,)]


SECRETS = {
    "a literal": "CREATE SECRET s (TYPE http, BEARER_TOKN 'geheim')",
    "a literal of a type": "CREATE SECRET s (TYPE geheim, BEARER_TOKEN 'x')",
    "no SQL": "CREATE SECRET s (TYPE http, BEARER_TOKEN 'geheim' 'geheim')",
    "a variable": "SELECT error(getvariable('password'))",
    "a variable in words": "SELECT error('the door: ' || getvariable('password') || '.')",
    "a connection": "SELECT error('cannot connect to host=db user=me password=geheim port=1')",
    "quoted": "SELECT error('cannot connect to host=db password=''geheim x''')",
    "a place": "SELECT error('cannot open postgresql://me:geheim@db:5432/x')",
    "a pass": "SELECT error('GET https://x/y?sig=1&token=geheim&z=2')",
    "a dollar text": "CREATE SECRET s (TYPE http, BEARER_TOKEN $a$geheim$a$ $b$geheim$b$)",
}


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_no_error_has_a_secret(data: Path, text: str) -> None:
    own = sources(data, text, variables={"password": "geheim"})
    with pytest.raises(Error) as caught:
        own.open()
    assert "geheim" not in str(caught.value)
    assert "geheim" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["a b", "x; SELECT 1", "", "ä", "1x"])
def test_a_variable_has_a_plain_name(data: Path, name: str) -> None:
    with pytest.raises(Error, match="is no name of a variable"):
        sources(data, "SELECT 1", variables={name: "x"}).open()


def test_secrets_that_the_user_has_stored_are_not_found(data: Path) -> None:
    own = sources(data, "CREATE TABLE t AS SELECT current_setting('secret_directory') AS folder")
    with closing(own.open()) as con:
        assert con.execute("FROM t").fetchall() == [(f"{data.parent}/store.duckdb.secrets",)]
    assert not (data.parent / "store.duckdb.secrets").exists()
