"""Arrow IPC streams from a database file, which may be damaged, or come from somebody else.

Only columns of numbers are read, and no compressed ones, so that reading takes about the memory of
the bytes. Answers to analysts are streams too, of any columns, with the same checks
(`check_stream`). Messages between parties are not of this kind (sqlfl.messages.wire).
"""

from __future__ import annotations

import struct
from collections.abc import Collection

import pyarrow as pa

MAX_SCHEMA_BYTES = 1 << 16
"""Maximum bytes of a schema of number columns. Its reader may take some hundred times as much."""
_MESSAGE_HEADER, _DICTIONARY_BATCH, _BATCH_COMPRESSION = 2, 1, 3
"""Numbers of fields in Arrow's Message.fbs."""
NUMBERS, ANY = ("record batch",), ("record batch", "dictionary")
"""Kinds of messages that follow the schema."""


def read_numbers(data: object, largest_schema: int | None = MAX_SCHEMA_BYTES) -> pa.Table:
    """Return the table of such a stream, after checking its values.

    largest_schema : bytes; None for any. Raise ValueError for anything else.
    """
    if not isinstance(data, bytes):
        raise ValueError("no bytes")
    try:
        check_stream(data, largest_schema)
        with pa.ipc.open_stream(data) as reader:
            if not all(_is_number(field.type) for field in reader.schema):
                raise ValueError("columns that hold no numbers")
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, MemoryError, struct.error) as error:
        raise ValueError(f"no Arrow stream: {type(error).__name__}") from error
    return table


def check_stream(
    data: bytes | pa.Buffer, largest_schema: int | None, kinds: Collection[str] = NUMBERS
) -> None:
    """Check a stream before it is read. Raise ValueError for a schema of more than so many bytes,
    for messages of other kinds, and for compression: it would be unpacked before its size is known.
    """
    messages = pa.ipc.MessageReader.open_stream(data)
    for number, message in enumerate(messages):
        if message.type not in (kinds if number else ("schema",)):
            raise ValueError(f"a message {message.type}")
        head = message.metadata.to_pybytes()
        if not number and largest_schema is not None and len(head) > largest_schema:
            raise ValueError(f"a schema of {len(head)} bytes")
        if number and _is_compressed(head, message.type):
            raise ValueError(f"a compressed {message.type}")


def _is_compressed(head: bytes, kind: str) -> bool:
    """Return True if the header has the field of compression."""
    batch = _field(head, _table(head, 0), _MESSAGE_HEADER)
    if batch is not None and kind == "dictionary":
        batch = _field(head, _table(head, batch), _DICTIONARY_BATCH)
    return batch is None or _field(head, _table(head, batch), _BATCH_COMPRESSION) is not None


def _table(head: bytes, place: int) -> int:
    """Return the start of the flatbuffers table that `place` refers to."""
    return int(place + struct.unpack_from("<I", head, place)[0])


def _field(head: bytes, table: int, number: int) -> int | None:
    """Return the place of a table's field; None without it."""
    places = table - struct.unpack_from("<i", head, table)[0]
    (size,) = struct.unpack_from("<H", head, places)
    entry = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", head, places + entry) if entry < size else (0,)
    return table + offset if offset else None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
