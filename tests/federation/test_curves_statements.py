"""TRANSFORM (auto): curves of numbers, shrunken categories, and strengths found in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import statsmodels.api as sm
from scipy.interpolate import BSpline
from statsmodels.gam.api import BSplines, GLMGam

import sqlfl
from sqlfl.base.errors import InternalError, ModelError, PlanError
from sqlfl.contract.schema import Client
from sqlfl.contract.transforms import updates
from sqlfl.messages import Folds, Labels, Ready, SetStrengths
from sqlfl.messages.wire import decode
from sqlfl.methods.lbfgs.client import CLIENT
from sqlfl.methods.lbfgs.configuration import LbfgsConfiguration
from sqlfl.models.folds import merge_folds
from sqlfl.party.shrinkage import Shrinkage
from sqlfl.udfs.blocks.blocks import SavedBlock
from tests.federations import federation
from tests.methods.harness import DenseEngine
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

QUERY = "SELECT a.x, a.z, a.c, a.n, b.w, b.flat, a.{} AS y FROM one.a a JOIN two.b b USING (k)"
L2 = 1e-4


def tables(rows: int, seed: int) -> tuple[pa.Table, pa.Table, np.ndarray]:
    """Two tables and what rows of their join are on average: a sine of x, a line of z, a category,
    a root of the other party's w, and nothing of n and flat."""
    rng = np.random.default_rng(seed)
    keys = np.arange(rows) % (rows // 4)
    x, z = rng.uniform(-3.0, 3.0, rows), rng.normal(size=rows)
    c = rng.integers(0, 12, rows)
    n = np.where(rng.random(rows) < 0.1, np.nan, rng.normal(size=rows))
    w = np.where(rng.random(rows // 4) < 0.2, 0.0, rng.exponential(size=rows // 4))
    mean = np.sin(2 * x) + 0.5 * z + 0.6 * rng.normal(size=12)[c] + np.sqrt(w)[keys]
    number = mean + rng.normal(size=rows)
    one = pa.table({
        "id": np.arange(rows), "k": keys, "x": x, "z": z, "c": [f"c{i}" for i in c],
        "n": pa.array(n, from_pandas=True),
        "number": number,
        "late": rng.random(rows) < 1 / (1 + np.exp(1.0 - 1.5 * mean)),
        "count": rng.poisson(np.exp(0.4 * mean)),
        "size": rng.gamma(3.0, np.exp(0.4 * mean)) + 1e-3,
        "class": np.array(["p", "q", "r"])[np.digitize(number, [0.0, 1.5])],
    })  # fmt: skip
    two = pa.table({"k": np.arange(rows // 4), "w": w, "flat": rng.normal(size=rows // 4)})
    return one, two, mean


@dataclass
class Case:
    fed: sqlfl.Federation
    one: pa.Table
    two: pa.Table
    mean: np.ndarray
    trained: str = ""

    def train(self, target: str, kind: str, clauses: str = "TRANSFORM (auto)") -> str:
        """Train model m, unless the last statement trained the same. Return its query."""
        query = QUERY.format(target)
        statement = f"TRAIN OR REPLACE MODEL m USING {kind} TARGET y {clauses} FROM ({query})"
        if statement != self.trained:
            self.fed.sql(statement)
            self.trained = statement
        return query

    def predictions(self, query: str, model: str = "m") -> np.ndarray:
        found = self.fed.sql(f"PREDICT MODEL {model} ID (one.a.id) FROM ({query})").df()
        return found.sort_values("id").prediction.to_numpy()

    def block(self, party: str, slot: int) -> SavedBlock:
        holder = self.fed._parties.servers[Client(party, 0)]
        return holder.block(self.fed.model("m").run, slot)


def attached(rows: int, seed: int, con: tuple[duckdb.DuckDBPyConnection, ...]) -> Case:
    one, two, mean = tables(rows, seed)
    for target, name, table in zip(con, "ab", (one, two), strict=True):
        target.register("given", table)
        target.execute(f"CREATE TABLE {name} AS FROM given")
        target.unregister("given")
    fed = sqlfl.connect(progress=False)
    fed.attach("one", con[0])
    fed.attach("two", con[1])
    return Case(fed, one, two, mean)


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    with in_memory() as one, in_memory() as two:
        made = attached(2000, 1, (one, two))
        with made.fed:
            yield made


# -- a reference ----------------------------------------------------------------------------------


def columns(block: SavedBlock, table: pa.Table) -> list[tuple[str, np.ndarray]]:
    """Groups of centred columns of a block's features: by name, '' for those that l2 penalises."""
    encoding, found = block.encoding, []
    fitted = encoding.fitted or (None,) * len(encoding.features)
    for feature, own in zip(encoding.features, fitted, strict=True):
        name = feature.name.split(" (")[0]
        column = table.column(name).to_numpy(zero_copy_only=False)
        if feature.kind == "array":
            assert own is not None
            assert own.table is not None
            x = np.clip(column, own.numbers[0], own.numbers[-1])
            x = np.where(np.isnan(x), own.numbers[0], x)
            basis = basis_of(own.numbers, len(own.table), x)
            made = np.where(np.isnan(column)[:, None], 0.0, basis @ own.table)
            found.append((feature.name, made))
        elif feature.kind == "category":
            known = own.numbers if own is not None else np.unique(column)
            found.append((feature.name, (column[:, None] == known[None, :]).astype(float)))
        else:
            missing = np.isnan(column)
            mean, spread = column[~missing].mean(), np.where(missing, np.nanmean(column), column)
            line = (np.where(missing, mean, column) - mean) / spread.std()
            found.append(("", line[:, None]))
            if missing.any():
                flag = missing.astype(float)
                found.append((f"{name} is missing", (flag / flag.std())[:, None]))
    kept = [(name, values) for name, values in found if values.shape[1]]
    return [(name, values - values.mean(axis=0)) for name, values in kept]


def basis_of(places: np.ndarray, size: int, x: np.ndarray) -> np.ndarray:
    if size == len(places) + 1:
        return np.eye(size)[np.searchsorted(places, x, side="right")]
    knots = np.r_[[places[0]] * 3, places, [places[-1]] * 3]
    return np.column_stack([BSpline(knots, row, 3)(x) for row in np.eye(size)])


def reference(groups: list[tuple[str, np.ndarray]], y: np.ndarray) -> tuple[dict, np.ndarray]:
    """Strengths by group, over all rows, and fitted values: each step solves the ridge exactly."""
    rows = len(y)
    x = np.hstack([values for _, values in groups])
    places = np.cumsum([0, *(values.shape[1] for _, values in groups)])
    slices = [slice(a, b) for a, b in pairwise(places)]
    ridge = np.array([10.0 if name else L2 * rows for name, _ in groups])
    gram, right = x.T @ x, x.T @ (y - y.mean())
    for _ in range(500):
        penalty = np.concatenate(
            [np.full(own.stop - own.start, r) for own, r in zip(slices, ridge, strict=True)]
        )
        theta = np.linalg.solve(gram + np.diag(penalty), right)
        edf = np.array([
            np.trace(np.linalg.solve(gram[s, s] + r * np.eye(s.stop - s.start), gram[s, s]))
            if name else s.stop - s.start
            for (name, _), s, r in zip(groups, slices, ridge, strict=True)
        ])  # fmt: skip
        residual = y - y.mean() - x @ theta
        scale = residual @ residual / (rows - 1 - edf.sum())
        for n, (name, _) in enumerate(groups):
            if name:
                squares = max(theta[slices[n]] @ theta[slices[n]], 1e-12 * scale)
                ridge[n] = np.clip(scale * edf[n] / squares, 1e-3, 1e7)
    return {name: r for (name, _), r in zip(groups, ridge, strict=True) if name}, y - residual


def test_strengths_and_fit_are_those_of_a_reference(case: Case) -> None:
    query = case.train("number", "linear_regression")
    joined = duckdb.sql(
        "SELECT a.*, b.w, b.flat FROM one a JOIN two b USING (k) ORDER BY id",
        connection=registered(case),
    ).to_arrow_table()
    blocks = [case.block("one", 0), case.block("two", 1)]
    groups = [group for block in blocks for group in columns(block, joined)]
    y = joined.column("number").to_numpy()
    wanted, fitted = reference(groups, y)
    found = case.predictions(query)
    np.testing.assert_allclose(found, fitted, atol=0.02 * y.std())
    names = [name for name, _ in groups if name]
    told = np.concatenate([block.encoding.strengths * L2 * len(y) for block in blocks])
    order = [name for block in blocks for name in named_groups(block)]
    assert sorted(order) == sorted(names)
    for name, strength in zip(order, told, strict=True):
        if wanted[name] < 1e4:  # beyond, nothing is left of the group
            assert strength == pytest.approx(wanted[name], rel=0.25), name


def named_groups(block: SavedBlock) -> list[str]:
    """In the order of `Encoding.groups`."""
    own = block.encoding
    every = [f for f in own.features if f.kind != "category"]
    names = [f.name for f in every if f.kind == "array"]
    names += [f"{every[i].name} is missing" for i in own.indicators]
    sizes = zip([f for f in own.features if f.kind == "category"], own.vocabularies, strict=True)
    return names + [feature.name for feature, entries in sizes if entries]


def registered(case: Case) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.register("one", case.one)
    con.register("two", case.two)
    return con


def test_two_parties_learn_what_one_does(case: Case) -> None:
    query = case.train("number", "linear_regression")
    apart = case.predictions(query)
    with in_memory() as con:
        for name, table in (("a", case.one), ("b", case.two)):
            con.register("given", table)
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")
        with federation({"one": [con]}) as fed:
            query = QUERY.format("number").replace("two.b", "one.b")
            fed.sql(
                f"TRAIN MODEL m USING linear_regression TARGET y TRANSFORM (auto) FROM ({query})"
            )
            found = fed.sql(f"PREDICT MODEL m ID (one.a.id) FROM ({query})").df()
    together = found.sort_values("id").prediction.to_numpy()
    np.testing.assert_allclose(apart, together, atol=0.02 * together.std())


# -- what it is worth -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [500, 4000])
def test_a_sine_a_line_and_nothing(rows: int) -> None:
    with in_memory() as one, in_memory() as two:
        made = attached(rows, 7, (one, two))
        with made.fed:
            errors = {}
            for clauses in ("", "TRANSFORM (auto)"):
                query = made.train("number", "linear_regression", clauses)
                errors[clauses] = np.sqrt(np.mean((made.predictions(query) - made.mean) ** 2))
            assert errors["TRANSFORM (auto)"] < 0.45 * errors[""]
            freedom = degrees(made.block("one", 0), rows)
            assert freedom["x (curve)"] > 4.0  # a sine
            assert freedom["z (curve)"] < 2.0  # a line
            assert freedom["n (curve)"] < 2.5  # nothing
            weights = made.fed.sql("WEIGHTS OF MODEL m").df().set_index("feature")
            assert weights.loc["z"].coefficient == pytest.approx(0.5, abs=0.15)


def degrees(block: SavedBlock, rows: int) -> dict[str, float]:
    """Of curves, which are orthogonal columns: Σ v / (v + λ) over their variances v."""
    own = block.encoding
    assert own.strengths is not None
    assert own.fitted is not None
    found, group = {}, 0
    for feature, fitted in zip(own.features, own.fitted, strict=True):
        if feature.kind == "array":
            assert fitted is not None
            assert fitted.table is not None
            draws = np.linspace(fitted.numbers[0], fitted.numbers[-1], 2001)
            basis = basis_of(fitted.numbers, len(fitted.table), draws) @ fitted.table
            variances = basis.var(axis=0)
            found[feature.name] = float(np.sum(variances / (variances + L2 * own.strengths[group])))
            group += 1
    return found


@pytest.mark.parametrize(
    ("kind", "target", "options"),
    [
        ("logistic_regression", "late", ""),
        ("softmax_regression", "class", ""),
        ("poisson_regression", "count", ""),
        ("gamma_regression", "size", ""),
        ("huber_regression", "number", "WITH (threshold = 1.5)"),
    ],
)
def test_every_kind_gains_by_it(case: Case, kind: str, target: str, options: str) -> None:
    losses = []
    for clauses in (options, f"TRANSFORM (auto) {options}"):
        query = case.train(target, kind, clauses)
        losses.append(case.fed.sql(f"EVALUATE MODEL m FROM ({query})").df().loss[0])
        assert case.fed.model("m").converged
    assert losses[1] < 0.985 * losses[0]


def test_rows_that_are_joined_often_count_once() -> None:
    """Of 60 shops, each in 50 rows, no column tells anything of other shops."""
    rng = np.random.default_rng(2)
    shops = pa.table({"k": np.arange(120), "size": rng.lognormal(size=120)})
    keys = np.arange(6000) % 120
    y = rng.normal(size=120)[keys] + rng.normal(size=6000)
    sales = pa.table({"id": np.arange(6000), "k": keys, "y": y})
    with in_memory() as one, in_memory() as two:
        for con, name, table in ((one, "sales", sales), (two, "shops", shops)):
            con.register("given", table)
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")
        with federation({"a": [one], "b": [two]}) as fed:
            query = "SELECT b.size, a.y FROM a.sales a JOIN b.shops b USING (k) WHERE {} (k < 60)"
            scores = {}
            for unit in ("rows", "table"):
                fed.sql(
                    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y TRANSFORM (auto) "
                    f"WITH (unit = '{unit}') FROM ({query.format('')})"
                )
                found = fed.sql(f"EVALUATE MODEL m FROM ({query.format('NOT')})")
                scores[unit] = found.df().r2[0], fed.model("m").metrics
    assert scores["rows"][0] < -0.05
    assert scores["table"][0] > -0.03
    assert 15 < scores["table"][1]["spread_b"] < 60
    assert scores["table"][1]["effective_parameters"] < scores["rows"][1]["effective_parameters"]


def test_rows_of_weight_0_do_not_count_in_a_table_s_dispersion() -> None:
    rng = np.random.default_rng(5)
    shops = pa.table({"k": np.arange(60), "size": rng.lognormal(size=60)})
    keys = np.arange(900) % 60
    y = rng.normal(size=60)[keys] + rng.normal(size=900)
    sales = pa.table({"k": keys, "y": y, "f": np.where(np.arange(900) < 300, 1.0, 0.0)})
    spreads = []
    with in_memory() as one, in_memory() as two:
        put(one, "sales", sales)
        put(two, "shops", shops)
        with federation({"a": [one], "b": [two]}) as fed:
            query = "SELECT b.size, a.y, a.f FROM a.sales a JOIN b.shops b USING (k)"
            for where in ("", " WHERE a.f > 0"):
                fed.sql(
                    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y WEIGHT f "
                    f"TRANSFORM (auto) FROM ({query}{where})"
                )
                spreads.append(fed.model("m").metrics["spread_b"])
    assert spreads[0] == pytest.approx(spreads[1], rel=0.02)


@pytest.mark.parametrize("unit", ["rows", "table"])
@pytest.mark.parametrize(
    ("kind", "target", "rows"),
    [
        ("linear_regression", "number", 900),
        ("poisson_regression", "count", 900),
        ("linear_regression", "number", 260),
    ],
)
def test_rows_of_weight_0_change_nothing(kind: str, target: str, rows: int, unit: str) -> None:
    """Neither knots, values, categories and strengths, nor whether there are curves: of 260 rows
    that count, 156 do not have any."""
    one, two, _ = tables(rows, 5)
    rng = np.random.default_rng(6)
    weight = np.where(rng.random(rows) < 0.4, 0.0, 1.0)
    if rows < 300:
        weight = np.where(np.arange(rows) % 5 < 2, 0.0, 1.0)
    odd = (weight == 0.0) & (rng.random(rows) < 0.5)
    x = np.where(odd, 40.0 * one.column("x").to_numpy(), one.column("x").to_numpy())
    c = np.where(odd, "only here", one.column("c").to_numpy(zero_copy_only=False))
    one = one.drop_columns(["x", "c"])
    one = one.append_column("x", pa.array(x)).append_column("c", pa.array(c.astype(str)))
    one = one.append_column("f", pa.array(weight))
    told = []
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", two)
        with federation({"one": [first], "two": [second]}) as fed:
            query = QUERY.format(target).replace(" AS y", " AS y, a.f")
            for where in ("", " WHERE a.f > 0"):
                with few(int(weight.sum())):
                    fed.sql(
                        f"TRAIN OR REPLACE MODEL m USING {kind} TARGET y WEIGHT f TRANSFORM (auto) "
                        f"WITH (unit = '{unit}') FROM ({query}{where})"
                    )
                found = fed.sql(f"PREDICT MODEL m ID (one.a.id) FROM ({query} WHERE a.f > 0)").df()
                told.append((fed.model("m").metrics, found.sort_values("id").prediction))
    (every, with_zeros), (kept, without) = told
    freedom = [metrics.get("effective_parameters", 0.0) for metrics in (every, kept)]
    assert freedom[0] == pytest.approx(freedom[1], rel=1e-6)
    np.testing.assert_allclose(with_zeros, without, rtol=1e-5, atol=1e-5)


def test_equal_rows_count_one_by_one_in_tune() -> None:
    """Rows that are trained as one are as many as in TRAIN."""
    rng = np.random.default_rng(8)
    x = rng.integers(0, 60, 20_000)
    y = np.round(np.sin(x / 6) + rng.normal(size=20_000))
    freedom = []
    with in_memory() as con:
        put(con, "t", pa.table({"x": x, "y": y}))
        with federation({"one": [con]}) as fed:
            query = "SELECT x, y FROM one.t"
            for verb, options in (("TRAIN", ""), ("TUNE", ", folds = 2, metric = 'r2'")):
                fed.sql(
                    f"{verb} MODEL {verb} USING linear_regression TARGET y TRANSFORM (auto) "
                    f"WITH (unit = 'rows'{options}) FROM ({query})"
                )
                freedom.append(fed.model(verb).metrics["effective_parameters"])
    assert freedom[0] == pytest.approx(freedom[1], rel=1e-4)


# -- what surrounds it ----------------------------------------------------------------------------


def test_what_leaves_is_what_explain_says(case: Case) -> None:
    with in_memory() as one, in_memory() as two:
        for con, name, table in ((one, "a", case.one), (two, "b", case.two)):
            con.register("given", table)
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")
        parties = {"one": [one], "two": [two]}
        with tapped(parties) as (fed, tap):
            statement = (
                "TRAIN MODEL m USING poisson_regression TARGET y TRANSFORM (auto) "
                f"FROM ({QUERY.format('count')})"
            )
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                fed.sql(statement)
            assert_disclosed(plan, recorded, parties, epochs=len(fed.model("m").history))
    assert "strengths" in {item.kind for item in plan.disclosures}


@pytest.mark.parametrize("form", ["safetensors", "sql"])
def test_an_export_predicts_the_same(case: Case, tmp_path: Path, form: str) -> None:
    query = case.train("number", "linear_regression")
    wanted = case.predictions(query)
    case.fed.sql(f"EXPORT MODEL m TO '{tmp_path / 'm'}' WITH (formats = ['safetensors', 'sql'])")
    if form == "safetensors":
        case.fed.sql(f"IMPORT OR REPLACE MODEL copy FROM '{tmp_path / 'm'}'")
        np.testing.assert_allclose(case.predictions(query, "copy"), wanted, atol=1e-6)
        return
    con = registered(case)
    for path in sorted((tmp_path / "m").rglob("*.sql")):
        con.execute(path.read_text())
    names = [row[0] for row in con.sql(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE starts_with(function_name, "
        "'m_')").fetchall()]  # fmt: skip
    assert {"m_a", "m_b"} <= set(names)
    intercept = float(case.fed.model("m").intercept[0])
    found = con.sql(
        f"SELECT m_a(a.x, a.z, a.c, a.n) + m_b(b.w, b.flat) + {intercept!r} FROM one a "
        "JOIN two b USING (k) ORDER BY id"
    ).fetchnumpy()
    np.testing.assert_allclose(next(iter(found.values())), wanted, atol=1e-5)


def test_other_items_and_names_stand_beside_it(case: Case) -> None:
    case.train("number", "linear_regression", 'TRANSFORM (auto, log1p(w), auto(x) AS xx, "flat") ')
    names = case.fed.model("m").features
    assert {"w", "xx", "xx (curve)", "xx (values)", "flat", "z (curve)"} <= set(names)
    assert {"x", "w (curve)", "flat (curve)"}.isdisjoint(names)
    case.train("number", "linear_regression", "TRANSFORM ONLY (auto)")
    assert {"x", "x (curve)", "flat (values)"} <= set(case.fed.model("m").features)
    clash = 'SELECT a.x, a.z AS "x (curve)", a.number AS y FROM one.a a'
    for items in ("auto", "auto(x)"):
        with pytest.raises(PlanError, match=r"x \(curve\)"):
            case.fed.sql(
                f"TRAIN MODEL n USING linear_regression TARGET y TRANSFORM ({items}) FROM ({clash})"
            )
    with pytest.raises(PlanError, match="auto is of all columns"):
        case.train("number", "linear_regression", "TRANSFORM (auto AS x)")


@pytest.mark.parametrize(
    ("kind", "target", "options", "said"),
    [
        ("quantile_regression", "number", "WITH (quantile = 0.5)", "quantile_regression has none"),
        ("linear_regression", "number", "WITH (algorithm = 'sgd')", "finds no strengths"),
        ("linear_regression", "number", "WITH (l2 = 0)", "asks for no penalty"),
        (
            "linear_regression", "number",
            "PRIVACY (epsilon = 3, delta = 1e-6, feature_bounds = {'x': [-3, 3], 'z': [-3, 3], "
            "'n': [-3, 3], 'w': [0, 5], 'flat': [-3, 3], 'c': ['c1']}, "
            "label_epsilon = 1, label_bounds = [-5, 5])",
            "PRIVACY protects features",
        ),
    ],
)  # fmt: skip
def test_what_takes_lines_says_so(
    case: Case, kind: str, target: str, options: str, said: str
) -> None:
    query = QUERY.format(target)
    text = f"TRAIN MODEL l USING {kind} TARGET y TRANSFORM (auto) {options} FROM ({query})"
    told = " ".join(str(case.fed.explain(text)).split())
    assert said in told
    assert "x (curve)" not in told


def test_few_rows_keep_lines() -> None:
    with in_memory() as one, in_memory() as two:
        small = attached(160, 3, (one, two))
        with small.fed:
            with pytest.warns(sqlfl.Warning, match="160 joined rows to train on are fewer"):
                small.train("number", "linear_regression")
            weights = small.fed.sql("WEIGHTS OF MODEL m").df()
            small.train("number", "linear_regression", "")
            plain = small.fed.sql("WEIGHTS OF MODEL m").df()
        lines = weights[~weights.feature.str.contains("curve")]
        np.testing.assert_allclose(
            lines.coefficient.to_numpy(), plain.coefficient.to_numpy(), atol=1e-6
        )


def test_a_warm_start_goes_on_and_tune_finds_strengths_anew(case: Case) -> None:
    query = case.train("number", "linear_regression")
    wanted, epochs = case.predictions(query), len(case.fed.model("m").history)
    case.fed.sql(
        "TRAIN MODEL warm USING linear_regression TARGET y TRANSFORM (auto) "
        f"WITH (warm_start = 'm') FROM ({query})"
    )
    found = case.fed.sql(f"PREDICT MODEL warm ID (one.a.id) FROM ({query})").df()
    np.testing.assert_allclose(found.sort_values("id").prediction, wanted, atol=0.02 * wanted.std())
    assert len(case.fed.model("warm").history) <= epochs
    tuned = case.fed.sql(
        "TUNE MODEL t USING linear_regression TARGET y TRANSFORM (auto) "
        f"WITH (l2 = [1e-4, 1e-2], folds = 3) FROM ({query})"
    ).df()
    assert len(tuned) == 2


def put(con: duckdb.DuckDBPyConnection, name: str, table: pa.Table) -> None:
    con.register("given", table)
    con.execute(f"CREATE TABLE {name} AS FROM given")
    con.unregister("given")


FITTED = (
    "quantile_bucketize(x, 6), robust_scale(z), one_hot(c, max => 4), impute(n, 'median'), "
    "spline(w), minmax(flat)"
)


def few(rows: int, where: str = "") -> AbstractContextManager[object]:
    """Expect the warning of so few rows to train on; none of more."""
    if rows >= 200:
        return nullcontext()
    return pytest.warns(sqlfl.Warning, match=f"no curves{where}: {rows} joined rows to train on")


@pytest.mark.parametrize(
    ("unit", "weight", "rows", "items"),
    [
        ("table", "", 800, "auto"),
        ("rows", "", 800, "auto"),
        ("table", ", a.f", 800, "auto"),
        ("table", "", 300, "auto"),
        ("table", "", 500, FITTED),
    ],
)
def test_folds_are_trained_and_measured_as_by_hand(
    unit: str, weight: str, rows: int, items: str
) -> None:
    """Rows that are held out say nothing of knots, values, categories, scales and strengths; fewer
    than 200 other rows keep straight lines."""
    one, two, _ = tables(rows, 4)
    one = one.append_column("f", pa.array(np.random.default_rng(4).exponential(size=rows)))
    y = one.column("number").to_numpy()
    query = QUERY.format("number").replace(" AS y", f" AS y{weight}")
    clauses = "WEIGHT f " * bool(weight) + f"TRANSFORM ({items}) WITH ({{}})"
    options = f"l2 = 1e-2, unit = '{unit}', tolerance = 1e-8, seed = 1"
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", two)
        with tapped({"one": [first], "two": [second]}) as (fed, tap):
            text = f"TUNE MODEL m USING linear_regression TARGET y {clauses} FROM ({query})"
            with tap.taken() as recorded, few(rows // 2, " while folds are held out"):
                table = fed.sql(text.format(f"{options}, folds = 2, metric = 'r2'")).arrow()
            (found,) = table.to_pylist()
            told = [decode(item.data) for item in recorded if item.direction == "up"]
            (labels,) = (message.values for message in told if isinstance(message, Labels))
            (folds,) = (message.folds for message in told if isinstance(message, Folds))
            (folds,) = merge_folds([folds], [np.zeros(len(folds), int)], 2, 0.5, onward=True)
            order = np.argsort(labels)  # no two labels are equal
            folds = folds[order][np.searchsorted(labels[order], y)]
            put(first, "folds", pa.table({"id": np.arange(len(y)), "fold": folds}))
            query += " JOIN one.folds f USING (id) WHERE f.fold {}"
            by_hand = []
            for fold in range(2):
                train = f"{clauses.format(options)} FROM ({query.format(f'<> {fold}')})"
                with few(rows // 2):
                    fed.sql(f"TRAIN OR REPLACE MODEL h USING linear_regression TARGET y {train}")
                measured = fed.sql(f"EVALUATE MODEL h FROM ({query.format(f'= {fold}')})")
                by_hand.append(measured.df().r2[0])
            assert found["folds"] == pytest.approx(by_hand, rel=1e-4)
            query = query.split(" JOIN one.folds")[0]
            whole = f"EVALUATE MODEL {{}} FROM ({query})"
            fed.sql(f"TRAIN OR REPLACE MODEL h USING linear_regression TARGET y "
                    f"{clauses.format(options)} FROM ({query})")  # fmt: skip
            tuned, trained = (fed.sql(whole.format(model)).df().r2[0] for model in "mh")
            assert tuned == pytest.approx(trained, rel=1e-6)


@pytest.mark.parametrize("weight", ["", ", class_weight = 'balanced'"])
def test_what_leaves_in_tune_is_what_explain_says(weight: str) -> None:
    """A category of one row is no column in the fit without it."""
    one, two, _ = tables(600, 5)
    names = one.column("c").to_pylist()
    one = one.set_column(one.schema.get_field_index("c"), "c", pa.array(["rare", *names[1:]]))
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", two)
        parties = {"one": [first], "two": [second]}
        with tapped(parties) as (fed, tap):
            statement = (
                "TUNE MODEL m USING logistic_regression TARGET y TRANSFORM (auto) "
                f"WITH (l2 = 1e-3, folds = 2{weight}) FROM ({QUERY.format('late')})"
            )
            plan = fed.explain(statement)
            with tap.taken() as recorded:
                (found,) = fed.sql(statement).arrow().to_pylist()
            epochs = found["epochs"] + fed.model("m").history.num_rows
            assert_disclosed(plan, recorded, parties, epochs=epochs)
            widths = {
                message.width
                for message in (decode(item.data) for item in recorded)
                if isinstance(message, Ready) and message.width and message.slot == 0
            }
            assert len(widths) > 1
            if weight:
                # features count in SKEW as they are, whatever their classes weigh
                skew = fed.sql(f"SKEW OF MODEL m FROM ({QUERY.format('late')})").df()
                assert skew.psi.abs().max() < 1e-9


def test_an_owner_s_policy_is_kept_in_each_fold() -> None:
    one, two, _ = tables(600, 6)
    with in_memory() as first, in_memory() as second:
        put(first, "a", one)
        put(second, "b", two)
        with sqlfl.owner(first) as owner:
            owner.sql("CREATE TRAINING POLICY p WITH (min_rows = 100, min_cell = 20)")
            owner.sql("GRANT TRAIN (x, z), JOIN (k), LABEL (number) ON a TO 'acme' UNDER p")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("one", first)
            fed.attach("two", second)
            found = fed.sql(
                "TUNE MODEL m USING linear_regression TARGET y TRANSFORM (auto) "
                "WITH (l2 = [1e-3, 1e-1], folds = 2) FROM "
                "(SELECT a.x, a.z, b.w, a.number AS y FROM one.a a JOIN two.b b USING (k))"
            ).arrow()
            assert None not in found.column("loss").to_pylist()


def test_a_slope_has_a_standard_error(case: Case) -> None:
    query = case.train("number", "linear_regression")
    result = case.fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
    found = result.df().set_index("feature")
    assert found.loc["z"].coefficient == pytest.approx(0.5, abs=4 * found.loc["z"].standard_error)
    assert 0.0 < found.loc["z"].standard_error < 0.1
    notes = " ".join(" ".join(str(note).split()) for note in result.notes)
    assert (
        "errors and p are as if that were known, and bands of whole curves are in CURVES" in notes
    )
    assert "Train with l2 = 0" not in notes


def test_a_curve_is_permuted_with_its_number(case: Case) -> None:
    """Permuting a sine loses nearly all of R², as permuting line and curve together does."""
    query = case.train("number", "linear_regression")
    ranks = case.fed.sql(
        f"IMPORTANCE OF MODEL m WITH (repeats = 5, seed = 1, metric = 'r2') FROM ({query})"
    ).df()
    ranks = ranks[ranks.feature.notna()].set_index("feature").importance
    assert sorted(ranks.index) == ["c", "flat", "n", "w", "x", "z"]
    share = np.sin(2 * case.one.column("x").to_numpy()).var() * 2 / np.var(case.one["number"])
    assert ranks["x"] == pytest.approx(share, rel=0.15)


def test_an_infinite_value_is_told_of_by_its_column() -> None:
    with in_memory() as one:
        put(one, "a", pa.table({"x": np.append(np.arange(300.0), np.inf), "y": np.arange(301.0)}))
        with (
            federation({"one": [one]}) as fed,
            pytest.raises(sqlfl.Error, match="column x has inf"),
        ):
            fed.sql(
                "TRAIN MODEL m USING linear_regression TARGET y TRANSFORM (auto) "
                "FROM (SELECT x, y FROM one.a)"
            )


def test_columns_that_a_curve_lacks_are_told_of_by_nobody() -> None:
    """A number of five values has a curve of three columns, and five that are 0."""
    with in_memory() as one:
        rng = np.random.default_rng(5)
        x = rng.integers(0, 5, 800).astype(float)
        table = pa.table({"x": x, "y": np.sin(x) + rng.normal(size=800)})
        one.register("given", table)
        one.execute("CREATE TABLE a AS FROM given")
        with federation({"one": [one]}) as fed:
            query = "SELECT a.x, a.y FROM one.a a"
            fed.sql(
                f"TRAIN MODEL m USING linear_regression TARGET y TRANSFORM (auto) FROM ({query})"
            )
            result = fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
        notes = " ".join(str(note) for note in result.notes)
        lacking = [f"x (curve)[{n}]" for n in range(4, 9)]
        assert not any(name in notes for name in lacking)
        found = result.df().set_index("feature").loc[lacking]
        assert (found.coefficient == 0).all()
        assert found.standard_error.isna().all()


def test_a_client_finds_strengths_so_often_and_where_they_are_asked_for() -> None:
    """A coordinator that asks again and again learns no more than EXPLAIN says."""
    x = np.random.default_rng(0).normal(size=(300, 3))
    engine = DenseEngine(x, np.ones(300), np.zeros(3), 0)
    own = LbfgsConfiguration(
        outputs=1, rows=300, total=300.0, clients=1, leader=True, l2=L2, curvature=1.0
    )
    plain = CLIENT.operator(engine, own, "r", 0)
    message = SetStrengths("r", 0, 0.01, 1.0)
    with pytest.raises(InternalError, match="no column of the block has a strength"):
        plain.handle(message)
    shrunken = Shrinkage.first(np.array([-1, 0, 0]), 300, L2)
    operator = CLIENT.operator(engine, own, "r", 0, None, shrunken)
    for _ in range(updates(pairs=True)):
        operator.handle(message)
    with pytest.raises(InternalError, match="times at most"):
        operator.handle(message)


def test_offset_and_weight_are_no_features(case: Case) -> None:
    query = (
        "SELECT a.x, b.w, a.z / 10 AS o, 1 + a.id % 2 AS often, a.count AS y "
        "FROM one.a a JOIN two.b b USING (k)"
    )
    case.fed.sql(
        "TRAIN MODEL rates USING poisson_regression TARGET y WEIGHT often OFFSET o "
        f"TRANSFORM (auto) FROM ({query})"
    )
    model = case.fed.model("rates")
    assert {name.split(" (")[0] for name in model.features} == {"x", "w"}
    assert model.converged


@pytest.mark.parametrize(
    ("rule", "said"),
    [("min_cell = 5", None), ("moments = 'never'", "moments = 'never'")],
)
def test_an_owner_says_whether_strengths_are_found(rule: str, said: str | None) -> None:
    with in_memory() as one, in_memory() as two:
        for con, name, table in zip((one, two), "ab", tables(600, 2)[:2], strict=True):
            con.register("given", table)
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")
        with sqlfl.owner(one) as owner:
            owner.sql(f"CREATE TRAINING POLICY p WITH (min_rows = 100, {rule})")
            owner.sql("GRANT TRAIN (x, z), JOIN (k), LABEL (number) ON a TO 'acme' UNDER p")
        with sqlfl.connect(analyst="acme", progress=False) as fed:
            fed.attach("one", one)
            fed.attach("two", two)
            train = (
                "TRAIN MODEL m USING linear_regression TARGET y TRANSFORM (auto) FROM ("
                "SELECT a.x, a.z, b.w, a.number AS y FROM one.a a JOIN two.b b USING (k))"
            )
            if said is not None:
                with pytest.raises(sqlfl.PolicyError, match=said):
                    fed.sql(train)
                return
            fed.sql(train)
            told = fed.sql("CURVES OF MODEL m").df()
            assert told[told.feature == "x"]["rows"].min() >= 5
            assert len(told[told.feature == "x"]) == 32


# -- CURVES OF MODEL -----------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [500, 4000])
def test_bands_hold_a_sine_a_line_and_nothing(rows: int) -> None:
    """Of some of the draws that the page speaks of."""
    truths = {"x": lambda v: np.sin(2 * v), "z": lambda v: 0.5 * v, "n": np.zeros_like}
    held: dict[str, list[float]] = {name: [] for name in truths}
    for seed in range(100, 104 if rows == 500 else 102):
        with in_memory() as one, in_memory() as two:
            made = attached(rows, seed, (one, two))
            with made.fed:
                made.train("number", "linear_regression")
                told = made.fed.sql("CURVES OF MODEL m").df()
        for name, truth in truths.items():
            own = told[(told.feature == name) & told.value.notna()]
            every = made.one.column(name).to_numpy(zero_copy_only=False)
            wanted = truth(own.value.astype(float).to_numpy()) - np.nanmean(truth(every))
            held[name].append(np.mean((own.lower <= wanted) & (wanted <= own.upper)))
    for name, shares in held.items():
        assert np.mean(shares) > 0.8, name
    assert np.mean(held["x"]) < 0.999


def test_curves_are_what_contributes(case: Case) -> None:
    """The effects of a row's own values add up to its score."""
    query = case.train("number", "linear_regression")
    told = case.fed.sql("CURVES OF MODEL m").df()
    assert set(told.feature) == {"x", "z", "c", "n", "w", "flat"}
    own = told[told.feature == "c"].set_index("value")
    assert own.rows.sum() == 2000
    weights = case.fed.sql("WEIGHTS OF MODEL m").df()
    named = weights[weights.feature == "c"].set_index("category").standardised
    shares = own.rows / 2000
    np.testing.assert_allclose(own.effect, named[own.index] - (named * shares).sum(), atol=1e-9)
    missing = told[(told.feature == "n") & told.value.isna()]
    nulls = case.one.column("n").null_count
    assert missing.rows.tolist() == [nulls]
    zero = told[(told.feature == "w") & (told.value == "0")]
    assert zero.rows.item() == int((case.two.column("w").to_numpy() == 0).sum())
    alone = case.fed.sql("CURVES OF MODEL m FEATURE X")
    assert alone.arrow().num_rows == 32
    assert alone.plot() is not None
    assert "of the smoothed curve" in " ".join(str(alone).split())
    with pytest.raises(ModelError, match="has no curve of xx"):
        case.fed.sql("CURVES OF MODEL m FEATURE xx")
    case.train("class", "softmax_regression")
    assert set(case.fed.sql("CURVES OF MODEL m").df()["class"]) == {"p", "q", "r"}
    case.fed.sql(f"TRAIN MODEL bare USING linear_regression TARGET y FROM ({query})")
    with pytest.raises(ModelError, match=r"was not trained with TRANSFORM \(auto\)"):
        case.fed.sql("CURVES OF MODEL bare")


def test_patience_and_other_rows_hold_too(case: Case) -> None:
    query = case.train("number", "linear_regression")
    wanted = case.predictions(query)
    options = "patience = 3, validation_fraction = 0.2, seed = 3"
    case.train("number", "linear_regression", f"TRANSFORM (auto) WITH ({options})")
    assert np.abs(case.predictions(query) - wanted).mean() < 0.1 * wanted.std()
    assert case.fed.sql("CURVES OF MODEL m").arrow().num_rows > 100


def test_both_engines_make_the_same() -> None:
    found = []
    with in_memory() as one, in_memory() as two:
        made = attached(260, 3, (one, two))
        with made.fed:
            query = "SELECT a.x, a.c, a.number AS y FROM one.a a"
            for engine in ("sql", "arrays"):
                made.fed.sql(
                    "TRAIN OR REPLACE MODEL m USING linear_regression TARGET y TRANSFORM (auto) "
                    f"WITH (engine = '{engine}') FROM ({query})"
                )
                curves = made.fed.sql("CURVES OF MODEL m").df()
                found.append((made.predictions(query), curves.effect, curves.upper))
    for sql, arrays in zip(*found, strict=True):
        np.testing.assert_allclose(sql, arrays, atol=1e-5)


def test_a_constant_target_has_no_curves() -> None:
    with duckdb.connect() as con, sqlfl.connect(progress=False) as fed:
        con.execute("CREATE TABLE t AS SELECT sin(i) AS x, 2.5 AS y FROM range(600) AS r(i)")
        fed.attach("one", con)
        fed.sql(
            "TRAIN MODEL m USING linear_regression TARGET y TRANSFORM (auto) "
            "FROM (SELECT x, y FROM one.t)"
        )
        assert fed.model("m").metrics["rmse"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "family"),
    [("linear_regression", sm.families.Gaussian()), ("poisson_regression", sm.families.Poisson())],
)
def test_a_curve_is_as_good_as_that_of_an_additive_model(
    kind: str, family: sm.families.Family
) -> None:
    """The one of statsmodels that has the least AIC."""
    rng, rows, gauss = np.random.default_rng(3), 800, kind == "linear_regression"
    x = rng.uniform(-3.0, 3.0, rows)
    true = np.sin(2 * x) if gauss else np.sin(2 * x) / 2
    y = true + rng.normal(size=rows) if gauss else rng.poisson(np.exp(true)).astype(float)
    with in_memory() as con, sqlfl.connect(progress=False) as fed:
        con.register("made", pa.table({"i": np.arange(rows), "x": x, "y": y}))
        con.execute("CREATE TABLE t AS FROM made")
        fed.attach("one", con)
        query = "FROM (SELECT x, y FROM one.t)"
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y TRANSFORM (auto) {query}")
        found = fed.sql(f"PREDICT MODEL m ID (one.t.i) {query}").arrow().sort_by("i")
    ours = family.link(found.column("prediction").to_numpy())
    smoother = BSplines(x[:, None], df=[12], degree=[3])
    fits = [
        GLMGam(y, np.ones((rows, 1)), smoother=smoother, alpha=[alpha], family=family).fit()
        for alpha in 10.0 ** np.arange(-2, 4)
    ]
    theirs = family.link(min(fits, key=lambda fit: fit.aic).fittedvalues)

    def distance(one: np.ndarray, two: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(one - two))))

    assert distance(ours, true) < 1.2 * distance(theirs, true)
    assert distance(ours, theirs) < distance(ours, true)


@pytest.mark.parametrize(("item", "curves"), [("auto", {"x"}), ("auto(v)", set())])
def test_an_array_stays_as_it_is(item: str, curves: set[str]) -> None:
    with duckdb.connect() as con, sqlfl.connect(progress=False) as fed:
        con.execute("""
            CREATE TABLE t AS SELECT sin(i) AS x, i % 4 + sin(i) AS y,
              CASE WHEN i % 5 > 0 THEN [i % 4, i % 9]::FLOAT[2] END AS v
            FROM range(600) AS r(i)
        """)
        fed.attach("one", con)
        fed.sql(
            f"TRAIN MODEL m USING linear_regression TARGET y TRANSFORM ({item}) "
            "FROM (SELECT x, v, y FROM one.t)"
        )
        assert {"v[1]", "v[2]", "v"} < set(fed.sql("WEIGHTS OF MODEL m").df().feature)
        assert set(fed.sql("CURVES OF MODEL m").df().feature) == curves
