"""Fuse tables of one client that an expression or a non-equality needs together into
one relation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.grammar.trees import nodes, span_of
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import equality
from sqlfl.planner.query.joins import INSTEAD_OF_SUBQUERY
from sqlfl.planner.query.nulls import rejects_nulls
from sqlfl.planner.query.relations import (
    PRESENT,
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Group,
    LeftOn,
    OuterJoin,
    Source,
    Term,
    clients_of,
    column,
    substituted,
)


class DisjointSets:
    """Disjoint sets of the numbers 0..n-1; the least member stands for its set."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        while self._parent[item] != item:
            item = self._parent[item]
        return item

    def join(self, left: int, right: int) -> bool:
        """Join the sets, and return whether they were separate."""
        low, high = sorted((self.find(left), self.find(right)))
        self._parent[high] = low
        return low != high


def fuse_relations(draft: Draft) -> Draft:
    """Fuse relations of one client; refuse expressions that need two parties.

    Tables joined by LEFT JOIN are fused into one FROM with the LEFT JOIN in it.
    """
    return draft.each_block(lambda block: _Fusion(draft, block).block())


def can_fuse(draft: Draft, block: DraftBlock, term: Term) -> bool:
    """Return whether one client has all tables that the term reads, and can join them alone."""
    try:
        _Fusion(draft, block).bring(term)
    except PlanError:
        return False
    return True


@dataclass(eq=False)
class _Node:
    """A group of the tree of joins, while LEFT JOINs move."""

    core: list[int]
    conditions: list[Term]
    lefts: list[_Node] = field(default_factory=list)
    parent: _Node | None = None
    on: tuple[Term, ...] = ()
    span: Span | None = None
    lookup: bool = False
    absorbed: bool = False
    """True if it stands in the FROM of a fused relation of its parent."""

    @property
    def all(self) -> list[int]:
        return [*self.core, *(i for left in self.lefts for i in left.all)]

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else 1 + self.parent.depth

    def home(self) -> _Node:
        """The group that its relations count as relations of."""
        return self.parent.home() if self.absorbed and self.parent is not None else self

    def nodes(self) -> Iterator[_Node]:
        yield self
        for left in self.lefts:
            yield from left.nodes()


