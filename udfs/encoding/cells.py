"""Cells: rows of a table that are alike in a feature, and whether they are too few.

`leaning` finds directions that computed features add to a table's others, and tests whether few
rows make them up. Whoever gets sums over rows of all columns gets the sum of each combination of
them, too. So it does not matter whether one column depends on few rows: `x > 30` and `x > 31` each
hold of many, and their difference of few.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.encoding.fitting import Categories
from sqlfl.udfs.encoding.transforming import absent, column_of
from sqlfl.udfs.numbering.rows import Snapshot

# -- directions of computed features ---------------------------------------------------------------

ROUNDING = 1e-12
"""Relative length of a column below which other columns explain it."""
DEPENDENT = 1e-8
"""Relative length of a combination of columns that others explain."""
WELL_APART = 1e-6
"""Least eigenvalue of the correlations of columns from which their products give directions."""
MAX_COLUMNS = 512
"""Columns that are compared at most, with one for each category."""
MAX_NUMBERS = 1 << 22
"""Numbers in memory at once."""
MAX_CANDIDATES = 4096
MAX_STARTS = 512
STEPS = 50


@dataclass(frozen=True, eq=False)
class Part:
    """Column of numbers, NaN where there is none, or the indicators of categories."""

    place: int
    """Place of its feature."""
    computed: bool
    values: Float | Categories

    @property
    def width(self) -> int:
        return len(self.values.entries) if isinstance(self.values, Categories) else 1


class TooManyColumns(Exception):
    """Computed features have more than MAX_COLUMNS columns; `place` is that of the largest."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def leaning(parts: Sequence[Part], copies: Array, least: int) -> int | None:
    """Return the place of a computed feature that, with others, tells of fewer than `least` rows;
    None without one. Each row is there `copies` times. Raise TooManyColumns.

    Computed columns add directions to the space that the others span: each is a unit vector over
    the rows. The squares on `least` rows that count alike are 1 / least each. A direction tells of
    fewer if its squares on `least` - 1 rows add up to more than `limit`: what so many of these
    rows have, and half of the last one's.
    """
    if least <= 1 or not any(part.computed for part in parts):
        return None
    rows = np.flatnonzero(copies > 0)
    if not len(rows):
        return None
    design = _Design(_bounded(parts), rows, copies[rows].astype(np.float64))
    basis = _added(design)
    if basis is None:
        return None
    most, limit = least - 1, (least - 0.5) / least
    leverages = design.lengths(basis.weights)
    order = _largest(leverages, most)
    alike = np.minimum(design.copies[order], most).astype(np.int64)
    if np.repeat(leverages[order], alike)[:most].sum() <= limit:
        return None
    order = _largest(leverages, MAX_CANDIDATES)
    alike = np.minimum(design.copies[order], most).astype(np.int64)
    directions = np.repeat(design.at(order) @ basis.weights, alike, axis=0)
    found = _concentrated(directions, most, limit)
    return None if found is None else basis.place_of(found)


def _largest(values: Float, number: int) -> Array:
    """Return the places of so many values at most, the largest first."""
    chosen = np.arange(len(values))
    if number < len(values):
        chosen = np.sort(np.argpartition(-values, number)[:number])
    return np.asarray(chosen[np.argsort(-values[chosen], kind="stable")])


def _bounded(parts: Sequence[Part]) -> list[Part]:
    """Return the parts without the largest categories that are not computed, where all together
    are too many."""
    kept = list(parts)
    while sum(part.width for part in kept) > MAX_COLUMNS:
        plain = [part for part in kept if not part.computed and part.width > 1]
        if not plain:
            raise TooManyColumns(max(kept, key=lambda part: part.width).place)
        largest = max(plain, key=lambda part: part.width)
        kept.remove(largest)
    return kept


