"""Block-preconditioned, vector-free L-BFGS for generalised linear models.

H is linear in θ: a party sends X̃ P g of its block and the inner products of its newest vectors with
its basis. From these the coordinator forms H of any combination of the last P g and steps, and
searches exactly: not along one direction, but over a length of each block's part of each of these
vectors and over the intercept (`subspace`), which costs no message, and which the direction of
L-BFGS is a part of. That direction, by the two-loop recursion on the summed inner products, tells
what a further step promises. One exchange per iteration, two where a slot has several clients; one
more iteration's exchanges at the start for the first gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract import stopping
from sqlfl.contract.schema import Address
from sqlfl.contract.stopping import CERTAIN, Ending
from sqlfl.contract.transforms import MAX_UPDATES, ROWS, updates
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.convergence import (
    Evidence,
    bound,
    examine,
    least_eigenvalue,
    relative,
    weighed,
)
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.passes import PassResult
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.coordinator.rounds.search import ROUNDING, exact_search
from sqlfl.coordinator.rounds.warm import Levelled, beginning, cold, levelled
from sqlfl.messages import Residuals
from sqlfl.messages.checks import ReplyChannel
from sqlfl.methods.lbfgs.basis import GRADIENT, IMAGE, THETA, Basis, newest, sent
from sqlfl.methods.lbfgs.configuration import LbfgsConfiguration
from sqlfl.methods.lbfgs.messages import (
    MEMORY,
    ExactLbfgsResiduals,
    LbfgsResiduals,
    coefficients_length,
    products_length,
)
from sqlfl.methods.lbfgs.subspace import Images, Restriction, StepTrial
from sqlfl.models.solver import STEP, class_curvature

OF_CLASSES = ("logistic", "softmax")
"""Losses whose dispersion is 1, whatever the rows are."""
SHOWN = 0.1
"""Share of the gap that must be proved, at which rounding in the objective counts as visible."""
DROWNED = 1e-4
"""Share of a step's change of H that may be rounding."""
IDLE = 5
"""Iterations without progress, after which rounding is all there is."""
NEAR = 1e-4
"""Share of a search's gain that it may leave. The next search includes the same directions, and
gains many times that by new ones.
"""
INNER = 8
"""Iterations, at most, until strengths are found anew."""
ROUGHLY = 1e-4
"""Share of the objective. If the next step promises less, strengths are found anew first."""
MIN_SPREAD = 1e-150
"""Dispersion of targets without any, such as a constant: strengths are relative to it."""
VISIBLE = 1.1
"""Spread of a table's rows that the card tells of: less is chance."""
SETTLED, SETTLED_SHARE = 0.05, 0.01
"""Degrees of freedom, and a share of all of them: strengths whose change moves them by less than
the larger one are found."""
EXACT_ROUNDING = 1e-18
"""As `ROUNDING`, of 8-byte messages: the slope tells of descent where the value no longer does."""
FLOAT64 = 2.0**-53
"""Relative rounding of an 8-byte number."""
SLIGHT = 1e-5
"""Share of the loss. Changes of the scores that lowered it by no more may be on the way to
infinity."""
ONWARD = 5.0
"""Change of a score, far beyond what the rows allow where there is an optimum."""
FREE = 1e-3
"""Share of the loss that such a change costs at most where there is none."""


@dataclass(frozen=True, eq=False)
class Move:
    """A step of all blocks and of the intercept."""

    to: StepTrial
    intercept: Array
    """Change of the intercept: (d_c,)."""
    coefficients: Array
    """Of the blocks' steps in their basis, as `LbfgsResiduals` carry them: (slots, 1 + 2m)."""
    rounding: float
    """Mean square of the step's rounding error in H."""
    is_lost: bool
    """A block's step is a sum of vectors that cancel: rounding is too much of it."""
    any: bool
    """Something moves."""


