"""Part a block by tests of one table, so that no expression needs two parties.

`WHERE p.age > 30 OR l.bmi > 0` becomes a UNION ALL of two disjoint parts: rows with `p.age > 30`,
and the others with `l.bmi > 0`. `CASE WHEN l.bmi > 0 THEN p.age ELSE 0 END` becomes a column of p
in each part. An analyst could write these parts by hand; no other message leaves a party.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query.ctes import is_unstable
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.fusion import can_fuse, equality_sides
from sqlfl.planner.query.relations import PRESENT, DraftBlock, OuterJoin, Term, operand

MAX_PARTS = 64
"""Parts that one block of the query may become."""


def part_blocks(draft: Draft) -> Draft:
    """Part blocks whose conditions or columns join tests of several parties by AND, OR, NOT, CASE.

    The parts of a block are disjoint and have all of its rows. Comparisons and arithmetic over
    columns of two parties cannot be parted; later rules refuse them.
    """
    parts: list[DraftBlock] = []
    terms: list[Term] = []
    for block in draft.blocks:
        parts += _parts(draft, block, terms)
    spans = dict.fromkeys(term.span for term in terms if term.span is not None)
    remarks = (
        f"Tests of several parties part the rows: {' '.join(draft.sql[a:b].split())}. The "
        "coordinator sees the part of each row, and counts a table's rows in each part"
        for a, b in spans
    )
    return replace(
        draft,
        blocks=tuple(parts),
        parted=bool(terms),
        remarks=tuple(dict.fromkeys((*draft.remarks, *remarks))),
    )


@dataclass(frozen=True)
class _Part:
    """Some rows of a block, in which tests have become constants."""

    block: DraftBlock
    tests: Mapping[int, exp.Expr] = field(default_factory=dict)
    """Condition of the part on each relation."""
    is_empty: bool = False
    """True if a condition is always false."""

    @property
    def whole(self) -> DraftBlock:
        """The block with the conditions of the part."""
        added = (Term(test, self.block.span) for test in self.tests.values())
        tree = replace(self.block.tree, conditions=(*self.block.tree.conditions, *added))
        return replace(self.block, tree=tree)


@dataclass(frozen=True)
class _Test:
    """A part of an expression that reads one relation and is true, false or NULL."""

    relation: int
    node: exp.Expr
    null_is_false: bool
    """True if NULL has the same effect as FALSE where it stands."""

    @property
    def outcomes(self) -> list[tuple[exp.Expr, exp.Expr]]:
        """Return conditions for the outcomes of the test, each with the constant for it."""
        negated = exp.Not(this=operand(self.node.copy()))
        found: list[tuple[exp.Expr, exp.Expr]] = [(self.node.copy(), exp.true())]
        if isinstance(self.node, exp.Is) or _is_not_null(self.node):
            return [*found, (negated, exp.false())]
        if self.null_is_false:
            other = exp.Coalesce(this=negated, expressions=[exp.true()])
            return [*found, (other, exp.false())]
        missing = exp.Is(this=operand(self.node.copy()), expression=exp.Null())
        return [*found, (negated, exp.false()), (missing, trees.cast(exp.null(), "BOOLEAN"))]


def _is_not_null(node: exp.Expr) -> bool:
    return isinstance(node, exp.Not) and isinstance(node.this.unnest(), exp.Is)


def _parts(draft: Draft, block: DraftBlock, terms: list[Term]) -> list[DraftBlock]:
    """Return the parts of a block. Append the terms that part it to `terms`."""
    waiting, done = [_Part(_with_tests(block))], list[_Part]()
    homes = _homes(draft, waiting[0].block)
    while waiting:
        part = waiting.pop(0)
        choice = _first(draft, part.block, homes)
        if choice is None:
            done.append(part)
            continue
        term, test = choice
        outcomes = test.outcomes
        _check(draft, block, term, len(done) + len(waiting) + len(outcomes))
        terms.append(term)
        waiting[:0] = [_decided(part, test, *outcome) for outcome in outcomes]
    if len(done) == 1:
        return [block]
    done = [part for part in done if not part.is_empty] or done[:1]
    return [_at_home(part.whole, homes) for part in done]


def _homes(draft: Draft, block: DraftBlock) -> dict[int, exp.Column]:
    """Return a column of the one relation that each output is of in all parts, by the output's
    place; none for outputs that no test parts.
    """
    homes: dict[int, exp.Column] = {}
    for place, output in enumerate(block.outputs):
        term = output.term
        if len(block.reads(term)) < 2 or can_fuse(draft, block, term):
            continue
        apart = {test.relation for test in _tests(block, term, False)}
        for column in nodes(term.expression, exp.Column) if apart else ():
            if not apart.issuperset(block.reads(Term(column, None))):
                homes[place] = column.copy()
                break
    return homes


def _at_home(block: DraftBlock, homes: Mapping[int, exp.Column]) -> DraftBlock:
    """Return the block with outputs that are constants in this part as expressions of the relation
    that has them in others.
    """
    outputs = list(block.outputs)
    for place, column in homes.items():
        term = outputs[place].term
        if not block.reads(term):
            test = exp.Is(this=column.copy(), expression=exp.Null())
            value, same = term.expression.copy(), term.expression.copy()
            either = exp.Case(ifs=[exp.If(this=test, true=value)], default=same)
            outputs[place] = replace(outputs[place], term=replace(term, expression=either))
    return replace(block, outputs=tuple(outputs))


def _first(
    draft: Draft, block: DraftBlock, homes: Mapping[int, exp.Column]
) -> tuple[Term, _Test] | None:
    """Return the first term that several parties would have to evaluate, and a test in it."""
    conditions = [
        term for term in block.tree.conditions if equality_sides(draft, block, term) is None
    ]
    for term in conditions:
        if len(block.reads(term)) < 2:
            continue
        tests = _tests(block, term, True)
        if tests and not can_fuse(draft, block, term):
            return term, tests[0]
    for place, column in homes.items():
        term, (home,) = block.outputs[place].term, block.reads(Term(column, None))
        for found in _walked(block, term.expression, False, False):
            if isinstance(found, _Test) and found.relation != home:
                return term, found
    for left in block.tree.lefts:
        inside = frozenset(block.of(id_) for id_ in left.group.ids)
        for term in left.on:
            if len(block.reads(term)) < 2 or equality_sides(draft, block, term) is not None:
                continue
            tests = _tests(block, term, True, inside)
            if tests:
                return term, tests[0]
    return None


def _check(draft: Draft, block: DraftBlock, term: Term, parts: int) -> None:
    """Refuse too many `parts`, and tables that may have other rows in each part."""
    if parts > MAX_PARTS:
        raise draft.error(
            f"tests of several parties would part the rows into more than {MAX_PARTS} parts",
            term.span,
            "join fewer tests by AND, OR and CASE, or make one column of each party's tests",
        )
    for relation in block.relations:
        if any(is_unstable(s.item, {}) for b in relation.branches for s in b.sources):
            raise _unstable(draft, term, relation.label)


def _unstable(draft: Draft, term: Term, label: str) -> PlanError:
    return draft.error(
        f"tests of several parties part the rows, and {label} may have other rows each time that "
        "it is evaluated: a sample, a LIMIT without ORDER BY, or an aggregate of rows in no order",
        term.span,
        "order its rows, or make it a table in its party's database",
    )


# -- tests -----------------------------------------------------------------------------------------


def _tests(
    block: DraftBlock, term: Term, is_condition: bool, inside: frozenset[int] = frozenset()
) -> list[_Test]:
    """Return the tests to part by, so that one relation is left; none if that is impossible.

    Of the ON of a LEFT JOIN a relation on its right is left, one of `inside`: rows before the join
    are parted, and in each part the other tests decide which rows are partners.
    """
    tests, values = [], set()
    for found in _walked(block, term.expression, is_condition, is_condition):
        if isinstance(found, _Test):
            tests.append(found)
        else:
            values.add(found)
    if len(values) > 1 or None in values or not tests:
        return []
    counts = {test.relation: 0 for test in tests}
    for test in tests:
        counts[test.relation] += 1
    right = inside & (counts.keys() | values)
    if len(right) > 1 or (inside and values - inside):
        return []
    kept = next(iter(values | right), max(sorted(counts), key=lambda at: counts[at]))
    return [test for test in tests if test.relation != kept]


def _walked(
    block: DraftBlock, node: exp.Expr, truth: bool, null_is_false: bool
) -> Iterator[_Test | int | None]:
    """Yield what an expression depends on: its largest tests, and the relations of other columns.
    None stands for a part that several relations decide.

    `truth`: the node is a test, or an operand of AND, OR or NOT. `null_is_false`: NULL has the same
    effect as FALSE.
    """
    reads = block.reads(Term(node, None))
    if not reads:
        return
    if len(reads) == 1 and (truth or _is_test(node)):
        yield _Test(reads[0], node, null_is_false)
        return
    found = list(_within(block, node, null_is_false))
    if len(reads) == 1 and not (found and all(isinstance(part, _Test) for part in found)):
        yield reads[0]
    else:
        yield from found


def _within(block: DraftBlock, node: exp.Expr, null_is_false: bool) -> Iterator[_Test | int | None]:
    """Yield the same of the parts of an expression."""
    if isinstance(node, exp.Query | exp.Lambda | exp.Window | exp.Escape) or _is_guard(node):
        yield None
    elif isinstance(node, exp.Paren):
        yield from _walked(block, node.this, _is_test(node), null_is_false)
    elif isinstance(node, exp.And | exp.Or):
        for side in (node.left, node.right):
            yield from _walked(block, side, True, null_is_false)
    elif isinstance(node, exp.Not):
        yield from _walked(block, node.this, True, False)
    elif isinstance(node, exp.Case):
        for branch in node.args["ifs"]:
            yield from _walked(block, branch.this, True, True)
            yield from _walked(block, branch.args["true"], False, False)
        if (default := node.args.get("default")) is not None:
            yield from _walked(block, default, False, False)
    else:
        for child in node.iter_expressions():
            yield from _walked(block, child, False, False)


def _is_test(node: exp.Expr) -> bool:
    """Return whether the expression is true, false or NULL, wherever it stands."""
    inner = node.unnest()
    is_test = isinstance(inner, exp.Predicate | exp.Connector | exp.Not | exp.Escape)
    return is_test and inner.find(exp.Query, exp.Any, exp.All) is None


def _is_guard(node: exp.Expr) -> bool:
    """Return whether a relation's row decides if a value of other relations is present."""
    if not isinstance(node, exp.Case):
        return False
    test = node.args["ifs"][0].this
    return isinstance(test, exp.Column) and test.name == PRESENT


