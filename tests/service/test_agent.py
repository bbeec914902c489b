"""Nobody keeps others waiting."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from sqlfl.base.errors import WireError
from sqlfl.service import agent
from sqlfl.service.agent import Turns


def test_one_does_not_starve_another() -> None:
    go, served = threading.Event(), threading.Event()
    with Turns(1000) as turns:
        for _ in range(200):
            turns.submit("alice", lambda: go.wait(20), 1)
        turns.submit("carol", served.set, 1)
        assert served.wait(10)
        assert not turns.idle
        go.set()
        for _ in range(2000):
            if turns.idle:
                break
            threading.Event().wait(0.01)
        assert turns.idle


def test_each_ones_work_is_done_in_order() -> None:
    seen: list[int] = []
    done = threading.Event()
    with Turns(1000) as turns:
        for number in range(50):
            turns.submit("alice", partial(seen.append, number), 1)
        turns.submit("alice", done.set, 1)
        assert done.wait(10)
    assert seen == list(range(50))


def test_what_waits_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "MAX_WAITING", 10)
    go = threading.Event()
    with Turns(100) as turns:
        turns.submit("a", lambda: go.wait(20), 1000)  # one alone may be as large as it likes
        with pytest.raises(WireError, match=r"1 requests with 1,000 bytes wait"):
            turns.submit("a", lambda: None, 1)
        go.set()
    go.clear()
    with Turns(100) as turns:
        for _ in range(10):
            turns.submit("a", lambda: go.wait(20), 1)
        with pytest.raises(WireError, match="10 requests"):
            turns.submit("b", lambda: None, 1)
        turns.clear()
        turns.submit("b", lambda: None, 1)
        go.set()


def test_work_that_fails_ends() -> None:
    after = threading.Event()

    def fails() -> None:
        raise ValueError

    with Turns(100) as turns:
        for _ in range(5):
            turns.submit("a", fails, 1)
        turns.submit("a", after.set, 1)
        assert after.wait(10)
