"""Hashed keys, NULL or not, joined as SQL joins the clear ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.contract.schema import Address, Client
from sqlfl.coordinator.join.mapping_query import SlotRows, key_codes, run_mapping_query
from sqlfl.messages import JoinKeys
from tests.open_databases import in_memory

Clear = Sequence[Sequence[int | None]]
"""Per client of a slot, the key of each row."""


def reply(slot: int, key: Sequence[int | None], fragments: int) -> JoinKeys:
    """As a client makes it: sorted tags, a code a row, NULL the code after the last."""
    tags = {v: hashlib.sha256(str(v).encode()).digest()[:16] for v in key if v is not None}
    order = sorted(tags.values())
    codes = [len(order) if v is None else order.index(tags[v]) for v in key]
    fragment = np.arange(len(key), dtype=np.uint16) % fragments if fragments > 1 else np.zeros(0)
    return JoinKeys(
        "r",
        slot,
        fragment.astype(np.uint16),
        (np.frombuffer(b"".join(order), np.uint8).reshape(-1, 16),),
        (np.array(codes, np.uint32),),
    )


def slots_and_replies(
    slots: Sequence[Clear], fragments: int = 1
) -> tuple[list[SlotRows], dict[Address, JoinKeys]]:
    """Every slot joins on key 0."""
    rows, replies = [], {}
    for number, clients in enumerate(slots):
        addresses: tuple[Address, ...] = tuple(
            (Client(f"p{number}", k), number) for k in range(len(clients))
        )
        counts = tuple(
            tuple(len(range(f, len(key), fragments)) for f in range(fragments)) for key in clients
        )
        indices = tuple(tuple(range(fragments)) for _ in clients)
        rows.append(SlotRows(number, addresses, indices, counts, (0,)))
        for address, key in zip(addresses, clients, strict=True):
            replies[address] = reply(number, key, fragments)
    return rows, replies


def joined(sql: str, slots: Sequence[Clear], fragments: int = 1) -> list[tuple[int, ...]]:
    """Rows of the mapping query, sorted."""
    rows, replies = slots_and_replies(slots, fragments)
    mapping = run_mapping_query(sql, key_codes(rows, replies)).written()
    return sorted(zip(*(mapping[n].tolist() for n in sorted(mapping)), strict=True))


def in_clear(sql: str, slots: Sequence[Clear], fragments: int = 1) -> list[tuple[int, ...]]:
    with in_memory() as con:
        for number, clients in enumerate(slots):
            keys = [v for key in clients for v in key]
            fragment = [k % fragments for key in clients for k in range(len(key))]
            table = pa.table({
                "fragment": pa.array(fragment, pa.uint16()),
                "row": pa.array(range(len(keys)), pa.int32()),
                "key_0": pa.array(keys, pa.int64()),
            })  # fmt: skip
            con.register(f"slot_{number}", table)
        return sorted(con.execute(sql).fetchall())


INNER = (
    "SELECT slot_0.row AS slot_0, slot_1.row AS slot_1 FROM slot_0 "
    "JOIN slot_1 ON slot_0.key_0 = slot_1.key_0"
)
OUTER = (
    "SELECT slot_0.row AS slot_0, coalesce(slot_1.row, -1) AS slot_1 FROM slot_0 "
    "LEFT JOIN slot_1 ON slot_0.key_0 = slot_1.key_0"
)
SLOTS: list[list[Clear]] = [
    [[[1, 2, 2, None]], [[2, 3, 1, 1]]],
    [[[None, 5, None], [1, None], [5, 7]], [[5, 5], [7, 9, 1]]],
    [[[None, None], [3]], [[3], [None, 3]]],
    [[[None, None]], [[None]]],
    [[[1, 2], []], [[], [2]]],
]


@pytest.mark.parametrize("slots", SLOTS, ids=str)
@pytest.mark.parametrize("sql", [INNER, OUTER], ids=["inner", "outer"])
@pytest.mark.parametrize("fragments", [1, 2])
def test_a_null_key_joins_nothing(sql: str, slots: list[Clear], fragments: int) -> None:
    if fragments > 1:
        sql = f"{sql} WHERE slot_0.fragment = 1"
    expected = in_clear(sql, slots, fragments)
    assert joined(sql, slots, fragments) == expected


def test_tags_that_begin_alike_are_of_different_keys() -> None:
    """As no keyed hashes are, but a party may send what it likes."""
    client = [Client("p", 0), Client("q", 0)]
    ends = ([0, 1, 2, 3], [1, 3, 4])
    rows = [
        SlotRows(n, ((client[n], n),), ((0,),), ((len(own),),), (0,)) for n, own in enumerate(ends)
    ]
    tags = [np.array([[7] * 15 + [end] for end in own], np.uint8) for own in ends]
    replies = {
        (client[n], n): JoinKeys(
            "r", n, np.zeros(0, np.uint16), (own,), (np.arange(len(own), dtype=np.uint32),)
        )
        for n, own in enumerate(tags)
    }
    left, right = (codes.keys[0] for codes in key_codes(rows, replies).values())
    equal = left[:, None] == right
    np.testing.assert_array_equal(equal, np.array(ends[0])[:, None] == np.array(ends[1]))
