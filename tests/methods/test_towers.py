"""Towers and head against torch on the materialised join, step by step; ADMM near its optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from sqlfl.base.errors import ModelError
from sqlfl.contract import stopping
from sqlfl.coordinator.rounds.problem import coordinator_of
from sqlfl.messages import Predictions, Residuals, SendPredictions
from sqlfl.methods.admm.messages import AdmmResiduals
from tests.depth import combinations, in_turn
from tests.methods.harness import Join, MemoryChannel, Trained, random_join, train
from tests.methods.test_weights import duplicated

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "gelu": torch.nn.functional.gelu}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "plain": {"optimizer": "plain", "learning_rate": 0.2},
    "momentum": {"optimizer": "momentum", "momentum": 0.8, "learning_rate": 0.05},
    "adam": {"optimizer": "adam", "learning_rate": 0.02},
}
SHAPES: dict[str, dict[str, Any]] = {
    "one layer": {"hidden": (6,), "activation": "tanh"},
    "two layers": {"hidden": (5, 3), "activation": "gelu"},
    "head": {"hidden": (6,), "activation": "tanh", "head": "linear", "embedding": 4},
}
KINDS = ("linear_regression", "softmax_regression")


def curved(kind: str, seed: int = 0, noise: float = 0.3, **options: Any) -> Join:
    """A join whose target is a sum of curved functions of its tables."""
    join = random_join(kind, seed=seed, **options)
    rng = np.random.default_rng(seed + 100)
    h = np.zeros((len(join.targets), join.loss.outputs))
    for table, rows in zip(join.tables, join.rows, strict=True):
        bend = rng.normal(size=(table.shape[1], 8))
        h += (np.tanh(table @ bend) @ rng.normal(size=(8, h.shape[1])) / 2.0)[rows]
    if kind == "linear_regression":
        return replace(join, targets=h[:, 0] + noise * rng.normal(size=len(h)), engines={})
    if kind == "poisson_regression":
        counts = rng.poisson(np.exp(h[:, 0])).astype(float)
        return replace(join, targets=counts, loss=join.loss.fitted(counts, None), engines={})
    if kind == "gamma_regression":
        costs = np.exp(h[:, 0]) * rng.gamma(2.0, 0.5, size=len(h))
        return replace(join, targets=costs, loss=join.loss.fitted(costs, None), engines={})
    return replace(join, targets=(2.0 * h + rng.gumbel(size=h.shape)).argmax(axis=1), engines={})


@dataclass
class Central:
    """The same network on dense joined rows, from the parameters that the clients begin with."""

    join: Join
    activation: str
    towers: list[list[torch.Tensor]]
    intercept: torch.Tensor
    head: torch.Tensor | None
    bounded: bool = False

    @classmethod
    def of(cls, join: Join, options: Mapping[str, Any], algorithm: str = "sgd") -> Central:
        problem = join.problem(algorithm, **options)
        channel = MemoryChannel(join.engines)
        method = coordinator_of(algorithm)(problem, channel)
        method.start()
        towers = [
            [parameter(p) for p in channel.operators[members.addresses[0]].parameters]
            for members in problem.slots
        ]
        head = None if method.head is None else parameter(method.head)
        bounded = channel.operators[problem.slots[0].addresses[0]].shape.bounded
        return cls(join, options["activation"], towers, parameter(method.intercept), head, bounded)

    @property
    def parameters(self) -> list[torch.Tensor]:
        head = [] if self.head is None else [self.head]
        return [*(p for tower in self.towers for p in tower), self.intercept, *head]

    def scores(self, joined: np.ndarray) -> torch.Tensor:
        total = self.embedding(joined)
        return (total if self.head is None else total @ self.head) + self.intercept

    def embedding(self, joined: np.ndarray) -> torch.Tensor:
        total = torch.zeros(())
        join = self.join
        for slot, (first, *upper) in enumerate(self.towers):
            design = (join.tables[slot] - join.centres[slot])[join.rows[slot][joined]]
            values = torch.tensor(design) @ first
            for bias, weights in zip(upper[0::2], upper[1::2], strict=True):
                values = ACTIVATIONS[self.activation](values + bias) @ weights
            total = total + (torch.tanh(values) if self.bounded else values)
        return total

    def loss(self, joined: np.ndarray) -> torch.Tensor:
        y, scores = torch.tensor(self.join.targets[joined]), self.scores(joined)
        if self.join.loss.name == "squared":
            each = 0.5 * (scores[:, 0] - y) ** 2
        elif self.join.loss.name == "poisson":
            mean = torch.exp(scores[:, 0])
            each = mean - y - torch.xlogy(y, mean / torch.where(y > 0, y, 1.0))
        elif self.join.loss.name == "gamma":
            ratio = y * torch.exp(-scores[:, 0])
            each = ratio - 1.0 - torch.log(ratio)
        else:
            each = torch.nn.functional.cross_entropy(scores, y, reduction="none")
        if self.join.weights is None:
            return each.mean()
        weights = torch.tensor(self.join.weights[joined])
        return (weights * each).sum() / weights.sum()

    def objective(self, joined: np.ndarray) -> torch.Tensor:
        weights = [w for first, *upper in self.towers for w in (first, *upper[1::2])]
        weights += [] if self.head is None else [self.head]
        return self.loss(joined) + self.join.l2 / 2.0 * sum((w**2).sum() for w in weights)

    def fit(self, batches: list[list[np.ndarray]], options: Mapping[str, Any]) -> list[float]:
        """The objective over all rows after each epoch's batches."""
        rate, name = options["learning_rate"], options["optimizer"]
        if name == "adam":
            method: torch.optim.Optimizer = torch.optim.Adam(self.parameters, lr=rate)
        else:
            momentum = options.get("momentum", 0.0) if name == "momentum" else 0.0
            method = torch.optim.SGD(self.parameters, lr=rate, momentum=momentum)
        found = []
        for epoch in batches:
            for joined in epoch:
                method.zero_grad()
                self.objective(joined).backward()
                method.step()
            found.append(self.objective(np.arange(len(self.join.targets))).item())
        return found

    def compare(self, trained: Trained, atol: float) -> None:
        """Parameters, scores, intercept and head are these."""
        flat = [p.detach().numpy().reshape(-1) for tower in self.towers for p in tower]
        np.testing.assert_allclose(trained.theta[:, 0], np.concatenate(flat), atol=atol)
        every = np.arange(len(self.join.targets))
        scores = self.scores(every).detach().numpy()
        np.testing.assert_allclose(self.join.scores(trained.algorithm), scores, atol=10 * atol)
        own = self.intercept.detach().numpy()
        np.testing.assert_allclose(trained.algorithm.intercept, own, atol=atol)
        assert (trained.algorithm.head is None) == (self.head is None)
        if self.head is not None:
            own = self.head.detach().numpy()
            np.testing.assert_allclose(trained.algorithm.head, own, atol=atol)


