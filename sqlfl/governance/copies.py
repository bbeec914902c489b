"""Copies of a table's rows in a SELECT: how many of its rows each row of a table stands in.

Rules on rows and cells count rows of the query. A join within the party, or the same table in
several parts of a union, would fill a cell with copies of one row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import duckdb
import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import PolicyError
from sqlfl.governance.canonical import nodes
from sqlfl.governance.constants import literal
from sqlfl.governance.tree import PARSE
from sqlfl.udfs import sql

Node: TypeAlias = "dict[str, Any]"
NUMBER = "sqlfl_number"
MAX_COUNTS = 100_000
REWRITE = "write the join over the parties' tables themselves, or ask its owner for a view"
_DESERIALIZE = sql.constant(sql.query("SELECT json_deserialize_sql(CAST($tree AS JSON))"))


@dataclass(frozen=True, eq=False)
class Copies:
    """Bounds of the number of rows of a query that stem from each row of a table."""

    counts: Array
    """int64, descending: bounds for the rows that are copied most."""
    rest: int
    """Bound for each other row."""

    @property
    def most(self) -> int:
        return int(self.counts[0]) if len(self.counts) else self.rest

    def rows_of(self, least: int) -> int:
        """Return the minimum number of rows of the query that stem from `least` rows of the table,
        whichever these are.
        """
        others = self.counts[: least - 1]
        return 1 + int(others.sum()) + self.rest * (least - 1 - len(others))

    def __add__(self, other: Copies) -> Copies:
        size = max(len(self.counts), len(other.counts))
        return Copies(self._first(size) + other._first(size), self.rest + other.rest)

    def __mul__(self, times: int) -> Copies:
        return Copies(self.counts * times, self.rest * times)

    def __or__(self, other: Copies) -> Copies:
        """Return bounds that hold for either."""
        if self is other:
            return self
        size = max(len(self.counts), len(other.counts))
        counts = np.maximum(self._first(size), other._first(size))
        return Copies(counts, max(self.rest, other.rest))

    def _first(self, size: int) -> Array:
        return np.pad(self.counts, (0, size - len(self.counts)), constant_values=self.rest)


ONCE = Copies(np.zeros(0, np.int64), 1)


def copies(con: sql.Connection, text: str) -> Copies:
    """Return how many rows of the SELECT stem from each row of a table. Raise PolicyError for a
    form in which that cannot be counted.
    """
    try:
        return _CopyCounter(con).of(node_of(con, text))
    except (duckdb.BinderException, duckdb.CatalogException) as error:
        raise uncounted() from error


class _CopyCounter:
    def __init__(self, con: sql.Connection) -> None:
        self._con = con

    def of(self, node: Node, common: Node | None = None) -> Copies:
        if node["type"] == "SET_OPERATION_NODE":
            return reduce(Copies.__add__, [self.of(part) for part in node["children"]])
        if common is None and (node.get("cte_map") or {}).get("map"):
            return self._of_common(node)
        leaves = list(sources_of(node["from_table"]))
        within = reduce(Copies.__or__, [self._within(leaf) for leaf in leaves], ONCE)
        if len(leaves) < 2:
            return within
        beside = [self._beside(node, place) for place in range(len(leaves))]
        return reduce(Copies.__or__, beside) * within.most

    def _of_common(self, node: Node) -> Copies:
        """Count in queries of WITH, which the SELECT may take more than once."""
        inner = [item["value"] for item in node["cte_map"]["map"]]
        queries = [value.get("query_node") or value["query"]["node"] for value in inner]
        if any(_joins(query) for query in (*queries, node)):
            raise uncounted()
        return ONCE

    def _within(self, leaf: Node) -> Copies:
        return self.of(leaf["subquery"]["node"]) if leaf["type"] == "SUBQUERY" else ONCE

    def _beside(self, node: Node, place: int) -> Copies:
        """Return how many rows of the SELECT each row of this source of FROM stands in."""
        tree = json.loads(json.dumps(node))
        leaf = list(sources_of(tree["from_table"]))[place]
        if leaf["type"] == "EXPRESSION_LIST" or not any(_tables(leaf)):
            return ONCE  # constants
        name = numbered(self._con, leaf, NUMBER)
        number = {
            **node_of(self._con, "SELECT a.b")["select_list"][0],
            "column_names": [name, NUMBER],
        }
        groups = [_placed(group, tree["select_list"]) for group in tree["group_expressions"]]
        tree |= {"select_list": [number, *groups], "group_expressions": [], "group_sets": []}
        tree |= {"modifiers": [], "having": None, "qualify": None}
        if groups:
            tree["modifiers"] = node_of(self._con, "SELECT DISTINCT 1")["modifiers"]
        text = text_of(self._con, tree)
        counting = f"""SELECT count(*) AS n FROM ({text}) AS rows_ WHERE {NUMBER} IS NOT NULL
            GROUP BY {NUMBER} ORDER BY n DESC LIMIT {MAX_COUNTS}"""
        counts = self._con.execute(counting).fetchnumpy()["n"].astype(np.int64)
        if not len(counts):
            return ONCE
        # a table with fewer rows than a rule asks for passes no more than if it had as many
        return Copies(counts, int(counts[-1 if len(counts) == MAX_COUNTS else 0]))


def sources_of(source: Node) -> Iterator[Node]:
    """Yield the sources of FROM."""
    if source["type"] == "JOIN":
        yield from sources_of(source["left"])
        yield from sources_of(source["right"])
    elif source["type"] != "EMPTY":
        yield source


def _tables(tree: object) -> Iterator[Node]:
    return (node for node in nodes(tree) if node.get("type") == "BASE_TABLE")


def _joins(tree: object) -> bool:
    return any(node.get("type") in ("JOIN", "SET_OPERATION_NODE") for node in nodes(tree))


def _placed(group: Node, items: list[Node]) -> Node:
    """Return the expression that a number in GROUP BY stands for."""
    text = literal(group)
    if text is not None and text.isdecimal() and 1 <= int(text) <= len(items):
        group = items[int(text) - 1]
    return {**group, "alias": ""}


def numbered(con: sql.Connection, leaf: Node, number: str) -> str:
    """Number the rows of a source of FROM, in its place, by a column `number`. Return its alias."""
    path = (leaf.get("qualified_name") or {}).get("path") or [f"{number}_of"]
    name = str(leaf.get("alias") or path[-1])
    text = f"SELECT 1 FROM (SELECT *, row_number() OVER () AS {number} FROM t) AS a"
    source = node_of(con, text)["from_table"]
    source["subquery"]["node"]["from_table"] = dict(leaf)
    leaf.clear()
    leaf |= {**source, "alias": name}
    return name


def _parsed(con: sql.Connection, text: str) -> Node:
    ((found,),) = sql.fetch(con, PARSE, {"text": text})
    return dict(json.loads(found))


def node_of(con: sql.Connection, text: str) -> Node:
    return dict(_parsed(con, text)["statements"][0]["node"])


def text_of(con: sql.Connection, node: Node) -> str:
    """Return the SQL of a SELECT."""
    parsed = _parsed(con, "SELECT 1")
    parsed["statements"][0]["node"] = node
    ((text,),) = sql.fetch(con, _DESERIALIZE, {"tree": json.dumps(parsed)})
    return str(text)


def uncounted() -> PolicyError:
    return PolicyError(
        "a query joins tables within the party, and copies of their rows cannot be counted",
        hint=REWRITE,
    )
