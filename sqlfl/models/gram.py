"""Second moments of one block, Σ cnt x xᵀ, with a sparse one-hot part."""

from __future__ import annotations

from dataclasses import dataclass

from scipy import sparse

from sqlfl.base.arrays import Float


@dataclass(frozen=True, eq=False)
class GramMatrix:
    """Σ_r cnt[r] x_r x_rᵀ before the one-hot columns are centred.

    The p numeric columns come first (centred and scaled already), then the q one-hot columns.
    """

    numeric: Float
    """(p, p)"""
    cross: Float
    """(q, p): one-hot rows, numeric columns."""
    onehot: sparse.csr_array
    """(q, q), symmetric."""
    moments: Float
    """(p + q,): Σ cnt x."""
    weight: float
    """Σ cnt."""

    @property
    def width(self) -> int:
        return len(self.moments)

    def __add__(self, other: GramMatrix) -> GramMatrix:
        return GramMatrix(
            self.numeric + other.numeric,
            self.cross + other.cross,
            sparse.csr_array(self.onehot + other.onehot),
            self.moments + other.moments,
            self.weight + other.weight,
        )
