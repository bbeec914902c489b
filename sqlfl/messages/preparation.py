"""Messages before there is a plan (names and types only), and of snapshots, join keys, active rows,
encoding and labels, and of joins that last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from sqlfl.contract.schema import MAX_FOLDS, Column
from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, arrays, integer, real, text, texts
from sqlfl.messages.models import Seal

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array

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
    """Coordinator to client: a request for the columns of these SELECTs. They are bound, not run.
    If one of them cannot be bound, none is described.
    """

    kind = "describe"
    words = "SELECTs to bind, not to run"
    selects: tuple[str, ...] = field(metadata=texts("selects"))


@dataclass(frozen=True, eq=False)
class Columns(Message):
    """Client to coordinator: columns of the SELECTs of a `Describe`, one after the other."""

    kind = "columns"
    words = "names and types of their columns"
    names: tuple[str, ...] = field(metadata=texts("columns"))
    types: tuple[str, ...] = field(metadata=texts("columns"))
    counts: Array = field(metadata=array("uint32", "selects", most="columns"))
    """Number of columns of each SELECT."""

    @classmethod
    def of(cls, request: Describe, each: Sequence[Sequence[Column]]) -> Columns:
        """Return the reply to a request, with the columns of each SELECT."""
        import numpy as np

        flat = [column for columns in each for column in columns]
        return cls(
            request.run,
            request.slot,
            tuple(column.name for column in flat),
            tuple(column.type for column in flat),
            np.fromiter(map(len, each), np.uint32, len(each)),
        )

    def each(self) -> Iterator[tuple[Column, ...]]:
        """Yield the columns of each SELECT, in order."""
        pairs = zip(self.names, self.types, strict=True)
        columns = (Column(name, type_) for name, type_ in pairs)
        for count in self.counts.tolist():
            yield tuple(islice(columns, count))

    def fault(self) -> str | None:
        counted = int(self.counts.sum())
        if counted != len(self.names):
            return f"{len(self.names)} columns where its SELECTs have {counted}"
        return None


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
    """JSON of a `sqlfl.contract.request.Study`."""


@dataclass(frozen=True, eq=False)
class Rehearse(Message):
    """Coordinator to client: make synthetic rows, by names, types and this message. They serve the
    rest of the run, whose name begins with `REHEARSAL`.
    """

    kind = "rehearse"
    words = "a run as a whole, to be rehearsed over rows that are made up"
    request: str = field(metadata=text())
    """The request, as JSON, as it comes in `Propose`."""
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


NONCE_BYTES = 16


def no_nonces() -> Array:
    """Return no nonces, with which no client makes keys."""
    import numpy as np

    return np.zeros((0, NONCE_BYTES), np.uint8)


def no_marks() -> Array:
    """Return no marks, of a statement without a join."""
    import numpy as np

    return np.zeros(0, np.uint8)


@dataclass(frozen=True, eq=False)
class Prepare(Message):
    """Coordinator to client: take a snapshot of all your fragments, in one transaction."""

    kind = "prepare"
    words = "the fragments' SQL"
    specification: str = field(metadata=text())
    """JSON of `SlotSpecification`s, one for each slot of this client (sqlfl.contract.schema)."""
    fragments: tuple[str, ...] = field(metadata=texts("fragments"))
    """SQL, slot after slot in the order of the specification."""
    join: str = field(default="", metadata=text())
    """Id of the join whose rows the statement uses; empty without one."""
    kept: Array = field(default_factory=no_marks, metadata=array("uint8", "joined", most=1))
    """For each slot, 1 if its rows are to be those of an earlier statement over the join, whose
    keys the coordinator has. Empty without a join.
    """


@dataclass(frozen=True, eq=False)
class Prepared(Message):
    kind = "prepared"
    words = "rows per fragment, rows without a label, a nonce"
    rows: Array = field(metadata=array("int64", "fragments", least=0))
    """Rows of each fragment's snapshot."""
    null_targets: Array = field(metadata=array("int64", "fragments", least=0))
    """Rows whose target is NULL. They are left out unless they are needed for matching."""
    nonce: Array = field(metadata=array("uint8", NONCE_BYTES))
    """Random number of the client. The keys of the run are made of all clients' nonces."""
    changed: Array = field(default_factory=no_marks, metadata=array("uint8", "joins", most=2))
    """Marks of whether the join's tables have changed since it was made. Empty without a join."""


