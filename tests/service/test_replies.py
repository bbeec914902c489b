"""Each request is served once, and answered alike."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sqlfl.service import agent
from sqlfl.service.agent import Replies
from sqlfl.service.frames import REPLY, Frame


def reply(number: int, size: int = 1) -> Frame:
    return Frame(REPLY, {"number": number}, pa.py_buffer(bytes(size)))


def test_once_and_alike() -> None:
    own = Replies()
    assert own.begin(3) == (False, None)
    assert own.begin(3) == (True, None)  # it is being served
    told = reply(3)
    own.end(3, told)
    assert own.begin(3) == (True, told)
    assert own.begin(4) == (False, None)


def test_what_was_forgotten_is_not_served_again() -> None:
    own = Replies()
    for number in (1, 2, 3):
        own.begin(number)
        own.end(number, reply(number))
    own.forget([1, 3, "2", True, None, 99])
    for number in (0, 1, 3):
        known, found = own.begin(number)
        assert known
        assert found is not None
        assert "has forgotten" in found.text("failed")
    assert own.begin(2)[1] is not None
    assert own.begin(4) == (False, None)


def test_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "MAX_REPLIES", 3)
    monkeypatch.setattr(agent, "MAX_REPLY_BYTES", 100)
    own = Replies()
    for number, size in enumerate([1, 1, 1, 1, 99, 200]):
        own.begin(number)
        own.end(number, reply(number, size))
        assert len(own._done) <= 3
        assert own._size <= 100 or len(own._done) == 1
    assert list(own._done) == [5]  # the last one is kept whatever its size
    assert not own._begun
