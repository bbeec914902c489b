"""One time for a whole statement: the parties receive the value of `now()` and similar calls.

In one database these have one value per query; the clocks of parties would give each fragment
another value. Views and macros of a party use its own clock when it evaluates them.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.contract.schema import Place, folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes

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
"""Words for a function of each party's own database."""


@dataclass(frozen=True)
class Clock:
    now: dt.datetime
    """Aware."""

    def told(self, query: exp.Query) -> exp.Query:
        """Return the query with the time in place of calls for it; the same query if it
        has none.
        """
        if not any(_type_of_call(call) for call in nodes(query, exp.Anonymous)):
            return query
        copy = query.copy()
        for call in nodes(copy, exp.Anonymous):
            type_ = _type_of_call(call)
            if type_ is None:
                continue
            _keep_name(call)
            if function_name(call) == "age":
                call.set("expressions", [self._midnight(*call.expressions), *call.expressions])
            else:
                _replace(_qualified(call), self._as(type_))
        return copy

    def word(self, name: str) -> exp.Expr | None:
        """Return the meaning of a word that names no column; None for other words."""
        if folded(name) in _OWN_WORDS:
            return exp.Anonymous(this=_OWN_WORDS[folded(name)])
        type_ = _WORDS.get(folded(name))
        return None if type_ is None else self._as(type_)

    def _midnight(self, since: exp.Expr) -> exp.Expr:
        """Return the date up to which an age is counted: the session's current date for an instant,
        else the current date in UTC.
        """
        instant = exp.EQ(
            this=exp.Anonymous(this="typeof", expressions=[since.copy()]),
            expression=exp.Literal.string("TIMESTAMP WITH TIME ZONE"),
        )
        utc = exp.Literal.string(f"{self.now.astimezone(dt.UTC):%Y-%m-%d}")
        midnight = exp.If(this=instant, true=self._as("DATE"))
        return exp.Case(ifs=[midnight], default=trees.cast(utc, "DATE"))

    def _as(self, type_: str) -> exp.Expr:
        if type_ == "TIME":
            return trees.cast(self._as("TIMESTAMP"), "TIME")
        text = self.now.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")
        instant = trees.cast(exp.Literal.string(text), _INSTANT)
        return instant if type_ == _INSTANT else trees.cast(instant, type_)


def tell_the_place(select: exp.Select, place: Place) -> None:
    """Replace calls for the client's current database and schema by their names. A party's cursors
    would return DuckDB's own."""
    for call in nodes(select, exp.Anonymous):
        part = _PLACES.get(function_name(call))
        if part is not None and not call.expressions:
            _qualified(call).replace(exp.Literal.string(getattr(place, part)))


_PLACES = {"current_catalog": "catalog", "current_database": "catalog", "current_schema": "schema"}


def asks_the_time(query: exp.Query) -> bool:
    """Return whether the query may need the time: its plan then changes each time."""
    if any(folded(identifier.name) in _WORDS for identifier in nodes(query, exp.Identifier)):
        return True
    return any(_type_of_call(call) for call in nodes(query, exp.Anonymous))


def _type_of_call(call: exp.Anonymous) -> str | None:
    name, arguments = function_name(call), len(call.expressions)
    if name == "age" and arguments == 1:
        return "DATE"
    method = isinstance(call.parent, exp.Dot) and _qualified(call) is call
    return _CALLS.get(name) if arguments == 0 and not method else None


def _qualified(call: exp.Anonymous) -> exp.Expr:
    """Return the call, with `main.` or `system.main.` before it."""
    parent = call.parent
    if isinstance(parent, exp.Dot) and call.arg_key == "expression":
        names = [node.name.lower() for node in nodes(parent.this, exp.Identifier)]
        if names[-1:] == ["main"] or sorted(names) == ["main", "system"]:
            return parent
    return call


def _keep_name(call: exp.Expr) -> None:
    """Give a column without a name the text of its expression as its name, before the time replaces
    the call."""
    projection = call
    while projection.parent is not None and not isinstance(projection.parent, exp.Select):
        projection = projection.parent
    if projection.arg_key != "expressions" or isinstance(projection, exp.Alias):
        return
    if projection.find(exp.Star, exp.Columns) is None:
        holder = exp.Alias(alias=exp.to_identifier(to_sql(projection), quoted=True))
        projection.replace(holder)
        holder.set("this", projection)


def _replace(node: exp.Expr, by: exp.Expr) -> None:
    by.meta.update({key: node.meta[key] for key in ("start", "end") if key in node.meta})
    node.replace(by)
