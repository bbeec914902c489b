"""Threads over partitions, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from sqlfl.coordinator.executors import division
from sqlfl.coordinator.executors.base import HeldPartitions
from sqlfl.coordinator.executors.division import Division
from sqlfl.coordinator.executors.in_process import InProcess, in_order
from sqlfl.coordinator.executors.joined_rows import PartitionedRows
from sqlfl.coordinator.join.key_join import KeyJoin
from sqlfl.coordinator.join.row_mapping import Scratch, StoredMapping
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.chunks import StoredChunks
from sqlfl.coordinator.rounds.passes import Passes
from sqlfl.models.losses import Logistic
from tests.coordinator.executors.conformance import ExecutorConformance, assert_same_look
from tests.depth import SEED


@pytest.fixture(scope="module")
def make() -> Callable[[int], InProcess]:
    return InProcess


@pytest.fixture(scope="module")
def executor() -> Iterator[InProcess]:
    with closing(InProcess(2)) as executor:
        yield executor


class TestInProcess(ExecutorConformance):
    pass


def test_tasks_are_taken_in_their_order() -> None:
    second = threading.Event()

    def one() -> int:
        assert second.wait(10)
        return 1

    def two() -> int:
        second.set()
        return 2

    taken: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as pool:
        in_order(pool, [one, two], lambda number, value: taken.append((number, value)))
    assert taken == [(0, 1), (1, 2)]


def test_the_first_failure_ends_the_others() -> None:
    begun: list[int] = []
    stopped = threading.Event()

    def task(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise ValueError("no")
        assert stopped.wait(10)
        return number

    tasks = [lambda own=number: task(own) for number in range(9)]
    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="no"):
        in_order(pool, tasks, lambda number, value: None, stopped.set)
    assert set(begun) <= {0, 1}


class Elsewhere:
    """Workers that cannot open files without a name."""

    def hold(self, division: Division) -> HeldPartitions:
        raise AssertionError("these rows are another process's")

    def join(self, join: KeyJoin, slot: int) -> None:
        raise AssertionError("no keys are joined here")

    def close(self) -> None:
        raise AssertionError("this is its owner's to close")


def test_rows_in_files_are_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "ROWS", 350)
    monkeypatch.setattr(division, "SHARED", 0)
    rng = np.random.default_rng(SEED)
    sizes, total = (300, 40), 5000
    rows = [np.sort(rng.integers(0, 300, total)), rng.integers(0, 40, total)]
    scores = Scores(tuple(rng.normal(size=(1, size)) for size in sizes), np.ones(1))
    ways = [rng.normal(size=(1, 1, size)) for size in sizes]
    with Scratch() as scratch:
        files = [scratch.numbers() for _ in rows]
        for file, own in zip(files, rows, strict=True):
            file.append(own)
        mapping = StoredMapping(dict(enumerate(files)), dict(enumerate(sizes)))
        pieces = StoredChunks(mapping, (0, 1), 1, rng.integers(0, 2, 40).astype(np.uint8))
        assert sum(part.total for part in pieces.cut(7)) == total
        whole = Passes(pieces, Logistic())
        with closing(PartitionedRows(pieces, Logistic(), Elsewhere())) as divided:
            assert_same_look(divided.look(scores), whole.look(scores))
            for sampled in (False, True):
                found, wanted = (
                    p.curvatures(scores, ways, sampled=sampled) for p in (divided, whole)
                )
                np.testing.assert_allclose(found, wanted, rtol=1e-9)
