"""Which part of joined rows that are cut into parts of about one size each of them is in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Cutting:
    total: int
    """Joined rows."""
    parts: int

    def part(self, before: int) -> int:
        """Of a row that so many come before."""
        return min(self.parts - 1, before * self.parts // self.total)

    @property
    def most(self) -> int:
        """Rows of what should stay together: a quarter of a part."""
        return max(1, -(-self.total // (4 * self.parts)))

    def ranges(self, before: int, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Of rows from the first to the end, which so many come before: part, first, end."""
        while first < end:
            number = self.part(before)
            # up to where the next part begins
            count = max(1, -(-(number + 1) * self.total // self.parts) - before)
            own = min(end, first + count)
            yield number, first, own
            first, before = own, before + own - first