def no_samples() -> Array:
    """Form of weights that class weights and validation do not change."""
    import numpy as np

    return np.zeros(0)


NONCES = array("uint8", "clients", NONCE_BYTES, ascending=True)


# Groups of equal keys, which several databases of a party merge among themselves.

SEALED = arrays("databases", "uint8", "sealed_bytes[k]")


@dataclass(frozen=True, eq=False)
class SendGroups(Message):
    """Coordinator to client: a request for the groups that other databases of the party merge."""

    kind = "send_groups"
    words = "nonces"
    nonces: Array = field(metadata=NONCES)
    """As in `SendKeys`."""


@dataclass(frozen=True, eq=False)
class SealedGroups(Message):
    """Client to coordinator, for the other databases of its party, which alone can open it."""

    kind = "sealed_groups"
    words = "aggregates of its rows by key, sealed for the party's other databases"
    sealed: tuple[Array, ...] = field(metadata=SEALED)
    """For each database of the party that has groups, those that it merges; empty for itself."""


@dataclass(frozen=True, eq=False)
class MergeGroups(Message):
    """Coordinator to client: groups of the other databases of the party."""

    kind = "merge_groups"
    words = "aggregates of rows of the party's other databases, sealed by them"
    sealed: tuple[Array, ...] = field(metadata=SEALED)
    """From each database of the party; empty for itself."""


@dataclass(frozen=True, eq=False)
class MergedGroups(Message):
    """Client to coordinator: its fragments are evaluated over merged groups."""

    kind = "merged_groups"
    words = "rows per fragment, rows without a label"
    rows: Array = field(metadata=array("int64", "fragments", least=0))
    """As in `Prepared`."""
    null_targets: Array = field(metadata=array("int64", "fragments", least=0))


@dataclass(frozen=True, eq=False)
class SendKeys(Message):
    kind = "send_keys"
    words = "nonces"
    nonces: Array = field(default_factory=no_nonces, metadata=NONCES)
    """Nonces of all clients of the run. The receiver looks for its own."""


@dataclass(frozen=True, eq=False)
class JoinKeys(Message):
    """Client to coordinator: the hashed join keys of every row of the snapshot, in row-id order."""

    kind = "join_keys"
    words = "a keyed hash of the join keys of each row"
    fragment: Array = field(metadata=array("uint16", "rows", optional=True))
    """Index of the row's fragment in the slot; empty if the client has one fragment."""
    tags: tuple[Array, ...] = field(metadata=arrays("keys", "uint8", "tags[k]", 16, ascending=True))
    """For each key of the slot, its distinct tags."""
    codes: tuple[Array, ...] = field(metadata=arrays("keys", "uint32", "rows", most="tags[k]"))
    """For each key of the slot, the row's tag; the number of tags if the key is NULL."""


@dataclass(frozen=True, eq=False)
class Activate(Message):
    """Coordinator to client: the rows that occur in the join, and how often."""

    kind = "activate"
    words = "joined rows, how often, N, nonces"
    rows: Array = field(metadata=array("uint32", "active", ascending=True))
    """Row ids. All later messages are in this order."""
    counts: Array = field(metadata=array("uint32", "active", least=1))
    """cnt, the number of joined rows with the row."""
    total: int = field(metadata=integer())
    """N, the number of joined rows."""
    nonces: Array = field(default_factory=no_nonces, metadata=NONCES)
    """As in `SendKeys`, which slots without join keys do not receive."""


