"""Tables and joins as values of Python: what they say of themselves, and statements they run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

import sqlfl
from sqlfl.federation.relation import Relation
from sqlfl.planner.grammar.clauses import written
from tests.federations import federation
from tests.open_databases import in_memory

FLIGHTS = (
    "CREATE TABLE flights AS SELECT i AS id, i % 9 AS hour, i % 7 > 3 AS late, i % 4 * .5 AS load, "
    "['x', 'y', NULL][1 + i % 3] AS carrier, i % 5 + 1 AS \"the weight\" FROM range(90) r(i)"
)
WEATHER = "CREATE TABLE weather AS SELECT i AS hour, sin(i) AS wind FROM range(9) r(i)"
JOIN = (
    'SELECT f.late, f.load, w.wind, f.carrier, f."the weight" AS "the weight"\n'
    "FROM airline.flights f JOIN meteo.weather w USING (hour)"
)


@pytest.fixture(scope="module")
def shared() -> Iterator[sqlfl.Federation]:
    with in_memory() as airline, in_memory() as meteo:
        airline.execute(FLIGHTS)
        meteo.execute(WEATHER)
        with federation({"airline": [airline], "meteo": [meteo]}) as made:
            yield made


@pytest.fixture
def fed(shared: sqlfl.Federation) -> Iterator[sqlfl.Federation]:
    yield shared
    drop(shared, shared.models)


def drop(fed: sqlfl.Federation, models: Iterable[str]) -> None:
    for name in models:
        fed.sql(f"DROP MODEL {written(name)}")


@pytest.fixture(scope="module")
def fitted() -> Iterator[sqlfl.Federation]:
    """Open a federation with two models that calls read: k of classes, n of numbers."""
    with in_memory() as airline, in_memory() as meteo:
        airline.execute(FLIGHTS)
        meteo.execute(WEATHER)
        with federation({"airline": [airline], "meteo": [meteo]}) as made:
            join = made.query(JOIN)
            join.train("k", "logistic_regression", "late", weight="the weight", seed=1)
            join.train("n", "linear_regression", "wind")
            yield made


@pytest.fixture
def join(fed: sqlfl.Federation) -> Relation:
    return fed.query(f"{JOIN} WHERE f.id > $1 -- a comment", [9])


def test_a_table_tells_its_columns(fed: sqlfl.Federation) -> None:
    table = fed.table("Airline.flights")
    assert table.columns == ("id", "hour", "late", "load", "carrier", "the weight")
    assert table.types == ("BIGINT", "BIGINT", "BOOLEAN", "DECIMAL(20,1)", "VARCHAR", "BIGINT")
    assert table.schema().fetchall() == list(zip(table.columns, table.types, strict=True))
    assert table.sql == "FROM Airline.flights"


def test_a_query_tells_its_columns(join: Relation) -> None:
    assert join.columns == ("late", "load", "wind", "carrier", "the weight")
    assert join.types[2] == "DOUBLE"
    assert join.sql == f"{JOIN} WHERE f.id > 9"
    assert repr(join).startswith(f"{JOIN} WHERE f.id > 9\n\nlate ")
    assert "wind        DOUBLE" in repr(join)
    assert "DOUBLE" in join._repr_html_()


def test_it_does_not_change(join: Relation) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        join.sql = "FROM airline.flights"  # type: ignore[misc]


def test_no_row_is_asked_for(fed: sqlfl.Federation) -> None:
    before = len(fed.audit())
    with fed.trace() as trace:
        table, join = fed.table("airline.flights"), fed.query(JOIN)
        for relation in (table, join):
            repr(relation), relation._repr_html_(), relation.schema()
    kinds = set(fed.audit().arrow().slice(before).column("kind").to_pylist())
    assert kinds == {"list_tables", "tables", "describe", "columns"}
    assert {ran.message for ran in trace} <= {"list_tables", "describe"}


def statements(fed: sqlfl.Federation, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each text that is run or explained."""
    found: list[str] = []
    for method in ("sql", "explain"):
        original = getattr(sqlfl.Federation, method)

        def run(self: Any, text: str, *given: Any, original: Any = original) -> Any:
            found.append(text)
            return original(self, text, *given)

        monkeypatch.setattr(sqlfl.Federation, method, run)
    return found


