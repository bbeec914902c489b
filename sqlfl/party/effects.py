"""Effects of the features that `auto` made, at values of theirs: what CURVES OF MODEL shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array, Float
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.contract.transforms import CURVE
from sqlfl.contract.transforms import number as written
from sqlfl.messages.diagnostics import AT_CATEGORY, AT_NULL, AT_NUMBER
from sqlfl.models.gram import GramMatrix
from sqlfl.models.solver import BlockSolver
from sqlfl.udfs.encoding.curves import FEW
from sqlfl.udfs.encoding.features import Effect, Encoding, categories_of
from sqlfl.udfs.encoding.fitting import NULL as NULL_ENTRY
from sqlfl.udfs.encoding.fitting import Categories, apply
from sqlfl.udfs.encoding.naming import place_of, texts_of
from sqlfl.udfs.encoding.pairs import Crossing
from sqlfl.udfs.encoding.transforming import column_of, counts_of
from sqlfl.udfs.numbering.rows import Snapshot

CELLS = 32
"""Values of a number that an effect is told at."""
RIDGES, GRID = (1e-3, 1e5), 161
"""Strengths over the mean curvature of a category that its posterior is taken at, and how many."""


@dataclass(frozen=True, eq=False)
class Precision:
    """What errors of a block's weights follow from: the penalised second derivatives of its own
    columns, Bayesian (Wood 2017, section 6.10), as if the weights of other tables and of pairs'
    cells were known; and of a cell as if all other weights were."""

    gram: GramMatrix
    """Of the columns without the cells of pairs."""
    centre: Float
    total: float
    curvature: float
    ridge: Float
    """(d,): of all columns."""
    dispersion: float
    """φ over the number of rows."""

    def errors(self, rows: Float, outputs: int) -> Float:
        """(m, outputs): standard errors of the products of rows (m, d) with the weights."""
        ridge = self.ridge[: self.gram.width]
        solver = BlockSolver(self.gram, self.centre, self.total, self.curvature, ridge)
        return self._roots(np.einsum("md,dm->m", rows, solver.solve(rows.T)), outputs)

    def strength_squares(self, columns: slice, theta: Float) -> Float:
        """(K, outputs): squares to add to those of the errors of a category's weights, as their
        strength is not known either: few categories say little of it, and the largest one would
        leave no band at all.

        The mean square error of weights is taken over the strength's posterior, each category by
        itself, with all standard deviations 1/√strength as likely before (Gelman 2006)."""
        weights, ridge = theta[columns], self.ridge[columns.start]
        numeric = len(self.gram.numeric)
        moments = self.gram.onehot.diagonal()[columns.start - numeric : columns.stop - numeric]
        bend = self.curvature * moments / self.total
        known = bend > 0.0
        outputs = theta.shape[1]
        directions = max(outputs - 1, 1)
        if not known.any():
            return np.zeros_like(weights)
        ridges = bend[known].mean() * np.geomspace(*RIDGES, GRID)
        scores = (bend + ridge)[:, None] * weights
        squares = np.sum(scores[known] ** 2, axis=1) / (self.dispersion * bend[known])
        share = bend[known, None] / ridges
        fit = -0.5 * (directions * np.log1p(share) + squares[:, None] / (1.0 + share)).sum(axis=0)
        fit -= 0.5 * np.log(ridges)
        likely = np.exp(fit - fit.max())
        likely /= likely.sum()
        inverse = 1.0 / (bend[:, None] + ridges)
        spread = inverse @ likely - 1.0 / (bend + ridge)
        moved = (inverse - 1.0 / (bend + ridge)[:, None]) ** 2 @ likely
        part = directions / outputs if outputs > 1 else 1.0
        added: Float = self.dispersion * part * spread[:, None] + scores**2 * moved[:, None]
        return added.clip(min=0.0)

    def cell_errors(self, counts: Float, outputs: int) -> Float:
        """(cells, outputs): standard errors of the weights of pairs' cells, whose rows count so
        much."""
        share = counts / self.total
        bend = self.curvature * share * (1.0 - share)
        return self._roots(1.0 / (bend + self.ridge[self.gram.width :]), outputs)

    def _roots(self, squares: Float, outputs: int) -> Float:
        share = (outputs - 1) / outputs if outputs > 1 else 1.0
        roots = np.sqrt(np.maximum(squares, 0.0) * self.dispersion * share)
        return np.repeat(roots[:, None], outputs, axis=1)


@dataclass(frozen=True, eq=False)
class _Points:
    kind: Array
    numbers: Float
    texts: tuple[str, ...]
    rows: Array
    columns: Float
    """(m, d): encoded, centred."""


def effects_of(
    snapshot: Snapshot,
    encoding: Encoding,
    theta: Float,
    precision: Precision,
    crossing: Crossing | None = None,
) -> tuple[Effect, ...]:
    """The effect of each number and category of `auto`, with the lines that it stands beside, and
    then those of pairs, which `encoding` is without. Arrays have no curve."""
    known = counts_of(snapshot) > 0
    effects = []
    theta, cells = theta[: encoding.width], theta[encoding.width :]
    for place, feature in enumerate(encoding.features):
        if not feature.shrunken or feature.fitted or feature.kind == "array":
            continue
        if feature.kind == "category":
            points, columns, named = _categories(snapshot, encoding, place, known)
            added = precision.strength_squares(columns, theta)[named]
        else:
            points, added = _numbers(snapshot, encoding, place, known), np.zeros(())
        errors = np.sqrt(precision.errors(points.columns, theta.shape[1]) ** 2 + added)
        effects.append(
            Effect(
                feature.name,
                points.kind.astype(np.float64),
                points.numbers,
                points.texts,
                points.columns @ theta,
                errors,
                points.rows.astype(np.float64),
            )
        )
    if crossing is not None:
        effects += _pairs(crossing, encoding.total, cells, precision)
    return tuple(effects)


def _pairs(crossing: Crossing, total: float, theta: Float, precision: Precision) -> list[Effect]:
    """The effects of pairs' cells, beside those of their features."""
    errors = precision.cell_errors(np.concatenate(crossing.counts), theta.shape[1])
    pair_effects, start = [], 0
    for number, feature in enumerate(crossing.features):
        texts, counts = crossing.vocabularies[number], crossing.counts[number]
        place = slice(start, start + len(texts))
        start = place.stop
        kinds = np.full(len(texts), AT_CATEGORY, np.float64)
        effects = theta[place] - counts / total @ theta[place]
        pair_effects.append(
            Effect(
                feature.name,
                kinds,
                np.zeros(len(texts)),
                tuple(text[1:] for text in texts),
                effects,
                errors[place],
                crossing.rows[number].astype(np.float64),
            )
        )
    return pair_effects


