"""Sums and means of few values that a SELECT would give to many rows.

A window or a subquery may give all rows the mean of a column. Where few rows have a value in that
column, many rows would have the mean of these few.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import duckdb

from sqlfl.governance.canonical import nodes
from sqlfl.governance.copies import NUMBER, node_of, numbered, sources_of, text_of, uncounted
from sqlfl.udfs import sql

Node: TypeAlias = "dict[str, Any]"
CONTENT = "SELECT bit_xor(CASE WHEN x IS NOT NULL THEN hash($numbers) END)"


def mixes_few(con: sql.Connection, text: str, least: int) -> bool:
    """Return whether at least `least` rows of a SELECT in the text have a sum or a mean of the same
    values, which are some, but fewer than `least`. Raise PolicyError for a form in which that
    cannot be counted.
    """
    counts = _MixtureCounter(con, least)
    try:
        return any(counts.few(node, common) for node, common in _selects(node_of(con, text), ()))
    except (duckdb.BinderException, duckdb.CatalogException) as error:
        raise uncounted() from error


class _MixtureCounter:
    def __init__(self, con: sql.Connection, least: int) -> None:
        self._con, self._least = con, least

    def few(self, node: Node, common: Sequence[Node]) -> bool:
        return self._in_windows(node, common) or self._in_subqueries(node)

    def _in_windows(self, node: Node, common: Sequence[Node]) -> bool:
        tree: Node = json.loads(json.dumps(node))
        items = [item for item in nodes(tree["select_list"]) if _is_mixed(item, "WINDOW_AGGREGATE")]
        if not items:
            return False
        if tree["group_expressions"]:
            raise uncounted()
        numbers = []
        for place, leaf in enumerate(list(sources_of(tree["from_table"]))):
            number = f"{NUMBER}{place}"
            numbers.append([numbered(self._con, leaf, number), number])
        chosen = [one for item in items for one in self._counted(item, numbers)]
        for place, one in enumerate(chosen):
            one["alias"] = f"sqlfl_{place}"
        tree |= {"select_list": chosen, "modifiers": [], "qualify": None}
        tree["cte_map"] = {"map": [*common]}
        columns = [f"rows_.sqlfl_{place}" for place in range(len(chosen))]
        query = f"""SELECT 1 FROM (
              SELECT unnest(range({len(items)})) AS item, unnest([{", ".join(columns[::2])}]) AS n,
                unnest([{", ".join(columns[1::2])}]) AS content
              FROM ({text_of(self._con, tree)}) AS rows_
            ) AS mixed WHERE n BETWEEN 1 AND {self._least - 1}
            GROUP BY item, content HAVING count(*) >= {self._least} LIMIT 1"""
        return bool(self._con.execute(query).fetchall())

    def _counted(self, window: Node, numbers: list[list[str]]) -> Iterator[Node]:
        """Yield the number of values that a window sees, and a number that follows from which rows
        these are of.
        """
        yield {**window, "function_name": "count", **_named("count", window)}
        listed = ", ".join(f"a.b{place}" for place in range(len(numbers)))
        text = CONTENT.replace("$numbers", listed)
        (made,) = node_of(self._con, text)["select_list"]
        references = [ref for ref in nodes(made) if ref.get("class") == "COLUMN_REF"]
        argument = window["arguments"][0]["expression"]
        for reference in references:
            names = reference["column_names"]
            if names == ["x"]:
                reference.clear()
                reference |= argument
            else:
                reference["column_names"] = numbers[int(names[-1][1:])]
        arguments = {"arguments": made["arguments"]}
        yield {**window, "function_name": "bit_xor", **arguments, **_named("bit_xor", window)}

    def _in_subqueries(self, node: Node) -> bool:
        for item in nodes(node["select_list"]):
            if item.get("class") != "SUBQUERY" or item.get("subquery_type") != "SCALAR":
                continue
            inner = item["subquery"]["node"]
            calls = inner.get("select_list") or []
            if len(calls) != 1 or not _is_mixed(calls[0], "FUNCTION"):
                continue
            counted = {**calls[0], "function_name": "count", **_named("count", calls[0])}
            tree = {**inner, "select_list": [counted], "modifiers": []}
            ((count,),) = self._con.execute(text_of(self._con, tree)).fetchall()
            if 0 < count < self._least:
                return True
        return False


def _is_mixed(item: Node, type_: str) -> bool:
    return item.get("type") == type_ and bool(item.get("arguments"))


def _named(name: str, call: Node) -> Node:
    """Return the qualified name of a call, where it has one."""
    return {"qualified_name": {"path": [name]}} if call.get("qualified_name") else {}


def _selects(value: object, common: Sequence[Node]) -> Iterator[tuple[Node, Sequence[Node]]]:
    """Yield each SELECT of a tree, with the queries of WITH that it may name."""
    if isinstance(value, list):
        for item in value:
            yield from _selects(item, common)
        return
    if not isinstance(value, dict):
        return
    for item in (value.get("cte_map") or {}).get("map") or ():
        yield from _selects(item["value"], common)
        common = [*common, item]
    if value.get("type") == "SELECT_NODE":
        yield value, common
    for name, item in value.items():
        if name != "cte_map":
            yield from _selects(item, common)