class _Fusion:
    def __init__(self, draft: Draft, block: DraftBlock) -> None:
        self.draft = draft
        self.old = block
        self.groups = DisjointSets(len(block.relations))
        self.root = self._node(block.tree)
        self.changes = 0

    def _node(self, group: Group) -> _Node:
        node = _Node([self.old.of(i) for i in group.core], list(group.conditions))
        for left in group.lefts:
            inner = self._node(left.group)
            inner.parent, inner.on, inner.span = node, left.on, left.span
            inner.lookup = left.lookup
            node.lefts.append(inner)
        return node

    # -- grouping ----------------------------------------------------------------------------------

    def block(self) -> DraftBlock:
        position = self.draft.target_position
        if self.old.together:
            self._fuse(list(range(len(self.old.relations))), lambda _: None)
        changes_seen = -1
        while changes_seen != self.changes:
            changes_seen = self.changes
            for place, output in enumerate(self.old.outputs):
                special = {
                    self.draft.weight_position: "the weight",
                    self.draft.offset_position: f"the {self.draft.offset_clause.lower()}",
                    position: "the target",
                    self.draft.unit_position: f"unit = '{self.draft.unit}'",
                }
                label = special.get(place, f"column {output.name}")
                self.bring(output.term, label)
            for output in self.old.identifiers:
                self.bring(output.term, f"identifier {output.name}")
            for node in list(self.root.nodes()):
                if node.absorbed:
                    for term in (*node.conditions, *node.on):
                        self._same_client(term, node)
                else:
                    self._group(node)
        roots = [i for i in range(len(self.old.relations)) if self.groups.find(i) == i]
        relations = tuple(self._fused(root) for root in roots)
        return replace(self.old, relations=relations, tree=self._tree(self.root, relations))

    def _group(self, node: _Node) -> None:
        for condition in node.conditions:
            sides = equality_sides(self.draft, self.old, condition)
            homes = [{self._home(i) for i in self.old.reads(side)} for side in sides or ()]
            if sides is None or not any(h == {node} for h in homes):
                self.bring(condition, "a condition")
                continue
            for side in sides:
                self.bring(side, "one side of an equality")
        inside = set(node.all)
        for condition in node.on:
            sides = equality_sides(self.draft, self.old, condition)
            reads = [set(self.old.reads(side)) for side in sides or ()]
            apart = sides is not None and any(
                not reads[n] & inside and all(self._home(i) is node for i in reads[1 - n])
                for n in (0, 1)
            )
            if sides is None or not apart:
                self.bring(condition, "a condition")
                continue
            for side in sides:
                self.bring(side, "one side of an equality")

    def _same_client(self, term: Term, node: _Node) -> None:
        """A subquery in a condition of an absorbed LEFT JOIN reads the tables of its client."""
        relation = self.old.relations[node.core[0]]
        marks = clients_of(term.expression)
        if any(client != relation.client for client in marks):
            raise self._foreign(term, [relation], [m.party for m in marks])

    def _home(self, relation: int) -> _Node:
        return next(n for n in self.root.nodes() if relation in n.core).home()

    def bring(self, term: Term, what: str = "") -> None:
        """Fuse the relations that the term reads; refuse where they are not one client's."""
        reads = self.old.reads(term)
        marks = clients_of(term.expression)
        relations = [self.old.relations[i] for i in reads]
        holders = {r.client for r in relations}
        if len(marks) > 1 or (marks and (holders - {marks[0]})):
            raise self._foreign(term, relations, [m.party for m in marks])
        if marks and not relations and not any(r.client == marks[0] for r in self.old.relations):
            raise self._foreign(term, relations, [m.party for m in marks])
        self._fuse(reads, lambda wanted: self._one_client(term, wanted, what, reads))

    def _fuse(self, wanted: Sequence[int], check: Callable[[Sequence[int]], None]) -> None:
        """Fuse the relations, with the LEFT JOINs between them."""
        while len(wanted) > 1:
            check(wanted)
            homes = {self._home(i) for i in wanted}
            if len(homes) == 1:
                break
            order = list(self.root.nodes())
            last = max(homes, key=lambda node: (node.depth, order.index(node)))
            wanted = self._absorbed(last, wanted)
        for index in wanted[1:]:
            self.changes += self.groups.join(wanted[0], index)

    def _absorbed(self, node: _Node, wanted: Sequence[int]) -> list[int]:
        """Move the LEFT JOIN into the FROM of its left side; return all relations that it then
        needs.
        """
        assert node.parent is not None
        needed = {i for term in node.on for i in self.old.reads(term)} - set(node.all)
        siblings = (s for s in node.parent.lefts if s is not node and not s.absorbed)
        sibling = next((s for s in siblings if needed and needed <= set(s.all)), None)
        ids = frozenset(i for n in needed for i in self.old.relations[n].ids)
        if sibling is not None and any(rejects_nulls(term.expression, ids) for term in node.on):
            # (a LEFT JOIN b) LEFT JOIN c ON b.x = c.x is a LEFT JOIN (b LEFT JOIN c ON b.x = c.x)
            node.parent.lefts.remove(node)
            node.parent = sibling
            sibling.lefts.append(node)
        else:
            node.absorbed = True
            for inner in node.nodes():
                inner.absorbed = True
        self.changes += 1
        return sorted({*wanted, *node.all, *needed} if node.absorbed else wanted)

    def _one_client(
        self, term: Term, wanted: Sequence[int], what: str, reads: Sequence[int]
    ) -> None:
        holders = {self.old.relations[i].client for i in wanted}
        if len(holders) == 1 and None not in holders:
            return
        tables = [self.old.relations[i] for i in reads]
        if len({r.client for r in tables}) > 1 or None in {r.client for r in tables}:
            raise self._apart(term, tables, what)
        labels = " and ".join(r.label for r in tables)
        between = " and ".join(self.old.relations[i].label for i in wanted if i not in reads)
        raise self.draft.error(
            f"{what} needs columns of {labels} together, and {between} stands between them",
            term.span,
            f"join the tables of {tables[0].parties[0]} with one another first, in a derived table",
        )

    def _foreign(self, term: Term, relations: list[DraftRelation], parties: list[str]) -> PlanError:
        several = [r for r in relations if r.client is None and r.parties == tuple(parties)]
        if several:
            return self.draft.error(
                f"a subquery over {parties[0]} cannot be used with {several[0].label}, "
                "which is a union",
                term.span,
                "write the subquery in each part of the union",
            )
        read = " and ".join(dict.fromkeys(parties))
        users = " and ".join(r.label for r in relations)
        used = f"is used with {users}" if users else "no equality ties it to a table of FROM"
        return self.draft.error(
            f"a subquery reads tables of {read}, and {used}",
            term.span,
            INSTEAD_OF_SUBQUERY,
        )

    def _apart(self, term: Term, relations: Sequence[DraftRelation], what: str) -> PlanError:
        parties = tuple(dict.fromkeys(p for r in relations for p in r.parties))
        labels = " and ".join(r.label for r in relations)
        sides = equality_sides(self.draft, self.old, term)
        joined = what == "a condition" and sides is not None
        if joined and all(len(self.old.reads(side)) == 1 for side in sides or ()):
            return self.draft.error(
                f"{labels} cannot be joined on this: it may hold where a LEFT JOIN found no row",
                term.span,
                "compare columns as they are, a.x = b.y, which leaves such rows out",
            )
        if self._guards_others(term):
            return self.draft.error(
                f"{what} is computed from {labels} on the right of a LEFT JOIN, and NULL where "
                "that has no row: both of them decide it",
                term.span,
                "select the column as it is in the derived table, and compute with it outside",
            )
        if len(parties) == 1:
            message = f"{what} needs columns of {labels}, which lie at several clients"
            hint = "join the tables of each client in a part of a UNION ALL of its own"
            return self.draft.error(message, term.span, hint)
        message = f"{what} needs columns of {len(parties)} parties: {labels}"
        if what == "a condition" and term.expression.find(exp.Any, exp.All) is not None:
            return self.draft.error(
                f"ANY and ALL compare within one party, and this needs columns of {labels}",
                term.span,
                "for one value write a.x = b.y; for a list, join each of its values once: "
                "JOIN (SELECT DISTINCT key, unnest(list) AS value FROM party.table) AS d "
                "ON d.value = a.x",
            )
        hint = {
            "the target": "the target is computed by one party; TARGET one party's column",
            "the weight": "the weight is computed by one party; WEIGHT one party's column",
            "the offset": "the offset is computed by one party; OFFSET one party's column",
            "the exposure": "the exposure is computed by one party; EXPOSURE one party's column",
            "a condition": "parties join on equalities, a.x = b.y, and test their own rows, as in "
            "a.x > 1 OR b.y < 2; for near times compare days, a.t::DATE BETWEEN b.t::DATE - 7 AND "
            "b.t::DATE, or count hours, date_diff('hour', b.t, a.t) BETWEEN 0 AND 24, or join on a "
            "bucket: date_trunc('week', a.t) = date_trunc('week', b.t)",
            "one side of an equality": "each side of a join's equality belongs to one party",
        }.get(
            what,
            "give each party's part a column of its own, which the model adds up; or let the other "
            "party's columns only decide: CASE WHEN b.y > 2 THEN a.x ELSE 0 END",
        )
        return self.draft.error(message, term.span, hint)

    def _guards_others(self, term: Term) -> bool:
        """Return whether another relation's row decides if a column is present."""
        for case in nodes(term.expression, exp.Case):
            guarded = case.args["ifs"][0]
            if isinstance(guarded.this, exp.Column) and guarded.this.name == PRESENT:
                relation = self.old.of(guarded.this.table)
                value = Term(guarded.args["true"], term.span)  # its subqueries read columns too
                if any(other != relation for other in self.old.reads(value)):
                    return True
        return False

    # -- the block with fused relations ------------------------------------------------------------

    def _fused(self, root: int) -> DraftRelation:
        members = [i for i in range(len(self.old.relations)) if self.groups.find(i) == root]
        if len(members) == 1:
            return self.old.relations[root]
        subqueries = {self.old.relations[i].once for i in members}
        for relation in (self.old.relations[i] for i in members):
            if relation.once and len(subqueries) > 1:
                raise self.draft.error(
                    f"a subquery over {relation.label} is compared with a table of its own party, "
                    "beside the key that it is joined by",
                    relation.span,
                    "compare it with one table by equalities alone: WHERE EXISTS (SELECT 1 FROM "
                    "party.table AS u WHERE u.key = t.key)",
                )
        core = [i for i in members if not self._node_of(i).absorbed]
        optional = [i for i in members if i not in core]
        parts = {i: self.old.relations[i] for i in core}
        parts |= {i: _with_present_column(self.old.relations[i]) for i in optional}
        columns = {k: e for i in members for k, e in parts[i].branches[0].columns.items()}
        whole = ClientBranch(parts[core[0]].branches[0].client, (), columns)
        sources = [s for i in core for s in parts[i].branches[0].sources]
        for left in self._node_of(core[0]).lefts:
            if left.absorbed and set(left.all) <= set(members):
                sources += self._taken(left, (), parts, whole)
        filters = tuple(f for i in core for f in parts[i].branches[0].filters)
        claims = tuple(c for i in members for c in parts[i].branches[0].claims)
        branch = replace(whole, sources=tuple(sources), filters=filters, claims=claims)
        ids = tuple(id_ for i in (*core, *optional) for id_ in parts[i].ids)
        name = "_".join(self.old.relations[i].name for i in members)
        single = any(self.old.relations[i].single for i in members)
        (once,) = subqueries
        return DraftRelation(ids, name, parts[core[0]].span, (branch,), once, single)

    def _taken(
        self,
        node: _Node,
        outer: tuple[LeftOn, ...],
        parts: Mapping[int, DraftRelation],
        whole: ClientBranch,
    ) -> list[Source]:
        """The sources of an absorbed LEFT JOIN, all its conditions in its ON."""
        branches = [parts[i].branches[0] for i in node.core]
        filters = [f for b in branches for f in b.filters]
        on = [*filters, *(substituted(t, whole) for t in (*node.on, *node.conditions))]
        path = (*outer, LeftOn(f"{branches[0].sources[0].id}?", tuple(on)))
        sources = [replace(s, lefts=path) for b in branches for s in b.sources]
        for left in node.lefts:
            sources += self._taken(left, path, parts, whole)
        return sources

    def _node_of(self, relation: int) -> _Node:
        return next(n for n in self.root.nodes() if relation in n.core)

    def _tree(self, node: _Node, relations: Sequence[DraftRelation]) -> Group:
        firsts = [self.old.relations[i].ids[0] for i in node.core]
        core = [next(r for r in relations if id_ in r.ids) for id_ in firsts]
        lefts = tuple(
            OuterJoin(self._tree(left, relations), left.on, left.span, left.lookup)
            for left in node.lefts
            if not left.absorbed
        )
        return Group(tuple(dict.fromkeys(r.ids[0] for r in core)), tuple(node.conditions), lefts)


def _with_present_column(relation: DraftRelation) -> DraftRelation:
    """The relation with PRESENT, where it has it, as a column that a LEFT JOIN makes NULL."""
    branch = relation.branches[0]
    computed = [key for key in branch.columns if key[1] == PRESENT]
    if not computed:
        return relation
    source = branch.sources[0]
    if isinstance(branch.columns[computed[0]], exp.Column):
        return relation
    rows = exp.select("*", exp.alias_(exp.true(), PRESENT)).from_(source.item.copy())
    sources = (replace(source, item=exp.Subquery(this=rows)), *branch.sources[1:])
    columns = {**branch.columns, computed[0]: column(PRESENT, source.id)}
    return replace(relation, branches=(replace(branch, sources=sources, columns=columns),))


def equality_sides(draft: Draft, block: DraftBlock, term: Term) -> tuple[Term, Term] | None:
    """Return both sides of an equality between two parts of the block."""
    equal = equality(term.expression)
    if equal is None:
        return None
    left, right = (
        Term(side, span_of(side, draft.sql) or term.span) for side in (equal.left, equal.right)
    )
    reads = set(block.reads(left)), set(block.reads(right))
    return (left, right) if all(reads) and not reads[0] & reads[1] else None
