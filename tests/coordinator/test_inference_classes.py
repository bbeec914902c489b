"""INFERENCE of softmax regression is statsmodels' MNLogit over the materialised rows."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
import statsmodels.api as sm

import sqlfl
from sqlfl.base.errors import ModelError, OptionError
from tests import oracle
from tests.coordinator.test_inference import as_shown, independent, measures
from tests.depth import SEED, spread
from tests.federations import federation
from tests.open_databases import in_memory

SOFTMAX = "softmax_regression"
FLAVOURS = (
    "plain",
    "deficient",
    "one class",
    "robust",
    "two classes",
    "outer",
    "cluster",
    "weight",
)


def drawn(number: int) -> tuple[str, dict[str, pa.Table], str]:
    """A flavour, tables of two parties, and a query."""
    rng = np.random.default_rng([SEED, 36, number])
    flavour = FLAVOURS[number % len(FLAVOURS)]
    n, keys, classes = int(rng.integers(300, 400)), 24, int(rng.integers(3, 5))
    k, x = rng.integers(0, keys, n), rng.normal(2.0, 1.5, n)
    c = rng.choice(["a", "b", "c"], n, p=[0.5, 0.3, 0.2]).astype(object)
    u, v = rng.normal(size=keys), rng.gamma(2.0, 2.0, keys)
    town = rng.choice(["north", "south"], keys).astype(object)
    own = np.column_stack([x - 2.0, c == "b", u[k], town[k] == "south"])
    y = np.argmax(own @ rng.normal(0.0, 0.6, (4, classes)) + rng.gumbel(size=(n, classes)), axis=1)
    if flavour.endswith(("class", "classes")):
        few = rng.choice(n, 8, replace=False)
        c[few] = "rare"
        y[few] = 1 if flavour == "one class" else np.arange(8) % 2
    features = ["t.x", "t.c", "w.u", "w.v", "w.town"]
    if flavour == "deficient":
        more = ["t.k AS tk, w.k AS wk", "w.u - 2 * w.v AS net", "(t.c = 'a')::INT AS is_a, "
                "(t.c = 'b')::INT AS is_b"]  # fmt: skip
        features += rng.choice(more, 2, replace=False).tolist()
    present = np.ones(keys, bool)
    if flavour == "outer":
        present[: keys // 4] = False
    join = "LEFT JOIN" if flavour == "outer" else "JOIN"
    tables = {
        "t": pa.table({"k": k, "x": x, "c": c, "y": [f"c{code}" for code in y],
                       "often": rng.integers(0, 3, n)}),
        "w": pa.table({"k": np.arange(keys), "u": u, "v": v, "town": town,
                       "size": rng.integers(1, 3, keys)}).filter(pa.array(present)),
    }  # fmt: skip
    return (
        flavour,
        tables,
        f"SELECT {', '.join(features)}, t.y FROM one.t t {join} two.w w ON t.k = w.k",
    )


@contextlib.contextmanager
def opened(tables: dict[str, pa.Table], clients: int = 1) -> Iterator[tuple[sqlfl.Federation, Any]]:
    """Each table at a party of its own, rows of t at several clients; and all in one database."""
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(in_memory(threads=1))
        parties: dict[str, list[duckdb.DuckDBPyConnection]] = {}
        for party, (name, rows) in zip(("one", "two"), tables.items(), strict=True):
            whole.execute(f"ATTACH ':memory:' AS {party}")
            cuts = np.linspace(0, len(rows), clients + 1 if name == "t" else 2).astype(int).tolist()
            parts = [rows.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
            for part in parts:
                con = stack.enter_context(in_memory(threads=1))
                fill(con, name, part)
                parties.setdefault(party, []).append(con)
            fill(whole, f"{party}.{name}", rows)
        yield stack.enter_context(federation(parties)), whole


def fill(con: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    con.register("made", rows)
    con.execute(f"CREATE TABLE {name} AS FROM made")
    con.unregister("made")


def trained(fed: sqlfl.Federation, query: str, weight: str = "", l2: float = 0.0) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fed.sql(f"TRAIN MODEL m USING {SOFTMAX} TARGET y {weight} WITH (l2 = {l2}, epochs = 500, "
                f"tolerance = 1e-12) FROM ({query})")  # fmt: skip


def multinomial(y: np.ndarray, x: np.ndarray, steps: int, options: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sm.MNLogit(y, x).fit(method="newton", maxiter=steps, tol=0.0, disp=0,
                                    warn_convergence=False, **options)  # fmt: skip


@pytest.mark.parametrize("number", spread(range(88), 8))
def test_random_designs(number: int) -> None:
    flavour, tables, query = drawn(number)
    given = {"robust": "WITH (robust = true)", "cluster": "WITH (cluster = 'w')"}
    weight = "WEIGHT often" if flavour == "weight" else ""
    asked = query.replace("t.y FROM", "t.y, t.often * 1 AS often FROM") if weight else query
    with opened(tables, 1 + number % 2) as (fed, whole), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(fed, asked, weight)
        result = fed.sql(f"INFERENCE OF MODEL m {given.get(flavour, '')} FROM ({asked})")
        beside = "t.y, t.often, t.k AS unit, (w.k IS NULL)::INT AS alone FROM"
        data = oracle.central(
            whole, query.replace("t.y FROM", beside), SOFTMAX, "y", ("often", "unit", "alone"), 0.0
        )
    rows = result.arrow().to_pylist()
    design_of = {}
    alone = data.rows.column("alone").to_numpy().astype(float)
    classes = sorted({row["class"] for row in rows if row["class"] is not None})
    assert classes == [f"c{code}" for code in range(1, int(data.y.max()) + 1)]
    for label in classes:
        shown = [row for row in rows if row["class"] == label and row["kind"] != "intercept"]
        own = {"w": alone} if flavour == "outer" else {}
        order, design = as_shown(shown, data.encoder, data.x, own)
        first = next(row for row in rows if row["class"] == label)
        assert first["kind"] == "intercept"
        design_of[label] = [first, *order], design
    design = design_of["c1"][1]
    kept = independent(design)
    times = data.rows.column("often").to_numpy() if weight else np.ones(len(data.y), int)
    every = np.repeat(np.arange(len(data.y)), times)
    y, x = data.y.astype(int)[every], design[:, kept][every]
    options: dict[str, Any] = {}
    if flavour == "robust":
        options = {"cov_type": "HC0"}
    if flavour == "cluster":
        units = data.rows.column("unit").to_numpy()
        options = {"cov_type": "cluster", "cov_kwds": {"groups": units}}
    true, before = multinomial(y, x, 24, options), multinomial(y, x, 14, options)
    endless = np.abs(true.params - before.params) > 0.1
    assert endless.any() == flavour.endswith(("class", "classes"))
    named = [note for note in result.notes if note.startswith("Separation")]
    assert len(named) == endless.any()
    found = measures(rows)
    assert found["parameters"] == len(kept) * len(classes)
    assert found["rows"] == len(y)
    for name, value in (("log_likelihood", true.llf), ("null_log_likelihood", true.llnull),
                        ("aic", true.aic), ("bic", true.bic)):  # fmt: skip
        assert found[name] == pytest.approx(value, rel=1e-6), name
    last = rows[-1]
    assert last["feature"] == "likelihood_ratio"
    assert last["p"] == pytest.approx(true.llr_pvalue, rel=1e-4)
    places = {column: place for place, column in enumerate(kept.tolist())}
    errors = np.asarray(true.bse).reshape(true.params.shape, order="A")
    for k, label in enumerate(classes):
        for column, row in enumerate(design_of[label][0]):
            place = places.get(column)
            if place is None or endless[place, k]:
                assert {row[n] for n in ("coefficient", "standard_error", "p")} == {None}, row
                if place is not None:
                    assert row["feature"] in named[0]
                    assert label in named[0]
                continue
            error = errors[place, k]
            assert row["coefficient"] == pytest.approx(true.params[place, k], abs=2e-4 * error)
            assert row["standard_error"] == pytest.approx(error, rel=2e-4), row
            assert row["p"] == pytest.approx(true.pvalues[place, k], rel=1e-2, abs=1e-6)


def test_a_penalty_shrinks_each_class_and_leaves_no_test() -> None:
    """Errors are those of the penalised likelihood of all classes' weights, by numpy alone."""
    _, tables, query = drawn(0)
    query = query.replace("t.x, t.c, w.u, w.v, w.town", "t.x, w.u")
    l2 = 0.01
    with opened(tables) as (fed, whole):
        trained(fed, query, l2=l2)
        result = fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
        data = oracle.central(whole, query, SOFTMAX, "y", (), l2)
        weights = fed.sql("WEIGHTS OF MODEL m").arrow().to_pylist()
    rows = result.arrow().to_pylist()
    n, classes = len(data.y), int(data.y.max()) + 1
    x = np.column_stack([np.ones(n), data.x])
    b = np.array([[row["standardised"] for row in weights if row["class"] == f"c{code}"]
                  for code in range(classes)])  # fmt: skip
    h = x @ b.T
    p = np.exp(h - h.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    information = np.zeros((classes * 3, classes * 3))
    for row, own in zip(x, p, strict=True):
        information += np.kron(np.diag(own) - np.outer(own, own), np.outer(row, row))
    ridge = n * l2 * np.kron(np.eye(classes), np.diag([0.0, 1.0, 1.0]))
    inverse = np.linalg.pinv(information + ridge)
    covariance = inverse @ information @ inverse
    scale = {"x[1]": data.encoder.numeric[0].scale[0], "u[1]": data.encoder.numeric[1].scale[0]}
    for code in range(1, classes):
        for place, name in ((1, "x"), (2, "u")):
            contrast = np.zeros(classes * 3)
            contrast[code * 3 + place], contrast[place] = 1.0, -1.0
            row = next(r for r in rows if r["class"] == f"c{code}" and r["feature"] == name)
            true = (b[code, place] - b[0, place]) / scale[f"{name}[1]"]
            error = np.sqrt(contrast @ covariance @ contrast) / scale[f"{name}[1]"]
            assert row["coefficient"] == pytest.approx(true, rel=1e-6)
            assert row["standard_error"] == pytest.approx(error, rel=1e-6)
    assert rows[-1]["p"] is None
    assert any("shrunk" in note for note in result.notes)


def test_two_classes_are_those_of_logistic_regression() -> None:
    _, tables, query = drawn(0)
    query = query.replace("t.y FROM", "t.y = 'c1' AS y FROM")
    with opened(tables, 2) as (fed, _):
        trained(fed, query)
        several = fed.sql(f"INFERENCE OF MODEL m FROM ({query})").arrow().to_pylist()
        fed.sql("TRAIN MODEL n USING logistic_regression TARGET y WITH (l2 = 0, tolerance = 1e-12) "
                f"FROM ({query})")  # fmt: skip
        two = fed.sql(f"INFERENCE OF MODEL n FROM ({query})").arrow().to_pylist()
    # Databases of one party agree on the order of categories by a key of the run
    several, others = (
        sorted(rows, key=lambda row: (row["table"] or "", row["feature"], row["category"] or ""))
        for rows in (several, [row for row in two if row["feature"] != "dispersion"])
    )
    assert len(several) == len(others)
    for one, other in zip(several, others, strict=True):
        assert (one["feature"], one["category"]) == (other["feature"], other["category"])
        for name in ("coefficient", "standard_error", "p"):
            near = None if other[name] is None else pytest.approx(other[name], rel=1e-3, abs=1e-5)
            assert one[name] == near, one


def test_messages_are_those_that_explain_lists() -> None:
    """One exchange of standard errors for each class but the first."""
    _, tables, query = drawn(2)
    with opened(tables, 2) as (fed, _):
        trained(fed, query)
        before = len(fed.audit().arrow())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = fed.sql(f"INFERENCE OF MODEL m FROM ({query})")
        sent = fed.audit().arrow().slice(before).to_pylist()
        classes = len(fed.model("m").intercept)
    clients = {(row["party"], row["client"]) for row in sent}
    errors = [row for row in sent if row["kind"] == "errors"]
    assert len(errors) == (classes - 1) * len(clients)
    assert len({row["class"] for row in result.arrow().to_pylist()}) == classes


def test_rows_without_the_first_class_are_refused() -> None:
    _, tables, query = drawn(0)
    with opened(tables, 2) as (fed, _):
        trained(fed, query)
        with pytest.raises(ModelError, match="no joined row has target y = 'c0', the class that"):
            fed.sql(f"INFERENCE OF MODEL m FROM ({query} WHERE t.y <> 'c0')")


@pytest.mark.parametrize("option", ["firth = true", "quasi = true"])
def test_options_of_other_kinds_are_refused(option: str) -> None:
    _, tables, query = drawn(0)
    with opened(tables) as (fed, _):
        trained(fed, query)
        with pytest.raises(OptionError, match=option.split()[0]):
            fed.sql(f"INFERENCE OF MODEL m WITH ({option}) FROM ({query})")
