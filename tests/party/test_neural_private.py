"""A tower in a private run: clipped and noised at the client, and counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from sqlfl.aggregation.slot_aggregation import average
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.messages import (
    ConsensusAverage,
    ConsensusPart,
    PartialGradient,
    Predictions,
    Releases,
    SendPredictions,
    SendReleases,
    SumGradient,
)
from sqlfl.methods.admm.options import local_rounds
from sqlfl.methods.sgd.tower_client import SgdTower
from sqlfl.party.neural import TowerOperator
from sqlfl.party.operator import client_of
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.party.torch_loading import check_device
from tests.methods.harness import DenseEngine
from tests.party.test_neural import (
    ROWS,
    configuration,
    dense,
    engine_of,
    residuals,
    split,
    tensors,
    tower,
)

FAINT = 1e-12
"""Noise below what is compared here."""
CLIP = 0.4


def private(
    engine: DenseEngine, seed: int = 0, *, privacy: RoundNoise | None = None, **values: Any
) -> TowerOperator:
    """With noise that a test can repeat."""
    own = configuration(engine, privacy=privacy or RoundNoise(CLIP, FAINT), **values)
    entropy = np.random.default_rng(seed).bytes
    part = client_of(values.get("algorithm", "sgd"))
    if part.tower is None:
        part.operator(engine, own, "run", 3)
    return part.tower()(engine, own, "run", 3, entropy=entropy)


def releases(own: TowerOperator) -> Releases:
    found = own.handle(SendReleases("run", 3))
    assert isinstance(found, Releases)
    return found


def clipped(rows: np.ndarray, clip: float = CLIP) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows * np.minimum(1.0, clip / np.maximum(norms, 1e-300))).sum(axis=0)


def row_gradients(own: TowerOperator, engine: DenseEngine, values: np.ndarray) -> np.ndarray:
    """∂(h_r·V_r)/∂θ, row by row, with torch: (rows, size)."""
    found, x = [], dense(engine)
    for row in range(engine.rows):
        theirs = tensors([p.copy() for p in own.parameters])
        outputs = tower(x[row : row + 1], theirs, own.shape.activation)
        (outputs * torch.tensor(values[row : row + 1], dtype=torch.float64)).sum().backward()
        found.append(np.concatenate([p.grad.numpy().reshape(-1) for p in theirs]))  # type: ignore
    return np.array(found)


# -- sgd ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2])
def test_a_step_is_of_the_clipped_sum(clients: int) -> None:
    engine = engine_of()
    own = private(engine, outputs=2, hidden=(4, 3), clients=clients, optimizer="plain", l2=0.1)
    own.handle(SendPredictions("run", 3))
    before = own.shape.pack(own.parameters)[:, 0]
    values = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
    expected = clipped(row_gradients(own, engine, values))
    reply = own.handle(residuals(values, 0.5, ROWS, 1.0))
    if clients == 2:
        assert isinstance(reply, PartialGradient)
        np.testing.assert_allclose(reply.values[:, 0], expected, atol=1e-9)
        own.handle(SumGradient("run", 3, reply.values))
    weights = own.shape.pack([np.full(s, float(len(s) == 2)) for s in own.shape.shapes])[:, 0]
    stepped = before - 0.5 * (expected / ROWS + 0.1 * weights * before)
    np.testing.assert_allclose(own.shape.pack(own.parameters)[:, 0], stepped, atol=1e-9)


def test_rows_that_count_nothing_take_no_part() -> None:
    engine = engine_of()
    own = private(engine)
    own.handle(SendPredictions("run", 3))
    values = np.random.default_rng(0).normal(size=(ROWS, 1)).astype(np.float32)
    values[::2] = 0.0
    expected = clipped(row_gradients(own, engine, values)[1::2])
    before = own.shape.pack(own.parameters)[:, 0]
    own.handle(residuals(values, 1.0, ROWS, 1.0))
    assert own.guard is not None
    np.testing.assert_array_equal(own.guard._gradients, np.arange(ROWS) % 2)
    step = before - own.shape.pack(own.parameters)[:, 0]
    assert np.abs(step).max() > 0.0
    assert np.linalg.norm(expected) > CLIP


def gradient_noise(seed: int, sigma: float) -> np.ndarray:
    """What is added to partial gradients."""
    engine, found = engine_of(), []
    values = np.random.default_rng(1).normal(size=(ROWS, 1)).astype(np.float32)
    own = private(engine, seed, privacy=RoundNoise(CLIP, sigma), clients=2)
    own.handle(SendPredictions("run", 3))
    expected = clipped(row_gradients(own, engine, values))
    for _ in range(30):
        reply = own.handle(residuals(values, 0.0, ROWS, 1.0))
        assert isinstance(reply, PartialGradient)
        found.append(reply.values[:, 0] - expected)
    return np.concatenate(found)


def test_the_noise_is_what_was_asked_for() -> None:
    sigma = 3.0
    noise = gradient_noise(0, sigma)
    assert len(noise) > 1000
    assert stats.kstest(noise / sigma, "norm").pvalue > 1e-3
    for wrong in (0.7, 1.3):
        assert stats.kstest(noise / (wrong * sigma), "norm").pvalue < 1e-6
    first, second = np.split(noise, 2)
    assert abs(stats.pearsonr(first, second).statistic) < 0.15, "each time other noise"


def noised_predictions(privacy: RoundNoise) -> Iterator[np.ndarray]:
    """Predictions of several kinds, exact and as they are released: (rows, 2, 2) each."""
    engine = engine_of()
    exact = client_of("sgd").operator(engine, configuration(engine, outputs=2), "run", 3)
    noised = private(engine, privacy=privacy, outputs=2)
    batch = np.arange(5, 25, dtype=np.uint32)
    for ask in (SendPredictions("run", 3), SendPredictions("run", 3, batch=batch, whole=0)):
        replies = [operator.handle(ask) for operator in (exact, noised)]
        yield np.stack([np.asarray(r.values, np.float64) for r in replies], axis=1)  # type: ignore
    zero = np.zeros((20, 2))
    replies = [o.handle(residuals(zero, 0.0, 20.0, 1.0)) for o in (exact, noised)]
    yield np.stack([np.asarray(r.values, np.float64) for r in replies], axis=1)  # type: ignore


def test_predictions_are_clipped_and_noised_each_time() -> None:
    """The first ones, those of a batch, and those after a step."""
    bound, sigma = 0.2, 0.5
    residue = []
    for pair in noised_predictions(RoundNoise(CLIP, FAINT, bound, sigma)):
        exact, found = pair[:, 0], pair[:, 1]
        norms = np.linalg.norm(exact, axis=1, keepdims=True)
        assert (norms > bound).any()
        residue.append((found - exact * np.minimum(1.0, bound / norms)).reshape(-1))
    noise = np.concatenate(residue)
    assert 0.85 < noise.std() / sigma < 1.15
    assert stats.kstest(noise / sigma, "norm").pvalue > 1e-3
    repeated = residue[0].reshape(ROWS, 2)[5:25].reshape(-1)
    assert np.abs(repeated - residue[1]).min() > 0.0, "other noise for the same rows"


def test_first_outputs_are_of_the_clips_size() -> None:
    engine = engine_of()
    usual = private(engine, outputs=2, hidden=(4,)).parameters
    for bound, share in ((0.2, 0.2), (5.0, 1.0)):
        noised = RoundNoise(CLIP, FAINT, prediction_clip=bound, prediction_noise=FAINT)
        own = private(engine, outputs=2, hidden=(4,), privacy=noised).parameters
        np.testing.assert_array_equal(own[-1], share * usual[-1])
        np.testing.assert_array_equal(own[0], usual[0])


def test_predictions_stay_exact_where_they_are_not_noised() -> None:
    for pair in noised_predictions(RoundNoise(CLIP, FAINT)):
        np.testing.assert_array_equal(pair[:, 0], pair[:, 1])


def test_releases_are_counted_per_row() -> None:
    """Batches that share a row: it counts in both, and all rows end the epoch."""
    privacy = RoundNoise(CLIP, 0.5, 1.5, 0.25)
    own = private(engine_of(), privacy=privacy, dropout=0.3)
    told = Releases("run", 3, 0, 0, 0, CLIP, 0.5, 0, 1.5, 0.25, 0, 0, 0)
    assert astuple(releases(own)) == astuple(told)
    own.handle(SendPredictions("run", 3))
    batches = [np.arange(10, dtype=np.uint32), np.arange(9, 30, dtype=np.uint32)]
    own.handle(SendPredictions("run", 3, training=1, batch=batches[0], whole=0))
    own.handle(residuals(np.ones((10, 1)), 0.1, 10.0, 0.0, batch=batches[1]))
    assert (releases(own).gradients, releases(own).predictions) == (1, 3)
    own.handle(residuals(np.ones((21, 1)), 0.1, 21.0, 1.0))
    assert (releases(own).gradients, releases(own).predictions) == (2, 4)
    assert own.guard is not None
    np.testing.assert_array_equal(own.guard._gradients[[0, 9, 29, 30]], [1, 2, 1, 0])


def test_nothing_is_told_where_nothing_is_noised() -> None:
    engine = engine_of()
    own = client_of("sgd").operator(engine, configuration(engine), "run", 3)
    assert own.guard is None
    told = Releases("run", 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert astuple(own.handle(SendReleases("run", 3))) == astuple(told)  # type: ignore


# -- admm -----------------------------------------------------------------------------------------


def test_local_steps_are_dp_sgd() -> None:
    """N times the objective, by rows: the first step of an update, and one away from its start."""
    engine = engine_of()
    engine.counts[::5] = 0.0
    own = private(engine, algorithm="admm", outputs=2, l2=0.3, local_epochs=1, local_batch=ROWS)
    local = own._local
    assert local is not None
    rng, part = np.random.default_rng(3), engine.counts > 0
    values, rho = rng.normal(size=(ROWS, 2)), 1.7
    flat = own.shape.pack(own.parameters)[:, 0]
    local.begin(own._network.tensor(flat), own._network.tensor(values), rho)
    anchor = own.shape.forward(dense(engine) @ own.parameters[0], own.parameters)
    total = float(engine.counts.sum())
    for moved in (flat, flat + 0.3 * rng.normal(size=len(flat))):
        own._flat = moved
        away = own.shape.forward(dense(engine) @ own.parameters[0], own.parameters) - anchor
        slopes = values + rho * (own._configuration.rows / total) * engine.counts[:, None] * away
        rows = row_gradients(own, engine, slopes)
        assert (np.linalg.norm(rows, axis=1) > CLIP).any()
        tensor = own._network.tensor(moved)
        found = local._gradient(tensor, local._rows, 0)
        np.testing.assert_allclose(found, clipped(rows[part]) / total, atol=1e-10)
        batch = local._rows[3:11]
        found = local._gradient(tensor, batch, 0)
        share = len(local._rows) / len(batch)
        np.testing.assert_allclose(found, share * clipped(rows[batch]) / total, atol=1e-10)


@pytest.mark.parametrize("batch", [ROWS, 7])
@pytest.mark.parametrize("epochs", [1, 3])
def test_passes_are_those_that_are_paid_for(batch: int, epochs: int) -> None:
    """However few rows there are, and in one batch or many: no row is in more sums."""
    engine = engine_of()
    engine.counts[:4] = 0.0
    own = private(engine, algorithm="admm", local_epochs=epochs, local_batch=batch)
    own.handle(SendPredictions("run", 3))
    for update in (1, 2):
        own.handle(residuals(np.ones((ROWS, 1)), 1.0))
        assert own.guard is not None
        expected = np.where(engine.counts > 0, epochs * update, 0)
        np.testing.assert_array_equal(own.guard._gradients, expected)
        assert releases(own).predictions == 1 + update


@pytest.mark.parametrize(("inner", "epochs", "paid"), [(1, 1, 1), (3, 1, 3), (2, 5, 6), (0, 2, 2)])
def test_passes_of_consensus(inner: int, epochs: int, paid: int) -> None:
    parts = split(engine_of(), [15])
    clients = [
        private(part, q, algorithm="admm", clients=2, number=q, consensus=True,
                inner_rounds=inner, local_epochs=epochs, local_batch=6)
        for q, part in enumerate(parts)
    ]  # fmt: skip
    replies: list[Any] = []
    for client, part in zip(clients, parts, strict=True):
        client.handle(SendPredictions("run", 3))
        replies.append(client.handle(residuals(np.ones((part.rows, 1)), 1.0)))
    while isinstance(replies[0], ConsensusPart):
        mean = average([reply.values for reply in replies])
        replies = [client.handle(ConsensusAverage("run", 3, mean)) for client in clients]
    assert all(isinstance(reply, Predictions) for reply in replies)
    rounds, passes = local_rounds(epochs, inner, 2)
    assert rounds * passes == paid
    for client in clients:
        assert client.guard is not None
        np.testing.assert_array_equal(client.guard._gradients, paid)


# -- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "clients"), [("sgd", 1), ("sgd", 2), ("admm", 1), ("admm", 2)]
)
def test_only_noised_numbers_reach_what_is_kept_or_sent(
    algorithm: str, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what the guard gives out is made independent of the rows, all is: to the bit."""
    monkeypatch.setattr(ReleaseGuard, "gradient", lambda _, total, *__: np.full(total.shape, 0.25))
    monkeypatch.setattr(ReleaseGuard, "predictions", lambda _, values, *__: np.ones(values.shape))
    found = []
    for seed in (1, 2):
        engine = engine_of(seed=seed)
        engine.counts[:], engine.centre = 1.0, engine_of().centre
        own = private(
            engine, algorithm=algorithm, clients=clients, consensus=clients > 1, inner_rounds=2,
            local_batch=9, dropout=0.2, optimizer="adam",
        )  # fmt: skip
        sent = [own.handle(SendPredictions("run", 3))]
        coefficients = (0.1, 30.0, 1.0) if algorithm == "sgd" else (1.3,)
        for _ in range(2):
            sent.append(own.handle(residuals(np.full((ROWS, 1), 0.5), *coefficients)))
            while not isinstance(last := sent[-1], Predictions):
                assert isinstance(last, ConsensusPart | PartialGradient)
                kind = ConsensusAverage if isinstance(last, ConsensusPart) else SumGradient
                sent.append(own.handle(kind("run", 3, last.values)))
        found.append([*own.parameters, *(m.values for m in sent)])  # type: ignore[attr-defined]
        found[-1] += [m.products for m in sent if isinstance(m, Predictions)]
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_private_tower_is_computed_in_float64_on_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums in float32 would move by more than noise is calibrated for."""
    monkeypatch.setattr("sqlfl.party.first_layer.device_of", lambda _: torch.device("meta"))
    engine, found = engine_of(), []

    def layer(engine: Any, device: Any, dtype: torch.dtype) -> Any:
        found.append(dtype)
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr("sqlfl.party.first_layer.DeviceLayer", layer)
    for privacy in (RoundNoise(CLIP, FAINT), None):
        own = configuration(engine, privacy=privacy, device="cuda")
        with pytest.raises(ModelError, match="do not fit"):
            SgdTower(engine, own, "run", 3)
    assert found == [torch.float64, torch.float32]


def test_opacus_is_wanted_where_a_tower_is_private_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.split(".")[0] == "opacus"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "sqlfl.models.per_row", raising=False)
    monkeypatch.setitem(sys.modules, "opacus", None)  # as if it were not installed
    engine = engine_of()
    client_of("sgd").operator(engine, configuration(engine), "run", 3)
    check_device("cpu")
    said = r"Opacus.*\nhint: pip install 'sqlfl\[neural\]'"
    with pytest.raises(ModelError, match=said):
        check_device("cpu", private=True)
    own = configuration(engine, privacy=RoundNoise(CLIP, FAINT))
    with pytest.raises(ModelError, match=said):
        client_of("sgd").operator(engine, own, "run", 3)
    linear = configuration(engine, hidden=(), privacy=RoundNoise(CLIP, FAINT))
    client_of("sgd").operator(engine, linear, "run", 3)


def test_unknown_algorithms_are_still_refused() -> None:
    with pytest.raises(InternalError, match="lbfgs"):
        private(engine_of(), algorithm="lbfgs")
