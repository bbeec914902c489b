"""Who sends does not wait for who is to read."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from sqlfl.service import outbox as ob
from sqlfl.service.frames import Frame, Receiver
from sqlfl.service.outbox import Outbox
from tests.service.test_frames import Pipe

LARGE = pa.py_buffer(bytes(ob.AT_ONCE + 1))


class Stuck(Pipe):
    """Takes nothing until it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.begun = threading.Event(), threading.Event()
        self.broken = False

    def write_metadata(self, metadata: pa.Buffer) -> None:
        self.begun.set()
        assert self.reads.wait(20)
        if self.broken:
            raise OSError("broken")
        super().write_metadata(metadata)


def received(pipe: Pipe) -> list[str]:
    receiver, found = Receiver(pipe), list[str]()
    try:
        while True:
            found.append(receiver.receive().kind)
    except EOFError:
        return found


def test_frames_go_in_order_to_who_reads_late() -> None:
    pipe = Stuck()
    box = Outbox(pipe)
    for number in range(50):
        box.send(Frame(f"{number}", {}, LARGE if number % 7 == 0 else pa.py_buffer(b"x")))
    assert not pipe.chunks
    pipe.reads.set()
    box.flush(20)
    box.close()
    assert received(pipe) == [f"{number}" for number in range(50)]


def test_small_ones_go_at_once_while_the_peer_lives() -> None:
    pipe = Pipe()
    box = Outbox(pipe)
    for number in range(1000):
        box.send(Frame("k", {"n": number}))
        box.heard()
        assert len(pipe.chunks) == number + 1  # by who sends
    assert not box._works
    for _ in range(ob.AT_ONCE // 10):
        box.send(Frame("k", {}))
    assert box._works  # nothing was heard of it
    box.flush(20)
    box.close()


def test_what_can_be_done_without_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ob, "MAX_WAITING", 5)
    pipe = Stuck()
    box = Outbox(pipe)
    box.send(Frame("large", {}, LARGE))
    assert pipe.begun.wait(20)
    taken = [box.offer(Frame("step")) for _ in range(20)]
    assert taken == [True] * 5 + [False] * 15
    box.send(Frame("answer"))
    pipe.reads.set()
    box.flush(20)
    box.close()
    assert received(pipe) == ["large", *["step"] * 5, "answer"]


def test_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ob, "FULL_BYTES", 3 * len(LARGE))
    pipe = Stuck()
    box = Outbox(pipe)
    for _ in range(4):
        box.send(Frame("answer", {}, LARGE))
    assert pipe.begun.wait(20)
    assert not box.full
    box.send(Frame("answer", {}, LARGE))
    assert box.full
    pipe.reads.set()
    box.flush(20)
    assert not box.full
    box.close()


def test_a_stream_that_breaks_takes_no_more() -> None:
    pipe = Stuck()
    pipe.broken = True
    box = Outbox(pipe)
    box.send(Frame("large", {}, LARGE))
    pipe.reads.set()
    box.flush(20)
    with pytest.raises(OSError, match="has ended"):
        box.send(Frame("k"))
    box.close()


def test_close_waits_for_the_frame_on_its_way_alone() -> None:
    """Who writes to a stream that Flight has let go of ends the process."""
    pipe = Stuck()
    box = Outbox(pipe)
    for _ in range(3):
        box.send(Frame("large", {}, LARGE))
    assert pipe.begun.wait(20)
    closing = threading.Thread(target=box.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    pipe.reads.set()
    closing.join(20)
    assert not closing.is_alive()
    assert received(pipe) == ["large"]
    wrong: Any = Frame("k", {"x": float("nan")})
    with pytest.raises(ValueError, match="not JSON"):
        box.send(wrong)