CALLS: dict[str, tuple[Callable[[Relation], Any], str]] = {
    "train": (lambda r: r.train("m", "logistic_regression", "late"),
              "TRAIN MODEL m USING logistic_regression TARGET late"),
    "train, everything": (
        lambda r: r.train('a "b', "logistic_regression", target="late", weight="the weight", l2=0.5,
                          replace=True, class_weight={True: 2, "false": 1}, privacy=None, seed=3),
        'TRAIN OR REPLACE MODEL "a ""b" USING logistic_regression TARGET late WEIGHT "the weight" '
        "WITH (l2 = 0.5, class_weight = {'true': 2, 'false': 1}, seed = 3)"),
    "train if not exists": (
        lambda r: r.train("k", "linear_regression", "late", if_not_exists=True),
        "TRAIN MODEL IF NOT EXISTS k USING linear_regression TARGET late"),
    "explain train": (
        lambda r: r.explain_train("m", "linear_regression", "wind", privacy={"label_epsilon": 1.0,
                                  "label_bounds": [-2, 2]}, epochs=3),
        "TRAIN MODEL m USING linear_regression TARGET wind WITH (epochs = 3) "
        "PRIVACY (label_epsilon = 1.0, label_bounds = [-2, 2])"),
    "evaluate": (lambda r: r.evaluate("k"), "EVALUATE MODEL k"),
    "evaluate, private": (
        lambda r: r.evaluate("k", privacy={"label_epsilon": 3}, engine="arrays"),
        "EVALUATE MODEL k WITH (engine = 'arrays') PRIVACY (label_epsilon = 3)"),
    "predict": (lambda r: r.predict("k"), "PREDICT MODEL k"),
    "predict with names": (lambda r: r.predict("k", id=["f.id", 'airline.flights."hour"']),
                           "PREDICT MODEL k ID (f.id, airline.flights.hour)"),
    "metrics": (lambda r: r.metrics("k", at=0.25, memory_limit="1GB"),
                "METRICS OF MODEL k AT 0.25 WITH (memory_limit = '1GB')"),
    "roc": (lambda r: r.roc("k", points=5), "ROC OF MODEL k WITH (points = 5)"),
    "confusion": (lambda r: r.confusion("k", at=1), "CONFUSION OF MODEL k AT 1"),
    "calibration": (lambda r: r.calibration("k"), "CALIBRATION OF MODEL k"),
    "residuals": (lambda r: r.residuals("n"), "RESIDUALS OF MODEL n"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), CALLS.values(), ids=CALLS)
def test_a_method_is_a_statement(
    fitted: sqlfl.Federation,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Relation], Any],
    text: str,
) -> None:
    ran = statements(fitted, monkeypatch)
    result = call(fitted.query(f"{JOIN} WHERE f.id > $1 -- a comment", [9]))
    expected = f"{text}\nFROM (\n{JOIN} WHERE f.id > 9\n)"
    assert ran == [expected]
    monkeypatch.undo()
    if "OF MODEL" in text or text == "EVALUATE MODEL k":
        same = fitted.sql(expected)
        assert (result.columns, len(result)) == (same.columns, len(same))
    drop(fitted, set(fitted.models) - {"k", "n"})


def test_a_model_comes_back(fed: sqlfl.Federation, join: Relation) -> None:
    model = join.train("m", "logistic_regression", "late", l2=0.5)
    assert (model.name, model.target, model.options["l2"]) == ("m", "late", 0.5)
    assert model.metrics == fed.model("m").metrics
    fed.sql("DROP MODEL m")
    fed.sql(model.sql)
    assert fed.model("m").metrics["rows"] == model.metrics["rows"]


def test_columns_of_a_table_are_known_by_their_names_alone(fed: sqlfl.Federation) -> None:
    table = fed.table("airline.flights")
    table.train("m", "linear_regression", "load")
    rows = table.predict("m", id=["id", "hour"])
    assert rows.columns == ["id", "hour", "prediction"]
    assert sorted(row[0] for row in rows) == list(range(90))
    found = table.predict("m", id="id", into="airline.told")
    try:
        assert fed.table("airline.told").columns == ("id", "prediction")
        again = table.predict("m", id="id", into="airline.told", replace=True)
        assert found.fetchall() == again.fetchall()
    finally:
        assert fed.table("airline.told").types[0] == "BIGINT"


def test_a_relation_of_a_federation_that_is_closed() -> None:
    with in_memory() as con, sqlfl.connect(progress=False) as made:
        con.execute(WEATHER)
        made.attach("meteo", con)
        table = made.table("meteo.weather")
    assert "wind" in repr(table)
    with pytest.raises(sqlfl.Error, match="closed"):
        table.train("m", "linear_regression", "wind")
    with pytest.raises(sqlfl.Error, match="closed"):
        made.table("meteo.weather")


