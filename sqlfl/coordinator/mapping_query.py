"""From hashed join keys to the table mapping: the coordinator's own query."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqlfl.errors import ModelError
from sqlfl.messages import JoinKeys
from sqlfl.transport.base import Address

Array = npt.NDArray[Any]
LARGEST = np.iinfo(np.int32).max


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


def run_mapping_query(
    sql: str,
    slots: Sequence[SlotRows],
    replies: Mapping[Address, JoinKeys],
    memory_limit: str | None,
    *,
    sorted: bool = False,
) -> dict[int, Array]:
    """The table mapping p_i of every slot in the query's output.

    Returns slot -> int32 (N,): row of the slot's concatenated snapshots per joined row. Joined rows
    come as the join makes them, which may differ from run to run, or `sorted` by the rows of all
    slots, the slot with most rows first: so its values are gathered in the order in which they lie.
    Raises ModelError where the join is larger than the mapping can hold.
    """
    codes = _join_codes(slots, replies)
    with own_database() as con:
        if memory_limit is not None:
            con.execute("SET memory_limit = ?", [memory_limit])
        for slot in slots:
            con.register(f"slot_{slot.slot}", _slot_table(slot, replies, codes))
        try:
            relation = con.sql(sql)
            if sorted:
                sizes = {f"slot_{slot.slot}": sum(slot.rows) for slot in slots}
                largest = np.argsort([-sizes[name] for name in relation.columns], kind="stable")
                relation = relation.sort(*(relation.columns[place] for place in largest))
            table = relation.to_arrow_table()
        except duckdb.OutOfMemoryException as error:
            raise ModelError(
                f"the join does not fit the coordinator's memory: {error}",
                hint="raise memory_limit, or join on a more selective key",
            ) from error
        except RuntimeError as error:  # how DuckDB reports a Ctrl-C that reached its query
            if "interrupted" in str(error):
                raise KeyboardInterrupt from error
            raise
    if table.num_rows > LARGEST:
        raise ModelError(f"the join has {table.num_rows} rows; at most {LARGEST} can be mapped")
    return {
        int(name.removeprefix("slot_")): table.column(name).to_numpy().astype(np.int32, copy=False)
        for name in table.column_names
    }


@contextmanager
def own_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty one. What it puts on disk is in a folder that nobody else can look into, and is gone
    at the end."""
    with tempfile.TemporaryDirectory(prefix="sqlfl-") as folder, duckdb.connect() as con:
        con.execute("SET temp_directory = ?", [folder])
        yield con


def _join_codes(
    slots: Sequence[SlotRows], replies: Mapping[Address, JoinKeys]
) -> dict[tuple[Address, int], pa.Array]:
    """Per client, slot and key: the tag of every row as a code common to all holders of the key.

    int32 (n,), null where the key is NULL.
    """
    holders: dict[int, list[tuple[Address, int]]] = {}
    for slot in slots:
        for position, key in enumerate(slot.keys):
            holders.setdefault(key, []).extend((a, position) for a in slot.addresses)
    codes: dict[tuple[Address, int], pa.Array] = {}
    for key, places in holders.items():
        tags = [replies[address].tags[position] for address, position in places]
        merged = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16),
            sum(len(t) for t in tags),
            [None, pa.py_buffer(np.ascontiguousarray(np.concatenate(tags)))],
        )
        numbers = merged.dictionary_encode().indices.to_numpy()
        start = 0
        for (address, position), own in zip(places, tags, strict=True):
            place = replies[address].codes[position].astype(np.int64)
            found = np.append(numbers[start : start + len(own)], np.int32(0))[place]
            codes[address, key] = pa.array(found, mask=place == len(own))
            start += len(own)
    return codes


def _slot_table(
    slot: SlotRows,
    replies: Mapping[Address, JoinKeys],
    codes: Mapping[tuple[Address, int], pa.Array],
) -> pa.Table:
    columns: dict[str, Array | pa.ChunkedArray] = {
        "fragment": slot.fragment_of_rows(replies),
        "row": np.arange(sum(slot.rows), dtype=np.int32),
    }
    for key in slot.keys:
        columns[f"key_{key}"] = pa.chunked_array([codes[a, key] for a in slot.addresses])
    return pa.table(columns)
