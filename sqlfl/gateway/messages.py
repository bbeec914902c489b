"""Messages of Arrow Flight SQL, as Protocol Buffers (FlightSql.proto of Apache Arrow).

All messages that a client sends or needs consist of varints, strings and bytes. So they are read
and written here, without a library: what is malformed or too large raises WireError, and fields
that a newer client adds are skipped, as Protocol Buffers asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar, cast

from sqlfl.base.errors import WireError

MAX_BYTES = 8 << 20
"""Of one message."""
MAX_ITEMS = 10_000
"""Largest number of items of a repeated field."""
PREFIX = "type.googleapis.com/arrow.flight.protocol.sql."
"""Prefix of a message's type in google.protobuf.Any."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

M = TypeVar("M")
Value: TypeAlias = "int | bool | str | bytes"


def _field(number: int, default: Any = None) -> Any:
    """Field `number`; its type is that of the annotation, and None where it was not sent."""
    return field(default=default, metadata={"number": number})


@dataclass(frozen=True)
class CommandGetSqlInfo:
    info: tuple[int, ...] = _field(1, ())


@dataclass(frozen=True)
class CommandGetXdbcTypeInfo:
    data_type: int | None = _field(1)


@dataclass(frozen=True)
class CommandGetCatalogs:
    pass


@dataclass(frozen=True)
class CommandGetDbSchemas:
    catalog: str | None = _field(1)
    db_schema_filter_pattern: str | None = _field(2)


@dataclass(frozen=True)
class CommandGetTables:
    catalog: str | None = _field(1)
    db_schema_filter_pattern: str | None = _field(2)
    table_name_filter_pattern: str | None = _field(3)
    table_types: tuple[str, ...] = _field(4, ())
    include_schema: bool = _field(5, False)


@dataclass(frozen=True)
class CommandGetTableTypes:
    pass


@dataclass(frozen=True)
class CommandGetPrimaryKeys:
    pass


@dataclass(frozen=True)
class CommandGetExportedKeys:
    pass


@dataclass(frozen=True)
class CommandGetImportedKeys:
    pass


@dataclass(frozen=True)
class CommandGetCrossReference:
    pass


@dataclass(frozen=True)
class CommandStatementQuery:
    query: str = _field(1, "")
    transaction_id: bytes | None = _field(2)


@dataclass(frozen=True)
class CommandStatementUpdate:
    query: str = _field(1, "")
    transaction_id: bytes | None = _field(2)


@dataclass(frozen=True)
class TicketStatementQuery:
    statement_handle: bytes = _field(1, b"")


@dataclass(frozen=True)
class CommandPreparedStatementQuery:
    prepared_statement_handle: bytes = _field(1, b"")


@dataclass(frozen=True)
class CommandPreparedStatementUpdate:
    prepared_statement_handle: bytes = _field(1, b"")


@dataclass(frozen=True)
class ActionCreatePreparedStatementRequest:
    query: str = _field(1, "")
    transaction_id: bytes | None = _field(2)


@dataclass(frozen=True)
class ActionCreatePreparedStatementResult:
    prepared_statement_handle: bytes = _field(1, b"")
    dataset_schema: bytes | None = _field(2)
    parameter_schema: bytes | None = _field(3)


@dataclass(frozen=True)
class ActionClosePreparedStatementRequest:
    prepared_statement_handle: bytes = _field(1, b"")


@dataclass(frozen=True)
class DoPutUpdateResult:
    record_count: int = _field(1, 0)


@dataclass(frozen=True)
class _Any:
    """google.protobuf.Any"""

    type_url: str = _field(1, "")
    value: bytes = _field(2, b"")


KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        CommandGetSqlInfo, CommandGetXdbcTypeInfo, CommandGetCatalogs, CommandGetDbSchemas,
        CommandGetTables, CommandGetTableTypes, CommandGetPrimaryKeys, CommandGetExportedKeys,
        CommandGetImportedKeys, CommandGetCrossReference, CommandStatementQuery,
        CommandStatementUpdate, TicketStatementQuery, CommandPreparedStatementQuery,
        CommandPreparedStatementUpdate, ActionCreatePreparedStatementRequest,
        ActionCreatePreparedStatementResult, ActionClosePreparedStatementRequest,
    )
}  # fmt: skip
"""Messages that stand in an Any, by their names."""


