"""Base class of messages, and the count of their size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

from sqlfl.base.errors import InternalError
from sqlfl.messages.forms import FORM, Columns, Form, Number, Numbers, Several, Text, Texts, names

CLIENT = -1
"""Slot of a message that concerns a client as a whole."""
ENVELOPE = ("run", "slot", "number")
"""Fields that are no values."""


KINDS: dict[str, type[Message]] = {}
"""All messages by the name under which they travel (`name_of`). Defining the class adds it here."""


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages. `run` is empty outside a run.

    The metadata of every other field has its form (`sqlfl.messages.forms`).
    """

    run: str
    slot: int
    number: int = field(default=0, kw_only=True)
    """Random number of a request, drawn by the sender unless it has one. A reply has the number of
    its request.
    """
    kind: ClassVar[str]
    of_method: ClassVar[str] = ""
    """Training method of this message. Each method may have its own message of one kind."""
    residual: ClassVar[bool] = False
    """True if `values` are residuals, from which a client computes its next release."""
    words: ClassVar[str] = ""
    """Description of the content, if it is always the same; empty for a bare request."""

    def __init_subclass__(cls, *, travels: bool = True) -> None:
        """Register the class. `travels` is False for a message that never crosses a border; it
        cannot be encoded.
        """
        if not travels:
            return
        name = cls.name_of()
        registered = KINDS.setdefault(name, cls)
        if (registered.__module__, registered.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InternalError(f"two messages are of the kind {name}")

    @classmethod
    def name_of(cls) -> str:
        """Return the name under which messages of this class travel."""
        return f"{cls.of_method}.{cls.kind}" if cls.of_method else cls.kind

    @classmethod
    @cache
    def forms(cls) -> Mapping[str, Form]:
        """Return the forms of all fields in order, without the envelope's."""
        specs = [spec for spec in fields(cls) if spec.name not in ENVELOPE]
        for spec in specs:
            if FORM not in spec.metadata:
                raise InternalError(
                    f"field {spec.name} of message {cls.kind} does not say its form"
                )
        return MappingProxyType({spec.name: spec.metadata[FORM] for spec in specs})

    @classmethod
    @cache
    def sizes(cls) -> frozenset[str]:
        """Return the names of sizes in its forms; for `name[k]` the name."""
        return frozenset(name for form in cls.forms().values() for name in names(form))

    def fault(self) -> str | None:
        """Return the fault if the fields fit their forms, but not each other."""
        return None

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes of the values: buffers of arrays, UTF-8 of text, 8 for a number."""
        return sum(_size(getattr(self, name), form) for name, form in self.forms().items())

    @property
    def shape(self) -> tuple[int, int]:
        """Return the rows and columns of the largest array; (0, 0) without arrays."""
        shapes = (_shapes(getattr(self, name), form) for name, form in self.forms().items())
        return max(chain(*shapes), key=lambda s: s[0] * s[1], default=(0, 0))


def _size(value: Any, form: Form) -> int:
    match form:
        case Number():
            return 8
        case Text():
            return len(value.encode())
        case Texts():
            return sum(len(item.encode()) for item in value)
        case Numbers():
            return int(value.nbytes)
        case Several() | Columns():
            return sum(int(item.nbytes) for item in value)


def _shapes(value: Any, form: Form) -> list[tuple[int, int]]:
    """Return the shapes of the value's arrays."""
    match form:
        case Numbers():
            return [(value.shape[0], value.shape[1] if value.ndim == 2 else 1)]
        case Several():
            return [shape for item in value for shape in _shapes(item, form.item)]
        case Columns():
            return [(len(item), 1) for item in value]
    return []
