"""Saved blocks, scoring, and the end of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, arrays, columns, integer, text, texts

if TYPE_CHECKING:
    import pyarrow as pa

    from sqlfl.base.arrays import Array

LONGEST_FAILURE = 4000
"""Characters of what is told of a failure."""


@dataclass(frozen=True, eq=False)
class Save(Message):
    """Coordinator to client: hold this run's block of this slot as (model, slot)."""

    kind = "save"
    words = "names of run and model under which to keep the block, and of which epoch"
    model: str = field(metadata=text())
    """The run's id."""
    name: str = field(metadata=text())
    """The model's name, under which the party's own SQL will know the block."""
    back: int = field(metadata=integer())
    """Epochs to go back: the block as it was then is kept."""


@dataclass(frozen=True, eq=False)
class Saved(Message):
    """Client to coordinator: the block is held; `lasting`: 1 where it outlives the federation."""

    kind = "saved"
    words = "whether it outlives the federation"
    lasting: int = field(metadata=integer(most=1))


@dataclass(frozen=True, eq=False)
class Keep(Message):
    """Coordinator to client: write the saved blocks of this model to your database."""

    kind = "keep"
    model: str = field(metadata=text())


@dataclass(frozen=True, eq=False)
class Drop(Message):
    """Coordinator to client: forget the blocks of this model."""

    kind = "drop"
    model: str = field(metadata=text())


@dataclass(frozen=True, eq=False)
class Collect(Message):
    """Coordinator to client, when it is attached: forget the blocks of all but these runs."""

    kind = "collect"
    models: tuple[str, ...] = field(metadata=texts("models"))


@dataclass(frozen=True, eq=False)
class Collected(Message):
    """Client to coordinator: done; and whether blocks can outlive the federation here."""

    kind = "collected"
    lasting: int = field(metadata=integer(most=1))
    reason: str = field(metadata=text())
    """Why they cannot, to follow the party's name ('is read-only'); empty where they can."""


@dataclass(frozen=True, eq=False)
class Score(Message):
    """Coordinator to client: predictions of the active rows by a saved block."""

    kind = "score"
    words = "name of the block"
    exact: ClassVar[bool] = False
    """The reply is in 8-byte numbers."""
    model: str = field(metadata=text())
    block: int = field(metadata=integer())
    """The slot of the model."""


@dataclass(frozen=True, eq=False)
class ScoreExactly(Score):
    """The same in 8-byte numbers, where columns of several tables nearly cancel."""

    kind = "score_exactly"
    exact = True


@dataclass(frozen=True, eq=False)
class SendIdentifiers(Message):
    kind = "send_identifiers"


@dataclass(frozen=True, eq=False)
class Identifiers(Message):
    """Client to coordinator: the ID columns of the active rows, in clear."""

    kind = "identifiers"
    columns: tuple[pa.Array, ...] = field(metadata=columns("identifiers", "active"))
    """Arrow arrays of the columns' own types."""


@dataclass(frozen=True, eq=False)
class Write(Message):
    """Coordinator to client: make a table of predictions beside identifiers, not yet committed.

    The table has a row for each element of `prediction`: the identifiers of the active rows, then
    `prediction`, then `probability_<class>` for each class.
    """

    kind = "write"
    table: tuple[str, ...] = field(metadata=texts("places"))
    """(database, schema, name); of a party that combines, these of each of its clients' tables."""
    names: tuple[str, ...] = field(metadata=texts("identifiers"))
    """Of the identifiers' columns, in the order of the query's identifiers."""
    slots: Array = field(metadata=array("int32", "slots", least=0))
    """The slots that hold identifiers."""
    rows: tuple[Array, ...] = field(metadata=arrays("slots", "uint32", "written"))
    """Per slot: the active row that each row of the table is of."""
    prediction: Array = field(metadata=array("float64|uint32", "written"))
    """Numbers, or places among `classes`."""
    classes: tuple[str, ...] = field(metadata=texts("classes", distinct=True))
    """The model's classes, as text; none for a regression."""
    type: str = field(metadata=text())
    """The DuckDB type that `prediction` has as a class."""
    probabilities: Array = field(metadata=array("float64", "written", "classes"))
    replace: int = field(metadata=integer(0, 1))
    """1 where the table may take the place of another."""

    def fault(self) -> str | None:
        places = self.prediction.dtype.kind == "u"
        if places != bool(self.classes):
            return f"{self.prediction.dtype} predictions beside {len(self.classes)} classes"
        if places and int(self.prediction.max(initial=0)) >= len(self.classes):
            return f"a prediction that is none of {len(self.classes)} classes"
        return None


@dataclass(frozen=True, eq=False)
class Written(Message):
    """Client to coordinator: the table is there, for the run's transaction only."""

    kind = "written"
    words = "rows of the table"
    rows: int = field(metadata=integer())


@dataclass(frozen=True, eq=False)
class Commit(Message):
    """Coordinator to client: keep what the run has written."""

    kind = "commit"


@dataclass(frozen=True, eq=False)
class Finish(Message):
    """Coordinator to client: the run is over; drop its snapshot."""

    kind = "finish"


TEXT = text()


@dataclass(frozen=True, eq=False)
class Seal(Message):
    """Coordinator to client, whose owner has policies: the heads of what was kept of its messages
    (sqlfl.transport.audit_chain)."""

    kind = "seal"
    head: str = field(metadata=TEXT)
    """Of those of the run, before this one."""
    chain: str = field(metadata=TEXT)
    """Of all that the coordinator keeps."""


@dataclass(frozen=True, eq=False)
class Sealed(Message):
    kind = "sealed"
    words = "hashes of what it has kept of the messages"
    head: str = field(metadata=TEXT)
    """Of the messages of the run, before `Seal`."""
    chain: str = field(metadata=TEXT)
    """Of all that the party keeps."""


@dataclass(frozen=True, eq=False)
class Failure(Message):
    """Client to coordinator: the request failed; the text has no data values in it."""

    kind = "failure"
    error: str = field(metadata=TEXT)
    text: str = field(metadata=TEXT)
    at: str = field(default="", metadata=TEXT)
    """'slot fragment part' of what an evaluation of fragments failed on, where it is known: parts
    are a fragment's columns, then the conditions of its WHERE."""