MISTAKES: dict[str, tuple[Callable[[sqlfl.Federation, Relation], Any], type[sqlfl.Error], str]] = {
    "an unknown table": (lambda fed, _: fed.table("airline.flight"), sqlfl.PlanError,
                         "did you mean flights"),
    "an unknown party": (lambda fed, _: fed.table("airlines.flights"), sqlfl.PlanError,
                         "did you mean airline"),
    "a table alone": (lambda fed, _: fed.table("flights"), sqlfl.ParseError, r"party\.table"),
    "a table and more": (lambda fed, _: fed.table("airline.flights; DROP MODEL m"),
                         sqlfl.ParseError, "end of a table, got ;"),
    "no text": (lambda fed, _: fed.table(3), sqlfl.ParseError, "text, got int"),
    "a query for a table": (lambda fed, _: fed.table(JOIN), sqlfl.ParseError, r"party\.table"),
    "a table for a query": (lambda fed, _: fed.query("airline.flights"), sqlfl.ParseError,
                            "expected a query, got airline"),
    "a statement for a query": (lambda fed, _: fed.query("SHOW MODELS"), sqlfl.ParseError,
                                "expected a query, got SHOW"),
    "no query": (lambda fed, _: fed.query("  -- none"), sqlfl.ParseError, "got nothing"),
    "a number for a query": (lambda fed, _: fed.query(1), sqlfl.Error, "must be text, got int"),
    "two queries": (lambda fed, _: fed.query("SELECT 1; SELECT 2"), sqlfl.ParseError, "several"),
    "a parenthesis too many": (lambda fed, _: fed.query("SELECT 1 ) FROM ( SELECT 2"),
                               sqlfl.ParseError, "end of the query"),
    "an unknown column": (lambda fed, _: fed.query("SELECT f.lat FROM airline.flights f"),
                          sqlfl.PlanError, r"(?s)column lat.*1, column 8.*did you mean late"),
    "columns of two parties": (
        lambda fed, _: fed.query(JOIN.replace("w.wind", "w.wind * f.load AS k")), sqlfl.PlanError,
        "needs columns of 2 parties"),
    "an aggregate over a join": (
        lambda fed, _: fed.query(f"SELECT max(load) AS m FROM ({JOIN})"), sqlfl.PlanError,
        "aggregate"),
    "values that are missing": (lambda fed, _: fed.query(f"{JOIN} WHERE f.id > ?", []),
                                sqlfl.ParseError, "0 values are given"),
    "a parameter for a name": (lambda fed, _: fed.query("SELECT * FROM ?", ["airline.flights"]),
                               sqlfl.ParseError, "a parameter is a value"),
    "an unknown target": (lambda _, r: r.train("m", "linear_regression", "lod"), sqlfl.PlanError,
                          "did you mean load"),
    "an unknown kind": (lambda _, r: r.train("m", "linear", "load"), sqlfl.OptionError,
                        "must be one of"),
    "an unknown option": (lambda _, r: r.train("m", "linear_regression", "load", epoch=3),
                          sqlfl.OptionError, "did you mean epochs"),
    "an option that is no name": (
        lambda _, r: r.train("m", "linear_regression", "load", **{"l2 = 1, l2": 3}),
        sqlfl.OptionError, "there is no option"),
    "a value that is none": (lambda _, r: r.train("m", "linear_regression", "load", l2=[object()]),
                             sqlfl.Error, "option l2 is of type object"),
    "a name that is none": (lambda _, r: r.train(1, "linear_regression", "load"), sqlfl.Error,
                            "the model must be text"),
    "an empty name": (lambda _, r: r.train("", "linear_regression", "load"), sqlfl.Error, "empty"),
    "an identifier alone": (lambda _, r: r.predict("k", id="id"), sqlfl.ParseError, r"t\.id"),
    "an identifier and more": (lambda _, r: r.predict("k", id="f.id) FROM (SELECT 1"),
                               sqlfl.ParseError, "end of an identifier column"),
    "a place alone": (lambda _, r: r.predict("k", id="f.id", into="told"), sqlfl.ParseError,
                      r"party\.table"),
    "replace without a place": (lambda _, r: r.predict("k", replace=True), sqlfl.Error, "into"),
    "a model that is not there": (lambda _, r: r.evaluate("k"), sqlfl.ModelError, "no model k"),
    "a probability beyond": (lambda _, r: r.confusion("k", at=2), sqlfl.ParseError, "from 0 to 1"),
    "a truth for privacy": (
        lambda _, r: r.train("m", "linear_regression", "load", privacy=True), sqlfl.Error,
        r"must be a dict of options, got bool\nhint: privacy=\{'label_epsilon'"),
    "a number for an identifier": (lambda _, r: r.predict("k", id=7), sqlfl.Error,
                                   "id must be a column or a list of columns, got int"),
    "a clause for an option": (
        lambda _, r: r.train("m", "linear_regression", "load", transform="log1p(load)"),
        sqlfl.OptionError, r"TRANSFORM \(function\(column\), ...\) is a clause"),
    "no privacy": (lambda _, r: r.train("m", "linear_regression", "load", privacy={}),
                   sqlfl.ParseError, "name of an option"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(
    fed: sqlfl.Federation,
    join: Relation,
    call: Callable[[sqlfl.Federation, Relation], Any],
    error: type[sqlfl.Error],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        call(fed, join)
    assert fed.models == ()


def test_a_cross_product_is_a_relation(fed: sqlfl.Federation) -> None:
    made = fed.query("SELECT f.load, w.wind FROM airline.flights f, meteo.weather w")
    assert made.columns == ("load", "wind")
    with pytest.raises(sqlfl.PlanError, match="allow_cross_join"):
        made.train("m", "linear_regression", "load")
    model = made.train("m", "linear_regression", "load", allow_cross_join=True)
    assert model.metrics["rows"] == 90 * 9
