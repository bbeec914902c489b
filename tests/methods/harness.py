"""Random joins in memory: dense clients behind a channel, and the centralised solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import optimize, sparse

from sqlfl.contract.configuration import Configuration, TowerConfiguration
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.contract.schema import Address, Client, SlotSpecification
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.protection import SlotExposure, planned_releases
from sqlfl.coordinator.rounds.chunks import WrittenChunks
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.coordinator.rounds.problem import Algorithm, Problem, Step, coordinator_of
from sqlfl.messages import Message, Ready, Start
from sqlfl.messages.wire import decode, encode
from sqlfl.methods.admm.configuration import LocalSteps
from sqlfl.methods.sgd.options import Steps
from sqlfl.models.gram import GramMatrix
from sqlfl.models.losses import Loss, loss_of
from sqlfl.options.resolve import training_options
from sqlfl.options.training import TrainingOptions
from sqlfl.party.masked_run import MaskedRun
from sqlfl.party.neural import TowerOperator
from sqlfl.party.operator import Operator, client_of
from sqlfl.planner.federated.method_spec import spec_of

Array = np.ndarray


class DenseEngine:
    """The reference: encoded rows x as a dense matrix, the last q columns one-hot."""

    name = "arrays"

    def __init__(self, x: Array, counts: Array, centre: Array, onehots: int) -> None:
        self.x, self.counts, self.centre = x, counts, centre
        self.rows, self.width = x.shape
        self.numeric = self.width - onehots
        self.offsets = (self.numeric, self.width) if onehots else (self.numeric,)

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        return ((self.x - self.centre) if batch is None else (self.x[batch] - self.centre)) @ theta

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        x = self.x if batch is None else self.x[batch]
        return (x - self.centre).T @ np.asarray(values, np.float64)

    def gram(self) -> GramMatrix:
        full = (self.x * self.counts[:, None]).T @ self.x
        p = self.numeric
        return GramMatrix(
            full[:p, :p],
            full[p:, :p],
            sparse.csr_array(full[p:, p:]),
            self.counts @ self.x,
            float(self.counts.sum()),
        )

    def norms(self) -> Array:
        centred = self.x - self.centre
        return np.sqrt(np.einsum("rd,rd->r", centred, centred))

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        numeric: Array = self.x[:, : self.numeric].astype(kind)
        return numeric, sparse.csr_array(self.x[:, self.numeric :])


def configured(method: str, **values: Any) -> Configuration:
    """`values`: fields of the method's configuration, of its tower and of its steps; those
    that it has not are left out."""
    own = client_of(method).configuration
    if values.get("hidden"):
        values["tower"] = TowerConfiguration(**_fields(TowerConfiguration, values))
        values["local"] = LocalSteps(
            *(values.get(f"local_{name}", usual) for name, usual in LOCAL.items())
        )
    values["steps"] = Steps(**_fields(Steps, values))
    return own(**_fields(own, values))


LOCAL = {"epochs": 1, "batch": 1, "rate": 0.1}


def _fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def make_operator(engine: DenseEngine, start: Start, block: Any) -> Operator:
    """`block`: θ, or a tower's parameters, to start from; None for the usual start."""
    part = client_of(start.method)
    own = part.configuration.from_json(start.configuration)
    if block is not None and own.tower is None:
        block = (block,)
    return part.operator(engine, own, start.run, start.slot, block)


def block_of(operator: Operator) -> Array:
    """θ (d, d_c), or all parameters of a tower (size, 1)."""
    if isinstance(operator, TowerOperator):
        return operator.shape.pack(operator.parameters)
    (theta,) = operator.parameters
    return theta


def masked_run(client: Client, slot: int) -> MaskedRun:
    """What masks the sums of one slot over all slots."""
    drawn = SlotSpecification(
        slot, (), False, False, (), (), (), False, "", "arrays", masked_predictions=True
    )
    return MaskedRun(str(client), b"the parties' secret", [drawn])


class MemoryChannel:
    """Clients in this process; messages are encoded and counted as at a border."""

    def __init__(
        self,
        engines: Mapping[Address, DenseEngine],
        blocks: Mapping[Address, Any] | None = None,
    ) -> None:
        self._engines = engines
        self._blocks = blocks or {}
        self.operators: dict[Address, Any] = {}
        self.masked: dict[Address, MaskedRun] = {}
        self.rounds = 0
        self.kinds: list[list[str]] = []
        self.sent: list[Message] = []

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        self.rounds += 1
        self.kinds.append(sorted({m.kind for m in requests.values()}))
        replies = {}
        for address, request in requests.items():
            arrived = decode(encode(request))
            if isinstance(arrived, Start):
                engine = self._engines[address]
                self.operators[address] = make_operator(engine, arrived, self._blocks.get(address))
                if client_of(arrived.method).masked:
                    self.masked[address] = masked_run(*address)
                reply: Message = Ready(arrived.run, arrived.slot, engine.width)
            else:
                reply = self._answer(address, arrived)
            replies[address] = decode(encode(reply))
            self.sent += [request, reply]
        return replies

    def _answer(self, address: Address, request: Message) -> Message:
        def work() -> Message:
            found: Message = self.operators[address].handle(request)
            return found

        masked = self.masked.get(address)
        return work() if masked is None else masked.answer(request, work)


