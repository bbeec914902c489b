"""The ε of label noise: nominal, exact, and measured."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sqlfl.base.errors import InternalError
from sqlfl.privacy.mechanisms import keep_probability, label_epsilon, laplace_keep, true_epsilon
from sqlfl.privacy.samplers import add_laplace, randomised_response, words

N = 40_000
CASES = pytest.mark.parametrize(
    ("nominal", "classes", "true"), [(1.0, 2, 0.493), (1.0, 10, 0.566), (4.0, 10, 2.19)]
)


@CASES
def test_laplace_over_classes_has_the_epsilon_of_the_integral(
    nominal: float, classes: int, true: float
) -> None:
    assert label_epsilon("laplace", nominal, classes) == pytest.approx(true, abs=5e-3)
    assert label_epsilon("laplace", nominal, classes) < nominal


@CASES
def test_the_largest_of_scores_with_laplace_noise_is_the_true_one_as_often(
    nominal: float, classes: int, true: float
) -> None:
    drawn = np.random.default_rng(5).laplace(scale=2 / nominal, size=(N, classes))
    drawn[:, 0] += 1
    winners = np.bincount(drawn.argmax(axis=1), minlength=classes)
    keep = laplace_keep(nominal, classes)
    expected = N * np.array([keep] + [(1 - keep) / (classes - 1)] * (classes - 1))
    assert stats.chisquare(winners, expected).pvalue > 0.01
    # the nominal ε would keep more
    nominally = keep_probability(nominal, classes)
    assert stats.binomtest(int(winners[0]), N, nominally).pvalue < 1e-6


@given(
    epsilon=st.floats(0.01, 80.0),
    classes=st.integers(2, 200),
)
def test_what_is_kept_has_at_most_the_epsilon_asked_for(epsilon: float, classes: int) -> None:
    keep, other = keep_probability(epsilon, classes), laplace_keep(epsilon, classes)
    assert true_epsilon(keep, classes) <= epsilon * (1 + 1e-12)
    if epsilon < 20:
        assert true_epsilon(keep, classes) == pytest.approx(epsilon, rel=1e-5)
        assert 1 / classes < other < keep
    assert label_epsilon("randomized_response", epsilon, classes) == epsilon
    assert label_epsilon("laplace", epsilon, classes) <= epsilon
    assert label_epsilon("laplace", epsilon, None) == epsilon


def interval(counts: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """Of ln(p/q), with 99.9 % confidence: Clopper and Pearson's of each."""
    first = stats.binomtest(int(counts), N).proportion_ci(0.9995)
    second = stats.binomtest(int(others), N).proportion_ci(0.9995)
    return math.log(first.low / second.high), math.log(first.high / second.low)


@pytest.mark.parametrize(("mechanism", "classes"), [("randomized_response", 4), ("laplace", 4)])
@pytest.mark.parametrize("broken", [False, True])
def test_the_measured_ratio_of_responses_holds_epsilon(
    mechanism: str, classes: int, broken: bool
) -> None:
    epsilon = 1.5
    keep = (laplace_keep if mechanism == "laplace" else keep_probability)(epsilon, classes)
    keep = min(1.3 * keep, 0.99) if broken else keep
    ones = [
        randomised_response(
            np.full(N, code), classes, keep,
            words(2 * N, np.random.default_rng(code).bytes).reshape(N, 2),
        )
        for code in (0, 1)
    ]  # fmt: skip
    low, high = interval((ones[0] == 0).sum(), (ones[1] == 0).sum())
    claimed = label_epsilon(mechanism, epsilon, classes)
    assert (low <= claimed <= high) is not broken
    assert broken is (low > claimed)


@pytest.mark.parametrize(("factor", "holds"), [(1.0, True), (0.7, False)])
def test_the_measured_ratio_of_noised_numbers_holds_epsilon(factor: float, holds: bool) -> None:
    """The output's tail beyond the larger of two labels, where their ratio is e^ε exactly."""
    epsilon, low, high = 1.0, 0.0, 2.0
    scale = factor * (high - low) / epsilon
    drawn = words(2 * N, np.random.default_rng(9).bytes).reshape(N, 2)
    tails = [add_laplace(np.full(N, label), scale, drawn) > high for label in (high, low)]
    least, most = interval(tails[0].sum(), tails[1].sum())
    assert (least <= epsilon <= most) is holds


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "classes"),
    [
        ("gaussian", 1.0, 2),
        ("randomized_response", 1.0, None),
        ("randomized_response", 0.0, 2),
        ("laplace", -1.0, 2),
        ("laplace", 1.0, 1),
    ],
)
def test_noise_that_makes_no_sense_is_refused(
    mechanism: str, epsilon: float, classes: int | None
) -> None:
    with pytest.raises(InternalError, match="label"):
        label_epsilon(mechanism, epsilon, classes)


@pytest.mark.parametrize(("keep", "classes"), [(1.0, 2), (0.0, 2), (0.5, 1)])
def test_a_response_without_noise_has_no_epsilon(keep: float, classes: int) -> None:
    with pytest.raises(InternalError, match="keeps"):
        true_epsilon(keep, classes)
