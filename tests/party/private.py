"""Private clients in memory, and builds of them that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sqlfl.contract.configuration import Configuration
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.party.client import ClientOperator
from sqlfl.party.operator import client_of
from sqlfl.party.release_guard import ReleaseGuard
from tests.methods import harness
from tests.methods.harness import DenseEngine

Array = np.ndarray

TINY = 1e-12
"""Noise that a test of exact numbers does not see."""


class Categories(DenseEngine):
    """p numeric columns, then category features of the given sizes."""

    def __init__(self, x: Array, counts: Array, centre: Array, sizes: tuple[int, ...]) -> None:
        super().__init__(x, counts, centre, sum(sizes))
        self.offsets = tuple(int(o) for o in np.cumsum([self.numeric, *sizes]))


def engine_of(x: Array, counts: Array | None = None) -> DenseEngine:
    """Of numeric columns."""
    counts = np.ones(len(x)) if counts is None else counts
    return DenseEngine(np.asarray(x, float), counts, np.zeros(x.shape[1]), 0)


def entropy(seed: int) -> Callable[[int], bytes]:
    """The same bytes in every run of a test."""
    return np.random.default_rng(seed).bytes


def configured(algorithm: str = "sgd", **values: Any) -> Configuration:
    privacy = {
        name: values.pop(name)
        for name in RoundNoise.__dataclass_fields__
        if name in values
    }  # fmt: skip
    usual = {
        "outputs": 1, "rows": 100, "total": 100.0, "clients": 1, "leader": True,
        "l2": 0.0, "curvature": 1.0,
        "privacy": RoundNoise(**{"clip": 1.0, "noise": TINY} | privacy),
    }  # fmt: skip
    return harness.configured(algorithm, **(usual | values))


Build = Callable[..., ClientOperator]


def operator(
    engine: DenseEngine,
    algorithm: str = "sgd",
    *,
    build: Build = ClientOperator,
    theta: Array | None = None,
    seed: int = 0,
    **values: Any,
) -> ClientOperator:
    own, step = configured(algorithm, **values), client_of(algorithm).step
    return build(engine, own, step, "run", 3, theta, entropy=entropy(seed))


def clipped_sum(build: Build, engine: DenseEngine, values: Array, clip: float) -> Array:
    """What the client sends as its partial gradient, but for its noise: (d, c)."""
    client = operator(engine, build=build, clients=2, clip=clip, outputs=values.shape[1])
    reply = client.handle(SgdResiduals("run", 3, values, 1.0, 1, 1))
    assert reply.kind == "partial_gradient"
    return reply.values


# -- broken builds --------------------------------------------------------------------------------


class PerCopy(ClientOperator):
    """Clips each joined copy of a row, and so bounds nothing per row."""

    def _gradient(self, values: Array) -> Array:
        counts = self._engine.counts[slice(None) if self._rows is None else self._rows]
        copies = np.maximum(counts, 1.0)[:, None]
        guard = self._guard
        norms = self._norms * np.linalg.norm(values / copies, axis=1)
        scaled = values * guard.factors(norms)[:, None]
        return guard.gradient(self._engine.gradient(scaled, self._rows), values, self._rows)


class Unclipped(ClientOperator):
    def _gradient(self, values: Array) -> Array:
        gradient = self._engine.gradient(values, self._rows)
        return self._guard.gradient(gradient, values, self._rows)


class _Silent(ReleaseGuard):
    def gradient(self, total: Array, values: Array, rows: Array | None) -> Array:
        super().gradient(total, values, rows)
        return total

    def predictions(self, values: Array, rows: Array | None) -> Array:
        super().predictions(values, rows)
        return values


class WithoutNoise(ClientOperator):
    """Forgets it, and counts all the same."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        super().__init__(*arguments, **values)
        self._guard = _Silent(self._guard.privacy, self._engine.rows)


class DividedNoise(ClientOperator):
    """The sum is divided by the rows of the batch, and then noise is added that was for sums."""

    def _gradient(self, values: Array) -> Array:
        exact, guard = self._engine.gradient(values, self._rows), self._guard
        return exact + self._step._divisor * guard.gradient(
            np.zeros_like(exact), values, self._rows
        )


class SmallNoise(ClientOperator):
    """Divides the noise among the clients, as if nobody saw their parts."""

    def _gradient(self, values: Array) -> Array:
        exact, guard = self._engine.gradient(values, self._rows), self._guard
        noise = guard.gradient(np.zeros_like(exact), values, self._rows)
        return exact + noise / np.sqrt(self._configuration.clients)
