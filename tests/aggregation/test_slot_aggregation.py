"""Merging over the clients of a slot equals computing on their union."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from sqlfl.aggregation.slot_aggregation import (
    merge_classes,
    merge_statistics,
    sum_gradients,
    sum_grams,
)
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.messages import Labels, Statistics
from sqlfl.messages.grams import gram_to_message, message_to_gram
from sqlfl.messages.wire import decode, encode
from sqlfl.models.gram import GramMatrix
from tests.conftest import Open
from tests.depth import THOROUGH, in_turn
from tests.unions import WAYS, divided, trained


def tag(number: int) -> np.ndarray:
    return np.frombuffer(number.to_bytes(16, "big"), np.uint8)


def statistics(values: np.ndarray, counts: np.ndarray, codes: np.ndarray) -> Statistics:
    """One client's: NaN is NULL; the tag of code c is c · 2^100."""
    present = ~np.isnan(values)
    weights = np.where(present, counts[:, None], 0.0)
    filled = np.where(present, values, 0.0)
    weight = weights.sum(axis=0)
    mean = (weights * filled).sum(axis=0) / np.where(weight > 0, weight, np.nan)
    m2 = (weights * (filled - mean) ** 2).sum(axis=0)
    found = np.unique(codes)[::-1]
    return Statistics(
        "run",
        2,
        weight,
        mean,
        m2,
        counts @ ~present,
        (np.array([tag(int(c) << 100) for c in found], np.uint8).reshape(-1, 16),),
        (np.array([counts[codes == c].sum() for c in found], float),),
    )


def test_statistics_of_three_clients_are_those_of_the_union() -> None:
    rng = np.random.default_rng(0)
    values = 1e6 + rng.normal(size=(60, 4))
    values[rng.random((60, 4)) < 0.2] = np.nan
    values[:20, 1] = np.nan  # none present at the first client
    values[:, 2] = 7.5  # constant
    values[:, 3] = np.nan  # none present at all
    counts = rng.integers(0, 4, 60)
    codes = rng.integers(0, 5, 60)
    counts[codes == 4] = 0  # no joined row
    parts = [statistics(values[p], counts[p], codes[p]) for p in np.split(np.arange(60), [20, 45])]
    total = int(counts.sum())
    merged = merge_statistics(parts, total)
    repeated = np.repeat(values, counts, axis=0)
    mean = np.array([np.nanmean(repeated[:, 0]), np.nanmean(repeated[:, 1]), 7.5, 0.0])
    imputed = np.where(np.isnan(repeated), mean, repeated)
    np.testing.assert_allclose(merged.mean, mean, rtol=1e-14)
    np.testing.assert_allclose(merged.scale, np.append(imputed.std(axis=0)[:2], [1.0, 1.0]))
    np.testing.assert_array_equal(merged.missing, np.isnan(repeated).sum(axis=0))
    np.testing.assert_array_equal(merged.tags[0], [tag(c << 100) for c in range(4)])
    np.testing.assert_array_equal(merged.counts[0], [counts[codes == c].sum() for c in range(4)])
    assert (merged.run, merged.slot, merged.total) == ("run", 2, total)


def test_tags_are_sorted_by_their_bytes() -> None:
    rng = np.random.default_rng(0)
    tags = rng.integers(0, 256, (200, 16)).astype(np.uint8)
    tags[100:, :8] = tags[:100, :8]
    none = np.zeros(0)
    parts = [
        Statistics("r", 0, none, none, none, none, (half,), (np.ones(len(half)),))
        for half in (tags[:120], tags[80:])
    ]
    merged = merge_statistics(parts, 240)
    raw = [bytes(row) for row in merged.tags[0]]
    assert raw == sorted({bytes(row) for row in tags})
    assert merged.counts[0].sum() == 240
    assert (merged.counts[0] == 2).sum() == 40


def test_a_slot_without_categories_and_empty_vocabularies() -> None:
    one = np.ones(1)
    empty = (np.zeros((0, 16), np.uint8),)
    part = Statistics("r", 0, one, one, one, one, empty, (np.zeros(0),))
    merged = merge_statistics([part, part], 2)
    assert merged.tags[0].shape == (0, 16)


def labels(classes: tuple[str, ...], codes: list[int]) -> Labels:
    return Labels("r", 0, np.zeros(0), classes, np.array(codes, np.uint32))


