"""Statements, results and models as a user meets them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from tests.conftest import Open
from tests.federations import federation
from tests.open_databases import in_memory

PEOPLE = (
    "CREATE TABLE people AS SELECT i AS id, 'p' || i AS name, i % 10 AS town, "
    "(i * 17) % 23 AS age, ['a', 'b', NULL][1 + i % 3] AS club, (i * 7) % 11 > 4 AS happy, "
    "['low', 'middle', 'top'][1 + (i * 5) % 3] AS level, (i * 3) % 7 / 2.0 AS score "
    "FROM range(120) r(i)"
)
TOWNS = (
    "CREATE TABLE towns AS SELECT i AS town, i * i AS size, 't' || i AS label FROM range(10) r(i)"
)
FROM = "FROM census.people p JOIN geo.towns t USING (town)"
FEATURES = "p.age, p.club, t.size"
KINDS = {
    "linear_regression": "score",
    "logistic_regression": "happy",
    "softmax_regression": "level",
}


@pytest.fixture
def fresh(database: Open) -> Iterator[sqlfl.Federation]:
    with federation({"census": [database(PEOPLE)], "geo": [database(TOWNS)]}) as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[sqlfl.Federation]:
    """With a model of each kind, called by the kind."""
    with in_memory() as people, in_memory() as towns:
        people.execute(PEOPLE)
        towns.execute(TOWNS)
        with federation({"census": [people], "geo": [towns]}) as made:
            for kind in KINDS:
                made.sql(train(kind, kind))
            yield made


@pytest.fixture
def fed(shared: sqlfl.Federation) -> Iterator[sqlfl.Federation]:
    """The shared one, without the models of other tests."""
    yield shared
    for name, *_ in shared.sql("SHOW MODELS").fetchall():
        if name not in KINDS:
            shared.sql(f"DROP MODEL {name}")


def train(kind: str, name: str = "m", head: str = "TRAIN MODEL") -> str:
    target = KINDS[kind]
    return (
        f"{head} {name} USING {kind} TARGET {target}\nFROM (SELECT p.{target}, {FEATURES} {FROM})"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_train_gives_a_result_about_the_model(kind: str, fed: sqlfl.Federation) -> None:
    result = fed.sql(train(kind))
    for text in ("m", kind, KINDS[kind], "age", "club", "size", "120"):
        assert text in repr(result)
    assert "<table" in result._repr_html_()
    assert len(result.fetchall()) >= 1


def test_a_model_tells_how_it_was_made(fed: sqlfl.Federation) -> None:
    text = train("logistic_regression")
    fed.sql(text)
    model = fed.model("m")
    assert fed.model("M").run == model.run
    assert (model.name, model.kind, model.target) == ("m", "logistic_regression", "happy")
    assert tuple(model.features) == ("age", "club", "size")
    assert model.sql.strip() == text
    assert {"rows", "loss", "accuracy", "auc", "log_loss"} <= set(model.metrics)
    assert "nothing here is differentially private" in str(model.privacy)
    assert {release.epsilon for release in model.privacy.releases} == {None}
    assert "logistic_regression" in repr(model)
    assert "<" in model._repr_html_()


def test_history_has_a_row_per_epoch(fed: sqlfl.Federation) -> None:
    fed.sql(train("linear_regression").replace("\nFROM", " WITH (algorithm='sgd', epochs=5)\nFROM"))
    history = fed.model("m").history
    assert isinstance(history, pa.Table)
    assert history.column_names == [
        "epoch", "rounds", "train_loss", "train_metric", "valid_loss", "valid_metric",
        "bytes_up", "bytes_down", "comm_seconds", "seconds", "gradient_norm",
        "duality_gap", "late",
    ]  # fmt: skip
    assert history.column("duality_gap").null_count == 5
    assert history.column("late").to_pylist() == [0] * 5
    # measured once, in the end
    assert history.column("gradient_norm").null_count == 4
    assert history.column("epoch").to_pylist() == [1, 2, 3, 4, 5]
    for name in ("rounds", "bytes_up", "bytes_down", "seconds"):
        values = history.column(name).to_numpy()
        assert (np.diff(values) > 0).all(), name
        assert values[0] > 0
    assert history.column("comm_seconds").null_count == 5


@pytest.mark.parametrize(
    "text",
    [
        "train model m using linear_regression target score from",
        "/* why */ Train Model m -- so\nUsing LINEAR_REGRESSION\nTarget score From",
    ],
)
def test_keywords_in_any_case_comments_and_a_semicolon(text: str, fed: sqlfl.Federation) -> None:
    fed.sql(f"{text} (select p.score, p.age /* feature */ from census.people as p -- all\n);")
    assert fed.model("m").metrics["rows"] == 120


def test_predict_without_identifiers(fed: sqlfl.Federation) -> None:
    result = fed.sql(f"PREDICT MODEL linear_regression FROM (SELECT {FEATURES} {FROM})")
    assert result.columns == ["prediction"]
    assert len(result) == 120
    assert result.arrow().column("prediction").type == pa.float64()


@pytest.mark.parametrize(
    ("kind", "classes"),
    [("logistic_regression", [False, True]), ("softmax_regression", ["low", "middle", "top"])],
)
def test_predict_gives_classes_and_their_probabilities(
    kind: str, classes: list[object], fed: sqlfl.Federation
) -> None:
    ids = "ID (census.people.id, geo.towns.label)"
    result = fed.sql(f"PREDICT MODEL {kind} {ids} FROM (SELECT {FEATURES} {FROM})")
    names = [f"probability_{str(c).lower()}" for c in classes]
    assert result.columns == ["id", "label", "prediction", *names]
    table = result.arrow()
    assert sorted(table.column(0).to_pylist()) == list(range(120))
    for number, label in zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True):
        assert label == f"t{number % 10}"
    matrix = np.column_stack([table.column(name).to_numpy() for name in names])
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-6)
    assert table.column("prediction").to_pylist() == [classes[k] for k in matrix.argmax(axis=1)]


def test_predict_over_other_rows_and_unseen_categories(fed: sqlfl.Federation) -> None:
    fed.sql(train("linear_regression").replace(FROM, f"{FROM} WHERE p.id < 60 AND p.club = 'a'"))
    result = fed.sql(
        f"PREDICT MODEL m ID (census.people.id) FROM (SELECT {FEATURES} {FROM} WHERE p.id > 90)"
    )
    assert sorted(result.arrow().column(0).to_pylist()) == list(range(91, 120))
    assert np.isfinite(result.arrow().column("prediction").to_numpy()).all()


def test_predict_of_an_empty_join_has_no_row(fed: sqlfl.Federation) -> None:
    result = fed.sql(
        "PREDICT MODEL linear_regression ID (census.people.id) "
        f"FROM (SELECT {FEATURES} {FROM} WHERE p.id > 900)"
    )
    assert result.columns == ["id", "prediction"]
    assert result.fetchall() == []


METRICS = {
    "linear_regression": ["rows", "loss", "rmse", "mae", "r2"],
    "logistic_regression": ["rows", "loss", "accuracy", "auc", "log_loss"],
}


@pytest.mark.parametrize("kind", METRICS)
def test_evaluate_gives_one_row(kind: str, fed: sqlfl.Federation) -> None:
    query = f"SELECT p.{KINDS[kind]}, {FEATURES} {FROM}"
    result = fed.sql(f"EVALUATE MODEL {kind} FROM ({query})")
    assert result.columns == METRICS[kind]
    assert len(result) == 1
    row = result.arrow().to_pylist()[0]
    assert row["rows"] == 120
    assert row["loss"] == pytest.approx(fed.model(kind).metrics["loss"], rel=1e-4)


def test_show_describe_and_drop(fresh: sqlfl.Federation) -> None:
    fed = fresh
    assert fed.sql("SHOW MODELS").fetchall() == []
    for number, kind in enumerate(KINDS):
        fed.sql(train(kind, f"m{number}"))
    shown = fed.sql("SHOW MODELS;")
    assert shown.columns[:3] == ["name", "kind", "target"]
    assert [row[0] for row in shown.fetchall()] == ["m0", "m1", "m2"]
    assert "softmax_regression" in repr(fed.sql("DESCRIBE MODEL m2"))
    fed.sql("DROP MODEL m1")
    assert [row[0] for row in fed.sql("SHOW MODELS").fetchall()] == ["m0", "m2"]
    with pytest.raises(sqlfl.ModelError, match="m1"):
        fed.model("m1")
    fed.sql("DROP MODEL IF EXISTS m1")
    with pytest.raises(sqlfl.ModelError):
        fed.sql("DROP MODEL m1")


def test_explain_is_the_plan_and_runs_nothing(fresh: sqlfl.Federation) -> None:
    fed = fresh
    text = train("linear_regression")
    plan = fed.explain(text)
    explained = str(fed.explain(f"EXPLAIN {text}"))
    assert repr(fed.sql(f"EXPLAIN {text}")) == explained
    assert explained == str(plan)
    full = repr(fed.sql(f"EXPLAIN (VERBOSE) {text}"))
    assert full == str(fed.explain(f"EXPLAIN (VERBOSE) {text}").details)
    for word in ("census", "geo", "people", "towns"):
        assert word in str(plan)
        assert word in full
    for word in ("census/0", "geo/0", "join_keys", "SELECT", "describe"):
        assert word in full
    assert plan.disclosures
    assert "<" in plan._repr_html_()
    kinds = {row["kind"] for row in fed.audit().arrow().to_pylist()}
    assert kinds <= {"list_tables", "tables", "describe", "columns"}
    assert fed.sql("SHOW MODELS").fetchall() == []


def test_explain_names_the_engine(fed: sqlfl.Federation) -> None:
    for engine in ("sql", "arrays"):
        text = train("linear_regression").replace("\nFROM", f" WITH (engine='{engine}')\nFROM")
        assert engine in str(fed.explain(text).details)


def test_audit_has_every_message(fresh: sqlfl.Federation) -> None:
    fed = fresh
    fed.sql(train("linear_regression"))
    audit = fed.audit()
    assert audit.columns == [
        "seq", "at", "run", "party", "client", "direction", "kind", "rows", "columns", "bytes",
        "crosses",
    ]  # fmt: skip
    rows = audit.arrow().to_pylist()
    assert all(row["crosses"] for row in rows)
    assert {row["party"] for row in rows} == {"census", "geo"}
    assert {row["direction"] for row in rows} == {"up", "down"}
    assert {row["run"] for row in rows} == {None, fed.model("m").run}
    labels = [row for row in rows if row["kind"] == "labels"]
    assert [(row["client"], row["rows"]) for row in labels] == [("census/0", 120)]


def test_results_convert(fed: sqlfl.Federation) -> None:
    result = fed.sql("SHOW MODELS")
    assert isinstance(result.arrow(), pa.Table)
    assert ("linear_regression", "linear_regression", "score") in [r[:3] for r in result.fetchall()]
    assert "linear_regression" in repr(result)
    assert "<table" in result._repr_html_()
    assert "linear_regression" in repr(fed)
    assert "census" in repr(fed)


def test_values_in_html_are_escaped(database: Open) -> None:
    con = database("CREATE TABLE t AS SELECT i AS y, i % 3 AS x, '<b>' AS tag FROM range(9) r(i)")
    with federation({"a": [con]}) as fed:
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT y, x FROM a.t)")
        html = fed.sql("PREDICT MODEL m ID (a.t.tag) FROM (SELECT x FROM a.t)")._repr_html_()
        assert "<b>" not in html
        assert "&lt;b&gt;" in html


def test_models_of_two_federations_do_not_meet(database: Open) -> None:
    people, towns = database(PEOPLE), database(TOWNS)
    parties = {"census": [people], "geo": [towns]}
    with federation(parties) as first, federation(parties) as second:
        first.sql(train("linear_regression"))
        second.sql(train("logistic_regression"))
        assert first.model("m").kind == "linear_regression"
        assert second.model("m").kind == "logistic_regression"


def test_several_clients_are_one_organisation(database: Open) -> None:
    parts = [database(f"{PEOPLE} WHERE i % 3 = {k}") for k in range(3)]
    with federation({"census": parts, "geo": [database(TOWNS)]}) as fed:
        result = fed.sql(train("linear_regression"))
        assert fed.model("m").metrics["rows"] == 120
        assert "census/2" in repr(result)
        clients = {row["client"] for row in fed.audit().arrow().to_pylist()}
        assert clients == {"census/0", "census/1", "census/2", "geo/0"}
