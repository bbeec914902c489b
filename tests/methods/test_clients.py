"""What holds for every method, however the rows lie."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.coordinator.rounds.problem import coordinator_of
from sqlfl.messages import Gram, PartialGradient, Predictions, Start
from tests.methods.harness import MemoryChannel, random_join, train

METHODS = [("lbfgs", {}), ("admm", {}), ("sgd", {}), ("sgd", {"batch_size": 400})]
CONSENSUS = [("admm", {"union": "consensus"})]


@pytest.mark.parametrize(("algorithm", "options"), METHODS)
@pytest.mark.parametrize("kind", ["linear_regression", "softmax_regression"])
def test_clients_without_active_rows(kind: str, algorithm: str, options: dict) -> None:
    join = random_join(kind, clients=(2, 2, 3))
    join.empty_first = True
    one = train(random_join(kind), algorithm, epochs=3, **options)
    found = train(join, algorithm, epochs=3, **options)
    np.testing.assert_allclose(found.theta, one.theta, atol=2e-6)


@pytest.mark.parametrize(("algorithm", "options"), METHODS + CONSENSUS)
def test_runs_are_repeatable(algorithm: str, options: dict) -> None:
    first = train(random_join(clients=(2, 1, 1)), algorithm, epochs=3, **options)
    again = train(random_join(clients=(2, 1, 1)), algorithm, epochs=3, **options)
    np.testing.assert_array_equal(first.theta, again.theta)
    assert first.steps == again.steps


@pytest.mark.parametrize(("algorithm", "options"), METHODS + CONSENSUS)
def test_scores_and_objective_belong_to_the_blocks_after_every_step(algorithm, options) -> None:
    join = random_join("logistic_regression", clients=(1, 2, 1))
    problem = join.problem(algorithm, epochs=4, **options)
    channel = MemoryChannel(join.engines)
    method = coordinator_of(algorithm)(problem, channel)
    method.start()
    for step in method.steps():
        blocks = [channel.operators[m.addresses[0]].theta for m in problem.slots]
        theta = np.concatenate(blocks)
        scores = join.design @ theta + method.intercept
        np.testing.assert_allclose(method.scores, scores, atol=1e-5)
        assert step.objective == pytest.approx(join.objective(method.intercept, theta), rel=1e-6)


@pytest.mark.parametrize(("algorithm", "options"), METHODS + CONSENSUS)
def test_only_shared_slots_send_sums_over_rows(algorithm: str, options: dict) -> None:
    join = random_join(clients=(1, 2, 1))
    channel = train(join, algorithm, epochs=2, **options).channel
    assert {m.slot for m in channel.sent if isinstance(m, PartialGradient | Gram)} <= {1}
    leaders = {
        (m.slot, len(m.products) > 0)
        for m in channel.sent
        if isinstance(m, Predictions) and m.slot != 1
    }
    assert (0, True) in leaders
    assert sum(isinstance(m, Start) for m in channel.sent) == 4
