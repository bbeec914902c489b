"""TRANSFORM: a model equals the one that scikit-learn's counterparts make of the central join."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    SplineTransformer,
)

import sqlfl
from sqlfl.base.errors import Error, InternalError, ModelError, PlanError
from sqlfl.contract.schema import (
    FeatureSpecification,
    FittedStep,
    Made,
    SlotSpecification,
    specifications_from_json,
    specifications_to_json,
)
from sqlfl.udfs.blocks.register import register
from tests.depth import in_turn
from tests.federations import merging
from tests.open_databases import in_memory
from tests.test_border import assert_disclosed, tapped

L2 = 0.01
QUERY = """SELECT f.x, f.s, f.n, f.c, f.d, g.z, g.h, f.id, f.w, f.y
FROM one.f f LEFT JOIN two.g g USING (k)"""
COLUMNS = ("x", "s", "n", "c", "d", "z", "h")
"""Features of it; x, n and z are NULL in some rows, c, d and h are texts, of which c and h are NULL
in some; h and z are of the other party, and NULL where nothing is joined."""


def filled(con: duckdb.DuckDBPyConnection, seed: int, rows: int = 140) -> None:
    """Both tables, in one database; rows of g join several of f, and the other way."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("aabbbcdeé×"), object)
    con.register("f0", pa.table({
        "id": np.arange(rows),
        "k": rng.integers(0, 12, rows),
        "x": pa.array(rng.exponential(3.0, rows), mask=rng.random(rows) < 0.15),
        "s": rng.normal(5.0, 2.0, rows).astype(np.float32),
        "n": pa.array(rng.integers(0, 9, rows), mask=rng.random(rows) < 0.1),
        "c": pa.array(rng.choice(letters, rows), mask=rng.random(rows) < 0.1),
        "d": rng.choice(letters[:5], rows),
        "w": rng.integers(0, 4, rows) / 2,
        "y": rng.normal(size=rows),
    }))  # fmt: skip
    con.register("g0", pa.table({
        "k": rng.integers(0, 10, 25),
        "z": pa.array(rng.normal(1.0, 4.0, 25), mask=rng.random(25) < 0.1),
        "h": pa.array(rng.choice(letters, 25), mask=rng.random(25) < 0.1),
    }))  # fmt: skip
    for table in ("f", "g"):
        con.execute(f"CREATE TABLE {table} AS FROM {table}0")
        con.unregister(f"{table}0")


@dataclass
class Case:
    fed: sqlfl.Federation
    one: duckdb.DuckDBPyConnection
    joined: pa.Table
    """What the query gives centrally, with the target."""


@pytest.fixture(scope="module", params=[1, 2])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    with (
        in_memory() as whole,
        in_memory() as one,
        in_memory() as two,
        sqlfl.connect(progress=False) as fed,
    ):
        filled(whole, request.param)
        for con, table in ((one, "f"), (two, "g")):
            con.register("given", whole.sql(f"FROM {table}").to_arrow_table())
            con.execute(f"CREATE TABLE {table} AS FROM given")
            con.unregister("given")
        fed.attach("one", one)
        fed.attach("two", two)
        central = QUERY.replace("one.", "").replace("two.", "")
        yield Case(fed, one, whole.sql(central).to_arrow_table())


# -- the central model ----------------------------------------------------------------------------

Part = tuple[str, np.ndarray]
"""'numbers' (n, k) with NaN, to be standardised; 'scaled' (n, 1) with NaN, to be centred; 'texts'
(n,) with None."""


def numbers(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name).to_numpy(zero_copy_only=False)
    return np.array([[np.nan if v is None else v] for v in column], float)


def texts(table: pa.Table, name: str) -> np.ndarray:
    return np.array(table.column(name).to_pylist(), object)


def plain(table: pa.Table, name: str) -> Part:
    if pa.types.is_string(table.schema.field(name).type):
        return "texts", texts(table, name)
    return "numbers", numbers(table, name)


def weighted(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = np.average(values, axis=0, weights=weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))


