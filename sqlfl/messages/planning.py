"""Messages before there is a plan: names and types only."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlfl.messages.base import Message
from sqlfl.messages.forms import text, texts
from sqlfl.messages.models import Seal

REHEARSAL = "rehearsal:"
"""Prefix of the name of a run over synthetic rows, and of no other run."""
MADE_UP = 1000
"""Rows of each synthetic table."""


@dataclass(frozen=True, eq=False)
class ListTables(Message):
    """Coordinator to client: a request for its tables."""

    kind = "list_tables"


@dataclass(frozen=True, eq=False)
class Tables(Message):
    """Client to coordinator: schemas and tables as JSON (sqlfl.contract.schema.listing_to_json)."""

    kind = "tables"
    words = "names and types of the tables that the analyst may use"
    tables: str = field(metadata=text())


@dataclass(frozen=True, eq=False)
class Describe(Message):
    """Coordinator to client: a request for the columns of this SELECT. It is bound, not run."""

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
    """Coordinator to client: a run, as a whole, before it begins. If `run` is empty, it only asks
    for the verdicts of the client's owner.
    """

    kind = "propose"
    words = "the run as a whole: its kind, options, SQL, and all messages"
    request: str = field(metadata=text())
    """JSON of a `sqlfl.contract.request.Request`."""
    specification: str = field(metadata=text())
    """Specification, as it comes in `Prepare` later."""
    fragments: tuple[str, ...] = field(metadata=texts("fragments"))
    """Fragments, as they come in `Prepare` later."""
    join: str = field(default="", metadata=text())
    """The join, as it comes in `Prepare` later."""


@dataclass(frozen=True, eq=False)
class ProposeStudy(Message):
    """Coordinator to client: a study, for the client's owner to approve. No run begins."""

    kind = "propose_study"
    words = "a study as a whole: its purpose, tables, columns by role, and limits"
    study: str = field(metadata=text())
    """JSON of a `sqlfl.contract.study.Study`."""


@dataclass(frozen=True, eq=False)
class Rehearse(Message):
    """Coordinator to client: make synthetic rows, by names, types and this message. They serve the
    rest of the run, whose name begins with `REHEARSAL`.
    """

    kind = "rehearse"
    words = "a run as a whole, to be rehearsed over rows that are made up"
    request: str = field(metadata=text())
    """As in `Propose`."""
    specification: str = field(metadata=text())
    """Specification, as it comes in `Prepare` later."""
    fragments: tuple[str, ...] = field(metadata=texts("fragments"))
    """Fragments, as they come in `Prepare` later."""


def of_rehearsal(request: Message) -> bool:
    """Return True if the request must be served from synthetic rows, or not at all."""
    rehearsed = request.run.startswith(REHEARSAL)
    # The party itself makes the synthetic rows, and keeps the messages.
    return rehearsed and not isinstance(request, (Rehearse, Seal))


@dataclass(frozen=True, eq=False)
class Proposed(Message):
    kind = "proposed"
    words = "what its owner's policies say of it"
    verdicts: str = field(metadata=text())
    """JSON of `sqlfl.contract.request.Verdict`s. For a run that is about to begin it is empty,
    because an error refuses the run.
    """
