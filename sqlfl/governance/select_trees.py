"""SELECTs as trees in DuckDB's own form: read, changed and written back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import folded
from sqlfl.governance.canonical import nodes
from sqlfl.governance.constants import literal
from sqlfl.governance.tree import MAX_NODES, PARSE
from sqlfl.udfs import sql

Node: TypeAlias = "dict[str, Any]"
REWRITE = "write the join over the parties' tables themselves, or ask its owner for a view"
_DESERIALIZE = sql.constant(sql.query("SELECT json_deserialize_sql(CAST($tree AS JSON))"))


def node_of(con: sql.Connection, text: str) -> Node:
    return dict(_parsed(con, text)["statements"][0]["node"])


def text_of(con: sql.Connection, node: Node) -> str:
    """Return the SQL of a SELECT."""
    parsed = _parsed(con, "SELECT 1")
    parsed["statements"][0]["node"] = node
    ((text,),) = sql.fetch(con, _DESERIALIZE, {"tree": json.dumps(parsed)})
    return str(text)


def rows_with(node: Node, items: Sequence[Node]) -> Node:
    """Return the SELECT with these columns, before anything that leaves out some of its rows or
    merges them, but for WHERE and GROUP BY.
    """
    groups = [_placed(group, node["select_list"]) for group in node["group_expressions"]]
    changed = {"select_list": [*items], "group_expressions": groups, "modifiers": []}
    return node | changed | {"having": None, "qualify": None}


def group_columns(node: Node) -> list[Node]:
    """Return the expressions by which a SELECT groups rows."""
    return [_placed(group, node["select_list"]) for group in node["group_expressions"]]


def sources_of(source: Node) -> Iterator[Node]:
    """Yield the sources of FROM."""
    if source["type"] == "JOIN":
        yield from sources_of(source["left"])
        yield from sources_of(source["right"])
    elif source["type"] != "EMPTY":
        yield source


def table_of(leaf: Node) -> str:
    """Return the name of a table, without its schema."""
    return folded(str(leaf["qualified_name"]["path"][-1]))


def tables_of(tree: object) -> list[str]:
    """Return the names of the tables in a part of a SELECT, in their order."""
    return [table_of(node) for node in nodes(tree) if node.get("type") == "BASE_TABLE"]


def inlined(con: sql.Connection, node: Node) -> Node:
    """Return the SELECT with each query of WITH in the places of its name. Raise PolicyError where
    that is too large.
    """
    template = node_of(con, "SELECT 1 FROM (SELECT 1) AS a")["from_table"]
    return dict(_inlined(node, {}, template))


def _inlined(value: Any, common: Mapping[str, Node], template: Node) -> Any:
    if isinstance(value, list):
        return [_inlined(item, common, template) for item in value]
    if not isinstance(value, dict):
        return value
    for item in (value.get("cte_map") or {}).get("map") or ():
        inner = item["value"]
        query = _inlined(inner.get("query_node") or inner["query"]["node"], common, template)
        if sum(1 for _ in nodes(query)) > MAX_NODES:
            raise uncounted()
        names = inner.get("aliases") or []
        common = {**common, folded(str(item["key"])): {"node": query, "names": names}}
    path = (value.get("qualified_name") or {}).get("path") or []
    if value.get("type") == "BASE_TABLE" and len(path) == 1 and folded(path[0]) in common:
        known = common[folded(path[0])]
        names = list(value.get("column_name_alias") or ())
        return template | {
            "alias": value.get("alias") or path[0],
            "subquery": template["subquery"] | {"node": known["node"]},
            "column_name_alias": names + known["names"][len(names) :],
        }
    parts = {k: _inlined(v, common, template) for k, v in value.items() if k != "cte_map"}
    return parts | ({"cte_map": {"map": []}} if "cte_map" in value else {})


def uncounted() -> PolicyError:
    return PolicyError(
        "a query joins tables within the party, or has windows over groups, and copies of their "
        "rows cannot be counted",
        hint=REWRITE,
    )


def _placed(group: Node, items: Sequence[Node]) -> Node:
    """Return the expression that a number in GROUP BY stands for."""
    text = literal(group)
    if text is not None and text.isdecimal() and 1 <= int(text) <= len(items):
        group = items[int(text) - 1]
    return {**group, "alias": ""}


def _parsed(con: sql.Connection, text: str) -> Node:
    ((parsed,),) = sql.fetch(con, PARSE, {"text": text})
    return dict(json.loads(parsed))
