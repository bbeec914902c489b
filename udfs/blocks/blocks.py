"""A client's blocks of models: their storage in memory, and their weights in a new run."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Float
from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.base.stored_arrow import read_numbers
from sqlfl.models.towers import TowerShape
from sqlfl.udfs.encoding.columns import check_features
from sqlfl.udfs.encoding.features import Encoding, categories_of, vocabulary_key_of
from sqlfl.udfs.encoding.reference import Reference
from sqlfl.udfs.numbering import keys

FORMAT = 6
"""The newest format of a block's bytes that is read here; `SavedBlock.format` is one block's."""


@dataclass(frozen=True, eq=False)
class SavedBlock:
    """One slot's block of a trained model."""

    encoding: Encoding
    theta: Float
    """(d, d_c); of a tower W₁ (d, h)"""
    name: str = ""
    """Name of its slot: the table's alias in the training statement."""
    tower: TowerShape | None = None
    upper: tuple[Float, ...] = ()
    """Upper parameters of a tower: b₁, W₂, …, W_out."""
    reference: Reference | None = None
    """The distributions that SKEW compares with; None for older and imported blocks."""

    @property
    def parameters(self) -> tuple[Float, ...]:
        """θ alone, or all of a tower."""
        return (self.theta, *self.upper)

    @property
    def outputs(self) -> int:
        """Values per row."""
        return int(self.parameters[-1].shape[1])

    def finish(self, products: Float) -> Float:
        """h (n, outputs) of rows, from their X̃ θ."""
        return products if self.tower is None else self.tower.forward(products, self.parameters)

    @property
    def format(self) -> int:
        """Return the oldest format that can store it, so that an older sqlfl reads what it can."""
        if self.encoding.pairs:
            return 6
        if self.encoding.strengths is not None:
            return 5
        if any(feature.made is not None for feature in self.encoding.features):
            return 4
        if self.encoding.limits is not None:
            return 3
        return 1 if self.tower is None else 2

    def to_bytes(self) -> bytes:
        """Return an Arrow IPC stream: θ row by row in one column, encoding and shape in the
        metadata.

        Format 2 adds a tower's upper parameters after θ, and its shape. Format 3: the encoding has
        limits. Format 4: TRANSFORM makes features of columns. Format 5: groups of columns have
        strengths. Format 6: the last features are pairs of earlier ones.
        """
        metadata = {
            b"encoding": self.encoding.to_bytes(),
            b"shape": to_json(self.theta.shape).encode(),
            b"name": self.name.encode(),
        }
        if self.tower is not None:
            metadata[b"tower"] = to_json(self.tower).encode()
        if self.reference is not None:
            metadata[b"reference"] = to_json(self.reference).encode()
        flat = [np.ascontiguousarray(p, np.float64).reshape(-1) for p in self.parameters]
        values = pa.array(np.concatenate(flat))
        batch = pa.record_batch([values], names=["theta"]).replace_schema_metadata(metadata)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes) -> SavedBlock:
        """Read the output of `to_bytes`. Raise ValueError, KeyError or TypeError for other data."""
        table = read_numbers(data, largest_schema=None)
        metadata = table.schema.metadata or {}
        values = table.column("theta").to_numpy()
        encoding = Encoding.from_bytes(metadata[b"encoding"])
        name, reference = metadata[b"name"].decode(), None
        if b"reference" in metadata:
            reference = from_json(Reference, metadata[b"reference"].decode(), strict=False)
        if b"tower" not in metadata:
            shape = from_json(tuple[int, ...], metadata[b"shape"].decode())
            theta = np.array(values, np.float64).reshape(shape)
            return cls(encoding, theta, name, reference=reference)
        tower = from_json(TowerShape, metadata[b"tower"].decode())
        if len(values) != tower.size:
            raise ValueError(f"{len(values)} parameters for a tower of {tower.size}")
        theta, *upper = tower.unpack(np.array(values, np.float64))
        return cls(encoding, theta, name, tower, tuple(upper), reference)


class ClientBlocks(Protocol):
    """The blocks of one client, by run and slot."""

    @property
    def lasting(self) -> bool:
        """True if kept blocks outlive the federation."""
        ...

    @property
    def reason(self) -> str:
        """Why nothing lasts, as text after the party's name ('is read-only'); empty if
        blocks last.
        """
        ...

    @property
    def runs(self) -> frozenset[str]:
        """Return the runs of this coordinator with blocks here."""
        ...

    def save(self, run: str, slot: int, name: str, block: SavedBlock) -> None:
        """Hold the block of model `name` until `keep`, `drop` or `close`."""
        ...

    def keep(self, run: str) -> None:
        """Write the run's saved blocks to the database, all or none."""
        ...

    def load(self, run: str, slot: int) -> SavedBlock | None:
        """Return the block, or None. Raise ModelError if it cannot be read."""
        ...

    def drop(self, run: str) -> None:
        """Delete the run's blocks, if any."""
        ...

    def collect(self, keep: Collection[str]) -> None:
        """Delete this coordinator's blocks of all other runs. Raise Error if other objects occupy
        the place of blocks.
        """
        ...

    def secret(self, purpose: str) -> bytes:
        """32 random bytes, the same for a purpose as long as the client has blocks."""
        ...

    def close(self) -> None: ...


