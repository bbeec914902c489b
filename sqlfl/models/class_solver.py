"""Ridge systems of one block whose outputs are classes: K = S ⊗ X̃ᵀCX̃/N + l2 I.

S = diag(π) − π πᵀ is the curvature of the softmax loss if the classes' shares π are every row's
probabilities. K is the block's Hessian there. Adding a constant to all scores of a row does not
change the loss; in this direction the mean curvature of the others replaces 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.models.solver import BlockSolver

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
