"""The encoded columns as arrays beside the database, for many rounds over one snapshot."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sqlfl.models.gram import GramMatrix
from sqlfl.udfs import sql
from sqlfl.udfs.encode import encode, end_encode
from sqlfl.udfs.features import Encoding
from sqlfl.udfs.rows import Snapshot
from sqlfl.udfs.update import Array, Index, check_theta, check_values

_ROWS = 16384
"""Rows that are handled at once where a weighted copy is needed."""


class ArraysEngine:
    """Numeric columns as a dense matrix, categories as a sparse one with a 1 per known value."""

    name = "arrays"

    def __init__(self, con: sql.Connection, snapshot: Snapshot, encoding: Encoding) -> None:
        self.rows = snapshot.active
        self.width = encoding.width
        self.centre = encoding.centre
        categories = len(encoding.vocabularies)
        self._split = encoding.numeric
        self._numeric = np.empty((self.rows, self._split))
        self._counts = np.empty(self.rows)
        codes = np.empty((self.rows, categories), np.int32)
        batches = sql.reader(con, encode(snapshot, encoding))
        for batch in batches:
            row = batch.column("r").to_numpy()
            self._counts[row] = batch.column("cnt").to_numpy()
            block = np.empty((len(row), self._split))
            for p in range(self._split):
                block[:, p] = batch.column(f"x{p}").to_numpy()
            self._numeric[row] = block
            for c in range(categories):
                codes[row, c] = batch.column(f"k{c}").to_numpy()
        batches.close()
        end_encode(snapshot)
        self._onehot = _onehot(codes, encoding)
        self._has_onehot = self.width > self._split

    def predict(self, theta: Array, batch: Index | None = None) -> Array:
        theta = check_theta(self, theta)
        numeric = self._numeric if batch is None else self._numeric[batch]
        h = numeric @ theta[: self._split]
        if self._has_onehot:
            onehot = self._onehot if batch is None else self._onehot[batch]
            h += onehot @ theta[self._split :]
            h -= self.centre @ theta
        return h

    def gradient(self, values: Array, batch: Index | None = None) -> Array:
        values = check_values(self, values, batch)
        gradient = np.empty((self.width, values.shape[1]))
        numeric = self._numeric if batch is None else self._numeric[batch]
        np.matmul(numeric.T, values, out=gradient[: self._split])
        if self._has_onehot:
            onehot = self._onehot if batch is None else self._onehot[batch]
            gradient[self._split :] = onehot.T @ values
            gradient -= np.outer(self.centre, values.sum(axis=0))
        return gradient

    def gram(self) -> GramMatrix:
        categories = self.width - self._split
        numeric = np.zeros((self._split, self._split))
        cross = np.zeros((categories, self._split))
        for start in range(0, self.rows, _ROWS):
            part = slice(start, start + _ROWS)
            weighted = self._numeric[part] * self._counts[part, None]
            numeric += self._numeric[part].T @ weighted
            if categories:
                cross += self._onehot[part].T @ weighted
        weighted_rows = sparse.csr_array(self._onehot.multiply(self._counts[:, None]))
        onehot = sparse.csr_array(self._onehot.T @ weighted_rows)
        onehot.eliminate_zeros()
        moments = np.concatenate([self._counts @ self._numeric, self._onehot.T @ self._counts])
        numeric = (numeric + numeric.T) / 2
        return GramMatrix(numeric, cross, onehot, moments, float(self._counts.sum()))

    def close(self) -> None:
        """Let go of the matrices; the engine cannot be used any more."""
        self._numeric = np.empty((0, self._split))
        self._onehot = sparse.csr_array((0, self.width - self._split))
        self._counts = np.empty(0)


def _onehot(codes: Index, encoding: Encoding) -> sparse.csr_array:
    """(a, q) with a 1 for each known category; a row has none where its value is unknown."""
    offsets = np.array(encoding.offsets[:-1], np.int64) - encoding.numeric
    known = codes >= 0
    ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
    columns = (codes + offsets)[known]
    side = encoding.width - encoding.numeric
    small = max(side, int(ends[-1])) < np.iinfo(np.int32).max
    kind = np.int32 if small else np.int64
    entries = (np.ones(len(columns)), columns.astype(kind), ends.astype(kind))
    return sparse.csr_array(entries, shape=(len(codes), side))
