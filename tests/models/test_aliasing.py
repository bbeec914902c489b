"""Columns that are left out are those that R leaves out, whatever the bases of the tables are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.models.aliasing import left_out, relations_of, span, span_of, touches
from tests.depth import examples


def aliased(design: np.ndarray) -> list[int]:
    """Columns that follow from those before them."""
    found = []
    for place in range(design.shape[1]):
        before, column = design[:, :place], design[:, place]
        rest = column - before @ np.linalg.lstsq(before, column)[0] if place else column
        if np.linalg.norm(rest) < 1e-8 * max(np.linalg.norm(column), 1.0):
            found.append(place)
    return found


def null_space(design: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(design.T @ design)
    return vectors[:, values < 1e-10 * values[-1]]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 3), st.integers(0, 10**6)
)
@examples(25)
def test_tables_leave_out_what_r_does(sizes: list[int], dependent: int, seed: int) -> None:
    """Of columns that may be equal to sums of few others, of any table, or to the constant."""
    rng = np.random.default_rng(seed)
    width = sum(sizes)
    design = np.column_stack([np.ones(30), rng.normal(size=(30, width))])
    for _ in range(dependent):
        column, few = int(rng.integers(1, 1 + width)), rng.integers(0, 1 + width, 2)
        few = few[few != column]
        design[:, column] = design[:, few] @ rng.choice([-1.0, 1.0, 2.0], len(few))
    y, ends = rng.normal(size=30), np.cumsum([1, *sizes]).tolist()
    places = {table: slice(ends[table], ends[table + 1]) for table in range(len(sizes))}
    turned, bases = design.copy(), {}
    for table, place in places.items():
        bases[table] = np.linalg.qr(rng.normal(size=(sizes[table], sizes[table])))[0]
        turned[:, place] = design[:, place] @ bases[table]
    theta = np.linalg.lstsq(turned, y)[0]

    relations, adjusted = relations_of(null_space(turned), places)
    moved = adjusted @ theta
    np.testing.assert_allclose(turned @ moved, turned @ theta, atol=1e-8)
    found, coefficients, exact = [], np.zeros(1 + width), True
    for table, place in places.items():
        own, basis = relations[table], bases[table]
        moving = np.hstack([own.within, own.between])
        np.testing.assert_allclose(moving.T @ moving, np.eye(moving.shape[1]), atol=1e-9)
        columns, matrix = left_out(basis @ moving)
        found += (columns + place.start).tolist()
        coefficients[place] = matrix @ basis @ moved[place]
        # earlier tables hold where G θ = 0 is what is left out, but for relations of the table
        rest = (np.eye(len(matrix)) - matrix) @ basis
        rest -= rest @ own.between @ own.between.T
        inside = span(basis @ own.within)
        exact &= bool(np.abs(rest - inside @ inside.T @ rest).max() < 1e-6)
    left = aliased(design)
    assert sorted(found) == left
    if exact:
        kept = np.setdiff1d(np.arange(1 + width), left)
        expected = np.linalg.lstsq(design[:, kept], y)[0][kept > 0]
        np.testing.assert_allclose(coefficients[kept[kept > 0]], expected, atol=1e-6)


def test_nothing_is_left_out_of_independent_columns() -> None:
    columns, matrix = left_out(np.zeros((3, 0)))
    assert columns.tolist() == []
    np.testing.assert_array_equal(matrix, np.eye(3))


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_spans_are_those_of_projections(rank: int) -> None:
    basis = np.linalg.qr(np.random.default_rng(rank).normal(size=(4, rank)))[0]
    found = span_of(basis @ basis.T)
    assert found.shape == (4, rank)
    np.testing.assert_allclose(found @ found.T, basis @ basis.T, atol=1e-12)
    np.testing.assert_allclose(span(3.0 * basis) @ span(3.0 * basis).T, basis @ basis.T, atol=1e-12)


def test_rounding_touches_nothing() -> None:
    vectors = np.eye(3)[:, :1]
    functions = np.array([[1e-6, 1.0, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert touches(functions, vectors).tolist() == [False, True, False]
