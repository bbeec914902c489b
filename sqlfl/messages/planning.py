"""Before there is a plan: names and types only."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlfl.messages.base import Message
from sqlfl.messages.forms import text, texts
from sqlfl.messages.models import Seal

REHEARSAL = "rehearsal:"
"""What the name of a run begins with that is over rows that are made up, and of no other run."""
MADE_UP = 1000
"""Rows of each table that is made up."""


@dataclass(frozen=True, eq=False)
class ListTables(Message):
    """Coordinator to client: which tables are there?"""

    kind = "list_tables"


@dataclass(frozen=True, eq=False)
class Tables(Message):
    """Client to coordinator: schemas and tables as JSON (sqlfl.contract.schema.listing_to_json)."""

    kind = "tables"
    tables: str = field(metadata=text())


@dataclass(frozen=True, eq=False)
class Describe(Message):
    """Coordinator to client: which columns has this SELECT? It is bound, not run."""

    kind = "describe"
    words = "a SELECT to bind, not to run"
    select: str = field(metadata=text())


@dataclass(frozen=True, eq=False)
class Columns(Message):
    kind = "columns"
    words = "names and types of its columns"
    names: tuple[str, ...] = field(metadata=texts("columns"))
    types: tuple[str, ...] = field(metadata=texts("columns"))


@dataclass(frozen=True, eq=False)
class Propose(Message):
    """Coordinator to client: a run, as a whole, before it begins; or only to hear what the client's
    owner allows of it, where `run` is empty."""

    kind = "propose"
    words = "the run as a whole: its kind, options, SQL, and all messages"
    request: str = field(metadata=text())
    """JSON of a `sqlfl.contract.request.Request`."""
    specification: str = field(metadata=text())
    """As it comes in `Prepare` later."""
    fragments: tuple[str, ...] = field(metadata=texts("fragments"))
    """Likewise."""


@dataclass(frozen=True, eq=False)
class Rehearse(Message):
    """Coordinator to client: make rows up, by names and types and what is said here, for all that
    follows of the run, whose name begins with `REHEARSAL`."""

    kind = "rehearse"
    words = "a run as a whole, to be rehearsed over rows that are made up"
    request: str = field(metadata=text())
    """As in `Propose`."""
    specification: str = field(metadata=text())
    """As it comes in `Prepare` later."""
    fragments: tuple[str, ...] = field(metadata=texts("fragments"))
    """Likewise."""


def of_rehearsal(request: Message) -> bool:
    """It is served from rows that are made up, or not at all."""
    own = request.run.startswith(REHEARSAL)
    # what is made up is so by the party itself; and what was said is kept by it
    return own and not isinstance(request, (Rehearse, Seal))


@dataclass(frozen=True, eq=False)
class Proposed(Message):
    kind = "proposed"
    words = "what its owner's policies say of it"
    verdicts: str = field(metadata=text())
    """JSON of `sqlfl.contract.request.Verdict`s: of a run that is about to begin none, as it is
    refused by an error."""
