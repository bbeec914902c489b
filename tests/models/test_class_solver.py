"""Systems of blocks whose outputs are classes, against the whole Kronecker product."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.models.solver import STEP, ClassSolver, class_curvature
from tests.methods.harness import DenseEngine


def gram_of(rows: int, width: int) -> tuple[np.ndarray, DenseEngine]:
    x = np.random.default_rng(0).normal(size=(rows, width))
    centre = x.mean(axis=0)
    return x - centre, DenseEngine(x, np.ones(rows), centre, 0)


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.25,) * 4, (0.7, 0.2, 0.1), (0.999, 5e-4, 5e-4)])
def test_is_the_blocks_hessian_up_to_the_rounding_of_curvatures(shares: tuple[float, ...]) -> None:
    c, width, l2 = len(shares), 3, 0.01
    x, engine = gram_of(50, width)
    solver = ClassSolver(engine.gram(), engine.centre, 50.0, shares, l2)
    solved = np.column_stack(
        [solver.solve(unit.reshape(width, c)).reshape(-1) for unit in np.eye(width * c)]
    )
    np.testing.assert_allclose(solved, solved.T, atol=1e-10 * np.abs(solved).max())
    hessian = np.kron(x.T @ x / 50, class_curvature(shares)) + l2 * np.eye(width * c)
    ratios = np.linalg.eigvals(hessian @ solved)
    assert np.abs(ratios.imag).max() <= 1e-9
    # within the root of a power of 2 of the exact one
    assert ratios.real.min() >= STEP**-0.5 - 1e-9
    assert ratios.real.max() <= STEP**0.5 + 1e-9


def test_curvature_is_that_of_the_shares_and_regular() -> None:
    p = np.array([0.6, 0.3, 0.1])
    found = class_curvature(p.tolist())
    across = np.linalg.svd(np.ones((1, 3)))[2][1:]
    exact = np.diag(p) - np.outer(p, p)
    np.testing.assert_allclose(across @ found @ across.T, across @ exact @ across.T, atol=1e-15)
    ones = np.ones(3)
    np.testing.assert_allclose(found @ ones, ones * np.trace(exact) / 2, atol=1e-15)


def test_a_class_that_is_all_has_no_curvature() -> None:
    _, engine = gram_of(5, 2)
    with pytest.raises(InternalError, match="no curvature"):
        ClassSolver(engine.gram(), engine.centre, 5.0, (1.0, 0.0), 0.1)
