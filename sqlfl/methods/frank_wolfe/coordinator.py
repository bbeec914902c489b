"""Block-coordinate Frank-Wolfe for the LASSO (Lou and Cheung, 2018, algorithm 2), over a join.

minimise 1/(2N) ‖b + Σ_i A_i X_i θ_i − y‖² with Σ|θ| ≤ r.

Each slot sends the column along which the loss falls fastest, and its values over the joined rows
the first time. The coordinator steps towards the best of these candidates alone: the paper's sum of
all of them leaves the ball.

The cache of columns that clients have sent holds their inner products over the joined rows, and
gives the loss and its slopes at given weights. With b at its best for the weights, the loss is
½ wᵀG w − cᵀw + ½ var(y). G and c are inner products of centred columns: b is never a variable.
`JoinedColumns` have the values of columns; `SketchedColumns` have their sketches, whose inner
products are estimates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.contract import stopping
from sqlfl.contract.schema import Address
from sqlfl.contract.stopping import CERTAIN, Ending
from sqlfl.coordinator.join.scatter_gather import listed_rows
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.convergence import relative
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.passes import PassResult
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.messages import Message
from sqlfl.messages.checks import Expected, ReplyChannel, refused
from sqlfl.methods.frank_wolfe.configuration import FrankWolfeConfiguration
from sqlfl.methods.frank_wolfe.messages import (
    ColumnDirection,
    ColumnResiduals,
    ColumnWeights,
    SetSketch,
    SteepestColumn,
)
from sqlfl.methods.frank_wolfe.options import CORRECTIVE, FIXED, FrankWolfeOptions
from sqlfl.methods.frank_wolfe.sketch import Sketch

# -- columns that clients have sent ----------------------------------------------------------------


class Told(ABC):
    """Columns, numbered over all slots in the order in which they arrived."""

    def __init__(self, slots: int) -> None:
        self.weights = np.zeros(0)
        """w of every column."""
        self.gram = np.zeros((0, 0))
        """G"""
        self.linear = np.zeros(0)
        """c"""
        self._slots = np.zeros(0, np.int64)
        self._numbers: list[dict[int, int]] = [{} for _ in range(slots)]

    def find(self, slot: int, column: int) -> int | None:
        """Return the number of a slot's column; None if it has not arrived."""
        return self._numbers[slot].get(column)

    def add(self, slot: int, column: int, values: Array, noise: float = 0.0) -> int:
        """Add a column with weight 0 and return its number. `noise`: standard deviation of the
        noise in each value.
        """
        number = len(self.weights)
        self._numbers[slot][column] = number
        self.weights = np.append(self.weights, 0.0)
        self._slots = np.append(self._slots, slot)
        products, linear = self._added(slot, values, noise)
        self.gram = np.block([[self.gram, products[:-1, None]], [products[None, :]]])
        self.linear = np.append(self.linear, linear)
        return number

    def of_slot(self, slot: int) -> Array:
        """Return w of the slot's columns, in the order in which they arrived."""
        weights: Array = self.weights[self._slots == slot]
        return weights

    @property
    def convex(self) -> Array:
        """G, without eigenvalues below 0, which noise may give it."""
        return self.gram

    @property
    def slopes(self) -> Array:
        """Return ∂loss/∂w of all columns, by their inner products: (k,)"""
        slopes: Array = self.gram @ self.weights - self.linear
        return slopes

    @abstractmethod
    def _added(self, slot: int, values: Array, noise: float) -> tuple[Array, float]:
        """Inner products of a new column with all and with itself (k + 1,), and with y."""

    @property
    @abstractmethod
    def loss(self) -> float:
        """Return the loss at the weights."""

    @property
    @abstractmethod
    def intercept(self) -> float: ...

    @property
    @abstractmethod
    def scores(self) -> Scores | None:
        """Return the scores of the joined rows; None for sketches, which do not give them."""


