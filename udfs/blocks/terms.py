"""What a block adds up, feature by feature: for those who write it in another language.

The products X̃ θ of a row (of a tower, what its first layer sees without b₁) are `Terms.base` and
a vector for each feature. A number that is missing, and a category that is none of those known, add
nothing but what is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sqlfl.base.arrays import Float
from sqlfl.contract.schema import FeatureSpecification
from sqlfl.contract.transforms import number as _text
from sqlfl.udfs.blocks.blocks import SavedBlock
from sqlfl.udfs.encoding import curves
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of
from sqlfl.udfs.encoding.fitting import NULL, OTHER, Fitted, bucket_names, spline_of
from sqlfl.udfs.numbering import keys

if TYPE_CHECKING:
    from scipy.interpolate import BSpline


@dataclass(frozen=True, eq=False)
class Spline:
    """Piecewise polynomials of a number, held within the first and the last knot."""

    knots: Float
    """(k + 1,)"""
    coefficients: Float
    """(k, degree + 1, w): of the distance from the knot before, the highest power first."""


@dataclass(frozen=True, eq=False)
class NumberTerm:
    """A feature of w numbers x, which adds Σ (x' − mean) / scale · weights. Where present, filling,
    shifting, a spline and clipping turn x into x', in this order.
    """

    feature: FeatureSpecification
    mean: Float
    """(w,)"""
    scale: Float
    weights: Float
    """(w, h)"""
    missing: Float | None
    """(h,): the addition if the feature is missing; None for nothing."""
    fill: float | None = None
    """The replacement of a missing number."""
    affine: tuple[float, float] | None = None
    """(x − first) / second."""
    spline: Spline | None = None
    limits: Float | None = None
    """(2, w)"""


@dataclass(frozen=True, eq=False)
class Buckets:
    """A number that adds the weights of its bucket."""

    feature: FeatureSpecification
    bounds: Float
    """(b,), ascending; each is the least number of the bucket after it."""
    weights: Float
    """(b + 1, h)"""
    missing: Float
    """(h,)"""


@dataclass(frozen=True, eq=False)
class TextTerm:
    """A category that adds the weights of its text."""

    feature: FeatureSpecification
    texts: tuple[str, ...]
    weights: Float
    """(n, h)"""
    missing: Float
    """(h,): of NULL"""
    other: Float
    """(h,): for other values than the texts"""
    key: bytes | None = None
    """The key of keyed hashes (`sqlfl.udfs.numbering.keys.tag`) of 'v' and the text, in
    hexadecimal, if the texts are hashes; None for clear texts.
    """


Piece: TypeAlias = "NumberTerm | Buckets | TextTerm"


@dataclass(frozen=True, eq=False)
class Terms:
    base: Float
    """(h,)"""
    pieces: tuple[Piece, ...]


def pieces_of(block: SavedBlock) -> Terms:
    """h being the columns of θ."""
    encoding, theta = block.encoding, np.asarray(block.theta, np.float64)
    base = -(encoding.centre @ theta)
    fitted = encoding.fitted or (None,) * len(encoding.features)
    pieces: list[Piece] = []
    numbered = {place: number for number, place in categories_of(encoding.features)}
    start = number = 0
    for place, (feature, fit) in enumerate(zip(encoding.features, fitted, strict=True)):
        if place in numbered:
            pieces.append(_category(encoding, theta, numbered[place], feature, fit))
            continue
        columns = slice(start, start + feature.width)
        start = columns.stop
        missing = None
        if number in encoding.indicators:
            column = len(encoding.mean) + encoding.indicators.index(number)
            missing = theta[column] / encoding.scales[column]
            base -= encoding.centres[column] * missing
        number += 1
        pieces.append(_numbers(encoding, theta, columns, feature, fit, missing))
    return Terms(base, tuple(pieces))


def _numbers(
    encoding: Encoding,
    theta: Float,
    columns: slice,
    feature: FeatureSpecification,
    fit: Fitted | None,
    missing: Float | None,
) -> NumberTerm:
    step = feature.step
    if fit is not None and fit.table is not None:
        return _curve_of(encoding, theta, columns, feature, fit)
    fill = affine = spline = None
    if step is not None and fit is not None:
        match step.function:
            case "impute":
                fill = float(fit.numbers[0])
            case "spline":
                spline = _polynomials(spline_of(step, fit.numbers), fit.numbers)
            case _:
                affine = float(fit.numbers[0]), float(fit.numbers[1])
    return NumberTerm(
        feature,
        encoding.mean[columns],
        encoding.scale[columns],
        theta[columns],
        missing,
        fill,
        affine,
        spline,
        None if encoding.limits is None else encoding.limits[:, columns],
    )


def _curve_of(
    encoding: Encoding, theta: Float, columns: slice, feature: FeatureSpecification, fit: Fitted
) -> NumberTerm:
    """A curve as one function for each output, with the weights in it."""
    assert fit.table is not None
    weights = theta[columns] / encoding.scale[columns, None]
    mean = encoding.mean[columns] @ weights
    ones, spline = np.ones(len(mean)), _curve(fit.numbers, fit.table @ weights)
    return NumberTerm(feature, mean, ones, np.eye(len(mean)), None, spline=spline)


def _curve(places: Float, table: Float) -> Spline:
    """Return a constant between the bounds for few values; else polynomials."""
    if curves.is_smooth(places, table):
        ends = np.array([places[0], places[-1]])
        return _polynomials(curves.spline_of(places, table), ends)
    ends = np.array([places[0] - 1.0, places[-1] + 1.0]) if len(places) else np.array([0.0, 1.0])
    return Spline(np.concatenate([ends[:1], places, ends[1:]]), table[:, None, :])


def _frequent(feature: FeatureSpecification, kept: Float, weights: Float) -> Buckets:
    """Return values with weights of their own: each is a bucket up to the next double."""
    nothing = np.zeros(weights.shape[1])
    rows = np.zeros((2 * len(kept) + 1, weights.shape[1]))
    rows[1::2] = weights
    bounds = np.column_stack([kept, np.nextafter(kept, np.inf)]).reshape(-1)
    return Buckets(feature, bounds, rows, nothing)


def _polynomials(spline: BSpline, ends: Float) -> Spline:
    """Between the ends."""
    from scipy.interpolate import PPoly

    columns = np.asarray(spline.c, np.float64).T
    each = [PPoly.from_spline((np.asarray(spline.t), column, int(spline.k))) for column in columns]
    knots = each[0].x
    inside = (knots[:-1] >= ends[0]) & (knots[:-1] < ends[1]) & (knots[:-1] < knots[1:])
    coefficients = np.stack([polynomial.c[:, inside].T for polynomial in each], axis=2)
    return Spline(np.append(knots[:-1][inside], ends[1]), coefficients)


def _category(
    encoding: Encoding,
    theta: Float,
    number: int,
    feature: FeatureSpecification,
    fit: Fitted | None,
) -> Buckets | TextTerm:
    entries = encoding.vocabularies[number]
    weights = theta[encoding.offsets[number] : encoding.offsets[number + 1]]
    places = {entry: code for code, entry in enumerate(entries)}
    key = None
    if encoding.vocabulary_key is not None:
        key = vocabulary_key_of(encoding.vocabulary_key, number)
    nothing = np.zeros(theta.shape[1])

    def of(canonical: bytes) -> Float:
        text = canonical.decode() if key is None else _tag(key, canonical)
        return nothing if text not in places else np.asarray(weights[places[text]])

    step = feature.step
    if fit is not None and feature.frequent_values:
        values = [f"v{_text(float(value))}" for value in fit.numbers]
        rows = np.array([of(value.encode()) for value in values]).reshape(-1, theta.shape[1])
        return _frequent(feature, fit.numbers, rows)
    if fit is not None and step is not None and step.function == "quantile_bucketize":
        names = bucket_names(fit.numbers)
        return Buckets(
            feature, fit.numbers, np.array([of(f"v{n}".encode()) for n in names]), of(NULL)
        )
    if fit is not None and step is not None and step.function == "one_hot" and fit.texts:
        other = of(OTHER)
        kept = tuple(text[1:] for text in fit.texts if text.startswith("v"))
        known = np.array([of(f"v{text}".encode()) for text in kept]).reshape(-1, theta.shape[1])
        null = of(NULL) if NULL.decode() in fit.texts else other
        return TextTerm(feature, kept, known, null, other)
    null = of(fit.texts[0].encode() if fit is not None and fit.texts else NULL)
    if key is not None:
        return TextTerm(feature, entries, weights, null, nothing, key)
    clear = [code for code, entry in enumerate(entries) if entry.startswith("v")]
    texts = tuple(entries[code][1:] for code in clear)
    return TextTerm(feature, texts, weights[clear], null, nothing)


def _tag(key: bytes, canonical: bytes) -> str:
    return bytes(keys.tags(key, [canonical])[0]).hex()
