"""The one encoding of messages: Arrow IPC.

A message travels as a stream of one batch with one row: a list column per array, the shape in the
field's metadata. The envelope (kind, run, slot) is schema metadata.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.errors import InternalError
from sqlfl.messages import KINDS, Message


def encode(message: Message) -> pa.Buffer:
    """The message as an Arrow IPC stream."""
    columns: list[pa.Array] = []
    schema: list[pa.Field] = []
    for spec in fields(message):
        if spec.name in ("run", "slot"):
            continue
        value = getattr(message, spec.name)
        if isinstance(value, tuple) and not all(isinstance(v, str) for v in value):
            for number, item in enumerate(value):
                _add(columns, schema, f"{spec.name}.{number}", item)
        else:
            _add(columns, schema, spec.name, value)
    envelope = {"kind": message.kind, "run": message.run, "slot": str(message.slot)}
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(schema, metadata=envelope))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        if columns:
            writer.write_batch(batch)
    return sink.getvalue()


def decode(data: pa.Buffer | bytes) -> Message:
    """The message that `encode` wrote; arrays are views of `data` and read-only."""
    with pa.ipc.open_stream(data) as reader:
        schema = reader.schema
        batch = reader.read_next_batch() if len(schema) else None
    metadata = {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}
    cls = KINDS.get(metadata.get("kind", ""))
    if cls is None:
        raise InternalError(f"message of unknown kind {metadata.get('kind')!r}")
    found: dict[str, Any] = {}
    several: dict[str, list[Any]] = {}
    for position, item in enumerate(schema):
        value = _read(batch.column(position), item) if batch is not None else None
        name, _, number = item.name.partition(".")
        if number:
            several.setdefault(name, []).append(value)
        else:
            found[name] = value
    found |= {name: tuple(values) for name, values in several.items()}
    for spec in fields(cls):
        if spec.name not in ("run", "slot") and spec.name not in found:
            found[spec.name] = ()
    return cls(run=metadata["run"], slot=int(metadata["slot"]), **found)


def _add(columns: list[pa.Array], schema: list[pa.Field], name: str, value: Any) -> None:
    metadata: dict[str, str] = {}
    if isinstance(value, np.ndarray):
        metadata["shape"] = json.dumps(value.shape)
        flat = pa.array(np.ascontiguousarray(value).reshape(-1))
        column = pa.LargeListArray.from_arrays(pa.array([0, len(flat)], pa.int64()), flat)
    elif isinstance(value, pa.Array):
        metadata["form"] = "arrow"
        column = pa.LargeListArray.from_arrays(pa.array([0, len(value)], pa.int64()), value)
    elif isinstance(value, tuple):
        column = pa.array([list(value)], pa.large_list(pa.large_utf8()))
    elif isinstance(value, str):
        column = pa.array([value], pa.large_utf8())
    elif isinstance(value, (int, np.integer)):
        column = pa.array([int(value)], pa.int64())
    elif isinstance(value, (float, np.floating)):
        column = pa.array([float(value)], pa.float64())
    else:
        raise InternalError(f"message field {name} cannot travel: {type(value).__name__}")
    columns.append(column)
    schema.append(pa.field(name, column.type, metadata=metadata or None))


def _read(column: pa.Array, item: pa.Field) -> Any:
    metadata = item.metadata or {}
    if b"shape" in metadata:
        shape = json.loads(metadata[b"shape"])
        return column.flatten().to_numpy(zero_copy_only=True).reshape(shape)
    if b"form" in metadata:
        return column.flatten()
    if pa.types.is_large_list(item.type):
        return tuple(column[0].as_py())
    return column[0].as_py()
