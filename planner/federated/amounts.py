"""Sizes of messages: the forms of their kinds, with the sizes that these name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sqlfl.base.errors import InternalError
from sqlfl.messages import Message, forms
from sqlfl.planner.federated.sizes import Size, size, total


@dataclass(frozen=True)
class Amount:
    """Values, and their bytes."""

    count: Size
    bytes: Size


NOTHING = Amount(Size(), Size())
NUMBER = Amount(Size(1), Size(8))

Told: TypeAlias = Amount | Size | int | str | tuple[Size, ...] | tuple[str, ...]
"""Values for the name of a size or a field. For a size: the number, or one for each item of a
field, in order (`tags[k]`). For a field: a text or its UTF-8 bytes; texts; the type of an array
with several; the bytes of columns; or its Amount, NOTHING if it is left out.
"""


@dataclass(frozen=True)
class Content:
    """A message as the plan has it."""

    kind: str
    """The message's kind, as in sqlfl.messages."""
    words: str
    """A description of the contents; empty for a bare request."""
    amount: Amount


def content(kind: type[Message], words: str | None = None, /, **told: Told) -> Content:
    """Return a message of this kind, by default with the words of its kind. Raise InternalError for
    a missing or an unknown size or field.
    """
    return Content(kind.kind, kind.words if words is None else words, _Sizes(kind, told).amount())


class _Sizes:
    """The values for one message."""

    def __init__(self, kind: type[Message], told: dict[str, Told]) -> None:
        self._kind = kind
        self._told = told
        fields = {name for name, form in kind.forms().items() if _tells(told.get(name), form)}
        known = kind.sizes() | fields
        if not told.keys() <= known:
            raise self._error(f"has no {min(told.keys() - known)}")

    def amount(self) -> Amount:
        return _sum(self._field(name, form) for name, form in self._kind.forms().items())

    def _field(self, name: str, form: forms.Form) -> Amount:
        told = self._told.get(name)
        if isinstance(told, Amount):
            return told
        match form:
            case forms.Number():
                return NUMBER
            case forms.Text():
                return self._text(self._of(name))
            case forms.Texts():
                texts = self._of(name)
                if isinstance(texts, tuple):
                    return _sum(map(self._text, texts))
                raise self._error(f"has several texts as {name}, told is {texts}")
            case forms.Numbers():
                return self._array(form, form.types[0] if len(form.types) == 1 else self._of(name))
            case forms.Several():
                items = range(self._number(form.count).evaluate({}))
                return _sum(self._array(form.item, form.item.types[0], item) for item in items)
            case forms.Columns():
                values = self._number(form.count) * self._number(form.rows)
                return Amount(values, self._size(self._of(name), name))

    def _text(self, told: Told) -> Amount:
        length = len(told.encode()) if isinstance(told, str) else told
        return Amount(Size(1), self._size(length, "text"))

    def _array(self, form: forms.Numbers, kind: Told, item: int = 0) -> Amount:
        """An axis of a fixed length is part of the value: of a tag, 16 bytes are one."""
        if kind not in form.types:
            raise self._error(f"has an array of {' or '.join(form.types)}, told is {kind}")
        count, width = Size(1), forms.item_bytes(str(kind))
        for axis in form.shape:
            if isinstance(axis, int):
                width *= axis
            else:
                count = count * self._number(axis, item)
        return Amount(count, count * width)

    def _number(self, name: forms.Size, item: int = 0) -> Size:
        """Return the value of a size's name, in the field's item of this number."""
        if isinstance(name, int):
            return Size(name)
        if not name.endswith(forms.ITEM):
            told = self._of(name)
            if isinstance(told, Amount):  # for the number of these texts
                return told.count
            return self._size(len(told) if isinstance(told, tuple) else told, name)
        several = self._of(name.removesuffix(forms.ITEM))
        if not isinstance(several, tuple) or len(several) <= item:
            raise self._error(f"has no {name} of item {item}")
        return self._size(several[item], name)

    def _size(self, told: Told, name: str) -> Size:
        if isinstance(told, (str, tuple, Amount)):
            raise self._error(f"has a size {name}, told is {told!r:.40}")
        return size(told)

    def _of(self, name: str) -> Told:
        if name not in self._told:
            raise self._error(f"is planned without its {name}")
        return self._told[name]

    def _error(self, what: str) -> InternalError:
        return InternalError(f"message {self._kind.kind} {what}")


def _sum(amounts: Iterable[Amount]) -> Amount:
    several = [*amounts]
    if len(several) == 1:
        return several[0]
    return Amount(total(a.count for a in several), total(a.bytes for a in several))


def _tells(told: Told | None, form: forms.Form) -> bool:
    """Return whether the value is one of a field of this form."""
    takes_texts = isinstance(form, (forms.Text, forms.Texts, forms.Columns))
    return takes_texts or isinstance(told, (Amount, str))
