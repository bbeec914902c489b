"""PBM-VFL (Tran et al., 2025, algorithm 2) over a join: gradient descent on sums that are secret.

Two exchanges a batch, and one more where slots have several clients: the embeddings of the batch's
joined rows are summed, then every tower steps by the residuals. Each joined row is summed once an
epoch, those for validation after its last step: what the epoch tells of loss and metrics is of the
sums that there were, each by the towers of its step and the head of the epoch's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.contract import stopping
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.scatter_gather import batch_of
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.convergence import check_objective, check_scores
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.problem import Headed, Problem, Step
from sqlfl.coordinator.rounds.warm import cold
from sqlfl.coordinator.secure_channel import SecretSums
from sqlfl.messages import Message
from sqlfl.messages.checks import ReplyChannel
from sqlfl.methods.pbm.configuration import PbmConfiguration
from sqlfl.methods.pbm.messages import PbmResiduals, SendEmbeddings
from sqlfl.methods.pbm.numbers import LEVELS, restored
from sqlfl.methods.pbm.options import PbmOptions
from sqlfl.models.head import Head
from sqlfl.models.optimizers import optimizer_of
from sqlfl.privacy.poisson_binomial.sampling import estimate

HINT = "give a smaller learning_rate"


class Pbm(Headed):
    """Options: epochs, seed, dropout, and `PbmOptions`; the step length is `learning_rate`.

    The head, W₀ and b, takes the same optimizer and the same steps as the towers; these get ∂ℓ/∂E
    of the batch, with W₀ as it was when E was estimated. Penalties of towers are not told:
    objectives are without them. Weights: as in Sgd. Raises ModelError where the steps diverge.
    """

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        self._options = problem.options.of(PbmOptions)
        noise = None if problem.privacy is None else next(iter(problem.privacy.rounds.values()))
        self._bins, self._theta = (0, 0.0) if noise is None else (noise.bins, noise.theta)
        self._sums = SecretSums(
            channel, problem.run, problem.mapping, problem.slots, self._bins or LEVELS
        )
        rows = problem.training
        self._rows = np.arange(problem.mapping.total) if rows is None else rows
        self._others = np.setdiff1d(np.arange(problem.mapping.total), self._rows)
        """Joined rows of weight 0, such as validation rows."""
        self._batch = self._options.batch_size.of(len(self._rows))
        self._generator = np.random.default_rng(problem.seed)
        head = cold(problem).head
        # the towers predict as in that model, which was trained with this constant
        warm = problem.constant if problem.warm else None
        head = head if warm is None else Head(np.array(warm, np.float64), head.weights)
        steps = self._options.steps
        super().__init__(head, partial(optimizer_of, steps.optimizer, steps.momentum))
        self._embedding = np.zeros((problem.mapping.total, problem.embedding), np.float32)
        """The latest estimate of E (N, P)."""
        self.first = 0.0
        self._begun = False

    @property
    def scores(self) -> Scores:
        blocks = by_output((self._embedding,), self._head.weights)
        return Scores(blocks, self._head.intercept.copy())

    def start(self) -> None:
        """Start, and the keys of the masks."""
        slots = len(self._problem.slots)
        self._conversation.start(partial(PbmConfiguration, steps=self._options.steps, slots=slots))
        self._sums.agree()

    def steps(self) -> Iterator[Step]:
        problem, epochs = self._problem, self._problem.options.epochs
        self.first = problem.passes.value(self.scores) + self._head.penalty(problem.l2)
        for epoch in range(1, epochs + 1):
            self._epoch()
            loss = problem.passes.value(self.scores)
            objective = loss + self._head.penalty(problem.l2)
            check_objective(problem, objective, self.first, "the steps", HINT, self._head.stretch)
            ended = epoch == epochs
            ending = stopping.untold(stopping.LIMIT, stopping.TOWERS) if ended else None
            yield Step(epoch, objective, loss, None, ending)

    def _epoch(self) -> None:
        order = self._rows[self._generator.permutation(len(self._rows))]
        batches = _parts(order, self._batch)
        for number, joined in enumerate(batches):
            embedding = self._summed(joined, training=True)
            self._check(embedding)
            self._note_first(joined, embedding)
            self._step(joined, embedding, last=number + 1 == len(batches))
        for joined in _parts(self._others, self._batch):
            self._summed(joined, training=False)

    def _note_first(self, joined: Array, embedding: Array) -> None:
        """Record the objective at the start from the first batch: towers do not start at 0."""
        if self._begun:
            return
        self._begun, problem = True, self._problem
        shares = None if problem.shares is None else problem.shares[joined]
        scores = self._head.scores(embedding)
        loss = problem.loss.value(scores, problem.targets[joined], shares)
        self.first = max(self.first, loss + self._head.penalty(problem.l2))

    def _summed(self, joined: Array, *, training: bool) -> Array:
        """E of the joined rows, estimated and kept: (b, P)."""
        problem, slots = self._problem, len(self._problem.slots)

        def request(to: Address, rows: Array, places: Array) -> Message:
            return SendEmbeddings(problem.run, to[1], len(joined), int(training), rows, places)

        sums = self._sums.of(joined, problem.embedding, request)
        if self._bins:
            embeddings = estimate(sums, slots, 1.0, self._bins, self._theta)
        else:
            embeddings = restored(sums, slots)
        self._embedding[joined] = embeddings
        return embeddings

    def _step(self, joined: Array, embedding: Array, *, last: bool) -> None:
        problem, rate = self._problem, self._options.learning_rate
        slopes = self._slopes(embedding, joined)
        rows = batch_of(self._conversation.whole, joined)
        sums = rows.scatter(self._head.pulled_back(slopes))
        gradient = self._head.gradient(embedding, slopes, problem.l2)
        self._step_head(gradient, rate)
        self._conversation.advance(
            rows,
            sums,
            lambda to, residuals: PbmResiduals(
                problem.run, to[1], residuals, rate, len(joined), int(last)
            ),
        )

    def _slopes(self, embedding: Array, joined: Array) -> Array:
        """w_j ∂ℓ/∂H of a batch's E (B, P), with weights of mean 1 in it: (B, d_c)."""
        problem = self._problem
        shares = problem.batch_shares(joined)
        return problem.loss.gradient(self._head.scores(embedding), problem.targets[joined], shares)

    def _check(self, embedding: Array) -> None:
        scores = self._head.scores(embedding)
        largest, highest = float(np.abs(scores).max()), float(scores.max())
        check_scores(self._problem, largest, highest, "the steps", HINT, self._head.stretch)


def _parts(rows: Array, size: int) -> list[Array]:
    """Split rows into parts of this size, in their order; no parts for no rows."""
    return np.split(rows, range(size, len(rows), size)) if len(rows) else []


COORDINATOR = Pbm
