"""One time for a whole statement: `now()` and its like are told to the parties, and not asked.

In one database they have one value per query; each party's own clock would give another one to each
fragment. What views and macros of a party do is evaluated there, when the party is asked.
"""

from __future__ import annotations

import datetime as dt

from sqlglot import exp

from sqlfl.planner import emit
from sqlfl.planner.refusals import function_name
from sqlfl.schema import Catalog

_INSTANT = "TIMESTAMP WITH TIME ZONE"
_CALLS = {
    "now": _INSTANT, "get_current_timestamp": _INSTANT, "transaction_timestamp": _INSTANT,
    "current_date": "DATE", "today": "DATE", "get_current_time": "TIME WITH TIME ZONE",
    "current_localtime": "TIME", "current_localtimestamp": "TIMESTAMP",
}  # fmt: skip
_WORDS = {
    "current_timestamp": _INSTANT, "current_date": "DATE", "current_time": "TIME WITH TIME ZONE",
    "localtime": "TIME", "localtimestamp": "TIMESTAMP",
}  # fmt: skip
_OWN_WORDS = {
    "user": "current_user", "current_user": "current_user", "session_user": "current_user",
    "current_role": "current_role", "current_catalog": "current_catalog",
    "current_schema": "current_schema",
}  # fmt: skip
"""Words that stand for a function of each party's own database."""


def told(query: exp.Query, catalog: Catalog, now: dt.datetime) -> exp.Query:
    """The query with the time in place of what asks for it; itself where nothing does.

    A word such as `current_date` is the function where no table of the query has a column of that
    name. `now` is aware.
    """
    calls = [c for c in query.find_all(exp.Anonymous) if _type_of_call(c) is not None]
    words = [c for c in query.find_all(exp.Column) if _is_word(c)]
    if words:
        names = _column_names(query, catalog)
        words = [word for word in words if word.name.lower() not in names]
    if not calls and not words:
        return query
    copy = query.copy()
    text = now.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")
    instant = emit.cast(exp.Literal.string(text), _INSTANT)

    def time(type_: str) -> exp.Expr:
        if type_ == "TIME":
            return emit.cast(time("TIMESTAMP"), "TIME")
        return instant.copy() if type_ == _INSTANT else emit.cast(instant, type_)

    wanted = {word.name.lower() for word in words}
    for call in [c for c in copy.find_all(exp.Anonymous) if _type_of_call(c) is not None]:
        type_ = str(_type_of_call(call))
        if function_name(call) == "age":
            call.set("expressions", [time(type_), *call.expressions])
        else:
            _replace(_qualified(call), time(type_))
    for column in list(copy.find_all(exp.Column)):
        name = column.name.lower()
        if _is_word(column) and name in wanted:
            own = _OWN_WORDS.get(name)
            _replace(column, exp.Anonymous(this=own) if own else time(_WORDS[name]))
    return copy


def _type_of_call(call: exp.Anonymous) -> str | None:
    name, arguments = function_name(call), len(call.expressions)
    if name == "age" and arguments == 1:
        return "DATE"  # counted from midnight of today
    method = isinstance(call.parent, exp.Dot) and _qualified(call) is call
    return _CALLS.get(name) if arguments == 0 and not method else None


def _qualified(call: exp.Anonymous) -> exp.Expr:
    """The call with `main.` or `system.main.` before it."""
    parent = call.parent
    if isinstance(parent, exp.Dot) and call.arg_key == "expression":
        names = [node.name.lower() for node in parent.this.find_all(exp.Identifier)]
        if names[-1:] == ["main"] or sorted(names) == ["main", "system"]:
            return parent
    return call


def _is_word(column: exp.Column) -> bool:
    return len(column.parts) == 1 and column.name.lower() in _WORDS.keys() | _OWN_WORDS.keys()


def _replace(node: exp.Expr, by: exp.Expr) -> None:
    own = node.this if isinstance(node, exp.Column) else node
    places = {key: own.meta[key] for key in ("start", "end") if key in own.meta}
    by.meta.update(places)
    node.replace(by)


def _column_names(query: exp.Query, catalog: Catalog) -> set[str]:
    """The names of columns that the query's tables have, or that it gives, in lower case."""
    found = {alias.alias.lower() for alias in query.find_all(exp.Alias)}
    for alias in query.find_all(exp.TableAlias):
        found |= {name.name.lower() for name in alias.args.get("columns") or []}
    parties = {party.lower(): party for party in catalog.parties()}
    for read in query.find_all(exp.Table):
        party = parties.get(read.parts[0].name.lower()) if read.db else None
        for client in () if party is None else catalog.clients(party):
            for table in catalog.tables(client):
                if table.name.lower() == read.parts[-1].name.lower():
                    found |= {column.name.lower() for column in table.columns}
    return found