def encoded(parts: Sequence[Part], weights: np.ndarray) -> np.ndarray:
    """The columns that a linear model sees, as docs/statements.md says."""
    columns: list[np.ndarray] = []
    for kind, values in parts:
        if kind == "texts":
            own = np.array([[str(v) if v is not None else None] for v in values], object)
            known = sorted({v for v in own[:, 0] if v is not None})
            known += [None] if any(v is None for v in own[:, 0]) else []
            onehot = OneHotEncoder(categories=[known], sparse_output=False).fit_transform(own)
            columns.append(onehot - weighted(onehot, weights)[0])
            continue
        missing = np.isnan(values).all(axis=1)
        present = weights * ~missing
        mean = np.average(np.where(missing[:, None], 0, values), axis=0, weights=present)
        values = np.where(np.isnan(values), mean, values)
        spread = weighted(values, weights)[1]
        divide = np.where(spread > 1e-12, spread, 1.0) if kind == "numbers" else 1.0
        columns.append((values - mean) / divide)
        if (weights @ missing) > 0:
            flag = missing[:, None].astype(float)
            centre, spread = weighted(flag, weights)
            columns.append((flag - centre) / spread)
    return np.hstack(columns)


def fitted(parts: Sequence[Part], y: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Predictions (n,) of the ridge regression that sqlfl's objective is."""
    weights = np.ones(len(y)) if weights is None else weights
    matrix, total = encoded(parts, weights), weights.sum()
    left = (matrix.T * weights) @ matrix / total + L2 * np.eye(matrix.shape[1])
    mean = np.average(y, weights=weights)
    theta = np.linalg.solve(left, (matrix.T * weights) @ (y - mean) / total)
    return matrix @ theta + mean


def predictions(
    fed: sqlfl.Federation, transform: str, options: str = "", query: str = QUERY
) -> tuple[np.ndarray, np.ndarray]:
    """Identifiers (n,) and predictions (n,)."""
    selected = query.replace("f.id, f.w, ", "")
    fed.sql(
        f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET y TRANSFORM ({transform}) "
        f"WITH (l2 = {L2}{options}) FROM ({selected})"
    )
    found = fed.sql(f"PREDICT MODEL m ID (f.id) FROM ({selected})").arrow()
    return found.column("id").to_numpy(), found.column("prediction").to_numpy()


def assert_equal(case: Case, transform: str, made: dict[str, Part], options: str = "") -> None:
    """`made`: columns of the join -> what TRANSFORM makes of them; all others are as they are."""
    parts = list(made.values())
    taken = {name for key in made for name in key.split()}
    parts += [plain(case.joined, name) for name in COLUMNS if name not in taken]
    expected = fitted(parts, case.joined.column("y").to_numpy())
    ids, found = predictions(case.fed, transform, options)
    ours = np.lexsort((expected, case.joined.column("id").to_numpy()))
    theirs = np.lexsort((found, ids))
    np.testing.assert_allclose(found[theirs], expected[ours], atol=1e-4)


def stateless() -> dict[str, Callable[[pa.Table], dict[str, Part]]]:
    def buckets(table: pa.Table, name: str, bounds: list[float]) -> Part:
        own = numbers(table, name)[:, 0]
        found = np.digitize(own, bounds).astype(str).astype(object)
        return "texts", np.where(np.isnan(own), None, found)

    def hashed(table: pa.Table, name: str, k: int) -> Part:
        return "texts", np.array([
            None if v is None
            else str(int.from_bytes(md5(v.encode()).digest()[8:], "little") % k)
            for v in texts(table, name)
        ], object)  # fmt: skip

    def powers(table: pa.Table, names: list[str], degree: int) -> Part:
        own = np.hstack([numbers(table, name) for name in names])
        gone = np.isnan(own).any(axis=1, keepdims=True)
        made = PolynomialFeatures(degree, include_bias=False).fit_transform(np.nan_to_num(own))
        return "numbers", np.where(gone, np.nan, made)

    def crossed(table: pa.Table, names: list[str]) -> Part:
        rows = zip(*(table.column(name).to_pylist() for name in names), strict=True)
        return "texts", np.array([None if None in row else repr(row) for row in rows], object)

    log = FunctionTransformer(np.log1p)
    return {
        "log1p(x), standardize(s)": lambda t: {
            "x": ("numbers", log.transform(numbers(t, "x"))), "s": plain(t, "s")},
        "bucketize(x, [0.5, 2, 7]), bucketize(z, [0])": lambda t: {
            "x": buckets(t, "x", [0.5, 2, 7]), "z": buckets(t, "z", [0])},
        "one_hot(n), s AS t": lambda t: {
            "n": ("texts", texts(t, "n")), "s": plain(t, "s")},
        "hash_bucket(c, 3), hash_bucket(h, 4) AS hh": lambda t: {
            "c": hashed(t, "c", 3), "h": hashed(t, "h", 4)},
        "impute(x, -1.5), impute(z, 0) AS z0": lambda t: {
            "x": ("numbers", SimpleImputer(strategy="constant", fill_value=-1.5)
                  .fit_transform(numbers(t, "x"))),
            "z": ("numbers", SimpleImputer(strategy="constant", fill_value=0.0)
                  .fit_transform(numbers(t, "z")))},
        "polynomial(x, 3)": lambda t: {"x": powers(t, ["x"], 3)},
        "polynomial((s, n), 2) AS sn, polynomial(z, degree => 2)": lambda t: {
            "s n": powers(t, ["s", "n"], 2), "z": powers(t, ["z"], 2)},
        "cross(c, d), cross(h, z) AS hz": lambda t: {
            "c d": crossed(t, ["c", "d"]), "h z": crossed(t, ["h", "z"])},
    }  # fmt: skip


def of_rows() -> dict[str, Callable[[pa.Table], dict[str, Part]]]:
    def scaled(scaler: Any, table: pa.Table, name: str) -> Part:
        return "scaled", scaler.fit_transform(numbers(table, name))

    def quantiled(table: pa.Table, name: str, k: int) -> Part:
        own = numbers(table, name)
        known = ~np.isnan(own[:, 0])
        bins = KBinsDiscretizer(k, encode="ordinal", quantile_method="linear")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Bins whose width are too small")
            bins.fit(own[known])
        found = np.full(len(own), None, object)
        found[known] = bins.transform(own[known])[:, 0].astype(str)
        return "texts", found

    def frequent(table: pa.Table, name: str, most: int) -> Part:
        own = np.array([["~" if v is None else str(v)] for v in texts(table, name)], object)
        made = OneHotEncoder(max_categories=most, sparse_output=False).fit_transform(own)
        return "texts", made.argmax(axis=1).astype(str).astype(object)

    def filled_in(table: pa.Table, name: str, strategy: str) -> Part:
        own = numbers(table, name)
        return "numbers", SimpleImputer(strategy=strategy).fit_transform(own)

    def splined(table: pa.Table, name: str, knots: int, degree: int) -> Part:
        own = numbers(table, name)
        known = ~np.isnan(own[:, 0])
        made = SplineTransformer(n_knots=knots, degree=degree).fit(own[known])
        found = np.full((len(own), knots + degree - 1), np.nan)
        found[known] = made.transform(own[known])
        return "numbers", found

    def usual_text(table: pa.Table, name: str) -> Part:
        own = texts(table, name)[:, None]
        imputer = SimpleImputer(strategy="most_frequent", missing_values=None)
        return "texts", imputer.fit_transform(own)[:, 0]

    return {
        "minmax(x), minmax(z) AS mz": lambda t: {
            "x": scaled(MinMaxScaler(), t, "x"), "z": scaled(MinMaxScaler(), t, "z")},
        "robust_scale(s), robust_scale(z)": lambda t: {
            "s": scaled(RobustScaler(), t, "s"), "z": scaled(RobustScaler(), t, "z")},
        "quantile_bucketize(x, 4), quantile_bucketize(n, 8)": lambda t: {
            "x": quantiled(t, "x", 4), "n": quantiled(t, "n", 8)},
        "one_hot(c, max => 4), one_hot(h, max => 50), one_hot(n, max => 3)": lambda t: {
            "c": frequent(t, "c", 4), "h": ("texts", texts(t, "h")), "n": frequent(t, "n", 3)},
        "impute(x, 'median'), impute(z, 'mean'), impute(n, 'most_frequent')": lambda t: {
            "x": filled_in(t, "x", "median"), "z": filled_in(t, "z", "mean"),
            "n": filled_in(t, "n", "most_frequent")},
        "impute(c, 'most_frequent'), impute(h, 'most_frequent')": lambda t: {
            "c": usual_text(t, "c"), "h": usual_text(t, "h")},
        "spline(x), spline(z, knots => 4, degree => 2)": lambda t: {
            "x": splined(t, "x", 5, 3), "z": splined(t, "z", 4, 2)},
    }  # fmt: skip


EVERY = stateless() | of_rows()


@pytest.mark.parametrize(
    ("transform", "case", "engine"),
    in_turn(EVERY, (1, 2), ("sql", "arrays")),
    indirect=["case"],
)
def test_a_model_is_that_of_scikit_learn(case: Case, transform: str, engine: str) -> None:
    assert_equal(case, transform, EVERY[transform](case.joined), f", engine = '{engine}'")


ALL = """log1p(x) AS lx, minmax(x) AS mx, spline(x) AS sx, quantile_bucketize(x, 3) AS qx,
  bucketize(s, [4, 5.5]), impute(n, 'median'), one_hot(c, max => 3), hash_bucket(c, 2) AS hc,
  cross(c, d) AS cd, polynomial((s, n), 2) AS sn, d AS dd, robust_scale(z),
  impute(h, 'most_frequent') AS h1, one_hot(h, max => 4)"""
PLAIN = QUERY.replace("f.id, f.w, ", "")


@pytest.mark.parametrize("kind", ["linear_regression", "mlp_regressor"])
def test_functions_of_blocks_take_the_columns_of_the_query(tmp_path: Path, kind: str) -> None:
    """Their sum is what PREDICT gives, and EVALUATE and a file opened anew have the same."""
    path = tmp_path / "coordinator.duckdb"
    with (
        duckdb.connect(tmp_path / "one.duckdb") as one,
        duckdb.connect(tmp_path / "two.duckdb") as two,
    ):
        for con, table in ((one, "f"), (two, "g")):
            filled(con, 3)
            con.execute(f"DROP TABLE {'g' if table == 'f' else 'f'}")
        with sqlfl.connect(path, progress=False) as fed:
            fed.attach("one", one)
            fed.attach("two", two)
            fed.sql(
                f"TRAIN MODEL m USING {kind} TARGET y TRANSFORM ({ALL}) "
                f"WITH (l2 = 0.01, seed = 1, epochs = 3) FROM ({PLAIN})"
            )
            told = fed.sql(f"EVALUATE MODEL m FROM ({PLAIN})").fetchall()[0][1]
            before = fed.model("m").transforms
        with sqlfl.connect(path, progress=False) as fed:
            fed.attach("one", one)
            fed.attach("two", two)
            model = fed.model("m")
            assert model.transforms == before
            predicted = fed.sql(f"PREDICT MODEL m ID (f.id, g.k) FROM ({PLAIN})").arrow()
            again = fed.sql(f"EVALUATE MODEL m FROM ({PLAIN})").fetchall()[0][1]
            assert again == pytest.approx(told)
        names = register(one)["sqlfl_predict_m"]
        assert set(names) == {"x", "s", "n", "c", "d"}
        called = f"sqlfl_predict_m({', '.join(names)})"
        ours = dict(one.execute(f"SELECT id, {called} FROM f").fetchall())
        names = register(two)["sqlfl_predict_m"]
        assert set(names) == {"z", "h"}
        called = ", ".join(f"{name} := {name}" for name in names)
        g = "(SELECT k, z, h FROM g UNION ALL SELECT NULL, NULL, NULL) AS g"
        theirs = two.execute(f"SELECT k, sqlfl_predict_m({called}) FROM {g}").fetchall()
        intercept = model.intercept[0]
        possible = {
            (id_, k): [ours[id_] + own + intercept for at, own in theirs if at == k]
            for id_, k in zip(*(predicted.column(n).to_pylist() for n in ("id", "k")), strict=True)
        }
        for row in predicted.to_pylist():
            distances = np.abs(np.array(possible[row["id"], row["k"]]) - row["prediction"])
            assert distances.min() < 1e-4


def test_rows_count_what_they_weigh(case: Case) -> None:
    """Values of rows of weight 0 are no part of a minimum."""
    selected = QUERY.replace("f.id, ", "")
    transform = "minmax(x), impute(z, 'mean'), log1p(n) AS ln"
    case.fed.sql(
        f"TRAIN OR REPLACE MODEL w USING linear_regression TARGET y WEIGHT w "
        f"TRANSFORM ({transform}) WITH (l2 = {L2}) FROM ({selected})"
    )
    found = case.fed.sql(f"PREDICT MODEL w ID (f.id) FROM ({selected})").arrow()
    joined, weights = case.joined, case.joined.column("w").to_numpy()
    x, z = numbers(joined, "x"), numbers(joined, "z")
    counted = weights > 0
    present = ~np.isnan(z[:, 0])
    z[~present] = np.average(z[present, 0], weights=weights[present])
    parts: list[Part] = [
        ("scaled", MinMaxScaler().fit(x[counted]).transform(x)),
        ("numbers", z),
        ("numbers", np.log1p(numbers(joined, "n"))),
        *(plain(joined, name) for name in ("s", "c", "d", "h")),
    ]
    expected = fitted(parts, joined.column("y").to_numpy(), weights)
    ours = np.lexsort((expected, joined.column("id").to_numpy()))
    theirs = np.lexsort((found.column("prediction").to_numpy(), found.column("id").to_numpy()))
    given = found.column("prediction").to_numpy()[theirs]
    np.testing.assert_allclose(given, expected[ours], atol=1e-4)


@pytest.mark.parametrize(
    ("transform", "options"),
    [
        ("log1p(x), cross(c, d), polynomial((s, n), 2) AS sn, impute(z, 0), hash_bucket(h, 3)", ""),
        ("minmax(x), spline(s), impute(n, 'mean'), log1p(x) AS lx", ", engine = 'sql'"),
        ("minmax(x), spline(s), impute(n, 'mean'), log1p(x) AS lx", ", engine = 'arrays'"),
        ("minmax(s), impute(x, 'mean')", ", algorithm = 'admm', epochs = 30"),
        ("bucketize(s, [4, 6]), cross(c, d), polynomial(x, 2)", ", union = 'secure'"),
    ],
)
def test_clients_of_one_party_make_what_one_would(transform: str, options: str) -> None:
    """The third has no row of the join: what it would say is of nothing."""
    query, found = QUERY.replace("LEFT JOIN", "JOIN"), []
    for several in (False, True):
        with in_memory() as one, in_memory() as two, in_memory() as three, in_memory() as four:
            for con in (one, two, three, four):
                filled(con, 4)
            one.execute("DELETE FROM f WHERE k = 0")
            if several:
                one.execute("DELETE FROM f WHERE id % 3 = 0")
                three.execute("DELETE FROM f WHERE id % 3 <> 0 OR k = 0")
                four.execute("DELETE FROM f WHERE k <> 11")
            with sqlfl.connect(progress=False) as fed:
                fed.attach("one", [one, three, four] if several else one)
                fed.attach("two", two)
                own = options if several or "secure" not in options else ""
                found.append(predictions(fed, transform, own, query=query))
    (ids, alone), (others, shared) = found
    ours, theirs = np.lexsort((alone, ids)), np.lexsort((shared, others))
    np.testing.assert_allclose(shared[theirs], alone[ours], atol=1e-4)


def test_what_several_databases_cannot_find_together_is_refused() -> None:
    with in_memory() as one, in_memory() as two, in_memory() as three:
        for con in (one, two, three):
            filled(con, 4, 30)
        minmax = f"TRANSFORM (minmax(x)) FROM ({PLAIN})"
        for combine, rest, said in (
            (False, f"TRANSFORM (robust_scale(x)) FROM ({PLAIN})", "does not follow from"),
            (False, f"TRANSFORM (one_hot(c, max => 3)) FROM ({PLAIN})", "does not follow from"),
            (False, f"TRANSFORM (minmax(x)) WITH (union = 'secure') FROM ({PLAIN})", "sums"),
            (True, minmax, "which their party combines"),
        ):
            with sqlfl.connect(progress=False) as fed:
                fed.attach("one", [one, three], combine=combine)
                fed.attach("two", two)
                told = str(refused(fed, rest))
                assert "2 databases" in told
                assert said in told
                assert "bucketize(x, [b1, b2, ...])" in told
        with sqlfl.connect(progress=False) as fed:
            fed.attach("one", [one, three])
            fed.attach("two", two)
            query = PLAIN.replace("f.x", "NULL::DOUBLE AS x")
            fault = refused(fed, f"TRANSFORM (minmax(x)) FROM ({query})", Error)
            assert "column x has no values to fit TRANSFORM to" in str(fault)
            assert not one.execute("SELECT * FROM duckdb_tables() WHERE temporary").fetchall()
            plan = fed.explain(f"TRAIN MODEL r USING linear_regression TARGET y {minmax}")
            assert "the smallest and the largest value of each column of minmax" in " ".join(
                str(plan).split()
            )
            plan = str(plan.details)
            assert "least and greatest values leave, for TRANSFORM" in plan


def refused(
    fed: sqlfl.Federation, rest: str, kind: type[Exception] = PlanError, target: str = "y"
) -> Exception:
    with pytest.raises(kind) as caught:
        fed.sql(f"TRAIN OR REPLACE MODEL r USING linear_regression TARGET {target} {rest}")
    return caught.value


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("nothing(x)", "no function nothing"),
        ("log1p(c)", "log1p takes a number, and c is VARCHAR"),
        ("log1p(x, 2)", "log1p takes a column, and no more"),
        ("log1p(x, s)", "log1p takes one column, got 2"),
        ("log1p(f.x)", "without its table"),
        ("log1p(log1p(x))", "do not stand in one another"),
        ("log1p(q)", "the query has no column q"),
        ("none", "leave TRANSFORM out"),
        ("log1p(y)", "y is the target"),
        ("log1p(x), x", "two columns are named x"),
        ("log1p(x) AS c", "two columns are named c"),
        ("log1p(x) AS sqlfl_x", "names that start with sqlfl_ are reserved"),
        ("bucketize(x)", "bucketize needs bounds"),
        ("bucketize(x, [2, 2])", "each larger than the one before"),
        ("bucketize(x, ['a'])", "each larger than the one before"),
        ("quantile_bucketize(x, 1)", "a whole number from 2 to 1,000, got 1"),
        ("quantile_bucketize(x, true)", "a whole number from 2 to 1,000, got TRUE"),
        ("one_hot(c, mx => 3)", "did you mean max?"),
        ("one_hot(c, 3, max => 3)", "one_hot has max twice"),
        ("impute(x, 'medain')", "got 'medain'"),
        ("impute(c, 'median')", "c is VARCHAR"),
        ("polynomial(x, 11)", "from 1 to 10, got 11"),
        ("polynomial((x, s, n), 2), cross(c, h)", "c is of one, h is of two"),
        ("polynomial((x, z), 2)", "values of rows do not leave their party"),
        ("cross(c)", "cross takes 2 columns or more"),
        ("cross(c, C)", "cross has a column twice"),
        ("spline(x, knots => 1)", "from 2 to 1,000, got 1"),
    ],
)
def test_what_cannot_be_made_is_refused(case: Case, item: str, said: str) -> None:
    fault = refused(case.fed, f"TRANSFORM ({item}) FROM ({PLAIN})", Error)
    assert said in str(fault)
    assert "at line 1" in str(fault)


