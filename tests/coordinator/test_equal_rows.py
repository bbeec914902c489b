"""Joined rows that are equal, as one: what training and its measures see of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest

from sqlfl.base.errors import PartyError
from sqlfl.contract.schema import Address
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.join import equal_rows
from sqlfl.coordinator.join.equal_rows import EqualRowGroups, merge_equal_rows
from sqlfl.coordinator.join.row_mapping import WrittenMapping
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.preparation import Joined, JoinedSlot, Targets, Weighting
from sqlfl.coordinator.problems import Measures, measured_rows
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.chunks import WrittenChunks
from sqlfl.messages import EqualRows, Message
from sqlfl.models.losses import Loss, loss_of
from sqlfl.planner.federated.plan import FederatedPlan
from tests.planner import plans
from tests.planner.plans import AIRLINE, BANK_0, BANK_1

Array = np.ndarray
CARDS, PLANES = ((BANK_0, 0), (BANK_1, 0)), ((AIRLINE, 2),)
KINDS = {
    "linear_regression": None, "logistic_regression": ("no", "yes"),
    "softmax_regression": ("a", "b", "c"),
}  # fmt: skip
WEIGHTED = ("no weights", "weights", "split", "weights and split")


@pytest.fixture(autouse=True)
def _small_joins() -> object:
    with mock.patch.object(equal_rows, "MIN_JOINED_ROWS", 1):
        yield


@dataclass
class Clients:
    """What each client answers."""

    classes: Mapping[Address, Array]
    asked: int = 0

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        self.asked += 1
        return {a: EqualRows(m.run, m.slot, self.classes[a]) for a, m in requests.items()}


def canonical(classes: Array) -> Array:
    """The classes numbered as they first come."""
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    number: Array = np.argsort(np.argsort(first))[inverse]
    return number.astype(np.uint32)


def weighting(rng: np.random.Generator, form: str, rows: int) -> Weighting | None:
    if form == "no weights":
        return None
    samples = rng.choice([0.0, 0.5, 1.0, 3.0], rows) if "weights" in form else np.ones(rows)
    validation = rng.random(rows) < (0.3 if "split" in form else 0.0)
    weights = np.where(validation, 0.0, samples)
    return Weighting(weights, samples, validation, samples - weights)


@dataclass
class Case:
    """A join of two slots, of two clients and of one, and its classes by row of the slot."""

    plan: FederatedPlan
    joined: Joined
    target: Targets
    clients: Clients
    loss: Loss
    number: dict[int, Array]
    """Slot -> of each of its active rows, the class's number within the slot."""

    def merged(self) -> tuple[Joined, Targets]:
        return merge_equal_rows(self.plan, self.joined, self.target, self.clients, "run")


def case(
    kind: str = "linear_regression",
    form: str = "no weights",
    *,
    seed: int = 0,
    rows: int = 3000,
    spread: tuple[int, int, int] = (4, 5, 6),
    **options: object,
) -> Case:
    """`spread`: classes of each client at most; 0 for one that tells none."""
    rng = np.random.default_rng(seed)
    sizes = {CARDS[0]: 40, CARDS[1]: 25, PLANES[0]: 60}
    told = {
        a: canonical(rng.integers(0, most, sizes[a])) if most else np.zeros(0, np.uint32)
        for a, most in zip(sizes, spread, strict=True)
    }
    number: dict[int, Array] = {}
    drawn, cuts = {}, {}
    for slot, addresses in ((0, CARDS), (2, PLANES)):
        bounds = np.cumsum([0, *(sizes[a] for a in addresses)])
        own = np.concatenate([np.arange(bounds[-1]), rng.integers(0, bounds[-1], rows)])[:rows]
        drawn[slot], cuts[slot] = rng.permutation(own).astype(np.int32), bounds
        parts, end = [], 0
        for a in addresses:
            classes = told[a].astype(int) if told[a].size else np.arange(sizes[a])
            parts.append(classes + end)
            end += int(classes.max()) + 1
        number[slot] = np.concatenate(parts)
    mapping = WrittenMapping(drawn, {slot: int(bounds[-1]) for slot, bounds in cuts.items()})
    slots = {
        slot: JoinedSlot(slot, addresses, cuts[slot], mapping)
        for slot, addresses in ((0, CARDS), (2, PLANES))
    }
    names = KINDS[kind]
    values = rng.choice([0.5, 1.0, -2.0], rows) if names is None else rng.integers(
        0, len(names), rows)  # fmt: skip
    return Case(
        plans.train(plans.cards(), kind, options),
        Joined(rows, slots, mapping, 7, 3, weighting=weighting(rng, form, rows)),
        Targets(values, names),
        Clients(told),
        loss_of(kind, len(names or ())),
        number,
    )


def scores_of(joined: Joined, embedding: Mapping[int, Array]) -> Array:
    total: Array = sum(embedding[n][slot.rows] for n, slot in joined.slots.items())  # type: ignore[assignment]
    return total


