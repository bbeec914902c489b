"""What every message is, and how its size is counted."""

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
"""The slot of a message that concerns a client as a whole."""
ENVELOPE = ("run", "slot", "number")
"""The fields that are no values."""


KINDS: dict[str, type[Message]] = {}
"""All messages: a class is one by being defined. By the name under which it travels (`name_of`)."""


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages; `run` is empty outside a run.

    Every other field says its form (`sqlfl.messages.forms`) in its metadata.
    """

    run: str
    slot: int
    number: int = field(default=0, kw_only=True)
    """Drawn for each request by who sends it, where it has none yet; a reply has that of its
    request."""
    kind: ClassVar[str]
    of_method: ClassVar[str] = ""
    """Of training whose own message this is: each may have one of the same kind."""
    residual: ClassVar[bool] = False
    """Its `values` are residuals, of which a client makes what it releases next."""
    words: ClassVar[str] = ""
    """What is in it, where that is always the same; empty for a bare request."""

    def __init_subclass__(cls, *, travels: bool = True) -> None:
        """`travels`: it is one of those that cross a border; others cannot be encoded."""
        if not travels:
            return
        name = cls.name_of()
        known = KINDS.setdefault(name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InternalError(f"two messages are of the kind {name}")

    @classmethod
    def name_of(cls) -> str:
        """Under which messages of this class travel."""
        return f"{cls.of_method}.{cls.kind}" if cls.of_method else cls.kind

    @classmethod
    @cache
    def forms(cls) -> Mapping[str, Form]:
        """Of all fields but the envelope's, in order."""
        own = [spec for spec in fields(cls) if spec.name not in ENVELOPE]
        for spec in own:
            if FORM not in spec.metadata:
                raise InternalError(
                    f"field {spec.name} of message {cls.kind} does not say its form"
                )
        return MappingProxyType({spec.name: spec.metadata[FORM] for spec in own})

    @classmethod
    @cache
    def sizes(cls) -> frozenset[str]:
        """The names of sizes in its forms; of `name[k]` the name."""
        return frozenset(name for form in cls.forms().values() for name in names(form))

    def fault(self) -> str | None:
        """What is wrong where the fields fit their forms, but not each other."""
        return None

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the values: buffers of arrays, UTF-8 of text, 8 for a number."""
        return sum(_size(getattr(self, name), form) for name, form in self.forms().items())

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the largest array; (0, 0) where there is none."""
        found = (_shapes(getattr(self, name), form) for name, form in self.forms().items())
        return max(chain(*found), key=lambda s: s[0] * s[1], default=(0, 0))


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
    """Of its arrays."""
    match form:
        case Numbers():
            return [(value.shape[0], value.shape[1] if value.ndim == 2 else 1)]
        case Several():
            return [shape for item in value for shape in _shapes(item, form.item)]
        case Columns():
            return [(len(item), 1) for item in value]
    return []
