"""The exact search for the minimum of a convex function of few numbers, by Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.rounds.problem import Problem

CHUNK = 1 << 19
"""Numbers of all directions that are handled at once: few enough for the processor's cache."""
DISTINCT = 1e-13
"""Relative eigenvalue below which directions count as the same: that of columns which agree in all
but their last digits."""
ROUNDING = 1e-14
"""Relative decrease that is taken for rounding: what follows it would follow noise."""
ENOUGH = 1e-14
"""Of the decrease so far: what a further step must promise to be made."""


class Convex(Protocol):
    """A convex function of `size` numbers."""

    size: int
    quadratic: bool

    def at(self, steps: Array, *, bend: bool = True) -> tuple[float, Array, Array]:
        """Its value, its gradient and, where it is to `bend`, its Hessian."""
        ...


def mean_along(
    problem: Problem,
    scores: Array,
    along: Callable[[slice], Array],
    steps: Array,
    *,
    bend: bool = True,
) -> tuple[float, Array, Array]:
    """φ(α) = mean loss at H + Σ_k α_k D_k, its gradient and Hessian at α = `steps`.

    The directions are `along` (j, d_c, rows) of a slice of the joined rows, and after these a
    constant for each output.
    """
    total, size = len(scores), len(steps)
    value, slope, curvature = 0.0, np.zeros(size), np.zeros((size, size))
    chunk = max(1024, CHUNK // (size * problem.outputs))
    for start in range(0, total, chunk):
        rows = slice(start, min(start + chunk, total))
        shares = None if problem.shares is None else problem.shares[rows]
        share = (rows.stop - rows.start) / total
        if shares is not None:
            share = float(shares.sum()) / total
        if share == 0.0:
            continue
        targets = problem.targets[rows]
        part = problem.loss.along(scores[rows], along(rows), targets, steps, shares, bend=bend)
        value += share * part[0]
        slope += share * part[1]
        if bend:
            curvature += share * part[2]
    return value, slope, curvature


def exact_search(function: Convex, rounding: float = ROUNDING) -> Array:
    """The minimum of `function`, from 0, by damped Newton steps: (size,).

    A Hessian serves as long as steps by it go well. Zeros where a step would decrease the function
    by less than `rounding` of its value.
    """
    steps = np.zeros(function.size)
    value, slope, curvature = function.at(steps)
    newton = Newton(curvature)
    start, fresh = value, True
    for _ in range(50):
        move = newton.step(slope)
        decrement = -float(slope @ move)
        if not decrement > max(ENOUGH * (start - value), rounding * abs(start)):
            break
        size = 1.0
        trial = function.at(steps + move, bend=False)
        while not _descends(trial, value, move, size, decrement) and size > 1e-6:
            size *= 0.5
            trial = function.at(steps + size * move, bend=False)
        fell = trial[0] < value or _descends(trial, value, move, size, decrement)
        if not fell and fresh:
            break
        if fell:
            steps = steps + size * move
            value, slope = trial[0], trial[1]
        well = fell and size == 1.0 and -float(slope @ newton.step(slope)) <= 0.01 * decrement
        fresh = not (well or function.quadratic)
        if fresh:
            newton = Newton(function.at(steps)[2])
    return steps


def _descends(
    trial: tuple[float, Array, Array], value: float, move: Array, size: float, decrement: float
) -> bool:
    """The trial after `size` of a Newton step is below the value; where rounding hides a decrease
    as small as that is, its slope must say so."""
    if trial[0] <= value - 1e-4 * size * decrement:
        return True
    hidden = decrement <= 1e-8 * abs(value) and trial[0] <= value + ROUNDING * abs(value)
    return hidden and abs(float(trial[1] @ move)) <= 0.5 * decrement


class Newton:
    """Steps by one Hessian (k, k), positive semidefinite up to rounding.

    Of directions that do the same, or nothing, the shortest step. A curvature below the least
    normal number is none: of losses that far from their bend, no step can be told.
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

    def step(self, slope: Array) -> Array:
        """−curvature⁺ slope"""
        along = self._vectors.T @ (slope / self._scale)
        move: Array = -(self._vectors @ (along / self._values)) / self._scale
        return move
