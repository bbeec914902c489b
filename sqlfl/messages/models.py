"""Messages of saved blocks, of scoring, and of the end of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, arrays, columns, integer, text, texts

if TYPE_CHECKING:
    import pyarrow as pa

    from sqlfl.base.arrays import Array

MAX_FAILURE_CHARACTERS = 4000
"""Maximum characters of a failure's text."""


@dataclass(frozen=True, eq=False)
class Save(Message):
    """Coordinator to client: hold this run's block of this slot as (model, slot)."""

    kind = "save"
    words = "names of run and model under which to keep the block, and of which epoch"
    model: str = field(metadata=text())
    """Id of the run."""
    name: str = field(metadata=text())
    """Name of the model, under which the party's own SQL will know the block."""
    back: int = field(metadata=integer())
    """Epochs to go back: the block of that epoch is kept."""


@dataclass(frozen=True, eq=False)
class Saved(Message):
    """Client to coordinator: the block is held. `lasting`: 1 if it outlives the federation."""

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
    words = "an acknowledgement, and whether models can be kept here"
    lasting: int = field(metadata=integer(most=1))
    reason: str = field(metadata=text())
    """Reason why they cannot, to follow the party's name ('is read-only'); empty if they can."""


@dataclass(frozen=True, eq=False)
class Score(Message):
    """Coordinator to client: a request for predictions of the active rows by a saved block."""

    kind = "score"
    words = "name of the block"
    exact: ClassVar[bool] = False
    """True if the reply is in 8-byte numbers."""
    model: str = field(metadata=text())
    block: int = field(metadata=integer())
    """Slot of the model."""


@dataclass(frozen=True, eq=False)
class ScoreExactly(Score):
    """The same in 8-byte numbers, for columns of several tables that nearly cancel."""

    kind = "score_exactly"
    exact = True


@dataclass(frozen=True, eq=False)
class SendIdentifiers(Message):
    kind = "send_identifiers"


@dataclass(frozen=True, eq=False)
class Identifiers(Message):
    """Client to coordinator: the ID columns of the active rows, in clear."""

    kind = "identifiers"
    words = "identifiers of each row, in clear"
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
    """(database, schema, name). A combining party gets these for each of its clients' tables."""
    names: tuple[str, ...] = field(metadata=texts("identifiers"))
    """Names of the identifiers' columns, in the order of the query's identifiers."""
    slots: Array = field(metadata=array("int32", "slots", least=0))
    """Slots that hold identifiers."""
    rows: tuple[Array, ...] = field(metadata=arrays("slots", "uint32", "written"))
    """For each slot, the active row of each row of the table."""
    prediction: Array = field(metadata=array("float64|uint32", "written"))
    """Numbers, or indices of `classes`."""
    classes: tuple[str, ...] = field(metadata=texts("classes", distinct=True))
    """The model's classes, as text; none for a regression."""
    type: str = field(metadata=text())
    """DuckDB type of `prediction` for classes."""
    probabilities: Array = field(metadata=array("float64", "written", "classes"))
    replace: int = field(metadata=integer(0, 1))
    """1 if the table may replace another."""

    def fault(self) -> str | None:
        places = self.prediction.dtype.kind == "u"
        if places != bool(self.classes):
            return f"{self.prediction.dtype} predictions beside {len(self.classes)} classes"
        if places and int(self.prediction.max(initial=0)) >= len(self.classes):
            return f"a prediction that is none of {len(self.classes)} classes"
        return None


@dataclass(frozen=True, eq=False)
class Written(Message):
    """Client to coordinator: the table exists, for the run's transaction only."""

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
    """Coordinator to a client whose owner has policies: the heads of the kept messages
    (sqlfl.transport.audit_chain).
    """

    kind = "seal"
    head: str = field(metadata=TEXT)
    """Head of the run's messages before this one."""
    chain: str = field(metadata=TEXT)
    """Head of all entries that the coordinator keeps."""


@dataclass(frozen=True, eq=False)
class Sealed(Message):
    kind = "sealed"
    words = "hashes of what it has kept of the messages"
    head: str = field(metadata=TEXT)
    """Head of the run's messages before `Seal`."""
    chain: str = field(metadata=TEXT)
    """Head of all entries that the party keeps."""


@dataclass(frozen=True, eq=False)
class Failure(Message):
    """Client to coordinator: the request failed. The text has no data values in it."""

    kind = "failure"
    words = "that a request failed, and why, without values of data"
    error: str = field(metadata=TEXT)
    text: str = field(metadata=TEXT)
    at: str = field(default="", metadata=TEXT)
    """'slot fragment part' where an evaluation of fragments failed, if known. Parts are a
    fragment's columns, then the conditions of its WHERE.
    """
