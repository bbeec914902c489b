"""Facts that DuckDB reports while it binds a query, without running it. A result that the
connection's owner has open stays open.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from sqlfl.udfs import sql


def choosing(names: Sequence[str], chosen: Sequence[exp.Expr]) -> str:
    """Return a query whose columns are the `names` among `chosen`, which are constant texts.

    DuckDB ignores the case of names, so `names` must differ in more than case. Each of `chosen`
    must be one of them.
    """
    wanted = exp.Columns(this=sql.own_call("list_value", *chosen))
    given = sql.query("SELECT $ones", ones=[sql.named(sql.number(1), name) for name in names])
    return sql.to_sql(exp.select(wanted).from_(given.subquery("given")))


def bound(con: sql.Connection, query: str) -> list[str]:
    """The columns of a query of `choosing`, bound on `con` itself."""
    return list(sql.waiting(lambda: con.sql(query).columns))
