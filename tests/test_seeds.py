"""With a seed runs repeat: row ids, the mapping, whole models in two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import SlotSpecification
from sqlfl.coordinator.join.mapping_query import key_codes, run_mapping_query
from sqlfl.udfs.numbering.rows import Snapshot, split_of
from tests import federations
from tests.conftest import Open
from tests.coordinator.test_mapping_query import INNER, slots_and_replies
from tests.depth import THOROUGH
from tests.seeded import CASES, trained
from tests.strategies import Case, cases
from tests.udfs.snapshots import activate_all, specification, take

ROOT = Path(__file__).parent.parent
ROWS = 4000
NOISE = 6 / np.sqrt(ROWS)
"""The correlation of two random orders has deviation 1/√n."""

# -- row ids --------------------------------------------------------------------------------------

COLUMNS = (
    "CREATE TABLE t AS SELECT i AS id, i % 3 AS k, i % 50 AS g, CASE WHEN i % 7 > 0 THEN i / 3 END "
    "AS x, CASE WHEN i % 5 > 0 THEN 'c' || i % 11 END AS c, CASE WHEN i % 9 > 0 THEN "
    "[i, CASE WHEN i % 4 > 0 THEN sin(i) END, -i]::DOUBLE[3] END AS v, i % 4 = 1 AS b, "
    "CASE WHEN i % 13 > 0 THEN i / 7 END AS y, i % 2 AS part FROM range(700) r(i)"
)
"""NULLs in all that may have them."""
TWICE = "INSERT INTO t SELECT * FROM t WHERE id % 6 = 0"
SEEDED: dict[str, tuple[SlotSpecification, list[str]]] = {
    "narrow": (specification(("x", "numeric"), seed=1), ["SELECT x FROM t"]),
    "no column at all": (specification(seed=1), ["SELECT 1 AS sqlfl_row FROM t"]),
    "a key and a target": (
        specification(("x", "numeric"), target=True, join=(("BIGINT",),), seed=1),
        ["SELECT x, y AS sqlfl_target, k AS sqlfl_key_0_0 FROM t"],
    ),
    "classes": (
        specification(("c", "category"), target=True, classes=True, seed=1),
        ["SELECT c, b AS sqlfl_target FROM t"],
    ),
    "NULL keys of two parts": (
        specification(
            ("c", "category"), join=(("BIGINT", "VARCHAR"), ("DOUBLE",)), nullable=(0, 1), seed=1
        ),
        ["SELECT c, g AS sqlfl_key_0_0, c AS sqlfl_key_0_1, x AS sqlfl_key_1_0 FROM t"],
    ),
    "arrays": (
        specification(("v", "array", 3), ("b", "boolean"), join=(("BIGINT",),), seed=1),
        ["SELECT v, b, k AS sqlfl_key_0_0 FROM t"],
    ),
    "weights and validation": (
        specification(("x", "numeric"), target=True, weight=True, split=0.3, seed=1),
        ["SELECT x, y AS sqlfl_target, x AS sqlfl_weight, struct_pack(id, c) AS sqlfl_base FROM t"],
    ),
    "fragments": (
        specification(("x", "numeric"), fragments=(0, 2), seed=1),
        ["SELECT x FROM t WHERE part = 0", "SELECT x FROM t WHERE part = 1"],
    ),
    "fragments with keys and links": (
        specification(
            ("x", "numeric"),
            target=True,
            join=(("BIGINT",),),
            fragments=(0, 1),
            links=((0, 1),),
            seed=1,
        ),
        ["SELECT x, y AS sqlfl_target, g AS sqlfl_key_0_0, part = 0 AS sqlfl_kept FROM t"] * 2,
    ),
    "wide": (
        specification(*((f"w{k}", "numeric") for k in range(300)), ("c", "category"), seed=1),
        [f"SELECT {', '.join(f'x * {k} + id AS w{k}' for k in range(300))}, c FROM t"],
    ),
}


def shuffled(con: duckdb.DuckDBPyConnection) -> None:
    """The same rows in another order of storage."""
    con.execute("CREATE OR REPLACE TABLE t AS SELECT * FROM t ORDER BY md5(id || c || 'x'), id")


def numbered(snapshot: Snapshot) -> list[tuple[Any, ...]]:
    """All that a snapshot holds of each row, by row id; the tags of keys instead of their codes."""
    fragment, tags, codes = snapshot.keys()
    activate_all(snapshot)
    found = snapshot.con.execute(f"FROM {snapshot.active_table.sql('duckdb')} ORDER BY r")
    held = [str(row) for row in found.fetchall()]
    sides = split_of(snapshot).tolist() if snapshot.specification.split else [0] * len(held)
    if not len(fragment):
        fragment = np.zeros(len(held), np.uint16)
    keys = zip(*([len(t) == n for n in c] for t, c in zip(tags, codes, strict=True)), strict=True)
    null = list(keys) or [()] * len(held)
    return list(zip(held, sides, fragment.tolist(), null, strict=True))


def order(
    con: duckdb.DuckDBPyConnection, seed: int | None, *, slot: int = 0, run: str = "r"
) -> np.ndarray:
    """The column id of table u, by row id."""
    wanted = specification(("id", "numeric"), seed=seed, slot=slot)
    snapshot = activate_all(take(con, wanted, "SELECT id FROM u", run=run))
    query = f"SELECT x0 FROM {snapshot.active_table.sql('duckdb')} ORDER BY r"
    found: np.ndarray = con.execute(query).fetchnumpy()["x0"]
    snapshot.drop()
    return found


@pytest.mark.parametrize("name", SEEDED)
def test_rows_have_the_same_ids_wherever_they_are_stored(database: Open, name: str) -> None:
    wanted, fragments = SEEDED[name]
    one, other = database(COLUMNS, TWICE), database("SET threads = 1", COLUMNS, TWICE)
    shuffled(other)
    first = numbered(take(one, wanted, *fragments, run="a"))
    again = numbered(
        take(other, wanted, *fragments, run="b", secret=b"another", draws=b"and another")
    )
    assert first == again
    if name == "no column at all":
        return
    elsewhere = numbered(take(one, replace(wanted, seed=2), *fragments, run="c"))
    assert elsewhere != first
    if not wanted.split:  # which follows the seed
        held = [sorted(row[0].partition(",")[2] for row in rows) for rows in (first, elsewhere)]
        assert held[0] == held[1]


def test_without_a_seed_they_differ_from_run_to_run(database: Open) -> None:
    con = database(f"CREATE TABLE u AS SELECT i AS id FROM range({ROWS}) r(i)")
    found = [order(con, None, run=run) for run in "ab"]
    assert abs(np.corrcoef(*found)[0, 1]) < NOISE


def test_the_order_tells_nothing_without_the_table(database: Open) -> None:
    """Sentinel: storage, another seed, another slot, and one other row give unlike orders."""
    con = database(f"CREATE TABLE u AS SELECT i AS id FROM range({ROWS}) r(i)")
    base = order(con, 1)
    np.testing.assert_array_equal(order(con, 1, run="again"), base)
    others = [np.arange(ROWS), order(con, 2), order(con, 1, slot=1)]
    con.execute("UPDATE u SET id = -1 WHERE id = 0")
    changed = order(con, 1)
    others.append(np.where(changed < 0, 0, changed))
    for other in others:
        assert sorted(other) == sorted(base)
        assert abs(np.corrcoef(base, other)[0, 1]) < NOISE


def test_equal_rows_have_each_a_number(database: Open) -> None:
    con = database("CREATE TABLE u AS SELECT 5 AS id FROM range(100)")
    snapshot = take(con, specification(("id", "numeric"), seed=3), "SELECT id FROM u")
    assert snapshot._numbering is not None
    assert sorted(snapshot._numbering.positions.tolist()) == list(range(100))


def test_the_last_bits_of_numbers_move_no_row(database: Open) -> None:
    """A sum over many rows may differ in them from run to run."""
    con = database(f"CREATE TABLE u AS SELECT i / 7 AS id FROM range({ROWS}) r(i)")
    base = order(con, 1)
    con.execute("UPDATE u SET id = id * (1 + 2e-16)")
    moved = order(con, 1)
    assert (moved != base).any()
    np.testing.assert_allclose(moved, base, rtol=1e-12)


def test_numbers_that_differ_in_the_last_bits_only_and_those_beyond_float(database: Open) -> None:
    con = database(
        "CREATE TABLE u AS SELECT unnest([1e300, 2e300, -3e300, 1.0, 1.0 + 1e-15, 1.0 - 1e-15])"
        "::DOUBLE AS id"
    )
    base = order(con, 1)
    con.execute("CREATE OR REPLACE TABLE u AS FROM u ORDER BY id DESC")
    np.testing.assert_array_equal(order(con, 1), base)


def test_the_split_follows_the_seed_and_the_rows(database: Open) -> None:
    con = database(f"CREATE TABLE u AS SELECT i % 2000 AS id FROM range({ROWS}) r(i)")
    fragment = "SELECT id AS sqlfl_target, struct_pack(id) AS sqlfl_base FROM u"

    def side(seed: int | None, draws: bytes, run: str) -> dict[float, int]:
        wanted = specification(target=True, split=0.25, seed=seed)
        snapshot = activate_all(take(con, wanted, fragment, draws=draws, run=run))
        labels, _, _ = snapshot.labels()
        pairs = set(zip(labels.tolist(), split_of(snapshot).tolist(), strict=True))
        assert len(pairs) == 2000  # copies of a row are on one side
        return dict(pairs)

    base = side(1, b"one", "a")
    assert base == side(1, b"two", "b")
    assert 0.2 < np.mean(list(base.values())) < 0.3
    shares = [(1, b"one"), (2, b"one"), (None, b"one"), (None, b"two")]
    sides = [side(seed, draws, str(number)) for number, (seed, draws) in enumerate(shares)]
    for number, one in enumerate(sides):
        for other in sides[:number]:
            both = np.mean([one[key] & other[key] for key in one])
            assert abs(both - 1 / 16) < 0.03  # as two independent draws


# -- the mapping ----------------------------------------------------------------------------------


def test_joined_rows_are_sorted_by_the_largest_slot_first() -> None:
    small, large = [[1, 2, 2], [3]], [[2, 3, 1, 1, 2, 3, 2, None]]
    rows, replies = slots_and_replies([small, large])
    found = run_mapping_query(INNER, key_codes(rows, replies)).written()
    assert list(found) == [0, 1]
    pairs = list(zip(found[1].tolist(), found[0].tolist(), strict=True))
    assert pairs == sorted(pairs)
    assert len(pairs) == 10


# -- whole models ---------------------------------------------------------------------------------


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest, over losses, intercept and predictions, relative to the largest number."""
    worst = 0.0
    for key in ("losses", "intercept", "predictions"):
        values = [np.array(found[key], np.float64) for found in (one, other)]
        if values[0].shape != values[1].shape:
            return np.inf
        worst = max(worst, float(np.nanmax(np.abs(values[0] - values[1]))))
        assert (np.isnan(values[0]) == np.isnan(values[1])).all()
    return worst / max(1.0, float(np.abs(np.array(one["predictions"])).max()))


