"""Pairs of features of a table: cells of two features' values, each with a weight of its own.

A pair is worth what crossed cells of a few bins would take from the loss in one Newton step from
where training is, less what chance takes: its degrees of freedom. Then it is added with finer bins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa
from scipy import sparse

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.schema import FeatureSpecification, Made
from sqlfl.contract.transforms import TIMES, number, written
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.fitting import NULL, Categories, Values, bucket_names

COARSE = 8
"""Bins of a number by which pairs are ranked."""
FINE = 32
"""Bins of a number in a pair's cells at most: fewer where a cell would have fewer than 2 LEAST
joined rows on average, but COARSE."""
TEXTS = 15
"""Categories of a feature that pairs tell apart; the others are one."""
LEAST = 5
"""Joined rows of a cell: one of fewer has no weight."""
BEYOND_CHANCE = 2.0
"""Standard deviations by which a pair's gain must exceed its degrees of freedom."""


@dataclass(frozen=True, eq=False)
class Side:
    """One feature of a pair: its values by cells, of which the first is NULL."""

    place: int
    """Of the feature, among those of the block."""
    bounds: Float
    """Between the bins of a number, ascending; a bin begins with its bound."""
    texts: tuple[str, ...] = ()
    """Canonical texts of categories that are told apart; the last cell is that of others."""


@dataclass(frozen=True, eq=False)
class Pair:
    first: Side
    second: Side


@dataclass(frozen=True, eq=False)
class Crossing:
    """Pairs and the cells of their features that have a weight."""

    features: tuple[FeatureSpecification, ...]
    """One a pair: a category, whose values are cells."""
    pairs: tuple[Pair, ...]
    vocabularies: tuple[tuple[str, ...], ...]
    """Canonical texts of each pair's cells."""
    counts: tuple[Float, ...]
    """Weights of their rows."""
    rows: tuple[Array, ...]
    """How many rows of the table they have."""
    codes: Array
    """int32 (a, pairs): the cell of each row, -1 for none."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.vocabularies))

    def onehot(self) -> sparse.csr_array:
        """(a, cells of all pairs): 1 where the row is in the cell."""
        offsets = np.cumsum([0, *self.sizes])
        known = self.codes >= 0
        ends = np.concatenate([[0], np.cumsum(known.sum(axis=1))])
        columns = (self.codes + offsets[:-1])[known]
        entries = (np.ones(len(columns)), columns.astype(np.int32), ends.astype(np.int32))
        return sparse.csr_array(entries, shape=(len(self.codes), int(offsets[-1])))


def side_of(place: int, values: Values, counts: Float, bins: int) -> Side:
    """At most `bins` bins of about as many rows, or a cell for each of few values; of categories
    the most frequent ones."""
    if isinstance(values, Categories):
        sums = np.bincount(values.codes, counts, len(values.entries))
        order = np.argsort(-sums, kind="stable")
        often = [values.entries[n] for n in order if sums[n] > 0 and values.entries[n] != NULL]
        return Side(
            place, np.zeros(0), tuple(sorted(e.decode() for e in often[: min(bins, TEXTS)]))
        )
    known = ~np.isnan(values) & (counts > 0)
    distinct, codes = np.unique(values[known], return_inverse=True)
    if len(distinct) <= bins:
        return Side(place, np.asarray((distinct[1:] + distinct[:-1]) / 2))
    sums = np.cumsum(np.bincount(codes, counts[known]))
    ends = np.searchsorted(sums, np.linspace(0.0, 1.0, bins + 1)[1:-1] * sums[-1])
    bounds = np.unique(distinct[np.minimum(ends, len(distinct) - 1)])
    return Side(place, bounds[bounds > distinct[0]])


def cells_of(side: Side, values: Values) -> Array:
    """(a,): 0 for NULL, then the bins, or the categories and the others."""
    if isinstance(values, Categories):
        known = {text: number for number, text in enumerate(side.texts, start=1)}
        other = len(side.texts) + 1
        cells = [0 if e == NULL else known.get(e.decode(), other) for e in values.entries]
        cell_of_row: Array = np.array(cells, np.int64)[values.codes]
        return cell_of_row
    bins = np.searchsorted(side.bounds, values, side="right") + 1
    return np.where(np.isnan(values), 0, bins)


def names_of(side: Side, *, of_texts: bool) -> list[str]:
    """Return the names of a side's cells."""
    if of_texts:
        return ["NULL", *(written(text[1:]) for text in side.texts), "another"]
    return ["NULL", *bucket_names(side.bounds)]


