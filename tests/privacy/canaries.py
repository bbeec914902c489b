"""Canaries at the client's operator: what an adversary who chooses all messages makes of replies.

The slot has several clients, so that the adversary, the coordinator, sees each gradient sum and
knows θ. It knows all rows but the canaries, each of which is one of two rows: x or −x.
"""

from __future__ import annotations

import numpy as np

from sqlfl.contract.configuration import Configuration
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.messages import PartialGradient, Predictions, SendPredictions, SumGradient
from sqlfl.methods.sgd.client import SgdStep
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.methods.sgd.tower_client import SgdTower
from sqlfl.party.client import ClientOperator
from tests.methods.harness import DenseEngine, configured

Array = np.ndarray

SIZE = 5.0
"""‖x‖ of a canary: far beyond what its gradient is clipped to."""
STEP = 1.0
"""Of θ, per unit of a gradient sum: it is noise of about its clip that moves θ."""


def configuration(
    rows: int, clients: int, privacy: RoundNoise | None, hidden: tuple[int, ...] = ()
) -> Configuration:
    return configured(
        "sgd",
        outputs=1,
        rows=rows,
        total=float(rows),
        clients=clients,
        leader=True,
        l2=0.0,
        curvature=1.0,
        hidden=hidden,
        activation="tanh" if hidden else "",
        privacy=privacy,
    )


class Rounds:
    """Of training: rows x (n, d), the first m of which are canaries of which the sign is a coin."""

    def __init__(self, x: Array, canaries: int, steps: int, clients: int) -> None:
        self._x, self._canaries, self._steps, self._clients = x, canaries, steps, clients
        self._others = np.random.default_rng(3).normal(size=len(x) - canaries)

    def scores(
        self, coins: Array, planned: RoundNoise, seed: int, told: RoundNoise | None = None
    ) -> Array:
        """What one run tells of each canary: (m, 3), positive where its coin (m,) seems to be 1.

        planned: what the adversary believes that clients do; `told`: what they are told to do, the
        same if not given. The three are the likelihood ratio of all that was released, and two
        that find noise that is used twice, from what changes between rounds: in gradient sums, and
        in predictions.
        """
        m = self._canaries
        operators = self._operators(coins, told or planned, np.random.default_rng(seed))
        theta = np.zeros((self._x.shape[1], 1))
        found = []
        for step in range(self._steps):
            sign = 1.0 if step % 2 == 0 else -1.0
            values = np.append(np.full(m, sign), self._others)[:, None].astype(np.float32)
            total = np.zeros_like(theta)
            for number, operator in enumerate(operators):
                own = values if number == 0 else values[:0]
                sent = operator.handle(SgdResiduals("run", 0, own, STEP, 1, 1))
                assert isinstance(sent, PartialGradient)
                total += sent.values
            theta = theta - STEP * total
            reply = operators[0].handle(SumGradient("run", 0, total))
            assert isinstance(reply, Predictions)
            bound = planned.prediction_clip or np.inf
            found.append((
                self._canary_part(total, values, planned.clip),
                np.full(m, sign),
                reply.values[:m, 0].astype(np.float64),
                np.clip(self._x[:m] @ theta[:, 0], -bound, bound),
            ))  # fmt: skip
        gradients, signs, predictions, means = (np.array(part) for part in zip(*found, strict=True))
        ratio = planned.clip / planned.noise**2 * (gradients * signs).sum(axis=0)
        if planned.prediction_noise:
            ratio += (predictions * means).sum(axis=0) / planned.prediction_noise**2
        twice = (np.diff(gradients, axis=0) * np.diff(signs, axis=0)).sum(axis=0)
        again = (np.diff(predictions, axis=0) * np.diff(means, axis=0)).sum(axis=0)
        return np.stack([2.0 * ratio, twice, again], axis=1)

    def _operators(
        self, coins: Array, told: RoundNoise, rng: np.random.Generator
    ) -> list[ClientOperator]:
        """The first client has all rows, others have none; there is one where that is all that the
        adversary needs to see."""
        x = self._x.copy()
        x[: self._canaries] *= coins[:, None]
        text = configuration(len(x), max(self._clients, 2), told)
        engines = [
            DenseEngine(rows, np.ones(len(rows)), np.zeros(x.shape[1]), 0)
            for rows in (x, *[x[:0]] * (self._clients - 1))
        ]
        return [ClientOperator(e, text, SgdStep, "run", 0, entropy=rng.bytes) for e in engines]

    def _canary_part(self, total: Array, values: Array, clip: float) -> Array:
        """A gradient sum along each canary's direction, without what the other rows add: (m,)."""
        m = self._canaries
        rows = self._x[m:] * values[m:].astype(np.float64)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        others = (rows * np.minimum(1.0, clip / norms)).sum(axis=0)
        directions = self._x[:m] / np.linalg.norm(self._x[:m], axis=1, keepdims=True)
        return directions @ (total[:, 0] - others)


def one_canary(steps: int, clients: int = 1) -> Rounds:
    """Among five other rows; the adversary sees the sum over so many clients."""
    others = np.random.default_rng(4).normal(size=(5, 2))
    return Rounds(np.vstack([[[SIZE, 0.0]], others]), 1, steps, clients)


def many_canaries(count: int, steps: int) -> Rounds:
    """Each with a column of its own, so that none hides another, among five other rows."""
    others = np.random.default_rng(5).normal(size=(5, count))
    return Rounds(np.vstack([SIZE * np.eye(count), others]), count, steps, 1)


UNITS = 3


def tower_scores(coins: Array, planned: RoundNoise, seed: int) -> Array:
    """What the first gradient sum of a tower tells of canaries (m,) that have a column each: (m,).

    Only its own canary moves a row of W₁: how, either way, the adversary knows from a tower of its
    own, which starts from the same weights.
    """
    m = len(coins)

    def gradient(signs: Array, privacy: RoundNoise | None) -> Array:
        engine = DenseEngine(np.diag(signs), np.ones(m), np.zeros(m), 0)
        text = configuration(m, 2, privacy, (UNITS,))
        entropy = np.random.default_rng(seed).bytes
        operator = SgdTower(engine, text, "run", 0, entropy=entropy)
        operator.handle(SendPredictions("run", 0))
        values = np.full((m, 1), 1000.0, np.float32)
        sent = operator.handle(SgdResiduals("run", 0, values, STEP, 1, 1))
        assert isinstance(sent, PartialGradient)
        return operator.shape.unpack(sent.values[:, 0])[0]

    plus, minus = (gradient(np.full(m, sign), None) for sign in (1.0, -1.0))
    apart = plus - minus
    seen = gradient(coins, planned) - (plus + minus) / 2 * planned.clip / np.linalg.norm(plus)
    return (seen * apart).sum(axis=1)