class Lbfgs:
    """Options: epochs (iterations), tolerance.

    It ends when the next direction promises to lower the objective by at most `tolerance` of itself
    (half the Newton decrement, ½|g·d|) and the gradient bounds the gap by 1e-6 of it, or by
    `tolerance` where that is more: `Evidence` has the bounds. Then H is refreshed from the clients,
    and the gradient measured at it: only where the bound still holds is this convergence.

    Where it does not, where no step descends, and where the blocks' parts of a step are so long and
    so contrary that the rounding of 4-byte messages would show in the objective, messages are of 8
    bytes from there on: H is refreshed, and the pairs begin anew.
    """

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        start = cold(problem)
        self._intercept = self._basis(start.intercept)
        self._scores = start.scores
        self._look: PassResult | None = None
        """At these scores, once they have been looked at."""
        self._inner = InnerProducts(len(problem.slots))
        self._images = Images(problem)
        self._exact = False
        """Messages are of 8 bytes."""
        self._loss = self._objective = self.first = 0.0
        self._progress = _Progress()
        self._floor = -math.inf
        """The objective of no parameters is below: by the gradients so far."""
        self._seeking = bool(problem.shrunken)
        """Strengths of groups of columns are still sought."""
        self._since = self._updates = 0
        """Iterations since strengths were found anew, and how often they were."""
        self._pending = dict(problem.paired)
        """Slots to which pairs of features are still to be added, and how many."""
        self._ripe = False
        """The strengths of the present columns are chosen: pairs are added next."""
        self._freedom = 0.0
        """Degrees of freedom of all blocks, by the last strengths."""
        self._of_slots: dict[int, float] = {}
        """The same by slot."""
        self._spread: dict[int, float] = {}
        """Dispersion of each slot's rows over that of joined rows."""
        self._fell = False
        """8-byte messages did not keep the objective above that."""
        self._anchors: list[tuple[float, Scores]] = []
        """Losses and scores of two earlier iterations, as `_note_anchor` has them."""

    def _basis(self, intercept: Array) -> Basis:
        """Preconditioned as the blocks are."""
        problem = self._problem
        curvature = problem.loss.curvature * np.eye(problem.outputs)
        if problem.class_shares:
            curvature = class_curvature(problem.class_shares)
        return Basis(intercept.reshape(1, -1), lambda g: np.linalg.solve(curvature, g.T).T)

    @cached_property
    def _reference(self) -> float:
        """The curvature that the blocks' preconditioner has of the loss."""
        problem = self._problem
        if not problem.class_shares:
            return problem.loss.curvature
        constant = problem.loss.initial_intercept(problem.targets, problem.shares)
        return math.sqrt(STEP) * problem.loss.mean_curvature(constant[None, :])

    @property
    def intercept(self) -> Array:
        return np.array(self._intercept.theta[0])

    @property
    def head(self) -> Array | None:
        return None

    @property
    def scores(self) -> Scores:
        return self._scores

    def start(self) -> None:
        """Start, where it starts warm, second moments of shared slots, and the first gradient."""
        configuration = partial(LbfgsConfiguration, shares=self._problem.class_shares)
        self._conversation.start(configuration)
        start = beginning(self._problem, self._conversation)
        self._intercept = self._basis(start.intercept)
        self._scores = start.scores
        self._conversation.share_grams()
        self._exchange(np.zeros((len(self._problem.slots), coefficients_length())))

    def steps(self) -> Iterator[Step]:
        epochs = self._problem.options.epochs
        self._value()
        self.first = self._objective
        move = self._search()
        for epoch in range(1, epochs + 1):
            self._move(move)
            self._value()
            self._note_anchor()
            self._progress.note(self._objective, float(self._inner.squares[:, 1].sum()))
            self._keep_to_the_blocks()
            ending = None
            if self._seeking and epoch < epochs and self._pauses():
                self._find_strengths()
            if epoch == epochs or (not self._seeking and self._ready()):
                ending = self._proved(epoch == epochs)
            if ending is None:
                move = self._search()
                rests = not move.any or (self._exact and (self._fell or self._progress.rests))
                if rests and not self._seeking:
                    evidence = self._examined()
                    reason = stopping.ROUNDING_REASON
                    ending = evidence.ending(self._tolerance, stopping.ROUNDING, reason)
            norm = self._inner.gradient if ending is None else ending.gradient
            endless = ending is not None and (
                ending.short == stopping.SEPARABLE or self._is_endless()
            )
            yield Step(
                epoch,
                self._objective,
                self._loss,
                norm,
                ending,
                estimates=self._estimates(),
                warnings=(stopping.ENDLESS,) if endless else (),
            )
            if ending is not None:
                return

    def _pauses(self) -> bool:
        """The block is near enough to its optimum under these strengths to find them anew."""
        self._since += 1
        if self._since >= INNER:
            return True
        promised = 0.5 * abs(self._inner.slope(self._inner.direction()))
        return relative(promised, self._objective, self.first) <= ROUGHLY

    def _find_strengths(self) -> None:
        """Fellner and Schall's step at the clients, which add pairs of features once the strengths
        without them are found; the memory of L-BFGS begins anew, in 4-byte messages."""
        added, self._ripe = self._pending if self._ripe else {}, False
        scales = self._dispersions()
        self._conversation.share_pairs(scales, added)
        self._of_slots = self._conversation.renew_strengths(scales, added)
        freedom = sum(self._of_slots.values())
        self._updates += 1
        least = max(SETTLED, SETTLED_SHARE * freedom)
        settled = not added and abs(freedom - self._freedom) < least
        if added:
            self._pending = {}
        elif self._pending:
            self._ripe = settled or self._updates == MAX_UPDATES - 1
        most = updates(pairs=bool(self._problem.paired))
        self._seeking = self._ripe or (not settled and self._updates < most)
        self._freedom, self._since = freedom, 0
        problem, noise = self._problem, self._images.noise
        self._exact, self._fell = False, False
        self._inner.forget()
        self._images = Images(problem)
        self._images.noise = noise
        self._progress = _Progress()
        self._floor = -math.inf
        self._exchange(np.zeros((len(problem.slots), coefficients_length())), epoch=False)
        self._value()

    def _dispersions(self) -> dict[int, tuple[float, float]]:
        """φ over the number of rows, and the mean curvature, of each slot that has strengths."""
        problem, scores = self._problem, self._scores
        curvature = problem.passes.mean_curvature(scores)
        dispersion = 1.0
        if problem.loss.name not in OF_CLASSES:
            square = problem.passes.slope_square(scores)
            rest = max(problem.observed - 1.0 - self._freedom, 1.0)
            dispersion = square / curvature * problem.observed / rest
            dispersion = max(dispersion, 1.0 if problem.loss.name == "poisson" else MIN_SPREAD)
        mean_dispersion = dispersion / problem.observed
        self._spread = self._spreads(dispersion, curvature)
        return {
            slot: (mean_dispersion * self._spread[slot], curvature) for slot in problem.shrunken
        }

    def _spreads(self, dispersion: float, curvature: float) -> dict[int, float]:
        """Dispersion by slot, where residuals that are alike in all joined rows of a table's row
        make of the dispersion: Σ G_r² / Σ h, with G_r the sum over the joined rows of row r, times
        rows over rows less degrees of freedom, over φ; 1 or more. Rows of weight 0 do not count.
        Where an expression makes units, all slots have that of units: 1 and `Units.excess` over
        the mean square of slopes."""
        problem = self._problem
        if getattr(problem.options.method, "unit", ROWS) == ROWS:
            return dict.fromkeys(problem.shrunken, 1.0)
        total = problem.mapping.total
        trained = total if problem.training is None else len(problem.training)
        directions = max(problem.outputs - 1, 1)
        if problem.units is not None:
            spread = 1.0 + float(self._excess / (curvature * dispersion * directions))
            return dict.fromkeys(problem.shrunken, spread)
        # shares of the trained rows have the mean total / trained, and G_r contains them
        whole = curvature * total**2 / trained * directions * dispersion
        spreads = {}
        for members, counted, sums in zip(
            problem.slots, problem.counted, self._seen.slots, strict=True
        ):
            rows = np.count_nonzero(counted)
            rest = max(rows - 1.0 - self._of_slots.get(members.slot, 0.0), 1.0)
            square = float(np.vdot(sums, sums)) * rows / rest
            spreads[members.slot] = max(1.0, float(square / whole))
        return spreads

    @cached_property
    def _excess(self) -> float:
        """`Units.excess` of a model of no features: residuals of this one vary little between
        units once its columns fit these."""
        problem = self._problem
        assert problem.units is not None
        return problem.units.excess(problem.passes.slopes(cold(problem).scores), problem.shares)

    def _estimates(self) -> dict[str, float]:
        """For the model's card: how many parameters its columns come to, and of tables whose rows
        are joined several times, or of units, how much more their residuals spread."""
        if not self._updates:
            return {}
        names = self._problem.shrunken
        spread = {
            f"spread_{names[n]}": x for n, x in self._spread.items() if n in names and x > VISIBLE
        }
        if self._problem.units is not None and spread:
            spread = {"spread_unit": max(spread.values())}
        return {"effective_parameters": self._freedom + 1.0, **spread}

    def _keep_to_the_blocks(self) -> None:
        """Make H from the blocks' predictions again if the objective is lower than any parameters
        can make it: H then fits rounding errors. From then on messages have 8-byte numbers.

        With g the gradient and l2 > 0, no objective is below f − ‖g‖²/(2 l2): the intercept, which
        is not penalised, is at its best in each step.
        """
        if not self._problem.l2 > 0.0:
            return
        if self._objective < self._floor - ROUNDING * abs(self._floor):
            self._fell = self._fell or self._exact
            self._sharpen()
            self._floor = -math.inf
        least = self._objective - self._inner.gradient**2 / (2.0 * self._problem.l2)
        self._floor = max(self._floor, least)

    @property
    def _tolerance(self) -> float:
        return self._problem.options.tolerance

    def _value(self) -> None:
        self._loss = self._seen.value
        penalty = 0.5 * self._problem.l2 * float(self._inner.blocks[:, THETA, THETA].sum())
        self._objective = self._loss + penalty

    @property
    def _seen(self) -> PassResult:
        if self._look is None:
            self._look = self._problem.passes.look(self._scores)
        return self._look

    def _ready(self) -> bool:
        """By all that is known without asking the clients again, this is the optimum."""
        promised = 0.5 * abs(self._inner.slope(self._inner.direction()))
        if relative(promised, self._objective, self.first) > self._tolerance:
            return False
        euclidean, preconditioned = self._inner.squares.sum(axis=0)
        bend = None if self._look is None else self._look.bend
        gap = bound(
            self._problem, self._scores, euclidean, preconditioned, self._reference, bend=bend
        )
        level = max(self._tolerance, CERTAIN)
        return relative(gap, self._objective, self.first) <= level

    def _proved(self, last: bool) -> Ending | None:
        """Return the ending: the optimum is proved, or this is the last iteration."""
        if not self._problem.proved:
            return stopping.untold(stopping.LIMIT if last else stopping.STILL, stopping.NOT_ASKED)
        evidence = self._examined()
        if not evidence.proves(self._tolerance) and not self._exact and not last:
            self._sharpen()
            evidence = self._examined()
        if last or evidence.separable or evidence.proves(self._tolerance):
            return evidence.ending(self._tolerance, stopping.LIMIT, stopping.LIMIT_REASON)
        return None

    def _examined(self) -> Evidence:
        problem, first = self._problem, self.first
        if self._exact:
            held = self._refresh()
            images = self._images.held()
            least = least_eigenvalue(
                problem.passes, [[basis, *more] for basis, more in zip(held, images, strict=True)]
            )
            best = Levelled(self._loss, np.zeros(problem.outputs), self._scores, self._seen)
            penalty = self._objective - self._loss
            squares = list(self._inner.squares)
            return weighed(
                problem, self._scores, best, penalty, squares, first, self._reference, least
            )
        evidence = examine(
            problem,
            self._conversation,
            self.intercept,
            first,
            exact=False,
            reference=self._reference,
        )
        self._scores, self._look = evidence.scores, None
        self._loss, self._objective = evidence.loss, evidence.objective
        return evidence

    def _sharpen(self) -> None:
        """8-byte messages from here on."""
        self._exact = True
        self._progress = _Progress()
        self._images.forget()
        self._inner.forget()
        self._refresh()

    def _refresh(self) -> list[Array]:
        """H from the parameters that the clients hold, the intercept that is best for them, and the
        gradient there, which moves nothing; gives the blocks' predictions (n_i, d_c)."""
        replies = self._conversation.exact_predictions()
        held = self._conversation.whole.concatenate(replies)
        best = levelled(self._problem, Scores(by_output(held), self.intercept))
        self._intercept.shift(best.moved)
        self._scores, self._look = best.scores, best.look
        self._exchange(np.zeros((len(self._problem.slots), coefficients_length())), epoch=False)
        self._value()
        return held

    def _search(self) -> Move:
        move = self._best()
        short = not move.any or self._progress.rests or self._drowns(move)
        if not self._exact and (short or self._runs_away(move)):
            self._sharpen()
            move = self._best()
        if self._exact and self._runs_away(move):
            if self._problem.l2 > 0.0:  # the memory of a block at its optimum is rounding
                self._sharpen()
                return self._best()
            still = np.zeros_like(move.coefficients)
            return Move(self._still(), np.zeros_like(move.intercept), still, 0.0, False, False)
        return move

    def _runs_away(self, move: Move) -> bool:
        """Return whether rounding in what the step does to the scores may move the loss by more
        than the step gains.

        A step is a sum of vectors. Where these nearly cancel in the scores, nothing but rounding
        limits their lengths, and the clients' scores are no longer those of the coordinator. With a
        penalty this happens when a block comes to its optimum before the others: its last gradients
        are rounding.
        """
        if self._problem.l2 > 0.0 or not move.any:
            return move.is_lost
        lengths = sent(np.sqrt(np.diagonal(self._inner.blocks, axis1=1, axis2=2)))
        size = float(np.linalg.norm(move.coefficients * lengths))
        error = FLOAT64 * size + math.sqrt(move.rounding)
        residual = math.sqrt(self._problem.passes.slope_square(self._scores))
        return error * residual > self._loss - move.to.look.value

    def _note_anchor(self) -> None:
        """Keep the scores from which the loss fell by no more than `SLIGHT` of itself since."""
        if self._problem.l2 > 0.0 or self._problem.loss.grows:
            return
        if not self._anchors or self._anchors[-1][0] - self._loss > SLIGHT * abs(self._loss):
            self._anchors = [*self._anchors[-1:], (self._loss, self._scores)]

    def _is_endless(self) -> bool:
        """Return whether the optimum is at infinity, or as far away: along the last changes of the
        scores, which hardly changed the loss, some scores go on by `ONWARD` at no cost.
        """
        problem, scores = self._problem, self._scores
        for _, anchor in self._anchors:
            pairs = zip(scores.slots, anchor.slots, strict=True)
            slots = [held - earlier for held, earlier in pairs]
            constant = scores.constant - anchor.constant
            if problem.outputs > 1:  # a constant in all classes costs nothing anywhere
                slots = [values - values.mean(axis=0) for values in slots]
                constant = constant - constant.mean()
            reach = problem.passes.reach(Scores(tuple(slots), constant))
            if not reach > 0.0:
                continue
            far = ONWARD / reach
            onward = scores.moved([far * values for values in slots], far * constant)
            if problem.passes.value(onward) <= self._loss + FREE * abs(self._loss):
                return True
        return False

    def _drowns(self, move: Move) -> bool:
        """Return whether the rounding of 4-byte numbers would show in the objective after this
        step, or is too large a part of the change of H.
        """
        problem, change = self._problem, Scores(move.to.step, np.zeros_like(move.intercept))
        square = problem.passes.square(change, sampled=True) / problem.outputs
        if move.rounding > DROWNED**2 * square:
            return True
        noise = 0.5 * self._problem.loss.curvature * (self._images.noise + move.rounding)
        return relative(noise, self._objective, self.first) > SHOWN * CERTAIN

    def _best(self) -> Move:
        problem, images = self._problem, self._images
        ways = images.ways(self._inner.direction())
        slope, curvature = self._inner.penalty(ways.coefficients, problem.l2)
        start = self._still()
        lost = self._inner.lost(ways.coefficients)
        restriction = Restriction(problem, start, images, ways, slope, curvature, lost)
        rounding = EXACT_ROUNDING if self._exact else ROUNDING
        steps = exact_search(restriction, rounding, NEAR)
        blocks, intercept = restriction.lengths(steps)
        coefficients = blocks @ ways.coefficients
        return Move(
            restriction.trial(steps),
            intercept,
            sent(coefficients),
            images.rounding(ways, blocks),
            bool(np.diagonal(self._inner.lost(coefficients)).any()),
            bool(steps.any()),
        )

    def _still(self) -> StepTrial:
        still = tuple(np.zeros_like(held) for held in self._scores.slots)
        return StepTrial(still, self._scores, self._seen)

    def _move(self, move: Move) -> None:
        """θ ← θ + the step, at the clients, in the intercept, and in H."""
        self._intercept.shift(move.intercept)
        self._images.move(move.to.step, move.rounding)
        self._scores, self._look = move.to.scores, move.to.look
        self._exchange(move.coefficients)

    def _exchange(self, coefficients: Array, *, epoch: bool = True) -> None:
        """The clients make the step; their new gradients' images and products come back."""
        look = self._seen
        whole = self._conversation.whole
        replies = self._conversation.step(
            whole, look.slots, self._residuals(coefficients, epoch), exact=self._exact
        )
        products = self._conversation.products(replies)
        intercept_products = self._intercept.renew(look.total[None, :] / self._problem.passes.total)
        self._inner.renew(products, intercept_products)
        rows = self._conversation.whole.concatenate(replies)
        self._images.renew(rows, self._inner.iteration)

    def _residuals(self, coefficients: Array, epoch: bool) -> Callable[[Address, Array], Residuals]:
        kind = ExactLbfgsResiduals if self._exact else LbfgsResiduals
        run, slots = self._problem.run, [members.slot for members in self._problem.slots]
        told = dict(zip(slots, coefficients, strict=True))
        return lambda to, values: kind(run, to[1], values, told[to[1]], int(epoch))


