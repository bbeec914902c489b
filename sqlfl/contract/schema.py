"""Schemas of the parties, as the planner may know them: names and types, never values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol, TypeAlias

from sqlfl.base.codec import DEEPEST, LEFT_OUT, from_json, to_json
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import SnapshotPrivacy
from sqlfl.contract.transforms import AUTO, CURVE, CURVE_COLUMNS, MAX_PAIRS, VALUES

COMBINED = -1
"""Index of a party's clients as one."""
_FOLDED = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def folded(name: str) -> str:
    """Return the name as DuckDB compares it: A to Z as a to z, all other letters unchanged."""
    return name.translate(_FOLDED)


@dataclass(frozen=True, eq=False)
class Client:
    """One DuckDB database of a party. Its party's name is compared as SQL does, ignoring case."""

    party: str
    index: int = 0
    """Position among the party's clients, from 0; `COMBINED` for all of them as one."""
    combined: bool = False
    """True if statements use its party's `whole` instead of it."""

    @property
    def whole(self) -> Client:
        """Return the party as one client, which asks its clients and adds up their replies."""
        return Client(self.party, COMBINED)

    def __str__(self) -> str:
        return self.party if self.index == COMBINED else f"{self.party}/{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Client) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def _key(self) -> tuple[str, int]:
        return self.party.lower(), self.index


Address: TypeAlias = tuple[Client, int]
"""A client and a slot; `sqlfl.messages.CLIENT` stands for the client as a whole."""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    """Type as DuckDB writes it, without the values of an ENUM: 'DECIMAL(9,2)', 'FLOAT[32]',
    'ENUM'.
    """


@dataclass(frozen=True)
class Table:
    """A table or view of one client's database."""

    schema: str | None
    """Schema of the table; None for a table that `party.table` names."""
    name: str
    columns: tuple[Column, ...]
    rows: int | None = None
    """The database's own estimate; None for views."""
    catalog: str | None = None
    """Database that the party attached to its connection; None for the connection's own."""
    keyed: bool = False
    """True if its owner has named the columns that identify a row. Noise of labels follows from
    them.
    """


@dataclass(frozen=True)
class Place:
    """Schema of a database that a client's connection has open."""

    catalog: str
    schema: str
    writable: bool = True
    """True if tables can be made in it."""
    database: str = ""
    """Keyed hash that is equal for clients of a party that have one database open; empty if the
    party has one client.
    """


class Catalog(Protocol):
    """Catalog against which a plan is made."""

    def parties(self) -> tuple[str, ...]: ...

    def clients(self, party: str) -> tuple[Client, ...]:
        """Return the clients of `party`, in order. If there is no such party, the caller raises
        PlanError.
        """
        ...

    def tables(self, client: Client) -> tuple[Table, ...]: ...

    def places(self, client: Client) -> tuple[Place, ...]:
        """Return the schemas that tables can lie in: first the current one, which `party.table`
        names.
        """
        ...

    def fleeting(self, client: Client) -> str:
        """Return why the client's label noise is drawn anew in each session, to follow its name
        ('is in memory'). Return '' if the client keeps the secret of its noise."""
        ...

    def governed(self, client: Client) -> bool:
        """Return True if its owner has training policies: then a run is proposed to it before it
        begins.
        """
        ...

    def describe(self, client: Client, select: str) -> tuple[Column, ...]:
        """Return names and types of the columns of a SELECT, as `client`'s database binds it.

        Nothing is run. Raise PartyError if the database cannot bind the query.
        """
        ...

    def describe_each(self, selects: Iterable[tuple[Client, str]]) -> None:
        """Fetch the answers of `describe` at once, as far as the databases can bind the queries.
        For the others, `describe` raises its error.
        """
        ...


ENDS = ("minmax", "spline")
"""Functions of TRANSFORM that follow from a column's least and greatest value."""


