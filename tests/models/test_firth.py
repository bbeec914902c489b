"""Firth's penalised likelihood is that of logistf, and of a reference that shares no code."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import expit

import sqlfl
from sqlfl.base.errors import ModelError, OptionError
from sqlfl.models import inference as module
from sqlfl.models.inference import firth
from tests.federations import federation
from tests.open_databases import in_memory

ENDOMETRIAL = """
    (0, 13, 1.64, 0), (0, 16, 2.26, 0), (0, 8, 3.14, 0), (0, 34, 2.68, 0), (0, 20, 1.28, 0), (0,
    5, 2.31, 0), (0, 17, 1.8, 0), (0, 10, 1.68, 0), (0, 26, 1.56, 0), (0, 17, 2.31, 0), (0, 8,
    2.01, 0), (0, 7, 1.89, 0), (0, 20, 3.15, 0), (0, 10, 1.23, 0), (0, 18, 1.27, 0), (0, 16, 1.76,
    0), (0, 18, 2, 0), (0, 8, 2.64, 1), (0, 29, 0.88, 1), (0, 12, 1.27, 1), (0, 20, 1.37, 1), (1,
    38, 0.97, 1), (1, 22, 1.14, 1), (1, 7, 0.88, 1), (1, 25, 0.91, 1), (1, 15, 0.58, 1), (0, 7,
    0.97, 1), (0, 28, 1.5, 0), (0, 11, 1.33, 0), (0, 19, 2.37, 0), (0, 10, 1.82, 0), (0, 10, 3.13,
    0), (0, 18, 1.31, 0), (0, 14, 1.92, 0), (0, 21, 1.64, 0), (0, 11, 2.01, 0), (0, 17, 1.88, 0),
    (0, 25, 1.93, 0), (0, 16, 2.11, 0), (0, 19, 1.29, 0), (0, 15, 1.72, 0), (0, 33, 0.75, 0), (0,
    24, 1.92, 0), (0, 48, 1.84, 1), (0, 12, 1.11, 1), (0, 19, 1.61, 1), (0, 2, 1.18, 1), (1, 22,
    1.44, 1), (1, 40, 1.18, 1), (1, 5, 0.93, 1), (1, 0, 1.17, 1), (0, 21, 1.19, 1), (0, 15, 1.06,
    1), (0, 29, 2.02, 0), (0, 15, 2.29, 0), (0, 12, 2.33, 0), (0, 3, 2.9, 0), (0, 20, 1.7, 0), (0,
    23, 1.41, 0), (0, 12, 2.25, 0), (0, 22, 1.54, 0), (0, 42, 1.97, 0), (0, 15, 1.75, 0), (0, 13,
    2.16, 0), (0, 14, 2.57, 0), (0, 19, 1.37, 0), (0, 12, 3.61, 0), (0, 13, 2.04, 0), (0, 10,
    2.17, 0), (0, 12, 1.69, 1), (1, 49, 0.27, 1), (0, 6, 1.84, 1), (0, 5, 1.3, 1), (0, 17, 0.96,
    1), (1, 11, 1.01, 1), (1, 21, 0.98, 1), (0, 5, 0.35, 1), (1, 19, 1.02, 1), (0, 33, 0.85, 1)