class _Progress:
    """True if iterations still lower the objective, or at least the gradient."""

    def __init__(self) -> None:
        self._objective = self._square = np.inf
        self._idle = 0

    def note(self, objective: float, square: float) -> None:
        """square: gᵀP g."""
        fell = self._objective - objective > ROUNDING * abs(objective)
        self._idle = 0 if fell or square < 0.5 * self._square else self._idle + 1
        self._objective = min(self._objective, objective)
        self._square = min(self._square, square)

    @property
    def rests(self) -> bool:
        return self._idle >= IDLE


COORDINATOR = Lbfgs


LOST = 1e-6
"""Length of a direction, relative to the vectors that it is a difference of, below which rounding
is too much of it."""


class InnerProducts:
    """Inner products of the basis vectors, summed over blocks, and the two-loop recursion."""

    def __init__(self, blocks: int, memory: int = MEMORY) -> None:
        size = 3 + 3 * memory
        self._memory = memory
        self._oldest = 1
        """The first iteration whose pair counts."""
        self.iteration = -1
        self.blocks = np.zeros((blocks, size, size))
        """Of each block; without the intercept, which is not penalised."""
        self._total = np.zeros((size, size))

    def renew(self, products: Array, intercept: Array) -> None:
        """products: (blocks, 6 · (3 + 3m)) of the parties' blocks; those of the intercept."""
        if products.shape != (len(self.blocks), products_length(self._memory)):
            raise InternalError(f"inner products of shape {products.shape}")
        self.iteration += 1
        positions = newest(self.iteration, self._memory)
        added = [*products, products.sum(axis=0) + intercept]
        for matrix, rows in zip((*self.blocks, self._total), added, strict=True):
            matrix[positions] = rows.reshape(6, -1)
            matrix[:, positions] = rows.reshape(6, -1).T

    def forget(self) -> None:
        """Pairs up to that of the next iteration no longer count."""
        self._oldest = self.iteration + 2

    @property
    def gradient(self) -> float:
        """‖g‖, that of the intercept included."""
        return float(np.sqrt(self._total[GRADIENT, GRADIENT]))

    @property
    def squares(self) -> Array:
        """Of each block ‖g‖² and gᵀP g: (blocks, 2)."""
        return self.blocks[:, GRADIENT, [GRADIENT, IMAGE]]

    def slope(self, direction: Array) -> float:
        """g·d"""
        return float(self._total[GRADIENT] @ direction)

    def penalty(self, ways: Array, l2: float) -> tuple[Array, Array]:
        """Slope (blocks, ways) and curvature (blocks, ways, ways) of the penalty along each block's
        part of `ways` (ways, 3 + 3m)."""
        return l2 * self.blocks[:, THETA] @ ways.T, l2 * (ways @ self.blocks @ ways.T)

    def lost(self, ways: Array) -> Array:
        """Which blocks' parts of `ways` (ways, 3 + 3m) are rounding: (blocks, ways).

        A former gradient is told by the differences since. Where it was as good as 0, nothing of
        it is left in them.
        """
        squares = np.einsum("ki,sij,kj->sk", ways, self.blocks, ways)
        lengths = np.sqrt(np.diagonal(self.blocks, axis1=1, axis2=2)) @ np.abs(ways).T
        is_lost: Array = squares < (LOST * lengths) ** 2
        return is_lost

    def direction(self) -> Array:
        """−H g in the basis (3 + 3m,), with γ P, γ = s·y / y·P y, as the initial matrix."""
        m, g = self._memory, self._total
        pairs = self._pairs()
        q = np.zeros(len(g))
        q[GRADIENT] = 1.0
        factors: dict[int, float] = {}
        for s, y, _ in reversed(pairs):
            factors[s] = float(g[s] @ q) / g[s, y]
            q[y] -= factors[s]
        gamma = 1.0
        if pairs:
            s, y, image = pairs[-1]
            gamma = g[s, y] / g[y, image]
        r = np.zeros(len(g))
        r[IMAGE] = gamma * q[GRADIENT]
        r[3 + 2 * m :] = gamma * q[3 + m : 3 + 2 * m]
        for s, y, _ in pairs:
            r[s] += factors[s] - float(g[y] @ r) / g[s, y]
        if not float(g[GRADIENT] @ r) > 0.0:
            r[:] = 0.0
            r[IMAGE] = 1.0
        return -r

    def _pairs(self) -> list[tuple[int, int, int]]:
        """Positions of s, y and P y, oldest first, of those pairs with positive curvature."""
        m, g = self._memory, self._total
        pairs = []
        for k in range(max(self._oldest, self.iteration - m + 1), self.iteration + 1):
            _, _, _, s, y, image = (int(position) for position in newest(k, m))
            noise = 1e-12 * np.sqrt(g[s, s] * g[y, y])
            if g[s, y] > noise and g[y, image] > 0.0:
                pairs.append((s, y, image))
        return pairs
