"""Runs of joined rows from the same row of a slot: of the slot that they are sorted by."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array

LONG = 32
"""Joined rows of a run, on average, from which what belongs to it is read and added up once."""
CHUNK = 1 << 16


def ends_of_runs(rows: Array) -> Array | None:
    """int64 (runs,), ascending: the ends of the runs of equal rows, the last of which is len(rows).

    None where they are short, which the first `CHUNK` rows tell mostly.
    """
    found = []
    ended = 0
    for start in range(0, len(rows), CHUNK):
        own = rows[start : start + CHUNK + 1]
        found.append(np.flatnonzero(own[1:] != own[:-1]) + (start + 1))
        ended += len(found[-1])
        if ended * LONG > start + CHUNK:
            return None
    ends = np.concatenate([*found, [len(rows)]]).astype(np.int64)
    return ends if len(ends) * LONG <= len(rows) else None