@dataclass(frozen=True)
class FittedStep:
    """Step of TRANSFORM that is fitted to the joined rows, at the party that has them."""

    function: str
    of: str
    """Kind of the fragment's column: 'numeric' or 'category'."""
    count: int = 0
    degree: int = 0
    value: str = ""

    @property
    def gives(self) -> tuple[str, int]:
        """Return kind and width of the feature."""
        if self.function == "spline":
            return "array", self.count + self.degree - 1
        if self.function == AUTO:
            return ("array", CURVE_COLUMNS) if self.value == CURVE else ("category", 1)
        return ("category" if self.function == "quantile_bucketize" else self.of), 1

    @property
    def needs_summaries(self) -> bool:
        """True if it is fitted to summaries that each client reports of its rows: ranges, means, or
        points of a distribution."""
        return self.function in (*ENDS, AUTO) or self.value == "mean"


@dataclass(frozen=True)
class Made:
    """Definition of a feature that TRANSFORM makes of output columns of the query."""

    inputs: tuple[tuple[str, str], ...]
    """Each column, and the type to which a value given by hand is cast."""
    expression: str
    """SQL of the fragment's column over these columns."""
    step: FittedStep | None = None


@dataclass(frozen=True)
class FeatureSpecification:
    name: str
    kind: str
    """'numeric', 'boolean', 'array' or 'category'."""
    width: int = 1
    made: Made | None = field(default=None, metadata=LEFT_OUT)
    """Its derivation by TRANSFORM; None for a column of the query as it is."""
    shrunken: bool = field(default=False, metadata=LEFT_OUT)
    """True if `auto` made it: its curve, its categories and its missing indicator then have
    strengths of their own."""
    partner: bool = field(default=False, metadata=LEFT_OUT)
    """True if its two categories mark rows in which all columns that it is made of are NULL, as in
    rows without a partner, and other rows."""
    pairs: int = field(default=0, metadata=LEFT_OUT)
    """Maximum number of pairs of features that `auto` adds for its table, if it may be part of one;
    else 0."""

    @property
    def step(self) -> FittedStep | None:
        return None if self.made is None else self.made.step

    @property
    def fitted(self) -> bool:
        """Return True if TRANSFORM fits it to the joined rows."""
        return self.step is not None

    @property
    def frequent_values(self) -> bool:
        """True if its categories are the numbers that `auto` gives a weight of their own."""
        return self.kind == "category" and self.step is not None and self.step.function == AUTO

    @property
    def raw(self) -> FeatureSpecification:
        """Return the fragment's column."""
        step = self.step
        return self if step is None else FeatureSpecification(self.name, step.of)


@dataclass(frozen=True)
class KeySpecification:
    index: int
    """Domain of the hash: equal for all slots that join on this key."""
    types: tuple[str, ...]
    """DuckDB type of each part, to which the fragment has cast it."""
    nullable: bool = False
    """True if rows with a NULL in a part are kept; they have no tag."""


@dataclass(frozen=True)
class Combination:
    """Division of a slot between the clients of a combining party."""

    parts: tuple[tuple[int, int], ...]
    """(client's index, fragment of the slot) of every SELECT, in the order of `Prepare`. The rows
    of a fragment are those of all clients that evaluate it.
    """
    encodes: bool
    """True if they encode their rows alike, for training: then their statistics are merged."""
    target_type: str
    """DuckDB type of the target, which orders classes; empty if the slot has no target."""


@dataclass(frozen=True)
class Merging:
    """Groups of rows with equal keys in several databases of a party, which one of them merges."""

    selects: tuple[str, ...]
    """SELECTs of the database's groups, one for each fragment at the client or part of one. Each
    stands in the fragment's text in parentheses; empty for a fragment without groups.
    """
    place: int = 0
    """Place of the client among the party's databases with groups of the slot."""
    databases: int = 1
    """Their number; 1 for a party that combines its clients."""