@pytest.mark.parametrize(
    ("lists", "type_", "expected"),
    [
        ([("9", "10"), ("2", "10")], "BIGINT", ("2", "9", "10")),
        ([("-1.5", "0.2"), ("-2", "7")], "DOUBLE", ("-2", "-1.5", "0.2", "7")),
        ([("10", "9"), ("2",)], "VARCHAR", ("10", "2", "9")),
        ([("false",), ("true",)], "BOOLEAN", ("false", "true")),
        ([("low", "high"), ("low", "mid"), ("mid", "high")], "ENUM('low', 'mid', 'high')",
         ("low", "mid", "high")),
    ],
)  # fmt: skip
def test_classes_keep_the_order_of_their_type(lists, type_, expected) -> None:
    parts = [labels(names, list(range(len(names)))[::-1]) for names in lists]
    classes, codes = merge_classes(parts, type_)
    assert classes == expected
    assert [classes[c] for c in codes] == [name for names in lists for name in names[::-1]]


def test_classes_in_contradicting_orders_are_refused() -> None:
    with pytest.raises(ModelError, match="differently"):
        merge_classes([labels(("a", "b"), [0]), labels(("b", "a"), [0])], "ENUM('a', 'b')")


def test_classes_of_one_client_stay_as_they_are() -> None:
    classes, codes = merge_classes([labels(("z", "a"), [1, 0, 1])], "ENUM('z', 'a')")
    assert classes == ("z", "a")
    np.testing.assert_array_equal(codes, [1, 0, 1])


def random_gram(seed: int) -> GramMatrix:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 2))
    hot = np.hstack([np.eye(4)[rng.integers(0, 4, 30)], np.eye(3)[rng.integers(0, 3, 30)]])
    moments = np.concatenate([x, hot], axis=1).sum(axis=0)
    return GramMatrix(x.T @ x, hot.T @ x, sparse.csr_array(hot.T @ hot), moments, 30.0)


def test_second_moments_travel_and_add_up() -> None:
    grams = [random_gram(seed) for seed in range(3)]
    messages = [decode(encode(gram_to_message(gram, "run", 1))) for gram in grams]
    total = message_to_gram(decode(encode(sum_grams(messages))))
    expected = grams[0] + grams[1] + grams[2]
    np.testing.assert_allclose(total.numeric, expected.numeric)
    np.testing.assert_allclose(total.cross, expected.cross)
    np.testing.assert_allclose(total.onehot.toarray(), expected.onehot.toarray())
    np.testing.assert_allclose(total.moments, expected.moments)
    assert total.weight == 90.0


def test_partial_gradients_of_different_shapes_are_refused() -> None:
    with pytest.raises(InternalError, match="shapes"):
        sum_gradients([np.ones((2, 1)), np.ones((3, 1))])


SUMS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "in secret": ({"union": "secure"}, {"rel": 1e-6, "abs": 1e-9}),
    "combined": ({"combine": True}, {"abs": 1e-6}),
}
"""How clients of a table add up what they send, and how near the model's metrics are."""


IN_SQL = ("sgd",)
"""Ways that are also trained by the engine 'sql', which takes four times as long."""
ADDED_UP = (
    in_turn(WAYS, tuple(SUMS), ("sql", "arrays"))
    if THOROUGH
    else [
        (way, sums, "sql" if way in IN_SQL else "arrays")
        for way, sums in in_turn(WAYS, tuple(SUMS))
    ]
)


@pytest.mark.parametrize(("way", "sums", "engine"), ADDED_UP)
def test_the_model_is_that_of_the_plain_union(
    way: str, engine: str, sums: str, database: Open
) -> None:
    parties, (how, near) = divided(database), SUMS[sums]
    plain, expected, measured = trained(parties, way, engine)
    model, found, own = trained(parties, way, engine, **how)
    # Adam divides by the size of a gradient, and so enlarges one that is rounding alone
    amplified = 100 if way.startswith("adam") else 1
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * amplified)
    for name in ("rows", "objective", "loss"):
        close = {unit: amplified * size for unit, size in near.items()}
        assert model.metrics[name] == pytest.approx(plain.metrics[name], **close)
    assert own == pytest.approx(measured, abs=1e-5 * amplified)
