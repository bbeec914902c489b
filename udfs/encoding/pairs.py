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
from sqlfl.contract.transforms import COARSE_SIDE, FINE_SIDE, TIMES, number, written
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.encoding.fitting import NULL, Categories, Values, bucket_names

COARSE = 8
"""Bins of a number by which pairs are ranked."""
FINE = 32
"""Bins of a number in a pair's cells at most: fewer where a cell would have fewer than
2 MIN_CELL_ROWS joined rows on average, but COARSE."""
TEXTS = 15
"""Categories of a feature that pairs tell apart; the others are one."""
MIN_CELL_ROWS = 5
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
    sides = {n: side_of(n, values, counts, COARSE) for n, values in columns.items()}
    sums, bends = coarse_sums(sides, columns, slopes, curvatures)
    return best_pairs(list(columns), sums, bends, dispersion, most)


def coarse_sums(
    sides: Mapping[int, Side],
    columns: Mapping[int, Values],
    slopes: Float,
    weights: Float,
    limits: CellLimits | None = None,
) -> tuple[Float, Float]:
    """Sums of the slopes (a, outputs) and of the weights (a,) over the cells of each two features:
    (pairs, COARSE_SIDE², outputs) and (pairs, COARSE_SIDE²), in the order of `combinations`. Within
    limits, cells of too few rows are 0, and others from which theirs would follow."""
    size, live = COARSE_SIDE**2, weights > 0
    cells = {place: cells_of(side, columns[place]) for place, side in sides.items()}
    sums, bends = [], []
    for one, two in combinations(sides, 2):
        at = cells[one] * COARSE_SIDE + cells[two]
        bend = np.bincount(at, weights, size).astype(np.float64)
        slope_sums = np.column_stack([np.bincount(at, column, size) for column in slopes.T])
        if limits is not None and limits.least > 1:
            rows = np.bincount(at[live], limits.rows_of(len(at))[live], size)
            hidden = ~shown(rows.reshape(COARSE_SIDE, -1), limits.least).ravel()
            bend[hidden], slope_sums[hidden] = 0.0, 0.0
        sums.append(slope_sums)
        bends.append(bend)
    shape = (len(sums), size, slopes.shape[1])
    return np.array(sums, np.float64).reshape(shape), np.array(bends).reshape(shape[:2])


def best_pairs(
    places: Sequence[int], sums: Float, bends: Float, dispersion: float, most: int
) -> list[tuple[int, int]]:
    """As `ranked`, of the sums over cells that `coarse_sums` makes of features at these places."""
    scored = []
    live = (bends > 0.0).reshape(len(bends), COARSE_SIDE, COARSE_SIDE)
    margins = live.any(axis=2).sum(axis=1) + live.any(axis=1).sum(axis=1)
    freedoms = max(sums.shape[2] - 1, 1) * (live.sum(axis=(1, 2)) - margins + 1)
    squares = np.einsum("pco,pco->pc", sums, sums)
    gains = np.divide(squares, bends, out=np.zeros_like(squares), where=bends > 0.0).sum(axis=1)
    for pair, gain, freedom in zip(combinations(places, 2), gains, freedoms, strict=True):
        if freedom > 0:
            beyond = (float(gain) / dispersion - freedom) / np.sqrt(2.0 * freedom)
            scored.append((beyond, pair))
    scored.sort(reverse=True)
    return [pair for gain, pair in scored[:most] if gain > BEYOND_CHANCE]


