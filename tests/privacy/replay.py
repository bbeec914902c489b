"""Two worlds that differ in one row, and a run of the same statement in each.

What is noised is replayed: in the second world each noised release comes out as it did in the
first, whatever was put in. Then all that is calculated from noised releases alone is the same, bit
by bit, and what is not has seen the row on another way. What was put in tells what the row moves.
All other chance is fixed.
"""

from __future__ import annotations

import os
import secrets
import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.coordinator import preparation, problems
from sqlfl.coordinator.join.join_limits import limit_fan_out
from sqlfl.coordinator.protection import protect
from sqlfl.methods.sgd import coordinator as sgd
from sqlfl.party import party
from sqlfl.party import release_guard as guard
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.privacy import events as of
from sqlfl.privacy.calibration import NoiseCalibration
from sqlfl.privacy.mechanisms import noisy_max
from sqlfl.privacy.poisson_binomial.sampling import draw
from sqlfl.privacy.samplers import add_gaussian
from sqlfl.transport.local import LocalTransport
from sqlfl.transport.recording import RecordingTransport
from sqlfl.udfs.blocks.blocks import MemoryBlocks
from sqlfl.udfs.encoding import noised
from sqlfl.udfs.labels import label_noise
from sqlfl.udfs.numbering.rows import Snapshot
from tests.federations import Parties, federation

Array = np.ndarray
Key = tuple[str, str, int]
"""Who noised (a client, or the coordinator), what (as events call it), which of its releases."""

TIMES = ("seconds", "comm_seconds")
COORDINATOR = "coordinator"


@dataclass
class World:
    """What one run put into its noised releases, and all that came of it."""

    put: dict[Key, tuple[Array, float]] = field(default_factory=dict)
    """Before noise, and its standard deviation."""
    out: dict[Key, Array] = field(default_factory=dict)
    drawn: dict[Key, tuple[Array, Array]] = field(default_factory=dict)
    """What was drawn of, and the draws."""
    chosen: dict[Key, tuple[Array, float, int]] = field(default_factory=dict)
    """Scores, the scale of their noise, and which was the largest with it."""
    messages: list[tuple[str, str, bytes]] = field(default_factory=list)
    history: pa.Table | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, tuple[Array, ...]] = field(default_factory=dict)
    """Of each client's block; and the intercept, and W₀ where there is a head."""
    encodings: dict[str, bytes] = field(default_factory=dict)
    calibration: NoiseCalibration | None = None
    report: str = ""


