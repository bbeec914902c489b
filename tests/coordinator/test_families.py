"""Standard errors of gamma, huber and quantile models, of a dispersion, and beside an offset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from statsmodels.robust.norms import HuberT

import sqlfl
from sqlfl.base.errors import OptionError
from tests.conftest import Open
from tests.federations import federation

N = 240
LEFT = (
    "CREATE TABLE l AS SELECT i AS k, sin(i * 1.7) AS x, 0.5 + (i * 5) % 4 AS years, "
    "(i * 7919) % 101 / 20.0 + 2 * sin(i * 1.7) + 0.1 AS r, "
    "(i * 7919) % 7 + (i * 31) % 3 * 4 AS n, "
    "0.2 + abs((i * 7919) % 101 / 20.0 + sin(i * 1.7)) AS g, (i * 7919) % 101 > 70 AS b, "
    f"1 + i % 3 AS w FROM range({N}) r(i)"
)
RIGHT = f"CREATE TABLE r AS SELECT i AS k, cos(i * 0.9) AS z FROM range({N}) r(i)"
Row = dict[str, Any]


@pytest.fixture
def fed(database: Open) -> Iterator[sqlfl.Federation]:
    with federation({"a": [database(LEFT)], "b": [database(RIGHT)]}) as opened:
        yield opened


def columns() -> dict[str, np.ndarray]:
    i = np.arange(N)
    x, drawn = np.sin(i * 1.7), (i * 7919) % 101
    return {
        "z": np.column_stack([np.ones(N), x, np.cos(i * 0.9)]),
        "years": 0.5 + (i * 5) % 4,
        "r": drawn / 20.0 + 2 * x + 0.1,
        "n": ((i * 7919) % 7 + (i * 31) % 3 * 4).astype(float),
        "g": 0.2 + np.abs(drawn / 20.0 + x),
        "b": (drawn > 70).astype(float),
        "w": 1 + i % 3,
    }


def inferred(
    fed: sqlfl.Federation,
    kind: str,
    target: str,
    clauses: str = "",
    more: str = "",
    options: str = "",
    look: str = "",
) -> tuple[dict[str, Row], sqlfl.Result]:
    query = f"SELECT l.x, r.z, l.{target}{more} FROM a.l JOIN b.r USING (k)"
    fed.sql(
        f"TRAIN OR REPLACE MODEL m USING {kind} TARGET {target} {clauses} "
        f"WITH (l2 = 0, tolerance = 1e-12, epochs = 500{options}) FROM ({query})"
    )
    found = fed.sql(f"INFERENCE OF MODEL m {look} FROM ({query})")
    return {row["feature"]: row for row in found.arrow().to_pylist()}, found


def assert_tests(found: dict[str, Row], result: Any, near: float = 1e-5) -> None:
    """Coefficients, errors and p of statsmodels."""
    for place, name in enumerate(("intercept", "x", "z")):
        own = found[name]
        assert own["coefficient"] == pytest.approx(result.params[place], rel=near, abs=near)
        assert own["standard_error"] == pytest.approx(result.bse[place], rel=near)
        assert own["p"] == pytest.approx(result.pvalues[place], rel=100 * near, abs=1e-12)


@pytest.mark.parametrize("clause", ["", "EXPOSURE years"])
@pytest.mark.parametrize("robust", [False, True])
def test_gamma_models(fed: sqlfl.Federation, clause: str, robust: bool) -> None:
    data = columns()
    more = ", l.years" if clause else ""
    look = "WITH (robust = true)" if robust else ""
    found, _ = inferred(fed, "gamma_regression", "g", clause, more, look=look)
    exposure = data["years"] if clause else None
    family = sm.families.Gamma(sm.families.links.Log())
    model = sm.GLM(data["g"], data["z"], family=family, exposure=exposure)
    result = model.fit(use_t=True, tol=1e-14, cov_type="HC0" if robust else "nonrobust")
    assert_tests(found, result)
    assert found["dispersion"]["coefficient"] == pytest.approx(result.scale, rel=1e-6)
    assert found["deviance"]["coefficient"] == pytest.approx(result.deviance, rel=1e-6)
    assert found["null_deviance"]["coefficient"] == pytest.approx(result.null_deviance, rel=1e-6)
    mean = np.asarray(result.fittedvalues)
    shapes = [family.loglike(data["g"], mean, scale=s) for s in np.linspace(0.01, 2.0, 4000)]
    assert found["log_likelihood"]["coefficient"] == pytest.approx(max(shapes), abs=1e-3)


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("kind", ["poisson_regression", "logistic_regression"])
def test_offsets_in_standard_errors(fed: sqlfl.Federation, kind: str, robust: bool) -> None:
    data = columns()
    target = "n" if kind.startswith("poisson") else "b"
    look = "WITH (robust = true)" if robust else ""
    found, _ = inferred(fed, kind, target, "OFFSET e", ", ln(l.years) AS e", look=look)
    family = sm.families.Poisson() if target == "n" else sm.families.Binomial()
    model = sm.GLM(data[target], data["z"], family=family, offset=np.log(data["years"]))
    result = model.fit(tol=1e-14, cov_type="HC0" if robust else "nonrobust")
    assert_tests(found, result)
    for name, value in (
        ("log_likelihood", result.llf),
        ("null_log_likelihood", result.llnull),
        ("aic", result.aic),
        ("null_deviance", result.null_deviance),
        ("dispersion", result.pearson_chi2 / result.df_resid),
    ):
        assert found[name]["coefficient"] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("kind", ["poisson_regression", "logistic_regression"])
def test_a_dispersion_widens_errors_on_request(fed: sqlfl.Federation, kind: str) -> None:
    data = columns()
    target = "n" if kind.startswith("poisson") else "b"
    found, told = inferred(fed, kind, target, look="WITH (quasi = true)")
    family = sm.families.Poisson() if target == "n" else sm.families.Binomial()
    result = sm.GLM(data[target], data["z"], family=family).fit(scale="X2", use_t=True, tol=1e-14)
    assert_tests(found, result)
    assert found["dispersion"]["coefficient"] == pytest.approx(result.scale, rel=1e-6)
    assert f"times the dispersion {result.scale:.4g}" in str(told)
    assert not {"aic", "bic", "log_likelihood", "likelihood_ratio"} & set(found)
    if target == "n":
        card = fed.model("m").metrics["dispersion"]
        assert card == pytest.approx(result.scale * (N - 3) / N, rel=1e-5)


def test_quasi_goes_with_models_that_have_no_scale(fed: sqlfl.Federation) -> None:
    for kind, target in (("linear_regression", "r"), ("gamma_regression", "g")):
        with pytest.raises(OptionError, match="quasi"):
            inferred(fed, kind, target, look="WITH (quasi = true)")
    with pytest.raises(OptionError, match="quasi"):
        inferred(fed, "poisson_regression", "n", look="WITH (quasi = true, robust = true)")


def test_huber_models(fed: sqlfl.Federation) -> None:
    """At the scale that statsmodels has found, whose threshold is in the target's unit."""
    data = columns()
    result = sm.RLM(data["r"], data["z"], M=HuberT(1.0)).fit(tol=1e-14, maxiter=2000, cov="H2")
    options = f", threshold = {float(result.scale)!r}"
    found, told = inferred(fed, "huber_regression", "r", options=options)
    assert_tests(found, result)
    assert "aic" not in found
    assert "clipped" in str(told)
    robust, _ = inferred(fed, "huber_regression", "r", options=options, look="WITH (robust = true)")
    z, residual = data["z"], data["r"] - data["z"] @ result.params
    inside = np.abs(residual) <= result.scale
    bread = np.linalg.inv(z[inside].T @ z[inside])
    slopes = z * np.clip(residual, -result.scale, result.scale)[:, None]
    errors = np.sqrt(np.diag(bread @ (slopes.T @ slopes) @ bread))
    for name, error in zip(("intercept", "x", "z"), errors, strict=True):
        assert robust[name]["standard_error"] == pytest.approx(error, rel=1e-5)