def unpack(data: bytes) -> Any:
    """Read the message in an Any. Raise WireError for what is none, and for an unknown type."""
    outer = decode(_Any, data)
    kind = KINDS.get(outer.type_url.removeprefix(PREFIX)) if outer.type_url else None
    if kind is None or not outer.type_url.startswith(PREFIX):
        raise WireError(f"{outer.type_url or 'a message without a type'!r:.120} is not served here")
    return decode(kind, outer.value)


def pack(message: object) -> bytes:
    """Write the message in an Any."""
    return encode(_Any(PREFIX + type(message).__name__, encode(message)))


def decode(kind: type[M], data: bytes) -> M:
    """Read a message of this kind. Raise WireError where the bytes are none."""
    if len(data) > MAX_BYTES:
        raise WireError(f"a message of {len(data):,} bytes, of at most {MAX_BYTES:,}")
    known = {entry.metadata["number"]: entry for entry in fields(cast("Any", kind))}
    values: dict[str, Any] = {}
    for number, wire_type, value in _parts(data):
        entry = known.get(number)
        if entry is None:
            continue
        text = str(entry.type)
        if text.startswith("tuple"):
            items = values.setdefault(entry.name, [])
            items += _items(text, wire_type, value)
            if len(items) > MAX_ITEMS:
                raise WireError(f"{entry.name} has more than {MAX_ITEMS:,} items")
        else:
            values[entry.name] = _value(text, wire_type, value)
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def encode(message: object) -> bytes:
    """Write a message; a field with its default is left out."""
    written = bytearray()
    for entry in fields(cast("Any", message)):
        value = getattr(message, entry.name)
        if value == entry.default:
            continue
        for item in value if isinstance(value, tuple) else (value,):
            written += _written(entry.metadata["number"], item)
    return bytes(written)


def _parts(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Number, wire type and value of each field: an integer, or the bytes of a string."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire_type = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise WireError(f"field {number} of a message, which there cannot be")
        if wire_type == _VARINT:
            value, at = _varint(data, at)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            size, at = _varint(data, at)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise WireError(f"wire type {wire_type} of field {number}")
        if size > len(data) - at:
            raise WireError(f"field {number} is longer than its message")
        yield number, wire_type, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The unsigned integer at this place, and where it ends."""
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if at + place >= len(data):
            raise WireError("a message ends within a number")
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at + place + 1
    raise WireError("a number of more than 64 bits")


def _items(text: str, wire_type: int, value: int | bytes) -> list[Value]:
    """One item of a repeated field, or several integers that are packed."""
    if "int" not in text or not isinstance(value, bytes):
        return [_value(text, wire_type, value)]
    at = 0
    items: list[Value] = []
    while at < len(value):
        number, at = _varint(value, at)
        items.append(_value(text, _VARINT, number))
    return items


def _value(text: str, wire_type: int, value: int | bytes) -> Value:
    """The value as its annotation says: signed integers of 64 bits, as int32 travels so too."""
    numeric = "int" in text or "bool" in text
    if wire_type != (_VARINT if numeric else _BYTES):
        raise WireError(f"wire type {wire_type} where a field is {text}")
    if isinstance(value, int):
        if "bool" in text:
            return value != 0
        return value - (1 << 64) if value >> 63 else value
    if "bytes" in text:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise WireError("a text that is not UTF-8") from None


def _written(number: int, value: Value) -> bytes:
    if isinstance(value, int):
        return _number(number << 3 | _VARINT) + _number(int(value) & (1 << 64) - 1)
    data = value.encode() if isinstance(value, str) else value
    return _number(number << 3 | _BYTES) + _number(len(data)) + data


def _number(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
