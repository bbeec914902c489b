"""Gradients of a tower with each row's norm bounded: those of torch.func, and of plain Opacus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.func import functional_call, grad, vmap

from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.models import neural
from sqlfl.models.neural import Limit, Pass, TowerNetwork
from sqlfl.models.per_row import RowLimit
from sqlfl.models.towers import TowerShape
from sqlfl.party.first_layer import DeviceLayer, EngineLayer
from sqlfl.party.release_guard import ReleaseGuard
from tests.methods.harness import DenseEngine
from tests.party.test_neural import FUNCTIONS, ROWS, dense, engine_of

MODULES = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "gelu": torch.nn.GELU}
CLIP = 0.7


class Factors:
    """min(1, C/norm), remembering the norms."""

    def __init__(self, clip: float = CLIP) -> None:
        self._guard = ReleaseGuard(RoundNoise(clip, 1.0), 1)
        self._norms: list[np.ndarray] = []

    def __call__(self, norms: np.ndarray) -> np.ndarray:
        self._norms.append(norms)
        return self._guard.factors(norms)

    @property
    def norms(self) -> np.ndarray:
        return np.concatenate(self._norms)


def network_of(
    engine: DenseEngine,
    hidden: tuple[int, ...],
    outputs: int,
    activation: str,
    dropout: float = 0,
    bounded: bool = False,
) -> TowerNetwork:
    shape = TowerShape(engine.width, hidden, outputs, activation, bounded)
    return TowerNetwork(shape, EngineLayer(engine), dropout)


def random_pass(
    network: TowerNetwork, seed: int, rows: Any = None, draw: int | None = None
) -> Pass:
    flat = np.random.default_rng(seed).normal(size=network.shape.size)
    return network.forward(network.tensor(flat), rows, draw)


def plain(network: TowerNetwork, parameters: torch.Tensor) -> torch.nn.Sequential:
    """The tower over dense rows, of torch's own layers."""
    arrays = network.unpack(parameters)
    layers: list[torch.nn.Module] = []
    for number, weights in enumerate(arrays[0::2]):
        last = number == len(network.shape.hidden)
        layer = torch.nn.Linear(*weights.shape, bias=not last, dtype=weights.dtype)
        with torch.no_grad():
            layer.weight.copy_(weights.T)
            if not last:
                layer.bias.copy_(arrays[2 * number + 1])
        layers += [layer] if last else [layer, MODULES[network.shape.activation]()]
    if network.shape.bounded:
        layers.append(torch.nn.Tanh())
    return torch.nn.Sequential(*layers)


def flattened(gradients: Any, rows: int) -> torch.Tensor:
    """(rows, size) in the order of `TowerShape.pack`, of the layers of `plain`."""
    parts = [g.transpose(1, 2) if g.ndim == 3 else g for g in gradients]
    return torch.cat([p.reshape(rows, -1) for p in parts], dim=1)


def wanting(network: TowerNetwork) -> torch.Tensor:
    """The dense rows, for Opacus' hooks, which warn where inputs need no gradient."""
    return torch.tensor(dense(network.layer._engine), requires_grad=True)


def per_row(forward: Pass, x: np.ndarray, values: torch.Tensor) -> torch.Tensor:
    """∂(h_j·V_j)/∂θ of each of the dense rows x_j, by torch.func: (j, size)."""
    model = plain(forward.network, forward.parameters)
    own = {name: p.detach() for name, p in model.named_parameters()}

    def value(parameters: Any, row: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        return (functional_call(model, parameters, (row,)) * slopes).sum()

    found = vmap(grad(value), in_dims=(None, 0, 0))(own, torch.tensor(x), values)
    return flattened(found.values(), len(x))


PATTERNS = st.one_of(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),  # some rows often, others never
    st.integers(1, 8).map(lambda copies: [3] * copies),  # one row only
    st.integers(1, 4).map(lambda copies: list(range(6)) * copies),  # each as often
    st.just([]),
)