def parameter(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.array(values, np.float64), requires_grad=True)


def batches_of(rows: np.ndarray, batch: int, epochs: int, seed: int) -> list[list[np.ndarray]]:
    """The coordinator's batches, in its order."""
    rng = np.random.default_rng(seed)
    drawn = []
    for _ in range(epochs):
        order = rows[rng.permutation(len(rows))]
        drawn.append(np.split(order, range(batch, len(order), batch)))
    return drawn


SMALL = {"total": 300, "sizes": (300, 40, 9), "l2": 1e-2}


@pytest.mark.parametrize(
    ("kind", "optimizer", "shape", "clients"),
    combinations(KINDS, tuple(OPTIMIZERS), tuple(SHAPES), (None, (3, 2, 1))),
)
def test_steps_on_all_rows_are_those_of_torch(kind: str, optimizer, shape, clients) -> None:
    join = curved(kind, clients=clients, **SMALL)
    options = {**OPTIMIZERS[optimizer], **SHAPES[shape], "seed": 3, "epochs": 5}
    central = Central.of(join, options)
    trained = train(join, "sgd", **options)
    every = np.arange(len(join.targets))
    expected = central.fit([[every]] * 5, options)
    found = [step.objective for step in trained.steps]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert trained.steps[-1].loss == pytest.approx(central.loss(every).item(), rel=1e-5)
    central.compare(trained, 1e-5)
    assert found[-1] < found[0]


