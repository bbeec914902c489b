"""Spectrum of an operator, from a few applications. Each application costs an exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.executors.joined_rows import PartitionedRows

KEPT = 1e-6
"""Share of the largest eigenvalue below which eigenvalues count as rounding."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Largest eigenvalue, trace and factors of Σ_i A_i S_i A_iᵀ, from a few applications."""

    top: float
    trace: float
    factors: tuple[Array, ...]
    """F_i (n_i, r) float32 of every slot; r is at most the number of applications.

    As quadratic forms, products of rows of Σ_i A_i F_i are at most those of the operator. They are
    equal if the operator's rank is no larger (Nyström's approximation).
    """


def largest_eigenvalue(
    apply: Callable[[Sequence[Array]], list[Array]],
    passes: PartitionedRows,
    rounds: int,
    generator: np.random.Generator,
    shares: Array | None = None,
) -> tuple[float, float]:
    """Return λ_max and the trace, as `spectrum` has them."""
    result = spectrum(apply, passes, rounds, generator, shares)
    return result.top, result.trace


def spectrum(
    apply: Callable[[Sequence[Array]], list[Array]],
    passes: PartitionedRows,
    rounds: int,
    generator: np.random.Generator,
    shares: Array | None = None,
) -> Spectrum:
    """Estimate the spectrum of Σ_i A_i S_i A_iᵀ over the joined rows from `rounds` applications.

    apply: maps A_iᵀ v of every slot to S_i A_iᵀ v, (1, n_i) each. With `shares` (N,), λ_max and the
    trace belong to rows times the root of their share, which is symmetric. `factors` belong to the
    rows.

    The method is Lanczos with full orthogonalisation. λ_max is the largest Ritz value plus its
    residual norm as a margin, because Ritz values approach λ_max from below. The trace is
    Hutchinson's estimate from the random first vector, or the sum of the Ritz values if that is
    more.
    """
    first, entries = _first(passes, generator, shares)
    basis: list[_Vector] = []
    images: list[list[Array]] = []
    vector = _Vector(1.0, [np.zeros_like(sums) for sums in first], first)
    diagonal: list[float] = []
    off: list[float] = []
    for _ in range(rounds):
        basis.append(vector)
        slots = apply(vector.sums)
        images.append(slots)
        image = _Vector(0.0, slots, passes.sums(slots))
        diagonal.append(vector.times(image, first))
        for _ in range(2):
            lengths = [held.times(image, first) for held in basis]
            image = image.less(basis, lengths)
        # Rounding may leave a norm of zero, or less.
        off.append(float(np.sqrt(max(image.times(image, first), 0.0))))
        if off[-1] <= 1e-6 * max(diagonal):
            off[-1] = 0.0
            break
        vector = image.scaled(1.0 / off[-1])
    matrix = np.diag(diagonal) + np.diag(off[:-1], 1) + np.diag(off[:-1], -1)
    values, vectors = np.linalg.eigh(matrix)
    return Spectrum(
        float(values[-1] + off[-1] * abs(vectors[-1, -1])),
        max(entries * diagonal[0], float(values.sum())),
        _factors(images, values, vectors),
    )


def _factors(images: list[list[Array]], values: Array, vectors: Array) -> tuple[Array, ...]:
    """Return factors from the images of vectors; `values` and `vectors` are the eigenvalues and
    eigenvectors of the vectors' products with these images.
    """
    kept = values > KEPT * max(values[-1], 0.0)
    roots = vectors[:, kept] / np.sqrt(values[kept])
    products = (np.concatenate(slot).T @ roots for slot in zip(*images, strict=True))
    return tuple(factor.astype(np.float32) for factor in products)


@dataclass(frozen=True, eq=False)
class _Vector:
    """a v₀ + √share ∘ Σ_i A_i u_i over the joined rows, v₀ the first vector, of length 1."""

    start: float
    """a"""
    slots: list[Array]
    """u_i of every slot: (1, n_i)"""
    sums: list[Array]
    """A_iᵀ (√share ∘ the vector) of every slot: (1, n_i)"""

    def times(self, other: _Vector, first: Sequence[Array]) -> float:
        """Return the inner product; `first` has the sums of v₀."""
        along = self.start + _products(first, self.slots)
        return _products(self.sums, other.slots) + other.start * along

    def less(self, basis: Sequence[_Vector], lengths: Sequence[float]) -> _Vector:
        rest = self
        for held, length in zip(basis, lengths, strict=True):
            rest = _Vector(
                rest.start - length * held.start,
                [a - length * b for a, b in zip(rest.slots, held.slots, strict=True)],
                [a - length * b for a, b in zip(rest.sums, held.sums, strict=True)],
            )
        return rest

    def scaled(self, factor: float) -> _Vector:
        slots = [factor * values for values in self.slots]
        return _Vector(factor * self.start, slots, [factor * values for values in self.sums])


def _products(left: Sequence[Array], right: Sequence[Array]) -> float:
    return sum(float(np.vdot(a, b)) for a, b in zip(left, right, strict=True))


def _first(
    passes: PartitionedRows, generator: np.random.Generator, shares: Array | None
) -> tuple[list[Array], float]:
    """Return the sums of v₀, and the number of its entries. v₀ has random signs, centred and scaled
    to length 1.
    """
    # Centred as the encoded columns are: a constant vector would see nothing of them.
    size = passes.total
    vector = generator.choice(np.array([-1.0, 1.0]), size)
    entries = float(size)
    if shares is not None:
        roots = np.sqrt(shares)
        vector = _centred(vector, roots)
        entries = float(vector @ vector)
        vector /= np.sqrt(entries)
        vector *= roots
        return passes.added(vector), entries
    if size > 1 and np.all(vector == vector[0]):
        vector[: size // 2] *= -1.0
    vector -= vector.mean() if size > 1 else 0.0
    vector /= np.linalg.norm(vector)
    return passes.added(vector), entries


def _centred(vector: Array, roots: Array) -> Array:
    """Return signs (n,) where the roots of weights are positive, without their component along the
    roots.
    """
    some = np.flatnonzero(roots)
    signs = np.where(roots > 0.0, vector, 0.0)
    unit = roots / np.linalg.norm(roots)
    centred = signs - (unit @ signs) * unit
    if np.linalg.norm(centred) <= 1e-6 and len(some) > 1:
        signs[some[: len(some) // 2]] *= -1.0
        centred = signs - (unit @ signs) * unit
    direction: Array = centred if np.linalg.norm(centred) > 1e-6 else unit
    return direction
