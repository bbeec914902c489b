"""Directions that computed features add to a table's others, and whether few rows make them up.

Whoever gets sums over rows of all columns gets the sum of each combination of them, too. So it
does not matter whether one column depends on few rows: `x > 30` and `x > 31` each hold of many,
and their difference of few. This module looks for such a combination.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.udfs.encoding.fitting import Categories

ROUNDING = 1e-12
"""Relative length of a column below which other columns explain it."""
DEPENDENT = 1e-8
"""Relative length of a combination of columns that others explain."""
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
    order = np.argsort(-leverages, kind="stable")[:MAX_CANDIDATES]
    alike = np.minimum(design.copies[order], most).astype(np.int64)
    bound = np.repeat(leverages[order[:most]], alike[:most])[:most].sum()
    if bound <= limit:
        return None
    directions = np.repeat(design.at(order) @ basis.weights, alike, axis=0)
    found = _concentrated(directions, most, limit)
    return None if found is None else basis.place_of(found)


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
    """Centred columns of all parts, over rows that are there several times."""

    def __init__(self, parts: Sequence[Part], rows: Array, copies: Float) -> None:
        self._rows, self.copies = rows, copies
        self._parts = parts
        self.computed = np.repeat([p.computed for p in parts], [p.width for p in parts])
        self.places = np.repeat([p.place for p in parts], [p.width for p in parts])
        self._centres = np.concatenate([self._centre(part) for part in parts])
        self._scales = np.ones(len(self._centres))
        self._size = max(MAX_NUMBERS // max(len(self._centres), 1), 1)
        largest = np.zeros(len(self._centres))
        for start in range(0, len(rows), self._size):
            largest = np.maximum(largest, np.abs(self._chunk(start)).max(axis=0, initial=0.0))
        self._scales[largest > 0.0] = largest[largest > 0.0]

    def _centre(self, part: Part) -> Float:
        values = part.values
        if isinstance(values, Categories):
            sums = np.bincount(values.codes[self._rows], self.copies, len(values.entries))
            return np.asarray(sums / self.copies.sum())
        own = values[self._rows]
        known = np.isfinite(own)
        weight = self.copies[known].sum()
        return np.array([own[known] @ self.copies[known] / weight if weight else 0.0])

    def at(self, chosen: Array) -> Float:
        """Return (n, K): the columns of these rows."""
        rows, columns = self._rows[chosen], []
        for part in self._parts:
            values = part.values
            if isinstance(values, Categories):
                columns.append(np.equal.outer(values.codes[rows], np.arange(part.width)))
            else:
                columns.append(values[rows][:, None])
        centred = (np.concatenate(columns, axis=1) - self._centres) / self._scales
        return np.where(np.isfinite(centred), centred, 0.0)

    def _chunk(self, start: int) -> Float:
        return self.at(np.arange(start, min(start + self._size, len(self._rows))))

    def triangle(self) -> Float:
        """Return (k, K) whose products are those of the columns over all rows."""
        triangle: Float = np.zeros((0, len(self._centres)))
        for start in range(0, len(self._rows), self._size):
            roots = np.sqrt(self.copies[start : start + self._size])[:, None]
            both = np.concatenate([triangle, self._chunk(start) * roots])
            triangle = np.asarray(np.linalg.qr(both, mode="r"))
        return triangle

    def lengths(self, weights: Float) -> Float:
        """Return (n,): of each row the squared length of the combinations (K, d)."""
        starts = range(0, len(self._rows), self._size)
        return np.concatenate([np.square(self._chunk(s) @ weights).sum(axis=1) for s in starts])


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
