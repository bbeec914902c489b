"""Standard errors over random joins are those of statsmodels over the materialised rows."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import statsmodels.api as sm
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.special import expit

import sqlfl
from sqlfl.base.errors import ModelError, OptionError
from tests import oracle
from tests.conftest import Open
from tests.depth import SEED, examples
from tests.federations import federation, trainable
from tests.open_databases import in_memory
from tests.strategies import LINEAR, LOGISTIC, POISSON, Case, Databases, cases

Row = dict[str, Any]


@dataclass(frozen=True)
class Truth:
    """What statsmodels makes of the central rows."""

    kind: str
    x: np.ndarray
    y: np.ndarray
    units: np.ndarray | None = None
    robust: bool = False

    def fit(self, design: np.ndarray) -> Any:
        """Of columns that are independent."""
        options: dict[str, Any] = {"cov_type": "HC1"} if self.robust else {}
        if self.units is not None:
            options = {"cov_type": "cluster", "cov_kwds": {"groups": self.units}}
        own = {LINEAR: sm.OLS, LOGISTIC: sm.Logit, POISSON: sm.Poisson}[self.kind](self.y, design)
        if self.kind == LINEAR:
            return own.fit(use_t=True, **options)
        return own.fit(disp=0, method="newton", maxiter=100, tol=1e-14, **options)

    @functools.cached_property
    def result(self) -> Any:
        design = np.column_stack([np.ones(len(self.x)), self.x])
        return self.fit(design[:, independent(design)])


def truth(
    kind: str,
    x: np.ndarray,
    y: np.ndarray,
    units: np.ndarray | None = None,
    *,
    robust: bool = False,
) -> Truth:
    return Truth(kind, x, y, units, robust)


def independent(design: np.ndarray) -> np.ndarray:
    """The columns that R keeps: those that do not follow from columns before them."""
    kept: list[int] = []
    for place, column in enumerate(design.T):
        rest = column
        if kept:
            before = design[:, kept] / np.linalg.norm(design[:, kept], axis=0)
            rest = column - before @ np.linalg.lstsq(before, column)[0]
        if np.linalg.norm(rest) > 1e-7 * np.linalg.norm(column):
            kept.append(place)
    return np.array(kept)


Column = tuple[str, str, str | None]
"""Feature, kind, category."""


def columns_of(encoder: oracle.Encoder) -> list[tuple[Column, float, float]]:
    """Of the encoded columns, with centre and scale."""
    found: list[tuple[Column, float, float]] = []
    for feature in encoder.numeric:
        for k, (mean, scale) in enumerate(zip(feature.mean, feature.scale, strict=True), 1):
            found.append(((f"{feature.name}[{k}]", "number", None), mean, scale))
    indicated = [f for f in encoder.numeric if f.indicator]
    for feature in indicated:
        assert feature.indicator is not None
        found.append(((feature.name, "missing", "is missing"), *feature.indicator))
    for category in encoder.categories:
        for value, share in zip(category.values, category.frequency, strict=True):
            kind = ("null", "is NULL") if value is None else ("category", value)
            found.append(((category.name, *kind), share, 1.0))
    return found


def compare(rows: Sequence[Row], encoder: oracle.Encoder, true: Truth, rtol: float = 1e-4) -> int:
    """Compare with the design that R would make of the columns as they are shown.

    Returns how many columns are left out. The standard error is NULL where only rows of leverage 1,
    or clusters like them, decide the coefficient: residuals there are 0 whatever the targets are,
    and statsmodels' variance is rounding, of either sign.
    """
    shown = [row for row in rows if row["kind"] not in ("measure", "intercept")]
    assert len(shown) == len(columns_of(encoder))
    assert rows[0]["kind"] == "intercept"
    order, design = as_shown(shown, encoder, true.x)
    kept = independent(design)
    result = true.fit(design[:, kept])
    variances = np.diag(np.asarray(result.cov_params()))
    usual = np.sqrt(result.scale * np.diag(np.asarray(result.normalized_cov_params)))
    places = {column: place for place, column in enumerate(kept.tolist())}
    for number, row in enumerate([rows[0], *order]):
        place = places.get(number)
        if place is None:
            assert row["coefficient"] is None, row
            assert row["standard_error"] is None
            continue
        near = rtol * usual[place] + 1e-9
        assert row["coefficient"] == pytest.approx(result.params[place], rel=rtol, abs=near), row
        if variances[place] <= 1e-10 * usual[place] ** 2:
            assert {row[name] for name in ("standard_error", "statistic", "p", "lower")} == {None}
            continue
        # robust errors are as exact as the residuals that they are made of
        within = 1e-6 * usual[place] + 1e-9
        error = np.sqrt(variances[place])
        assert row["standard_error"] == pytest.approx(error, rel=rtol, abs=within), row
    for row in shown:
        if row["kind"] == "base":
            assert row["coefficient"] == 0.0
            assert row["standard_error"] is None
    return design.shape[1] - len(kept)


def as_shown(
    shown: Sequence[Row],
    encoder: oracle.Encoder,
    x: np.ndarray,
    alone: Mapping[str, np.ndarray] | None = None,
) -> tuple[list[Row], np.ndarray]:
    """The rows that have a column, and the design: the constant 1, then table after table.

    Of a table with a row 'no partner' that indicator comes first, and what is NULL is so beyond it.
    `alone`: by table, which rows have no partner, where that is known.
    """
    columns = columns_of(encoder)
    places = {column: k for k, (column, _, _) in enumerate(columns)}
    plain = np.column_stack([np.ones(len(x)), *(
        x[:, k] * scale + centre for k, (_, centre, scale) in enumerate(columns)
    )])[:, 1:]  # fmt: skip
    at = [None if row["kind"] == "no partner" else _place(places, row) for row in shown]
    tables = {row["feature"].partition("[")[0]: row["table"] for row in shown}
    hidden = set(places.values()) - set(at)
    order: list[Row] = []
    design = [np.ones(len(x))]
    for table in dict.fromkeys(row["table"] for row in shown):
        own = [(row, k) for row, k in zip(shown, at, strict=True) if row["table"] == table]
        absent = np.zeros(len(x))
        for row, k in own:
            if k is None:
                # what all that may be NULL has in common
                beside = [h for h in hidden if tables[columns[h][0][0].partition("[")[0]] == table]
                beside += [n for other, n in own if n is not None
                           and columns[n][0][1] in ("missing", "null")]  # fmt: skip
                absent = plain[:, beside].min(axis=1) if alone is None else alone[table]
                order.append(row)
                design.append(absent)
        for row, k in own:
            if k is not None and row["kind"] != "base":
                order.append(row)
                null = columns[k][0][1] in ("missing", "null")
                design.append(plain[:, k] - absent if null else plain[:, k])
    return order, np.column_stack(design)


def _place(places: dict[Column, int], row: Row) -> int:
    """Elements of arrays have a number, as all numbers of the oracle have; a base has two kinds."""
    kinds = (row["kind"],) if row["kind"] != "base" else ("null", "category")
    keys = [(name, kind, row["category"]) for kind in kinds
            for name in (row["feature"], f"{row['feature']}[1]")]  # fmt: skip
    return next(places[key] for key in keys if key in places)


def infer(fed: sqlfl.Federation, query: str, **options: object) -> list[Row]:
    written = ", ".join(
        f"{name} = '{value}'" if isinstance(value, str) else f"{name} = {str(value).lower()}"
        for name, value in options.items()
    )
    clause = f"WITH ({written})" if written else ""
    return fed.sql(f"INFERENCE OF MODEL m {clause} FROM ({query})").arrow().to_pylist()


def measures(rows: Sequence[Row]) -> dict[str, float]:
    return {row["feature"]: row["coefficient"] for row in rows if row["kind"] == "measure"}


# -- random joins ----------------------------------------------------------------------------------


@given(
    st.booleans().flatmap(lambda outer: cases(kinds=(LINEAR,), outer=outer)),
    st.integers(1, 3),
    st.sampled_from(("sql", "arrays")),
    st.sampled_from(("", "robust")),
    st.booleans(),
)
@examples(2)
def test_linear_models_over_random_joins(
    case: Case, clients: int, engine: str, how: str, combine: bool
) -> None:
    with case.open(clients) as databases, federation(databases, combine=combine) as fed:
        data = trainable(case, databases, l2=0.0)
        design = np.column_stack([np.ones(len(data.y)), data.x])
        assume(len(data.y) > np.linalg.matrix_rank(design))
        true = truth(LINEAR, data.x, data.y, robust=how == "robust")
        assume(true.result.ssr > 1e-6 * max(1.0, float(np.square(data.y).sum())))
        assume(len(set(data.y.tolist())) > 1)
        fed.sql(case.train(l2=0, epochs=500, tolerance=0, engine=engine))
        rows = infer(fed, case.query, engine=engine, robust=how == "robust")
        compare(rows, data.encoder, true)


@given(cases(kinds=(LINEAR, LOGISTIC, POISSON)), st.integers(1, 2))
@examples(2)
def test_shrunk_estimates_have_the_covariance_of_the_penalised_ones(
    case: Case, clients: int
) -> None:
    l2 = 0.05
    with case.open(clients) as databases, federation(databases) as fed:
        data = trainable(case, databases, l2=l2)
        fitted, n = data.optimum(), len(data.y)
        assume(len(set(data.y.tolist())) > 1)
        h = data.scores(fitted)[:, 0]
        design = np.column_stack([np.ones(n), data.x])
        curvature = {LINEAR: np.ones(n), LOGISTIC: expit(h) * expit(-h), POISSON: np.exp(h)}
        information = (design * curvature[case.kind][:, None]).T @ design
        penalty = n * l2 * np.diag(np.append(0.0, np.ones(data.x.shape[1])))
        rank = int(np.sum(np.linalg.eigvalsh(information) > 1e-9 * np.linalg.norm(information, 2)))
        assume(n > rank)
        scale = float(np.square(h - data.y).sum()) / (n - rank) if case.kind == LINEAR else 1.0
        assume(scale > 1e-6)
        bread = np.linalg.inv(information + penalty)
        covariance = scale * bread @ information @ bread
        fed.sql(case.train(l2=l2, epochs=500, tolerance=1e-13))
        result = fed.sql(f"INFERENCE OF MODEL m FROM ({case.query})")
        rows = result.arrow().to_pylist()
        columns = columns_of(data.encoder)
        places = {column: 1 + k for k, (column, _, _) in enumerate(columns)}
        values, vectors = np.linalg.eigh(information)
        none = vectors[:, values <= 1e-9 * values[-1]]
        separated = any(note.startswith("Separation") for note in result.notes)
        for row in rows:
            if row["kind"] in ("number", "missing"):
                place = _place(places, row)
                value = fitted.weights[place - 1, 0] / columns[place - 1][2]
                assert row["coefficient"] == pytest.approx(value, rel=1e-3, abs=1e-4)
                if np.abs(none[place]).max(initial=0.0) > 1e-3:
                    assert row["standard_error"] is None
                    continue
                if separated:
                    continue  # errors are those of the rows that are not separated
                error = np.sqrt(covariance[place, place]) / columns[place - 1][2]
                assert row["standard_error"] == pytest.approx(error, rel=1e-3, abs=1e-6)
        assert any("shrunk" in note for note in result.notes)
        assert rows[-1]["feature"] == "likelihood_ratio"
        assert rows[-1]["p"] is None


# -- generalised linear models, with weights and clusters ------------------------------------------


QUERY = """SELECT v.x, v.kind, v.flag, v.amount, p.age, p.town, w.rain, v.y{weight}
  FROM shop.visits v JOIN shop.people p USING (person) LEFT JOIN sky.weather w USING (day)"""


def made(kind: str, seed: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng([SEED, seed])
    n, people, days = 420, 45, 25
    age, rain = rng.normal(40, 12, people), rng.gamma(2.0, 3.0, days)
    town = rng.choice(["north", "south", None], people, p=[0.5, 0.3, 0.2])
    person, day = rng.integers(0, people, n), rng.integers(0, days + 6, n)
    x, kinds = rng.normal(3.0, 2.0, n), rng.choice(["a", "b", "c"], n, p=[0.2, 0.5, 0.3])
    flag = rng.random(n) < 0.4
    own = rng.normal(0, 0.5, people)[person]
    wet = np.where(day < days, rain[np.minimum(day, days - 1)], rain.mean())
    h = 0.3 * (x - 3) + 0.5 * flag - 0.03 * (age[person] - 40) + 0.05 * (wet - 6) + own
    h += np.where(kinds == "a", 0.7, 0.0) + np.where(town[person] == "north", 0.4, 0.0)
    y: np.ndarray
    if kind == LINEAR:
        y = h + rng.normal(0, 0.3 + 0.5 * flag, n)
    elif kind == LOGISTIC:
        y = rng.random(n) < expit(h)
    else:
        y = rng.poisson(np.exp(0.3 + 0.5 * h))
    visits = {
        "person": person, "day": day, "x": [None if k % 17 == 0 else v for k, v in enumerate(x)],
        "kind": kinds, "flag": flag, "amount": (10 * rng.random(n)).astype(np.float32),
        "w": rng.integers(0, 4, n), "y": y,
    }  # fmt: skip
    return {
        "visits": pa.table(visits),
        "people": pa.table({"person": np.arange(people), "age": age, "town": pa.array(town)}),
        "weather": pa.table({"day": np.arange(days), "rain": rain}),
    }


@contextlib.contextmanager
def shop(
    tables: dict[str, pa.Table], clients: int, *, combine: bool = False
) -> Iterator[tuple[sqlfl.Federation, duckdb.DuckDBPyConnection]]:
    """The federation, whose people are of a client with all visits of theirs; and all in one."""
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(in_memory(threads=1))
        for party in ("shop", "sky"):
            whole.execute(f"ATTACH ':memory:' AS {party}")
        for name, table in tables.items():
            party = "sky" if name == "weather" else "shop"
            whole.register("made", table)
            whole.execute(f"CREATE TABLE {party}.{name} AS FROM made")
            whole.unregister("made")
        shops = [stack.enter_context(in_memory(threads=1)) for _ in range(clients)]
        for number, con in enumerate(shops):
            for name in ("visits", "people"):
                table = tables[name]
                mine = table.column("person").to_numpy() % clients == number
                con.register("made", table.filter(pa.array(mine)))
                con.execute(f"CREATE TABLE {name} AS FROM made")
                con.unregister("made")
        sky = stack.enter_context(in_memory(threads=1))
        sky.register("made", tables["weather"])
        sky.execute("CREATE TABLE weather AS FROM made")
        sky.unregister("made")
        fed = stack.enter_context(
            federation(Databases({"shop": shops, "sky": [sky]}, whole), combine=combine)
        )
        yield fed, whole


CONFIDENT = {"": {}, "robust": {"robust": True}, "cluster": {"cluster": "p"}}


@pytest.mark.parametrize("kind", [LINEAR, LOGISTIC, POISSON])
def test_models_of_all_families(kind: str) -> None:
    tables = made(kind, 1)
    clients = 1 + (SEED + len(kind)) % 3
    combine = bool((SEED // 3) % 2)
    query = QUERY.format(weight="")
    with shop(tables, clients, combine=combine) as (fed, whole):
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0, epochs = 500, tolerance = 0) "
                f"FROM ({query})")  # fmt: skip
        looks = {how: infer(fed, query, **options) for how, options in CONFIDENT.items()}
        data = oracle.central(whole, query.replace("v.y", "v.y, p.person AS unit", 1),
                              kind, "y", ("unit",), 0.0)  # fmt: skip
    for how, rows in looks.items():
        units = data.rows.column("unit").to_numpy() if how == "cluster" else None
        true = truth(kind, data.x, data.y, units=units, robust=how == "robust")
        assert compare(rows, data.encoder, true) == 0
        found, own = measures(rows), true.result
        assert found["rows"] == own.nobs
        assert found["parameters"] == len(own.params)
        assert found["log_likelihood"] == pytest.approx(own.llf, rel=1e-6)
        assert found["aic"] == pytest.approx(own.aic, rel=1e-6)
        assert found["bic"] == pytest.approx(own.bic, rel=1e-6)
        null = own.llnull if kind != LINEAR else sm.OLS(data.y, np.ones(len(data.y))).fit().llf
        assert found["null_log_likelihood"] == pytest.approx(null, rel=1e-6)
        if kind == LINEAR:
            assert found["residual_deviation"] == pytest.approx(np.sqrt(own.scale), rel=1e-6)
        else:
            ratio = next(row for row in rows if row["feature"] == "likelihood_ratio")
            assert ratio["p"] == pytest.approx(own.llr_pvalue, rel=1e-4)
        if how == "cluster":
            assert found["clusters"] == len(set(units))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [LINEAR, LOGISTIC, POISSON])
def test_tests_and_intervals_are_those_of_statsmodels(kind: str) -> None:
    """Of a design of plain columns, in which nothing has to be worked out."""
    tables = made(kind, 2)
    query = (
        "SELECT v.flag, v.amount, p.age, v.y FROM shop.visits v JOIN shop.people p USING (person)"
    )
    with shop(tables, 2) as (fed, whole):
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0, epochs = 500, tolerance = 0) "
                f"FROM ({query})")  # fmt: skip
        looks = {
            how: infer(fed, query, confidence=0.9, **options) for how, options in CONFIDENT.items()
        }
        frame = whole.execute(query.replace("v.y", "v.y, p.person")).df().astype(float)
    model = {LINEAR: sm.OLS, LOGISTIC: sm.Logit, POISSON: sm.Poisson}[kind]
    own = model(frame["y"], sm.add_constant(frame[["flag", "amount", "age"]]))
    names = {"const": "intercept"}
    for how, rows in looks.items():
        options: dict[str, Any] = {"cov_type": "HC1"} if how == "robust" else {}
        if how == "cluster":
            options = {"cov_type": "cluster", "cov_kwds": {"groups": frame["person"]}}
        options |= {"use_t": True} if kind == LINEAR else {"disp": 0, "tol": 1e-12}
        result = own.fit(**options)
        by_name = {row["feature"]: row for row in rows}
        intervals = result.conf_int(0.1)
        for name in result.params.index:
            row = by_name[names.get(name, name)]
            error = result.bse[name]
            assert row["coefficient"] == pytest.approx(result.params[name], abs=1e-4 * error)
            assert row["standard_error"] == pytest.approx(error, rel=1e-4)
            assert row["statistic"] == pytest.approx(result.tvalues[name], rel=1e-4, abs=1e-4)
            assert row["p"] == pytest.approx(result.pvalues[name], rel=2e-3, abs=1e-12)
            assert row["lower"] == pytest.approx(intervals.loc[name, 0], abs=2e-4 * error)
            assert row["upper"] == pytest.approx(intervals.loc[name, 1], abs=2e-4 * error)


@pytest.mark.parametrize("kind", [LINEAR, LOGISTIC, POISSON])
def test_weights_count_rows(kind: str) -> None:
    tables = made(kind, 3)
    query = QUERY.format(weight=", v.w")
    robust = bool(SEED % 2)
    with shop(tables, 2) as (fed, whole):
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WEIGHT w WITH (l2 = 0, epochs = 500, "
                f"tolerance = 0) FROM ({query})")  # fmt: skip
        rows = infer(fed, query, robust=robust)
        weighed = oracle.central(whole, query, kind, "y", ("w",), 0.0)
        weights = weighed.rows.column("w").to_numpy()
        copies = oracle.central(
            whole, f"SELECT * FROM ({query}), range(w) AS r(copy)", kind, "y", ("w", "copy"), 0.0
        )
    assert weights.sum() == len(copies.y)
    compare(rows, copies.encoder, truth(kind, copies.x, copies.y, robust=robust))
    assert measures(rows)["rows"] == len(copies.y)


def test_rows_without_a_partner_depend_on_no_other() -> None:
    tables = made(LINEAR, 4)
    query = QUERY.format(weight="")
    with shop(tables, 1) as (fed, whole):
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y WITH (l2 = 0, epochs = 500, "
                f"tolerance = 0) FROM ({query})")  # fmt: skip
        rows = infer(fed, query, cluster="W")
        data = oracle.central(whole, query.replace("v.y", "v.y, w.day AS unit", 1), LINEAR, "y",
                              ("unit",), 0.0)  # fmt: skip
    day = data.rows.column("unit").fill_null(-1).to_numpy()
    units = np.where(day < 0, 1000 + np.arange(len(day)), day)
    compare(rows, data.encoder, truth(LINEAR, data.x, data.y, units=units))


def test_a_table_without_columns_may_be_the_cluster() -> None:
    tables = made(LOGISTIC, 5)
    query = "SELECT v.x, v.kind, v.y FROM shop.visits v JOIN shop.people p USING (person)"
    with shop(tables, 2) as (fed, whole):
        fed.sql("TRAIN MODEL m USING logistic_regression TARGET y WITH (l2 = 0, epochs = 500, "
                f"tolerance = 0) FROM ({query})")  # fmt: skip
        rows = infer(fed, query, cluster="p")
        data = oracle.central(whole, query.replace("v.y", "v.y, p.person AS unit", 1), LOGISTIC,
                              "y", ("unit",), 0.0)  # fmt: skip
    units = data.rows.column("unit").to_numpy()
    compare(rows, data.encoder, truth(LOGISTIC, data.x, data.y, units=units))


EXACT = {
    "each row is one of its own": ("robust", (0.0,), ["flag", "open", "colour"]),
    "the rows of each cluster are": ("cluster", (0.5, -0.25, -0.25), ["flag", "open", "colour"]),
    "several rows share each": ("robust", (0.5, -0.25, -0.25), []),
}
"""Robust or by clusters; targets beside those of the table; features without an error."""


@pytest.mark.parametrize("name", EXACT)
def test_what_no_residual_tells_has_no_robust_error(name: str, database: Open) -> None:
    """Four of six shops are fitted exactly, whatever their sales are. Errors of the coefficients
    that they decide were rounding, and p was 0."""
    how, beside, without = EXACT[name]
    shops = """CREATE TABLE {}shops AS FROM (VALUES (1, false, true), (2, false, false),
        (3, true, true), (4, true, true), (5, false, true), (6, false, true)) v(id, flag, open)"""
    sales = f"""CREATE TABLE {{}}sales AS SELECT id, colour, y + more AS y FROM (VALUES
        (1, 'green', 7.064), (2, 'blue', 0.998), (3, 'blue', 2.294), (4, NULL, 1.443),
        (5, 'blue', 5.143), (6, 'green', 4.699)) v(id, colour, y),
        (SELECT unnest({list(beside)}) AS more)"""
    query = """SELECT s.flag, s.open, x.colour, x.y::DOUBLE AS y
        FROM land.shops s JOIN till.sales x USING (id)"""
    whole = database("ATTACH ':memory:' AS land", "ATTACH ':memory:' AS till")
    whole.execute(shops.format("land."))
    whole.execute(sales.format("till."))
    parties = {"land": [database(shops.format(""))], "till": [database(sales.format(""))]}
    with federation(parties) as fed:
        fed.sql(f"TRAIN MODEL m USING linear_regression TARGET y WITH (l2 = 0) FROM ({query})")
        written = "robust = true" if how == "robust" else "cluster = 's'"
        result = fed.sql(f"INFERENCE OF MODEL m WITH ({written}) FROM ({query})")
    identified = query.replace("x.y:", "s.id AS unit, x.y:")
    data = oracle.central(whole, identified, LINEAR, "y", ("unit",), 0.0)
    units = data.rows.column("unit").to_numpy() if how == "cluster" else None
    rows = result.arrow().to_pylist()
    compare(rows, data.encoder, truth(LINEAR, data.x, data.y, units=units, robust=how == "robust"))
    assert [
        row["feature"]
        for row in rows
        if row["kind"] not in ("base", "measure", "intercept") and row["standard_error"] is None
    ] == without
    noted = [note for note in result.notes if "no standard error" in note]
    assert len(noted) == bool(without)
    assert all(f"Without {how} they have one" in note for note in noted)


# -- what is said, and what is refused -------------------------------------------------------------


def test_columns_that_follow_from_others_are_not_told() -> None:
    tables = made(LINEAR, 6)
    query = """SELECT v.x, 2 * v.amount AS twice, v.amount, p.age, p.age + 1 AS older, v.y
      FROM shop.visits v JOIN shop.people p USING (person)"""
    with shop(tables, 1) as (fed, whole):
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y WITH (l2 = 0, epochs = 500, "
                f"tolerance = 0) FROM ({query})")  # fmt: skip
        result = fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
        data = oracle.central(whole, query, LINEAR, "y", (), 0.0)
    rows = result.arrow().to_pylist()
    assert compare(rows, data.encoder, truth(LINEAR, data.x, data.y)) == 2
    (note,) = [note for note in result.notes if "Left out" in note]
    assert "Left out are amount and older" in note or "Left out are amount, older" in note


def test_rows_that_the_model_was_not_trained_on_are_noted() -> None:
    tables = made(POISSON, 7)
    query = QUERY.format(weight="")
    with shop(tables, 1) as (fed, _):
        fed.sql("TRAIN MODEL m USING poisson_regression TARGET y WITH (l2 = 0, epochs = 500, "
                f"tolerance = 0) FROM ({query})")  # fmt: skip
        assert not [n for n in fed.sql(f"INFERENCE OF MODEL m FROM ({query})").notes if "away" in n]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            other = fed.sql(f"INFERENCE OF MODEL m FROM ({query} WHERE v.y > 1)")
    assert any("standard errors away" in note for note in other.notes)
    assert any("standard errors away" in str(warning.message) for warning in said)


@pytest.mark.parametrize("kind", [LINEAR, LOGISTIC])
def test_models_that_are_right_everywhere(kind: str) -> None:
    """There is nothing to tell errors from, and nothing fails."""
    tables = made(kind, 9)
    made_up = "2 * v.amount" if kind == LINEAR else "v.amount > 5"
    query = f"""SELECT v.amount, p.age, {made_up} AS y
      FROM shop.visits v JOIN shop.people p USING (person)"""
    with shop(tables, 1) as (fed, _):
        fed.sql(f"TRAIN MODEL m USING {kind} TARGET y WITH (l2 = 0) FROM ({query})")
        result = fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
        assert any("right in all rows" in note for note in result.notes)


def test_what_has_no_standard_errors_is_refused() -> None:
    tables = made(LINEAR, 8)
    query = "SELECT v.x, v.amount, p.age, v.y FROM shop.visits v JOIN shop.people p USING (person)"
    with shop(tables, 1) as (fed, _):
        fed.sql(f"TRAIN MODEL m USING mlp_regressor TARGET y WITH (epochs = 1) FROM ({query})")
        with pytest.raises(OptionError, match="IMPORTANCE OF MODEL"):
            infer(fed, query)
        fed.sql(f"TRAIN OR REPLACE MODEL m USING lasso TARGET y WITH (radius = 1) FROM ({query})")
        with pytest.raises(OptionError, match="standard errors are of"):
            infer(fed, query)
        fed.sql(f"TRAIN OR REPLACE MODEL m USING linear_regression TARGET y FROM ({query})")
        with pytest.raises(OptionError, match=r"no such table position(.|\n)*they are v, p"):
            infer(fed, query, cluster="q")
        with pytest.raises(OptionError, match=r"no option clutser of INFERENCE(.|\n)*cluster\?"):
            infer(fed, query, clutser="v")
        with pytest.raises(OptionError, match="is of TRAIN"):
            infer(fed, query, epochs=3)
        with pytest.raises(OptionError, match="above 0 and below 1"):
            infer(fed, query, confidence=0)
        with pytest.raises(ModelError, match="too few for standard errors"):
            infer(fed, f"{query} WHERE v.amount IN (SELECT amount FROM shop.visits LIMIT 3)")
        with pytest.raises(ModelError, match="the same in all"):
            infer(fed, query.replace("v.y", "1.0 AS y"))
        fed.sql("TRAIN OR REPLACE MODEL m USING linear_regression TARGET y PRIVACY (epsilon = 8, "
                "statistics = 'none', "
                f"delta = 1e-3, label_epsilon = 2, label_bounds = [-5, 5]) "
                f"FROM ({query})")  # fmt: skip
        with pytest.raises(ModelError, match="trained with PRIVACY of features"):
            infer(fed, query)
        fed.sql("TRAIN OR REPLACE MODEL m USING linear_regression TARGET y PRIVACY ("
                f"label_epsilon = 2, label_bounds = [-5, 5]) FROM ({query})")  # fmt: skip
        assert infer(fed, query)
