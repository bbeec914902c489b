"""Block-preconditioned, vector-free L-BFGS for generalised linear models.

H is linear in θ: a party sends X̃ P g of its block and the inner products of its newest vectors with
its basis. The coordinator runs the two-loop recursion on the summed inner products, forms H_d of
the direction from predictions that it holds (X̃ P y is the difference of successive X̃ P g, X̃ s is
the step taken), and searches exactly: not along the direction as a whole, but over a step length of
each block's part of it and over the intercept, which costs no message and helps where blocks are
correlated. One exchange per iteration, two where a slot has several clients; one more iteration's
exchanges at the start for the first gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sqlfl.algorithms.base import (
    Channel,
    Conversation,
    Problem,
    Step,
)
from sqlfl.algorithms.divergence import column_means, relative
from sqlfl.algorithms.subspace import Lengths, Predicted, Restriction, exact_search
from sqlfl.algorithms.warm import beginning, cold
from sqlfl.errors import InternalError
from sqlfl.models.basis import (
    GRADIENT,
    IMAGE,
    MEMORY,
    THETA,
    Basis,
    coefficients_length,
    newest,
    products_length,
)
from sqlfl.options import EPOCHS, TOLERANCE

Array = npt.NDArray[Any]


class Lbfgs:
    """Options: epochs (iterations), tolerance.

    It has converged when the last decrease of the objective and the one that the next direction
    promises (half the Newton decrement, ½|g·d|) are both at most `tolerance` of the objective, or
    when float32 rounding leaves no descent.
    """

    def __init__(self, problem: Problem, channel: Channel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        start = cold(problem)
        self._intercept = self._basis(start.intercept)
        self._scores = start.scores
        self._inner = _InnerProducts(len(problem.slots))
        self._predicted = Predicted(problem)

    def _basis(self, intercept: Array) -> Basis:
        curvature = self._problem.loss.curvature
        return Basis(intercept.reshape(1, -1), lambda gradient: gradient / curvature)

    @property
    def intercept(self) -> Array:
        return np.array(self._intercept.theta[0])

    @property
    def head(self) -> Array | None:
        return None

    @property
    def scores(self) -> Array:
        return self._scores

    def start(self) -> None:
        """Start, where it starts warm, second moments of shared slots, and the first gradient."""
        self._conversation.start("lbfgs")
        start = beginning(self._problem, self._conversation)
        self._intercept = self._basis(start.intercept)
        self._scores = start.scores
        self._conversation.share_grams()
        self._exchange(np.zeros((1, coefficients_length())))

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        tolerance = problem.number("tolerance", TOLERANCE["lbfgs"])
        loss = problem.value(self._scores)
        objective = first = loss + self._penalty()
        epochs = int(problem.number("epochs", EPOCHS["lbfgs"]))
        lengths = self._search()
        for epoch in range(1, epochs + 1):
            self._move(lengths)
            before = objective
            loss = problem.value(self._scores)
            objective = loss + self._penalty()
            promised = 0.5 * abs(self._inner.slope(self._inner.direction()))
            change = max(before - objective, promised)
            converged = relative(change, objective, first) <= tolerance
            if not converged and epoch < epochs:
                lengths = self._search()
                converged = not lengths.blocks.any() and not lengths.intercept.any()
            yield Step(epoch, objective, loss, converged)
            if converged:
                return

    def _search(self) -> Lengths:
        direction = self._inner.direction()
        self._predicted.combine(direction)
        slope, curvature = self._inner.penalty(direction, self._problem.l2)
        restriction = Restriction(self._problem, self._scores, self._predicted, slope, curvature)
        return restriction.lengths(exact_search(restriction))

    def _move(self, lengths: Lengths) -> None:
        """θ ← θ + the step, at the clients, in the intercept, and in H."""
        coefficients = self._inner.coefficients(lengths.blocks, self._inner.direction())
        self._intercept.shift(lengths.intercept)
        moved = self._predicted.move(lengths.blocks, self._inner.iteration)
        self._scores = self._scores + moved + lengths.intercept
        self._exchange(coefficients)

    def _exchange(self, coefficients: Array) -> None:
        """The clients make the step; their new gradients' images and products come back."""
        values = self._problem.residuals(self._scores)
        replies = self._conversation.step(self._conversation.whole, values, coefficients)
        products = self._conversation.products(replies)
        own = self._intercept.renew(column_means(values)[None, :])
        self._inner.renew(products, own)
        rows = self._conversation.whole.concatenate(replies)
        self._predicted.renew(rows, self._inner.iteration)

    def _penalty(self) -> float:
        return 0.5 * self._problem.l2 * float(self._inner.blocks[:, THETA, THETA].sum())


class _InnerProducts:
    """Inner products of the basis vectors, summed over blocks, and the two-loop recursion."""

    def __init__(self, blocks: int, memory: int = MEMORY) -> None:
        size = 3 + 3 * memory
        self._memory = memory
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

    def slope(self, direction: Array) -> float:
        """g·d"""
        return float(self._total[GRADIENT] @ direction)

    def coefficients(self, lengths: Array, direction: Array) -> Array:
        """α of each block and the direction, as `Residuals` carry them: (blocks, 2 + 2m)."""
        m = self._memory
        shared = np.concatenate([direction[[IMAGE]], direction[3 : 3 + m], direction[3 + 2 * m :]])
        return np.column_stack([lengths, np.tile(shared, (len(lengths), 1))])

    def penalty(self, direction: Array, l2: float) -> tuple[Array, Array]:
        """Slope and curvature (blocks,) of the penalty along each block's part of a direction."""
        return l2 * self.blocks[:, THETA] @ direction, l2 * (self.blocks @ direction @ direction)

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
        for k in range(max(1, self.iteration - m + 1), self.iteration + 1):
            _, _, _, s, y, image = (int(position) for position in newest(k, m))
            noise = 1e-12 * np.sqrt(g[s, s] * g[y, y])
            if g[s, y] > noise and g[y, image] > 0.0:
                found.append((s, y, image))
        return found
