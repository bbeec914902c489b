"""Partners of each table row by a key, and the rows of a table across the blocks of a query.

A table's row may stand in several fragments of a slot: both blocks of a FULL JOIN read the whole
table, and so does each block of `EXISTS (...) OR EXISTS (...)`. Fragments of one client with the
same FROM read the same rows, except those that their conditions leave out. So a fragment whose
conditions include all of another one's has no rows of its own. Clients shuffle the rows of each
fragment. So its rows are those of the other one with equal keys. Among rows with equal keys any
will do if all of them stand in the same fragments; otherwise it is unknown which rows these are.
Two fragments may also have rows in common that neither has all of, if their conditions do not
exclude each other. How many these are is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from sqlglot import exp

from sqlfl.base.arrays import Array
from sqlfl.contract.fragment_columns import KEPT, KEY
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query.equalities import conjuncts
from sqlfl.planner.query.exclusions import exclude
from sqlfl.planner.query.ucq import Fragment, Join, Slot, Ucq


@dataclass(frozen=True)
class TableRows:
    """Rows of a slot's tables, each counted once."""

    ids: Array
    """int64 (rows of the slot,): number of the table's row; -1 for rows that a LEFT JOIN adds."""
    number: int
    """Number of the tables' rows. Without `distinct`, some may count in several fragments."""
    known: bool
    """False if it is unknown which rows of different fragments are the same row."""
    distinct: bool
    """False if fragments may have rows in common of which neither has all."""


@dataclass(frozen=True)
class Partners:
    """Partners of the rows of two slots, by one key alone."""

    join: Join
    """The first of the query's joins of the two slots by the key."""
    fragments: tuple[int, int]
    """A fragment of either slot that has the key."""
    counts: tuple[Array, Array]
    """Number of partners of each row of the left and of the right slot's tables, in blocks with the
    join: int64 (n,)."""
    values: tuple[int, int]
    """Number of distinct keys of either slot."""
    known: tuple[bool, bool]
    """False if it is unknown which rows of either slot's fragments are the same row."""

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
    tests: tuple[exp.Expr, ...]
    """All conditions, also those that the presence of a key fulfils."""
    keys: Mapping[int, tuple[str, ...]]
    kept: str | None
    """Test that parts the rows from those that only match."""


def table_rows(slot: Slot, codes: SlotCodes) -> TableRows:
    """Return the rows of the slot's tables."""
    return _table_rows(slot, codes, _readings(slot), None)


def _table_rows(
    slot: Slot, codes: SlotCodes, readings: Mapping[int, _Reading], key: int | None
) -> TableRows:
    """Return the rows of the slot's tables. With `key`, rows of fragments in which different
    expressions make this key count apart.
    """
    readings = {index: each for index, each in readings.items() if not slot.fragments[index].links}
    wholes: dict[int, int] = {}
    for index in sorted(readings, key=lambda index: len(readings[index].conditions)):
        wholes[index] = next(
            (w for w in reversed(wholes) if _is_part(readings[index], readings[w], key)), index
        )
    roots = [index for index, whole in wholes.items() if index == whole]
    distinct = not any(
        _may_overlap(readings[one], readings[other], key) for one, other in combinations(roots, 2)
    )
    links = {f.index: f.beside for f in slot.fragments if f.beside is not None}
    members = {i: [i, *(f for f, beside in links.items() if beside == i)] for i in readings}
    ids, number, known = np.full(len(codes.fragment), -1, np.int64), 0, distinct
    classes = np.zeros(len(codes.fragment), np.int64)  # of the tables' rows, by their fragments
    rows_of: dict[int, Array] = {}
    for index, whole in wholes.items():
        rows = np.flatnonzero(codes.among(members[index]))
        part, other = readings[index], readings[whole]
        alone = rows
        if index != whole:
            theirs = rows_of[whole]
            shared = [k for k in slot.keys if part.keys[k] == other.keys[k]]
            columns = [codes.keys[k] for k in shared]
            if len(members[index]) > 1 and part.kept == other.kept:
                columns.append(codes.among(members[index][1:]) | codes.among(members[whole][1:]))
            match, exact = _paired(
                [c[theirs] for c in columns], [c[rows] for c in columns],
                classes[ids[theirs]], codes.fragment[rows],
            )  # fmt: skip
            known &= exact and len(shared) == len(slot.keys)
            if slot.target and len(members[index]) > len(members[whole]):
                known &= part.conditions == other.conditions  # it has rows without a label
            ids[rows[match >= 0]] = ids[theirs[match[match >= 0]]]
            alone = rows[match < 0]
        ids[alone] = number + np.arange(len(alone))
        number += len(alone)
        rows_of[index] = rows
        inner = index
        while len(alone) and inner != whole:  # these may lack rows without a label
            rows_of[whole] = np.concatenate([rows_of[whole], alone])
            inner, whole = whole, wholes[whole]
        if len(roots) < len(wholes):
            inside = np.zeros(len(classes), np.int64)
            inside[ids[rows]] = 1 + codes.among(members[index][1:])[rows]
            classes, _ = _refined(classes, inside, 3)
    return TableRows(ids, number, known, distinct)


