"""Sharing ADMM over a join, in increments (eq. 9-11, 16-18), with consensus over unions (22-24).

Per epoch: z_j = argmin ℓ(z; y_j) + ρ/2 ‖z − H_j − λ_j/ρ‖², λ_j += ρ (H_j − z_j), and every block
θ_i −= K_i⁻¹ (X̃_iᵀ A_iᵀ (λ + ρ (H − z)) / N + l2 θ_i) with K_i = ρ r/N X̃_iᵀCX̃_i + l2 I, which for
r = 1 is the paper's θ-update. The blocks move at once, which the proximal term (r − 1) makes safe:
with κ = λ_max(D⁻¹XᵀX), D the block diagonal, r ≥ κ is a proximal ADMM, r > ¾κ converges still (He,
Ma and Yuan's indefinite proximal term), and κ never exceeds the number of blocks, r = M being
Boyd's averaged form.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.divergence import relative
from sqlfl.coordinator.rounds.evidence import conclusion
from sqlfl.coordinator.rounds.lanczos import largest_eigenvalue
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.coordinator.rounds.scores import Scores, by_output
from sqlfl.coordinator.rounds.warm import beginning, cold
from sqlfl.messages.replies import ReplyChannel
from sqlfl.methods.admm.configuration import AdmmConfiguration
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.admm.options import AdmmOptions

PROBES = 5
"""Power rounds for κ, where there are several blocks."""
DAMPING = 0.76
SMALLEST = 0.1
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
    ‖H − z‖² is as small; whether that is convergence the gradient says (`evidence.conclusion`). A
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
        self._relaxation = 1.0
        """r"""
        self._cautious = 1.0
        """r after a late step, whose scores other blocks have changed since."""
        self._slowed = 1.0
        """r of the intercept."""
        if self._private:
            self._relaxation = blocks if problem.centred else blocks + 1.0
            self._slowed = 1.0 if problem.centred else self._relaxation
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
            self._relaxation = max(1.0, DAMPING * self._cautious)

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
                self._relaxation = max(self._relaxation, self._cautious)
            grew = relative(objective - before, objective, first) > 1e-6
            if grew and moved > moved_before:
                larger = max(2.0 * self._relaxation, float(len(problem.slots)))
                self._relaxation = min(self._limit, larger)

    def _usual_rho(self) -> float:
        loss = self._problem.loss
        mean = self._problem.passes.mean_curvature(self._scores)
        # scores that overshoot at first may have any curvature, where the loss has no bound
        return max(min(mean, loss.curvature), SMALLEST * loss.curvature)

    def _epoch(self) -> tuple[float, float]:
        """Returns mean ‖H − z‖² and the penalty."""
        rho = self._rho
        renewed = self._problem.passes.proximal(self._scores, rho)
        whole, total = self._conversation.whole, self._problem.mapping.total
        weight, run = rho * self._relaxation, self._problem.run
        replies = self._conversation.step(
            whole, renewed.slots, lambda to, residuals: AdmmResiduals(run, to[1], residuals, weight)
        )
        self._intercept = self._intercept - renewed.total / (total * rho * self._slowed)
        self._scores = Scores(by_output(whole.concatenate(replies)), self._intercept)
        penalty = float(self._conversation.products(replies).sum())
        return renewed.value / (rho * rho), penalty
