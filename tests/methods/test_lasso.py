"""Statements of the LASSO over real joins."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Lasso

import sqlfl
from sqlfl.base.errors import ModelError, OptionError, PartyError, PlanError, PrivacyError
from sqlfl.coordinator.join import join_limits
from sqlfl.coordinator.rounds import passes
from sqlfl.messages.wire import decode
from sqlfl.party.release_guard import ReleaseGuard
from tests.conftest import Open
from tests.depth import combinations, examples
from tests.federations import Parties, federation, trainable
from tests.strategies import Case, cases, train_sql
from tests.test_border import assert_disclosed, tapped

ROWS = 900
FACTS = """CREATE TABLE facts AS SELECT i AS id, (hash(i, 7) % 40)::INT AS did,
    (hash(i, 1) % 1000)::INT / 500.0 - 1 AS x, (hash(i, 2) % 1000)::INT / 50.0 AS z,
    (hash(i, 4) % 1000)::INT / 500.0 AS noise,
    3 * ((hash(i, 1) % 1000)::INT / 500.0 - 1) + (hash(i, 7) % 40)::INT % 5 - 2
      + CASE WHEN (hash(i, 7) % 40)::INT % 4 = 1 THEN 2 ELSE 0 END
      + (hash(i, 3) % 1000)::INT / 1000.0 AS y, 1 + i % 3 AS w
    FROM range({rows}) r(i) WHERE i % {clients} = {client}"""
DIMS = """CREATE TABLE dims AS SELECT i AS id, i % 5 - 2 AS w, 'k' || i % 4 AS v,
    i % 7 / 7.0 AS u FROM range({dims}) r(i)"""
QUERY = """SELECT f.x, f.z, f.noise, d.w, d.v, d.u, f.y {more} FROM pa.facts f
    {join} pb.dims d ON f.did = d.id"""


def parties(database: Open, clients: int = 1, dims: int = 40) -> Parties:
    facts = [FACTS.format(rows=ROWS, clients=clients, client=q) for q in range(clients)]
    return {"pa": [database(text) for text in facts], "pb": [database(DIMS.format(dims=dims))]}


def encoded(join: str, dims: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """The joined table in one place, encoded as parties do: numbers standardised, one-hot columns
    centred, NULL imputed by the mean and marked."""
    with duckdb.connect() as con:
        con.execute(FACTS.format(rows=ROWS, clients=1, client=0))
        con.execute(DIMS.format(dims=dims))
        text = QUERY.format(join=join, more=", f.id").replace("pa.", "").replace("pb.", "")
        table = con.sql(f"SELECT * FROM ({text}) ORDER BY id").fetchnumpy()
    columns = []
    for name in ("x", "z", "noise", "w", "u"):
        values = np.ma.filled(np.ma.asarray(table[name], np.float64), np.nan)
        missing = np.isnan(values)
        filled = np.where(missing, np.nanmean(values), values)
        columns.append((filled - filled.mean()) / filled.std())
        if missing.any():
            columns.append((missing - missing.mean()) / missing.std())
    texts = np.ma.filled(np.ma.asarray(table["v"], object), "")
    for value in np.unique(texts.astype(str)):
        hot = (texts == value).astype(float)
        columns.append(hot - hot.mean())
    return np.column_stack(columns), np.asarray(table["y"], np.float64)


def train(own: Parties, options: str, join: str = "JOIN", **more: Any) -> sqlfl.Model:
    clauses = more.get("clauses", "")
    with federation(own) as fed:
        fed.sql(
            f"TRAIN MODEL m USING {more.get('kind', 'lasso')} TARGET y {clauses} WITH ({options}) "
            f"{more.get('privacy', '')} "
            f"FROM ({QUERY.format(join=join, more=more.get('columns', ''))})"
        )
        return fed.model("m")


@pytest.mark.parametrize(
    ("join", "clients", "radius"), combinations(("JOIN", "LEFT JOIN"), (1, 3), (0.5, 3.0))
)
def test_the_model_is_the_lasso_over_one_table(
    database: Open, join: str, clients: int, radius: float
) -> None:
    dims = 40 if join == "JOIN" else 30
    x, y = encoded(join, dims)
    model = train(parties(database, clients, dims), f"radius = {radius}", join)
    low, high = 1e-6, 10.0
    for _ in range(60):
        alpha = float(np.sqrt(low * high))
        fitted = Lasso(alpha, tol=1e-10, max_iter=50_000).fit(x, y)
        low, high = (alpha, high) if np.abs(fitted.coef_).sum() > radius else (low, alpha)
    best = 0.5 * float(np.mean((fitted.predict(x) - y) ** 2))
    assert model.metrics["objective"] == pytest.approx(best, rel=1e-4)
    assert model.metrics["rmse"] == pytest.approx(np.sqrt(2.0 * best), rel=1e-4)
    assert model.converged


def test_history_has_the_duality_gap_and_scoring_knows_the_model(database: Open) -> None:
    own = parties(database, 2)
    with federation(own) as fed:
        text = QUERY.format(join="JOIN", more="")
        fed.sql(
            "TRAIN MODEL m USING lasso TARGET y WITH (radius = 3, iterations = 12, step = 'search',"
            f" tolerance = 0) FROM ({text})"
        )
        history = fed.model("m").history
        gaps = np.asarray(history["duality_gap"])
        assert len(gaps) == 12
        assert (gaps > -1e-12).all()
        assert gaps[-1] < gaps[0]
        assert history["gradient_norm"].null_count == 12
        (found,) = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()
        assert found["rmse"] == pytest.approx(fed.model("m").metrics["rmse"], rel=1e-5)
        predicted = fed.sql(f"PREDICT MODEL m FROM ({text.replace(', f.y', '')})").arrow()
        assert len(predicted) == ROWS


def test_a_sketch_tells_no_score_in_training_and_predicts_as_well(database: Open) -> None:
    own = parties(database, 2)
    exact = train(own, "radius = 3").metrics["rmse"]
    model = train(own, "radius = 3, sketch = 1024, seed = 1")
    assert "rmse" not in model.metrics
    assert model.history["train_metric"].null_count == model.history.num_rows
    with federation(own) as fed:
        text = QUERY.format(join="JOIN", more="")
        fed.sql(
            "TRAIN MODEL m USING lasso TARGET y WITH (radius = 3, sketch = 1024, seed = 1) "
            f"FROM ({text})"
        )
        (found,) = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()
    assert exact <= found["rmse"] < 1.1 * exact


def test_validation_chooses_an_epoch(database: Open) -> None:
    model = train(
        parties(database),
        "radius = 6, step = 'fixed', iterations = 30, validation_fraction = 0.3, patience = 3",
    )
    assert model.metrics["valid_rows"] > 0
    losses = np.asarray(model.history["valid_loss"])
    assert model.metrics["valid_loss"] == pytest.approx(losses.min())


def test_weights_count_as_copies(database: Open) -> None:
    model = train(parties(database), "radius = 2", columns=", f.w AS weigh", clauses="WEIGHT weigh")
    x, y = encoded("JOIN")
    w = 1.0 + np.arange(ROWS) % 3
    assert model.metrics["rows"] == ROWS
    w = w / w.sum()
    x, y = x - w @ x, y - w @ y
    scale = np.sqrt(w @ x**2)
    scale[-4:] = 1.0  # of one-hot columns
    x = x / scale
    theta, step = np.zeros(x.shape[1]), 1.0 / np.linalg.norm(x * np.sqrt(w)[:, None], 2) ** 2
    for _ in range(20_000):
        theta = projected(theta - step * (x.T @ (w * (x @ theta - y))), 2.0)
    best = 0.5 * float(w @ (x @ theta - y) ** 2)
    assert model.metrics["objective"] == pytest.approx(best, rel=1e-4)


def projected(vector: np.ndarray, radius: float) -> np.ndarray:
    """To the ℓ1 ball (Duchi et al., 2008)."""
    sizes = np.abs(vector)
    if sizes.sum() <= radius:
        return vector
    ordered = np.sort(sizes)[::-1]
    shares = (np.cumsum(ordered) - radius) / (1.0 + np.arange(len(ordered)))
    level = shares[np.flatnonzero(ordered > shares)[-1]]
    return np.sign(vector) * np.maximum(sizes - level, 0.0)


RADII = st.sampled_from((0.05, 1.0, 20.0))
ENGINES = st.sampled_from(("sql", "arrays"))
LINEAR = ("linear_regression",)


@given(st.booleans().flatmap(lambda o: cases(kinds=LINEAR, outer=o)), st.integers(1, 3), ENGINES,
       RADII)  # fmt: skip
@examples(2, 100)
def test_random_federations_reach_the_central_optimum(
    case: Case, clients: int, engine: str, radius: float
) -> None:
    """And score and predict as in training."""
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases)
        radius = radius * float(data.y.std() or 1.0)
        fed.sql(
            train_sql("m", "lasso", case.target, case.query, radius=radius, engine=engine,
                      tolerance=1e-9, epochs=2000)
        )  # fmt: skip
        model = fed.model("m")
        x, y = data.x - data.x.mean(axis=0), data.y - data.y.mean()
        best = least(x, y, radius)
        scale = 0.5 * float(y @ y) / len(y) + 1e-12 * float(np.square(data.y).max())
        assert model.metrics["objective"] <= best + 1e-6 * scale
        assert model.metrics["objective"] >= best - 1e-6 * scale or not model.converged
        row = fed.sql(f"EVALUATE MODEL m FROM ({case.query})").arrow().to_pylist()[0]
        assert row["rmse"] == pytest.approx(model.metrics["rmse"], rel=1e-4, abs=1e-5)


@given(cases(kinds=LINEAR), st.integers(1, 3))
@examples(1, 100)
def test_joined_rows_that_are_not_written_down_train_the_same(case: Case, clients: int) -> None:
    """As joins of very many rows are trained, where they are inner ones along trees. Where columns
    are equally good another one may be chosen: what is compared is the optimum."""
    found = []
    for many in (1 << 60, 1):
        with pytest.MonkeyPatch.context() as patch, case.open(clients) as databases:
            data = trainable(case, databases)
            patch.setattr(join_limits, "MANY", many)
            patch.setattr(passes, "CHUNK", 1)  # pieces of 1,024 rows
            with federation(databases) as fed:
                fed.sql(
                    train_sql("m", "lasso", case.target, case.query, radius=1.0, tolerance=1e-9,
                              epochs=2000)
                )  # fmt: skip
                found.append(fed.model("m").metrics)
        scale = float(np.abs(data.y).max()) ** 2
    written, pieces = found
    assert written.keys() == pieces.keys()
    assert pieces["objective"] == pytest.approx(written["objective"], rel=1e-5, abs=1e-8 * scale)


def least(x: np.ndarray, y: np.ndarray, radius: float) -> float:
    """½ mean squared error of the best weights in the ball: accelerated projected gradient, whose
    duality gap is looked at."""
    n, theta = len(y), np.zeros(x.shape[1])
    gram, linear = x.T @ x / n, x.T @ y / n
    step = 1.0 / max(float(np.linalg.eigvalsh(gram)[-1]), 1e-12)
    ahead, momentum = theta, 1.0
    for _ in range(200_000):
        new = projected(ahead - step * (gram @ ahead - linear), radius)
        after = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        ahead = new + (momentum - 1.0) / after * (new - theta)
        theta, momentum = new, after
        slopes = gram @ theta - linear
        if slopes @ theta + radius * np.abs(slopes).max() <= 1e-9 * float(y @ y) / n:
            break
    return 0.5 * float(np.mean((y - x @ theta) ** 2))


@pytest.mark.parametrize(
    ("options", "kind", "match"),
    [
        ("sample = 2", "lasso", "radius must be given"),
        ("radius = 0", "lasso", "radius must be a number greater than 0"),
        ("radius = 1, l2 = 0.1", "lasso", "l2 does not apply to lasso"),
        ("radius = 1, warm_start = 'm'", "lasso", "warm_start does not apply to lasso"),
        ("radius = 1, algorithm = 'lbfgs'", "lasso", "algorithm 'lbfgs' does not train lasso"),
        ("radius = 1, epochs = 3, iterations = 3", "lasso", "say the same"),
        ("radius = 1, sketch = 8, validation_fraction = 0.2", "lasso", "validation_fraction does"),
        ("radius = 1, sketch = 7", "lasso", "sketch must be a whole number from 8 to"),
        ("alpha = 1", "lasso", "there is no option alpha.*it is called l2, of lasso radius here"),
        ("algorithm = 'frank_wolfe', radius = 1", "linear_regression", "does not train linear_re"),
        ("radius = 1", "linear_regression", "radius does not apply to linear_regression"),
    ],
)
def test_what_does_not_go_together_is_refused(
    database: Open, options: str, kind: str, match: str
) -> None:
    with pytest.raises(OptionError, match=f"(?s){match}"):
        train(parties(database), options, kind=kind)


def test_rows_of_different_weights_have_no_sketch(database: Open) -> None:
    with pytest.raises(ModelError, match="weigh differently have no sketch"):
        train(
            parties(database),
            "radius = 2, sketch = 8",
            columns=", f.w AS weigh",
            clauses="WEIGHT weigh",
        )


# -- PRIVACY ---------------------------------------------------------------------------------------

BOUNDS = (
    "{'x': [-1, 1], 'z': [0, 20], 'noise': [0, 2], 'w': [-2, 2], 'u': [0, 1], "
    "'v': ['k0', 'k1', 'k2', 'k3']}"
)


def private(own: Parties, clause: str, options: str = "radius = 3", **more: Any) -> sqlfl.Model:
    with federation(own, **more) as fed:
        fed.sql(
            f"TRAIN MODEL m USING lasso TARGET y WITH ({options}) "
            f"PRIVACY ({clause}, feature_bounds = {BOUNDS}) "
            f"FROM ({QUERY.format(join='JOIN', more='')})"
        )
        return fed.model("m")


def test_a_budget_that_asks_for_nothing_is_as_good_as_none(database: Open) -> None:
    own = parties(database)
    model = private(own, "epsilon = 1e6, delta = 1e-4", "radius = 6, sketch = 512")
    assert model.metrics["objective"] < 0.2
    with federation(own) as fed:
        text = QUERY.format(join="JOIN", more="")
        fed.sql(
            "TRAIN MODEL m USING lasso TARGET y WITH (radius = 6, sketch = 512, iterations = 12) "
            f"PRIVACY (epsilon = 1e6, delta = 1e-4, feature_bounds = {BOUNDS}) FROM ({text})"
        )
        (found,) = fed.sql(f"EVALUATE MODEL m FROM ({text})").arrow().to_pylist()
    assert found["r2"] > 0.95


@pytest.mark.parametrize("mechanism", ["gumbel", "laplace"])
def test_the_report_claims_what_was_asked(database: Open, mechanism: str) -> None:
    clause = f"epsilon = 4, delta = 1e-4, mechanism = '{mechanism}', feature_bound = 0.5"
    model = private(parties(database), f"{clause}, label_bound = 3", "radius = 3, iterations = 5")
    assert model.history.num_rows == 5
    assert np.isfinite(np.asarray(model.history["train_loss"])).all()
    report = model.privacy
    (columns,) = [
        r for r in report.releases if r.kind == "chosen columns" and r.observer == "coordinator"
    ]
    assert columns.epsilon is not None
    assert 3.9 < columns.epsilon <= 4.0
    said = f"at most 5 choices by scores with {mechanism.capitalize()} noise"
    assert said in columns.mechanism
    assert "values clipped to 0.5, residuals to 6" in columns.mechanism
    assert "nothing here is differentially private" not in str(report)
    text = " ".join(str(report).split())
    assert "choices of columns, random sums of these, and what is made of them" in text
    assert "predictions" not in text.replace("PREDICT", "")


def test_parties_that_combine_choose_together(database: Open) -> None:
    model = private(parties(database, 3), "epsilon = 8, delta = 1e-4", combine=True)
    assert model.history.num_rows == 8


def test_the_private_traffic_is_what_explain_says(database: Open) -> None:
    own = parties(database)
    for stop in (False, True):
        text = (
            "TRAIN MODEL m USING lasso TARGET y WITH (radius = 3, iterations = 4, sketch = 16) "
            f"PRIVACY (epsilon = 4, delta = 1e-4, feature_bounds = {BOUNDS}) "
            f"FROM ({QUERY.format(join='LEFT JOIN' if stop else 'JOIN', more='')})"
        )
        with tapped(own) as (fed, tap):
            plan = fed.explain(text)
            with tap.taken() as recorded:
                fed.sql(text)
            assert_disclosed(plan, recorded, own, epochs=fed.model("m").history.num_rows)
        kinds = [decode(item.data).kind for item in recorded]
        # as many questions as iterations: the last weights are told without one
        assert kinds.count("column") == 2 * 4
        assert kinds.count("column_weights") == 2
        sent = {m.kind for item in recorded if (m := decode(item.data)) and item.direction == "up"}
        assert not sent & {"predictions", "partial_gradient", "gram", "statistics", "findings"}


def test_a_client_that_noises_less_is_found_out(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says that it has released is held against the plan."""
    told = ReleaseGuard.choose

    def twice(guard: ReleaseGuard, scores: np.ndarray, sensitivity: float) -> int:
        told(guard, scores, sensitivity)
        return told(guard, scores, sensitivity)

    monkeypatch.setattr(ReleaseGuard, "choose", twice)
    with pytest.raises(PartyError, match="selections 16, planned 1 to 8"):
        private(parties(database), "epsilon = 4, delta = 1e-4")


