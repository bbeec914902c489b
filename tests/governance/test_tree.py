"""What a SELECT reads, and what is not even looked through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as some

from sqlfl.base.errors import PolicyError
from sqlfl.governance.names import Functions, functions_of
from sqlfl.governance.scopes import Table
from sqlfl.governance.tree import MAX_CHARACTERS, SelectReading, read
from tests.open_databases import in_memory

Reading = Callable[[str], SelectReading]
COLUMNS = {"t": ("id", "a", "b", "c", "y"), "u": ("id", "d", "e", "s")}
MADE = """CREATE TABLE t (id INTEGER, a INTEGER, b DOUBLE, c VARCHAR, y BOOLEAN);
CREATE TABLE u (id INTEGER, d INTEGER, e INTEGER, s STRUCT(x INTEGER));
CREATE SCHEMA hr; CREATE TABLE hr.salaries (z INTEGER); CREATE SEQUENCE numbers;
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE MACRO twice(x) AS 2 * x; CREATE MACRO abs(x) AS (SELECT max(z) FROM hr.salaries);
CREATE MACRO rows() AS TABLE FROM hr.salaries;"""


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        found.execute(MADE)
        yield found


def columns(parts: Sequence[str]) -> tuple[Table, tuple[str, ...]] | None:
    name = parts[-1].lower()
    if len(parts) > 1 or name not in COLUMNS:
        return None
    return ("memory", "main", name), COLUMNS[name]


@pytest.fixture(scope="module")
def functions(con: duckdb.DuckDBPyConnection) -> Functions:
    return functions_of(con)


@pytest.fixture(scope="module")
def read_select(con: duckdb.DuckDBPyConnection, functions: Functions) -> Reading:
    """A function that reads a SELECT over the tables of `con`."""
    return lambda text: read(con, text, columns, functions)


def names(found: SelectReading) -> tuple[list[str], str, str]:
    """Of each output what it reads; filters; links."""
    outputs = [" ".join(sorted(column.name for column in o.reads)) for o in found.outputs]
    filters, links = (
        " ".join(sorted({column.name for column in own})) for own in (found.filters, found.links)
    )
    return outputs, filters, links


@pytest.mark.parametrize(
    ("text", "outputs", "filters", "links"),
    [
        ("SELECT q.a + 1 AS a, q.c FROM t AS q WHERE q.b > 0", ["a", "c"], "b", ""),
        ("SELECT a FROM t WHERE b > 0 AND NOT id IS NULL", ["a"], "b", "id"),
        ("SELECT a FROM t WHERE (CASE WHEN b > 3 THEN NULL ELSE 1 END) IS NULL", ["a"], "b", ""),
        ("SELECT q.d FROM (SELECT id, max(d) AS d FROM u WHERE e < 4 GROUP BY id) AS q", ["d"],
         "e", "id"),
        ("SELECT count(*) AS n FROM t GROUP BY a % 2", [""], "a", ""),
        ("SELECT a FROM t WHERE id IN (SELECT id FROM u WHERE e > 1)", ["a"], "e", "id"),
        ("SELECT a FROM t WHERE id IN (SELECT id + 1 FROM u)", ["a"], "id", ""),
        ("SELECT a FROM t WHERE a NOT IN (SELECT d FROM u)", ["a"], "a d", ""),
        ("SELECT EXISTS (SELECT * FROM u WHERE u.id = t.id AND e > 1) AS m FROM t", [""], "e",
         "id"),
        ("SELECT (SELECT max(d) FROM u WHERE u.id = t.id) AS m FROM t", ["d"], "", "id"),
        ("WITH t AS (SELECT d, e FROM u) SELECT d FROM t", ["d"], "", ""),
        ("SELECT a FROM t UNION ALL SELECT d FROM u", ["a d"], "", ""),
        ("SELECT a FROM t UNION SELECT d FROM u", ["a d"], "a d", ""),
        ("SELECT a FROM t ORDER BY c LIMIT 3", ["a"], "c", ""),
        ("SELECT DISTINCT ON (b) a FROM t", ["a"], "a b", ""),
        ("SELECT list_transform([a], lambda x: x + b) AS r FROM t", ["a b"], "", ""),
        ("SELECT max(a) FILTER (y) OVER (PARTITION BY c ORDER BY b) AS m FROM t", ["a b c y"],
         "y", ""),
        ("SELECT t FROM t", ["a b c id y"], "", ""),
        ("SELECT u.s.x FROM u", ["s"], "", ""),
        ("SELECT * EXCLUDE (id) FROM u", ["d", "e", "s"], "", ""),
        ("SELECT z.q FROM t, LATERAL (SELECT t.b AS q) AS z", ["b"], "", ""),
        ("SELECT a AS b, b + 1 AS g FROM t", ["a", "a b"], "", ""),
        ("SELECT k FROM (SELECT a, b FROM t) AS q(k, l)", ["a"], "", ""),
        ("SELECT q.sqlfl_kept AS x FROM (SELECT y IS NULL AS sqlfl_kept FROM t) AS q", ["y"], "",
         ""),
        ("SELECT q.sqlfl_kept FROM (SELECT y IS NULL AS sqlfl_kept FROM t) AS q", ["y"], "y", ""),
        ("SELECT * FROM (SELECT y IS NULL FROM t) AS q(sqlfl_kept)", ["y"], "y", ""),
        ("SELECT a, y IS NOT NULL AND b > 3 AS sqlfl_kept FROM t", ["a", "b y"], "b", "y"),
        ("SELECT a FROM t JOIN u USING (id)", ["a"], "", "id"),
        ("WITH q(a, x) AS (SELECT b, a FROM t) SELECT q.a FROM q", ["b"], "", ""),
        ("SELECT q.a FROM t AS q(x, y, a)", ["b"], "", ""),
        ("SELECT q.a FROM (SELECT * REPLACE (b AS a) FROM t) AS q", ["b"], "", ""),
        ("SELECT a AS k, b AS k, k + 1 AS f FROM t", ["a", "b", "a b"], "", ""),
        ("SELECT main.t.b AS f FROM t, (SELECT 1 + 1) AS q", ["b"], "", ""),
        ("SELECT memory.main.t.b AS f FROM t, (SELECT 1 + 1) AS q", ["b"], "", ""),
        ("SELECT list_transform([1], lambda main: main.t.b) AS f FROM t", ["b"], "", ""),
        ("SELECT a, b FROM t ORDER BY 2 LIMIT 3", ["a", "b"], "b", ""),
        ("SELECT a % 2 AS k, id FROM t GROUP BY 1, 2", ["a", "id"], "a", "id"),
        ("SELECT (SELECT max(a) FROM (SELECT b COLLATE NOCASE FROM t)) AS f FROM t", ["a b"], "",
         ""),
        ("SELECT a FROM t LIMIT (SELECT max(b) FROM t)", ["a"], "b", ""),
        ("SELECT first(a ORDER BY b) AS f FROM t", ["a b"], "", ""),
        ("SELECT sum(a) OVER w AS f FROM t WINDOW w AS (ORDER BY b)", ["a b"], "", ""),
        ("SELECT a FROM t JOIN u ON t.id = u.id AND u.e > t.b", ["a"], "b e", "id"),
        ("SELECT try_cast(c AS INTEGER[3]) AS k, {'x': a} AS l FROM t", ["c", "a"], "", ""),
    ],
)  # fmt: skip
def test_what_is_read(
    read_select: Reading, text: str, outputs: list[str], filters: str, links: str
) -> None:
    assert names(read_select(text)) == (outputs, filters, links)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("SELECT id FROM t", "id"),
        ("SELECT lower(trim(CAST(c AS VARCHAR))) FROM t", "c"),
        ("SELECT coalesce(id, CAST('0' AS INTEGER)) FROM t", "id"),
        ("SELECT CASE WHEN FALSE THEN id END FROM t", "id"),
        ("SELECT k FROM (SELECT id AS k FROM t)", "id"),
        ("SELECT CASE WHEN a > 3 THEN id END FROM t", None),
        ("SELECT coalesce(id, 600000123) FROM t", None),
        ("SELECT id + 600000000 FROM t", None),
        ("SELECT row_number() OVER () FROM t", None),
        ("SELECT c || '1' FROM t", None),
        ("SELECT max(id) FROM t", None),
        ("SELECT id FROM t UNION ALL SELECT 600000123", None),
    ],
)
def test_what_is_a_column_but_for_its_form(
    read_select: Reading, text: str, key: str | None
) -> None:
    (output,) = read_select(text).outputs
    assert (None if output.same is None else output.same.name) == key


JOINED = "t JOIN u ON t.id = u.id"


@pytest.mark.parametrize(
    ("text", "computed"),
    [
        ("SELECT a, CAST(b AS INTEGER), y, CAST(y AS VARCHAR) FROM t", [False] * 4),
        ("SELECT a > 3, a + 0, 1, CAST(a AS BOOLEAN), TRY_CAST(b AS INTEGER) FROM t", [True] * 5),
        ("SELECT CAST(CAST(b AS INTEGER) AS BOOLEAN) AS f FROM t", [True]),
        ("SELECT f FROM (SELECT CAST(a AS BOOLEAN) AS f FROM t) q", [True]),
        ("SELECT CAST(f AS DOUBLE) FROM (SELECT a + 1 AS f FROM t) q", [True]),
        ("SELECT u.s.x FROM u", [True]),
        (f"SELECT t.a, u.d FROM {JOINED}", [False, False]),
        (f"SELECT t.a, u.d FROM {JOINED} WHERE t.b > 0.5", [False, False]),
        # rows of u by values of t
        (f"SELECT t.a, u.d FROM {JOINED} AND u.e = CAST(t.b > 0.5 AS INTEGER)", [True, True]),
        (f"SELECT u.d FROM {JOINED} WHERE u.e = 1 AND t.b > 0 OR u.e = 0 AND t.b <= 0", [True]),
        (
            f"SELECT u.d FROM {JOINED} WHERE EXISTS (SELECT 1 WHERE u.e = CAST(t.b > 0 AS INT))",
            [True],
        ),
        ("SELECT q.a FROM t JOIN t AS q ON t.id = q.id AND q.b = t.b + 1", [True]),
        (
            f"SELECT d FROM (SELECT u.d, u.e, t.b FROM {JOINED}) q WHERE e = CAST(b > 0 AS INT)",
            [True],
        ),
        # NULL where a condition leaves no partner
        ("SELECT t.a, u.d FROM t LEFT JOIN u ON t.id = u.id", [False, False]),
        ("SELECT t.a, u.d FROM t LEFT JOIN u ON t.id = u.id AND u.e > 3", [False, True]),
        ("SELECT t.a, q.d FROM t LEFT JOIN (FROM u WHERE e > 3) q ON t.id = q.id", [False, True]),
        ("SELECT q.d FROM t LEFT JOIN (FROM (FROM u WHERE e > 3)) q ON t.id = q.id", [True]),
        ("WITH q AS (FROM u WHERE e > 3) SELECT q.d FROM t LEFT JOIN q ON t.id = q.id", [True]),
        ("SELECT q.d FROM t LEFT JOIN (FROM u LIMIT 3) q ON t.id = q.id", [True]),
        ("SELECT q.a, t.c FROM t LEFT JOIN LATERAL (SELECT t.a WHERE t.b > 0) q ON TRUE",
         [True, False]),
        ("SELECT t.a, u.d FROM u RIGHT JOIN t ON t.id = u.id AND u.e > 3", [False, True]),
        ("SELECT t.a, u.d FROM t FULL JOIN u ON t.id = u.id AND u.e > 3", [True, True]),
        # of either table, by a condition
        (
            f"SELECT t.a FROM {JOINED} WHERE t.b > 0 UNION ALL SELECT u.d FROM {JOINED} "
            "WHERE t.b <= 0", [True],
        ),
        ("SELECT a FROM t WHERE b > 0 UNION ALL SELECT a FROM t WHERE b <= 0", [False]),
        ("SELECT a FROM t UNION ALL SELECT d FROM u", [False]),
    ],
)  # fmt: skip
def test_which_columns_are_computed(read_select: Reading, text: str, computed: list[bool]) -> None:
    assert [output.computed for output in read_select(text).outputs] == computed


@pytest.mark.parametrize(
    ("text", "filters", "links"),
    [
        ("SELECT d FROM u WHERE u.s.x = u.s.y", "s", ""),
        ("SELECT d FROM u WHERE s.x = d", "d s", ""),
        ("SELECT count(*) FROM u GROUP BY u.s.x", "s", ""),
        ("SELECT d FROM u WHERE u.s IS NOT NULL", "", "s"),
        ("SELECT d FROM u JOIN t ON main.u.id = main.t.id", "", "id"),
    ],
)
def test_fields_of_columns_are_no_columns(
    read_select: Reading, text: str, filters: str, links: str
) -> None:
    assert names(read_select(text))[1:] == (filters, links)


REFUSED = [
    "SELECT z FROM hr.salaries", "SELECT z FROM memory.hr.salaries", "FROM 'x.csv'",
    "FROM read_csv('x')", "FROM read_text('/etc/passwd')", "FROM glob('*')", "FROM query('FROM t')",
    "FROM query_table('t')", "FROM duckdb_settings()", "FROM duckdb_logs()",
    "FROM duckdb_secrets()", "FROM 'x.parquet'",
    "FROM sqlfl.secrets", "FROM sqlfl.grants", "FROM information_schema.tables", "FROM rows()",
    "FROM enable_logging()", "FROM pragma_table_info('t')", "FROM range(1000000)",
    "FROM generate_series(1, 9)", "FROM unnest([1, 2])", "SELECT unnest([1, 2])",
    "SELECT range(1000000000000)", "SELECT repeat('x', 1000000000)",
    "FROM json_execute_serialized_sql('{}')", "SELECT getenv('HOME')",
    "SELECT current_setting('memory_limit')", "SELECT getvariable('x')",
    "SELECT nextval('numbers')",
    "SELECT currval('numbers')", "SELECT setval('numbers', 1)", "SELECT random()", "SELECT uuid()",
    "SELECT now()", "SELECT current_date", "SELECT current_user", "SELECT version()",
    "SELECT write_log('x')", "SELECT error('x')", "SELECT sleep_ms(1)", "SELECT txid_current()",
    "SELECT current_query()", "SELECT current_database()", "SELECT in_search_path('a', 'b')",
    "SELECT pg_typeof(1)", "SELECT has_table_privilege('t', 'select')", "SELECT stats(1)",
    "SELECT json_serialize_sql('SELECT 1')", "SELECT twice(a) FROM t", "SELECT abs(a) FROM t",
    "SELECT main.twice(a) FROM t", "SELECT hr.twice(a) FROM t", "SELECT a::mood FROM t",
    "SELECT hr.x::INTEGER FROM t", "SELECT rowid FROM t", "SELECT t.rowid FROM t",
    "SELECT rowid FROM t, (SELECT 1 + 1) AS q", "SELECT current_user FROM t, (SELECT 1 + 1) AS q",
    "SELECT list_transform([1], lambda t: t.rowid) FROM t",
    "SELECT a FROM t UNION ALL BY NAME SELECT b AS a FROM t",
    "SELECT * RENAME (b AS a) FROM t", "SELECT filename FROM t", "SELECT secret FROM t",
    "SELECT t.secret FROM t",
    "SELECT COLUMNS('.*') FROM t", "SELECT COLUMNS(*) FROM t", "SELECT a FROM t TABLESAMPLE 10%",
    "SELECT a FROM t USING SAMPLE 1", "SELECT a FROM t NATURAL JOIN u",
    "SELECT a FROM t POSITIONAL JOIN u", "SELECT $1", "SELECT ?", "SELECT 1; SELECT 2", "",
    "INSERT INTO t VALUES (1)", "UPDATE t SET a = 1", "DELETE FROM t", "DROP TABLE t",
    "CREATE TABLE x AS FROM t", "COPY t TO 'x'", "ATTACH 'x'", "LOAD httpfs", "INSTALL httpfs",
    "SET memory_limit = '1GB'", "PRAGMA database_list", "CALL duckdb_settings()", "EXPLAIN FROM t",
    "DESCRIBE t", "SUMMARIZE t", "SHOW TABLES", "PIVOT t ON a USING sum(b)",
    "FROM (DESCRIBE t)", "FROM (PIVOT t ON a USING sum(b))", "EXPORT DATABASE 'x'", "CHECKPOINT",
    "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) FROM r",
    "SELECT a FROM t GROUP BY ALL", "SELECT a FROM t ORDER BY ALL", "SELECT a FROM t, t",
    "SELECT a FROM t WHERE a IN (FROM hr.salaries)", "SELECT (SELECT z FROM hr.salaries) FROM t",
    "SELECT a FROM t WHERE EXISTS (FROM read_text('x'))", "FROM hr.salaries AS t",
    "SELECT [x FOR x IN [nextval('numbers')]]",
    "SELECT list_transform([1], lambda x: getenv('HOME'))", "SELECT a FROM t ORDER BY random()",
    "SELECT a FROM t LIMIT (SELECT max(z) FROM hr.salaries)",
    "SELECT max(a) FILTER (random() > 0.5) FROM t", "SELECT a FROM t AT (VERSION => 1)",
    f"SELECT {'+'.join(['a'] * 3000)} FROM t",
    "SELECT 1 AS k FROM read_csv('x')", "SELECT count(*) AS n FROM range(1000000)",
    "SELECT k FROM t AS q(k, l, m, n, o, p)",
    "SELECT a, b FROM t UNION ALL SELECT a FROM t", "SELECT x.* FROM t", "SELECT *",
    f"SELECT {','.join(['ln(1)'] * 30_000)}", f"SELECT '{'x' * MAX_CHARACTERS}'", "SELECT '\x00'",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_what_is_refused(con: duckdb.DuckDBPyConnection, read_select: Reading, text: str) -> None:
    with pytest.raises(PolicyError):
        read_select(text)
    assert con.execute("SELECT last_value FROM duckdb_sequences()").fetchall() == [(None,)]


PIECES = [
    "a", "b", "t.a", "u.d", "secret", "z", "hr.salaries", "t", "u", "(SELECT d FROM u)", "1", "'x'",
    "main.t.b", "k", "q.k", "(SELECT 1 + 1)", "lambda t: t.b", "twice(a)",
    "sum(a)", "random()", "t.secret", "(SELECT max(z) FROM hr.salaries)", "id", "*",
]  # fmt: skip
SHAPES = [
    "SELECT {} FROM t", "SELECT {} FROM t JOIN u ON {} = {}", "SELECT a FROM t WHERE {} > {}",
    "SELECT q.x FROM (SELECT {} AS x FROM t) AS q", "SELECT a FROM t WHERE {} IN ({})",
    "SELECT {} AS k, {} AS k, k AS l FROM t, (SELECT 1 + 1) AS q",
    "SELECT {} FROM t AS q(k, l, m), (SELECT {} AS m) AS r ORDER BY {}",
    "WITH q(k, l) AS (SELECT {}, {} FROM t) SELECT {} FROM q",
    "SELECT list_transform([{}], {}) FROM t",
    "SELECT a FROM {} WHERE {}", "WITH t AS (SELECT {} AS a FROM u) SELECT a FROM t",
    "SELECT CASE WHEN {} THEN {} END AS x FROM t GROUP BY {}",
    "SELECT {} FROM t UNION SELECT {} FROM u",
    "SELECT a FROM t ORDER BY {} LIMIT {}", "SELECT (SELECT {} FROM u WHERE {} = {}) AS x FROM t",
]  # fmt: skip


@given(some.sampled_from(SHAPES), some.lists(some.sampled_from(PIECES), min_size=4, max_size=4))
def test_nothing_is_read_that_is_not_told(
    functions: Functions, shape: str, pieces: list[str]
) -> None:
    """Where all other columns of the tables have other names, and nothing else is there, the query
    is bound all the same."""
    text = shape.format(*pieces)
    with in_memory() as con, in_memory() as bare:
        con.execute(MADE)
        try:
            found = read(con, text, columns, functions)
        except PolicyError:
            return
        every = {c for o in found.outputs for c in o.reads} | {*found.filters} | found.links
        for name in COLUMNS:
            own = {c.name for c in every if c.table[2] == name}
            types = {"s": "STRUCT(x INTEGER)", "b": "DOUBLE", "c": "VARCHAR", "y": "BOOLEAN"}
            told = ", ".join(
                f"{c if c in own else f'other_{c}'} {types.get(c, 'INTEGER')}"
                for c in COLUMNS[name]
            )
            bare.execute(f"CREATE TABLE {name} ({told})")
        try:
            con.execute(f"DESCRIBE {text}").fetchall()
        except duckdb.Error:
            return  # no query at all
        bare.execute(f"DESCRIBE {text}").fetchall()


@pytest.mark.parametrize(
    ("text", "reads", "value"),
    [
        ("SELECT s.x FROM (SELECT s, id AS x FROM u) AS s", "id", 1),
        ("SELECT {'x': 8} AS s, s.x FROM (SELECT id AS x FROM u) AS s ORDER BY s.x", "id", 1),
        ("SELECT (SELECT s.x FROM (SELECT id AS x FROM t) AS s) FROM u", "id", 1),
        ("SELECT list_transform([{'x': 8}], lambda s: s.x)[1] FROM (SELECT s, id AS x FROM u) AS s",
         "id", 1),
        ("SELECT (SELECT s.x FROM u) FROM (SELECT id AS x FROM t) AS s", "id s", 77),
        ("SELECT s.x FROM u SEMI JOIN (SELECT id AS x FROM t) AS s ON u.id = s.x", "id s", 77),
        ("SELECT q.s.x FROM u AS q", "s", 77),
    ],
)  # fmt: skip
def test_a_name_with_a_point_is_read_as_duckdb_reads_it(
    functions: Functions, text: str, reads: str, value: int
) -> None:
    """A table may have the name of a column with fields."""
    with in_memory() as con:
        con.execute(
            f"{MADE}; INSERT INTO t (id) VALUES (1); INSERT INTO u VALUES (1, 4, 5, {{x: 77}})"
        )
        assert con.execute(text).fetchall()[0][-1] == value
        assert names(read(con, text, columns, functions))[0][-1] == reads