class Stage:
    """Runs statements with all chance fixed; noise is drawn in the first world only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here = threading.local()
        self._world = World()
        self._first: World | None = None
        self._counts: defaultdict[tuple[str, str], Iterator[int]] = defaultdict(
            lambda: iter(range(10**6))
        )
        serve = LocalTransport._serve

        def served(transport: LocalTransport, client: Any, data: list[pa.Buffer]) -> Any:
            self._here.who = str(client)
            return serve(transport, client, data)

        monkeypatch.setattr(LocalTransport, "_serve", served)
        monkeypatch.setattr(sgd, "add_gaussian", partial(self._noised, of.INTERCEPT))
        monkeypatch.setattr(noised, "add_gaussian", partial(self._noised, of.STATISTICS))
        monkeypatch.setattr(guard, "add_gaussian", partial(self._noised, ""))
        monkeypatch.setattr(guard, "draw", self._drawn)
        monkeypatch.setattr(guard, "noisy_max", self._chosen)
        for what, name in (
            (of.GRADIENTS, "gradient"),
            (of.PREDICTIONS, "predictions"),
            (of.MOMENTS, "moments"),
            (of.COLUMNS, "sketch"),
            (of.MOMENTS, "block_moments"),
            (of.CROSSES, "label_moments"),
            (of.PREDICTIONS, "fits"),
        ):
            monkeypatch.setattr(ReleaseGuard, name, self._naming(what, getattr(ReleaseGuard, name)))
        save = MemoryBlocks.save

        def saved(blocks: MemoryBlocks, *args: Any) -> None:
            block = args[-1]
            self._world.parameters[self._here.who] = (block.theta, *block.upper)
            self._world.encodings[self._here.who] = block.encoding.to_bytes()
            save(blocks, *args)

        monkeypatch.setattr(MemoryBlocks, "save", saved)

        def protected(*args: Any) -> Any:
            found = protect(*args)
            self._world.calibration = None if found is None else found.calibration
            return found

        monkeypatch.setattr(problems, "protect", protected)
        fixed = partial(limit_fan_out, entropy=_bytes)
        monkeypatch.setattr(preparation, "limit_fan_out", fixed)
        monkeypatch.setattr(os, "urandom", self._chance)
        monkeypatch.setattr(secrets, "token_bytes", _bytes)
        monkeypatch.setattr(secrets, "token_hex", lambda size: "5a" * size)
        monkeypatch.setattr(secrets, "randbits", lambda bits: 7)
        # what is drawn by a row's content is as random, but not the same, for another content
        monkeypatch.setattr(label_noise, "_words", _words)
        monkeypatch.setattr(party, "split_of", _split)

    def run(self, parties: Parties, statement: str, first: World | None = None) -> World:
        """TRAIN of the model m. `first`: the world whose noised releases are replayed."""
        self._world, self._first = World(), first
        found = self._world
        self._counts.clear()
        recording: list[RecordingTransport] = []

        def wrap(inner: Any) -> RecordingTransport:
            recording.append(RecordingTransport(inner))
            return recording[0]

        with federation(parties, wrap=wrap) as fed:
            fed.sql(statement)
            model = fed.model("m")
        found.messages = [(r.direction, str(r.client), r.data) for r in recording[0].recorded]
        found.history = model.history.drop_columns(list(TIMES))
        found.metrics = dict(model.metrics)
        found.parameters[COORDINATOR] = (np.array(model.intercept),)
        if model.head is not None:
            found.parameters[COORDINATOR] += (np.array(model.head),)
        found.report = str(model.privacy)
        return found

    def _naming(self, what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def named(*args: Any) -> Any:
            self._here.what = what
            return method(*args)

        return named

    def _noised(self, what: str, values: Array, sigma: float, *entropy: Any) -> Array:
        who = COORDINATOR if what == of.INTERCEPT else self._here.who
        what = what or self._here.what
        key = (who, what, next(self._counts[who, what]))
        self._world.put[key] = (np.array(values, np.float64), sigma)
        drawn = add_gaussian(values, sigma) if self._first is None else self._first.out[key]
        self._world.out[key] = drawn
        return drawn.copy()

    def _chance(self, size: int) -> bytes:
        """The same in all worlds, another at each client: keys of two must differ."""
        own = zlib.crc32(getattr(self._here, "who", "").encode())
        return bytes((k + own) % 256 for k in _bytes(size))

    def _drawn(self, values: Array, bound: float, bins: int, theta: float, _: object) -> Array:
        key = (self._here.who, of.EMBEDDINGS, next(self._counts[self._here.who, of.EMBEDDINGS]))
        out = draw(values, bound, bins, theta) if self._first is None else self._first.drawn[key][1]
        self._world.drawn[key] = np.array(values), out
        return out.copy()

    def _chosen(self, scores: Array, scale: float, mechanism: str, *entropy: Any) -> int:
        key = (self._here.who, of.CHOICES, next(self._counts[self._here.who, of.CHOICES]))
        best = noisy_max(scores, scale, mechanism)
        best = best if self._first is None else self._first.chosen[key][2]
        self._world.chosen[key] = np.array(scores), scale, best
        return best


def scores_moved(one: World, other: World) -> dict[str, float]:
    """Party -> by how much a score is another in the other world, at most, over half the scale of
    its noise: ε₀ of a choice must not be less."""
    assert one.chosen.keys() == other.chosen.keys()
    found: defaultdict[str, float] = defaultdict(float)
    for key, (scores, scale, _) in one.chosen.items():
        theirs, same, _ = other.chosen[key]
        assert scale == same, f"the noise of choices at {key[0]} depends on the row"
        move = 2.0 * float(np.abs(scores - theirs).max()) / scale
        found[key[0].split("/")[0]] = max(found[key[0].split("/")[0]], move)
    return dict(found)


def draws_moved(one: World, other: World) -> dict[str, int]:
    """Party -> numbers that were drawn of, and are others in the other world."""
    assert one.drawn.keys() == other.drawn.keys()
    found: defaultdict[str, int] = defaultdict(int)
    for key, (values, _) in one.drawn.items():
        assert np.abs(values).max(initial=0.0) <= 1.0
        found[key[0].split("/")[0]] += int((values != other.drawn[key][0]).sum())
    return dict(found)


def moved(one: World, other: World, *, summed: bool) -> dict[tuple[str, str], Array]:
    """(party or coordinator, what) -> (Δ/σ)² of each release.

    `summed`: of gradients only the sum over a party's clients is seen, so that the moves add up,
    and the variances of the noise.
    """
    assert one.put.keys() == other.put.keys()
    moves: defaultdict[tuple[str, str], defaultdict[int, list[tuple[Array, float]]]]
    moves = defaultdict(lambda: defaultdict(list))
    for (who, what, number), (values, sigma) in one.put.items():
        theirs, same = other.put[who, what, number]
        assert sigma == same, f"the noise of {what} at {who} depends on the row"
        moves[who.split("/")[0], what][number].append((values - theirs, sigma))
    return {
        group: np.array([
            _square(parts, summed and group[1] == of.GRADIENTS) for parts in releases.values()
        ])
        for group, releases in moves.items()
    }  # fmt: skip


def _square(parts: list[tuple[Array, float]], summed: bool) -> float:
    if summed:
        move = np.sum([difference for difference, _ in parts], axis=0)
        return float(np.square(move).sum() / sum(sigma**2 for _, sigma in parts))
    return float(sum(np.square(move).sum() / sigma**2 for move, sigma in parts))


def _bytes(size: int) -> bytes:
    return bytes((37 * k + 11) % 256 for k in range(size))


def _words(snapshot: Snapshot, label: Any) -> Array:
    generator = np.random.default_rng(5)
    return generator.integers(0, 2**64, (snapshot.active, 2), np.uint64)


def _split(snapshot: Snapshot) -> Array:
    return (np.arange(snapshot.active) % 5 == 0).astype(np.uint8)
