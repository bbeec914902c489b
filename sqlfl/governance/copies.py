"""Copies of a table's rows in a SELECT: how many of its rows each row of a table stands in.

Rules on rows and cells count rows of the query. A join within the party, or the same table in
several parts of a union, would fill a cell with copies of one row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

import duckdb
import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import PolicyError
from sqlfl.governance.canonical import nodes
from sqlfl.governance.names import base_tables
from sqlfl.governance.reach import (
    MAX_COUNTS,
    Means,
    is_of_no_rows,
    mean_of_table,
    most_linked,
    rows_reached,
    values_in,
    windows_of_many,
)
from sqlfl.governance.select_trees import (
    Node,
    group_columns,
    inlined,
    node_of,
    rows_with,
    sources_of,
    table_of,
    text_of,
    uncounted,
)
from sqlfl.governance.value_forms import WRITE, is_linked, is_mean_of_table
from sqlfl.udfs import sql

NUMBER = "sqlfl_number"
FEW = "min_cell: many rows would have a mean of a table in which few rows have a value"


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

    def through(self, later: Copies) -> Copies:
        """Return bounds where each of these rows stands in as many as `later` says."""
        if self.most == 1:
            return later
        return self * later.most

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


@dataclass(frozen=True)
class Counted:
    """Copies of a table's rows in a SELECT."""

    rows: Copies = ONCE
    """Bounds of the rows that stem from each row of a table."""
    values: Copies = ONCE
    """Bounds of the rows whose values may follow from it, also by windows and subqueries."""

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.rows + other.rows, self.values + other.values)

    def __or__(self, other: Counted) -> Counted:
        return Counted(self.rows | other.rows, self.values | other.values)


def copies(
    con: sql.Connection,
    text: str,
    least: int = 1,
    values: int | None = None,
    means: Means | None = None,
) -> Counted:
    """Return how many rows of the SELECT stem from each row of a table. Raise PolicyError for a
    form in which that cannot be counted.

    least : values of fewer rows may not be those of more; 1 for no such rule. values : number of
    its first columns that are values; None for all. means : means that a run has; those of the
    SELECT are added.
    """
    try:
        node = inlined(con, node_of(con, text))
        noted = Means() if means is None else means
        for leaf in nodes(node):
            if leaf.get("type") == "BASE_TABLE":
                name, bases = table_of(leaf), base_tables(con, leaf["qualified_name"]["path"])
                noted.bases[name] = noted.bases.get(name, frozenset()) | (bases or {name})
        rows = _CopyCounter(con, noted).of(node)
        reached = rows
        if least > 1 and any(n.get("class") in ("SUBQUERY", "WINDOW") for n in nodes(node)):
            reached = _CopyCounter(con, noted, least).of(node, values)
    except (duckdb.BinderException, duckdb.CatalogException) as error:
        raise uncounted() from error
    return Counted(*(reduce(Copies.__or__, of.values(), ONCE) for of in (rows, reached)))


class _CopyCounter:
    """Counter of a SELECT without WITH. means : as in `copies`. least : the same, if values are
    counted.
    """

    def __init__(self, con: sql.Connection, means: Means, least: int | None = None) -> None:
        self._con, self._means, self._least = con, means, least

    def of(self, node: Node, values: int | None = None) -> dict[str, Copies]:
        """Return the copies of the rows of each base table, by its name."""
        copied: dict[str, Copies] = {}
        if node["type"] == "SET_OPERATION_NODE":
            for part in node["children"]:
                _add(copied, self.of(part, values))
            return copied
        leaves = list(sources_of(node["from_table"]))
        sets = max(1, len(node.get("group_sets") or ()))
        for place, leaf in enumerate(leaves):
            within = self._within(leaf)
            beside = self._beside(node, place) if within and len(leaves) > 1 else ONCE
            _add(copied, {table: one.through(beside * sets) for table, one in within.items()})
        if self._least is not None:
            self._reach(node, values, copied, self._means, self._least)
        return copied

    def _within(self, leaf: Node) -> dict[str, Copies]:
        if leaf["type"] == "SUBQUERY":
            return self.of(leaf["subquery"]["node"])
        if leaf["type"] == "BASE_TABLE":
            return dict.fromkeys(self._means.bases[table_of(leaf)], ONCE)
        if self._least is not None and any(values_in([leaf])):
            raise uncounted()
        return {}  # constants

    def _reach(
        self,
        node: Node,
        values: int | None,
        copied: dict[str, Copies],
        means: Means,
        least: int,
    ) -> None:
        """Count the rows that values reach by windows and subqueries of the SELECT."""
        items = node["select_list"]
        if not any(item.get("class") == "STAR" for item in items):
            items = items[:values]
        inner = list(values_in(items))
        if not inner:
            return
        windows = [part for part in inner if part["class"] == "WINDOW"]
        fewest = reduce(Copies.__or__, copied.values(), ONCE).rows_of(least)
        of_many = windows_of_many(self._con, node, windows, fewest, means)
        reached = rows_reached(self._con, node, windows, of_many)
        for query in inner:
            if query["class"] == "SUBQUERY" and not is_of_no_rows(query):
                if not is_linked(query):
                    raise uncounted()
                if is_mean_of_table(query):
                    if not mean_of_table(self._con, query, least, means):
                        raise PolicyError(FEW, hint=WRITE)
                    continue
                most = ONCE * most_linked(self._con, node, query)
                within = self._within(query["subquery"]["node"]["from_table"])
                _add(copied, {table: one.through(most) for table, one in within.items()})
        for table, one in copied.items():
            copied[table] = one.through(_bounds(reached))

    def _beside(self, node: Node, place: int) -> Copies:
        """Return how many rows of the SELECT each row of this source of FROM stands in."""
        tree = json.loads(json.dumps(node))
        leaf = list(sources_of(tree["from_table"]))[place]
        name = numbered(self._con, leaf, NUMBER)
        number = {
            **node_of(self._con, "SELECT a.b")["select_list"][0],
            "column_names": [name, NUMBER],
        }
        groups = group_columns(tree)
        tree = rows_with(tree, [number, *groups]) | {"group_expressions": [], "group_sets": []}
        if groups:
            tree["modifiers"] = node_of(self._con, "SELECT DISTINCT 1")["modifiers"]
        text = text_of(self._con, tree)
        counting = f"""SELECT count(*) AS n FROM ({text}) AS rows_ WHERE {NUMBER} IS NOT NULL
            GROUP BY {NUMBER} ORDER BY n DESC LIMIT {MAX_COUNTS + 1}"""
        return _bounds(self._con.execute(counting).fetchnumpy()["n"].astype(np.int64))


def _bounds(counts: Array) -> Copies:
    """Return bounds of MAX_COUNTS + 1 rows at most, in descending order."""
    if len(counts) < 2 or counts[0] == counts[-1]:
        return ONCE * int(counts[0]) if len(counts) else ONCE
    # a table with fewer rows than a rule asks for passes no more than if it had as many
    return Copies(counts, int(counts[-1 if len(counts) > MAX_COUNTS else 0]))


def _add(copied: dict[str, Copies], more: Mapping[str, Copies]) -> None:
    for table, one in more.items():
        copied[table] = copied[table] + one if table in copied else one


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
