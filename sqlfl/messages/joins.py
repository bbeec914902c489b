"""Messages of a join that lasts: the party keeps its tables as they are for several statements."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, integer, text, texts
from sqlfl.messages.preparation import NONCE_BYTES

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array

SAME, CHANGED, NOT_KNOWN = range(3)
"""Whether a table of a join has changed since the join was made."""


@dataclass(frozen=True, eq=False)
class OpenJoin(Message):
    """Coordinator to client: keep your tables as they are now, for statements that name this join.
    `run` is the join's id. No row is evaluated, and none leaves.
    """

    kind = "open_join"
    words = "the name of the join, and its SQL"
    name: str = field(metadata=text())
    """Name of the join, for the owner's records."""
    fragments: tuple[str, ...] = field(metadata=texts("fragments"))
    """SQL of the query's fragments at this client: they name the tables that are kept."""


@dataclass(frozen=True, eq=False)
class JoinOpened(Message):
    kind = "join_opened"
    words = "a nonce, and for how many seconds the tables are kept"
    nonce: Array = field(metadata=array("uint8", NONCE_BYTES))
    """Random number of the client. The key of the join's hashes is made of all clients' nonces."""
    seconds: int = field(default=0, metadata=integer())
    """Time limit of the client's owner; 0 without one."""


@dataclass(frozen=True, eq=False)
class SendJoinState(Message):
    """Coordinator to client: has a table of the join changed since it was made?"""

    kind = "send_join_state"


@dataclass(frozen=True, eq=False)
class JoinState(Message):
    kind = "join_state"
    words = "whether a table of the join has changed"
    changed: int = field(metadata=integer(most=NOT_KNOWN))
    """SAME, CHANGED or NOT_KNOWN."""


@dataclass(frozen=True, eq=False)
class CloseJoin(Message):
    """Coordinator to client: forget what you keep of the join."""

    kind = "close_join"
