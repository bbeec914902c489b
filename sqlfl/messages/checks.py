"""Checks of messages: the declared form of each, and of replies to requests, before any use.

A form is types, sizes, and conditions on elements. `sizes_of` takes a few microseconds for arrays
of any size; `fault_of` reads them, without a copy.

`sqlfl.messages.wire.received` has checked that a reply has its declared form, and the channel that
it belongs to the request. `ask` makes the checks that only the coordinator can make: the kind, the
numbers of its sizes, and conditions from earlier replies. Any fault is a PartyError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, PartyError, ReplyError, WireError
from sqlfl.contract.schema import Address, Client
from sqlfl.messages import wire_columns
from sqlfl.messages.base import Message
from sqlfl.messages.forms import (
    ITEM,
    MAX_NUMBER,
    Columns,
    Form,
    Number,
    Numbers,
    Several,
    Size,
    Text,
    Texts,
    Values,
)

Sizes = dict[str, int]
_KNOWN = "_sizes"
"""Attribute in which a message keeps its sizes after the first check."""
MAX_LENGTH = 2**31 - 1
"""Maximum length of an axis: a table with more rows cannot be joined."""


def sizes_of(message: Message) -> Sizes:
    """Return the number of each named size in the message.

    Raise WireError if a field does not have its form, or if one name would stand for two numbers.
    """
    known: Sizes | None = vars(message).get(_KNOWN)
    if known is not None:
        return known
    sizes: Sizes = {}
    for name, form in message.forms().items():
        try:
            _measure(getattr(message, name), form, sizes)
        except ValueError as error:
            raise WireError(f"{message.kind}.{name} {error}") from None
    vars(message)[_KNOWN] = sizes  # a message does not change
    return sizes


def shapes_of(message: Message) -> Sizes:
    """Return the same for the arrays of a message that is known to have its form."""
    sizes: Sizes = {}
    for name, form in message.forms().items():
        if isinstance(form, Numbers):
            shape = getattr(message, name).shape
            named = zip(form.shape, shape, strict=False)
            sizes |= {size: length for size, length in named if isinstance(size, str)}
    return sizes


def fault_of(message: Message, sizes: Mapping[str, int]) -> str | None:
    """Return the fault in the elements of the message's arrays, or None."""
    for name, form in message.forms().items():
        value = getattr(message, name)
        fault_text = None
        if isinstance(form, Numbers):
            fault_text = _fault(value, form.values, sizes, 0)
        elif isinstance(form, Several):
            faults = (_fault(v, form.item.values, sizes, k) for k, v in enumerate(value))
            fault_text = next((fault for fault in faults if fault), None)
        elif isinstance(form, Columns):
            fault_text = next((fault for fault in map(wire_columns.fault_of, value) if fault), None)
        elif isinstance(form, Texts) and form.distinct and len(set(value)) < len(value):
            fault_text = "names one twice"
        if fault_text:
            return f"{message.kind}.{name} {fault_text}"
    fault_text = message.fault()
    return None if fault_text is None else f"{message.kind} has {fault_text}"


def mismatch(sizes: Mapping[str, int], expected: Mapping[str, int]) -> str | None:
    """Return the first difference between sizes and the expected ones, or None."""
    for name, number in expected.items():
        if sizes.get(name, number) != number:
            return f"{name} is {sizes[name]}, expected {number}"
    return None


def _measure(value: Any, form: Form, sizes: Sizes) -> None:
    match form:
        case Number():
            _check_number(value, form)
        case Text():
            if not isinstance(value, str):
                raise ValueError(f"must be text, got {_named(value)}")
        case Texts():
            _check_tuple(value, form.count, sizes)
            if not all(isinstance(item, str) for item in value):
                raise ValueError("must hold text")
        case Numbers():
            _check_array(value, form, sizes, 0)
        case Several():
            _check_tuple(value, form.count, sizes)
            for number, item in enumerate(value):
                _check_array(item, form.item, sizes, number)
        case Columns():
            _check_tuple(value, form.count, sizes)
            for item in value:
                if not isinstance(item, pa.Array):
                    raise ValueError(f"must hold Arrow arrays, got {_named(item)}")
                _bind(sizes, form.rows, len(item), 0)


def _check_number(value: Any, form: Number) -> None:
    kinds = (int, np.integer) if form.whole else (int, float, np.integer, np.floating)
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise ValueError(f"must be {'an integer' if form.whole else 'a number'}, got {value!r:.40}")
    least = -MAX_NUMBER if form.least is None and form.whole else form.least
    most = MAX_NUMBER if form.most is None and form.whole else form.most
    low, high = least is None or value >= least, most is None or value <= most
    if not (low and high and math.isfinite(value)):
        bounds = f"from {least}" + ("" if most is None else f" to {most}")
        wanted = "finite" if least is None else bounds
        raise ValueError(f"must be {wanted}, got {value!r:.40}")


def _check_tuple(value: Any, count: Size, sizes: Sizes) -> None:
    if not isinstance(value, tuple):
        raise ValueError(f"must be a tuple, got {_named(value)}")
    _bind(sizes, count, len(value), 0)


