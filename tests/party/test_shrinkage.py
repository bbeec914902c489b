"""Strengths of groups of columns, found by Fellner and Schall's step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from sqlfl.base.arrays import Float
from sqlfl.models.gram import GramMatrix
from sqlfl.party.shrinkage import Shrinkage

ROWS, GROUPS, WIDTH, L2 = 2000, 4, 8, 1e-4


def test_longer_steps_come_to_the_same_strengths_sooner() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, GROUPS * WIDTH))
    x -= x.mean(axis=0)
    beta = np.repeat([1.0, 0.2, 0.05, 0.02], WIDTH) * rng.normal(size=GROUPS * WIDTH)
    y = x @ beta + rng.normal(size=ROWS)
    groups = np.repeat(np.arange(GROUPS), WIDTH)
    nothing = sparse.csr_array((0, 0))
    moments = np.zeros(GROUPS * WIDTH)
    gram = GramMatrix(x.T @ x, np.zeros((0, GROUPS * WIDTH)), nothing, moments, float(ROWS))

    def step(shrinkage: Shrinkage) -> Shrinkage:
        ridge = L2 * shrinkage.strengths[groups]
        theta = np.linalg.solve(gram.numeric / ROWS + np.diag(ridge), x.T @ y / ROWS)
        args = gram, float(ROWS), theta[:, None], 1.0 / ROWS, 1.0, L2
        return shrinkage.renewed(*args)[0]

    def plain(shrinkage: Shrinkage) -> Shrinkage:
        return step(replace(shrinkage, steps=None))

    first = Shrinkage.first(groups, ROWS, L2)
    limit = _after(plain, first, 300)
    short, long = _after(plain, first, 6), _after(step, first, 6)
    assert _away(long, limit) < 0.2 * _away(short, limit)
    np.testing.assert_allclose(_after(step, first, 40).strengths, limit.strengths, rtol=1e-6)


def _after(step: Callable[[Shrinkage], Shrinkage], start: Shrinkage, times: int) -> Shrinkage:
    for _ in range(times):
        start = step(start)
    return start


def _away(one: Shrinkage, other: Shrinkage) -> float:
    ratio: Float = np.log(one.strengths / other.strengths)
    return float(np.abs(ratio).max())


def test_degrees_of_freedom_of_categories_are_those_of_centred_columns() -> None:
    """Categories of two features: one has rows without any, and one has a value of few rows."""
    rng = np.random.default_rng(2)
    one, two = rng.integers(0, 2, ROWS), rng.integers(0, 5, ROWS)
    columns = np.hstack([np.eye(2)[one], np.eye(5)[two][:, :4]])
    counts = rng.exponential(size=ROWS)
    total = float(counts.sum())
    groups = np.array([0, 0, 1, 1, 1, 1])
    moments = counts @ columns
    onehot = sparse.csr_array(columns.T @ (counts[:, None] * columns))
    gram = GramMatrix(np.zeros((0, 0)), np.zeros((6, 0)), onehot, moments, total)
    centred = columns - moments / total
    dense = centred.T @ (counts[:, None] * centred) / total
    first = replace(Shrinkage.first(groups, ROWS, L2), strengths=np.array([1e-3, 2e3]))
    wanted = 0.0
    for group, ridge in enumerate(L2 * first.strengths):
        block = 0.7 * dense[np.ix_(groups == group, groups == group)]
        wanted += np.trace(np.linalg.solve(block + ridge * np.eye(len(block)), block))
    theta = rng.normal(size=(6, 1))
    freedom = first.renewed(gram, total, theta, 1.0 / ROWS, 0.7, L2)[1]
    assert freedom == pytest.approx(wanted, rel=1e-9)
