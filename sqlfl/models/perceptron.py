"""Towers over small tables, in numpy: the work of `models.neural` in a sixth of the time.

A step over a hundred rows is a handful of products of small matrices. With torch, making the graph
would take nearly all of the time. torch handles larger tables, dropped units, gradients of single
rows, and gelu, whose error function is faster there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.towers import TowerShape, activate

SMALL = 1 << 19
"""Values of all hidden units over all rows up to which torch is no faster."""


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
        if not suits(shape, columns.rows):
            raise InternalError(f"a tower of {columns.rows} rows and {shape} is torch's")
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


def suits(shape: TowerShape, rows: int) -> bool:
    """Return True if numpy is faster, by measurements of steps over batches and over all rows."""
    return shape.activation != "gelu" and rows * sum(shape.hidden) <= SMALL


@dataclass(frozen=True, eq=False)
class PerceptronPass:
    """One forward pass: the outputs of some rows, and the backward pass from them."""

    network: Perceptron
    parameters: Sequence[Array]
    """W₁, b₁, …, W_out."""
    rows: Array | None
    first: Array
    """X̃ W₁ (n, hidden[0])"""

    def outputs(self) -> Array:
        """Return h (n, outputs)."""
        last: Array = self._hidden[-1] @ self.parameters[-1]
        return np.tanh(last) if self.network.shape.bounded else last

    def backward(self, values: Array, limit: None = None) -> Array:
        """Return Σ_r ∂(h_r·V_r)/∂θ: (n, outputs) -> (size,), in the order of `TowerShape.pack`."""
        shape = self.network.shape
        if values.shape != (len(self.first), shape.outputs):
            wanted = (len(self.first), shape.outputs)
            raise InternalError(f"values must be {wanted}; got {values.shape}")
        slope, gradients = values, []
        if shape.bounded:
            slope = slope * derivative("tanh", self.outputs())
        weights = self.parameters[2::2]
        for made, layer_weights in zip(reversed(self._hidden), reversed(weights), strict=True):
            gradients.append(made.T @ slope)
            slope = slope @ layer_weights.T
            slope *= derivative(shape.activation, made)
            gradients.append(slope.sum(axis=0))
        gradients.append(self.network.columns.gradient(slope, self.rows))
        return np.concatenate([part.reshape(-1) for part in reversed(gradients)])

    @cached_property
    def _hidden(self) -> list[Array]:
        """Return the outputs of the units of every hidden layer."""
        name, values, layers = self.network.shape.activation, self.first, []
        for bias, weights in zip(self.parameters[1::2], self.parameters[2::2], strict=True):
            layers.append(activate(name, values + bias))
            if weights is not self.parameters[-1]:
                values = layers[-1] @ weights
        return layers


def derivative(name: str, made: Array) -> Array:
    """Return the derivative of the activation, element by element, where its value is `made`."""
    match name:
        case "relu":
            return made > 0.0
        case "tanh":
            return 1.0 - made * made
    raise InternalError(f"no derivative of the activation {name!r}")
