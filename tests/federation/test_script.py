"""Texts with parameters and with several statements, as a user gives them."""

from __future__ import annotations

import datetime as dt
import pathlib
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import sqlfl
from tests.open_databases import in_memory

TRAIN = (
    "TRAIN MODEL {} USING linear_regression TARGET y WITH (l2 = {}, hidden = {})\n"
    "FROM (SELECT t.x, u.z, t.y FROM one.t JOIN two.u USING (k) WHERE t.x > {} AND t.c <> {})"
)
PLAIN = TRAIN.replace(", hidden = {}", "")


@pytest.fixture(scope="module")
def shared() -> Iterator[sqlfl.Federation]:
    with in_memory() as one, in_memory() as two, sqlfl.connect(progress=False) as federation:
        one.execute(
            "CREATE TABLE t AS SELECT range % 10 AS k, range / 7 AS x, range % 5 + range / 9 AS y, "
            "DATE '2024-01-01' + (range % 60)::INT AS d, chr(65 + (range % 3)::INT) AS c, "
            "'\\xAA'::BLOB AS b FROM range(200)"
        )
        two.execute("CREATE TABLE u AS SELECT range AS k, sqrt(range) AS z FROM range(10)")
        federation.attach("one", one)
        federation.attach("two", two)
        yield federation


@pytest.fixture
def fed(shared: sqlfl.Federation) -> Iterator[sqlfl.Federation]:
    yield shared
    for name, *_ in shared.sql("SHOW MODELS").fetchall():
        shared.sql(f"DROP MODEL {name}")


def test_a_model_with_parameters_is_the_one_of_the_literals(fed: sqlfl.Federation) -> None:
    fed.sql(PLAIN.format("a", 0.01, -1.5, "'A'"))
    fed.sql(PLAIN.format("b", "?", "?", "?"), [0.01, -1.5, "A"])
    fed.sql(PLAIN.format("c", "$2", "$1", "$3"), (-1.5, 0.01, "A"))
    fed.sql(PLAIN.format("d", "$l2", "$low", "$c"), {"low": -1.5, "c": "A", "l2": 0.01})
    evaluate = "EVALUATE MODEL {} FROM (SELECT t.x, u.z, t.y FROM one.t JOIN two.u USING (k))"
    losses = [fed.sql(evaluate.format(name)).fetchall()[0] for name in "abcd"]
    assert losses[1:] == [pytest.approx(losses[0], rel=1e-9)] * 3


def test_the_model_keeps_the_statement_with_its_values(fed: sqlfl.Federation) -> None:
    fed.sql(PLAIN.format("m", "?", "?", "?"), [0.01, -1.5, "it's"])
    written = fed.model("m").sql
    assert "l2 = 0.01" in written
    assert "t.x > (-1.5e0) AND t.c <> 'it''s'" in written
    assert "'it''s'" in dict(fed.sql("DESCRIBE MODEL m").fetchall())["statement"]
    rows = fed.model("m").metrics["rows"]
    fed.sql("DROP MODEL m")
    fed.sql(written)
    assert fed.model("m").metrics["rows"] == rows


@pytest.mark.parametrize(("condition", "value", "rows"), [
    ("t.d >= ?", dt.date(2024, 1, 31), 90), ("t.d >= ?", dt.datetime(2024, 1, 30, 12), 90),
    ("t.b = ?", b"\xaa", 200), ("t.b = ?", b"", 0), ("t.k = ?", None, 0), ("t.k IN ?", [1, 2], 40),
    ("t.k = ? - -2", np.int8(-1), 20), ("?", True, 200), ("list_contains(?, t.c)", ["A"], 67),
])  # fmt: skip
def test_types_of_values(fed: sqlfl.Federation, condition: str, value: object, rows: int) -> None:
    fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT x, y FROM one.t)")
    evaluate = f"EVALUATE MODEL m FROM (SELECT t.x, t.y FROM one.t WHERE {condition})"
    if not rows:
        with pytest.raises(sqlfl.ModelError, match="no rows"):
            fed.sql(evaluate, [value])
        return
    assert fed.sql(evaluate, [value]).fetchall()[0][0] == rows


def test_a_plan_is_that_of_its_values(fed: sqlfl.Federation) -> None:
    text = PLAIN.format("m", "?", "?", "?")
    plans = [str(fed.explain(text, [0.1, low, "A"]).details) for low in (1, 2, 1)]
    assert "> 1" in plans[0]
    assert "> 2" in plans[1]
    assert plans[0] == plans[2]
    shown = repr(fed.sql(f"EXPLAIN (VERBOSE) {text}", [0.1, 1, "A"]))
    assert plans[0].partition("FROM")[2] == shown.partition("FROM")[2]