class JoinedColumns(Told):
    """Columns with their values."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(len(problem.slots))
        self._problem = problem
        sizes = problem.mapping.sizes
        self._values: list[tuple[int, Array]] = []
        """Slot and float32 (n_i,) of every column, in order of arrival."""
        zero = Scores(tuple(np.zeros((1, size)) for size in sizes), np.zeros(1))
        first = problem.passes.look(zero)
        self._total = problem.passes.total
        self._mean = -float(first.total[0]) / self._total
        """Mean of y."""
        self._first = first
        self._means = np.zeros(0)
        """Means of columns."""
        self._seen: tuple[Array, PassResult, Array] | None = None
        """Weights, the joined rows at them, and the slopes of the columns."""

    def _added(self, slot: int, values: Array, noise: float) -> tuple[Array, float]:
        column = np.asarray(values, np.float64)
        vectors = [np.zeros((1, size)) for size in self._problem.mapping.sizes]
        vectors[slot] = column[None, :]
        images = self._problem.passes.sums(vectors)
        mean = float(images[slot].sum()) / self._total
        self._values.append((slot, column.astype(np.float32)))
        self._means = np.append(self._means, mean)
        products = self._products(images)
        linear = -float(column @ self._first.slots[slot][0]) / self._total
        return products - mean * self._means, linear - mean * self._mean

    def add(self, slot: int, column: int, values: Array, noise: float = 0.0) -> int:
        number = super().add(slot, column, values, noise)
        if self._seen is not None:  # a weight of 0 changes no score
            _, look, slopes = self._seen
            product = float(self._values[number][1] @ look.slots[slot][0]) / self._total
            self._seen = self.weights.copy(), look, np.append(slopes, product)
        return number

    @property
    def scores(self) -> Scores:
        blocks = tuple(np.zeros((1, size)) for size in self._problem.mapping.sizes)
        for weight, (slot, column) in zip(self.weights, self._values, strict=True):
            if weight:
                blocks[slot][0] += weight * column
        return Scores(blocks, np.array([self.intercept]))

    def _products(self, images: Sequence[Array]) -> Array:
        """Return inner products of all columns with the images (1, n_i) of their slots, over N:
        (k,)
        """
        products = [float(column @ images[slot][0]) for slot, column in self._values]
        return np.array(products) / self._total

    @property
    def intercept(self) -> float:
        return self._mean - float(self.weights @ self._means)

    @property
    def look(self) -> PassResult:
        return self._at_weights()[0]

    def _at_weights(self) -> tuple[PassResult, Array]:
        if self._seen is None or not np.array_equal(self._seen[0], self.weights):
            look = self._problem.passes.look(self.scores)
            self._seen = self.weights.copy(), look, self._products(look.slots)
        return self._seen[1], self._seen[2]

    @property
    def loss(self) -> float:
        return self.look.value

    @property
    def slopes(self) -> Array:
        """Return the slopes by Y of every slot, as the clients see them."""
        return self._at_weights()[1]


class SketchedColumns(Told):
    """Columns with their sketches. `order`: int (N,), the order of the joined rows in J.

    Noise of variance s_c² in each number of column c adds m s_c²/N to its inner product with
    itself; this is subtracted. The remaining noise in that of columns c and d has a deviation of
    about s_c s_d √m/N. So in the units s_c m^¼/√N of each column, eigenvalues of k columns are
    known to about √k. Smaller ones are raised to it, because weights would otherwise fit noise.
    Each column has the noise of its own table, which follows from its fan-out.
    """

    def __init__(self, problem: Problem, sketch: Sketch, order: Array) -> None:
        super().__init__(len(problem.slots))
        self._root = float(np.sqrt(problem.mapping.total))
        target = sketch.of(problem.targets[order]) / self._root
        self._one = sketch.of(np.ones(problem.mapping.total)) / self._root
        self._length = float(self._one @ self._one)
        self._target, self._height = self._centred(target)
        self._columns = np.zeros((0, sketch.size))
        self._heights = np.zeros(0)
        self._variances = np.zeros(0)
        """Variance of the noise in each number of each column's sketch, over N."""

    def _centred(self, vector: Array) -> tuple[Array, float]:
        """Return the vector without its part along J1, and the factor of J1 in it."""
        height = float(vector @ self._one) / self._length
        return vector - height * self._one, height

    def _added(self, slot: int, values: Array, noise: float) -> tuple[Array, float]:
        column, height = self._centred(np.asarray(values, np.float64) / self._root)
        self._columns = np.vstack([self._columns, column])
        self._heights = np.append(self._heights, height)
        products = self._columns @ column
        variance = (noise / self._root) ** 2
        products[-1] -= self._columns.shape[1] * variance
        self._variances = np.append(self._variances, variance)
        return products, float(column @ self._target)

    @property
    def convex(self) -> Array:
        if not self._variances.any():
            return self.gram
        count, size = self._columns.shape
        least = 1e-12 * float(self._variances.max())
        units = np.sqrt(np.maximum(self._variances, least) * np.sqrt(size))
        values, vectors = np.linalg.eigh(self.gram / np.outer(units, units))
        raised: Array = (vectors * np.maximum(values, np.sqrt(count))) @ vectors.T
        return raised * np.outer(units, units)

    @property
    def direction(self) -> Array:
        """J (H − y), with b at its best: (m,)"""
        return self._left * self._root

    @property
    def _left(self) -> Array:
        left: Array = self.weights @ self._columns - self._target
        return left

    @property
    def loss(self) -> float:
        """Return the loss as estimated from sketches: noise may make it too small, even
        negative.
        """
        weights = self.weights
        linear = float(self.linear @ weights)
        return 0.5 * float(weights @ (self.gram @ weights) + self._target @ self._target) - linear

    @property
    def intercept(self) -> float:
        return self._height - float(self.weights @ self._heights)

    @property
    def scores(self) -> None:
        return None


