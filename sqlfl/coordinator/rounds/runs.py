"""Runs of joined rows that share one row of a slot. They occur in the slot by which the joined rows
are sorted.
"""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array

LONG = 32
"""Mean number of joined rows in a run from which its values are read and added up once."""
CHUNK = 1 << 16


def ends_of_runs(rows: Array) -> Array | None:
    """Return the ends of the runs of equal rows, ascending: int64 (runs,). The last end is
    len(rows).

    Return None if runs are short. The first `CHUNK` rows mostly decide that.
    """
    ends_of_parts = []
    ended = 0
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK + 1]
        ends_of_parts.append(np.flatnonzero(part[1:] != part[:-1]) + (start + 1))
        ended += len(ends_of_parts[-1])
        if ended * LONG > start + CHUNK:
            return None
    ends = np.concatenate([*ends_of_parts, [len(rows)]]).astype(np.int64)
    return ends if len(ends) * LONG <= len(rows) else None
