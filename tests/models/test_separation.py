"""Separated rows are those of a linear program over all rows and columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from sqlfl.models.inference import FAMILIES, sums
from sqlfl.models.separation import separation
from tests.depth import SEED, examples

KINDS = ["logistic_regression", "poisson_regression"]


def separated(x: np.ndarray, y: np.ndarray, *, counts: bool) -> np.ndarray:
    """bool (n,): max Σ min(1, s z·d) where s z·d ≥ 0; of counts d·z = 0 where they are above 0."""
    zero = y == 0
    own = -x[zero] if counts else x * np.where(zero, -1.0, 1.0)[:, None]
    n, p = own.shape
    equal = None
    if counts and not zero.all():
        equal = np.hstack([x[~zero], np.zeros((int((~zero).sum()), n))])
    found = linprog(
        np.append(np.zeros(p), -np.ones(n)),
        A_ub=np.hstack([-own, np.eye(n)]),
        b_ub=np.zeros(n),
        A_eq=equal,
        b_eq=None if equal is None else np.zeros(len(equal)),
        bounds=[(None, None)] * p + [(0, 1)] * n,
    )
    apart = found.x[p:] > 1e-6
    if not counts:
        return apart
    every = np.zeros(len(y), bool)
    every[np.flatnonzero(zero)[apart]] = True
    return every


def made(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([SEED, seed])
    n, k = int(rng.integers(12, 120)), int(rng.integers(2, 6))
    category = rng.integers(0, k, n)
    columns = [np.ones(n), *((category == j) * 1.0 for j in range(1, k))]
    columns += [rng.normal(size=n) for _ in range(rng.integers(0, 3))]
    if rng.random() < 0.4:
        columns.append((rng.random(n) < 0.1) * 1.0)
    if rng.random() < 0.3:
        columns.append(columns[-1] + columns[1])
    x = np.column_stack(columns)
    h = np.clip(x @ (rng.normal(size=x.shape[1]) * rng.choice([0.3, 1.0, 4.0])), -6, 3)
    y = rng.random(n) < 1 / (1 + np.exp(-h)) if "logistic" in kind else rng.poisson(np.exp(h - 1))
    y = y.astype(float)
    y[:2] = 0.0, 1.0
    return x, y


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 10**6))
@examples(10)
def test_rows_and_ranks_are_those_of_a_linear_program(kind: str, weighed: bool, seed: int) -> None:
    x, y = made(kind, seed)
    family = FAMILIES[kind]
    weights, counted = None, np.ones(len(y), bool)
    if weighed:
        weights = np.random.default_rng(seed).integers(0, 3, len(y)).astype(float)
        weights[:2] = 1.0
        counted = weights > 0
    constant = np.full(len(y), family.link(np.average(y, weights=weights)))
    found = separation(family, lambda rows: x[rows], constant, y, weights)
    expected = np.zeros(len(y), bool)
    expected[counted] = separated(x[counted], y[counted], counts="poisson" in kind)
    assert found.rows.tolist() == expected.tolist()
    assert found.rank == np.linalg.matrix_rank(x[counted])
    rest = x[counted & ~expected]
    assert found.directions.shape[1] == found.rank - np.linalg.matrix_rank(rest)
    assert found.any == bool(expected.any())
    np.testing.assert_allclose(rest @ found.directions, 0.0, atol=1e-7)


@pytest.mark.parametrize("score", [0.5, 3.0, 25.0])
def test_wherever_the_model_stopped(score: float) -> None:
    """A rare category of one class in many rows: training may end at any score of it."""
    rng = np.random.default_rng(1)
    n = 20_000
    rare = np.arange(n) < 4
    x = np.column_stack([np.ones(n), rare, rng.normal(size=n)])
    y = ((rng.random(n) < 0.4) | rare).astype(float)
    h = np.where(rare, score, -0.4)
    found = separation(FAMILIES[KINDS[0]], lambda rows: x[rows], h, y, None)
    assert found.rows.tolist() == rare.tolist()
    assert found.rank == 3
    np.testing.assert_allclose(np.abs(found.directions[:, 0]), [0, 1, 0], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_its_moments_are_those_of_the_models_scores(kind: str) -> None:
    x, y = made(kind, 5)
    family, weights = FAMILIES[kind], np.arange(len(y)) % 3.0
    h = 0.1 * x.sum(axis=1)
    found = separation(family, lambda rows: x[rows], h, y, weights).moments
    whole = sums(family, lambda rows: x[rows], h, y, weights, robust=False, units=None)
    np.testing.assert_allclose(found.information, whole.information, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.slope, whole.slope, rtol=1e-10, atol=1e-10)
    assert found.meat is None


def test_sure_is_not_separated() -> None:
    """Means within 1e-9 of their targets, and a finite estimate: one row in a thousand is wrong."""
    n = 4000
    x = np.column_stack([np.ones(n), np.arange(n) % 2])
    y = (np.arange(n) % 2).astype(float)
    y[:2] = 1.0, 0.0
    h = np.where(y > 0, 25.0, -25.0)
    found = separation(FAMILIES[KINDS[0]], lambda rows: x[rows], h, y, None)
    assert not found.any
    assert found.rank == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_finite_estimate_is_proved_where_the_model_stopped(kind: str) -> None:
    """No step of Newton's method is made from parameters that are nearly the estimate."""
    rng = np.random.default_rng(3)
    n = 2000
    x = np.column_stack([np.ones(n), rng.normal(size=n), rng.normal(size=n)])
    h = x @ np.array([-0.5, 0.3, 0.0])
    means = FAMILIES[kind].mean(h)
    y = (rng.random(n) < means).astype(float) if "logistic" in kind else rng.poisson(means) * 1.0
    likelihoods = []

    def log_likelihood(scores: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> float:
        likelihoods.append(FAMILIES[kind].log_likelihood(scores, y, w))
        return likelihoods[-1]

    family = replace(FAMILIES[kind], log_likelihood=log_likelihood)
    assert not separation(family, lambda rows: x[rows], h, y, None).any
    assert len(likelihoods) == 1
