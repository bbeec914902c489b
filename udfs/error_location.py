"""Find the part of a fragment on which a database fails, without disclosing the
database's message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from sqlfl.contract.schema import SlotSpecification
from sqlfl.udfs import sql
from sqlfl.udfs.describe import describe

QUERIES = 200
"""Maximum queries to run for the search."""
KINDS: dict[type[duckdb.Error], str] = {
    duckdb.ConversionException: "a value cannot be cast to the type that is asked for",
    duckdb.OutOfRangeException: "a result is beyond the range of its type",
    duckdb.InvalidInputException: "a function does not take a value that it is given",
}
"""Errors of the data, in words."""


def kind_of(error: duckdb.Error) -> str | None:
    """Return the kind of failure in words; None for errors that no expression causes."""
    if "More than one row returned by a subquery" in str(error):
        return "a subquery gives more than one row, where it stands for one value"
    return next((words for kind, words in KINDS.items() if type(error) is kind), None)


def place_of(
    con: sql.Connection,
    slots: Sequence[SlotSpecification],
    fragments: Sequence[str],
    error: duckdb.Error,
) -> str:
    """Return 'slot fragment part': the first part whose evaluation fails as `error` did; empty if
    none does alone.

    Parts are the columns of a fragment, then the conditions of its WHERE. Results of the queries
    are not kept.
    """
    left = QUERIES
    numbered = ((item.slot, index) for item in slots for index in item.fragments)
    for (slot, index), text in zip(numbered, fragments, strict=True):
        for part, query in _queries(con, text):
            left -= 1
            if left < 0:
                return ""
            try:
                sql.fetch(con, query)
            except duckdb.Error as other:
                # another one would be no answer: the connection is interrupted, memory is short
                return f"{slot} {index} {part}" if type(other) is type(error) else ""
    return ""


def _queries(con: sql.Connection, text: str) -> Iterator[tuple[int, exp.Select]]:
    """Yield (part, a query that fails only if the part fails, given that all parts before it
    succeed).
    """
    columns = len(describe(con, text))
    names = [exp.to_identifier(f"c{n}", quoted=True) for n in range(columns)]
    alias = exp.TableAlias(this=exp.to_identifier("f"), columns=names)
    yield from _conditions(text, columns)
    for number in range(columns):
        # a count would not look at values that cannot be NULL
        value = sql.call("max", sql.call("hash", sql.column(f"c{number}", "f")))
        source = exp.Subquery(this=sql.verbatim(con, text), alias=alias.copy())
        yield number, sql.select(source, [value])


def _conditions(text: str, columns: int) -> Iterator[tuple[int, exp.Select]]:
    """Yield each condition of WHERE, over the rows that pass those before it."""
    try:
        query = parse_one(text, dialect="duckdb")
    except SqlglotError:
        return
    where = query.args.get("where")
    if not isinstance(query, exp.Select) or where is None:
        return
    tests = list(where.this.flatten()) if isinstance(where.this, exp.And) else [where.this]
    query.set("expressions", [sql.call("count", exp.Star())])
    for number in range(len(tests)):
        query.set("where", exp.Where(this=exp.and_(*(test.copy() for test in tests[: number + 1]))))
        yield columns + number, query