def test_what_a_model_needs_is_asked_for(case: Case) -> None:
    train = "TRAIN OR REPLACE MODEL n USING linear_regression TARGET y TRANSFORM"
    case.fed.sql(f"{train} (log1p(x) AS lx, minmax(s)) FROM ({PLAIN})")
    with pytest.raises(PlanError, match=r"TRANSFORM log1p\(x\): the query has no column x"):
        case.fed.sql(f"PREDICT MODEL n FROM ({PLAIN.replace('f.x, ', '')})")
    with pytest.raises(PlanError, match="minmax takes a number, and s is VARCHAR"):
        case.fed.sql(f"PREDICT MODEL n FROM ({PLAIN.replace('f.s', 'f.d AS s')})")
    card = dict(case.fed.sql("DESCRIBE MODEL n").fetchall())
    assert card["transform"] == "log1p(x) AS lx, minmax(s)"
    plan = case.fed.explain(f"EVALUATE MODEL n FROM ({PLAIN})")
    assert "as its block of the model has it" in str(plan.details)


def test_infinite_numbers_are_refused_and_nan_is_null(case: Case) -> None:
    query = PLAIN.replace("f.x", "CASE WHEN f.n = 1 THEN -1 ELSE f.x END AS x")
    fault = refused(case.fed, f"TRANSFORM (log1p(x)) FROM ({query})", Error)
    assert "column x has infinite values after TRANSFORM" in str(fault)
    assert "log1p has no value of -1 and less" in str(fault)
    told = []
    for missing in ("NULL", "'nan'::DOUBLE"):
        query = PLAIN.replace("f.x", f"CASE WHEN f.n = 1 THEN {missing} ELSE f.x END AS x")
        transform = (
            "bucketize(x, [1]) AS b, minmax(x) AS m, impute(x, 2) AS i, polynomial(x, 2) AS p"
        )
        told.append(predictions(case.fed, transform, query=query)[1])
    np.testing.assert_allclose(np.sort(told[0]), np.sort(told[1]), atol=1e-4)


