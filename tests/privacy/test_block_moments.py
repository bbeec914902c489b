"""Releases of a client of moments, over pairs of neighbouring tables, and what it refuses."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.messages import (
    Message,
    PartialGradient,
    Predictions,
    Residuals,
    SendGram,
    SendPredictions,
    SetParameters,
)
from sqlfl.methods.moments.client import MomentsOperator, pairs_of
from sqlfl.methods.moments.configuration import MomentsConfiguration
from sqlfl.party import release_guard as guard
from sqlfl.privacy.block_moments import (
    cut_level,
    fits_change,
    weight_cap,
)
from tests.depth import THOROUGH
from tests.methods.harness import DenseEngine
from tests.privacy.neighbours import offsets_of, rows_of

Array = np.ndarray


class Client:
    """An operator over some rows; what it noises is kept, and leaves as it is."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        counts: Array,
        numeric: int,
        entries: tuple[int, ...],
        *,
        outputs: int = 1,
        exempt: tuple[int, ...] = (),
        cap: float = 3.0,
        rounds: int = 1,
        fits: float = 0.0,
    ) -> None:
        self.put: list[tuple[Array, float]] = []
        monkeypatch.setattr(guard, "add_gaussian", self._kept)
        self._counts, self._offsets = counts, offsets_of(numeric, entries)
        noise = RoundNoise(
            0.0,
            0.0,
            moments_noise=2.0,
            labels_noise=3.0,
            row_weight=cap,
            column_bound=1.0,
            prediction_noise=fits,
        )
        self._own = MomentsConfiguration(
            outputs=outputs, rows=100, total=100.0, clients=1, leader=True, l2=0.0, curvature=1.0,
            privacy=noise, exempt=exempt, rounds=rounds,
        )  # fmt: skip

    def _kept(self, values: Array, sigma: float, *entropy: object) -> Array:
        self.put.append((np.array(values), sigma))
        return values

    def operator(self, x: Array) -> MomentsOperator:
        engine = DenseEngine(x, self._counts, np.zeros(x.shape[1]), x.shape[1] - self._offsets[0])
        engine.offsets = self._offsets
        return MomentsOperator(engine, self._own, "run", 0)

    def told(
        self, x: Array, sums: Array, theta: Array | None = None
    ) -> tuple[list[tuple[Array, float]], list[Message]]:
        """Also fits, with `theta`; or else a third sum, in two rounds."""
        self.put = []
        operator = self.operator(x)
        label_sums = Residuals("run", 0, values=np.asarray(sums, np.float32))
        asked: list[Message] = [SendGram("run", 0), label_sums]
        if theta is not None:
            asked += [SetParameters("run", 0, theta), SendPredictions("run", 0)]
        elif self._own.rounds > 1:
            asked.append(label_sums)
        return self.put, [operator.handle(message) for message in asked]


