"""Fuse tables of one client that an expression or a non-equality needs together into
one relation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        """Return the least member of the set of `item`."""
        while self._parent[item] != item:
            item = self._parent[item]
        return item

    def join(self, left: int, right: int) -> bool:
        """Join the sets. Return True if they were separate, False if they were one set before."""
        low, high = sorted((self.find(left), self.find(right)))
        self._parent[high] = low
        return low != high


def fuse_relations(draft: Draft) -> Draft:
    """Fuse relations of one client; refuse expressions that need two parties.

    Tables joined by LEFT JOIN are fused into one FROM with the LEFT JOIN in it.
    """
    return draft.each_block(lambda block: _Fusion(draft, block).fused_block())


def can_fuse(draft: Draft, block: DraftBlock, term: Term) -> bool:
    """Return whether one client has all tables that the term reads, and can join them alone."""
    try:
        _Fusion(draft, block).fuse_term(term, _Use("the term"))
    except PlanError:
        return False
    return True


@dataclass(frozen=True)
class _Use:
    """The use of a term, for the errors about it."""

    label: str
    """Words that name the term in a message."""
    hint: str = (
        "give each party's part a column of its own, which the model adds up; or let the other "
        "party's columns only decide: CASE WHEN b.y > 2 THEN a.x ELSE 0 END"
    )
    """Advice if the term reads columns of several parties."""


_CONDITION = _Use(
    "a condition",
    "parties join on equalities, a.x = b.y, and test their own rows, as in "
    "a.x > 1 OR b.y < 2; for near times compare days, a.t::DATE BETWEEN b.t::DATE - 7 AND "
    "b.t::DATE, or count hours, date_diff('hour', b.t, a.t) BETWEEN 0 AND 24, or join on a "
    "bucket: date_trunc('week', a.t) = date_trunc('week', b.t)",
)
_SIDE = _Use("one side of an equality", "each side of a join's equality belongs to one party")


def _clause_use(clause: str) -> _Use:
    """Return the use of a column that a clause such as TARGET names."""
    label = f"the {clause.lower()}"
    return _Use(label, f"{label} is computed by one party; {clause} one party's column")


@dataclass(eq=False)
class _Node:
    """A group of the tree of joins, while LEFT JOINs move."""

    core: list[int]
    """Indices of the relations that the group joins by inner joins."""
    conditions: list[Term]
    lefts: list[_Node] = field(default_factory=list)
    """Groups that the group is joined with by LEFT JOIN, in order."""
    parent: _Node | None = None
    """Group on the left of its LEFT JOIN; None for the root."""
    on: tuple[Term, ...] = ()
    """Conditions of its LEFT JOIN."""
    span: Span | None = None
    lookup: bool = False
    """True if each row has one partner at most (`OuterJoin.lookup`)."""
    absorbed: bool = False
    """True if its LEFT JOIN stands in the FROM of a fused relation of its parent."""

    @property
    def all_relations(self) -> list[int]:
        """The indices of its relations and of those below it."""
        return [*self.core, *(i for left in self.lefts for i in left.all_relations)]

    @property
    def depth(self) -> int:
        """The number of groups above it."""
        return 0 if self.parent is None else 1 + self.parent.depth

    def home(self) -> _Node:
        """Return the group whose FROM has its relations: itself, or the nearest group above it that
        is not absorbed.
        """
        return self.parent.home() if self.absorbed and self.parent is not None else self

    def nodes(self) -> Iterator[_Node]:
        """Yield the group and all groups below it, each before those below it."""
        yield self
        for left in self.lefts:
            yield from left.nodes()


class _Fusion:
    """Fusion of the relations of one block, until no term needs a further one."""

    def __init__(self, draft: Draft, block: DraftBlock) -> None:
        self.draft = draft
        self.block = block
        self.groups = DisjointSets(len(block.relations))
        """Indices of relations that become one relation."""
        self.root = self._node(block.tree)
        self.changes = 0
        """Number of fusions and of moved LEFT JOINs so far."""

    def _node(self, group: Group) -> _Node:
        """Return the group, and the groups below it, as nodes that can move."""
        node = _Node([self.block.of(i) for i in group.core], list(group.conditions))
        for left in group.lefts:
            inner = self._node(left.group)
            inner.parent, inner.on, inner.span = node, left.on, left.span
            inner.lookup = left.lookup
            node.lefts.append(inner)
        return node

    # -- grouping ----------------------------------------------------------------------------------

    def fused_block(self) -> DraftBlock:
        """Return the block with fused relations. Raise PlanError for a term that no single client
        can evaluate.
        """
        if self.block.together:
            self._fuse(range(len(self.block.relations)), None)
        # a fusion or a moved LEFT JOIN can make an equality between relations one within a relation
        while True:
            changes_before = self.changes
            self._fuse_all_terms()
            if self.changes == changes_before:
                break
        roots = [i for i in range(len(self.block.relations)) if self.groups.find(i) == i]
        relations = tuple(self._fused_relation(root) for root in roots)
        return replace(self.block, relations=relations, tree=self._tree(self.root, relations))

    def _fuse_all_terms(self) -> None:
        """Fuse the relations that each output, identifier and condition needs together. Raise
        PlanError for a term that no single client can evaluate.
        """
        uses = self._uses_by_position()
        for position, output in enumerate(self.block.outputs):
            self.fuse_term(output.term, uses.get(position, _Use(f"column {output.name}")))
        for output in self.block.identifiers:
            self.fuse_term(output.term, _Use(f"identifier {output.name}"))
        for node in list(self.root.nodes()):  # a list, since fusion moves nodes
            if node.absorbed:
                for term in (*node.conditions, *node.on):
                    self._check_subqueries(term, node)
            else:
                self._fuse_conditions(node)

    def _uses_by_position(self) -> dict[int | None, _Use]:
        """Return the uses of outputs that a clause names, by position. The key None stands for
        absent clauses.
        """
        return {
            self.draft.weight_position: _clause_use("WEIGHT"),
            self.draft.offset_position: _clause_use(self.draft.offset_clause),
            self.draft.target_position: _clause_use("TARGET"),
            self.draft.unit_position: _Use(f"unit = '{self.draft.unit}'"),
        }

    def _fuse_conditions(self, node: _Node) -> None:
        """Fuse the relations that the conditions of a group, and of its LEFT JOIN, need together.

        Equalities that can join relations leave their two sides apart. Raise PlanError for a
        condition that no single client can evaluate.
        """
        for condition in node.conditions:
            self._fuse_condition(condition, self._sides_in_group(condition, node))
        right_side = set(node.all_relations)
        for condition in node.on:
            self._fuse_condition(condition, self._sides_of_on(condition, node, right_side))

    def _fuse_condition(self, condition: Term, sides: tuple[Term, Term] | None) -> None:
        """Fuse the relations of each side by itself; of the whole condition if `sides` is None."""
        if sides is None:
            self.fuse_term(condition, _CONDITION)
            return
        for side in sides:
            self.fuse_term(side, _SIDE)

    def _sides_in_group(self, condition: Term, node: _Node) -> tuple[Term, Term] | None:
        """Return the sides of an equality that can join relations: one side reads the group's own
        relations alone. Return None for any other condition.
        """
        sides = equality_sides(self.draft, self.block, condition)
        if sides is None:
            return None
        homes = [{self._home(i) for i in self.block.reads(side)} for side in sides]
        return sides if {node} in homes else None

    def _sides_of_on(
        self, condition: Term, node: _Node, right_side: set[int]
    ) -> tuple[Term, Term] | None:
        """Return the sides of an equality that can join the group to the relations before its LEFT
        JOIN: one side reads the group's own relations alone, the other none of `right_side`. Return
        None for any other condition.
        """
        sides = equality_sides(self.draft, self.block, condition)
        if sides is None:
            return None
        first, second = (set(self.block.reads(side)) for side in sides)
        for outer, inner in ((first, second), (second, first)):
            if not outer & right_side and all(self._home(i) is node for i in inner):
                return sides
        return None

    def _check_subqueries(self, term: Term, node: _Node) -> None:
        """Raise PlanError if a subquery in a condition of an absorbed LEFT JOIN reads another
        client's tables than the LEFT JOIN.
        """
        relation = self.block.relations[node.core[0]]
        marks = clients_of(term.expression)
        if any(client != relation.client for client in marks):
            raise self._foreign_error(term, [relation], [m.party for m in marks])

    def _home(self, relation: int) -> _Node:
        """Return the group whose FROM has the relation of this index."""
        return self._node_of(relation).home()

    def fuse_term(self, term: Term, use: _Use) -> None:
        """Fuse the relations that the term reads. Raise PlanError if they, or the term's
        subqueries, are not one client's.
        """
        reads = self.block.reads(term)
        marks = clients_of(term.expression)
        relations = [self.block.relations[i] for i in reads]
        holders = {r.client for r in relations}
        if len(marks) > 1 or (marks and (holders - {marks[0]})):
            raise self._foreign_error(term, relations, [m.party for m in marks])
        if marks and not relations and not any(r.client == marks[0] for r in self.block.relations):
            raise self._foreign_error(term, relations, [m.party for m in marks])
        self._fuse(reads, (term, use))

    def _fuse(self, reads: Sequence[int], needed_by: tuple[Term, _Use] | None) -> None:
        """Fuse the relations, with the LEFT JOINs between them. `needed_by` is the term that reads
        them. Raise PlanError if they are not one client's; with None, the caller knows that they
        are.
        """
        members: Sequence[int] = reads
        while len(members) > 1:
            if needed_by is not None:
                self._check_one_client(*needed_by, reads, members)
            homes = {self._home(i) for i in members}
            if len(homes) == 1:
                break
            order = list(self.root.nodes())
            last = max(homes, key=lambda node: (node.depth, order.index(node)))
            members = sorted({*members, *self._absorb(last)})
        for index in members[1:]:
            self.changes += self.groups.join(members[0], index)

    def _absorb(self, node: _Node) -> set[int]:
        """Bring the LEFT JOIN of a group one step nearer to the relations before it.

        Move it below a LEFT JOIN before it if its ON reads that one alone; return no relations.
        Otherwise mark it, with all LEFT JOINs in it, as part of the FROM of its left side; return
        the relations that are to be fused with it: its own, and those that its ON reads.
        """
        assert node.parent is not None
        self.changes += 1
        on_reads = {i for term in node.on for i in self.block.reads(term)}
        before = on_reads - set(node.all_relations)
        siblings = (s for s in node.parent.lefts if s is not node and not s.absorbed)
        sibling = next((s for s in siblings if before and before <= set(s.all_relations)), None)
        ids = frozenset(id_ for i in before for id_ in self.block.relations[i].ids)
        if sibling is not None and any(rejects_nulls(term.expression, ids) for term in node.on):
            # (a LEFT JOIN b) LEFT JOIN c ON b.x = c.x is a LEFT JOIN (b LEFT JOIN c ON b.x = c.x)
            node.parent.lefts.remove(node)
            node.parent = sibling
            sibling.lefts.append(node)
            return set()
        for inner in node.nodes():
            inner.absorbed = True
        return before.union(node.all_relations)

    def _check_one_client(
        self, term: Term, use: _Use, reads: Sequence[int], members: Sequence[int]
    ) -> None:
        """Raise PlanError unless one client has all `members`: the relations that the term reads,
        and those of the LEFT JOINs between them.
        """
        holders = {self.block.relations[i].client for i in members}
        if len(holders) == 1 and None not in holders:
            return
        tables = [self.block.relations[i] for i in reads]
        if len({r.client for r in tables}) > 1 or None in {r.client for r in tables}:
            raise self._apart_error(term, tables, use)
        labels = " and ".join(r.label for r in tables)
        between = " and ".join(self.block.relations[i].label for i in members if i not in reads)
        raise self.draft.error(
            f"{use.label} needs columns of {labels} together, and {between} stands between them",
            term.span,
            f"join the tables of {tables[0].parties[0]} with one another first, in a derived table",
        )

    def _foreign_error(
        self, term: Term, relations: list[DraftRelation], parties: list[str]
    ) -> PlanError:
        """Return the error for a subquery over `parties` that is used with these relations."""
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

    def _apart_error(self, term: Term, relations: Sequence[DraftRelation], use: _Use) -> PlanError:
        """Return the error for a term that reads relations of several clients, by its form."""
        parties = tuple(dict.fromkeys(p for r in relations for p in r.parties))
        labels = " and ".join(r.label for r in relations)
        sides = equality_sides(self.draft, self.block, term)
        compares = use is _CONDITION and sides is not None
        if compares and all(len(self.block.reads(side)) == 1 for side in sides or ()):
            return self.draft.error(
                f"{labels} cannot be joined on this: it may hold where a LEFT JOIN found no row",
                term.span,
                "compare columns as they are, a.x = b.y, which leaves such rows out",
            )
        if self._guards_others(term):
            return self.draft.error(
                f"{use.label} is computed from {labels} on the right of a LEFT JOIN, and NULL "
                "where that has no row: both of them decide it",
                term.span,
                "select the column as it is in the derived table, and compute with it outside",
            )
        if len(parties) == 1:
            message = f"{use.label} needs columns of {labels}, which lie at several clients"
            hint = "join the tables of each client in a part of a UNION ALL of its own"
            return self.draft.error(message, term.span, hint)
        message = f"{use.label} needs columns of {len(parties)} parties: {labels}"
        if use is _CONDITION and term.expression.find(exp.Any, exp.All) is not None:
            return self.draft.error(
                f"ANY and ALL compare within one party, and this needs columns of {labels}",
                term.span,
                "for one value write a.x = b.y; for a list, join each of its values once: "
                "JOIN (SELECT DISTINCT key, unnest(list) AS value FROM party.table) AS d "
                "ON d.value = a.x",
            )
        return self.draft.error(message, term.span, use.hint)

    def _guards_others(self, term: Term) -> bool:
        """Return whether the presence of one relation's row decides if a column of another relation
        is NULL.
        """
        for case in nodes(term.expression, exp.Case):
            guarded = case.args["ifs"][0]
            if isinstance(guarded.this, exp.Column) and guarded.this.name == PRESENT:
                guarding = self.block.of(guarded.this.table)
                value = Term(guarded.args["true"], term.span)  # its subqueries read columns too
                if any(relation != guarding for relation in self.block.reads(value)):
                    return True
        return False

    # -- the block with fused relations ------------------------------------------------------------

    def _fused_relation(self, root: int) -> DraftRelation:
        """Return the relation that a set of relations becomes; the relation itself if it is alone.
        Raise PlanError if the tables of a subquery are fused with others.
        """
        members = [i for i in range(len(self.block.relations)) if self.groups.find(i) == root]
        if len(members) == 1:
            return self.block.relations[root]
        once = self._subquery_of([self.block.relations[i] for i in members])
        core = [i for i in members if not self._node_of(i).absorbed]
        optional = [i for i in members if i not in core]
        parts = {i: self.block.relations[i] for i in core}
        parts |= {i: _with_present_column(self.block.relations[i]) for i in optional}
        columns = {k: e for i in members for k, e in parts[i].branches[0].columns.items()}
        whole = ClientBranch(parts[core[0]].branches[0].client, (), columns)
        sources = [s for i in core for s in parts[i].branches[0].sources]
        for left in self._node_of(core[0]).lefts:
            if left.absorbed and set(left.all_relations) <= set(members):
                sources += self._left_join_sources(left, (), parts, whole)
        filters = tuple(f for i in core for f in parts[i].branches[0].filters)
        claims = tuple(c for i in members for c in parts[i].branches[0].claims)
        branch = replace(whole, sources=tuple(sources), filters=filters, claims=claims)
        ids = tuple(id_ for i in (*core, *optional) for id_ in parts[i].ids)
        name = "_".join(self.block.relations[i].name for i in members)
        single = any(self.block.relations[i].single for i in members)
        return DraftRelation(ids, name, parts[core[0]].span, (branch,), once, single)

    def _subquery_of(self, members: Sequence[DraftRelation]) -> str:
        """Return `DraftRelation.once` of relations that are fused. Raise PlanError if it is not the
        same for all of them.
        """
        subqueries = {relation.once for relation in members}
        if len(subqueries) > 1:
            relation = next(relation for relation in members if relation.once)
            raise self.draft.error(
                f"a subquery over {relation.label} is compared with a table of its own party, "
                "beside the key that it is joined by",
                relation.span,
                "compare it with one table by equalities alone: WHERE EXISTS (SELECT 1 FROM "
                "party.table AS u WHERE u.key = t.key)",
            )
        return members[0].once

    def _left_join_sources(
        self,
        node: _Node,
        outer: tuple[LeftOn, ...],
        parts: Mapping[int, DraftRelation],
        whole: ClientBranch,
    ) -> list[Source]:
        """Return the sources of an absorbed LEFT JOIN, with all its conditions in its ON.

        `outer` has the LEFT JOINs around it. `whole` has the columns of the fused relation.
        """
        branches = [parts[i].branches[0] for i in node.core]
        filters = [f for b in branches for f in b.filters]
        on = [*filters, *(substituted(t, whole) for t in (*node.on, *node.conditions))]
        path = (*outer, LeftOn(f"{branches[0].sources[0].id}?", tuple(on)))
        sources = [replace(s, lefts=path) for b in branches for s in b.sources]
        for left in node.lefts:
            sources += self._left_join_sources(left, path, parts, whole)
        return sources

    def _node_of(self, relation: int) -> _Node:
        """Return the group that joins the relation of this index."""
        return next(n for n in self.root.nodes() if relation in n.core)

    def _tree(self, node: _Node, relations: Sequence[DraftRelation]) -> Group:
        """Return the group over the fused relations, without the LEFT JOINs that these contain."""
        firsts = [self.block.relations[i].ids[0] for i in node.core]
        core = [next(r for r in relations if id_ in r.ids) for id_ in firsts]
        lefts = tuple(
            OuterJoin(self._tree(left, relations), left.on, left.span, left.lookup)
            for left in node.lefts
            if not left.absorbed
        )
        return Group(tuple(dict.fromkeys(r.ids[0] for r in core)), tuple(node.conditions), lefts)


def _with_present_column(relation: DraftRelation) -> DraftRelation:
    """Return the relation with PRESENT as a column of a derived table, which a LEFT JOIN makes
    NULL. Return it unchanged if it lacks PRESENT, or has it as a column already.
    """
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
    """Return both sides of an equality between two parts of the block. Return None for any other
    condition, and if a side reads no relation or one of the other side.
    """
    equal = equality(term.expression)
    if equal is None:
        return None
    left, right = (
        Term(side, span_of(side, draft.sql) or term.span) for side in (equal.left, equal.right)
    )
    reads = set(block.reads(left)), set(block.reads(right))
    return (left, right) if all(reads) and not reads[0] & reads[1] else None
