"""EXPLAIN ANALYZE: a whole statement over rows that the parties make up."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import duckdb
import pyarrow as pa
import pytest

import sqlfl
from sqlfl.base.errors import Error, ModelError, OptionError, ParseError, PartyError
from sqlfl.contract.schema import Client
from sqlfl.messages import REHEARSAL, Labels, Predictions
from sqlfl.messages.wire import decode
from sqlfl.party.party import PartyClient
from sqlfl.party.server import Server
from sqlfl.transport.base import Transport
from tests.conftest import Open
from tests.depth import in_turn
from tests.open_databases import in_memory

CLINIC = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE patients (
  pid BIGINT, age INTEGER, bmi DOUBLE, ward VARCHAR, ill BOOLEAN, stage VARCHAR, days DOUBLE,
  visits INTEGER, w DOUBLE, pic FLOAT[3], mood mood, born DATE, code VARCHAR, left_at DATE,
  st STRUCT(a DOUBLE, b VARCHAR), key UUID);
CREATE TABLE stays (pid INTEGER, ward VARCHAR, fee DOUBLE);
CREATE VIEW trapped AS SELECT pid, days, CASE WHEN days > 0 THEN error('read')::DOUBLE
  ELSE error('read')::DOUBLE END AS age FROM patients;
CREATE MACRO tidy(x) AS lower(trim(x));
CREATE SCHEMA other; CREATE TABLE other.extra (pid INTEGER, z DOUBLE);
ATTACH ':memory:' AS house; CREATE SCHEMA house.s;
CREATE TABLE house.s.more (pid INTEGER, q DOUBLE);
INSERT INTO patients (pid, days) VALUES (1, 2.0)"""
LAB = "CREATE TABLE tests (pid INTEGER, crp DOUBLE, kind VARCHAR, born TIMESTAMP)"
JOIN = "JOIN lab.tests t ON p.pid = t.pid"
QUERY = f"SELECT p.age, p.bmi, p.ward, {{}} t.crp, t.kind FROM clinic.patients p {JOIN}"
TRAIN = "TRAIN MODEL m USING {} TARGET {} {} FROM ({})"
ANALYZE = "EXPLAIN ANALYZE "


@contextmanager
def federation(
    database: Open, clients: int = 1, *, combine: bool = False, at: str | None = None,
    wrap: Callable[[Transport], Transport] | None = None,
) -> Iterator[sqlfl.Federation]:  # fmt: skip
    with sqlfl.Federation(progress=False, at=at, wrap=wrap) as found:
        for name, script in (("clinic", CLINIC), ("lab", LAB)):
            found.attach(name, [database(script) for _ in range(clients)], combine=combine)
        yield found


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    """Of all tests that leave nothing in it, as each of them says."""
    with contextlib.ExitStack() as stack:

        def database(script: str) -> duckdb.DuckDBPyConnection:
            con = stack.enter_context(in_memory())
            con.execute(script)
            return con

        yield stack.enter_context(federation(database))


def statement(kind: str, target: str, options: str = "WITH (epochs = 3)", more: str = "") -> str:
    return TRAIN.format(kind, target, options, QUERY.format(f"p.{target}, {more}"))


def rehearsed(fed: sqlfl.Federation, text: str) -> list[dict[str, object]]:
    """Its bytes, which are those of EXPLAIN's formulas, message by message."""
    result = fed.sql(ANALYZE + text)
    rows = result.arrow().to_pylist()
    assert rows
    for row in rows:
        assert row["bytes"] == row["explained"]
        assert row["bytes"] or not row["messages"] or row["direction"] == "down"
    assert "It ran to its end" in repr(result)
    assert "EXPLAIN says otherwise" not in repr(result)
    assert left(fed) == ()
    return rows


def left(fed: sqlfl.Federation) -> tuple[object, ...]:
    """What there is of models, runs and rehearsals."""
    servers: list[Server] = [*fed._servers.values(), *fed._parties._combined.values()]
    assert servers
    return (*fed.models, *(s for s in servers if s.rehearsing),
            *(s for s in servers if isinstance(s, PartyClient) and s.working))  # fmt: skip


