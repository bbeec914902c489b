"""Ridge systems of one block whose outputs are classes: K = S ⊗ X̃ᵀCX̃/N + l2 I.

S = diag(π) − π πᵀ is the curvature of the softmax loss where the classes' shares π are every row's
probabilities: K is the block's Hessian there. What is the same in all scores of a row does not
change the loss; there the mean curvature of the other directions stands in for 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.models.solver import BlockSolver

STEP = 2.0
"""Curvatures are rounded to powers of it, so that few systems serve many classes."""
RANGE = 2.0**20
"""The largest curvature over the smallest that is told from others."""


class ClassSolver:
    """Solves with K, up to the rounding of S's eigenvalues."""

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
        """K⁻¹ V: (d, classes) -> (d, classes)."""
        turned = np.asarray(values, np.float64) @ self._vectors
        found = np.empty_like(turned)
        for scale, solver in self._solvers.items():
            own = self._rounded == scale
            found[:, own] = solver.solve(turned[:, own])
        solved: Array = found @ self._vectors.T
        return solved


def class_curvature(shares: Sequence[float]) -> Array:
    """S, with its null space filled: (classes, classes)."""
    p = np.asarray(shares, np.float64)
    curvature: Array = np.diag(p) - np.outer(p, p)
    curvature += np.trace(curvature) / (max(len(p) - 1, 1) * len(p))
    return curvature
