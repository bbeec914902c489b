"""TablePuppet's reference methods on the materialised join, and the traffic of training.

Central training has all rows in one place, without sqlfl. Vertical federated learning reduces
nothing: every party holds the columns of its table for all N joined rows, in one order. Methods,
clients and losses are those of sqlfl, on a mapping that is the identity. The counted bytes are
those that such a method must send: for each exchange and table, a number of 4 bytes per joined row
(of the batch), up and down. ADMM sends λ and s, which its clients do not get added up (eq. 11).

The count excludes the test rows and the other messages of sqlfl. These are the ids of a batch's
rows, which parties in one order do not need, and the predictions of all rows after an epoch of
batches, from which the coordinator computes its objective.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from movielens import Encoded, Joined
from scipy import sparse

from sqlfl.contract.schema import Address, Client
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.problem import Problem, coordinator_of
from sqlfl.messages import Message, Predictions, Ready, Residuals, SendPredictions, Start
from sqlfl.models.gram import GramMatrix
from sqlfl.models.losses import loss_of
from sqlfl.models.towers import TowerShape
from sqlfl.options.resolve import training_options
from sqlfl.party.operator import client_of
from sqlfl.transport.network import NETWORKS, Network

# -- traffic by the network model ------------------------------------------------------------------


LINES = NETWORKS
MERGES = ("sum_gradient", "consensus_average")
"""Messages with merged values that the coordinator sends to the clients of a slot."""


@dataclass
class Exchange:
    """One round: a message to each client, and its reply."""

    kinds: set[str] = field(default_factory=set)
    down: Counter[str] = field(default_factory=Counter)
    """Bytes of values to each client."""
    up: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    """Rows that each client predicts for it."""
    merges: int = 0
    """Messages that carry a sum or mean of what the clients of a slot sent."""

    def add(self, client: str, direction: str, kind: str, size: int, rows: int) -> None:
        self.kinds.add(kind)
        (self.down if direction == "down" else self.up)[client] += size
        if kind == "predictions":
            self.rows[client] += rows
        if kind in MERGES:
            self.merges += 1

    def seconds(self, network: Network, *, shared: bool = False) -> float:
        """`shared`: all clients on one line of the coordinator, instead of one for each."""
        sizes = [self.down[client] + self.up[client] for client in self.down]
        return network.seconds([sum(sizes)] if shared and sizes else sizes)


@dataclass(frozen=True)
class Traffic:
    """Sums over exchanges."""

    rounds: int
    bytes_up: int
    bytes_down: int
    seconds: dict[str, float]
    """Seconds by network, each client on a line of its own."""
    shared: dict[str, float]
    """Seconds by network, all clients on one line."""
    client_rows: int
    """Rows that the busiest client predicted."""
    merges: int

    @classmethod
    def of(cls, exchanges: Sequence[Exchange]) -> Traffic:
        rows: Counter[str] = Counter()
        for exchange in exchanges:
            rows.update(exchange.rows)
        return cls(
            rounds=len(exchanges),
            bytes_up=sum(sum(e.up.values()) for e in exchanges),
            bytes_down=sum(sum(e.down.values()) for e in exchanges),
            seconds={n: sum(e.seconds(line) for e in exchanges) for n, line in LINES.items()},
            shared={
                n: sum(e.seconds(line, shared=True) for e in exchanges) for n, line in LINES.items()
            },
            client_rows=max(rows.values(), default=0),
            merges=sum(e.merges for e in exchanges),
        )


def of_audit(records: pa.Table) -> list[Exchange]:
    """The exchanges of a run from its records: a request after a reply begins the next one."""
    found: list[Exchange] = []
    before = "up"
    for record in records.to_pylist():
        if record["direction"] == "down" and before == "up":
            found.append(Exchange())
        before = record["direction"]
        found[-1].add(record["client"], before, record["kind"], record["bytes"], record["rows"])
    return found


def beginning(exchanges: Iterable[Exchange]) -> int:
    """Return the number of exchanges before training: those that map the tables."""
    return next(number for number, e in enumerate(exchanges) if "start" in e.kinds)


def epochs(exchanges: Sequence[Exchange], ends: Sequence[int]) -> list[dict[str, Any]]:
    """Return the sums from the first exchange to the last one of each epoch."""
    return [vars(Traffic.of(exchanges[:end])) for end in ends]


# -- central training ------------------------------------------------------------------------------


Array = npt.NDArray[Any]
L2 = 1e-4
"""The default of the option."""


def optimum(joined: Joined) -> dict[str, float]:
    """Return the test RMSE and objective of the linear model with the least objective, from one
    linear system. Products of columns over the join follow from those over the tables, and from how
    often each pair of rows is joined."""
    train_centrally = ~joined.held_out
    total = int(train_centrally.sum())
    targets = joined.targets[train_centrally]
    mean = targets.mean()
    rows = [place[train_centrally] for place in joined.rows]
    dense = [np.hstack([t.numeric, t.onehot().toarray()]) - t.centre for t in joined.tables]
    left, right = dense
    pairs = sparse.csr_array((np.ones(total), tuple(rows)), shape=(len(left), len(right)))
    cross = left.T @ (pairs @ right)
    diagonal = [x.T @ (t.counts[:, None] * x) for x, t in zip(dense, joined.tables, strict=True)]
    matrix = np.block([[diagonal[0], cross], [cross.T, diagonal[1]]]) / total
    sums = [np.bincount(p, targets - mean, len(x)) for p, x in zip(rows, dense, strict=True)]
    side = np.concatenate([x.T @ s for x, s in zip(dense, sums, strict=True)]) / total
    theta = np.linalg.solve(matrix + L2 * np.eye(len(side)), side)
    parts = np.split(theta, [left.shape[1]])
    scores = mean + sum((x @ t)[p] for x, t, p in zip(dense, parts, joined.rows, strict=True))
    loss = 0.5 * float(np.mean((scores - joined.targets)[train_centrally] ** 2))
    return {
        "rmse": joined.test_rmse(scores),
        "objective": loss + 0.5 * L2 * float(theta @ theta),
    }


def train_centrally(
    joined: Joined, hidden: Sequence[int], epochs: int, batch: int, rate: float, seed: int
) -> list[dict[str, Any]]:
    """Train on mini-batches of joined rows, and return the test RMSE of every epoch. With `hidden`,
    each table has a tower of so many units, trained by Adam. Without, a linear model takes plain
    steps that fall as 1/(1 + epoch/4)."""
    import torch

    torch.manual_seed(seed)
    started = time.perf_counter()
    towers = [_Tower(torch, table, hidden) for table in joined.tables]
    intercept = torch.tensor(joined.targets[~joined.held_out].mean(), requires_grad=True)
    weights = [p for tower in towers for p in tower.parameters]
    penalised = [p for p in weights if p.ndim == 2]
    if hidden:
        optimizer: Any = torch.optim.Adam([*weights, intercept], rate)
    else:
        optimizer = torch.optim.SGD([*weights, intercept], rate)
    places = [torch.from_numpy(rows.astype(np.int64)) for rows in joined.rows]
    targets = torch.from_numpy(joined.targets)
    training = torch.from_numpy(np.flatnonzero(~joined.held_out))
    found: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate if hidden else rate / (1.0 + (epoch - 1) / 4.0)
        order = training[torch.randperm(len(training))]
        for rows in order.split(batch):
            scores = intercept + sum(t(p[rows]) for t, p in zip(towers, places, strict=True))
            loss = 0.5 * ((scores - targets[rows]) ** 2).mean()
            loss = loss + 0.5 * L2 * sum((p**2).sum() for p in penalised)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            parts = [t(torch.arange(t.rows))[p] for t, p in zip(towers, places, strict=True)]
            scores = (intercept + sum(parts)).numpy()
        found.append({
            "epoch": epoch,
            "rmse": joined.test_rmse(scores),
            "measured": time.perf_counter() - started,
        })  # fmt: skip
    return found


class _Tower:
    """The part of the score from one table, with one hidden layer or none."""

    def __init__(self, torch: Any, table: Encoded, hidden: Sequence[int]) -> None:
        self._torch = torch
        self.rows = len(table.numeric)
        self._numeric = torch.from_numpy(table.numeric)
        self._codes = torch.from_numpy(table.codes.astype(np.int64))
        self._centre = torch.from_numpy(table.centre)
        self._split = table.numeric.shape[1]
        width = hidden[0] if hidden else 1
        bound = table.width**-0.5 if hidden else 0.0
        shapes: list[tuple[tuple[int, ...], float]] = [((table.width, width), bound)]
        if hidden:
            shapes += [((width,), bound), ((width, 1), width**-0.5)]
        self.parameters = [
            torch.empty(shape, dtype=torch.float64).uniform_(-limit, limit).requires_grad_()
            for shape, limit in shapes
        ]

    def __call__(self, rows: Any) -> Any:
        first, *upper = self.parameters
        bag = self._torch.nn.functional.embedding_bag
        values = self._numeric[rows] @ first[: self._split] - self._centre @ first
        values = values + bag(self._codes[rows], first[self._split :], mode="sum")
        if upper:
            values = self._torch.relu(values + upper[0]) @ upper[1]
        return values[:, 0]


# -- vertical federated learning -------------------------------------------------------------------


Array = npt.NDArray[Any]
VALUE = 4
"""Bytes."""
L2 = 1e-4
"""The default of the option."""


class MaterialisedRows:
    """An engine over a table's columns, repeated for every joined row."""

    name = "materialised"

    def __init__(self, table: Encoded, rows: Array) -> None:
        self.rows, self.width = len(rows), table.width
        self.numeric = table.numeric.shape[1]
        self.centre = table.centre
        firsts = table.codes.min(axis=0) + self.numeric  # each column has codes of its own
        self.offsets = (*firsts.tolist(), self.width)
        self.counts = np.ones(self.rows)
        self._numeric = table.numeric[rows]
        self._onehot = table.onehot(rows)

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        return self._numeric.astype(kind, copy=False), self._onehot

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        numeric, onehot = self._of(batch)
        split = self.numeric
        return numeric @ theta[:split] + onehot @ theta[split:] - self.centre @ theta

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        numeric, onehot = self._of(batch)
        values = np.asarray(values, np.float64)
        found = np.concatenate([numeric.T @ values, onehot.T @ values])
        return found - np.outer(self.centre, values.sum(axis=0))

    def gram(self) -> GramMatrix:
        numeric, onehot = self._numeric, self._onehot
        moments = np.concatenate([numeric.sum(axis=0), onehot.sum(axis=0)])
        squares = sparse.csr_array(onehot.T @ onehot)
        return GramMatrix(
            numeric.T @ numeric, onehot.T @ numeric, squares, moments, float(self.rows)
        )

    def _of(self, batch: Array | None) -> tuple[Array, sparse.csr_array]:
        if batch is None:
            return self._numeric, self._onehot
        return self._numeric[batch], self._onehot[batch]


