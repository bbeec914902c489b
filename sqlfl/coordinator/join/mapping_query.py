"""Table mapping from hashed join keys, by the coordinator's own query. The planner writes the
query, LEFT JOINs included (`sqlfl.planner.query.emit.mapping_query`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import duckdb
import numpy as np
from sqlglot import parse_one
from sqlglot.dialects.duckdb import DuckDB

from sqlfl.base.arrays import Array, byte_order, taken
from sqlfl.base.errors import ModelError
from sqlfl.base.interrupts import interruptible
from sqlfl.contract.schema import Address
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.key_join import (
    BATCH,
    KeyJoin,
    kept,
    limit,
    own_database,
    register,
    too_large,
)
from sqlfl.coordinator.join.row_mapping import Scratch, StoredMapping, StoredNumbers, WrittenMapping
from sqlfl.messages import JoinKeys
from sqlfl.options.training import MAX_TABLE_ROWS

SEVERAL = 1 << 20
"""Joined rows from which workers make the join. For fewer, sending the keys takes longer than
joining them.
"""


@dataclass(frozen=True, eq=False)
class SlotRows:
    """Rows of a slot's snapshots, as the coordinator knows them before the join."""

    slot: int
    addresses: tuple[Address, ...]
    """Clients of the slot, in order."""
    fragments: tuple[tuple[int, ...], ...]
    """For each client, its fragments of the slot."""
    fragment_rows: tuple[tuple[int, ...], ...]
    """For each client, the number of rows of each of these fragments."""
    keys: tuple[int, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """Return the number of rows of each client's snapshot."""
        return tuple(sum(counts) for counts in self.fragment_rows)

    @property
    def offsets(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)

    def fragment_of_rows(self, replies: Mapping[Address, JoinKeys]) -> Array:
        """Return the fragment of each row of the slot's concatenated snapshots: uint16 (n,)."""
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
    """Memory and files that the join may use."""

    memory: int | None = None
    """Bytes that DuckDB may use; it puts the rest on disk. None for its default."""
    scratch: Scratch | None = None
    """Files for the joined rows; None to keep them in memory."""
    rows: int = 0
    """Number of joined rows, or a bound."""


def key_codes(
    slots: Sequence[SlotRows], replies: Mapping[Address, JoinKeys]
) -> dict[int, SlotCodes]:
    """Return slot -> its rows, with the tags of their keys as codes that all slots share.

    Raise ModelError if a slot has more rows than the mapping can number.
    """
    codes = {slot.slot: _slot_codes(slot, replies) for slot in slots}
    _share_codes(slots, replies, codes)
    return codes


def run_mapping_query(
    sql: str,
    codes: Mapping[int, SlotCodes],
    check: Callable[[Callable[[int], int]], Room] = lambda count: Room(),
    counting: int | None = None,
    executor: Executor | None = None,
    inner: bool = False,
) -> WrittenMapping | StoredMapping:
    """Return the joined rows of the query's output, sorted by the rows of all slots, the largest
    first.

    So values are gathered in the order in which they lie in memory, and joined rows have the same
    order in each run.

    check: called first, with a function that makes up to a given number of joined rows in
    `counting` bytes and returns their number. An error from it ends the work. executor, inner: the
    executor's workers make the join if all joins are `inner`, rows are many, and they stay in
    memory.

    Ctrl-C ends the query. Raise ModelError if DuckDB's memory does not suffice, or if a disk is
    full.
    """
    sizes = {slot: len(slot_codes.fragment) for slot, slot_codes in codes.items()}
    with own_database() as con:
        limit(con, counting)
        register(con, codes, {})

        def count(most: int) -> int:
            joined = con.sql(_unordered(sql)).limit(most).count("*")
            return int(interruptible(joined.fetchall, con.interrupt)[0][0])

        try:
            room = check(count)
            limit(con, room.memory)
            relation = con.sql(_unordered(sql))
            columns = {int(name.removeprefix("slot_")): name for name in relation.columns}
            largest = sorted(columns, key=lambda slot: -sizes[slot])
            order = tuple(columns[slot] for slot in largest)
            relation = relation.sort(*order)
            if room.scratch is not None:
                files = [room.scratch.numbers() for _ in columns]
                interruptible(partial(_store, relation, files), con.interrupt)
                return StoredMapping(dict(zip(columns, files, strict=True)), sizes)
            rows = None
            if executor is not None and inner and room.rows >= SEVERAL:
                join = KeyJoin(_unordered(sql), order, codes, room.memory)
                rows = executor.join(join, largest[0])
            if rows is None:
                rows = interruptible(partial(kept, relation), con.interrupt)
        except duckdb.OutOfMemoryException as error:
            raise too_large(error) from error
    return WrittenMapping(dict(zip(columns, rows, strict=True)), sizes)


def _store(relation: duckdb.DuckDBPyRelation, files: Sequence[StoredNumbers]) -> None:
    for batch in relation.to_arrow_reader(BATCH):
        for column, file in zip(batch.columns, files, strict=True):
            file.append(column.to_numpy())


def _unordered(sql: str) -> str:
    """Return the query without its order. Counting needs none, and kept rows are sorted in another
    way.
    """
    query = parse_one(sql, dialect=DuckDB)
    query.set("order", None)
    return query.sql(dialect=DuckDB)


def _slot_codes(slot: SlotRows, replies: Mapping[Address, JoinKeys]) -> SlotCodes:
    """Return the rows of a slot, without the codes of their keys."""
    rows = sum(slot.rows)
    if rows > MAX_TABLE_ROWS:
        raise ModelError(
            f"a table of the join has {rows:,} rows, and may have {MAX_TABLE_ROWS:,} at most",
            hint="filter or aggregate it in its party's database",
        )
    return SlotCodes(slot.fragment_of_rows(replies), {})


def _share_codes(
    slots: Sequence[SlotRows],
    replies: Mapping[Address, JoinKeys],
    codes: Mapping[int, SlotCodes],
) -> None:
    """Fill in the keys of every slot as codes that all holders of the key share."""
    for key in sorted({key for slot in slots for key in slot.keys}):
        holders = [
            (slot, address) for slot in slots if key in slot.keys for address in slot.addresses
        ]
        tags = [replies[a].tags[slot.keys.index(key)] for slot, a in holders]
        numbers = _numbered(np.concatenate(tags))
        parts: dict[int, list[Array]] = {slot.slot: [] for slot, _ in holders}
        start = 0
        for (slot, address), client_tags in zip(holders, tags, strict=True):
            # the place after the last tag stands for NULL
            values = np.append(numbers[start : start + len(client_tags)], np.int32(-1))
            parts[slot.slot].append(taken(values, replies[address].codes[slot.keys.index(key)]))
            start += len(client_tags)
        for number, several in parts.items():
            codes[number].keys[key] = several[0] if len(several) == 1 else np.concatenate(several)


def _numbered(tags: Array) -> Array:
    """Return one number from 0 for equal tags: uint8 (n, 16) -> int32 (n,). Each client's tags are
    ascending.
    """
    order = byte_order(tags, runs=True)
    new = np.ones(len(tags), bool)
    halves = [np.ascontiguousarray(half)[order] for half in tags.view(np.uint64).T]
    new[1:] = (halves[0][1:] != halves[0][:-1]) | (halves[1][1:] != halves[1][:-1])
    numbers = np.empty(len(tags), np.int32)
    numbers[order] = np.cumsum(new, dtype=np.int32) - 1
    return numbers
