"""Cut of joined rows into parts of about equal size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cutting:
    total: int
    """Number of joined rows."""
    parts: int

    def part(self, before: int) -> int:
        """Return the part of a row that has `before` rows before it."""
        return min(self.parts - 1, before * self.parts // self.total)

    @property
    def most(self) -> int:
        """Return the maximum size of groups of rows that should stay together: a quarter of a
        part.
        """
        return max(1, -(-self.total // (4 * self.parts)))

    def ranges(self, before: int, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (part, first, end) for the rows from `first` to `end`, which have `before` rows
        before them.
        """
        while first < end:
            number = self.part(before)
            # up to the start of the next part
            count = max(1, -(-(number + 1) * self.total // self.parts) - before)
            close = min(end, first + count)
            yield number, first, close
            first, before = close, before + close - first