class MemoryBlocks:
    """Blocks that exist as long as the object."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        self._blocks: dict[str, dict[int, tuple[str, SavedBlock]]] = {}
        self._secrets: dict[str, bytes] = {}

    @property
    def lasting(self) -> bool:
        return False

    @property
    def runs(self) -> frozenset[str]:
        """Return the runs with blocks here."""
        return frozenset(self._blocks)

    def save(self, run: str, slot: int, name: str, block: SavedBlock) -> None:
        self._blocks.setdefault(run, {})[slot] = (name, block)

    def keep(self, run: str) -> None:
        raise InternalError(f"the blocks of run {run} cannot outlive the federation here")

    def load(self, run: str, slot: int) -> SavedBlock | None:
        entry = self._blocks.get(run, {}).get(slot)
        return None if entry is None else entry[1]

    def drop(self, run: str) -> None:
        self._blocks.pop(run, None)

    def collect(self, keep: Collection[str]) -> None:
        for run in self.runs.difference(keep):
            self.drop(run)

    def secret(self, purpose: str) -> bytes:
        return self._secrets.setdefault(purpose, secrets.token_bytes(32))

    def close(self) -> None:
        self._blocks.clear()
        self._secrets.clear()


# A block's weights under the encoding of a new run, so that training goes on where it was.
def carry_over(old: Encoding, theta: Float, new: Encoding) -> Float:
    """θ (d, c) of `old` as θ' (d', c) of `new`, with the same weights on the raw columns.

    Predictions X̃ θ' differ from those before by a constant, which an intercept takes up. A
    category that the old block did not know starts at 0, as it was scored. What the new encoding
    has no column for is left out: categories that do not occur, an indicator where nothing is
    missing. Numbers missing inside arrays have no indicator: they count as the new mean. Raises
    ModelError where the features do not fit.
    """
    check_features(new.features, old.features)
    if theta.shape[0] != old.width:
        raise InternalError(f"a block of {old.width} columns has weights for {theta.shape[0]}")
    carried = np.zeros((new.width, theta.shape[1]))
    values = len(old.mean)
    raw = theta[: old.numeric] / old.scales[:, None]
    carried[:values] = raw[:values] * new.scale[:, None]
    carried[values : new.numeric] = _indicators(old, raw, new) * new.scales[values:, None]
    for number, _ in categories_of(new.features):
        places = {entry: place for place, entry in enumerate(_entries(old, number, new))}
        for place, entry in enumerate(_entries(new, number, old)):
            if entry in places:
                source = old.offsets[number] + places[entry]
                carried[new.offsets[number] + place] = theta[source]
    return carried


def carry_block(old: SavedBlock, new: Encoding, tower: TowerShape | None) -> tuple[Float, ...]:
    """The parameters of a block under the encoding of a new run, to start from.

    `tower` is the shape that is to be trained; None for a linear block, whose predictions may
    differ by a constant. A tower predicts what it did: what its first layer's products differ by
    goes to the first biases. Raises ModelError where the block is of another shape, or its features
    do not fit.
    """
    if _layers(old.tower) != _layers(tower):
        raise ModelError(
            f"the model to start from has {_described(old.tower)}; "
            f"{_described(tower)} is to be trained",
            hint="give both the same kind of model, hidden, activation, head and embedding",
        )
    first = carry_over(old.encoding, old.theta, new)
    if tower is None:
        return (first,)
    bias, *upper = old.upper
    difference = _at_zero(old.encoding, old.theta) - _at_zero(new, first)
    return (first, bias + difference, *upper)


def _at_zero(encoding: Encoding, theta: Float) -> Float:
    """Return (c,): X̃ θ of a row with all numbers 0 and all categories `other`."""
    numbers = -encoding.centres / encoding.scales
    scores: Float = numbers @ theta[: encoding.numeric] - encoding.centre @ theta
    return scores


def _layers(tower: TowerShape | None) -> tuple[object, ...] | None:
    return None if tower is None else (tower.hidden, tower.activation, tower.outputs, tower.bounded)


def _described(tower: TowerShape | None) -> str:
    if tower is None:
        return "a linear block"
    return (
        f"a tower of hidden = {list(tower.hidden)}, activation = '{tower.activation}' and "
        f"{tower.outputs} {'output' if tower.outputs == 1 else 'outputs'}"
        f"{' in [−1, 1]' if tower.bounded else ''}"
    )


def _indicators(old: Encoding, raw: Float, new: Encoding) -> Float:
    """(indicators of `new`, c): their weights before scaling.

    A missing value counts as the mean, which has moved: the indicator makes up for that.
    """
    values = len(old.mean)
    before = dict(zip(old.indicators, raw[values:], strict=True))
    moved = raw[:values] * (old.mean - new.mean)[:, None]
    first = _first_columns(old)
    shares = np.zeros((len(new.indicators), raw.shape[1]))
    for place, feature in enumerate(new.indicators):
        shares[place] = moved[first[feature] : first[feature + 1]].sum(axis=0)
        shares[place] += before.get(feature, 0.0)
    return shares


def _first_columns(encoding: Encoding) -> Sequence[int]:
    """The first column of every numeric feature, and their number."""
    widths = [f.width for f in encoding.features if f.kind != "category"]
    return [int(c) for c in np.cumsum([0, *widths])]


def _entries(old: Encoding, number: int, other: Encoding) -> tuple[str, ...]:
    """Return the vocabulary in a common form: texts, or tags if one side has only these."""
    vocabulary = old.vocabularies[number]
    if old.vocabulary_key is not None:
        if other.vocabulary_key not in (None, old.vocabulary_key):
            raise InternalError("the vocabularies are hashed with different keys")
        return vocabulary
    if other.vocabulary_key is None:
        return vocabulary
    key = vocabulary_key_of(other.vocabulary_key, number)
    tags = (hmac.digest(key, entry.encode(), "sha256") for entry in vocabulary)
    return tuple(tag[: keys.TAG_BYTES].hex() for tag in tags)
