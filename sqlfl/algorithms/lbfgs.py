"""Block-preconditioned, vector-free L-BFGS for generalised linear models.

H is linear in θ: a party sends X̃ P g of its block and the inner products of its newest vectors with
its basis. The coordinator runs the two-loop recursion on the summed inner products, forms H_d of
the direction from predictions that it holds (X̃ P y is the difference of successive X̃ P g, X̃ s is
α H_d), and searches along it exactly. One exchange per iteration, two where a slot has several
clients; one more iteration's exchanges at the start for the first gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sqlfl.algorithms.base import (
    Channel,
    Conversation,
    Problem,
    Step,
    column_means,
    relative,
)
from sqlfl.errors import InternalError
from sqlfl.models.basis import MEMORY, Basis, coefficients_length, newest, products_length
from sqlfl.options import EPOCHS, TOLERANCE

Array = npt.NDArray[Any]

THETA, GRADIENT, IMAGE = 0, 1, 2
"""Positions of θ, g and P g in the basis."""


class Lbfgs:
    """Options: epochs (iterations), tolerance.

    It has converged when the last decrease of the objective and the one that the next direction
    promises (half the Newton decrement, ½|g·d|) are both at most `tolerance` of the objective, or
    when float32 rounding leaves no descent.
    """

    def __init__(self, problem: Problem, channel: Channel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        outputs, loss = problem.outputs, problem.loss
        curvature = loss.curvature
        self._intercept = Basis(
            np.array(loss.initial_intercept(problem.targets), np.float64).reshape(1, outputs),
            lambda gradient: gradient / curvature,
        )
        self._scores = np.tile(self._intercept.theta, (problem.mapping.total, 1))
        self._inner = _InnerProducts()
        self._predicted = _Predictions(problem)

    @property
    def intercept(self) -> Array:
        return np.array(self._intercept.theta[0])

    @property
    def scores(self) -> Array:
        return self._scores

    def start(self) -> None:
        """Start, second moments of shared slots, and the first gradient."""
        self._conversation.start("lbfgs")
        self._conversation.share_grams()
        self._exchange(np.zeros(coefficients_length()))

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        tolerance = problem.number("tolerance", TOLERANCE["lbfgs"])
        loss = problem.loss.value(self._scores, problem.targets)
        objective = first = loss + self._penalty()
        epochs = int(problem.number("epochs", EPOCHS["lbfgs"]))
        direction, scored, length = self._plan()
        for epoch in range(1, epochs + 1):
            coefficients = self._inner.coefficients(length, direction)
            self._intercept.move(coefficients)
            self._scores = self._scores + length * scored
            self._predicted.move(length, self._inner.iteration)
            self._exchange(coefficients)
            before = objective
            loss = problem.loss.value(self._scores, problem.targets)
            objective = loss + self._penalty()
            promised = 0.5 * abs(self._inner.slope(self._inner.direction()))
            change = max(before - objective, promised)
            converged = relative(change, objective, first) <= tolerance
            if not converged and epoch < epochs:
                direction, scored, length = self._plan()
                converged = length == 0.0
            yield Step(epoch, objective, loss, converged)
            if converged:
                return

    def _plan(self) -> tuple[Array, Array, float]:
        """The next direction, H_d and α."""
        direction = self._inner.direction()
        scored = self._predicted.combine(direction, self._intercept)
        return direction, scored, self._search(scored, direction)

    def _exchange(self, coefficients: Array) -> None:
        """The clients make the step; their new gradients' images and products come back."""
        problem = self._problem
        values = problem.loss.gradient(self._scores, problem.targets)
        replies = self._conversation.step(self._conversation.whole, values, coefficients)
        products = self._conversation.products(replies)
        own = self._intercept.renew(column_means(values)[None, :])
        self._inner.renew(products, own)
        rows = self._conversation.whole.concatenate(replies)
        self._predicted.renew(rows, self._inner.iteration)

    def _penalty(self) -> float:
        return 0.5 * self._problem.l2 * float(self._inner.blocks[THETA, THETA])

    def _search(self, scored: Array, direction: Array) -> float:
        """argmin φ(α) of the objective at H + α H_d; 0 where there is no descent."""
        problem, blocks = self._problem, self._inner.blocks
        l2 = problem.l2
        cross = l2 * float(blocks[THETA] @ direction)
        square = l2 * float(direction @ blocks @ direction)

        def along(step: float) -> tuple[float, float, float]:
            value, slope, curvature = problem.loss.along(
                self._scores, scored, problem.targets, step
            )
            return (
                value + step * cross + 0.5 * step * step * square,
                slope + cross + step * square,
                curvature + square,
            )

        return exact_line_search(along)