@pytest.mark.parametrize("kind", ["poisson_regression", "gamma_regression"])
def test_steps_of_exponential_means_are_those_of_torch(kind: str) -> None:
    join = curved(kind, **SMALL)
    options = {**OPTIMIZERS["adam"], **SHAPES["head"], "seed": 3, "epochs": 8}
    central = Central.of(join, options)
    trained = train(join, "sgd", **options)
    expected = central.fit([[np.arange(len(join.targets))]] * 8, options)
    found = [step.objective for step in trained.steps]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    central.compare(trained, 1e-5)
    assert found[-1] < found[0]


@pytest.mark.parametrize(
    ("optimizer", "shape", "clients"),
    combinations(tuple(OPTIMIZERS), tuple(SHAPES), (None, (2, 1, 3))),
)
def test_batches_are_those_of_torch(optimizer, shape, clients) -> None:
    """With weights: batches are of rows that weigh something, each of its weighted mean."""
    join = curved("softmax_regression", clients=clients, **SMALL)
    weights = np.random.default_rng(1).exponential(size=len(join.targets))
    weights[::5] = 0.0
    join = replace(join, weights=weights, engines={})
    options = {**OPTIMIZERS[optimizer], **SHAPES[shape], "seed": 4, "epochs": 2, "batch_size": 70}
    central = Central.of(join, options)
    trained = train(join, "sgd", **options)
    expected = central.fit(batches_of(np.flatnonzero(weights), 70, 2, 4), options)
    np.testing.assert_allclose([s.objective for s in trained.steps], expected, rtol=1e-5)
    central.compare(trained, 2e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_of_linear_blocks_are_those_of_torch(optimizer) -> None:
    join = random_join("softmax_regression", clients=(1, 2, 3), **SMALL)
    trained = train(join, "sgd", epochs=9, **optimizer)
    theta = parameter(np.zeros((join.design.shape[1], 3)))
    intercept = parameter(join.loss.initial_intercept(join.targets))
    rate, name = optimizer["learning_rate"], optimizer["optimizer"]
    if name == "adam":
        method: torch.optim.Optimizer = torch.optim.Adam([theta, intercept], lr=rate)
    else:
        method = torch.optim.SGD([theta, intercept], lr=rate, momentum=optimizer.get("momentum", 0))
    for _ in range(9):
        method.zero_grad()
        scores = torch.tensor(join.design) @ theta + intercept
        value = torch.nn.functional.cross_entropy(scores, torch.tensor(join.targets))
        (value + join.l2 / 2 * (theta**2).sum()).backward()
        method.step()
    np.testing.assert_allclose(trained.theta, theta.detach(), atol=2e-6)
    np.testing.assert_allclose(trained.algorithm.intercept, intercept.detach(), atol=2e-6)


@pytest.mark.parametrize(
    ("correlation", "kind"),
    in_turn(
        (0.0, 0.95), ("linear_regression", "logistic_regression", "softmax_regression"), each=2
    ),
)
def test_the_estimated_step_of_momentum_is_safe(kind: str, correlation: float) -> None:
    sizes = (1500,) * 4 if correlation else (1500, 60, 12)
    join = random_join(kind, correlation=correlation, sizes=sizes)
    plain = [s.objective for s in train(join, "sgd", epochs=60).steps]
    found = [s.objective for s in train(join, "sgd", epochs=60, optimizer="momentum").steps]
    assert max(found) <= start_of(join)
    assert found[-1] < 1.01 * plain[-1]
    batched = train(join, "sgd", epochs=15, optimizer="momentum", batch_size=100).steps
    assert batched[-1].objective < batched[0].objective


def test_linear_adam_takes_steps_of_a_hundredth_without_power_rounds() -> None:
    join = random_join()
    trained = train(join, "sgd", epochs=4, optimizer="adam")
    assert trained.channel.rounds == 1 + 4 + 2  # the last two measure the gradient
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals)]
    assert {m.rate for m in sent} == {0.01 * join.loss.unit(join.targets)}