METHODS = {
    "lbfgs": statement("linear_regression", "days"),
    "logistic": statement("logistic_regression", "ill"),
    "softmax": statement("softmax_regression", "stage", "WITH (algorithm = 'admm', epochs = 3)"),
    "poisson": statement("poisson_regression", "visits"),
    "gamma": statement("gamma_regression", "days", "WITH (algorithm = 'sgd', epochs = 3)"),
    "huber": statement("huber_regression", "days", "WITH (epochs = 3, threshold = 1)"),
    "batches": statement(
        "linear_regression", "days", "WITH (algorithm = 'sgd', epochs = 3, batch_size = 99)"
    ),
    "lasso": statement("lasso", "days", "WITH (radius = 3, epochs = 3)"),
    "sketch": statement("lasso", "days", "WITH (radius = 3, epochs = 3, sketch = 16)"),
    "towers": statement("mlp_classifier", "stage", "WITH (epochs = 2, head = 'linear')"),
    "dropout": statement("mlp_regressor", "days", "WITH (epochs = 2, dropout = 0.3)"),
    "pbm": statement("mlp_regressor", "days", "WITH (epochs = 2, algorithm = 'pbm')"),
    "weights": statement("linear_regression", "days", "WEIGHT w WITH (epochs = 2)", "p.w,"),
    "validation": statement(
        "logistic_regression", "ill",
        "WITH (epochs = 3, validation_fraction = 0.2, patience = 2, class_weight = 'balanced')",
    ),
    "classes": statement(
        "logistic_regression", "stage", "WITH (epochs = 2, class_weight = {'early': 2, 'late': 1})"
    ),
    "transformed": statement(
        "linear_regression", "days",
        "TRANSFORM (minmax(age), spline(bmi, 4), bucketize(crp, [1, 2])) WITH (epochs = 2)",
    ),
    "engine": statement("linear_regression", "days", "WITH (epochs = 2, engine = 'sql')"),
    "array": statement("linear_regression", "days", more="p.pic,"),
    "labels": statement("logistic_regression", "ill", "PRIVACY (label_epsilon = 1)"),
    "noised labels": statement(
        "linear_regression", "days", "PRIVACY (label_epsilon = 1, label_bounds = [0, 5])"
    ),
    "private": statement(
        "linear_regression", "days",
        "WITH (epochs = 3) PRIVACY (epsilon = 3, delta = 1e-5, predictions = 'gaussian', "
        "statistics = 'noised', feature_bounds = {'age': [0, 100], 'bmi': [-1, 1], 'crp': [0, 1]})",
    ),
    "tune": statement("linear_regression", "days", "WITH (l2 = [0.1, 1], folds = 3, epochs = 2)")
    .replace("TRAIN", "TUNE"),
    "check": f"CHECK FROM ({QUERY.format('')})",
    "check of classes": f"CHECK TARGET stage FROM ({QUERY.format('p.stage,')})",
}  # fmt: skip
TWO = ("lbfgs", "batches", "towers", "private", "tune", "check of classes")


@pytest.mark.parametrize("method", METHODS)
def test_what_it_takes_is_what_explain_says(fed: sqlfl.Federation, method: str) -> None:
    assert {row["party"] for row in rehearsed(fed, METHODS[method])} == {"clinic", "lab"}


@pytest.mark.parametrize(("method", "combine"), in_turn(TWO, (False, True)))
def test_parties_of_several_databases(database: Open, method: str, combine: bool) -> None:
    with federation(database, 2, combine=combine) as fed:
        rows = rehearsed(fed, METHODS[method])
        assert len(rows) == (4 if combine else 8)


def test_sums_in_secret(database: Open) -> None:
    text = METHODS["lbfgs"].replace("WITH (", "WITH (union = 'secure', ")
    with federation(database, 2) as fed:
        rehearsed(fed, text)


def test_the_coordinator_may_be_at_a_party(database: Open) -> None:
    with federation(database, at="clinic") as fed:
        rows = rehearsed(fed, METHODS["lbfgs"])
        assert {(row["party"], row["crosses"]) for row in rows} == {
            ("clinic", False),
            ("lab", True),
        }


