"""The area under the curve, exact and in bins, against scikit-learn's."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from sqlfl.base.arrays import Array
from sqlfl.models.metrics import Area, area_under_curve
from tests.depth import in_turn

SCORES = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-52, -3.5, 1e300, -1e300, 5e-324, 0.25])
FAR = st.sampled_from([0.0, -0.0, 1.0, 1.0001, -3.5, np.inf, -1e5, 0.25])


def pairs(score: Array, positive: Array) -> Fraction | None:
    """By all pairs."""
    above = score[positive][:, None] > score[~positive]
    equal = score[positive][:, None] == score[~positive]
    count = Fraction(above.size)
    return (int(above.sum()) + Fraction(int(equal.sum()), 2)) / count if count else None


@given(st.lists(st.tuples(SCORES, st.booleans()), max_size=30))
def test_the_area_counts_pairs(rows: list[tuple[float, bool]]) -> None:
    score = np.array([s for s, _ in rows], float)
    positive = np.array([p for _, p in rows], bool)
    expected = pairs(score, positive)
    found = area_under_curve(score, positive)
    assert found == (None if expected is None else float(expected))
    doubled = np.concatenate([score, score]), np.concatenate([positive, positive])
    weighted = area_under_curve(score, positive, np.full(len(score), 2.0))
    again = area_under_curve(*doubled)
    assert (weighted is None) == (again is None)
    if weighted is not None:
        assert weighted == pytest.approx(again, rel=1e-14)


@given(
    st.lists(st.tuples(FAR, st.booleans(), st.sampled_from([0.0, 0.5, 3.0])), max_size=30),
    st.integers(0, 10),
    st.integers(1, 4),
)
def test_pieces_are_as_exact_as_the_whole_while_rows_are_kept(
    rows: list[tuple[float, bool, float]], kept: int, size: int
) -> None:
    """Scores that are far apart, or equal, share no bin that they should not."""
    score = np.array([s for s, _, _ in rows], float)
    positive, w = np.array([p for _, p, _ in rows], bool), np.array([w for _, _, w in rows])
    parts = [Area(kept), Area(kept)]
    for number, start in enumerate(range(0, len(rows), size)):
        piece = slice(start, start + size)
        parts[number % 2].add(score[piece], positive[piece], w[piece])
    parts[0].merge(parts[1])
    expected = area_under_curve(score, positive, w)
    if expected is None:
        assert parts[0].value is None
    else:
        assert parts[0].value == pytest.approx(expected, abs=1e-14)


def test_both_sides_are_needed_and_nan_is_not_hidden() -> None:
    assert area_under_curve(np.arange(3.0), np.ones(3, bool)) is None
    weights = np.array([1.0, 0.0, 2.0])
    assert area_under_curve(np.arange(3.0), np.array([True, False, True]), weights) is None
    assert Area().value is None
    undefined, positive = np.array([1.0, np.nan, 2.0]), np.array([True, False, False])
    assert np.isnan(area_under_curve(undefined, positive))
    assert np.isnan(area_under_curve(undefined, positive, np.ones(3)))
    area = Area(kept=0)
    area.add(undefined, positive)
    assert np.isnan(area.value)
    whole = Area()
    whole.merge(area)
    assert np.isnan(whole.value)


def spread(name: str, rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Scores, and which are of positive rows."""
    h = rng.normal(size=rows)
    positive = rng.random(rows) < 1.0 / (1.0 + np.exp(-h))
    if name == "probabilities":
        h = 1.0 / (1.0 + np.exp(-h))
    elif name == "rare":
        positive = rng.random(rows) < 1.0 / (1.0 + np.exp(6.0 - h))
        h = h - 6.0
    elif name == "close":
        h = 3.0 + 1e-7 * h
    elif name == "far":
        h[0], h[1] = 1e12, -1e12
    elif name == "tied":
        h = np.round(h, 2)
    elif name == "sorted":
        h = np.sort(h)
        positive = rng.random(rows) < 1.0 / (1.0 + np.exp(-h))
    return h, positive


@pytest.mark.parametrize(
    ("name", "weighted"),
    in_turn(("logits", "probabilities", "rare", "close", "far", "tied", "sorted"), (False, True)),
)
def test_bins_of_many_rows_are_within_the_bound(name: str, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    score, positive = spread(name, rng, 200_000)
    w = rng.exponential(size=len(score)) if weighted else None
    parts = [Area(kept=1000), Area(kept=1000), Area()]
    for number, rows in enumerate(np.array_split(np.arange(len(score)), 12)):
        own = None if w is None else w[rows]
        parts[number % 3].add(score[rows], positive[rows], own)
    for other in parts[1:]:
        parts[0].merge(other)
    found = parts[0].value
    expected = roc_auc_score(positive, score, sample_weight=w)
    bound = 3e-7 if name == "rare" else 5e-8  # of a thousand positive rows
    assert found == pytest.approx(expected, abs=bound)
    assert abs(found - expected) <= parts[0].error + 1e-13
    once = Area(kept=0)
    once.add(score, positive, w)
    assert found == pytest.approx(once.value, abs=1e-14)  # neither order nor pieces matter
    assert parts[0].error == pytest.approx(once.error, rel=1e-9)


def test_the_error_is_of_scores_that_share_a_bin() -> None:
    area = Area(kept=0, bins=8)
    area.add(np.array([0.0, 0.01, 5.0]), np.array([False, True, True]))
    assert area.value == 0.75
    assert area.error == 0.25
    exact = Area()
    exact.add(np.array([0.0, 0.01, 5.0]), np.array([False, True, True]))
    assert (exact.value, exact.error) == (1.0, 0.0)


def test_what_is_kept_is_a_copy() -> None:
    score, positive = np.array([0.0, 1.0]), np.array([False, True])
    area = Area()
    area.add(score, positive)
    score[:] = [1.0, 0.0]
    assert area.value == 1.0
