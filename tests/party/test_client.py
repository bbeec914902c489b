"""What a client refuses, and that a configuration survives its journey."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import Configuration
from sqlfl.messages import (
    ConsensusAverage,
    Finish,
    PartialGradient,
    SendPredictions,
    SendSlope,
    Slope,
    SumGradient,
)
from sqlfl.methods.admm.configuration import AdmmConfiguration
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.lbfgs.messages import LbfgsResiduals
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.party.client import ClientOperator
from sqlfl.party.operator import client_of
from tests.methods.harness import DenseEngine, configured


def configuration(algorithm: str, **values: object) -> Configuration:
    usual = {
        "outputs": 1, "rows": 4, "total": 4.0, "clients": 1, "leader": True,
        "l2": 0.1, "curvature": 1.0,
    }  # fmt: skip
    return configured(algorithm, **(usual | values))


def operator(algorithm: str, **values: object) -> ClientOperator:
    engine = DenseEngine(np.eye(4, 2), np.ones(4), np.zeros(2), 0)
    own = configuration(algorithm, **values)
    return ClientOperator(engine, own, client_of(algorithm).step, "run", 3)


def test_a_configuration_travels_as_json() -> None:
    there = configuration("admm", clients=2, consensus=True, inner_rounds=4, rho=0.25)
    back = AdmmConfiguration.from_json(there.to_json())
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


@pytest.mark.parametrize("clients", [1, 2])
def test_the_slope_is_measured_at_one_choice_of_residuals(clients: int) -> None:
    """Unit vectors would give the norm of each row or, of a slot of several clients, the row."""
    client = operator("sgd", clients=clients)
    whole = SendSlope("run", 3, np.ones((4, 1), np.float32))
    first = client.handle(whole)
    again = client.handle(whole)
    kind = Slope if clients == 1 else PartialGradient
    assert isinstance(first, kind)
    assert isinstance(again, kind)
    unit = SendSlope("run", 3, np.eye(4, 1, dtype=np.float32))
    with pytest.raises(InternalError, match="the slope is measured once"):
        client.handle(unit)


def test_a_shared_slot_needs_its_second_moments_first() -> None:
    client = operator("lbfgs", clients=2)
    client.handle(LbfgsResiduals("run", 3, np.zeros((4, 1), np.float32), np.zeros(21), 1))
    with pytest.raises(InternalError, match="second moments are missing"):
        client.handle(SumGradient("run", 3, np.zeros((2, 1))))


@pytest.mark.parametrize("algorithm", ["sgd", "lbfgs", "admm"])
def test_a_block_to_start_from_must_fit(algorithm: str) -> None:
    engine = DenseEngine(np.eye(4, 2), np.ones(4), np.zeros(2), 0)
    own, step = configuration(algorithm), client_of(algorithm).step
    with pytest.raises(InternalError, match=r"\(3, 1\)"):
        ClientOperator(engine, own, step, "run", 3, np.zeros((3, 1)))
    theta = np.array([[1.0], [-2.0]])
    client = ClientOperator(engine, own, step, "run", 3, theta)
    reply = client.handle(SendPredictions("run", 3))
    np.testing.assert_array_equal(reply.values, engine.x @ theta)
    np.testing.assert_allclose(reply.products, [0.5 * 0.1 * 5.0])
    theta[:] = 0.0
    np.testing.assert_array_equal(client.theta, [[1.0], [-2.0]])


@pytest.mark.parametrize("algorithm", ["sgd", "lbfgs", "admm"])
def test_blocks_of_the_last_epochs_are_kept(algorithm: str) -> None:
    client = operator(algorithm, keep=2, rho=1.0)
    coefficients = np.append(0.5, np.zeros(20))
    kind, scalars = {
        "sgd": (SgdResiduals, (0.5, 4, 1)),
        "lbfgs": (LbfgsResiduals, (coefficients, 1)),
        "admm": (AdmmResiduals, (1.0,)),
    }[algorithm]
    rng, found = np.random.default_rng(0), []
    for _ in range(6):
        values = rng.normal(size=(4, 1)).astype(np.float32)
        client.handle(kind("run", 3, values, *scalars))
        found.append(client.theta.copy())
    assert len(np.unique([theta[0, 0] for theta in found])) > 4
    for back in range(3):
        np.testing.assert_array_equal(client.kept(back)[0], found[-1 - back])
    with pytest.raises(InternalError, match="3 epochs back, of 3"):
        client.kept(3)
    with pytest.raises(InternalError, match="1 epochs back, of 0"):
        operator(algorithm).kept(1)


def test_batches_within_an_epoch_are_no_epochs() -> None:
    client = operator("sgd", keep=1)
    ends = []
    for number in range(6):
        last = number % 3 == 2
        rows = 4 if number % 3 == 0 else 2
        batch = np.zeros(0, np.uint32) if last else np.array([1, 3], np.uint32)
        values = np.full((rows, 1), 1.0 + number, np.float32)
        client.handle(SgdResiduals("run", 3, values, 0.1, 2, int(last), batch))
        if last:
            ends.append(client.theta.copy())
    np.testing.assert_array_equal(client.kept(1)[0], ends[0])
    np.testing.assert_array_equal(client.kept(0)[0], ends[1])


def test_gradients_that_are_asked_for_anew_are_no_epochs() -> None:
    """As lbfgs does where it goes over to 8-byte messages, and to prove a minimum."""
    client = operator("lbfgs", keep=2)
    rng, ends = np.random.default_rng(0), []
    for epoch in (1, 1, 0, 1, 0):
        values = rng.normal(size=(4, 1)).astype(np.float32)
        coefficients = np.append(0.5 * epoch, np.zeros(20))
        client.handle(LbfgsResiduals("run", 3, values, coefficients, epoch))
        if epoch:
            ends.append(client.theta.copy())
    assert len(np.unique([theta[0, 0] for theta in ends])) == 3
    for back in range(3):
        np.testing.assert_array_equal(client.kept(back)[0], ends[-1 - back])


def test_a_step_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InternalError, match="coefficients is 20, expected 21"):
        operator("lbfgs").handle(
            LbfgsResiduals("run", 3, np.zeros((4, 1), np.float32), np.zeros(20), 1)
        )