def _categories(
    snapshot: Snapshot, encoding: Encoding, place: int, known: Array
) -> tuple[_Points, slice, list[int]]:
    """Return the points of a category, its columns, and which of these have a point."""
    number = next(n for n, position in categories_of(encoding.features) if position == place)
    start, stop = encoding.offsets[number : number + 2]
    values = column_of(snapshot, encoding.features[place], place)
    assert isinstance(values, Categories)
    rows = np.bincount(values.codes[known], minlength=len(values.entries))
    often = dict(zip(values.entries, rows.tolist(), strict=True))
    vocabulary = encoding.vocabularies[number]
    texts = {entry: entry for entry in vocabulary}
    if encoding.vocabulary_key is not None:  # texts of other clients are unknown here
        texts = dict(texts_of(encoding, number, values.entries))
    named = [place for place, entry in enumerate(vocabulary) if entry in texts]
    entries = [texts[vocabulary[place]] for place in named]
    design = np.zeros((len(entries), encoding.width))
    design[:, start:stop] = np.eye(stop - start)[named] - encoding.centre[start:stop]
    missing = np.array([entry == NULL_ENTRY.decode() for entry in entries], bool)
    points = _Points(
        np.where(missing, AT_NULL, AT_CATEGORY),
        np.zeros(len(entries)),
        tuple("" if entry == NULL_ENTRY.decode() else entry[1:] for entry in entries),
        np.array([often.get(entry.encode(), 0) for entry in entries], np.int64),
        design,
    )
    return points, slice(start, stop), named


