"""A tower's gradients, steps and θ-updates equal those of torch on the rows of the join."""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.aggregation.slot_aggregation import average, sum_gradients
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.configuration import Configuration
from sqlfl.messages import (
    ConsensusAverage,
    ConsensusPart,
    Finish,
    PartialGradient,
    Predictions,
    Probe,
    Residuals,
    SendPredictions,
    SumGradient,
)
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.admm.tower_client import MIN_STEPS, LocalUpdate, sensitivities
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.models import neural, towers
from sqlfl.models.neural import TowerNetwork, device_of
from sqlfl.models.towers import Perceptron, TowerShape
from sqlfl.party.client import ClientOperator
from sqlfl.party.first_layer import DeviceLayer, EngineLayer, make_layer
from sqlfl.party.neural import TowerOperator
from sqlfl.party.operator import client_of
from sqlfl.party.steps import penalty
from tests.depth import combinations
from tests.methods.harness import DenseEngine, configured

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "gelu": torch.nn.functional.gelu,
}
ROWS = 40


def engine_of(
    rows: int = ROWS, numeric: int = 3, categories: int = 4, seed: int = 0
) -> DenseEngine:
    rng = np.random.default_rng(seed)
    codes = rng.integers(-1, categories, rows)  # −1: a category that training has not seen
    hot = (codes[:, None] == np.arange(categories)).astype(float)
    counts = rng.integers(1, 4, rows).astype(float)
    centre = np.append(np.zeros(numeric), rng.uniform(0.05, 0.4, categories))
    return DenseEngine(
        np.hstack([rng.normal(size=(rows, numeric)), hot]), counts, centre, categories
    )


def split(engine: DenseEngine, at: Sequence[int]) -> list[DenseEngine]:
    parts = np.split(np.arange(engine.rows), at)
    onehots = engine.width - engine.numeric
    return [
        DenseEngine(engine.x[part], engine.counts[part], engine.centre, onehots) for part in parts
    ]


def configuration(engine: DenseEngine, **values: Any) -> Configuration:
    usual = {
        "method": "sgd", "outputs": 1, "rows": int(engine.counts.sum()),
        "total": float(engine.counts.sum()), "clients": 1, "leader": True, "l2": 1e-2,
        "curvature": 1.0, "hidden": (4,), "activation": "tanh", "seed": 5,
        "local_epochs": 4, "local_batch": 16, "local_rate": 0.02,
    }  # fmt: skip
    if "algorithm" in values:
        values["method"] = values.pop("algorithm")
    return configured(**(usual | values))


def operator(engine: DenseEngine, start: Any = None, **values: Any) -> TowerOperator:
    part = client_of(values.get("algorithm", "sgd"))
    made = part.operator(engine, configuration(engine, **values), "run", 3, start)
    assert isinstance(made, TowerOperator)
    return made


def residuals(values: np.ndarray, *scalars: float, batch: Any = ()) -> Residuals:
    """Of admm: ρ r. Of sgd: η, B, and whether all rows are predicted next, or a `batch`."""
    values = values.astype(np.float32)
    if len(scalars) == 1:
        return AdmmResiduals("run", 3, values, *scalars)
    rate, divisor, whole = scalars
    rows = np.array(batch, np.uint32)
    return SgdResiduals("run", 3, values, rate, int(divisor), int(whole), rows)