ROUNDING = 2e-6
"""What sums in another order, and values of four bytes on the way, come to in a few epochs."""


@pytest.mark.slow
def test_two_processes_train_the_same_models() -> None:
    """Another process, other keys and hashes, another number of threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.seeded", "7", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "11"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    for name, (ours,) in trained(list(CASES), [7]).items():
        (found,) = theirs[name]
        assert ours["epoch"] == found["epoch"], name
        assert difference(ours, found) < ROUNDING, name


def test_another_seed_or_none_trains_another() -> None:
    names = ["batches", "batches over three clients", "towers"]
    for name, found in trained(names, (7, 8, None, None)).items():
        for number, one in enumerate(found):
            for other in found[:number]:
                assert difference(one, other) > 100 * ROUNDING, name


# the first example would always be the simplest one, which the last strategy refuses
@given(
    cases() | cases(outer=True),
    st.integers(1, 3),
    st.sampled_from(("sql", "arrays")),
    st.booleans().filter(bool),
)
@settings(max_examples=60 if THOROUGH else 1)
@pytest.mark.slow
def test_any_query_repeats_wherever_its_rows_are_stored(
    case: Case, clients: int, engine: str, simple: bool
) -> None:
    found = []
    for shuffle in (False, True):
        with case.open(clients) as databases, federations.federation(databases) as fed:
            federations.trainable(case, databases)
            for con in (con for own in databases.parties.values() for con in own):
                for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall():
                    if shuffle:
                        source = f'FROM "{name}" ORDER BY md5(rowid::VARCHAR)'
                        con.execute(f'CREATE OR REPLACE TABLE "{name}" AS {source}')
            options = {"algorithm": "sgd", "batch_size": 25, "epochs": 1, "engine": engine}
            try:
                fed.sql(case.train(**options, seed=5))
            except ModelError as error:  # one epoch of few batches may end far from any model
                assume("the steps diverge" not in str(error))
                raise
            trained = fed.model("m")
            values = federations.probabilities(fed.sql(case.predict()).arrow(), case.kind)
            losses = trained.history.column("train_loss").to_numpy()
            found.append((losses, trained.intercept, np.sort(values, axis=0)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
