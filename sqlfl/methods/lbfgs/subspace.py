"""The subspace that a step of lbfgs is searched in, and the exact search there.

A block's part of the subspace is spanned by X̃ P g of its last gradients and, where some of them are
no longer held, X̃ s of its last steps; the lengths along all of them are free in every block, and so
is the intercept. Of quadratic losses this is a block Krylov method: what several blocks do against
each other is found in the same step as what each of them does alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.passes import PassResult
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.methods.lbfgs.basis import IMAGE, newest
from sqlfl.methods.lbfgs.messages import MEMORY

FLOAT32 = 2.0**-25
"""Rounding of a 4-byte number, relative to it, about."""
WORK = 1 << 30
"""Products of directions, row by row and output by output, that one look at the curvature may take:
joins with very many rows are searched in fewer directions."""
MIN_DIRECTIONS = 3
"""Directions of each block that are searched at least."""
Key = tuple[str, int]
"""'gradient' or 'step', and the iteration that it came with."""


@dataclass(frozen=True, eq=False)
class Image:
    """X̃ v of a vector v of every block."""

    slots: tuple[Array, ...]
    """Of each slot (d_c, n_i)."""
    squares: Array
    """Of each slot the mean square over the joined rows: (slots,). 0 of exact ones."""


@dataclass(frozen=True, eq=False)
class Ways:
    """Directions of a search, the same for every block."""

    parts: tuple[Mapping[Key, float], ...]
    """Of each the images that it is made of."""
    coefficients: Array
    """Coefficients of each way in the blocks' basis (sqlfl.methods.lbfgs.basis): (ways, 3 + 3m)."""


class Images:
    """Of P g and of the steps, as the clients sent them: in float32, until `forget`.

    `noise` says how much of what the steps made of H is rounding.
    """

    def __init__(self, problem: Problem, memory: int = MEMORY) -> None:
        mapping = problem.mapping
        self._mapping = mapping
        self._memory = memory
        self._counts = [counts / max(mapping.total, 1) for counts in problem.counted]
        rows = max(mapping.total * problem.outputs, 1)
        self._most = max(MIN_DIRECTIONS, int(math.sqrt(WORK / rows) / max(len(mapping), 1)))
        self._images: dict[Key, Image] = {}
        self._iteration = -1
        self._dropped = False
        """Some image that steps were made of is no longer held."""
        self._exact = False
        self.noise = 0.0
        """Mean square of the rounding of H that the steps so far have left."""

    def forget(self) -> None:
        """Drop the images: new ones are float64, and H has been refreshed."""
        self._images.clear()
        self._exact, self._dropped, self.noise = True, False, 0.0

    def renew(self, slots: Sequence[Array], iteration: int) -> None:
        """Takes X̃ P g of every slot, (n_i, d_c)."""
        self._iteration = iteration
        self._keep("gradient", iteration, [np.ascontiguousarray(values.T) for values in slots])
        oldest = iteration - self._memory
        gone = [key for key in self._images if key[1] < oldest + (key[0] == "step")]
        for key in gone:
            self._dropped = self._dropped or key[0] == "gradient"
            del self._images[key]

    def _keep(self, kind: str, iteration: int, slots: Sequence[Array]) -> None:
        squares = np.zeros(len(slots))
        if not self._exact:
            counted = zip(slots, self._counts, strict=True)
            squares = np.array([np.einsum("cr,cr,r->", v, v, counts) for v, counts in counted])
        self._images[kind, iteration] = Image(tuple(slots), squares)

    def held(self) -> list[list[Array]]:
        """X̃ P g of every slot, (n_i, d_c) each."""
        kept = [image for (kind, _), image in self._images.items() if kind == "gradient"]
        return [[image.slots[n].T for image in kept] for n in range(len(self._mapping))]

    def ways(self, direction: Array) -> Ways:
        """The directions of the next search; `direction` (3 + 3m,) is that of the two-loop
        recursion, which stands for those that would be too many."""
        newest_first = sorted(self._images, key=lambda key: (-key[1], key[0]))
        wanted = [key for key in newest_first if key[0] == "gradient" or self._dropped]
        if len(wanted) <= self._most:
            vectors = [self._basis(key) for key in wanted]
            return Ways(tuple({key: 1.0} for key in wanted), np.array(vectors))
        some = newest_first[: self._most - 1]
        vectors = [direction, *(self._basis(key) for key in some)]
        parts = (self._parts(direction), *({key: 1.0} for key in some))
        return Ways(parts, np.array(vectors))

    def _basis(self, key: Key) -> Array:
        """An image's vector in the blocks' basis: a step, or P g less the differences since."""
        vector = np.zeros(3 + 3 * self._memory)
        kind, iteration = key
        if kind == "step":
            vector[newest(iteration, self._memory)[3]] = 1.0
            return vector
        vector[IMAGE] = 1.0
        for later in range(iteration + 1, self._iteration + 1):
            vector[newest(later, self._memory)[5]] = -1.0
        return vector

    def _parts(self, direction: Array) -> dict[Key, float]:
        """The images that make the image of a direction in the blocks' basis."""
        parts = {("gradient", self._iteration): float(direction[IMAGE])}
        for iteration in range(self._iteration - self._memory + 1, self._iteration + 1):
            places = newest(iteration, self._memory)
            along, across = float(direction[places[3]]), float(direction[places[5]])
            if along:
                parts["step", iteration] = along
            if across:
                for number, sign in ((iteration, 1.0), (iteration - 1, -1.0)):
                    key = ("gradient", number)
                    parts[key] = parts.get(key, 0.0) + sign * across
        return parts

    def along(self, ways: Ways) -> list[Array]:
        """The ways of every slot, (ways, d_c, n_i) each."""
        return [
            np.array([self._sum(part, number) for part in ways.parts])
            for number in range(len(self._mapping))
        ]

    def _sum(self, part: Mapping[Key, float], slot: int) -> Array:
        (first, weight), *others = part.items()
        total = np.multiply(weight, self._images[first].slots[slot], dtype=np.float64)
        for key, weight in others:
            total += np.multiply(weight, self._images[key].slots[slot], dtype=np.float64)
        return total

    def step(self, ways: Ways, lengths: Array) -> tuple[Array, ...]:
        """X̃ s of every slot (d_c, n_i), of a step of `lengths` (slots, ways)."""
        steps = []
        for number, slot_lengths in enumerate(lengths):
            weights: dict[Key, float] = {}
            for length, part in zip(slot_lengths, ways.parts, strict=True):
                for key, weight in part.items():
                    weights[key] = weights.get(key, 0.0) + float(length) * weight
            shape = self._images["gradient", self._iteration].slots[number].shape
            total = np.zeros(shape)
            for key, weight in weights.items():
                if weight:
                    values = self._images[key].slots[number]
                    total += np.multiply(weight, values, dtype=np.float64)
            steps.append(total)
        return tuple(steps)

    def rounding(self, ways: Ways, lengths: Array) -> float:
        """Return the rounding that a step of `lengths` (slots, ways) adds to `noise`."""
        norms = [
            sum(w * w * self._images[key].squares for key, w in part.items()) for part in ways.parts
        ]
        return float(FLOAT32**2 * np.sum(lengths**2 * np.array(norms).T))

    def move(self, step: Sequence[Array], rounding: float) -> None:
        """The clients make a step with the image `step`, of which so much is `rounding`."""
        self.noise += rounding
        kept = step if self._exact else [values.astype(np.float32) for values in step]
        self._keep("step", self._iteration + 1, kept)


