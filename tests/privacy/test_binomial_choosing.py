"""Bins and θ of a budget: never more than it, and all of it where that is possible."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from sqlfl.base.errors import InternalError, PrivacyError
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.binomial import MAX_NOISE, choose
from sqlfl.privacy.events import Event, Gaussian, PoissonBinomial, Threshold

DELTA = 1e-5
BESIDE = (Gaussian("statistics", 2.5), Threshold("categories", 1e-6))


@pytest.mark.parametrize(
    ("epsilon", "count", "honest", "bins", "beside"),
    [
        (4.0, 16, 3, None, ()),
        (0.5, 800, 5, None, ()),
        (8.0, 320, 2, 4, BESIDE),
        (30.0, 1600, 1, 128, BESIDE),
    ],
)
def test_a_budget_is_used_up_and_not_exceeded(
    epsilon: float, count: int, honest: int, bins: int | None, beside: tuple[Event, ...]
) -> None:
    found = choose(epsilon, DELTA, count=count, honest=honest, bins=bins, beside=beside)
    assert (found.bins, found.count, found.honest) == (bins or 16, count, honest)
    assert 0.995 * epsilon < epsilon_of((*beside, found), DELTA) <= epsilon
    alone = choose(epsilon, DELTA, count=count, honest=honest, bins=bins)
    assert (alone.theta > found.theta) is bool(beside)


def test_more_bins_are_taken_where_the_largest_theta_leaves_some_of_the_budget() -> None:
    few, more, most = (choose(e, DELTA, count=4, honest=5) for e in (15.0, 60.0, 1e4))
    assert few.bins == 16 < more.bins < most.bins == 128
    assert most.theta == 0.25 > max(few.theta, more.theta)
    assert epsilon_of([PoissonBinomial("e", more.bins // 2, 0.25, 5, 4)], DELTA) < 60.0
    given = choose(60.0, DELTA, count=4, honest=5, bins=8)
    assert (given.bins, given.theta) == (8, 0.25)


def test_noise_falls_with_the_budget_and_rises_with_what_is_released() -> None:
    settings = [
        (8.0, 100, 4, 1), (4.0, 100, 4, 1), (4.0, 200, 4, 1), (4.0, 200, 3, 1), (4.0, 200, 3, 3),
        (1.0, 200, 3, 3),
    ]  # fmt: skip
    found = [
        choose(epsilon, DELTA, count=count, honest=honest, moved=moved)
        for epsilon, count, honest, moved in settings
    ]
    for more, less in pairwise(found):
        assert more.bins * more.theta**2 > 1.05 * less.bins * less.theta**2


@pytest.mark.parametrize("bins", [16, 128])
def test_noise_beyond_all_use_is_refused(bins: int) -> None:
    with pytest.raises(PrivacyError, match="theta of the draws would be less than") as caught:
        choose(0.01, DELTA, count=10**5, honest=2, bins=bins)
    assert f"bins = {bins}; 100000 draws" in str(caught.value)
    spent = (Gaussian("statistics", 0.5),)
    with pytest.raises(PrivacyError, match="theta"):
        choose(1.0, DELTA, count=1, honest=2, bins=bins, beside=spent)
    least = 0.5 / MAX_NOISE / math.sqrt(bins)
    barely = epsilon_of([PoissonBinomial("e", bins, least, 2, 10**4)], DELTA) * 1.01
    assert choose(barely, DELTA, count=10**4, honest=2, bins=bins).theta < 1.1 * least


def test_what_no_draw_has_is_refused() -> None:
    with pytest.raises(InternalError, match="of 0 bins"):
        choose(1.0, DELTA, count=10, honest=2, bins=0)
    with pytest.raises(InternalError, match="1 of 0 honest"):
        choose(1.0, DELTA, count=10, honest=0)
