"""The only types that cross a party's border.

A message is a frozen dataclass. Its fields hold numbers, text, numpy arrays of one or two
dimensions, Arrow arrays, or tuples of these. `sqlfl.wire` says how it travels; `nbytes` counts its
values: the size that EXPLAIN discloses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]
CLIENT = -1
"""The slot of a message that concerns a client as a whole."""


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages; `run` is empty outside a run."""

    run: str
    slot: int
    kind: ClassVar[str]

    @property
    def nbytes(self) -> int:
        """Bytes of the values: buffers of arrays, UTF-8 of text, 8 for a number."""
        return sum(_size(value) for value in self._payload())

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the largest array; (0, 0) where there is none."""
        shapes = [_shape(value) for value in self._payload()]
        return max(shapes, key=lambda s: s[0] * s[1], default=(0, 0))

    def _payload(self) -> list[Any]:
        values: list[Any] = []
        for spec in fields(self):
            if spec.name not in ("run", "slot"):
                value = getattr(self, spec.name)
                values.extend(value if isinstance(value, tuple) else (value,))
        return values


# -- planning: names and types only ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ListTables(Message):
    """Coordinator to client: which tables are there?"""

    kind = "list_tables"


@dataclass(frozen=True, eq=False)
class Tables(Message):
    """Client to coordinator: schemas as JSON, a list of {schema, name, columns, rows}."""

    kind = "tables"
    tables: str


@dataclass(frozen=True, eq=False)
class Describe(Message):
    """Coordinator to client: which columns has this SELECT? It is bound, not run."""

    kind = "describe"
    select: str


@dataclass(frozen=True, eq=False)
class Columns(Message):
    kind = "columns"
    names: tuple[str, ...]
    types: tuple[str, ...]


# -- snapshot, mapping, encoding ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepare(Message):
    """Coordinator to client: take a snapshot of all your fragments, in one transaction."""

    kind = "prepare"
    specification: str
    """JSON of `SlotSpecification`s, one per slot of this client (sqlfl.schema)."""
    fragments: tuple[str, ...]
    """SQL, slot after slot in the order of the specification."""


@dataclass(frozen=True, eq=False)
class Prepared(Message):
    kind = "prepared"
    rows: Array
    """int64 (fragments,): rows of each fragment's snapshot."""
    null_targets: Array
    """int64 (fragments,): rows left out because their target is NULL."""


@dataclass(frozen=True, eq=False)
class SendKeys(Message):
    kind = "send_keys"


@dataclass(frozen=True, eq=False)
class JoinKeys(Message):
    """Client to coordinator: the hashed join keys of every row of the snapshot, in row-id order."""

    kind = "join_keys"
    fragment: Array
    """uint16 (n,): index of the row's fragment in the slot; empty where the client has one."""
    tags: tuple[Array, ...]
    """uint8 (u_k, 16) per key of the slot: the distinct tags."""
    codes: tuple[Array, ...]
    """uint32 (n,) per key of the slot: the row's tag."""


@dataclass(frozen=True, eq=False)
class Activate(Message):
    """Coordinator to client: the rows that occur in the join, and how often."""

    kind = "activate"
    rows: Array
    """uint32 (a,): row ids, ascending. All later messages are in this order."""
    counts: Array
    """uint32 (a,): cnt."""
    total: int
    """N, joined rows."""


@dataclass(frozen=True, eq=False)
class Ready(Message):
    """Client to coordinator: done. `width` is the number of encoded columns, or 0."""

    kind = "ready"
    width: int = 0


@dataclass(frozen=True, eq=False)
class Statistics(Message):
    """Client to coordinator, slots of several clients only: what encoding needs, weighted by cnt.

    Numeric columns: numeric and boolean features and the elements of arrays, in feature order.
    """

    kind = "statistics"
    weight: Array
    """float64 (numeric,): Σ cnt over present values."""
    mean: Array
    """float64 (numeric,)"""
    m2: Array
    """float64 (numeric,): Σ cnt (x − mean)²."""
    missing: Array
    """float64 (numeric features,): Σ cnt over rows where the feature is NULL."""
    tags: tuple[Array, ...]
    """uint8 (v, 16) per category feature: keyed hashes of its distinct values."""
    counts: tuple[Array, ...]
    """float64 (v,) per category feature: Σ cnt of each."""


@dataclass(frozen=True, eq=False)
class SetEncoding(Message):
    """Coordinator to the clients of a slot: the merged statistics, in the same layout."""

    kind = "set_encoding"
    mean: Array
    scale: Array
    """float64 (numeric,): of the imputed column; 1 where it is constant."""
    missing: Array
    """float64 (numeric features,): Σ cnt of NULLs over all clients."""
    tags: tuple[Array, ...]
    counts: tuple[Array, ...]
    total: int


@dataclass(frozen=True, eq=False)
class SendLabels(Message):
    kind = "send_labels"


