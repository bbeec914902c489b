"""Sensitivity of a slot's second moments to one row."""

from __future__ import annotations

import math

from sqlfl.base.errors import InternalError


def row_bound(numeric: int) -> float:
    """Return R for this number of encoded numeric columns: the norm of a row with all columns 1 or
    −1.
    """
    return math.sqrt(numeric)


def moments_sensitivity(largest: float, bound: float, categories: int) -> float:
    """ℓ2 sensitivity of a slot's second moments for the change of one row's features.

    Of its numeric columns, ‖x‖ ≤ R, all numbers of Σ cnt x xᵀ: cnt ‖x xᵀ − y yᵀ‖ in the Frobenius
    norm is cnt √(‖x‖⁴ + ‖y‖⁴ − 2 (x·y)²) ≤ cnt √2 R², attained for x ⟂ y. Of each of k category
    features the counts Σ cnt: one falls by cnt, another rises. InternalError for a slot without
    columns, or rows that count nothing.
    """
    found = largest * math.sqrt(2.0 * bound**4 + 2.0 * categories)
    if not found > 0.0:
        raise InternalError("second moments of nothing")
    return found
