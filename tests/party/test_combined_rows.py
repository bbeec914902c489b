"""The rows of several clients as those of one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import InternalError
from sqlfl.messages import JoinKeys
from sqlfl.party.combined_slot import CombinedRows, by_fragment, merge_join_keys
from tests.udfs.snapshots import specification

SIZES = st.lists(st.integers(0, 6), min_size=2, max_size=4)
SEEDS = st.integers(0, 2**32 - 1)


def rows_of(sizes: list[int], seed: int) -> CombinedRows:
    return CombinedRows.ordered(sizes, np.random.default_rng(seed).permutation(sum(sizes)))


@given(SIZES, SEEDS)
def test_what_is_split_is_gathered_again(sizes: list[int], seed: int) -> None:
    rows = rows_of(sizes, seed)
    values = np.random.default_rng(seed).normal(size=(rows.size, 2))
    parts = rows.split(values)
    assert [len(part) for part in parts] == sizes
    np.testing.assert_array_equal(rows.gather(parts), values)


@given(SIZES, SEEDS, st.data())
def test_some_rows_are_the_clients_own(sizes: list[int], seed: int, data: st.DataObject) -> None:
    rows = rows_of(sizes, seed)
    batch = np.array(data.draw(st.permutations(range(rows.size))), int)[: rows.size // 2]
    names = rows.gather([np.arange(size) + 100 * q for q, size in enumerate(sizes)])
    for own, ascending in ((rows.chosen(batch), False), (rows.ascending(batch), True)):
        found, parts = own
        numbered = [part + 100 * q for q, part in enumerate(parts)]
        np.testing.assert_array_equal(found.gather(numbered), names[batch])
        if ascending:
            assert all((np.diff(part) > 0).all() for part in parts)


def test_a_row_that_is_not_there() -> None:
    with pytest.raises(InternalError, match="row 3 of 3"):
        rows_of([1, 2], 0).chosen(np.array([0, 3]))


@given(SIZES, SEEDS)
def test_classes_are_numbered_as_they_first_come(sizes: list[int], seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, parts, names = rows_of(sizes, seed), [], []
    for q, size in enumerate(sizes):
        drawn = generator.integers(0, 3, size)
        known = {v: k for k, v in enumerate(dict.fromkeys(drawn.tolist()))}
        merged = bool(size) and generator.random() < 0.7
        parts.append(np.array([known[v] for v in drawn.tolist()] if merged else [], np.uint32))
        names.append([(q, int(v) if merged else 10 + k) for k, v in enumerate(drawn)])
    left, classes = rows.by_class(parts)
    if not any(part.size for part in parts):
        assert left is rows
        assert not classes.size
        return
    order = np.argsort(np.concatenate(rows.places))
    flat = [name for own in names for name in own]
    expected = {name: k for k, name in enumerate(dict.fromkeys(flat[k] for k in order))}
    assert classes.tolist() == [expected[flat[k]] for k in order]
    of_class = left.gather([np.full(len(own), q) for q, own in enumerate(left.places)])
    assert of_class.tolist() == [q for q, _ in expected]


def test_keys_are_merged_and_rows_are_in_their_order() -> None:
    """A NULL stands behind all tags; rows of one tag are in an order by chance."""
    tags = np.arange(48, dtype=np.uint8).reshape(3, 16)
    wanted = specification(join=(("BIGINT",),), nullable=(0,))
    parts = [
        JoinKeys("run", 0, np.zeros(0, np.uint16), (tags[[0, 2]],), (np.array([0, 1, 2], "u4"),)),
        JoinKeys("run", 0, np.zeros(0, np.uint16), (tags[[1, 2]],), (np.array([0, 0, 1], "u4"),)),
    ]
    orders = set()
    for chance in range(40):
        rows, reply = merge_join_keys(wanted, parts, [{0: 3}, {0: 3}], [bytes([chance]), b"b"])
        np.testing.assert_array_equal(reply.tags[0], tags)
        assert reply.codes[0].tolist() == [0, 1, 1, 2, 2, 3]
        assert rows.split(reply.codes[0])[0].tolist() == [0, 2, 3]
        assert rows.split(reply.codes[0])[1].tolist() == [1, 1, 2]
        orders.add(tuple(np.concatenate(rows.places).tolist()))
    assert len(orders) == 4


def test_rows_without_keys_are_in_the_order_of_fragments() -> None:
    wanted = specification(fragments=(0, 2))
    rows = by_fragment(wanted, [{0: 2, 2: 1}, {0: 0, 2: 3}], [b"a", b"b"])
    fragments = rows.gather([np.array([0, 0, 2]), np.array([2, 2, 2])])
    assert fragments.tolist() == [0, 0, 2, 2, 2, 2]
