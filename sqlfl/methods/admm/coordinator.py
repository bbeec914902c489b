"""The coordinator's part of sharing ADMM, of linear blocks and of towers.

Towers have a linear head or none (eq. 9-11, 16-18, 22-24). With E = Σ A_i h_i and
L_j(E) = ℓ(E_j W₀ + b; y_j), or ℓ(E_j + b; y_j) without a head, an epoch is

  z_j = argmin L_j(z) + ρ/2 ‖z − E_j − λ_j/ρ‖²,   λ_j += ρ (E_j − z_j), which makes it ∂L_j(z_j);
  f_i = argmin 1/N Σ_r [V_r·(f_r − h_r) + ρ r cnt_r/2 ‖f_r − h_r‖²] + l2/2 ‖W‖² at the clients,
        by local steps from h, where V_r = Σ_{j∈G(r)} (λ_j + ρ (E_j − z_j));
  W₀, b: a smaller objective at the new E.

The blocks move at once, and no client finds its minimum exactly. What keeps this from diverging:
where λ = ∂L(E), z is E and V the gradient; and with ρ r ≥ κ c ‖W₀‖², c the loss's curvature bound
and κ ≤ M, the clients' objectives add up to a bound of the whole one that touches it at h, so that
what lowers them lowers it. That is the epoch that follows one in which the objective has grown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.contract import stopping
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.convergence import check_objective, check_scores, conclusion, relative
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.lanczos import largest_eigenvalue
from sqlfl.coordinator.rounds.problem import Algorithm, Headed, Problem, Step
from sqlfl.coordinator.rounds.warm import beginning, cold, levelled
from sqlfl.messages.checks import ReplyChannel
from sqlfl.methods.admm.configuration import AdmmConfiguration, LocalSteps
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.admm.options import AdmmOptions
from sqlfl.models.head import fitted, proximal
from sqlfl.options.types import Batch, BatchRows

# Sharing ADMM over a join, in increments (eq. 9-11, 16-18), with consensus over unions (22-24).
#
# Per epoch: z_j = argmin ℓ(z; y_j) + ρ/2 ‖z − H_j − λ_j/ρ‖², λ_j += ρ (H_j − z_j), and every block
# θ_i −= K_i⁻¹ (X̃_iᵀ A_iᵀ (λ + ρ (H − z)) / N + l2 θ_i) with K_i = ρ r/N X̃_iᵀCX̃_i + l2 I, which
# for r = 1 is the paper's θ-update. The blocks move at once, which the proximal term (r − 1) makes
# safe: with κ = λ_max(D⁻¹XᵀX), D the block diagonal, r ≥ κ is a proximal ADMM, r > ¾κ converges
# still (He, Ma and Yuan's indefinite proximal term), and κ never exceeds the number of blocks, r =
# M being Boyd's averaged form.

PROBES = 5
"""Power rounds for κ, where there are several blocks."""
DAMPING = 0.76
MIN_RHO_SHARE = 0.1
"""Minimum default ρ, as a share of the loss's curvature bound."""
ADAPTING = 4
"""Epochs after which ρ may change."""


