"""Canonical text of queries that differ only in layout, comments, or the aliases of their
tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from sqlfl.contract.schema import folded

PLACES = ("query_location", "query_location_length")
"""Fields with a position in the text."""


def canonical(tree: dict[str, Any]) -> str:
    """Return JSON of a SELECT as DuckDB's `json_serialize_sql` has it."""
    aliases: dict[str, str] = {}
    # With several SELECTs, or parameters of lambdas, an alias may mean different things.
    simple = sum(str(node.get("type")).endswith("_NODE") for node in nodes(tree)) == 1
    for node in nodes(tree):
        if node.get("class") == "LAMBDA" or node.get("relation_name"):
            simple = False
        if node.get("type") == "BASE_TABLE" and node.get("alias"):
            name = folded(node["alias"])
            simple = simple and name not in aliases
            # no text of SQL has such a name
            aliases[name] = f"\0{len(aliases)}"
    return json.dumps(_renamed(tree, aliases if simple else {}), sort_keys=True)


def _renamed(value: Any, aliases: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, aliases) for item in value]
    if not isinstance(value, dict):
        return value
    renamed = {name: _renamed(item, aliases) for name, item in value.items() if name not in PLACES}
    if renamed.get("type") == "BASE_TABLE":
        renamed["alias"] = aliases.get(folded(renamed.get("alias") or ""), renamed.get("alias"))
    names = renamed.get("column_names")
    if isinstance(names, list) and len(names) > 1:
        renamed["column_names"] = [aliases.get(folded(names[0]), names[0]), *names[1:]]
    return renamed


def nodes(value: object) -> Iterator[dict[str, Any]]:
    """Yield all objects of a tree of JSON."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from nodes(item)
    elif isinstance(value, list):
        for item in value:
            yield from nodes(item)


def unmatched(tree: dict[str, Any], aggregates: frozenset[str]) -> bool:
    """Return True if the SELECT is the one row that stands for missing partners of a LEFT JOIN, or
    no row if that row does not fulfil a condition. Nothing is joined to it, so it holds no data.
    """
    node = tree["node"]
    join = node.get("from_table") or {}
    if join.get("type") != "JOIN" or not _plain({**node, "from_table": {}}, aggregates):
        return False
    left, on = join["left"], join.get("condition") or {}
    if left.get("type") != "SUBQUERY":
        return False
    inner = left["subquery"]["node"]
    one = _plain(inner, aggregates) and inner["from_table"].get("type") == "EMPTY"
    never = on.get("class") == "CONSTANT" and on["literal"] == {"kind": "BOOLEAN", "text": "false"}
    return bool(one and never and join.get("join_type") == "LEFT")


def nobodys(tree: dict[str, Any], aggregates: frozenset[str]) -> bool:
    """Return True if it is such a row and the unjoined side is a table, so that nothing in it can
    fail.
    """
    return unmatched(tree, aggregates) and tree["node"]["from_table"]["right"].get("type") == (
        "BASE_TABLE"
    )


def stable(tree: dict[str, Any], aggregates: frozenset[str]) -> bool:
    """Return True if each row of one table makes at most one row of the SELECT, whatever other rows
    there are.
    """
    node = tree["node"]
    return _plain(node, aggregates) and node["from_table"].get("type") == "BASE_TABLE"


def _plain(node: dict[str, Any], aggregates: frozenset[str]) -> bool:
    """Return True for a SELECT that neither groups nor orders nor counts, and has no other SELECT
    in its expressions.
    """
    if node.get("type") != "SELECT_NODE":
        return False
    grouped = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")
    if any(node.get(name) for name in grouped) or node["cte_map"]["map"]:
        return False
    several = {*aggregates, "unnest"}
    return not any(
        inner.get("class") in ("SUBQUERY", "WINDOW")
        or str(inner.get("function_name", "")).lower() in several
        for inner in nodes(node)
    )


def placeless_text(node: dict[str, Any]) -> str:
    """Return one text for expressions that differ in their place or their alias alone."""
    return json.dumps(placeless({**node, "alias": ""}), sort_keys=True)


def placeless(value: Any) -> Any:
    """Return a tree without positions in the text."""
    if isinstance(value, list):
        return [placeless(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: placeless(item) for name, item in value.items() if name not in PLACES}


def in_order(node: dict[str, Any]) -> bool:
    """Return whether rows come in the order of one table. Otherwise their values decide the order,
    and which rows are the first."""
    return bool((node.get("from_table") or {}).get("type") == "BASE_TABLE")


def groups_rows(node: dict[str, Any]) -> bool:
    """Return whether the SELECT groups rows, or takes equal rows as one."""
    alike = any(m["type"] == "DISTINCT_MODIFIER" for m in node.get("modifiers") or ())
    return bool(node.get("group_expressions")) or alike