@dataclass(frozen=True)
class SlotSpecification:
    """Specification of one slot for a client's snapshot; travels as JSON in `Prepare`."""

    slot: int
    features: tuple[FeatureSpecification, ...]
    target: bool
    classes: bool
    """True if the target is a class, which travels as codes, not a number."""
    identifiers: tuple[int, ...]
    keys: tuple[KeySpecification, ...]
    fragments: tuple[int, ...]
    """Indices of the slot's fragments that this client evaluates, in order."""
    shared: bool
    """True if several clients hold the slot: then statistics are merged at the coordinator."""
    secret: str
    """Owner of the secret that hashes the vocabulary: 'organisation' or 'federation'."""
    engine: str
    """'sql' or 'arrays'."""
    links: tuple[tuple[int, int], ...] = ()
    """(i, j) of `fragments` that have the same text and are evaluated once. Rows belong to fragment
    i if the column `sqlfl_kept` is true, else to fragment j. Rows of j only match: they are kept
    without a target, and never active.
    """
    weight: bool = False
    """True if the fragments have a column of weights."""
    split: float = 0.0
    """Share of rows to draw for validation. If it is positive, the fragments have `sqlfl_base`."""
    weighted: bool = False
    """True if rows get their weights after they are activated: statistics wait for that."""
    warm: tuple[str, int] | None = None
    """(model's run, block) that training starts from."""
    name: str = ""
    """Name of the slot, under which its block is kept."""
    seed: int | None = None
    """Seed with which row ids are the same in every run over the same rows; None for random ids."""
    device: str | None = field(default=None, metadata=LEFT_OUT)
    """Device for training the slot's tower, 'auto', 'cpu' or 'cuda'; None without a tower."""
    base: bool = field(default=False, metadata=LEFT_OUT)
    """True if the fragments have `sqlfl_base`, the whole row of the label's table, for random
    draws.
    """
    privacy: SnapshotPrivacy | None = field(default=None, metadata=LEFT_OUT)
    """Noise of the slot; None without it."""
    combination: Combination | None = field(default=None, metadata=LEFT_OUT)
    """None for one client. Otherwise the party itself adds the noise, once."""
    secure: bool = field(default=False, metadata=LEFT_OUT)
    """True, for all slots of a run, if sums over a slot's clients leave each of them under masks
    (sqlfl.aggregation).
    """
    folds: int = field(default=0, metadata=LEFT_OUT)
    """Number of folds into which rows are drawn, for all slots of a run that trains several times
    over the same rows; 1 if it draws `split` alone, 0 for a run that trains once. A positive number
    also lets weights of rows, and the start of training, be sent again."""
    offset: bool = field(default=False, metadata=LEFT_OUT)
    """True if the fragments have a column of offsets."""
    masked_predictions: bool = field(default=False, metadata=LEFT_OUT)
    """True, for all slots of a run, if predictions of joined rows leave under masks that cancel in
    the sum over all slots.
    """
    marked: bool = field(default=False, metadata=LEFT_OUT)
    """True if the fragments end with `sqlfl_mark`, by which a row is recognised in other runs. It
    stays at the party and never travels.
    """
    merging: Merging | None = field(default=None, metadata=LEFT_OUT)
    """None for fragments of the client's own rows."""
    draw_columns: tuple[tuple[str, ...], ...] | None = field(default=None, metadata=LEFT_OUT)
    """Columns of `sqlfl_base`, for each fragment, from which the noise of its labels and other
    draws follow; none for the whole row. It stays at the party and never travels.
    """


def specifications_to_json(slots: tuple[SlotSpecification, ...]) -> str:
    return to_json(slots)


@lru_cache(maxsize=8)
def specifications_from_json(text: str) -> tuple[SlotSpecification, ...]:
    """Return the specifications that `specifications_to_json` wrote. Raise InternalError for
    anything else.
    """
    try:
        specifications = from_json(tuple[SlotSpecification, ...], text)
        for item in specifications:
            _check_specification(item)
        if len({item.slot for item in specifications}) < len(specifications):
            raise ValueError("a slot is specified twice")
    except ValueError as error:
        raise InternalError(f"the specification of a snapshot is none: {error}") from None
    return specifications


