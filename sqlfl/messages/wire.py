"""Encoding of messages: a header that describes the values, and then the values.

A message starts with eight bytes of MAGIC, the header's length (uint32), and the header (JSON,
ASCII). Then the values follow, little-endian, each from a multiple of 64 bytes on: arrays as numpy
has them, text as UTF-8, columns of identifiers in Arrow's layout (sqlfl.messages.wire_columns).
Only zeros are between them, and nothing comes after them. The header has the kind, run, slot and
number of the message. For every field it has its numbers, or the types and sizes of the values that
follow.

The decoder trusts none of it. No library's reader is given bytes of another party. A message
becomes arrays over its own bytes, of the types and sizes that its kind declares
(sqlfl.messages.forms). So decoding takes no more memory than the message, apart from the header's
objects. Arrow's own IPC format cannot be read so: its reader may make 60 MB of 80 kB and three GB
of 4 MB, and a compressed buffer grows before anything can be checked.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqlfl.base.codec import loads
from sqlfl.base.errors import InternalError, WireError
from sqlfl.base.sanitize import clipped, line
from sqlfl.messages import KINDS, Message
from sqlfl.messages.checks import fault_of, name_of, sizes_of
from sqlfl.messages.forms import (
    MAX_TEXT_BYTES,
    Columns,
    Form,
    Number,
    Numbers,
    Several,
    Text,
    Texts,
)
from sqlfl.messages.wire_columns import packed, unpacked

Bytes: TypeAlias = npt.NDArray[np.uint8]

MAGIC = b"sqlfl\x00\x00\x02"
"""First bytes of a message. The last one is the format's number."""
START = len(MAGIC) + 4
ALIGNMENT = 64
MAX_HEADER_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 1 << 36
"""Maximum bytes of a message. Longer ones are not read."""
MAX_RUN_CHARACTERS = 200
"""Maximum characters of a run's id."""
MAX_INT32 = 2**31 - 1
_HEADERS = json.JSONEncoder(separators=(",", ":"))


def encode(message: Message) -> pa.Buffer:
    """Return the message as bytes. Raise InternalError if it does not have its declared form."""
    try:
        sizes_of(message)
    except WireError as error:
        raise InternalError(f"a message field cannot travel: {error.message}") from error
    return encoded(message)


def encoded(message: Message) -> pa.Buffer:
    """Return the message as bytes without a check of its form. Only tests that forge a message call
    it directly.
    """
    described: dict[str, Any] = {}
    parts: list[Bytes] = []
    for name, form in message.forms().items():
        described[name], values = _written(getattr(message, name), form)
        parts += values
    envelope: dict[str, Any] = {"kind": message.name_of(), "run": message.run, "slot": message.slot}
    envelope |= {"number": message.number, "fields": described}
    header = _HEADERS.encode(envelope).encode("ascii")
    end = START + len(header)
    places = []
    for part in parts:
        places.append(_aligned(end))
        end = places[-1] + part.nbytes
    if len(header) > MAX_HEADER_BYTES or end > MAX_MESSAGE_BYTES:
        raise InternalError(f"a message {message.kind} of {end} bytes, {len(header)} of a header")
    buffer = pa.allocate_buffer(end)
    out = np.frombuffer(buffer, np.uint8)
    last = START + len(header)
    out[:last] = np.frombuffer(MAGIC + struct.pack("<I", len(header)) + header, np.uint8)
    for place, part in zip(places, parts, strict=True):
        out[last:place] = 0  # otherwise old contents of the memory would leave
        last = place + part.nbytes
        out[place:last] = part
    return buffer


def decode(data: pa.Buffer | bytes) -> Message:
    """Return the message that `encode` wrote; its arrays are read-only views of `data`.

    Raise WireError for anything else, and for types and sizes that are not as declared. `received`
    checks the elements of the arrays.
    """
    source = _Source(data)
    header = source.header
    cls = KINDS.get(header["kind"])
    if cls is None:
        raise WireError(f"message of unknown kind {_quoted(header['kind'])}")
    forms, described = cls.forms(), header["fields"]
    if described.keys() != forms.keys():
        raise WireError(f"{cls.kind} with other fields: {_quoted(', '.join(described))}")
    values = {
        name: source.read(form, described[name], f"{cls.kind}.{name}")
        for name, form in forms.items()
    }
    source.check_end()
    message = cls(header["run"], header["slot"], number=header["number"], **values)
    sizes_of(message)
    return message


def received(data: pa.Buffer | bytes) -> Message:
    """Return the message in bytes from across a border, after checking everything that it declares.

    Raise WireError for any invalid bytes.
    """
    try:
        message = decode(data)
        fault = fault_of(message, sizes_of(message))
    except MemoryError:
        raise WireError(f"a message of {len(data)} bytes does not fit the memory") from None
    if fault is not None:
        raise WireError(fault)
    return message


# -- writing ----------------------------------------------------------------------------------


def _written(value: Any, form: Form) -> tuple[Any, list[Bytes]]:
    """Return the header's description of a value of this form, and the value's bytes."""
    match form:
        case Number():
            return (int(value) if form.whole else float(value)), []
        case Text():
            text = _utf8(value)
            return len(text), [np.frombuffer(text, np.uint8)]
        case Texts():
            return len(value), _written_texts(value)
        case Numbers():
            return _shape(value), [_flat(value)]
        case Several():
            return [_shape(item) for item in value], [_flat(item) for item in value]
        case Columns():
            columns = [packed(item) for item in value]
            return (
                [column.description for column in columns],
                [_flat(part) for column in columns for part in column.buffers],
            )


