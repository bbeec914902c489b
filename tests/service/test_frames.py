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

from sqlfl.base.errors import WireError
from sqlfl.service import frames
from sqlfl.service.frames import SCHEMA, Frame, Receiver, Sender, spoken
from tests.depth import SEED, THOROUGH


class Chunk:
    """What a stream brings at once."""

    def __init__(self, app_metadata: bytes | None, data: pa.RecordBatch | None = None) -> None:
        self.data = data
        self.app_metadata = None if app_metadata is None else pa.py_buffer(app_metadata)


class Pipe:
    """A stream in memory."""

    def __init__(self, *chunks: Chunk, schema: pa.Schema = SCHEMA) -> None:
        self.chunks, self.schema = deque(chunks), schema
        self.written: list[pa.Buffer] = []

    def write_metadata(self, metadata: pa.Buffer) -> None:
        self.written.append(metadata)
        self.chunks.append(Chunk(metadata.to_pybytes()))

    def read_chunk(self) -> Any:
        if not self.chunks:
            raise StopIteration
        return self.chunks.popleft()


def first(text: bytes, body: bytes = b"") -> Chunk:
    return Chunk(len(text).to_bytes(4, "little") + text + body)


def header(body: bytes = b"", **told: Any) -> Chunk:
    return first(json.dumps(told).encode(), body)


@given(
    bodies=st.lists(st.binary(max_size=40), max_size=5),
    told=st.dictionaries(st.sampled_from("abc"), st.integers() | st.text(), max_size=3),
    short=st.sampled_from([0, 10, 100]),
)
def test_frames_come_as_they_were_sent(
    bodies: list[bytes], told: dict[str, Any], short: int
) -> None:
    pipe = Pipe()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "PIECE", 7)
        patch.setattr(frames, "SHORT", short)
        for number, body in enumerate(bodies):
            Sender(pipe).send(Frame(f"k{number}", told, pa.py_buffer(body)))
    receiver = Receiver(pipe)
    for number, body in enumerate(bodies):
        found = receiver.receive()
        assert (found.kind, dict(found.told), found.body.to_pybytes()) == (
            f"k{number}",
            told,
            body,
        )
        assert found.body.address % 8 == 0
    with pytest.raises(EOFError):
        receiver.receive()


def test_pieces_are_not_copied_on_their_way_out() -> None:
    pipe, body = Pipe(), pa.py_buffer(np.zeros(2 * frames.PIECE + 1, np.uint8))
    Sender(pipe).send(Frame("k", {}, body))
    told, *pieces = pipe.written
    assert len(told) < 100
    assert [len(piece) for piece in pieces] == [frames.PIECE, frames.PIECE, 1]
    places = [piece.address for piece in pieces]
    assert places == [body.address + n * frames.PIECE for n in range(3)]


WRONG = {
    "no header": (Chunk(b"abc"),),
    "a header that is longer than its piece": (Chunk(b"\x05\0\0\0{}"),),
    "no JSON": (first(b"{"),),
    "deep JSON": (first(b"[" * 100_000),),
    "no object": (first(b"[]"),),
    "no kind": (header(b"1", size=1),),
    "a kind that is no text": (header(b"1", kind=1, size=1),),
    "no size": (header(b"1", kind="k"),),
    "a size that is true": (header(b"1", kind="k", size=True),),
    "a size below 0": (header(b"1", kind="k", size=-1),),
    "a size too large": (header(b"1", kind="k", size=101),),
    "more than its size": (header(b"12345", kind="k", size=4),),
    "less than its size": (header(b"123", kind="k", size=4), Chunk(b"4")),
    "more in the second piece": (header(kind="k", size=4), Chunk(b"123"), Chunk(b"45")),
    "an empty piece": (header(kind="k", size=4), Chunk(b"123"), Chunk(b"")),
    "a batch": (Chunk(b"", pa.record_batch([], schema=SCHEMA)),),
    "a batch beside it": (
        Chunk(header(kind="k", size=0).app_metadata, pa.record_batch([], schema=SCHEMA)),
    ),
    "a batch for a piece": (
        header(kind="k", size=4), Chunk(None, pa.record_batch([], schema=SCHEMA)),
    ),
    "nothing": (Chunk(None),),
    "a long header": (header(b"1", kind="k", size=1, x="x" * (1 << 20)),),
    "a long piece": (header(kind="k", size=100), Chunk(bytes(frames.MAX_PIECE_BYTES + 1))),
}  # fmt: skip


