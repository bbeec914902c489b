"""Fingerprints by which a party recognises a row of a table in any query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlglot import Dialect, exp
from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import PolicyError
from sqlfl.contract.fragment_columns import MARK
from sqlfl.governance.scopes import Table
from sqlfl.governance.tree import PARSE
from sqlfl.udfs import sql
from sqlfl.udfs.numbering.fragments import ZONED
from sqlfl.udfs.numbering.keys import canonical_text

_DUCKDB = Dialect.get_or_raise("duckdb")
_COLUMNS = sql.constant(sql.query("SELECT name, type FROM pragma_table_info($name) ORDER BY cid"))


def marked(con: sql.Connection, text: str, table: Table | None) -> str:
    """Return the SELECT of this one table, each row of which is a row of it, with a last column
    that follows from all values of the row. Equal rows have equal fingerprints, in every run. It is
    0 if the query is of no table's rows.

    Raise PolicyError if DuckDB's own parser reads the result differently.
    """
    before = _parsed(con, text)
    if table is None:
        value: exp.Expr = sql.cast(sql.number(0), "UBIGINT")
    else:
        source = before["node"]["from_table"]
        if source.get("column_name_alias"):
            raise PolicyError("a table whose columns get other names cannot have min_difference")
        name = str(source.get("alias") or source["qualified_name"]["path"][-1])
        value = _mark(con, table, name)
    added = sql.to_sql(sql.named(value, MARK))
    (item,) = _parsed(con, f"SELECT {added}")["node"]["select_list"]
    before["node"]["select_list"].append(item)
    for place in _places(text):
        found = f"{text[:place]}, {added} {text[place:]}"
        if _parsed(con, found) == before:
            return found
    raise PolicyError("a query is of a form of which rows cannot be known again (min_difference)")


def _mark(con: sql.Connection, table: Table, name: str) -> exp.Expr:
    quoted = sql.to_sql(exp.table_(table[2], db=table[1], catalog=table[0], quoted=True))
    parts = []
    for column, kind in sql.fetch(con, _COLUMNS, {"name": quoted}):
        value: exp.Expr = exp.column(
            exp.to_identifier(column, quoted=True), table=exp.to_identifier(name, quoted=True)
        )
        # the text of a time with a zone depends on the session's
        parts.append(canonical_text(value, ZONED) if kind == ZONED else value)
    return sql.call("md5_number_lower", sql.text(sql.call("row", *parts)))


def _places(text: str) -> Iterator[int]:
    """Yield the places of each FROM outside brackets."""
    depth = 0
    for token in _DUCKDB.tokenize(text):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif token.token_type == TokenType.FROM and not depth:
            yield token.start


def _parsed(con: sql.Connection, text: str) -> dict[str, Any]:
    ((found,),) = sql.fetch(con, PARSE, {"text": text})
    parsed = json.loads(found, object_hook=_placeless)
    return dict(parsed["statements"][0]) if len(parsed.get("statements", ())) == 1 else {}


def _placeless(node: dict[str, Any]) -> dict[str, Any]:
    node.pop("query_location", None)
    return node
