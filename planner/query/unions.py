"""Blocks of a union brought together: slots matched, keys shared, products of fragments merged."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.query import ucq
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.fusion import DisjointSets
from sqlfl.planner.query.keys import Class, Key, keys_of
from sqlfl.planner.query.relations import (
    DraftBlock,
    Group,
    OuterJoin,
    Output,
    Term,
    clients_of,
    with_filters,
)
from sqlfl.planner.query.types import lossless
from sqlfl.planner.query.ucq import Join, JoinKey, tied


def match_slots(draft: Draft) -> Draft:
    """Assign slots to relations: blocks agree on the output columns of each slot.

    A block that lacks a table whose columns are constants in it gets the table without rows, by a
    LEFT JOIN.
    """
    found = _constants_placed(draft.blocks)
    first = found[0]
    wanted = _parts(first)
    blocks = tuple(
        replace(block, slots=_slots(draft, wanted, first, block, number))
        for number, block in enumerate(found, 1)
    )
    return replace(draft, blocks=blocks)


def _constants_placed(blocks: tuple[DraftBlock, ...]) -> tuple[DraftBlock, ...]:
    """The blocks with each constant at the table whose columns it lies with in other blocks: a
    UNION ALL BY NAME has NULL where a part lacks a column."""
    columns = DisjointSets(len(blocks[0].outputs))
    for block in blocks:
        for index in range(len(block.relations)):
            own = [n for n, o in enumerate(block.outputs) if o.relation == index]
            own = [n for n in own if not _is_constant(block, n)]
            for place in own[1:]:
                columns.join(own[0], place)
    told = _told(blocks, columns)
    most = max(len(block.relations) for block in blocks)
    while len(told) > most and _join_one(blocks, columns, told):
        told = _told(blocks, columns)
    wide = tuple(_with_tables(block, blocks, columns, told, most) for block in blocks)
    return tuple(_with_constants(block, columns, told) for block in wide)


def _with_tables(
    block: DraftBlock,
    blocks: tuple[DraftBlock, ...],
    columns: DisjointSets,
    told: set[int],
    most: int,
) -> DraftBlock:
    """The block with each table that it lacks, without rows, so that it has as many as others."""
    lacking = sorted(told - _held(block, columns).keys())
    if not lacking or len(block.relations) + len(lacking) != most:
        return block
    outputs, relations, lefts = list(block.outputs), [*block.relations], [*block.tree.lefts]
    for set_ in lacking:
        other = next(b for b in blocks if set_ in _held(b, columns))
        relation = other.relations[_held(other, columns)[set_]]
        if {*relation.ids} & {id_ for known in relations for id_ in known.ids}:
            return block
        relation = with_filters(relation, [Term(exp.false(), relation.span)])
        for place, output in enumerate(outputs):
            if columns.find(place) == set_:
                outputs[place] = replace(output, relation=len(relations))
        relations.append(relation)
        lefts.append(OuterJoin(Group(relation.ids), (), relation.span))
    tree = replace(block.tree, lefts=tuple(lefts))
    return replace(block, relations=tuple(relations), tree=tree, outputs=tuple(outputs))


def _told(blocks: tuple[DraftBlock, ...], columns: DisjointSets) -> set[int]:
    """The sets of columns that are of one table, where some block has more than a constant."""
    places = range(len(blocks[0].outputs))
    return {columns.find(n) for b in blocks for n in places if not _is_constant(b, n)}


def _join_one(blocks: tuple[DraftBlock, ...], columns: DisjointSets, told: set[int]) -> bool:
    """Bring together two sets of columns, one of which can lie with no other than the other: no
    block has both, or it has them in one table."""
    held = [_held(block, columns) for block in blocks]
    for one in sorted(told):
        others = [
            other
            for other in sorted(told - {one})
            if all(own.get(one) is None or own.get(other) is None for own in held)
        ]
        if len(others) == 1:
            return columns.join(one, others[0])
    return False


def _held(block: DraftBlock, columns: DisjointSets) -> dict[int, int]:
    """The relations of sets of columns that are more than constants."""
    places = (n for n in range(len(block.outputs)) if not _is_constant(block, n))
    return {columns.find(n): block.outputs[n].relation for n in places}


def _with_constants(block: DraftBlock, columns: DisjointSets, told: set[int]) -> DraftBlock:
    held = _held(block, columns)
    free = [i for i in range(len(block.relations)) if i not in held.values()]
    lacking = sorted(told - held.keys())
    if len(free) == len(lacking) == 1:
        held[lacking[0]] = free[0]
    outputs = (
        replace(o, relation=held.get(columns.find(n), o.relation)) if _is_constant(block, n) else o
        for n, o in enumerate(block.outputs)
    )
    return replace(block, outputs=tuple(outputs))


def _is_constant(block: DraftBlock, place: int) -> bool:
    """Return whether an output may be evaluated with any table."""
    term = block.outputs[place].term
    return not block.reads(term) and not clients_of(term.expression)


def _parts(block: DraftBlock) -> list[frozenset[int]]:
    """Return the positions of each relation's output columns, with identifiers after them."""
    columns = [*block.outputs, *block.identifiers]
    return [
        frozenset(n for n, o in enumerate(columns) if o.relation == i)
        for i in range(len(block.relations))
    ]


