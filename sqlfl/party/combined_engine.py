"""Products with the encoded columns of all clients of a party, each by its own engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from operator import add
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.party.combined_rows import CombinedRows
from sqlfl.party.steps import Engine

T = TypeVar("T")


class Each(Protocol):
    """Runs every client's part, side by side."""

    def __call__(self, do: Callable[[int], T], /) -> list[T]:
        """Return the results of the clients by their number."""
        ...


class CombinedEngine:
    """`Engine` over the party's rows. Gradients and second moments are summed over its clients
    before any use.

    `each` runs the clients. Raise InternalError if they have different columns.
    """

    def __init__(self, rows: CombinedRows, engines: Sequence[Engine], each: Each) -> None:
        first, *others = engines
        if any(other.width != first.width or other.offsets != first.offsets for other in others):
            raise InternalError("the clients of the party have other columns each")
        self._rows, self._engines, self._each = rows, tuple(engines), each
        self.name = first.name
        self.rows, self.width, self.numeric = rows.size, first.width, first.numeric
        self.centre, self.offsets = first.centre, first.offsets

    @cached_property
    def counts(self) -> Array:
        return self._rows.gather(self._each(lambda q: self._engines[q].counts))

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        rows, batches = self._chosen(batch)
        return rows.gather(self._each(lambda q: self._engines[q].predict(theta, batches[q])))

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        rows, batches = self._chosen(batch)
        if len(values) != rows.size:
            raise InternalError(f"{len(values)} values of {rows.size} rows")
        parts = rows.split(values)
        return reduce(add, self._each(lambda q: self._engines[q].gradient(parts[q], batches[q])))

    def gram(self) -> GramMatrix:
        return reduce(add, self._each(lambda q: self._engines[q].gram()))

    def norms(self) -> Array:
        return self._rows.gather(self._each(lambda q: self._engines[q].norms()))

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        parts = self._each(lambda q: self._engines[q].columns(kind))
        order = np.argsort(np.concatenate(self._rows.places))
        onehot = sparse.csr_array(sparse.vstack([part for _, part in parts]))
        return self._rows.gather([part for part, _ in parts]), onehot[order]

    def _chosen(self, batch: Array | None) -> tuple[CombinedRows, Sequence[Array | None]]:
        if batch is None:
            return self._rows, [None] * len(self._engines)
        return self._rows.chosen(np.asarray(batch))
