"""Its rounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sqlfl.base.arrays import Array
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.convergence import conclusion
from sqlfl.coordinator.rounds.conversation import Conversation
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.coordinator.rounds.warm import beginning, cold
from sqlfl.messages import Residuals
from sqlfl.messages.checks import ReplyChannel
from steady.configuration import SteadyConfiguration
from steady.options import SteadyOptions


class Steady:
    head = None

    def __init__(self, problem: Problem, channel: ReplyChannel) -> None:
        self._problem = problem
        self._conversation = Conversation(problem, channel)
        self._rate = problem.options.of(SteadyOptions).learning_rate
        self._begin = cold(problem)
        self.intercept, self.scores = self._begin.intercept, self._begin.scores
        self.first = 0.0

    def start(self) -> None:
        self._conversation.start(partial(SteadyConfiguration, rate=self._rate))
        self._begin = beginning(self._problem, self._conversation)
        self.intercept, self.scores = self._begin.intercept, self._begin.scores

    def steps(self) -> Iterator[Step]:
        problem, epochs = self._problem, self._problem.options.epochs
        self.first = problem.passes.value(self.scores) + self._begin.penalty
        for epoch in range(1, epochs + 1):
            penalty = self._epoch()
            loss, ending = problem.passes.value(self.scores), None
            if epoch == epochs:
                talk, intercept = self._conversation, self.intercept
                ending = conclusion(problem, talk, False, intercept, self.first)
            yield Step(epoch, loss + penalty, loss, ending=ending)

    def _epoch(self) -> float:
        """Returns the penalty."""
        talk, run = self._conversation, self._problem.run
        look = self._problem.passes.look(self.scores)
        replies = talk.step(talk.whole, look.slots, lambda to, own: Residuals(run, to[1], own))
        slope = look.total / self._problem.passes.total
        self.intercept: Array = self.intercept - self._rate * slope
        self.scores = Scores(by_output(talk.whole.concatenate(replies)), self.intercept)
        return float(talk.products(replies).sum())


COORDINATOR = Steady