@dataclass(frozen=True, eq=False)
class StepTrial:
    """The joined rows' scores after a step."""

    step: tuple[Array, ...]
    """X̃ s of every slot (d_c, n_i)."""
    scores: Scores
    look: PassResult


class Restriction:
    """φ(α) = the objective after a step of α along every block's ways, and of the intercept.

    slope (slots, ways) and curvature (slots, ways, ways) are the penalty's along each block's ways;
    those that are `lost` (slots, ways) lead nowhere. α holds the slots' lengths, slot after slot,
    then the intercept's.

    Slopes along the ways are inner products with the slopes' sums over the rows of each slot, so
    that a look at a trial costs the same for any number of ways, and is what the clients are told
    where the search ends there.
    """

    def __init__(
        self,
        problem: Problem,
        start: StepTrial,
        images: Images,
        ways: Ways,
        slope: Array,
        curvature: Array,
        lost: Array,
    ) -> None:
        self._passes = problem.passes
        self._start = start
        self._images = images
        self._ways = ways
        self._along = images.along(ways)
        for along, gone in zip(self._along, lost, strict=True):
            along[gone] = 0.0
        self._slope = np.where(lost, 0.0, slope)
        self._curvature = np.where(lost[:, :, None] | lost[:, None, :], 0.0, curvature)
        self._trials: dict[bytes, StepTrial] = {}
        self.size = slope.size + problem.outputs
        self.quadratic = problem.loss.quadratic

    def lengths(self, steps: Array) -> tuple[Array, Array]:
        """Return the step lengths of the blocks (slots, ways), and of the intercept (d_c,)."""
        return steps[: self._slope.size].reshape(self._slope.shape), steps[self._slope.size :]

    def trial(self, steps: Array) -> StepTrial:
        """At α = `steps`; the last ones are kept."""
        if not steps.any():
            return self._start
        key = steps.tobytes()
        if key not in self._trials:
            blocks, intercept = self.lengths(steps)
            step = self._images.step(self._ways, blocks)
            scores = self._start.scores.moved(step, intercept)
            while len(self._trials) > 1:
                del self._trials[next(iter(self._trials))]
            self._trials[key] = StepTrial(step, scores, self._passes.look(scores))
        return self._trials[key]

    def at(self, steps: Array) -> tuple[float, Array]:
        """φ and its gradient at α = `steps`."""
        look = self.trial(steps).look
        blocks, _ = self.lengths(steps)
        pulled = np.einsum("sij,sj->si", self._curvature, blocks)
        penalty = float(np.vdot(blocks, self._slope + 0.5 * pulled))
        slopes = [
            np.einsum("kcr,cr->k", ways, sums)
            for ways, sums in zip(self._along, look.slots, strict=True)
        ]
        data = np.concatenate([*slopes, look.total]) / self._passes.total
        data[: blocks.size] += (self._slope + pulled).reshape(-1)
        return look.value + penalty, data

    def bend(self, steps: Array, *, roughly: bool) -> Array:
        """φ's Hessian at α = `steps`."""
        scores = self.trial(steps).scores
        hessian = self._passes.curvatures(scores, self._along, sampled=roughly)
        ways = self._slope.shape[1]
        for number, curvature in enumerate(self._curvature):
            part = slice(number * ways, (number + 1) * ways)
            hessian[part, part] += curvature
        return hessian
