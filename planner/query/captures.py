"""Find names that a macro's own variable captures.

DuckDB inserts the arguments of a macro into its text before it resolves names in WHERE and ON. With
`MACRO total(n) AS list_sum(list_transform([1, 2], lambda k: k * n))`, the column in `WHERE total(k)
= 6` is the lambda's k. In `SELECT total(k)` and `WHERE t.k = total(t.k)` it is the table's. Only
the database can expand its macros: a request checks whether the call has a meaning without a table.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, ReplyError
from sqlfl.contract.schema import Client, folded
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.spans import span_of
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.grammar.writing import to_sql
from sqlfl.planner.query.dotted_names import chain_of
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.names import CatalogTables


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
    for column in nodes(call, exp.Column):
        chain = chain_of(column)
        if chain is not None and len(chain.words) == 1 and not _is_variable(column):
            columns.setdefault(folded(column.name), chain.words[0])
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
    for column in nodes(holder, exp.Column):
        if column.table or folded(column.name) != name:
            column.replace(exp.null())
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
