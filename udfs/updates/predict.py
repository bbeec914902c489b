"""Encoded columns as arrays beside the database, the engines by name, and scores of new rows."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import InternalError
from sqlfl.models.gram import GramMatrix
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.columns import EncodedColumns, held_columns, read_columns
from sqlfl.udfs.encoding.encode import check_features, encode, end_encode
from sqlfl.udfs.encoding.features import Encoding, check_finite
from sqlfl.udfs.encoding.transforming import transform
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.update import Index, LinearEngine, SqlEngine, check_theta, check_values


def make_engine(
    name: str, con: sql.Connection, snapshot: Snapshot, encoding: Encoding
) -> LinearEngine:
    """The engine called `name`, 'sql' or 'arrays', over the active rows of `snapshot`."""
    if name not in ENGINES:
        raise InternalError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name](con, snapshot, encoding)


def ready(snapshot: Snapshot, encoding: Encoding) -> None:
    """Make the features of a saved encoding from the snapshot's columns, once. Raise ModelError if
    they do not fit it, or are infinite without clipping.
    """
    if encoding.fitted is not None and snapshot.specification.features != encoding.features:
        transform(snapshot, encoding.features, encoding.fitted, pairs=encoding.pairs)
    if encoding.limits is None:
        check_finite(snapshot)


def score(
    con: sql.Connection, snapshot: Snapshot, encoding: Encoding, theta: Float, engine: str = "sql"
) -> Float:
    """X̃ θ of the active rows under a saved encoding: (d, c) -> (a, c).

    A category that training did not have is `other`: its one-hot columns are all zero before
    centring. Raises ModelError if the features do not fit the encoding, or are infinite where it
    does not clip them.
    """
    ready(snapshot, encoding)
    scorer = make_engine(engine, con, snapshot, encoding)
    try:
        return scorer.predict(theta)
    finally:
        scorer.close()


_SMALL = 1 << 20
"""Numbers of the centred columns up to which they are held densely, where categories are few."""
_FEW = 64
"""Maximum one-hot columns that count as few."""


class ArraysEngine:
    """Numeric columns as dense matrices, categories as a sparse one with a 1 per known value; of
    small tables all columns centred, as one dense matrix, since taking a batch of rows of a sparse
    one costs more than their products."""

    name = "arrays"

    def __init__(self, con: sql.Connection, snapshot: Snapshot, encoding: Encoding) -> None:
        self.rows = snapshot.active
        self.width = encoding.width
        self.centre = encoding.centre
        self.numeric = encoding.numeric
        self.offsets = encoding.offsets
        plain = () if encoding.limits is not None else snapshot.single
        columns = _columns(con, snapshot, encoding, plain)
        self.counts, self._numeric, self._onehot = columns.counts, columns.numeric, columns.onehot
        self._has_onehot = self.width > self.numeric
        self._dense: Float | None = None
        small = self.rows * self.width <= _SMALL and self.width - self.numeric <= _FEW
        if small:
            onehot = self._onehot.toarray() - self.centre[self.numeric :]
            self._dense = np.hstack([self._numeric.whole(), onehot])

    def predict(self, theta: Float, batch: Index | None = None) -> Float:
        theta = check_theta(self, theta)
        if self._dense is not None:
            dense = self._dense if batch is None else self._dense[batch]
            return np.asarray(dense @ theta)
        h = self._numeric.dot(theta[: self.numeric], batch)
        if self._has_onehot:
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
        gradient[: self.numeric] = self._numeric.transposed_dot(values, batch)
        if self._has_onehot:
            onehot = self._onehot if batch is None else self._onehot[batch]
            gradient[self.numeric :] = onehot.T @ values
            gradient -= np.outer(self.centre, values.sum(axis=0))
        return gradient

    def gram(self) -> GramMatrix:
        categories = self.width - self.numeric
        numeric = np.zeros((self.numeric, self.numeric))
        cross = np.zeros((categories, self.numeric))
        moments = np.zeros(self.width)
        for part, block in self._numeric.blocks():
            counts = self.counts[part]
            moments[: self.numeric] += counts @ block
            roots = np.sqrt(counts)[:, None]
            weighted = block * roots
            numeric += weighted.T @ weighted
            if categories:
                weighted *= roots
                cross += self._onehot[part].T @ weighted
        moments[self.numeric :] = self._onehot.T @ self.counts
        weighted_rows = sparse.csr_array(self._onehot.multiply(self.counts[:, None]))
        onehot = sparse.csr_array(self._onehot.T @ weighted_rows)
        onehot.eliminate_zeros()
        return GramMatrix(numeric, cross, onehot, moments, float(self.counts.sum()))

    def norms(self) -> Float:
        squares = np.empty(self.rows)
        for part, block in self._numeric.blocks():
            np.einsum("rp,rp->r", block, block, out=squares[part])
        if self._has_onehot:
            squares += self._onehot @ (1.0 - 2.0 * self.centre[self.numeric :])
            squares += self.centre @ self.centre
        norms: Float = np.sqrt(np.maximum(squares, 0.0))
        return norms

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        return self._numeric.whole(kind), self._onehot

    def close(self) -> None:
        """Let go of the matrices; the engine cannot be used any more."""
        self._dense = None
        self._numeric = self._numeric.nothing()
        self._onehot = sparse.csr_array((0, self.width - self.numeric))
        self.counts = np.empty(0)


def _columns(
    con: sql.Connection, snapshot: Snapshot, encoding: Encoding, plain: Collection[int]
) -> EncodedColumns:
    check_features(snapshot.specification.features, encoding.features)
    if snapshot.held is not None:
        return held_columns(snapshot.held, encoding, plain)
    query = encode(snapshot, encoding, plain)
    columns = read_columns(con, query, snapshot.active, encoding, plain)
    end_encode(snapshot)
    return columns


ENGINES: dict[str, Callable[[sql.Connection, Snapshot, Encoding], LinearEngine]] = {
    "sql": SqlEngine,
    "arrays": ArraysEngine,
}