@dataclass
class Join:
    """A join of tables with everything needed to train on it, apart and in one place."""

    loss: Loss
    targets: Array
    rows: list[Array]
    tables: list[Array]
    """Per slot (n_i, d_i): encoded, one-hots not centred."""
    centres: list[Array]
    onehots: list[int]
    clients: list[int]
    l2: float
    empty_first: bool = False
    """All but the last client of a slot have no active rows."""
    weights: Array | None = None
    """(N,); None for 1 of each joined row."""
    engines: dict[Address, DenseEngine] = field(default_factory=dict)

    def problem(
        self, algorithm: str = "lbfgs", *, warm: bool = False, private: bool = False, **options: Any
    ) -> Problem:
        members = []
        for slot, table in enumerate(self.tables):
            bounds = np.linspace(0, len(table), self.clients[slot] + 1).astype(int)
            if self.empty_first:
                bounds[1:-1] = 0
            addresses = []
            counts = np.bincount(self.rows[slot], self.weights, len(table)).astype(float)
            for q in range(self.clients[slot]):
                address = (Client(f"party{slot}", q), slot)
                part = slice(bounds[q], bounds[q + 1])
                self.engines[address] = DenseEngine(
                    table[part], counts[part], self.centres[slot], self.onehots[slot]
                )
                addresses.append(address)
            members.append(SlotMembers(slot, tuple(addresses), bounds))
        return Problem(
            run="run",
            mapping=TableMapping(self.rows, [len(t) for t in self.tables]),
            slots=tuple(members),
            loss=self.loss,
            targets=self.targets,
            outputs=self.loss.outputs,
            options=training_options(
                _kind(algorithm, neural="hidden" in options),
                {"algorithm": algorithm, "l2": self.l2, **options},
                private=private,
                noised=private,
            ),
            weights=self.weights,
            warm=warm,
            seed=int(options.get("seed", 0)),
            summed=spec_of(algorithm).drawn,
        )

    def scores(self, algorithm: Algorithm) -> Array:
        """H of all joined rows, as the coordinator has it: (N, d_c)."""
        mapping = TableMapping(self.rows, [len(t) for t in self.tables])
        found = algorithm.scores
        if len(found.slots) == 1:  # of joined rows
            total = len(self.targets)
            mapping = TableMapping((np.arange(total, dtype=np.int32),), (total,))
        pieces = WrittenChunks(mapping, self.targets, self.weights)
        return Passes(pieces, self.loss).rows(found)

    @property
    def design(self) -> Array:
        """The joined, centred rows: (N, Σ d_i)."""
        parts = zip(self.tables, self.centres, self.rows, strict=True)
        return np.hstack([(x - c)[p] for x, c, p in parts])

    def objective(self, intercept: Array, theta: Array) -> float:
        scores = self.design @ theta + intercept
        loss = self.loss.value(scores, self.targets, self.weights)
        return loss + 0.5 * self.l2 * float((theta**2).sum())

    def gradient(self, intercept: Array, theta: Array) -> tuple[Array, Array]:
        x = self.design
        g = self._slopes(x @ theta + intercept)
        return g.sum(axis=0), x.T @ g + self.l2 * theta

    def _slopes(self, scores: Array) -> Array:
        """Of the mean loss, by the scores of each row: (N, d_c)."""
        slopes = self.loss.gradient(scores, self.targets)
        if self.weights is None:
            return slopes / len(slopes)
        return slopes * self.weights[:, None] / self.weights.sum()

    def optimum(self) -> float:
        """The least objective: Newton's method on the dense problem."""
        x, c = self.design, self.loss.outputs
        design = np.hstack([np.ones((len(x), 1)), x])
        ridge = np.append(0.0, np.full(x.shape[1], self.l2))[:, None]

        def value(flat: Array) -> tuple[float, Array]:
            theta = flat.reshape(-1, c)
            h = design @ theta
            penalty = 0.5 * float((ridge * theta**2).sum())
            slope = design.T @ self._slopes(h) + ridge * theta
            return self.loss.value(h, self.targets, self.weights) + penalty, slope.reshape(-1)

        start = np.zeros(design.shape[1] * c)
        start[:c] = self.loss.initial_intercept(self.targets, self.weights)
        found = optimize.minimize(
            value, start, jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000}
        )
        return float(found.fun)


