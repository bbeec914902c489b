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
    """Return values[places] of integers (n,) of any type. Raise IndexError for a place that is not
    there.
    """
    if len(places) and not -len(values) <= places.min() <= places.max() < len(values):
        raise IndexError(f"places from {places.min()} to {places.max()} of {len(values)} values")
    chosen = np.empty(len(places), values.dtype)
    for start in range(0, len(places), PART):
        part = slice(start, start + PART)
        np.take(values, places[part], out=chosen[part], mode="wrap")  # a third of the time of []
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


def byte_order(rows: Array, *, runs: bool = False) -> npt.NDArray[np.int64]:
    """Return the order of rows, uint8 (n, 16), by their bytes; equal rows stay in their order.

    runs: the rows are few ascending sequences, one after the other, which are merged.
    """
    words = np.ascontiguousarray(rows).view(">u8")  # as big-endian numbers, bytes compare in order
    first = words[:, 0].astype(np.uint64)
    if runs:
        order = np.argsort(first, kind="stable")
        leading = first[order]
    else:  # the first bits beside the place in one number: it sorts in a fifth of the time
        shift = np.uint64(max(len(rows) - 1, 1).bit_length())
        packed = first >> shift << shift
        packed |= np.arange(len(rows), dtype=np.uint64)
        packed.sort()
        order = (packed & ((np.uint64(1) << shift) - np.uint64(1))).view(np.int64)
        leading = packed
        leading >>= shift
    same = leading[1:] == leading[:-1]
    ties = np.flatnonzero(same)
    if len(ties):
        second = words[:, 1].astype(np.uint64)
        before, after = order[ties], order[ties + 1]
        descends = first[before] > first[after]
        descends |= (first[before] == first[after]) & (second[before] > second[after])
        if descends.any():
            alike = np.append(same, False) | np.append(False, same)
            some = order[alike]
            order[alike] = some[np.lexsort((second[some], first[some]))]
    return order
