"""Columns that clients have sent, as the coordinator stores them.

The cache holds their inner products over the joined rows, and gives the loss and its slopes at
given weights. With b at its best for the weights, the loss is ½ wᵀG w − cᵀw + ½ var(y). G and c are
inner products of centred columns: b is never a variable. `JoinedColumns` have the values of
columns; `SketchedColumns` have their sketches, whose inner products are estimates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.passes import PassResult
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.scores import Scores
from sqlfl.methods.frank_wolfe.sketch import Sketch


class Told(ABC):
    """Columns, numbered over all slots in the order in which they arrived."""

    def __init__(self, slots: int) -> None:
        self.weights = np.zeros(0)
        """w of every column."""
        self.gram = np.zeros((0, 0))
        """G"""
        self.linear = np.zeros(0)
        """c"""
        self._slots = np.zeros(0, np.int64)
        self._numbers: list[dict[int, int]] = [{} for _ in range(slots)]

    def find(self, slot: int, column: int) -> int | None:
        """Return the number of a slot's column; None if it has not arrived."""
        return self._numbers[slot].get(column)

    def add(self, slot: int, column: int, values: Array, noise: float = 0.0) -> int:
        """Add a column with weight 0 and return its number. `noise`: standard deviation of the
        noise in each value.
        """
        number = len(self.weights)
        self._numbers[slot][column] = number
        self.weights = np.append(self.weights, 0.0)
        self._slots = np.append(self._slots, slot)
        products, linear = self._added(slot, values, noise)
        self.gram = np.block([[self.gram, products[:-1, None]], [products[None, :]]])
        self.linear = np.append(self.linear, linear)
        return number

    def of_slot(self, slot: int) -> Array:
        """Return w of the slot's columns, in the order in which they arrived."""
        weights: Array = self.weights[self._slots == slot]
        return weights

    @property
    def convex(self) -> Array:
        """G, without eigenvalues below 0, which noise may give it."""
        return self.gram

    @property
    def slopes(self) -> Array:
        """Return ∂loss/∂w of all columns, by their inner products: (k,)"""
        slopes: Array = self.gram @ self.weights - self.linear
        return slopes

    @abstractmethod
    def _added(self, slot: int, values: Array, noise: float) -> tuple[Array, float]:
        """Inner products of a new column with all and with itself (k + 1,), and with y."""

    @property
    @abstractmethod
    def loss(self) -> float:
        """Return the loss at the weights."""

    @property
    @abstractmethod
    def intercept(self) -> float: ...

    @property
    @abstractmethod
    def scores(self) -> Scores | None:
        """Return the scores of the joined rows; None for sketches, which do not give them."""