"""
"""Neovasculation, pulsatility index, endometrium height and grade of 79 women (Heinze and Schemper
2002): all with neovasculation are of high grade."""

QUERY = """SELECT c.nv, c.pi, s.eh, c.hg FROM clinic.women c JOIN scan.women s USING (id)"""


def penalised(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    mean = expit(x @ theta)
    information = (x * (mean * (1 - mean))[:, None]).T @ x
    likelihood = -np.logaddexp(0.0, np.where(y > 0, -1.0, 1.0) * (x @ theta)).sum()
    return float(likelihood + 0.5 * np.linalg.slogdet(information)[1])


def maximum(x: np.ndarray, y: np.ndarray, free: int) -> tuple[np.ndarray, float]:
    """Of the first `free` parameters, the others being 0."""
    rest = np.zeros(x.shape[1] - free)

    def loss(own: np.ndarray) -> float:
        return -penalised(np.append(own, rest), x, y)

    found = optimize.minimize(loss, np.zeros(free), method="BFGS", options={"gtol": 1e-9})
    return np.append(found.x, rest), -float(found.fun)


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A design whose third column tells a class, or nearly so."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(50), rng.normal(size=(50, 2)), rng.random(50) < 0.15])
    y = (rng.random(50) < expit(x[:, 1])).astype(float)
    y[(x[:, 3] > 0) & (rng.random(50) < 0.95)] = 1.0
    return x, y


@pytest.mark.parametrize("seed", range(4))
def test_the_maximum_is_that_of_the_penalised_likelihood(seed: int) -> None:
    x, y = drawn(seed)
    found = firth(lambda rows: x[rows], y, None)
    theta, best = maximum(x, y, 4)
    np.testing.assert_allclose(found.theta, theta, atol=2e-5)
    np.testing.assert_allclose(found.scores, x @ found.theta, atol=1e-9)
    _, null = maximum(x, y, 1)
    assert found.ratio == pytest.approx(2 * (best - null), rel=1e-6)
    # it is a stationary point: the modified score is 0
    mean = expit(found.scores)
    weights = mean * (1 - mean)
    inverse = np.linalg.inv((x * weights[:, None]).T @ x)
    leverage = weights * np.einsum("ni,ij,nj->n", x, inverse, x)
    slope = x.T @ (y - mean + leverage * (0.5 - mean))
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)


@pytest.mark.parametrize("piece", [1, module.PIECE])
def test_weights_repeat_rows_and_no_basis_matters(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    x, y = drawn(7)
    weights = np.random.default_rng(7).integers(0, 3, len(y)).astype(float)
    copies = np.repeat(np.arange(len(y)), weights.astype(int))
    plain = firth(lambda rows: x[copies][rows], y[copies], None)
    turned = np.column_stack([x[:, :1], x[:, 1:] @ [[2.0, 1, 0, 3], [0, 1, 1, 1], [0, 0, 5, 5]]])
    found = firth(lambda rows: turned[rows], y, weights)
    assert found.nothing.shape == (5, 1)
    np.testing.assert_allclose(found.scores[copies], plain.scores, atol=1e-8)
    assert found.ratio == pytest.approx(plain.ratio)


def penalised_maximum(
    x: np.ndarray, y: np.ndarray, offset: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Parameters, their errors, and the penalised likelihood, by Fisher scoring on the modified
    score equations."""
    theta = np.zeros(x.shape[1])
    for _ in range(500):
        mean = expit(x @ theta + offset)
        weights = mean * (1 - mean)
        inverse = np.linalg.inv((x * weights[:, None]).T @ x)
        leverage = weights * np.einsum("ni,ij,nj->n", x, inverse, x)
        step = inverse @ (x.T @ (y - mean + leverage * (0.5 - mean)))
        theta = theta + step * min(1.0, 1.0 / np.abs(step).max())
    h = x @ theta + offset
    likelihood = -np.logaddexp(0.0, np.where(y > 0, -h, h)).sum()
    size = np.linalg.slogdet(np.linalg.inv(inverse))[1]
    return theta, np.sqrt(np.diag(inverse)), float(likelihood + 0.5 * size)


@pytest.mark.parametrize("seed", range(4))
def test_an_offset_is_beside_the_estimates(seed: int) -> None:
    x, y = drawn(seed)
    offset = np.random.default_rng([seed, 1]).normal(0.5, 1.5, len(y))
    found = firth(lambda rows: x[rows], y, None, offset)
    theta, _, best = penalised_maximum(x, y, offset)
    np.testing.assert_allclose(found.theta, theta, atol=1e-7)
    np.testing.assert_allclose(found.scores, x @ theta + offset, atol=1e-7)

    # of the constant alone with the penalty of the whole design, as logistf has it
    def null(constant: float) -> float:
        return -penalised_with(np.array([constant, 0.0, 0.0, 0.0]), x, y, offset)

    least = optimize.minimize_scalar(null, bracket=(-2.0, 2.0), tol=1e-12)
    assert found.ratio == pytest.approx(2 * (best + least.fun), rel=1e-6)


def penalised_with(theta: np.ndarray, x: np.ndarray, y: np.ndarray, offset: np.ndarray) -> float:
    h = x @ theta + offset
    mean = expit(h)
    information = (x * (mean * (1 - mean))[:, None]).T @ x
    likelihood = -np.logaddexp(0.0, np.where(y > 0, -h, h)).sum()
    return float(likelihood + 0.5 * np.linalg.slogdet(information)[1])