QUERIES = {
    "a condition": f"SELECT p.days, t.crp FROM clinic.patients p {JOIN} WHERE p.ward = 'w7'",
    "several": f"""SELECT p.days, t.crp FROM clinic.patients p {JOIN}
        WHERE p.ward IN ('a', 'b') AND p.code LIKE 'X%' AND p.code <> 'XX' AND p.left_at IS NULL
        AND p.born BETWEEN '1990-01-01' AND '1999-12-31' AND p.age > 1000""",
    "an enum": f"SELECT p.days, p.mood, t.crp FROM clinic.patients p {JOIN} WHERE p.mood = 'glad'",
    "nested": f"SELECT p.days, p.st.a AS a, p.st.b AS b, t.crp FROM clinic.patients p {JOIN}",
    "expressions": f"""SELECT p.days, ln(p.bmi) AS l, CAST(p.code AS INTEGER) AS c, t.crp,
        year(p.born) AS y FROM clinic.patients p {JOIN}""",
    "another schema": f"""SELECT p.days, e.z, t.crp FROM clinic.patients p
        JOIN clinic.other.extra e ON p.pid = e.pid {JOIN}""",
    "another database": f"""SELECT p.days, e.q, t.crp FROM clinic.patients p
        JOIN clinic.house.s.more e ON p.pid = e.pid {JOIN}""",
    "another database alone": """SELECT e.q AS days, t.crp FROM clinic.house.s.more e
        JOIN lab.tests t ON e.pid = t.pid""",
    "groups": f"""SELECT p.days, v.n, t.crp FROM clinic.patients p JOIN (SELECT pid, count(*) AS n,
        sum(fee) AS unused FROM clinic.stays GROUP BY pid) v ON p.pid = v.pid {JOIN}""",
    "using": """SELECT p.days, s.fee, t.crp FROM clinic.patients p JOIN clinic.stays s USING (pid)
        JOIN lab.tests t USING (pid)""",
    "composite keys": """SELECT p.days, t.crp FROM clinic.patients p
        JOIN lab.tests t ON p.ward = t.kind AND p.born = t.born""",
    "itself": f"""SELECT p.days, q.bmi, t.crp FROM clinic.patients p
        JOIN clinic.patients q ON p.pid = q.pid {JOIN}""",
    "subqueries": f"""SELECT p.days, t.crp FROM clinic.patients p {JOIN} WHERE EXISTS (SELECT 1 FROM
        clinic.stays s WHERE s.pid = p.pid AND s.ward = 'surgery')""",
    "windows": f"""SELECT p.days, p.r, t.crp FROM (SELECT days, pid, row_number() OVER (PARTITION BY
        ward ORDER BY born) AS r FROM clinic.patients) p {JOIN}""",
    "stars": f"""SELECT p.days, t.crp FROM (SELECT * EXCLUDE (mood) FROM clinic.patients UNION ALL
        SELECT * EXCLUDE (mood) FROM clinic.patients) p {JOIN}""",
    "outer": """SELECT p.days, p.bmi, t.crp FROM clinic.patients p LEFT JOIN lab.tests t
        ON p.pid = t.pid WHERE t.crp IS NULL OR t.crp > 50""",
    "unions": """SELECT days, bmi FROM clinic.patients UNION ALL
        SELECT days, bmi FROM clinic.patients""",
    "one table": "SELECT days, bmi, ward FROM clinic.patients WHERE ward = 'x'",
    "keys with conditions": f"""SELECT p.days, t.crp FROM clinic.patients p {JOIN}
        WHERE p.pid < 300""",
}  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_queries_of_all_forms(fed: sqlfl.Federation, query: str) -> None:
    rehearsed(fed, TRAIN.format("linear_regression", "days", "WITH (epochs = 2)", QUERIES[query]))


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("logistic_regression", "p.stage AS y"),
        ("logistic_regression", "p.mood AS y"),
        ("logistic_regression", "p.ward = 'w7' AS y"),
        ("logistic_regression", "p.bmi > 40 AS y"),
        ("softmax_regression", "p.visits AS y"),
        ("mlp_classifier", "p.code AS y"),
        ("gamma_regression", "p.days * 2 AS y"),
        ("poisson_regression", "p.ill::INTEGER AS y"),
    ],
)
def test_targets_are_such_as_models_take(fed: sqlfl.Federation, kind: str, target: str) -> None:
    query = f"SELECT {target}, p.age, t.crp FROM clinic.patients p {JOIN}"
    rehearsed(fed, TRAIN.format(kind, "y", "WITH (epochs = 2)", query))


