"""Forms of message fields, declared once, beside the field. `sqlfl.messages.wire` enforces them.

A form is plain data. Sizes have names. In a message, a name stands for one number everywhere.
`name[k]` is a number of its own for the k-th item of a field with several. Who knows such a number
beforehand compares it: sqlfl.messages.checks, and the party with its requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

Size: TypeAlias = int | str
"""Length of an axis, or a count: a number, or the name of one."""

MAX_TEXT_BYTES = 1 << 24
"""Maximum bytes of one text in UTF-8."""
MAX_NUMBER = 2**63 - 1
ITEM = "[k]"
"""End of a size that each item of a field has for itself."""
FORM = "form"
"""Key of a field's metadata."""


@dataclass(frozen=True)
class Values:
    """Conditions on the elements of an array."""

    finite: bool = False
    least: float | None = None
    most: Size | None = None
    below: Size | None = None
    ascending: bool = False
    """True for strictly ascending elements. Rows of bytes are compared byte by byte."""


@dataclass(frozen=True)
class Number:
    """One number, always finite."""

    whole: bool
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Text:
    """Text of at most MAX_TEXT_BYTES bytes in UTF-8."""


@dataclass(frozen=True)
class Texts:
    """Several texts."""

    count: Size
    distinct: bool = False


@dataclass(frozen=True)
class Numbers:
    """An array."""

    types: tuple[str, ...]
    """numpy's names of its allowed types."""
    shape: tuple[Size, ...]
    values: Values
    optional: bool = False
    """True if it may be empty instead."""


@dataclass(frozen=True)
class Several:
    """Several arrays."""

    count: Size
    item: Numbers


@dataclass(frozen=True)
class Columns:
    """Several Arrow arrays of any type that `sqlfl.messages.wire_columns` carries."""

    count: Size
    rows: Size


Form: TypeAlias = Number | Text | Texts | Numbers | Several | Columns
Metadata: TypeAlias = Mapping[Any, Any]


def names(form: Form) -> set[str]:
    """Return the names of a form's sizes; for `name[k]` the name."""
    match form:
        case Number() | Text():
            sizes: tuple[Size, ...] = ()
        case Texts():
            sizes = (form.count,)
        case Numbers():
            sizes = form.shape
        case Several():
            sizes = (form.count, *form.item.shape)
        case Columns():
            sizes = (form.count, form.rows)
    return {size.removesuffix(ITEM) for size in sizes if isinstance(size, str)}


def item_bytes(kind: str) -> int:
    """Return the bytes of one element of an array, by numpy's name of its type.

    >>> item_bytes("float32"), item_bytes("uint8")
    (4, 1)
    """
    return int("".join(filter(str.isdigit, kind))) // 8


def integer(least: int = 0, most: int = MAX_NUMBER) -> Metadata:
    return _metadata(Number(True, least, most))


def real(least: float | None = None, most: float | None = None) -> Metadata:
    return _metadata(Number(False, least, most))


def text() -> Metadata:
    return _metadata(Text())


def texts(count: Size, *, distinct: bool = False) -> Metadata:
    return _metadata(Texts(count, distinct))


def array(
    types: str, *shape: Size, optional: bool = False, finite: bool = True, **values: Any
) -> Metadata:
    """Return the metadata of an array. `types`: one, or several with | between them. `values`:
    fields of `Values`.
    """
    return _metadata(_numbers(types, shape, optional, finite, values))


def arrays(count: Size, types: str, *shape: Size, finite: bool = True, **values: Any) -> Metadata:
    """Return the metadata of `count` arrays of one form."""
    return _metadata(Several(count, _numbers(types, shape, False, finite, values)))


def columns(count: Size, rows: Size) -> Metadata:
    return _metadata(Columns(count, rows))


def _numbers(
    types: str, shape: tuple[Size, ...], optional: bool, finite: bool, values: Mapping[str, Any]
) -> Numbers:
    return Numbers(tuple(types.split("|")), shape, Values(finite=finite, **values), optional)


def _metadata(form: Form) -> Metadata:
    return MappingProxyType({FORM: form})
