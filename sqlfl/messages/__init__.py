"""Messages: the only types that cross a party's border.

A message is a frozen dataclass. Its fields hold numbers, text, numpy arrays of one or two
dimensions, Arrow arrays, or tuples of these. The metadata of a field gives its form: its types, its
sizes, and conditions on its elements (`forms`). Every receiver of a message checks them (`checks`).

`sqlfl.messages.wire` defines the encoding. `nbytes` counts the values: the size that EXPLAIN shows,
which the planner computes from the same forms. Nothing here loads numpy or Arrow, because the
messages are only declared here.
"""

from __future__ import annotations

from sqlfl.messages.base import CLIENT, ENVELOPE, KINDS, Message
from sqlfl.messages.diagnostics import *  # noqa: F403
from sqlfl.messages.models import *  # noqa: F403
from sqlfl.messages.preparation import *  # noqa: F403
from sqlfl.messages.training import *  # noqa: F403  # noqa: F403

__all__ = ["CLIENT", "ENVELOPE", "KINDS", "Message"]