# -- no row is touched -----------------------------------------------------------------------------


def test_no_query_over_a_table_is_run(fed: sqlfl.Federation) -> None:
    query = f"SELECT p.days, p.age, t.crp FROM clinic.trapped p {JOIN}"
    text = TRAIN.format("linear_regression", "days", "WITH (epochs = 2)", query)
    with pytest.raises(PartyError, match="failed on prepare"):
        fed.sql(text)  # whoever reads a row of the view is caught
    with fed.trace() as trace:
        rehearsed(fed, text)
    assert {ran.message for ran in trace} <= {"list_tables", "describe", "rehearse"}
    over = [ran.sql for ran in trace if "trapped" in ran.sql or "tests" in ran.sql]
    assert any(text.startswith("DESCRIBE SELECT") for text in over)
    for ran in over:
        # bound, or looked up in the catalog
        assert ran.startswith("DESCRIBE SELECT") or "pragma_table_info(" in ran.lower(), ran
    # and by real rows all of this would have been seen
    with fed.trace() as trace, pytest.raises(PartyError):
        fed.sql(text)
    assert "prepare" in {ran.message for ran in trace}


def test_rows_follow_from_types_alone(database: Open) -> None:
    """What leaves is the same, byte by byte, whatever is in the tables."""
    text = statement("linear_regression", "days", "WITH (epochs = 2, seed = 1)")
    found = []
    for script in ("", "; INSERT INTO tests SELECT i, i, 'k' || i, NULL FROM range(5000) r(i)"):
        tap = Tap()
        with sqlfl.Federation(progress=False, wrap=tap) as fed:
            fed.attach("clinic", database(CLINIC))
            fed.attach("lab", database(LAB + script))
            rows = rehearsed(fed, text)
        found.append((rows, tap.taken))
    assert {kind for kind, _ in found[0][1]} == {"labels", "predictions"}
    assert found[0] == found[1]