@pytest.mark.parametrize("how", ["iid", "robust"])
@pytest.mark.parametrize("q", [0.5, 0.8])
def test_quantile_models(fed: sqlfl.Federation, how: str, q: float) -> None:
    """Beside those of statsmodels, as near as the rounded kink is to the kink."""
    data = columns()
    look = "WITH (robust = true)" if how == "robust" else ""
    found, _ = inferred(fed, "quantile_regression", "r", options=f", quantile = {q}", look=look)
    result = sm.QuantReg(data["r"], data["z"]).fit(
        q=q, vcov=how, kernel="epa", bandwidth="hsheather", p_tol=1e-10, max_iter=10_000
    )
    for place, name in enumerate(("intercept", "x", "z")):
        own, error = found[name], result.bse[place]
        assert own["coefficient"] == pytest.approx(result.params[place], abs=0.2 * error)
        assert own["standard_error"] == pytest.approx(error, rel=0.05)


def test_weights_of_a_quantile_model_count_rows(fed: sqlfl.Federation) -> None:
    data = columns()
    found, _ = inferred(fed, "quantile_regression", "r", "WEIGHT w", ", l.w")
    y, z = (np.repeat(data[name], data["w"], axis=0) for name in ("r", "z"))
    result = sm.QuantReg(y, z).fit(
        q=0.5, vcov="iid", kernel="epa", bandwidth="hsheather", p_tol=1e-10, max_iter=10_000
    )
    assert found["rows"]["coefficient"] == len(y)
    assert found["x"]["standard_error"] == pytest.approx(result.bse[1], rel=0.05)


@pytest.mark.parametrize("weight", ["", "WEIGHT w"])
def test_class_weights_have_robust_errors_and_no_likelihood(
    fed: sqlfl.Federation, weight: str
) -> None:
    """Of weighted scores: rows of a class count more, and are no more rows."""
    data = columns()
    options = ", class_weight = 'balanced'"
    more = ", l.w" if weight else ""
    found, told = inferred(fed, "logistic_regression", "b", weight, more, options=options)
    assert not {"aic", "log_likelihood", "likelihood_ratio", "deviance"} & set(found)
    z, y = data["z"], data["b"]
    w = data["w"].astype(float) if weight else np.ones(N)
    classes = np.array([w.sum() / 2 / w[y == c].sum() for c in (0.0, 1.0)])[y.astype(int)]
    theta = np.zeros(3)
    for _ in range(50):
        mean = 1.0 / (1.0 + np.exp(-z @ theta))
        bread = np.linalg.inv((z.T * (w * classes * mean * (1 - mean))) @ z)
        theta = theta - bread @ (z.T @ (w * classes * (mean - y)))
    meat = (z.T * (w * (classes * (mean - y)) ** 2)) @ z
    errors = np.sqrt(np.diag(bread @ meat @ bread))
    for place, name in enumerate(("intercept", "x", "z")):
        assert found[name]["coefficient"] == pytest.approx(theta[place], abs=1e-5)
        assert found[name]["standard_error"] == pytest.approx(errors[place], rel=1e-5)
    assert found["rows"]["coefficient"] == pytest.approx(w.sum(), rel=1e-12)
    assert "there is no likelihood" in str(told)
    assert "standard errors away" not in str(told)