@dataclass(frozen=True, eq=False)
class Labels(Message):
    """Client to coordinator: the targets of the active rows; one of the two forms is empty."""

    kind = "labels"
    values: Array
    """float64 (a,): numeric targets."""
    classes: tuple[str, ...]
    """Distinct classes at this client, as text in their type's order."""
    codes: Array
    """uint32 (a,): index into `classes`."""


# -- training -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Start(Message):
    """Coordinator to client: begin training; `configuration` is JSON (ClientConfiguration)."""

    kind = "start"
    configuration: str


@dataclass(frozen=True, eq=False)
class SendGram(Message):
    kind = "send_gram"


@dataclass(frozen=True, eq=False)
class Gram(Message):
    """Client to coordinator and back summed: Σ cnt x xᵀ over encoded columns before centring.

    Only for slots of several clients. p numeric columns (missing indicators among them), q
    one-hot columns.
    """

    kind = "gram"
    numeric: Array
    """float64 (p, p)"""
    cross: Array
    """float64 (q, p)"""
    rows: Array
    """uint32 (z,): row of each stored value of the one-hot block's upper triangle."""
    columns: Array
    """uint32 (z,)"""
    values: Array
    """float64 (z,)"""
    moments: Array
    """float64 (p + q,): Σ cnt x."""
    weight: float
    """Σ cnt."""


@dataclass(frozen=True, eq=False)
class SetGram(Gram):
    kind = "set_gram"


@dataclass(frozen=True, eq=False)
class Residuals(Message):
    """Coordinator to client: what the coordinator aggregated per row, and the step to take."""

    kind = "residuals"
    values: Array
    """float32 (a or batch rows, d_c): Y, or empty (0, d_c) at the first batch."""
    coefficients: Array
    """float64 (k,): scalars of the algorithm (direction, step length)."""
    batch: Array = field(default_factory=lambda: np.zeros(0, np.uint32))
    """uint32 (b,): active rows of the next batch (mini-batches only)."""


@dataclass(frozen=True, eq=False)
class PartialGradient(Message):
    """Client to coordinator, slots of several clients: Σ_r x_r Y[r]ᵀ over its own rows."""

    kind = "partial_gradient"
    values: Array
    """float64 (d, d_c)"""


@dataclass(frozen=True, eq=False)
class SumGradient(Message):
    """Coordinator to the clients of a slot: the sum of their partial gradients."""

    kind = "sum_gradient"
    values: Array


@dataclass(frozen=True, eq=False)
class Predictions(Message):
    """Client to coordinator: one vector per active (or batch) row, and the block's scalars."""

    kind = "predictions"
    values: Array
    """float32 (a or b, d_c)"""
    products: Array
    """float64 (k,): inner products or the penalty of the block; empty at all but one client."""


@dataclass(frozen=True, eq=False)
class Probe(Message):
    """Coordinator to client: one power round of the curvature estimate."""

    kind = "probe"
    values: Array
    """float32 (a, 1)"""


@dataclass(frozen=True, eq=False)
class ConsensusPart(Message):
    """Client to coordinator: θ_i^q + u_i^q of consensus ADMM (eq. 22-24)."""

    kind = "consensus_part"
    values: Array
    """float64 (d, d_c)"""


@dataclass(frozen=True, eq=False)
class ConsensusAverage(Message):
    """Coordinator to the clients of a slot: w_i."""

    kind = "consensus_average"
    values: Array


# -- models and scoring ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Save(Message):
    """Coordinator to client: keep this run's block of this slot as (model, slot)."""

    kind = "save"
    model: str


@dataclass(frozen=True, eq=False)
class Drop(Message):
    """Coordinator to client: forget the blocks of this model."""

    kind = "drop"
    model: str


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
class Finish(Message):
    """Coordinator to client: the run is over; drop its snapshot."""

    kind = "finish"


@dataclass(frozen=True, eq=False)
class Failure(Message):
    """Client to coordinator: the request failed; the text has no data values in it."""

    kind = "failure"
    error: str
    text: str


KINDS: dict[str, type[Message]] = {
    cls.kind: cls
    for cls in (
        ListTables, Tables, Describe, Columns,
        Prepare, Prepared, SendKeys, JoinKeys, Activate, Ready, Statistics, SetEncoding,
        SendLabels, Labels, Start, SendGram, Gram, SetGram, Residuals, PartialGradient,
        SumGradient, Predictions, Probe, ConsensusPart, ConsensusAverage,
        Save, Drop, Score, SendIdentifiers, Identifiers, Finish, Failure,
    )
}  # fmt: skip


def _size(value: Any) -> int:
    if isinstance(value, (np.ndarray, pa.Array)):
        return int(value.nbytes)
    return len(value.encode()) if isinstance(value, str) else 8


def _shape(value: Any) -> tuple[int, int]:
    if isinstance(value, np.ndarray):
        return (value.shape[0], value.shape[1]) if value.ndim == 2 else (value.shape[0], 1)
    return (len(value), 1) if isinstance(value, pa.Array) else (0, 0)