def _with_tests(block: DraftBlock) -> DraftBlock:
    """Write `CASE x WHEN v` and `if(x, a, b)` with tests, where they read several relations."""

    def rewritten(term: Term) -> Term:
        if len(block.reads(term)) < 2:
            return term
        holder = exp.Paren(this=term.expression.copy())
        while (node := next(filter(_is_short, holder.walk()), None)) is not None:
            node.replace(_searched(node))
        return replace(term, expression=holder.this)

    return _each(block, rewritten, rewritten, lambda term, _: rewritten(term))


def _is_short(node: exp.Expr) -> bool:
    if isinstance(node, exp.Case):
        return node.this is not None
    is_if = isinstance(node, exp.Anonymous) and function_name(node) == "if"
    return is_if and len(node.expressions) == 3


def _searched(node: exp.Expr) -> exp.Case:
    if isinstance(node, exp.Case):
        ifs = [
            exp.If(
                this=exp.EQ(this=operand(node.this.copy()), expression=operand(branch.this.copy())),
                true=branch.args["true"].copy(),
            )
            for branch in node.args["ifs"]
        ]
        default = node.args.get("default")
        return exp.Case(ifs=ifs, default=None if default is None else default.copy())
    test, value, other = (part.copy() for part in node.expressions)
    return exp.Case(ifs=[exp.If(this=test, true=value)], default=other)