def _slots(
    draft: Draft, wanted: list[frozenset[int]], first: DraftBlock, block: DraftBlock, number: int
) -> tuple[int, ...]:
    parts = _parts(block)
    if len(parts) != len(wanted):
        raise draft.error(
            f"block {number} of the union joins {_tables(len(parts))}, the first {len(wanted)}",
            block.span,
            "each block must have the same table positions, in whatever order",
        )
    places = {part: slot for slot, part in enumerate(wanted) if part}
    free = {False: list[int](), True: list[int]()}
    for slot, part in enumerate(wanted):
        if not part:
            free[bool(first.relations[slot].once)].append(slot)
    bare = {once: iter(own) for once, own in free.items()}
    slots = []
    for part, relation in zip(parts, block.relations, strict=True):
        if part and part not in places:
            raise _mismatch(draft, first, block, number, part)
        slots.append(places[part] if part else next(bare[bool(relation.once)], -1))
    if -1 in slots:
        missing = next((part for part in wanted if part not in parts), None)
        if missing is None:
            raise draft.error(
                f"block {number} of the union has IN or EXISTS over another party's table where "
                "the first joins a table, or joins one where that has such a condition",
                block.span,
                "write as many such conditions in each block",
            )
        raise _mismatch(draft, first, block, number, missing)
    return tuple(slots)


def _tables(number: int) -> str:
    return "1 table" if number == 1 else f"{number} tables"


def _mismatch(
    draft: Draft, first: DraftBlock, block: DraftBlock, number: int, part: frozenset[int]
) -> Exception:
    for one, other in zip(first.outputs, block.outputs, strict=True):
        ends = [b.relations[o.relation].label for b, o in ((first, one), (block, other))]
        if first.span == block.span and ends[0] != ends[1]:
            return draft.error(
                f"column {one.name} is of {ends[0]} in some rows of the FULL JOIN and of {ends[1]} "
                "in others, and a column is one table's",
                one.term.span or block.span,
                f"write the column with its table, {first.relations[one.relation].name}."
                f"{one.name}, which is NULL where that has no row; or leave it out, "
                f"* EXCLUDE ({one.name})",
            )
    columns = [*first.outputs, *first.identifiers]
    names = ", ".join(columns[n].name for n in sorted(part))
    columns_come = "column" if len(part) == 1 else "columns"
    return draft.error(
        f"the blocks of the union split their columns differently: in block {number} a table has "
        f"just the {columns_come} {names}, in the first none does",
        block.span,
        "let columns that share a table in one block share one in every block",
    )


# -- keys ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharedKeys:
    """The keys of all blocks: for each block its own keys by their index among all."""

    keys: tuple[JoinKey, ...]
    of_block: tuple[dict[int, Key], ...]


