"""Choices that can be made again: from a seed, or from the list that an earlier run has made.

A statement is what its choices are. So a failing one is made smaller by making its list of choices
smaller: 0 is always the simplest alternative, and where the list ends, all further choices are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """A source of choices, which it records."""

    def __init__(self, source: Random | Sequence[int]) -> None:
        self._random = source if isinstance(source, Random) else None
        self._given = () if isinstance(source, Random) else tuple(source)
        self.made: list[int] = []

    def below(self, limit: int) -> int:
        """One of 0 .. limit - 1."""
        if self._random is not None:
            number = self._random.randrange(limit)
        else:
            place = len(self.made)
            number = min(self._given[place] if place < len(self._given) else 0, limit - 1)
        self.made.append(number)
        return number

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[int, T]]) -> T:
        """One of (weight, item); the first is the simplest."""
        number = self.below(sum(weight for weight, _ in items))
        for weight, item in items:
            if number < weight:
                return item
            number -= weight
        raise AssertionError("weights add up to their sum")

    def some(self, items: Sequence[T], least: int = 0, most: int | None = None) -> list[T]:
        """Distinct items, in an order of their own."""
        left = list(items)
        most = len(left) if most is None else min(most, len(left))
        count = min(least + self.below(max(most - least, 0) + 1), len(left))
        return [left.pop(self.below(len(left))) for _ in range(count)]


def smaller(choices: Sequence[int], fails: Callable[[list[int]], bool], limit: int) -> list[int]:
    """The shortest list found, in at most `limit` tries, for which `fails` still holds."""
    best, tries = list(choices), 0

    def better(candidate: list[int]) -> bool:
        nonlocal best, tries
        if tries >= limit or candidate == best:
            return False
        tries += 1
        if fails(candidate):
            best = candidate
            return True
        return False

    improved = True
    while improved and tries < limit:
        improved = False
        for size in (64, 32, 16, 8, 4, 2, 1):
            place = len(best) - size
            while place >= 0:
                improved |= better(best[:place] + best[place + size :])
                improved |= better(best[:place] + [0] * size + best[place + size :])
                place -= max(1, size // 2)
        for place in range(len(best) - 1, -1, -1):
            if place < len(best) and best[place]:
                for lower in {best[place] // 2, best[place] - 1}:
                    improved |= better([*best[:place], lower, *best[place + 1 :]])
    return best