class CountingChannel:
    """Clients in this process; records the messages that their exchanges would send."""

    def __init__(self, engines: Mapping[Address, MaterialisedRows], batch: int) -> None:
        self._engines = engines
        self._batch = batch
        """Joined rows of a batch; 0 for all of them."""
        self.operators: dict[Address, Any] = {}
        self._admm = False
        self.exchanges: list[Exchange] = []

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        replies: dict[Address, Message] = {}
        exchange = Exchange()
        for address, request in requests.items():
            if isinstance(request, Start):
                reply = self._start(address, request)
            else:
                reply = self.operators[address].handle(request)
            client = str(address[0])
            exchange.add(client, "down", request.kind, self._sent(request), 0)
            size, rows = self._received(request, reply)
            exchange.add(client, "up", reply.kind, size, rows)
            replies[address] = reply
        self.exchanges.append(exchange)
        return replies

    def _start(self, address: Address, request: Start) -> Message:
        part = client_of(request.method)
        self._admm = request.method == "admm"
        engine = self._engines[address]
        own = part.configuration.from_json(request.configuration)
        self.operators[address] = part.operator(engine, own, request.run, request.slot)
        return Ready(request.run, request.slot, engine.width)

    def _sent(self, request: Message) -> int:
        if not isinstance(request, Residuals):
            return 0 if isinstance(request, SendPredictions) else request.nbytes
        if self._batch:
            return request.divisor * request.values.shape[1] * VALUE
        return request.values.size * VALUE * (2 if self._admm else 1)

    def _received(self, request: Message, reply: Message) -> tuple[int, int]:
        if not isinstance(reply, Predictions):
            return reply.nbytes, 0
        rows, width = reply.values.shape
        if self._batch and isinstance(request, (Residuals, SendPredictions)):
            rows = min(rows, self._batch)
        return rows * width * VALUE, rows