class Admm:
    """Options: epochs, rho, union ('exact'), inner_rounds, tolerance, seed.

    ρ defaults to the loss's curvature at the best constant score: 1 for squared loss, p(1 − p) for
    logistic, which is the bound ¼ for balanced classes, the mean target for counts; where classes
    are many or unbalanced, the bound would take several times the epochs. It follows the scores
    over the first epochs.
    union = 'exact' sums second moments once and partial gradients each epoch, 'consensus' runs
    `inner_rounds` rounds per epoch at shared slots. Where the objective and the steps both grow
    from one epoch to the next, r rises to M (in consensus, whose θ-updates are inexact, to 4M).
    It ends where the objective changed by at most `tolerance` of itself, and curvature/2 · mean
    ‖H − z‖² is as small; whether that is convergence the gradient says (`conclusion`). A
    row of weight w has the penalty ρ w, so that its z-step is that of any row. A warm start begins
    with λ = ∂ℓ(H), which it has at the optimum.
    """

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        options = problem.options.of(AdmmOptions)
        self._consensus, self._inner_rounds = options.consensus, options.inner_rounds
        blocks = float(len(problem.slots))
        self._limit = 4.0 * blocks if self._consensus else blocks
        self._private = problem.privacy is not None
        self._proximal_factor = 1.0
        """r, by which the clients' penalty exceeds ρ."""
        self._cautious = 1.0
        """r after a late step, whose scores other blocks have changed since."""
        self._slowed = 1.0
        """r of the intercept."""
        if self._private:
            self._proximal_factor = blocks if problem.centred else blocks + 1.0
            self._slowed = 1.0 if problem.centred else self._proximal_factor
        self._begin = cold(problem)
        self._intercept: Array = self._begin.intercept
        self._scores = self._begin.scores
        self.first = 0.0
        self._rho = options.rho or 0.0
        self._adapting = 0 if self._rho > 0.0 else ADAPTING
        if self._adapting:
            self._rho = self._usual_rho()

    @property
    def intercept(self) -> Array:
        return self._intercept.copy()

    @property
    def head(self) -> Array | None:
        return None

    @property
    def scores(self) -> Scores:
        return self._scores

    def start(self) -> None:
        """Start: predictions of a warm start, second moments of shared slots (union = 'exact'), and
        power rounds for κ.

        In consensus each client probes with its own second moments. The clients of a slot then
        count as blocks, and their κ bounds the slots' κ from above.
        """
        problem, conversation = self._problem, self._conversation
        configuration = partial(
            AdmmConfiguration,
            rho=self._rho,
            consensus=self._consensus,
            inner_rounds=self._inner_rounds,
        )
        conversation.start(configuration)
        if problem.warm:
            self._begin = beginning(problem, conversation)
            self._intercept, self._scores = self._begin.intercept, self._begin.scores
            problem.passes.set_dual(self._scores)
            if self._adapting:
                self._rho = self._usual_rho()
        if not self._consensus:
            conversation.share_grams()
        blocks = len(problem.slots)
        if blocks > 1 and not self._private:
            generator = np.random.default_rng(problem.seed)
            kappa, _ = largest_eigenvalue(
                conversation.probe, problem.passes, PROBES, generator, problem.shares
            )
            self._cautious = min(kappa, float(blocks))
            self._proximal_factor = max(1.0, DAMPING * self._cautious)

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        tolerance = problem.options.tolerance
        passes = problem.passes
        objective = first = passes.value(self._scores) + self._begin.penalty
        self.first = first
        epochs = problem.options.epochs
        moved = np.inf
        for epoch in range(1, epochs + 1):
            scores, before, moved_before = self._scores, objective, moved
            residual, penalty = self._epoch()
            loss = passes.value(self._scores)
            objective = loss + penalty
            moved = passes.square(self._scores.less(scores))
            change = max(abs(before - objective), 0.5 * problem.loss.curvature * residual)
            change = relative(change, objective, first)
            still = change <= tolerance and (tolerance > 0.0 or not self._private)
            late, stale = self._conversation.missed(), self._conversation.late > 0
            still = still and not stale
            ending = None
            if still or epoch == epochs:
                talk, intercept = self._conversation, self._intercept
                ending = conclusion(problem, talk, still, intercept, first)
            gradient = None if ending is None else ending.gradient
            yield Step(epoch, objective, loss, gradient, ending, late=late, stale=stale)
            if ending is not None:
                return
            if epoch <= self._adapting:
                usual = self._usual_rho()
                if max(usual / self._rho, self._rho / usual) > 1.2:
                    self._rho = usual
            if self._private:
                continue
            if late:
                self._proximal_factor = max(self._proximal_factor, self._cautious)
            grew = relative(objective - before, objective, first) > 1e-6
            if grew and moved > moved_before:
                larger = max(2.0 * self._proximal_factor, float(len(problem.slots)))
                self._proximal_factor = min(self._limit, larger)

    def _usual_rho(self) -> float:
        loss = self._problem.loss
        mean = self._problem.passes.mean_curvature(self._scores)
        # scores that overshoot at first may have any curvature, where the loss has no bound
        return max(min(mean, loss.curvature), MIN_RHO_SHARE * loss.curvature)

    def _epoch(self) -> tuple[float, float]:
        """Returns mean ‖H − z‖² and the penalty."""
        rho = self._rho
        renewed = self._problem.passes.proximal(self._scores, rho)
        whole, total = self._conversation.whole, self._problem.mapping.total
        weight, run = rho * self._proximal_factor, self._problem.run
        replies = self._conversation.step(
            whole, renewed.slots, lambda to, residuals: AdmmResiduals(run, to[1], residuals, weight)
        )
        self._intercept = self._intercept - renewed.total / (total * rho * self._slowed)
        self._scores = Scores(by_output(whole.concatenate(replies)), self._intercept)
        penalty = float(self._conversation.products(replies).sum())
        return renewed.value / (rho * rho), penalty


