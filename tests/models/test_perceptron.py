"""Towers in numpy against torch."""

from __future__ import annotations

import numpy as np
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.models import towers
from sqlfl.models.neural import TowerNetwork
from sqlfl.models.towers import Perceptron, TowerShape, derivative, small, suits
from sqlfl.party.first_layer import EngineLayer
from tests.methods.harness import DenseEngine

SHAPES = [
    TowerShape(5, (4,), 1, "relu"),
    TowerShape(3, (4, 2), 3, "tanh"),
    TowerShape(7, (3, 5, 2), 2, "relu"),
    TowerShape(0, (2,), 1, "tanh"),
    TowerShape(4, (3, 2), 2, "relu", bounded=True),
    TowerShape(4, (3,), 2, "tanh", bounded=True),
]
BATCHES = [None, np.array([2, 0, 5, 2]), np.zeros(0, np.uint32)]


def engine_of(width: int, rows: int = 12) -> DenseEngine:
    x = np.random.default_rng(3).normal(size=(rows, width))
    return DenseEngine(x, np.ones(rows), np.full(width, 0.2), 0)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("rows", BATCHES, ids=["all", "batch", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_ways_are_those_of_torch(
    shape: TowerShape,
    rows: np.ndarray | None,
    kept: bool,
    chunked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In chunks or at once, with hidden units' outputs that are kept or made again."""
    if chunked:
        monkeypatch.setattr(towers, "CHUNK_VALUES", 5 * sum(shape.hidden))
    if not kept:
        monkeypatch.setattr(towers, "KEPT_VALUES", 0)
    rng = np.random.default_rng(1)
    engine = engine_of(shape.inputs)
    own, torch = Perceptron(shape, engine), TowerNetwork(shape, EngineLayer(engine), 0.0)
    parameters = rng.normal(size=shape.size)
    values = rng.normal(size=(12 if rows is None else len(rows), shape.outputs))
    found = []
    for network in (own, torch):
        forward = network.forward(network.tensor(parameters), rows)
        outputs = network.numpy(forward.outputs())
        if network is own:
            parts = 0 if not kept else -(-len(values) // 5) if chunked else min(len(values), 1)
            assert len(forward.kept) == parts
        found.append((outputs, network.numpy(forward.backward(network.tensor(values)))))
    for one, other in zip(*found, strict=True):
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_backward_is_the_slope_of_forward(shape: TowerShape) -> None:
    """By differences to both sides; rows whose relu has a corner there have none."""
    rng = np.random.default_rng(2)
    own = Perceptron(shape, engine_of(shape.inputs))
    parameters, values = rng.normal(size=shape.size), rng.normal(size=(12, shape.outputs))

    def value(at: np.ndarray) -> float:
        return float((own.forward(at, None).outputs() * values).sum())

    found = own.forward(parameters, None).backward(values)
    step = 1e-6
    for place, moved in enumerate(np.eye(shape.size) * step):
        slope = (value(parameters + moved) - value(parameters - moved)) / (2 * step)
        assert found[place] == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_where_a_unit_has_no_slope() -> None:
    """At 0 relu's is that of torch."""
    np.testing.assert_array_equal(derivative("relu", np.array([0.0, -0.0, 2.0])), [0, 0, 1])
    shape = TowerShape(2, (3,), 1, "relu")
    engine = engine_of(2)
    parameters, values = np.zeros(shape.size), np.ones((12, 1))
    networks = (Perceptron(shape, engine), TowerNetwork(shape, EngineLayer(engine), 0.0))
    one, other = (
        n.numpy(n.forward(n.tensor(parameters), None).backward(n.tensor(values))) for n in networks
    )
    np.testing.assert_array_equal(one, other)


def test_what_is_torchs() -> None:
    shape = TowerShape(2, (16, 8), 1, "relu")
    assert suits(shape)
    assert small(shape, towers.DEVICE_VALUES // 24)
    assert not small(shape, towers.DEVICE_VALUES // 24 + 1)
    gelu = TowerShape(2, (4,), 1, "gelu")
    assert not suits(gelu)
    with pytest.raises(InternalError, match="torch's"):
        Perceptron(gelu, engine_of(2))
    with pytest.raises(InternalError, match="gelu"):
        derivative("gelu", np.zeros(1))


def test_what_does_not_fit() -> None:
    shape = TowerShape(3, (4,), 2, "tanh")
    with pytest.raises(InternalError, match="over 3 columns, of 5"):
        Perceptron(shape, engine_of(5))
    forward = Perceptron(shape, engine_of(3)).forward(np.zeros(shape.size), None)
    with pytest.raises(InternalError, match=r"\(12, 2\)"):
        forward.backward(np.zeros((12, 1)))
