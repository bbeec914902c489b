"""Weights, validation, early stopping and warm starts equal central training on the join's rows.

The central side has its own weighted encoder, and scikit-learn or a plain loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression, Ridge

import sqlfl
from sqlfl.coordinator import problems, weighting
from sqlfl.coordinator.preparation import Targets, Weighting
from tests.depth import combinations, in_turn
from tests.open_databases import in_memory

L2 = 1e-2
TARGETS = {
    "linear_regression": "y",
    "logistic_regression": "late",
    "softmax_regression": "grade",
}
NUMBERS = ("x", "v")
CATEGORIES = ("g", "c")


@pytest.fixture(scope="module")
def whole() -> Iterator[duckdb.DuckDBPyConnection]:
    """Both parties' tables in one database."""
    rng = np.random.default_rng(6)
    n = 240
    k = rng.integers(0, 15, n)
    v, noise = rng.normal(size=15), rng.normal(size=n)
    x = rng.normal(size=n)
    h = 0.8 * x - v[k] + 0.5 * noise
    w = np.round(rng.exponential(size=n) * (rng.random(n) < 0.9), 6) + 1e-9 * np.arange(n)
    t = pa.table(
        {
            "id": np.arange(n),
            "k": k,
            "x": pa.array(x, mask=rng.random(n) < 0.15),
            "g": pa.array(rng.choice(["p", "q", "r"], n), mask=rng.random(n) < 0.1),
            "w": w,
            "copies": rng.integers(0, 4, n),
            "y": h,
            "late": h > 0.4,
            "grade": np.array(["low", "mid", "top"])[np.digitize(h, [-0.5, 1.2])],
        }
    )
    u = pa.table({"k": np.arange(15), "v": v, "c": rng.choice(["s", "t", "u", "w"], 15)})
    with in_memory() as con:
        for name, table in (("t", t), ("u", u)):
            con.register("given", table)
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")
        yield con


@contextlib.contextmanager
def federation(
    whole: duckdb.DuckDBPyConnection, clients: int = 1, tables: tuple[str, ...] = ("t", "u")
) -> Iterator[sqlfl.Federation]:
    """Party a has the first table in `clients` databases, party b the second."""
    with contextlib.ExitStack() as stack:
        fed = stack.enter_context(sqlfl.Federation(progress=False))
        for party, table, count in zip("ab", tables, (clients, 1), strict=True):
            parts = []
            for number in range(count):
                con = stack.enter_context(in_memory())
                rows = whole.sql(f"FROM {table} WHERE k % {count} = {number}").to_arrow_table()
                con.register("given", rows)
                con.execute(f"CREATE TABLE {table} AS FROM given")
                con.unregister("given")
                parts.append(con)
            fed.attach(party, parts if count > 1 else parts[0])
        yield fed


@pytest.fixture(scope="module")
def shared(whole) -> Iterator[Callable[[int], sqlfl.Federation]]:
    """The federation of so many clients, the same one in all tests: models are replaced."""
    with contextlib.ExitStack() as stack:
        opened: dict[int, sqlfl.Federation] = {}

        def found(clients: int) -> sqlfl.Federation:
            if clients not in opened:
                opened[clients] = stack.enter_context(federation(whole, clients))
            return opened[clients]

        yield found


def query(kind: str, weight: str = "w") -> str:
    return (
        f"SELECT t.x, t.g, u.v, u.c, t.{weight}, t.{TARGETS[kind]} "
        "FROM a.t AS t JOIN b.u AS u ON t.k = u.k"
    )


def plain(kind: str) -> str:
    return f"SELECT t.x, t.g, u.v, u.c, t.{TARGETS[kind]} FROM a.t AS t JOIN b.u AS u ON t.k = u.k"


def statement(kind: str, source: str, weight: str = "", name: str = "m", **options: object) -> str:
    written = {"l2": L2, **options}
    clause = ", ".join(
        f"{key} = '{value}'" if isinstance(value, str) and value[0] != "{" else f"{key} = {value}"
        for key, value in written.items()
    )
    wanted = f" WEIGHT {weight}" if weight else ""
    return (
        f"TRAIN OR REPLACE MODEL {name} USING {kind} TARGET {TARGETS[kind]}{wanted} "
        f"WITH ({clause}) FROM ({source})"
    )


