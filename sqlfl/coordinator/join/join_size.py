"""Number of rows of a join, counted from key codes before the join is made.

Joined slots are relations over variables, one for each set of keys that are equal. A row of a slot
counts as often as it is joined with the slots taken in so far.

A slot can be taken into another one that has all its shared variables. Its rows are summed by their
codes, and the other slot's rows are multiplied by the sums (message passing over a join tree). So
the count takes time in the rows of the slots, not in the rows of the join.

If no slot can be taken in, as in a cycle, an equality is left out, and the count is an upper bound.
So it is without the slots of an EXISTS that only the mapping query reduces (`Block.existences`).
A LEFT JOIN multiplies each row of its left side by the number of matches. For a row without
matches, the factor comes from the virtual rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sqlfl.base.arrays import Array, taken
from sqlfl.base.errors import ModelError
from sqlfl.planner.query.ucq import Block, Join, LeftJoin, Slot, Ucq


@dataclass(frozen=True, eq=False)
class SlotCodes:
    """Rows of a slot, as the coordinator knows them."""

    fragment: Array
    """int (n,): the fragment of each row."""
    keys: dict[int, Array]
    """Key -> int (n,): codes from 0 that all slots with the key share; -1 for NULL."""

    @property
    def bytes(self) -> int:
        """Return the bytes of memory, with the numbers of the rows."""
        key_bytes = sum(codes.nbytes for codes in self.keys.values())
        return key_bytes + self.fragment.nbytes + 4 * len(self.fragment)

    def among(self, fragments: Sequence[int]) -> Array:
        """Return which rows belong to these fragments: bool (n,)."""
        chosen = np.zeros(1 << 16, bool)
        chosen[list(fragments)] = True
        return taken(chosen, self.fragment)


def once_each(ucq: Ucq, codes: Mapping[int, SlotCodes]) -> dict[int, SlotCodes]:
    """Return the rows of all slots. Rows of EXISTS and IN with equal keys count as one.

    Rows without a partner in the subquery, and all but the first of rows with equal keys, get NULL
    for a key, and join nothing. Rows of fragments that stand in other blocks count apart, and so
    does the row that a LEFT JOIN makes up. ModelError where an owner with policies is to hear which
    rows are joined, and several have one key: it would hear of one of them.
    """
    reduced = dict(codes)
    for block in ucq.blocks:
        fragments = dict(block.members)
        for partners in block.partners:
            governed = [ucq.slots[p.slot] for p in partners if ucq.slots[p.slot].governed]
            if governed and any(
                partner.slot == slot and not codes[slot].among(kept).any()
                for partner in partners
                for slot, kept in block.kept
            ):
                continue  # a row with a partner is in no joined row
            for partner in partners:
                rows = _keyed(reduced[partner.slot], fragments[partner.slot], partner.keys)
                again = _repeats([reduced[partner.slot].keys[key][rows] for key in partner.keys])
                if governed and len(again):
                    raise _refused(ucq.slots[partner.slot], governed[0])
                reduced[partner.slot] = _without(reduced[partner.slot], rows[again])
                if partner.of is not None:
                    before = reduced[partner.of]
                    lonely = _lonely(before, fragments[partner.of], reduced[partner.slot], rows,
                                     partner.keys)  # fmt: skip
                    reduced[partner.of] = _without(before, lonely)
    return reduced


def _lonely(
    codes: SlotCodes,
    fragments: Sequence[int],
    partners: SlotCodes,
    partner_rows: Array,
    keys: Sequence[int],
) -> Array:
    """Return the rows of these fragments whose keys none of `partner_rows` has: int64 (n,)."""
    rows = _keyed(codes, fragments, keys)
    pairs = [(codes.keys[key][rows], partners.keys[key][partner_rows]) for key in keys]
    one, other = pairs[0]
    for pair in pairs[1:]:
        one, other = paired(one, other, *pair)
    return rows[~np.isin(one, other[other >= 0])]


def _keyed(codes: SlotCodes, fragments: Sequence[int], keys: Sequence[int]) -> Array:
    """Return the rows of these fragments without NULL in these keys: int64 (n,)."""
    chosen = codes.among(fragments)
    for key in keys:
        chosen &= codes.keys[key] >= 0
    return np.flatnonzero(chosen)


def _repeats(columns: Sequence[Array]) -> Array:
    """Return the places of all but the first of equal rows: int64 (n,)."""
    order = np.lexsort(columns)
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in columns:
        same &= column[order][1:] == column[order][:-1]
    return order[1:][same]


def _without(codes: SlotCodes, rows: Array) -> SlotCodes:
    """Return the codes with rows that join nothing."""
    keys = {}
    for key, values in codes.keys.items():
        keys[key] = values.copy()
        keys[key][rows] = -1
    return SlotCodes(codes.fragment, keys)


def _refused(slot: Slot, governed: Slot) -> ModelError:
    owner = "its rows" if slot.governed else f"table {governed.name}"
    return ModelError(
        f"table {slot.name} has several rows with one key, and the owner of {owner} has policies, "
        "which are of all rows that take part",
        hint="name a table or view with each key once in the subquery; ask the owner for one",
    )


def check_single(
    ucq: Ucq, slot: Slot, codes: Mapping[int, SlotCodes], counts: Callable[[int], Array]
) -> None:
    """Check a slot whose rows are groups of a GROUP BY over several parties (`Slot.single`).
    `counts` gives how often each row of a slot is joined. Raise ModelError where a group is in
    several joined rows, which GROUP BY may count together.

    Rows without a partner in a LEFT JOIN are groups too, of the keys that they lack one for.
    """
    real = codes[slot.index].among([f.index for f in slot.fragments if not f.virtual])
    several = bool((counts(slot.index)[real] > 1).any())
    for members, left in ((dict(b.members), left) for b in ucq.blocks for left in b.every_left):
        joins = [join for join in left.on if join.right == slot.index]
        for outer in {join.left for join in joins}:
            keys = sorted({join.key for join in joins if join.left == outer})
            groups, values = (
                np.column_stack([codes[index].keys[key] for key in keys])
                for index in (slot.index, outer)
            )
            groups = groups[codes[slot.index].among(members[slot.index])]
            groups = groups[(groups >= 0).all(axis=1)]
            rows = codes[outer].among(members[outer]) & (counts(outer) > 0)
            both, place = np.unique(
                np.concatenate([groups, values[rows]]), axis=0, return_inverse=True
            )
            totals = np.bincount(place[len(groups) :], counts(outer)[rows], len(both))
            totals[place[: len(groups)]] = 0
            several |= bool((totals > 1).any())
    if several:
        raise ModelError(
            f"GROUP BY counts rows of {slot.name} by the keys of the join, and several joined rows "
            "have the keys of one group",
            hint="if GROUP BY keeps these rows apart, aggregate before the join: JOIN (SELECT key, "
            "avg(x) AS x FROM party.table GROUP BY key) AS u ON u.key = t.key; else join each key "
            "once: FROM (SELECT DISTINCT key, ... FROM party.table) AS t",
        )


def check_lookups(ucq: Ucq, codes: Mapping[int, SlotCodes], counts: Callable[[int], Array]) -> None:
    """Check the slots of subqueries that are values (`LeftJoin.lookup`). `counts` gives how often
    each row of a mapped slot is joined. Raise ModelError where several rows of a subquery have the
    keys of one row outside. A condition on the value may have dropped some of these rows.
    """
    for block in ucq.blocks:
        members = dict(block.members)

        def joined(slot: int, fragments: Sequence[int]) -> Array:
            rows = codes[slot].among(fragments)
            return rows & (counts(slot) > 0) if slot in ucq.mapped else rows

        for left in (each for each in block.every_left if each.lookup):
            (index,) = left.slots
            keys = codes[index].keys
            rows = codes[index].among(members[index])
            for join in left.on:
                rows &= keys[join.key] >= 0
            if index in ucq.mapped:
                used = joined(index, members[index])
                one, other = (keys[left.on[0].key][chosen] for chosen in (rows, used))
                for join in left.on[1:]:
                    one, other = paired(one, other, keys[join.key][rows], keys[join.key][used])
                rows[rows] = np.isin(one, other)
            else:  # a condition alone reads it
                for join in left.on:
                    outside = joined(join.left, members[join.left])
                    rows &= np.isin(keys[join.key], codes[join.left].keys[join.key][outside])
            if len(_repeats([keys[join.key][rows] for join in left.on])):
                name = ucq.slots[index].name
                raise ModelError(
                    f"several rows of {name} have the key of one row outside, and a subquery that "
                    "is a value gives one row",
                    hint="aggregate them: (SELECT max(u.x) FROM party.table AS u WHERE u.key = "
                    "t.key); or write LEFT JOIN, which gives each of them a joined row",
                )


@dataclass(frozen=True)
class JoinSize:
    rows: float
    """A whole number, exact up to 2⁵³."""
    exact: bool
    """False if `rows` is only an upper bound."""


def join_size(ucq: Ucq, slots: Mapping[int, SlotCodes]) -> JoinSize:
    """Return the number of rows of `sqlfl.planner.query.emit.mapping_query` over these slots."""
    sizes = [_Counter(block, slots).size() for block in ucq.blocks]
    return JoinSize(sum(size.rows for size in sizes), all(size.exact for size in sizes))


@dataclass(eq=False)
class _Relation:
    """Rows over variables. `weight` counts the rows that each is joined with so far."""

    variables: dict[int, Array]
    """Variable -> int (n,): codes, -1 for NULL."""
    weight: Array
    """float64 (n,)"""

    def without_null(self) -> _Relation:
        weight = self.weight.copy()
        for codes in self.variables.values():
            weight[codes < 0] = 0.0
        return _Relation(self.variables, weight)


class _Counter:
    """Counter of one block's rows."""

    def __init__(self, block: Block, slots: Mapping[int, SlotCodes]) -> None:
        self._block = block
        self._slots = slots
        self._taken = dict(block.members)
        self._virtual = dict(block.virtual)
        self._kept = dict(block.kept)
        self._exact = True
        self._hanging: dict[int, list[LeftJoin]] = defaultdict(list)
        """LEFT JOINs by the slot on their left side."""
        self._hang(block.lefts)

    def size(self) -> JoinSize:
        reduced = {slot for slots in self._block.existences for slot in slots}
        members = [slot for slot, _ in self._block.members if slot not in self._virtual]
        core = [slot for slot in members if slot not in reduced]
        self._exact &= len(core) == len(members)  # rows without a partner are not in the join
        joins = self._usable(self._block.joins, core)
        weight = self._combined(core, joins, self._weighted)
        return JoinSize(float(weight.sum()), self._exact)

    def _hang(self, lefts: Sequence[LeftJoin]) -> None:
        for left in lefts:
            self._hanging[left.on[0].left if left.on else -1].append(left)
            self._hang(left.lefts)

    def _usable(self, joins: Sequence[Join], slots: Sequence[int]) -> list[Join]:
        """Return the equalities between these slots alone. Equalities that reach into a LEFT JOIN
        are left out.
        """
        usable = [j for j in joins if j.left in slots and j.right in slots and not j.virtual]
        self._exact &= len(usable) == len(joins)
        return usable

    # -- rows of one slot --------------------------------------------------------------------------

    def _present(self, slot: int) -> Array:
        """Return 1 for the rows that take part, and 0 for virtual rows and other fragments: float64
        (n,).
        """
        return self._slots[slot].among(self._taken[slot]).astype(np.float64)

    def _weighted(self, slot: int) -> Array:
        """Return the number of rows that each row stands for, with all LEFT JOINs on the slot:
        float64 (n,).
        """
        weight = self._present(slot)
        if slot in self._kept:
            weight *= self._slots[slot].among(self._kept[slot])
        for left in self._hanging[slot]:
            weight *= self._factor(left, slot)
        return weight

    def _virtual_row(self, slot: int) -> int | None:
        places = np.flatnonzero(self._slots[slot].fragment == self._virtual[slot])
        return int(places[0]) if len(places) else None

    # -- LEFT JOINs --------------------------------------------------------------------------------

    def _factor(self, left: LeftJoin, outer: int) -> Array:
        """Return the number of joined rows of the LEFT JOIN for each row of the slot `outer`:
        float64 (n,).
        """
        if any(left.slots[0] in slots for slots in self._block.existences):
            self._exact &= left.slots[0] not in self._kept
            return np.ones(len(self._slots[outer].fragment))
        exact, self._exact = self._exact, True
        on = [j for j in left.on if j.left == outer]
        self._exact &= len(on) == len(left.on)
        joins = self._usable(left.joins, left.slots)
        matches = self._combined(left.slots, joins, self._present, outer, on)
        weighted = self._combined(left.slots, joins, self._weighted, outer, on)
        missing = self._missing(left)
        matched = weighted if self._exact else np.maximum(weighted, missing)
        self._exact &= exact
        return np.where(matches > 0, matched, missing)

    def _missing(self, left: LeftJoin) -> float:
        """Return the number of joined rows for a row without a match. All slots in the LEFT JOIN's
        parentheses then have virtual rows, and LEFT JOINs from outside may multiply these.
        """
        product = 1.0
        for slot in left.within:
            row = self._virtual_row(slot)
            if slot in self._kept and row is None:
                return 0.0
            for other in self._hanging[slot]:
                if set(other.within) <= set(left.within):
                    continue
                on = [join for join in other.on if join.left == slot]
                if row is not None and all(join.virtual for join in on):
                    product *= float(self._factor(other, slot)[row])
                else:
                    product *= self._missing(other)
        return product

    # -- joins -------------------------------------------------------------------------------------

    def _combined(
        self,
        slots: Sequence[int],
        joins: Sequence[Join],
        weight: Any,
        outer: int | None = None,
        on: Sequence[Join] = (),
    ) -> Array:
        """Return how often each row of `outer` is joined with these slots by `on`: float64 (n,).
        Without `outer`, the rows are those of the slot that is taken in last.
        """
        variable = variables([*joins, *on], outer)
        relations = []
        for slot in slots:
            codes = {v: self._slots[slot].keys[k] for (s, k), v in variable.items() if s == slot}
            relations.append(_Relation(codes, weight(slot)).without_null())
        if outer is None:
            return self._taken_in(relations, None)
        codes = {variable[j.right, j.key]: self._slots[outer].keys[j.key] for j in on}
        rows = len(self._slots[outer].fragment)
        root = _Relation(codes, np.ones(rows)).without_null()
        return self._taken_in([root, *relations], root)

    def _taken_in(self, relations: list[_Relation], root: _Relation | None) -> Array:
        left = list(relations)
        while len(left) > 1:
            into, ear, shared = self._ear(left, root)
            into.weight = into.weight * _message(ear, into, shared)
            left.remove(ear)
        return left[0].weight

    def _ear(
        self, relations: list[_Relation], root: _Relation | None
    ) -> tuple[_Relation, _Relation, list[int]]:
        """Return a relation that can be taken in, the relation that takes it in, and their common
        variables.
        """
        best: tuple[tuple[int, int], _Relation, _Relation, list[int]] | None = None
        for ear in relations:
            if ear is root:
                continue
            others = [r for r in relations if r is not ear]
            shared = {v for v in ear.variables if any(v in r.variables for r in others)}
            for into in others:
                common = sorted(v for v in shared if v in into.variables)
                rank = (len(shared) - len(common), -len(common))
                if best is None or rank < best[0]:
                    best = (rank, into, ear, common)
        assert best is not None
        self._exact &= best[0][0] == 0
        return best[1], best[2], best[3]


