"""Sketches of columns of the joined table: sums of their values with random signs.

J (m × N) has in each column s entries ±1/√s, one in each of s blocks of rows (Kane and Nelson,
2014): of norm 1, as sparse as that allows, and such that inner products are kept to about 1/√m of
the norms (Johnson and Lindenstrauss). It comes from a seed that everybody knows, and depends on no
data: nothing rests on its being secret.

A column of table i is A_i x over the joined rows, and its sketch (J A_i) x: a party holds J A_i, of
which row r of its table has Σ_{j ∈ G_i(r)} J_·j, and works with the rows of its table.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sqlfl.base.arrays import Array

ENTRIES = 8
"""s, where m is not less."""


class Sketch:
    """J for this number of joined rows: entries (N, s) by joined row."""

    def __init__(self, size: int, joined: int, seed: int) -> None:
        count = min(ENTRIES, size)
        blocks = np.arange(count + 1) * size // count
        generator = np.random.Generator(np.random.Philox(seed))
        self.size = size
        """m"""
        self._unit = count**-0.5
        self._entries = generator.integers(blocks[:-1], blocks[1:], (joined, count), dtype=np.int32)
        """Rows of J in which joined rows have an entry."""
        self._negative = generator.integers(0, 2, (joined, count), dtype=np.int8)

    def of(self, values: Array) -> Array:
        """J v: (N,) -> (m,)."""
        signed = self._signs(slice(None)) * values[:, None]
        sums = np.bincount(self._entries.ravel(), signed.ravel(), self.size)
        return sums.astype(np.float64, copy=False)  # integers where there are no entries

    def gathered(self, rows: Array, places: Array, size: int) -> sparse.csr_array:
        """(J A)ᵀ of the `size` rows of a table: row `rows[k]` is in joined row `places[k]`, or k
        where none are given. float64 (size, m)"""
        chosen = places if len(places) else slice(len(rows))
        entries, signs = self._entries[chosen], self._signs(chosen)
        held = np.repeat(rows.astype(np.int64), entries.shape[1])
        shape = (size, self.size)
        entries_of_rows = sparse.coo_array((signs.ravel(), (held, entries.ravel())), shape=shape)
        return entries_of_rows.tocsr()

    def _signs(self, rows: Array | slice) -> Array:
        signs: Array = self._unit * (1.0 - 2.0 * self._negative[rows])
        return signs
