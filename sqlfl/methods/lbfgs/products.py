"""Inner products of the blocks' vectors, and the direction that they give."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.methods.lbfgs.basis import GRADIENT, IMAGE, THETA, newest
from sqlfl.methods.lbfgs.lengths import MEMORY, products_length

LOST = 1e-6
"""Length of a direction, relative to the vectors that it is a difference of, below which rounding
is too much of it."""


class InnerProducts:
    """Inner products of the basis vectors, summed over blocks, and the two-loop recursion."""

    def __init__(self, blocks: int, memory: int = MEMORY) -> None:
        size = 3 + 3 * memory
        self._memory = memory
        self._oldest = 1
        """The first iteration whose pair counts."""
        self.iteration = -1
        self.blocks = np.zeros((blocks, size, size))
        """Of each block; without the intercept, which is not penalised."""
        self._total = np.zeros((size, size))

    def renew(self, products: Array, intercept: Array) -> None:
        """products: (blocks, 6 · (3 + 3m)) of the parties' blocks; those of the intercept."""
        if products.shape != (len(self.blocks), products_length(self._memory)):
            raise InternalError(f"inner products of shape {products.shape}")
        self.iteration += 1
        positions = newest(self.iteration, self._memory)
        added = [*products, products.sum(axis=0) + intercept]
        for matrix, rows in zip((*self.blocks, self._total), added, strict=True):
            matrix[positions] = rows.reshape(6, -1)
            matrix[:, positions] = rows.reshape(6, -1).T

    def forget(self) -> None:
        """Pairs up to that of the next iteration no longer count."""
        self._oldest = self.iteration + 2

    @property
    def gradient(self) -> float:
        """‖g‖, that of the intercept included."""
        return float(np.sqrt(self._total[GRADIENT, GRADIENT]))

    @property
    def squares(self) -> Array:
        """Of each block ‖g‖² and gᵀP g: (blocks, 2)."""
        return self.blocks[:, GRADIENT, [GRADIENT, IMAGE]]

    def slope(self, direction: Array) -> float:
        """g·d"""
        return float(self._total[GRADIENT] @ direction)

    def penalty(self, ways: Array, l2: float) -> tuple[Array, Array]:
        """Slope (blocks, ways) and curvature (blocks, ways, ways) of the penalty along each block's
        part of `ways` (ways, 3 + 3m)."""
        return l2 * self.blocks[:, THETA] @ ways.T, l2 * (ways @ self.blocks @ ways.T)

    def lost(self, ways: Array) -> Array:
        """Which blocks' parts of `ways` (ways, 3 + 3m) are rounding: (blocks, ways).

        A former gradient is told by the differences since. Where it was as good as 0, nothing of
        it is left in them.
        """
        squares = np.einsum("ki,sij,kj->sk", ways, self.blocks, ways)
        lengths = np.sqrt(np.diagonal(self.blocks, axis1=1, axis2=2)) @ np.abs(ways).T
        found: Array = squares < (LOST * lengths) ** 2
        return found

    def direction(self) -> Array:
        """−H g in the basis (3 + 3m,), with γ P, γ = s·y / y·P y, as the initial matrix."""
        m, g = self._memory, self._total
        pairs = self._pairs()
        q = np.zeros(len(g))
        q[GRADIENT] = 1.0
        factors: dict[int, float] = {}
        for s, y, _ in reversed(pairs):
            factors[s] = float(g[s] @ q) / g[s, y]
            q[y] -= factors[s]
        gamma = 1.0
        if pairs:
            s, y, image = pairs[-1]
            gamma = g[s, y] / g[y, image]
        r = np.zeros(len(g))
        r[IMAGE] = gamma * q[GRADIENT]
        r[3 + 2 * m :] = gamma * q[3 + m : 3 + 2 * m]
        for s, y, _ in pairs:
            r[s] += factors[s] - float(g[y] @ r) / g[s, y]
        if not float(g[GRADIENT] @ r) > 0.0:
            r[:] = 0.0
            r[IMAGE] = 1.0
        return -r

    def _pairs(self) -> list[tuple[int, int, int]]:
        """Positions of s, y and P y, oldest first, of those pairs with positive curvature."""
        m, g = self._memory, self._total
        found = []
        for k in range(max(self._oldest, self.iteration - m + 1), self.iteration + 1):
            _, _, _, s, y, image = (int(position) for position in newest(k, m))
            noise = 1e-12 * np.sqrt(g[s, s] * g[y, y])
            if g[s, y] > noise and g[y, image] > 0.0:
                found.append((s, y, image))
        return found
