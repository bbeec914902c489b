"""The number of joined rows, counted from codes, is that of the query that makes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import PlanError
from sqlfl.coordinator.join.join_size import SlotCodes, join_size
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
        row = con.execute(f"SELECT count(*) FROM ({query})").fetchone()
    assert row is not None
    return int(row[0])


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