def _sharing(problem: Problem, channel: ReplyChannel) -> Algorithm:
    return Admm(problem, channel) if problem.tower is None else TowerAdmm(problem, channel)


COORDINATOR = _sharing


GROWTH = 1e-3
"""Relative growth of the objective that one epoch may bring."""
MAX_CAUTION = 64.0
HINT = "give a smaller learning_rate, or leave it out"


class TowerAdmm(Headed):
    """Options: epochs, rho, inner_rounds, local_epochs, batch_size and learning_rate of the local
    steps, tolerance, seed.

    ρ defaults to the loss's mean curvature at the scores, times ‖W₀‖²; a smaller one holds for z
    only, since the clients' updates would go beyond all bounds. r begins at 0.76 M and follows κ of
    the last step, ‖Σ A_i Δh_i‖² / Σ ‖A_i Δh_i‖², which the coordinator can tell from what it
    receives: 1 where tables are not correlated, M where all rise alike. It falls to a smaller κ by
    half the way. After an epoch that raised the objective by more than 0.1 % λ begins anew, a
    smaller ρ than the default is given up, and ρ r is M times the curvature bound; after every
    further one twice as much.

    Slots of several clients take `inner_rounds` rounds of consensus. It ends early where the
    objective changed by at most `tolerance` of itself, and curvature/2 · mean ‖E − z‖² ‖W₀‖² is as
    small. Raises ModelError where local steps are so long that training diverges all the same.

    With Problem.privacy the noise of the predictions would pass for growth and for correlation:
    r is M, ρ r at least M times the curvature bound, as after growth, and neither follows what is
    seen. Local steps are of all own rows and in one pass by default, for each pass is paid for.
    Without a tolerance all epochs are made.
    """

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        self._begin = cold(problem)
        super().__init__(self._begin.head)
        self._embedding = np.zeros((problem.mapping.total, problem.embedding))
        """E of every joined row: (N, P)."""
        self._scores = self._begin.scores
        self.first = 0.0
        self._dual = np.zeros_like(self._embedding)
        self._options = problem.options.of(AdmmOptions)
        self._rho = self._options.rho or 0.0
        """0 where it follows the curvature."""
        self._blocks = float(len(problem.slots))
        self._private = problem.privacy is not None
        self._proximal_factor = self._blocks if self._private else max(1.0, DAMPING * self._blocks)
        self._caution = 1.0 if self._private else 0.0
        """0, or after growth the multiple of the safe ρ r."""
        self._counts = _counts(problem)
        self._slots: list[Array] = []
        """h of every slot as of the last exchange; none before the first."""

    @property
    def scores(self) -> Scores:
        return self._scores

    def start(self) -> None:
        """Start, and the predictions of the towers as they are."""
        problem, conversation, local = self._problem, self._conversation, self._options
        configuration = partial(
            AdmmConfiguration,
            rho=self._rho,
            consensus=True,
            inner_rounds=local.inner_rounds,
            local=LocalSteps(
                epochs=local.local_epochs,
                batch=_local_batch(local.batch_size, problem),
                rate=local.learning_rate,
            ),
        )
        conversation.start(configuration)
        self._begin = beginning(problem, conversation)
        self._head, self._scores = self._begin.head, self._begin.scores
        self._embedding = conversation.whole.mapping.gather_sum(self._begin.blocks)
        self._dual = self._slopes()

    def steps(self) -> Iterator[Step]:
        problem = self._problem
        tolerance = problem.options.tolerance
        objective = first = problem.passes.value(self._scores) + self._begin.penalty
        self.first = first
        epochs = problem.options.epochs
        for epoch in range(1, epochs + 1):
            before = objective
            residual, penalty = self._epoch()
            loss = problem.passes.value(self._scores)
            objective = loss + penalty
            check_objective(problem, objective, first, "the towers", HINT, self._head.stretch)
            change = max(abs(before - objective), 0.5 * problem.loss.curvature * residual)
            still = relative(change, objective, first) <= tolerance
            still = still and (tolerance > 0.0 or not self._private)
            late, stale = self._conversation.missed(), self._conversation.late > 0
            still = still and not stale
            ending = None
            if still or epoch == epochs:
                short = stopping.STILL if still else stopping.LIMIT
                ending = stopping.untold(short, stopping.TOWERS)
            yield Step(epoch, objective, loss, ending=ending, late=late, stale=stale)
            if ending is not None:
                return
            if not self._private:
                self._adapt(relative(objective - before, objective, first) > GROWTH)

    def _adapt(self, grew: bool) -> None:
        if grew:
            self._caution = min(max(2.0 * self._caution, 1.0), MAX_CAUTION)
            self._dual = self._slopes()
            if self._rho < self._usual_rho():
                self._rho = 0.0
        elif self._caution > 0.0:
            self._caution = 0.5 * self._caution if self._caution > 1.0 else 0.0

    def _epoch(self) -> tuple[float, float]:
        """Returns mean ‖E − z‖² ‖W₀‖² and the penalty."""
        problem, whole = self._problem, self._conversation.whole
        stretch = self._head.stretch
        usual = self._usual_rho()
        rho = self._rho or usual
        weight = max(rho, usual) * self._proximal_factor
        if self._caution > 0.0:
            safe = self._caution * self._blocks * problem.loss.curvature * stretch
            weight = max(weight, safe)
        before = self._embedding
        shifted = before + self._dual / rho
        points = proximal(self._head, problem.loss, shifted, problem.targets, rho)
        gap = rho * (before - points)
        self._dual = self._dual + gap
        values = problem.weighted(self._dual + gap)
        run = problem.run
        replies = self._conversation.step(
            whole,
            whole.scatter(values),
            lambda to, residuals: AdmmResiduals(run, to[1], residuals, weight),
        )
        blocks = whole.concatenate(replies)
        self._embedding = whole.mapping.gather_sum(blocks)
        if not self._private:
            self._proximal_factor = self._relaxed(blocks, self._embedding - before)
        self._fit(blocks)
        penalty = float(self._conversation.products(replies).sum())
        square = float(np.vdot(gap, problem.weighted(gap))) * stretch
        return square / (rho * rho * len(gap)), penalty + self._head.penalty(problem.l2)

    def _usual_rho(self) -> float:
        loss = self._problem.loss
        bend = self._problem.passes.mean_curvature(self._scores)
        curvature = max(bend, MIN_RHO_SHARE * loss.curvature)
        return max(curvature * self._head.stretch, 1e-6)

    def _slopes(self) -> Array:
        """∂L_j/∂E_j of every joined row, not weighted: (N, P)."""
        problem = self._problem
        return self._head.pulled_back(problem.passes.slopes(self._scores).T)

    def _relaxed(self, blocks: Sequence[Array], moved: Array) -> float:
        """The next r from h of every slot (n_i, P) and ΔE (N, P). What all rows of a table move by
        alike is b's matter."""
        before, problem = self._slots, self._problem
        self._slots = [np.asarray(h, np.float64) for h in blocks]
        if not before:
            return self._proximal_factor
        apart = sum(
            _spread(new - old, counts)
            for new, old, counts in zip(self._slots, before, self._counts, strict=True)
        )
        if not apart > 0.0:
            return self._proximal_factor
        shares = np.ones(len(moved)) if problem.shares is None else problem.shares
        kappa = min(_spread(moved, shares) / apart, self._blocks)
        return max(1.0, kappa, 0.5 * (kappa + self._proximal_factor))

    def _fit(self, blocks: Sequence[Array]) -> None:
        """Scores of the new E, by a head that suits it."""
        problem = self._problem
        if self._head.weights is not None:
            self._head = fitted(
                self._head,
                problem.loss,
                self._embedding,
                problem.targets,
                problem.l2,
                problem.shares,
            )
        scores = Scores(by_output(blocks, self._head.weights), self._head.intercept)
        look = problem.passes.look(scores, sums=False)
        check_scores(problem, look.largest, look.highest, "the towers", HINT, self._head.stretch)
        best = levelled(problem, scores)
        self._head = self._head.shifted(best.moved)
        self._scores = best.scores


def _local_batch(batch: Batch, problem: Problem) -> int:
    """Return the own rows of a local step; a client has at most the largest table's rows."""
    return batch.number if isinstance(batch, BatchRows) else max(problem.mapping.sizes)


def _counts(problem: Problem) -> list[Array]:
    """Return the weight of each row of each slot: float64 (n_i,)."""
    mapping = problem.mapping
    if problem.shares is None:
        return [mapping.counts(slot).astype(np.float64) for slot in range(len(mapping))]
    shares = problem.shares[:, None]
    return [mapping.scatter(slot, shares)[:, 0] for slot in range(len(mapping))]


def _spread(values: Array, counts: Array) -> float:
    """Σ cnt ‖v − mean‖², of (n, P)."""
    mean = counts @ values / counts.sum()
    return float(counts @ np.einsum("np,np->n", values - mean, values - mean))