@dataclass(frozen=True, eq=False)
class Weigh(Message):
    """Coordinator to client, weighted runs only: the weight of each active row from now on."""

    kind = "weigh"
    counts: Array = field(metadata=array("float64", "active", least=0))
    """Sum of the weights of the row's joined rows; 0 for a row that occurs only in validation
    rows.
    """
    total: float = field(metadata=real(least=0))
    """Σ of the weights of all joined rows."""
    samples: Array = field(
        default_factory=no_samples, metadata=array("float64", "active", least=0, optional=True)
    )
    """The first time the same of the column of WEIGHT alone, by which SKEW compares: with rows for
    validation, and without class weights. Empty where there is no such column. Later what the
    features are encoded by, without class weights; empty without these, and where the encoding
    stays."""
    rows: int = field(default=0, metadata=integer())
    """Joined rows with a weight above 0: of few there are no curves."""


@dataclass(frozen=True, eq=False)
class Ready(Message):
    """Client to coordinator: done. `width` is the number of encoded columns, or 0."""

    kind = "ready"
    words = "acknowledgement"
    width: int = field(default=0, metadata=integer())


@dataclass(frozen=True, eq=False)
class Statistics(Message):
    """Client to coordinator, only for slots of several clients: statistics for the encoding,
    weighted by cnt.

    Numeric columns are numeric and boolean features and the elements of arrays, in feature order.
    In noised statistics (sqlfl.udfs.encoding.noised) each active row counts once. Then weight, mean
    and m2 are Σ 1, Σ u and Σ u², of values from 0 to 1 within public bounds.
    """

    kind = "statistics"
    words = "weighted statistics; hashed categories"
    weight: Array = field(metadata=array("float64", "numeric"))
    """Σ cnt over present values."""
    mean: Array = field(metadata=array("float64", "numeric"))
    m2: Array = field(metadata=array("float64", "numeric"))
    """Σ cnt (x − mean)²."""
    missing: Array = field(metadata=array("float64", "features"))
    """For each numeric feature, Σ cnt over rows where it is NULL."""
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )
    """For each category feature, keyed hashes of its distinct values."""
    counts: tuple[Array, ...] = field(metadata=arrays("categories", "float64", "entries[k]"))
    """For each category feature, Σ cnt of each value."""


@dataclass(frozen=True, eq=False)
class Ranges(Message):
    """Client to coordinator, for slots of several clients with features that TRANSFORM fits: the
    ranges of their rows with a positive weight.
    """

    kind = "ranges"
    words = (
        "least and greatest values, or means, of columns that TRANSFORM fits; of curves means of "
        "groups of rows, and values that many rows have"
    )
    ends: Array = field(metadata=array("float64", "fitted", 2))
    """Least and greatest value; for a mean, the mean twice. 0 without values, and of `auto`."""
    weight: Array = field(metadata=array("float64", "fitted", least=0))
    """Σ cnt over present values."""
    points: tuple[Array, ...] = field(metadata=arrays("fitted", "float64", "points[k]"))
    """Points of `auto`, ascending: for a curve means of groups of rows, for values of their own
    those that many rows have. Other functions have none."""
    counts: tuple[Array, ...] = field(metadata=arrays("fitted", "float64", "points[k]", least=0))
    """Σ cnt at each point."""


@dataclass(frozen=True, eq=False)
class SetRanges(Message):
    """Coordinator to the clients of a slot: `Ranges` over all of them. They answer with statistics
    of the columns fitted by it.
    """

    kind = "set_ranges"
    words = "least and greatest values, or means, over all clients; points of curves"
    ends: Array = field(metadata=array("float64", "fitted", 2))
    points: tuple[Array, ...] = field(metadata=arrays("fitted", "float64", "points[k]"))
    counts: tuple[Array, ...] = field(metadata=arrays("fitted", "float64", "points[k]", least=0))


@dataclass(frozen=True, eq=False)
class SetEncoding(Message):
    """Coordinator to the clients of a slot: the merged statistics, in the same layout.

    If they are noised, mean and scale belong to values from 0 to 1 within public bounds.
    """

    kind = "set_encoding"
    words = "merged statistics and hashed categories, and N"
    mean: Array = field(metadata=array("float64", "numeric"))
    scale: Array = field(metadata=array("float64", "numeric", least=0))
    """Scale of the imputed column; 1 if it is constant."""
    missing: Array = field(metadata=array("float64", "features", least=0))
    """Σ cnt of NULLs over all clients."""
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )
    counts: tuple[Array, ...] = field(
        metadata=arrays("categories", "float64", "entries[k]", least=0)
    )
    total: float = field(metadata=real(least=0))


