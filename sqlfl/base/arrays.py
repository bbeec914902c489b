"""Names for types of arrays, and what numpy does with more memory than it needs."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""Of numbers, whose type and shape the text beside it says."""

Float: TypeAlias = npt.NDArray[np.float64]

PART = 1 << 16
"""Places that are looked up at once: numpy makes each one of 8 bytes before."""


def taken(values: Array, places: Array) -> Array:
    """values[places], of integers (n,) of any type."""
    found = np.empty(len(places), values.dtype)
    for start in range(0, len(places), PART):
        part = slice(start, start + PART)
        found[part] = values[places[part]]
    return found


def kept(values: Array, places: Array) -> Array:
    """values[places] of ascending integers (n,), in the memory of `values`, which are gone then."""
    for start in range(0, len(places), PART):
        part = places[start : start + PART]
        values[start : start + len(part)] = values[part]
    return values[: len(places)]


def nonzero(values: Array) -> Array:
    """uint32, ascending: where values (n,) are not 0; there are less than 2³² of them."""
    found, filled = np.empty(np.count_nonzero(values), np.uint32), 0
    for start in range(0, len(values), PART):
        own = np.flatnonzero(values[start : start + PART])
        found[filled : filled + len(own)] = own + start
        filled += len(own)
    return found
