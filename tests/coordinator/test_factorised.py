"""Joined rows that are not written down are those of the query that makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from sqlglot import exp

from sqlfl.contract.schema import Client
from sqlfl.coordinator.join.factorised import Factorised, factorised_join
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.planner.query.emit import mapping_query
from sqlfl.planner.query.ucq import Block, Fragment, Join, Slot, Ucq
from tests.coordinator.test_join_size import COORDINATOR, planned, random_codes
from tests.depth import SEED, THOROUGH
from tests.planner.conftest import DatabaseCatalog
from tests.planner.trees import catalog_of, random_query, random_union, random_using


@pytest.fixture(scope="module")
def catalog() -> Iterator[DatabaseCatalog]:
    found = catalog_of(1)
    yield found
    for con in found.databases.values():
        con.close()


def by_query(ucq: Ucq, slots: dict[int, SlotCodes]) -> np.ndarray:
    """(N, slots), sorted."""
    with closing(COORDINATOR.cursor()) as con:
        for number, slot in slots.items():
            columns = {
                "fragment": pa.array(slot.fragment, pa.uint16()),
                "row": pa.array(range(len(slot.fragment)), pa.int32()),
            }
            for key, codes in slot.keys.items():
                columns[f"key_{key}"] = pa.array(codes, pa.int32(), mask=codes < 0)
            con.register(f"slot_{number}", pa.table(columns))
        table = con.sql(mapping_query(ucq).sql(dialect="duckdb")).to_arrow_table()
    rows = np.stack([column.to_numpy() for column in table.columns], axis=1)
    return rows[np.lexsort(rows.T)]


def written(found: Factorised, size: int) -> np.ndarray:
    """(N, slots), sorted."""
    parts = [np.stack(rows, axis=1) for rows in found.chunks(size)]
    rows = np.concatenate(parts) if parts else np.zeros((0, len(found.slots)), int)
    assert all(len(part) <= size for part in parts)
    return rows[np.lexsort(rows.T)]


def check(ucq: Ucq, slots: dict[int, SlotCodes], size: int) -> bool:
    found = factorised_join(ucq, slots)
    if found is None:
        return False
    expected = by_query(ucq, slots)
    assert found.total == len(expected)
    np.testing.assert_array_equal(written(found, size), expected)
    active = {}
    for place, slot in enumerate(found.slots):
        counts = np.bincount(expected[:, place], minlength=found.sizes[place])
        np.testing.assert_array_equal(found.counts(slot), counts)
        active[slot] = np.flatnonzero(counts)
    fewer = found.renumbered(active)
    by_slot = zip(found.slots, expected.T, strict=True)
    places = [np.searchsorted(active[slot], rows) for slot, rows in by_slot]
    renumbered = np.stack(places, axis=1)
    np.testing.assert_array_equal(written(fewer, size), renumbered[np.lexsort(renumbered.T)])
    assert fewer.sizes == tuple(len(active[slot]) for slot in found.slots)
    for slot in found.slots:
        np.testing.assert_array_equal(fewer.counts(slot), found.counts(slot)[active[slot]])
    return True


@pytest.mark.parametrize("kind", [random_query, random_union, random_using])
def test_any_query(kind: object, catalog: DatabaseCatalog) -> None:
    done = outer = 0
    for seed in range(200 if THOROUGH else 8):
        ucq = planned(catalog, kind(Random(f"{SEED} {seed}")))  # type: ignore[operator]
        if ucq is None:
            continue
        for number in range(3):
            slots = random_codes(ucq, SEED + 7 * seed + number)
            found = check(ucq, slots, (1, 5, 1000)[number])
            done += found
            outer += found and any(block.lefts for block in ucq.blocks)
    assert (done and outer) or not THOROUGH


def query(joins: Sequence[tuple[int, int, int]], fragments: int = 1, blocks: int = 1) -> Ucq:
    """Inner joins (left, right, key) of slots; blocks take all fragments, or one each."""
    count = 1 + max((slot for left, right, _ in joins for slot in (left, right)), default=0)
    select = exp.select("1")
    slots = []
    for number in range(count):
        keys = tuple(sorted({k for left, right, k in joins if number in (left, right)}))
        own = tuple(
            Fragment(f, Client("p", 0), select, None) for f in range(max(fragments, blocks))
        )
        slots.append(Slot(number, f"t{number}", (), False, (0,), keys, own))
    found = []
    for block in range(blocks):
        taken = tuple(range(fragments)) if blocks == 1 else (block,)
        members = tuple((slot.index, taken) for slot in slots)
        found.append(Block(members, tuple(Join(*join) for join in joins)))
    return Ucq(tuple(slots), (), tuple(found), (), (), None, None)


TREES = {
    "one": [],
    "two": [(0, 1, 0)],
    "chain": [(0, 1, 0), (1, 2, 1), (2, 3, 2)],
    "star": [(0, 1, 0), (0, 2, 1), (0, 3, 2)],
    "same key": [(0, 1, 0), (0, 2, 0), (1, 3, 0)],
    "two keys": [(0, 1, 0), (0, 1, 1), (1, 2, 1), (2, 3, 3)],
    "branches": [(0, 1, 0), (1, 2, 1), (1, 3, 2), (0, 4, 3), (4, 5, 4)],
    "covered": [(0, 1, 0), (1, 2, 1), (2, 0, 0)],
    "cross": [(0, 1, 0), (2, 3, 1)],
}


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("name", TREES)
def test_trees(name: str, blocks: int) -> None:
    ucq = query(TREES[name], 1, blocks)
    for seed in range(60 if THOROUGH else 8):
        most, values = ((12, 4), (4, 40), (30, 1 if len(ucq.slots) < 4 else 4))[seed % 3]
        slots = random_codes(ucq, SEED + seed, most, values)
        if seed % 4 == 0 and len(ucq.slots) > 1:  # a slot of which each key has one row at most
            last = len(ucq.slots) - 1
            keys = {key: np.arange(len(c)) for key, c in slots[last].keys.items()}
            slots[last] = SlotCodes(slots[last].fragment, keys)
        assert check(ucq, slots, (1, 3, 7, 1000)[seed % 4])


def test_cycles_and_more_rows_than_int64_counts_are_for_the_query() -> None:
    cycle = query([(0, 1, 0), (1, 2, 1), (2, 0, 2)])
    assert factorised_join(cycle, random_codes(cycle, 1)) is None
    wide = query([(n, n + 1, 0) for n in range(8)])
    one = SlotCodes(np.zeros(300, np.uint16), {0: np.zeros(300, np.int32)})
    assert factorised_join(wide, dict.fromkeys(range(9), one)) is None
    seven = query([(n, n + 1, 0) for n in range(6)])
    found = factorised_join(seven, dict.fromkeys(range(7), one))
    assert found is not None
    assert found.total == 300**7
    assert found.counts(3)[0] == 300**6


def test_rows_are_in_the_order_of_the_largest_slot() -> None:
    rng = np.random.default_rng(SEED)
    ucq = query(TREES["star"])
    sizes = (40, 300, 20, 10)
    slots = {
        slot.index: SlotCodes(
            np.zeros(size, np.uint16), {key: rng.integers(-1, 12, size) for key in slot.keys}
        )
        for slot, size in zip(ucq.slots, sizes, strict=True)
    }
    found = factorised_join(ucq, slots)
    assert found is not None
    largest = np.concatenate([rows[1] for rows in found.chunks(50)])
    assert (np.diff(largest) >= 0).all()
    assert len(largest) == found.total > 100
