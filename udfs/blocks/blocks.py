"""A client's blocks of models: what one is, and those that are kept in memory."""

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
    """Of its slot: the table's alias in the statement that trained it."""
    tower: TowerShape | None = None
    upper: tuple[Float, ...] = ()
    """Of a tower: b₁, W₂, …, W_out."""
    reference: Reference | None = None
    """What SKEW compares with; None in blocks of before, and in such as were imported."""

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
        """The oldest format that has all of it: an older sqlfl reads what it can."""
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
        """An Arrow IPC stream: θ row by row in one column, encoding and shape in the metadata.

        Format 2: of a tower its upper parameters follow θ, and its shape is in the metadata.
        Format 3: the encoding has limits. Format 4: features are made of columns by TRANSFORM.
        Format 5: groups of columns have strengths of their own. Format 6: the last features are
        pairs of those before.
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
        """What `to_bytes` wrote. Raises ValueError, KeyError or TypeError for anything else."""
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
        """What `keep` keeps outlives the federation."""
        ...

    @property
    def reason(self) -> str:
        """Why nothing lasts, to follow the party's name ('is read-only'); empty if it does."""
        ...

    @property
    def runs(self) -> frozenset[str]:
        """Those that have blocks here, of this coordinator."""
        ...

    def save(self, run: str, slot: int, name: str, block: SavedBlock) -> None:
        """Hold the block of model `name` until `keep`, `drop` or `close`."""
        ...

    def keep(self, run: str) -> None:
        """Write the run's saved blocks to the database, all or none."""
        ...

    def load(self, run: str, slot: int) -> SavedBlock | None:
        """None where there is none. Raises ModelError where it cannot be read."""
        ...

    def drop(self, run: str) -> None:
        """Forget the run's blocks; nothing happens where there are none."""
        ...

    def collect(self, keep: Collection[str]) -> None:
        """Drop what this coordinator has left here of other runs than these.

        Raises Error where the blocks' place is taken by what is not sqlfl's.
        """
        ...

    def secret(self, purpose: str) -> bytes:
        """32 random bytes, the same for a purpose as long as the client has blocks."""
        ...

    def close(self) -> None: ...


class MemoryBlocks:
    """Blocks that are gone with the object."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        self._blocks: dict[str, dict[int, tuple[str, SavedBlock]]] = {}
        self._secrets: dict[str, bytes] = {}

    @property
    def lasting(self) -> bool:
        return False

    @property
    def runs(self) -> frozenset[str]:
        """Those that have blocks here."""
        return frozenset(self._blocks)

    def save(self, run: str, slot: int, name: str, block: SavedBlock) -> None:
        self._blocks.setdefault(run, {})[slot] = (name, block)

    def keep(self, run: str) -> None:
        raise InternalError(f"the blocks of run {run} cannot outlive the federation here")

    def load(self, run: str, slot: int) -> SavedBlock | None:
        found = self._blocks.get(run, {}).get(slot)
        return None if found is None else found[1]

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