def ranked(
    columns: Mapping[int, Values],
    counts: Float,
    slopes: Float,
    curvatures: Float,
    dispersion: float,
    most: int,
) -> list[tuple[int, int]]:
    """Places of the features of the best pairs, of those that gain more than chance.

    slopes : (a, outputs), derivatives of the loss by scores, summed over a row's joined rows.
    curvatures : (a,), the second derivatives. dispersion : variance of a slope over its curvature.
    """
    coarse = {}
    for place, values in columns.items():
        cells = cells_of(side_of(place, values, counts, COARSE), values)
        coarse[place] = np.unique(cells[counts > 0]), cells
    directions = max(slopes.shape[1] - 1, 1)
    scored = []
    for one, two in combinations(columns, 2):
        (cells_one, rows), (others, beside) = coarse[one], coarse[two]
        width = int(beside.max(initial=0)) + 1
        cells = rows * width + beside
        size = (int(rows.max(initial=0)) + 1) * width
        bend = np.bincount(cells, curvatures, size)
        live = bend > 0.0
        freedom = directions * (int(live.sum()) - len(cells_one) - len(others) + 1)
        if freedom <= 0:
            continue
        squares = sum(np.bincount(cells, column, size)[live] ** 2 for column in slopes.T)
        gain = float(np.sum(squares / bend[live])) / dispersion
        scored.append(((gain - freedom) / np.sqrt(2.0 * freedom), (one, two)))
    scored.sort(reverse=True)
    return [pair for gain, pair in scored[:most] if gain > BEYOND_CHANCE]


def pairs_of(
    places: Sequence[tuple[int, int]],
    columns: Mapping[int, Values],
    counts: Float,
    limits: CellLimits,
) -> tuple[Pair, ...]:
    """Pairs of these features, with as fine bins as the rows bear."""
    bins = max(COARSE, int(np.sqrt(counts.sum() / (2 * LEAST))))
    bins = max(min(FINE, bins, int(np.sqrt(limits.most))), 1)
    sides = {
        place: side_of(place, columns[place], counts, bins)
        for place in {place for pair in places for place in pair}
    }
    return tuple(Pair(sides[one], sides[two]) for one, two in places)


def crossed(
    pairs: Sequence[Pair],
    features: Sequence[FeatureSpecification],
    columns: Mapping[int, Values],
    counts: Float,
    limits: CellLimits,
    *,
    whole: bool = False,
) -> Crossing:
    """The pairs' cells in these rows, without those of too few. Pairs of fewer than two cells, and
    those beyond the room for columns, are left out; of a `whole` pair only the cells beyond it."""
    kept: list[tuple[FeatureSpecification, Pair, tuple[str, ...], Float, Array, Array]] = []
    room, known = limits.columns, counts > 0
    own_rows = limits.rows_of(len(counts))[known]
    for pair in pairs:
        texts, cells = _texts(pair, features), _cells(pair, columns)
        sums = np.bincount(cells, counts, len(texts)).astype(np.float64)
        rows = np.bincount(cells[known], own_rows, len(texts)).astype(np.int64)
        often = np.flatnonzero((sums >= LEAST) & (rows >= limits.least))
        often = often[np.argsort(-sums[often], kind="stable")][: limits.most]
        most = np.sort(often[:room] if whole else often)
        if not whole and (len(most) < 2 or (room is not None and len(most) > room)):
            continue
        room = None if room is None else room - len(most)
        codes = np.full(len(texts), -1, np.int32)
        codes[most] = np.arange(len(most), dtype=np.int32)
        entries = tuple(f"v{texts[n]}" for n in most)
        feature = _feature(pair, features)
        kept.append((feature, pair, entries, sums[most], rows[most], codes[cells]))
    codes_ = [pair_cells[-1] for pair_cells in kept]
    return Crossing(
        tuple(pair_cells[0] for pair_cells in kept),
        tuple(pair_cells[1] for pair_cells in kept),
        tuple(pair_cells[2] for pair_cells in kept),
        tuple(pair_cells[3] for pair_cells in kept),
        tuple(pair_cells[4] for pair_cells in kept),
        np.column_stack(codes_) if codes_ else np.zeros((len(counts), 0), np.int32),
    )