@dataclass
class Central:
    """The materialised rows, by id, and an encoder fitted on some of them by weight."""

    rows: dict[str, np.ndarray]

    @classmethod
    def of(cls, whole: duckdb.DuckDBPyConnection) -> Central:
        found = whole.sql("SELECT * EXCLUDE (k) FROM t JOIN u USING (k) ORDER BY id")
        columns = found.to_arrow_table().to_pydict()
        numbers = {name: np.array(columns[name], float) for name in ("x", "v", "y", "w", "copies")}
        texts = {name: np.array(columns[name], object) for name in ("g", "c", "late", "grade")}
        return cls(numbers | texts)

    def target(self, kind: str) -> np.ndarray:
        return self.rows[TARGETS[kind]]

    def codes(self, kind: str) -> np.ndarray:
        return np.unique(self.target(kind), return_inverse=True)[1]

    def encoded(self, weights: np.ndarray) -> np.ndarray:
        share = weights / weights.sum()
        columns = []
        for name in NUMBERS:
            values = self.rows[name]
            missing = np.isnan(values)
            mean = np.average(values[~missing], weights=weights[~missing])
            filled = np.where(missing, mean, values) - mean
            columns.append(filled / np.sqrt(share @ filled**2))
            if missing.any():
                often = share @ missing
                columns.append((missing - often) / np.sqrt(often * (1 - often)))
        for name in CATEGORIES:
            for value in set(self.rows[name].tolist()):
                columns.append(np.array([v == value for v in self.rows[name]], float))
        return np.column_stack(columns)

    def fitted(self, kind: str, weights: np.ndarray, **options: object) -> np.ndarray:
        """Predictions (n, 1), or probabilities (n, K), of a model fitted by these weights."""
        x, own = self.encoded(weights), weights > 0
        if kind == "linear_regression":
            model = Ridge(alpha=L2 * weights.sum(), tol=1e-12)
            model.fit(x[own], self.target(kind)[own], sample_weight=weights[own])
            return model.predict(x)[:, None]
        model = LogisticRegression(C=1 / (L2 * weights.sum()), tol=1e-12, max_iter=20000, **options)
        y = self.codes(kind)
        model.fit(x[own], y[own], sample_weight=weights[own])
        return model.predict_proba(x)


def predicted(fed: sqlfl.Federation, source: str, name: str = "m") -> np.ndarray:
    """(n, 1) or (n, K) in the order of ids."""
    table = fed.sql(f"PREDICT MODEL {name} ID (t.id) FROM ({source})").arrow()
    names = [n for n in table.column_names if n.startswith("probability_")] or ["prediction"]
    values = np.column_stack([table.column(n).to_numpy() for n in names])
    return values[np.argsort(table.column("id").to_numpy())]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Weighting, Targets]]:
    """What the coordinator knew of weights in each training run."""
    found: list[tuple[Weighting, Targets]] = []
    weigh = problems.weigh

    def kept(plan, joined, target, channel, run):
        joined = weigh(plan, joined, target, channel, run)
        found.append((joined.weighting, target))
        return joined

    monkeypatch.setattr(problems, "weigh", kept)
    return found


def held_out(seen: list[tuple[Weighting, Targets]], w: np.ndarray) -> np.ndarray:
    """Which rows, in the order of ids, the last run drew for validation: by their weights."""
    known, _ = seen[-1]
    drawn = dict(zip(known.samples.tolist(), known.validation.tolist(), strict=True))
    assert len(drawn) == len(w)
    return np.array([drawn[value] for value in w.tolist()])


KINDS = pytest.mark.parametrize("kind", TARGETS)
CLIENTS = pytest.mark.parametrize("clients", [1, 2])
TIGHT = {"epochs": 500, "tolerance": 1e-12}


def regression(y: np.ndarray, p: np.ndarray, s: np.ndarray) -> dict[str, float]:
    return {
        "rmse": sk.root_mean_squared_error(y, p[:, 0], sample_weight=s),
        "mae": sk.mean_absolute_error(y, p[:, 0], sample_weight=s),
        "r2": sk.r2_score(y, p[:, 0], sample_weight=s),
    }


def classification(y: np.ndarray, p: np.ndarray, s: np.ndarray) -> dict[str, float]:
    found = {
        "accuracy": sk.accuracy_score(y, p.argmax(axis=1), sample_weight=s),
        "log_loss": sk.log_loss(y, p, labels=range(p.shape[1]), sample_weight=s),
    }
    if p.shape[1] == 2:
        found["auc"] = sk.roc_auc_score(y, p[:, 1], sample_weight=s)
    return found


