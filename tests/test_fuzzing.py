"""Bytes that nobody meant: whoever receives them says so, and goes on.

`tests.fuzzing` does the work, a program of its own, in a child with limits of memory and time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import WireError
from sqlfl.contract.schema import Client
from sqlfl.messages import KINDS, Failure, Identifiers, ListTables, Message, Predictions, Tables
from sqlfl.messages.wire import encode, received
from sqlfl.party.party import PartyClient, Secrets
from tests.conftest import Open
from tests.depth import SEED, THOROUGH
from tests.fuzzing import FITTING

ROOT = Path(__file__).parent.parent
TO_PARTIES = tuple(dict.fromkeys(message.kind for message in FITTING))


def fuzz(end: str, kinds: list[str], count: int) -> list[dict[str, Any]]:
    """What became of `count` mutated messages of each kind."""
    own = [sys.executable, "-m", "tests.fuzzing", end, ",".join(kinds), str(count), str(SEED)]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        own, cwd=ROOT, env=os.environ | threads, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [item["kind"] for item in found] == kinds
    assert all(sum(item["outcomes"].values()) + len(item["deaths"]) == count for item in found), (
        found
    )
    return found


def test_messages_that_are_mutated() -> None:
    kinds = list(KINDS)
    found = fuzz("wire", kinds, 800 if THOROUGH else 28)
    assert [(item["kind"], item["deaths"]) for item in found if item["deaths"]] == []
    for item in found:  # the mutations are neither all harmless nor all alike
        assert item["outcomes"]["WireError"] > item["outcomes"]["received"] > 0, item


def test_requests_that_are_mutated() -> None:
    """A party that is in the midst of a run answers all of them."""
    kinds = list(KINDS) if THOROUGH else list(TO_PARTIES)
    found = fuzz("party", kinds, 400 if THOROUGH else 14)
    assert [(item["kind"], item["deaths"]) for item in found if item["deaths"]] == []
    assert all(item["outcomes"]["Failure"] > 0 for item in found)
    assert any(item["outcomes"].get("answered") for item in found)


# -- what is known to do harm ----------------------------------------------------------------------


def changed(message: Message, change: Any) -> bytes:
    """With another header."""
    data = encode(message).to_pybytes()
    end = 12 + int.from_bytes(data[8:12], "little")
    header = json.loads(data[12:end])
    change(header["fields"])
    text = json.dumps(header, separators=(",", ":")).encode()
    values = data[-(-end // 64) * 64 :]
    padding = b"\0" * (-(12 + len(text)) % 64) if values else b""
    return data[:8] + len(text).to_bytes(4, "little") + text + padding + values


def test_sizes_that_reach_beyond_the_message() -> None:
    """Such as would make memory of the receiver's own into values."""
    small = Predictions("r", 0, np.zeros((3, 1), np.float32), np.zeros(0))
    texts = Identifiers("r", 0, (pa.array(["a", "b"]),))
    lists = Identifiers("r", 0, (pa.array([[1], [2]]),))
    structs = Identifiers("r", 0, (pa.array([{"a": 1}]),))

    def column(**entries: Any) -> Any:
        return lambda fields: fields["columns"][0].update(entries)

    cases = [
        changed(small, lambda fields: fields.update(values=["float32", 38410, 1])),
        changed(small, lambda fields: fields.update(values=["float32", 3, 2**31 - 1])),
        changed(small, lambda fields: fields.update(values=["float32", 2**31 - 1, 2**31 - 1])),
        changed(small, lambda fields: fields.update(values=["float32", 2**62, 4])),
        changed(small, lambda fields: fields.update(values=["float32", -3, -1])),
        changed(small, lambda fields: fields.update(values=["object", 3, 1])),
        changed(texts, column(bytes=38410)),
        changed(texts, column(length=38410)),
        changed(texts, column(length=2**31 - 1)),
        changed(texts, column(nulls=True)),
        changed(lists, column(length=1)),
        changed(structs, column(length=38410)),
    ]
    for data in cases:
        with pytest.raises(WireError):
            received(data)


def test_offsets_that_reach_beyond_their_text() -> None:
    """In a message whose sizes are all right."""
    data = encode(Identifiers("r", 0, (pa.array(["abcd", "efgh"]),))).to_pybytes()
    offsets = np.array([0, 4, 8], np.int32).tobytes()
    assert data.count(offsets) == 1
    for wrong in ([0, 400, 8], [0, -4, 8], [4, 4, 8], [0, 4, 38410], [8, 4, 0]):
        with pytest.raises(WireError, match="with offsets that do not fit"):
            received(data.replace(offsets, np.array(wrong, np.int32).tobytes()))


def test_nothing_that_is_compressed_is_made_large() -> None:
    """Arrow's own format, of 17 kB that would be 512 MiB."""
    batch = pa.record_batch([pa.array(np.zeros(1 << 20))], ["values"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    data = sink.getvalue()
    assert len(data) < 20_000
    before = pa.total_allocated_bytes()
    with pytest.raises(WireError, match="no message of this version"):
        received(data)
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"sqlfl",
        b"sqlfl\0\0\2\xff\xff\xff\xff",
        b"\xff" * 999,
        encode(Tables("", -1, "[" * 99)),
    ],
    ids=["nothing", "the beginning", "a header without end", "ones", "no fields"],
)
def test_a_party_answers_what_is_no_request(data: bytes, database: Open) -> None:
    client = PartyClient(Client("a"), database(), Secrets(b"\7" * 32, b"\7" * 32))
    reply = received(client.handle(pa.py_buffer(data)))
    assert isinstance(reply, Failure)
    assert reply.run == ""
    tables = received(client.handle(encode(ListTables("", -1))))
    assert isinstance(tables, Tables)  # and goes on