# -- parts -----------------------------------------------------------------------------------------


def _decided(part: _Part, test: _Test, condition: exp.Expr, value: exp.Expr) -> _Part:
    """Return the rows of the part that fulfil the condition, with the test's value in them."""
    text = to_sql(test.node)
    sure = not test.null_is_false or (isinstance(value, exp.Boolean) and bool(value.this))

    def decided(term: Term, is_condition: bool, left: OuterJoin | None = None) -> Term:
        if left is not None and test.relation in map(part.block.of, left.group.ids):
            return term  # which decides what the test is of
        holder = exp.Paren(this=term.expression.copy())
        for found in list(_walked(part.block, holder.this, is_condition, is_condition)):
            if (
                isinstance(found, _Test)
                and (sure or found.null_is_false)
                and to_sql(found.node) == text
            ):
                found.node.replace(value.copy())
        for case in nodes(holder, exp.Case):
            _settle(part.block, case)
        result: exp.Expr = _simple(holder.this) if is_condition else holder.this
        return replace(term, expression=result)

    block = _each(
        part.block,
        lambda t: decided(t, True),
        lambda t: decided(t, False),
        lambda t, left: decided(t, True, left),
    )
    known = [term.expression for term in block.tree.conditions]
    is_empty = part.is_empty or any(isinstance(e, exp.Boolean) and not e.this for e in known)
    kept = tuple(t for t in block.tree.conditions if not isinstance(t.expression, exp.Boolean))
    if is_empty:
        kept = block.tree.conditions
    lefts = tuple(replace(left, on=_without_true(left.on)) for left in block.tree.lefts)
    block = replace(block, tree=replace(block.tree, conditions=kept, lefts=lefts))
    before = part.tests.get(test.relation)
    if before is not None:  # a later test may fail on rows that an earlier one leaves out
        condition = exp.Case(ifs=[exp.If(this=before.copy(), true=condition)])
    return _Part(block, {**part.tests, test.relation: condition}, is_empty)