def test_inference_by_firth_beside_an_offset(women: sqlfl.Federation) -> None:
    """Over two parties, with the offset at the clinic: coefficients, errors, p and the ratio."""
    query = QUERY.replace("c.hg FROM", "c.hg, c.pi / 20 AS beside FROM").replace("c.pi,", "")
    assert "beside" in query
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        women.sql(f"TRAIN MODEL m USING logistic_regression TARGET hg OFFSET beside FROM ({query})")
        result = women.sql(f"INFERENCE OF MODEL m WITH (firth = true) FROM ({query})")
    rows = {row["feature"]: row for row in result.arrow().to_pylist()}
    data = np.array(ast.literal_eval(f"[{ENDOMETRIAL}]"), float)
    x, y, offset = np.column_stack([np.ones(79), data[:, [0, 2]]]), data[:, 3], data[:, 1] / 20
    theta, errors, best = penalised_maximum(x, y, offset)
    for place, name in enumerate(("intercept", "nv", "eh")):
        assert rows[name]["coefficient"] == pytest.approx(theta[place], rel=1e-6)
        assert rows[name]["standard_error"] == pytest.approx(errors[place], rel=1e-6)
        p = 2 * stats.norm.sf(abs(theta[place]) / errors[place])
        assert rows[name]["p"] == pytest.approx(p, rel=1e-5)
    least = optimize.minimize_scalar(
        lambda c: -penalised_with(np.array([c, 0.0, 0.0]), x, y, offset), bracket=(-2.0, 2.0)
    )
    assert rows["likelihood_ratio"]["coefficient"] == pytest.approx(
        2 * (best + least.fun), rel=1e-5
    )


def test_what_does_not_converge_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS", 1)
    x, y = drawn(1)
    with pytest.raises(ModelError, match="does not converge"):
        firth(lambda rows: x[rows], y, None)


@pytest.fixture
def women() -> Iterator[sqlfl.Federation]:
    """All but the height at a clinic, the height at another party."""
    with in_memory() as clinic, in_memory() as scan:
        for con, columns in (
            (clinic, "nv, pi::DOUBLE AS pi, hg = 1 AS hg"),
            (scan, "eh::DOUBLE AS eh"),
        ):
            con.execute(
                f"CREATE TABLE women AS SELECT row_number() OVER () AS id, {columns} "
                f"FROM (VALUES {ENDOMETRIAL}) v(nv, pi, eh, hg)"
            )
        with federation({"clinic": [clinic], "scan": [scan]}) as fed:
            yield fed


@pytest.mark.parametrize("l2", [0, 0.01])
def test_estimates_over_two_parties_are_those_that_were_published(
    women: sqlfl.Federation, l2: float
) -> None:
    """Of logistf, whatever penalty the model itself was trained with."""
    train = f"TRAIN MODEL m USING logistic_regression TARGET hg WITH (l2 = {l2}) FROM ({QUERY})"
    if l2 == 0:
        with pytest.warns(UserWarning, match="separation"):
            women.sql(train)
    else:
        women.sql(train)
    before = women.model("m").weights.to_pylist()
    result = women.sql(f"INFERENCE OF MODEL m WITH (firth = true) FROM ({QUERY})")
    rows = {row["feature"]: row for row in result.arrow().to_pylist()}
    published = {
        "intercept": (3.77456, 1.48869), "nv": (2.92927, 1.55076),
        "pi": (-0.03475, 0.03958), "eh": (-2.60416, 0.77602),
    }  # fmt: skip
    for name, (value, error) in published.items():
        assert rows[name]["coefficient"] == pytest.approx(value, abs=2e-5)
        assert rows[name]["standard_error"] == pytest.approx(error, abs=2e-5)
        p = 2 * stats.norm.sf(abs(value) / error)
        assert rows[name]["p"] == pytest.approx(p, rel=1e-3)
    assert rows["likelihood_ratio"]["coefficient"] == pytest.approx(43.65582, abs=1e-4)
    assert rows["likelihood_ratio"]["p"] == pytest.approx(stats.chi2.sf(43.65582, 3), rel=1e-3)
    assert "aic" not in rows
    assert any("Firth" in note for note in result.notes)
    assert not any("Separation" in note for note in result.notes)
    assert women.model("m").weights.to_pylist() == before


def test_what_firth_is_not_of_is_refused(women: sqlfl.Federation) -> None:
    women.sql(f"TRAIN MODEL m USING logistic_regression TARGET hg FROM ({QUERY})")
    for other in ("robust = true", "cluster = 'c'"):
        with pytest.raises(OptionError, match="errors are of the likelihood without Firth's"):
            women.sql(f"INFERENCE OF MODEL m WITH (firth = true, {other}) FROM ({QUERY})")
    with pytest.raises(OptionError, match=r"no option firth(.|\n)*INFERENCE OF MODEL"):
        women.sql(f"TRAIN OR REPLACE MODEL m USING logistic_regression TARGET hg "
                  f"WITH (firth = true) FROM ({QUERY})")  # fmt: skip
    women.sql(f"TRAIN MODEL n USING linear_regression TARGET y "
              f"FROM ({QUERY.replace('c.hg', 'c.hg::INT AS y')})")  # fmt: skip
    with pytest.raises(OptionError, match="firth is of logistic_regression"):
        women.sql(f"INFERENCE OF MODEL n WITH (firth = true) "
                  f"FROM ({QUERY.replace('c.hg', 'c.hg::INT AS y')})")  # fmt: skip
