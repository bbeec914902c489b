"""A query that scores a model, or starts from one, need not be written as that which trained it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import sqlfl
from tests.conftest import Open

TRAINED = "SELECT t.x, t.g, t.z, u.v, u.y FROM a.t AS t JOIN b.u AS u ON t.k = u.k"


@pytest.fixture
def fed(database: Open) -> Iterator[sqlfl.Federation]:
    columns = "range AS k, sin(range) AS x, cos(range) AS z, 'g' || range % 3 AS g"
    first = database(f"CREATE TABLE t AS SELECT {columns} FROM range(40)")
    second = database(
        "CREATE TABLE u AS SELECT range AS k, range % 7 AS v, range % 5 AS y FROM range(40)",
        "CREATE TABLE single AS SELECT 1.0 AS y, 2.0 AS w",
    )
    with sqlfl.connect() as federation:
        federation.attach("a", first)
        federation.attach("b", second)
        yield federation


def scores(fed: sqlfl.Federation, query: str) -> np.ndarray:
    table = fed.sql(f"PREDICT MODEL m ID (t.k) FROM ({query})").arrow()
    order = np.argsort(table.column("k").to_numpy())
    return table.column("prediction").to_numpy()[order]


@pytest.mark.parametrize("columns", ["t.z, u.v, t.x, t.g", "u.v, t.g, t.x, t.z, u.y", "*"])
def test_columns_in_another_order_are_the_same_columns(fed: sqlfl.Federation, columns: str) -> None:
    fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y FROM ({TRAINED})")
    if columns == "*":
        columns = "t.g AS G, u.v, t.x AS X, t.z"
    again = TRAINED.replace("t.x, t.g, t.z, u.v, u.y", columns)
    np.testing.assert_array_equal(scores(fed, again), scores(fed, TRAINED))
    if "u.y" in columns:
        found, expected = (
            fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().to_pylist()[0]
            for query in (again, TRAINED)
        )
        assert found == pytest.approx(expected)
        fed.sql(
            "TRAIN MODEL n USING linear_regression TARGET y "
            f"WITH (warm_start = 'm', epochs = 1, algorithm = 'sgd', learning_rate = 1e-9) "
            f"FROM ({again})"
        )
        one, other = (fed.model(name).metrics["objective"] for name in "mn")
        assert other == pytest.approx(one, rel=1e-6)


def test_a_table_of_the_target_alone_may_be_scored(fed: sqlfl.Federation) -> None:
    query = "SELECT t.x, single.y, single.w FROM a.t AS t, b.single"
    fed.sql(
        "TRAIN MODEL m USING linear_regression TARGET y WEIGHT w WITH (allow_cross_join = true) "
        f"FROM ({query})"
    )
    np.testing.assert_allclose(scores(fed, query), 1.0)
    assert fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().column("rows").to_pylist() == [40]


def test_a_warm_start_of_towers_needs_towers_of_the_same_shape(fed: sqlfl.Federation) -> None:
    train = "TRAIN MODEL {} USING mlp_regressor TARGET y WITH (epochs = 1{}) FROM (" + TRAINED + ")"
    fed.sql(train.format("m", ", hidden = [3]"))
    for options, wanted, hint in (
        ("", "hidden = [16]", "add hidden = [3], or leave warm_start out"),
        (", hidden = [3, 3]", "hidden = [3, 3]", "add hidden = [3], or leave warm_start out"),
        (", hidden = [3], activation = 'tanh'", "activation = 'tanh'", "add activation = 'relu'"),
        (", hidden = [3], head = 'linear'", "head = 'linear'", "add head = 'none'"),
    ):
        with pytest.raises(sqlfl.ModelError) as caught:
            fed.explain(train.format("n", f"{options}, warm_start = 'm'"))
        assert f"and this statement {wanted}: a warm start takes" in caught.value.message
        assert caught.value.hint is not None
        assert caught.value.hint.startswith(hint)
    fed.explain(train.format("n", ", hidden = [3], dropout = 0.5, warm_start = 'm'"))


def test_towers_that_fit_no_memory_are_refused_at_once(fed: sqlfl.Federation) -> None:
    train = "TRAIN MODEL m USING mlp_regressor TARGET y WITH ({}) FROM (" + TRAINED + ")"
    with pytest.raises(sqlfl.OptionError) as caught:
        fed.sql(train.format("hidden = [60000, 60000]"))
    assert caught.value.message == (
        "towers with hidden = [60000, 60000] have 3,600,060,000 weights between their layers, "
        "about 107.3 GiB in training; memory_limit is 4.0 GiB"
    )
    assert caught.value.column == train.index("{}") + len("hidden = ") + 1
    with pytest.raises(sqlfl.OptionError, match=r"memory_limit is 1\.0 MiB"):
        fed.explain(train.format("hidden = [300, 300], memory_limit = '1MiB'"))
    fed.explain(train.format("hidden = [300, 300], memory_limit = '1GiB'"))


@pytest.mark.parametrize(
    ("kind", "classifier"),
    [("linear_regression", "softmax_regression"), ("mlp_regressor", "mlp_classifier")],
)
def test_a_regression_of_text_names_the_classifier(
    fed: sqlfl.Federation, kind: str, classifier: str
) -> None:
    with pytest.raises(sqlfl.PlanError) as caught:
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET t FROM (SELECT x, g AS t FROM a.t)")
    assert caught.value.hint == f"cast it to a number, or train a classifier: USING {classifier}"


@pytest.mark.parametrize("kind", ["logistic_regression", "softmax_regression", "mlp_classifier"])
def test_a_measurement_is_no_class(database: Open, kind: str) -> None:
    query = "SELECT x, {} AS z FROM a.t"
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", database("CREATE TABLE t AS SELECT range AS x FROM range(80)"))
        with pytest.raises(sqlfl.ModelError, match="80 different values, which are hardly classes"):
            fed.sql(f"TRAIN MODEL m USING {kind} TARGET z FROM ({query.format('x / 7.0')})")
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET z FROM ({query.format('1.0 * (x % 2)')})")


def test_the_coordinator_needs_a_party_to_be_at(database: Open) -> None:
    with sqlfl.connect(at="b") as fed:
        fed.attach(
            "a", database("CREATE TABLE t AS SELECT range AS x, range % 2 AS y FROM range(9)")
        )
        statement = "TRAIN MODEL m USING linear_regression TARGET x FROM (SELECT x, y FROM a.t)"
        with pytest.raises(sqlfl.PlanError, match="to run at b, and there is no such party"):
            fed.sql(statement)
        fed.attach(
            "B", database("CREATE TABLE t AS SELECT range AS x, range % 2 AS y FROM range(9)")
        )
        assert fed.explain(statement).at == "B"
