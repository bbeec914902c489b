"""Vectors of one block of vector-free L-BFGS, and their inner products.

The basis of a block, in this order: θ, g, P g, then m each of s, y and P y in a ring (memory m,
newest pair of iteration k at position (k − 1) mod m). A direction is a combination of P g, the s
and the P y. Every party holds its block's vectors; the coordinator holds the inner products,
summed over blocks, which suffice for the two-loop recursion.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.methods.lbfgs.messages import MEMORY, coefficients_length

THETA, GRADIENT, IMAGE = 0, 1, 2
"""Positions of θ, g and P g in the basis."""


def newest(iteration: int, memory: int = MEMORY) -> Array:
    """Positions in the basis of the six vectors that iteration `iteration` renewed."""
    position = (iteration - 1) % memory
    return np.array([0, 1, 2, 3 + position, 3 + memory + position, 3 + 2 * memory + position])


def sent(directions: Array) -> Array:
    """Steps of the blocks, (blocks, 3 + 3m) in their basis, as `Basis.move` takes them: (blocks,
    1 + 2m)."""
    m = (directions.shape[1] - 3) // 3
    parts = [directions[:, [IMAGE]], directions[:, 3 : 3 + m], directions[:, 3 + 2 * m :]]
    return np.concatenate(parts, axis=1)


class Basis:
    """The vectors of one block; `precondition` applies P to a (d, c) array."""

    def __init__(
        self, theta: Array, precondition: Callable[[Array], Array], memory: int = MEMORY
    ) -> None:
        self._shape = theta.shape
        self._memory = memory
        self._precondition = precondition
        self._vectors = np.zeros((3 + 3 * memory, theta.size))
        self._vectors[0] = theta.reshape(-1)
        self._step = np.zeros(theta.size)
        self._iteration = -1

    @property
    def theta(self) -> Array:
        theta: Array = self._vectors[0].reshape(self._shape)
        return theta

    @property
    def preconditioned(self) -> Array:
        """P g: (d, c)."""
        image: Array = self._vectors[2].reshape(self._shape)
        return image

    def restart(self, theta: Array) -> None:
        """Begin anew at θ (d, c), in other units or of more columns: of the vectors so far none
        counts."""
        self._shape = theta.shape
        self._vectors = np.zeros((len(self._vectors), theta.size))
        self._vectors[0] = theta.reshape(-1)
        self._step = np.zeros(theta.size)

    def direction(self, coefficients: Array) -> Array:
        """Return the direction with these coefficients: (d, c)."""
        if len(coefficients) != coefficients_length(self._memory):
            raise InternalError(f"a step of {len(coefficients)} coefficients")
        m = self._memory
        flat = coefficients[0] * self._vectors[2]
        flat += coefficients[1 : 1 + m] @ self._vectors[3 : 3 + m]
        flat += coefficients[1 + m :] @ self._vectors[3 + 2 * m :]
        return np.asarray(flat).reshape(self._shape)

    def move(self, coefficients: Array) -> None:
        """θ ← θ + the step that the coefficients describe."""
        self.shift(self.direction(coefficients))

    def shift(self, step: Array) -> None:
        """θ ← θ + any step (d, c)."""
        self._step = step.reshape(-1)
        self._vectors[0] += self._step

    def renew(self, gradient: Array) -> Array:
        """Takes g at the new θ, stores the pair, returns the products (6 · (3 + 3m),)."""
        m, flat = self._memory, gradient.reshape(-1)
        image = self._precondition(gradient).reshape(-1)
        self._iteration += 1
        positions = newest(self._iteration, m)
        if self._iteration > 0:
            self._vectors[positions[3]] = self._step
            self._vectors[positions[4]] = flat - self._vectors[1]
            self._vectors[positions[5]] = image - self._vectors[2]
        self._vectors[1], self._vectors[2] = flat, image
        return np.asarray(self._vectors[positions] @ self._vectors.T).reshape(-1)
