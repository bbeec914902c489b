"""Sizes of a neural model's towers, for columns that are not known yet; see sqlfl.models.towers."""

from __future__ import annotations

from itertools import pairwise

from sqlfl.planner.federated.sizes import Size


def inner_weights(hidden: tuple[int, ...]) -> int:
    """Weights and biases between hidden layers of these widths: for any number of columns."""
    return sum(before * after + after for before, after in pairwise(hidden))


def parameters(hidden: tuple[int, ...], columns: Size, outputs: Size) -> Size:
    """Return the parameters of a tower over these encoded columns: W1, b1, W2, ..., W_out."""
    first, last = hidden[0], hidden[-1]
    return columns * first + (first + inner_weights(hidden)) + outputs * last
