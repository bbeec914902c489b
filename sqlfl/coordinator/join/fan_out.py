"""Fan-out: the number of joined rows in which a table row occurs, counted and, on request, limited.

It decides how far a change of one row can move the result: by the row's own copies, and by the rows
of other tables that it is joined with.

LEFT JOINs add virtual rows, which hold nobody's data. Virtual rows are never limited and never the
row that changes. They do count as rows that others are joined with.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.privacy.samplers import Entropy, system


def limit_fan_out(
    mapping: Mapping[int, Array],
    exempt: Mapping[int, Array],
    limit: int,
    entropy: Entropy = system,
) -> dict[int, Array]:
    """Return the mapping of the joined rows that are kept, in their order: at most `limit` of any
    row.

    mapping: slot -> int (N,), the row of each joined row. exempt: slot -> bool (rows,), rows that
    may occur any number of times. The slots of `exempt` are limited, one after the other.

    If a row occurs too often, `entropy` draws the joined rows that stay, with equal probability. A
    row keeps min(limit, its number) of the joined rows that are left in its slot's turn.

    Raise InternalError for a limit below 1.
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
    """Return the joined rows that stay: bool (N,); None for all."""
    counts = np.bincount(rows, minlength=len(free))
    crowded = (counts > limit) & ~free
    if not crowded.any():
        return None
    places = np.flatnonzero(crowded[rows])
    crowded_rows = rows[places]
    words = np.frombuffer(entropy(8 * len(places)), np.uint64)
    order = np.lexsort((words, crowded_rows))
    first = np.flatnonzero(np.diff(crowded_rows[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    stays = np.ones(len(rows), bool)
    stays[places[order[rank >= limit]]] = False
    return stays


def copies(rows: Array, virtual: Array) -> int:
    """Return F: the maximum number of joined rows (N,) that contain one non-`virtual` row (n,); 0
    for none.
    """
    return int(np.bincount(rows, minlength=len(virtual))[~virtual].max(initial=0))


def partners(rows: Array, virtual: Array, others: Array, size: int) -> int:
    """Return F_ij: the maximum number of different rows of another slot that one non-virtual row is
    joined with.

    rows, others (N,): the rows of both slots in each joined row. size: rows of the other slot,
    including its virtual row.
    """
    pairs = np.unique(rows.astype(np.int64) * size + others)
    return copies(pairs // size, virtual) if len(pairs) else 0
