"""Frames, whole and in pieces; and what is none."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.errors import WireError
from sqlfl.remote import frames
from sqlfl.remote.frames import SCHEMA, Frame, Receiver, Sender, spoken
from tests.depth import SEED, THOROUGH


class Chunk:
    def __init__(self, data: pa.RecordBatch | None, app_metadata: pa.Buffer | None) -> None:
        self.data, self.app_metadata = data, app_metadata


class Pipe:
    """A stream in memory."""

    def __init__(self, *chunks: Chunk) -> None:
        self.chunks = deque(chunks)

    def write_with_metadata(self, batch: pa.RecordBatch, metadata: pa.Buffer) -> None:
        self.chunks.append(Chunk(batch, metadata))

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.chunks.append(Chunk(batch, None))

    def read_chunk(self) -> Any:
        if not self.chunks:
            raise StopIteration
        return self.chunks.popleft()


BYTE = pa.uint8()


def batch(size: int, kind: pa.DataType = BYTE, name: str = "bytes") -> Any:
    return pa.record_batch([pa.array([0] * size, kind)], names=[name])


def header(**told: Any) -> pa.Buffer:
    return pa.py_buffer(json.dumps(told).encode())


@given(
    bodies=st.lists(st.binary(max_size=40), max_size=5),
    told=st.dictionaries(st.sampled_from("abc"), st.integers() | st.text(), max_size=3),
)
def test_frames_come_as_they_were_sent(bodies: list[bytes], told: dict[str, Any]) -> None:
    pipe = Pipe()
    before, frames.PIECE = frames.PIECE, 7
    try:
        for number, body in enumerate(bodies):
            Sender(pipe).send(Frame(f"k{number}", told, pa.py_buffer(body)))
    finally:
        frames.PIECE = before
    receiver = Receiver(pipe)
    for number, body in enumerate(bodies):
        found = receiver.receive()
        assert (found.kind, dict(found.told), found.body.to_pybytes()) == (
            f"k{number}",
            told,
            body,
        )
    with pytest.raises(EOFError):
        receiver.receive()


def test_pieces_are_not_copied_on_their_way_out() -> None:
    pipe, body = Pipe(), pa.py_buffer(np.zeros(2 * frames.PIECE + 1, np.uint8))
    Sender(pipe).send(Frame("k", {}, body))
    assert [len(chunk.data) for chunk in pipe.chunks] == [frames.PIECE, frames.PIECE, 1]
    places = [chunk.data.column(0).buffers()[1].address for chunk in pipe.chunks]
    assert places == [body.address + n * frames.PIECE for n in range(3)]


WRONG = {
    "no header": (Chunk(batch(1), None),),
    "no JSON": (Chunk(batch(1), pa.py_buffer(b"{")),),
    "deep JSON": (Chunk(batch(1), pa.py_buffer(b"[" * 100_000)),),
    "no object": (Chunk(batch(1), pa.py_buffer(b"[]")),),
    "no kind": (Chunk(batch(1), header(size=1)),),
    "a kind that is no text": (Chunk(batch(1), header(kind=1, size=1)),),
    "no size": (Chunk(batch(1), header(kind="k")),),
    "a size that is true": (Chunk(batch(1), header(kind="k", size=True)),),
    "a size below 0": (Chunk(batch(1), header(kind="k", size=-1)),),
    "a size too large": (Chunk(batch(1), header(kind="k", size=101)),),
    "more than its size": (Chunk(batch(5), header(kind="k", size=4)),),
    "more in the second piece": (
        Chunk(batch(3), header(kind="k", size=4)),
        Chunk(batch(3), None),
    ),
    "an empty piece": (Chunk(batch(3), header(kind="k", size=4)), Chunk(batch(0), None)),
    "a header amid": (
        Chunk(batch(3), header(kind="k", size=4)),
        Chunk(batch(1), header(kind="k", size=1)),
    ),
    "no batch": (Chunk(None, header(kind="k", size=0)),),
    "another type": (Chunk(batch(1, pa.int8()), header(kind="k", size=1)),),
    "another name": (Chunk(batch(1, name="b"), header(kind="k", size=1)),),
    "NULL": (
        Chunk(
            pa.record_batch([pa.array([None], pa.uint8())], schema=SCHEMA),
            header(kind="k", size=1),
        ),
    ),
    "a long header": (Chunk(batch(1), header(kind="k", size=1, x="x" * (1 << 20))),),
}


@pytest.mark.parametrize("chunks", WRONG.values(), ids=WRONG)
def test_what_is_no_frame(chunks: tuple[Chunk, ...]) -> None:
    with pytest.raises(WireError):
        Receiver(Pipe(*chunks), most_bytes=100).receive()


def test_a_body_for_which_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(WireError, match="for which there is no memory"):
        Receiver(Pipe(Chunk(batch(3), header(kind="k", size=4)))).receive()


def test_every_piece_is_heard_of() -> None:
    heard: list[int] = []
    pipe = Pipe(Chunk(batch(3), header(kind="k", size=5)), Chunk(batch(2), None))
    Receiver(pipe, heard=lambda: heard.append(1)).receive()
    assert len(heard) == 2


def test_a_frame_is_offered_where_none_is_on_its_way() -> None:
    pipe = Pipe()
    sender = Sender(pipe)
    assert sender.offer(Frame("ping"))
    with sender._lock:
        assert not sender.offer(Frame("ping"))
    assert len(pipe.chunks) == 1


def test_a_stream_that_ends_amid_a_frame() -> None:
    with pytest.raises(EOFError):
        Receiver(Pipe(Chunk(batch(3), header(kind="k", size=4)))).receive()


def test_garbage_is_no_frame() -> None:
    """Whatever comes ends as a frame, or as one of two errors."""
    draw = random.Random(SEED)
    for _ in range(20_000 if THOROUGH else 300):
        told = draw.choice([header(kind="k", size=draw.randrange(9)), None, None])
        if told is None and draw.random() < 0.7:
            told = pa.py_buffer(draw.randbytes(draw.randrange(30)))
        pieces = [Chunk(batch(draw.randrange(6)), told)]
        pieces += [Chunk(batch(draw.randrange(6)), None) for _ in range(draw.randrange(3))]
        receiver = Receiver(Pipe(*pieces), most_bytes=8)
        try:
            while True:
                assert len(receiver.receive().body) <= 8
        except (WireError, EOFError):
            pass


def test_headers_that_are_not_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Sender(Pipe()).send(Frame("k", {"x": float("nan")}))
    with pytest.raises(WireError, match="are sent"):
        Sender(Pipe()).send(Frame("k", {"x": "x" * (1 << 20)}))


def test_what_a_header_says() -> None:
    frame = Frame("hello", {"name": "bank", "n": 3, "b": True, "low": -1})
    assert (frame.text("name"), frame.number("n"), frame.text("no", "x")) == ("bank", 3, "x")
    for wrong in ("n", "no"):
        with pytest.raises(WireError, match=f"hello says no {wrong}"):
            frame.text(wrong)
    for wrong in ("name", "no", "b", "low"):
        with pytest.raises(WireError, match=f"hello says no {wrong}"):
            frame.number(wrong)


def test_versions() -> None:
    assert spoken([1, 2, 99]) == 1
    for wrong in ([], [2], "1", None, [True], ["1"]):
        with pytest.raises(WireError, match="version"):
            spoken(wrong)


class Echo(fl.FlightServerBase):  # type: ignore[misc]
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        writer.begin(SCHEMA)
        receiver, sender = Receiver(reader), Sender(writer)
        try:
            while True:
                sender.send(receiver.receive())
        except EOFError:
            pass


def test_over_flight() -> None:
    """Larger than what gRPC takes as one message by default."""
    with Echo("grpc://127.0.0.1:0") as server:
        client = fl.FlightClient(f"grpc://127.0.0.1:{server.port}")
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_path("x"))
        writer.begin(SCHEMA)
        for size in (0, 1, frames.PIECE, 3 * frames.PIECE + 5):
            body = pa.py_buffer(np.arange(size, dtype=np.uint64).astype(np.uint8))
            Sender(writer).send(Frame("k", {"size of": size}, body))
            found = Receiver(reader).receive()
            assert found.told["size of"] == size
            assert found.body.equals(body)
        writer.close()
        client.close()
