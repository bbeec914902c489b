"""Arrow columns as raw buffers and back. Only the values travel, and the receiver checks them.

A column becomes a description, which is plain JSON data, and buffers in Arrow's layout, cut to its
first and last row. Values under a NULL travel too. Arrow's `take` leaves zeros there, except in
structs, whose children are therefore taken once more.

Types are those of `_PLAIN`, decimals, timestamps, lists, arrays, structs and maps. A dictionary
travels as its values, an extension as its storage. Unions, views and run ends do not travel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqlfl.base.errors import InternalError, WireError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[Any]
Take: TypeAlias = Callable[[int], pa.Buffer]
"""Returns the next bytes of a message. Raise WireError if there are not so many."""

MAX_INT32 = 2**31 - 1
MAX_DEPTH = 32
_ZONE = re.compile(r"[A-Za-z0-9_+\-/:]{1,64}")
_UNITS = ("s", "ms", "us", "ns")
_PLAIN = {
    str(kind): kind
    for kind in (
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(),
        pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
        pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32(), pa.date64(),
        pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
        *map(pa.duration, _UNITS), *map(pa.timestamp, _UNITS), pa.month_day_nano_interval(),
    )
}  # fmt: skip
"""Types by name: those of one width or of text."""


@dataclass(frozen=True, eq=False)
class Packed:
    """Packed column, or a child of one."""

    description: dict[str, Any]
    """Entries of the header.

    type: its name, decimal, timestamp, list, large_list, array, struct or map, with its parameters;
    length; nulls: whether bits of validity travel; bytes: of text; children, with their names.
    """
    buffers: list[Bytes]
    """Buffers in the order of the description, children last."""


def packed(array: pa.Array, depth: int = 0) -> Packed:
    """Return the packed column. Raise InternalError for a type that does not travel."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return packed(array.storage, depth)
    if pa.types.is_dictionary(kind):
        return packed(array.dictionary_decode(), depth)
    if depth > MAX_DEPTH:
        raise InternalError(f"a column nested more than {MAX_DEPTH} deep cannot travel")
    bits = _bits(array)
    description: dict[str, Any] = {
        "type": str(kind),
        "length": len(array),
        "nulls": bits is not None,
    }
    buffers = [] if bits is None else [bits]
    if pa.types.is_null(kind):
        return Packed(description, buffers)
    if _is_text(kind):
        return _packed_text(array, description, buffers)
    if pa.types.is_nested(kind):
        return _packed_nested(array, description, buffers, depth)
    description |= _parameters(kind)
    values = array.buffers()[1]
    if pa.types.is_boolean(kind):
        return Packed(description, [*buffers, _cut(values, array.offset, len(array))])
    width = kind.bit_width // 8
    data = np.frombuffer(values or b"", np.uint8)[array.offset * width :]
    return Packed(description, [*buffers, data[: len(array) * width]])


def travels(kind: pa.DataType) -> bool:
    """Return True if columns of this type arrive as they were sent."""
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return all(travels(kind.field(place).type) for place in range(kind.num_fields))
    return not (pa.types.is_union(kind) or isinstance(kind, pa.BaseExtensionType))


