"""Proof of convergence, and checks whether training diverges.

The proof is a bound from the gradient on how far the objective is above its minimum. The clients
send the squared norms of their blocks' gradients, at scores that were refreshed from the parameters
that they hold, and at the intercept that is best for these. With b minimised out the objective is
convex in θ, and

  l2-strongly so:                                   gap ≤ ‖g‖² / 2 l2;
  with μ P⁻¹ ≤ ∇², P⁻¹ the blocks' second moments:  gap ≤ gᵀP g / 2 μ   (near the minimum).

The first holds whatever the tables are. For the second μ is `RESOLVED`, times the loss's curvature
at the scores over its bound: the least eigenvalue that is reckoned with. Of two tables' squared
loss, it is 1 − ρ with ρ their largest canonical correlation; where what the clients sent shows that
ρ is closer to 1, μ is as small (`least_eigenvalue`). The model of a divergent run is not kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.contract import stopping
from sqlfl.contract.stopping import Ending
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.coordinator.rounds.search import ROUNDING
from sqlfl.coordinator.rounds.warm import Levelled, best_constant, levelled
from sqlfl.models.targets import MAX_SCORE

MAX_SCORE_RATIO = 1e12
"""Limit of scores as a multiple of the largest target, or of 1 if that is more."""
GROWTH = 1e6
"""Maximum ratio of the objective to the objective before the first step, or to 1 if that is more.
"""
WORSE = 2.0
"""By how much the objective of a model that is kept may exceed that of where training began, or of
the best constant; the loss's `slack` comes on top."""
NEARLY = 1e-3
"""Share by which it may exceed that unsaid."""


def check_scores(
    problem: Problem,
    largest: float,
    highest: float,
    what: str,
    hint: str,
    stretch: float = 1.0,
) -> None:
    """Raise ModelError if scores of rows that count are NaN or far beyond all targets.

    largest, highest: their largest absolute value and their largest value. what: the part that
    diverges, as in 'the steps'.

    Scores that the noise of private predictions explains raise nothing; `stretch` is the largest
    ‖∂H/∂E‖². Nothing is raised if the problem is `parameters_only`: clipped gradients bound the
    steps there.
    """
    if problem.parameters_only:
        return
    reach = max(problem.reach, problem.noise * float(np.sqrt(stretch)))
    most = min(MAX_SCORE_RATIO * reach, MAX_SCORE)
    for size, limit in ((largest, most), (highest, problem.loss.largest_score)):
        if not size < limit:
            raise ModelError(f"{what} diverge: scores exceed {limit:.3g}", hint=hint)


def check_objective(
    problem: Problem, objective: float, first: float, what: str, hint: str, stretch: float = 1.0
) -> None:
    """Raise ModelError if an epoch ends far above the start of training, or with NaN.

    Noise and `parameters_only` are treated as in `check_scores`.
    """
    if problem.parameters_only:
        return
    noise = 0.5 * problem.loss.curvature * problem.outputs * stretch * problem.noise**2
    if not objective < GROWTH * max(first, noise, 1.0):
        raise ModelError(
            f"{what} diverge: the objective was {first:.3g}, and is {objective:.3g}", hint=hint
        )


def check_kept(problem: Problem, objective: float, first: float, hint: str) -> str | None:
    """Raise ModelError where a model is worse than none: than the best constant, and than what
    training began with (`first`).

    Epochs in between may be as bad. Nothing is raised of protected features: what their noise does
    to a model is no divergence. Return a warning where the model is worse than none by less, and is
    no tower, whose first epochs may be.
    """
    if problem.privacy is not None:
        return None
    alone = problem.passes.value(Scores((), best_constant(problem)))
    if not objective <= WORSE * max(alone, first) + problem.loss.slack:
        raise ModelError(
            f"the steps diverge: the objective ended at {objective:.3g}, and the best constant has "
            f"{alone:.3g}",
            hint=hint,
        )
    if (
        problem.tower is None
        and objective > (1.0 + NEARLY) * max(alone, first) + problem.loss.slack
    ):
        return (
            f"the model is worse than none: the objective ended at {objective:.4g}, and the best "
            f"constant has {alone:.4g}. Take a larger batch_size, a smaller learning_rate, or "
            "algorithm = 'lbfgs'"
        )
    return None