def _numbers(snapshot: Snapshot, encoding: Encoding, place: int, known: Array) -> _Points:
    features = encoding.features
    raw = column_of(snapshot, features[place], place)
    assert not isinstance(raw, Categories)
    values = np.asarray(raw, np.float64)
    present = known & ~np.isnan(values)
    beside = [
        (position, other)
        for position, other in enumerate(features)
        if other.name.startswith(f"{features[place].name} (") and other.shrunken and other.fitted
    ]
    numbers, rows = cells(values[present], _kept(encoding, beside))
    missing = int((known & np.isnan(values)).sum())
    asked = np.append(numbers, np.nan) if missing else numbers
    columns = np.zeros((len(asked), encoding.width))
    first = _first(features, place)
    line = (np.nan_to_num(asked, nan=encoding.mean[first]) - encoding.mean[first]) / encoding.scale[
        first
    ]
    columns[:, first] = line
    indicator = _indicator(encoding, place)
    if indicator is not None:
        flag = np.isnan(asked).astype(np.float64)
        columns[:, indicator] = (flag - encoding.centres[indicator]) / encoding.scales[indicator]
    for position, other in beside:
        fitted = None if encoding.fitted is None else encoding.fitted[position]
        assert fitted is not None
        made = apply(other, fitted, asked)
        if other.step is not None and other.step.value == CURVE:
            start = _first(features, position)
            place_of_columns = slice(start, start + other.width)
            basis = made.values.to_numpy().reshape(-1, other.width)
            columns[:, place_of_columns] = (
                basis - encoding.mean[place_of_columns]
            ) / encoding.scale[place_of_columns]
        else:
            _add_values(encoding, position, made.to_pylist(), columns)
    kind = np.where(np.isnan(asked), AT_NULL, AT_NUMBER)
    texts = tuple("" if np.isnan(v) else written(float(v)) for v in asked)
    every = np.append(rows, missing) if missing else rows
    return _Points(kind, np.nan_to_num(asked), texts, every, columns)


def _add_values(
    encoding: Encoding, position: int, entries: Sequence[bytes], columns: Float
) -> None:
    number = next(n for n, place in categories_of(encoding.features) if place == position)
    start, stop = encoding.offsets[number : number + 2]
    columns[:, start:stop] = -encoding.centre[start:stop]
    for row, entry in enumerate(entries):
        code = place_of(encoding, number, entry.decode())
        if code is not None:
            columns[row, start + code] += 1.0


def _kept(encoding: Encoding, beside: Sequence[tuple[int, FeatureSpecification]]) -> Float:
    """The values of a number that have a weight of their own."""
    fitted = encoding.fitted or ()
    frequent = [fitted[position] for position, other in beside if other.frequent_values]
    return np.concatenate([np.zeros(0), *(fit.numbers for fit in frequent if fit is not None)])


def cells(values: Float, kept: Float) -> tuple[Float, Array]:
    """Values, ascending, and how many rows are at them: of many distinct ones those that are
    `kept`, and the means of CELLS that hold about as many rows of the others each."""
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) <= FEW:
        return distinct, counts
    is_kept = np.isin(distinct, kept)
    means, rows = _means(values[~np.isin(values, kept)])
    numbers, counts = np.append(distinct[is_kept], means), np.append(counts[is_kept], rows)
    order = np.argsort(numbers, kind="stable")
    return numbers[order], counts[order]


def _means(values: Float) -> tuple[Float, Array]:
    """Return bounds of cells with about equally many values."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    bounds = np.unique(np.quantile(values, np.linspace(0.0, 1.0, CELLS + 1)[1:-1]))
    codes = np.searchsorted(bounds, values, side="right")
    rows = np.bincount(codes, minlength=len(bounds) + 1)
    sums = np.bincount(codes, values, len(bounds) + 1)
    kept = rows > 0
    return sums[kept] / rows[kept], rows[kept]


def _first(features: Sequence[FeatureSpecification], place: int) -> int:
    """The first numeric column of a feature."""
    return sum(f.width for f in features[:place] if f.kind != "category")


def _indicator(encoding: Encoding, place: int) -> int | None:
    """The column that says that the feature is missing; None where there is none."""
    number = sum(feature.kind != "category" for feature in encoding.features[:place])
    if number not in encoding.indicators:
        return None
    return len(encoding.mean) + encoding.indicators.index(number)