def test_buckets_of_truth_values_are_those_of_numbers(case: Case) -> None:
    found = []
    for column in ("f.n > 2", "(f.n > 2)::INTEGER"):
        query = PLAIN.replace("f.x", f"{column} AS x")
        found.append(predictions(case.fed, "bucketize(x, [0.5])", query=query)[1])
    np.testing.assert_allclose(np.sort(found[0]), np.sort(found[1]), atol=1e-6)


def test_a_warm_start_takes_over_what_was_fitted(case: Case) -> None:
    train = "TRAIN OR REPLACE MODEL {} USING linear_regression TARGET y TRANSFORM ({}) WITH ({})"
    transform = "minmax(x), spline(s), quantile_bucketize(n, 3)"
    case.fed.sql(f"{train.format('a', transform, 'l2 = 0.01')} FROM ({PLAIN})")
    warm = "l2 = 0.01, warm_start = 'a'"
    case.fed.sql(f"{train.format('b', transform, warm)} FROM ({PLAIN})")
    assert case.fed.model("b").metrics["objective"] == pytest.approx(
        case.fed.model("a").metrics["objective"], abs=1e-7
    )
    assert case.fed.model("b").cost.exchanges <= case.fed.model("a").cost.exchanges
    with pytest.raises(ModelError, match=r"was trained with TRANSFORM \(minmax\(x\), spline"):
        case.fed.sql(f"{train.format('b', 'log1p(x)', warm)} FROM ({PLAIN})")


