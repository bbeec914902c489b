"""Pairs of features of a block in training: which are chosen, and products with their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.contract.transforms import COARSE_SIDE, CURVE, FINE_SIDE
from sqlfl.messages import SetCells, SetRanges
from sqlfl.models.gram import GramMatrix
from sqlfl.party.steps import Engine
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.features import Encoding
from sqlfl.udfs.encoding.fitting import Values
from sqlfl.udfs.encoding.pairs import (
    COARSE,
    MIN_CELL_ROWS,
    Crossing,
    Pair,
    Side,
    best_pairs,
    bins_of,
    cell_texts,
    coarse_sums,
    crossed,
    fine_sums,
    nested_bins,
    pairs_of,
    ranked,
    side_of,
)
from sqlfl.udfs.encoding.transforming import column_of, counts_of
from sqlfl.udfs.numbering.rows import Snapshot

ENDLESS = 1 << 31
"""Cells of all pairs where no rule bounds them."""


class PairFinder:
    """Chooses pairs of the features of a snapshot that may be in some, `most` at most.

    Pairs that are `given` are not chosen anew: those of the block that training starts from.
    """

    shared = False
    """Several databases choose together, by what they tell of their rows."""

    def __init__(
        self,
        snapshot: Snapshot,
        features: Sequence[FeatureSpecification],
        most: int,
        limits: CellLimits,
        given: Sequence[Pair] = (),
        unit: float = 1.0,
    ) -> None:
        self._snapshot, self._features = snapshot, features
        self.most, self._limits = most, limits
        self._unit = unit
        """Rows that a weight of 1 stands for, by which cells are large enough."""
        self._paired = [n for n, feature in enumerate(features) if feature.pairs]
        self.first = self._crossed(given, whole=True) if given else None
        """The given pairs in these rows; None without."""

    def chosen(
        self, slopes: Array, curvature: float, dispersion: float, most: int
    ) -> Crossing | None:
        """The pairs that gain most by slopes (a, outputs), sums over joined rows; None of none.

        `curvature` is the mean second derivative, and `dispersion` the variance of a slope over it.
        """
        self._check(most)
        counts = counts_of(self._snapshot)
        columns = self._columns(self._paired)
        slope_sums = np.asarray(slopes, np.float64)
        places = ranked(columns, counts, slope_sums, curvature * counts, dispersion, most)
        pairs = pairs_of(places, columns, self._unit * counts, self._limits)
        return self._crossed(pairs) if pairs else None

    def _check(self, most: int) -> None:
        if not 0 < most <= self.most:
            raise InternalError(f"{most} pairs of features are asked for, of {self.most}")

    def _crossed(
        self,
        pairs: Sequence[Pair],
        *,
        limits: CellLimits | None = None,
        whole: bool = False,
        merged: Sequence[Array] | None = None,
    ) -> Crossing:
        places = {side.place for pair in pairs for side in (pair.first, pair.second)}
        counts = self._unit * counts_of(self._snapshot)
        columns = self._columns(sorted(places))
        limits = self._limits if limits is None else limits
        crossing = crossed(
            pairs, self._features, columns, counts, limits, whole=whole, merged=merged
        )
        return replace(crossing, counts=tuple(sums / self._unit for sums in crossing.counts))

    def _columns(self, places: Sequence[int]) -> dict[int, Values]:
        return {n: column_of(self._snapshot, self._features[n], n) for n in places}


class SharedPairFinder(PairFinder):
    """Chooses pairs together with the other databases of a slot.

    Each sums residuals and counts over coarse cells, and finds the same pairs by the sums over all
    databases. Then the counts of their cells decide which have a weight: a cell of which one
    database may not tell has none. Bins of a number are between `points`, which all databases know,
    and what these count; features of two values need none.
    """

    shared = True

    def __init__(
        self,
        snapshot: Snapshot,
        features: Sequence[FeatureSpecification],
        most: int,
        limits: CellLimits,
        points: Mapping[int, tuple[Array, Array]],
        given: Mapping[Pair, Mapping[str, float]] | None = None,
        unit: float = 1.0,
    ) -> None:
        super().__init__(snapshot, features, most, limits, unit=unit)
        self._points = points
        self.first = self._again(given) if given else None
        self._told = False
        self._pairs: tuple[Pair, ...] = ()
        self._agreed = limits
        self._counts = np.zeros((0, FINE_SIDE**2))
        """Of the cells that it has told of."""

    def _again(self, given: Mapping[Pair, Mapping[str, float]]) -> Crossing:
        """Return the given pairs' cells, which count so much by their texts, in these rows."""
        merged = []
        for pair in given:
            texts = cell_texts(pair, self._features)
            sums = [
                max(self._unit * given[pair].get(text, 0.0), MIN_CELL_ROWS * (text in given[pair]))
                for text in texts
            ]
            merged.append(np.array(sums, np.float64))
        limits = replace(self._limits, most=ENDLESS, columns=None)
        crossing = self._crossed(list(given), limits=limits, merged=merged)
        few = any(((rows > 0) & (rows < self._limits.least)).any() for rows in crossing.rows)
        room = self._limits.columns
        if few or (room is not None and sum(crossing.sizes) > room):
            raise ModelError(
                "an owner's policy does not allow the cells of pairs that the model has, in these "
                "rows",
                hint="leave warm_start out",
            )
        return crossing

    def cells(self, slopes: Array) -> tuple[Array, Array, int, int]:
        """Return what `Cells` has, once: of the rows' slopes (a, outputs); zeros where pairs are
        given."""
        if self._told:
            raise InternalError("cells are told once in a fit")
        self._told = True
        if self.first is not None:
            size = COARSE_SIDE**2 * comb(len(self._paired), 2)
            return np.zeros((size, slopes.shape[1])), np.zeros(size), 1, 0
        counts = counts_of(self._snapshot)
        columns, limits = self._columns(self._paired), self._limits
        slopes = np.asarray(slopes, np.float64)
        sums, weights = coarse_sums(self._sides(COARSE), columns, slopes, counts, limits)
        return sums.reshape(-1, slopes.shape[1]), weights.ravel(), limits.most, self._room

    def choose(
        self,
        agreed: SetCells,
        rows: int,
        total: float,
    ) -> tuple[Array, bool]:
        """Choose pairs by the sums over all databases, of `rows` joined rows that count `total`.
        Return what `PairCells` has: (most, FINE_SIDE²) counts, and whether that is all."""
        self._check(agreed.pairs)
        if not self._told or self._pairs:
            raise InternalError("pairs are chosen once in a fit, by cells that were told")
        if self.first is not None:
            return np.zeros((agreed.pairs, FINE_SIDE**2)), True
        if agreed.most > self._limits.most or agreed.room > self._room:
            raise InternalError("more cells than the owner allows")
        size = COARSE_SIDE**2
        shape = (-1, size, agreed.slopes.shape[1])
        bends = agreed.curvature / total * agreed.counts.reshape(-1, size)
        slopes = agreed.slopes.reshape(shape) / rows
        places = best_pairs(self._paired, slopes, bends, agreed.dispersion, agreed.pairs)
        columns = self._columns(self._paired)
        self._agreed = replace(self._limits, most=agreed.most, columns=agreed.room)
        sides = self._sides(bins_of(self._unit * total, agreed.most))
        self._pairs = tuple(Pair(sides[one], sides[two]) for one, two in places)
        rows_at = self._unit * counts_of(self._snapshot)
        counts = fine_sums(self._pairs, self._sides(COARSE), columns, rows_at, self._limits)
        self._counts = np.pad(counts, ((0, agreed.pairs - len(counts)), (0, 0)))
        return self._counts, self._limits.least <= 1

    def settle(self, counts: Array) -> Crossing | None:
        """Return the chosen pairs' cells, of these counts over all databases; None of none."""
        if not self._pairs:
            return None
        shape, sent = counts.shape, self._counts
        if shape != sent.shape or (self._limits.least > 1 and (counts[sent == 0.0] > 0.0).any()):
            raise InternalError("cells of pairs of which this database has told nothing")
        crossing = self._crossed(self._pairs, limits=self._agreed, merged=list(counts))
        return crossing if crossing.pairs else None

    @property
    def _room(self) -> int:
        return ENDLESS if self._limits.columns is None else self._limits.columns

    def _sides(self, bins: int) -> dict[int, Side]:
        return {n: self._side(n, bins) for n in self._paired}

    def _side(self, place: int, bins: int) -> Side:
        if self._features[place].kind == "boolean":
            return Side(place, np.array([0.5]))
        values, counts = self._points[place]
        few = len(np.unique(values[counts > 0])) <= bins
        return side_of(place, values, counts, bins if few else nested_bins(bins))


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

    def gram_apart(self, first: GramMatrix) -> GramMatrix:
        """Return second moments of the columns without cells, `first`, and the counts of cells: not
        which cells occur together."""
        counts = np.asarray(self._cells.T @ self.counts, np.float64)
        return joined_apart(first, counts)

    def norms(self) -> Array:
        raise InternalError("rows with pairs of features are not clipped")

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        numbers, onehot = self._engine.columns(kind)
        return numbers, sparse.csr_array(sparse.hstack([onehot, self._cells], format="csr"))

    def _some(self, batch: Array | None) -> sparse.csr_array:
        return self._cells if batch is None else self._cells[batch]