def relative(change: float, objective: float, first: float) -> float:
    """Return `change` relative to the objective, or to 1e-12 of the first objective if the
    objective vanishes.
    """
    return float(change / scale_of(objective, first))


def scale_of(objective: float, first: float) -> float:
    """Return the scale for changes and gaps of the objective. `first` is the objective at the
    start.
    """
    return float(max(abs(objective), 1e-12 * abs(first), np.finfo(np.float64).tiny))


RESOLVED = 1e-8
"""Columns of different tables may be correlated up to 1 − 1e-8 where there is no l2."""
SAME = 1e-12
"""Sine of the angle of sums of different tables' columns, up to which they are the same: what
rounding leaves of it where they are."""
SEEN = 1e-6
"""Sine below which rounding of 4-byte predictions may be all that is seen."""
RANK = 1e-3
"""Relative singular value from which vectors are told apart."""
SAMPLED = 1 << 14
"""Joined rows, about, at which angles are looked at."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Loss, gradient and bound of the gap at the parameters that the clients hold."""

    scores: Scores
    """Refreshed from them."""
    loss: float
    objective: float
    gradient: float
    """‖g‖ over all blocks."""
    gap: float
    """Bound of (objective − minimum) / objective; infinite where nothing bounds it."""
    certain: float
    """The same by l2 alone, whatever the columns are."""
    separable: bool
    """There is no minimum."""

    def proves(self, tolerance: float) -> bool:
        """Return True if the run has converged: the gap is at most the tolerance, or `CERTAIN`."""
        return not self.separable and self.gap <= max(tolerance, stopping.CERTAIN)

    def ending(self, tolerance: float, short: str, why: str) -> Ending:
        """Return 'converged' where that is proved, and else the reason why the run ended."""
        if self.separable:
            return stopping.separable(self.gradient)
        if self.proves(tolerance):
            proved = self.certain <= max(tolerance, stopping.CERTAIN)
            return stopping.converged(
                self.gradient, self.certain if proved else self.gap, proved=proved
            )
        return stopping.unproven(short, why, self.gradient, self.gap)


def conclusion(
    problem: Problem, conversation: Conversation, still: bool, intercept: Array, first: float
) -> Ending:
    """Return the ending of gradient descent or ADMM, by one examination: at the last epoch, or,
    with `still`, where the objective changed by at most `tolerance`. Clients with protected rows
    are not asked."""
    short = stopping.STILL if still else stopping.LIMIT
    why = stopping.STILL_REASON if still else stopping.LIMIT_REASON
    if problem.privacy is not None:
        return stopping.untold(short, stopping.PRIVATE)
    if not problem.proved:
        return stopping.untold(short, stopping.NOT_ASKED)
    evidence = examine(problem, conversation, intercept, first)
    return evidence.ending(problem.options.tolerance, short, why)


def examine(
    problem: Problem,
    conversation: Conversation,
    intercept: Array,
    first: float,
    *,
    exact: bool = True,
    reference: float | None = None,
) -> Evidence:
    """Ask the clients for predictions, `exact` or in 4-byte numbers, and for the norms (two
    exchanges where slots are shared), and return the evidence.

    first: the objective before the first step. reference: as in `bound`; by default the upper bound
    of the loss's curvature.
    """
    replies = conversation.exact_predictions() if exact else conversation.predictions()
    penalty = float(conversation.products(replies).sum())
    held = conversation.whole.concatenate(replies)
    least = least_eigenvalue(problem.passes, [[values] for values in held], exact=exact)
    scores = Scores(by_output(held), np.array(intercept))
    best = levelled(problem, scores)
    squares = conversation.slopes(best.look.slots)
    curvature = problem.loss.curvature if reference is None else reference
    return weighed(problem, scores, best, penalty, squares, first, curvature, least)


