"""Neural towers: the shape of one slot's multilayer perceptron, and its predictions.

h = a(… a(a(X̃ W₁ + b₁) W₂ + b₂) …) W_out, with the activation a after every hidden layer. The
output has no activation, or tanh if it is bounded. It has no bias: the coordinator's intercept is
the sum of all. An engine computes X̃ W₁, so that one-hot columns stay sparse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy.special import erf

from sqlfl.base.arrays import Array
from sqlfl.base.codec import LEFT_OUT
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.base.interrupts import checkpoint

Values: TypeAlias = Any
"""Numpy array, or tensor of torch."""


@dataclass(frozen=True)
class TowerShape:
    """A multilayer perceptron over d encoded columns."""

    inputs: int
    """d"""
    hidden: tuple[int, ...]
    """Widths of the hidden layers, at least one."""
    outputs: int
    """d_c, or P before a head."""
    activation: str
    """'relu', 'tanh' or 'gelu'."""
    bounded: bool = field(default=False, metadata=LEFT_OUT)
    """True if tanh is applied to the output, so that it is in [−1, 1]."""

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of W₁, b₁, W₂, b₂, …, W_out: weights are (in, out), biases (out,)."""
        widths = (self.inputs, *self.hidden)
        layers: list[tuple[int, ...]] = []
        for before, after in pairwise(widths):
            layers += [(before, after), (after,)]
        return (*layers, (self.hidden[-1], self.outputs))

    @property
    def size(self) -> int:
        """Return the total number of parameters."""
        return self.bounds[-1][1]

    @cached_property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Return where each of `shapes` begins and ends among all parameters."""
        ends = list(accumulate((prod(shape) for shape in self.shapes), initial=0))
        return tuple(pairwise(ends))

    def pack(self, parameters: Sequence[Array]) -> Array:
        """Return the arrays, row after row, as one float64 column (size, 1), as messages carry
        them.
        """
        return np.concatenate([np.asarray(p, np.float64).reshape(-1) for p in parameters])[:, None]

    def unpack(self, column: Array) -> tuple[Array, ...]:
        """Return the arrays given to `pack`, as views. Raise InternalError for another size."""
        flat = np.asarray(column, np.float64).reshape(-1)
        if len(flat) != self.size:
            raise InternalError(f"{len(flat)} parameters for a tower of {self.size}")
        parts = zip(self.bounds, self.shapes, strict=True)
        return tuple(flat[start:end].reshape(shape) for (start, end), shape in parts)

    def forward(self, first: Array, parameters: Sequence[Array]) -> Array:
        """Return h (n, outputs) from X̃ W₁ (n, hidden[0]) and all parameters, with W₁ unused."""
        values = np.asarray(first, np.float64)
        for bias, weights in zip(parameters[1::2], parameters[2::2], strict=True):
            values = activate(self.activation, values + bias) @ weights
        return np.tanh(values) if self.bounded else values


class TowerPass(Protocol):
    """One forward pass of some rows, and the backward pass."""

    @property
    def rows(self) -> Array | None:
        """Return the rows; None for all."""
        ...

    def outputs(self) -> Values:
        """Return h (n, outputs)."""
        ...

    def backward(self, values: Values, limit: Any = None) -> Values:
        """Return Σ_r ∂(h_r·V_r)/∂θ: (n, outputs) -> (size,), with each row's part bounded by a
        `limit`.
        """
        ...


class Tower(Protocol):
    """Tower over the rows of one client, in numpy or torch; its parameters are flat (size,)."""

    shape: TowerShape

    def tensor(self, values: Array) -> Values:
        """Return values in the form that the tower computes with."""
        ...

    def numpy(self, values: Values) -> Array:
        """Return such values in float64."""
        ...

    def index(self, rows: Array) -> Values:
        """Return `rows` as an index of such values."""
        ...

    def forward(self, parameters: Values, rows: Array | None, draw: int | None = None) -> TowerPass:
        """Return a forward pass. `draw`: seed of the dropped units; without effect if no unit ever
        drops.
        """
        ...


def first_parameters(shape: TowerShape, numeric: int, seed: int, slot: int) -> tuple[Array, ...]:
    """Return the first parameters of a tower: W₁, b₁, …, W_out, the same at every client of the
    slot.

    numeric: number of first columns that are numeric; the others are one-hot. The latter's rows of
    W₁ are 0, so that nothing depends on the order or the number of a vocabulary's entries.

    Biases are random: otherwise all hidden units of a slot with only categories would be alike.
    They are positive if negative inputs are cut off: otherwise such units would stay dead. First
    predictions are small, unless they are bounded: there, small values would be lost in the draws.
    """
    generator = np.random.default_rng([seed, slot])
    drawn: list[Array] = []
    for size in shape.shapes[1:]:
        if len(size) == 1:
            low = -1.0 if shape.activation == "tanh" else 0.1
            drawn.append(generator.uniform(low, 1.0, size))
        else:
            last = size == shape.shapes[-1] and len(drawn) == len(shape.shapes) - 2
            final = 1.0 if shape.bounded else SMALL
            spread = final if last else _gain(shape.activation)
            drawn.append(generator.normal(0.0, spread / np.sqrt(size[0]), size))
    first = np.zeros(shape.shapes[0])
    spread = _gain(shape.activation) / np.sqrt(max(numeric, 1))
    first[:numeric] = generator.normal(0.0, spread, (numeric, shape.hidden[0]))
    return (first, *drawn)


SMALL = 0.3
"""Approximate standard deviation of first predictions: the steps should make them, not the draw."""


def _gain(activation: str) -> float:
    """Return the gain with which values keep their size from layer to layer (Glorot; He if half is
    cut off).
    """
    return 1.0 if activation == "tanh" else 2.0**0.5


def seed_of(*numbers: int) -> int:
    """Return one seed from several non-negative numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)


