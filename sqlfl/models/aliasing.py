"""Aliased columns: columns of a design that follow from earlier ones.

R's `lm` and `glm` leave out each column that is a linear combination of those before it. The same
columns follow from the design's null space, read from the last column to the first: a vector n
with design @ n = 0 leaves out the last column where n is not 0, and estimates of the others move
along n until that column's is 0.

The columns of several tables stand table after table, each table's in a basis of its own. A
relation ends in the last table that it has columns of. Where it has columns of that table alone,
the table's owner picks the column that is left out. Else earlier tables need to know the column:
they assume the one direction that follows from the relation, and the owner says whether that is it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array, Float

ZERO = 1e-5
"""Length below which a part of a vector of length 1 is rounding."""


@dataclass(frozen=True, eq=False)
class Relations:
    """Relations among the columns (d) of one table, those of others and the constant 1.

    All bases are orthonormal.
    """

    within: Float
    """(d, q): of relations that have columns of this table alone."""
    constants: Float
    """(q,): how often each has the constant."""
    between: Float
    """(d, c): of those that end here and have columns of earlier tables, without `within`."""
    later: Float
    """(d, l): of those that end in later tables."""


def relations_of(nothing: Float, places: Mapping[int, slice]) -> tuple[dict[int, Relations], Float]:
    """The relations of each table, and the matrix (P, P) that applies the assumed directions.

    `nothing` (P, k): an orthonormal basis of the design's null space, the constant's row first.
    `places`: by table, its columns of the design, ascending. The matrix takes parameters (P,) to
    others of the same scores, in which relations between tables are resolved.
    """
    size = len(nothing)
    left, ended = nothing, np.zeros((size, 0))
    relations: dict[int, Relations] = {}
    adjusted = np.eye(size)
    for table, place in reversed(list(places.items())):
        later = span(ended[place])
        here, none = _split(left[place])
        ending, left = left @ here, left @ none
        ended = np.hstack([ended, ending])
        mixed, pure = _split(ending[1 : place.start])
        ending_pure, crossing = ending @ pure, ending @ mixed
        within, size_of = np.linalg.qr(ending_pure[place])
        constants = (
            np.linalg.solve(size_of.T, ending_pure[0]) if ending_pure.shape[1] else np.zeros(0)
        )
        apart = crossing[place] - within @ (within.T @ crossing[place])
        step = np.eye(size)
        step[:, place] -= crossing @ np.linalg.pinv(apart)
        adjusted = step @ adjusted
        relations[table] = Relations(within, constants, span(apart), later)
    return {table: relations[table] for table in places}, adjusted


def left_out(relations: Float) -> tuple[Array, Float]:
    """The columns that follow from earlier ones, and the matrix (m, m) that makes theirs 0.

    `relations` (m, q) spans the vectors that move no score. Columns come in descending order. The
    matrix takes parameters (m,) to those of the same scores without these columns.
    """
    rest = span(relations)
    columns: list[int] = []
    moved = []
    for row in range(len(rest) - 1, -1, -1):
        length = float(np.linalg.norm(rest[row]))
        if length <= ZERO:
            continue
        columns.append(row)
        turned = np.linalg.qr(np.column_stack([rest[row] / length, np.eye(len(rest[row]))]))[0]
        rest = rest @ turned
        moved.append(rest[:, 0])
        rest = rest[:, 1:]
        if not rest.shape[1]:
            break
    matrix = np.eye(len(relations))
    if columns:
        along = np.column_stack(moved)
        matrix[:, columns] -= along @ np.linalg.inv(along[columns])
        matrix[columns] = 0.0  # not mere rounding, which could have any direction
    return np.array(columns, np.int64), matrix


def span(vectors: Float) -> Float:
    """An orthonormal basis (m, r) of what the vectors (m, q) span, but for rounding."""
    if not vectors.size:
        return np.zeros((len(vectors), 0))
    left, lengths, _ = np.linalg.svd(vectors, full_matrices=False)
    basis: Float = left[:, lengths > ZERO]
    return basis


def span_of(projection: Float) -> Float:
    """An orthonormal basis (m, r) of the range of a projection (m, m)."""
    values, vectors = np.linalg.eigh((projection + projection.T) / 2.0)
    basis: Float = vectors[:, values > 0.5]
    return basis


def touches(functions: Float, vectors: Float) -> Array:
    """bool (k,): which linear functions (k, m) are not 0, but for rounding, on the vectors (m, q)
    of length 1."""
    lengths = np.sqrt(np.einsum("km,km->k", functions, functions))
    parts = functions @ vectors
    touching: Array = np.sqrt(np.einsum("kq,kq->k", parts, parts)) > ROUNDED * lengths
    return touching


ROUNDED = 1e-3
"""Share of a linear function that may lie in what it should be 0 on."""


def _split(vectors: Float) -> tuple[Float, Float]:
    """Orthonormal combinations of the vectors (m, q): (q, r) whose images are not 0, and (q, q − r)
    whose images are."""
    count = vectors.shape[1]
    if not vectors.size:
        return np.zeros((count, 0)), np.eye(count)
    lengths, turned = np.linalg.svd(vectors)[1:]
    kept = int(np.count_nonzero(lengths > ZERO))
    return turned[:kept].T, turned[kept:].T