@pytest.mark.parametrize("chunks", WRONG.values(), ids=WRONG)
def test_what_is_no_frame(chunks: tuple[Chunk, ...]) -> None:
    with pytest.raises(WireError):
        Receiver(Pipe(*chunks), most_bytes=100).receive()


COLUMNS = {
    "bytes": pa.schema([("bytes", pa.uint8())]),
    "a dictionary": pa.schema([("d", pa.dictionary(pa.int8(), pa.string()))]),
    "nested": pa.schema([("n", pa.list_(pa.struct([("x", pa.list_(pa.int8()))])))]),
}


@pytest.mark.parametrize("schema", COLUMNS.values(), ids=COLUMNS)
def test_a_stream_of_columns_is_refused_before_it_is_read(schema: pa.Schema) -> None:
    """Flight unpacks a batch when it is read, and 7 kB of it may be 200 MB."""
    pipe = Pipe(header(kind="k", size=0), schema=schema)
    with pytest.raises(WireError, match="another format"):
        Receiver(pipe).receive()
    assert len(pipe.chunks) == 1


def test_a_long_piece_is_refused_for_its_length() -> None:
    pieces = header(kind="k", size=1 << 22), Chunk(bytes(frames.MAX_PIECE_BYTES + 1))
    with pytest.raises(WireError, match="bytes at once"):
        Receiver(Pipe(*pieces)).receive()


def ipc(batch: pa.RecordBatch) -> list[bytes]:
    """The messages of a stream of this batch, compressed; the first is its schema."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return [message.serialize().to_pybytes() for message in reader]


POOLS: list[pa.MemoryPool] = []
"""That are never let go of: what was taken from one is given back to it whenever that may be."""
BOMBS = {
    "a batch": pa.record_batch([pa.array(np.zeros(64 << 20, np.uint8))], names=["x"]),
    "a dictionary": pa.record_batch(
        [pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["a" * (64 << 20)]))], names=["d"]
    ),
}


@pytest.mark.parametrize("batch", BOMBS.values(), ids=BOMBS)
def test_of_no_columns_nothing_is_unpacked(batch: pa.RecordBatch) -> None:
    """What streams rest on: Arrow unpacks what the schema has columns for, and nothing else."""
    own, *messages = ipc(batch)
    assert sum(map(len, messages)) < 10_000
    for schema, unpacked in ((own, True), (SCHEMA.serialize().to_pybytes(), False)):
        pool = pa.proxy_memory_pool(pa.default_memory_pool())
        POOLS.append(pool)
        stream = schema + b"".join(messages)
        with pa.ipc.open_stream(stream, memory_pool=pool) as reader:
            try:
                reader.read_next_batch()
            except pa.ArrowKeyError:
                assert not unpacked
        assert ((pool.max_memory() or 0) > 60 << 20) == unpacked


def test_a_body_for_which_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    with pytest.raises(WireError, match="for which there is no memory"):
        Receiver(Pipe(header(kind="k", size=4), Chunk(b"123"))).receive()


def test_every_piece_is_heard_of() -> None:
    heard: list[int] = []
    pipe = Pipe(header(kind="k", size=5), Chunk(b"123"), Chunk(b"45"))
    Receiver(pipe, heard=lambda: heard.append(1)).receive()
    assert len(heard) == 3


def test_a_frame_is_offered_where_none_is_on_its_way() -> None:
    pipe = Pipe()
    sender = Sender(pipe)
    assert sender.offer(Frame("ping"))
    with sender._lock:
        assert not sender.offer(Frame("ping"))
    assert len(pipe.chunks) == 1


def test_a_stream_that_ends_amid_a_frame() -> None:
    with pytest.raises(EOFError):
        Receiver(Pipe(header(kind="k", size=4), Chunk(b"123"))).receive()


def test_garbage_is_no_frame() -> None:
    """Whatever comes ends as a frame, or as one of two errors."""
    draw = random.Random(SEED)
    for _ in range(20_000 if THOROUGH else 300):
        begins = draw.choice([
            header(draw.randbytes(draw.randrange(6)), kind="k", size=draw.randrange(9)),
            first(draw.randbytes(draw.randrange(30))),
            Chunk(draw.randbytes(draw.randrange(30))),
        ])  # fmt: skip
        pieces = [begins]
        pieces += [Chunk(draw.randbytes(draw.randrange(6))) for _ in range(draw.randrange(3))]
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