def _kind(algorithm: str, *, neural: bool) -> str:
    if algorithm == "frank_wolfe":
        return "lasso"
    return "mlp_regressor" if neural else "linear_regression"


def planned_counts(
    options: TrainingOptions, join: Join, slot: int
) -> tuple[PlannedReleases, tuple[int, ...]]:
    """Releases planned of a slot with three numbers and a category; how many of each kind."""
    planned = planned_releases(
        options,
        SlotExposure(
            slot=slot,
            joined=240,
            clip=1.0,
            clients=join.clients[slot],
            copies=int(np.bincount(join.rows[slot]).max()),
            numeric=3,
            categories=1,
            largest=1.0,
        ),
    )
    return planned, (planned.gradients, planned.predictions, planned.moments)


def random_join(
    kind: str = "linear_regression",
    *,
    seed: int = 0,
    total: int = 1500,
    sizes: tuple[int, ...] = (1500, 60, 12),
    numeric: int = 3,
    categories: int = 4,
    clients: tuple[int, ...] | None = None,
    correlation: float = 0.0,
    classes: int = 3,
    l2: float = 1e-4,
    noise: float = 0.5,
) -> Join:
    """Tables of `numeric` standard columns and one category, joined at random."""
    rng = np.random.default_rng(seed)
    rows = []
    for size in sizes:
        p = np.arange(total) if size == total else rng.integers(0, size, total)
        p[:size] = np.arange(size)
        rows.append(p.astype(np.int32))
    shared = rng.normal(size=(total, numeric))
    tables, centres = [], []
    for p, size in zip(rows, sizes, strict=True):
        x = rng.normal(size=(size, numeric))
        if correlation:
            own = np.zeros((size, numeric))
            own[p] = shared
            x = np.sqrt(correlation) * own + np.sqrt(1.0 - correlation) * x
        counts = np.bincount(p, minlength=size)
        x = x - counts @ x / total
        x = x / np.sqrt(counts @ x**2 / total)
        codes = rng.integers(0, max(categories, 1), size)
        first = min(categories, size)
        codes[:first] = np.arange(first)
        hot = np.eye(max(categories, 1))[codes][:, :categories]
        tables.append(np.hstack([x, hot]))
        frequency = counts @ hot / total
        centres.append(np.append(np.zeros(numeric), frequency))
    loss = loss_of(kind, classes)
    design = np.hstack([(x - c)[p] for x, c, p in zip(tables, centres, rows, strict=True)])
    theta = rng.normal(size=(design.shape[1], loss.outputs)) / np.sqrt(design.shape[1])
    h = 0.3 + 2.0 * design @ theta
    if kind == "linear_regression":
        y = h[:, 0] + noise * rng.normal(size=total)
    elif kind == "logistic_regression":
        y = (rng.random(total) < 1.0 / (1.0 + np.exp(-h[:, 0]))).astype(np.int64)
    else:
        y = (h + rng.gumbel(size=h.shape)).argmax(axis=1)
    return Join(
        loss, y, rows, tables, centres, [categories] * len(sizes),
        list(clients or (1,) * len(sizes)), l2,
    )  # fmt: skip


@dataclass
class Trained:
    algorithm: Algorithm
    channel: MemoryChannel
    steps: list[Step]
    theta: Array
    """All blocks in slot order: (Σ d_i, d_c); of towers all their parameters (Σ size, 1)."""

    @property
    def objective(self) -> float:
        return self.steps[-1].objective

    @property
    def blocks(self) -> dict[Address, Any]:
        """θ, or a tower's parameters, of every client, to start from."""
        operators = self.channel.operators.items()
        return {
            a: o.parameters if isinstance(o, TowerOperator) else o.parameters[0]
            for a, o in operators
        }


def train(
    join: Join, algorithm: str, *, start: Mapping[Address, Any] | None = None, **options: Any
) -> Trained:
    """`start`: the clients' blocks that training begins with. Towers take all rows in a step of sgd
    where there is no `batch_size`, as linear blocks do."""
    if algorithm == "sgd":
        options = {"batch_size": 10**6, **options}
    problem = join.problem(algorithm, warm=start is not None, **options)
    channel = MemoryChannel(join.engines, start)
    method = coordinator_of(algorithm)(problem, channel)
    method.start()
    steps = list(method.steps())
    theta = []
    for members in problem.slots:
        blocks = [block_of(channel.operators[address]) for address in members.addresses]
        for block in blocks[1:]:
            np.testing.assert_array_equal(block, blocks[0])
        theta.append(blocks[0])
    return Trained(method, channel, steps, np.concatenate(theta))


def gaps(join: Join, trained: Trained) -> Array:
    """Relative distance to the optimum after every step."""
    best = join.optimum()
    return np.array([(step.objective - best) / abs(best) for step in trained.steps])
