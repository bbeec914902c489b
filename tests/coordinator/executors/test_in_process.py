"""Threads over partitions, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from sqlfl.coordinator.executors.in_process import InProcess, in_order
from tests.coordinator.executors.conformance import ExecutorConformance


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
