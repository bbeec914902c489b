"""The best weights within an ℓ1 ball, by inner products alone: an active-set method."""

from __future__ import annotations

import numpy as np

from sqlfl.base.arrays import Array

TOLERANCE = 1e-12
"""Tolerance of slopes, relative to the largest one at weights of 0."""


def corrected(gram: Array, linear: Array, weights: Array, radius: float) -> Array:
    """argmin ½ wᵀG w − cᵀw with Σ|w| ≤ r, of G (k, k), not negative, and c (k,); (k,).

    From `weights`, which are within the ball. Columns come in one by one, the one that most breaks
    the optimum's conditions first, and go where a weight would change its sign; no step raises the
    objective. Where rounding, or columns that depend on each other, leave no step, the weights so
    far are returned: feasible, and no worse than those of the start.
    """
    scale = float(np.abs(linear).max(initial=0.0))
    if not scale > 0.0:
        return np.zeros_like(weights)
    best = _value(gram, linear, weights)
    held = np.flatnonzero(weights)
    signs = np.sign(weights[held])
    for _ in range(50 * len(weights) + 50):
        weights, held, signs = _settled(gram, linear, weights, held, signs, radius)
        slopes = gram @ weights - linear
        inside = np.abs(weights).sum() < radius * (1.0 - 1e-12)
        level = 0.0 if inside or not len(held) else float(np.abs(slopes[held]).max())
        value = _value(gram, linear, weights)
        slopes[held] = 0.0
        entering = int(np.argmax(np.abs(slopes)))
        risen = value > best + TOLERANCE * scale * radius
        if risen or not abs(slopes[entering]) > level + TOLERANCE * scale:
            break
        best = min(best, value)
        held = np.append(held, entering)
        signs = np.append(signs, -np.sign(slopes[entering]))
    return weights


def _value(gram: Array, linear: Array, weights: Array) -> float:
    return float(0.5 * weights @ (gram @ weights) - linear @ weights)


def _settled(
    gram: Array, linear: Array, weights: Array, held: Array, signs: Array, radius: float
) -> tuple[Array, Array, Array]:
    """Return the best weights of the columns `held` with these signs, dropping some if needed. The
    last column starts with a weight of 0.
    """
    while len(held):
        target = _target(gram[np.ix_(held, held)], linear[held], signs, radius)
        now = weights[held]
        step = target - now
        # a weight of 0 that would move against its sign is dropped at once
        crossing = (target * signs < 0.0) | ((now == 0.0) & (step * signs < 0.0))
        if not crossing.any():
            weights = np.zeros_like(weights)
            weights[held] = target
            break
        shares = np.where(crossing, now / np.where(crossing, now - target, 1.0), np.inf)
        first = int(np.argmin(shares))
        moved = now + max(0.0, min(1.0, float(shares[first]))) * step
        moved[first] = 0.0
        weights = np.zeros_like(weights)
        weights[held] = moved
        held, signs = np.delete(held, first), np.delete(signs, first)
    else:
        weights = np.zeros_like(weights)
    return weights, held, signs


def _target(gram: Array, linear: Array, signs: Array, radius: float) -> Array:
    """Return the optimum without regard to signs: unconstrained if it is in the ball, else with σᵀw
    = r.
    """
    free: Array = np.linalg.lstsq(gram, linear, rcond=1e-12)[0]
    if float(signs @ free) <= radius:
        return free
    size = len(linear)
    system = np.zeros((size + 1, size + 1))
    system[:size, :size], system[:size, size], system[size, :size] = gram, signs, signs
    solution: Array = np.linalg.lstsq(system, np.append(linear, radius), rcond=1e-14)[0]
    return solution[:size]
