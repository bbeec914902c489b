"""Gradient descent over a join, on all joined rows or on mini-batches (eq. 6-8, 12-15, 19-21).

One exchange per batch: the aggregated residuals of the last batch go down with the rows of the next
one, whose predictions come back; only rows that occur in a batch travel. Around the end of an epoch
all active rows travel, so that its objective is exact: the exchange of its last batch asks for
predictions of all rows, and the residuals of the next epoch's first batch are sent for all rows
(zero for those outside the batch). Towers that drop units predict the first batch of every epoch
once more with units dropped, in an exchange of its own, and its residuals are for its rows only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract import stopping
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.contract.schema import Address
from sqlfl.contract.stopping import Ending
from sqlfl.coordinator.join.scatter_gather import JoinedRows, occurring
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.batches import Batch, Batches, batch_at
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.chunks import WrittenChunks
from sqlfl.coordinator.rounds.convergence import check_objective, check_scores, conclusion, relative
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.lanczos import spectrum
from sqlfl.coordinator.rounds.passes import Passes, PassResult
from sqlfl.coordinator.rounds.problem import Headed, Problem, Step
from sqlfl.coordinator.rounds.warm import beginning, cold
from sqlfl.messages import Predictions, Residuals
from sqlfl.messages.checks import ReplyChannel
from sqlfl.methods.sgd.configuration import SgdConfiguration
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.methods.sgd.options import LEARNING_RATE, SgdOptions
from sqlfl.models.head import Head
from sqlfl.models.optimizers import optimizer_of
from sqlfl.privacy.samplers import add_gaussian

HINT = "give a smaller learning_rate, or none, to have it chosen"
ADAM_MEMORY = 10
"""Steps over which Adam averages gradients."""


class Sgd(Headed):
    """Options: epochs, seed, tolerance, dropout, and `SgdOptions`.

    A linear head, W₀ and b at the coordinator, takes the same optimizer and the same steps; the
    clients get ∂ℓ/∂E = g W₀ᵀ of the batch, with W₀ as it was when they predicted.

    With `learning_rate`, and with Adam and towers by default, every step has that size, the
    intercept's too. Else it comes from the curvature (`estimated_rates`); in batches, unless there
    is a `schedule`, it then falls over the epochs by the schedule 'inverse', the intercept's too;
    and a batch that curves more than others counts for less while steps are longer than it allows
    (`rates.reach`).

    It ends before the last epoch only with all rows and no dropout, where the objective fell by at
    most `tolerance` of itself; with momentum or Adam, which swing, where it changed by no more for
    as many epochs as they average over; whether that is convergence the gradient says
    (`convergence.conclusion`). Raises ModelError where the steps diverge.

    Weights: batches are of rows that weigh something, and a batch's gradient is its weighted mean.
    The B of estimated steps is the rows of a batch that count, (Σ w)² / Σ w²: where weights differ
    by much, batches must be large, for the mean of weighted means is not the weighted mean.
    """

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        self._generator = np.random.default_rng(problem.seed)
        training = problem.training
        self._total = total = problem.mapping.total if training is None else len(training)
        self._options = problem.options.of(SgdOptions)
        self._batch = self._options.batch_size.of(total)
        self._shuffled = Batches(problem, self._batch) if self._some else None
        self._rates = Rates(0.0, 0.0)
        self._estimated = False
        """Step lengths come from the curvature, and follow it where that changes."""
        self._begin = cold(problem)
        steps = self._options.steps
        super().__init__(self._begin.head, partial(optimizer_of, steps.optimizer, steps.momentum))
        self._blocks, self._scores = self._begin.blocks, self._begin.scores
        self._look: PassResult | None = None
        """The pass at these scores, with sums; None for steps of batches, and for steps
        from noise.
        """
        self._largest = self._highest = 0.0
        self.first = 0.0
        self._schedule, self._decay = "constant", 0.0
        self._surrogate: Surrogate | None = None
        """A replacement of the loss where noised predictions give little information on
        its slopes.
        """
        if problem.noise > 0.0 and not problem.linear_head:
            surrogate = Surrogate(problem)
            self._surrogate = surrogate if surrogate.applies else None
        self._own: OwnScores | None = None
        """Scores that clients add to residuals, which are made without these."""
        if self._surrogate is not None and problem.tower is None and not self._some:
            self._own, self._surrogate = OwnScores(problem), None

    @property
    def scores(self) -> Scores:
        return self._scores

    def start(self) -> None:
        """Start; the predictions of towers or of a warm start; the power rounds where the step
        length is to be estimated."""
        problem, options = self._problem, self._options
        feedback = 0.0 if self._own is None else self._own.feedback
        configuration = partial(SgdConfiguration, steps=options.steps, feedback=feedback)
        self._conversation.start(configuration)
        self._begin = beginning(problem, self._conversation)
        self._head, self._blocks = self._begin.head, self._begin.blocks
        self._scores = self._begin.scores
        known = usual_rates(problem)
        usual = "inverse" if self._some and known is None else "constant"
        self._schedule = options.schedule or usual
        self._decay = options.falling(self._schedule)
        if known is None and problem.privacy is not None:
            batches = math.ceil(self._total / self._batch)
            steps = problem.options.epochs * batches
            known = public_rates(problem, steps, held=self._own is not None)
        if known is None:
            counting = self._counting() if self._some else None
            known = estimated_rates(problem, self._conversation, self._generator, counting)
            self._estimated = True
        self._rates = known

    @property
    def _some(self) -> bool:
        """True if steps use batches, not all rows."""
        return self._batch < self._total

    def _counting(self) -> float:
        """Rows of a batch that count, on average."""
        shares = self._problem.shares
        if shares is None:
            return self._batch
        counting = float(shares.sum()) ** 2 / float(shares @ shares)
        return max(1.0, self._batch * counting / self._total)

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        tolerance, epochs = problem.options.tolerance, problem.options.epochs
        objective = first = self._seen() + self._begin.penalty
        self.first = first
        still = 0
        for epoch in range(1, epochs + 1):
            penalty = self._epoch(step_factor(self._schedule, self._decay, epoch, epochs))
            before = objective
            loss = self._seen()
            self._check(self._largest, self._highest)
            objective = loss + penalty
            check_objective(problem, objective, first, "the steps", HINT, self._head.stretch)
            change = relative(before - objective, objective, first)
            calm = (abs(change) if self._swings else change) <= tolerance
            still = still + 1 if calm and (self._swings or change >= 0.0) else 0
            late, stale = self._conversation.missed(), self._conversation.late > 0
            still = 0 if stale else still
            ended = not self._random and not self._lasts and still >= self._memory
            ending = self._ending(ended, first) if ended or epoch == epochs else None
            gradient = None if ending is None else ending.gradient
            yield Step(epoch, objective, loss, gradient, ending, late=late, stale=stale)
            if ending is not None:
                return

    def _ending(self, still: bool, first: float) -> Ending:
        """Return the ending; for towers nothing is proved."""
        problem = self._problem
        if problem.tower is not None:
            return stopping.untold(stopping.STILL if still else stopping.LIMIT, stopping.TOWERS)
        return conclusion(problem, self._conversation, still, self._head.intercept, first)

    @property
    def _lasts(self) -> bool:
        """True if all epochs run: without a tolerance, the budget has paid for them."""
        problem = self._problem
        return problem.privacy is not None and not problem.options.tolerance > 0.0

    @property
    def _random(self) -> bool:
        return self._some or self._problem.dropout > 0.0

    @property
    def _swings(self) -> bool:
        """The objective may rise on the way down."""
        return self._options.steps.optimizer != "plain"

    @property
    def _memory(self) -> int:
        """Steps that one step depends on."""
        if self._options.steps.optimizer == "momentum":
            return math.ceil(1.0 / (1.0 - self._options.steps.momentum))
        return ADAM_MEMORY if self._swings else 1

    def _seen(self) -> float:
        """The mean loss at the scores."""
        whole = self._plain and not self._problem.dropout > 0.0
        look = self._problem.passes.look(self._scores, sums=whole)
        self._look = look if whole else None
        self._largest, self._highest = look.largest, look.highest
        return look.value

    @property
    def _plain(self) -> bool:
        """True if steps use all rows and exact predictions."""
        return not self._some and self._problem.privacy is None

    def _epoch(self, factor: float) -> float:
        """Run one pass over the joined rows; return the penalty."""
        if self._own is not None:
            replies = self._step_apart(self._own, factor)
        else:
            replies = self._step(factor) if self._plain else self._batches(factor)
        self._blocks = tuple(self._conversation.whole.concatenate(replies))
        if self._own is not None:
            self._head = self._head.replaced((self._own.take(self._blocks),))
        if self._surrogate is not None:
            embedding = self._conversation.whole.mapping.gather_sum(self._blocks)
            self._head = self._head.replaced((self._surrogate.intercept(embedding),))
        self._scores = Scores(by_output(self._blocks, self._head.weights), self._head.intercept)
        penalty = float(self._conversation.products(replies).sum())
        return penalty + self._head.penalty(self._problem.l2)

    def _step(self, factor: float) -> dict[Address, Predictions]:
        """Make a step of all rows."""
        problem, conversation, head = self._problem, self._conversation, self._head
        whole, blocks, scores = conversation.whole, self._blocks, self._scores
        if problem.dropout > 0.0:
            blocks = tuple(whole.concatenate(conversation.predictions(training=True)))
            scores = Scores(by_output(blocks, head.weights), head.intercept)
        look = self._look or problem.passes.look(scores)
        pace = factor
        if not problem.loss.bounded:
            row_scores = problem.passes.rows(scores)
            pace *= self._flatness(row_scores, problem.targets, problem.shares)
        rows = problem.mapping.total
        gradient = head.gradient_by_slots(blocks, look.slots, look.total, rows, problem.l2)
        self._step_head(gradient, pace * self._rates.head)
        residuals = self._residuals(pace * self._rates.blocks, rows, whole)
        return conversation.step(
            whole, [head.pulled_back(slopes.T).T for slopes in look.slots], residuals, whole
        )

    def _step_apart(self, own_scores: OwnScores, factor: float) -> dict[Address, Predictions]:
        """Make a step of all rows whose residuals lack each block's own scores."""
        whole, rows = self._conversation.whole, self._problem.mapping.total
        residuals = self._residuals(factor * self._rates.blocks, rows, whole)
        return self._conversation.step(whole, own_scores.sums(), residuals, whole)

    def _batches(self, factor: float) -> dict[Address, Predictions]:
        problem, conversation = self._problem, self._conversation
        whole = conversation.whole
        if self._shuffled is None:
            batches = iter((batch_at(problem, slice(None)),))
        else:
            batches = self._shuffled.of_epoch(self._generator)
        batch = next(batches)
        rows, mapping, blocks = self._first(batch)
        while True:
            slopes = self._batch_slopes(mapping, blocks, batch)
            if rows is not whole:
                self._check(slopes.largest, slopes.highest)
            weight = self._weight(factor, batch)
            pace = factor * self._batch_flatness(mapping, blocks, batch)
            sums = slopes.pulled_back(self._head, weight)
            if self._surrogate is None:
                gradient = self._gradient(blocks, slopes, weight)
                self._step_head(gradient, pace * self._rates.head)
            upcoming = next(batches, None)
            following = whole if upcoming is None else occurring(whole, upcoming.mapping)
            residuals = self._residuals(pace * self._rates.blocks, batch.total, following)
            replies = conversation.step(rows, sums, residuals, following)
            if upcoming is None:
                return replies
            rows, mapping, batch = following, following.mapping, upcoming
            blocks = tuple(following.concatenate(replies))

    def _residuals(
        self, rate: float, divisor: int, following: JoinedRows
    ) -> Callable[[Address, Array], Residuals]:
        run, batches = self._problem.run, following.rows
        if batches is None:
            return lambda to, values: SgdResiduals(run, to[1], values, rate, divisor, 1)
        return lambda to, values: SgdResiduals(run, to[1], values, rate, divisor, 0, batches[to])

    def _first(self, batch: Batch) -> tuple[JoinedRows, TableMapping, tuple[Array, ...]]:
        """Return the rows that predict for the first batch of an epoch, the mapping of the batch
        over them, and their h.
        """
        whole = self._conversation.whole
        if not self._problem.dropout > 0.0:
            shapes = ((size, self._problem.embedding) for size in whole.mapping.sizes)
            return whole, batch.mapping, self._blocks or tuple(map(np.zeros, shapes))
        rows = occurring(whole, batch.mapping) if self._some else whole
        replies = self._conversation.predictions(rows if self._some else None, training=True)
        return rows, rows.mapping, tuple(rows.concatenate(replies))

    def _batch_slopes(
        self, mapping: TableMapping, blocks: tuple[Array, ...], batch: Batch
    ) -> BatchSlopes:
        """Return w_j ∂ℓ/∂H of a batch, with weights of mean 1 in it, from h of its rows, over which
        `mapping` is.
        """
        problem, head = self._problem, self._head
        shares, targets = batch.weights, batch.targets
        if self._surrogate is None and not problem.parameters_only:
            chunks = WrittenChunks(mapping, targets, shares, runs=False)
            scores = Scores(by_output(blocks, head.weights), head.intercept)
            look = Passes(chunks, problem.loss).look(scores)
            return BatchSlopes(batch.total, look.slots, look.total, look.largest, look.highest)
        embedding = mapping.gather_sum(blocks)
        row_scores = head.scores(embedding)
        if self._surrogate is not None:
            slopes = self._surrogate.slopes(embedding, targets, shares)
        else:
            slopes = problem.loss.gradient(row_scores, targets, shares)
        largest, highest = float(np.abs(row_scores).max()), float(row_scores.max())
        sums = tuple(mapping.scatter(slot, slopes).T for slot in range(len(mapping)))
        total = self._noised_slope(slopes) if problem.parameters_only else slopes.sum(axis=0)
        return BatchSlopes(batch.total, sums, total, largest, highest)

    def _weight(self, factor: float, batch: Batch) -> float:
        """Return the factor of the batch's slopes that keeps its step within its bound."""
        problem, rates = self._problem, self._rates
        if not rates.factors:
            return 1.0
        rows = batch.mapping.gather_sum(rates.factors)
        return min(1.0, reach(problem, rates, rows, batch.weights) / factor)

    def _flatness(self, scores: Array, targets: Array, shares: Array | None) -> float:
        """The curvature that steps were estimated for, over that of a batch's H (B, d_c)."""
        return self._problem.loss.flatness(scores, targets, shares) if self._estimated else 1.0

    def _batch_flatness(
        self, mapping: TableMapping, blocks: tuple[Array, ...], batch: Batch
    ) -> float:
        if not self._estimated:
            return 1.0
        scores = self._head.scores(mapping.gather_sum(blocks))
        return self._flatness(scores, batch.targets, batch.shares)

    def _gradient(
        self, blocks: tuple[Array, ...], slopes: BatchSlopes, weight: float
    ) -> tuple[Array, ...]:
        """Return the gradient of the head's parameters over a batch, with slopes times `weight`."""
        sums = [weight * slot_sums for slot_sums in slopes.sums]
        total, l2 = weight * slopes.total, self._problem.l2
        return self._head.gradient_by_slots(blocks, sums, total, slopes.rows, l2)

    def _noised_slope(self, slopes: Array) -> Array:
        """Return the noised sum of the clipped slopes (B, d_c) of exact scores: (d_c,)."""
        privacy = self._problem.privacy
        if privacy is None or self._head.weights is not None:
            raise InternalError("a head that learns from exact predictions")
        norms = np.linalg.norm(slopes, axis=1)
        factors = privacy.intercept_clip / np.maximum(norms, privacy.intercept_clip)
        return add_gaussian(factors @ slopes, privacy.intercept_noise)

    def _check(self, largest: float, highest: float) -> None:
        check_scores(self._problem, largest, highest, "the steps", HINT, self._head.stretch)


