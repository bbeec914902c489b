"""Reconstruction from captured traffic: it succeeds where the report says `none`, else it fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.planner.explain.report import PrivacyReport
from tests.conftest import Open
from tests.privacy import auditing
from tests.privacy import reconstruction as attack
from tests.privacy.capturing import View, watched

Array = np.ndarray

STEPS = "epochs = 8, learning_rate = 0.9"
"""Eight predictions, of three unknown columns, with steps that reach the order of 1."""
LIMITS = f"[{-attack.BOUND}, {attack.BOUND}]"
BOUNDS = f"feature_bounds = {{'a': {LIMITS}, 'b': {LIMITS}, 'c': {LIMITS}}}"
EPSILON, DELTA = 1.0, 1e-3
EXACT = (
    f"PRIVACY (noise_multiplier = 2, delta = {DELTA}, clip = 1, predictions = 'exact', {BOUNDS})"
)
NOISED = f"""PRIVACY (
    epsilon = {EPSILON}, delta = {DELTA}, clip = 1, predictions = 'gaussian', {BOUNDS})"""
FLOAT32 = 2e-5
"""Of features of size 3: what is left of the precision of eight predictions."""


def run(database: Open, x: Array, privacy: str, steps: str = STEPS) -> tuple[View, PrivacyReport]:
    """What the coordinator saw of training, and what the model says of it."""
    with watched(attack.tables(database, x)) as (fed, coordinator):
        fed.sql(attack.train(steps, privacy))
        return coordinator.view(), fed.model("m").privacy


def claimed(report: PrivacyReport, kind: str) -> list[float | None]:
    """ε of each release of a kind to the coordinator."""
    found = [r.epsilon for r in report.releases if (r.kind, r.observer) == (kind, "coordinator")]
    assert found, f"the report does not tell of {kind} to the coordinator"
    return found


def by_bounds(encoded: Array) -> Array:
    """As they are in the table: bounds are public, and centre and scale with them."""
    return encoded * attack.BOUND


def test_without_privacy_the_features_come_back(database: Open) -> None:
    x = attack.features()
    view, report = run(database, x, "", STEPS + ", tolerance = 0")
    (merged,) = view.of("set_encoding", "down", "bank", 0)
    found = attack.encoded(view) * attack.array(merged, "scale") + attack.array(merged, "mean")
    own = x[attack.owners(view, attack.labels(x))]
    np.testing.assert_allclose(found, own, rtol=0, atol=FLOAT32)
    assert claimed(report, "predictions") == [None]
    assert "nothing here is differentially private" in str(report)


def test_with_exact_predictions_they_come_back_whatever_the_parameters_noise(
    database: Open,
) -> None:
    """Noised gradients hide nothing then: the noise is in θ, which the coordinator follows."""
    x = attack.features()
    view, report = run(database, x, EXACT)
    found = by_bounds(attack.encoded(view))
    # twice, for θ is followed in other sums than the client's; the noise decides how far θ moves
    error = 2 * by_bounds(np.array(attack.rounding(view)))
    assert error < 0.01 * x.std()
    own = x[attack.owners(view, attack.labels(x))]
    np.testing.assert_allclose(found, own, rtol=0, atol=error)
    assert claimed(report, "predictions") == [None]
    users = [r.epsilon for r in report.releases if r.observer == "users of the model"]
    assert any(epsilon is not None for epsilon in users)


def correlation(x: Array, view: View) -> float:
    """The largest, of any column, between what linear attacks find and the truth: of the plain
    solution, and of the best one for the noise that is told."""
    own = x[attack.owners(view, attack.labels(x))]
    noise = attack.noise_of(view) / np.std(x / attack.BOUND)
    return max(
        abs(np.corrcoef(found, true)[0, 1])
        for assumed in (0.0, noise)
        for found, true in zip(attack.encoded(view, assumed).T, own.T, strict=True)
    )


def test_where_protection_is_claimed_the_attack_fails(database: Open) -> None:
    x = attack.features()
    view, report = run(database, x, NOISED)
    (epsilon,) = claimed(report, "predictions")
    assert epsilon is not None
    assert 0.99 * EPSILON < epsilon <= EPSILON
    # of 300 rows: noise alone correlates by 0.06
    assert correlation(x, view) < 0.4
    plain = by_bounds(attack.encoded(view))
    own = x[attack.owners(view, attack.labels(x))]
    assert np.sqrt(np.mean((plain - own) ** 2)) > 5 * x.std()


def signs() -> tuple[Array, Array]:
    """Rows that are one of two by a coin: x or −x, with all columns at their bounds."""
    coins = np.random.default_rng(21).choice([-1.0, 1.0], attack.ROWS)
    return np.full((attack.ROWS, attack.COLUMNS), attack.BOUND) * coins[:, None], coins


def proved(view: View, coins: Array, x: Array) -> float:
    """ε by one run: every row of the first client is a canary, of which predictions tell."""
    theta, seen = attack.followed(view), attack.predictions(view)
    scores = seen @ theta.sum(axis=1)
    own = coins[attack.owners(view, attack.labels(x))]
    found = []
    for share in (1.0, 0.3):
        guesses, right = auditing.guesses_right(scores, own, share)
        found.append(auditing.from_one_run(len(own), guesses, right, DELTA))
    return max(found)


def test_a_whole_run_proves_no_more_than_its_report_claims(database: Open) -> None:
    x, coins = signs()
    view, report = run(database, x, NOISED)
    (epsilon,) = claimed(report, "predictions")
    assert epsilon is not None
    assert proved(view, coins, x) <= epsilon


noised = ReleaseGuard.predictions


def little_noise(part: float) -> Callable[[ReleaseGuard, Array, Array | None], Array]:
    """A part of it, around what was clipped."""

    def found(self: ReleaseGuard, values: Array, rows: Array | None) -> Array:
        bound = self.privacy.prediction_clip
        exact = np.clip(values, -bound, bound)
        return exact + part * (noised(self, values, rows) - exact)

    return found


def test_a_build_with_too_little_noise_is_caught(
    database: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReleaseGuard, "predictions", little_noise(1e-3))
    x, coins = signs()
    view, report = run(database, x, NOISED)
    (epsilon,) = claimed(report, "predictions")
    assert epsilon is not None
    assert proved(view, coins, x) > epsilon
    # the noise of gradients may move θ along one line, nearly: less of it still tells the columns
    monkeypatch.setattr(ReleaseGuard, "predictions", little_noise(1e-5))
    x = attack.features()
    view, _ = run(database, x, NOISED)
    assert correlation(x, view) > 0.9