def share_keys(draft: Draft) -> SharedKeys:
    """Keys that join the same pairs of slots are one, where types can be widened without loss. The
    unit's key comes last, of one slot alone."""
    blocks = draft.blocks
    types: list[tuple[str, ...]] = []
    pairs: list[frozenset[tuple[int, int]]] = []
    of_block: list[dict[int, Key]] = []
    for block in blocks:
        keys_of_block: dict[int, Key] = {}
        for key in keys_of(block):
            for index, known in enumerate(types):
                wide = _widened(known, key.types)
                if wide is not None and pairs[index] == key.pairs and index not in keys_of_block:
                    types[index] = wide
                    keys_of_block[index] = key
                    break
            else:
                keys_of_block[len(types)] = key
                types.append(key.types)
                pairs.append(key.pairs)
        of_block.append(keys_of_block)
    keys = tuple(JoinKey(i, t) for i, t in enumerate(types))
    position = draft.unit_position
    if draft.unit is None or position is None:
        return SharedKeys(keys, tuple(of_block))
    unit = JoinKey(len(keys), (blocks[0].outputs[position].type,), draft.unit)
    for block, keys_of_block in zip(blocks, of_block, strict=True):
        keys_of_block[unit.index] = _unit_key(block, block.outputs[position], unit.types[0])
    return SharedKeys((*keys, unit), tuple(of_block))


def _unit_key(block: DraftBlock, output: Output, type_: str) -> Key:
    """A key that joins nothing: its slot keeps rows with NULL, each a unit of its own."""
    slot = block.slots[output.relation]
    terms = {output.relation: (output.term,)}
    return Key((Class(type_, terms),), frozenset({(slot, slot)}), left=slot)


def _widened(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...] | None:
    if len(left) != len(right):
        return None
    wide = [lossless(a, b) for a, b in zip(left, right, strict=True)]
    types_ = tuple(t for t in wide if t is not None)
    return types_ if len(types_) == len(left) else None


# -- blocks ----------------------------------------------------------------------------------------


def merge_blocks(draft: Draft) -> Draft:
    """Blocks that differ in one slot's fragments only are one: A1xB + A2xB = (A1+A2)xB.

    Not where the slot is on the right of a LEFT JOIN: rows that miss a partner in one part may have
    one in the other; nor where its rows with equal keys count as one, in each part.
    """
    assert draft.ucq is not None
    once = frozenset(slot.index for slot in draft.ucq.slots if slot.once)
    blocks = [b for block in draft.ucq.blocks for b in _without_repeats(block, once)]
    blocks.sort(key=_order)
    while (pair := _mergeable(blocks, once)) is not None:
        left, right, merged = pair
        blocks[left] = merged
        del blocks[right]
    blocks.sort(key=_order)
    blocks = _apart(draft, blocks)
    return replace(draft, ucq=replace(draft.ucq, blocks=tuple(blocks)))


def _apart(draft: Draft, blocks: list[ucq.Block]) -> list[ucq.Block]:
    """Return the blocks with rows of a subquery that count as one by their keys in all of them, or
    in none. They are the same rows if these need the same partners.

    Other subqueries are left to the mapping query. Raise PlanError if an owner is to hear of their
    rows.
    """
    taken: dict[int, set[tuple[frozenset[int], object]]] = {}
    for block in blocks:
        fragments = {slot: frozenset(own) for slot, own in block.members}
        for slot in (slot for slots in block.existences for slot in slots):
            taken.setdefault(slot, set()).add((fragments[slot], None))
        for partners in block.partners:
            needed: dict[int, frozenset[object]] = {}
            for own in partners:
                sub = (own.keys, fragments[own.slot], needed.get(own.slot, frozenset()))
                taken.setdefault(own.slot, set()).add((fragments[own.slot], sub))
                if own.of is not None:
                    needed[own.of] = needed.get(own.of, frozenset()) | {(own.slot, sub)}
    mixed = {
        slot
        for slot, rows in taken.items()
        if any(one[0] & other[0] and one != other for one in rows for other in rows)
    }
    again = [_with_existences(draft, block, mixed) for block in blocks]
    return blocks if again == blocks else _apart(draft, again)


