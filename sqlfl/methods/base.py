"""What the training methods share: the problem, their interface, and their conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from sqlfl.arrays import Array
from sqlfl.coordinator.loj import JoinedRows, all_rows
from sqlfl.coordinator.lou import Members, average, sum_gradients, sum_grams
from sqlfl.coordinator.mapping import TableMapping
from sqlfl.endings import Ending
from sqlfl.errors import InternalError
from sqlfl.messages import (
    ConsensusAverage,
    ConsensusPart,
    ExactPredictions,
    ExactResiduals,
    Message,
    PartialGradient,
    Predictions,
    Probe,
    Residuals,
    SendExactPredictions,
    SendGram,
    SendPredictions,
    SendSlope,
    SetGram,
    Slope,
    Start,
    SumGradient,
)
from sqlfl.messages.replies import Channel as Channel
from sqlfl.messages.replies import ask
from sqlfl.methods.answers import Answers, Expect
from sqlfl.models.losses import Loss
from sqlfl.options.training import EMBEDDING
from sqlfl.party.steps import ClientConfiguration
from sqlfl.privacy.specification import TrainingPrivacy
from sqlfl.schema import Address

MOMENTUM = 0.9
ACTIVATION = "relu"
"""Defaults of options of the same names."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be minimised: Σ w_j ℓ(H_j; y_j) / Σ w_j + l2/2 Σ‖θ_i‖².

    A weight of 2 is the row twice. A row of weight 0, as all rows for validation are, takes part in
    no sum; its scores are kept up to date.
    """

    run: str
    mapping: TableMapping
    """An entry per slot with features, in the order of `slots`."""
    slots: tuple[Members, ...]
    loss: Loss
    targets: Array
    """(N,): numbers, or class codes."""
    outputs: int
    """d_c"""
    l2: float
    options: Mapping[str, object]
    weights: Array | None = None
    """w (N,): not negative, some of them positive; None for 1 of each row."""
    warm: bool = False
    """The clients' blocks start from those of a model, not from 0."""
    seed: int = 0
    """Of batches, of power rounds and of the first parameters of towers and of a head."""
    head: Array | None = None
    """W₀ (P, d_c) of the model of a warm start, where that has a linear head."""
    privacy: TrainingPrivacy | None = None
    """None where features are not protected."""
    trace: float = 0.0
    """Where they are, a bound of Σ share ‖x̃‖²/N over all slots, from names and types alone."""
    centred: bool = True
    """The encoded columns have the mean 0 over the joined rows."""

    @property
    def blind(self) -> bool:
        """Predictions are exact, and the parameters alone promised to hide them: nothing that is
        seen in the scores may decide what becomes of these, or whether there are any."""
        return self.privacy is not None and self.privacy.intercept_clip > 0.0

    @cached_property
    def noise(self) -> float:
        """Standard deviation of the noise in each number of E; 0 where predictions are exact."""
        rounds = {} if self.privacy is None else self.privacy.rounds
        return float(np.linalg.norm([own.prediction_noise for own in rounds.values()]))

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths of the towers' hidden layers; () where blocks are linear."""
        found = self.options.get("hidden")
        return tuple(found) if isinstance(found, (tuple, list)) else ()

    @property
    def embedding(self) -> int:
        """Values that a client sends per row: d_c, or P where a linear head follows."""
        if self.linear_head:
            return int(self.number("embedding", EMBEDDING))
        return self.outputs

    @property
    def linear_head(self) -> bool:
        return self.options.get("head") == "linear"

    @property
    def optimizer(self) -> str:
        """'plain', 'momentum' or 'adam': of sgd."""
        return str(self.options.get("optimizer") or ("adam" if self.hidden else "plain"))

    @property
    def momentum(self) -> float:
        """Of the optimizer 'momentum'."""
        return self.number("momentum", MOMENTUM)

    @property
    def dropout(self) -> float:
        return self.number("dropout", 0.0)

    @cached_property
    def total(self) -> float:
        """Σ w: what the clients' counts, and so their second moments, add up to."""
        return float(self.mapping.total if self.weights is None else self.weights.sum())

    @cached_property
    def shares(self) -> Array | None:
        """w scaled to a mean of 1, as sums over rows carry it: their divisor is N for any scale."""
        if self.weights is None:
            return None
        largest = self.weights.max()
        scaled = self.weights / largest
        shares: Array = scaled * (len(scaled) / scaled.sum())
        return shares

    @cached_property
    def training(self) -> Array | None:
        """The joined rows that weigh something; None for all."""
        return None if self.shares is None else np.flatnonzero(self.shares)

    @cached_property
    def reach(self) -> float:
        return self.loss.reach(self.targets)

    @cached_property
    def class_shares(self) -> tuple[float, ...]:
        """Probabilities of the best constant scores of a softmax over several classes; () of other
        losses."""
        if self.outputs < 2:
            return ()
        constant = self.loss.initial_intercept(self.targets, self.shares)
        return tuple(float(p) for p in self.loss.predict(constant[None, :])[0])

    def value(self, scores: Array) -> float:
        """The (weighted) mean loss."""
        return self.loss.value(scores, self.targets, self.shares)

    def residuals(self, scores: Array) -> Array:
        """∂ of N times the mean loss by each row's scores: (N, d_c)."""
        return self.loss.gradient(scores, self.targets, self.shares)

    def weighted(self, values: Array) -> Array:
        """Each joined row of (N, c) times its share."""
        return values if self.shares is None else values * self.shares[:, None]

    def norm(self, values: Array) -> float:
        """√ Σ share ‖values_j‖², of (N, c)."""
        if self.shares is None:
            return float(np.linalg.norm(values))
        return float(np.sqrt(self.shares @ np.einsum("nc,nc->n", values, values)))

    def number(self, name: str, default: float) -> float:
        """An option, or `default` where it is not given."""
        value = self.options.get(name)
        if value is None:
            return default
        if not isinstance(value, (int, float)):
            raise InternalError(f"option {name} is no number: {value!r}")
        return float(value)


