"""Active rows that are equal in all features, so that training may merge them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SendEqualRows(Message):
    """Coordinator to client, before `Start`: a request for the classes of active rows with equal
    features.
    """

    kind = "send_equal_rows"


@dataclass(frozen=True, eq=False)
class EqualRows(Message):
    """Client to coordinator: the class of every active row; rows of one class are equal.

    From here on a class is one row with the total weight of its rows. Training's messages then
    cover classes, in the order of their numbers.
    """

    kind = "equal_rows"
    words = "which active rows have equal features"
    classes: Array = field(metadata=array("uint32", "told", below="told"))
    """Numbers from 0 by first occurrence. Empty if too few rows are equal; then each active row
    stays a row.
    """