class Tap:
    """Keeps the numbers of labels and predictions that leave."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []

    def __call__(self, inner: Transport) -> Transport:
        self.inner = inner
        return self

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        answers = self.inner.exchange(requests)
        told = [decode(data) for data in answers]
        self.taken += [
            (m.kind, m.values.tobytes()) for m in told if isinstance(m, Labels | Predictions)
        ]
        return answers


def test_the_databases_are_as_they_were(database: Open) -> None:
    con = database(CLINIC)
    listed = "SELECT database_name, schema_name, table_name, estimated_size FROM duckdb_tables()"
    before = con.execute(listed).fetchall()
    with sqlfl.connect(progress=False) as fed:
        fed.attach("clinic", con)
        fed.attach("lab", database(LAB))
        rehearsed(fed, METHODS["tune"])
        assert con.execute(listed).fetchall() == before
        assert con.execute("SELECT * FROM duckdb_temporary_files()").fetchall() == []
        runs = {row["run"] for row in fed.audit().arrow().to_pylist()} - {None}
        assert len(runs) == 1
        assert min(runs).startswith(REHEARSAL)


# -- what cannot be rehearsed ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT p.days, tidy(p.ward) AS n, t.crp FROM clinic.patients p", "no macros, types and"),
        ("SELECT p.days, p.ward::mood AS n, t.crp FROM clinic.patients p", "no macros, types and"),
        ("SELECT p.days, t.crp FROM (SELECT pid, days FROM clinic.patients, range(2)) p",
         "of what a query reads no rows can be made up: TABLE_FUNCTION is not taken"),
        ("SELECT p.days, year(CAST(p.code AS DATE)) AS y, t.crp FROM clinic.patients p",
         'over rows that are made up, prepare fails with Conversion Error: invalid date field'),
    ],
)  # fmt: skip
def test_what_the_rows_cannot_stand_for(fed: sqlfl.Federation, query: str, said: str) -> None:
    with pytest.raises(PartyError, match=said):
        fed.sql(ANALYZE + TRAIN.format("linear_regression", "days", "", f"{query} {JOIN}"))
    assert left(fed) == ()


def test_conditions_that_no_row_fulfils(fed: sqlfl.Federation) -> None:
    query = QUERY.format("p.days,") + " WHERE p.age < 5 AND p.age > 6"
    text = TRAIN.format("linear_regression", "days", "", query)
    with pytest.raises(ModelError, match="of which none of p fulfils the query's conditions"):
        fed.sql(ANALYZE + text)
    assert left(fed) == ()
    query = (
        "SELECT p.days, t.crp FROM clinic.patients p JOIN lab.tests t ON p.key::VARCHAR = t.kind"
    )
    with pytest.raises(ModelError, match="over rows that are made up: real ones may be otherwise"):
        fed.sql(ANALYZE + TRAIN.format("linear_regression", "days", "", query))
    assert left(fed) == ()


def test_no_model_is_rehearsed(fed: sqlfl.Federation) -> None:
    query = QUERY.format("p.days,")
    for text in ("EVALUATE MODEL m", "PREDICT MODEL m", "RESIDUALS OF MODEL m"):
        with pytest.raises(ParseError, match="expected one of CHECK, TRAIN, TUNE after EXPLAIN AN"):
            fed.sql(f"{ANALYZE}{text} FROM ({query})")
    text = statement("linear_regression", "days", "WITH (warm_start = 'other')")
    with pytest.raises(OptionError, match="a rehearsal starts from no model") as raised:
        fed.sql(ANALYZE + text)
    assert raised.value.column is not None
    with pytest.raises(Error, match="explain runs nothing"):
        fed.explain(ANALYZE + METHODS["lbfgs"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("EXPLAIN (VERBOSE, VERBOSE) ", r"expected VERBOSE or ANALYZE in EXPLAIN"),
        ("EXPLAIN () ", r"expected VERBOSE or ANALYZE in EXPLAIN"),
        ("EXPLAIN (ANALYZE VERBOSE) ", r"expected \) after the options of EXPLAIN"),
        ("EXPLAIN ANALYZE VERBOSE ", "expected one of CHECK, TRAIN, TUNE after EXPLAIN ANALYZE"),
    ],
)
def test_options_of_explain(fed: sqlfl.Federation, text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        fed.sql(text + METHODS["lbfgs"])


@pytest.mark.parametrize("text", ["EXPLAIN (ANALYZE) ", "EXPLAIN (VERBOSE, ANALYZE) "])
def test_other_ways_to_write_it(fed: sqlfl.Federation, text: str) -> None:
    result = fed.sql(text + METHODS["lbfgs"])
    assert "THE REHEARSAL" in repr(result)
    assert ("MAPPING QUERY" in repr(result)) is ("VERBOSE" in text)
    assert "<strong>The rehearsal</strong>" in result._repr_html_()
    said = "A model of made-up rows says nothing, and is not shown"
    assert said in " ".join(repr(result).split())


def test_the_spelling_of_others(fed: sqlfl.Federation) -> None:
    options = "model_type = 'linear_reg', input_label_cols = ['days']"
    text = f"CREATE MODEL m OPTIONS ({options}) AS {QUERY.format('p.days,')}"
    for first in (ANALYZE, "EXPLAIN (ANALYZE, VERBOSE) ", "EXPLAIN (VERBOSE) ", "EXPLAIN "):
        assert fed.sql(first + text).columns in (["plan"], list(EXPECTED))


EXPECTED = ("party", "client", "direction", "messages", "bytes", "explained", "crosses")


# -- and goes on -----------------------------------------------------------------------------------


def test_the_statement_itself_runs_as_ever(database: Open) -> None:
    """The plan may be the one that was rehearsed; what was said of it then is not."""
    rows = "SELECT i AS pid, i % 50 AS age, sin(i) AS bmi, 'w' AS ward, i * 1.0 AS days"
    with sqlfl.connect(progress=False) as fed:
        fed.attach("clinic", database(f"CREATE TABLE patients AS {rows} FROM range(90) r(i)"))
        fed.attach(
            "lab",
            database(f"{LAB}; INSERT INTO tests (pid, crp) SELECT i, cos(i) FROM range(90) r(i)"),
        )
        text = statement("linear_regression", "days")
        first = rehearsed(fed, text)
        fed.sql(text)
        assert fed.model("m").metrics["rows"] == 90
        assert not any(server.rehearsing for server in fed._servers.values())
        again = fed.sql(ANALYZE + text.replace("TRAIN", "TRAIN OR REPLACE")).arrow().to_pylist()
        assert [row["bytes"] for row in again] == [row["bytes"] for row in first]
        assert fed.models == ("m",)


class Breaking:
    """Does something when a message of a kind is sent."""

    def __init__(self, inner: Transport, kind: str, act: Callable[[], None]) -> None:
        self.inner, self.kind, self.act = inner, kind, act

    def exchange(self, requests: Sequence[tuple[Client, pa.Buffer]]) -> list[pa.Buffer]:
        if any(decode(data).kind == self.kind for _, data in requests):
            self.kind = ""
            self.act()
        return self.inner.exchange(requests)


def failing() -> None:
    raise PartyError("lab/0", "it is gone")


@pytest.mark.parametrize(
    ("kind", "combine"), in_turn(["rehearse", "prepare", "residuals", "save"], (False, True))
)
def test_a_failure_leaves_nothing(database: Open, kind: str, combine: bool) -> None:
    wrap = lambda inner: Breaking(inner, kind, failing)  # noqa: E731
    with federation(database, 2, combine=combine, wrap=wrap) as fed:
        with pytest.raises(PartyError, match="it is gone"):
            fed.sql(ANALYZE + METHODS["lbfgs"])
        assert left(fed) == ()
        rehearsed(fed, METHODS["lbfgs"])


def interrupting() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_ctrl_c_leaves_nothing(database: Open) -> None:
    endless = METHODS["batches"].replace("epochs = 3", "epochs = 1000000, tolerance = 0")
    wrap = lambda inner: Breaking(inner, "residuals", interrupting)  # noqa: E731
    with federation(database, wrap=wrap) as fed:
        result = fed.sql(ANALYZE + endless)  # as training, it ends after the round
        assert "It was interrupted, and ended: 1 epochs" in repr(result)
        assert left(fed) == ()
    wrap = lambda inner: Breaking(inner, "prepare", interrupting)  # noqa: E731
    with federation(database, wrap=wrap) as fed:
        with pytest.raises(KeyboardInterrupt):
            fed.sql(ANALYZE + METHODS["lbfgs"])
        assert left(fed) == ()


def test_closing_the_federation_ends_it(database: Open) -> None:
    endless = METHODS["batches"].replace("epochs = 3", "epochs = 1000000, tolerance = 0")
    begun = threading.Event()
    wrap = lambda inner: Breaking(inner, "residuals", begun.set)  # noqa: E731
    with federation(database, wrap=wrap) as fed:
        closing = threading.Thread(target=lambda: (begun.wait(30), fed.close()))
        closing.start()
        servers = dict(fed._servers)
        with pytest.raises(Error, match="the federation is closed"):
            fed.sql(ANALYZE + endless)
        closing.join(30)
        assert not any(server.rehearsing for server in servers.values())


def test_a_party_is_not_detached_meanwhile(database: Open) -> None:
    raised: list[str] = []

    def detach() -> None:
        def own() -> None:
            try:
                found[0].detach("clinic")
            except Error as error:
                raised.append(error.message)

        thread = threading.Thread(target=own)
        thread.start()
        thread.join(30)

    found: list[sqlfl.Federation] = []
    wrap = lambda inner: Breaking(inner, "residuals", detach)  # noqa: E731
    with federation(database, 2, combine=True, wrap=wrap) as fed:
        found.append(fed)
        rehearsed(fed, METHODS["lbfgs"])
    assert raised == ["party clinic takes part in a statement that another thread runs"]


def test_words_that_may_follow() -> None:
    from sqlfl.notebook.completion import KnownNames, completions

    names: Mapping[str, tuple[str, ...]] = {}
    assert "ANALYZE" in completions("EXPLAIN ", 8, KnownNames((), names))[1]
    for text in ("EXPLAIN ANALYZE ", "EXPLAIN (ANALYZE, VERBOSE) "):
        assert completions(text, len(text), KnownNames((), names))[1] == ("CHECK", "TRAIN", "TUNE")