# -- steps -----------------------------------------------------------------------------------------

ROUNDING = 1e-14
"""Share of the objective that an iteration may change it by and count as idle."""
NOTHING = 1e-28
"""Variance of a target that counts as constant, over the square of its mean."""
NOISED = "noised columns prove no minimum"
IDLE = 3
"""Iterations on which only rounding goes on."""


class FrankWolfe:
    """Options: epochs (iterations), tolerance, seed, and `FrankWolfeOptions`.

    Without a sketch and with all columns looked at, the duality gap bounds how far the objective is
    above its minimum: it ends where that is proved to be `tolerance` of it, or less. The gap of a
    sample of columns is of these alone, and that of sketches an estimate.
    """

    head: None = None

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        options = problem.options.of(FrankWolfeOptions)
        if options.radius is None:
            raise ModelError("the LASSO needs a radius", hint="WITH (radius = 10)")
        if options.sketch and problem.weights is not None:
            raise ModelError(
                "joined rows that weigh differently have no sketch: clients would be told what "
                "they weigh",
                hint="leave sketch out, or the WEIGHT column",
            )
        self._radius, self._step = options.radius, options.step
        self._sample, self._size = options.sample or 0, options.sketch or 0
        self._generator = np.random.default_rng(problem.seed)
        self._told: Told
        self._sketched: SketchedColumns | None = None
        self._share = 1.0
        """p, minimum share of a slot's columns that an iteration considers."""
        self._candidates: dict[int, int] = {}
        """Numbers of the latest candidates -> 1 if the loss falls as the weight rises, or -1."""
        self.first = 0.0
        self._flat = False
        """The target is constant, but for rounding."""

    @property
    def intercept(self) -> Array:
        return np.array([self._told.intercept])

    @property
    def scores(self) -> Scores | None:
        return self._told.scores

    def start(self) -> None:
        """Start: the sketch, if there is one, and the first candidates."""
        configuration = partial(
            FrankWolfeConfiguration,
            radius=self._radius,
            sample=self._sample,
            sketch=self._size,
            seed=self._problem.seed,
        )
        self._conversation.start(configuration)
        if self._sample:
            widest = max(self._conversation.widths.values())
            self._share = min(1.0, self._sample / widest)
        if self._size:
            self._told = self._sketched = self._set_sketch()
        else:
            self._told = JoinedColumns(self._problem)
        self.first = self._told.loss
        self._flat = self.first <= NOTHING * self._told.intercept**2
        self._ask()

    def steps(self) -> Iterator[Step]:
        epochs, protected = self._problem.options.epochs, self._problem.privacy is not None
        before, idle = self.first, 0
        for epoch in range(1, epochs + 1):
            self._move(epoch - 1)
            if protected and epoch == epochs:
                self._settle()
                done = stopping.untold(stopping.LIMIT, NOISED)
                yield Step(epoch, self._told.loss, self._told.loss, ending=done)
                return
            self._ask()
            loss, gap = self._told.loss, self._gap
            idle = idle + 1 if abs(before - loss) <= ROUNDING * abs(before) else 0
            before = loss
            ending = self._ending(loss, gap, last=epoch == epochs, idle=idle >= IDLE)
            yield Step(epoch, loss, loss, ending=ending, gap=gap)
            if ending is not None:
                return

    # -- requests ----------------------------------------------------------------------------------

    def _set_sketch(self) -> SketchedColumns:
        """J, and which of their rows is in which joined row: these are numbered by chance."""
        problem, generator = self._problem, self._generator
        total = problem.mapping.total
        seed, order = int(generator.integers(2**62)), generator.permutation(total)
        requests: dict[Address, Message] = {
            address: SetSketch(problem.run, address[1], seed, total, rows, places)
            for address, (rows, places) in listed_rows(
                problem.mapping, problem.slots, order
            ).items()
        }
        self._conversation.tell(requests)
        return SketchedColumns(problem, Sketch(self._size, total, seed), order)

    def _weights(self) -> Mapping[Address, Array]:
        return {
            address: self._told.of_slot(number)
            for number, members in enumerate(self._problem.slots)
            for address in members.addresses
        }

    def _questions(self) -> dict[Address, Message]:
        run, weights = self._problem.run, self._weights()
        if self._sketched is not None:
            direction = self._sketched.direction.astype(np.float32)
            return {
                a: ColumnDirection(run, a[1], direction, block_weights)
                for a, block_weights in weights.items()
            }
        assert isinstance(self._told, JoinedColumns)
        split = self._conversation.whole.split(self._told.look.slots)
        return {a: ColumnResiduals(run, a[1], y, weights[a]) for a, y in split.items()}

    def _ask(self) -> None:
        """Send the weights, and receive each slot's candidate at them."""
        questions = self._questions()
        replies: Mapping[Address, SteepestColumn] = self._conversation.settle(
            questions, self._expected
        )
        self._candidates = {}
        for slot, members in enumerate(self._problem.slots):
            parts = [replies[address] for address in members.addresses]
            first = parts[0]
            for address, part in zip(members.addresses, parts, strict=True):
                if (part.column, part.rising) != (first.column, first.rising):
                    reason = "chooses another column than the first client of its slot"
                    raise refused(address[0], questions[address], reason)
            number = self._told.find(slot, first.column)
            if number is None:
                if not any(len(part.values) for part in parts):
                    continue  # a block without columns
                values = [np.asarray(part.values, np.float64) for part in parts]
                whole = np.sum(values, axis=0) if self._size else np.concatenate(values)
                noise = float(np.linalg.norm([part.noise for part in parts]))
                number = self._told.add(slot, first.column, whole, noise)
            self._candidates[number] = 1 if first.rising else -1

    def _expected(self, address: Address) -> Expected[SteepestColumn]:
        slot = next(n for n, m in enumerate(self._problem.slots) if address in m.addresses)
        width = self._conversation.widths[address]
        size = self._size or self._conversation.whole.sizes[address]

        def fault(column: SteepestColumn) -> str | None:
            if not width:
                return None if not column.values.size else "tells a column of none"
            if column.column >= width:
                return f"tells column {column.column} of {width}"
            new = self._told.find(slot, column.column) is None
            if len(column.values) != (size if new else 0):
                told = "for the first time" if new else "again"
                return f"tells column {column.column} {told}, with {len(column.values)} values"
            return None

        return Expected(SteepestColumn, fault=fault)

    def _settle(self) -> None:
        run = self._problem.run
        told: dict[Address, Message] = {
            a: ColumnWeights(run, a[1], block_weights)
            for a, block_weights in self._weights().items()
        }
        self._conversation.tell(told)

    # -- steps -------------------------------------------------------------------------------------

    def _best(self, slopes: Array) -> tuple[int, int] | None:
        """Return the candidate along which the loss falls fastest: its number, and 1 or -1."""
        if not self._candidates:
            return None
        return min(self._candidates.items(), key=lambda item: item[1] * slopes[item[0]])

    @property
    def _gap(self) -> float:
        """∇ᵀ(w − s), s the best vertex among the candidates."""
        if self._flat:
            return 0.0
        slopes = self._told.slopes
        best = self._best(slopes)
        steepest = 0.0 if best is None else best[1] * slopes[best[0]]
        return float(slopes @ self._told.weights) - self._radius * float(steepest)

    def _move(self, iteration: int) -> None:
        told, radius = self._told, self._radius
        slopes = told.slopes
        best = self._best(slopes)
        if best is None or self._flat:
            return
        if self._step == CORRECTIVE:
            told.weights = corrected(told.convex, told.linear, told.weights, radius)
            return
        number, sign = best
        way = -told.weights
        way[number] += sign * radius
        if self._step == FIXED:
            length = 2.0 / (self._share * iteration + 2.0)
        else:
            bend = float(way @ (told.convex @ way))
            length = float(np.clip(-(slopes @ way) / bend, 0.0, 1.0)) if bend > 0.0 else 0.0
        told.weights = told.weights + length * way

    def _ending(self, loss: float, gap: float, *, last: bool, idle: bool) -> Ending | None:
        """Return the ending, with the known bound of the minimum, if the run ends here."""
        told = relative(max(gap, 0.0), loss, self.first)
        proved = not self._size and self._share == 1.0
        tolerance = self._problem.options.tolerance
        enough = max(CERTAIN, tolerance) if last or idle else tolerance
        if proved and told <= enough:
            return stopping.bounded(told)
        # of noised columns the gap is no more than a guess, and the whole budget is spent anyway
        guessed = self._problem.privacy is not None
        solved = not guessed and self._share == 1.0 and (idle or told <= tolerance)
        if not (last or solved):
            return None
        short = stopping.LIMIT if last else stopping.STILL
        why = stopping.LIMIT_REASON if last else stopping.STILL_REASON
        if not proved:
            return stopping.untold(short, f"{why}; {self._unproved}")
        return stopping.unbounded(short, why, told)

    @property
    def _unproved(self) -> str:
        if self._problem.privacy is not None:
            return NOISED
        if self._size:
            return "sketches of columns prove no minimum"
        return "a sample of the columns proves no minimum"


COORDINATOR: Callable[[Problem, ReplyChannel], FrankWolfe] = FrankWolfe


# The best weights within an ℓ1 ball, by inner products alone: an active-set method.

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