@dataclass(frozen=True)
class Run:
    """Test RMSE, objective, traffic so far and seconds so far, for each epoch."""

    rows: list[dict[str, Any]]


def train_vertically(joined: Joined, algorithm: str, options: Mapping[str, object]) -> Run:
    """VFL-SGD or VFL-ADMM, a client for each table.

    `options` are those of TRAIN that the algorithm reads, `epochs` among them.
    """
    started = time.perf_counter()
    training = np.flatnonzero(~joined.held_out)
    total = len(training)
    members, engines = [], {}
    for slot, (table, rows) in enumerate(zip(joined.tables, joined.rows, strict=True)):
        address = (Client(f"party{slot}", 0), slot)
        engines[address] = MaterialisedRows(table, rows[training])
        members.append(SlotMembers(slot, (address,), np.array([0, total])))
    order = np.arange(total, dtype=np.int32)
    seed = options.get("seed", 0)
    problem = Problem(
        run="vfl",
        mapping=TableMapping([order] * len(members), [total] * len(members)),
        slots=tuple(members),
        loss=loss_of("linear_regression", 1),
        targets=joined.targets[training],
        outputs=1,
        options=training_options(
            "mlp_regressor" if "hidden" in options else "linear_regression",
            {"l2": L2, "algorithm": algorithm, **options},
        ),
        seed=seed if isinstance(seed, int) else 0,
    )
    batch = options.get("batch_size", 0) if algorithm == "sgd" else 0
    channel = CountingChannel(engines, batch if isinstance(batch, int) else 0)
    method = coordinator_of(algorithm)(problem, channel)
    method.start()
    found: list[dict[str, Any]] = []
    ends: list[int] = []
    for step in method.steps():
        ends.append(len(channel.exchanges))
        scores = method.intercept[0] + sum(
            _predicted(joined.tables[slot], operator)[joined.rows[slot]]
            for (_, slot), operator in channel.operators.items()
        )
        found.append(
            {
                "epoch": step.epoch,
                "rmse": joined.test_rmse(scores),
                "objective": step.objective,
                "measured": time.perf_counter() - started,
            }
        )
    sums = epochs(channel.exchanges, ends)
    return Run([row | sum_ for row, sum_ in zip(found, sums, strict=True)])


def _predicted(table: Encoded, operator: Any) -> Array:
    """Return h of every row of the table that is not repeated: (n,)."""
    if operator.shape is None:
        return table.predict(operator.theta)[:, 0]
    shape: TowerShape = operator.shape
    parameters = operator.parameters
    return shape.forward(table.predict(parameters[0]), parameters)[:, 0]