def _bits(array: pa.Array) -> Bytes | None:
    """Return a bit for each row, 1 if it has a value; None if no value is NULL."""
    if pa.types.is_null(array.type):
        return np.zeros((len(array) + 7) // 8, np.uint8)
    return _cut(array.buffers()[0], array.offset, len(array)) if array.null_count else None


def _cut(buffer: pa.Buffer | None, start: int, length: int) -> Bytes:
    """Return `length` bits from bit `start` on, with zeros to the end of the last byte."""
    bits = np.frombuffer(buffer or b"", np.uint8)
    if start % 8:
        every = np.unpackbits(bits, count=start + length, bitorder="little")
        return np.packbits(every[start:], bitorder="little")
    part = bits[start // 8 :][: (length + 7) // 8].copy()
    part[-1:] &= 0xFF >> (-length % 8)
    return part


def _packed_text(array: pa.Array, header: dict[str, Any], buffers: list[Bytes]) -> Packed:
    if not len(array):
        return Packed(header | {"bytes": 0}, [*buffers, np.zeros(_wide(array.type), np.uint8)])
    offsets = _offsets(array)
    text = np.frombuffer(array.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    moved = offsets - offsets[0] if offsets[0] else offsets
    return Packed(header | {"bytes": len(text)}, [*buffers, moved.view(np.uint8), text])


def _packed_nested(
    array: pa.Array, header: dict[str, Any], parts: list[Bytes], depth: int
) -> Packed:
    kind = array.type
    if pa.types.is_map(kind):
        entry = [kind.key_field, kind.item_field]
        inner = packed(array.cast(pa.list_(pa.struct(entry))), depth)
        return Packed(inner.description | {"type": "map"}, inner.buffers)
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        children = array.flatten()
        if array.null_count:
            every = pa.array(np.arange(len(array)))
            children = [child.take(every) for child in children]
        return _with_children(header | {"type": "struct"}, parts, fields, children, depth)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        child = array.values.slice(array.offset * size, len(array) * size)
        header |= {"type": "array", "size": size}
        return _with_children(header, parts, [kind.value_field], [child], depth)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        header |= {"type": "large_list" if _wide(kind) == 8 else "list"}
        offsets, child = np.zeros(1, f"i{_wide(kind)}"), array.values.slice(0, 0)
        if len(array):
            offsets = _offsets(array)
            child = array.values[offsets[0] : offsets[-1]]
            offsets = offsets - offsets[0] if offsets[0] else offsets
        buffers = [*parts, offsets.view(np.uint8)]
        return _with_children(header, buffers, [kind.value_field], [child], depth)
    raise InternalError(f"a column of type {kind} cannot travel")


def _offsets(array: pa.Array) -> Places:
    """Return the start of each row and the end of the last one, in the buffer of all rows."""
    every = np.frombuffer(array.buffers()[1], f"i{_wide(array.type)}")
    return every[array.offset : array.offset + len(array) + 1]


def _wide(kind: pa.DataType) -> int:
    """Return the bytes of an offset."""
    large = (pa.types.is_large_string, pa.types.is_large_binary, pa.types.is_large_list)
    return 8 if any(check(kind) for check in large) else 4


def _with_children(
    header: dict[str, Any],
    buffers: list[Bytes],
    fields: Sequence[pa.Field],
    arrays: Sequence[pa.Array],
    depth: int,
) -> Packed:
    children, child_buffers = [], list(buffers)
    for field, array in zip(fields, arrays, strict=True):
        inner = packed(array, depth + 1)
        children.append({"name": field.name, "nullable": field.nullable, **inner.description})
        child_buffers += inner.buffers
    return Packed(header | {"children": children}, child_buffers)


def _parameters(kind: pa.DataType) -> dict[str, Any]:
    """Return the type's parameters, if its name alone does not determine it."""
    if str(kind) in _PLAIN:
        return {}
    if pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        return {"type": "decimal", "bits": kind.bit_width, "digits": kind.precision,
                "scale": kind.scale}  # fmt: skip
    if pa.types.is_timestamp(kind):
        return {"type": "timestamp", "unit": kind.unit, "zone": kind.tz}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "bytes", "width": kind.byte_width}
    raise InternalError(f"a column of type {kind} cannot travel")


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def unpacked(description: object, take: Take) -> pa.Array:
    """Return the column. Its buffers are views of the message's, and nothing is read beyond them.
    `fault_of` checks text and the digits of decimals.

    Raise WireError for an invalid column.
    """
    try:
        array = _unpacked(description, take, 0)
        array.validate()
    except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise WireError(f"is no column: {type(error).__name__} {error!s:.80}") from error
    return array


def fault_of(array: pa.Array) -> str | None:
    """Return the fault in the values of an unpacked column."""
    if _is_sound(array):
        return None
    try:
        array.validate(full=True)
    except pa.ArrowException as error:
        return f"has a column of values that are none: {error!s:.80}"
    return None


def _is_sound(array: pa.Array) -> bool:
    """Return True for types of which any bits are a value, and for ASCII text. `validate` takes ten
    times as long.
    """
    kind = array.type
    if _is_text(kind):
        text = np.frombuffer(array.buffers()[2] or b"", np.uint8)
        return pa.types.is_binary(kind) or bool(text.max(initial=0) < 0x80)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _is_sound(array.values)
    return any(check(kind) for check in _ANY_BITS)


_ANY_BITS = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def _unpacked(header: Any, take: Take, depth: int) -> pa.Array:
    length, nulls = header["length"], header["nulls"]
    if type(length) is not int or not 0 <= length <= MAX_INT32 or type(nulls) is not bool:
        raise ValueError("of no length")
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    bits = take((length + 7) // 8) if nulls else None
    name = header["type"]
    if name in ("struct", "list", "large_list", "array", "map"):
        return _unpacked_nested(header, bits, take, depth)
    kind = _type_of(header)
    if pa.types.is_null(kind):
        if bits is None or np.frombuffer(bits, np.uint8).any():
            raise ValueError("of values that are not NULL")
        return pa.nulls(length)
    if _is_text(kind):
        wide = 8 if name.startswith("large") else 4
        offsets = take((length + 1) * wide)
        text = take(_whole(header["bytes"]))
        _check_offsets(offsets, wide, len(text))
        return pa.Array.from_buffers(kind, length, [bits, offsets, text])
    size = (length + 7) // 8 if pa.types.is_boolean(kind) else length * (kind.bit_width // 8)
    return pa.Array.from_buffers(kind, length, [bits, take(size)])


def _unpacked_nested(header: Any, bits: pa.Buffer | None, take: Take, depth: int) -> pa.Array:
    name, length, children = header["type"], header["length"], header["children"]
    if not isinstance(children, list) or (name != "struct" and len(children) != 1):
        raise ValueError("with other children")
    buffers: list[pa.Buffer | None] = [bits]
    expected = length
    if name == "array":
        expected = length * _whole(header["size"])
    elif name != "struct":
        wide = 8 if name == "large_list" else 4
        buffers.append(take((length + 1) * wide))
        expected = _whole(children[0]["length"])
        _check_offsets(buffers[1], wide, expected)
    if any(child["length"] != expected for child in children):
        raise ValueError("with children of another length")
    arrays = [_unpacked(child, take, depth + 1) for child in children]
    fields = [
        pa.field(_text(child["name"]), array.type, _truth(child["nullable"]))
        for child, array in zip(children, arrays, strict=True)
    ]
    kind = _nested_type(name, header, fields)
    return pa.Array.from_buffers(kind, length, buffers, children=arrays)


def _nested_type(name: str, header: Any, fields: list[pa.Field]) -> pa.DataType:
    match name:
        case "struct":
            return pa.struct(fields)
        case "array":
            return pa.list_(fields[0], header["size"])
        case "large_list":
            return pa.large_list(fields[0])
        case "list":
            return pa.list_(fields[0])
    entry = fields[0].type
    if not pa.types.is_struct(entry) or entry.num_fields != 2:
        raise ValueError("with entries that are no pairs")
    return pa.map_(entry.field(0).with_nullable(False), entry.field(1))


def _type_of(header: Any) -> pa.DataType:
    name = header["type"]
    match name:
        case "decimal":
            make = {128: pa.decimal128, 256: pa.decimal256}[header["bits"]]
            return make(_whole(header["digits"]), header["scale"])
        case "timestamp":
            if header["unit"] not in _UNITS:
                raise ValueError("of no unit")
            return pa.timestamp(header["unit"], _zone(header["zone"]))
        case "bytes":
            return pa.binary(max(1, _whole(header["width"])))
    return _PLAIN[name]


def _check_offsets(buffer: pa.Buffer, wide: int, last: int) -> None:
    offsets = np.frombuffer(buffer, f"i{wide}")
    if offsets[0] != 0 or offsets[-1] != last or np.any(offsets[1:] < offsets[:-1]):
        raise ValueError("with offsets that do not fit")


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INT32:
        raise ValueError("of no size")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("without a name")
    return value


def _zone(value: object) -> str | None:
    if value is None or (isinstance(value, str) and _ZONE.fullmatch(value)):
        return value
    raise ValueError("of no time zone")


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("without a yes or no")
    return value
