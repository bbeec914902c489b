"""The encoded columns as arrays beside the database, for many rounds over one snapshot."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from sqlfl.arrays import Float
from sqlfl.interrupts import checkpoint
from sqlfl.models.gram import GramMatrix
from sqlfl.udfs import sql
from sqlfl.udfs.columns import read_columns
from sqlfl.udfs.encode import encode, end_encode
from sqlfl.udfs.features import Encoding
from sqlfl.udfs.rows import Snapshot
from sqlfl.udfs.update import Index, check_theta, check_values

_SMALL = 1 << 20
"""Numbers of the centred columns up to which they are held densely, where categories are few."""
_FEW = 64
"""One-hot columns that are few."""
_ROWS = 16384
"""Rows that are handled at once where a weighted copy is needed."""


class ArraysEngine:
    """Numeric columns as a dense matrix, categories as a sparse one with a 1 per known value; of
    small tables all columns centred, as a dense matrix, since taking a batch of rows of a sparse
    one costs more than their products."""

    name = "arrays"

    def __init__(self, con: sql.Connection, snapshot: Snapshot, encoding: Encoding) -> None:
        self.rows = snapshot.active
        self.width = encoding.width
        self.centre = encoding.centre
        self.numeric = encoding.numeric
        self.offsets = encoding.offsets
        found = read_columns(con, encode(snapshot, encoding), self.rows, encoding)
        self.counts, self._numeric, self._onehot = found.counts, found.numeric, found.onehot
        end_encode(snapshot)
        self._has_onehot = self.width > self.numeric
        self._dense: Float | None = None
        if not self._has_onehot:
            self._dense = self._numeric
        elif self.rows * self.width <= _SMALL and self.width - self.numeric <= _FEW:
            onehot = self._onehot.toarray() - self.centre[self.numeric :]
            self._dense = np.hstack([self._numeric, onehot])

    def predict(self, theta: Float, batch: Index | None = None) -> Float:
        theta = check_theta(self, theta)
        if self._dense is not None:
            dense = self._dense if batch is None else self._dense[batch]
            return np.asarray(dense @ theta)
        numeric = self._numeric if batch is None else self._numeric[batch]
        h = numeric @ theta[: self.numeric]
        onehot = self._onehot if batch is None else self._onehot[batch]
        h += onehot @ theta[self.numeric :]
        h -= self.centre @ theta
        return h

    def gradient(self, values: Float, batch: Index | None = None) -> Float:
        values = check_values(self, values, batch)
        if self._dense is not None:
            dense = self._dense if batch is None else self._dense[batch]
            return np.asarray(dense.T @ values)
        gradient = np.empty((self.width, values.shape[1]))
        numeric = self._numeric if batch is None else self._numeric[batch]
        np.matmul(numeric.T, values, out=gradient[: self.numeric])
        onehot = self._onehot if batch is None else self._onehot[batch]
        gradient[self.numeric :] = onehot.T @ values
        gradient -= np.outer(self.centre, values.sum(axis=0))
        return gradient

    def gram(self) -> GramMatrix:
        categories = self.width - self.numeric
        numeric = np.zeros((self.numeric, self.numeric))
        cross = np.zeros((categories, self.numeric))
        for start in range(0, self.rows, _ROWS):
            checkpoint()
            part = slice(start, start + _ROWS)
            weighted = self._numeric[part] * self.counts[part, None]
            numeric += self._numeric[part].T @ weighted
            if categories:
                cross += self._onehot[part].T @ weighted
        weighted_rows = sparse.csr_array(self._onehot.multiply(self.counts[:, None]))
        onehot = sparse.csr_array(self._onehot.T @ weighted_rows)
        onehot.eliminate_zeros()
        moments = np.concatenate([self.counts @ self._numeric, self._onehot.T @ self.counts])
        numeric = (numeric + numeric.T) / 2
        return GramMatrix(numeric, cross, onehot, moments, float(self.counts.sum()))

    def norms(self) -> Float:
        squares: Float = np.einsum("rp,rp->r", self._numeric, self._numeric)
        if self._has_onehot:
            squares += self._onehot @ (1.0 - 2.0 * self.centre[self.numeric :])
            squares += self.centre @ self.centre
        norms: Float = np.sqrt(np.maximum(squares, 0.0))
        return norms

    def columns(self) -> tuple[Float, sparse.csr_array]:
        return self._numeric, self._onehot

    def close(self) -> None:
        """Let go of the matrices; the engine cannot be used any more."""
        self._dense = None
        self._numeric = np.empty((0, self.numeric))
        self._onehot = sparse.csr_array((0, self.width - self.numeric))
        self.counts = np.empty(0)
