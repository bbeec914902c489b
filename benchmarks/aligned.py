"""Vertical federated learning on aligned tables, as in the paper on PBM-VFL: each party holds some
columns of the same rows.

Coordinator, clients and masks are those of sqlfl with `algorithm = 'pbm'`, in one process and
without a database. So all runs share one split and one start, and the model of every epoch can be
scored. The counted bytes are those of messages during training, for training rows only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.metrics import average_precision_score

from sqlfl.contract.privacy_specification import RoundNoise, RunNoise
from sqlfl.contract.schema import Address, Client, SlotSpecification
from sqlfl.coordinator.join.scatter_gather import SlotMembers
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.messages import Message, Ready, Start
from sqlfl.methods.pbm.coordinator import Pbm
from sqlfl.models.losses import loss_of
from sqlfl.options.resolve import training_options
from sqlfl.party.masked_run import MaskedRun
from sqlfl.party.operator import client_of
from sqlfl.privacy.poisson_binomial.sampling import draw, estimate

Array = npt.NDArray[Any]
P = 16
HIDDEN = (32, 16)
"""With the embedding three layers, as in the paper, which does not say how wide they are."""
BATCH = 100
RATE = 0.01
TEST = 0.2
"""Share of the rows of Phishing."""


@dataclass(frozen=True, eq=False)
class Aligned:
    """Rows of which each party has some columns, standardised over the training rows."""

    name: str
    train: Array
    """(N, d)"""
    test: Array
    targets: Array
    """Codes of the classes of rows for training (N,)."""
    wanted: Array
    """Targets of the rows for the test."""
    classes: int
    reached: float
    """Measure of the paper on rows for training."""

    @property
    def measure(self) -> str:
        return "AUPRC" if self.classes == 2 else "accuracy"

    def score(self, scores: Array, targets: Array) -> float:
        if self.classes == 2:
            return float(average_precision_score(targets, scores[:, 0]))
        return float((scores.argmax(1) == targets).mean())


@dataclass(frozen=True)
class Setting:
    """One run. Without bins nothing is drawn (NPQ). With `local`, Gaussian noise replaces the draws
    (LDP); its variance protects as well, according to the paper."""

    parties: int
    bins: int = 0
    theta: float = 0.0
    local: bool = False
    seed: int = 0
    epochs: int = 20
    optimizer: str = "plain"

    @property
    def method(self) -> str:
        return "NPQ" if not self.bins else "LDP" if self.local else "PBM"

    @property
    def variance(self) -> float:
        """Variance of the noise that LDP adds to each party's number: 2M/(bθ²)."""
        return 2 * self.parties / (self.bins * self.theta**2)


def phishing(folder: Path, seed: int) -> Aligned:
    """The Phishing data: features are −1, 0 or 1, and the positive class is `result = 1`."""
    with duckdb.connect() as con:
        rows = con.sql(f"FROM '{folder}/phishing.parquet' ORDER BY id").fetchnumpy()
    x = np.column_stack([v for name, v in rows.items() if name not in ("id", "result")])
    y = (np.asarray(rows["result"]) == 1).astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [round(TEST * len(y))])
    return _aligned("Phishing", x.astype(np.float64), y, train, test, 0.9)


def activity(folder: Path) -> Aligned:
    """The Activity data: no person is both in the training rows and in the test rows."""
    with duckdb.connect() as con:
        rows = con.sql(f"FROM '{folder}/windows.parquet' ORDER BY window_id").fetchnumpy()
    not_features = ("window_id", "subject", "split", "fold", "activity")
    x = np.column_stack([v for name, v in rows.items() if name not in not_features])
    y = np.unique(rows["activity"], return_inverse=True)[1]
    tested = np.asarray(rows["split"] == "test")
    train, test_rows = np.flatnonzero(~tested), np.flatnonzero(tested)
    return _aligned("Activity", x.astype(np.float64), y, train, test_rows, 0.8)


