"""What a client refuses, and that a configuration survives its journey."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.errors import InternalError
from sqlfl.messages import ConsensusAverage, Finish, Residuals
from sqlfl.operators.client import ClientConfiguration, ClientOperator
from tests.algorithms.harness import DenseEngine


def configuration(algorithm: str, **values: object) -> ClientConfiguration:
    usual = {"outputs": 1, "total": 4, "clients": 1, "leader": True, "l2": 0.1, "curvature": 1.0}
    return ClientConfiguration(algorithm=algorithm, **(usual | values))


def operator(algorithm: str, **values: object) -> ClientOperator:
    engine = DenseEngine(np.eye(4, 2), np.ones(4), np.zeros(2), 0)
    return ClientOperator(engine, configuration(algorithm, **values).to_json(), "run", 3)


def test_a_configuration_travels_as_json() -> None:
    there = configuration("admm", clients=2, consensus=True, inner_rounds=4, rho=0.25)
    back = ClientConfiguration.from_json(there.to_json())
    assert back == there
    assert back.shared


@pytest.mark.parametrize("algorithm", ["sgd", "lbfgs", "admm"])
def test_messages_of_other_parts_are_refused(algorithm: str) -> None:
    with pytest.raises(InternalError, match="no part of training"):
        operator(algorithm).handle(Finish("run", 3))
    with pytest.raises(InternalError, match="without consensus"):
        operator(algorithm).handle(ConsensusAverage("run", 3, np.zeros((2, 1))))


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(InternalError, match="trees"):
        operator("trees")


def test_a_shared_slot_needs_its_second_moments_first() -> None:
    client = operator("lbfgs", clients=2)
    client.handle(Residuals("run", 3, np.zeros((4, 1), np.float32), np.zeros(22)))
    with pytest.raises(InternalError, match="second moments are missing"):
        client._sum(np.zeros((2, 1)))


def test_a_step_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InternalError, match="21 coefficients"):
        operator("lbfgs").handle(Residuals("run", 3, np.zeros((4, 1), np.float32), np.zeros(21)))