def torch_missing() -> ModelError:
    """Return the error of a party that cannot import torch."""
    return ModelError(
        "neural towers are trained with PyTorch, which cannot be imported here",
        hint="pip install 'sqlfl[neural]' at this party",
    )


def activate(name: str, values: Array) -> Array:
    """Return the activation function, element by element; gelu is the exact one, x Φ(x)."""
    match name:
        case "relu":
            return np.maximum(values, 0.0)
        case "tanh":
            return np.tanh(values)
        case "gelu":
            gelu: Array = 0.5 * values * (1.0 + erf(values / np.sqrt(2.0)))
            return gelu
    raise InternalError(f"there is no activation {name!r}")


def weights_of(parameters: Sequence[Array]) -> tuple[Array, ...]:
    """Return W₁, W₂, …, W_out, which the penalty covers."""
    return tuple(parameters[0::2])


# Towers in numpy: the work of `models.neural` in a sixth to three quarters of the time.
#
# A step over a hundred rows is a handful of products of small matrices. With torch, making the
# graph would take nearly all of the time. torch handles devices, dropped units, gradients of single
# rows, and gelu, whose error function is faster there.

DEVICE_VALUES = 1 << 19
"""Values of all hidden units over all rows up to which no device is faster."""
KEPT_VALUES = 1 << 22
"""Values of the hidden units of a pass that are kept for its backward pass."""
CHUNK_VALUES = 1 << 17
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
    return rows * sum(shape.hidden) <= DEVICE_VALUES


@dataclass(frozen=True, eq=False)
class PerceptronPass:
    """One forward pass: the outputs of some rows, and the backward pass from them.

    Both work in chunks of rows. A few outputs of hidden units are kept for the backward pass. If
    they are many, the backward pass computes them again, and only X̃ W₁ stays in memory.
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
            expected = (len(self.first), shape.outputs)
            raise InternalError(f"values must be {expected}; got {values.shape}")
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
        for outputs, bias_sums, weights, weight_sums in reversed(list(layers)):
            weight_sums += outputs.T @ slope
            slope = slope @ weights.T
            slope *= derivative(shape.activation, outputs)
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
        if len(self.first) * sum(shape.hidden) <= KEPT_VALUES:
            self.kept[part.start] = layers
        return layers

    def _chunks(self) -> Iterator[slice]:
        size = max(1, CHUNK_VALUES // sum(self.network.shape.hidden))
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