def measured(
    central: Central, kind: str, p: np.ndarray, s: np.ndarray, rows: np.ndarray
) -> dict[str, float]:
    if kind == "linear_regression":
        return regression(central.target(kind)[rows], p[rows], s[rows])
    return classification(central.codes(kind)[rows], p[rows], s[rows])


def close(name: str, value: float) -> object:
    """Rows whose scores are equal but for rounding may rank, or be classified, either way."""
    return pytest.approx(value, abs={"auc": 0.01, "accuracy": 0.03}.get(name, 1e-4))


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "clients", "engine"), combinations(tuple(TARGETS), (1, 2), ("sql", "arrays"))
)
def test_weights_equal_scikit_learns(shared, whole, kind: str, clients: int, engine: str) -> None:
    """And without a split nothing is validated."""
    central, fed = Central.of(whole), shared(clients)
    w = central.rows["w"]
    expected = central.fitted(kind, w)
    fed.sql(statement(kind, query(kind), "w", engine=engine, **TIGHT))
    np.testing.assert_allclose(predicted(fed, query(kind)), expected, atol=2e-5)
    np.testing.assert_allclose(predicted(fed, plain(kind)), expected, atol=2e-5)
    model = fed.model("m")
    assert model.weight == "w"
    assert set(model.features) == {"x", "g", "v", "c"}
    assert model.metrics["rows"] == len(w)
    for name, value in measured(central, kind, expected, w, w >= 0).items():
        assert model.metrics[name] == close(name, value), name
    assert not [name for name in model.metrics if name.startswith("valid")]
    assert set(model.history.column("valid_loss").to_pylist()) == {None}
    assert set(model.history.column("valid_metric").to_pylist()) == {None}
    evaluated = fed.sql(f"EVALUATE MODEL m FROM ({query(kind)})").arrow().to_pylist()[0]
    for name, value in measured(central, kind, expected, w, w >= 0).items():
        assert evaluated[name] == close(name, value), name
    with pytest.warns(sqlfl.Warning, match="trained with WEIGHT w, .* all rows count alike"):
        plainly = fed.sql(f"EVALUATE MODEL m FROM ({plain(kind)})").arrow().to_pylist()[0]
    for name, value in measured(central, kind, expected, np.ones(len(w)), w >= 0).items():
        assert plainly[name] == close(name, value), name


@pytest.mark.parametrize(
    ("clients", "engine", "scale"), combinations((1, 2), ("sql", "arrays"), ("1e-12", "1e12"))
)
def test_the_scale_of_weights_does_not_matter(shared, whole, clients, engine, scale: str) -> None:
    kind = "softmax_regression"
    expected = Central.of(whole).fitted(kind, Central.of(whole).rows["w"])
    source, fed = query(kind).replace("t.w", f"t.w * {scale} AS w"), shared(clients)
    fed.sql(statement(kind, source, "w", engine=engine, **TIGHT))
    np.testing.assert_allclose(predicted(fed, source), expected, atol=2e-5)


