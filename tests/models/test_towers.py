"""Towers in numpy: shapes, packing, first parameters, predictions as torch makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import InternalError
from sqlfl.models.towers import TowerShape, activate, first_parameters, weights_of

SHAPES = [
    TowerShape(5, (4,), 1, "relu"),
    TowerShape(3, (4, 2), 3, "tanh"),
    TowerShape(7, (3, 5, 2), 2, "gelu"),
    TowerShape(0, (2,), 1, "relu"),
    TowerShape(4, (3, 2), 2, "relu", bounded=True),
]
FUNCTIONS = {"relu": torch.relu, "tanh": torch.tanh, "gelu": torch.nn.functional.gelu}


def drawn(shape: TowerShape, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=s) for s in shape.shapes)


@pytest.mark.parametrize("shape", SHAPES)
def test_packing_is_undone_by_unpacking(shape: TowerShape) -> None:
    parameters = drawn(shape)
    column = shape.pack(parameters)
    assert column.shape == (shape.size, 1)
    assert column.dtype == np.float64
    for given, found in zip(parameters, shape.unpack(column), strict=True):
        np.testing.assert_array_equal(given, found)
    with pytest.raises(InternalError, match=f"tower of {shape.size}"):
        shape.unpack(np.append(column, 0.0))
    assert from_json(TowerShape, to_json(shape)) == shape
    assert ("bounded" in to_json(shape)) == shape.bounded, "an older sqlfl reads what it can score"


@pytest.mark.parametrize("shape", SHAPES)
def test_predictions_are_those_of_torch(shape: TowerShape) -> None:
    parameters = drawn(shape)
    x = np.random.default_rng(1).normal(size=(20, shape.inputs))
    values = torch.tensor(x) @ torch.tensor(parameters[0])
    for bias, weights in zip(parameters[1::2], parameters[2::2], strict=True):
        values = FUNCTIONS[shape.activation](values + torch.tensor(bias)) @ torch.tensor(weights)
    values = torch.tanh(values) if shape.bounded else values
    found = shape.forward(x @ parameters[0], parameters)
    np.testing.assert_allclose(found, values.numpy(), atol=1e-12)
    assert [w.shape for w in weights_of(parameters)] == [s for s in shape.shapes if len(s) == 2]


def test_an_unknown_activation() -> None:
    with pytest.raises(InternalError, match="cube"):
        activate("cube", np.zeros(1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("numeric", [0, 2])
def test_first_parameters(shape: TowerShape, numeric: int) -> None:
    numeric = min(numeric, shape.inputs)
    found = first_parameters(shape, numeric, seed=3, slot=1)
    assert tuple(p.shape for p in found) == shape.shapes
    np.testing.assert_array_equal(found[0][numeric:], 0.0)
    assert (found[0][:numeric] != 0.0).all()
    for bias in found[1::2]:
        assert len(np.unique(bias)) == len(bias), "units would stay alike"
        assert shape.activation == "tanh" or (bias > 0.0).all()
    again = first_parameters(shape, numeric, seed=3, slot=1)
    for one, two in zip(found, again, strict=True):
        np.testing.assert_array_equal(one, two)
    for other in ({"seed": 4, "slot": 1}, {"seed": 3, "slot": 2}):
        assert not np.array_equal(first_parameters(shape, numeric, **other)[1], found[1])


def test_first_parameters_do_not_depend_on_vocabularies() -> None:
    few = first_parameters(TowerShape(5, (4, 3), 2, "relu"), 2, seed=0, slot=0)
    many = first_parameters(TowerShape(50, (4, 3), 2, "relu"), 2, seed=0, slot=0)
    np.testing.assert_array_equal(few[0], many[0][:5])
    for one, two in zip(few[1:], many[1:], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("activation", sorted(FUNCTIONS))
def test_first_predictions_are_small_and_not_alike(activation: str) -> None:
    assert 0.03 < _first_size(TowerShape(40, (64, 64), 1, activation)) < 0.6


@pytest.mark.parametrize("activation", sorted(FUNCTIONS))
def test_first_predictions_that_are_bounded_are_not_small(activation: str) -> None:
    """Draws of them differ by the numbers, and not by chance alone; yet few are at the ends."""
    assert 0.2 < _first_size(TowerShape(40, (64, 64), 1, activation, bounded=True)) < 0.8


def _first_size(shape: TowerShape) -> float:
    """Median of the standard deviations over rows."""
    x = np.random.default_rng(0).normal(size=(500, 40))
    sizes = []
    for seed in range(20):
        parameters = first_parameters(shape, 40, seed=seed, slot=0)
        sizes.append(shape.forward(x @ parameters[0], parameters).std())
    return float(np.median(sizes))
