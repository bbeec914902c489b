"""Partners of each table row by a key, and the rows of a table across the blocks of a query.

A table's row may stand in several fragments of a slot: both blocks of a FULL JOIN read the whole
table, and so does each block of `EXISTS (...) OR EXISTS (...)`. Fragments of one client with the
same FROM read the same rows, except those that their conditions leave out. So a fragment whose
conditions include all of another one's has no rows of its own. Clients shuffle the rows of each
fragment. So its rows are those of the other one with equal keys; among rows with equal keys any
will do, as all of them are joined, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from sqlglot import exp

from sqlfl.base.arrays import Array
from sqlfl.contract.fragment_columns import KEY
from sqlfl.coordinator.join.join_size import SlotCodes, joins_in
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.equalities import conjuncts
from sqlfl.planner.query.ucq import Fragment, Join, Slot, Ucq


@dataclass(frozen=True)
class TableRows:
    """Rows of a slot's tables, each counted once."""

    ids: Array
    """int64 (rows of the slot,): number of the table's row; -1 for rows that a LEFT JOIN adds."""
    number: int
    """Number of the tables' rows."""
    known: bool
    """False if fragments with rows in common have other keys of them, so that it is unknown which
    rows these are."""


@dataclass(frozen=True)
class Partners:
    """Partners of the rows of two slots, by one key alone."""

    join: Join
    """The first of the query's joins of the two slots by the key."""
    fragments: tuple[int, int]
    """A fragment of either slot that has the key."""
    counts: tuple[Array, Array]
    """For the left and the right slot, the number of partners of each of its tables' rows in blocks
    with the join: int64 (n,)."""
    values: tuple[int, int]
    """Number of distinct keys of either slot."""

    @property
    def means(self) -> tuple[float, float]:
        """Return the mean number of partners of the rows that have one, of either slot."""
        left, right = (
            float(counts[counts > 0].mean()) if counts.any() else 0.0 for counts in self.counts
        )
        return left, right


@dataclass(frozen=True)
class _Reading:
    """The rows that a fragment reads, and the keys that it has of them."""

    rows: tuple[object, ...]
    """Client and FROM."""
    conditions: frozenset[str]
    keys: Mapping[int, tuple[str, ...]]


def table_rows(slot: Slot, codes: SlotCodes, key: int | None = None) -> TableRows:
    """Return the rows of the slot's tables. With `key`, rows of fragments in which different
    expressions make this key count apart.
    """
    readings = {f.index: _reading(f) for f in slot.fragments if not (f.virtual or f.links)}
    wholes: dict[int, int] = {}
    for index in sorted(readings, key=lambda index: len(readings[index].conditions)):
        roots = (root for root, whole in wholes.items() if root == whole)
        wholes[index] = next(
            (root for root in roots if _is_part(readings[index], readings[root], key)), index
        )
    links = {f.index: f.beside for f in slot.fragments if f.beside is not None}
    members = {i: [i, *(f for f, beside in links.items() if beside == i)] for i in readings}
    ids, number, known = np.full(len(codes.fragment), -1, np.int64), 0, True
    firsts: dict[int, Array] = {}
    for index, whole in wholes.items():
        rows = np.flatnonzero(codes.among(members[index]))
        if index == whole:
            ids[rows] = number + np.arange(len(rows))
            number += len(rows)
            firsts[index] = rows
            continue
        theirs = firsts[whole]
        own, other = readings[index].keys, readings[whole].keys
        shared = [codes.keys[k] for k in slot.keys if own[k] == other[k]]
        known &= len(shared) == len(slot.keys)
        match = _paired(
            [c[theirs] for c in shared], [c[rows] for c in shared], theirs.size, rows.size
        )
        ids[rows[match >= 0]] = ids[theirs[match[match >= 0]]]
        alone = rows[match < 0]
        ids[alone] = number + np.arange(len(alone))
        number += len(alone)
        firsts[whole] = np.concatenate([theirs, alone])  # the other one may lack rows without label
    return TableRows(ids, number, known)


def partners(ucq: Ucq, slots: Mapping[int, SlotCodes]) -> list[Partners]:
    """Return the partners by each key of each two slots that are joined by it. A key that blocks
    make of other expressions is another one.

    Rows meet only where one block of the query has both.
    """
    pairs: dict[tuple[object, ...], tuple[Join, list[dict[int, tuple[int, ...]]]]] = {}
    for block in ucq.blocks:
        members = dict(block.members)
        for join in dict.fromkeys(joins_in(block)):
            ends = sorted((join.left, join.right))
            sides = (_by_text(ucq.slots[slot], members[slot], join.key) for slot in ends)
            for (text, left), (other, right) in product(*(side.items() for side in sides)):
                _, blocks = pairs.setdefault((join.key, *ends, text, other), (join, []))
                block_members = dict(zip(ends, (tuple(left), tuple(right)), strict=True))
                if block_members not in blocks:
                    blocks.append(block_members)
    return [_partners(ucq, slots, join, blocks) for join, blocks in pairs.values()]


