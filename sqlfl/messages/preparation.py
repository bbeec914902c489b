"""Snapshot, join keys, active rows, encoding, labels."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.messages.base import Array, Message


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
    """int64 (fragments,): rows whose target is NULL; left out unless they are there to match."""


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
    """uint32 (n,) per key of the slot: the row's tag; u_k where the key is NULL."""


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
class Weigh(Message):
    """Coordinator to client, weighted runs only: what each active row counts from now on."""

    kind = "weigh"
    counts: Array
    """float64 (a,): sum of the weights of the joined rows that it occurs in; 0 for a row that
    occurs in validation rows only."""
    total: float
    """Σ of the weights of all joined rows."""


@dataclass(frozen=True, eq=False)
class Ready(Message):
    """Client to coordinator: done. `width` is the number of encoded columns, or 0."""

    kind = "ready"
    width: int = 0


@dataclass(frozen=True, eq=False)
class Statistics(Message):
    """Client to coordinator, slots of several clients only: what encoding needs, weighted by cnt.

    Numeric columns: numeric and boolean features and the elements of arrays, in feature order.
    Where they are noised (sqlfl.udfs.noised), each active row counts once, and weight, mean and m2
    are Σ 1, Σ u and Σ u², of values from 0 to 1 within public bounds.
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
    """Coordinator to the clients of a slot: the merged statistics, in the same layout.

    Where they are noised, mean and scale are of values from 0 to 1 within public bounds.
    """

    kind = "set_encoding"
    mean: Array
    scale: Array
    """float64 (numeric,): of the imputed column; 1 where it is constant."""
    missing: Array
    """float64 (numeric features,): Σ cnt of NULLs over all clients."""
    tags: tuple[Array, ...]
    counts: tuple[Array, ...]
    total: float


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


@dataclass(frozen=True, eq=False)
class SendWeights(Message):
    kind = "send_weights"


@dataclass(frozen=True, eq=False)
class Weights(Message):
    """Client to coordinator: the WEIGHT column of the active rows."""

    kind = "weights"
    values: Array
    """float64 (a,)"""


@dataclass(frozen=True, eq=False)
class SendSplit(Message):
    kind = "send_split"


@dataclass(frozen=True, eq=False)
class Split(Message):
    """Client to coordinator: which of the active rows are for validation."""

    kind = "split"
    validation: Array
    """uint8 (a,): 1 for validation."""


@dataclass(frozen=True, eq=False)
class SendFindings(Message):
    """Coordinator to client: what is odd about the features of the active rows?"""

    kind = "send_findings"


@dataclass(frozen=True, eq=False)
class Findings(Message):
    """Client to coordinator: what the user is warned of. Not asked where features are protected."""

    kind = "findings"
    empty: Array
    """uint8 (features,): 1 where the feature is NULL in every row that counts."""
    constant: Array
    """uint8 (features,): 1 where it has one value, never NULL; in training."""
    identifying: Array
    """uint8 (features,): 1 where it is a text with nearly a value for each joined row; in
    training."""
    unseen: Array
    """int64 (features,): joined rows whose category training did not see; in scoring."""