def _aligned(name: str, x: Array, y: Array, train: Array, test: Array, target: float) -> Aligned:
    spread = x[train].std(axis=0)
    x = (x - x[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    classes = int(y.max()) + 1
    return Aligned(name, x[train], x[test], y[train], y[test], classes, target)


class DenseRows:
    """An engine over encoded columns."""

    name = "dense"

    def __init__(self, x: Array) -> None:
        self._x = x
        self.rows, self.width = x.shape
        self.numeric = self.width
        self.offsets = (self.width,)
        self.centre = np.zeros(self.width)
        self.counts = np.ones(self.rows)

    def predict(self, theta: Array, batch: Array | None = None) -> Array:
        return (self._x if batch is None else self._x[batch]) @ theta

    def gradient(self, values: Array, batch: Array | None = None) -> Array:
        x = self._x if batch is None else self._x[batch]
        product: Array = x.T @ np.asarray(values, np.float64)
        return product

    def norms(self) -> Array:
        return np.linalg.norm(self._x, axis=1)

    def columns(self, kind: npt.DTypeLike = np.float64) -> tuple[Array, sparse.csr_array]:
        return self._x.astype(kind), sparse.csr_array((self.rows, 0))


class Clients:
    """Operators, behind masks if the method has them; counts the bytes that they exchange."""

    def __init__(self, engines: Mapping[Address, DenseRows]) -> None:
        self._engines = engines
        self.operators: dict[Address, Any] = {}
        self._masked: dict[Address, MaskedRun] = {}
        self.up = self.down = 0

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        replies = {}
        for address, request in requests.items():
            reply = self._reply(address, request)
            self.down += request.nbytes
            self.up += reply.nbytes
            replies[address] = reply
        return replies

    def _reply(self, address: Address, request: Message) -> Message:
        if isinstance(request, Start):
            return self._start(address, request)
        operator, masked = self.operators[address], self._masked.get(address)
        if masked is None:
            reply: Message = operator.handle(request)
            return reply
        return masked.answer(request, lambda: operator.handle(request))

    def _start(self, address: Address, request: Start) -> Message:
        part, engine = client_of(request.method), self._engines[address]
        configuration = part.configuration.from_json(request.configuration)
        self.operators[address] = part.operator(engine, configuration, request.run, request.slot)
        client, slot = address
        if part.masked:
            drawn_slot = SlotSpecification(
                slot, (), False, False, (), (), (), False, "", "arrays", masked_predictions=True
            )
            self._masked[address] = MaskedRun(str(client), b"of this benchmark", [drawn_slot])
        return Ready(request.run, slot, engine.width)


class Aggregated(Pbm):
    """Coordinator that exposes its estimate of the sums of embeddings (N, P) of the last batch."""

    @property
    def embedding(self) -> Array:
        return self._embedding


class LocalNoise(Aggregated):
    """LDP: each party adds Gaussian noise to each number. Only the sum over the parties is used, so
    one draw of the summed noise is equivalent."""

    deviation = 0.0
    generator = np.random.default_rng()

    def _summed(self, joined: Array, *, training: bool) -> Array:
        sums = super()._summed(joined, training=training)
        sums = sums + self.deviation * self.generator.normal(size=sums.shape)
        self._embedding[joined] = sums
        return sums


def run(data: Aligned, setting: Setting) -> list[dict[str, float]]:
    """Return the measures of each epoch, the bytes so far, and the seconds of training.

    'train' and 'test' are measured on the exact embeddings. 'train seen' and 'test seen' are
    measured on the coordinator's estimates of them: those of its steps, and those of another draw.
    """
    edges = np.linspace(0, data.train.shape[1], setting.parties + 1).round().astype(int)
    parts = [slice(*pair) for pair in pairwise(edges)]
    addresses = [(Client(f"party{slot}", 0), slot) for slot in range(setting.parties)]
    clients = Clients(
        {to: DenseRows(data.train[:, own]) for to, own in zip(addresses, parts, strict=True)}
    )
    method = _coordinator(setting)(_problem(data, setting, addresses), clients)
    method.start()
    found = []
    for step, seconds in _timed(method):
        head, intercept = method.head, method.intercept
        train, test = (
            np.stack(
                [
                    _outputs(clients.operators[to], x[:, own])
                    for to, own in zip(addresses, parts, strict=True)
                ]
            )
            for x in (data.train, data.test)
        )
        sums = {
            "train": (train.sum(axis=0), data.targets),
            "test": (test.sum(axis=0), data.wanted),
            "train seen": (method.embedding, data.targets),
            "test seen": (seen(test, setting), data.wanted),
        }
        found.append(
            {
                "epoch": step.epoch,
                **{k: data.score(e @ head + intercept, wanted) for k, (e, wanted) in sums.items()},
                "up": clients.up,
                "down": clients.down,
                "seconds": seconds,
            }
        )
    return found


def seen(embeddings: Array, setting: Setting) -> Array:
    """Return the parties' sum as the coordinator receives it: (M, n, P) -> (n, P)."""
    total: Array = embeddings.sum(axis=0)
    if not setting.bins:
        return total
    if setting.local:
        deviation = (setting.parties * setting.variance) ** 0.5
        return total + deviation * np.random.default_rng().normal(size=total.shape)
    drawn = draw(embeddings, 1.0, setting.bins, setting.theta).sum(axis=0)
    return estimate(drawn, setting.parties, 1.0, setting.bins, setting.theta)


def _coordinator(setting: Setting) -> type[Aggregated]:
    if not setting.local:
        return Aggregated
    own = {
        "deviation": (setting.parties * setting.variance) ** 0.5,
        "generator": np.random.default_rng(setting.seed),
    }
    return type("LocalNoise", (LocalNoise,), own)


def _problem(data: Aligned, setting: Setting, addresses: list[Address]) -> Problem:
    total = len(data.targets)
    order = np.arange(total, dtype=np.int32)
    loss = loss_of(
        "logistic_regression" if data.classes == 2 else "softmax_regression", data.classes
    )
    options = {
        "algorithm": "pbm",
        "hidden": HIDDEN,
        "embedding": P,
        "batch_size": BATCH,
        "learning_rate": RATE,
        "optimizer": setting.optimizer,
        "epochs": setting.epochs,
        "l2": 0.0,
        "seed": setting.seed,
    }
    problem = Problem(
        run="aligned",
        mapping=TableMapping([order] * len(addresses), [total] * len(addresses)),
        slots=tuple(
            SlotMembers(slot, (to,), np.array([0, total])) for slot, to in enumerate(addresses)
        ),
        loss=loss,
        targets=data.targets,
        outputs=loss.outputs,
        options=training_options("mlp_classifier", options),
        seed=setting.seed,
        summed=True,
    )
    if not setting.bins or setting.local:
        return problem
    noise = RoundNoise(0.0, 0.0, bins=setting.bins, theta=setting.theta)
    return replace(problem, privacy=RunNoise(dict.fromkeys(range(len(addresses)), noise)))


def _timed(method: Aggregated) -> Iterator[tuple[Any, float]]:
    """Yield each step, and the seconds of training so far."""
    steps, seconds = method.steps(), 0.0
    while True:
        begun = time.perf_counter()
        step = next(steps, None)
        seconds += time.perf_counter() - begun
        if step is None:
            return
        yield step, seconds


def _outputs(operator: Any, x: Array) -> Array:
    found: Array = operator.shape.forward(x @ operator.parameters[0], operator.parameters)
    return found