@pytest.mark.parametrize(("kind", "algorithm"), in_turn(tuple(TARGETS), ("lbfgs", "admm", "sgd")))
def test_a_weight_of_two_is_the_row_twice(shared, whole, kind: str, algorithm: str) -> None:
    repeated = whole.sql("SELECT t.* FROM t, range(copies) ORDER BY ALL").to_arrow_table()
    whole.register("repeated", repeated)
    options = {
        "lbfgs": TIGHT,
        "admm": {"algorithm": "admm", "epochs": 120, "tolerance": 1e-11},
        "sgd": {"algorithm": "sgd", "epochs": 20, "learning_rate": 0.3},
    }[algorithm]
    fed = shared(2)
    fed.sql(statement(kind, query(kind, "copies"), "copies", **options))
    found, objective = predicted(fed, plain(kind)), fed.model("m").metrics["objective"]
    with contextlib.ExitStack() as stack:
        fed = stack.enter_context(federation(whole, 2, ("repeated", "u")))
        source = plain(kind).replace("a.t ", "a.repeated ")
        fed.sql(statement(kind, source, **options))
        table = fed.sql(f"PREDICT MODEL m ID (t.id) FROM ({source})").arrow()
        names = [n for n in table.column_names if n.startswith("probability_")] or ["prediction"]
        ids = table.column("id").to_numpy()
        values = np.column_stack([table.column(n).to_numpy() for n in names])
        other = fed.model("m").metrics["objective"]
    whole.unregister("repeated")
    close = 1e-3 if algorithm == "admm" else 2e-5
    np.testing.assert_allclose(values, found[ids], atol=close)
    assert objective == pytest.approx(other, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "weight", "balanced"),
    combinations(("logistic_regression", "softmax_regression"), ("", "w"), (True, False)),
)
def test_class_weights_equal_scikit_learns(
    shared, whole, kind: str, weight: str, balanced: bool
) -> None:
    central, fed = Central.of(whole), shared(2)
    classes = [str(c) for c in np.unique(central.target(kind))]
    samples = central.rows["w"] if weight else np.ones(len(central.rows["w"]))
    source = query(kind) if weight else plain(kind)
    y = central.codes(kind)
    if balanced:
        option, by_class = "balanced", samples.sum() / (len(classes) * np.bincount(y, samples))
    else:
        by_class = np.array([3.0, 1.0, 0.25])[: len(classes)]
        words = {"False": "false", "True": "true"}
        texts = [words.get(c, c) for c in classes]
        option = f"{{'{texts[0]}': 3, '{texts[-1]}': {by_class[-1]}}}"
    fed.sql(statement(kind, source, weight, class_weight=option, **TIGHT))
    expected = central.fitted(kind, samples * by_class[y])
    np.testing.assert_allclose(predicted(fed, source), expected, atol=2e-5)
    found = measured(central, kind, expected, samples, samples >= 0)
    for name, value in found.items():  # metrics are not weighted by class
        assert fed.model("m").metrics[name] == close(name, value), name
    loss = sk.log_loss(y, expected, labels=range(len(classes)), sample_weight=by_class[y])
    if not weight:
        assert fed.model("m").metrics["loss"] == pytest.approx(loss, abs=1e-5)


def test_scikit_learns_own_class_weights(shared, whole) -> None:
    kind, central, fed = "softmax_regression", Central.of(whole), shared(1)
    y = central.codes(kind)
    sums = np.bincount(y) / len(y)
    x = central.encoded((1 / sums / 3)[y])
    model = LogisticRegression(
        C=1 / (L2 * len(y)), tol=1e-12, max_iter=20000, class_weight="balanced"
    )
    expected = model.fit(x, y).predict_proba(x)
    fed.sql(statement(kind, plain(kind), class_weight="balanced", **TIGHT))
    np.testing.assert_allclose(predicted(fed, plain(kind)), expected, atol=2e-5)


# -- validation ------------------------------------------------------------------------------------


@KINDS
@CLIENTS
def test_validation_rows_take_no_part_and_are_measured(
    shared, whole, seen, kind: str, clients
) -> None:
    central, fed = Central.of(whole), shared(clients)
    w = central.rows["w"]
    classes = {} if kind == "linear_regression" else {"class_weight": "balanced"}
    fed.sql(statement(kind, query(kind), "w", validation_fraction=0.3, **classes, **TIGHT))
    held = held_out(seen, w)
    assert 0.15 < held.mean() < 0.45
    fitted_by = np.where(held, 0.0, w)
    if classes:
        y = central.codes(kind)
        sums = np.bincount(y, fitted_by)
        fitted_by = fitted_by * (sums.sum() / (len(sums) * sums))[y]
    expected = central.fitted(kind, fitted_by)
    np.testing.assert_allclose(predicted(fed, query(kind)), expected, atol=2e-5)
    model = fed.model("m")
    assert (model.metrics["rows"], model.metrics["valid_rows"]) == ((~held).sum(), held.sum())
    for name, value in measured(central, kind, expected, w, ~held).items():
        assert model.metrics[name] == close(name, value), name
    for name, value in measured(central, kind, expected, w, held).items():
        assert model.metrics[f"valid_{name}"] == close(name, value), name
    last = model.history.to_pylist()[-1]
    headline = "rmse" if kind == "linear_regression" else "accuracy"
    assert last["valid_metric"] == pytest.approx(model.metrics[f"valid_{headline}"], rel=1e-12)
    assert last["valid_loss"] == model.metrics["valid_loss"]
    if not classes:
        y = central.rows["y"]
        loss = np.average(0.5 * (expected[held, 0] - y[held]) ** 2, weights=w[held])
        assert last["valid_loss"] == pytest.approx(loss, rel=1e-4)
        return
    y, by_class = central.codes(kind), sums.sum() / (len(sums) * sums)
    loss = sk.log_loss(
        y[held],
        expected[held],
        labels=range(expected.shape[1]),
        sample_weight=(w * by_class[y])[held],
    )
    assert last["valid_loss"] == pytest.approx(loss, rel=1e-4)