def _without_true(terms: Sequence[Term]) -> tuple[Term, ...]:
    return tuple(
        t for t in terms if not (isinstance(t.expression, exp.Boolean) and t.expression.this)
    )


def _settle(block: DraftBlock, case: exp.Case) -> None:
    """Simplify tests. After one that is true, none counts. Values that are never taken stay for
    their types, without tests.
    """
    is_decided, default = False, case.args.get("default")
    for branch in case.args["ifs"]:
        test = exp.false() if is_decided else _simple(branch.this)
        branch.set("this", test)
        if isinstance(test, exp.Boolean):
            is_decided = is_decided or bool(test.this)
            if not test.this:
                _without_tests(block, branch.args["true"])
    if is_decided and default is not None:
        _without_tests(block, default)


def _without_tests(block: DraftBlock, value: exp.Expr) -> None:
    for found in list(_walked(block, value, False, False)):
        if isinstance(found, _Test):
            found.node.replace(trees.cast(exp.null(), "BOOLEAN"))


def _simple(test: exp.Expr) -> exp.Expr:
    """Return a test without constants in AND and OR, where NULL has the same effect as FALSE."""
    inner = test.unnest()
    if isinstance(inner, exp.Boolean):
        return inner.copy()
    if not isinstance(inner, exp.And | exp.Or):
        return test.copy()
    decisive = isinstance(inner, exp.Or)
    sides = [_simple(side) for side in (inner.left, inner.right)]
    for side, other in (sides, sides[::-1]):
        if isinstance(side, exp.Boolean):
            return side if bool(side.this) is decisive else other
    return type(inner)(this=operand(sides[0]), expression=operand(sides[1]))


def _each(
    block: DraftBlock,
    condition: Callable[[Term], Term],
    output: Callable[[Term], Term],
    on: Callable[[Term, OuterJoin], Term],
) -> DraftBlock:
    """Return the block with other conditions of its root and its LEFT JOINs, and other columns."""
    lefts = tuple(replace(n, on=tuple(on(t, n) for t in n.on)) for n in block.tree.lefts)
    conditions = tuple(map(condition, block.tree.conditions))
    tree = replace(block.tree, conditions=conditions, lefts=lefts)
    outputs = tuple(replace(o, term=output(o.term)) for o in block.outputs)
    return replace(block, tree=tree, outputs=outputs)
