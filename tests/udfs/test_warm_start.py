"""A block under a new encoding predicts what it did, up to a constant."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pytest

from sqlfl.aggregation.slot_aggregation import merge_statistics
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.models.towers import TowerShape
from sqlfl.udfs.blocks.blocks import SavedBlock, carry_block, carry_over
from sqlfl.udfs.encoding.features import Encoding, local_encoding, shared_encoding, statistics
from sqlfl.udfs.numbering.rows import Snapshot
from sqlfl.udfs.updates.predict import score
from tests.conftest import Open
from tests.depth import combinations
from tests.udfs.snapshots import activate_all, specification, take

FEATURES = (
    ("x", "numeric"),
    ("c", "category"),
    ("flag", "boolean"),
    ("v", "array", 2),
    ("gap", "numeric"),
    ("d", "category"),
)
NAMES = ", ".join(feature[0] for feature in FEATURES)
KEY = b"vocabulary key"


def table(con: duckdb.DuckDBPyConnection, name: str, shift: int, gaps: int) -> None:
    """Rows whose values lie elsewhere; `gap` and v are NULL in every `gaps`th."""
    known = f"CASE WHEN range % {gaps} < {gaps} - 1 THEN"
    con.execute(
        f"CREATE TABLE {name} AS SELECT sin(range * {shift}) * {shift} + {shift} AS x, "
        f"'c' || ((range + {shift}) % (3 + {shift})) AS c, range % 3 = 0 AS flag, "
        f"{known} [cos(range), range + {shift}]::DOUBLE[2] END AS v, "
        f"{known} ln(range + {shift}) END AS gap, "
        "CASE WHEN range % 4 > 0 THEN 'd' || range % 5 END AS d FROM range(60)"
    )


def snapshot_of(con: duckdb.DuckDBPyConnection, name: str, run: str) -> Snapshot:
    return activate_all(take(con, specification(*FEATURES), f"SELECT {NAMES} FROM {name}", run=run))


def shared(snapshot: Snapshot, key: bytes = KEY) -> Encoding:
    merged = merge_statistics([statistics(snapshot, key)], snapshot.weight)
    return shared_encoding(snapshot.specification.features, merged, key)


KEPT_AS = ("texts", "tags")


@pytest.mark.parametrize(
    ("old_gaps", "new_gaps", "old_kept", "new_kept"),
    combinations((7, 1000), (5, 1000), KEPT_AS, KEPT_AS),
)
def test_predictions_differ_by_a_constant(
    database: Open, old_gaps: int, new_gaps: int, old_kept: str, new_kept: str
) -> None:
    con = database()
    table(con, "old", 2, old_gaps)
    table(con, "new", 5, new_gaps)
    first, second = snapshot_of(con, "old", "a"), snapshot_of(con, "new", "b")
    old = shared(first) if old_kept == "tags" else local_encoding(first)
    new = shared(second) if new_kept == "tags" else local_encoding(second)
    theta = np.random.default_rng(3).normal(size=(old.width, 2))
    carried = carry_over(old, theta, new)
    assert carried.shape == (new.width, 2)
    assert [bool(e.indicators) for e in (old, new)] == [old_gaps < 60, new_gaps < 60]
    before = score(con, second, old, theta)
    after = score(con, second, new, carried)
    difference = after - before
    np.testing.assert_allclose(difference, np.broadcast_to(difference[0], (60, 2)), atol=1e-9)
    assert np.abs(before - before.mean(axis=0)).max() > 0.5


def test_the_same_rows_give_the_same_weights(database: Open) -> None:
    con = database()
    table(con, "old", 2, 7)
    encoding = local_encoding(snapshot_of(con, "old", "a"))
    theta = np.random.default_rng(3).normal(size=(encoding.width, 1))
    np.testing.assert_allclose(carry_over(encoding, theta, encoding), theta, rtol=1e-15)


def test_weights_by_hand(database: Open) -> None:
    """Standard deviations 1 and 2, means 1 and 6, a new category, a new gap."""
    con = database(
        "CREATE TABLE old AS SELECT unnest([0.0, 2.0]) AS x, unnest(['a', 'b']) AS c",
        "CREATE TABLE new AS SELECT unnest([4.0, 8.0, NULL]) AS x, unnest(['b', 'z', 'b']) AS c",
    )
    wanted = specification(("x", "numeric"), ("c", "category"))
    old, new = (
        local_encoding(activate_all(take(con, wanted, f"SELECT x, c FROM {t}", run=t)))
        for t in ("old", "new")
    )
    assert new.names == ("x", "x is missing", "c = b", "c = z")
    carried = carry_over(old, np.array([[3.0], [10.0], [20.0]]), new)
    scale = np.sqrt(8 / 3)
    spread = np.sqrt(2 / 9)
    expected = [3.0 * scale, 3.0 * (1.0 - 6.0) * spread, 20.0, 0.0]
    np.testing.assert_allclose(carried[:, 0], expected)


def tower_of(encoding: Encoding, hidden: tuple[int, ...] = (4, 3)) -> SavedBlock:
    tower = TowerShape(encoding.width, hidden, 2, "tanh")
    first, *upper = (np.random.default_rng(1).normal(size=s) for s in tower.shapes)
    return SavedBlock(encoding, first, "t", tower, tuple(upper))


@pytest.mark.parametrize(
    ("old_gaps", "new_gaps", "kept"),
    combinations((7, 1000), (5, 1000), ("texts", "tags", "texts, then tags")),
)
def test_a_tower_begins_where_it_ended(
    database: Open, old_gaps: int, new_gaps: int, kept: str
) -> None:
    """Predictions are equal, without a constant between them: nothing else could take that up."""
    con = database()
    table(con, "old", 2, old_gaps)
    table(con, "new", 5, new_gaps)
    first, second = snapshot_of(con, "old", "a"), snapshot_of(con, "new", "b")
    old = shared(first) if kept == "tags" else local_encoding(first)
    new = shared(second) if "tags" in kept else local_encoding(second)
    block = tower_of(old)
    shape = TowerShape(new.width, (4, 3), 2, "tanh")
    carried = carry_block(block, new, shape)
    assert tuple(p.shape for p in carried) == shape.shapes
    before = block.finish(score(con, second, old, block.theta))
    after = shape.forward(score(con, second, new, carried[0]), carried)
    np.testing.assert_allclose(after, before, atol=1e-9)
    assert np.ptp(before) > 0.5
    moved = score(con, second, new, carried[0]) - score(con, second, old, block.theta)
    assert np.abs(moved).max() > 0.1, "the first layer's products do differ"


def test_blocks_of_other_shapes_are_refused(database: Open) -> None:
    con = database()
    table(con, "old", 2, 7)
    encoding = local_encoding(snapshot_of(con, "old", "a"))
    tower, width = tower_of(encoding), encoding.width
    linear = SavedBlock(encoding, np.ones((width, 2)))
    (theta,) = carry_block(linear, encoding, None)
    np.testing.assert_allclose(theta, 1.0, rtol=1e-15)
    for wanted in (
        TowerShape(width, (4,), 2, "tanh"),
        TowerShape(width, (4, 3), 1, "tanh"),
        TowerShape(width, (4, 3), 2, "relu"),
        None,
    ):
        with pytest.raises(ModelError, match=r"has a tower of hidden = \[4, 3\]"):
            carry_block(tower, encoding, wanted)
    with pytest.raises(ModelError, match=r"has a linear block; a tower of .*'tanh' and 2 outputs"):
        carry_block(linear, encoding, tower.tower)


def test_other_features_and_other_keys_are_refused(database: Open) -> None:
    con = database()
    table(con, "old", 2, 7)
    snapshot = snapshot_of(con, "old", "a")
    encoding = local_encoding(snapshot)
    theta = np.zeros((encoding.width, 1))
    other = replace(encoding, features=encoding.features[::-1])
    with pytest.raises(ModelError, match="do not fit the model"):
        carry_over(encoding, theta, other)
    with pytest.raises(InternalError, match="has weights for"):
        carry_over(encoding, theta[1:], encoding)
    tagged = shared(snapshot)
    with pytest.raises(InternalError, match="different keys"):
        carry_over(tagged, np.zeros((tagged.width, 1)), shared(snapshot, b"another"))