# -- early stopping --------------------------------------------------------------------------------


@dataclass
class Noise:
    """A few rows with many columns of noise: a model of them is soon too good."""

    x: np.ndarray
    v: np.ndarray
    y: np.ndarray
    w: np.ndarray

    @classmethod
    def drawn(cls) -> Noise:
        rng = np.random.default_rng(2)
        x, v = rng.normal(size=(90, 40)), rng.normal(size=90)
        return cls(x, v, x[:, 0] + v + 2.0 * rng.normal(size=90), rng.uniform(0.5, 2.0, 90))

    @contextlib.contextmanager
    def federation(self, clients: int) -> Iterator[sqlfl.Federation]:
        n = len(self.y)
        t = pa.table(
            {
                "id": np.arange(n),
                "y": self.y,
                "w": self.w,
                **{f"x{i}": self.x[:, i] for i in range(self.x.shape[1])},
            }
        )
        u = pa.table({"id": np.arange(n), "v": self.v})
        with contextlib.ExitStack() as stack:
            fed = stack.enter_context(sqlfl.Federation(progress=False))
            for party, table, count in (("a", t, clients), ("b", u, 1)):
                parts = []
                for number in range(count):
                    con = stack.enter_context(in_memory())
                    con.register("given", table.slice(number * n // count, n // count))
                    con.execute("CREATE TABLE t AS FROM given")
                    con.unregister("given")
                    parts.append(con)
                fed.attach(party, parts if count > 1 else parts[0])
            yield fed

    @property
    def source(self) -> str:
        names = ", ".join(f"t.x{i}" for i in range(self.x.shape[1]))
        return f"SELECT {names}, u.v, t.w, t.y FROM a.t AS t JOIN b.t AS u ON t.id = u.id"

    def split(self, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
        """The same rows held out in every test run, instead of those that the party draws."""
        held = np.random.default_rng(3).random(len(self.y)) < 0.4
        made = weighting.weighting_of

        def chosen(plan, samples, validation, target):
            return made(plan, samples, np.isin(samples, self.w[held]), target)

        monkeypatch.setattr(weighting, "weighting_of", chosen)
        return held

    def descent(
        self, held: np.ndarray, rate: float, epochs: int
    ) -> tuple[list[float], list[np.ndarray]]:
        """Full gradient descent on the rows that are not held out: valid losses, predictions."""
        share = np.where(held, 0.0, self.w)
        share = share / share.sum()
        x = np.column_stack([self.x, self.v])
        x = x - share @ x
        x = x / np.sqrt(share @ x**2)
        theta, constant = np.zeros(x.shape[1]), share @ self.y
        losses, predictions = [], []
        for _ in range(epochs):
            slope = share * (x @ theta + constant - self.y)
            theta = theta - rate * (x.T @ slope + L2 * theta)
            constant = constant - rate * slope.sum()
            predictions.append(x @ theta + constant)
            error = 0.5 * (predictions[-1] - self.y) ** 2
            losses.append(float(np.average(error[held], weights=self.w[held])))
        return losses, predictions


def stopped(losses: list[float], patience: int) -> tuple[int, int]:
    """(epochs that are run, the best of them), both from 1."""
    best = 0
    for epoch, loss in enumerate(losses):
        if loss < losses[best]:
            best = epoch
        elif epoch - best == patience:
            return epoch + 1, best + 1
    return len(losses), best + 1


@pytest.mark.parametrize(("patience", "clients"), in_turn((1, 3, 8), (1, 2)))
def test_training_ends_early_with_the_best_epochs_model(
    monkeypatch, clients: int, patience: int
) -> None:
    noise, kind = Noise.drawn(), "linear_regression"
    held = noise.split(monkeypatch)
    with noise.federation(clients) as fed:
        fed.sql(
            statement(
                kind, noise.source, "w", algorithm="sgd", learning_rate=0.15, epochs=60,
                validation_fraction=0.4, patience=patience,
            )
        )  # fmt: skip
        losses, predictions = noise.descent(held, 0.15, 60)
        last, best = stopped(losses, patience)
        assert last == best + patience < 60
        model = fed.model("m")
        history = model.history.to_pydict()
        np.testing.assert_allclose(history["valid_loss"], losses[:last], rtol=1e-5)
        np.testing.assert_allclose(
            predicted(fed, noise.source)[:, 0], predictions[best - 1], atol=2e-5
        )
    assert history["epoch"] == list(range(1, last + 1))
    assert model.metrics["valid_loss"] == history["valid_loss"][best - 1]
    assert model.metrics["valid_loss"] == min(history["valid_loss"])
    assert model.metrics["objective"] == history["train_loss"][best - 1]
    assert (model.stopped_early, model.epoch) == (True, best)
    assert str(best) in str(model)
    assert not model.converged


@pytest.mark.parametrize("algorithm", ["lbfgs", "admm", "sgd"])
def test_the_best_epoch_is_kept_however_training_ends(monkeypatch, algorithm: str) -> None:
    noise, kind = Noise.drawn(), "linear_regression"
    held = noise.split(monkeypatch)
    batches = {"batch_size": 20} if algorithm == "sgd" else {}
    with noise.federation(1) as fed:
        fed.sql(
            statement(
                kind, noise.source, "w", algorithm=algorithm, epochs=12, validation_fraction=0.4,
                patience=12, **batches,
            )
        )  # fmt: skip
        model = fed.model("m")
        p = predicted(fed, noise.source)[:, 0]
    losses = model.history.column("valid_loss").to_pylist()
    assert model.metrics["valid_loss"] == min(losses)
    assert model.epoch == 1 + losses.index(min(losses))
    # lbfgs has its optimum in so few iterations that its last may well be the best
    assert model.epoch < len(losses) or algorithm == "lbfgs"
    assert not model.stopped_early
    error = 0.5 * (p - noise.y) ** 2
    for rows, name in ((held, "valid_loss"), (~held, "loss")):
        found = np.average(error[rows], weights=noise.w[rows])
        assert model.metrics[name] == pytest.approx(found, rel=1e-5)
    assert model.metrics["objective"] == model.history.to_pylist()[model.epoch - 1]["train_loss"]


def test_patience_that_lasts_changes_nothing(shared) -> None:
    kind, fed = "logistic_regression", shared(1)
    fed.sql(statement(kind, query(kind), "w", validation_fraction=0.3, patience=500, **TIGHT))
    model = fed.model("m")
    assert model.ending.short == "converged"
    # of an earlier epoch, which the validation rows preferred, nothing is known
    assert model.converged == (model.epoch == model.history.num_rows)
    assert not model.stopped_early


# -- warm starts -----------------------------------------------------------------------------------


@CLIENTS
def test_epochs_add_up(whole, clients: int) -> None:
    kind, options = "linear_regression", {"algorithm": "sgd", "learning_rate": 0.2}
    with federation(whole, clients) as fed:
        fed.sql(statement(kind, plain(kind), name="whole", epochs=9, **options))
        fed.sql(statement(kind, plain(kind), epochs=4, **options))
        fed.sql(statement(kind, plain(kind), epochs=5, warm_start="M", **options))
        found = predicted(fed, plain(kind))
        np.testing.assert_allclose(found, predicted(fed, plain(kind), "whole"), atol=1e-5)
        assert fed.sql("SHOW MODELS").arrow().column("name").to_pylist() == ["whole", "m"]


@pytest.mark.parametrize(
    ("kind", "clients", "algorithm"), combinations(tuple(TARGETS), (1, 2), ("lbfgs", "admm"))
)
def test_a_converged_model_is_found_again_at_once(shared, kind, clients, algorithm) -> None:
    options, fed = {"algorithm": algorithm, "epochs": 300}, shared(clients)
    if algorithm == "admm":  # which ends by default before the gradient of softmax proves enough
        options["tolerance"] = 1e-8
    fed.sql(statement(kind, query(kind), "w", **options))
    cold, before = fed.model("m"), predicted(fed, query(kind))
    fed.sql(statement(kind, query(kind), "w", warm_start="m", **options))
    warm = fed.model("m")
    close = 1e-5 if algorithm == "lbfgs" else 1e-3
    np.testing.assert_allclose(predicted(fed, query(kind)), before, atol=close)
    assert cold.converged
    assert warm.converged
    assert warm.history.num_rows < cold.history.num_rows or cold.history.num_rows <= 2
    assert warm.metrics["objective"] == pytest.approx(cold.metrics["objective"], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "clients", "engine"), combinations(tuple(TARGETS), (1, 2), ("sql", "arrays"))
)
def test_other_rows_start_with_the_models_predictions(shared, kind, clients, engine) -> None:
    """Scores differ by a constant, for the rows have other means and the intercept is new."""
    first = query(kind) + " WHERE t.id < 120 AND t.g <> 'r' AND u.c <> 'w'"
    second = query(kind) + " WHERE t.id >= 100"
    still = {"algorithm": "sgd", "epochs": 1, "learning_rate": 1e-9}
    fed = shared(clients)
    fed.sql(statement(kind, first, "w", name="old", engine=engine))
    fed.sql(statement(kind, second, "w", warm_start="old", engine=engine, **still))
    old, new = predicted(fed, second, "old"), predicted(fed, second)
    if kind != "linear_regression":
        old, new = np.log(old), np.log(new)
        old, new = old - old[:, :1], new - new[:, :1]
    assert np.ptp(old, axis=0).max() > 0.5
    np.testing.assert_allclose(np.ptp(new - old, axis=0), 0.0, atol=1e-4)


@CLIENTS
def test_a_warm_start_on_other_rows_reaches_their_optimum(shared, whole, clients: int) -> None:
    kind, fed = "softmax_regression", shared(clients)
    first = query(kind) + " WHERE t.id < 120"
    fed.sql(statement(kind, first, "w", name="old"))
    fed.sql(statement(kind, query(kind), "w", warm_start="old", **TIGHT))
    central = Central.of(whole)
    expected = central.fitted(kind, central.rows["w"])
    np.testing.assert_allclose(predicted(fed, query(kind)), expected, atol=2e-5)


def test_warm_starts_that_do_not_fit(whole) -> None:
    unfit = [
        (statement("linear_regression", plain("linear_regression"), warm_start="n"),
         "there is no model n"),
        (statement("logistic_regression", plain("logistic_regression"), warm_start="m"),
         "model m is a linear_regression, which a logistic_regression cannot start from"),
        (statement("linear_regression", "SELECT x, y FROM a.t", warm_start="m"),
         "model m needs the columns g, v, c"),
        (statement("linear_regression", query("linear_regression"), warm_start="m"),
         "model m was not trained on the columns w"),
        (statement("softmax_regression", plain("softmax_regression") + " WHERE t.y > 0",
                   warm_start="s"),
         "model s knows the classes low, mid, top, and target grade has mid, top"),
    ]  # fmt: skip
    with federation(whole) as fed:
        for name, kind in (("m", "linear_regression"), ("s", "softmax_regression")):
            fed.sql(statement(kind, plain(kind), name=name))
        before = predicted(fed, plain("linear_regression"))
        for sql, message in unfit:
            with pytest.raises(sqlfl.ModelError) as caught:
                fed.sql(sql.replace("TRAIN OR REPLACE MODEL m", "TRAIN OR REPLACE MODEL new"))
            assert caught.value.message.startswith(message)
            assert caught.value.hint, message
            names = fed.sql("SHOW MODELS").arrow().column("name").to_pylist()
            assert names == ["m", "s"], message
        np.testing.assert_array_equal(predicted(fed, plain("linear_regression")), before)


# -- what is refused, and what is said -------------------------------------------------------------


def test_a_class_weight_of_no_class_is_refused(shared) -> None:
    kind = "logistic_regression"
    with pytest.raises(sqlfl.ModelError, match="no such class") as caught:
        shared(1).sql(statement(kind, plain(kind), class_weight="{'yes': 3}"))
    assert "false, true" in str(caught.value.hint)


def test_patience_needs_something_to_go_by(shared) -> None:
    kind = "logistic_regression"
    source = plain(kind) + " WHERE t.late OR t.id < 120"
    with pytest.raises(sqlfl.ModelError, match=r"of no class"):
        shared(1).sql(
            statement(
                kind, source, validation_fraction=0.2, patience=2,
                class_weight="{'true': 0, 'false': 0}",
            )
        )  # fmt: skip


def test_plans_of_these_statements_are_explained(shared) -> None:
    kind, fed = "logistic_regression", shared(2)
    fed.sql(statement(kind, query(kind), "w"))
    for options in (
        {"validation_fraction": 0.2, "patience": 3},
        {"class_weight": "balanced"},
        {"class_weight": "{'false': 2}"},
        {"warm_start": "m"},
    ):
        given = statement(kind, query(kind), "w", **options)
        text = str(fed.sql("EXPLAIN (VERBOSE) " + given))
        phases = {exchange.phase for exchange in fed.explain(given).exchanges}
        assert all(name in text for name in options), options
        assert ("warm start" in phases) == ("warm_start" in options), options


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        ("DOUBLE", pa.float64()),
        ("FLOAT", pa.float32()),
        ("DECIMAL(9,2)", pa.decimal128(9, 2)),
        ("UBIGINT", pa.uint64()),
        ("HUGEINT", pa.decimal128(38, 0)),
        ("INTEGER", pa.int64()),
        ("BOOLEAN", pa.bool_()),
        ("VARCHAR", pa.string()),
    ],
)
def test_classes_are_values_of_the_targets_type(
    shared, whole, type_: str, expected: pa.DataType
) -> None:
    value = (
        "t.late"
        if type_ == "BOOLEAN"
        else "t.late::INTEGER + 0.5"
        if "D" in type_
        else "t.late::INTEGER + 1"
    )
    source = f"SELECT t.x, u.v, ({value})::{type_} AS late FROM a.t AS t JOIN b.u AS u ON t.k = u.k"
    fed = shared(1)
    fed.sql(statement("logistic_regression", source))
    table = fed.sql(f"PREDICT MODEL m FROM ({source})").arrow()
    assert table.schema.field("prediction").type == expected
    rows = whole.sql(source.replace("a.t", "t").replace("b.u", "u")).to_arrow_table()
    given = set(rows.column("late").cast(expected).to_pylist())
    assert set(table.column("prediction").to_pylist()) <= given


