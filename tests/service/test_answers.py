"""What goes to an analyst comes as it was; what is none is refused before it takes memory."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import WireError
from sqlfl.base.result import Result
from sqlfl.service import answers
from sqlfl.service.answers import bytes_to_result, result_to_bytes

TABLES = {
    "none": pa.table({}),
    "numbers and text": pa.table({"a": [1, None, 3], "b": ["x", "y", None]}),
    "nested": pa.table({"n": [[{"x": [1, 2]}], [], None]}),
    "a dictionary": pa.table({"d": pa.array(["u", "v", "u"]).dictionary_encode()}),
    "many columns": pa.table({f"a column of the name {n}": [n] for n in range(3000)}),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_results_come_as_they_were(table: pa.Table) -> None:
    sent = Result(table, text="told " * 9, notes=("one", "two"))
    found = bytes_to_result(result_to_bytes(sent))
    assert found.arrow().equals(table)
    assert (str(found), found.notes) == (str(sent), sent.notes)


def answer(table: pa.Table, told: bytes = b"{}", compression: str | None = None) -> pa.Buffer:
    text = told.ljust(56)
    sink = pa.BufferOutputStream()
    sink.write(len(text).to_bytes(8, "little") + text)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


ZEROS = pa.table({"a": np.zeros(1 << 20, np.uint8)})
REPEATED = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["a" * (1 << 20)]))
WIDE = pa.table({"x" * 1000 + f"{n}": [1] for n in range(1200)})
ENDLESS = pa.table({"a": pa.nulls(1 << 24)})
WRONG = {
    "nothing": (pa.py_buffer(b""), "cannot be read"),
    "less than its JSON": (pa.py_buffer((99).to_bytes(8, "little") + b"{}"), "bytes of JSON"),
    "no object": (answer(ZEROS, b"[]"), "no object"),
    "deep JSON": (answer(ZEROS, b"[" * 100_000), "cannot be read"),
    "a compressed batch": (answer(ZEROS, compression="zstd"), "a compressed record batch"),
    "one of lz4": (answer(ZEROS, compression="lz4"), "a compressed record batch"),
    "a compressed dictionary": (
        answer(pa.table({"d": REPEATED}), compression="zstd"), "a compressed dictionary",
    ),
    "a schema of a megabyte": (answer(WIDE), "a schema of"),
    "rows without bytes": (answer(ENDLESS), "16,777,216 rows"),
    "cut off": (answer(ZEROS).slice(0, 5000), "cannot be read"),
}  # fmt: skip


POOLS: list[pa.MemoryPool] = []
"""That are never let go of: what was taken from one is given back to it whenever that may be."""


@pytest.mark.parametrize(("data", "why"), WRONG.values(), ids=WRONG)
def test_what_is_no_answer(data: pa.Buffer, why: str) -> None:
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(WireError, match=why):
            bytes_to_result(data)
    finally:
        pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) < 1 << 16


def test_pointers_beyond_a_column() -> None:
    data = bytearray(answer(pa.table({"a": ["abc", "de"]})).to_pybytes())
    offsets = np.array([0, 3, 5], np.int32).tobytes()
    assert data.count(offsets) == 1
    at = data.index(offsets) + 8
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(WireError, match="cannot be read"):
        bytes_to_result(pa.py_buffer(bytes(data)))


def test_a_plan_and_a_model_are_read_alike() -> None:
    forged = answer(ZEROS, json.dumps({}).encode(), "zstd")
    for read in (answers.bytes_to_plan, answers.bytes_to_model):
        with pytest.raises(WireError, match="a compressed record batch"):
            read(forged)