@pytest.mark.parametrize("options", [{}, {"batch_size": 64}], ids=["all rows", "batches"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_number_of_clients_does_not_matter(shape, options) -> None:
    more = {**shape, **options, "epochs": 3, "seed": 2, "optimizer": "momentum"}
    one = train(curved("softmax_regression", **SMALL), "sgd", **more)
    for clients in ((2, 2, 2), (3, 1, 2)):
        many = train(curved("softmax_regression", clients=clients, **SMALL), "sgd", **more)
        np.testing.assert_allclose(many.theta, one.theta, atol=2e-6)
        np.testing.assert_allclose(many.algorithm.intercept, one.algorithm.intercept, atol=2e-6)
        found = [s.objective for s in many.steps]
        np.testing.assert_allclose(found, [s.objective for s in one.steps], rtol=2e-6)


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
@pytest.mark.parametrize("shape", [SHAPES["one layer"], SHAPES["head"]], ids=["towers", "head"])
def test_an_integer_weight_is_the_row_so_often(shape, algorithm: str) -> None:
    join = curved("softmax_regression", **SMALL)
    # every row of every table is in the join still, so that local steps are of the same rows
    weights = np.random.default_rng(4).integers(1, 4, 300).astype(float)
    join = replace(join, weights=weights, engines={})
    options = {**shape, "epochs": 4, "batch_size": 10**6}
    one, many = train(join, algorithm, **options), train(duplicated(join), algorithm, **options)
    rtol = 5e-6 if algorithm == "sgd" else 1e-3
    np.testing.assert_allclose(
        [s.objective for s in one.steps], [s.objective for s in many.steps], rtol=rtol
    )


@pytest.mark.parametrize(("name", "algorithm"), in_turn(tuple(SHAPES), ("sgd", "admm")))
def test_the_objective_is_that_of_what_the_clients_hold(name: str, algorithm: str) -> None:
    shape = SHAPES[name]
    join = curved("softmax_regression", clients=(2, 1, 1), **SMALL)
    weights = np.random.default_rng(2).integers(0, 3, 300).astype(float)
    join = replace(join, weights=weights, engines={})
    options = {**shape, "dropout": 0.25, "epochs": 2, "batch_size": 100, "seed": 5}
    trained = train(join, algorithm, **options)
    central = Central.of(join, options)
    for slot, tower in enumerate(central.towers):
        address = join.problem("sgd", **options).slots[slot].addresses[0]
        tower[:] = [parameter(p) for p in trained.channel.operators[address].parameters]
    central.intercept = parameter(trained.algorithm.intercept)
    if trained.algorithm.head is not None:
        central.head = parameter(trained.algorithm.head)
    every = np.arange(300)
    assert trained.objective == pytest.approx(central.objective(every).item(), rel=1e-6)
    assert trained.steps[-1].loss == pytest.approx(central.loss(every).item(), rel=1e-6)
    central.compare(trained, 1e-5)


SGD = {"epochs": 3, "tolerance": 0.0, "hidden": (4,), "activation": "tanh"}


@pytest.mark.parametrize(
    ("clients", "options", "rounds"),
    [
        ((1, 1, 1), {}, 2 + 3),
        ((1, 2, 1), {}, 2 + 2 * 3),
        ((1, 1, 1), {"batch_size": 100}, 2 + 3 * 3),
        ((1, 2, 1), {"batch_size": 100}, 2 + 2 * 3 * 3),
        ((1, 1, 1), {"dropout": 0.5}, 2 + 3 + 3),
        ((1, 2, 1), {"dropout": 0.5, "batch_size": 100}, 2 + 3 + 2 * 3 * 3),
        ((1, 1, 1), {"head": "linear", "embedding": 2}, 2 + 3),
    ],
)
def test_exchanges_of_sgd(clients, options, rounds) -> None:
    trained = train(curved("linear_regression", clients=clients, **SMALL), "sgd", **SGD, **options)
    assert trained.channel.rounds == rounds
    assert trained.channel.kinds[:2] == [["start"], ["send_predictions"]]
    width = options.get("embedding", 1)
    for message in trained.channel.sent:
        if isinstance(message, (Residuals, Predictions)):
            assert message.values.dtype == np.float32
            assert message.values.shape[1] == width


def test_dropped_units_are_of_the_batch_whose_residuals_come_next() -> None:
    join = curved("linear_regression", **SMALL)
    trained = train(join, "sgd", **SGD, dropout=0.5, batch_size=100)
    own = [m for m in trained.channel.sent if m.slot == 0]
    asked = [n for n, m in enumerate(own) if isinstance(m, SendPredictions)]
    assert [(own[n].training, own[n].whole) for n in asked] == [(0, 1)] + 3 * [(1, 0)]
    for n in asked[1:]:
        prediction, residuals = own[n + 1], own[n + 2]
        assert isinstance(prediction, Predictions)
        assert isinstance(residuals, Residuals)
        assert len(own[n].batch) == len(prediction.values) == len(residuals.values) == 100


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"tolerance": 10.0, "optimizer": "plain"}, 1),
        ({"tolerance": 10.0, "optimizer": "momentum", "momentum": 0.75}, 4),
        ({"tolerance": 10.0}, 10),
        ({"tolerance": 10.0, "batch_size": 100}, 20),
        ({"tolerance": 10.0, "dropout": 0.1}, 20),
    ],
)
def test_only_what_is_not_random_ends_early(options, ends: int) -> None:
    join = curved("linear_regression", **SMALL)
    trained = train(join, "sgd", hidden=(4,), activation="tanh", **options)
    assert len(trained.steps) == ends
    ending = trained.steps[-1].ending
    assert ending is not None
    assert ending.short == (stopping.STILL if ends < 20 else stopping.LIMIT)
    # of towers no gradient would prove a minimum
    assert (ending.converged, ending.gap) == (False, None)


