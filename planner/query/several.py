"""Functions that give several rows, in the select list of a query over tables of several clients.

They are evaluated with their own table, which is replaced by one with a row for each of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, count

from sqlglot import exp

from sqlfl.contract.schema import folded
from sqlfl.planner.query import emit
from sqlfl.planner.query.relations import (
    UNLIKE,
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Output,
    Source,
    Term,
    column,
)
from sqlfl.planner.query.relations import substituted as over

UNROLLED = "sqlfl_rows"


def unrolled(
    block: DraftBlock, outputs: Sequence[Output], fresh: Callable[[str], str]
) -> DraftBlock | None:
    """Return the block with the several-row functions of `outputs` as columns of their relation.

    None if they read no relation or more than one, whose rows they would pair up, or one on the
    right of a LEFT JOIN, whose missing rows give none. `fresh` makes ids.
    """
    read = {block.reads(output.term) for output in outputs}
    if len(read) != 1 or len(next(iter(read))) != 1:
        return None
    index = next(iter(read))[0]
    if index in block.optional:
        return None
    block, columns = with_rows(block, index, [output.term for output in outputs], fresh)
    names = dict(zip(map(id, outputs), columns, strict=True))
    shown = tuple(
        replace(o, term=Term(names[id(o)], o.term.span)) if id(o) in names else o
        for o in block.outputs
    )
    return replace(block, outputs=shown)


def with_rows(
    block: DraftBlock,
    index: int,
    terms: Sequence[Term],
    fresh: Callable[[str], str],
    name: str = "",
) -> tuple[DraftBlock, list[exp.Column]]:
    """Return the block with a row of the relation for each row that several-row functions over it
    give, and the columns of `terms`, of which the first is called `name`. `fresh` makes ids.
    """
    relation = block.relations[index]
    taken = {known for branch in relation.branches for _, known in branch.columns}
    names_ = chain([name] if name else [], (f"{UNROLLED}_{n}" for n in count()))
    free = (made for made in names_ if made not in taken)
    names = [next(free) for _ in terms]
    branches = tuple(
        _branch(branch, relation, list(zip(terms, names, strict=True)), fresh("@"))
        for branch in relation.branches
    )
    relations = (
        *block.relations[:index],
        replace(relation, branches=branches),
        *block.relations[index + 1 :],
    )
    return replace(block, relations=relations), [column(n, relation.ids[0]) for n in names]


def _branch(
    branch: ClientBranch, relation: DraftRelation, terms: Sequence[tuple[Term, str]], id_: str
) -> ClientBranch:
    """The branch as one source, a row for each of the functions'."""
    shown = [(expression, name) for (_, name), expression in branch.columns.items()]
    shown += [(over(term, branch).expression, name) for term, name in terms]
    conditions = [f.expression for f in branch.filters]
    select = emit.fragment_select(branch.sources, shown, conditions)
    first = branch.sources[0] if len(branch.sources) == 1 else None
    path = (branch.client.party,) if first is None else first.path
    others = () if first is None else first.others
    names = frozenset(folded(name) for _, name in shown)
    names |= {name for own in branch.sources for name in own.names}
    item = exp.Subquery(this=select)
    source = Source(id_, item, relation.name, path, None, names, others, copies=True)
    keys = [*branch.columns, *((relation.ids[0], name) for _, name in terms)]
    columns: dict[tuple[str, str], exp.Expr] = {key: column(key[1], id_) for key in keys}
    for key, expression in branch.columns.items():
        columns[key].meta[UNLIKE] = bool(expression.meta_get(UNLIKE))
    return ClientBranch(branch.client, (source,), columns)
