"""Random rows of bounded columns, for pairs of neighbouring tables."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def rows_of(rng: np.random.Generator, count: int, numeric: int, entries: tuple[int, ...]) -> Array:
    """Random rows, many of them at the corners; some have a category that nobody has listed."""
    numbers = rng.uniform(-1.0, 1.0, (count, numeric))
    corners = rng.random((count, numeric)) < rng.choice([0.0, 0.7, 1.0], (count, 1))
    numbers = np.where(corners, np.where(numbers < 0.0, -1.0, 1.0), numbers)
    blocks = [numbers]
    for size in entries:
        hot = np.eye(size)[rng.integers(0, size, count)]
        hot[rng.random(count) < 0.05] = 0.0
        blocks.append(hot)
    return np.hstack(blocks)


def offsets_of(numeric: int, entries: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(numeric + int(n) for n in np.cumsum([0, *entries]))