def test_a_warm_start_goes_on_where_it_was() -> None:
    join = curved("linear_regression", **SMALL)
    options = {**SHAPES["head"], "optimizer": "plain", "learning_rate": 0.1}
    first = train(join, "sgd", epochs=4, **options)
    problem = replace(
        join.problem("sgd", warm=True, epochs=3, seed=9, **options), head=first.algorithm.head
    )
    method = coordinator_of("sgd")(problem, MemoryChannel(join.engines, first.blocks))
    method.start()
    # the intercept is that which suits the towers best
    np.testing.assert_array_equal(method.head, first.algorithm.head)
    before = join.loss.value(join.scores(method), join.targets)
    assert before <= first.steps[-1].loss + 1e-9
    assert before == pytest.approx(first.steps[-1].loss, rel=0.02)
    objectives = [step.objective for step in method.steps()]
    assert objectives[0] < first.objective


def best_of_adam(join: Join, **options: Any) -> float:
    trained = train(join, "sgd", epochs=300, learning_rate=0.02, **options)
    return min(step.objective for step in trained.steps)


ADMM = {
    "towers": {"hidden": (8,), "activation": "tanh"},
    "head": {"hidden": (8,), "activation": "tanh", "head": "linear", "embedding": 4},
}


@pytest.mark.parametrize(("kind", "name"), in_turn(KINDS, tuple(ADMM)))
def test_admm_comes_near_the_objective_of_adam(kind: str, name: str) -> None:
    clients, shape = (1, 2, 1), ADMM[name]
    size = {"total": 400, "sizes": (400, 60, 12)}
    best = best_of_adam(curved(kind, seed=1, **size), **shape)
    join = curved(kind, seed=1, clients=clients, **size)
    more = {"epochs": 25, "inner_rounds": 5, **shape}
    objectives = np.array([s.objective for s in train(join, "admm", **more).steps])
    gap = (objectives[-1] - best) / (start_of(join) - best)
    assert gap <= 0.08
    assert max(np.diff(objectives) / objectives[:-1]) <= 0.01