@dataclass(frozen=True, eq=False)
class BatchSlopes:
    """Slopes g of a batch's scores, in sums."""

    rows: int
    """B, joined rows of the batch."""
    sums: tuple[Array, ...]
    """A_iᵀ g of every slot: (d_c, n_i)."""
    total: Array
    """Σ_j g_j (d_c,); noised if it is a release."""
    largest: float
    """Largest |H|; NaN if a score is NaN."""
    highest: float
    """Largest H."""

    def pulled_back(self, head: Head, weight: float) -> list[Array]:
        """Return the sums of ∂ℓ/∂E, times `weight`: (P, n_i) of every slot."""
        return [weight * head.pulled_back(slot_sums.T).T for slot_sums in self.sums]


COORDINATOR = Sgd


FAINT = 0.25
"""Maximum noise of slopes, in units of their own spread, for slopes used as they are."""
USUAL = 0.1
"""Expected square of a mean of predictions, in units of the clip's square."""
BOUND = 0.5
"""Noise that slopes may have, in these units."""


class OwnScores:
    """Slopes of steps of all rows, of linear blocks whose clients add their own scores.

    A block's own noised prediction need not stand in its own residual: the client knows its scores
    without noise. So block i is sent the slopes of the expansion (see `Surrogate`) at
    b + Σ_{k≠i} h_k, and adds c h_i itself: g_i = ∂ℓ(b₀) + c (b_i + Σ_{k≠i} ĥ_k), b_i = −h̄_i. The
    row's own noise, most of all noise, is gone, and parameters end where the block's least squares
    are, however many steps there are.

    ĥ_k are the other blocks' noised predictions, centred and shrunk by what their noise is known to
    be: where it has drowned them they count as 0. h̄_i is the mean of the block's noised
    predictions, over epochs as `Surrogate.intercept` has it. For numbers the expansion is exact.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        loss, total = problem.loss, problem.mapping.total
        self._constant = np.array(loss.initial_intercept(problem.targets, problem.shares))
        scores = np.tile(self._constant, (total, 1))
        self.feedback = float(loss.mean_curvature(scores[:1]))
        self._start = problem.weighted(loss.gradient(scores, problem.targets))
        self._means: list[list[Array]] = []
        """Mean of each block's predictions in each epoch."""
        self._blocks = tuple(np.zeros((size, problem.outputs)) for size in problem.mapping.sizes)

    def sums(self) -> list[Array]:
        """Return Y of each slot's rows, without the contribution of its own scores: (d_c, n_i)
        each.
        """
        problem, mapping = self._problem, self._problem.mapping
        known = mapping.gather_sum(self._blocks)
        sums = []
        for place, block in enumerate(self._blocks):
            others = known - mapping.slots[place].part(block, slice(None)) - self._mean(place)
            slopes = self._start + self.feedback * problem.weighted(others)
            sums.append(mapping.scatter(place, slopes).T)
        return sums

    def take(self, blocks: tuple[Array, ...]) -> Array:
        """Take the noised predictions of all rows (n_i, d_c) after a step; return the intercept
        (d_c,)."""
        means, kept = [], []
        for place, block in enumerate(blocks):
            counts, noise = self._problem.counted[place], self._noise(place)
            whole = max(float(counts.sum()), 1e-300)
            mean = counts @ block / whole
            variance = counts @ np.square(block - mean) / whole
            rows = whole**2 / max(float(counts @ counts), 1e-300)
            taken = noise**2 * (1.0 + np.sqrt(2.0 / rows))
            share = np.clip(1.0 - taken / np.maximum(variance, 1e-300), 0.0, 1.0)
            kept.append(share * (block - mean))
            means.append(mean)
        self._means.append(means)
        self._blocks = tuple(kept)
        intercept: Array = self._constant - sum(self._mean(place) for place in range(len(blocks)))
        return intercept

    def _mean(self, place: int) -> Array:
        """h̄ of a block (d_c,), shrunk by its noise."""
        recent = [means[place] for means in self._means[len(self._means) // 2 :]]
        if not recent:
            return np.zeros(self._problem.outputs)
        counts, clip = self._problem.counted[place], self._rounds(place).prediction_clip
        shares = counts / max(float(counts.sum()), 1e-300)
        noise = self._noise(place) ** 2 * float(shares @ shares) / len(recent)
        mean: Array = np.mean(recent, axis=0) * (USUAL * clip**2 / (USUAL * clip**2 + noise))
        return mean

    def _noise(self, place: int) -> float:
        return self._rounds(place).prediction_noise

    def _rounds(self, place: int) -> RoundNoise:
        privacy = self._problem.privacy
        if privacy is None:
            raise InternalError("noised scores without privacy")
        return privacy.rounds[self._problem.slots[place].slot]


class Surrogate:
    """The loss by its second-order expansion at the best constant scores b₀.

    Noise of several times the scores makes any curved loss's slopes useless: σ(h + noise) is 0 or
    1, whatever h. The expansion is linear in h, so that noise stays additive and averages out over
    rows: g = ∂ℓ(b₀) + s c (h − h̄), c the mean curvature at b₀ and h̄ the mean over the rows, which
    the intercept b₀ − h̄ takes up. Slopes then add up to 0, and a column that is not centred acts
    as if it were.

    s ≤ 1 bounds the noise of a slope to BOUND of the slopes' own spread: rows are clipped to about
    that, and a sum of clipped rows keeps of the labels what noise leaves of each row's direction.
    With s below 1 the model is larger than the expansion's minimum, by 1/s in the limit of many
    steps; without any feedback, s = 0, its direction is that of the labels' covariance with the
    columns. All of it is post-processing of noised predictions.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._constant = np.array(
            problem.loss.initial_intercept(problem.targets, problem.shares), np.float64
        )
        scores = np.tile(self._constant, (problem.mapping.total, 1))
        curvature = problem.loss.mean_curvature(scores[:1])
        spread = problem.norm(problem.loss.gradient(scores, problem.targets))
        spread = spread / np.sqrt(problem.mapping.total) or 1.0
        noise = curvature * problem.noise / spread
        self.applies = noise > FAINT
        self._feedback = curvature * min(1.0, BOUND / noise) if self.applies else curvature
        self._means: list[Array] = []
        """h̄ after each epoch."""

    def intercept(self, embedding: Array) -> Array:
        """b₀ − h̄ after an epoch, whose rows predict (N, d_c): (d_c,)

        The mean of a table with few rows is noisy itself. h̄ is that of the last half of the epochs,
        which the parameters do not leave far behind, shrunk as a number of about a third of the
        clip is to be expected from a measurement with that noise.
        """
        problem = self._problem
        self._means.append(_mean(embedding, problem.shares))
        recent = self._means[len(self._means) // 2 :]
        noise = self._variance() / len(recent)
        rounds = problem.privacy.rounds if problem.privacy is not None else {}
        usual = USUAL * sum(noise_of_slot.prediction_clip**2 for noise_of_slot in rounds.values())
        mean: Array = np.mean(recent, axis=0)
        return self._constant - mean * (usual / (usual + noise))

    def _variance(self) -> float:
        """Return the variance of the noise in each number of h̄."""
        problem = self._problem
        if problem.privacy is None:
            return 0.0
        shares = np.ones(problem.mapping.total) if problem.shares is None else problem.shares
        variance = 0.0
        for place, members in enumerate(problem.slots):
            parts = problem.mapping.scatter(place, shares[:, None])[:, 0] / problem.mapping.total
            noise = problem.privacy.rounds[members.slot].prediction_noise
            variance += noise**2 * float(parts @ parts)
        return variance

    def slopes(self, embedding: Array, targets: Array, shares: Array | None) -> Array:
        """Return slopes of rows that predict `embedding` (B, d_c), with weights `shares` (B,) of
        mean 1.
        """
        problem = self._problem
        scores = np.broadcast_to(self._constant, embedding.shape)
        moved = self._feedback * (embedding - _mean(embedding, shares))
        gradient: Array = problem.loss.gradient(scores, targets) + moved
        return gradient if shares is None else gradient * shares[:, None]


def _mean(values: Array, shares: Array | None) -> Array:
    mean: Array = np.average(values, axis=0, weights=shares)
    return mean


PROBES = 8
"""Power rounds for the step size, where `learning_rate` is not given."""
MARGIN = 1.02
NOISED_STEPS = 20.0
"""Total reach of steps where noise drowns predictions, in units of 1/L. More steps would only
enlarge the parameters.
"""


@dataclass(frozen=True)
class Rates:
    """Step lengths before the schedule."""

    blocks: float
    head: float
    """Rate of the intercept, and of a linear head."""
    factors: tuple[Array, ...] = ()
    """For each slot, (n_i, r): factors of its rows from the power rounds, where steps of batches
    could diverge; else empty.
    """


def usual_rates(problem: Problem) -> Rates | None:
    """`learning_rate`, or Adam's; None for what is to be estimated, or where features are
    protected public.

    A step of Adam is as long whatever the gradient. In the unit of the scores it is a hundredth of
    them: 0.01 itself, where targets are of thousandths, would make any model worse than none.
    """
    options = problem.options.of(SgdOptions)
    if options.estimated:
        return None
    rate = options.learning_rate
    if rate is None:
        rate = LEARNING_RATE * problem.loss.unit(problem.targets)
    return Rates(rate, rate)


def public_rates(problem: Problem, steps: int, *, held: bool = False) -> Rates:
    """Without a look at the rows, for linear blocks whose features are protected.

    Power rounds would be exact functions of the features. The trace of X̃ᵀX̃/N bounds λ_max, and is
    at most 1 for every numeric column, standardised or between −1 and 1, and for every category
    feature: a row has one category. Columns that are not centred are not orthogonal to the
    intercept, which is one more column of ones then. Clipping a row's gradient does not add
    curvature: along the row's own direction it cuts a slope that rises with the score, as Huber's
    loss does. A step 1/L with L = curvature · trace + l2 descends, and does so even where the trace
    is twice as large, as columns of missing indicators and noised scales may make it.

    With momentum as in `estimated_rates`.

    Where noise of more than 1 lies on the scores of a classifier, or of more than the targets'
    deviation on those of a regression, slopes hardly tell any more whether scores are large enough,
    and the parameters would grow with every one of the run's `steps`. Then all of them together go
    as far as `NOISED_STEPS` of 1/L; since noise grows with the root of the number of steps, their
    direction is as good for any number.

    held : the clients' own scores hold the parameters back, and the intercept makes no steps.
    """
    fresh, curvature = _fresh(problem), problem.loss.curvature
    factor = min(1.0, 2.0 * fresh)
    if not held and problem.noise > problem.loss.spread(problem.targets):
        reach = NOISED_STEPS * (fresh / factor)
        factor *= min(1.0, reach / steps)
    apart = problem.centred or held
    trace = max(problem.trace, 1.0) if apart else problem.trace + 1.0
    rate = factor / (curvature * trace + problem.l2)
    return Rates(rate, factor / curvature if apart else rate)


def estimated_rates(
    problem: Problem,
    conversation: Conversation,
    generator: np.random.Generator,
    counting: float | None,
) -> Rates:
    """Estimate rates from power rounds, for linear blocks. `counting`: rows of a batch that count,
    None for all.

    With L = curvature · λ_max(X̃ᵀX̃/N) + l2, and for batches of B rows curvature · tr(X̃ᵀX̃/N)/B more:

    plain      1/L.
    momentum   all rows min(1, 2(1 − μ))/L, up to which the heavy ball converges on any convex
               function (Ghadimi, Feyzmahdavian and Johansson, 2015); batches (1 − μ)/L, whose
               steps add up to those of 1/L.

    Batches have `factors` too, by which `reach` bounds the step of each. Of classes they need none:
    slopes are at most 1, and the curvature vanishes where a step has gone too far.

    The intercept is orthogonal to the centred columns: with all rows it has the same formula with
    the loss's curvature for L.
    """
    curvature = problem.loss.curvature
    powers = spectrum(conversation.probe, problem.passes, PROBES, generator, problem.shares)
    smoothness = curvature * MARGIN * powers.top + problem.l2
    if counting is not None:
        smoothness = max(smoothness + curvature * powers.trace / counting, curvature)
        rate = _fresh(problem) / smoothness
        runs_away = problem.loss.quadratic or not problem.loss.bounded
        return Rates(rate, rate, powers.factors if runs_away else ())
    factor = min(1.0, 2.0 * _fresh(problem))
    return Rates(factor / max(smoothness, 1e-12), factor / curvature)


def reach(problem: Problem, rates: Rates, rows: Array, shares: Array | None) -> float:
    """The longest step of a batch, by `rates.blocks`, at which its own loss falls.

    rows : (B, r) the batch's rows of Σ_i A_i F_i, F_i the `rates.factors`.
    shares : (B,) their weights, of mean 1 in the batch.

    A batch with a row that is far from the others has a curvature L_B of its own, however small it
    is over all rows, and a step of more than 2/L_B takes it away from its minimum. So no batch's
    step is to be longer than 1/L_B. The intercept is one more column, of ones.

    It is a lower bound of L_B where there are more columns than power rounds. Since steps fall with
    the epochs, in the end no batch counts for less than others.
    """
    whole = np.column_stack((rows * math.sqrt(problem.mapping.total), np.ones(len(rows))))
    weighted = whole if shares is None else whole * shares[:, None]
    curvature = float(np.linalg.eigvalsh(whole.T @ weighted / len(rows))[-1])
    longest = _fresh(problem) / (problem.loss.curvature * curvature + problem.l2)
    return longest / rates.blocks


def _fresh(problem: Problem) -> float:
    """Return 1 − μ, the share of a step that is new; 1 without momentum."""
    steps = problem.options.of(SgdOptions).steps
    return 1.0 - steps.momentum if steps.optimizer == "momentum" else 1.0


def step_factor(schedule: str, decay: float, epoch: int, epochs: int) -> float:
    """Return the factor of the step length in `epoch`, counted from 1, of `epochs`."""
    match schedule:
        case "constant":
            return 1.0
        case "inverse":
            return 1.0 / (1.0 + decay * (epoch - 1))
        case "exponential":
            return float(decay ** (epoch - 1))
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * (epoch - 1) / epochs))
    raise InternalError(f"there is no schedule {schedule!r}")