def shown(
    rows: Array,
    least: int,
    kept: Array | None = None,
    blocks: Array | None = None,
    beside: tuple[Array, Array] | None = None,
) -> Array:
    """bool (R, C): cells of so many rows that may be told of where sums over a line of them are
    known, and over each of the `blocks`, if given: int (R, C), the number of a cell's block.
    `beside` : parts of no cell of its own that each block has and that are not told of, and rows.

    Cells of fewer than `least` rows may not, nor others than the `kept` ones. What a line or a
    block lacks is of two cells and of `least` rows at least: else its smallest other cell goes too.
    """
    visible = np.asarray(rows >= least)
    if kept is not None:
        visible &= kept
    at = np.arange(rows.size).reshape(rows.shape)
    none = np.zeros(1, np.int64)
    lines = [(part, (none, none)) for part in (at // rows.shape[1], at % rows.shape[1])]
    parts = lines if blocks is None else [*lines, (blocks, beside or (none, none))]
    while True:
        before = visible.copy()
        for part, (pieces, own) in parts:
            hidden = ~visible & (rows > 0)
            number = int(part.max()) + 1
            count = np.bincount(part[hidden], minlength=number)
            count[: len(pieces)] += pieces[:number]
            lack = np.bincount(part[hidden], rows[hidden], number).astype(np.float64)
            lack[: len(own)] += own[:number]
            short = (count > 0) & ((count < 2) | (lack < least))
            # the smallest cell of each, the first of equal ones
            order = np.lexsort((at.ravel(), rows.ravel()))
            order = order[(visible & short[part]).ravel()[order]]
            first = np.unique(part.ravel()[order], return_index=True)[1]
            visible.ravel()[order[first]] = False
        if (before == visible).all():
            return visible


def pairs_of(
    places: Sequence[tuple[int, int]],
    columns: Mapping[int, Values],
    counts: Float,
    limits: CellLimits,
) -> tuple[Pair, ...]:
    """Pairs of these features, with as fine bins as the rows bear."""
    bins = bins_of(float(counts.sum()), limits.most)
    sides = {
        place: side_of(place, columns[place], counts, bins)
        for place in {place for pair in places for place in pair}
    }
    return tuple(Pair(sides[one], sides[two]) for one, two in places)


def bins_of(total: float, most: int) -> int:
    """Bins of a number in pairs of at most so many cells, of rows that count so much."""
    bins = max(COARSE, int(np.sqrt(total / (2 * MIN_CELL_ROWS))))
    return max(min(FINE, bins, int(np.sqrt(most))), 1)


def nested_bins(bins: int) -> int:
    """Return a number of bins, at most so many, whose bounds are those of the COARSE bins and
    others, or some of those. Of other numbers the rows between two bounds may be few."""
    return bins - bins % COARSE if bins >= COARSE else 1 << (bins.bit_length() - 1)


def crossed(
    pairs: Sequence[Pair],
    features: Sequence[FeatureSpecification],
    columns: Mapping[int, Values],
    counts: Float,
    limits: CellLimits,
    *,
    whole: bool = False,
    merged: Sequence[Float] | None = None,
) -> Crossing:
    """The pairs' cells in these rows, without those of too few. Pairs of fewer than two cells, and
    those beyond the room for columns, are left out; of a `whole` pair only the cells beyond it.

    merged : of each pair the sums of its cells over the rows of all databases, where these are
    several; 0 of those that some database does not tell of. They decide, not the rows here.
    """
    kept: list[tuple[FeatureSpecification, Pair, tuple[str, ...], Float, Array, Array]] = []
    room, known = limits.columns, counts > 0
    own_rows = limits.rows_of(len(counts))[known]
    for place, pair in enumerate(pairs):
        texts, cells = cell_texts(pair, features), _cells(pair, columns)
        rows = np.bincount(cells[known], own_rows, len(texts)).astype(np.int64)
        if merged is None:
            sums = np.bincount(cells, counts, len(texts)).astype(np.float64)
            often = np.flatnonzero(_kept(pair, sums, rows, limits))
        else:
            sums = np.asarray(merged[place][: len(texts)], np.float64)
            often = np.flatnonzero(sums >= MIN_CELL_ROWS)
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


def _kept(pair: Pair, sums: Float, rows: Array, limits: CellLimits) -> Array:
    """Which cells have enough rows. Of those whose rows CURVES tells, beside those of the features,
    no other cell's rows follow."""
    enough: Array = sums >= MIN_CELL_ROWS
    if limits.least <= 1:
        return enough & (rows >= limits.least)
    often = np.zeros(len(sums), bool)
    often[np.argsort(-np.where(enough, sums, 0.0), kind="stable")[: limits.most]] = True
    grid = (-1, _width(pair.second))
    return shown(rows.reshape(grid), limits.least, (enough & often).reshape(grid)).ravel()


def fine_sums(
    pairs: Sequence[Pair],
    sides: Mapping[int, Side],
    columns: Mapping[int, Values],
    counts: Float,
    limits: CellLimits,
) -> Float:
    """(pairs, FINE_SIDE²): sums of the counts (a,) over each pair's cells, of numbers only; within
    limits, cells of too few rows are 0, and others from which theirs would follow, also by the sums
    over the coarse cells that `sides` make: a cell that is told of is a part of one of these that
    was told of, or consists of such."""
    counted, known = np.zeros((len(pairs), FINE_SIDE**2)), counts > 0
    own_rows = limits.rows_of(len(counts))[known]
    for place, pair in enumerate(pairs):
        cells, width = _cells(pair, columns), _width(pair.second)
        size = _width(pair.first) * width
        sums = np.bincount(cells, counts, size)
        if limits.least > 1:
            both = [(sides[side.place], columns[side.place]) for side in (pair.first, pair.second)]
            one, two = (cells_of(side, values) for side, values in both)
            number = COARSE_SIDE**2
            of_both = cells * number + one * COARSE_SIDE + two
            rows = np.bincount(of_both[known], own_rows, size * number).reshape(size, number)
            told = shown(rows.sum(axis=0).reshape(COARSE_SIDE, -1), limits.least).ravel()
            whole = told & (rows == rows.sum(axis=0))
            several, within = (rows > 0).sum(axis=1) > 1, rows.argmax(axis=1)
            made_up = ((rows == 0) | whole).all(axis=1)
            kept = np.where(several, made_up, told[within]).reshape(-1, width)
            # cells with rows in several coarse ones are in a block of their own
            blocks = np.where(several, number, within).reshape(-1, width)
            torn = rows[several & ~made_up]
            beside = (torn > 0).sum(axis=0), torn.sum(axis=0)
            own = rows.sum(axis=1).reshape(-1, width)
            sums = np.where(shown(own, limits.least, kept, blocks, beside).ravel(), sums, 0.0)
        counted[place, :size] = sums
    return counted


def column_of_cells(
    pair: Pair, features: Sequence[FeatureSpecification], columns: Mapping[int, Values]
) -> pa.Array:
    """The pair as a category of each row: canonical texts."""
    texts = pa.array([f"v{text}".encode() for text in cell_texts(pair, features)], pa.binary())
    return texts.take(pa.array(_cells(pair, columns)))


def _cells(pair: Pair, columns: Mapping[int, Values]) -> Array:
    first = cells_of(pair.first, columns[pair.first.place])
    return first * _width(pair.second) + cells_of(pair.second, columns[pair.second.place])


def _width(side: Side) -> int:
    return max(len(side.bounds), len(side.texts)) + 2


def cell_texts(pair: Pair, features: Sequence[FeatureSpecification]) -> list[str]:
    """Return the names of a pair's cells, in the order of `_cells`."""
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
