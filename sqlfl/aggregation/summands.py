"""Numbers of a client's message that are summed over the clients of its slot, and the message of a
sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from sqlfl.aggregation.fixed_point import (
    GRADIENTS,
    STATISTICS,
    Format,
    from_floats,
    from_fractions,
    to_floats,
    to_fractions,
)
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.messages import Gram, Masked, Message, PartialGradient, SendStatistics, Statistics

BOUNDED = "bounded_statistics"
"""Statistics that are sums already, within public bounds."""
DIAGONAL = "diagonal_gram"
"""Second moments with only the diagonal of one-hot columns."""
SUMMED = (PartialGradient, Gram)
"""Messages that are masked directly. `Statistics` are masked once the categories are known."""


def format_of(what: str) -> Format:
    """Return the format of the numbers of this kind."""
    return STATISTICS if what in (Statistics.kind, BOUNDED) else GRADIENTS


def count_of(what: str, sizes: Sequence[int]) -> int:
    """Return how many numbers a message of this kind and these sizes has to sum. Raise
    InternalError if there is no such message.
    """
    if any(size < 0 for size in sizes):
        raise InternalError(f"sizes of {what} below 0")
    match what, [*sizes]:
        case PartialGradient.kind, [parameters, outputs]:
            return parameters * outputs
        case Gram.kind, [p, q]:
            return p * p + q * p + _triangle(q) + p + q + 1
        case "diagonal_gram", [p, q]:
            return p * p + q * p + q + p + q + 1
        case ((Statistics.kind | "bounded_statistics"), [numeric, features, *entries]):
            return 3 * numeric + features + sum(entries)
    raise InternalError(f"{what} of {len(sizes)} sizes is nothing to sum")


def _triangle(size: int) -> int:
    return size * (size + 1) // 2


# -- from messages --------------------------------------------------------------------------------


def summands(message: Message, clients: int, *, narrow: bool) -> tuple[str, list[int], Array]:
    """Return the kind, the sizes and the numbers of a partial gradient or of second moments.

    narrow: of the categories' second moments only the diagonal, if the message has no more.
    """
    match message:
        case PartialGradient():
            gradient = message.values
            return message.kind, [*gradient.shape], from_floats(gradient, GRADIENTS, clients)
        case Gram():
            p, q = len(message.numeric), len(message.cross)
            narrow = narrow and bool((message.rows == message.columns).all())
            parts = (
                message.numeric.reshape(-1),
                message.cross.reshape(-1),
                _dense(message, q, narrow),
                message.moments,
                [message.weight],
            )
            kind = DIAGONAL if narrow else message.kind
            return kind, [p, q], from_floats(np.concatenate(parts), GRADIENTS, clients)
    raise InternalError(f"{message.kind} is not summed")


def _dense(message: Gram, q: int, narrow: bool) -> Array:
    """Return the second moments of one-hot columns with zeros for missing pairs, so that all
    clients have equally many.
    """
    rows, columns = message.rows.astype(np.int64), message.columns.astype(np.int64)
    if narrow:
        if (rows != columns).any():
            raise InternalError("second moments of pairs of categories, which are not to leave")
        return np.bincount(rows, message.values, q).astype(np.float64, copy=False)
    cells = np.bincount(_places(rows, columns, q), message.values, _triangle(q))
    return cells.astype(np.float64, copy=False)  # integers if the message has no values


def _places(rows: Array, columns: Array, q: int) -> Array:
    """Return the places of (row, column), row <= column, in the upper triangle, row after row."""
    positions: Array = rows * q - rows * (rows - 1) // 2 + columns - rows
    return positions


def statistics_summands(
    statistics: Statistics, wanted: SendStatistics, clients: int, *, bounded: bool
) -> tuple[str, list[int], Array]:
    """Return the same of statistics, for the requested categories.

    Σ cnt, Σ cnt x and Σ cnt x² are computed from mean and squared deviations without rounding, so
    that a large mean loses nothing. Raise InternalError if some of its own categories are not
    requested.
    """
    weight, mean, m2 = (_fractions(v) for v in (statistics.weight, statistics.mean, statistics.m2))
    if not bounded:
        mean = [w * m if w else Fraction(0) for w, m in zip(weight, mean, strict=True)]
        m2 = [
            s + first * first / w if w else Fraction(0)
            for w, first, s in zip(weight, mean, m2, strict=True)
        ]
    if len(wanted.tags) != len(statistics.tags):
        raise InternalError(
            f"{len(wanted.tags)} categories were asked for, of {len(statistics.tags)}"
        )
    numbers = [*weight, *mean, *m2, *_fractions(statistics.missing)]
    for tags, counts, every in zip(statistics.tags, statistics.counts, wanted.tags, strict=True):
        numbers += _fractions(_aligned(tags, counts, every))
    sizes = [
        len(statistics.weight),
        len(statistics.missing),
        *(len(every) for every in wanted.tags),
    ]
    kind = BOUNDED if bounded else statistics.kind
    return kind, sizes, from_fractions(numbers, STATISTICS, clients)


def _aligned(tags: Array, counts: Array, every: Array) -> Array:
    """Return the counts of all these categories; 0 for categories that this client does not
    have.
    """
    place = {bytes(tag): number for number, tag in enumerate(every)}
    aligned = np.zeros(len(every))
    try:
        aligned[[place[bytes(tag)] for tag in tags]] = counts
    except KeyError:
        raise InternalError("categories are left out of those that were asked for") from None
    return aligned


def _fractions(values: Array) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


# -- to messages ----------------------------------------------------------------------------------


def message_of(
    total: Array, of: Masked, tags: Sequence[Array] = ()
) -> PartialGradient | Gram | Statistics:
    """Return the message of a sum, uint64 (n, limbs), of masked messages like `of`. `tags`: the
    requested categories, for statistics.
    """
    sizes = of.lengths.tolist()
    number_format = format_of(of.of)
    match of.of:
        case PartialGradient.kind:
            return PartialGradient(of.run, of.slot, to_floats(total, number_format).reshape(sizes))
        case Gram.kind | "diagonal_gram":
            return _gram(to_floats(total, number_format), of, *sizes)
    return _statistics(to_fractions(total, number_format), of, tags)


def _gram(values: Array, of: Masked, p: int, q: int) -> Gram:
    narrow = of.of == DIAGONAL
    lengths = [p * p, q * p, q if narrow else _triangle(q), p + q, 1]
    numeric, cross, pairs, moments, weight = np.split(values, np.cumsum(lengths)[:-1])
    if narrow:
        rows = columns = np.arange(q)
    else:
        rows, columns = (index[pairs != 0] for index in np.triu_indices(q))
        pairs = pairs[pairs != 0]
    return Gram(
        of.run,
        of.slot,
        numeric=numeric.reshape(p, p),
        cross=cross.reshape(q, p),
        rows=rows.astype(np.uint32),
        columns=columns.astype(np.uint32),
        values=pairs,
        moments=moments,
        weight=max(float(weight[0]), 0.0),
    )


def _statistics(values: Sequence[Fraction], of: Masked, tags: Sequence[Array]) -> Statistics:
    numeric, features, *entries = of.lengths.tolist()
    rest = iter(values)

    def take(count: int) -> list[Fraction]:
        return [next(rest) for _ in range(count)]

    weight, first, second = (take(numeric) for _ in range(3))
    missing, counts = take(features), [take(count) for count in entries]
    if of.of != BOUNDED:
        second = [
            max(s - f * f / w, Fraction(0)) if w > 0 else Fraction(0)
            for w, f, s in zip(weight, first, second, strict=True)
        ]
        first = [f / w if w > 0 else Fraction(0) for w, f in zip(weight, first, strict=True)]
    return Statistics(
        of.run,
        of.slot,
        weight=_floats(weight),
        mean=_floats(first),
        m2=_floats(second),
        missing=_floats(missing),
        tags=tuple(tags),
        counts=tuple(map(_floats, counts)),
    )


def _floats(values: Sequence[Fraction]) -> Array:
    return np.array([float(value) for value in values], np.float64)


def nothing_like(whole: PartialGradient | Gram | Statistics) -> Message:
    """Return a message that adds nothing to such a sum."""
    match whole:
        case PartialGradient():
            return replace(whole, values=np.zeros_like(whole.values))
        case Gram():
            none = np.zeros(0, np.uint32)
            return replace(
                whole,
                numeric=np.zeros_like(whole.numeric),
                cross=np.zeros_like(whole.cross),
                rows=none,
                columns=none,
                values=np.zeros(0),
                moments=np.zeros_like(whole.moments),
                weight=0.0,
            )
        case Statistics():
            return replace(
                whole,
                weight=np.zeros_like(whole.weight),
                mean=np.zeros_like(whole.mean),
                m2=np.zeros_like(whole.m2),
                missing=np.zeros_like(whole.missing),
                counts=tuple(np.zeros_like(part) for part in whole.counts),
            )