def _by_text(slot: Slot, fragments: Sequence[int], key: int) -> dict[tuple[str, ...], list[int]]:
    """Return the fragments by the expressions that make the key."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for fragment in fragments:
        groups.setdefault(_reading(slot.fragments[fragment]).keys[key], []).append(fragment)
    return groups


def _partners(
    ucq: Ucq,
    slots: Mapping[int, SlotCodes],
    join: Join,
    members: Sequence[Mapping[int, Sequence[int]]],
) -> Partners:
    sides = [_side(ucq.slots[s], slots[s], join.key, [m[s] for m in members])
             for s in (join.left, join.right)]  # fmt: skip
    size = max(int(side.keys.max(initial=-1)) for side in sides) + 1
    counts = []
    for side, other in (sides, sides[::-1]):
        number = np.zeros(len(side.keys), np.int64)
        for place, blocks in enumerate(side.masks):
            own = np.flatnonzero((side.classes == place) & (side.keys >= 0))
            beside = np.array([bool(mask & blocks) for mask in other.masks], bool)
            met = other.keys[beside[other.classes] & (other.keys >= 0)]
            number[own] = np.bincount(met, minlength=size)[side.keys[own]]
        taking_part = np.array([mask > 0 for mask in side.masks], bool)
        counts.append(number[taking_part[side.classes]])
    values = [len(np.unique(side.keys[side.keys >= 0])) for side in sides]
    firsts = members[0][join.left][0], members[0][join.right][0]
    return Partners(join, firsts, (counts[0], counts[1]), (values[0], values[1]))


@dataclass(frozen=True)
class _Side:
    """Table rows on a side of a join."""

    keys: Array
    """int64 (n,): -1 for NULL, and for rows that stand in none of the blocks."""
    classes: Array
    """int64 (n,): number of the set of blocks that the row stands in."""
    masks: list[int]
    """These sets, as bits."""


def _side(slot: Slot, codes: SlotCodes, key: int, members: Sequence[Sequence[int]]) -> _Side:
    rows = table_rows(slot, codes, key)
    keys = np.full(rows.number, -1, np.int64)
    classes, masks = np.zeros(rows.number, np.int64), [0]
    for block, fragments in enumerate(members):
        taken = np.flatnonzero(codes.among(fragments) & (rows.ids >= 0))
        ids = rows.ids[taken]
        keys[ids] = np.maximum(keys[ids], codes.keys[key][taken])
        inside = np.zeros(rows.number, bool)
        inside[ids] = True
        both = 2 * classes + inside
        used = np.flatnonzero(np.bincount(both, minlength=2 * len(masks)))
        masks = [masks[u // 2] | (u % 2) << block for u in used.tolist()]
        numbers = np.zeros(used.max(initial=0) + 1, np.int64)
        numbers[used] = np.arange(len(used))
        classes = numbers[both]
    return _Side(keys, classes, masks)


def _is_part(own: _Reading, whole: _Reading, key: int | None) -> bool:
    """Return whether a fragment's rows are among another one's."""
    same = key is None or own.keys[key] == whole.keys[key]
    return own.rows == whole.rows and own.conditions >= whole.conditions and same


def _paired(theirs: Sequence[Array], own: Sequence[Array], n: int, m: int) -> Array:
    """Pair each of m rows with a row of n others that has its keys, each of these once: int64 (m,).
    It is -1 where none is left.
    """
    columns = [np.concatenate(pair) for pair in zip(theirs, own, strict=True)]
    second = np.arange(n + m) >= n
    order = np.lexsort([second, *columns])
    new = np.zeros(n + m, bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[order][1:] != column[order][:-1]
    group = np.cumsum(new) - 1
    starts, sizes = np.flatnonzero(new), np.bincount(group, ~second[order]).astype(np.int64)
    ours = np.flatnonzero(second[order])
    rank = ours - starts[group[ours]] - sizes[group[ours]]
    has_one = rank < sizes[group[ours]]
    match = np.full(m, -1, np.int64)
    match[order[ours[has_one]] - n] = order[starts[group[ours[has_one]]] + rank[has_one]]
    return match


def _reading(fragment: Fragment) -> _Reading:
    """Return the reading of a fragment. Its tables are named by their places, since aliases differ
    between fragments.
    """
    select = fragment.select.copy()
    items = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or [])]
    names = {item.alias_or_name: f"#{place}" for place, item in enumerate(items)}
    for column in [c for c in select.find_all(exp.Column) if c.table in names]:
        column.set("table", exp.to_identifier(names[column.table]))
    for item in items:
        item.set("alias", exp.TableAlias(this=exp.to_identifier(names[item.alias_or_name])))
    joins = [to_sql(join) for join in select.args.get("joins") or []]
    keys: dict[int, tuple[str, ...]] = {}
    present = set()
    for shown in select.expressions:
        if shown.alias_or_name.startswith(KEY):
            key = int(shown.alias_or_name.removeprefix(KEY).partition("_")[0])
            keys[key] = (*keys.get(key, ()), to_sql(shown))
            present.add(to_sql(_without_casts(shown.unalias())))
    where = select.args.get("where")
    tests = [] if where is None else conjuncts(where.this)
    conditions = frozenset(to_sql(test) for test in tests if _tested(test) not in present)
    return _Reading((fragment.client, to_sql(items[0]), *joins), conditions, keys)


def _tested(test: exp.Expr) -> str | None:
    """Return the value that a condition wants to be there; None for another condition."""
    inner = test.this.unnest() if isinstance(test, exp.Not) else None
    if not isinstance(inner, exp.Is) or not isinstance(inner.expression, exp.Null):
        return None
    return to_sql(_without_casts(inner.this.unnest()))


def _without_casts(value: exp.Expr) -> exp.Expr:
    while isinstance(value, exp.Cast):
        value = value.this.unnest()
    return value