def _with_existences(draft: Draft, block: ucq.Block, slots: Collection[int]) -> ucq.Block:
    """Return the block whose subqueries over these slots are reduced by the mapping query."""
    moved = [own for own in block.partners if any(partner.slot in slots for partner in own)]
    assert draft.ucq is not None
    fragments = (f for own in moved for p in own for f in draft.ucq.slots[p.slot].fragments)
    if any(draft.catalog.governed(fragment.client) for fragment in fragments):
        raise draft.error(
            "parts of a union have a subquery over the same table, and over others beside it",
            draft.blocks[0].span,
            "let each part's subquery read the same tables, or tables of its own",
        )
    firsts = {left.slots[0] for left in block.every_left}
    firsts |= {slot.index for slot in draft.ucq.slots if slot.features}
    added = (
        tuple(sorted((partner.slot for partner in own), key=lambda slot: slot not in firsts))
        for own in moved
    )
    kept = tuple(own for own in block.partners if own not in moved)
    return replace(block, partners=kept, existences=(*block.existences, *added))


def _order(block: ucq.Block) -> tuple[object, ...]:
    joins = tuple((j.left, j.right, j.key, j.virtual) for j in block.joins)
    return block.members, joins, repr(block.lefts), block.virtual, block.kept


def _without_repeats(block: ucq.Block, once: frozenset[int]) -> list[ucq.Block]:
    """Add a block for each fragment that stands twice in a slot, and so gives its rows twice. On
    the right of a LEFT JOIN such a fragment was written twice.
    """
    blocks = [block.members[:0]]
    for slot, fragments in block.members:
        layers: list[list[int]] = []
        for fragment in dict.fromkeys(fragments) if slot in once else fragments:
            layer = next((layer for layer in layers if fragment not in layer), None)
            if layer is None:
                layers.append([fragment])
            else:
                layer.append(fragment)
        parts = [(slot, tuple(sorted(layer))) for layer in layers]
        blocks = [(*members, part) for members in blocks for part in parts]
    return [replace(block, members=members) for members in blocks]


_ALIKE = ("joins", "lefts", "virtual", "kept", "partners", "existences")
"""Fields that are equal in blocks that are one but for a slot's fragments."""


def _mergeable(blocks: list[ucq.Block], once: frozenset[int]) -> tuple[int, int, ucq.Block] | None:
    for slot in range(len(blocks[0].members)):
        seen: dict[tuple[object, ...], list[int]] = {}
        for number, block in enumerate(blocks):
            if block.members[slot][0] in block.optional | once:
                continue
            rest = (*block.members[:slot], *block.members[slot + 1 :])
            others = seen.setdefault((rest, *(getattr(block, name) for name in _ALIKE)), [])
            mine = set(block.members[slot][1])
            for other in others:
                theirs = blocks[other].members[slot][1]
                if not mine & set(theirs):
                    fragments = tuple(sorted((*theirs, *mine)))
                    members = list(block.members)
                    members[slot] = (members[slot][0], fragments)
                    return other, number, replace(block, members=tuple(members))
            others.append(number)
    return None


def joins_of(shared: SharedKeys, number: int, group: str, on: bool = False) -> tuple[Join, ...]:
    """The joins of a group of a block, or of the ON of its LEFT JOIN, in order of their slots."""
    joins = []
    for index, key in shared.of_block[number].items():
        if (key.group, key.on) == (group, on):
            for pair in key.pairs:
                left, right = pair if key.left in (None, pair[0]) else pair[::-1]
                joins.append(Join(left, right, index, key.virtual))
    return tuple(sorted(joins, key=lambda j: (j.right, j.left, j.key)))


