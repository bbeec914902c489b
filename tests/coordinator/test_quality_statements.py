"""METRICS, ROC, CONFUSION, CALIBRATION and RESIDUALS OF MODEL against scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pyarrow.compute as pc
import pytest
from sklearn import metrics
from sklearn.calibration import calibration_curve

import sqlfl
from tests.open_databases import in_memory

JOIN = "FROM one.t LEFT JOIN two.u USING (k)"
COLUMNS = "t.x, u.z, t.c"
TARGETS = {
    "logistic_regression": "t.x + t.e > 0.3",
    "softmax_regression": "CASE WHEN t.x + t.e < -0.5 THEN 'low' WHEN t.x + t.e < 0.6 THEN 'mid' "
    "ELSE 'top' END",
    "linear_regression": "2 * t.x + t.e",
    "poisson_regression": "floor(exp(t.x + 0.5 * t.e))",
}
WEIGHTS = "t.w"


def query(kind: str, weighted: bool = False, where: str = "") -> str:
    weight = f", {WEIGHTS}" if weighted else ""
    return f"(SELECT {COLUMNS}, {TARGETS[kind]} AS y{weight} {JOIN} {where})"


@pytest.fixture(scope="module")
def fed() -> Iterator[sqlfl.Federation]:
    """A table in two databases, and another with partners for some of its keys."""
    random = np.random.default_rng(0)
    with (
        in_memory() as first,
        in_memory() as second,
        in_memory() as two,
        sqlfl.connect(progress=False) as federation,
    ):
        for con, n in ((first, 150), (second, 90)):
            columns = {name: random.normal(size=n) for name in ("x", "e")}
            columns["k"] = random.integers(0, 30, n)
            columns["w"] = random.integers(0, 4, n)
            columns["c"] = random.choice(["a", "b"], n)
            con.execute("CREATE TABLE t AS SELECT * FROM columns")
        two.execute("CREATE TABLE u AS SELECT range % 20 AS k, range / 9 AS z FROM range(30)")
        federation.attach("one", [first, second])
        federation.attach("two", two)
        for kind in TARGETS:
            for weighted in (False, True):
                name, clause = f"{kind}{'_w' * weighted}", "WEIGHT w" * weighted
                rows = query(kind, weighted)
                federation.sql(f"TRAIN MODEL {name} USING {kind} TARGET y {clause} FROM {rows}")
        yield federation


def truth(
    fed: sqlfl.Federation, kind: str, weighted: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Prediction (N,) or (N, K), target and weight of each joined row, by PREDICT ... ID."""
    name = f"{kind}{'_w' * weighted}"
    ids = "ID (one.t.x, one.t.e, one.t.w)"
    found = fed.sql(f"PREDICT MODEL {name} {ids} FROM {query(kind)}").arrow()
    told = duckdb.sql(f"SELECT {TARGETS[kind]} AS y, w FROM found AS t").fetchnumpy()
    classes = [c for c in found.column_names if c.startswith("probability_")]
    prediction = np.column_stack([found[c].to_numpy() for c in classes or ["prediction"]])
    y = np.asarray(told["y"])
    return (
        prediction if classes else prediction[:, 0],
        y,
        np.asarray(told["w"], float) if weighted else None,
    )


def of(fed: sqlfl.Federation, statement: str) -> dict[str, np.ndarray]:
    return fed.sql(statement).arrow().to_pydict()


weighted_or_not = pytest.mark.parametrize("weighted", [False, True])


@weighted_or_not
def test_roc(fed: sqlfl.Federation, weighted: bool) -> None:
    prediction, y, w = truth(fed, "logistic_regression", weighted)
    name = "logistic_regression" + "_w" * weighted
    found = of(fed, f"ROC OF MODEL {name} FROM {query('logistic_regression', weighted)}")
    _, true, thresholds = metrics.roc_curve(y, prediction[:, 1], sample_weight=w)
    if w is None:
        np.testing.assert_allclose(found["threshold"], thresholds)
        np.testing.assert_allclose(found["recall"], true)
    area = np.trapezoid(found["recall"], found["false_positive_rate"])
    assert area == pytest.approx(metrics.roc_auc_score(y, prediction[:, 1], sample_weight=w))
    assert set(found["class"]) == {True}
    assert found["precision"][0] is None


def test_roc_has_a_curve_of_each_of_several_classes(fed: sqlfl.Federation) -> None:
    prediction, y, _ = truth(fed, "softmax_regression", False)
    found = fed.sql(f"ROC OF MODEL softmax_regression FROM {query('softmax_regression')}").arrow()
    for number, name in enumerate(["low", "mid", "top"]):
        own = found.filter(pc.field("class") == name).to_pydict()
        false, true, _ = metrics.roc_curve(y == name, prediction[:, number])
        np.testing.assert_allclose(own["recall"], true)
        np.testing.assert_allclose(own["false_positive_rate"], false)


