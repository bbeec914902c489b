"""Which active rows are equal in all features, so that training may take them as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SendEqualRows(Message):
    """Coordinator to client, before `Start`: which of your active rows have equal features?"""

    kind = "send_equal_rows"


@dataclass(frozen=True, eq=False)
class EqualRows(Message):
    """Client to coordinator: the class of every active row, rows of one class being equal.

    From here on a class is one row that counts as its rows do together: training's messages are of
    classes, in the order of their numbers.
    """

    kind = "equal_rows"
    words = "which active rows have equal features"
    classes: Array = field(metadata=array("uint32", "told", below="told"))
    """Numbered from 0 as they first come; empty where too few rows are equal: then each active row
    stays a row."""
