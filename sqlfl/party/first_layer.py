"""First layer of a tower: by the client's engine, or on a device that holds its columns."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.models.neural import FirstLayer, device_of
from sqlfl.party.steps import Engine


class EngineLayer:
    """Products by the engine, in float64: one-hot columns are never made."""

    device = torch.device("cpu")
    dtype = torch.float64

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows, self.width = engine.rows, engine.width
        self._norms: torch.Tensor | None = None

    def forward(self, weights: torch.Tensor, rows: Array | None) -> torch.Tensor:
        return torch.from_numpy(self._engine.predict(weights.numpy(), rows))

    def backward(self, slopes: torch.Tensor, rows: Array | None) -> torch.Tensor:
        return torch.from_numpy(self._engine.gradient(slopes.numpy(), rows))

    def norms(self, rows: Array | None) -> torch.Tensor:
        if self._norms is None:
            self._norms = torch.from_numpy(self._engine.norms())
        return self._norms if rows is None else self._norms[torch.from_numpy(_index(rows))]


class DeviceLayer:
    """Encoded columns on a device: numeric ones dense, one-hots as codes for sums of rows."""

    def __init__(
        self, engine: Engine, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self.device, self.dtype = device, dtype
        self.rows, self.width = engine.rows, engine.width
        kind = np.float32 if dtype == torch.float32 else np.float64
        numeric, onehot = engine.columns(kind)
        self._split = numeric.shape[1]
        self._categories = onehot.shape[1]
        self._numeric = torch.tensor(numeric, dtype=dtype, device=device)
        self._codes = torch.tensor(_codes(onehot), device=device)
        self._centre = torch.tensor(engine.centre, dtype=dtype, device=device)
        self._norms: torch.Tensor | None = None

    def forward(self, weights: torch.Tensor, rows: Array | None) -> torch.Tensor:
        numeric, codes = self._of(rows)
        values = numeric @ weights[: self._split]
        if self._categories:
            # `other` and the padding look up a row of zeros
            table = torch.cat([weights[self._split :], weights.new_zeros((1, weights.shape[1]))])
            values = values + torch.nn.functional.embedding_bag(codes, table, mode="sum")
        return values - self._centre @ weights

    def backward(self, slopes: torch.Tensor, rows: Array | None) -> torch.Tensor:
        numeric, codes = self._of(rows)
        parts = [numeric.T @ slopes]
        if self._categories:
            table = slopes.new_zeros((self._categories + 1, slopes.shape[1]))
            repeated = slopes.repeat_interleave(codes.shape[1], 0)
            # on CUDA this sums in a fixed order, unlike index_add_
            table.index_put_((codes.reshape(-1),), repeated, accumulate=True)
            parts.append(table[:-1])
        return torch.cat(parts) - torch.outer(self._centre, slopes.sum(0))

    def norms(self, rows: Array | None) -> torch.Tensor:
        if self._norms is None:
            # ‖e − μ‖² of one-hots e is Σ over their ones of 1 − 2μ_k, plus ‖μ‖²
            hot = torch.cat([1.0 - 2.0 * self._centre[self._split :], self._centre.new_zeros(1)])
            squares = self._numeric.square().sum(1) + self._centre.square().sum()
            self._norms = (squares + hot[self._codes].sum(1)).clamp(min=0.0).sqrt()
        if rows is None:
            return self._norms
        return self._norms[torch.tensor(_index(rows), device=self.device)]

    def _of(self, rows: Array | None) -> tuple[torch.Tensor, torch.Tensor]:
        if rows is None:
            return self._numeric, self._codes
        chosen = torch.tensor(_index(rows), device=self.device)
        return self._numeric[chosen], self._codes[chosen]


def make_layer(engine: Engine, name: str, *, private: bool = False) -> FirstLayer:
    """Return the layer on the device `name`, 'auto', 'cpu' or 'cuda'.

    'auto' takes CUDA if there is a device and the engine holds the columns as arrays: others are
    too large for memory. `private`: use float64 there too. In float32, a row's part of a sum is not
    bounded as closely as noise is calibrated. Raise ModelError if CUDA is requested and is missing
    or too small.
    """
    device = device_of(name)
    if device.type == "cpu" or (name == "auto" and engine.name != "arrays"):
        return EngineLayer(engine)
    try:
        return DeviceLayer(engine, device, torch.float64 if private else torch.float32)
    except torch.cuda.OutOfMemoryError as error:
        raise ModelError(
            f"the encoded columns of {engine.rows} rows do not fit the CUDA device's memory",
            hint="device = 'cpu' trains without it",
        ) from error


def _index(rows: Array) -> Array:
    """Return `rows`, of any type of integers, as an index for torch."""
    return np.asarray(rows, np.int64)


def _codes(onehot: sparse.csr_array) -> Array:
    """Return the columns that are 1 in each row, int64 (a, k), filled up with q, the number of
    columns.
    """
    rows, width = onehot.shape
    lengths = np.diff(onehot.indptr)
    codes = np.full((rows, max(int(lengths.max(initial=0)), 1)), width, np.int64)
    row = np.repeat(np.arange(rows), lengths)
    codes[row, np.arange(len(row)) - onehot.indptr[row]] = onehot.indices
    return codes