@pytest.mark.parametrize(
    ("clause", "match"),
    [
        ("noise_multiplier = 1", "noise_multiplier does not go with algorithm 'frank_wolfe'"),
        ("epsilon = 1, clip = 1", "clip does not go with algorithm 'frank_wolfe'"),
        ("epsilon = 1, predictions = 'gaussian'", "predictions = 'gaussian' does not go"),
        ("epsilon = 1, mechanism = 'normal'", "mechanism must be 'gumbel' or 'laplace'"),
        ("epsilon = 1, feature_bound = 0", "feature_bound must be"),
        ("epsilon = 1, prediction_clip = 1", "prediction_clip applies only with"),
        ("epsilon = 1e-4", "choices of columns would be"),
    ],
)
def test_what_does_not_go_with_choices_is_refused(database: Open, clause: str, match: str) -> None:
    with pytest.raises((OptionError, PrivacyError), match=match):
        private(parties(database), clause)


def test_a_budget_that_statistics_take_leaves_no_choice(database: Open) -> None:
    numbers = BOUNDS[: BOUNDS.index(", 'v'")] + "}"
    with federation(parties(database)) as fed, pytest.raises(PrivacyError, match="would be"):
        fed.sql(
            "TRAIN MODEL m USING lasso TARGET y WITH (radius = 3, iterations = 100) PRIVACY "
            "(epsilon = 4, delta = 1e-5, statistics_share = 0.99, prediction_share = 0.05, "
            f"feature_bounds = {numbers}) FROM ({QUERY.format(join='JOIN', more='')})"
        )


