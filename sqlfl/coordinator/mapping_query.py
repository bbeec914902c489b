"""From hashed join keys to the table mapping: the coordinator's own query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import parse_one
from sqlglot.dialects.duckdb import DuckDB

from sqlfl.arrays import Array
from sqlfl.coordinator.join_size import SlotCodes
from sqlfl.coordinator.own_database import own_database
from sqlfl.coordinator.row_mapping import StoredMapping, WrittenMapping
from sqlfl.coordinator.scratch import Scratch, StoredNumbers
from sqlfl.errors import ModelError
from sqlfl.interrupts import interruptible
from sqlfl.messages import JoinKeys
from sqlfl.options.training import LARGEST_TABLE
from sqlfl.schema import Address

BATCH = 1 << 17
"""Joined rows that DuckDB hands over at once."""


@dataclass(frozen=True, eq=False)
class SlotRows:
    """What the coordinator knows of a slot's snapshots before the join."""

    slot: int
    addresses: tuple[Address, ...]
    """Clients of the slot, in order."""
    fragments: tuple[tuple[int, ...], ...]
    """Per client, its fragments of the slot."""
    fragment_rows: tuple[tuple[int, ...], ...]
    """Per client, the rows of each of these fragments."""
    keys: tuple[int, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """Per client, the rows of its snapshot."""
        return tuple(sum(counts) for counts in self.fragment_rows)

    @property
    def offsets(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)

    def fragment_of_rows(self, replies: Mapping[Address, JoinKeys]) -> Array:
        """uint16 (n,): the fragment of each row of the slot's concatenated snapshots."""
        parts = [
            replies[address].fragment
            if len(fragments) > 1 and self.keys
            # without keys, row ids follow the fragments
            else np.repeat(np.array(fragments, dtype=np.uint16), rows)
            for address, fragments, rows in zip(
                self.addresses, self.fragments, self.fragment_rows, strict=True
            )
        ]
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Room:
    """What the join may use."""

    memory: int | None = None
    """Bytes that DuckDB may take, and puts on disk what is more; None for its default."""
    scratch: Scratch | None = None
    """Where the joined rows are to be written; None for memory."""


def key_codes(
    slots: Sequence[SlotRows], replies: Mapping[Address, JoinKeys]
) -> dict[int, SlotCodes]:
    """Slot -> its rows, with the tags of their keys as codes that all slots share.

    Raises ModelError where a slot has more rows than the mapping can number.
    """
    codes = {slot.slot: _slot_codes(slot, replies) for slot in slots}
    _share_codes(slots, replies, codes)
    return codes


def run_mapping_query(
    sql: str,
    codes: Mapping[int, SlotCodes],
    check: Callable[[Callable[[int], int]], Room] = lambda count: Room(),
    counting: int | None = None,
) -> WrittenMapping | StoredMapping:
    """The joined rows of the query's output, sorted by the rows of all slots, the largest first.

    So its values are gathered in the order in which they lie, and joined rows have the same order
    from run to run.

    `check` is called before, with a function that makes up to as many joined rows as it is
    given, to count them in `counting` bytes; what it raises ends the work. Ctrl-C ends the query.
    Raises ModelError where DuckDB's memory does not suffice, and where a disk is full.
    """
    sizes = {slot: len(own.fragment) for slot, own in codes.items()}
    with own_database() as con:
        _limit(con, counting)
        for slot, own in codes.items():
            con.register(f"slot_{slot}", _slot_table(own))

        def count(most: int) -> int:
            joined = con.sql(_unordered(sql)).limit(most).count("*")
            return int(interruptible(joined.fetchall, con.interrupt)[0][0])

        try:
            room = check(count)
            _limit(con, room.memory)
            relation = con.sql(_unordered(sql))
            columns = {int(name.removeprefix("slot_")): name for name in relation.columns}
            largest = sorted(columns, key=lambda slot: -sizes[slot])
            relation = relation.sort(*(columns[slot] for slot in largest))
            if room.scratch is not None:
                files = [room.scratch.numbers() for _ in columns]
                interruptible(partial(_store, relation, files), con.interrupt)
                return StoredMapping(dict(zip(columns, files, strict=True)), sizes)
            rows = interruptible(partial(_kept, relation), con.interrupt)
        except duckdb.OutOfMemoryException as error:
            raise ModelError(
                f"the join does not fit the coordinator's memory: {error}",
                hint="raise memory_limit, or join on a more selective key",
            ) from error
    return WrittenMapping(dict(zip(columns, rows, strict=True)), sizes)


def _limit(con: duckdb.DuckDBPyConnection, memory: int | None) -> None:
    if memory is not None:
        con.execute("SET memory_limit = ?", [f"{memory}B"])


def _store(relation: duckdb.DuckDBPyRelation, files: Sequence[StoredNumbers]) -> None:
    for batch in relation.to_arrow_reader(BATCH):
        for column, file in zip(batch.columns, files, strict=True):
            file.append(column.to_numpy())


def _kept(relation: duckdb.DuckDBPyRelation) -> list[Array]:
    """int32 (N,) of each column, which may be written to."""
    parts: list[list[Array]] = [[] for _ in relation.columns]
    for batch in relation.to_arrow_reader(BATCH):
        for column, own in zip(batch.columns, parts, strict=True):
            own.append(column.to_numpy().astype(np.int32))
    rows = []
    while parts:
        rows.append(np.concatenate(parts.pop(0) or [np.empty(0, np.int32)]))
    return rows


def _unordered(sql: str) -> str:
    """Rows need not be sorted to be counted, and are sorted otherwise to be kept."""
    query = parse_one(sql, dialect=DuckDB)
    query.set("order", None)
    return query.sql(dialect=DuckDB)


def _slot_codes(slot: SlotRows, replies: Mapping[Address, JoinKeys]) -> SlotCodes:
    """With keys still to be filled in."""
    rows = sum(slot.rows)
    if rows > LARGEST_TABLE:
        raise ModelError(
            f"a table of the join has {rows:,} rows, and may have {LARGEST_TABLE:,} at most",
            hint="filter or aggregate it in its party's database",
        )
    return SlotCodes(slot.fragment_of_rows(replies), {})


def _share_codes(
    slots: Sequence[SlotRows],
    replies: Mapping[Address, JoinKeys],
    found: Mapping[int, SlotCodes],
) -> None:
    """Give every slot the tags of its rows as codes that all holders of the key share."""
    for key in sorted({key for slot in slots for key in slot.keys}):
        holders = [
            (slot, address) for slot in slots if key in slot.keys for address in slot.addresses
        ]
        tags = [replies[a].tags[slot.keys.index(key)] for slot, a in holders]
        merged = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16),
            sum(len(t) for t in tags),
            [None, pa.py_buffer(np.ascontiguousarray(np.concatenate(tags)))],
        )
        numbers = merged.dictionary_encode().indices.to_numpy()
        parts: dict[int, list[Array]] = {slot.slot: [] for slot, _ in holders}
        start = 0
        for (slot, address), own in zip(holders, tags, strict=True):
            # the place after the last tag is NULL's
            values = np.append(numbers[start : start + len(own)], np.int32(-1))
            parts[slot.slot].append(_taken(values, replies[address].codes[slot.keys.index(key)]))
            start += len(own)
        for number, several in parts.items():
            found[number].keys[key] = several[0] if len(several) == 1 else np.concatenate(several)


def _taken(values: Array, places: Array) -> Array:
    """values[places], without a copy of the places as wider numbers."""
    found = np.empty(len(places), values.dtype)
    for start in range(0, len(places), BATCH):
        part = slice(start, start + BATCH)
        found[part] = values[places[part]]
    return found


def _slot_table(codes: SlotCodes) -> pa.Table:
    columns: dict[str, Any] = {
        "fragment": codes.fragment,
        "row": np.arange(len(codes.fragment), dtype=np.int32),
    }
    for key, own in codes.keys.items():
        columns[f"key_{key}"] = pa.array(own, mask=own < 0)
    return pa.table(columns)
