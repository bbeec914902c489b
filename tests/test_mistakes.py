"""What an analyst gets wrong on the first day: each error says what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import sqlfl
from tests.open_databases import in_memory

JOIN = "FROM clinic.patients a JOIN insurer.contracts b ON a.id = b.id"


def train(
    columns: str = "a.age, b.premium, a.cost",
    source: str = JOIN,
    kind: str = "linear_regression",
    target: str = "cost",
    more: str = "",
) -> str:
    return f"TRAIN MODEL m USING {kind} TARGET {target} {more} FROM (SELECT {columns} {source})"


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    with in_memory() as clinic, in_memory() as insurer, in_memory() as empty:
        clinic.execute(
            "CREATE TABLE patients AS SELECT i AS id, i % 7 AS age, 'w' || i AS ward,"
            " 2.0 * i AS cost, DATE '2024-01-01' + i::INT AS admitted, now() AS seen"
            " FROM range(20) r(i)"
        )
        insurer.execute(
            "CREATE TABLE contracts AS SELECT i AS id, i % 3 AS premium FROM range(20) r(i)"
        )
        with sqlfl.connect(progress=False) as found:
            found.attach("clinic", clinic)
            found.attach("insurer", insurer)
            found.attach("empty", empty)
            yield found


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (train(kind="linear"), "USING linear_regression; l2 = ... makes it a ridge"),
        (train("a.age, NULL AS y", target="y"), "TARGET names a column that has values"),
        (train("a.age, NULL AS x, a.cost"), "leave it out"),
        (train("a.age, a.admitted, a.cost"), "year(column), dayofweek(column), or epoch(column)"),
        (train("a.age, a.seen, a.cost"), "hour(column), dayofweek(column), or epoch(column)"),
        (train("a.age, a.admitted", target="admitted"), "year(column)"),
        ("TRAIN MODEL {name} USING linear_regression", 'f"..."'),
        (train("{columns}"), 'f"..."'),
        (train(source=f'{JOIN} WHERE a.ward = "w1"'), "single quotes: 'w1'"),
        (train(source=f'{JOIN} WHERE a.ward = "wart"'), "did you mean ward?"),
        (train("a.age, b.premium, a.cost, a.age * b.premium AS w", more="WEIGHT w"),
         "WEIGHT one party's column"),
        (train("a.age * b.premium AS x, a.cost"), "the model adds up"),
        (train("x, cost", "FROM empty.t"), "there is none; temporary tables"),
        (train("x, cost", "FROM 'rows/*.parquet'"), "CREATE VIEW t AS FROM 'rows/*.parquet'"),
        (train("x, cost", "FROM 'it''s.csv'"), "CREATE VIEW t AS FROM 'it''s.csv'"),
        (train("x, cost", "FROM df"), "write party.df"),
        (train(source="FROM clinic.patients a JOIN insurer.contracts b"), "JOIN ... ON a.x = b.y"),
        (train(source="FROM clinic.patients a LEFT JOIN insurer.contracts b WHERE a.id = b.id"),
         "JOIN ... ON a.x = b.y"),
        ("SHOW TABELS", "did you mean TABLES?"),
        ("SHOW MODEL m", "DESCRIBE MODEL name shows one"),
        ("SHOW REQUESTS", "an owner's statement: sqlfl.owner(connection).sql('SHOW REQUESTS')"),
        ("SHOW WEIGHTS OF MODEL m", "write WEIGHTS OF MODEL name, without SHOW"),
        (train().replace(" USING", "-2 USING"), 'in double quotes: "my-model"'),
        ("TRAIN MODEL m USING 'lasso' TARGET y FROM a.t",
         'names stand without quotes, or in double quotes: "lasso"'),
        (train(more="WITH (merge_equal_rows = no)"), "write merge_equal_rows = false"),
        ("HELP TRAIN", "here it is sqlfl docs statements, on the command line"),
        ("DROP m", "DROP MODEL [IF EXISTS] name"),
        (train(more="WITH (cv = 5)").replace("TRAIN", "TUNE"), "it is called folds here"),
        (train(more="WITH (scoring = 'r2')").replace("TRAIN", "TUNE"), "it is called metric here"),
        (f"PREDICT MODEL m ID (id) FROM (SELECT a.age {JOIN})", "t.id for FROM party.table t"),
    ],
)  # fmt: skip
def test_the_hint(text: str, hint: str, fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.base.errors.StatementError) as caught:
        fed.sql(text)
    assert hint in str(caught.value.hint)
    assert caught.value.line == 1


def test_a_join_that_is_too_large_is_told_in_the_names_of_the_statement(
    fed: sqlfl.Federation,
) -> None:
    source = "FROM clinic.patients a JOIN insurer.contracts b ON (a.age > 2) = (b.premium > 0)"
    with pytest.raises(
        sqlfl.ModelError, match=r"by \(?a\.age > 2\)? = \(?b\.premium > 0\)? a row of a"
    ):
        fed.sql(train(source=source, more="WITH (max_joined_rows = 10)"))


def test_a_closed_connection_has_a_cure() -> None:
    with sqlfl.connect(progress=False) as fed:
        with in_memory() as con:
            con.execute("CREATE TABLE t AS SELECT i AS x, i AS cost FROM range(9) r(i)")
            fed.attach("lab", con)
        with pytest.raises(sqlfl.PartyError, match=r"closed\nhint: .*detach"):
            fed.sql(train("x, cost", "FROM lab.t"))


def test_a_file_that_another_connection_has_attached(tmp_path: Path) -> None:
    path = tmp_path / "lab.duckdb"
    duckdb.connect(path).close()
    with in_memory() as con, sqlfl.connect(tmp_path / "c.duckdb") as fed:
        con.execute(f"ATTACH '{path}' AS lab (READ_ONLY)")
        with pytest.raises(
            sqlfl.PartyError, match=r"open in this process already.*\nhint: .*close"
        ):
            fed.attach("lab", path)


def test_databases_in_another_order_than_in_training(tmp_path: Path) -> None:
    paths = [tmp_path / "north.duckdb", tmp_path / "south.duckdb"]
    for path in paths:
        with duckdb.connect(path) as con:
            con.execute("CREATE TABLE t AS SELECT i AS x, i AS cost FROM range(9) r(i)")
    with sqlfl.connect(tmp_path / "coordinator.duckdb", progress=False) as fed:
        fed.attach("lab", paths)
        fed.sql(train("x, cost", "FROM lab.t"))
        fed.detach("lab")
        fed.attach("lab", paths[::-1])
        with pytest.raises(sqlfl.PartyError, match=r"lab/0: .*no block.*\nhint: .*same order"):
            fed.sql("EVALUATE MODEL m FROM (SELECT x, cost FROM lab.t)")


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with in_memory() as found:
        found.execute("CREATE TABLE t AS SELECT i AS x, i AS cost FROM range(9) r(i)")
        yield found


ATTACH = 'fed = sqlfl.connect(); fed.attach("party", connection)'


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda con: sqlfl.connect(con), 'fed.attach("party", database)'),
        (lambda con: sqlfl.connect({"lab": con}), 'fed.attach("lab", database)'),
        (lambda con: sqlfl.connect([con]), 'fed.attach("party", database)'),
        (lambda con: sqlfl.connect(lab=con), ATTACH),
        (lambda con: sqlfl.connect("lab", con), ATTACH),
        (lambda con: sqlfl.Federation(lab=con), ATTACH),
        (lambda con: sqlfl.connect(analist="me"), "did you mean analyst=...?"),
        (lambda con: sqlfl.connect(":memory:"), "leave it out: sqlfl.connect()"),
        (lambda con: sqlfl.connect(progress="no"), "progress=False shows none"),
        (lambda con: sqlfl.connect(""), "leave it out: sqlfl.connect()"),
        (lambda con: sqlfl.connect("host:8815"), 'sqlfl.connect("grpc+tls://host:8815"'),
        (lambda con: sqlfl.connect("http://host:8815"), 'sqlfl.connect("grpc+tls://host:8815"'),
        (lambda con: sqlfl.connect("postgres://u@h/db"), "TYPE postgres"),
        (lambda con: sqlfl.connect("md:db"), "ATTACH 'md:db' AS db"),
        (lambda con: sqlfl.connect("rows.csv"), "CREATE VIEW t AS FROM 'rows.csv'"),
        (lambda con: sqlfl.attach("lab", con), ATTACH),  # type: ignore[attr-defined]
        (lambda con: sqlfl.sql("SHOW MODELS"), "fed.sql(text)"),  # type: ignore[attr-defined]
        (lambda con: sqlfl.owner(None), "sqlfl.owner(duckdb.connect("),
        (lambda con: sqlfl.owner(con.sql("FROM t")), "sqlfl.owner(duckdb.connect("),
        (lambda con: sqlfl.owner("lab", con, con), "sqlfl.owner(duckdb.connect("),
        (lambda con: sqlfl.owner(con).sql(None), "give the text or the bytes of a file"),
        (lambda con: sqlfl.verify(con.sql("FROM t")), "sqlfl.verify('bank.duckdb'"),
    ],
)  # fmt: skip
def test_a_wrong_call_of_the_package(
    call: Callable[[duckdb.DuckDBPyConnection], object], hint: str, con: duckdb.DuckDBPyConnection
) -> None:
    with pytest.raises((sqlfl.Error, TypeError, AttributeError)) as caught:
        call(con)
    assert f"hint: {hint}" in str(caught.value) or hint in str(caught.value).partition("hint: ")[2]


SEVERAL = 'fed.attach("party", [one, other])'


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda fed, con: fed.attach(con), SEVERAL),
        (lambda fed, con: fed.attach("other"), SEVERAL),
        (lambda fed, con: fed.attach(lab=con), SEVERAL),
        (lambda fed, con: fed.attach({"lab": con}), SEVERAL),
        (lambda fed, con: fed.attach("other", con, con, con), SEVERAL),
        (lambda fed, con: fed.attach("other", con, stor=con), "did you mean store=...?"),
        (lambda fed, con: fed.attach(con, "other"), 'the name comes first: fed.attach("airline"'),
        (lambda fed, con: fed.attach("LAB", con), 'fed.attach("LAB", [one, other])'),
        (lambda fed, con: fed.attach("other", duckdb.connect(), con), "[one, other]"),
        (lambda fed, con: fed.attach("my-lab", con), "no digit first: my_lab"),
        (lambda fed, con: fed.attach("1lab", con), "no digit first: p1lab"),
        (lambda fed, con: fed.attach("other", con.sql("FROM t").arrow()), 'fed.attach("other", {'),
        (lambda fed, con: fed.attach("other", [[con]]), 'fed.attach("other", con)'),
        (lambda fed, con: fed.attach("other", con.sql("FROM t")), "the connection that it is of"),
        (lambda fed, con: fed.detach("labs"), "did you mean lab?"),
        (lambda fed, con: fed.sql(None), "give the text or the bytes of a file"),
        (lambda fed, con: fed.sql(Path("x.sql")), "path.read_bytes()"),
        (lambda fed, con: fed.sql("SHOW MODELS", name="m"), "fed.sql(text, [value, ...])"),
        (lambda fed, con: fed.sql(), "fed.sql(text, [value, ...])"),
        (lambda fed, con: fed.sql("SHOW MODELS", "m"), "fed.sql(text, [value, ...])"),
        (lambda fed, con: fed.sql("SELECT * FROM lab.t"), "on a party's own connection"),
        (lambda fed, con: fed.sql("Dear all,"), "SHOW TABLES lists tables"),
        (lambda fed, con: fed.sql(""), "SHOW TABLES lists tables"),
        (lambda fed, con: fed.sql("EXPLAIN SHOW TABLES"), "SHOW has no plan: run it without"),
        (lambda fed, con: fed.explain("SHOW TABLES"), "statements over a query have"),
        (lambda fed, con: fed.model("m"), "train one first"),
        (lambda fed, con: fed.model(None), "fed.model('name')"),
        (lambda fed, con: fed.sql("EVALUATE MODEL m FROM (FROM lab.t)"), "train one first"),
        (lambda fed, con: fed.sql("WEIGHTS OF MODEL m"), "train one first"),
    ],
)  # fmt: skip
def test_a_wrong_call_of_a_federation(
    call: Callable[[Any, duckdb.DuckDBPyConnection], object],
    hint: str,
    con: duckdb.DuckDBPyConnection,
) -> None:
    with sqlfl.connect(progress=False) as fed:
        fed.attach("lab", con)
        with pytest.raises((sqlfl.Error, TypeError)) as caught:
            call(fed, con)
        assert hint in str(caught.value).partition("hint: ")[2]
        assert fed.parties == ("lab",)


def test_statements_before_any_party(con: duckdb.DuckDBPyConnection) -> None:
    with sqlfl.connect(progress=False) as fed:
        with pytest.raises(sqlfl.PlanError, match=r"attach it first: fed\.attach") as caught:
            fed.sql(train("x, cost", "FROM lab.t"))
        assert caught.value.line == 1
        fed.attach("lab", con)
        fed.sql(train("x, cost", "FROM lab.t"))


def test_a_closed_connection_of_an_owner() -> None:
    with in_memory() as con:
        pass
    with pytest.raises(sqlfl.Error, match=r"closed\nhint: open it: sqlfl.owner"):
        sqlfl.owner(con)


def test_a_call_keeps_its_signature() -> None:
    assert "analyst" in inspect.signature(sqlfl.connect).parameters
    assert "combine" in inspect.signature(sqlfl.Federation.attach).parameters
