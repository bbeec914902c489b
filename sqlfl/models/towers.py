"""Neural towers: the shape of one slot's multilayer perceptron, and its predictions.

h = a(… a(a(X̃ W₁ + b₁) W₂ + b₂) …) W_out, with the activation a after every hidden layer and none
on the output, or tanh where it is bounded. The output has no bias: the coordinator's intercept is
the sum of all. X̃ W₁ is left to an engine, so that one-hot columns stay sparse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy.special import erf

from sqlfl.base.arrays import Array
from sqlfl.base.codec import LEFT_OUT
from sqlfl.base.errors import InternalError

Values: TypeAlias = Any
"""A numpy array, or a tensor of torch."""


@dataclass(frozen=True)
class TowerShape:
    """A multilayer perceptron over d encoded columns."""

    inputs: int
    """d"""
    hidden: tuple[int, ...]
    """Widths of the hidden layers, at least one."""
    outputs: int
    """d_c, or P where a head follows."""
    activation: str
    """'relu', 'tanh' or 'gelu'."""
    bounded: bool = field(default=False, metadata=LEFT_OUT)
    """tanh is taken of the output, so that it is in [−1, 1]."""

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of W₁, b₁, W₂, b₂, …, W_out: weights are (in, out), biases (out,)."""
        widths = (self.inputs, *self.hidden)
        found: list[tuple[int, ...]] = []
        for before, after in pairwise(widths):
            found += [(before, after), (after,)]
        return (*found, (self.hidden[-1], self.outputs))

    @property
    def size(self) -> int:
        """Parameters in all."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def pack(self, parameters: Sequence[Array]) -> Array:
        """The arrays, row after row, as one float64 column (size, 1), as messages carry them."""
        return np.concatenate([np.asarray(p, np.float64).reshape(-1) for p in parameters])[:, None]

    def unpack(self, column: Array) -> tuple[Array, ...]:
        """What `pack` was given, as views. Raises InternalError for another size."""
        flat = np.asarray(column, np.float64).reshape(-1)
        if len(flat) != self.size:
            raise InternalError(f"{len(flat)} parameters for a tower of {self.size}")
        found, start = [], 0
        for shape in self.shapes:
            end = start + int(np.prod(shape))
            found.append(flat[start:end].reshape(shape))
            start = end
        return tuple(found)

    def forward(self, first: Array, parameters: Sequence[Array]) -> Array:
        """h (n, outputs) from X̃ W₁ (n, hidden[0]) and all parameters, W₁ unused."""
        values = np.asarray(first, np.float64)
        for bias, weights in zip(parameters[1::2], parameters[2::2], strict=True):
            values = activate(self.activation, values + bias) @ weights
        return np.tanh(values) if self.bounded else values


class TowerPass(Protocol):
    """One pass forward of some rows, and the way back."""

    @property
    def rows(self) -> Array | None:
        """None for all."""
        ...

    def outputs(self) -> Values:
        """h (n, outputs)"""
        ...

    def backward(self, values: Values, limit: Any = None) -> Values:
        """Σ_r ∂(h_r·V_r)/∂θ: (n, outputs) -> (size,), each row's part bounded by a `limit`."""
        ...


class Tower(Protocol):
    """A tower over the rows of one client, in numpy or torch; its parameters are flat (size,)."""

    shape: TowerShape

    def tensor(self, values: Array) -> Values:
        """As the tower computes with them."""
        ...

    def numpy(self, values: Values) -> Array:
        """In float64, from what the tower computes with."""
        ...

    def index(self, rows: Array) -> Values:
        """`rows`, to take them of what the tower computes with."""
        ...

    def forward(self, parameters: Values, rows: Array | None, draw: int | None = None) -> TowerPass:
        """`draw`: with units dropped, by this seed; nothing is where no unit ever drops."""
        ...


def first_parameters(shape: TowerShape, numeric: int, seed: int, slot: int) -> tuple[Array, ...]:
    """Where a tower begins: W₁, b₁, …, W_out, the same at every client of the slot.

    `numeric`: the first columns are numeric, the others one-hot. The rows of W₁ of the latter are
    0, so that nothing depends on the order or the number of a vocabulary's entries. Biases are
    random, or else all hidden units of a slot of categories only would be alike; where negative
    inputs are cut off they are positive, or such units would stay dead. First predictions are
    small, but where they are bounded: there what is not small stands out from the draws.
    """
    generator = np.random.default_rng([seed, slot])
    found: list[Array] = []
    for size in shape.shapes[1:]:
        if len(size) == 1:
            low = -1.0 if shape.activation == "tanh" else 0.1
            found.append(generator.uniform(low, 1.0, size))
        else:
            last = size == shape.shapes[-1] and len(found) == len(shape.shapes) - 2
            final = 1.0 if shape.bounded else SMALL
            spread = final if last else _gain(shape.activation)
            found.append(generator.normal(0.0, spread / np.sqrt(size[0]), size))
    first = np.zeros(shape.shapes[0])
    spread = _gain(shape.activation) / np.sqrt(max(numeric, 1))
    first[:numeric] = generator.normal(0.0, spread, (numeric, shape.hidden[0]))
    return (first, *found)


SMALL = 0.3
"""Standard deviation of first predictions, about: the steps should make them, not the draw."""


def _gain(activation: str) -> float:
    """So that values keep their size from layer to layer (Glorot; He where half is cut off)."""
    return 1.0 if activation == "tanh" else 2.0**0.5


def activate(name: str, values: Array) -> Array:
    """The activation function, element by element; gelu is the exact one, x Φ(x)."""
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
    """W₁, W₂, …, W_out: what the penalty is over."""
    return tuple(parameters[0::2])