@given(
    PATTERNS,
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    st.sampled_from(sorted(FUNCTIONS)),
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 4), st.integers(0, 10**6)),
    st.booleans(),
    st.booleans(),
)
def test_norms_are_those_of_torch_func_for_every_pattern_of_copies(
    pattern: list[int],
    hidden: tuple[int, ...],
    activation: str,
    sizes: Any,
    batched: bool,
    bounded: bool,
) -> None:
    """A table row's gradient is the sum over the joined rows that it occurs in."""
    outputs, numeric, categories, seed = sizes
    numeric = numeric or int(categories == 0)  # torch's layers want a column
    engine = engine_of(rows=6, numeric=numeric, categories=categories, seed=seed)
    rng = np.random.default_rng(seed)
    joined = np.array(pattern, np.int64)
    rows = rng.permutation(np.unique(joined)).astype(np.uint32) if batched else None
    chosen = np.arange(6) if rows is None else rows.astype(np.int64)
    network = network_of(engine, hidden, outputs, activation, bounded=bounded)
    forward = random_pass(network, seed, rows)
    slopes = rng.normal(size=(len(joined), outputs))
    expected = torch.zeros((6, forward.network.shape.size), dtype=torch.float64)
    if len(joined):
        single = per_row(forward, dense(engine, joined), torch.tensor(slopes))
        expected.index_add_(0, torch.tensor(joined), single)
    expected = expected[torch.tensor(chosen)]
    values = np.zeros((6, outputs))
    np.add.at(values, joined, slopes)
    factors = Factors()
    found = forward.backward(torch.tensor(values[chosen]), RowLimit(forward.network, factors))
    if len(chosen):
        np.testing.assert_allclose(factors.norms, expected.norm(dim=1), atol=1e-10)
    clipped = expected * (CLIP / expected.norm(dim=1).clamp(min=CLIP))[:, None]
    np.testing.assert_allclose(found, clipped.sum(0), atol=1e-10)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_chunks_and_dropped_units_are_those_of_the_sum(
    dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference is the pass's own sum of a single row, whose other rows are 0."""
    monkeypatch.setattr(neural, "CHUNK", 7)
    network = network_of(engine_of(), (6, 5), 2, "gelu", dropout)
    forward = random_pass(network, 1, draw=4)
    values = torch.tensor(np.random.default_rng(2).normal(size=(ROWS, 2)))
    factors = Factors()
    found = forward.backward(values, RowLimit(network, factors))
    single = []
    for row in range(ROWS):
        alone = torch.zeros_like(values)
        alone[row] = values[row]
        single.append(forward.backward(alone))
    rows = torch.stack(single)
    np.testing.assert_allclose(factors.norms, rows.norm(dim=1), rtol=1e-12)
    assert 0.0 < (factors.norms > CLIP).mean() <= 1.0
    clipped = rows * (CLIP / rows.norm(dim=1).clamp(min=CLIP))[:, None]
    np.testing.assert_allclose(found, clipped.sum(0), atol=1e-12)


def test_ghost_norms_are_those_of_opacus_gradients_of_each_row() -> None:
    """Opacus has both ways; the one that is not used here needs the gradients in memory."""
    network = network_of(engine_of(), (5, 4, 3), 2, "tanh")
    forward = random_pass(network, 3)
    values = torch.tensor(np.random.default_rng(4).normal(size=(ROWS, 2)))
    factors = Factors()
    forward.backward(values, RowLimit(network, factors))
    model = GradSampleModule(plain(network, forward.parameters), loss_reduction="sum")
    (model(wanting(network)) * values).sum().backward()
    gradients = flattened([p.grad_sample for p in model.parameters()], ROWS)
    np.testing.assert_allclose(factors.norms, gradients.norm(dim=1), rtol=1e-12)


@pytest.mark.parametrize("activation", sorted(FUNCTIONS))
def test_a_clipped_sum_is_that_of_opacus_on_dense_rows(activation: str) -> None:
    """DPOptimizer without noise; one-hot columns are dense there."""
    network = network_of(engine_of(numeric=2, categories=3), (4, 3), 2, activation)
    forward = random_pass(network, 5)
    values = torch.tensor(np.random.default_rng(6).normal(size=(ROWS, 2)))
    found = forward.backward(values, RowLimit(network, Factors()))
    model = GradSampleModule(plain(network, forward.parameters), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=ROWS,
        loss_reduction="sum",
    )
    (model(wanting(network)) * values).sum().backward()
    optimizer.step()
    parameters = [p.detach() for p in model.parameters()]
    stepped = torch.cat([(p.T if p.ndim == 2 else p).reshape(-1) for p in parameters])
    # Opacus adds 1e-6 to norms
    np.testing.assert_allclose(forward.parameters - found, stepped, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("batched", [False, True])
def test_norms_of_columns_on_a_device_are_the_engines(dtype: torch.dtype, batched: bool) -> None:
    for numeric, categories in ((3, 4), (0, 4), (3, 0)):
        engine = engine_of(numeric=numeric, categories=categories)
        rows = np.array([9, 2, 30], np.uint32) if batched else None
        expected = np.linalg.norm(dense(engine, slice(None) if rows is None else rows), axis=1)
        for layer in (EngineLayer(engine), DeviceLayer(engine, torch.device("cpu"), dtype)):
            found = layer.norms(rows)
            assert found.dtype == layer.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-6)


# -- broken builds --------------------------------------------------------------------------------


class OneForAll(RowLimit):
    """Broken: rows are scaled alike, so that their mean is clipped."""

    def gradients(self, first: Any, upper: Any, values: Any, generator: Any, lengths: Any) -> Any:
        network, rows = self._layers._network, max(len(first), 1)
        slopes, *own = network.gradients(first, upper, values, generator)
        mean = np.sqrt(sum(float(p.square().sum()) for p in (slopes, *own))) / rows
        return tuple(min(1.0, CLIP / mean) * p for p in (slopes, *own))


class UpperOnly(RowLimit):
    """Broken: the first layer's weights are left out of the norms."""

    def gradients(self, first: Any, upper: Any, values: Any, generator: Any, lengths: Any) -> Any:
        return super().gradients(first, upper, values, generator, torch.zeros_like(lengths))


def largest_move(limit: Callable[[TowerNetwork, Factors], Limit]) -> float:
    """What the sum moves by where the features of one row change, at most, in units of C."""
    rng, found = np.random.default_rng(0), []
    for _ in range(20):
        engines = [engine_of(seed=1), engine_of(seed=1)]
        size = 10.0 ** rng.uniform(-1, 1.5)
        engines[1].x[0, :3] = rng.normal(size=3) * size
        engines[0].x[0, :3] = -engines[1].x[0, :3]
        values = torch.tensor(rng.normal(size=(ROWS, 2)) * 0.1)
        values[0] = 3.0
        sums = []
        for engine in engines:
            network = network_of(engine, (4,), 2, "relu")
            forward = random_pass(network, 7)
            sums.append(forward.backward(values, limit(network, Factors())))
        found.append(float((sums[0] - sums[1]).norm()) / CLIP)
    return max(found)


def test_a_changed_row_moves_the_sum_by_twice_the_clip_at_most() -> None:
    """And comes near it: what it added before and what it adds now are almost opposite."""
    assert 1.2 < largest_move(RowLimit) <= 2.0 + 1e-9


@pytest.mark.parametrize("broken", [OneForAll, UpperOnly])
def test_broken_limits_are_seen(broken: type[RowLimit]) -> None:
    assert largest_move(broken) > 2.5