def _written_texts(texts: tuple[str, ...]) -> list[Bytes]:
    """Return the length of each text in bytes, and all texts one after the other."""
    data = _utf8("".join(texts), MAX_MESSAGE_BYTES)
    lengths = list(map(len, texts))
    if len(data) != sum(lengths):  # not all ASCII
        lengths = [len(_utf8(item)) for item in texts]
    if max(lengths, default=0) > MAX_TEXT_BYTES:
        raise InternalError(f"a text of {max(lengths)} bytes cannot travel: {MAX_TEXT_BYTES} can")
    return [_flat(np.array(lengths, np.uint32)), np.frombuffer(data, np.uint8)]


def _shape(value: npt.NDArray[Any]) -> list[Any]:
    return [name_of(value.dtype), *value.shape]


def _flat(value: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _utf8(text: str, longest: int = MAX_TEXT_BYTES) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InternalError("a text with half a character cannot travel") from None
    if len(data) > longest:
        raise InternalError(f"a text of {len(data)} bytes cannot travel: {longest} can")
    return data


def _aligned(place: int) -> int:
    return -(-place // ALIGNMENT) * ALIGNMENT


# -- reading ----------------------------------------------------------------------------------


class _Source:
    """Bytes of a message, read from the beginning to the end."""

    def __init__(self, data: pa.Buffer | bytes) -> None:
        if not START <= len(data) <= MAX_MESSAGE_BYTES:
            raise WireError(f"{len(data)} bytes are no message")
        self._buffer = pa.py_buffer(data)
        if self._buffer.address % 8:
            self._buffer = pa.py_buffer(bytes(data))
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self._bytes.flags.writeable = False
        if self._bytes[: len(MAGIC)].tobytes() != MAGIC:
            raise WireError("the bytes are no message of this version of sqlfl")
        (length,) = struct.unpack("<I", self._bytes[len(MAGIC) : START].tobytes())
        self._place = START + length
        if length > MAX_HEADER_BYTES or self._place > len(data):
            raise WireError(f"a header of {length} bytes in a message of {len(data)}")
        self.header = _checked(self._bytes[START : self._place].tobytes())

    def take(self, size: int) -> Bytes:
        """Return the next value of `size` bytes."""
        start = _aligned(self._place)
        if start + size > len(self._bytes):
            raise WireError(f"a message of {len(self._bytes)} bytes ends before its values")
        if self._bytes[self._place : start].any():
            raise WireError("a message with bytes between its values")
        self._place = start + size
        return self._bytes[start : self._place]

    def check_end(self) -> None:
        if self._place != len(self._bytes):
            raise WireError(f"a message with {len(self._bytes) - self._place} bytes after it")

    def read(self, form: Form, described: Any, what: str) -> Any:
        """Return the value that the header describes so. Raise WireError if it does not fit."""
        try:
            return self._value(form, described)
        except (ValueError, TypeError, OverflowError) as error:
            raise WireError(f"{what} cannot be read: {error}") from None
        except WireError as error:
            raise WireError(f"{what}: {error.message}") from None

    def _value(self, form: Form, described: Any) -> Any:
        match form:
            case Number():
                return described if form.whole else float(described)
            case Text():
                return self._text(_size(described, MAX_TEXT_BYTES))
            case Texts():
                return self._texts(_size(described))
            case Numbers():
                return self._array(form, described)
            case Several():
                return tuple(self._array(form.item, item) for item in _list(described))
            case Columns():
                return tuple(unpacked(item, self._slice) for item in _list(described))

    def _text(self, size: int) -> str:
        return self.take(size).tobytes().decode()

    def _texts(self, count: int) -> tuple[str, ...]:
        places = [0, *np.cumsum(self.take(4 * count).view(np.uint32), dtype=np.int64).tolist()]
        data = self.take(places[-1]).tobytes()
        if data.isascii():
            text = data.decode("ascii")
            return tuple([text[start:end] for start, end in pairwise(places)])
        return tuple([data[start:end].decode() for start, end in pairwise(places)])

    def _array(self, form: Numbers, described: Any) -> npt.NDArray[Any]:
        name, *shape = _list(described)
        if name not in form.types or len(shape) != len(form.shape):
            raise ValueError(f"an array {_quoted(str(described))}")
        kind, size = np.dtype(name), 1
        for length in shape:
            size *= _size(length)
        values: npt.NDArray[Any] = self.take(kind.itemsize * size).view(kind).reshape(shape)
        return values

    def _slice(self, size: int) -> pa.Buffer:
        self.take(size)
        return self._buffer.slice(self._place - size, size)


def _checked(data: bytes) -> dict[str, Any]:
    """Return the header, after checking every entry except the descriptions."""
    try:
        header = loads(data.decode("ascii"))
    except ValueError as error:
        raise WireError(f"the header is no JSON: {error}") from None
    if not isinstance(header, dict) or header.keys() != _HEADER.keys():
        raise WireError("the header lacks entries, or has others")
    for name, holds in _HEADER.items():
        if not holds(header[name]):
            raise WireError(f"the header's {name} is {_quoted(str(header[name]))}")
    return header


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_RUN_CHARACTERS and line(value) == value


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


_HEADER: dict[str, Callable[[Any], bool]] = {
    "kind": _is_name,
    "run": _is_name,
    "slot": lambda value: type(value) is int and -1 <= value <= MAX_INT32,
    "number": _is_number,
    "fields": lambda value: isinstance(value, dict),
}


def _size(value: object, most: int = MAX_INT32) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a size of {_quoted(str(value))}")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"described by {_quoted(str(value))}")
    return value


def _quoted(text: str) -> str:
    return repr(clipped(line(text), 60))