def tensors(parameters: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [torch.tensor(p, requires_grad=True) for p in parameters]


def tower(x: np.ndarray, parameters: Sequence[torch.Tensor], activation: str) -> torch.Tensor:
    """The reference: h of dense centred rows."""
    values = torch.tensor(x) @ parameters[0]
    for bias, weights in zip(parameters[1::2], parameters[2::2], strict=True):
        values = FUNCTIONS[activation](values + bias) @ weights
    return values


def dense(engine: DenseEngine, rows: Any = slice(None)) -> np.ndarray:
    return (engine.x - engine.centre)[rows]


SHAPES = st.tuples(
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    st.sampled_from(sorted(FUNCTIONS)),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(0, 10**6),
)

# -- gradients ------------------------------------------------------------------------------------


@given(SHAPES, st.booleans())
def test_gradients_are_those_of_torch_on_dense_rows(shape: Any, batched: bool) -> None:
    hidden, activation, outputs, numeric, categories, seed = shape
    engine = engine_of(numeric=numeric, categories=categories, seed=seed)
    rng = np.random.default_rng(seed)
    network = TowerNetwork(
        TowerShape(engine.width, hidden, outputs, activation), EngineLayer(engine)
    )
    rows = rng.permutation(ROWS)[:7].astype(np.uint32) if batched else None
    parameters = [rng.normal(size=s) for s in network.shape.shapes]
    values = rng.normal(size=(ROWS if rows is None else len(rows), outputs))
    forward = network.forward(network.tensor(network.shape.pack(parameters)[:, 0]), rows)
    own = tensors(parameters)
    expected = tower(dense(engine, slice(None) if rows is None else rows), own, activation)
    np.testing.assert_allclose(forward.outputs(), expected.detach(), atol=1e-10)
    (expected * torch.tensor(values)).sum().backward()
    found = network.shape.unpack(forward.backward(network.tensor(values)).numpy())
    for mine, theirs in zip(found, own, strict=True):
        np.testing.assert_allclose(mine, theirs.grad, atol=1e-10)


def test_chunks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    network = TowerNetwork(TowerShape(7, (4, 3), 2, "relu"), EngineLayer(engine))
    rng = np.random.default_rng(0)
    flat, values = rng.normal(size=network.shape.size), rng.normal(size=(ROWS, 2))
    found = []
    for chunk in (ROWS, 7):
        monkeypatch.setattr(neural, "CHUNK", chunk)
        forward = network.forward(network.tensor(flat), None)
        found.append((forward.outputs(), forward.backward(network.tensor(values))))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-12)


def test_a_rows_gradient_is_linear_in_its_values() -> None:
    """What a bound on the gradients of single rows needs: they can be taken apart, and scaled."""
    engine = engine_of()
    network = TowerNetwork(TowerShape(7, (4,), 2, "tanh"), EngineLayer(engine))
    rng = np.random.default_rng(0)
    forward = network.forward(network.tensor(rng.normal(size=network.shape.size)), None)
    values, factors = rng.normal(size=(ROWS, 2)), rng.uniform(size=(ROWS, 1))
    single = []
    for row in range(ROWS):
        alone = np.zeros_like(values)
        alone[row] = values[row]
        single.append(factors[row, 0] * forward.backward(network.tensor(alone)))
    together = forward.backward(network.tensor(factors * values))
    np.testing.assert_allclose(torch.stack(single).sum(0), together, atol=1e-12)


# -- sgd ------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "plain": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05),
}


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("activation", sorted(FUNCTIONS))
def test_steps_on_batches_are_those_of_torch(optimizer: str, activation: str) -> None:
    """Squared loss of one table's rows; batches within an epoch, all rows at its end."""
    engine = engine_of()
    x, y = dense(engine), np.random.default_rng(1).normal(size=(ROWS, 2))
    own = operator(
        engine, outputs=2, hidden=(4, 3), activation=activation, optimizer=optimizer, momentum=0.8
    )
    theirs = tensors([p.copy() for p in own.parameters])
    method = OPTIMIZERS[optimizer](theirs)
    reply = own.handle(SendPredictions("run", 3))
    batches = np.array_split(np.random.default_rng(2).permutation(ROWS), 3)
    for _ in range(4):
        for number, rows in enumerate(batches):
            whole = number == 2
            assert isinstance(reply, Predictions)
            slopes = np.zeros((ROWS, 2))
            slopes[rows] = (reply.values[rows] if number == 0 else reply.values) - y[rows]
            following = () if whole else batches[number + 1]
            given_ = slopes if number == 0 else slopes[rows]
            message = residuals(given_, 0.05, len(rows), float(whole), batch=following)
            reply = own.handle(message)
            method.zero_grad()
            square = ((tower(x[rows], theirs, activation) - torch.tensor(y[rows])) ** 2).sum()
            ridge = sum((w**2).sum() for w in theirs[0::2])
            (0.5 * square / len(rows) + 0.5e-2 * ridge).backward()
            method.step()
        for mine, reference in zip(own.parameters, theirs, strict=True):
            np.testing.assert_allclose(mine, reference.detach(), atol=2e-6)
        assert isinstance(reply, Predictions)
        expected = tower(x, theirs, activation).detach()
        np.testing.assert_allclose(reply.values, expected, atol=1e-5)
    weights = sum(float((w**2).sum()) for w in own.parameters[0::2])
    np.testing.assert_allclose(reply.products, [0.5e-2 * weights])