def _check_specification(item: SlotSpecification) -> None:
    """Raise ValueError for numbers that would take too much memory, and for inconsistent values."""
    for feature in item.features:
        _check_feature(feature)
    for key in item.keys:
        for kind in key.types:
            check_type(kind)
    _check_fragments(item)
    if not 0 <= item.folds <= MAX_FOLDS:
        raise ValueError(f"rows are drawn into {item.folds} parts")
    if not 0 <= item.slot <= MAX_FRAGMENT_NUMBER or not 0 <= item.split < 1:
        raise ValueError(f"slot {item.slot} draws a share of {item.split}")
    noise = item.privacy
    if noise is not None and noise.statistics != "none" and len(noise.bounds) != len(item.features):
        raise ValueError(f"{len(noise.bounds)} bounds of {len(item.features)} features")


def _check_fragments(item: SlotSpecification) -> None:
    """Raise ValueError if the description of the slot's fragments is inconsistent."""
    indices = item.fragments
    linked = {number for pair in item.links for number in pair}
    if not all(0 <= index <= MAX_FRAGMENT_NUMBER for index in indices):
        raise ValueError(f"a fragment beyond {MAX_FRAGMENT_NUMBER}")
    if len(set(indices)) < len(indices) or not linked <= set(indices):
        raise ValueError("fragments are met twice, or links are none of them")
    if len({kept for kept, _ in item.links}) < len(item.links):
        raise ValueError("a fragment has two links")
    if item.draw_columns is not None and len(item.draw_columns) != len(indices):
        raise ValueError(f"{len(item.draw_columns)} keys of rows of {len(indices)} fragments")
    parts = () if item.combination is None else item.combination.parts
    if parts and (len(set(parts)) < len(parts) or {index for _, index in parts} != {*indices}):
        raise ValueError("the clients' fragments are not those of the slot")
    if item.merging is not None:
        expected = len(parts or indices)
        if len(item.merging.selects) != expected or not any(item.merging.selects):
            raise ValueError(f"{len(item.merging.selects)} SELECTs of groups of {expected}")
        if not 0 <= item.merging.place < item.merging.databases <= MAX_FRAGMENT_NUMBER:
            raise ValueError("no place among the databases that merge groups")


def _check_feature(feature: FeatureSpecification) -> None:
    """Raise ValueError for a feature of an unknown kind, and for a step that TRANSFORM cannot have
    requested.
    """
    if feature.kind not in KINDS or not 1 <= feature.width <= WIDEST:
        raise ValueError(f"a feature of kind {feature.kind!r:.40} and width {feature.width}")
    if not 0 <= feature.pairs <= MAX_PAIRS:
        raise ValueError(f"{feature.pairs} pairs")
    step = feature.step
    if step is None:
        return
    is_fitted = (step.of, step.function) in _FITTED
    in_range = 0 <= step.count <= MAX_COUNT and 0 <= step.degree <= MAX_DEGREE
    if step.function == AUTO:
        in_range = in_range and step.value in (CURVE, VALUES)
    in_range = in_range and feature.pairs == 0
    if step.function in ("spline", "quantile_bucketize", "one_hot"):
        in_range = in_range and step.count >= 2
    if not is_fitted or not in_range or step.gives != (feature.kind, feature.width):
        raise ValueError(f"{step.function!r:.40} fitted to a {feature.kind} feature")


_FITTED = (
    *(("numeric", f) for f in ("minmax", "robust_scale", "quantile_bucketize", "spline", "impute")),
    ("numeric", AUTO),
    *(("category", f) for f in ("one_hot", "impute")),
)
MAX_COUNT = 10_000
MAX_DEGREE = 10


class Listing(NamedTuple):
    """A client's description of its database; see `Catalog`."""

    places: tuple[Place, ...]
    tables: tuple[Table, ...]
    fleeting: str = ""
    governed: bool = False


