"""Batches of joined rows in random order.

To read some thousand rows at random places of long arrays takes longer than all that a batch
computes of them. So a joined row's row in every slot, its target and its share are packed into one
integer where they fit, and these integers are shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.problem import Problem

FEW = 1 << 12
"""Maximum number of distinct targets or shares that are packed."""
CHUNK = 1 << 16
"""Joined rows that are packed at once. So many fit the processor's cache."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some joined rows."""

    mapping: TableMapping
    """Their mapping over all rows of the slots."""
    targets: Array
    """(B,)"""
    shares: Array | None
    """(B,): as `Problem.shares`."""

    @property
    def total(self) -> int:
        """Return B."""
        return self.mapping.total

    @cached_property
    def weights(self) -> Array | None:
        """Return the shares scaled to a mean of 1 in the batch; None without shares."""
        if self.shares is None:
            return None
        scaled: Array = self.shares * (self.total / self.shares.sum())
        return scaled


def batch_at(problem: Problem, joined: Array | slice) -> Batch:
    """Return the joined rows `joined` of the problem; those of a slice must be all."""
    shares = None if problem.shares is None else problem.shares[joined]
    mapping = problem.mapping
    if not isinstance(joined, slice):
        mapping = mapping.restricted(joined)
    return Batch(mapping, problem.targets[joined], shares)


class Batches:
    """Batches of the joined rows of a problem that count. Each row is in one batch of an epoch.

    size: B, the number of rows in a batch; the last batch of an epoch may have fewer.
    """

    def __init__(self, problem: Problem, size: int) -> None:
        self._problem = problem
        self._size = size
        self._packing = Packing.of(problem)
        training = problem.training
        if self._packing is not None:
            packed = self._packing.packed(problem)
            self._rows = packed if training is None else packed[training]
        else:
            self._rows = np.arange(problem.mapping.total) if training is None else training

    def of_epoch(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Yield the batches of one epoch, whose order `generator` draws."""
        order = generator.permutation(self._rows)
        for start in range(0, len(order), self._size):
            rows = order[start : start + self._size]
            if self._packing is None:
                yield batch_at(self._problem, rows)
            else:
                yield self._packing.batch(rows)


@dataclass(frozen=True, eq=False)
class Packing:
    """Integers for joined rows, with a digit for each slot, for the target, and for the share."""

    sizes: tuple[int, ...]
    """Number of rows of each slot."""
    targets: Array
    """Distinct targets."""
    shares: Array | None
    """Distinct shares; None without shares."""

    @classmethod
    def of(cls, problem: Problem) -> Packing | None:
        """Return None if there may be too many different rows, targets or shares."""
        targets = _distinct(problem.targets)
        shares = None if problem.shares is None else _distinct(problem.shares)
        if targets is None or (shares is None and problem.shares is not None):
            return None
        packing = cls(problem.mapping.sizes, targets, shares)
        return packing if prod(packing.bases) <= np.iinfo(np.int64).max else None

    @property
    def bases(self) -> tuple[int, ...]:
        """Return the number of values of each digit, from the first digit on."""
        values = [values for values in (self.targets, self.shares) if values is not None]
        return (*self.sizes, *map(len, values))

    def packed(self, problem: Problem) -> Array:
        """Return the integers of all joined rows: int64 (N,)."""
        packed = np.zeros(problem.mapping.total, np.int64)
        for start in range(0, len(packed), CHUNK):
            rows = slice(start, start + CHUNK)
            part = packed[rows]
            for slot in problem.mapping.slots:
                part *= slot.size
                part += slot.rows[rows]
            part *= len(self.targets)
            part += _places(problem.targets[rows], self.targets)
            if problem.shares is not None and self.shares is not None:
                part *= len(self.shares)
                part += _places(problem.shares[rows], self.shares)
        return packed

    def batch(self, packed: Array) -> Batch:
        """Return the joined rows that have these integers (B,)."""
        if prod(self.bases) <= np.iinfo(np.int32).max:
            packed = packed.astype(np.int32)  # is divided in half of the time
        digits: list[Array] = []
        for base in reversed(self.bases[1:]):
            rest = packed // base
            digits.append(packed - rest * base)
            packed = rest
        digits.append(packed)
        shares = None if self.shares is None else self.shares[digits.pop(0)]
        targets = self.targets[digits.pop(0)]
        mapping = TableMapping([rows.astype(np.int32) for rows in reversed(digits)], self.sizes)
        return Batch(mapping, targets, shares)


def _places(values: Array, distinct: Array) -> Array:
    """Return the position of each value among the distinct ones."""
    if distinct.dtype.kind in "iu" and int(distinct[-1]) == len(distinct) - 1:
        return values  # 0, 1, and so on
    return np.searchsorted(distinct, values)


def _distinct(values: Array) -> Array | None:
    """Return the distinct values, ascending, or some more; None if they are more than `FEW`."""
    if values.dtype.kind in "iu" and values.min() >= 0:
        most = int(values.max())
        return np.arange(most + 1, dtype=values.dtype) if most < FEW else None
    distinct = values[:0]
    for start in range(0, len(values), CHUNK):
        distinct = np.unique(np.concatenate([distinct, values[start : start + CHUNK]]))
        if len(distinct) > FEW or not np.isfinite(distinct[-1]):
            return None
    return distinct
