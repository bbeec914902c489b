"""From hashed join keys to the table mapping: the coordinator's own query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from sqlglot import parse_one
from sqlglot.dialects.duckdb import DuckDB

from sqlfl.arrays import Array
from sqlfl.coordinator.join_size import SlotCodes
from sqlfl.coordinator.own_database import own_database
from sqlfl.coordinator.row_mapping import WrittenMapping
from sqlfl.errors import ModelError
from sqlfl.interrupts import interruptible
from sqlfl.messages import JoinKeys
from sqlfl.options.training import LARGEST_TABLE
from sqlfl.schema import Address


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
    memory_limit: str | None,
    check: Callable[[Callable[[int], int]], None] = lambda count: None,
) -> WrittenMapping:
    """The joined rows of the query's output, sorted by the rows of all slots, the largest first.

    So its values are gathered in the order in which they lie, and joined rows have the same order
    from run to run.

    `check` is called before, with a function that makes up to as many joined rows as it is
    given, to count them; what it raises ends the work. Ctrl-C ends the query. Raises ModelError
    where DuckDB's memory does not suffice.
    """
    sizes = {slot: len(own.fragment) for slot, own in codes.items()}
    with own_database() as con:
        if memory_limit is not None:
            con.execute("SET memory_limit = ?", [memory_limit])
        for slot, own in codes.items():
            con.register(f"slot_{slot}", _slot_table(own))

        def count(most: int) -> int:
            joined = con.sql(_unordered(sql)).limit(most).count("*")
            return int(interruptible(joined.fetchall, con.interrupt)[0][0])

        try:
            check(count)
            relation = con.sql(_unordered(sql))
            columns = {int(name.removeprefix("slot_")): name for name in relation.columns}
            largest = sorted(columns, key=lambda slot: -sizes[slot])
            relation = relation.sort(*(columns[slot] for slot in largest))
            table = interruptible(relation.to_arrow_table, con.interrupt)
        except duckdb.OutOfMemoryException as error:
            raise ModelError(
                f"the join does not fit the coordinator's memory: {error}",
                hint="raise memory_limit, or join on a more selective key",
            ) from error
    rows = {slot: _whole(table.column(name)) for slot, name in columns.items()}
    return WrittenMapping(rows, sizes)


def _whole(column: Any) -> Array:
    """int32 (N,), which may be written to."""
    return np.array(column.to_numpy(), np.int32)


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
            place = replies[address].codes[slot.keys.index(key)].astype(np.int64)
            # the place after the last tag is NULL's
            parts[slot.slot].append(np.append(numbers[start : start + len(own)], -1)[place])
            start += len(own)
        for number, several in parts.items():
            found[number].keys[key] = np.concatenate(several).astype(np.int32, copy=False)


def _slot_table(codes: SlotCodes) -> pa.Table:
    columns: dict[str, Any] = {
        "fragment": codes.fragment,
        "row": np.arange(len(codes.fragment), dtype=np.int32),
    }
    for key, own in codes.keys.items():
        columns[f"key_{key}"] = pa.array(own, mask=own < 0)
    return pa.table(columns)
