"""Checks and columns of the query as a whole: names, target, identifiers, captured names.

A macro's own variable can capture a name: DuckDB inserts the arguments of a macro into its text
before it resolves names in WHERE and ON. With
`MACRO total(n) AS list_sum(list_transform([1, 2], lambda k: k * n))`, the column in `WHERE total(k)
= 6` is the lambda's k. In `SELECT total(k)` and `WHERE t.k = total(t.k)` it is the table's. Only
the database can expand its macros: a request checks whether the call has a meaning without a table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from sqlglot import exp
from sqlglot.errors import ParseError as SqlglotParseError
from sqlglot.errors import TokenError

from sqlfl.base.errors import LostError, PartyError, PlanError, ReplyError
from sqlfl.contract.fragment_columns import RESERVED, UNIT, identifier
from sqlfl.contract.schema import Client, folded
from sqlfl.planner.grammar.refusals import CONNECTION, function_name, is_volatile
from sqlfl.planner.grammar.sql import Dialect, to_sql
from sqlfl.planner.grammar.statements import Path, Span
from sqlfl.planner.grammar.trees import nodes, plan_error, span_of
from sqlfl.planner.query.bind import Binder
from sqlfl.planner.query.columns import distinct
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.names import CatalogTables, chain_of, listed, nearest
from sqlfl.planner.query.relations import (
    ClientBranch,
    DraftBlock,
    DraftRelation,
    Output,
    Source,
    Term,
    column,
)


def refuse_captured(draft: Draft) -> Draft:
    """A column written alone in a call of WHERE or ON, which a macro takes for a variable."""
    calls = [call for clause in _conditions(draft.query) for call in _calls(clause)]
    if not calls:
        return draft
    tables = CatalogTables(draft.catalog, draft.sql)
    held = [
        (client, {folded(column.name) for column in tables.table(table, client).columns})
        for table in nodes(draft.query, exp.Table)
        if table.db
        for client in tables.clients(table)
    ]
    given = {folded(node.alias) for node in nodes(draft.query, exp.Alias)}
    lists = nodes(draft.query, exp.TableAlias)
    given |= {folded(column.name) for node in lists for column in node.columns}
    asked: set[str] = set()
    for call in calls:
        named = _name(call)
        for name in _bare(call):
            probe = _probe(call, folded(name.name))
            if probe in asked:
                continue
            asked.add(probe)
            alone = _select(exp.column(name.copy()))
            wanted = folded(name.name)
            # a client without such a column evaluates the call only if the query itself gives the
            # name
            holders = [c for c, columns in held if wanted in columns or wanted in given]
            for client in dict.fromkeys(holders or (client for client, _ in held)):
                if _binds(draft, client, probe, name) and not _binds(draft, client, alone, name):
                    raise draft.error(
                        f"{name.name} in {named}(...) may be the column, or a variable of a macro "
                        f"of {client.party}: DuckDB takes it for the column in SELECT, and for the "
                        "variable in WHERE and ON",
                        name,
                        f"write table.{name.name}, which is the column",
                    )
    return draft


def _conditions(query: exp.Query) -> Iterator[exp.Expr]:
    for node in nodes(query, exp.Where, exp.Join):
        condition = node.this if isinstance(node, exp.Where) else node.args.get("on")
        if isinstance(condition, exp.Expr):
            yield condition


def _calls(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the outermost calls: if an inner macro captures a name, the outer call has no column
    for it either.
    """
    return (call_node for call_node in node.dfs(prune=_is_call) if _is_call(call_node))


def _is_call(node: exp.Expr) -> bool:
    called = node.expression if isinstance(node, exp.Dot) else node
    return isinstance(called, exp.Anonymous)


def _bare(call: exp.Expr) -> list[exp.Identifier]:
    """Return the columns below that are written without a table, once each."""
    columns: dict[str, exp.Identifier] = {}
    for node in nodes(call, exp.Column):
        chain = chain_of(node)
        if chain is not None and len(chain.words) == 1 and not _is_variable(node):
            columns.setdefault(folded(node.name), chain.words[0])
    return list(columns.values())


def _name(call: exp.Expr) -> str:
    return function_name(call.expression if isinstance(call, exp.Dot) else call)