def column_of_cells(
    pair: Pair, features: Sequence[FeatureSpecification], columns: Mapping[int, Values]
) -> pa.Array:
    """The pair as a category of each row: canonical texts."""
    texts = pa.array([f"v{text}".encode() for text in _texts(pair, features)], pa.binary())
    return texts.take(pa.array(_cells(pair, columns)))


def _cells(pair: Pair, columns: Mapping[int, Values]) -> Array:
    width = max(len(pair.second.bounds), len(pair.second.texts)) + 2
    first = cells_of(pair.first, columns[pair.first.place])
    return first * width + cells_of(pair.second, columns[pair.second.place])


def _texts(pair: Pair, features: Sequence[FeatureSpecification]) -> list[str]:
    """In the order of `_cells`."""
    first, second = (
        names_of(side, of_texts=features[side.place].kind == "category")
        for side in (pair.first, pair.second)
    )
    return [f"{one}{TIMES}{two}" for one in first for two in second]


def _feature(pair: Pair, features: Sequence[FeatureSpecification]) -> FeatureSpecification:
    one, two = features[pair.first.place], features[pair.second.place]
    parts = (_sql(pair.first, one), _sql(pair.second, two))
    made = Made(
        tuple({name: (name, kind) for name, kind in (*_inputs(one), *_inputs(two))}.values()),
        f" || '{TIMES}' || ".join(parts),
    )
    return FeatureSpecification(f"{one.name}{TIMES}{two.name}", "category", 1, made, shrunken=True)


def _inputs(feature: FeatureSpecification) -> tuple[tuple[str, str], ...]:
    if feature.made is not None:
        return feature.made.inputs
    return ((feature.name, "VARCHAR" if feature.kind == "category" else "DOUBLE"),)


def _sql(side: Side, feature: FeatureSpecification) -> str:
    """The name of the side's cell as SQL over the columns of the query."""
    if feature.made is None:
        given = '"' + feature.name.replace('"', '""') + '"'
    else:
        given = f"({feature.made.expression})"
    if feature.kind == "category":
        names = names_of(side, of_texts=True)
        texts = [written(text[1:]) for text in side.texts]
        known = zip(texts, names[1:-1], strict=True)
        value, other = f"CAST({given} AS VARCHAR)", names[-1]
        branches = [f"WHEN {value} = {text} THEN {written(name)}" for text, name in known]
    else:
        names = names_of(side, of_texts=False)
        value, other = f"CAST({given} AS DOUBLE)", names[-1]
        below = zip(side.bounds.tolist(), names[1:-1], strict=True)
        branches = [
            f"WHEN {value} < CAST({number(bound)} AS DOUBLE) THEN {written(name)}"
            for bound, name in below
        ]
        value = f"nullif({value}, CAST('nan' AS DOUBLE))"
    return f"CASE WHEN {value} IS NULL THEN 'NULL' {' '.join(branches)} ELSE {written(other)} END"
