"""Report-noisy-max: its samplers, and what a choice tells of neighbouring data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.methods.frank_wolfe.client import FrankWolfeOperator
from sqlfl.methods.frank_wolfe.configuration import FrankWolfeConfiguration
from sqlfl.methods.frank_wolfe.messages import ColumnDirection, SetSketch
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.privacy.accountant import epsilon_by_pld, epsilon_by_rdp, epsilon_of
from sqlfl.privacy.events import CHOICES, COLUMNS, Gaussian, Pure, Selection
from sqlfl.privacy.mechanisms import MECHANISMS, noisy_max, standard_gumbel
from sqlfl.privacy.samplers import words
from tests.depth import THOROUGH, spread
from tests.methods.harness import DenseEngine
from tests.privacy.test_samplers import seeded

SIZE = 20_000 if THOROUGH else 10_000


def choices(
    scores: list[float], scale: float, mechanism: str, runs: int = SIZE, seed: int = 0
) -> np.ndarray:
    """How often each score was the largest."""
    entropy = seeded(seed)
    found = [noisy_max(np.array(scores), scale, mechanism, entropy) for _ in range(runs)]
    return np.bincount(found, minlength=len(scores))


@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (1.3, False), (0.7, False)])
def test_gumbel_noise_has_its_scale(factor: float, fits: bool) -> None:
    drawn = standard_gumbel(words(SIZE, seeded(1)))
    assert bool(stats.kstest(factor * drawn, "gumbel_r").pvalue > 1e-3) is fits


def test_gumbel_noise_has_both_tails() -> None:
    ends = np.array([0, 2**64 - 1, 2**63], np.uint64)
    low, high, middle = standard_gumbel(ends)
    assert low == pytest.approx(-math.log(65 * math.log(2)), rel=1e-12)
    assert high == pytest.approx(65 * math.log(2), rel=1e-12)
    assert middle == pytest.approx(-math.log(math.log(2)))


@pytest.mark.parametrize("scale", spread([1.0, 1.3, 0.7], 2))
def test_gumbel_choices_are_the_exponential_mechanism(scale: float) -> None:
    scores = [0.0, 0.5, 2.0, 1.0]
    expected = np.exp(np.array(scores))
    found = choices(scores, scale, "gumbel")
    fits = stats.chisquare(found, SIZE * expected / expected.sum()).pvalue > 1e-3
    assert bool(fits) is (scale == 1.0)


@pytest.mark.parametrize("scale", spread([0.7, 1.0, 1.3], 2))
def test_laplace_choices_are_the_larger_of_two(scale: float) -> None:
    """P(first) of scores d apart, of noise of scale 1: 1 − e⁻ᵈ (2 + d)/4."""
    first = 1.0 - math.exp(-1.0) * 3.0 / 4.0
    found = choices([1.0, 0.0], scale, "laplace")
    fits = stats.chisquare(found, SIZE * np.array([first, 1.0 - first])).pvalue > 1e-3
    assert bool(fits) is (scale == 1.0)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_equal_scores_are_chosen_alike_and_no_numbers_are_0(mechanism: str) -> None:
    found = choices([0.0, math.nan, math.inf], 1e-3, mechanism, 3_000)
    assert stats.chisquare(found).pvalue > 1e-3
    assert noisy_max(np.array([-1e9, 0.0, -1e9]), 1.0, mechanism) == 1


@pytest.mark.parametrize(
    ("scores", "scale", "mechanism"),
    [([], 1.0, "gumbel"), ([1.0], 0.0, "gumbel"), ([1.0], math.inf, "laplace"), ([1.0], 1.0, "")],
)
def test_what_is_no_choice(scores: list[float], scale: float, mechanism: str) -> None:
    with pytest.raises(InternalError):
        noisy_max(np.array(scores), scale, mechanism)


# -- audit -----------------------------------------------------------------------------------------

DELTA, EPSILON = 0.25, 1.0
"""Of a score, and ε₀."""


def proved(mechanism: str, noise: float, runs: int) -> float:
    """A lower bound of ε (99.9 %) from choices between columns of two neighbouring tables, whose
    scores differ by Δ upwards for one and downwards for all others."""
    counts = []
    for seed, sign in ((3, 1.0), (4, -1.0)):
        guard = ReleaseGuard(
            RoundNoise(0.0, 0.0, mechanism=mechanism, selection_noise=noise), 4, seeded(seed)
        )
        scores = np.full(9, -sign * DELTA / 2.0)
        scores[0] = sign * DELTA / 2.0
        found = [guard.choose(scores, DELTA) for _ in range(runs)]
        assert guard.selections == runs
        counts.append(found.count(0))
    high, low = (float(c) for c in counts)
    lower = stats.beta.ppf(5e-4, high, runs - high + 1)
    upper = stats.beta.ppf(1 - 5e-4, low + 1, runs - low)
    return math.log(lower / upper)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_no_audit_proves_more_than_is_claimed(mechanism: str) -> None:
    found = proved(mechanism, 2.0 / EPSILON, SIZE)
    assert 0.5 * EPSILON < found < EPSILON  # it comes near, and not above


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_scale_that_is_half_as_large_is_caught(mechanism: str) -> None:
    assert proved(mechanism, 1.0 / EPSILON, SIZE) > EPSILON


# -- account ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("count", [1, 10, 100])
def test_the_account_is_the_least_of_what_holds(mechanism: str, count: int) -> None:
    delta, epsilon = 1e-6, 0.3
    own = Selection(CHOICES, mechanism, epsilon, count)
    found = epsilon_of([own], delta)
    assert found <= count * epsilon * (1 + 1e-9)
    assert found <= epsilon_by_rdp([own], delta)
    # Gumbel choices are no worse than what is known of all ε-DP mechanisms
    assert found <= epsilon_of([Selection(CHOICES, "laplace", epsilon, count)], delta) * (1 + 1e-3)
    assert found > 0.0


def test_choices_by_gumbel_noise_are_an_eighth_of_pure_ones() -> None:
    """ρ = ε²/8 against ε²/2 (Cesar and Rogers, 2021)."""
    gumbel = Selection(CHOICES, "gumbel", 0.2, 400)
    pure = [Pure(CHOICES, 0.1)] * 400
    assert epsilon_by_rdp([gumbel], 1e-6) == pytest.approx(epsilon_by_rdp(pure, 1e-6), rel=1e-9)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_columns_beside_choices_add_to_it(mechanism: str) -> None:
    own = Selection(CHOICES, mechanism, 0.3, 10)
    columns = Gaussian(COLUMNS, 5.0, 10)
    both = epsilon_of([own, columns], 1e-6)
    assert both > max(epsilon_of([own], 1e-6), epsilon_of([columns], 1e-6))
    assert both <= epsilon_of([columns], 1e-6) + 10 * 0.3 + 1e-9
    # by privacy losses choices are as all ε-DP mechanisms: less than Rényi DP says of Laplace's
    by_losses = epsilon_by_pld([Selection(CHOICES, "laplace", 0.3, 10), columns], 1e-6)
    assert by_losses <= epsilon_by_rdp([Selection(CHOICES, "laplace", 0.3, 10), columns], 1e-6)
    assert 0.8 * by_losses < both if mechanism == "laplace" else both < by_losses


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_row_moves_scores_by_no_more_than_the_noise_of_a_choice_says(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attained by the row of the largest part, whatever the coordinator sends; and what a row that
    is joined often may come to sets no noise, but what it does come to."""
    seen: list[tuple[np.ndarray, float]] = []

    def kept(guard: ReleaseGuard, scores: np.ndarray, sensitivity: float) -> int:
        seen.append((np.array(scores), sensitivity))
        return 0

    monkeypatch.setattr(ReleaseGuard, "choose", kept)
    rows = np.repeat(np.arange(6), [1, 1, 2, 3, 50, 200]).astype(np.uint32)
    noise = RoundNoise(
        0.0, 0.0, mechanism=mechanism, selection_noise=4.0, column_bound=1.0, residual_bound=30.0,
        sketch_noise=1.0,
    )  # fmt: skip
    configuration = FrankWolfeConfiguration(
        outputs=1, rows=len(rows), total=float(len(rows)), clients=1, leader=True, l2=0.0,
        curvature=1.0, privacy=noise, radius=1.0, sketch=64,
    )  # fmt: skip
    counts = np.bincount(rows).astype(float)
    none = np.zeros(0, np.uint32)
    rng = np.random.default_rng(4)
    most, levels = 0.0, []
    for size in np.repeat([0.0, 1e-3, 1.0, 1e9], 20 if not THOROUGH else 500):
        x = rng.uniform(-1.0, 1.0, (6, 3))
        row = int(rng.integers(6))
        y = np.array(x)
        x[row], y[row] = 1.0, -1.0
        direction = (size * rng.normal(size=64)).astype(np.float32)
        for columns in (x, y):
            engine = DenseEngine(columns, counts, np.zeros(3), 0)
            operator = FrankWolfeOperator(engine, configuration, "run", 0)
            operator.handle(SetSketch("run", 0, 7, len(rows), rows, none))
            operator.handle(ColumnDirection("run", 0, direction, np.zeros(0)))
        (one, sensitivity), (two, same) = seen[-2:]
        assert sensitivity == same > 0.0
        moved = float(np.abs(one - two).max()) / sensitivity
        assert moved <= 1.0 + 1e-12
        most = max(most, moved)
        levels.append(sensitivity)
    assert most > 1.0 - 1e-9
    assert min(levels) < 0.1 * 2.0 * 30.0 * 200
    assert max(levels) <= 2.0 * 30.0 * 200