def variables(joins: Sequence[Join], outer: int | None) -> dict[tuple[int, int], int]:
    """Return (slot, key) -> variable: one number for all ends that equalities tie. Ends of `outer`
    are left out, because it keeps its rows whatever they match.
    """
    numbers_of_ends: dict[tuple[int, int], int] = {}
    for join in joins:
        ends = [(slot, join.key) for slot in (join.left, join.right) if slot != outer]
        numbers = {numbers_of_ends.setdefault(end, len(numbers_of_ends)) for end in ends}
        first = min(numbers)
        for end, number in numbers_of_ends.items():
            if number in numbers:
                numbers_of_ends[end] = first
    return numbers_of_ends


def _message(ear: _Relation, into: _Relation, shared: Sequence[int]) -> Array | float:
    """Return the factor for each row of `into`: the number of rows of `ear` with the same codes."""
    if not shared:
        return float(ear.weight.sum())
    one, other = ear.variables[shared[0]], into.variables[shared[0]]
    for variable in shared[1:]:
        one, other = paired(one, other, ear.variables[variable], into.variables[variable])
    size = max(int(one.max(initial=-1)), int(other.max(initial=-1))) + 1
    here = one >= 0
    sums = np.bincount(one[here], ear.weight[here], minlength=size)
    return np.where(other >= 0, np.append(sums, 0.0)[other], 0.0)


def paired(one: Array, other: Array, more: Array, others: Array) -> tuple[Array, Array]:
    """Return codes from 0 for pairs of codes; -1 if one of the pair is NULL."""
    width = max(int(more.max(initial=-1)), int(others.max(initial=-1))) + 1
    pairs = np.concatenate([one, other]).astype(np.int64) * width
    pairs += np.concatenate([more, others])
    null = np.concatenate([(one < 0) | (more < 0), (other < 0) | (others < 0)])
    _, codes = np.unique(pairs, return_inverse=True)
    codes[null] = -1
    return codes[: len(one)], codes[len(one) :]
