"""A client's blocks of models, and their storage in memory."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Float
from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import InternalError
from sqlfl.base.stored_arrow import read_numbers
from sqlfl.models.towers import TowerShape
from sqlfl.udfs.encoding.features import Encoding
from sqlfl.udfs.encoding.reference import Reference

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
