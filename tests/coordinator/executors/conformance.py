"""What every executor passes: partitions answer what passes over all joined rows do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from sqlfl.coordinator.blocks import RowBlocks
from sqlfl.coordinator.executors import division
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.in_process import InProcess
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.executors.partition import Work
from sqlfl.coordinator.join.factorised import factorised_join
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.key_join import KeyJoin
from sqlfl.coordinator.join.mapping_query import run_mapping_query
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds import passes as passes_module
from sqlfl.coordinator.rounds.chunk import Scores, by_output
from sqlfl.coordinator.rounds.chunks import Chunks, FoundChunks, WrittenChunks
from sqlfl.coordinator.rounds.passes import EVERY, MeasuredRows, Passes, PassResult
from sqlfl.models.log_link import Poisson
from sqlfl.models.losses import Logistic, Loss, Softmax, Squared
from sqlfl.models.metrics import KEPT
from tests.coordinator.test_factorised import TREES, query

TOTAL, SIZES = 5000, (5000, 700, 9)
CYCLE = (
    "FROM slot_0 JOIN slot_1 ON slot_0.key_0 = slot_1.key_0 JOIN slot_2 ON "
    "slot_1.key_1 = slot_2.key_1 AND slot_2.key_2 = slot_0.key_2 WHERE true"
)
LOSSES: list[Loss] = [Squared(), Poisson(curvature=2.5), Logistic(), Softmax(3)]


class Case:
    """Joined rows, and passes over all of them as the truth."""

    def __init__(self, source: Chunks, loss: Loss, measured: MeasuredRows = EVERY) -> None:
        self.source, self.loss, self.measured = source, loss, measured
        self.truth = Passes(source, loss)
        rng = np.random.default_rng(7)
        outputs = loss.outputs
        self.scores = Scores(
            by_output([rng.normal(size=(size, outputs)) for size in source.sizes]),
            rng.normal(size=outputs),
        )
        self.ways = [rng.normal(size=(2, outputs, size)) for size in source.sizes]
        self.vector = [rng.normal(size=(1, size)) for size in source.sizes]

    def rows(self, executor: Executor) -> PartitionedRows:
        assert division.divided(self.source, self.loss, self.measured).count > 8
        return PartitionedRows(self.source, self.loss, executor, self.measured)


def written(loss: Loss, *, weighted: bool = False) -> Case:
    """A slot that has the order of the joined rows, one that is ascending, and one that is not."""
    rng = np.random.default_rng(3)
    rows = [np.arange(TOTAL), np.sort(rng.integers(3, 690, TOTAL)), rng.integers(0, 9, TOTAL)]
    y: np.ndarray = rng.normal(size=TOTAL)
    if loss.name == "poisson":
        y = rng.poisson(2.0, TOTAL).astype(float)
    elif loss.name != "squared":
        y = rng.integers(0, max(2, loss.outputs), TOTAL).astype(np.uint8)
    w, measured = None, EVERY
    if weighted:
        validation = rng.random(TOTAL) < 0.2
        samples = rng.random(TOTAL) * rng.integers(0, 2, TOTAL)
        w = np.where(validation, 0.0, samples)
        w *= TOTAL / w.sum()
        measured = MeasuredRows(validation, samples, np.where(validation, samples, 0.0))
    mapping = TableMapping([own.astype(np.int32) for own in rows], SIZES)
    return Case(WrittenChunks(mapping, y, w), loss, measured)


def found(loss: Loss, name: str = "two") -> Case:
    """Joined rows that are not written down, some keys of which have many."""
    rng = np.random.default_rng(5)
    ucq = query(TREES[name])
    codes = {}
    for slot in ucq.slots:
        size = (400, 300, 20, 20)[slot.index]
        several = slot.index < 2
        keys = {
            key: np.where(rng.random(size) < 0.3, 7, rng.integers(-1, 20, size))
            if several
            else rng.permutation(size)
            for key in slot.keys
        }
        codes[slot.index] = SlotCodes(np.zeros(size, np.uint16), keys)
    mapping = factorised_join(ucq, codes)
    assert mapping is not None
    assert name != "two" or 0 < RowBlocks(mapping).together < mapping.total
    y = rng.integers(0, max(2, loss.outputs), mapping.sizes[1]).astype(np.uint8)
    return Case(FoundChunks(mapping, list(mapping.slots), 1, y), loss)


def bits(rows: PartitionedRows, case: Case) -> list[bytes]:
    """Of much that can be asked."""
    scores, answers = case.scores, []
    for look in (rows.look(scores), rows.proximal(scores, 0.5), rows.proximal(scores, 0.7)):
        answers += [np.array([look.value, look.largest, look.highest]), look.total, *look.slots]
    answers += [rows.curvatures(scores, case.ways, sampled=True), *rows.sums(case.vector)]
    answers += [np.array([rows.mean_curvature(scores), rows.square(scores)])]
    answers += [np.array(list(own.metrics().values()), float) for own in rows.meters(scores)]
    return [np.ascontiguousarray(own).tobytes() for own in answers]


def assert_same_look(found: PassResult, expected: PassResult) -> None:
    assert found.value == pytest.approx(expected.value, rel=1e-12)
    assert (found.largest, found.highest) == (expected.largest, expected.highest)
    np.testing.assert_allclose(found.total, expected.total, atol=1e-9)
    for own, wanted in zip(found.slots, expected.slots, strict=True):
        np.testing.assert_allclose(own, wanted, atol=1e-9)


class ExecutorConformance:
    """Of a module with fixtures `make`, which makes an executor with so many workers, and
    `executor`, one with two that all tests share."""

    @pytest.fixture(autouse=True)
    def many_partitions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(division, "ROWS", 350)
        monkeypatch.setattr(division, "SHARED", 0)
        monkeypatch.setattr(division, "MAX_PARTITIONS", 13)
        monkeypatch.setattr(passes_module, "SAMPLED", 1000)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_partitions_answer_as_all_rows_do(self, executor: Executor, weighted: bool) -> None:
        for loss in LOSSES:
            case = written(loss, weighted=weighted)
            scores, truth = case.scores, case.truth
            with closing(case.rows(executor)) as rows:
                assert_same_look(rows.look(scores), truth.look(scores))
                assert rows.look(scores, sums=False).slots == ()
                assert rows.value(scores) == pytest.approx(truth.value(scores), rel=1e-12)
                constant = Scores((), scores.constant)
                assert rows.value(constant) == pytest.approx(truth.value(constant), rel=1e-12)
                for sampled in (False, True):
                    bent = rows.curvatures(scores, case.ways, sampled=sampled)
                    expected = truth.curvatures(scores, case.ways, sampled=sampled)
                    np.testing.assert_allclose(bent, expected, rtol=1e-9, atol=1e-9)
                    square = truth.square(scores, sampled=sampled)
                    assert rows.square(scores, sampled=sampled) == pytest.approx(square)
                assert rows.mean_curvature(scores) == pytest.approx(truth.mean_curvature(scores))
                np.testing.assert_array_equal(rows.slopes(scores), truth.slopes(scores))
                np.testing.assert_array_equal(rows.rows(scores), truth.rows(scores))
                for own, wanted in zip(
                    rows.sums(case.vector), truth.sums(case.vector), strict=True
                ):
                    np.testing.assert_allclose(own, wanted, atol=1e-9)

    @pytest.mark.parametrize("name", ["two", "star"])
    def test_rows_that_are_not_written_down(self, executor: Executor, name: str) -> None:
        case = found(Softmax(3), name)
        with closing(case.rows(executor)) as rows:
            assert_same_look(rows.look(case.scores), case.truth.look(case.scores))
            for sampled in (False, True):
                np.testing.assert_allclose(
                    rows.curvatures(case.scores, case.ways, sampled=sampled),
                    case.truth.curvatures(case.scores, case.ways, sampled=sampled),
                    rtol=1e-9,
                    atol=1e-9,
                )

    def test_partitions_keep_their_dual(self, executor: Executor) -> None:
        for loss in (Logistic(), Softmax(3)):
            case = written(loss, weighted=True)
            with closing(case.rows(executor)) as rows:
                dual = np.zeros((loss.outputs, TOTAL))
                for _ in range(2):
                    for rho in (0.5, 0.3):
                        look = rows.proximal(case.scores, rho)
                        assert_same_look(look, case.truth.proximal(case.scores, dual, rho))
                    rows.set_dual(case.scores)
                    dual = case.truth.slopes(case.scores)

    def test_metrics_of_training_and_validation(self, executor: Executor) -> None:
        for loss in LOSSES:
            case = written(loss, weighted=True)
            expected = case.measured.headlines(case.truth, loss, case.scores)
            held = case.measured.held_loss(case.truth, loss, case.scores)
            with closing(case.rows(executor)) as rows:
                values = [mean.value for mean in rows.headlines(case.scores)]
                assert values == pytest.approx([mean.value for mean in expected])
                assert rows.held_loss(case.scores) == pytest.approx(held)
                assert held > 0.0

    @pytest.mark.parametrize("rows", [TOTAL, KEPT + 1], ids=["kept", "counted"])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_all_metrics_at_the_end(self, executor: Executor, weighted: bool, rows: int) -> None:
        """So many rows are to come: of too many the area is counted in bins."""
        for loss in LOSSES:
            case = written(loss, weighted=weighted)
            told = (rows,) * case.measured.parts
            expected = case.measured.meters(case.truth, loss, case.scores, told)
            made = division.divided(case.source, loss, case.measured)
            with closing(executor.hold(made)) as held:
                found = held.ask(Work("meters", case.scores, rows=told)).meters
            for own, wanted in zip(found, expected, strict=True):
                ours, theirs = (list(meter.metrics().values()) for meter in (own, wanted))
                assert [x is None for x in ours] == [x is None for x in theirs]
                assert np.array(ours, float) == pytest.approx(
                    np.array(theirs, float), rel=1e-12, nan_ok=True
                )

    def test_metrics_of_the_history_are_those_of_the_end(self, executor: Executor) -> None:
        """But for the order in which rows are added up."""
        for loss, name in zip(LOSSES, ["rmse", "rmse", "accuracy", "accuracy"], strict=True):
            for weighted in (False, True):
                case = written(loss, weighted=weighted)
                with closing(case.rows(executor)) as rows:
                    means = [mean.value for mean in rows.headlines(case.scores)]
                    ends = [own.metrics()[name] for own in rows.meters(case.scores)]
                    assert means == pytest.approx(ends, rel=1e-12)

    @pytest.mark.parametrize("rows", [(900, 40, 300), (1, 2, 1), (0, 3, 3), (5, 900, 900)])
    @pytest.mark.parametrize("mapped", [(0, 1, 2), (1, 2)])
    def test_joins_by_parts_are_the_whole(
        self, executor: Executor, rows: tuple[int, ...], mapped: tuple[int, ...]
    ) -> None:
        """In a cycle, with NULLs, and several blocks; in the same order."""
        rng = np.random.default_rng(11)
        codes = {
            slot: SlotCodes(
                rng.integers(0, 2, size).astype(np.uint16),
                {key: rng.integers(-1, 9, size).astype(np.int32) for key in range(3)},
            )
            for slot, size in enumerate(rows)
        }
        shown = ", ".join(f"slot_{slot}.row AS slot_{slot}" for slot in mapped)
        sql = f"SELECT {shown} {CYCLE} UNION ALL SELECT {shown} {CYCLE} AND slot_0.fragment = 1"
        expected = run_mapping_query(sql, codes)
        largest = max(mapped, key=lambda slot: rows[slot])
        order = [f"slot_{slot}" for slot in sorted(mapped, key=lambda slot: -rows[slot])]
        found = executor.join(KeyJoin(sql, tuple(order), codes, 1 << 28), largest)
        if isinstance(executor, InProcess) or rows[largest] < 2:
            assert found is None
            return
        assert found is not None
        for slot, own in zip(mapped, found, strict=True):
            assert own.dtype == np.int32
            np.testing.assert_array_equal(own, expected.written()[slot])

    def test_separation_is_seen_in_all_partitions(self, executor: Executor) -> None:
        case = written(Logistic())
        assert isinstance(case.source, WrittenChunks)
        case.source.targets[:] = case.truth.rows(case.scores)[:, 0] > 0
        with closing(case.rows(executor)) as rows:
            assert rows.separates(case.scores)
        case.source.targets[TOTAL // 2] ^= 1
        with closing(case.rows(executor)) as rows:
            assert not rows.separates(case.scores)

    def test_scores_beyond_all_numbers_are_told(self, executor: Executor) -> None:
        case = written(Squared())
        wrong = [np.zeros((1, size)) for size in SIZES]
        wrong[0][0, 17] = np.nan
        with closing(case.rows(executor)) as rows:
            look = rows.look(case.scores.moved(wrong, np.zeros(1)))
            assert np.isnan([look.largest, look.highest]).all()

    def test_results_have_the_same_bits(
        self, executor: Executor, make: Callable[[int], Executor]
    ) -> None:
        """However many workers there are, and whatever they are."""
        with closing(make(3)) as three:
            for case in (written(Softmax(3), weighted=True), found(Logistic())):
                seen = []
                for own in (InProcess(1), executor, three, executor):
                    with closing(case.rows(own)) as rows:
                        seen.append(bits(rows, case))
                assert all(own == seen[0] for own in seen)

    def test_several_problems_at_once(self, executor: Executor) -> None:
        one, other = written(Logistic()), written(Squared(), weighted=True)
        with closing(one.rows(executor)) as first, closing(other.rows(executor)) as second:
            for _ in range(2):
                assert_same_look(first.look(one.scores), one.truth.look(one.scores))
                assert_same_look(second.look(other.scores), other.truth.look(other.scores))
            first.close()
            assert_same_look(second.look(other.scores), other.truth.look(other.scores))
