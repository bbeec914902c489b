"""Towers in numpy: the work of `models.neural` in a sixth to three quarters of the time.

A step over a hundred rows is a handful of products of small matrices. With torch, making the graph
would take nearly all of the time. torch handles devices, dropped units, gradients of single rows,
and gelu, whose error function is faster there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.base.interrupts import checkpoint
from sqlfl.models.towers import TowerShape, activate

SMALL = 1 << 19
"""Values of all hidden units over all rows up to which no device is faster."""
KEPT = 1 << 22
"""Values of the hidden units of a pass that are kept for its backward pass."""
CHUNK = 1 << 17
"""Values of the hidden units that are computed at once. So many fit the processor's cache."""


class FirstLayerProducts(Protocol):
    """Products with X̃, the encoded columns of a client's rows. `batch`: (b,), None for all."""

    rows: int
    width: int

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        """Return X̃ W: (d, h) -> (a or b, h)."""
        ...

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        """Return X̃ᵀ V: (a or b, h) -> (d, h)."""
        ...


class Perceptron:
    """Tower over the rows of an engine; its parameters are one flat array (size,), float64."""

    def __init__(self, shape: TowerShape, columns: FirstLayerProducts) -> None:
        if columns.width != shape.inputs:
            raise InternalError(f"a tower over {shape.inputs} columns, of {columns.width}")
        if not suits(shape):
            raise InternalError(f"a tower of {shape} is torch's")
        self.shape = shape
        self.columns = columns

    def tensor(self, values: Array) -> Array:
        return np.asarray(values, np.float64)

    def numpy(self, values: Array) -> Array:
        return values

    def index(self, rows: Array) -> Array:
        return rows

    def forward(
        self, parameters: Array, rows: Array | None, draw: int | None = None
    ) -> PerceptronPass:
        """Return a forward pass. No unit drops, whatever the `draw`."""
        arrays = self.shape.unpack(parameters)
        return PerceptronPass(self, arrays, rows, self.columns.predict(arrays[0], rows))


def suits(shape: TowerShape) -> bool:
    """Return True if numpy is faster than torch on a CPU."""
    return shape.activation != "gelu"


def small(shape: TowerShape, rows: int) -> bool:
    """Return True if a tower over so many rows is faster on the CPU than on any device."""
    return rows * sum(shape.hidden) <= SMALL


@dataclass(frozen=True, eq=False)
class PerceptronPass:
    """One forward pass: the outputs of some rows, and the backward pass from them.

    Both work in chunks of rows. The hidden units' outputs are kept for the backward pass if they
    are few; else the backward pass computes them again, and only X̃ W₁ stays in memory.
    """

    network: Perceptron
    parameters: Sequence[Array]
    """W₁, b₁, …, W_out."""
    rows: Array | None
    first: Array
    """X̃ W₁ (n, hidden[0])"""
    kept: dict[int, list[Array]] = field(default_factory=dict)
    """Outputs of the units of every hidden layer, by the first row of the chunk."""

    def outputs(self) -> Array:
        """Return h (n, outputs)."""
        outputs = np.empty((len(self.first), self.network.shape.outputs))
        for part in self._chunks():
            outputs[part] = self._outputs(self._hidden(part))
        return outputs

    def backward(self, values: Array, limit: None = None) -> Array:
        """Return Σ_r ∂(h_r·V_r)/∂θ: (n, outputs) -> (size,), in the order of `TowerShape.pack`."""
        shape = self.network.shape
        if values.shape != (len(self.first), shape.outputs):
            wanted = (len(self.first), shape.outputs)
            raise InternalError(f"values must be {wanted}; got {values.shape}")
        gradient = np.zeros(shape.size)
        sums = shape.unpack(gradient)
        slopes = np.empty_like(self.first)
        for part in self._chunks():
            slopes[part] = self._backward(values[part], self._hidden(part), sums)
        sums[0][...] = self.network.columns.gradient(slopes, self.rows)
        return gradient

    def _backward(self, values: Array, hidden: Sequence[Array], sums: Sequence[Array]) -> Array:
        """Add a chunk's part to the gradients `sums` of b₁, …, W_out. Return ∂/∂(X̃ W₁) of its
        rows.
        """
        shape, slope = self.network.shape, values
        if shape.bounded:
            slope = slope * derivative("tanh", self._outputs(hidden))
        layers = zip(hidden, sums[1::2], self.parameters[2::2], sums[2::2], strict=True)
        for made, bias_sums, weights, weight_sums in reversed(list(layers)):
            weight_sums += made.T @ slope
            slope = slope @ weights.T
            slope *= derivative(shape.activation, made)
            bias_sums += slope.sum(axis=0)
        return slope

    def _outputs(self, hidden: Sequence[Array]) -> Array:
        last: Array = hidden[-1] @ self.parameters[-1]
        return np.tanh(last) if self.network.shape.bounded else last

    def _hidden(self, part: slice) -> list[Array]:
        """Return the outputs of the units of every hidden layer."""
        if part.start in self.kept:
            return self.kept[part.start]
        shape, values, layers = self.network.shape, self.first[part], []
        for bias, weights in zip(self.parameters[1::2], self.parameters[2::2], strict=True):
            layers.append(activate(shape.activation, values + bias))
            if weights is not self.parameters[-1]:
                values = layers[-1] @ weights
        if len(self.first) * sum(shape.hidden) <= KEPT:
            self.kept[part.start] = layers
        return layers

    def _chunks(self) -> Iterator[slice]:
        size = max(1, CHUNK // sum(self.network.shape.hidden))
        for start in range(0, len(self.first), size):
            checkpoint()
            yield slice(start, start + size)


def derivative(name: str, made: Array) -> Array:
    """Return the derivative of the activation, element by element, where its value is `made`."""
    match name:
        case "relu":
            return made > 0.0
        case "tanh":
            return 1.0 - made * made
    raise InternalError(f"no derivative of the activation {name!r}")
