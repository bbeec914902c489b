"""Strengths of groups of columns, found by Fellner and Schall's step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
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
        args = gram, moments, float(ROWS), theta[:, None], 1.0 / ROWS, 1.0, L2
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
