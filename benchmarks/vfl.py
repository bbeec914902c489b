"""Vertical federated learning on the materialised join: the reference that reduces nothing.

Every party holds the columns of its table for all N joined rows, in one order. Methods, clients and
losses are those of sqlfl, on a mapping that is the identity. What is counted is what such a method
must send: per exchange and table a number per joined row (of the batch), up and down, of 4 bytes;
ADMM sends λ and s, which its clients do not get added up (eq. 11). What sqlfl sends besides (ids of
a batch's rows, which parties in one order need not be told; predictions of all rows after an epoch
of batches, from which it knows its objective) is left out, and so are the rows of the test.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from movielens import Encoded, Joined
from scipy import sparse
from traffic import Exchange, epochs

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
    """Clients in this process, and what their exchanges would send."""

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
    """An epoch's test RMSE, objective, traffic so far and seconds so far."""

    rows: list[dict[str, Any]]


def train(joined: Joined, algorithm: str, options: Mapping[str, object]) -> Run:
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
    """h of every row of the table that is not repeated: (n,)."""
    if operator.shape is None:
        return table.predict(operator.theta)[:, 0]
    shape: TowerShape = operator.shape
    parameters = operator.parameters
    return shape.forward(table.predict(parameters[0]), parameters)[:, 0]
