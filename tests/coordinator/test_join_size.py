"""The number of joined rows, counted from codes, is that of the query that makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from random import Random

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import ModelError, PlanError
from sqlfl.coordinator.join.join_size import SlotCodes, join_size, once_each
from sqlfl.planner.query.emit import mapping_query
from sqlfl.planner.query.ucq import Ucq
from tests.depth import SEED, THOROUGH
from tests.planner.conftest import DatabaseCatalog
from tests.planner.query.test_meaning import plan
from tests.planner.trees import catalog_of, random_query, random_union, random_using

COORDINATOR = duckdb.connect(config={"threads": 1})


@pytest.fixture(scope="module")
def catalog() -> Iterator[DatabaseCatalog]:
    found = catalog_of(1)
    yield found
    for con in found.databases.values():
        con.close()


def random_codes(ucq: Ucq, seed: int, most: int = 12, values: int = 4) -> dict[int, SlotCodes]:
    """Rows of each slot in any of its fragments; a virtual one has a row at most."""
    chance = np.random.default_rng(seed)
    found = {}
    for slot in ucq.slots:
        real = [f.index for f in slot.fragments if not f.virtual]
        fragment = chance.choice(real, chance.integers(0, most)) if real else np.zeros(0, np.int64)
        virtual = [f.index for f in slot.fragments if f.virtual and chance.random() < 0.8]
        fragment = np.concatenate([fragment, np.array(virtual, np.int64)])
        keys = {key: chance.integers(-1, values, len(fragment)) for key in slot.keys}
        found[slot.index] = SlotCodes(fragment, keys)
    return found


def counted(ucq: Ucq, slots: dict[int, SlotCodes]) -> int:
    """By the coordinator's query itself."""
    return int(_asked(ucq, slots, "count(*)")[0][0])


def _asked(ucq: Ucq, slots: dict[int, SlotCodes], shown: str) -> list[tuple[int, ...]]:
    """The values of the coordinator's query over these rows, sorted."""
    with closing(COORDINATOR.cursor()) as con:
        for number, slot in slots.items():
            columns = {
                "fragment": pa.array(slot.fragment, pa.uint16()),
                "row": pa.array(range(len(slot.fragment)), pa.int32()),
            }
            for key, codes in slot.keys.items():
                columns[f"key_{key}"] = pa.array(codes, pa.int32(), mask=codes < 0)
            con.register(f"slot_{number}", pa.table(columns))
        query = mapping_query(ucq).sql(dialect="duckdb")
        return sorted(con.execute(f"SELECT {shown} FROM ({query})").fetchall())


def planned(catalog: DatabaseCatalog, text: str) -> Ucq | None:
    try:
        return plan(catalog, text)
    except PlanError:
        return None


@pytest.mark.parametrize("kind", [random_query, random_union, random_using])
def test_it_is_what_the_query_gives(kind: object, catalog: DatabaseCatalog) -> None:
    exact = bounds = 0
    for seed in range(200 if THOROUGH else 6):
        ucq = planned(catalog, kind(Random(f"{SEED} {seed}")))  # type: ignore[operator]
        if ucq is None:
            continue
        for number in range(3):
            slots = random_codes(ucq, SEED + 7 * seed + number)
            size, rows = join_size(ucq, slots), counted(ucq, slots)
            exact += size.exact
            bounds += not size.exact
            assert size.rows == rows if size.exact else size.rows >= rows, (seed, number, size)
    if THOROUGH:
        assert exact > 3 * bounds


def test_a_row_of_a_subquery_counts_if_the_subquery_joins_it(catalog: DatabaseCatalog) -> None:
    """v: one of equal keys. u: one of equal keys outside, among the rows with a partner in v."""
    ucq = plan(catalog, "SELECT t.x FROM red.t t WHERE t.k IN (SELECT u.k FROM blue.t u "
                        "JOIN grey.t v ON v.m = u.m)")  # fmt: skip
    keys = {
        0: {0: np.array([0, 1, 2, 2, 3])},
        1: {0: np.array([0, 0, 0, 1, 2, 2]), 1: np.array([5, 6, 6, 4, 6, 7])},
        2: {1: np.array([6, 7, 6, 7, 9])},
    }
    codes = {
        number: SlotCodes(np.zeros(len(next(iter(own.values()))), np.int64), own)
        for number, own in keys.items()
    }
    reduced = once_each(ucq, codes)
    assert reduced[2].keys[1].tolist() == [6, 7, -1, -1, 9]
    assert reduced[1].keys[0].tolist() == [-1, 0, -1, -1, 2, -1]
    assert reduced[1].keys[1].tolist() == [-1, 6, -1, -1, 6, -1]
    assert _asked(ucq, reduced, "slot_0") == [(0,), (2,), (3,)]
    assert join_size(ucq, reduced).rows == 3
    assert set(_asked(ucq, codes, "slot_0")) == {(0,), (2,), (3,)}
    assert counted(ucq, codes) == 12


def test_all_tables_of_a_subquery_have_each_key_once_if_one_has_an_owner(
    catalog: DatabaseCatalog,
) -> None:
    ucq = plan(catalog, "SELECT t.x FROM red.t t WHERE t.k IN (SELECT u.k FROM blue.t u "
                        "JOIN grey.t v ON v.m = u.m)")  # fmt: skip
    one = np.zeros(2, np.int64)
    keys = {
        0: {0: np.array([0, 1])},
        1: {0: np.array([0, 1]), 1: np.array([2, 2])},
        2: {1: np.array([2, 2])},
    }
    codes = {number: SlotCodes(one, own) for number, own in keys.items()}
    reduced = once_each(ucq, codes)
    assert reduced[2].keys[1].tolist() == [2, -1]
    assert reduced[1].keys[0].tolist() == [0, 1]
    slots = list(ucq.slots)
    slots[1] = replace(slots[1], governed=True)
    with pytest.raises(ModelError, match="table v has several rows with one key, and the owner of "
                       "table u has policies"):  # fmt: skip
        once_each(replace(ucq, slots=tuple(slots)), codes)
