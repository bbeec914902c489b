"""What there is: parties, tables, columns, features and histories; and nothing of any row."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

import sqlfl
from tests.federations import federation
from tests.open_databases import in_memory

FLIGHTS = (
    "CREATE TABLE flights AS SELECT i AS id, i % 9 AS hour, i % 7 > 3 AS late, i % 4 AS load, "
    "['x', 'y'][1 + i % 2] AS carrier, array_value(i::FLOAT, 2 - i) AS route FROM range(90) r(i)"
)
ODD = 'CREATE SCHEMA "Other one"; CREATE TABLE "Other one"."T t" AS SELECT 1 AS x'
WEATHER = "CREATE TABLE weather AS SELECT i AS hour, sin(i) AS wind FROM range(9) r(i)"
ATTACHED = "ATTACH ':memory:' AS more; CREATE SCHEMA more.s; CREATE TABLE more.s.u AS SELECT 1 AS q"
QUERY = (
    "SELECT f.late, w.wind, f.carrier, f.route "
    "FROM airline.flights f JOIN meteo.weather w USING (hour)"
)
TRAIN = f"""CREATE MODEL late
OPTIONS (model_type = 'LOGISTIC_REG', input_label_cols = ['late'], l2_reg = ?)
AS {QUERY} WHERE f.id > ?"""


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    with in_memory() as first, in_memory() as second, in_memory() as meteo:
        for con, extra in ((first, ""), (second, ", 2 AS y")):
            con.execute(FLIGHTS)
            con.execute(ODD + extra)
        meteo.execute(WEATHER)
        meteo.execute(ATTACHED)
        with federation({"airline": [first, second], "meteo": [meteo]}) as made:
            made.sql(TRAIN, [0.5, -1])
            yield made


def test_names_of_parties_and_models(fed: sqlfl.Federation) -> None:
    assert fed.parties == ("airline", "meteo")
    assert fed.models == ("late",)
    with sqlfl.connect() as none:
        assert none.parties == none.models == ()
        assert (
            len(none.tables()) == len(none.sql("SHOW TABLES")) == len(none.sql("SHOW PARTIES")) == 0
        )


def test_all_columns(fed: sqlfl.Federation) -> None:
    found = fed.tables()
    assert found.columns == ["party", "schema", "table", "column", "type"]
    assert set(found.fetchall()) >= {
        ("airline", "main", "flights", "late", "BOOLEAN"),
        ("airline", "main", "flights", "route", "FLOAT[2]"),
        ("airline", "Other one", "T t", "y", "INTEGER"),
        ("meteo", "main", "weather", "wind", "DOUBLE"),
        ("meteo", "more.s", "u", "q", "INTEGER"),
    }
    assert len(found) == 6 + 2 + 2 + 1


def test_tables_as_queries_write_them(fed: sqlfl.Federation) -> None:
    found = fed.sql("show tables")
    assert set(found.fetchall()) == {
        ("airline.flights", 6, 2), ('airline."Other one"."T t"', 2, 2), ("meteo.weather", 2, 1),
        ("meteo.more.s.u", 1, 1),
    }  # fmt: skip
    for name, columns, _ in found.fetchall():
        assert len(fed.sql(f"DESCRIBE {name}")) == columns


def test_parties(fed: sqlfl.Federation) -> None:
    assert fed.sql("SHOW PARTIES;").fetchall() == [("airline", 2, False), ("meteo", 1, False)]


def test_columns_of_a_table(fed: sqlfl.Federation) -> None:
    assert fed.sql('DESCRIBE Airline."Other one"."T t"').fetchall() == [
        ("x", "INTEGER", 2), ("y", "INTEGER", 1),
    ]  # fmt: skip
    assert fed.sql("DESCRIBE meteo.main.weather").fetchall()[1] == ("wind", "DOUBLE", 1)


def test_types_that_differ_are_all_shown() -> None:
    with in_memory() as first, in_memory() as second:
        first.execute("CREATE TABLE t AS SELECT 1 AS x, 'a' AS model")
        second.execute("CREATE TABLE t AS SELECT 'a' AS X, 'a' AS model")
        with federation({"model": [first, second]}) as made:
            assert made.sql("DESCRIBE model.t").fetchall()[0] == ("x", "INTEGER, VARCHAR", 2)


def test_nothing_but_names_and_types_is_asked_for(fed: sqlfl.Federation) -> None:
    before = len(fed.audit())
    with fed.trace() as trace:
        fed.tables()
        for text in ("SHOW TABLES", "DESCRIBE airline.flights", "SHOW PARTIES", "SHOW MODELS",
                     "HISTORY OF MODEL late", "FEATURES OF MODEL late"):  # fmt: skip
            fed.sql(text)
    kinds = set(fed.audit().arrow().slice(before).column("kind").to_pylist())
    assert kinds == {"list_tables", "tables"}
    assert {ran.message for ran in trace} == {"list_tables"}


def test_the_history_of_a_model(fed: sqlfl.Federation) -> None:
    assert fed.sql("history of model LATE").arrow().equals(fed.model("late").history)
    assert (
        fed.sql("SELECT * FROM ML.TRAINING_INFO(MODEL late)").arrow() == fed.model("late").history
    )


def test_the_features_of_a_model(fed: sqlfl.Federation) -> None:
    found = fed.sql("FEATURES OF MODEL late")
    assert found.columns == ["feature", "party", "tables", "kind", "width"]
    assert found.fetchall() == [
        ("wind", "meteo", "meteo.weather", "numeric", 1),
        ("carrier", "airline", "airline.flights", "category", 1),
        ("route", "airline", "airline.flights", "array", 2),
    ]
    assert fed.sql("SELECT * FROM ML.FEATURE_INFO(MODEL late)").fetchall() == found.fetchall()


def test_a_model_by_another_spelling_is_the_same(fed: sqlfl.Federation) -> None:
    rows = TRAIN.partition("AS ")[2]
    fed.sql(
        f"TRAIN MODEL ours USING logistic_regression TARGET late WITH (l2 = ?) FROM ({rows})",
        [0.5, -1],
    )
    try:
        ours = fed.sql(f"EVALUATE MODEL ours FROM ({QUERY})").fetchall()[0]
        theirs = fed.sql(f"SELECT * FROM ML.EVALUATE(MODEL late, ({QUERY}))").fetchall()[0]
        assert theirs == pytest.approx(ours, rel=1e-9)
        assert "l2_reg = 0.5" in fed.model("late").sql
        assert fed.model("late").options == {**fed.model("ours").options}
        scores = fed.sql(f"SELECT * FROM ML.PREDICT(MODEL ours, ({QUERY}))").df()
        known = fed.sql(f"PREDICT MODEL late FROM ({QUERY})").df()
        assert sorted(scores.probability_true) == pytest.approx(sorted(known.probability_true))
        matrix = fed.sql(
            f"SELECT * FROM ML.CONFUSION_MATRIX(MODEL ours, ({QUERY}), STRUCT(0.4 AS threshold))"
        )
        assert (
            matrix.fetchall()
            == fed.sql(f"CONFUSION OF MODEL ours AT 0.4 FROM ({QUERY})").fetchall()
        )
        curve = fed.sql(f"SELECT * FROM ML.ROC_CURVE(MODEL ours, ({QUERY}))")
        assert curve.fetchall() == fed.sql(f"ROC OF MODEL ours FROM ({QUERY})").fetchall()
    finally:
        fed.sql("DROP MODEL ours")


def test_a_whole_table_is_a_query(fed: sqlfl.Federation) -> None:
    fed.sql("TRAIN MODEL wind USING linear_regression TARGET wind FROM (FROM meteo.weather)")
    try:
        found = fed.sql("SELECT * FROM ML.EVALUATE(MODEL wind, TABLE meteo.weather)")
        assert found.fetchall()[0][0] == 9
    finally:
        fed.sql("DROP MODEL wind")


MISTAKES: dict[str, tuple[str, type[sqlfl.Error], str]] = {
    "an unknown thing": ("SHOW COLUMNS", sqlfl.ParseError, "STUDIES, TABLES or PARTIES"),
    "an unknown party": ("DESCRIBE airlines.flights", sqlfl.PlanError, "did you mean airline"),
    "an unknown table": ("DESCRIBE meteo.wether", sqlfl.PlanError, "did you mean weather"),
    "a table alone": ("DESCRIBE flights", sqlfl.ParseError, r"DESCRIBE party\.table"),
    "too long a path": ("DESCRIBE a.b.c.d.e", sqlfl.ParseError, r"as party\.table"),
    "an unknown model": ("HISTORY OF MODEL lat", sqlfl.ModelError, "did you mean late"),
    "no model": ("FEATURES OF late", sqlfl.ParseError, "FEATURES OF MODEL name"),
    "no of": ("HISTORY MODEL late", sqlfl.ParseError, "expected OF after HISTORY"),
    "an explained one": ("EXPLAIN HISTORY OF MODEL late", sqlfl.ParseError, "after EXPLAIN"),
    "two words more": ("SHOW TABLES FROM airline", sqlfl.ParseError, "end of the statement"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "error", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(fed: sqlfl.Federation, text: str, error: type[sqlfl.Error], said: str) -> None:
    with pytest.raises(error, match=said):
        fed.sql(text)


def test_a_party_that_fails_says_so() -> None:
    con = duckdb.connect()
    with sqlfl.connect(progress=False) as made:
        made.attach("a", con)
        con.close()
        with pytest.raises(sqlfl.PartyError, match="party a"):
            made.tables()