class _Design:
    """Centred columns of all parts, over rows that are there several times. Of categories all but
    one have a column, which span the same.
    """

    def __init__(self, parts: Sequence[Part], rows: Array, copies: Float) -> None:
        self._rows, self.copies = rows, copies
        self._alike = bool((copies == 1.0).all())
        self._columns = [column for part in parts for column in self._columns_of(part)]
        self.computed = np.array([column.part.computed for column in self._columns], bool)
        self.places = np.array([column.part.place for column in self._columns], np.int64)
        self._size = max(MAX_NUMBERS // max(len(self._columns), 1), 1)
        self._whole: Float | None = None
        """All rows, where they are one chunk."""

    def _columns_of(self, part: Part) -> list[_Column]:
        values = part.values
        if isinstance(values, Categories):
            sums = np.bincount(values.codes[self._rows], self.copies, len(values.entries))
            shares = sums / self.copies.sum()
            most = int(np.argmax(shares)) if len(shares) else -1
            scales = np.maximum(shares, 1.0 - shares)
            return [
                _Column(part, code, share, scale)
                for code, (share, scale) in enumerate(zip(shares, scales, strict=True))
                if code != most
            ]
        known = values[self._rows]
        present = np.isfinite(known)
        copies = self.copies
        if not present.all():
            known, copies = known[present], copies[present]
        weight = copies.sum()
        centre = known @ copies / weight if weight else 0.0
        scale = np.abs(known - centre).max(initial=0.0)
        return [_Column(part, 0, float(centre), float(scale) or 1.0)]

    def at(self, chosen: Array | slice) -> Float:
        """Return (n, K): the columns of these rows."""
        rows = self._rows[chosen]
        design = np.empty((len(rows), len(self._columns)), order="F")
        for number, column in enumerate(self._columns):
            design[:, number] = column.at(rows)
        return design

    def _chunks(self) -> Iterator[tuple[slice, Float]]:
        if len(self._rows) <= self._size:
            if self._whole is None:
                self._whole = self.at(slice(None))
            yield slice(None), self._whole
            return
        for start in range(0, len(self._rows), self._size):
            part = slice(start, start + self._size)
            yield part, self.at(part)

    def triangle(self) -> Float:
        """Return (k, K) whose products are those of the columns over all rows."""
        triangle = self._root_of_products()
        if triangle is not None:
            return triangle
        triangle = np.zeros((0, len(self._columns)))
        for part, chunk in self._chunks():
            both = np.concatenate([triangle, chunk * np.sqrt(self.copies[part])[:, None]])
            triangle = np.asarray(np.linalg.qr(both, mode="r"))
        return triangle

    def _root_of_products(self) -> Float | None:
        """Return the triangle from the products of the columns, in a part of the time of reflecting
        the rows; None where other columns nearly explain one, which loses digits.
        """
        products = np.zeros((len(self._columns), len(self._columns)))
        for part, chunk in self._chunks():
            right = chunk if self._alike else chunk * self.copies[part][:, None]
            products += chunk.T @ right
        lengths = np.sqrt(np.diag(products))
        if not lengths.all():
            return None
        unit = products / np.outer(lengths, lengths)
        if np.linalg.eigvalsh(unit)[0] < WELL_APART:
            return None
        return np.asarray(np.linalg.cholesky(unit).T * lengths)

    def lengths(self, weights: Float) -> Float:
        """Return (n,): of each row the squared length of the combinations (K, d)."""
        squares = np.empty(len(self._rows))
        for part, chunk in self._chunks():
            combined = chunk @ weights
            squares[part] = np.einsum("nd,nd->n", combined, combined)
        return squares


@dataclass(frozen=True, eq=False)
class _Column:
    """Column of the design: numbers of a part, or the indicator of one of its categories."""

    part: Part
    code: int
    centre: float
    scale: float

    def at(self, rows: Array) -> Float:
        """Return the column of these rows; 0, which is its mean, where there is no number."""
        values = self.part.values
        if isinstance(values, Categories):
            column: Float = (values.codes[rows] == self.code).astype(np.float64)
        else:
            column = values[rows].astype(np.float64)
        column -= self.centre
        column /= self.scale
        column[~np.isfinite(column)] = 0.0
        return column


@dataclass(frozen=True, eq=False)
class _Basis:
    """Orthonormal directions that computed columns add."""

    weights: Float
    """(K, d): of the columns in each direction."""
    shares: Float
    """(computed columns, d): the same, of what each computed column adds by itself."""
    places: Array

    def place_of(self, direction: Float) -> int:
        """Return the place of the feature with the largest part in a direction (d,)."""
        return int(self.places[np.argmax(np.abs(self.shares @ direction))])


def _added(design: _Design) -> _Basis | None:
    """Return the directions; None where other columns explain all computed ones."""
    triangle, computed = design.triangle(), design.computed
    lengths = np.linalg.norm(triangle, axis=0)
    unit = triangle / np.where(lengths > 0.0, lengths, 1.0)
    plain, made = unit[:, ~computed], unit[:, computed]
    explained: Float = np.zeros((plain.shape[1], made.shape[1]))
    if plain.size:
        explained = np.asarray(np.linalg.lstsq(plain, made, rcond=None)[0])
    left = made - plain @ explained
    sizes = np.linalg.norm(left, axis=0)
    kept = np.flatnonzero(sizes > ROUNDING)
    if not len(kept):
        return None
    _, roots, vectors = np.linalg.svd(left[:, kept] / sizes[kept], full_matrices=False)
    known = roots > DEPENDENT
    shares = vectors[known].T / roots[known]
    weights = np.zeros((len(lengths), shares.shape[1]))
    own = shares / sizes[kept, None]
    weights[np.flatnonzero(computed)[kept]] = own
    weights[~computed] = -explained[:, kept] @ own
    weights /= np.where(lengths > 0.0, lengths, 1.0)[:, None]
    return _Basis(weights, shares, design.places[computed][kept])


def _concentrated(directions: Float, most: int, limit: float) -> Float | None:
    """Return a combination (d,) of the directions (n, d) whose squares on `most` rows are more than
    `limit`; None where none is found.

    From each row that such a combination may have as its largest: the combination that is largest
    on the present rows, and the rows on which it is largest, in turn.
    """
    starts = np.flatnonzero(np.square(directions).sum(axis=1) >= limit / most)[:MAX_STARTS]
    tried: set[bytes] = set()
    for start in starts:
        combination = directions[start]
        for _ in range(STEPS):
            squares = np.square(directions @ combination)
            chosen = np.sort(np.argpartition(-squares, min(most, len(squares)) - 1)[:most])
            if chosen.tobytes() in tried:
                break
            tried.add(chosen.tobytes())
            _, roots, vectors = np.linalg.svd(directions[chosen], full_matrices=False)
            if roots[0] ** 2 > limit:
                return np.asarray(vectors[0])
            combination = vectors[0]
    return None


# -- cells -----------------------------------------------------------------------------------------

VALUE = "too few have one of its values, or NULL"
UNMATCHED = "too few find no partner in the join"
LEANING = "it is computed, and by itself or with other features tells of too few"
TOO_MANY = "it is computed, and has too many values for their rows to be compared"
OTHERWISE = {
    VALUE: "join rare values, by CASE, coalesce(x, 0), least(x, 9), or by one_hot(x, max => 10) "
    "in TRANSFORM; or leave the feature out",
    UNMATCHED: "JOIN in place of LEFT JOIN leaves out rows without a partner; or leave the feature "
    "out",
    LEANING: "bound what few rows have, as least(x, 100), greatest(x, 5) and ln(x + 1) do, before "
    "auto and spline too; take bounds and classes with more rows between them; or leave the "
    "feature out",
    TOO_MANY: "join values into fewer, or leave the feature out",
}
"""Advice to whoever wrote the query, by the reason."""
MANY_VALUES = 40
"""Distinct numbers of a computed feature beyond which rare ones are no cell: single amounts and
ages are rare where there are many, and a little noise makes as many of any few.
"""


@dataclass(frozen=True, eq=False)
class RowCounts:
    """Rows that each active row of a snapshot stands for.

    own : (a,) rows of a table: 1, 0 for the row that a LEFT JOIN takes where it finds no partner,
        and more for equal rows that were merged.
    unmatched : (a,) joined rows that found no partner.
    """

    own: Array
    unmatched: Array

    @classmethod
    def of(cls, somebodys: Array, counts: Array) -> RowCounts:
        """somebodys: (a,) whether it is a row of a table; counts: (a,) how often it is joined."""
        return cls(somebodys.astype(np.int64), np.where(somebodys, 0, counts).astype(np.int64))

    def merged(self, classes: Array) -> RowCounts:
        """Return the counts of merged rows; classes: (a,), the index of each row after it."""
        totals = (np.bincount(classes, of).astype(np.int64) for of in (self.own, self.unmatched))
        return RowCounts(*totals)

    def rare(self, codes: Array, least: int) -> str | None:
        """Why a cell is too small; None where none is. codes: (a,), the cell of each active row;
        rows with a negative one are in none.

        Rows of a table must be as many by themselves: the coordinator knows which joined rows
        found no partner, and can tell them apart from the others of the cell.
        """
        within = codes >= 0
        rows, unmatched = (
            np.bincount(codes[within], of[within]) for of in (self.own, self.unmatched)
        )
        if ((rows > 0) & (rows < least)).any():
            return VALUE
        alone = unmatched[rows == 0]
        return UNMATCHED if ((alone > 0) & (alone < least)).any() else None


def rare_feature(
    snapshot: Snapshot, counted: RowCounts, computed: Collection[int], least: int
) -> tuple[str, str] | None:
    """The name of the first feature with a cell of fewer than `least` rows, and the reason.

    Cells are the rows of a category, of either of two values, and those where a feature is NULL.
    `computed`: the places of features that are made of columns. If they have few numbers, none of
    these may be rare, or at least `least` rows have rare ones; and together with the other
    features they tell of no fewer rows (`leaning`).
    """
    parts: list[Part] = []
    features = snapshot.specification.features
    for place, feature in enumerate(features):
        own, cells = _read(snapshot, feature, place, counted)
        for codes in cells:
            why = counted.rare(codes, least)
            if why is not None:
                return feature.name, why
        parts += [Part(place, place in computed, values) for values in own]
    if not any(part.computed for part in parts):
        return None
    copies = [counted.own]
    if counted.unmatched.any():
        # more copies would only hide more of the others
        most = max(int(counted.own.sum()), least)
        copies.append(counted.own + np.minimum(counted.unmatched, most))
    for times in copies:
        try:
            place_of_rare = _of_few(parts, times, least)
            if place_of_rare is None:
                place_of_rare = leaning(parts, times, least)
        except TooManyColumns as error:
            return features[error.place].name, TOO_MANY
        if place_of_rare is not None:
            return features[place_of_rare].name, LEANING
    return None


def _read(
    snapshot: Snapshot, feature: FeatureSpecification, place: int, counted: RowCounts
) -> tuple[list[Float | Categories], Iterator[Array]]:
    """The columns of a feature with the indicator of its gaps, and the cells of rows, several
    divisions of them."""
    if feature.kind == "array":
        gone = absent(snapshot, place) > 0
        return [*_parts(snapshot, feature, place), *_indicator(gone)], _gaps(gone)
    values = column_of(snapshot, replace(feature, made=None), place)
    if isinstance(values, Categories):
        return [values], iter([values.codes])
    return [values, *_indicator(np.isnan(values))], _cells(values, counted)


def _indicator(gone: Array) -> list[Float | Categories]:
    """The column by which a model tells rows without a value apart."""
    return [gone.astype(np.float64)] if gone.any() else []


def _of_few(parts: Sequence[Part], copies: Array, least: int) -> int | None:
    """The place of a computed feature with rare numbers, which fewer than `least` rows have, where
    the rows with any of these are fewer, too."""
    for part in parts:
        if not part.computed or isinstance(part.values, Categories):
            continue
        known = np.isfinite(part.values) & (copies > 0)
        rows = _rows_of_values(part.values[known], copies[known])
        if len(rows) <= MANY_VALUES and 0 < rows[rows < least].sum() < least:
            return part.place
    return None


def _rows_of_values(values: Float, copies: Array) -> Array:
    """Return how many rows have each of the values."""
    order = None if (copies == 1).all() else np.argsort(values, kind="stable")
    ordered = np.sort(values) if order is None else values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
    if order is None:
        return np.diff(starts, append=len(ordered))
    return np.add.reduceat(copies[order], starts) if len(starts) else copies[:0]


def _cells(values: Float, counted: RowCounts) -> Iterator[Array]:
    gone = np.isnan(values)
    yield from _gaps(gone)
    for known in (~gone, ~gone & (counted.own > 0)):
        larger = _larger_of_two(values[known])
        if larger is not None:
            yield np.where(known, values == larger, -1)


def _larger_of_two(values: Float) -> float | None:
    """Return the larger one of the two values that there are; None where there are not two."""
    if not len(values):
        return None
    least, most = values.min(), values.max()
    two = least < most and ((values == least) | (values == most)).all()
    return float(most) if two else None


def _gaps(gone: Array) -> Iterator[Array]:
    """Rows without a value, and those with one: an indicator of missing values tells them apart."""
    yield _where(gone)
    if gone.any():
        yield _where(~gone)


def _where(chosen: Array) -> Array:
    """One cell, of these rows."""
    return np.where(chosen, 0, -1)


def _parts(
    snapshot: Snapshot, feature: FeatureSpecification, place: int
) -> list[Float | Categories]:
    """The columns of an array."""
    if snapshot.held is not None:
        held = snapshot.held.columns[f"f{place}"]
        parts = np.full((len(held), feature.width), np.nan)
        known = held.is_valid().to_numpy(zero_copy_only=False)
        flat = held.drop_null().flatten().to_numpy(zero_copy_only=False)
        parts[known] = np.asarray(flat, np.float64).reshape(-1, feature.width)
        return list(parts.T)
    before = snapshot.specification.features[:place]
    first = sum(f.width for f in before if f.kind != "category")
    values = (
        sql.expression(
            "coalesce(CAST($value AS DOUBLE), CAST('nan' AS DOUBLE))",
            value=sql.column(f"x{first + part}"),
        )
        for part in range(feature.width)
    )
    return [snapshot.of_active_rows(value, None, np.float64) for value in values]
