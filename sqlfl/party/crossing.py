"""Pairs of features of a block in training: which are chosen, and products with their cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.models.gram import GramMatrix
from sqlfl.party.steps import Engine
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.fitting import Values
from sqlfl.udfs.encoding.pairs import Crossing, Pair, crossed, pairs_of, ranked
from sqlfl.udfs.encoding.transforming import column_of, counts_of
from sqlfl.udfs.numbering.rows import Snapshot


class PairFinder:
    """Chooses pairs of the features of a snapshot that may be in some, `most` at most.

    Pairs that are `given` are not chosen anew: those of the block that training starts from.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        features: Sequence[FeatureSpecification],
        most: int,
        limits: CellLimits,
        given: Sequence[Pair] = (),
    ) -> None:
        self._snapshot, self._features = snapshot, features
        self.most, self._limits = most, limits
        self.first = self._crossed(given, whole=True) if given else None
        """The given pairs in these rows; None without."""

    def chosen(
        self, slopes: Array, curvature: float, dispersion: float, most: int
    ) -> Crossing | None:
        """The pairs that gain most by slopes (a, outputs), sums over joined rows; None of none.

        `curvature` is the mean second derivative, and `dispersion` the variance of a slope over it.
        """
        if not 0 < most <= self.most:
            raise InternalError(f"{most} pairs of features are asked for, of {self.most}")
        counts = counts_of(self._snapshot)
        columns = self._columns([n for n, feature in enumerate(self._features) if feature.pairs])
        slope_sums = np.asarray(slopes, np.float64)
        places = ranked(columns, counts, slope_sums, curvature * counts, dispersion, most)
        pairs = pairs_of(places, columns, counts, self._limits)
        return self._crossed(pairs) if pairs else None

    def _crossed(self, pairs: Sequence[Pair], *, whole: bool = False) -> Crossing:
        places = {side.place for pair in pairs for side in (pair.first, pair.second)}
        counts = counts_of(self._snapshot)
        columns = self._columns(sorted(places))
        return crossed(pairs, self._features, columns, counts, self._limits, whole=whole)

    def _columns(self, places: Sequence[int]) -> dict[int, Values]:
        return {n: column_of(self._snapshot, self._features[n], n) for n in places}


class CrossedEngine:
    """Products with an engine's columns and, behind them, those of pairs' cells, centred."""

    def __init__(self, engine: Engine, crossing: Crossing, total: float) -> None:
        self._engine = engine
        self._cells = crossing.onehot()
        self._counts = np.concatenate([np.zeros(0), *crossing.counts])
        self._own = self._counts / total
        self.name = engine.name
        self.rows = engine.rows
        self.numeric = engine.numeric
        self.width = engine.width + self._cells.shape[1]
        self.centre = np.concatenate([engine.centre, self._own])
        self.offsets = (*engine.offsets, *(engine.width + np.cumsum(crossing.sizes)).tolist())

    @property
    def counts(self) -> Array:
        return self._engine.counts

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        theta = np.asarray(theta, np.float64)
        pair_theta = theta[self._engine.width :]
        scores = self._engine.predict(theta[: self._engine.width], batch)
        return np.asarray(scores + self._some(batch) @ pair_theta - self._own @ pair_theta)

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        values = np.asarray(values, np.float64)
        of_pairs = self._some(batch).T @ values - np.outer(self._own, values.sum(axis=0))
        return np.concatenate([self._engine.gradient(values, batch), of_pairs])

    def gram(self) -> GramMatrix:
        first = self._engine.gram()
        numbers, onehot = self._engine.columns()
        weighted = sparse.csr_array(self._cells.multiply(self.counts[:, None])).T.tocsr()
        beside = weighted @ onehot
        blocks = [[first.onehot, beside.T], [beside, weighted @ self._cells]]
        every = sparse.csr_array(sparse.block_array(blocks, format="csr"))
        every.eliminate_zeros()
        return GramMatrix(
            first.numeric,
            np.concatenate([first.cross, np.asarray(weighted @ numbers)]),
            every,
            np.concatenate([first.moments, self._counts]),
            first.weight,
        )

    def norms(self) -> Array:
        raise InternalError("rows with pairs of features are not clipped")

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        numbers, onehot = self._engine.columns(kind)
        return numbers, sparse.csr_array(sparse.hstack([onehot, self._cells], format="csr"))

    def _some(self, batch: Array | None) -> sparse.csr_array:
        return self._cells if batch is None else self._cells[batch]