@weighted_or_not
@pytest.mark.parametrize("threshold", [None, 0.3])
def test_confusion(fed: sqlfl.Federation, weighted: bool, threshold: float | None) -> None:
    prediction, y, w = truth(fed, "logistic_regression", weighted)
    name = "logistic_regression" + "_w" * weighted
    at = "" if threshold is None else f"AT {threshold}"
    rows = query("logistic_regression", weighted)
    found = of(fed, f"CONFUSION OF MODEL {name} {at} FROM {rows}")
    taken = prediction[:, 1] >= (0.5 if threshold is None else threshold)
    expected = metrics.confusion_matrix(y, taken, sample_weight=w)
    np.testing.assert_allclose(np.reshape(found["rows"], (2, 2)), expected)
    shares = expected / expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.reshape(found["share_of_actual"], (2, 2)), shares)


def test_calibration(fed: sqlfl.Federation) -> None:
    prediction, y, _ = truth(fed, "logistic_regression", False)
    rows = query("logistic_regression")
    for strategy in ("quantile", "uniform"):
        found = of(
            fed,
            f"CALIBRATION OF MODEL logistic_regression "
            f"WITH (bins = 6, strategy = '{strategy}') FROM {rows}",
        )
        actual, predicted = calibration_curve(y, prediction[:, 1], n_bins=6, strategy=strategy)
        np.testing.assert_allclose(found["actual"], actual)
        np.testing.assert_allclose(found["predicted"], predicted)
        assert sum(found["rows"]) == len(y)


@weighted_or_not
def test_calibration_of_numbers_adds_up(fed: sqlfl.Federation, weighted: bool) -> None:
    prediction, y, w = truth(fed, "poisson_regression", weighted)
    name = "poisson_regression" + "_w" * weighted
    rows = query("poisson_regression", weighted)
    found = of(fed, f"CALIBRATION OF MODEL {name} WITH (bins = 1) FROM {rows}")
    assert found["predicted"][0] == pytest.approx(np.average(prediction, weights=w))
    assert found["actual"][0] == pytest.approx(np.average(y, weights=w))


@weighted_or_not
def test_residuals(fed: sqlfl.Federation, weighted: bool) -> None:
    prediction, y, w = truth(fed, "linear_regression", weighted)
    name, rows = "linear_regression" + "_w" * weighted, query("linear_regression", weighted)
    found = of(fed, f"RESIDUALS OF MODEL {name} WITH (bins = 1) FROM {rows}")
    residual = y - prediction
    assert found["residual"][0] == pytest.approx(np.average(residual, weights=w), abs=1e-6)
    mse = metrics.mean_squared_error(y, prediction, sample_weight=w)
    assert found["rmse"][0] == pytest.approx(np.sqrt(mse))
    repeated = residual if w is None else np.repeat(residual, w.astype(int))
    tolerance = 1e-6 if w is None else 0.2
    assert found["q50"][0] == pytest.approx(np.median(repeated), abs=tolerance)
    assert found["lowest"][0] == pytest.approx(prediction.min(), rel=1e-5)


@weighted_or_not
@pytest.mark.parametrize("kind", ["logistic_regression", "softmax_regression"])
def test_metrics_of_classes(fed: sqlfl.Federation, kind: str, weighted: bool) -> None:
    prediction, y, w = truth(fed, kind, weighted)
    rows = fed.sql(f"METRICS OF MODEL {kind}{'_w' * weighted} FROM {query(kind, weighted)}")
    found = {(metric, of): value for metric, of, value in rows}
    classes = np.unique(y)
    taken = classes[prediction.argmax(axis=1)]
    one_hot = (y[:, None] == classes).astype(float)
    expected = {
        ("rows", None): len(y),
        ("accuracy", None): metrics.accuracy_score(y, taken, sample_weight=w),
        ("balanced_accuracy", None): metrics.balanced_accuracy_score(y, taken, sample_weight=w),
        ("f1_macro", None): metrics.f1_score(y, taken, average="macro", sample_weight=w),
        ("matthews", None): metrics.matthews_corrcoef(y, taken, sample_weight=w),
        ("log_loss", None): metrics.log_loss(y, prediction, sample_weight=w),
    }
    squares = ((prediction - one_hot) ** 2).sum(axis=1) / (2 if len(classes) == 2 else 1)
    expected["brier", None] = np.average(squares, weights=w)
    for number, name in enumerate(classes.tolist()):
        own = y == name
        if len(classes) > 2 or number == 1:
            p = prediction[:, number]
            expected["auc", name] = metrics.roc_auc_score(own, p, sample_weight=w)
            expected["pr_auc", name] = metrics.average_precision_score(own, p, sample_weight=w)
        expected["rows", name] = own.sum()
        scores = metrics.precision_recall_fscore_support(own, taken == name, sample_weight=w)
        for metric, values in zip(("precision", "recall", "f1"), scores, strict=False):
            expected[metric, name] = values[1]
    assert found == {key: pytest.approx(value) for key, value in expected.items()}