def measures_of(loss: Loss, joined: Joined, target: Targets) -> Measures:
    slots = joined.slots.values()
    mapping = TableMapping([slot.rows for slot in slots], [int(s.offsets[-1]) for s in slots])
    pieces = WrittenChunks(mapping, target.values, None)
    passes = PartitionedRows(pieces, loss, InProcess(), measured_rows(joined.weighting))
    return Measures(passes, loss, target, joined.weighting)


def shares(joined: Joined) -> Array:
    if joined.weighting is None:
        return np.ones(len(joined.slots[0].rows))
    return joined.weighting.weights


@pytest.mark.parametrize("form", WEIGHTED)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_slopes_and_metrics_are_those_of_all_rows(kind: str, form: str) -> None:
    made = case(kind, form)
    found, target = made.merged()
    assert len(target.values) < made.joined.total / 2
    assert (found.total, found.null_targets, found.unjoined) == (3000, 7, 3)
    rng = np.random.default_rng(5)
    by_class = {n: rng.normal(size=(own.max() + 1, made.loss.outputs))
                for n, own in made.number.items()}  # fmt: skip
    by_row = {n: values[made.number[n]] for n, values in by_class.items()}
    few, many = scores_of(found, by_class), scores_of(made.joined, by_row)
    weights, all_weights = shares(found), shares(made.joined)
    assert weights.sum() == pytest.approx(all_weights.sum(), rel=1e-12)
    value = made.loss.value(few, target.values, weights)
    assert value == pytest.approx(made.loss.value(many, made.target.values, all_weights), rel=1e-12)
    slopes = made.loss.gradient(few, target.values, weights)
    every = made.loss.gradient(many, made.target.values, all_weights)
    for n, slot in found.slots.items():
        for k in range(made.loss.outputs):
            sums = np.bincount(slot.rows, slopes[:, k], len(by_class[n]))
            rows = made.number[n][made.joined.slots[n].rows]
            np.testing.assert_allclose(
                sums, np.bincount(rows, every[:, k], len(by_class[n])), atol=1e-10
            )
    measures = measures_of(made.loss, found, target)
    before = measures_of(made.loss, made.joined, made.target)
    free = np.zeros(made.loss.outputs)
    these = Scores(by_output(list(by_class.values())), free)
    all_ = Scores(by_output(list(by_row.values())), free)
    assert measures.training_rows == before.training_rows
    assert measures.validation_rows == before.validation_rows
    for one, other in (
        (measures.epoch(these), before.epoch(all_)), (measures.final(these), before.final(all_))
    ):  # fmt: skip
        assert one.keys() == other.keys()
        assert [name for name, value in one.items() if value is None] == [
            name for name, value in other.items() if value is None
        ]
        for name, measured in one.items():
            if measured is not None:
                assert measured == pytest.approx(other[name], rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("spread", [(0, 3, 4), (1, 1, 1), (0, 0, 2)])
def test_clients_that_tell_no_classes_keep_their_rows(spread: tuple[int, int, int]) -> None:
    made = case(spread=spread)
    found, target = made.merged()
    for n, slot in found.slots.items():
        sizes = [len(np.unique(c)) if c.size else made.joined.slots[n].active[a]
                 for a, c in made.clients.classes.items() if a[1] == n]  # fmt: skip
        assert slot.offsets.tolist() == np.cumsum([0, *sizes]).tolist()
        assert len(slot.rows) == len(target.values)
    triples = zip(*(made.number[n][s.rows] for n, s in made.joined.slots.items()),
                  made.target.values, strict=True)  # fmt: skip
    assert len(target.values) == len(set(triples))


def test_rows_that_are_hardly_equal_stay_and_are_of_classes() -> None:
    made = case(rows=150, spread=(0, 0, 5))
    found, target = made.merged()
    assert target is made.target
    assert found.weighting is None
    rows = made.number[2][made.joined.slots[2].rows]
    np.testing.assert_array_equal(found.slots[2].rows, rows)
    np.testing.assert_array_equal(found.slots[0].rows, made.joined.slots[0].rows)


def test_rows_of_targets_that_all_differ_stay() -> None:
    made = case()
    target = Targets(np.random.default_rng(1).normal(size=3000), None)
    assert replace(made, target=target).merged()[1] is target


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slot", [0, 2])
@pytest.mark.parametrize("spread", [(4, 5, 6), (0, 5, 0), (0, 0, 0)])
def test_rows_that_are_counted_are_those_that_are_merged(
    kind: str, slot: int, spread: tuple[int, int, int]
) -> None:
    """Where the target comes by rows of its slot no joined row need be written down."""
    made = case(kind, spread=spread)
    rng, size = np.random.default_rng(3), int(made.joined.slots[slot].offsets[-1])
    names = KINDS[kind]
    values = rng.choice([0.5, 1.0, -2.0], size) if names is None else rng.integers(
        0, len(names), size).astype(np.uint8)  # fmt: skip
    target = Targets(values, names, slot)
    counted, targets = replace(made, target=target).merged()
    merged, others = replace(made, target=target.spread(made.joined)).merged()
    assert targets.slot is None
    assert targets.values.dtype == values.dtype
    assert (counted.weighting is None) == (merged.weighting is None) == (spread == (0, 0, 0))
    assert tables(counted, targets) == tables(merged, others)


def tables(joined: Joined, target: Targets) -> list[tuple[float, ...]]:
    """Joined rows, with all that is known of each, in some order."""
    columns = [joined.slots[slot].rows for slot in (0, 2)]
    weights = joined.weighting
    if weights is not None:
        assert weights.rows is not None
        columns += [weights.weights, weights.samples, weights.validation, weights.held]
        columns += [weights.rows]
    return sorted(zip(*(own.tolist() for own in [*columns, target.values]), strict=True))


@pytest.mark.parametrize("batch", [100, 2999])
def test_batches_are_of_joined_rows(batch: int) -> None:
    made = case(algorithm="sgd", batch_size=batch)
    found, target = made.merged()
    assert target is made.target
    assert all(len(slot.rows) == 3000 for slot in found.slots.values())
    assert all(slot.offsets[-1] < 20 for slot in found.slots.values())
    whole = case(algorithm="sgd", batch_size=3000).merged()
    assert len(whole[1].values) < 1500


def test_nobody_is_asked_where_it_is_off_or_rows_are_few() -> None:
    made = case(merge_equal_rows=False)
    assert made.merged() == (made.joined, made.target)
    with mock.patch.object(equal_rows, "MIN_JOINED_ROWS", 3001):
        other = case()
        assert other.merged() == (other.joined, other.target)
    assert made.clients.asked == other.clients.asked == 0


@pytest.mark.parametrize(("number", "most"), [(3, 6), (3, 2**31), (2**30, 6), (2**30, 2**30)])
def test_groups_have_equal_digits(number: int, most: int) -> None:
    """Of few possible keys, of many, and of more than 64 bits hold."""
    rng = np.random.default_rng(3)
    digits = [(rng.integers(0, 3, 500) * (number // 3), number) for _ in range(5)]
    digits.append((rng.integers(0, 2, 500), most))
    groups = EqualRowGroups.of(digits)
    rows = list(zip(*(values.tolist() for values, _ in digits), strict=True))
    assert sorted(rows[head] for head in groups.heads) == sorted(set(rows))
    values = rng.normal(size=500)
    for head, count, total in zip(groups.heads, groups.total(), groups.total(values), strict=True):
        own = [n for n, row in enumerate(rows) if row == rows[head]]
        assert count == len(own)
        assert total == pytest.approx(values[own].sum(), rel=1e-12)


WRONG: dict[str, tuple[list[int], str]] = {
    "another number of rows": ([0, 0, 1], "has classes of 3 rows, of 60"),
    "a first that is not 0": ([1, 0] * 30, "does not number classes as they come"),
    "a class left out": ([0, 2, 1] * 20, "does not number classes as they come"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_classes_that_are_none_are_refused(fault: str) -> None:
    classes, text = WRONG[fault]
    made = case()
    told = {**made.clients.classes, PLANES[0]: np.array(classes, np.uint32)}
    with pytest.raises(PartyError, match=text):
        replace(made, clients=Clients(told)).merged()


@pytest.mark.parametrize("order", ["together", "apart"])
@pytest.mark.parametrize(("size", "repeated"), [(1, False), (2, True), (10, True)])
def test_a_sample_tells_whether_rows_repeat(
    order: str, size: int, repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few rows all are looked at anyway."""
    keys = np.arange(60_000) // size
    if order == "apart":
        np.random.default_rng(0).shuffle(keys)
    digits = [(keys, 60_000)]
    assert equal_rows._repeat(digits)
    monkeypatch.setattr(equal_rows, "SAMPLED", 3000)
    assert equal_rows._repeat(digits) == repeated


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_equal_rows_are_sums(weighted: bool) -> None:
    """Groups are uneven and in no order; weights, samples and rows held out all differ."""
    keys, validation = [3, 0, 3, 1, 0, 3, 5], [0, 1, 0, 0, 1, 0, 1]
    weights, samples, held = (
        [1.0, 0.0, 2.0, 4.0, 0.0, 8.0, 0.0], [1.5, 3.0, 2.5, 4.5, 6.0, 8.5, 7.0],
        [0.5, 3.0, 0.25, 0.125, 6.0, 0.75, 7.0],
    )  # fmt: skip
    groups = EqualRowGroups.of([(np.array(keys), 6)])
    own = Weighting(np.array(weights), np.array(samples), np.array(validation, bool),
                    np.array(held))  # fmt: skip
    summed = equal_rows._summed(own if weighted else None, groups)
    assert summed.rows is not None
    found = zip((keys[head] for head in groups.heads), summed.rows, summed.weights,
                summed.samples, summed.validation, summed.held, strict=True)  # fmt: skip
    expected = {
        0: (2, 0.0, 9.0, True, 9.0), 1: (1, 4.0, 4.5, False, 0.125),
        3: (3, 11.0, 12.5, False, 1.5), 5: (1, 0.0, 7.0, True, 7.0),
    }  # fmt: skip
    if not weighted:
        expected = {key: (n, float(n), float(n), False, 0.0) for key, (n, *_) in expected.items()}
    assert {key: tuple(values) for key, *values in found} == expected
