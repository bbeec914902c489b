"""The only types that cross a party's border.

A message is a frozen dataclass. Its fields hold numbers, text, numpy arrays of one or two
dimensions, Arrow arrays, or tuples of these, and each says in its metadata which, of what types and
sizes, and what its elements must be (`forms`): whoever receives a message checks that (`checks`).
`sqlfl.messages.wire` says how it travels; `nbytes` counts its values: the size that EXPLAIN
discloses, which the planner computes from the same forms. Nothing here loads numpy or Arrow: it is
a declaration.
"""

from __future__ import annotations

from sqlfl.messages.base import CLIENT, ENVELOPE, KINDS, Message
from sqlfl.messages.curves import *  # noqa: F403
from sqlfl.messages.diagnostics import *  # noqa: F403
from sqlfl.messages.equal_rows import *  # noqa: F403
from sqlfl.messages.models import *  # noqa: F403
from sqlfl.messages.planning import *  # noqa: F403
from sqlfl.messages.preparation import *  # noqa: F403
from sqlfl.messages.profiles import *  # noqa: F403
from sqlfl.messages.secure import *  # noqa: F403
from sqlfl.messages.training import *  # noqa: F403

__all__ = ["CLIENT", "ENVELOPE", "KINDS", "Message"]