def weighed(
    problem: Problem,
    scores: Scores,
    best: Levelled,
    penalty: float,
    squares: Sequence[Array],
    first: float,
    reference: float,
    least: float = RESOLVED,
) -> Evidence:
    """Return the evidence from the slots' squared norms (2,) or (1,), as `Slope` has them, at the
    scores `best`, which differ from `scores` by the intercept only."""
    loss = best.before
    objective = loss + penalty
    euclidean = sum(float(norms[0]) for norms in squares)
    known = all(len(norms) == 2 for norms in squares)
    preconditioned = sum(float(norms[1]) for norms in squares) if known else np.inf
    bend = best.look.bend
    gap = bound(problem, best.scores, euclidean, preconditioned, reference, least, bend)
    certain = _by_penalty(problem, euclidean)
    excess, scale = max(loss - best.look.value, 0.0), scale_of(objective, first)
    return Evidence(
        scores=scores,
        loss=loss,
        objective=objective,
        gradient=float(np.sqrt(euclidean)),
        gap=(gap + excess) / scale + ROUNDING,
        certain=(certain + excess) / scale + ROUNDING,
        separable=problem.l2 == 0.0 and problem.passes.separates(scores),
    )


def bound(
    problem: Problem,
    scores: Scores,
    euclidean: float,
    preconditioned: float,
    reference: float,
    least: float = RESOLVED,
    bend: float | None = None,
) -> float:
    """Return an upper bound of objective − minimum, from ‖g‖² and gᵀP g.

    reference: curvature of the loss in P. least: the result of `least_eigenvalue`. bend: the loss's
    mean curvature at the scores, if it is known.
    """
    if preconditioned == 0.0:
        return 0.0
    distance = _by_penalty(problem, euclidean)
    if np.isfinite(preconditioned):
        mean = problem.passes.mean_curvature(scores) if bend is None else bend
        if mean > 0.0 and least > 0.0:
            distance = min(distance, preconditioned * reference / (2.0 * least * mean))
    return float(distance)


def _by_penalty(problem: Problem, euclidean: float) -> float:
    """Return the bound by l2 alone."""
    return euclidean / (2.0 * problem.l2) if problem.l2 > 0.0 else np.inf


def least_eigenvalue(
    passes: PartitionedRows, held: Sequence[Sequence[Array]], *, exact: bool = True
) -> float:
    """Return the least eigenvalue to assume: RESOLVED, or 1 − ρ where sums of columns of different
    slots have a correlation ρ that is closer to 1; 0 where 4-byte numbers cannot resolve it.

    held: for each slot some X̃ v: (n_i, c), in 8-byte numbers if `exact`.
    """
    sampled = passes.sample([np.hstack(columns) for columns in held], SAMPLED)
    least, before = RESOLVED, np.zeros((len(sampled[0]), 0))
    for values in sampled:
        basis = _basis(values)
        apart = basis - before @ (before.T @ basis)
        sines = np.linalg.svd(apart - before @ (before.T @ apart), compute_uv=False)
        if not exact and float(sines.min(initial=1.0)) < SEEN:
            return 0.0
        near = sines[sines > SAME]
        least = min(least, 0.5 * float(near.min(initial=1.0)) ** 2)
        before = _basis(np.hstack([before, basis]), centre=False)
    return least


def _basis(values: Array, *, centre: bool = True) -> Array:
    """Return orthonormal columns (n, k) that span those of `values`, up to constants."""
    values = np.asarray(values, np.float64)
    if centre:
        values = values - values.mean(axis=0)
    norms = np.linalg.norm(values, axis=0)
    values = values[:, norms > 0.0] / norms[norms > 0.0]
    if not values.size:
        return np.zeros((len(values), 0))
    vectors, lengths, _ = np.linalg.svd(values, full_matrices=False)
    return vectors[:, lengths > RANK * lengths[0]]