@dataclass(frozen=True)
class Step:
    """One epoch (lbfgs: one iteration)."""

    epoch: int
    """From 1."""
    objective: float
    """Mean loss and penalty at the parameters that the clients hold now."""
    loss: float
    """Mean loss."""
    gradient: float | None = None
    """‖∂objective/∂θ‖ over all blocks, where the method has it."""
    ending: Ending | None = None
    """Of the last step: why there is no further one."""

    @property
    def converged(self) -> bool:
        """The gradient proves that this is the optimum."""
        return self.ending is not None and self.ending.converged


class Algorithm(Protocol):
    """The coordinator's part of one method.

    `steps` yields after each epoch, at most `epochs` times; it may be closed in between. Intercept
    (d_c,), head and scores H (N, d_c) belong to the parameters that the clients hold.
    """

    @property
    def intercept(self) -> Array: ...

    @property
    def head(self) -> Array | None:
        """W₀ (P, d_c) of a linear head; None without."""
        ...

    @property
    def scores(self) -> Array: ...

    @property
    def first(self) -> float:
        """The objective before the first step, once `steps` has begun."""
        ...

    def start(self) -> None: ...

    def steps(self) -> Iterator[Step]: ...


@dataclass(frozen=True)
class Local:
    """The clients' own steps in the θ-update of towers, in ADMM."""

    epochs: int
    """Passes over a client's own rows."""
    batch: int
    """Own rows per step."""
    rate: float