def listing_to_json(listing: Listing) -> str:
    """Return the text for the `Tables` message of sqlfl.messages."""
    listed = tuple(
        _ListedTable(
            t.schema, t.name, [(c.name, c.type) for c in t.columns], t.rows, t.catalog, t.keyed
        )
        for t in listing.tables
    )
    open_ = tuple((p.catalog, p.schema, p.writable, p.database) for p in listing.places)
    return to_json(_Listing(listing.fleeting, open_, listed, listing.governed))


def listing_from_json(text: str) -> Listing:
    """Return the listing that `listing_to_json` wrote. Raise ValueError for anything else."""
    listing = from_json(_Listing, text)
    places = tuple(Place(*place) for place in listing.places)
    tables = tuple(
        Table(item.schema, item.name, _columns(item.columns), item.rows, item.catalog, item.keyed)
        for item in listing.tables
    )
    return Listing(places, tables, listing.fleeting, listing.governed)


@dataclass(frozen=True)
class _ListedTable:
    schema: str | None
    name: str
    columns: object
    rows: int | None
    catalog: str | None
    keyed: bool = field(default=False, metadata=LEFT_OUT)


@dataclass(frozen=True)
class _Listing:
    fleeting: str
    places: tuple[tuple[str, str, bool, str], ...]
    tables: tuple[_ListedTable, ...]
    governed: bool = field(default=False, metadata=LEFT_OUT)


def _columns(pairs: object) -> tuple[Column, ...]:
    """Return columns from pairs of a name and a type. There may be very many, so they are read in
    one line.
    """
    if not isinstance(pairs, list) or not all(
        type(pair) is list and len(pair) == 2 and type(pair[0]) is type(pair[1]) is str
        for pair in pairs
    ):
        raise ValueError("a table's columns must be pairs of a name and a type")
    types = {kind: told_type(kind) for _, kind in pairs}
    return tuple([Column(name, types[kind]) for name, kind in pairs])


def told_type(text: str) -> str:
    """Return a type that another party has sent. A text in another form than DuckDB's types becomes
    UNKNOWN, which gives no features and no keys.
    """
    try:
        check_type(text)
    except ValueError:
        return "UNKNOWN"
    return text


_QUOTED = re.compile(r"""\"(?:[^"]|"")*\"|'(?:[^']|'')*'""")
"""A name or a text in quotes, as in STRUCT("a b" INTEGER) and ENUM('x')."""
_TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_ ,()\[\]]*")
"""The characters of a type whose quoted parts are replaced by a letter."""
_MISPLACED = re.compile(r"\d{10}|(?<!\w)\(|\[(?!\d{0,9}\])|(?<![\[\d])\]")
"""A part that no type has: a number of ten digits, a round bracket that follows no word, or square
brackets around anything but a short number or nothing."""
_ROUND_BRACKETS = re.compile(r"[()]")


def check_type(text: str) -> None:
    """Raise ValueError for a text that is not written as DuckDB writes types: words, numbers,
    brackets, and names in quotes. It does not check that the type exists.
    """
    bare = _QUOTED.sub("q", text)  # quotes may contain any character
    if (
        len(text) > MAX_TYPE_CHARACTERS
        or text[:1] == "'"
        or not _TYPE.fullmatch(bare)
        or _MISPLACED.search(bare)
    ):
        raise ValueError(f"{text!r:.60} is no type")
    if _bracket_depth(bare) + bare.count("[") > DEEPEST:
        raise ValueError(f"{text!r:.60} is no type: its brackets do not match, or are too many")


def _bracket_depth(bare: str) -> float:
    """Return how deep the round brackets are nested; infinity if they do not match."""
    depth = deepest = 0
    for bracket in _ROUND_BRACKETS.findall(bare):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
        if depth < 0:
            return math.inf
    return math.inf if depth else deepest


KINDS = ("numeric", "boolean", "array", "category")
"""Kinds of features."""
WIDEST = 100_000
"""Maximum number of elements of a DuckDB array."""
MAX_FOLDS = 50
"""Maximum number of parts that rows are drawn into."""
MAX_FRAGMENT_NUMBER = 2**16 - 1
MAX_TYPE_CHARACTERS = 1 << 16
