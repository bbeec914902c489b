"""INFERENCE over random designs. More than half are rank-deficient, separated or have LEFT JOINs.

Parameters, AIC, coefficients, errors and p are those of statsmodels over the design that R would
make: columns that follow from earlier ones are left out. Coefficients that move on and on as
statsmodels iterates have no finite estimate.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import statsmodels.api as sm
from scipy.special import expit

import sqlfl
from tests import oracle
from tests.coordinator.test_inference import as_shown, columns_of, independent, measures
from tests.depth import SEED, spread
from tests.federations import federation
from tests.open_databases import in_memory
from tests.strategies import LINEAR, LOGISTIC, POISSON

FLAVOURS = ("plain", "deficient", "plain", "separated", "plain", "outer", "both", "mixed")
ABSENT = {"w": "w.k IS NULL", "g": "g.r IS NULL"}


@dataclass(frozen=True)
class Drawn:
    """A query over three parties, and how its model is looked at."""

    tables: dict[str, pa.Table]
    query: str
    kind: str
    robust: bool
    cluster: bool


def drawn(number: int) -> Drawn:
    rng = np.random.default_rng([SEED, number])
    flavour = FLAVOURS[number % len(FLAVOURS)]
    kind = (LINEAR, LOGISTIC, POISSON)[number // len(FLAVOURS) % 3]
    separated = flavour in ("separated", "mixed")
    if separated and kind == LINEAR:
        kind = (LOGISTIC, POISSON)[int(rng.integers(2))]
    n, keys, regions = int(rng.integers(150, 260)), 24, 6
    k, r = rng.integers(0, keys, n), rng.integers(0, regions, keys)
    x, z = rng.normal(2.0, 1.5, n), rng.integers(0, 5, n).astype(float)
    c = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2]).astype(object)
    u, v = rng.normal(size=keys), rng.gamma(2.0, 2.0, keys)
    town = rng.choice(["north", "south", "west"], keys).astype(object)
    m = rng.normal(size=regions)
    h = 0.4 * (x - 2.0) + 0.3 * (c == "b") + 0.3 * u[k] - 0.2 * (town[k] == "west") + 0.2 * m[r[k]]
    if separated:
        few = rng.choice(n, 5, replace=False)
        c[few] = "rare"
    y = {
        LINEAR: lambda: h + rng.normal(0, 0.3 + 0.3 * (z > 2)),
        LOGISTIC: lambda: (rng.random(n) < expit(h)).astype(float),
        POISSON: lambda: rng.poisson(np.exp(0.3 + 0.5 * h)).astype(float),
    }[kind]()
    if separated:
        y[few] = 0.0 if kind == POISSON else float(rng.integers(2))
        if rng.random() < 0.4:  # beyond a threshold all are alike, but for one row at it
            y[x > np.quantile(x, 0.97)] = 0.0
    nulls = rng.random(n) < 0.1 * (rng.random() < 0.5)
    features = ["t.x", "t.z", "t.c", "w.u", "w.v", "w.town"]
    joins = "JOIN two.w w ON t.k = w.k"
    region = rng.random() < 0.4
    if region:
        features += ["g.m"]
        joins += " JOIN three.g g ON w.r = g.r"
    if flavour == "deficient":
        more = ["t.x + t.z AS s", "3 * t.x - 1 AS thrice", "(t.c = 'a')::INT AS is_a, "
                "(t.c = 'b')::INT AS is_b, (t.c = 'c')::INT AS is_c", "w.u - w.v AS net",
                "t.k AS tk, w.k AS wk", "t.z * 0 + 1 AS one"]  # fmt: skip
        features += rng.choice(more, int(rng.integers(1, 4)), replace=False).tolist()
        if region:
            features += rng.choice(["w.r AS wr, g.r AS gr", "g.m + 1 AS m1"], 1).tolist()
    if flavour in ("both", "mixed"):  # indicators that add up to the constant, in several tables
        full = {
            "t": [f"(t.c = '{c}')::INT AS is_{c}" for c in sorted(set(c))],
            "w": [f"(w.town = '{c}')::INT AS is_{c}" for c in sorted(set(town))],
            "g": ["0 * g.m + 2 AS two"] * region,
        }
        chosen = ["t", "w", "g"] if flavour == "both" else rng.choice(["t", "w", "g"], 2)
        features += [text for table in sorted(set(chosen)) for text in full[table]]
    present = np.ones(keys, bool)
    if flavour == "outer":
        joins = joins.replace("JOIN", "LEFT JOIN")
        present = rng.random(keys) < 0.8
        present[:2] = True, False
        for values in (u, v):
            values[(rng.random(keys) < 0.1) & (rng.random() < 0.4)] = np.nan
        town[(rng.random(keys) < 0.15) & (rng.random() < 0.4)] = None
    there = np.arange(regions) > (0 if flavour == "outer" and rng.random() < 0.5 else -1)
    number_of = lambda values: pa.array(values, from_pandas=True)  # noqa: E731
    tables = {
        "t": pa.table({"k": k, "x": number_of(np.where(nulls, np.nan, x)), "z": z, "c": c, "y": y}),
        "w": pa.table({"k": np.arange(keys), "r": r, "u": number_of(u), "v": number_of(v),
                       "town": pa.array(town)}).filter(pa.array(present)),
        "g": pa.table({"r": np.arange(regions), "m": m}).filter(pa.array(there)),
    }  # fmt: skip
    cluster = rng.random() < 0.25
    query = f"SELECT {', '.join(features)}, t.y FROM one.t t {joins}"
    return Drawn(tables, query, kind, not cluster and rng.random() < 0.4, cluster)


@contextlib.contextmanager
def opened(tables: dict[str, pa.Table]) -> Iterator[tuple[sqlfl.Federation, Any]]:
    """Each table at a party of its own; and all in one database."""
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(in_memory(threads=1))
        parties: dict[str, list[duckdb.DuckDBPyConnection]] = {}
        for party, (name, table) in zip(("one", "two", "three"), tables.items(), strict=True):
            whole.execute(f"ATTACH ':memory:' AS {party}")
            con = stack.enter_context(in_memory(threads=1))
            for own, place in ((whole, f"{party}."), (con, "")):
                own.register("made", table)
                own.execute(f"CREATE TABLE {place}{name} AS FROM made")
                own.unregister("made")
            parties[party] = [con]
        yield stack.enter_context(federation(parties)), whole


def fitted(kind: str, y: np.ndarray, x: np.ndarray, steps: int, options: dict[str, Any]) -> Any:
    if kind == LINEAR:
        return sm.OLS(y, x).fit(use_t=True, **options)
    family = sm.families.Binomial() if kind == LOGISTIC else sm.families.Poisson()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sm.GLM(y, x, family=family).fit(maxiter=steps, tol=0.0, **options)


@pytest.mark.parametrize("number", spread(range(200), 9))
def test_random_designs(number: int) -> None:
    case = drawn(number)
    given = {"robust": str(case.robust).lower()} | ({"cluster": "'w'"} if case.cluster else {})
    written = ", ".join(f"{name} = {value}" for name, value in given.items())
    absent = {table: text for table, text in ABSENT.items() if f" {table} ON" in case.query}
    with opened(case.tables) as (fed, whole), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fed.sql(f"TRAIN MODEL m USING {case.kind} TARGET y WITH (l2 = 0, epochs = 500, "
                f"tolerance = 1e-12) FROM ({case.query})")  # fmt: skip
        result = fed.sql(f"INFERENCE OF MODEL m WITH ({written}) FROM ({case.query})")
        beside = [f"{text} AS no_{table}" for table, text in absent.items()] + ["w.k AS unit"]
        data = oracle.central(
            whole, case.query.replace("t.y FROM", f"t.y, {', '.join(beside)} FROM"), case.kind,
            "y", (*(f"no_{table}" for table in absent), "unit"), 0.0,
        )  # fmt: skip
    rows = result.arrow().to_pylist()
    alone = {table: data.rows.column(f"no_{table}").to_numpy().astype(float) for table in absent}
    unit = data.rows.column("unit").fill_null(-1).to_numpy()
    units = np.where(unit < 0, 1000 + np.arange(len(unit)), unit)
    options: dict[str, Any] = {}
    if case.robust:
        options = {"cov_type": "HC1" if case.kind == LINEAR else "HC0"}
    if case.cluster:
        options = {"cov_type": "cluster", "cov_kwds": {"groups": units}}

    shown = [row for row in rows if row["kind"] not in ("measure", "intercept")]
    for table, own in alone.items():
        if own.any():
            columns = columns_of(data.encoder)
            names = {row["feature"].partition("[")[0] for row in shown if row["table"] == table}
            plain = [data.x[:, k] * scale + centre for k, ((name, kind, _), centre, scale)
                     in enumerate(columns) if kind in ("missing", "null")
                     and name.partition("[")[0] in names]  # fmt: skip
            says = [row for row in shown if (row["table"], row["kind"]) == (table, "no partner")]
            assert len(says) == any(np.allclose(own, column) for column in plain)
    order, design = as_shown(shown, data.encoder, data.x, alone)
    kept = independent(design)
    true = fitted(case.kind, data.y, design[:, kept], 24, options)
    found = measures(rows)
    assert found["parameters"] == len(kept)
    assert found["aic"] == pytest.approx(true.aic, rel=1e-6)
    endless = np.zeros(len(kept), bool)
    if case.kind != LINEAR:
        before = fitted(case.kind, data.y, design[:, kept], 14, options)
        endless = np.abs(true.params - before.params) > 0.1
    named = [note for note in result.notes if note.startswith("Separation")]
    assert len(named) == endless.any()
    left = [note for note in result.notes if note.startswith("Left out")]
    assert len(left) == (len(kept) < design.shape[1])
    places = {column: place for place, column in enumerate(kept.tolist())}
    for column, row in enumerate([rows[0], *order]):
        place = places.get(column)
        if place is None or endless[place]:
            assert {row[k] for k in ("coefficient", "standard_error", "statistic", "p")} == {None}
            if column:
                assert row["feature"] in (left if place is None else named)[0]
            continue
        error = true.bse[place]
        assert row["coefficient"] == pytest.approx(true.params[place], abs=1e-4 * error), row
        assert row["standard_error"] == pytest.approx(error, rel=1e-4), row
        assert row["p"] == pytest.approx(true.pvalues[place], rel=1e-2, abs=1e-6), row