@given(SHAPES, st.lists(st.integers(0, ROWS), max_size=3).map(sorted))
def test_clients_of_a_slot_add_up_to_one(shape: Any, cuts: list[int]) -> None:
    """The same first parameters, gradients that sum to one client's, then the same step."""
    hidden, activation, outputs, numeric, categories, seed = shape
    engine = engine_of(numeric=numeric, categories=categories, seed=seed)
    usual = {"hidden": hidden, "activation": activation, "outputs": outputs, "optimizer": "adam"}
    alone = operator(engine, **usual)
    parts = split(engine, cuts)
    clients = [
        operator(part, **usual, clients=len(parts), number=q, leader=q == 0)
        for q, part in enumerate(parts)
    ]
    shared = len(parts) > 1
    values = np.random.default_rng(seed).normal(size=(ROWS, outputs))
    alone.handle(SendPredictions("run", 3))
    for _ in range(2):
        expected = alone.handle(residuals(values, 0.1, ROWS, 1.0))
        replies = []
        for client, own in zip(clients, np.split(values, cuts), strict=True):
            client.handle(SendPredictions("run", 3))
            replies.append(client.handle(residuals(own, 0.1, ROWS, 1.0)))
        if shared:
            assert all(isinstance(r, PartialGradient) for r in replies)
            assert replies[0].values.shape == (alone.shape.size, 1)
            total = sum_gradients([r.values for r in replies])
            replies = [client.handle(SumGradient("run", 3, total)) for client in clients]
        together = np.concatenate([r.values for r in replies])
        np.testing.assert_allclose(together, expected.values, rtol=1e-4, atol=1e-5)
        assert [len(r.products) for r in replies] == [1] + [0] * (len(parts) - 1)
    for client in clients[1:]:
        for mine, first in zip(client.parameters, clients[0].parameters, strict=True):
            np.testing.assert_array_equal(mine, first)


def test_dropped_units_are_those_of_the_predictions() -> None:
    """The gradient is of the predictions made in training: seen by small steps."""
    engine = engine_of()
    own = operator(engine, hidden=(16,), dropout=0.5, l2=0.0)
    plain = own.handle(SendPredictions("run", 3)).values
    batch = np.arange(0, ROWS, 2, dtype=np.uint32)
    ask = SendPredictions("run", 3, training=1, batch=batch, whole=0)
    first, second = own.handle(ask).values, own.handle(ask).values
    assert first.shape == (len(batch), 1)
    assert np.abs(first - plain[batch]).max() > 1e-3
    assert np.abs(first - second).max() > 1e-3, "other units each time"
    values = np.random.default_rng(0).normal(size=(len(batch), 1))
    assert own._pass is not None
    flat = own.shape.pack(own.parameters)[:, 0]
    gradient = own._pass.backward(own._network.tensor(values)).numpy()
    direction = np.random.default_rng(1).normal(size=len(flat))
    draw, ends = own._pass.draw, []
    for step in (1e-5, -1e-5):
        moved = own._network.tensor(flat + step * direction)
        found = own._network.forward(moved, batch, draw).outputs()
        ends.append(float((found * torch.tensor(values)).sum()))
    np.testing.assert_allclose((ends[0] - ends[1]) / 2e-5, gradient @ direction, rtol=1e-6)


def test_predictions_within_an_epoch_drop_units_and_those_after_it_do_not() -> None:
    engine = engine_of()
    own = operator(engine, hidden=(8,), dropout=0.4)
    exact = own.handle(SendPredictions("run", 3)).values
    rows = np.arange(10, dtype=np.uint32)
    still = np.zeros((ROWS, 1))
    own.handle(SendPredictions("run", 3, training=1))
    dropped = own.handle(residuals(still, 0.0, ROWS, 0.0, batch=rows)).values
    assert np.abs(dropped - exact[:10]).max() > 1e-3
    after = own.handle(residuals(still[:10], 0.0, 10.0, 1.0)).values
    np.testing.assert_array_equal(after, exact)