def start_of(join: Join) -> float:
    """The loss of the best constant."""
    constants = join.loss.initial_intercept(join.targets, join.weights)
    return join.loss.value(np.tile(constants, (len(join.targets), 1)), join.targets, join.weights)


HOSTILE: dict[str, dict[str, Any]] = {
    "as it is": {},
    "a small rho": {"rho": 1e-2},
    "a large rho": {"rho": 30.0},
    "long local steps": {"learning_rate": 0.2},
    "few inner rounds": {"inner_rounds": 1},
    "one small pass": {"local_epochs": 1, "batch_size": 20},
}


@pytest.mark.parametrize(
    ("options", "case"),
    in_turn(
        tuple(HOSTILE),
        (
            ("linear_regression", "towers", (1, 1, 1)),
            ("softmax_regression", "towers", (1, 3, 2)),
            ("linear_regression", "head", (1, 3, 2)),
            ("softmax_regression", "head", (1, 1, 1)),
        ),
        each=2,
    ),
)
def test_admm_never_diverges(options: str, case) -> None:
    """Tables that say nearly the same, so that blocks overshoot together."""
    kind, shape, clients = case
    join = curved(kind, correlation=0.97, total=200, sizes=(200,) * 3, clients=clients)
    more = {"epochs": 8, "tolerance": 0.0, "inner_rounds": 2, **ADMM[shape], **HOSTILE[options]}
    objectives = np.array([step.objective for step in train(join, "admm", **more).steps])
    assert objectives.max() <= 1.5 * start_of(join)
    assert objectives[-1] <= start_of(join)


@pytest.mark.parametrize(
    ("clients", "options", "rounds"),
    [
        ((1, 1, 1), {}, 2 + 3),
        ((1, 2, 1), {"inner_rounds": 4}, 2 + 3 * (1 + 4)),
        ((1, 1, 1), {"head": "linear", "embedding": 2, "dropout": 0.2}, 2 + 3),
    ],
)
def test_exchanges_of_admm(clients, options, rounds) -> None:
    join = curved("linear_regression", clients=clients, **SMALL)
    trained = train(join, "admm", **SGD, **options, local_epochs=2)
    assert trained.channel.rounds == rounds
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals)]
    assert {type(m) for m in sent} == {AdmmResiduals}


def test_unlike_tables_need_no_relaxation() -> None:
    join = curved("linear_regression", total=600, sizes=(600, 300, 100))
    trained = train(join, "admm", epochs=8, **ADMM["towers"])
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals) and m.slot == 0]
    relaxation = [m.weight for m in sent]  # ρ = 1 for squared loss
    assert relaxation[0] == pytest.approx(0.76 * 3)
    assert relaxation[-1] < 1.3
    alike = curved("linear_regression", correlation=0.97, total=600, sizes=(600,) * 3)
    trained = train(alike, "admm", epochs=8, **ADMM["towers"])
    sent = [m for m in trained.channel.sent if isinstance(m, Residuals) and m.slot == 0]
    assert max(m.weight for m in sent[3:]) > 1.3


@pytest.mark.parametrize("algorithm", ["sgd", "admm"])
def test_towers_whose_steps_are_too_long_end_with_an_error(algorithm: str) -> None:
    join = curved("linear_regression", **SMALL)
    options = {"learning_rate": 1e8, "optimizer": "plain", "batch_size": 10**6}
    with pytest.raises(ModelError, match="diverge"):
        train(join, algorithm, epochs=30, hidden=(4,), activation="relu", **options)
