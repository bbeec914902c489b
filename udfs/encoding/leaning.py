"""Directions that computed features add to a table's others, and whether few rows make them up.

Whoever gets sums over rows of all columns gets the sum of each combination of them, too. So it
does not matter whether one column depends on few rows: `x > 30` and `x > 31` each hold of many,
and their difference of few. This module looks for such a combination.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.udfs.encoding.fitting import Categories

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