class JoinedColumns(Told):
    """Columns with their values."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(len(problem.slots))
        self._problem = problem
        sizes = problem.mapping.sizes
        self._values: list[tuple[int, Array]] = []
        """Slot and float32 (n_i,) of every column, in order of arrival."""
        zero = Scores(tuple(np.zeros((1, size)) for size in sizes), np.zeros(1))
        first = problem.passes.look(zero)
        self._total = problem.passes.total
        self._mean = -float(first.total[0]) / self._total
        """Mean of y."""
        self._first = first
        self._means = np.zeros(0)
        """Means of columns."""
        self._seen: tuple[Array, PassResult, Array] | None = None
        """Weights, the joined rows at them, and the slopes of the columns."""

    def _added(self, slot: int, values: Array, noise: float) -> tuple[Array, float]:
        column = np.asarray(values, np.float64)
        vectors = [np.zeros((1, size)) for size in self._problem.mapping.sizes]
        vectors[slot] = column[None, :]
        images = self._problem.passes.sums(vectors)
        mean = float(images[slot].sum()) / self._total
        self._values.append((slot, column.astype(np.float32)))
        self._means = np.append(self._means, mean)
        products = self._products(images)
        linear = -float(column @ self._first.slots[slot][0]) / self._total
        return products - mean * self._means, linear - mean * self._mean

    def add(self, slot: int, column: int, values: Array, noise: float = 0.0) -> int:
        number = super().add(slot, column, values, noise)
        if self._seen is not None:  # a weight of 0 changes no score
            _, look, slopes = self._seen
            product = float(self._values[number][1] @ look.slots[slot][0]) / self._total
            self._seen = self.weights.copy(), look, np.append(slopes, product)
        return number

    @property
    def scores(self) -> Scores:
        blocks = tuple(np.zeros((1, size)) for size in self._problem.mapping.sizes)
        for weight, (slot, column) in zip(self.weights, self._values, strict=True):
            if weight:
                blocks[slot][0] += weight * column
        return Scores(blocks, np.array([self.intercept]))

    def _products(self, images: Sequence[Array]) -> Array:
        """Return inner products of all columns with the images (1, n_i) of their slots, over N:
        (k,)
        """
        products = [float(column @ images[slot][0]) for slot, column in self._values]
        return np.array(products) / self._total

    @property
    def intercept(self) -> float:
        return self._mean - float(self.weights @ self._means)

    @property
    def look(self) -> PassResult:
        return self._at_weights()[0]

    def _at_weights(self) -> tuple[PassResult, Array]:
        if self._seen is None or not np.array_equal(self._seen[0], self.weights):
            look = self._problem.passes.look(self.scores)
            self._seen = self.weights.copy(), look, self._products(look.slots)
        return self._seen[1], self._seen[2]

    @property
    def loss(self) -> float:
        return self.look.value

    @property
    def slopes(self) -> Array:
        """Return the slopes by Y of every slot, as the clients see them."""
        return self._at_weights()[1]


class SketchedColumns(Told):
    """Columns with their sketches. `order`: int (N,), the order of the joined rows in J.

    Noise of variance s_c² in each number of column c adds m s_c²/N to its inner product with
    itself; this is subtracted. The remaining noise in that of columns c and d has a deviation of
    about s_c s_d √m/N. So in the units s_c m^¼/√N of each column, eigenvalues of k columns are
    known to about √k. Smaller ones are raised to it, because weights would otherwise fit noise.
    Each column has the noise of its own table, which follows from its fan-out.
    """

    def __init__(self, problem: Problem, sketch: Sketch, order: Array) -> None:
        super().__init__(len(problem.slots))
        self._root = float(np.sqrt(problem.mapping.total))
        target = sketch.of(problem.targets[order]) / self._root
        self._one = sketch.of(np.ones(problem.mapping.total)) / self._root
        self._length = float(self._one @ self._one)
        self._target, self._height = self._centred(target)
        self._columns = np.zeros((0, sketch.size))
        self._heights = np.zeros(0)
        self._variances = np.zeros(0)
        """Variance of the noise in each number of each column's sketch, over N."""

    def _centred(self, vector: Array) -> tuple[Array, float]:
        """Return the vector without its part along J1, and the factor of J1 in it."""
        height = float(vector @ self._one) / self._length
        return vector - height * self._one, height

    def _added(self, slot: int, values: Array, noise: float) -> tuple[Array, float]:
        column, height = self._centred(np.asarray(values, np.float64) / self._root)
        self._columns = np.vstack([self._columns, column])
        self._heights = np.append(self._heights, height)
        products = self._columns @ column
        variance = (noise / self._root) ** 2
        products[-1] -= self._columns.shape[1] * variance
        self._variances = np.append(self._variances, variance)
        return products, float(column @ self._target)

    @property
    def convex(self) -> Array:
        if not self._variances.any():
            return self.gram
        count, size = self._columns.shape
        least = 1e-12 * float(self._variances.max())
        units = np.sqrt(np.maximum(self._variances, least) * np.sqrt(size))
        values, vectors = np.linalg.eigh(self.gram / np.outer(units, units))
        raised: Array = (vectors * np.maximum(values, np.sqrt(count))) @ vectors.T
        return raised * np.outer(units, units)

    @property
    def direction(self) -> Array:
        """J (H − y), with b at its best: (m,)"""
        return self._left * self._root

    @property
    def _left(self) -> Array:
        left: Array = self.weights @ self._columns - self._target
        return left

    @property
    def loss(self) -> float:
        """Return the loss as estimated from sketches: noise may make it too small, even
        negative.
        """
        weights = self.weights
        linear = float(self.linear @ weights)
        return 0.5 * float(weights @ (self.gram @ weights) + self._target @ self._target) - linear

    @property
    def intercept(self) -> float:
        return self._height - float(self.weights @ self._heights)

    @property
    def scores(self) -> None:
        return None