class Conversation:
    """The exchanges of training: every slot's block moves at once."""

    def __init__(self, problem: Problem, channel: Channel) -> None:
        self._problem = problem
        self._channel = channel
        self.whole = all_rows(problem.mapping, problem.slots)
        self._answers = Answers(problem.slots, problem.embedding)

    def start(
        self,
        algorithm: str,
        *,
        rho: float = 0.0,
        consensus: bool = False,
        inner_rounds: int = 0,
        local: Local | None = None,
    ) -> None:
        """`Start` to every client; `local` for towers in ADMM."""
        problem = self._problem
        configurations: dict[Address, ClientConfiguration] = {}
        rounds = {} if problem.privacy is None else problem.privacy.rounds
        for members in problem.slots:
            for number, address in enumerate(members.addresses):
                configurations[address] = ClientConfiguration(
                    algorithm=algorithm,
                    outputs=problem.embedding,
                    rows=problem.mapping.total,
                    total=problem.total,
                    clients=len(members.addresses),
                    leader=number == 0,
                    l2=problem.l2,
                    curvature=problem.loss.curvature,
                    shares=problem.class_shares if algorithm == "lbfgs" else (),
                    rho=rho,
                    consensus=consensus and members.shared,
                    inner_rounds=inner_rounds,
                    keep=int(problem.number("patience", 0)),
                    optimizer=problem.optimizer,
                    momentum=problem.momentum,
                    hidden=problem.hidden,
                    activation=str(problem.options.get("activation") or ACTIVATION),
                    dropout=problem.dropout,
                    seed=problem.seed,
                    number=number,
                    device=str(problem.options.get("device") or "auto"),
                    local_epochs=0 if local is None else local.epochs,
                    local_batch=0 if local is None else local.batch,
                    local_rate=0.0 if local is None else local.rate,
                    privacy=rounds.get(members.slot),
                )
        requests = {
            address: Start(problem.run, address[1], configuration.to_json())
            for address, configuration in configurations.items()
        }
        replies = ask(self._channel, requests, Answers.started)
        self._answers.begin(requests, configurations, replies)

    def predictions(
        self, rows: JoinedRows | None = None, *, training: bool = False
    ) -> dict[Address, Predictions]:
        """h of `rows`, or of all, as the blocks stand, and their penalties: one exchange.

        training: by towers that drop units; the next step's values belong to these predictions.
        """
        batch = None if rows is None else rows.rows
        asked = {
            address: SendPredictions(
                self._problem.run,
                members.slot,
                training=int(training),
                batch=np.zeros(0, np.uint32) if batch is None else batch[address],
                whole=int(batch is None),
            )
            for members in self._problem.slots
            for address in members.addresses
        }
        return ask(self._channel, asked, self._answers.predictions(rows or self.whole))

    def exact_predictions(self) -> dict[Address, ExactPredictions]:
        """h of all rows in 8-byte numbers, as the blocks stand, and their penalties: one exchange.

        What follows in lbfgs is exact too, until residuals come in 4-byte numbers again.
        """
        asked = {
            address: SendExactPredictions(self._problem.run, members.slot)
            for members in self._problem.slots
            for address in members.addresses
        }
        return ask(self._channel, asked, self._answers.exact_predictions(self.whole))

    def slopes(self, values: Array) -> list[Array]:
        """Norms of the gradient of each slot's block, Y from `values` (N, d_c): as `Slope` has
        them. One exchange, and for shared slots one more."""
        requests: dict[Address, Message] = {
            address: SendSlope(self._problem.run, address[1], aggregate)
            for address, aggregate in self.whole.scatter(values).items()
        }
        replies: dict[Address, Slope] = self._settle(requests, self._answers.slopes())
        return [replies[members.addresses[0]].squares for members in self._problem.slots]

    def share_grams(self) -> None:
        """Second moments of shared slots, summed; no exchange where there are none."""
        shared = [members for members in self._problem.slots if members.shared]
        if not shared:
            return
        run = self._problem.run
        asked = {a: SendGram(run, members.slot) for members in shared for a in members.addresses}
        replies = ask(self._channel, asked, self._answers.gram)
        sums: dict[Address, SetGram] = {}
        for members in shared:
            total = sum_grams([replies[address] for address in members.addresses])
            sums |= dict.fromkeys(members.addresses, total)
        ask(self._channel, sums, self._answers.ready)

    def step(
        self,
        rows: JoinedRows,
        values: Array,
        coefficients: Array,
        following: JoinedRows | None = None,
        *,
        exact: bool = False,
    ) -> dict[Address, Predictions]:
        """Every block's step from the joined rows' `values` (N or B, d_c).

        coefficients: (k,) for all blocks, or (slots, k).
        `rows` are those of the last predictions, `following` those to be predicted next. One
        exchange, and for shared slots one more (consensus: one per inner round). `exact`: in
        8-byte numbers, there and back.
        """
        batch = (following or self.whole).rows
        slots = self._problem.slots
        own = np.broadcast_to(coefficients, (len(slots), np.shape(coefficients)[-1]))
        told = {members.slot: own[number] for number, members in enumerate(slots)}
        requests: dict[Address, Message] = {}
        kind = ExactResiduals if exact else Residuals
        for address, aggregate in rows.scatter(values, exact=exact).items():
            requests[address] = kind(
                self._problem.run,
                address[1],
                aggregate,
                told[address[1]],
                np.zeros(0, np.uint32) if batch is None else batch[address],
            )
        return self._settle(requests, self._answers.step(following or self.whole, exact=exact))

    def probe(self, values: Array) -> Array:
        """One power round: (N, 1) -> (N, 1). Two exchanges where partial gradients are summed.

        With weights the operator is that of the rows times √share, which is symmetric.
        """
        shares = self._problem.shares
        roots = None if shares is None else np.sqrt(shares)[:, None]
        sent = values if roots is None else values * roots
        requests: dict[Address, Message] = {
            address: Probe(self._problem.run, address[1], aggregate)
            for address, aggregate in self.whole.scatter(sent).items()
        }
        image = self.whole.gather(self._settle(requests, self._answers.probe(self.whole)))
        return image if roots is None else image * roots

    def _settle(
        self, requests: Mapping[Address, Message], answers: Sequence[Expect]
    ) -> dict[Address, Any]:
        """Merges what the clients of shared slots send until every client has given the last of
        these answers."""
        found: dict[Address, Any] = {}
        for expected in answers:
            if not requests:
                break
            replies = ask(self._channel, requests, expected)
            following: dict[Address, Message] = {}
            for members in self._problem.slots:
                parts = [replies[a] for a in members.addresses if a in replies]
                merged = _merged(parts)
                if merged is None:
                    found |= {a: replies[a] for a in members.addresses if a in replies}
                else:
                    following |= dict.fromkeys(members.addresses, merged)
            requests = following
        return found

    def products(self, replies: Mapping[Address, Predictions]) -> Array:
        """What each slot's first client sent of its block: float64 (slots, k)."""
        return np.array([replies[m.addresses[0]].products for m in self._problem.slots], np.float64)


def _merged(parts: Sequence[Message]) -> SumGradient | ConsensusAverage | None:
    """What goes back to the clients of a slot; None where they have predicted."""
    gradients = [part for part in parts if isinstance(part, PartialGradient)]
    if gradients:
        total = sum_gradients([part.values for part in gradients])
        return SumGradient(gradients[0].run, gradients[0].slot, total)
    shares = [part for part in parts if isinstance(part, ConsensusPart)]
    if shares:
        mean = average([part.values for part in shares])
        return ConsensusAverage(shares[0].run, shares[0].slot, mean)
    return None
