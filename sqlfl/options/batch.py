"""How many rows a step takes: the values of the option batch_size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

LEAST, MOST, BATCHES = 32, 10_000, 20
"""Few rows are taken in so many batches, for towers need hundreds of steps."""


@dataclass(frozen=True)
class Whole:
    """All of them."""

    def of(self, rows: int) -> int:
        return rows


@dataclass(frozen=True)
class BatchRows:
    """So many, as the statement says, or all where there are fewer."""

    number: int

    def of(self, rows: int) -> int:
        return min(self.number, rows)


@dataclass(frozen=True)
class Usual:
    """A twentieth, but from LEAST to MOST: of towers, where the statement says nothing.

    >>> [Usual().of(rows) for rows in (20, 1_000, 10_000, 1_000_000)]
    [20, 50, 500, 10000]
    """

    def of(self, rows: int) -> int:
        return min(max(-(-rows // BATCHES), LEAST), MOST, rows)


Batch: TypeAlias = Whole | BatchRows | Usual
