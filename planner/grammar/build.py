"""Names of tables and columns as syntax trees, quoted where DuckDB needs it."""

from __future__ import annotations

import re

from sqlglot import exp

from sqlfl.contract.schema import folded

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# duckdb_keywords(): reserved words, and words that cannot be plain column names
_RESERVED = """
all analyse analyze and any array as asc asymmetric both case cast check collate column
constraint create default deferrable desc describe distinct do else end except false fetch for
foreign from group having in initially intersect into lambda lateral leading limit not null
offset on only or order pivot pivot_longer pivot_wider placing primary qualify references
returning select show some summarize symmetric table then to trailing true union unique unpivot
using variadic when where window with
anti asof at authorization binary by collation columns concurrently cross freeze full generated
glob ilike inner is isnull join left like map natural notnull outer overlaps positional right
semi similar struct tablesample try_cast tuple unpack verbose
between bigint bit boolean char character coalesce dec decimal exists extract float grouping
grouping_id inout int integer interval national nchar none nullif numeric out overlay position
precision real row setof smallint substring time timestamp treat trim values varchar
xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot
xmlserialize xmltable
current_date current_time current_timestamp localtime localtimestamp current_user session_user
user current_role current_catalog current_schema date
"""
_KEYWORDS = frozenset(_RESERVED.split())


def identifier(name: str) -> exp.Identifier:
    """The name, quoted only where DuckDB needs it."""
    plain = _PLAIN.fullmatch(name) is not None and folded(name) not in _KEYWORDS
    return exp.to_identifier(name, quoted=not plain)


def table(name: str, schema: str | None = None, catalog: str | None = None) -> exp.Table:
    return exp.Table(
        this=identifier(name),
        db=identifier(schema) if schema else None,
        catalog=identifier(catalog) if catalog else None,
    )


def cast(expression: exp.Expr, type_: str) -> exp.Cast:
    """The expression as a type, which is written as DuckDB writes it."""
    to = exp.DataType(this=exp.DType.USERDEFINED, kind=type_)
    return exp.Cast(this=expression.copy(), to=to)
