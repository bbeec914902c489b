"""Fixed-point encoding of numbers in [−1, 1] as unsigned integers, for sums without draws."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError

LEVELS = 1 << 24
"""Steps from −1 to 1: as fine as the 4-byte numbers of messages near 1."""


def quantised(values: Array) -> npt.NDArray[np.uint32]:
    """The nearest of 0, …, LEVELS for values from −1 to 1: uint32 of their shape. InternalError for
    others."""
    if not (np.abs(values) <= 1.0).all():  # false of NaN
        raise InternalError("embeddings to be summed are not within [−1, 1]")
    levels: npt.NDArray[np.uint32] = np.rint((values + 1.0) * (LEVELS / 2)).astype(np.uint32)
    return levels


def restored(sums: npt.NDArray[np.unsignedinteger], summands: int) -> Array:
    """Return the sums of `summands` values from sums of their quantised values. The result is
    float64 of the same shape, each within summands/LEVELS of the true sum. Raise InternalError for
    impossible sums.
    """
    if sums.size and int(sums.max()) > summands * LEVELS:
        raise InternalError(f"a sum is not of {summands} numbers from 0 to {LEVELS}")
    values: Array = sums * (2.0 / LEVELS) - summands
    return values
