"""How often a table row occurs in the join: counted, and limited where a statement asks for it.

What the change of one row can move depends on it: the row's own copies, and the rows of other
tables that it is joined with. Virtual rows, which LEFT JOINs make up, hold nobody's data: they are
never limited, and never the row that changes; they are rows that others are joined with.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.privacy.randomness import Entropy, system


def limit_fan_out(
    mapping: Mapping[int, Array],
    exempt: Mapping[int, Array],
    limit: int,
    entropy: Entropy = system,
) -> dict[int, Array]:
    """The mapping of the joined rows that are kept, in their order: at most `limit` of any row.

    mapping: slot -> int (N,), the row of each joined row. exempt: slot -> bool (rows,), rows that
    may occur in any number; its slots are the ones to be limited, one after the other. Of a row
    that occurs too often, which joined rows stay is drawn from `entropy`, all alike. Every row that
    occurs among those that are left when its turn comes keeps min(limit, its number) of them.

    Raises InternalError for a limit below 1.
    """
    if limit < 1:
        raise InternalError(f"a limit of {limit} joined rows")
    kept: Array | None = None
    for slot, free in exempt.items():
        rows = mapping[slot] if kept is None else mapping[slot][kept]
        stays = _drawn(rows, free, limit, entropy)
        if stays is not None:
            kept = np.flatnonzero(stays) if kept is None else kept[stays]
    if kept is None:
        return dict(mapping)
    return {slot: rows[kept] for slot, rows in mapping.items()}


def _drawn(rows: Array, free: Array, limit: int, entropy: Entropy) -> Array | None:
    """bool (N,): which joined rows stay; None for all."""
    counts = np.bincount(rows, minlength=len(free))
    crowded = (counts > limit) & ~free
    if not crowded.any():
        return None
    places = np.flatnonzero(crowded[rows])
    own = rows[places]
    words = np.frombuffer(entropy(8 * len(places)), np.uint64)
    order = np.lexsort((words, own))
    first = np.flatnonzero(np.diff(own[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    stays = np.ones(len(rows), bool)
    stays[places[order[rank >= limit]]] = False
    return stays


def copies(rows: Array, virtual: Array) -> int:
    """F: joined rows (N,) that a row that is not `virtual` (n,) occurs in, at most; 0 for none."""
    return int(np.bincount(rows, minlength=len(virtual))[~virtual].max(initial=0))


def partners(rows: Array, virtual: Array, others: Array, size: int) -> int:
    """F_ij: different rows of another slot that a row which is not virtual is joined with, at most.

    rows, others (N,): the rows of both slots in each joined row; `size` rows of the other slot, its
    virtual one among them.
    """
    pairs = np.unique(rows.astype(np.int64) * size + others)
    return copies(pairs // size, virtual) if len(pairs) else 0