def test_statements_that_differ_in_transform_have_plans_of_their_own(case: Case) -> None:
    for transform, kind in (("log1p(x)", "numeric"), ("bucketize(x, [1])", "category")):
        text = f"USING linear_regression TARGET y TRANSFORM ({transform}) FROM ({PLAIN})"
        case.fed.sql(f"TRAIN OR REPLACE MODEL p {text}")
        features = {name: kind for b in case.fed.model("p").blocks for name, kind, _ in b.features}
        assert features["x"] == kind
        assert transform in str(case.fed.explain(f"TRAIN MODEL p {text}").details)


def test_protected_features_are_not_fitted(case: Case) -> None:
    private = "PRIVACY (epsilon = 4, delta = 1e-6, predictions = 'gaussian', feature_bounds = {"
    query = "SELECT f.s, g.z, f.y FROM one.f f JOIN two.g g USING (k)"
    fault = refused(
        case.fed, f"TRANSFORM (minmax(s)) {private}'s': [0, 9], 'z': [-9, 9]}}) FROM ({query})"
    )
    assert "is fitted to the rows, which PRIVACY protects" in str(fault)
    text = f"TRANSFORM (log1p(z) AS lz) {private}'s': [0, 9], 'lz': [0, 2]}}) FROM ({query})"
    plan = case.fed.explain(f"TRAIN MODEL p USING linear_regression TARGET y {text}")
    assert "'lz'" in str(plan.details)


