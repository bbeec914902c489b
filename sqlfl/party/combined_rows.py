"""Rows of a party's clients as those of one client, with each client's places among them.

Their order discloses no more than that of one client's rows (`sqlfl.udfs.numbering.numbering`). So
it does not disclose which client has a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sqlfl.aggregation.slot_aggregation import merge_keys
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import SlotSpecification
from sqlfl.messages import JoinKeys
from sqlfl.udfs.numbering.numbering import shuffled


@dataclass(frozen=True, eq=False)
class CombinedRows:
    """The party's rows of a slot, client by client."""

    places: tuple[Array, ...]
    """int (n_q,): the place of each row of a client among the party's."""

    @classmethod
    def ordered(cls, sizes: Sequence[int], order: Array) -> CombinedRows:
        """Return the rows in this order. `order` (n,) numbers the clients' rows, one client after
        the other.
        """
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return cls(tuple(np.split(places, np.cumsum(sizes)[:-1])))

    @property
    def size(self) -> int:
        return sum(len(own) for own in self.places)

    def split(self, values: Array) -> list[Array]:
        """Return each client's part: (n, ...) -> (n_q, ...)."""
        return [values[own] for own in self.places]

    def gather(self, parts: Sequence[Array]) -> Array:
        """Return the clients' parts as one array: the reverse of `split`."""
        kind = np.result_type(*parts)
        whole = np.empty((self.size, *parts[0].shape[1:]), kind)
        for places, part in zip(self.places, parts, strict=True):
            whole[places] = part
        return whole

    def owned(self, rows: Array) -> tuple[Array, Array]:
        """Return the owner of each of `rows` (b,), and its number there. Raise InternalError for
        rows out of range.
        """
        if len(rows) and int(rows.max()) >= self.size:
            raise InternalError(f"row {rows.max()} of {self.size}")
        return self._owners[rows], self._own[rows]

    def chosen(self, rows: Array) -> tuple[CombinedRows, list[Array]]:
        """Return the clients' places among distinct `rows` (b,), and each client's own row numbers.
        Raise InternalError for rows out of range.
        """
        owners, numbers = self.owned(rows)
        places = tuple(np.flatnonzero(owners == number) for number in range(len(self.places)))
        return CombinedRows(places), [numbers[place] for place in places]

    def ascending(self, rows: Array) -> tuple[CombinedRows, list[Array]]:
        """Return the same, with each client's rows in its own order."""
        rows_of_clients, numbers = self.chosen(rows)
        orders = [np.argsort(part) for part in numbers]
        places = tuple(p[order] for p, order in zip(rows_of_clients.places, orders, strict=True))
        return CombinedRows(places), [
            part[order] for part, order in zip(numbers, orders, strict=True)
        ]

    def by_class(self, parts: Sequence[Array]) -> tuple[CombinedRows, Array]:
        """Return the rows that remain after clients have merged equal ones, and the class of each
        former row, numbered by first occurrence. The classes are empty if no client has merged any.

        parts: for each client its rows' classes (n_q,), or (0,) without merged rows.
        """
        if not any(part.size for part in parts):
            return self, np.zeros(0, np.uint32)
        known = [
            part.astype(np.int64) if part.size else np.arange(len(own))
            for part, own in zip(parts, self.places, strict=True)
        ]
        bounds = np.cumsum([0, *(int(part.max(initial=-1)) + 1 for part in known)])
        classes = self.gather(
            [part + start for part, start in zip(known, bounds[:-1], strict=True)]
        )
        first = np.unique(classes, return_index=True)[1]
        numbers = np.empty(len(first), np.int64)
        numbers[np.argsort(first)] = np.arange(len(first))
        return CombinedRows(tuple(np.split(numbers, bounds[1:-1]))), numbers[classes].astype(
            np.uint32
        )

    @cached_property
    def _owners(self) -> Array:
        return self.gather([
            np.full(len(own), number, np.int32) for number, own in enumerate(self.places)
        ])  # fmt: skip

    @cached_property
    def _own(self) -> npt.NDArray[np.int64]:
        return self.gather([np.arange(len(own)) for own in self.places])


def by_fragment(
    wanted: SlotSpecification, sizes: Sequence[dict[int, int]], chances: Sequence[bytes]
) -> CombinedRows:
    """Return the rows of a slot without keys. sizes: rows of each client's fragments."""
    numbers = [np.repeat(list(own), list(own.values())) for own in sizes]
    return _shuffled(
        wanted,
        [len(own) for own in numbers],
        np.concatenate(numbers).astype(np.int64),
        max(wanted.fragments) + 1,
        chances,
    )


def merge_join_keys(
    wanted: SlotSpecification,
    parts: Sequence[JoinKeys],
    sizes: Sequence[dict[int, int]],
    chances: Sequence[bytes],
) -> tuple[CombinedRows, JoinKeys]:
    """Return the order of the party's rows, and its merged reply with their keys."""
    merged = [
        merge_keys([(part.tags[k], part.codes[k]) for part in parts])
        for k in range(len(wanted.keys))
    ]
    counts = [sum(own.values()) for own in sizes]
    leading, size = None, 1
    if wanted.seed is None:
        tags, codes = max(merged, key=lambda key: len(key[0]))
        leading, size = np.concatenate(codes), len(tags) + 1
    rows = _shuffled(wanted, counts, leading, size, chances)
    fragments = np.zeros(0, np.uint16)
    if len(wanted.fragments) > 1:
        parts_of_fragments = [
            part.fragment
            if len(own) > 1
            else np.full(sum(own.values()), next(iter(own)), np.uint16)
            for part, own in zip(parts, sizes, strict=True)
        ]
        fragments = rows.gather(parts_of_fragments)
    reply = JoinKeys(
        parts[0].run,
        wanted.slot,
        fragments,
        tuple(tags for tags, _ in merged),
        tuple(rows.gather(codes) for _, codes in merged),
    )
    return rows, reply


def _shuffled(
    wanted: SlotSpecification,
    sizes: Sequence[int],
    leading: Array | None,
    size: int,
    chances: Sequence[bytes],
) -> CombinedRows:
    """Return rows ordered by `leading`, numbers below `size`, and by the clients' random bytes
    together.
    """
    salt = hashlib.sha256(b"".join(chances) + wanted.slot.to_bytes(4, "little")).digest()
    return CombinedRows.ordered(sizes, shuffled(sum(sizes), leading, size, salt))