@dataclass(frozen=True)
class _Subquery:
    """A subquery of EXISTS or IN over several slots: the equalities of its rows, as classes.

    Slots are edges of a hypergraph over these classes. If it has a join tree, a slot without
    further slots below it joins one other slot by all classes that it shares (Graham, Yu, Ozsoyoglu
    1979). So its rows with equal values of these classes can count as one, and the other slot's
    rows need one of them.
    """

    keys: Mapping[int, Key]
    """Keys of the block, by their index."""
    classes: Mapping[int, frozenset[object]]
    """Slot -> its classes."""
    outside: frozenset[object]
    """Classes with values of other slots."""

    @classmethod
    def of(cls, block: DraftBlock, keys: Mapping[int, Key], group: Sequence[int]) -> _Subquery:
        """`group`: its relations."""
        classes: dict[int, set[object]] = {block.slots[at]: set() for at in group}
        outside = set()
        for key in keys.values():
            for class_ in key.classes:
                for at in class_.terms:
                    if at in group:
                        classes[block.slots[at]].add(_identity(class_))
                    else:
                        outside.add(_identity(class_))
        frozen = {slot: frozenset(own) for slot, own in classes.items()}
        return cls(keys, frozen, frozenset(outside))

    def partners(self) -> tuple[ucq.Partner, ...] | None:
        """Return the slots in the order in which they find partners; None without join trees.

        Slots that only values outside join are independent of each other, and have a tree each.
        """
        trees = [self._tree(part) for part in tied([c - self.outside for c in self._edges])]
        return None if None in trees else tuple(p for tree in trees for p in tree or ())

    @property
    def _edges(self) -> list[frozenset[object]]:
        """Return the classes of each slot, in the order of the slots."""
        return [self.classes[slot] for slot in sorted(self.classes)]

    def _tree(self, places: Sequence[int]) -> tuple[ucq.Partner, ...] | None:
        slots = sorted(self.classes)
        left = [slots[place] for place in places]
        partners = []
        while len(left) > 1:
            pairs = ((slot, into) for slot in reversed(left) for into in left if slot != into)
            ears = ((s, i, self._keys(self._shared(s, left), s, i)) for s, i in pairs)
            ear = next((ear for ear in ears if ear[2]), None)
            if ear is None:
                return None
            slot, into, keys = ear
            partners.append(ucq.Partner(slot, keys, into))
            left.remove(slot)
        keys = self._keys(self._shared(left[0], left), left[0], left[0])
        return (*partners, ucq.Partner(left[0], keys)) if keys else None

    def _shared(self, slot: int, left: Sequence[int]) -> frozenset[object]:
        """Return the classes that the slot shares with remaining slots, or with slots outside."""
        others = (self.classes[other] for other in left if other != slot)
        return self.classes[slot] & self.outside.union(*others)

    def _keys(self, shared: frozenset[object], slot: int, into: int) -> tuple[int, ...]:
        """Return keys of both slots that are equal exactly if the shared classes are; none if there
        are no such keys."""
        found, covered = [], set[object]()
        for index, key in self.keys.items():
            classes = set(map(_identity, key.classes))
            ends = {end for pair in key.pairs for end in pair}
            if classes <= shared and {slot, into} <= ends:
                found.append(index)
                covered |= classes
        return tuple(sorted(found)) if covered == shared else ()


def _identity(class_: Class) -> object:
    members = ((at, to_sql(t.expression)) for at, terms in class_.terms.items() for t in terms)
    return class_.type, frozenset(members)


def subqueries_of(
    draft: Draft, shared: SharedKeys, number: int
) -> tuple[tuple[tuple[ucq.Partner, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return the slots of each EXISTS and IN of a block, as `Block.partners`, or else as
    `Block.existences`. Raise PlanError where an owner is to hear of rows of the latter.
    """
    block = draft.blocks[number]
    groups: dict[str, list[int]] = {}
    for at, relation in enumerate(block.relations):
        if relation.once:
            groups.setdefault(relation.once, []).append(at)
    subqueries, existences = [], []
    for id_, group in groups.items():
        partners = _Subquery.of(block, shared.of_block[number], group).partners()
        if partners is not None:
            subqueries.append(partners)
            continue
        relations = [block.relations[at] for at in group]
        if any(draft.catalog.governed(b.client) for r in relations for b in r.branches):
            labels = " and ".join(relation.label for relation in relations)
            raise draft.error(
                f"a subquery over {labels} is compared with tables outside by several of its "
                "tables, or its own equalities form a cycle, and an owner with policies hears "
                "which of its rows are joined",
                relations[0].span,
                "compare one of its tables with the tables outside, and join each further table "
                "with one before it: EXISTS (SELECT 1 FROM b.u JOIN c.v ON v.x = u.x WHERE "
                "u.key = t.key)",
            )
        ordered = sorted(group, key=lambda at: id_ not in block.relations[at].ids)
        existences.append(tuple(block.slots[at] for at in ordered))
    return tuple(subqueries), tuple(existences)
