"""Exact search for the minimum of a convex function of few numbers, by Newton steps."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sqlfl.base.arrays import Array

DISTINCT = 1e-13
"""Relative eigenvalue below which directions count as the same: that of columns which agree in all
but their last digits.
"""
ROUNDING = 1e-14
"""Relative decrease that counts as rounding. A smaller one would follow noise."""
ROUGH = 3
"""Maximum number of rough Hessians in one search. At first a step errs mostly because the function
bends on the way, later because the Hessian is rough.
"""
MISSED = 1e-3
"""Share of the first slope along directions that a rough Hessian misses. Above it the Hessian is
not used.
"""
ENOUGH = 1e-14
"""Share of the decrease so far that a further step must promise."""


class Convex(Protocol):
    """Convex function of `size` numbers."""

    size: int
    quadratic: bool

    def at(self, steps: Array) -> tuple[float, Array]:
        """Return the value and the gradient."""
        ...

    def bend(self, steps: Array, *, roughly: bool) -> Array:
        """Return the Hessian. With `roughly`, an approximate one is enough."""
        ...


def exact_search(function: Convex, rounding: float = ROUNDING, enough: float = ENOUGH) -> Array:
    """Return the minimum of `function`, (size,), by damped Newton steps from 0.

    A Hessian serves as long as its steps go well. The first `ROUGH` Hessians may be rough; of a
    quadratic function only the first.

    The result is zeros if a step would decrease the function by less than `rounding` of its value.
    The search ends when a step promises no more than `enough` of the decrease so far.
    """
    steps = np.zeros(function.size)
    value, slope = function.at(steps)
    newton = Newton(function.bend(steps, roughly=True))
    start, fresh, made = value, True, 1
    least = MISSED * float(np.linalg.norm(slope))
    most = 1 if function.quadratic else ROUGH
    for _ in range(50):
        if made <= most and newton.missed(slope) > least:
            made = most + 1
            newton = Newton(function.bend(steps, roughly=False))
        move = newton.step(slope)
        decrement = -float(slope @ move)
        if not decrement > max(enough * (start - value), rounding * abs(start)):
            break
        size = 1.0
        trial = function.at(steps + move)
        while not _descends(trial, value, move, size, decrement) and size > 1e-6:
            size *= 0.5
            trial = function.at(steps + size * move)
        fell = trial[0] < value or _descends(trial, value, move, size, decrement)
        rough = made <= most
        if not fell and fresh and not rough:
            break
        if fell:
            steps = steps + size * move
            value, slope = trial
        well = fell and size == 1.0 and -float(slope @ newton.step(slope)) <= 0.01 * decrement
        fresh = not (well or (function.quadratic and not rough))
        if fresh:
            made = made + 1 if fell else most + 1
            newton = Newton(function.bend(steps, roughly=made <= most))
    return steps


def _descends(
    trial: tuple[float, Array], value: float, move: Array, size: float, decrement: float
) -> bool:
    """Return True if the trial after `size` of a Newton step is below the value. If rounding hides
    so small a decrease, the trial's slope decides.
    """
    if trial[0] <= value - 1e-4 * size * decrement:
        return True
    hidden = decrement <= 1e-8 * abs(value) and trial[0] <= value + ROUNDING * abs(value)
    return hidden and abs(float(trial[1] @ move)) <= 0.5 * decrement


class Newton:
    """Newton steps with one Hessian (k, k), positive semidefinite up to rounding.

    Where several directions do the same, or nothing, the step is the shortest. A curvature below
    the least normal number counts as zero: so far from its bend, a loss gives no usable step.
    """

    def __init__(self, curvature: Array) -> None:
        diagonal = np.diag(curvature)
        scale = np.full(len(diagonal), np.inf)
        bent = diagonal >= np.finfo(np.float64).tiny
        scale[bent] = np.sqrt(diagonal[bent])
        values, vectors = np.linalg.eigh(curvature / np.outer(scale, scale))
        some = values > DISTINCT * values.max(initial=0.0)
        self._scale = scale
        self._values, self._vectors = values[some], vectors[:, some]

    def missed(self, slope: Array) -> float:
        """Return the norm of a slope's part along directions without curvature. No step lowers it.
        With a Hessian from all rows it is rounding.
        """
        flat = np.isinf(self._scale)
        scaled = slope / self._scale
        left = scaled - self._vectors @ (self._vectors.T @ scaled)
        left = np.where(flat, slope, left * np.where(flat, 0.0, self._scale))
        return float(np.linalg.norm(left))

    def step(self, slope: Array) -> Array:
        """Return −curvature⁺ slope."""
        along = self._vectors.T @ (slope / self._scale)
        move: Array = -(self._vectors @ (along / self._values)) / self._scale
        return move
