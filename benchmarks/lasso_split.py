"""Sparse regression over tables of several parties, each of which has some columns of the same
rows: the paper's setting.

Coordinator and clients are those of sqlfl with `algorithm = 'frank_wolfe'`, in one process and
without a database, so that tables may be wide. Counted is what messages hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from aligned import Clients, DenseRows
from sklearn.linear_model import Lasso

from sqlfl.contract.privacy_specification import RunNoise
from sqlfl.contract.schema import Client
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.problem import Problem, Step
from sqlfl.methods.frank_wolfe.coordinator import FrankWolfe
from sqlfl.models.losses import loss_of
from sqlfl.options.resolve import training_options

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


@dataclass(frozen=True, eq=False)
class Run:
    steps: tuple[Step, ...]
    theta: Array
    up: int
    """Bytes."""
    told: int
    """Columns that were told."""


def train(task: Task, options: Mapping[str, Any], noise: RunNoise | None = None) -> Run:
    rows = len(task.y)
    addresses = [(Client(f"party{slot}", 0), slot) for slot in range(task.parties)]
    parts = zip(addresses, task.parts, strict=True)
    clients = Clients({to: DenseRows(task.x[:, own]) for to, own in parts})
    problem = Problem(
        run="split",
        mapping=TableMapping([np.arange(rows, dtype=np.int32)] * task.parties,
                             [rows] * task.parties),
        slots=tuple(
            SlotMembers(slot, (to,), np.array([0, rows])) for slot, to in enumerate(addresses)
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
    steps = tuple(method.steps())
    operators = [clients.operators[to] for to in addresses]
    theta = np.concatenate([own.parameters[0][:, 0] for own in operators])
    return Run(steps, theta, clients.up, sum(len(own._told) for own in operators))
