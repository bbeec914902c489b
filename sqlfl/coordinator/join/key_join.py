"""The join of hashed keys, whole or a part of it, wherever it is made.

A joined row of inner joins comes from one row of each slot, so that the join of a range of rows of
one slot with all of the others is a part of it. Ranges of the largest slot are taken: joined rows
are sorted by it first, and those of ranges one after the other have the order of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from sqlfl.coordinator.join.own_database import own_database

BATCH = 1 << 17
"""Joined rows that DuckDB hands over at once."""


@dataclass(frozen=True, eq=False)
class KeyJoin:
    """A query over tables `slot_<i>`, of which it gives the rows as columns of these names."""

    sql: str
    """Without an order."""
    order: tuple[str, ...]
    """The columns by which joined rows are sorted."""
    codes: Mapping[int, SlotCodes]
    """Of the rows of every slot."""
    memory: int | None = None
    """Bytes that DuckDB may take; None for its default."""
    first: Mapping[int, int] = field(default_factory=dict)
    """Slot -> the number of its first row, where that is not 0."""

    def parts(self, slot: int, count: int) -> list[KeyJoin]:
        """By ranges of the rows of a slot, which has as many at least; for as many DuckDBs at once,
        which share the memory."""
        own = self.codes[slot]
        rows = len(own.fragment)
        memory = None if self.memory is None else self.memory // count
        bounds = [rows * number // count for number in range(count + 1)]
        return [
            replace(
                self,
                codes={**self.codes, slot: _range(own, slice(a, b))},
                memory=memory,
                first={**self.first, slot: a},
            )
            for a, b in pairwise(bounds)
        ]

    def rows(self) -> list[Array]:
        """int32 (N,) of each column of the query, sorted, by a DuckDB of its own in one thread.

        Raises ModelError where its memory does not suffice.
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
    return SlotCodes(codes.fragment[rows], {key: own[rows] for key, own in codes.keys.items()})


def register(
    con: duckdb.DuckDBPyConnection, codes: Mapping[int, SlotCodes], first: Mapping[int, int]
) -> None:
    """The slots as tables."""
    for slot, own in codes.items():
        con.register(f"slot_{slot}", _slot_table(own, first.get(slot, 0)))


def _slot_table(codes: SlotCodes, first: int) -> pa.Table:
    columns: dict[str, Any] = {
        "fragment": codes.fragment,
        "row": np.arange(first, first + len(codes.fragment), dtype=np.int32),
    }
    for key, own in codes.keys.items():
        columns[f"key_{key}"] = pa.array(own, mask=own < 0)
    return pa.table(columns)


def limit(con: duckdb.DuckDBPyConnection, memory: int | None) -> None:
    if memory is not None:
        con.execute("SET memory_limit = ?", [f"{memory}B"])


def kept(relation: duckdb.DuckDBPyRelation) -> list[Array]:
    """int32 (N,) of each column, which may be written to."""
    parts: list[list[Array]] = [[] for _ in relation.columns]
    for batch in relation.to_arrow_reader(BATCH):
        for column, own in zip(batch.columns, parts, strict=True):
            own.append(column.to_numpy().astype(np.int32))
    rows = []
    while parts:
        rows.append(np.concatenate(parts.pop(0) or [np.empty(0, np.int32)]))
    return rows


def together(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """What parts of a join gave, in their order: of each column one array."""
    return [np.concatenate(own) for own in zip(*parts, strict=True)]


def too_large(error: duckdb.OutOfMemoryException) -> ModelError:
    return ModelError(
        f"the join does not fit the coordinator's memory: {error}",
        hint="raise memory_limit, or join on a more selective key",
    )
