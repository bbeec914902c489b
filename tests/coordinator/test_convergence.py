"""What a model says of its convergence, from statements over databases."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import sqlfl
from tests.conftest import Open
from tests.depth import THOROUGH, in_turn

ROWS = 400
SEEDS = 30 if THOROUGH else 1
JOIN = "FROM a.trips t JOIN b.arrivals r USING (id)"


def table(con: duckdb.DuckDBPyConnection, name: str, **columns: np.ndarray) -> None:
    con.register("given", pa.table(columns))
    con.execute(f"CREATE TABLE {name} AS FROM given")
    con.unregister("given")


@contextlib.contextmanager
def federation() -> Iterator[sqlfl.Federation]:
    """Elapsed times by two clocks, of which one has two databases."""
    rng = np.random.default_rng(0)
    ids = np.arange(ROWS)
    duration = rng.uniform(60.0, 7200.0, ROWS)
    started = 1.7e9 + 3600.0 * ids
    trips, *arrivals = (duckdb.connect() for _ in range(3))
    table(trips, "trips", id=ids, started=started)
    for con, part in zip(arrivals, (ids < 150, ids >= 150), strict=True):
        ended = (started + duration)[part]
        late = duration[part] + rng.normal(scale=900.0, size=part.sum()) > 3600.0
        slow = np.where(duration[part] < 2400.0, "quick", np.where(late, "slow", "usual"))
        table(con, "arrivals", id=ids[part], ended=ended, duration=duration[part], late=late,
              speed=slow)  # fmt: skip
    with sqlfl.Federation(progress=False) as fed:
        fed.attach("a", trips)
        fed.attach("b", arrivals)
        yield fed


@pytest.fixture(scope="module")
def clocks() -> Iterator[sqlfl.Federation]:
    """The same in all tests, whose models are replaced."""
    with federation() as fed:
        yield fed


def fitted(
    fed: sqlfl.Federation, kind: str, target: str, name: str = "m", **options: object
) -> sqlfl.Model:
    given = ", ".join(f"{option} = {value!r}" for option, value in options.items())
    fed.sql(
        f"TRAIN OR REPLACE MODEL {name} USING {kind} TARGET {target} "
        + (f"WITH ({given}) " if given else "")
        + f"FROM (SELECT t.started, r.ended, r.{target} {JOIN})"
    )
    return fed.model(name)


def facts(fed: sqlfl.Federation) -> dict[str, str]:
    return dict(fed.sql("DESCRIBE MODEL m").fetchall())


@pytest.mark.parametrize("engine", ["sql", "arrays"])
def test_a_duration_is_found_from_when_it_began_and_ended(clocks, engine: str) -> None:
    model = fitted(clocks, "linear_regression", "duration", engine=engine, l2=0.0, epochs=200)
    assert model.converged
    assert model.metrics["r2"] == pytest.approx(1.0, abs=1e-9)
    predicted = clocks.sql(
        f"PREDICT MODEL m ID (b.arrivals.id) FROM (SELECT t.started, r.ended {JOIN})"
    ).arrow()
    assert predicted.num_rows == ROWS
    durations = np.random.default_rng(0).uniform(60.0, 7200.0, ROWS)
    order = np.asarray(predicted.column("id"))
    np.testing.assert_allclose(predicted.column("prediction"), durations[order], atol=0.5)


def test_ridge_is_that_of_one_table(clocks) -> None:
    l2 = 1e-6
    model = fitted(clocks, "linear_regression", "duration", l2=l2)
    assert model.converged
    durations = np.random.default_rng(0).uniform(60.0, 7200.0, ROWS)
    started = 3600.0 * np.arange(ROWS)
    x = np.column_stack([started, started + durations])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    y = durations - durations.mean()
    u, s, _ = np.linalg.svd(x / np.sqrt(ROWS), full_matrices=False)
    along = u.T @ y / np.sqrt(ROWS)
    least = 0.5 * (np.mean(y**2) - np.sum(along**2 * s**2 / (s**2 + l2)))
    assert model.metrics["objective"] == pytest.approx(least, rel=1e-6)


def test_classes_of_durations(clocks) -> None:
    model = fitted(clocks, "logistic_regression", "late", l2=0.0)
    assert model.converged
    assert model.metrics["auc"] > 0.95  # of noise alone 0.5, which rounding once made of it
    model = fitted(clocks, "softmax_regression", "speed", l2=0.0, epochs=200)
    assert model.ending.short in {"converged", "separable classes"}
    assert model.metrics["accuracy"] > 0.8


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_methods_that_do_not_get_there_say_so_on_the_card(clocks, algorithm: str) -> None:
    model = fitted(clocks, "linear_regression", "duration", algorithm=algorithm, epochs=5)
    assert not model.converged
    card = facts(clocks)
    assert card["converged"].startswith("no: the epochs are used up; the gradient proves no more")
    assert float(card["gradient norm"]) == pytest.approx(model.ending.gradient, rel=1e-2)
    norms = model.history.column("gradient_norm").to_pylist()
    assert norms == [None] * 4 + [model.ending.gradient]


def test_the_gradient_of_every_iteration_is_in_the_history_of_lbfgs(clocks) -> None:
    model = fitted(clocks, "logistic_regression", "late")
    norms = model.history.column("gradient_norm").to_pylist()
    assert all(norm is not None and np.isfinite(norm) for norm in norms)
    assert facts(clocks)["converged"].startswith("yes: the gradient proves the objective within")


def test_without_l2_the_card_says_on_what_its_bound_rests(clocks) -> None:
    model = fitted(clocks, "linear_regression", "duration", l2=0)
    assert model.converged
    assert facts(clocks)["converged"].startswith("yes: by its gradient the objective is within")
    assert facts(clocks)["converged"].endswith("than was seen")


def test_separable_classes_have_no_minimum(clocks) -> None:
    with pytest.warns(UserWarning, match="the optimum is at infinity"):
        clocks.sql(
            "TRAIN OR REPLACE MODEL m USING logistic_regression TARGET early WITH (l2 = 0) "
            f"FROM (SELECT t.started, t.id < 100 AS early, r.ended {JOIN})"
        )
    assert not clocks.model("m").converged
    assert "has no minimum" in facts(clocks)["converged"]


def test_towers_claim_nothing(clocks) -> None:
    model = fitted(clocks, "mlp_classifier", "late", epochs=2)
    assert not model.converged
    card = facts(clocks)
    assert card["converged"] == "unknown: nothing proves a minimum of the loss of towers"
    assert "gradient norm" not in card


def test_a_private_run_is_not_measured() -> None:
    with federation() as fed:
        fed.sql(
            "TRAIN MODEL m USING logistic_regression TARGET late WITH (epochs = 2) "
            "PRIVACY (noise_multiplier = 1, statistics = 'none') "
            f"FROM (SELECT t.started, r.ended, r.late {JOIN})"
        )
        assert not fed.model("m").converged
        assert facts(fed)["converged"].startswith("unknown: not told")
        kinds = set(fed.audit().arrow().column("kind").to_pylist())
    assert kinds.isdisjoint({"send_slope", "slope", "exact_predictions"})


def test_a_model_of_an_earlier_epoch_claims_nothing(clocks) -> None:
    given = {"validation_fraction": 0.5, "patience": 50, "seed": 2, "l2": 0.0}
    model = fitted(clocks, "logistic_regression", "late", **given)
    assert model.epoch < model.history.num_rows
    assert (model.converged, model.ending.gap) == (False, None)
    assert f"those of epoch {model.epoch}, of which nothing is proved" in facts(clocks)["converged"]


def test_the_ending_outlives_the_federation(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "a.duckdb")) as con:
        table(con, "t", x=np.arange(9.0), y=np.arange(9.0) ** 2)
    path = str(tmp_path / "c.duckdb")
    with sqlfl.Federation(path, progress=False) as fed:
        fed.attach("a", str(tmp_path / "a.duckdb"))
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT x, y FROM a.t)")
        ending = fed.model("m").ending
    assert ending.converged
    with sqlfl.Federation(path, progress=False) as fed:
        assert fed.model("m").ending == ending


# of towers with a seed: where all units die at once, a sound constant is left
DIVERGING = [
    ("logistic_regression", "late", {"learning_rate": 1000.0}),
    ("logistic_regression", "late", {"learning_rate": 1e6, "batch_size": 50}),
    ("softmax_regression", "speed", {"learning_rate": 1000.0}),
    ("linear_regression", "duration", {"learning_rate": 1000.0}),
    ("mlp_classifier", "late", {"learning_rate": 1000.0, "optimizer": "plain", "seed": 1}),
    ("mlp_regressor", "duration", {"learning_rate": 1000.0, "optimizer": "plain", "seed": 1}),
]


@pytest.mark.parametrize(("kind", "target", "options"), DIVERGING)
def test_steps_that_diverge_are_an_error_of_every_kind(clocks, kind, target, options) -> None:
    with pytest.raises((sqlfl.ModelError, sqlfl.PartyError), match="diverge"):
        fitted(clocks, kind, target, "diverging", algorithm="sgd", **options)
    assert "diverging" not in clocks.sql("SHOW MODELS").arrow().column("name").to_pylist()


@pytest.mark.parametrize(
    ("apart", "kind"),
    in_turn((1e-9, 1e-10, 1e-11), ("linear_regression", "logistic_regression")),
)
def test_columns_of_two_parties_that_nearly_agree_prove_nothing(
    database: Open, kind: str, apart: float
) -> None:
    """Their difference tells the target, and rounding hides it: the loss is far above its least."""
    rng = np.random.default_rng(5)
    x, d, noise = rng.normal(size=(3, 300))
    z = x + apart * d
    tables = [pa.table({"k": np.arange(300), "x": x, "y": x + d + noise})]
    tables += [pa.table({"k": np.arange(300), "z": z})]
    target = "y" if kind == "linear_regression" else "y > 0 AS y"
    with sqlfl.connect(progress=False) as fed:
        for party, table in zip("ab", tables, strict=True):
            con = database("CREATE SCHEMA other")
            con.register("given", table)
            con.execute("CREATE TABLE t AS FROM given")
            fed.attach(party, con)
        query = f"SELECT t.x, u.z, t.{target} FROM a.t t JOIN b.t u USING (k)"
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0) FROM ({query})")
        assert not fed.model("m").converged
        fed.sql(f"TRAIN MODEL n USING {kind} TARGET y WITH (l2 = 1e-4) FROM ({query})")
        assert fed.model("n").converged


@pytest.mark.parametrize("kind", ["linear_regression", "logistic_regression"])
def test_columns_of_two_parties_that_are_the_same_are_one(database: Open, kind: str) -> None:
    text = "CREATE TABLE t AS SELECT i AS k, 1e9 + sin(i) AS x, cos(i * i) > sin(i) AS y "
    target = "CAST(t.y AS INTEGER) AS y" if kind == "linear_regression" else "t.y"
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", database(f"{text} FROM range(300) r(i)"))
        fed.attach("b", database(f"{text} FROM range(299, -1, -1) r(i)"))
        query = f"SELECT t.x, u.x AS z, {target} FROM a.t t JOIN b.t u USING (k)"
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0) FROM ({query})")
        assert fed.model("m").converged


def test_a_model_that_is_worse_than_none_says_so(database: Open) -> None:
    """Small batches of rows that tell nothing, and long steps."""
    text = "CREATE TABLE t AS SELECT i AS k, tan(i * 0.7) AS x, (i * 37) % 101 / 10.0 AS y "
    with sqlfl.connect(progress=False) as fed:
        fed.attach("a", database(f"{text} FROM range(120) r(i)"))
        fed.attach(
            "b", database("CREATE TABLE u AS SELECT i AS k, i % 5 AS z FROM range(120) r(i)")
        )
        query = "SELECT t.x, u.z, t.y FROM a.t t JOIN b.u u USING (k)"
        options = "algorithm = 'sgd', epochs = 1, batch_size = 3, seed = 1, learning_rate = "
        train = "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WITH ({}) FROM ({})"
        with pytest.warns(sqlfl.base.errors.Warning, match="worse than none: the objective ended"):
            fed.sql(train.format(f"{options} 0.15", query))
        assert any("worse than none" in text for text in fed.model("m").remarks)
        fed.sql(train.format("l2 = 1e-4", query))
        assert not any("worse than none" in text for text in fed.model("m").remarks)


def quasi_separated(seed: int, classes: int) -> tuple[pa.Table, pa.Table]:
    """Visits and people: the rare kind, and the people of a lone town, are of one class each."""
    rng = np.random.default_rng([360, seed])
    n, people = 200, 20
    k, x, z = rng.integers(0, people, n), rng.normal(2.0, 1.5, n), rng.integers(0, 5, n)
    c = rng.choice(["a", "b", "c"], n).astype(object)
    u, v = 100.0 * rng.normal(size=people), rng.gamma(2.0, 2.0, people)
    town = rng.choice(["n", "s", "w"], people).astype(object)
    town[:2] = "lone"
    h = np.column_stack([x - 2.0, c == "b", u[k] / 100.0, v[k]]) @ rng.normal(size=(4, classes))
    y = np.argmax(0.7 * h + rng.gumbel(size=h.shape), axis=1)
    y[k < 2] = 0
    few = rng.choice(np.flatnonzero(k >= 2), 5, replace=False)
    c[few], y[few] = "rare", 1
    visits = pa.table({"k": k, "x": x, "z": z, "c": c, "y": [f"c{number}" for number in y]})
    return visits, pa.table({"k": np.arange(people), "u": u, "v": v, "town": town})


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("classes", [2, 4])
def test_weights_without_a_finite_optimum_do_not_run_away(classes: int, seed: int) -> None:
    """At tolerance 0 the end is the best of the run, and the clients' scores are those of it."""
    kind = "logistic_regression" if classes == 2 else "softmax_regression"
    visits, people = quasi_separated(seed, classes)
    query = "SELECT t.x, t.z, t.c, w.u, w.v, w.town, t.y FROM one.t t JOIN two.w w ON t.k = w.k"
    with sqlfl.Federation(progress=False) as fed:
        for party, name, rows in (("one", "t", visits), ("two", "w", people)):
            con = duckdb.connect()
            table(con, name, **{column: rows.column(column) for column in rows.column_names})
            fed.attach(party, con)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0, tolerance = 0, "
                    f"epochs = 300) FROM ({query})")  # fmt: skip
        model = fed.model("m")
        loss = fed.sql(f"EVALUATE MODEL m FROM ({query})").arrow().to_pylist()[0]["loss"]
        card = str(model)
        standardised = model.weights.column("standardised").to_numpy()
    losses = model.history.column("train_loss").to_numpy()
    assert losses[-1] <= losses.min() * (1.0 + 1e-6)
    assert loss == pytest.approx(losses[-1], rel=1e-6)
    assert np.abs(standardised).max() < 1e6  # cancelling vectors gave 6e14
    assert any("the optimum is at infinity" in str(warning.message) for warning in said)
    assert "the optimum is at infinity" in card