@pytest.mark.parametrize(("numeric", "entries"), [(1, ()), (3, (2, 3)), (2, (4,)), (0, (2, 2))])
def test_what_a_client_puts_under_noise_moves_by_no_more_than_the_noise_says(
    numeric: int, entries: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is sent as label sums, and however often a row is joined."""
    rng = np.random.default_rng(3)
    counts = np.array([1.0, 3.0, 50.0, 0.5, 7.0, 200.0])
    client = Client(monkeypatch, counts, numeric, entries, outputs=2, exempt=(5,))
    tries = 1_000 if THOROUGH else 150
    most = np.zeros(2)
    for _ in range(tries):
        x = rows_of(rng, 6, numeric, entries)
        sums = rng.normal(size=(6, 2)) * rng.choice([0.1, 1.0, 1e6])
        row = int(rng.integers(0, 5))
        y = np.array(x)
        y[row] = rows_of(rng, 1, numeric, entries)[0]
        if numeric:
            y[row, : rng.integers(0, numeric + 1)] *= rng.choice([1.0, -1.0, 1e300, np.nan])
        before, _ = client.told(x, sums)
        after, _ = client.told(y, sums)
        for n, (multiplier, (one, sigma), (two, same)) in enumerate(
            zip((2.0, 3.0), before, after, strict=True)
        ):
            assert sigma == same
            most[n] = max(most[n], np.linalg.norm(one - two) * multiplier / sigma)
    assert (most <= 1.0 + 1e-9).all()
    assert (most > 0.85).all()


@pytest.mark.parametrize(("numeric", "entries"), [(1, ()), (3, (2, 3)), (0, (2, 2))])
@pytest.mark.parametrize("leads", [True, False])
def test_what_a_client_puts_under_the_noise_of_a_second_round_moves_by_no_more(
    numeric: int, entries: tuple[int, ...], leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is released of a row has the μ² that the plan adds up, whatever θ is."""
    rng = np.random.default_rng(8)
    counts = np.array([1.0, 3.0, 50.0, 0.5, 7.0])
    fits = 3.0 if leads else 0.0
    client = Client(monkeypatch, counts, numeric, entries, outputs=2, rounds=2, fits=fits)
    most = np.zeros(3)
    for _ in range(1_000 if THOROUGH else 200):
        x = rows_of(rng, 5, numeric, entries)
        y = np.array(x)
        row = int(rng.integers(0, 5))
        y[row] = rows_of(rng, 1, numeric, entries)[0]
        if numeric:
            y[row, 0] *= rng.choice([1.0, -1.0, 1e300, np.nan])
        sums = rng.normal(size=(5, 2)) * rng.choice([0.1, 1.0, 1e6])
        theta = np.abs(rng.normal(size=(x.shape[1], 2))) * rng.choice([1e-3, 1.0, 1e4])
        theta[:numeric] *= rng.choice([1.0, -1.0])
        own = theta if leads else None
        before, after = client.told(x, sums, own)[0], client.told(y, sums, own)[0]
        moves = []
        for multiplier, (one, sigma), (two, same) in zip(
            (2.0, 3.0, 3.0), before, after, strict=True
        ):
            assert sigma == same
            moves.append(np.linalg.norm(one - two) * multiplier / sigma)
        most = np.maximum(most, moves)
    assert (most <= 1.0 + 1e-9).all()
    assert (most > 0.7).all()


def test_fits_are_of_the_weights_and_tell_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    x = rows_of(rng, 6, 2, (3,))
    theta = rng.normal(size=(5, 2))
    client = Client(monkeypatch, np.ones(6), 2, (3,), outputs=2, rounds=2, fits=0.5)
    *_, reply = client.told(x, np.zeros((6, 2)), theta)[1]
    assert isinstance(reply, Predictions)
    np.testing.assert_allclose(reply.values, x @ theta, rtol=1e-6)
    assert reply.products.tolist() == [0.5 * fits_change(theta, (2, 5))]


def test_a_client_tells_the_moments_of_its_bounded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    numeric, entries = 2, (2, 3)
    x = rows_of(rng, 9, numeric, entries)
    counts = rng.uniform(0.5, 8.0, 9)
    client = Client(monkeypatch, counts, numeric, entries, outputs=1, exempt=(8,))
    sums = rng.uniform(-2.0, 2.0, (9, 1)).astype(np.float32)
    _, (gram, cross) = client.told(x, sums)
    weights = np.append(np.minimum(counts[:8] / 3.0, 1.0), counts[8] / 3.0)
    whole = (x * weights[:, None]).T @ x
    np.testing.assert_allclose(gram.numeric, whole[:2, :2], atol=1e-12)
    np.testing.assert_allclose(gram.cross, whole[2:, :2], atol=1e-12)
    np.testing.assert_allclose(gram.values, whole[2:, 2:][gram.rows, gram.columns], atol=1e-12)
    np.testing.assert_allclose(gram.moments, weights @ x, atol=1e-12)
    assert gram.weight == pytest.approx(weights.sum())
    assert gram.fault() is None
    cut = np.append(np.clip(sums[:8], -1.0, 1.0), sums[8:], axis=0)
    np.testing.assert_allclose(cross.values, x.T @ cut, atol=1e-9)


def test_pairs_are_of_two_features() -> None:
    for entries in ((), (3,), (2, 3), (1, 2, 2), (0, 2), (2, 0, 1)):
        offsets = offsets_of(4, entries)
        group = np.repeat(np.arange(len(entries)), entries)
        wanted = [
            (i, j) for i, j in itertools.combinations(range(len(group)), 2) if group[i] != group[j]
        ]
        rows, columns = pairs_of(offsets)
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == wanted


SUMS = Residuals("run", 0, values=np.zeros((2, 1), np.float32))
FITS = SendPredictions("run", 0)


@pytest.mark.parametrize(
    ("rounds", "fits", "asked"),
    [
        (1, 0.0, [SendGram("run", 0), SendGram("run", 0)]),
        (1, 0.0, [SUMS, SUMS]),
        (2, 0.0, [SUMS, SUMS, SUMS]),
        (2, 1.0, [SUMS, FITS, SUMS]),
        (2, 1.0, [FITS, FITS]),
        (2, 0.0, [FITS]),
        (1, 1.0, [FITS]),
        (2, 1.0, [SendPredictions("run", 0, whole=0)]),
    ],
)
def test_no_release_beyond_those_of_the_plan(
    rounds: int, fits: float, asked: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(monkeypatch, np.ones(2), 1, (), rounds=rounds, fits=fits)
    operator = client.operator(np.ones((2, 1)))
    for message in asked[:-1]:
        operator.handle(message)
    with pytest.raises(InternalError, match=r"released once|does not release|no part of"):
        operator.handle(asked[-1])


@pytest.mark.parametrize("size", [1.2e308, 1e300, 1e39])
@pytest.mark.parametrize("row", [[0.9, 0.9], [0.3, 0.4]])
def test_whether_fits_are_beyond_all_numbers_tells_nothing_of_rows(
    size: float, row: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are refused that a coordinator chose such that only some rows' fits overflow."""
    client = Client(monkeypatch, np.ones(2), 2, (), rounds=2, fits=1.0)
    operator = client.operator(np.array([[0.1, 0.1], row]))
    operator.handle(SetParameters("run", 0, np.full((2, 1), size)))
    for _ in range(2):
        with pytest.raises(InternalError, match="fits of weights by which two rows may be"):
            operator.handle(FITS)
    assert not client.put


def test_rounds_are_one_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(monkeypatch, np.ones(2), 1, (), rounds=3)
    with pytest.raises(InternalError, match="3 rounds of moments"):
        client.operator(np.ones((2, 1)))


# -- what is chosen by what is public --------------------------------------------------------------


def test_the_cap_is_that_of_least_variance() -> None:
    alone = weight_cap(np.ones(50), 3, 2.0, 1.0)
    assert alone == 1.0
    few, many = (weight_cap(np.append(np.ones(999), 1000.0), 3, 2.0, z) for z in (100.0, 1e-4))
    assert few < 100.0
    assert many == 1000.0
    assert weight_cap(np.zeros(3), 3, 2.0, 1.0) == 1.0
    assert weight_cap(np.zeros(0), 3, 2.0, 1.0) == 1.0
    scaled = weight_cap(1e-30 * np.arange(1.0, 99.0), 3, 2.0, 1.0)
    assert scaled == pytest.approx(1e-30 * weight_cap(np.arange(1.0, 99.0), 3, 2.0, 1.0))


def test_the_level_cuts_what_costs_more_than_it_tells() -> None:
    norms = np.append(np.ones(1000), 1e4)
    assert cut_level(norms, 5, 1e-9) == 1e4
    assert cut_level(norms, 5, 1e3) == pytest.approx(1.0)
    assert cut_level(np.zeros(4), 5, 1.0) == 1.0
    assert cut_level(np.zeros(0), 5, 1.0) == 1.0
    assert cut_level(np.array([2.0]), 5, 1.0) == 2.0
    assert cut_level(np.array([2.0, 0.0]), 5, 1e9) == 2.0
    assert math.isfinite(cut_level(np.array([1e300, 1.0]), 5, 1.0))


@pytest.mark.parametrize("null", [False, True])
def test_a_row_that_is_exempt_does_not_round_noise_away(null: bool) -> None:
    """Its label sum is as large as the coordinator says: of 2 to the 61st float64 has multiples of
    512, and 256 rows of nearly 1 are at the border of two of them."""
    x, sums = np.zeros((258, 2)), np.zeros((258, 1), np.float32)
    x[:, 0] = 1.0  # NULL, but for one row
    x[256] = (1.0, 0.0) if null else (0.0, 1.0)
    sums[:256], sums[256], sums[257] = 0.9999, 1.0, 2.0**61
    noise = RoundNoise(
        0.0, 0.0, moments_noise=20.0, labels_noise=20.0, row_weight=1.0, column_bound=1.0
    )
    own = MomentsConfiguration(
        outputs=1, rows=258, total=258.0, clients=1, leader=True, l2=0.0, curvature=1.0,
        privacy=noise, exempt=(257,),
    )  # fmt: skip
    engine = DenseEngine(x, np.ones(258), np.zeros(2), 2)
    engine.offsets = (0, 2)
    found = set()
    for _ in range(60):
        reply = MomentsOperator(engine, own, "run", 0).handle(Residuals("run", 0, values=sums))
        assert isinstance(reply, PartialGradient)
        found.add(float(reply.values[0, 0]) - 2.0**61)
    assert found == {0.0, 512.0}


@pytest.mark.parametrize("changed", [{"clip": 1.0}, {"bins": 4}, {"prediction_clip": 1.0}])
def test_noise_of_another_method_is_refused(changed: dict[str, float]) -> None:
    noise = RoundNoise(
        0.0, 0.0, moments_noise=2.0, labels_noise=3.0, row_weight=1.0, column_bound=1.0
    )
    guard.ReleaseGuard(noise, 3, solved=True)
    with pytest.raises(InternalError, match="of another method"):
        guard.ReleaseGuard(replace(noise, **changed), 3, solved=True)
    with pytest.raises(InternalError, match="does not release"):
        guard.ReleaseGuard(noise, 3)
