"""Folds: each has its share of every class, by one client or by several."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.models.folds import deal, merge_folds, strata_of

COUNTS = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=5)
"""Of each client the rows of each class."""


def dealt(counts: list[list[int]], parts: int, share: float) -> tuple[list[np.ndarray], ...]:
    """The folds and classes of each client's rows."""
    generator = np.random.default_rng(0)
    strata = [generator.permutation(np.repeat(np.arange(len(own)), own)) for own in counts]
    return [deal(own, parts, share) for own in strata], strata


def table(folds: np.ndarray, classes: np.ndarray, parts: int) -> np.ndarray:
    """(classes, parts): rows."""
    size = 1 + int(classes.max(initial=0))
    return np.bincount(classes * parts + folds, minlength=size * parts).reshape(size, parts)


@given(COUNTS, st.integers(2, 7))
def test_folds_have_as_many_rows_of_a_class(counts: list[list[int]], parts: int) -> None:
    folds, strata = dealt(counts, parts, 1 / parts)
    for onward in (False, True):
        merged = merge_folds(folds, strata, parts, 1 / parts, onward=onward)
        found = table(np.concatenate(merged), np.concatenate(strata), parts)
        assert (np.ptp(found, axis=1) <= 1).all()
        if onward:
            assert np.ptp(found.sum(axis=0)) <= 1
    for own, classes, fold in zip(folds, strata, merged, strict=True):
        # rows of a class that a client has in one fold are in one fold, and no others with them
        every = np.stack([classes, own, fold])
        places = {len(np.unique(every[rows], axis=1).T) for rows in ([0, 1], [0, 2], [0, 1, 2])}
        assert len(places) == 1


@given(COUNTS, st.integers(2, 7), st.integers(1, 4))
def test_few_rows_are_spread_over_clients_though_they_have_copies(
    counts: list[list[int]], parts: int, copies: int
) -> None:
    folds, strata = dealt(counts, parts, 1 / parts)
    merged = merge_folds(
        [np.repeat(own, copies) for own in folds],
        [np.repeat(own, copies) for own in strata],
        parts,
        1 / parts,
        onward=False,
    )
    found = table(np.concatenate(merged), np.concatenate(strata).repeat(copies), parts)
    rows = np.sum(counts, axis=0)[: len(found)]
    np.testing.assert_array_equal(np.count_nonzero(found, axis=1), np.minimum(rows, parts))


@given(COUNTS, st.floats(0.01, 0.99))
def test_a_share_of_each_class_is_held_out(counts: list[list[int]], share: float) -> None:
    folds, strata = dealt(counts, 1, share)
    merged = merge_folds(folds, strata, 1, share, onward=False)
    found = table(np.concatenate(merged), np.concatenate(strata), 2)
    rows = found.sum(axis=1)
    assert (found[rows > 1] > 0).all()
    assert (found[rows == 1, 1] == 0).all()
    if len(counts) == 1:
        usual = np.clip(np.rint(share * rows), 1, rows - 1)
        np.testing.assert_array_equal(found[rows > 1, 1], usual[rows > 1])


@given(
    st.lists(st.sampled_from([(0,), (1,), (0, 1), (1, 1, 0)]), min_size=1, max_size=40),
    st.integers(2, 7),
)
def test_groups_with_either_of_two_classes_are_in_all_folds_alike(
    groups: list[tuple[int, ...]], parts: int
) -> None:
    of = np.repeat(np.arange(len(groups)), [len(own) for own in groups])
    classes = np.concatenate([np.array(own, np.uint8) for own in groups])
    strata, several = strata_of(of, classes)
    assert several.tolist() == [len(set(own)) for own in groups]
    order = np.argsort(several > 1, kind="stable")
    folds = np.empty(len(groups), np.int64)
    folds[order] = deal(strata[order], parts, 1 / parts)
    (merged,) = merge_folds([folds], [strata], parts, 1 / parts, onward=True)
    for class_ in (0, 1):
        with_it = [fold for own, fold in zip(groups, merged.tolist(), strict=True) if class_ in own]
        assert np.ptp(np.bincount(with_it, minlength=parts)) <= 1
    assert np.ptp(np.bincount(merged, minlength=parts)) <= 1


def test_the_stratum_of_a_group_is_the_rarest_of_its_classes() -> None:
    groups = np.array([0, 0, 1, 1, 2, 3, 3, 3])
    strata, several = strata_of(groups, np.array([0, 1, 0, 2, 0, 1, 0, 1]))
    assert strata.tolist() == [1, 0, 2, 1]
    assert several.tolist() == [2, 2, 1, 2]


@pytest.mark.parametrize("parts", [1, 3])
def test_there_may_be_no_rows(parts: int) -> None:
    none = np.zeros(0, np.int64)
    assert deal(none, parts, 0.5).shape == (0,)
    folds = [deal(none, parts, 0.5)] * 2
    found, other = merge_folds(folds, [none, None], parts, 0.5, onward=True)
    assert found.shape == other.shape == (0,)


def test_a_client_that_has_dealt_its_rows_as_a_whole_turns_as_a_whole() -> None:
    first, second = np.array([0, 1, 0]), np.array([0, 1, 2, 0])
    found = merge_folds([first, second], [np.array([0, 0, 1]), None], 3, 1 / 3, onward=True)
    assert [own.tolist() for own in found] == [[0, 1, 2], [0, 1, 2, 0]]
    found = merge_folds([second, first], [None, np.array([0, 0, 1])], 3, 1 / 3, onward=True)
    assert [own.tolist() for own in found] == [[0, 1, 2, 0], [0, 1, 2]]
    found = merge_folds([second, second], [None, None], 3, 1 / 3, onward=True)
    assert [own.tolist() for own in found] == [[0, 1, 2, 0], [1, 2, 0, 1]]