def _is_variable(column: exp.Column) -> bool:
    """Return whether the column is a variable of a lambda or comprehension around it."""
    node = column.parent
    while node is not None:
        names: list[exp.Expr] = []
        if isinstance(node, exp.Lambda):
            names = node.expressions
        elif isinstance(node, exp.Comprehension):
            names = [node.args[key] for key in ("expression", "position") if node.args.get(key)]
        if folded(column.name) in {folded(name.name) for name in names}:
            return True
        node = node.parent
    return False


def _probe(call: exp.Expr, name: str) -> str:
    """A query without a table in which the call names `name` alone."""
    holder = exp.Paren(this=call.copy())
    for node in nodes(holder, exp.Column):
        if node.table or folded(node.name) != name:
            node.replace(exp.null())
    return _select(holder.this)


def _select(value: exp.Expr) -> str:
    condition = exp.Is(this=exp.Paren(this=value), expression=exp.Null())
    return to_sql(exp.select(exp.Literal.number(1)).where(condition))


def _binds(draft: Draft, client: Client, select: str, where: exp.Expr) -> bool:
    try:
        draft.catalog.describe(client, select)
    except LostError:
        raise
    except ReplyError as error:
        raise draft.unable(client, error, span_of(where, draft.sql)) from error
    except PartyError:
        return False
    return True


def with_unit(query: exp.Query, unit: str, sql: str, span: Span) -> exp.Query:
    """Return the query with the column UNIT, the expression `unit` of the option at `span`, in each
    SELECT of a union. Raise PlanError for a text that is no expression over columns."""
    value = _read_unit(unit)
    if value is None or not nodes(value, exp.Column):
        raise plan_error(
            f"unit = '{unit}' is no expression over columns of the query's tables",
            sql,
            span,
            "write 'table', 'rows', or a column with its table: unit = 't.customer_id'",
        )
    for node in nodes(value, exp.Query, exp.Window):
        raise plan_error(
            f"unit = '{unit}' has {to_sql(node)}, and a unit follows from each row's own values",
            sql,
            span,
            "compute it in a derived table: FROM (SELECT ...) AS t, and name its column",
        )
    for node in value.walk():
        if node.meta_get("start") is not None:
            node.meta["start"], node.meta["end"] = span[0], span[1] - 1
    whole = query.copy()
    for select in _operands(whole):
        group = select.args.get("group")
        every = select.args.get("distinct") or (group is not None and group.args.get("all"))
        if not isinstance(select, exp.Select) or every:
            raise plan_error(
                f"unit = '{unit}' is one more column of the query, and by DISTINCT or GROUP BY ALL "
                "all columns decide which rows there are",
                sql,
                span,
                "write the query as a derived table: SELECT ... FROM (SELECT DISTINCT ...) AS t",
            )
        select.append("expressions", exp.alias_(value.copy(), UNIT))
    return whole