def test_an_error_marks_the_place_in_the_text_that_was_given(fed: sqlfl.Federation) -> None:
    text = TRAIN.format("m", "?", "[?]", "?", "?").replace("t.c <>", "t.cc <>")
    with pytest.raises(sqlfl.OptionError, match="hidden") as caught:
        fed.sql(text, [0.123456789, 16, 3, "a much longer value"])
    assert caught.value.sql == text
    assert caught.value.column == text.index("hidden") + 1
    with pytest.raises(sqlfl.PlanError, match=r"t\.cc") as wrong:
        fed.explain(text.replace(", hidden = [?]", ""), [0.123456789, 3, "a much longer value"])
    assert wrong.value.line == 2
    span = wrong.value.span
    assert span is not None
    assert wrong.value.sql is not None
    assert wrong.value.sql[slice(*span)] == "t.cc"
    with pytest.raises(sqlfl.OptionError, match=r"(?s)l2 must be.*= \?.*\n +\^$") as value:
        fed.sql(PLAIN.format("m", "?", "?", "?"), [-0.123456789, 3, ""])
    assert value.value.sql is not None
    assert value.value.span is not None
    assert value.value.sql[slice(*value.value.span)] == "?"


@pytest.mark.parametrize("text", [
    "DROP MODEL ?", "DESCRIBE ?", "HISTORY OF MODEL ?", "PREDICT MODEL m ID (?) FROM (FROM one.t)",
    "TRAIN MODEL m USING linear_regression TARGET ? FROM (FROM one.t)", "SHOW ?",
    "TRAIN MODEL m USING ? TARGET y FROM (FROM one.t)", "PREDICT MODEL m FROM (FROM one.t) INTO ?",
])  # fmt: skip
def test_a_name_is_no_parameter(fed: sqlfl.Federation, text: str) -> None:
    with pytest.raises(sqlfl.ParseError, match=r"(?s)\?.*\^.*hint: ") as caught:
        fed.sql(text, ["a name; DROP MODEL m"])
    assert caught.value.sql == text
    assert caught.value.column == text.index("?") + 1


def test_a_value_is_never_read_as_sql(fed: sqlfl.Federation) -> None:
    value = "x') ; DROP MODEL m; --"
    fed.sql(PLAIN.format("m", "?", "?", "?"), [0.01, 1, value])
    assert fed.model("m").metrics["rows"] == 192
    assert value.replace("'", "''") in fed.model("m").sql


# -- several statements ----------------------------------------------------------------------------


def test_several_statements_give_the_result_of_the_last(fed: sqlfl.Federation) -> None:
    text = f"{PLAIN.format('m', 0.1, 1, '?')};; -- two\nSHOW MODELS ;\nDROP MODEL $1;"
    with pytest.raises(sqlfl.ParseError):
        fed.sql(text, ["m"])
    assert len(fed.sql("SHOW MODELS")) == 0
    shown = fed.sql(f"{PLAIN.format('m', 0.1, '?', '?')};; -- two\nSHOW MODELS ;", [1, "A"])
    assert shown.fetchall()[0][0] == "m"
    assert fed.model("m").sql == PLAIN.format("m", 0.1, " 1", " 'A'").replace(
        ">  1", "> 1"
    ).replace("<>  'A'", "<> 'A'")


def test_numbers_of_parameters_are_those_of_the_whole_text(fed: sqlfl.Federation) -> None:
    text = f"{PLAIN.format('a', '$1', 1, '$2')}; {PLAIN.format('b', '$1', 2, '$2')}"
    fed.sql(text, [0.5, "B"])
    assert fed.model("a").options["l2"] == fed.model("b").options["l2"] == 0.5
    fed.sql(text.replace("$1", "?").replace("$2", "?").replace("MODEL", "OR REPLACE MODEL"),
            [0.25, "B", 0.75, "B"])  # fmt: skip
    assert [fed.model(name).options["l2"] for name in "ab"] == [0.25, 0.75]


def test_nothing_is_done_where_one_cannot_be_read(fed: sqlfl.Federation) -> None:
    text = f"{PLAIN.format('m', 0.1, 1, '?')};\nDORP MODEL m"
    with pytest.raises(sqlfl.ParseError, match=r"DORP \(statement 2 of 2\)(?s:.*)line 3") as caught:
        fed.sql(text, ["A"])
    assert caught.value.sql == text
    assert len(fed.sql("SHOW MODELS")) == 0