def _check_array(value: Any, form: Numbers, sizes: Sizes, number: int) -> None:
    if not isinstance(value, np.ndarray):
        raise ValueError(f"must be an array, got {_named(value)}")
    if name_of(value.dtype) not in form.types or not value.dtype.isnative:
        raise ValueError(f"must be {' or '.join(form.types)}, got {value.dtype}")
    if form.optional and value.shape == (0,) * len(form.shape):
        return
    if value.ndim != len(form.shape):
        raise ValueError(f"must have {len(form.shape)} dimensions, got the shape {value.shape}")
    for size, length in zip(form.shape, value.shape, strict=True):
        _bind(sizes, size, length, number)


@lru_cache(maxsize=64)
def name_of(kind: np.dtype[Any]) -> str:
    """Return the name of an array's type, which numpy composes anew each time."""
    return kind.name


def _bind(sizes: Sizes, size: Size, length: int, number: int) -> None:
    if length > MAX_LENGTH:
        raise ValueError(f"is too large: {length} where at most {MAX_LENGTH} can be")
    if isinstance(size, str):
        size = _of_item(size, number)
        known = sizes.setdefault(size, length)
    else:
        known = size
    if known != length:
        raise ValueError(f"has {length} where {size} is {known}")


def _of_item(size: str, number: int) -> str:
    return f"{size[: -len(ITEM)]}[{number}]" if size.endswith(ITEM) else size


def _number_of(limit: Size, sizes: Mapping[str, int], number: int) -> float:
    return sizes[_of_item(limit, number)] if isinstance(limit, str) else limit


def _fault(value: Array, form: Values, sizes: Mapping[str, int], number: int) -> str | None:
    if not value.size:
        return None
    if form.ascending and not _ascending(value):
        return "is not strictly ascending"
    floating = value.dtype.kind == "f"
    if floating and form.least == 0 and form.finite and _from_zero(value):
        return None
    if floating and form.finite and not _finite(value):
        return "is not finite"
    if form.least is not None and not (value.dtype.kind == "u" and form.least <= 0):
        low = value.min()
        if not low >= form.least:
            return f"has {low}, at least {form.least:g} is allowed"
    if form.most is not None or form.below is not None:
        high = value.max()
        if form.most is not None and not high <= _number_of(form.most, sizes, number):
            return f"has {high}, beyond {_number_of(form.most, sizes, number):g}"
        if form.below is not None and not high < _number_of(form.below, sizes, number):
            return f"has {high}, of {_number_of(form.below, sizes, number):g}"
    return None


def _from_zero(value: Array) -> bool:
    """Return True if the values are certainly finite and at least 0. As unsigned integers they are
    then below infinity's bits; negative numbers and NaN are not.
    """
    bits = value.view(f"u{value.dtype.itemsize}")
    infinity = np.array(np.inf, value.dtype).view(bits.dtype)
    return bool(bits.max() < infinity)


def _finite(value: Array) -> bool:
    flat = value.reshape(-1)
    # One pass without an array of results. The sum of squares is finite only for finite values; if
    # it is not, it may have overflowed.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(flat, flat)):
            return True
    return bool(np.isfinite(flat.min()) and np.isfinite(flat.max()))


def _ascending(value: Array) -> bool:
    if value.ndim == 1:
        return bool((value[1:] > value[:-1]).all())
    words = np.ascontiguousarray(value).view(">u8")  # as big-endian numbers, bytes compare in order
    first = words[:, 0].astype(np.uint64)
    if (first[1:] > first[:-1]).all():
        return True
    second = words[:, 1].astype(np.uint64)
    equal = first[1:] == first[:-1]
    return bool(((first[1:] > first[:-1]) | (equal & (second[1:] > second[:-1]))).all())


def _named(value: object) -> str:
    return type(value).__name__


Reply = TypeVar("Reply", bound=Message)

SAME_VERSION = "see that the party runs this version of sqlfl, unchanged"


class ReplyChannel(Protocol):
    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """Make one round. Raise PartyError."""
        ...


@dataclass(frozen=True)
class Expected(Generic[Reply]):
    """Expected reply."""

    kind: type[Reply]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Numbers for the names of its sizes. Other sizes are free."""
    fault: Callable[[Reply], str | None] = lambda reply: None
    """Returns any other fault, to follow 'its reply to prepare'; None without one."""

    def __post_init__(self) -> None:
        if unknown := {name.partition("[")[0] for name in self.sizes} - self.kind.sizes():
            raise InternalError(f"message {self.kind.kind} has no size {min(unknown)}")


def ask(
    channel: ReplyChannel,
    requests: Mapping[Address, Message],
    expected: Callable[[Address], Expected[Reply]],
) -> dict[Address, Reply]:
    """Make one exchange and return the replies that are as expected.

    Raise PartyError for the first client, in the order of the requests, that failed or sent another
    reply.
    """
    replies = channel.exchange(requests)
    return {
        address: _checked(address[0], request, replies[address], expected(address))
        for address, request in requests.items()
    }


def refused(client: Client, request: Message, what: str, hint: str = SAME_VERSION) -> PartyError:
    """Return the error about a reply."""
    return ReplyError(str(client), f"its reply to {request.kind} {what}", hint=hint)


def _checked(client: Client, request: Message, reply: Any, expected: Expected[Reply]) -> Reply:
    if type(reply) is not expected.kind:
        what = f"is {reply.kind}, expected {expected.kind.kind}"
        raise refused(client, request, what)
    fault = mismatch(sizes_of(reply), expected.sizes)
    if fault is not None:
        raise refused(client, request, f"has other sizes: {fault}")
    fault = expected.fault(reply)
    if fault is not None:
        raise refused(client, request, fault)
    return reply