def exact_line_search(along: Callable[[float], tuple[float, float, float]]) -> float:
    """The minimum over α > 0 of a convex φ: safeguarded Newton steps on φ'.

    `along(α)` gives φ, φ' and φ''. Returns 0 where φ' (0) ≥ 0 or rounding hides any decrease.
    """
    start, slope, curvature = along(0.0)
    if not slope < 0.0:
        return 0.0
    low, high = 0.0, np.inf
    first = slope
    step = min(-slope / curvature, 10.0) if curvature > 0.0 else 1.0
    value = start
    for _ in range(50):
        value, slope, curvature = along(step)
        if abs(slope) <= 1e-7 * abs(first):
            break
        if slope > 0.0:
            high = step
        else:
            low = step
        proposal = step - slope / curvature if curvature > 0.0 else np.inf
        if not low < proposal < min(high, 10.0 * step):
            proposal = 0.5 * (low + high) if np.isfinite(high) else 4.0 * step
        step = proposal
    return float(step) if value < start else 0.0


class _InnerProducts:
    """Inner products of the basis vectors, summed over blocks, and the two-loop recursion."""

    def __init__(self, memory: int = MEMORY) -> None:
        size = 3 + 3 * memory
        self._memory = memory
        self.iteration = -1
        self.blocks = np.zeros((size, size))
        """Without the intercept, which is not penalised."""
        self._total = np.zeros((size, size))

    def renew(self, products: Array, intercept: Array) -> None:
        if len(products) != products_length(self._memory):
            raise InternalError(f"{len(products)} inner products of a block")
        self.iteration += 1
        positions = newest(self.iteration, self._memory)
        for matrix, added in ((self.blocks, products), (self._total, products + intercept)):
            rows = added.reshape(6, -1)
            matrix[positions] = rows
            matrix[:, positions] = rows.T

    def slope(self, direction: Array) -> float:
        """g·d"""
        return float(self._total[GRADIENT] @ direction)

    def coefficients(self, length: float, direction: Array) -> Array:
        """α and the direction, as `Residuals` carry them."""
        m = self._memory
        return np.concatenate(
            [[length], direction[[IMAGE]], direction[3 : 3 + m], direction[3 + 2 * m :]]
        )

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


class _Predictions:
    """X̃ P g, X̃ s and X̃ P y: per row of every slot or per joined row, whichever are fewer."""

    def __init__(self, problem: Problem, memory: int = MEMORY) -> None:
        self._mapping = problem.mapping
        self._memory = memory
        self._by_slot = sum(self._mapping.sizes) < self._mapping.total
        self._image: Array | None = None
        self._steps: dict[int, Array] = {}
        self._differences: dict[int, Array] = {}
        self._combined: Array | None = None

    def renew(self, slots: list[Array], iteration: int) -> None:
        if self._by_slot:
            image = np.concatenate(slots)
        else:
            image = self._mapping.gather_sum(slots).astype(np.float32)
        if self._image is not None:
            position = int(newest(iteration, self._memory)[5])
            self._differences[position] = image - self._image
        self._image = image

    def move(self, length: float, iteration: int) -> None:
        """Keeps X̃ s of the step just made, the one before iteration `iteration` + 1."""
        if self._combined is None:
            raise InternalError("a step without a direction")
        position = int(newest(iteration + 1, self._memory)[3])
        self._steps[position] = (length * self._combined).astype(np.float32)

    def combine(self, direction: Array, intercept: Basis) -> Array:
        """H_d: (N, d_c)."""
        if self._image is None:
            raise InternalError("a direction without predictions")
        total = direction[IMAGE] * self._image.astype(np.float64)
        for vectors in (self._steps, self._differences):
            for position, values in vectors.items():
                if direction[position] != 0.0:
                    total += direction[position] * values
        self._combined = total
        if self._by_slot:
            bounds = np.cumsum(self._mapping.sizes)[:-1]
            scored = self._mapping.gather_sum(np.split(total, bounds))
        else:
            scored = total.copy()
        m = self._memory
        own = np.concatenate(
            [[0.0], direction[[IMAGE]], direction[3 : 3 + m], direction[3 + 2 * m :]]
        )
        scored += intercept.direction(own)
        return scored