def test_those_before_a_failure_are_done(fed: sqlfl.Federation) -> None:
    text = f"{PLAIN.format('m', 0.1, 1, '?')};\nDROP MODEL absent; DROP MODEL m"
    with pytest.raises(sqlfl.ModelError, match=r"absent \(statement 2 of 3; those before it are"):
        fed.sql(text, ["A"])
    assert fed.model("m").name == "m"
    wrong = "SHOW MODELS;\nEVALUATE MODEL m\nFROM (SELECT t.x, t.w, t.y FROM one.t WHERE t.x > ?)"
    with pytest.raises(sqlfl.PlanError, match=r"\(statement 2 of 2; those") as caught:
        fed.sql(wrong, [12345])
    assert (caught.value.line, caught.value.column) == (3, 19)


def test_a_text_must_be_one(fed: sqlfl.Federation) -> None:
    with pytest.raises(sqlfl.Error, match="must be text, got list"):
        fed.sql(["SHOW MODELS"])  # type: ignore[arg-type]
    with pytest.raises(sqlfl.ParseError, match="got nothing"):
        fed.sql(" ; -- no statement\n;")
    with pytest.raises(sqlfl.ParseError, match="got several"):
        fed.explain("SHOW MODELS; SHOW MODELS")


def test_a_threshold_may_be_a_parameter(fed: sqlfl.Federation) -> None:
    query = "SELECT x, y > 2 AS late FROM one.t"
    fed.sql(f"TRAIN MODEL m USING logistic_regression TARGET late FROM ({query})")
    plain = fed.sql(f"CONFUSION OF MODEL m AT 0.3 FROM ({query})").fetchall()
    assert fed.sql(f"CONFUSION OF MODEL m AT ? FROM ({query})", [0.3]).fetchall() == plain
    spelled = f"SELECT * FROM ML.CONFUSION_MATRIX(MODEL m, ({query}), STRUCT($t AS threshold))"
    assert fed.sql(spelled, {"t": 0.3}).fetchall() == plain
    with pytest.raises(sqlfl.ParseError, match="from 0 to 1"):
        fed.sql(f"CONFUSION OF MODEL m AT ? FROM ({query})", [-0.3])


def test_parameters_of_other_spellings(fed: sqlfl.Federation) -> None:
    fed.sql(
        "CREATE MODEL m OPTIONS (model_type='LINEAR_REG', input_label_cols=['y'], l2_reg = $l2) "
        "AS SELECT x, y FROM one.t WHERE c = $c",
        {"l2": 0.5, "c": "A"},
    )
    assert fed.model("m").options["l2"] == 0.5
    assert "l2_reg = 0.5" in fed.model("m").sql
    assert fed.model("m").metrics["rows"] == 67
    with pytest.raises(sqlfl.OptionError, match="l2 must be") as caught:
        fed.sql(
            "CREATE MODEL n OPTIONS (model_type='LINEAR_REG', l2_reg=?) AS SELECT y AS label",
            [-1],
        )
    assert caught.value.column == 57


def test_what_lasts_tells_without_its_parties(tmp_path: pathlib.Path) -> None:
    with duckdb.connect(tmp_path / "one.duckdb") as con:
        con.execute("CREATE TABLE t AS SELECT i AS x, i % 3 AS y FROM range(20) r(i)")
    with sqlfl.connect(tmp_path / "c.duckdb", progress=False) as made:
        made.attach("one", tmp_path / "one.duckdb")
        made.sql(
            "TRAIN MODEL m USING linear_regression TARGET y FROM (FROM one.t WHERE x > ?)", [3]
        )
        history = made.sql("HISTORY OF MODEL m").fetchall()
        features = made.sql("FEATURES OF MODEL m").fetchall()
    with sqlfl.connect(tmp_path / "c.duckdb", progress=False) as again:
        assert again.models == ("m",)
        assert again.sql("HISTORY OF MODEL m").fetchall() == history
        assert again.sql("FEATURES OF MODEL m").fetchall() == features
        assert "x > 3" in again.model("m").sql


@pytest.mark.parametrize("combine", [False, True])
def test_tables_of_parties_of_several_clients(combine: bool) -> None:
    with in_memory() as first, in_memory() as second, sqlfl.connect(progress=False) as made:
        for con in (first, second):
            con.execute("CREATE TABLE t AS SELECT i AS x, i % 3 AS y FROM range(20) r(i)")
        made.attach("bank", [first, second], combine=combine)
        assert made.sql("SHOW PARTIES").fetchall() == [("bank", 2, combine)]
        assert made.sql("SHOW TABLES").fetchall() == [("bank.t", 2, 2)]
        assert made.sql("DESCRIBE bank.t").fetchall()[0] == ("x", "BIGINT", 2)
        table = made.table("bank.t")
        assert table.columns == ("x", "y")
        assert table.train("m", "linear_regression", "y").metrics["rows"] == 40