@pytest.mark.parametrize("engine", ["sql", "arrays"])
def test_equal_rows_are_fitted_as_often_as_they_come(case: Case, engine: str) -> None:
    """Before rows are merged and after it, the counts are the same."""
    query = "SELECT f.n, f.c, f.d, f.y FROM one.f f LEFT JOIN two.g g USING (k)"
    transform = "robust_scale(n), one_hot(c, max => 3), quantile_bucketize(n, 3) AS q, n AS nn"
    found = []
    for merged in ("true", "false"):
        with merging():
            options = f", merge_equal_rows = {merged}, engine = '{engine}'"
            found.append(predictions(case.fed, transform, options, query)[1])
    np.testing.assert_allclose(np.sort(found[0]), np.sort(found[1]), atol=1e-5)


def test_nothing_to_fit_to_is_an_error(case: Case) -> None:
    for item, column, said in (
        ("impute(e, 'median')", "NULL::DOUBLE", "column e has no values to fit impute to"),
        ("impute(e, 'most_frequent')", "NULL::VARCHAR", "column e has no values to fit impute to"),
        ("spline(e)", "3.0", "column e has one value, and a spline needs two"),
        ("minmax(e)", "'inf'::DOUBLE", "infinite values"),
    ):
        query = PLAIN.replace("f.x", f"{column} AS e")
        query = query.replace("FROM one.f f LEFT JOIN", "FROM one.f f JOIN")
        fault = refused(case.fed, f"TRANSFORM ({item}) FROM ({query})", Error)
        assert said in str(fault), item