# -- rows that count nothing -----------------------------------------------------------------------

FAR = "SELECT *, id % 50 = 7 AS far, (id % 50 <> 7)::DOUBLE AS one FROM t"
"""Some rows of weight 0."""


@contextlib.contextmanager
def with_rows(whole: duckdb.DuckDBPyConnection, t: str) -> Iterator[sqlfl.Federation]:
    """The rows of a query instead of those of t."""
    with in_memory() as con:
        for name, rows in (("t", t), ("u", "FROM u")):
            con.register("given", whole.sql(rows).to_arrow_table())
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")
        with federation(con) as fed:
            yield fed


@pytest.mark.parametrize(("kind", "algorithm"), in_turn(tuple(TARGETS), ("admm", "sgd", "lbfgs")))
def test_values_of_rows_that_count_nothing_do_not_matter(whole, kind: str, algorithm: str) -> None:
    """However far they are from those of the others."""
    options = {"algorithm": algorithm, "epochs": 20}
    if algorithm == "sgd":
        options["learning_rate"] = 0.2
    with_far = f"SELECT * REPLACE (CASE WHEN far THEN -1e18 ELSE x END AS x) FROM ({FAR})"
    found = []
    for rows in (with_far, f"FROM ({FAR}) WHERE NOT far"):
        with with_rows(whole, rows) as fed:
            fed.sql(statement(kind, query(kind, "one"), "one", **options))
            near = predicted(fed, f"{query(kind, 'one')} WHERE NOT t.far")
            found.append((near, fed.model("m").metrics["loss"]))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)
    assert found[0][1] == pytest.approx(found[1][1], abs=1e-6)


def test_values_beyond_the_numbers_of_messages_are_refused(whole) -> None:
    kind = "linear_regression"
    rows = f"SELECT * REPLACE (CASE WHEN far THEN 1e60 ELSE x END AS x) FROM ({FAR})"
    with with_rows(whole, rows) as fed, pytest.raises(sqlfl.PartyError, match="4-byte numbers"):
        fed.sql(statement(kind, query(kind, "one"), "one"))


def test_class_weights_beyond_all_numbers_are_refused(shared) -> None:
    kind = "logistic_regression"
    wanted = statement(kind, query(kind), "w", class_weight="{true: 1e308, false: 1e308}")
    with pytest.raises(sqlfl.ModelError, match="beyond the largest"):
        shared(1).sql(wanted)