def test_a_table_in_several_databases_does_not_choose_in_private(database: Open) -> None:
    with pytest.raises(PlanError, match="not built for lasso where a table lies in several"):
        private(parties(database, 2), "epsilon = 4, delta = 1e-4")


def test_other_models_have_no_bounds_of_columns(database: Open) -> None:
    for option in ("mechanism = 'gumbel'", "feature_bound = 1", "label_bound = 1"):
        with pytest.raises(OptionError, match="applies only with predictions = 'sketch'"):
            train(
                parties(database), "algorithm = 'sgd'", kind="linear_regression",
                privacy=f"PRIVACY (epsilon = 1, {option}, feature_bounds = {BOUNDS})",
            )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "clause", "values"),
    [
        ("radius = 3", "", "each encoded column that is chosen leaves in clear"),
        ("radius = 3, sketch = 16", "", "random sums over the joined rows of each encoded column"),
        (
            "radius = 3",
            f"PRIVACY (epsilon = 4, feature_bounds = {BOUNDS})",
            "as noised choices and sums tell them",
        ),
    ],
)
def test_explain_says_what_is_seen_of_features(
    database: Open, options: str, clause: str, values: str
) -> None:
    with federation(parties(database)) as fed:
        query = QUERY.format(join="JOIN", more="")
        found = fed.explain(
            f"TRAIN MODEL m USING lasso TARGET y WITH ({options}) {clause} FROM ({query})"
        )
        text = " ".join(f"{found} {found.details}".split())
    assert values in text
    exact = options == "radius = 3" and not clause
    assert ("Values of features are sent, of the columns that are chosen" in text) is exact
    assert ("No feature value is sent as such" in text) is not exact
    assert "partial predictions" not in text
