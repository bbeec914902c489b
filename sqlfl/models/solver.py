"""Ridge systems of one block: K = scale/N · X̃ᵀCX̃ + l2·I, with X̃ the centred encoded columns.

N is the sum of the joined rows' weights. Let v = Σ cnt x, W = Σ cnt, and μ the centre of the
one-hot columns. Then X̃ᵀCX̃ = XᵀCX − v μᵀ − μ vᵀ + W μ μᵀ, for a whole slot (W = N) and for one
client's part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy import linalg, sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix

DENSE_LIMIT = 2000
"""Columns up to which K is one dense matrix."""
SCHUR_LIMIT = 4000
"""Columns beside the largest category up to which that category is eliminated exactly."""


class BlockSolver:
    """Solutions of and products with K.

    `l2` is one number or one per column (d,). If K is singular (l2 = 0 and dependent columns), a
    ridge of 1e-9 (dense) or 1e-7 of the diagonal replaces it: a step θ − K⁻¹g keeps its fixed
    points.

    Up to `DENSE_LIMIT` columns it uses Cholesky. Beyond, it eliminates the one-hots of the widest
    category, whose block is diagonal. If more than `SCHUR_LIMIT` columns remain, or more than the
    category and `DENSE_LIMIT` have, it uses preconditioned conjugate gradients to a relative
    residual of 1e-10.
    """

    def __init__(
        self,
        gram: GramMatrix,
        centre: Array,
        total: float,
        scale: float,
        l2: float | Array,
        *,
        dense_limit: int = DENSE_LIMIT,
        schur_limit: int = SCHUR_LIMIT,
    ) -> None:
        if centre.shape != (gram.width,) or total <= 0:
            raise InternalError(f"centre {centre.shape} for {gram.width} columns of {total} rows")
        self._gram = gram
        self._centre = centre.astype(np.float64)
        self._factor = scale / total
        self._p = len(gram.numeric)
        dense = gram.width <= dense_limit or gram.width == self._p
        self._ridge = self._ridges(l2, 1e-9 if dense else 1e-7)
        self._solve: Callable[[Array], Array]
        if gram.width == 0:
            self._solve = np.array
        elif dense:
            self._solve = self._dense()
        else:
            start, stop = widest_category(gram.onehot)
            rest = gram.width - (stop - start)
            few = rest <= schur_limit and rest <= max(DENSE_LIMIT, stop - start)
            self._solve = self._schur(start, stop) if few else self._conjugate()

    @property
    def width(self) -> int:
        return self._gram.width

    def solve(self, values: Array) -> Array:
        """Return K⁻¹ V: (d, c) -> (d, c)."""
        return self._solve(np.asarray(values, np.float64))

    def multiply(self, values: Array) -> Array:
        """Return K V: (d, c) -> (d, c)."""
        gram, centre = self._gram, self._centre
        along = centre @ values
        product = _times(gram, self._p, values)
        product -= np.outer(gram.moments, along)
        product += np.outer(centre, gram.weight * along - gram.moments @ values)
        product *= self._factor
        product += self._ridge[:, None] * values
        return product

    def _diagonal(self) -> Array:
        gram, centre = self._gram, self._centre
        raw = np.concatenate([np.diag(gram.numeric), gram.onehot.diagonal()])
        shift = centre * (gram.weight * centre - 2.0 * gram.moments)
        return self._factor * np.maximum(raw + shift, 0.0)

    def _ridges(self, l2: float | Array, relative: float) -> Array:
        diagonal = self._diagonal()
        floor = relative * diagonal
        floor[floor <= 0.0] = relative * (diagonal.max(initial=0.0) or 1.0)
        return np.maximum(np.broadcast_to(np.asarray(l2, np.float64), floor.shape), floor)

    def _dense(self) -> Callable[[Array], Array]:
        gram, centre = self._gram, self._centre
        matrix = np.block([[gram.numeric, gram.cross.T], [gram.cross, gram.onehot.toarray()]])
        matrix -= np.outer(gram.moments, centre)
        matrix -= np.outer(centre, gram.moments)
        matrix += gram.weight * np.outer(centre, centre)
        matrix *= self._factor
        matrix[np.diag_indices_from(matrix)] += self._ridge
        factor = linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        return lambda values: np.asarray(linalg.cho_solve(factor, values, check_finite=False))

    def _schur(self, start: int, stop: int) -> Callable[[Array], Array]:
        """Return an exact solver: the category [start, stop) first, then the rest, then the
        centring.
        """
        gram, a, p = self._gram, self._factor, self._p
        onehot = sparse.csr_array(gram.onehot)
        rest = np.concatenate([np.arange(start), np.arange(stop, onehot.shape[0])])
        inverse = 1.0 / (a * onehot.diagonal()[start:stop] + self._ridge[p + start : p + stop])
        cross, others = gram.cross[start:stop], sparse.csr_array(onehot[start:stop][:, rest])
        scaled = inverse[:, None] * cross
        schur = np.empty((p + len(rest), p + len(rest)))
        schur[:p, :p] = a * gram.numeric - a * a * (cross.T @ scaled)
        schur[p:, :p] = a * gram.cross[rest] - a * a * (others.T @ scaled)
        schur[:p, p:] = schur[p:, :p].T
        inner = others.T @ sparse.csr_array(others.multiply(inverse[:, None]))
        schur[p:, p:] = a * onehot[rest][:, rest].toarray() - a * a * inner.toarray()
        columns = np.concatenate([np.arange(p), p + rest])
        schur[np.diag_indices_from(schur)] += self._ridge[columns]
        factor = linalg.cho_factor(schur, lower=True, overwrite_a=True, check_finite=False)
        category = slice(p + start, p + stop)

        def uncentred(values: Array) -> Array:
            head = inverse[:, None] * values[category]
            right = values[columns]
            right[:p] -= a * (cross.T @ head)
            right[p:] -= a * (others.T @ head)
            tail = linalg.cho_solve(factor, right, check_finite=False)
            solution = np.empty_like(values)
            solution[columns] = tail
            solution[category] = head - inverse[:, None] * (
                a * (cross @ tail[:p] + others @ tail[p:])
            )
            return solution

        # Woodbury for the centring, K = K₀ + U S Uᵀ with U = [v μ] and S = a [[0, −1], [−1, W]]
        border = np.column_stack([gram.moments, self._centre])
        solved = uncentred(border)
        capacity = np.array([[-gram.weight, -1.0], [-1.0, 0.0]]) / a + border.T @ solved
        return lambda values: _woodbury(uncentred(values), solved, capacity, values)

    def _conjugate(self) -> Callable[[Array], Array]:
        p = self._p
        diagonal = (self._diagonal() + self._ridge)[:, None]
        numeric = self._factor * self._gram.numeric + np.diag(self._ridge[:p])
        factor = linalg.cho_factor(numeric, lower=True) if p else None

        def precondition(values: Array) -> Array:
            result: Array = values / diagonal
            if factor is not None:
                result[:p] = linalg.cho_solve(factor, values[:p], check_finite=False)
            return result

        return lambda values: _conjugate_gradients(self.multiply, precondition, values)


def widest_category(onehot: sparse.csr_array) -> tuple[int, int]:
    """Return the longest run [start, stop) of one-hot columns that never occur together.

    Categories of one feature exclude each other, and each occurs with some category of every other
    feature: the runs are the features.
    """
    q = onehot.shape[0]
    upper = sparse.csc_array(sparse.triu(onehot, 1))
    upper.sort_indices()
    last = np.full(q, -1)
    filled = np.diff(upper.indptr) > 0
    last[filled] = upper.indices[upper.indptr[1:][filled] - 1]
    best, start = (0, 0), 0
    while start < q:
        clash = np.flatnonzero(last[start + 1 :] >= start)
        stop = start + 1 + int(clash[0]) if len(clash) else q
        if stop - start > best[1] - best[0]:
            best = (start, stop)
        start = stop
    return best


def _times(gram: GramMatrix, p: int, values: Array) -> Array:
    return np.concatenate(
        [
            gram.numeric @ values[:p] + gram.cross.T @ values[p:],
            gram.cross @ values[:p] + gram.onehot @ values[p:],
        ]
    )


def _woodbury(uncentred: Array, solved: Array, capacity: Array, values: Array) -> Array:
    result: Array = uncentred - solved @ np.linalg.solve(capacity, solved.T @ values)
    return result


def _conjugate_gradients(
    multiply: Callable[[Array], Array],
    precondition: Callable[[Array], Array],
    values: Array,
    tolerance: float = 1e-10,
    limit: int = 2000,
) -> Array:
    """Solve for all columns of `values` at once, each with its own step lengths."""
    solution = np.zeros_like(values)
    residual = values.copy()
    goal = tolerance * np.linalg.norm(values, axis=0)
    direction = precondition(residual)
    product = np.einsum("dc,dc->c", residual, direction)
    for _ in range(limit):
        if np.all(np.linalg.norm(residual, axis=0) <= goal):
            break
        image = multiply(direction)
        curvature = np.einsum("dc,dc->c", direction, image)
        length = np.divide(product, curvature, out=np.zeros_like(product), where=curvature > 0)
        solution += length * direction
        residual -= length * image
        image = precondition(residual)
        before, product = product, np.einsum("dc,dc->c", residual, image)
        ratio = np.divide(product, before, out=np.zeros_like(product), where=before > 0)
        direction = image + ratio * direction
    return solution


# Ridge systems of one block whose outputs are classes: K = S ⊗ X̃ᵀCX̃/N + l2 I.
#
# S = diag(π) − π πᵀ is the curvature of the softmax loss if the classes' shares π are every row's
# probabilities. K is the block's Hessian there. Adding a constant to all scores of a row does not
# change the loss; in this direction the mean curvature of the others replaces 0.

STEP = 2.0
"""Base of the powers to which curvatures are rounded, so that few systems serve many classes."""
RANGE = 2.0**20
"""Maximum ratio of the largest curvature to the smallest that is distinguished."""


class ClassSolver:
    """Solver of K, up to the rounding of S's eigenvalues."""

    def __init__(
        self, gram: GramMatrix, centre: Array, total: float, shares: Sequence[float], l2: float
    ) -> None:
        values, self._vectors = np.linalg.eigh(class_curvature(shares))
        if not values[-1] > 0.0:
            raise InternalError(f"shares {list(shares)} of classes have no curvature")
        values = np.maximum(values, values[-1] / RANGE)
        rounded = STEP ** np.round(np.log(values) / np.log(STEP))
        self._rounded = rounded
        self._solvers = {
            scale: BlockSolver(gram, centre, total, float(scale), l2) for scale in set(rounded)
        }

    def solve(self, values: Array) -> Array:
        """Return K⁻¹ V: (d, classes) -> (d, classes)."""
        turned = np.asarray(values, np.float64) @ self._vectors
        parts = np.empty_like(turned)
        for scale, solver in self._solvers.items():
            same = self._rounded == scale
            parts[:, same] = solver.solve(turned[:, same])
        solved: Array = parts @ self._vectors.T
        return solved


def class_curvature(shares: Sequence[float]) -> Array:
    """Return S, with its null space filled: (classes, classes)."""
    p = np.asarray(shares, np.float64)
    curvature: Array = np.diag(p) - np.outer(p, p)
    curvature += np.trace(curvature) / (max(len(p) - 1, 1) * len(p))
    return curvature