def test_dropout_keeps_the_mean() -> None:
    engine = engine_of(rows=3)
    network = TowerNetwork(TowerShape(7, (30,), 1, "relu"), EngineLayer(engine), 0.3)
    rng = np.random.default_rng(0)
    flat = network.tensor(rng.normal(size=network.shape.size))
    found = [network.forward(flat, None, draw).outputs().numpy() for draw in range(4000)]
    spread = np.std(found, axis=0) / math.sqrt(len(found))
    exact = network.forward(flat, None).outputs().numpy()
    assert (np.abs(np.mean(found, axis=0) - exact) < 5 * spread).all()


def test_clients_drop_and_shuffle_on_their_own() -> None:
    engine = engine_of()
    ask = SendPredictions("run", 3, training=1)
    found = [
        operator(engine, hidden=(8,), dropout=0.4, **own).handle(ask).values
        for own in ({"number": 0}, {"number": 0}, {"number": 1}, {"seed": 6})
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-3
    assert np.abs(found[0] - found[3]).max() > 1e-3


# -- admm -----------------------------------------------------------------------------------------


def augmented(
    engine: DenseEngine, own: Configuration, parameters: Any, anchor: Any, v: Any, rho: float
) -> float:
    """1/N Σ V·(f − h) + ρr/2 cnt ‖f − h‖², and the penalty."""
    shape = own.shape(engine.width)
    assert shape is not None
    moved = shape.forward(dense(engine) @ parameters[0], parameters) - anchor
    linear = float((v * moved).sum()) / own.rows
    square = 0.5 * rho / own.total * float((engine.counts[:, None] * moved**2).sum())
    ridge = sum(float((w**2).sum()) for w in parameters[0::2])
    return linear + square + 0.5 * own.l2 * ridge


def augmented_slope(
    engine: DenseEngine, own: Configuration, parameters: Any, anchor: Any, v: Any, rho: float
) -> np.ndarray:
    theirs = tensors(parameters)
    moved = tower(dense(engine), theirs, own.tower.activation) - torch.tensor(anchor)
    value = (torch.tensor(v) * moved).sum() / own.rows
    counts = torch.tensor(engine.counts)[:, None]
    value = value + 0.5 * rho / own.total * (counts * moved**2).sum()
    value = value + 0.5 * own.l2 * sum((w**2).sum() for w in theirs[0::2])
    value.backward()
    return np.concatenate([p.grad.numpy().reshape(-1) for p in theirs if p.grad is not None])


def local_update(engine: DenseEngine, **values: Any) -> tuple[LocalUpdate, Configuration]:
    own = configuration(engine, algorithm="admm", **values)
    shape = own.shape(engine.width)
    assert shape is not None
    network = TowerNetwork(shape, EngineLayer(engine))
    return LocalUpdate(network, own, engine, seed=1), own


@pytest.mark.parametrize("hidden", [(4,), (4, 3)])
def test_the_gradient_of_local_steps_is_that_of_torch(hidden: tuple[int, ...]) -> None:
    """On all rows; and over the batches of a pass it averages to that."""
    engine = engine_of()
    rng = np.random.default_rng(2)
    local, own = local_update(engine, hidden=hidden, outputs=2)
    shape = local._network.shape
    start = [rng.normal(size=s) for s in shape.shapes]
    moved = [p + 0.3 * rng.normal(size=p.shape) for p in start]
    v = rng.normal(size=(ROWS, 2))
    local.begin(local._network.tensor(shape.pack(start)[:, 0]), local._network.tensor(v), 1.7)
    flat = local._network.tensor(shape.pack(moved)[:, 0])
    anchor = shape.forward(dense(engine) @ start[0], start)
    expected = augmented_slope(engine, own, moved, anchor, v, 1.7)
    found = local._gradient(flat, np.arange(ROWS), 0) + local._penalty * flat
    np.testing.assert_allclose(found, expected, atol=1e-10)
    batches = rng.permutation(ROWS).reshape(4, 10)
    parts = [local._gradient(flat, batch, 0) + local._penalty * flat for batch in batches]
    np.testing.assert_allclose(torch.stack(parts).mean(0), expected, atol=1e-10)


def admm_round(clients: Sequence[TowerOperator], values: Sequence[Any], rho: float) -> list[Any]:
    replies: list[Any] = [c.handle(residuals(v, rho)) for c, v in zip(clients, values, strict=True)]
    while isinstance(replies[0], ConsensusPart):
        mean = average([reply.values for reply in replies])
        replies = [c.handle(ConsensusAverage("run", 3, mean)) for c in clients]
    return replies


@pytest.mark.parametrize(
    ("activation", "cuts", "hidden"),
    combinations(sorted(FUNCTIONS), ((), (11, 30)), ((4,), (5, 3))),
)
def test_an_update_lowers_the_augmented_objective(
    activation: str, cuts: tuple[int, ...], hidden: tuple[int, ...]
) -> None:
    engine = engine_of()
    usual = {"algorithm": "admm", "hidden": hidden, "activation": activation, "outputs": 2}
    parts = split(engine, cuts)
    shared = {
        "clients": len(parts), "consensus": len(parts) > 1, "inner_rounds": 10,
        "rows": int(engine.counts.sum()), "total": float(engine.counts.sum()),
    }  # fmt: skip
    clients = [operator(part, **usual, **shared, number=q) for q, part in enumerate(parts)]
    own = configuration(engine, **usual)
    for epoch in range(3):
        anchor = np.concatenate([c.handle(SendPredictions("run", 3)).values for c in clients])
        v = np.random.default_rng(epoch).normal(size=(ROWS, 2)) * engine.counts[:, None]
        before = augmented(engine, own, clients[0].parameters, anchor, v, 1.5)
        replies = admm_round(clients, np.split(v, cuts), 1.5)
        after = augmented(engine, own, clients[0].parameters, anchor, v, 1.5)
        assert after < before - 0.02
        for client in clients[1:]:
            for mine, first in zip(client.parameters, clients[0].parameters, strict=True):
                np.testing.assert_array_equal(mine, first)
        found = np.concatenate([reply.values for reply in replies])
        first, *_ = parameters = clients[0].parameters
        expected = clients[0].shape.forward(dense(engine) @ first, parameters)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def target_of(engine: DenseEngine) -> np.ndarray:
    weights = np.random.default_rng(9).normal(size=(engine.width, 1))
    return dense(engine) @ weights / math.sqrt(engine.width)


@pytest.mark.parametrize("cuts", [(), (13,), (10, 20, 30)])
@pytest.mark.parametrize("batch", [400, 32])
def test_updates_find_what_can_be_found(cuts: tuple[int, ...], batch: int) -> None:
    """V = cnt ρ (h − t) of a linear target t: the least of the objective is near f = t."""
    engine = engine_of(rows=160)
    parts = split(engine, [4 * c for c in cuts])
    total = engine.counts.sum()
    clients = [
        operator(
            part, algorithm="admm", activation="relu", hidden=(16,), l2=1e-6, number=q,
            clients=len(parts), consensus=len(parts) > 1, inner_rounds=10, rows=int(total),
            total=float(total), local_batch=batch, local_epochs=20,
        )
        for q, part in enumerate(parts)
    ]  # fmt: skip
    target, errors = target_of(engine), []
    for _ in range(5):
        h = np.concatenate([c.handle(SendPredictions("run", 3)).values for c in clients])
        errors.append(float((engine.counts[:, None] * (h - target) ** 2).sum() / total))
        v = engine.counts[:, None] * (h - target)
        admm_round(clients, np.split(v, [4 * c for c in cuts]), 1.0)
    assert errors[0] > 0.2
    assert errors[-1] < 0.01 * errors[0], errors


def test_rows_that_count_nothing_are_predicted_and_not_fitted() -> None:
    engine = engine_of()
    engine.counts[::4] = 0.0
    found = []
    for extra in (0.0, 100.0):
        own = operator(engine, algorithm="admm")
        h = own.handle(SendPredictions("run", 3)).values
        v = np.where(engine.counts[:, None] > 0, h - 1.0, extra)
        reply = own.handle(residuals(v, 1.0))
        assert reply.values.shape == (ROWS, 1)
        found.append(reply.values)
    np.testing.assert_array_equal(found[0], found[1])
    nobody = engine_of()
    nobody.counts[:] = 0.0
    idle = operator(nobody, algorithm="admm", rows=9, total=9.0)
    before = idle.handle(SendPredictions("run", 3)).values
    np.testing.assert_array_equal(idle.handle(residuals(np.zeros((ROWS, 1)), 1.0)).values, before)


def test_a_client_without_rows_takes_part_in_consensus() -> None:
    """Its own objective is the penalty alone, whose least is known in closed form."""
    engine = engine_of()
    empty = operator(
        split(engine, [0])[0], algorithm="admm", clients=2, consensus=True, inner_rounds=2, l2=0.5
    )
    start = empty.shape.pack(empty.parameters)
    empty.handle(SendPredictions("run", 3))
    reply = empty.handle(residuals(np.zeros((0, 1)), 1.0))
    assert isinstance(reply, ConsensusPart)
    assert empty._local is not None
    metric = np.asarray(empty._local._metric)[:, None]
    weights = empty.shape.pack([np.full(s, float(len(s) == 2)) for s in empty.shape.shapes])
    np.testing.assert_allclose(reply.values, metric * start / (metric + 0.25 * weights))


@given(SHAPES)
def test_the_metric_is_the_mean_squared_derivative_of_units_that_are_half_active(
    shape: Any,
) -> None:
    """How active a unit is depends on its rows, from never to always: the rest is exact."""
    hidden, activation, outputs, numeric, categories, seed = shape
    engine = engine_of(rows=400, numeric=numeric, categories=categories, seed=seed)
    form = TowerShape(engine.width, hidden, outputs, activation)
    rng = np.random.default_rng(seed)
    parameters = [rng.normal(size=s) / math.sqrt(s[0]) for s in form.shapes]
    found = sensitivities(form, parameters, engine.centre)
    assert found.shape == (form.size,)
    assert (found > 0).all()
    if len(hidden) == 1 and numeric:
        theirs, rows = tensors(parameters), dense(engine)
        exact = np.zeros((numeric, hidden[0]))
        for row in rows:
            for c in range(outputs):
                for p in theirs:
                    p.grad = None
                tower(row[None], theirs, activation)[0, c].backward()
                assert theirs[0].grad is not None
                exact += theirs[0].grad[:numeric].numpy() ** 2 / 400
        inputs = (torch.tensor(rows) @ theirs[0] + theirs[1]).detach().requires_grad_()
        FUNCTIONS[activation](inputs).sum().backward()
        assert inputs.grad is not None
        active = (rows[:, :numeric] ** 2).T @ inputs.grad.numpy() ** 2 / 400
        own = form.unpack(found)[0][:numeric]
        small = own < 1.01e-3 * own.max()  # taken for larger, for one divides by it
        np.testing.assert_allclose(exact[~small], (own * active / 0.5)[~small], rtol=1e-9)
        assert (exact <= own * active / 0.5 * (1 + 1e-9)).all()


def test_local_steps_repeat() -> None:
    engine, found = engine_of(), []
    for seed in (5, 5, 6):
        start = operator(engine, algorithm="admm").parameters
        own = operator(engine, start, algorithm="admm", seed=seed, dropout=0.2)
        own.handle(SendPredictions("run", 3))
        for _ in range(2):
            reply = own.handle(residuals(np.ones((ROWS, 1)), 1.0))
        found.append(reply.values)
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_few_rows_take_steps_enough() -> None:
    engine = engine_of()
    counted: list[int] = []

    class Counting:
        def step(self, parameters: Any, gradient: Any, rate: float) -> Any:
            counted[-1] += 1
            return parameters - 1e-3 * rate * gradient

    for epochs, batch, expected in ((4, 400, MIN_STEPS), (4, 16, 102), (60, 20, 120)):
        local, _ = local_update(engine, local_epochs=epochs, local_batch=batch)
        local._optimizer = Counting()
        counted.append(0)
        flat = local._network.tensor(np.zeros(local._network.shape.size))
        local.begin(flat, local._network.tensor(np.ones((ROWS, 1))), 1.0)
        local.minimise()
        assert counted[-1] == expected


# -- what is kept, refused, and computed elsewhere ------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_towers_of_the_last_epochs_are_kept(algorithm: str) -> None:
    engine = engine_of()
    own = operator(engine, algorithm=algorithm, keep=2)
    own.handle(SendPredictions("run", 3))
    coefficients = (0.1, float(ROWS), 1.0) if algorithm == "sgd" else (1.0,)
    found = []
    for epoch in range(5):
        own.handle(residuals(np.full((ROWS, 1), 1.0 + epoch), *coefficients))
        found.append(own.shape.pack(own.parameters))
    for back in range(3):
        np.testing.assert_array_equal(own.shape.pack(own.kept(back)), found[-1 - back])
    kept = own.kept(0)
    kept[0][:] = 7.0
    assert not (own.parameters[0] == 7.0).any()
    with pytest.raises(InternalError, match="3 epochs back, of 3"):
        own.kept(3)
    with pytest.raises(InternalError, match="1 epochs back, of 0"):
        operator(engine).kept(1)


def test_batches_within_an_epoch_are_no_epochs() -> None:
    own = operator(engine_of(), keep=1)
    own.handle(SendPredictions("run", 3))
    ends, rows = [], ROWS
    for number in range(6):
        last = float(number % 3 == 2)
        batch = () if last else (1, 3)
        own.handle(residuals(np.ones((rows, 1)), 0.1, 2.0, last, batch=batch))
        rows = ROWS if last else 2
        if last:
            ends.append(own.shape.pack(own.parameters))
    np.testing.assert_array_equal(own.shape.pack(own.kept(1)), ends[0])
    np.testing.assert_array_equal(own.shape.pack(own.kept(0)), ends[1])


def test_a_start_is_copied_and_must_fit() -> None:
    engine = engine_of()
    start = [np.full(s, 0.5) for s in operator(engine).shape.shapes]
    own = operator(engine, start)
    start[0][:] = 0.0
    assert (own.parameters[0] == 0.5).all()
    with pytest.raises(InternalError, match=r"a start of shapes .* for a tower of"):
        operator(engine, start[:-1])
    with pytest.raises(InternalError, match="without hidden layers"):
        TowerOperator(engine, configuration(engine, hidden=()), "run", 3)


def test_messages_of_other_parts_are_refused() -> None:
    engine = engine_of()
    for own in (operator(engine), operator(engine, algorithm="admm")):
        for message in (Finish("run", 3), Probe("run", 3, np.zeros((ROWS, 1), np.float32))):
            with pytest.raises(InternalError, match="no part of training a tower"):
                own.handle(message)
    column = np.zeros((own.shape.size, 1))
    with pytest.raises(InternalError, match="consensus_average is no part"):
        operator(engine).handle(ConsensusAverage("run", 3, column))
    with pytest.raises(InternalError, match="sum_gradient is no part"):
        own.handle(SumGradient("run", 3, column))
    with pytest.raises(InternalError, match="of which no rows were asked"):
        operator(engine).handle(residuals(np.zeros((ROWS, 1)), 0.1, 1.0, 1.0))
    with pytest.raises(InternalError, match="not trained by 'lbfgs'"):
        operator(engine, algorithm="lbfgs")
    own = operator(engine)
    own.handle(SendPredictions("run", 3))
    with pytest.raises(InternalError, match="outputs is 2, expected 1"):
        own.handle(residuals(np.zeros((ROWS, 2)), 0.1, 1.0, 1.0))


def test_steps_that_diverge_are_told() -> None:
    own = operator(engine_of(), activation="relu")
    own.handle(SendPredictions("run", 3))
    with pytest.raises(ModelError, match="the steps diverge"):
        own.handle(residuals(np.full((ROWS, 1), 1e30), 1e30, 1.0, 1.0))


def test_linear_blocks_are_made_by_the_same_door() -> None:
    engine = engine_of()
    own, make = configuration(engine, hidden=()), client_of("sgd").operator
    made = make(engine, own, "run", 3, (np.ones((7, 1)),))
    assert isinstance(made, ClientOperator)
    assert made.shape is None
    np.testing.assert_array_equal(made.parameters[0], np.ones((7, 1)))
    np.testing.assert_array_equal(make(engine, own, "run", 3).kept(0)[0], 0.0)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_linear_blocks_take_the_optimizers_steps(optimizer: str) -> None:
    engine = engine_of()
    own = configuration(engine, hidden=(), optimizer=optimizer, momentum=0.8)
    block = client_of("sgd").operator(engine, own, "run", 3)
    theta = torch.zeros((7, 1), dtype=torch.float64, requires_grad=True)
    method = OPTIMIZERS[optimizer]([theta])
    values = np.random.default_rng(0).normal(size=(ROWS, 1)).astype(np.float32)
    for _ in range(5):
        reply = block.handle(residuals(values, 0.05, ROWS, 1.0))
        theta.grad = torch.tensor(dense(engine).T @ values.astype(float)) / ROWS
        theta.grad += 1e-2 * theta.detach()
        method.step()
    np.testing.assert_allclose(block.parameters[0], theta.detach(), atol=1e-12)
    assert isinstance(reply, Predictions)
    np.testing.assert_allclose(reply.products, penalty(block.parameters[0], own))


@given(SHAPES, st.booleans())
def test_columns_on_a_device_give_what_the_engine_gives(shape: Any, batched: bool) -> None:
    *_, numeric, categories, seed = shape
    engine = engine_of(numeric=numeric, categories=categories, seed=seed)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(ROWS)[:9].astype(np.uint32) if batched else None
    weights = torch.tensor(rng.normal(size=(engine.width, 3)))
    slopes = torch.tensor(rng.normal(size=(9 if batched else ROWS, 3)))
    reference = EngineLayer(engine)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        layer = DeviceLayer(engine, torch.device("cpu"), dtype)
        found = layer.forward(weights.to(dtype), rows)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, reference.forward(weights, rows), atol=tolerance)
        found = layer.backward(slopes.to(dtype), rows)
        np.testing.assert_allclose(found, reference.backward(slopes, rows), atol=tolerance)


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_training_with_columns_on_a_device(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, as on CUDA: the same up to its rounding."""
    train_on(torch.device("cpu"), algorithm, monkeypatch)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_training_on_cuda(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train_on(torch.device("cuda"), algorithm, monkeypatch)


def train_on(device: torch.device, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, found = engine_of(), []
    coefficients = (0.05, float(ROWS), 1.0) if algorithm == "sgd" else (1.0,)
    for layer in (EngineLayer(engine), DeviceLayer(engine, device)):
        monkeypatch.setattr("sqlfl.party.first_layer.make_layer", lambda *_, own=layer, **__: own)
        own = operator(engine, algorithm=algorithm, optimizer="adam", hidden=(4, 3), device="cuda")
        reply = own.handle(SendPredictions("run", 3))
        for _ in range(4):
            assert isinstance(reply, Predictions)
            values = reply.values - target_of(engine).astype(np.float32)
            reply = own.handle(residuals(values, *coefficients))
        assert isinstance(reply, Predictions)
        assert reply.values.dtype == np.float32
        assert own.parameters[0].dtype == np.float64
        found.append(reply.values)
    np.testing.assert_allclose(found[0], found[1], atol=2e-3)
    assert np.ptp(found[0]) > 0.1


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("cpu") == device_of("auto") == torch.device("cpu")
    assert isinstance(make_layer(engine, "auto"), EngineLayer)
    with pytest.raises(ModelError, match="no CUDA device here\nhint: device = 'auto'"):
        operator(engine, device="cuda")
    with pytest.raises(InternalError, match="tpu"):
        device_of("tpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("auto") == device_of("cuda") == torch.device("cuda")
    assert device_of("cpu") == torch.device("cpu")
    monkeypatch.setattr(engine, "name", "sql")
    assert isinstance(make_layer(engine, "auto"), EngineLayer), "too large for memory"


@pytest.mark.parametrize("hidden", [towers.DEVICE_VALUES, 0], ids=["small", "large"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_numpy_trains_on_cpus_and_small_towers(
    device: str, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`device`: that which 'auto' finds. Only a device that is found trains in torch."""
    engine, asked = engine_of(), []
    layer = EngineLayer(engine)
    monkeypatch.setattr(layer, "device", torch.device(device))
    monkeypatch.setattr(
        "sqlfl.party.first_layer.make_layer", lambda *_, **__: asked.append(layer) or layer
    )
    monkeypatch.setattr(towers, "DEVICE_VALUES", hidden)
    network = operator(engine, device="auto")._network
    assert isinstance(network, Perceptron) == (device == "cpu" or hidden > 0)
    assert bool(asked) == (hidden == 0)
    asked.clear()
    assert isinstance(operator(engine, device="cpu")._network, Perceptron)
    assert not asked


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear block trains, and a small tower; a tower with dropped units says what is missing."""
    engine = engine_of()
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)
        return real(name, *arguments)

    for module in list(sys.modules):
        if module in ("sqlfl.models.neural", "sqlfl.party.first_layer"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)
    client_of("sgd").operator(engine, configuration(engine, hidden=()), "run", 3)
    operator(engine)
    for other in ({"dropout": 0.5}, {"device": "cuda"}, {"activation": "gelu"}):
        with pytest.raises(ModelError, match=r"PyTorch.*\nhint: pip install 'sqlfl\[neural\]'"):
            operator(engine, **other)