@weighted_or_not
def test_metrics_of_numbers(fed: sqlfl.Federation, weighted: bool) -> None:
    prediction, y, w = truth(fed, "linear_regression", weighted)
    rows = query("linear_regression", weighted)
    name = "linear_regression" + "_w" * weighted
    found = dict(fed.sql(f"METRICS OF MODEL {name} FROM {rows}").fetchall())
    given = {"y_true": y, "y_pred": prediction, "sample_weight": w}
    expected = {
        "rows": len(y),
        "rmse": metrics.root_mean_squared_error(**given),
        "mae": metrics.mean_absolute_error(**given),
        "median_absolute_error": metrics.median_absolute_error(**given),
        "mape": metrics.mean_absolute_percentage_error(**given),
        "r2": metrics.r2_score(**given),
        "explained_variance": metrics.explained_variance_score(**given),
        "mean_error": np.average(prediction - y, weights=w),
        "max_error": np.abs((y - prediction)[w != 0]).max(),
    }
    assert found == {key: pytest.approx(value, abs=1e-9) for key, value in expected.items()}


def test_small_cells_are_not_shown(fed: sqlfl.Federation) -> None:
    rows = query("softmax_regression")
    plain = of(fed, f"CONFUSION OF MODEL softmax_regression FROM {rows}")
    few = sorted(count for count in plain["rows"] if count)[0] + 1
    found = of(
        fed, f"CONFUSION OF MODEL softmax_regression WITH (min_cell = {few:.0f}) FROM {rows}"
    )
    shown = [count for count in found["rows"] if count is not None]
    assert all(count == 0 or count >= few for count in shown)
    for actual in ("low", "mid", "top"):  # no cell is told by the rest of its row
        hidden = [c for c, a in zip(found["rows"], found["actual"], strict=True) if a == actual]
        assert hidden.count(None) != 1
    binned = of(fed, f"CALIBRATION OF MODEL softmax_regression WITH (min_cell = 60) FROM {rows}")
    assert min(binned["rows"]) >= 60
    curve = of(fed, f"ROC OF MODEL softmax_regression WITH (min_cell = 60) FROM {rows}")
    counted = np.add(curve["true_positives"], curve["false_positives"])
    assert np.diff(counted)[np.diff(counted) > 0].min() >= 60


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("ROC OF MODEL linear_regression", "ROC is of classes"),
        ("RESIDUALS OF MODEL logistic_regression", "RESIDUALS is of numbers"),
        ("METRICS OF MODEL linear_regression AT 0.4", "AT is of probabilities"),
        ("ROC OF MODEL logistic_regression AT 0.4", "takes no AT"),
        ("CONFUSION OF MODEL logistic_regression AT 40", "from 0 to 1 after AT, got 40"),
        ("CONFUSION OF MODEL logistic_regression AT high", "from 0 to 1 after AT, got high"),
        ("ROC OF logistic_regression", "expected MODEL"),
        ("ROC OF MODEL logistic_regression WITH (bins = 3)", "bins"),
        ("CALIBRATION OF MODEL logistic_regression WITH (bins = 0)", "bins must be"),
        ("ROC OF MODEL logistic_regression PRIVACY (label_epsilon = 1)", "labels in clear"),
        ("ROC OF MODEL nobody", "no model nobody"),
    ],
)
def test_mistakes(fed: sqlfl.Federation, statement: str, message: str) -> None:
    with pytest.raises(sqlfl.Error, match=message):
        fed.sql(f"{statement} FROM {query('logistic_regression')}")


def test_no_rows(fed: sqlfl.Federation) -> None:
    rows = query("logistic_regression", where="WHERE t.x > 1000")
    with pytest.raises(sqlfl.Error, match="no rows"):
        fed.sql(f"ROC OF MODEL logistic_regression FROM {rows}")


def test_nothing_else_leaves_than_for_evaluate(fed: sqlfl.Federation) -> None:
    rows = query("logistic_regression")
    look = fed.explain(f"ROC OF MODEL logistic_regression FROM {rows}")
    plain = fed.explain(f"EVALUATE MODEL logistic_regression FROM {rows}")
    assert look.disclosures == plain.disclosures
    assert str(look).startswith("ROC OF MODEL logistic_regression")
