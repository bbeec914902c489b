"""Neural towers in torch: predictions of rows, and gradients from the coordinator's values.

The first layer, X̃ W₁, belongs to a `FirstLayer`, which knows the rows. All later layers are here,
by autograd. Importing this loads torch: only `party.torch_loading` does, to train a tower that
`models.towers` does not suit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.base.interrupts import checkpoint
from sqlfl.models.towers import TowerShape, seed_of, torch_missing

try:
    import torch
except ImportError as error:
    raise torch_missing() from error

Tensor: TypeAlias = "torch.Tensor"

CHUNK = 65536
"""Rows whose values of the upper layers are in memory at once."""


class FirstLayer(Protocol):
    """Products with X̃, the encoded columns of a client's rows. `rows` (b,) are distinct; None for
    all.

    Tensors are of `dtype`, on `device`.
    """

    device: torch.device
    dtype: torch.dtype
    rows: int
    width: int

    def forward(self, weights: Tensor, rows: Array | None) -> Tensor:
        """Return X̃ W: (d, h) -> (a or b, h)."""
        ...

    def backward(self, slopes: Tensor, rows: Array | None) -> Tensor:
        """Return X̃ᵀ V: (a or b, h) -> (d, h)."""
        ...

    def norms(self, rows: Array | None) -> Tensor:
        """Return ‖x̃_r‖: (a or b,)."""
        ...


class Limit(Protocol):
    """Bound of each row's part of a gradient; see `models.per_row`."""

    def gradients(
        self,
        first: Tensor,
        upper: Sequence[Tensor],
        values: Tensor,
        generator: torch.Generator | None,
        lengths: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return gradients as `TowerNetwork.gradients` does; `lengths` (n,) are the norms of the
        rows' encoded columns.
        """
        ...


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass: the outputs of some rows, and the backward pass from them.

    The backward pass computes upper layers again, chunk by chunk, with the same units dropped: only
    X̃ W₁ stays in memory. A row's gradient is linear in the row's `values`. So a `Limit` bounds it
    by scaling these (`backward` is the only place that adds rows up).
    """

    network: TowerNetwork
    parameters: Tensor
    """(size,)"""
    rows: Array | None
    draw: int | None
    """Seed of the dropped units; None without dropping."""
    first: Tensor
    """X̃ W₁ (n, hidden[0])"""

    def outputs(self) -> Tensor:
        """Return h (n, outputs)."""
        upper = self.network.unpack(self.parameters)[1:]
        with torch.no_grad():
            parts = [
                self.network.upper(self.first[part], upper, self._generator(number))
                for number, part in enumerate(self._chunks())
            ]
        empty = self.first.new_zeros((0, self.network.shape.outputs))
        return torch.cat(parts) if parts else empty

    def backward(self, values: Tensor, limit: Limit | None = None) -> Tensor:
        """Return Σ_r ∂(h_r·V_r)/∂θ: (n, outputs) -> (size,), in the order of `TowerShape.pack`.

        A `limit` scales each row's gradient first.
        """
        network = self.network
        wanted = (len(self.first), network.shape.outputs)
        if values.shape != wanted:
            raise InternalError(f"values must be {wanted}; got {tuple(values.shape)}")
        upper = network.unpack(self.parameters)[1:]
        lengths = None if limit is None else network.layer.norms(self.rows)
        sums = [torch.zeros_like(p) for p in upper]
        slopes = torch.empty_like(self.first)
        for number, part in enumerate(self._chunks()):
            given = (self.first[part], upper, values[part], self._generator(number))
            if limit is None or lengths is None:
                slopes[part], *gradients = network.gradients(*given)
            else:
                slopes[part], *gradients = limit.gradients(*given, lengths[part])
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient
        first = network.layer.backward(slopes, self.rows)
        return torch.cat([first.reshape(-1), *(total.reshape(-1) for total in sums)])

    def _chunks(self) -> Iterator[slice]:
        for start in range(0, len(self.first), CHUNK):
            checkpoint()
            yield slice(start, start + CHUNK)

    def _generator(self, chunk: int) -> torch.Generator | None:
        if self.draw is None:
            return None
        generator = torch.Generator(self.network.layer.device)
        generator.manual_seed(seed_of(self.draw, chunk))
        return generator


class TowerNetwork:
    """Tower over the rows of a first layer; its parameters are one flat tensor (size,)."""

    def __init__(self, shape: TowerShape, layer: FirstLayer, dropout: float = 0.0) -> None:
        if layer.width != shape.inputs:
            raise InternalError(f"a tower over {shape.inputs} columns, of {layer.width}")
        self.shape = shape
        self.layer = layer
        self.dropout = dropout

    def tensor(self, values: Array) -> Tensor:
        """Return a copy on the layer's device."""
        return torch.tensor(
            np.ascontiguousarray(values), dtype=self.layer.dtype, device=self.layer.device
        )

    def numpy(self, values: Tensor) -> Array:
        """Return the values in float64."""
        array: Array = values.double().cpu().numpy()
        return array

    def index(self, rows: Array) -> Tensor:
        """Return `rows`, of any type of integers, as an index of tensors."""
        return torch.tensor(np.asarray(rows, np.int64), device=self.layer.device)

    def unpack(self, parameters: Tensor) -> list[Tensor]:
        """Return W₁, b₁, …, W_out, as views."""
        sizes = [int(np.prod(shape)) for shape in self.shape.shapes]
        parts = torch.split(parameters, sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shape.shapes, strict=True)]

    def forward(self, parameters: Tensor, rows: Array | None, draw: int | None = None) -> Pass:
        """Return a forward pass. `draw`: seed of the dropped units; without effect if `dropout` is
        0.
        """
        first = self.layer.forward(self.unpack(parameters)[0], rows)
        dropping = draw if self.dropout > 0.0 else None
        return Pass(self, parameters, rows, dropping, first)

    def upper(
        self, first: Tensor, upper: Sequence[Tensor], generator: torch.Generator | None
    ) -> Tensor:
        """Return h from X̃ W₁ and b₁, W₂, …, W_out. A dropped unit is 0, and the others grow
        instead.
        """
        values = first
        for bias, weights in zip(upper[0::2], upper[1::2], strict=True):
            values = self.hidden(values + bias, generator) @ weights
        return self.bounded(values)

    def bounded(self, values: Tensor) -> Tensor:
        """Return the tower's output from its last layer."""
        return torch.tanh(values) if self.shape.bounded else values

    def hidden(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return a hidden layer's output: its activation, with units dropped."""
        values = _activate(self.shape.activation, values)
        if generator is None:
            return values
        drawn = torch.rand(values.shape, generator=generator, device=values.device)
        return values * (drawn >= self.dropout) / (1.0 - self.dropout)

    def gradients(
        self,
        first: Tensor,
        upper: Sequence[Tensor],
        values: Tensor,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, ...]:
        """Return ∂(h_r·V_r)/∂(X̃ W₁)_r of each row (n, hidden[0]), then Σ_r ∂(h_r·V_r) by each of
        `upper`.

        Arguments are as in `upper`, with values (n, outputs).
        """
        inputs = [p.detach().requires_grad_(True) for p in (first, *upper)]
        with torch.enable_grad():
            outputs = self.upper(inputs[0], inputs[1:], generator)
        return torch.autograd.grad(outputs, inputs, values)


def device_of(name: str) -> torch.device:
    """Return the device called 'auto', 'cpu' or 'cuda'. Raise ModelError if it is missing."""
    if name == "cpu":
        return torch.device("cpu")
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    if name != "cuda":
        raise InternalError(f"there is no device {name!r}")
    if not available:
        raise ModelError(
            "device = 'cuda', and PyTorch finds no CUDA device here",
            hint="device = 'auto' takes the CPU where there is none",
        )
    return torch.device("cuda")


def _activate(name: str, values: Tensor) -> Tensor:
    match name:
        case "relu":
            return torch.relu(values)
        case "tanh":
            return torch.tanh(values)
        case "gelu":
            return torch.nn.functional.gelu(values)
    raise InternalError(f"there is no activation {name!r}")
