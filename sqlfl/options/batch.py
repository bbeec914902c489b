"""Number of rows in a step: the values of the option batch_size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MIN_ROWS, MAX_ROWS, BATCHES = 32, 10_000, 20
"""MIN_ROWS and MAX_ROWS bound the usual batch. Otherwise the rows make BATCHES batches, because
towers need hundreds of steps.
"""


@dataclass(frozen=True)
class Whole:
    """All rows in each step."""

    def of(self, rows: int) -> int:
        return rows


@dataclass(frozen=True)
class BatchRows:
    """The number of rows that the statement gives, or all rows if there are fewer."""

    number: int

    def of(self, rows: int) -> int:
        return min(self.number, rows)


@dataclass(frozen=True)
class Usual:
    """A twentieth of the rows, from MIN_ROWS to MAX_ROWS: the default for towers.

    >>> [Usual().of(rows) for rows in (20, 1_000, 10_000, 1_000_000)]
    [20, 50, 500, 10000]
    """

    def of(self, rows: int) -> int:
        return min(max(-(-rows // BATCHES), MIN_ROWS), MAX_ROWS, rows)


Batch: TypeAlias = Whole | BatchRows | Usual