def test_names_are_as_odd_as_in_the_query(case: Case) -> None:
    query = PLAIN.replace("f.x", 'f.x AS "two words"').replace("f.c", 'f.c AS "select"')
    transform = 'log1p("two words"), one_hot("SELECT", max => 3) AS "x y", impute(z, 1) AS "é"'
    predictions(case.fed, transform, query=query)
    assert {"two words", "x y", "é"} <= set(case.fed.model("m").features)


def test_weights_say_which_category_is_all_others(case: Case) -> None:
    predictions(case.fed, "one_hot(c, max => 3)")
    found = case.fed.model("m").weights
    rows = dict(zip(found["category"].to_pylist(), found["kind"].to_pylist(), strict=True))
    assert rows["is other"] == "other"
    assert {"a", "b"} <= {text for text, kind in rows.items() if kind == "category"}


STEPS = [
    FittedStep("minmax", "category"), FittedStep("one_hot", "numeric", 3),
    FittedStep("nothing", "numeric"),
    FittedStep("spline", "numeric", 10**9, 3), FittedStep("spline", "numeric", 5, 1000),
    FittedStep("one_hot", "category", 0),
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_party_takes_no_other_steps(step: FittedStep) -> None:
    kind, width = step.gives
    made = Made((("x", "DOUBLE"),), "x", step)
    feature = FeatureSpecification("x", kind, min(width, 100_000), made)
    item = SlotSpecification(
        0, (feature,), False, False, (), (), (0,), False, "organisation", "sql"
    )
    with pytest.raises(InternalError, match="fitted to a"):
        specifications_from_json(specifications_to_json((item,)))


def test_what_leaves_is_what_explain_says(case: Case) -> None:
    """With clients that share a table, too: columns that are made are counted as others are."""
    with in_memory() as one, in_memory() as two, in_memory() as three:
        for con in (one, two, three):
            filled(con, 5, 60)
        for parties, transform in (
            ({"one": [one], "two": [two]}, ALL),
            ({"one": [one, three], "two": [two]}, "log1p(x), cross(c, d), polynomial((s, n), 2)"),
            ({"one": [one, three], "two": [two]}, "minmax(x), impute(n, 'mean')"),
        ):
            with tapped(parties) as (fed, tap):
                statement = (
                    f"TRAIN MODEL m USING linear_regression TARGET y TRANSFORM ({transform}) "
                    f"WITH (algorithm = 'sgd', epochs = 2) FROM ({PLAIN.replace('LEFT ', '')})"
                )
                plan = fed.explain(statement)
                with tap.taken() as recorded:
                    fed.sql(statement)
                assert_disclosed(plan, recorded, parties, epochs=2)
