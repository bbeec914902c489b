"""What joined rows count, and what clients are told of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.row_mapping import WrittenMapping
from sqlfl.coordinator.preparation import Joined, JoinedSlot, Targets, Weighting
from sqlfl.coordinator.weighting import weigh
from sqlfl.messages import (
    Message,
    Ready,
    SendSplit,
    SendWeights,
    SetEncoding,
    Split,
    Statistics,
    Weigh,
    Weights,
)
from sqlfl.planner.federated.plan import FederatedPlan
from tests.planner import plans
from tests.planner.plans import AIRLINE, BANK_0, BANK_1

ROWS = 12
CARD = np.array([0, 0, 1, 2, 2, 2, 3, 3, 4, 4, 4, 0], np.int32)
"""The active row of slot 0 that each joined row comes from; rows 0 to 2 are of bank/0."""
PLANE = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0], np.int32)
WEIGHT = np.array([0.5, 2.0, 0.0, 1.25, 3.0])
SPLIT = np.array([0, 1, 0, 0, 0], np.uint8)
MAPPING = WrittenMapping({0: CARD, 2: PLANE}, {0: 5, 2: 2})


@dataclass
class Answers:
    """Clients that answer from fixed columns of slot 0, and keep what they were asked."""

    weight: np.ndarray = field(default_factory=lambda: WEIGHT)
    split: np.ndarray = field(default_factory=lambda: SPLIT)
    asked: list[dict[Address, Message]] = field(default_factory=list)

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        if requests:
            self.asked.append(dict(requests))
        return {address: self._answer(address, m) for address, m in requests.items()}

    def _answer(self, address: Address, message: Message) -> Message:
        rows = slice(0, 3) if address[0] == BANK_0 else slice(3, 5)
        match message:
            case SendWeights():
                return Weights(message.run, message.slot, self.weight[rows])
            case SendSplit():
                return Split(message.run, message.slot, self.split[rows])
            case Weigh() if message.slot == 0:
                total = float(message.counts.sum())
                missing = min(0.5, total)
                return Statistics(
                    message.run, 0, total - np.array([missing, 0.0, 0.0, 0.0]), np.arange(4.0),
                    np.full(4, 8.0), np.array([missing, 0.0]), (np.zeros((1, 16), np.uint8),),
                    (np.array([total]),),
                )  # fmt: skip
            case SetEncoding():
                indicators = np.count_nonzero(message.missing > 0)
                width = len(message.mean) + indicators + sum(map(len, message.tags))
                return Ready(message.run, message.slot, int(width))
        return Ready(message.run, message.slot)

    def sent(self, kind: type[Message]) -> dict[Address, Message]:
        return {a: m for asked in self.asked for a, m in asked.items() if isinstance(m, kind)}


def cards() -> Joined:
    bank = ((BANK_0, 0), (BANK_1, 0))
    return Joined(
        ROWS,
        {
            0: JoinedSlot(0, bank, np.array([0, 3, 5]), MAPPING),
            2: JoinedSlot(2, ((AIRLINE, 2),), np.array([0, 2]), MAPPING),
        },
        MAPPING,
        null_targets=0,
        unjoined=0,
    )


NUMBERS = Targets(np.arange(float(ROWS)), None)
CLASSES = Targets(np.arange(ROWS) % 3, ("a", "b", "c"))


def plan(kind: str = "linear_regression", **options: object) -> FederatedPlan:
    return plans.train(plans.weighted(plans.cards()), kind, {"validation_fraction": 0.2} | options)


def test_weights_are_sample_weights_but_of_validation_rows() -> None:
    channel = Answers()
    joined = weigh(plan(), cards(), NUMBERS, channel, "r")
    found = joined.weighting
    assert isinstance(found, Weighting)
    np.testing.assert_array_equal(found.samples, [WEIGHT[c] for c in CARD])
    np.testing.assert_array_equal(found.validation, [c == 1 for c in CARD])
    expected = [0.0 if c == 1 else WEIGHT[c] for c in CARD]
    np.testing.assert_array_equal(found.weights, expected)


def test_every_row_is_told_the_sum_of_its_joined_rows_weights() -> None:
    channel = Answers()
    found = weigh(plan(), cards(), NUMBERS, channel, "r").weighting
    assert found is not None
    sent = channel.sent(Weigh)
    assert set(sent) == {(BANK_0, 0), (BANK_1, 0), (AIRLINE, 2)}
    for address, mapping, first in (
        ((BANK_0, 0), CARD, 0), ((BANK_1, 0), CARD, 3), ((AIRLINE, 2), PLANE, 0)
    ):  # fmt: skip
        message = sent[address]
        assert isinstance(message, Weigh)
        assert message.total == pytest.approx(found.weights.sum())
        for row, count in enumerate(message.counts):
            mine = [w for w, r in zip(found.weights, mapping, strict=True) if r == first + row]
            assert count == pytest.approx(sum(mine))
    assert len(sent[BANK_0, 0].counts) == 3  # type: ignore[attr-defined]


def test_shared_slots_get_the_encoding_of_the_weighted_statistics() -> None:
    channel = Answers()
    found = weigh(plan(), cards(), NUMBERS, channel, "r").weighting
    assert found is not None
    sent = channel.sent(SetEncoding)
    assert set(sent) == {(BANK_0, 0), (BANK_1, 0)}
    total = found.weights.sum()
    for message in sent.values():
        assert isinstance(message, SetEncoding)
        assert message.total == pytest.approx(total)
        np.testing.assert_array_equal(message.missing, [1.0, 0.0])
        np.testing.assert_allclose(message.scale, np.sqrt(16.0 / total))
    assert [len(asked) for asked in channel.asked] == [2, 2, 3, 2]


def test_nothing_is_exchanged_where_all_rows_count_alike() -> None:
    channel = Answers()
    joined = cards()
    plain = plans.train(plans.cards(), "linear_regression", {"validation_fraction": 0.0})
    assert weigh(plain, joined, NUMBERS, channel, "r") is joined
    assert not channel.asked


def class_weights(option: object, **columns: np.ndarray) -> tuple[Weighting, np.ndarray]:
    """The weighting, and the weights without class weights."""
    found = [
        weigh(
            plan("softmax_regression", class_weight=o), cards(), CLASSES, Answers(**columns), "r"
        ).weighting
        for o in (option, None)
    ]
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1].weights


def test_balanced_classes_weigh_as_in_scikit_learn() -> None:
    found, _ = class_weights("balanced", weight=np.ones(5))
    train = CARD != 1
    expected = compute_class_weight(
        "balanced", classes=np.arange(3), y=CLASSES.values[train]
    )[CLASSES.values]  # fmt: skip
    np.testing.assert_allclose(found.weights, np.where(train, expected, 0.0))
    np.testing.assert_array_equal(found.samples, 1.0)


def test_balanced_classes_have_equal_sums_of_sample_weights() -> None:
    found, before = class_weights("balanced")
    sums = np.bincount(CLASSES.values, found.weights)
    np.testing.assert_allclose(sums, before.sum() / 3)
    np.testing.assert_array_equal(found.samples, WEIGHT[CARD])


def test_classes_that_are_not_named_keep_their_weight() -> None:
    found, before = class_weights({"c": 5.0, "a": 0.5})
    np.testing.assert_allclose(found.weights, before * np.array([0.5, 1.0, 5.0])[CLASSES.values])


def test_a_class_that_is_in_validation_rows_only_is_left_out_of_the_balance() -> None:
    target = Targets(np.where(CARD == 1, 2, np.arange(ROWS) % 2), ("a", "b", "c"))
    found = weigh(
        plan("softmax_regression", class_weight="balanced"), cards(), target, Answers(), "r"
    ).weighting
    assert found is not None
    sums = np.bincount(target.values, found.weights)
    assert sums[2] == 0.0
    assert sums[0] == pytest.approx(sums[1])
    assert np.isfinite(found.weights).all()


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.nan, "NULL or NaN"), (-0.5, "negative"), (np.inf, "beyond 1e"), (1e31, "beyond 1e")],
)
def test_a_weight_that_is_none_is_refused(value: float, text: str) -> None:
    weight = WEIGHT.copy()
    weight[4] = value
    with pytest.raises(ModelError, match=f"weight w is {text}.* in 1 of the 5 rows") as raised:
        weigh(plan(), cards(), NUMBERS, Answers(weight=weight), "r")
    assert raised.value.hint is not None
    assert "WHERE" in raised.value.hint


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"split": np.ones(5, np.uint8)}, "0.2 drew 12 of 12 joined rows.*none is left to train"),
        ({"split": np.zeros(5, np.uint8)}, "0.2 drew 0 of 12 joined rows.*nothing to validate"),
        ({"weight": np.array([1.0, 0, 1, 1, 1])}, "drew 1 of 12 .*weight w is 0 in all of them"),
        ({"weight": np.array([0.0, 1, 0, 0, 0])}, "weight w is 0 in all rows to train on"),
    ],
)
def test_both_sides_of_a_split_need_rows(columns: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        weigh(plan(), cards(), NUMBERS, Answers(**columns), "r")


def test_a_training_part_of_one_class_is_refused() -> None:
    target = Targets((CARD == 1).astype(np.int64), ("no", "yes"))
    with pytest.raises(ModelError, match=r"of class no only.*0\.2 drew 1 of 12"):
        weigh(plan("logistic_regression"), cards(), target, Answers(), "r")


@pytest.mark.parametrize(
    ("option", "text"),
    [({"a": 0.0, "b": 0.0}, "of class c only"), ({"a": 0, "b": 0, "c": 0}, "of no class")],
)
def test_class_weights_must_leave_two_classes(option: dict[str, float], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        class_weights(option)


def test_class_weights_of_unknown_classes_are_refused() -> None:
    with pytest.raises(ModelError, match="class_weight names A, d") as raised:
        class_weights({"A": 1.0, "b": 1.0, "d": 2.0})
    assert raised.value.hint == "the classes are a, b, c"
