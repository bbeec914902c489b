"""Step lengths over the epochs, as they reach the clients."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.messages import Residuals
from sqlfl.methods.sgd.coordinator import step_factor
from tests.methods.harness import random_join, train

E = np.arange(6.0)
SCHEDULES = {
    "constant": ({"schedule": "constant"}, np.ones(6)),
    "inverse": ({"schedule": "inverse"}, 4.0 / (4.0 + E)),
    "inverse, decay": ({"schedule": "inverse", "decay": 2.0}, 1.0 / (1.0 + 2.0 * E)),
    "no decay": ({"schedule": "inverse", "decay": 0.0}, np.ones(6)),
    "exponential": ({"schedule": "exponential"}, np.cumprod([1.0, *[0.95] * 5])),
    "exponential, decay": (
        {"schedule": "exponential", "decay": 0.5},
        np.array([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]),
    ),
    "cosine": ({"schedule": "cosine"}, np.cos(np.pi * E / 12.0) ** 2),
}


def rates(options: dict, **more) -> np.ndarray:
    """The step length of every epoch's first step, of slot 0."""
    trained = train(random_join(), "sgd", epochs=6, tolerance=0.0, **options, **more)
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals) and m.slot == 0]
    found = np.array([m.rate for m in sent]).reshape(6, -1)
    assert (found == found[:, :1]).all()
    return found[:, 0]


@pytest.mark.parametrize(("options", "expected"), SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("more", [{}, {"batch_size": 500}], ids=["all rows", "batches"])
def test_schedules(options: dict, expected: np.ndarray, more: dict) -> None:
    np.testing.assert_allclose(rates(options, learning_rate=0.3, **more), 0.3 * expected)
    estimated = rates(options, **more)
    np.testing.assert_allclose(estimated / estimated[0], expected)


def test_without_a_schedule_only_batches_of_estimated_steps_get_smaller() -> None:
    np.testing.assert_allclose(rates({}, learning_rate=0.3, batch_size=500), 0.3)
    falling = rates({}, batch_size=500)
    np.testing.assert_allclose(falling / falling[0], 4.0 / (4.0 + E))
    assert len(set(rates({}))) == 1


def test_the_intercept_takes_the_same_schedule() -> None:
    join = random_join("logistic_regression", l2=0.01)
    options = {"epochs": 4, "learning_rate": 0.5, "schedule": "exponential", "decay": 0.5}
    trained = train(join, "sgd", **options)
    theta = np.zeros((join.design.shape[1], 1))
    intercept = join.loss.initial_intercept(join.targets)
    for rate in (0.5, 0.25, 0.125, 0.0625):
        constant, slope = join.gradient(intercept, theta)
        theta, intercept = theta - rate * slope, intercept - rate * constant
    np.testing.assert_allclose(trained.theta, theta, atol=2e-6)
    np.testing.assert_allclose(trained.algorithm.intercept, intercept, atol=2e-6)


def test_there_is_no_other_schedule() -> None:
    with pytest.raises(InternalError, match="warm restarts"):
        step_factor("warm restarts", 0.1, 1, 10)
