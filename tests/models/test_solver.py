"""The three ways of the block solver against dense linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.models.solver import BlockSolver, widest_category

WAYS = {
    "dense": {},
    "schur": {"dense_limit": 0},
    "conjugate gradients": {"dense_limit": 0, "schur_limit": 0},
}


def table(
    numeric: int, categories: tuple[int, ...], rows: int = 400, seed: int = 0
) -> tuple[sparse.csr_array, np.ndarray, np.ndarray]:
    """Sparse x, counts, centre (one-hots only)."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, rows).astype(float)
    parts = [sparse.csr_array(rng.normal(size=(rows, numeric)))]
    centres = [np.zeros(numeric)]
    for width in categories:
        codes = rng.integers(0, width, rows)
        codes[:width] = np.arange(width)
        hot = sparse.csr_array((np.ones(rows), codes, np.arange(rows + 1)), shape=(rows, width))
        parts.append(hot)
        centres.append(counts @ hot / counts.sum())
    return sparse.csr_array(sparse.hstack(parts)), counts, np.concatenate(centres)


def gram_of(x: sparse.csr_array, counts: np.ndarray, numeric: int) -> GramMatrix:
    full = sparse.csr_array(x.T @ sparse.diags_array(counts) @ x)
    dense, hot = full[:, :numeric].toarray(), full[numeric:, :][:, numeric:]
    moments = counts @ x
    return GramMatrix(
        dense[:numeric], dense[numeric:], sparse.csr_array(hot), moments, counts.sum()
    )


def matrix(x: Any, counts: np.ndarray, centre: np.ndarray, scale: float, l2: Any) -> np.ndarray:
    total = counts.sum()
    centred = x.toarray() - centre
    return scale / total * (centred.T * counts) @ centred + np.diag(
        np.broadcast_to(l2, len(centre))
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("numeric", "categories"), [(4, ()), (3, (5,)), (0, (6, 4)), (3, (30, 7, 12)), (0, (40, 35))]
)
@pytest.mark.parametrize("l2", [1e-4, 0.3])
def test_solves_the_centred_ridge_system(way, numeric, categories, l2) -> None:
    x, counts, centre = table(numeric, categories)
    solver = BlockSolver(
        gram_of(x, counts, numeric), centre, int(counts.sum()), 0.25, l2, **WAYS[way]
    )
    expected = matrix(x, counts, centre, 0.25, l2)
    v = np.random.default_rng(1).normal(size=(len(centre), 3))
    np.testing.assert_allclose(solver.multiply(v), expected @ v, atol=1e-12)
    np.testing.assert_allclose(solver.solve(v), np.linalg.solve(expected, v), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_one_clients_part_of_a_slot_and_a_ridge_per_column(way) -> None:
    x, counts, centre = table(3, (20, 8))
    part, weights = x[:150], counts[:150]
    ridge = np.linspace(0.01, 0.2, len(centre))
    total = int(counts.sum())
    solver = BlockSolver(gram_of(part, weights, 3), centre, total, 1.0, ridge, **WAYS[way])
    expected = matrix(part, weights, centre, weights.sum() / total, ridge)
    v = np.random.default_rng(1).normal(size=(len(centre), 1))
    np.testing.assert_allclose(solver.solve(v), np.linalg.solve(expected, v), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("way", WAYS)
def test_without_ridge_the_gradients_range_is_solved(way) -> None:
    x, counts, centre = table(3, (20, 8))
    x = sparse.csr_array(sparse.hstack([np.zeros((x.shape[0], 1)), x]))
    centre = np.append(0.0, centre)
    solver = BlockSolver(gram_of(x, counts, 4), centre, int(counts.sum()), 1.0, 0.0, **WAYS[way])
    singular = matrix(x, counts, centre, 1.0, 0.0)
    theta = np.random.default_rng(1).normal(size=(len(centre), 1))
    solution = solver.solve(singular @ theta)
    np.testing.assert_allclose(singular @ solution, singular @ theta, atol=1e-5)
    assert np.isfinite(solution).all()


@pytest.mark.parametrize("way", WAYS)
def test_the_inverse_is_symmetric_and_positive(way) -> None:
    x, counts, centre = table(2, (15, 9))
    solver = BlockSolver(gram_of(x, counts, 2), centre, int(counts.sum()), 1.0, 0.0, **WAYS[way])
    u, v = np.random.default_rng(3).normal(size=(2, len(centre), 1))
    left, right = float(np.vdot(u, solver.solve(v))), float(np.vdot(v, solver.solve(u)))
    assert left == pytest.approx(right, rel=1e-4, abs=1e-4 * abs(left))
    assert float(np.vdot(u, solver.solve(u))) > 0.0


@pytest.mark.parametrize("categories", [(20_000,), (20_000, 300), (20_000, 6_000)])
@pytest.mark.parametrize("l2", [1e-4, 0.0])
def test_wide_categories(categories, l2) -> None:
    x, counts, centre = table(3, categories, rows=60_000)
    total = int(counts.sum())
    solver = BlockSolver(gram_of(x, counts, 3), centre, total, 1.0, l2)
    theta = np.random.default_rng(1).normal(size=(len(centre), 1))
    deviation = x @ theta - centre @ theta
    values = x.T @ (counts[:, None] * deviation) - centre[:, None] * (counts @ deviation)
    right = values / total + l2 * theta
    solution = solver.solve(right)
    reached = solver.multiply(solution)
    np.testing.assert_allclose(reached, right, atol=1e-6 * np.abs(right).max())
    found = x @ solution - centre @ solution
    assert np.abs(found - deviation).max() <= 1e-2 * np.abs(deviation).max()


def test_categories_are_found_by_their_co_occurrences() -> None:
    x, counts, _ = table(0, (3, 9, 4))
    onehot = sparse.csr_array(x.T @ sparse.diags_array(counts) @ x)
    assert widest_category(onehot) == (3, 12)
    assert widest_category(sparse.csr_array((0, 0))) == (0, 0)
    assert widest_category(sparse.csr_array(np.diag([1.0, 2.0]))) == (0, 2)


def test_a_block_without_columns_and_a_wrong_centre() -> None:
    empty = GramMatrix(
        np.zeros((0, 0)), np.zeros((0, 0)), sparse.csr_array((0, 0)), np.zeros(0), 5.0
    )
    assert BlockSolver(empty, np.zeros(0), 5, 1.0, 0.1).solve(np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(InternalError, match="centre"):
        BlockSolver(empty, np.zeros(2), 5, 1.0, 0.1)
