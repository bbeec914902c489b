"""The exact search of L-BFGS: over a step length of every block, and the intercept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sqlfl.algorithms.base import Problem
from sqlfl.errors import InternalError
from sqlfl.models.basis import IMAGE, MEMORY, newest

Array = npt.NDArray[Any]

CHUNK = 1 << 17
"""Joined rows whose predictions along all directions are held at once."""


DISTINCT = 1e-4
"""Relative eigenvalue below which blocks' directions count as the same: its root bounds how much of
the float32 rounding of X̃ P g a step can amplify, and so how far H here and θ there can part."""


ROUNDING = 1e-14
"""Relative decrease that is taken for rounding: what follows it would follow noise."""


class Predicted:
    """X̃ P g, X̃ s and X̃ P y per row of every slot, the slots one after the other: float32."""

    def __init__(self, problem: Problem, memory: int = MEMORY) -> None:
        self._mapping = problem.mapping
        self._memory = memory
        self._bounds = np.cumsum(problem.mapping.sizes)[:-1]
        self._image: Array | None = None
        self._steps: dict[int, Array] = {}
        self._differences: dict[int, Array] = {}
        self._combined = np.zeros((0, problem.outputs))

    def renew(self, slots: list[Array], iteration: int) -> None:
        """Takes X̃ P g of every slot."""
        image = np.concatenate(slots)
        if self._image is not None:
            position = int(newest(iteration, self._memory)[5])
            self._differences[position] = image - self._image
        self._image = image

    def combine(self, direction: Array) -> None:
        """Forms X̃ d of every slot, `direction` (3 + 3m,) in the basis."""
        if self._image is None:
            raise InternalError("a direction without predictions")
        self._combined = np.zeros(self._image.shape)
        for position, values in {IMAGE: self._image, **self._steps, **self._differences}.items():
            if direction[position] != 0.0:
                self._combined += direction[position] * values

    def along(self, rows: slice) -> Array:
        """H_d of some joined rows, by slot: (slots, rows, d_c)."""
        slots = np.split(self._combined, self._bounds)
        pairs = zip(slots, self._mapping.slots, strict=True)
        return np.stack([values[mapping.rows[rows]] for values, mapping in pairs])

    def move(self, lengths: Array, iteration: int) -> Array:
        """The change of H, (N, d_c), by a step of `lengths` (slots,); keeps X̃ s of it.

        `iteration` is that of the last gradient.
        """
        moved = np.repeat(lengths, self._mapping.sizes)[:, None] * self._combined
        self._steps[int(newest(iteration + 1, self._memory)[3])] = moved.astype(np.float32)
        return self._mapping.gather_sum(np.split(moved, self._bounds))


@dataclass(frozen=True, eq=False)
class Lengths:
    """Of a step: α of each block (blocks,), and what the intercept moves by (d_c,)."""

    blocks: Array
    intercept: Array


class Restriction:
    """φ(α) = the objective after a step of α along every block's part of d, and of the intercept.

    scores: H (N, d_c); slope and curvature (blocks,) of the penalty.
    """

    def __init__(
        self, problem: Problem, scores: Array, predicted: Predicted, slope: Array, curvature: Array
    ) -> None:
        self._problem = problem
        self._scores = scores
        self._predicted = predicted
        self._slope = slope
        self._curvature = curvature
        self.size = slope.size + problem.outputs
        """Numbers in α: the blocks' first."""

    def lengths(self, steps: Array) -> Lengths:
        return Lengths(steps[: self._slope.size], steps[self._slope.size :])

    def at(self, steps: Array) -> tuple[float, Array, Array]:
        """φ, its gradient and its Hessian at α = `steps`."""
        value, slope, curvature = mean_along(
            self._problem, self._scores, self._predicted.along, steps
        )
        blocks = self.lengths(steps).blocks
        pulled = self._curvature * blocks
        value += float(blocks @ (self._slope + 0.5 * pulled))
        slope[: blocks.size] += self._slope + pulled
        curvature[: blocks.size, : blocks.size] += np.diag(self._curvature)
        return value, slope, curvature


def mean_along(
    problem: Problem, scores: Array, along: Callable[[slice], Array], steps: Array
) -> tuple[float, Array, Array]:
    """φ(α) = mean loss at H + Σ_k α_k D_k, its gradient and Hessian at α = `steps`.

    The directions are `along` (k − d_c, rows, d_c) of a slice of the joined rows, and after these
    a constant for each output.
    """
    total, size = len(scores), len(steps)
    value, slope, curvature = 0.0, np.zeros(size), np.zeros((size, size))
    for start in range(0, total, CHUNK):
        rows = slice(start, min(start + CHUNK, total))
        count = rows.stop - rows.start
        shares = None if problem.shares is None else problem.shares[rows]
        share = count / total if shares is None else float(shares.sum()) / total
        if share == 0.0:
            continue
        constants = np.eye(problem.outputs)[:, None, :].repeat(count, axis=1)
        directions = np.concatenate([along(rows), constants])
        targets = problem.targets[rows]
        part = problem.loss.along(scores[rows], directions, targets, steps, shares)
        value += share * part[0]
        slope += share * part[1]
        curvature += share * part[2]
    return value, slope, curvature


class Convex(Protocol):
    """A convex function of `size` numbers, with its gradient and Hessian."""

    size: int

    def at(self, steps: Array) -> tuple[float, Array, Array]: ...


def exact_search(function: Convex) -> Array:
    """The minimum of `function`, from 0, by damped Newton steps: (size,).

    Zeros where rounding hides any decrease.
    """
    steps = np.zeros(function.size)
    value, slope, curvature = function.at(steps)
    start, first = value, 0.0
    for number in range(50):
        move = newton_step(slope, curvature)
        decrement = -float(slope @ move)
        first = first if number else decrement
        if not decrement > max(1e-12 * first, ROUNDING * abs(start)):
            break
        size = 1.0
        trial = function.at(steps + move)
        while trial[0] > value - 1e-4 * size * decrement and size > 1e-6:
            size *= 0.5
            trial = function.at(steps + size * move)
        if not trial[0] < value:
            break
        steps = steps + size * move
        value, slope, curvature = trial
    return steps if value < start else np.zeros(function.size)


def newton_step(slope: Array, curvature: Array) -> Array:
    """−curvature⁺ slope: of directions that do the same, or nothing, the shortest step.

    A curvature below the least normal number is none: of losses that far from their bend, no step
    can be told.
    """
    diagonal = np.diag(curvature)
    scale = np.full(len(diagonal), np.inf)
    bent = diagonal >= np.finfo(np.float64).tiny
    scale[bent] = np.sqrt(diagonal[bent])
    scaled = curvature / np.outer(scale, scale)
    move: Array = np.linalg.lstsq(scaled, -slope / scale, rcond=DISTINCT)[0]
    step: Array = move / scale
    return step
