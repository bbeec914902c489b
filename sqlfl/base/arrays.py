"""Types of arrays, and operations that save memory compared with numpy's own."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""Array of numbers. The text beside it says its type and shape."""

Float: TypeAlias = npt.NDArray[np.float64]

PART = 1 << 16
"""Places to look up at once: numpy first converts each to 8 bytes."""


def taken(values: Array, places: Array) -> Array:
    """Return values[places] of integers (n,) of any type."""
    chosen = np.empty(len(places), values.dtype)
    for start in range(0, len(places), PART):
        part = slice(start, start + PART)
        chosen[part] = values[places[part]]
    return chosen


def kept(values: Array, places: Array) -> Array:
    """Return values[places] for ascending integers (n,), in the memory of `values`, which are
    lost.
    """
    for start in range(0, len(places), PART):
        part = places[start : start + PART]
        values[start : start + len(part)] = values[part]
    return values[: len(places)]


def nonzero(values: Array) -> Array:
    """Return the places where values (n,) are not 0, ascending, as uint32. There must be less than
    2³² values.
    """
    places, filled = np.empty(np.count_nonzero(values), np.uint32), 0
    for start in range(0, len(values), PART):
        part = np.flatnonzero(values[start : start + PART])
        places[filled : filled + len(part)] = part + start
        filled += len(part)
    return places