@dataclass(frozen=True, eq=False)
class SendLabels(Message):
    kind = "send_labels"


@dataclass(frozen=True, eq=False)
class Labels(Message):
    """Client to coordinator: the targets of the active rows. One of the two forms is empty."""

    kind = "labels"
    words = "the label of each row, noised where the run asked for noise"
    values: Array = field(metadata=array("float64", "active", optional=True))
    """Numeric targets."""
    classes: tuple[str, ...] = field(metadata=texts("classes", distinct=True))
    """Distinct classes at this client, as text in their type's order."""
    codes: Array = field(metadata=array("uint32", "active", optional=True, below="classes"))
    """Index into `classes`."""

    def fault(self) -> str | None:
        if self.values.size and (self.codes.size or self.classes):
            return "numbers and classes at once"
        return None


@dataclass(frozen=True, eq=False)
class SendWeights(Message):
    kind = "send_weights"


@dataclass(frozen=True, eq=False)
class Weights(Message):
    """Client to coordinator: the WEIGHT column of the active rows."""

    kind = "weights"
    words = "the weight of each row"
    values: Array = field(metadata=array("float64", "active", finite=False))
    """Weights; NaN for NULL."""


@dataclass(frozen=True, eq=False)
class SendOffsets(Message):
    kind = "send_offsets"


@dataclass(frozen=True, eq=False)
class Offsets(Message):
    """Client to coordinator: the column of OFFSET or EXPOSURE, of the active rows."""

    kind = "offsets"
    words = "the offset or exposure of each row"
    values: Array = field(metadata=array("float64", "active", finite=False))
    """NaN where it is NULL."""


@dataclass(frozen=True, eq=False)
class SendSplit(Message):
    kind = "send_split"


@dataclass(frozen=True, eq=False)
class Split(Message):
    """Client to coordinator: the active rows that are for validation."""

    kind = "split"
    words = "which active rows are for validation, drawn by the client"
    validation: Array = field(metadata=array("uint8", "active", most=1))
    """1 for validation."""


@dataclass(frozen=True, eq=False)
class SendFolds(Message):
    kind = "send_folds"


@dataclass(frozen=True, eq=False)
class Folds(Message):
    """Client to coordinator: the fold of each active row, to be held out once."""

    kind = "folds"
    words = "the fold of each active row, drawn by the client"
    folds: Array = field(metadata=array("uint8", "active", most=MAX_FOLDS - 1))
    """Fold from 0; if one share is held out, 1 for its rows."""


@dataclass(frozen=True, eq=False)
class SendFindings(Message):
    """Coordinator to client: a request for likely mistakes in the features of the active rows."""

    kind = "send_findings"


@dataclass(frozen=True, eq=False)
class Findings(Message):
    """Client to coordinator: findings to warn the user of. They are not requested if features are
    protected.
    """

    kind = "findings"
    words = "remarks on features, such as which are empty or hold one value"
    empty: Array = field(metadata=array("uint8", "features", most=1))
    """1 if the feature is NULL in every row that counts."""
    constant: Array = field(metadata=array("uint8", "features", most=1))
    """1 if it has one value and is never NULL; in training."""
    identifying: Array = field(metadata=array("uint8", "features", most=1))
    """1 if it is a text with nearly a value for each joined row; in training."""
    unseen: Array = field(metadata=array("int64", "features", least=0))
    """Joined rows whose category training did not see; in scoring."""


def is_identifying(categories: int, rows: int) -> bool:
    """Return True if so many categories identify rows, rather than group them."""
    return rows >= IDENTIFIED and categories > NEARLY * rows


IDENTIFIED = 50
"""Minimum number of rows for this finding."""
NEARLY = 0.5


# Messages of a join that lasts: the party keeps its tables as they are for several statements.

SAME, CHANGED, NOT_KNOWN = range(3)
"""Marks of whether a table of a join has changed since the join was made."""


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
