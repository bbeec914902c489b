"""The largest eigenvalue of an operator that costs an exchange to apply, by a few of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sqlfl.arrays import Array


def largest_eigenvalue(
    apply: Callable[[Array], Array],
    size: int,
    rounds: int,
    generator: np.random.Generator,
    weights: Array | None = None,
) -> tuple[float, float]:
    """λ_max and trace of a symmetric operator on (size, 1) vectors, from `rounds` applications.

    `weights` (size,): the operator is that of rows times the root of their weight.

    Lanczos with full orthogonalisation: the largest Ritz value and its residual norm, added as the
    margin, since Ritz values approach λ_max from below. The trace is Hutchinson's estimate from the
    random first vector, or the sum of the Ritz values where that is more.
    """
    # centred as the encoded columns are: a constant vector would see nothing of them
    vector = generator.choice(np.array([-1.0, 1.0]), size)
    entries = float(size)
    if weights is not None:
        vector = _centred(vector, np.sqrt(weights))
        entries = float(vector @ vector)
    else:
        if size > 1 and np.all(vector == vector[0]):
            vector[: size // 2] *= -1.0
        vector -= vector.mean() if size > 1 else 0.0
    vector /= np.linalg.norm(vector)
    basis = np.empty((rounds, size))
    diagonal: list[float] = []
    off: list[float] = []
    for count in range(rounds):
        basis[count] = vector
        image = apply(vector[:, None])[:, 0]
        diagonal.append(float(image @ vector))
        for _ in range(2):
            found = basis[: count + 1]
            image = image - (found @ image) @ found
        off.append(float(np.linalg.norm(image)))
        if off[-1] <= 1e-6 * max(diagonal):
            off[-1] = 0.0
            break
        vector = image / off[-1]
    matrix = np.diag(diagonal) + np.diag(off[:-1], 1) + np.diag(off[:-1], -1)
    values, vectors = np.linalg.eigh(matrix)
    return float(values[-1] + off[-1] * abs(vectors[-1, -1])), max(
        entries * diagonal[0], float(values.sum())
    )


def _centred(vector: Array, roots: Array) -> Array:
    """Signs (n,) where the roots of weights are positive, without their part along the roots."""
    some = np.flatnonzero(roots)
    signs = np.where(roots > 0.0, vector, 0.0)
    unit = roots / np.linalg.norm(roots)
    centred = signs - (unit @ signs) * unit
    if np.linalg.norm(centred) <= 1e-6 and len(some) > 1:
        signs[some[: len(some) // 2]] *= -1.0
        centred = signs - (unit @ signs) * unit
    found: Array = centred if np.linalg.norm(centred) > 1e-6 else unit
    return found