def joined_apart(first: GramMatrix, counts: Array) -> GramMatrix:
    """Return second moments of columns and, behind them, of cells that count so much: as if no cell
    occurred together with another, or with anything else."""
    beside = np.zeros((len(counts), first.numeric.shape[1]))
    every = sparse.block_diag([first.onehot, sparse.diags_array(counts)], format="csr")
    return GramMatrix(
        first.numeric,
        np.concatenate([first.cross, beside]),
        sparse.csr_array(every),
        np.concatenate([first.moments, counts]),
        first.weight,
    )


def first_columns(gram: GramMatrix, width: int) -> GramMatrix:
    """Return the second moments of the first columns alone, so many."""
    onehot = width - len(gram.numeric)
    return GramMatrix(
        gram.numeric,
        gram.cross[:onehot],
        sparse.csr_array(gram.onehot[:onehot, :onehot]),
        gram.moments[:width],
        gram.weight,
    )


def points_of_pairs(
    features: Sequence[FeatureSpecification], merged: SetRanges
) -> dict[int, tuple[Array, Array]]:
    """Return points of the numbers that may be in pairs, and what these count, by the place of the
    feature: those of its curve."""
    fitted = [feature for feature in features if feature.fitted]
    number = {feature.name: n for n, feature in enumerate(fitted)}
    return {
        place: (merged.points[number[name]], merged.counts[number[name]])
        for place, feature in enumerate(features)
        if feature.pairs and (name := f"{feature.name} ({CURVE})") in number
    }


def cells_of_pairs(encoding: Encoding, total: float) -> dict[Pair, dict[str, float]] | None:
    """Return what the cells of a model's pairs count where all rows count `total`, by their texts;
    None of none."""
    first, scale = len(encoding.vocabularies) - len(encoding.pairs), total / encoding.total
    cells = {}
    for number, pair in enumerate(encoding.pairs, start=first):
        counts = dict(zip(encoding.vocabularies[number], encoding.counts[number], strict=True))
        texts = cell_texts(pair, encoding.features)
        entries = encoding.entries_of(number, [f"v{text}" for text in texts])
        cells[pair] = {
            text: scale * float(counts[entry])
            for text, entry in zip(texts, entries, strict=True)
            if entry in counts
        }
    return cells or None
