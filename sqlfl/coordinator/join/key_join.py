"""Join of hashed keys, as a whole or in parts, on any machine.

A joined row of inner joins comes from one row of each slot. So the join of a range of one slot's
rows with all other slots is a part of the join. The ranges are those of the largest slot. Joined
rows are sorted by this slot first, so the parts of consecutive ranges have the order of the whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.errors import ModelError
from sqlfl.base.interrupts import interruptible
from sqlfl.coordinator.join.join_size import SlotCodes

_idle: list[tuple[int, duckdb.DuckDBPyConnection]] = []
"""At most one empty connection, with the process that opened it. Opening a connection takes as long
as planning a statement.
"""


@contextmanager
def own_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield an empty database. Its files on disk are in a private folder, which is deleted at the
    end. Register tables on it; they are forgotten at the end.
    """
    with tempfile.TemporaryDirectory(prefix="sqlfl-") as folder:
        con = _opened()
        try:
            con.execute("SET temp_directory = ?", [folder])
            with closing(con.cursor()) as cursor:
                yield cursor
            whole = _emptied(con)
        except BaseException:
            con.close()
            raise
        if whole and not _idle:
            _idle.append((os.getpid(), con))
        else:
            con.close()


def _opened() -> duckdb.DuckDBPyConnection:
    try:
        process, con = _idle.pop()
    except IndexError:
        return duckdb.connect()
    return con if process == os.getpid() else duckdb.connect()


def _emptied(con: duckdb.DuckDBPyConnection) -> bool:
    """Return True if the connection is as it was when opened. It is not if it has put data on
    disk.
    """
    con.execute("RESET memory_limit; RESET threads")
    try:
        con.execute("SET temp_directory = ''")
    except duckdb.Error:
        return False
    return True


BATCH = 1 << 17
"""Joined rows that DuckDB hands over at once."""


@dataclass(frozen=True, eq=False)
class KeyJoin:
    """Query over tables `slot_<i>`. It returns the rows as columns of these names."""

    sql: str
    """The query, without an order."""
    order: tuple[str, ...]
    """Columns by which joined rows are sorted."""
    codes: Mapping[int, SlotCodes]
    """Codes of the rows of every slot."""
    memory: int | None = None
    """Bytes that DuckDB may use; None for its default."""
    first: Mapping[int, int] = field(default_factory=dict)
    """Slot -> the number of its first row, if that is not 0."""

    def parts(self, slot: int, count: int) -> list[KeyJoin]:
        """Return `count` parts by ranges of a slot's rows. The slot must have at least as many
        rows. The parts' DuckDBs run at the same time and share the memory.
        """
        slot_codes = self.codes[slot]
        rows = len(slot_codes.fragment)
        memory = None if self.memory is None else self.memory // count
        bounds = [rows * number // count for number in range(count + 1)]
        return [
            replace(
                self,
                codes={**self.codes, slot: _range(slot_codes, slice(a, b))},
                memory=memory,
                first={**self.first, slot: a},
            )
            for a, b in pairwise(bounds)
        ]

    def rows(self) -> list[Array]:
        """Return each column of the query, sorted: int32 (N,). It uses a DuckDB of its own with one
        thread.

        Raise ModelError if its memory does not suffice.
        """
        with own_database() as con:
            con.execute("SET threads = 1")
            limit(con, self.memory)
            register(con, self.codes, self.first)
            relation = con.sql(self.sql).sort(*self.order)
            try:
                return interruptible(partial(kept, relation), con.interrupt)
            except duckdb.OutOfMemoryException as error:
                raise too_large(error) from error


def _range(codes: SlotCodes, rows: slice) -> SlotCodes:
    return SlotCodes(
        codes.fragment[rows], {key: values[rows] for key, values in codes.keys.items()}
    )


def register(
    con: duckdb.DuckDBPyConnection, codes: Mapping[int, SlotCodes], first: Mapping[int, int]
) -> None:
    """Register the slots as tables."""
    for slot, slot_codes in codes.items():
        con.register(f"slot_{slot}", _slot_table(slot_codes, first.get(slot, 0)))


def _slot_table(codes: SlotCodes, first: int) -> pa.Table:
    columns: dict[str, Any] = {
        "fragment": codes.fragment,
        "row": np.arange(first, first + len(codes.fragment), dtype=np.int32),
    }
    for key, values in codes.keys.items():
        columns[f"key_{key}"] = pa.array(values, mask=values < 0)
    return pa.table(columns)


def limit(con: duckdb.DuckDBPyConnection, memory: int | None) -> None:
    if memory is not None:
        con.execute("SET memory_limit = ?", [f"{memory}B"])


def kept(relation: duckdb.DuckDBPyRelation) -> list[Array]:
    """Return each column as a writable array: int32 (N,)."""
    parts: list[list[Array]] = [[] for _ in relation.columns]
    for batch in relation.to_arrow_reader(BATCH):
        for column, batches in zip(batch.columns, parts, strict=True):
            batches.append(column.to_numpy().astype(np.int32))
    rows = []
    while parts:
        rows.append(np.concatenate(parts.pop(0) or [np.empty(0, np.int32)]))
    return rows


def together(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Return one array for each column, from the parts of a join in their order."""
    return [np.concatenate(column_parts) for column_parts in zip(*parts, strict=True)]


def too_large(error: duckdb.OutOfMemoryException) -> ModelError:
    return ModelError(
        f"the join does not fit the coordinator's memory: {error}",
        hint="raise memory_limit, or join on a more selective key",
    )