def partners(ucq: Ucq, slots: Mapping[int, SlotCodes]) -> list[Partners]:
    """Return the partners by each key of each two slots that are joined by it. A key that blocks
    make of other expressions is another one.

    Rows meet only where one block of the query has both.
    """
    readings = {slot: _readings(ucq.slots[slot]) for slot in slots}
    pairs: dict[tuple[object, ...], tuple[Join, list[dict[int, tuple[int, ...]]]]] = {}
    for block in ucq.blocks:
        members = dict(block.members)
        for join in dict.fromkeys(block.every_join):
            ends = sorted((join.left, join.right))
            sides = (_by_text(readings[slot], members[slot], join.key) for slot in ends)
            for (text, left), (other, right) in product(*(side.items() for side in sides)):
                _, blocks = pairs.setdefault((join.key, *ends, text, other), (join, []))
                block_members = dict(zip(ends, (tuple(left), tuple(right)), strict=True))
                if block_members not in blocks:
                    blocks.append(block_members)
    return [_partners(ucq, slots, readings, join, blocks) for join, blocks in pairs.values()]


def _by_text(
    readings: Mapping[int, _Reading], fragments: Sequence[int], key: int
) -> dict[tuple[str, ...], list[int]]:
    """Return the fragments by the expressions that make the key."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for fragment in fragments:
        groups.setdefault(readings[fragment].keys[key], []).append(fragment)
    return groups


def _partners(
    ucq: Ucq,
    slots: Mapping[int, SlotCodes],
    readings: Mapping[int, Mapping[int, _Reading]],
    join: Join,
    members: Sequence[Mapping[int, Sequence[int]]],
) -> Partners:
    sides = [_side(ucq.slots[s], slots[s], readings[s], join.key, [m[s] for m in members])
             for s in (join.left, join.right)]  # fmt: skip
    size = max(int(side.keys.max(initial=-1)) for side in sides) + 1
    counts = []
    for side, other in (sides, sides[::-1]):
        number = np.zeros(len(side.keys), np.int64)
        for place, blocks in enumerate(side.masks):
            places = np.flatnonzero((side.classes == place) & (side.keys >= 0))
            beside = np.array([bool(mask & blocks) for mask in other.masks], bool)
            met = other.keys[beside[other.classes] & (other.keys >= 0)]
            number[places] = np.bincount(met, minlength=size)[side.keys[places]]
        taking_part = np.array([mask > 0 for mask in side.masks], bool)
        counts.append(number[taking_part[side.classes]])
    values = [int(np.count_nonzero(np.bincount(side.keys[side.keys >= 0]))) for side in sides]
    firsts = members[0][join.left][0], members[0][join.right][0]
    known = sides[0].known, sides[1].known
    return Partners(join, firsts, (counts[0], counts[1]), (values[0], values[1]), known)


@dataclass(frozen=True)
class _Side:
    """Table rows on a side of a join."""

    keys: Array
    """int64 (n,): -1 for NULL, and for rows that stand in none of the blocks."""
    classes: Array
    """int64 (n,): number of the set of blocks that the row stands in."""
    masks: list[int]
    """These sets, as bits."""
    known: bool
    """False if it is unknown which rows of different fragments are the same row."""


def _refined(classes: Array, inside: Array, kinds: int) -> tuple[Array, Array]:
    """Part classes by a number below `kinds` of each of their members: int64 (n,); and the classes
    that occur, as `kinds` times the former class, and the number.
    """
    both = kinds * classes + inside
    used = np.flatnonzero(np.bincount(both))
    numbers = np.zeros(used.max(initial=0) + 1, np.int64)
    numbers[used] = np.arange(len(used))
    return numbers[both], used


def _side(
    slot: Slot,
    codes: SlotCodes,
    readings: Mapping[int, _Reading],
    key: int,
    members: Sequence[Sequence[int]],
) -> _Side:
    rows = _table_rows(slot, codes, readings, key)
    keys = np.full(rows.number, -1, np.int64)
    classes, masks = np.zeros(rows.number, np.int64), [0]
    for block, fragments in enumerate(members):
        taken = np.flatnonzero(codes.among(fragments) & (rows.ids >= 0))
        ids = rows.ids[taken]
        keys[ids] = np.maximum(keys[ids], codes.keys[key][taken])
        if len(members) == 1:
            classes[ids], masks = 1, [0, 1]
            break
        inside = np.zeros(rows.number, bool)
        inside[ids] = True
        classes, used = _refined(classes, inside, 2)
        masks = [masks[u // 2] | (u % 2) << block for u in used.tolist()]
    return _Side(keys, classes, masks, rows.known)


def _is_part(part: _Reading, whole: _Reading, key: int | None) -> bool:
    """Return whether a fragment's rows are among another one's."""
    return _is_alike(part, whole, key) and part.conditions >= whole.conditions


def _is_alike(one: _Reading, other: _Reading, key: int | None) -> bool:
    """Return whether two fragments read the same rows before their conditions."""
    return one.rows == other.rows and (key is None or one.keys[key] == other.keys[key])


def _may_overlap(one: _Reading, other: _Reading, key: int | None) -> bool:
    """Return whether two fragments may have rows in common."""
    alike = _is_alike(one, other, key)
    return alike and not any(exclude(a, b) for a, b in product(one.tests, other.tests))


def _paired(
    theirs: Sequence[Array], own: Sequence[Array], classes: Array, fragments: Array
) -> tuple[Array, bool]:
    """Pair each of m rows with a row of n others that has its keys, each of these once: int64 (m,).
    It is -1 where none is left. Return too whether all such pairs come to the same.

    classes : int64 (n,), equal for those of the n rows that stand in the same fragments.
    fragments : int (m,), the fragments of the m rows.
    """
    n, m = len(classes), len(fragments)
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
    numbers = np.concatenate([classes, fragments])[order]
    unlike = np.zeros(n + m, bool)  # a row of the same side and keys before it is of another class
    unlike[1:] = ~new[1:] & (second[order][1:] == second[order][:-1])
    unlike[1:] &= numbers[1:] != numbers[:-1]
    others_mixed = np.bincount(group, unlike & ~second[order]) > 0
    own_mixed = np.bincount(group, unlike & second[order]) > 0
    counts = np.bincount(group, second[order]).astype(np.int64)
    met = (sizes > 0) & (counts > 0)
    unclear = others_mixed & ((counts < sizes) | own_mixed) | own_mixed & (counts > sizes)
    return match, not bool((met & unclear).any())


def _readings(slot: Slot) -> dict[int, _Reading]:
    """Return the reading of each fragment that has a FROM."""
    return {f.index: _reading(f) for f in slot.fragments if not f.virtual}


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
    tests = [] if where is None else list(conjuncts(where.this))
    conditions = frozenset(to_sql(test) for test in tests if _tested(test) not in present)
    kept = next((to_sql(e) for e in select.expressions if e.alias_or_name == KEPT), None)
    rows = (fragment.client, to_sql(items[0]), *joins)
    return _Reading(rows, conditions, tuple(tests), keys, kept)


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
