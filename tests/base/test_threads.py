"""One thread of BLAS and torch inside of blocks, and outside what was there."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import duckdb
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from sqlfl import connect
from sqlfl.base.threads import single
from sqlfl.party.party import PartyClient

USUAL = 3


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """What a user has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(USUAL)
    with threadpool_limits(USUAL, user_api="blas"):
        yield
    torch.set_num_threads(before)


def blas() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_a_block_takes_one_thread_and_gives_back_what_there_was() -> None:
    with single():
        assert blas() == {1}
        assert torch.get_num_threads() == 1
        with single():
            assert torch.get_num_threads() == 1
        assert blas() == {1}
        assert torch.get_num_threads() == 1
    assert blas() == {USUAL}
    assert torch.get_num_threads() == USUAL


def test_after_an_error_too() -> None:
    with pytest.raises(ZeroDivisionError), single():
        raise ZeroDivisionError
    assert (blas(), torch.get_num_threads()) == ({USUAL}, USUAL)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_blocks_of_several_threads_overlap(order: tuple[int, int]) -> None:
    """Whichever ends last, and also in threads that are new to torch."""
    inside = [threading.Event(), threading.Event()]
    leave = [threading.Event(), threading.Event()]
    seen: dict[str, int] = {}

    def work(number: int) -> None:
        with single():
            seen[f"in {number}"] = torch.get_num_threads()
            inside[number].set()
            leave[number].wait(10)
        seen[f"out {number}"] = torch.get_num_threads()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for number, thread in enumerate(threads):
        thread.start()
        assert inside[number].wait(10)
    first, last = order
    leave[first].set()
    threads[first].join()
    assert blas() == {1}
    leave[last].set()
    threads[last].join()
    assert seen == {"in 0": 1, "in 1": 1, "out 0": USUAL, "out 1": USUAL}
    assert blas() == {USUAL}
    later = threading.Thread(target=lambda: seen.update(later=torch.get_num_threads()))
    later.start()
    later.join()
    assert seen["later"] == USUAL


def test_a_party_answers_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    answer = PartyClient._answer

    def look(self: PartyClient, request: object) -> object:
        seen.append((blas(), torch.get_num_threads()))
        return answer(self, request)  # type: ignore[arg-type]

    monkeypatch.setattr(PartyClient, "_answer", look)
    with duckdb.connect() as con, connect(progress=False) as fed:
        con.execute("CREATE TABLE t AS SELECT range AS x, range % 3 AS y FROM range(20)")
        fed.attach("a", con)
        fed.sql("TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT x, y FROM a.t)")
    assert seen
    assert all(found == ({1}, 1) for found in seen)
    assert blas() == {USUAL}
