"""Sparse regression over tables of several parties, each of which has some columns of the same
rows: the paper's setting.

Coordinator and clients are those of sqlfl with `algorithm = 'frank_wolfe'`, in one process and
without a database, so that tables may be wide. Counted is what messages hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from aligned import DenseRows
from scipy import sparse
from sklearn.linear_model import Lasso

from sqlfl.coordinator.lou import Members
from sqlfl.coordinator.mapping import TableMapping
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.messages import Message, Ready, Start
from sqlfl.methods.frank_wolfe.coordinator import FrankWolfe
from sqlfl.models.losses import loss_of
from sqlfl.options.resolve import training_options
from sqlfl.party.operator import client_of
from sqlfl.privacy.specification import RunNoise
from sqlfl.schema import Address, Client

Array = npt.NDArray[Any]
ACTIVE = 5
"""Columns that have a weight, of 1 or −1."""
NOISE = 0.3
"""Standard deviation of what no column tells of the target."""


@dataclass(frozen=True, eq=False)
class Task:
    """Columns are uniform in [−1, 1], and divided evenly among the parties."""

    x: Array
    """(n, d) float32"""
    y: Array
    parties: int
    radius: float = float(ACTIVE)

    @classmethod
    def drawn(cls, rows: int, columns: int, parties: int, seed: int) -> Task:
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1.0, 1.0, (rows, columns)).astype(np.float32)
        chosen = rng.choice(columns, ACTIVE, replace=False)
        signs = rng.choice([-1.0, 1.0], ACTIVE)
        return cls(x, x[:, chosen] @ signs + NOISE * rng.normal(size=rows), parties)

    @classmethod
    def spread(cls, rows: int, columns: int, parties: int, seed: int) -> Task:
        """All columns weigh alike: after T steps no more than T have a weight, and none tells more
        than another. This is as slow as Frank-Wolfe can be."""
        rng = np.random.default_rng(seed)
        x = rng.uniform(-1.0, 1.0, (rows, columns)).astype(np.float32)
        weights = rng.choice([-1.0, 1.0], columns) * (3.0 / columns) ** 0.5
        y = x @ weights + NOISE * rng.normal(size=rows)
        return cls(x, y, parties, float(np.abs(weights).sum()))

    @property
    def parts(self) -> list[slice]:
        edges = np.linspace(0, self.x.shape[1], self.parties + 1).round().astype(int)
        return [slice(*pair) for pair in pairwise(edges)]

    @cached_property
    def optimum(self) -> float:
        """The least loss within the ball, by scikit-learn's Lasso of that radius."""
        low, high = 1e-5, 1.0
        x, y = self.x.astype(np.float64), self.y
        fitted = Lasso(low)
        for _ in range(14):
            alpha = float(np.sqrt(low * high))
            fitted = Lasso(alpha, tol=1e-5, precompute=x.shape[1] <= 2_000).fit(x, y)
            inside = float(np.abs(fitted.coef_).sum()) <= self.radius
            low, high = (low, alpha) if inside else (alpha, high)
        scale = min(1.0, self.radius / float(np.abs(fitted.coef_).sum()))
        return self.loss(scale * fitted.coef_)

    def loss(self, theta: Array) -> float:
        """½ mean squared error with the best constant."""
        return 0.5 * float(np.var(self.y - self.x @ theta))


class Columns(DenseRows):
    """An engine over encoded columns, all of them numeric."""

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        return self._x.astype(kind), sparse.csr_array((self.rows, 0))


class Clients:
    """Operators, and the bytes of what is exchanged with them."""

    def __init__(self, engines: Mapping[Address, Columns]) -> None:
        self._engines = engines
        self.operators: dict[Address, Any] = {}
        self.up = self.down = 0

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        replies = {}
        for address, request in requests.items():
            replies[address] = self._reply(address, request)
            self.down += request.nbytes
            self.up += replies[address].nbytes
        return replies

    def _reply(self, address: Address, request: Message) -> Message:
        if not isinstance(request, Start):
            reply: Message = self.operators[address].handle(request)
            return reply
        part, engine = client_of(request.method), self._engines[address]
        own = part.configuration.from_json(request.configuration)
        self.operators[address] = part.operator(engine, own, request.run, request.slot)
        return Ready(request.run, address[1], engine.width)


@dataclass(frozen=True, eq=False)
class Run:
    steps: tuple[Step, ...]
    theta: Array
    up: int
    down: int
    told: int
    """Columns that were told."""
    losses: tuple[float, ...] = field(default=())
    """By the weights of every step, where they are asked for."""


def train(
    task: Task, options: Mapping[str, Any], noise: RunNoise | None = None, *, every: bool = False
) -> Run:
    """`every`: the loss of all steps."""
    rows = len(task.y)
    addresses = [(Client(f"party{slot}", 0), slot) for slot in range(task.parties)]
    parts = zip(addresses, task.parts, strict=True)
    clients = Clients({to: Columns(task.x[:, own]) for to, own in parts})
    problem = Problem(
        run="split",
        mapping=TableMapping([np.arange(rows, dtype=np.int32)] * task.parties,
                             [rows] * task.parties),
        slots=tuple(
            Members(slot, (to,), np.array([0, rows])) for slot, to in enumerate(addresses)
        ),
        loss=loss_of("lasso", 1),
        targets=task.y,
        outputs=1,
        options=training_options(
            "lasso", {"algorithm": "frank_wolfe", "radius": task.radius, **options},
            private=noise is not None,
        ),
        privacy=noise,
        seed=int(options.get("seed", 0)),
    )  # fmt: skip
    method = FrankWolfe(problem, clients)
    method.start()
    steps, losses = [], []
    for step in method.steps():
        steps.append(step)
        if every:
            losses.append(task.loss(_theta(clients, addresses)))
    told = sum(len(clients.operators[to]._told) for to in addresses)
    return Run(
        tuple(steps), _theta(clients, addresses), clients.up, clients.down, told, tuple(losses)
    )


def _theta(clients: Clients, addresses: list[Address]) -> Array:
    return np.concatenate([clients.operators[to].parameters[0][:, 0] for to in addresses])
