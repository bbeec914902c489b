"""Saved blocks, scoring, and the end of a run."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from sqlfl.messages.base import Array, Message


@dataclass(frozen=True, eq=False)
class Save(Message):
    """Coordinator to client: hold this run's block of this slot as (model, slot)."""

    kind = "save"
    model: str
    """The run's id."""
    name: str
    """The model's name, under which the party's own SQL will know the block."""
    back: int
    """Epochs to go back: the block as it was then is kept."""


@dataclass(frozen=True, eq=False)
class Saved(Message):
    """Client to coordinator: the block is held; `lasting`: 1 where it outlives the federation."""

    kind = "saved"
    lasting: int


@dataclass(frozen=True, eq=False)
class Keep(Message):
    """Coordinator to client: write the saved blocks of this model to your database."""

    kind = "keep"
    model: str


@dataclass(frozen=True, eq=False)
class Drop(Message):
    """Coordinator to client: forget the blocks of this model."""

    kind = "drop"
    model: str


@dataclass(frozen=True, eq=False)
class Collect(Message):
    """Coordinator to client, when it is attached: forget the blocks of all but these runs."""

    kind = "collect"
    models: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Collected(Message):
    """Client to coordinator: done; and whether blocks can outlive the federation here."""

    kind = "collected"
    lasting: int
    reason: str
    """Why they cannot, to follow the party's name ('is read-only'); empty where they can."""


@dataclass(frozen=True, eq=False)
class Score(Message):
    """Coordinator to client: predictions of the active rows by a saved block."""

    kind = "score"
    model: str
    block: int
    """The slot of the model."""


@dataclass(frozen=True, eq=False)
class SendIdentifiers(Message):
    kind = "send_identifiers"


@dataclass(frozen=True, eq=False)
class Identifiers(Message):
    """Client to coordinator: the ID columns of the active rows, in clear."""

    kind = "identifiers"
    columns: tuple[pa.Array, ...]
    """Arrow arrays (a,) of the columns' own types."""


@dataclass(frozen=True, eq=False)
class Write(Message):
    """Coordinator to client: make a table of predictions beside identifiers, not yet committed.

    The table has a row for each element of `prediction`: the identifiers of the active rows, then
    `prediction`, then `probability_<class>` for each class.
    """

    kind = "write"
    table: tuple[str, ...]
    """(database, schema, name)"""
    names: tuple[str, ...]
    """Of the identifiers' columns, in the order of the query's identifiers."""
    slots: Array
    """int32 (k,): the slots that hold identifiers."""
    rows: tuple[Array, ...]
    """uint32 (m,) per slot: the active row that each row of the table is of."""
    prediction: Array
    """float64 (m,) numbers, or uint32 (m,) places among `classes`."""
    classes: tuple[str, ...]
    """The model's classes, as text; none for a regression."""
    type: str
    """The DuckDB type that `prediction` has as a class."""
    probabilities: Array
    """float64 (m, K); (m, 0) for a regression"""


@dataclass(frozen=True, eq=False)
class Written(Message):
    """Client to coordinator: the table is there, for the run's transaction only."""

    kind = "written"
    rows: int


@dataclass(frozen=True, eq=False)
class Commit(Message):
    """Coordinator to client: keep what the run has written."""

    kind = "commit"


@dataclass(frozen=True, eq=False)
class Finish(Message):
    """Coordinator to client: the run is over; drop its snapshot."""

    kind = "finish"


@dataclass(frozen=True, eq=False)
class Failure(Message):
    """Client to coordinator: the request failed; the text has no data values in it."""

    kind = "failure"
    error: str
    text: str
    at: str = ""
    """'slot fragment part' of what an evaluation of fragments failed on, where it is known: parts
    are a fragment's columns, then the conditions of its WHERE."""