def _operands(query: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the SELECTs of a union, or the query itself."""
    query = query.unnest()
    if isinstance(query, exp.SetOperation):
        yield from _operands(query.left)
        yield from _operands(query.right)
    else:
        yield query


def _read_unit(text: str) -> exp.Expr | None:
    try:
        read = Dialect().parse(f"SELECT {text}")
    except (SqlglotParseError, TokenError, ValueError):
        return None
    select = read[0] if len(read) == 1 else None
    if not isinstance(select, exp.Select) or len(select.expressions) != 1:
        return None
    value: exp.Expr = select.expressions[0]
    plain = [name for name, part in select.args.items() if part] == ["expressions"]
    return value if plain and not nodes(value, exp.Alias, exp.Star) else None


def refuse_parameters(draft: Draft) -> Draft:
    """Refuse parameters: no values are bound to a planned statement."""
    for node in nodes(draft.query, exp.Placeholder, exp.Parameter):
        raise draft.error(f"the parameter {to_sql(node)} has no value", node, "write the value")
    return draft


def refuse_volatile(draft: Draft) -> Draft:
    """Refuse volatile functions. Each evaluation would give other rows, and a fragment is evaluated
    more than once.
    """
    for node in nodes(draft.query, exp.Anonymous):
        if is_volatile(node):
            raise draft.volatile(node, span_of(node, draft.sql))
        if function_name(node) in CONNECTION:
            raise draft.error(
                f"{function_name(node)}() is of one connection, and each party has its own",
                node,
                "write the value",
            )
    return draft


def tell_the_time(draft: Draft) -> Draft:
    """`now()` and its like have one value in all fragments."""
    for node in nodes(draft.query, exp.Dot):
        call = node.expression
        called = isinstance(call, exp.Anonymous) and not call.expressions
        if called and function_name(call) == "age":
            raise draft.error(
                "age() as a method counts from what each party's clock says", node,
                "write age(column), which counts from one day for all parties",
            )  # fmt: skip
    return replace(draft, query=draft.clock.told(draft.query))


def bind_names(draft: Draft) -> Draft:
    """The syntax tree as blocks of relations."""
    binder = Binder(draft.sql, draft.catalog, draft.clock, draft.careful)
    blocks = binder.bind(draft.query)
    if any(len(block.relations) > 1 and not block.together for block in blocks):
        # blocks of a union have the same tables, also if one party holds all tables of one block
        blocks = tuple(replace(block, together=False) for block in blocks)
    remarks = tuple(dict.fromkeys((*draft.remarks, *binder.remarks)))
    return replace(draft, blocks=blocks, claims=tuple(binder.claims), remarks=remarks)


def check_outputs(draft: Draft) -> Draft:
    """Make column names distinct. Check that they are free, that the target is one of them, and
    that features remain.
    """
    draft = _with_distinct_names(draft)
    outputs = draft.blocks[0].outputs
    seen: dict[str, Output] = {}
    for output in outputs:
        name = output.name.lower()
        if name.startswith(RESERVED) and (draft.unit is None or name != UNIT):
            raise draft.error(
                f"column {output.name}: names that start with {RESERVED} are reserved",
                output.term.span,
                "give it another alias",
            )
        seen[name] = output
    if draft.weight_may_lack and draft.weight is not None and draft.weight.lower() not in seen:
        draft = replace(draft, weight=None)
    names = _special_names(draft, seen)
    if len(outputs) == len(names):
        raise draft.error(
            f"the query has no features: it has only {' and '.join(sorted(names - {UNIT}))}"
            if len(names - {UNIT}) > 1
            else "the query has no features: its only column is the target"
            if outputs
            else "the query has no columns",
            draft.blocks[0].span,
            "every other column of the query is a feature; select some",
        )
    return draft


def _special_names(draft: Draft, names: Collection[str]) -> set[str]:
    """Return the names of the columns that are no features, in lower case. Raise PlanError where
    one is not among `names`, and where two are the same column.
    """
    block = draft.blocks[0]
    special = (
        ("TARGET", draft.target),
        ("WEIGHT", draft.weight),
        (draft.offset_clause, draft.offset),
    )
    for clause, given in special:
        if given is not None and given.lower() not in names:
            raise draft.error(
                f"{clause} {given} is no column of the query",
                getattr(given, "span", None) or block.span,
                nearest(given, (o.name for o in block.outputs))
                or listed(o.name for o in block.outputs),
            )
    target, weight, offset = (None if given is None else given.lower() for _, given in special)
    if offset is not None and offset in (target, weight):
        raise draft.error(
            f"{draft.offset_clause} {draft.offset} is the target, or the weight",
            getattr(draft.offset, "span", None) or block.span,
            "select the column once more, under another name",
        )
    if target is not None and target == weight:
        raise draft.error(
            f"WEIGHT {draft.weight} is the target",
            getattr(draft.weight, "span", None) or block.span,
            "weigh rows by another column",
        )
    unit = None if draft.unit is None else UNIT
    return {name for name in (target, weight, offset, unit) if name is not None}


def _with_distinct_names(draft: Draft) -> Draft:
    """Number repeated names of columns as DuckDB does: k, k_1. The target and its like must be
    distinct."""
    names = [output.name for output in draft.blocks[0].outputs]
    special = [n.lower() for n in (draft.target, draft.weight, draft.offset) if n is not None]
    seen: set[str] = set()
    for output in draft.blocks[0].outputs:
        name = output.name.lower()
        if name in seen and name in special:
            raise draft.error(
                f"two columns are named {output.name}",
                output.term.span,
                "give one an alias, or leave it out: * EXCLUDE (column)",
            )
        seen.add(name)
    made = distinct(names)
    if list(made) == names:
        return draft

    def named(block: DraftBlock) -> DraftBlock:
        pairs = zip(block.outputs, made, strict=True)
        return replace(block, outputs=tuple(replace(o, name=name) for o, name in pairs))

    return draft.each_block(named)


def locate_identifiers(draft: Draft) -> Draft:
    """Locate the columns of the ID clause in every block; refuse repeated ones."""
    seen: set[tuple[str, ...]] = set()
    for path in draft.identifiers:
        folded = tuple(part.lower() for part in path.parts)
        if folded in seen:
            raise draft.error(
                f"identifier {path} is given twice", path.span, "name it once: it is one column"
            )
        seen.add(folded)
    return draft.each_block(lambda block: _located(draft, block))


def _located(draft: Draft, block: DraftBlock) -> DraftBlock:
    for number, path in enumerate(draft.identifiers):
        block = _with_identifier(draft, block, number, path)
    return block


def _with_identifier(draft: Draft, block: DraftBlock, number: int, path: Path) -> DraftBlock:
    name = str(path)
    if len(path.parts) == 2:
        items = [i for i in block.items if i.name.lower() == path.parts[0].lower()]
        term = items[0].find(path.parts[1]) if len(items) == 1 else None
        if term is None:
            columns = ((i.name, n) for i in block.items for n, _ in i.columns)
            names = (f"{i}.{n}" for i, n in columns if not n.startswith(RESERVED))
            raise draft.error(
                f"identifier {name}: FROM has no such column",
                path.span,
                nearest(name, names) or "write alias.column, with an alias of FROM",
            )
        output = Output(name, Term(term.expression.copy(), path.span))
        return replace(block, identifiers=(*block.identifiers, output))
    matches = [i for i, r in enumerate(block.relations) if _holds(r, path)]
    if len(matches) != 1:
        table = ".".join(path.parts[:-1])
        if matches:
            aliases = " or ".join(f"{block.relations[i].name}.{path.parts[-1]}" for i in matches)
            raise draft.error(
                f"identifier {name} is ambiguous: {table} stands in FROM {len(matches)} times",
                path.span,
                f"name it by its alias: {aliases}",
            )
        raise _no_identifier(
            draft,
            block,
            path,
            f"not every part of FROM that it could come from reads {table}"
            if any(_holds_some(r, path) for r in block.relations)
            else "FROM does not have it",
        )
    index = matches[0]
    if any(_lacks(branch, path) for branch in block.relations[index].branches):
        raise _no_identifier(draft, block, path, "its table has no such column")
    relation = _with_column(block.relations[index], number, path)
    term = Term(column(_hidden(number), relation.ids[0]), path.span)
    relations = (*block.relations[:index], relation, *block.relations[index + 1 :])
    identifiers = (*block.identifiers, Output(name, term))
    return replace(block, relations=relations, identifiers=identifiers)


def _no_identifier(draft: Draft, block: DraftBlock, path: Path, why: str) -> PlanError:
    paths = {
        ".".join((*s.path, n[1]))
        for r in block.relations
        for b in r.branches
        for s in b.sources
        if len(s.path) > 1
        for n in b.columns
    }
    hint = nearest(str(path), paths) or "write alias.column, with an alias of FROM"
    return draft.error(f"identifier {path}: {why}", path.span, hint)


def _hidden(number: int) -> str:
    return identifier(number)


def _expression(branch: ClientBranch, path: Path) -> exp.Expr | None:
    """Return the identifier over the sources of one branch."""
    sources = _sources(branch, path)
    return column(path.parts[-1], sources[0].id) if len(sources) == 1 else None


def _sources(branch: ClientBranch, path: Path) -> list[Source]:
    table = tuple(p.lower() for p in path.parts[:-1])
    return [
        s
        for s in branch.sources
        if any(tuple(p.lower() for p in path) == table for path in (s.path, *s.others))
    ]


def _lacks(branch: ClientBranch, path: Path) -> bool:
    known = {"rowid", *(name for source in _sources(branch, path) for name in source.names)}
    return path.parts[-1].lower() not in known


def _holds(relation: DraftRelation, path: Path) -> bool:
    return all(_expression(b, path) is not None for b in relation.branches)


def _holds_some(relation: DraftRelation, path: Path) -> bool:
    return any(_expression(b, path) is not None for b in relation.branches)


def _with_column(relation: DraftRelation, number: int, path: Path) -> DraftRelation:
    branches = []
    for branch in relation.branches:
        expression = _expression(branch, path)
        key = (relation.ids[0], _hidden(number))
        added = {} if expression is None else {key: expression}
        branches.append(replace(branch, columns={**branch.columns, **added}))
    return replace(relation, branches=tuple(branches))
