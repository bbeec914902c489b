"""Sums and means of few values that a SELECT would give to many rows.

A window or a subquery may give all rows the mean of a column. Where few rows have a value in that
column, many rows would have the mean of these few.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import duckdb

from sqlfl.governance.canonical import nodes, placeless_text
from sqlfl.governance.copies import NUMBER, node_of, numbered, sources_of, text_of, uncounted
from sqlfl.udfs import sql

Node: TypeAlias = "dict[str, Any]"
CONTENT = "SELECT bit_xor(CASE WHEN x IS NOT NULL THEN hash($numbers) END)"


def mixes_few(con: sql.Connection, text: str, least: int) -> bool:
    """Return whether at least `least` rows of a SELECT in the text have a sum or a mean of the same
    values, which are some, but fewer than `least`; or two of the same column, whose rows are so few
    apart. Where there are `least` such sets of values, as of the visits of many patients, each is
    one of many. Raise PolicyError for a form in which that cannot be counted.
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
        tree: Node = json.loads(json.dumps(node)) | {"modifiers": [], "qualify": None}
        tree["cte_map"] = {"map": [*common]}
        totals = list(self._totals(tree))
        windows = {
            placeless_text(window | {"function_name": "", "qualified_name": None}): window
            for window in nodes(tree["select_list"])
            if _is_mixed(window, "WINDOW_AGGREGATE")
        }
        return self._in_subqueries(tree, totals) or self._in_windows(
            tree, [*windows.values()], [count for count, _ in totals]
        )

    def _totals(self, tree: Node) -> Iterator[tuple[int, int]]:
        """Yield, for each subquery with a sum or a mean of a table's column, the number of its
        values and that of the table's rows.
        """
        for item in nodes(tree["select_list"]):
            if item.get("class") != "SUBQUERY" or item.get("subquery_type") != "SCALAR":
                continue
            inner = item["subquery"]["node"]
            calls = inner.get("select_list") or []
            if len(calls) != 1 or not _is_mixed(calls[0], "FUNCTION"):
                continue
            (every,) = node_of(self._con, "SELECT count(*)")["select_list"]
            counted = {"select_list": [_called("count", calls[0]), every], "modifiers": []}
            yield self._con.execute(text_of(self._con, inner | counted)).fetchall()[0]

    def _in_subqueries(self, tree: Node, totals: Sequence[tuple[int, int]]) -> bool:
        if any(0 < values < self._least for values, _ in totals):
            return True
        if not totals or tree["group_expressions"]:
            return False
        counting = tree | {"select_list": node_of(self._con, "SELECT 1")["select_list"]}
        text = f"SELECT count(*) FROM ({text_of(self._con, counting)}) AS rows_"
        ((rows,),) = self._con.execute(text).fetchall()
        return any(0 < of_table - rows < self._least for _, of_table in totals)

    def _in_windows(self, tree: Node, windows: Sequence[Node], totals: Sequence[int]) -> bool:
        if not windows:
            return False
        if tree["group_expressions"]:
            raise uncounted()
        numbers = []
        for place, leaf in enumerate(list(sources_of(tree["from_table"]))):
            number = f"{NUMBER}{place}"
            numbers.append([numbered(self._con, leaf, number), number])
        chosen: list[Node] = []
        sizes, contents = [], []  # of sets of rows whose values a row has
        for place, window in enumerate(windows):
            chosen += [_called("count", window), self._content(window, numbers)]
            sizes.append(f"n{place}")
            contents.append(f"c{place}")
            sizes += [f"{total} - n{place}" for total in totals]
            contents += [f"c{place}" for _ in totals]
        names = [f"{kind}{place}" for place in range(len(windows)) for kind in "nc"]
        for (i, first), (j, second) in combinations(enumerate(windows), 2):
            if placeless_text(_argument(first)) != placeless_text(_argument(second)):
                continue
            contents.append(f"xor(coalesce(c{i}, 0), coalesce(c{j}, 0))")
            sizes.append(f"abs(n{i} - n{j})")
            if _is_whole(first) and _is_whole(second):
                parts = [*first["partitions"], *second["partitions"]]
                chosen.append(_called("count", first) | {"partitions": parts})
                names.append(f"b{i}_{j}")
                sizes[-1] = f"n{i} + n{j} - 2 * b{i}_{j}"
        for name, one in zip(names, chosen, strict=True):
            one["alias"] = name
        tree = tree | {"select_list": chosen}
        # each of these sets of few values is a source; their effective number is (Σ k)² / Σ k²
        query = f"""SELECT 1 FROM (
              SELECT item, CAST(count(*) AS DOUBLE) AS k FROM (
                SELECT unnest(range({len(sizes)})) AS item, unnest([{", ".join(sizes)}]) AS size,
                  unnest([{", ".join(contents)}]) AS content
                FROM ({text_of(self._con, tree)}) AS rows_
              ) AS mixed WHERE size BETWEEN 1 AND {self._least - 1} GROUP BY item, content
            ) AS few GROUP BY item
            HAVING max(k) >= {self._least} AND sum(k) * sum(k) < {self._least} * sum(k * k)
            LIMIT 1"""
        return bool(self._con.execute(query).fetchall())

    def _content(self, window: Node, numbers: list[list[str]]) -> Node:
        """Return a number that follows from which rows those are whose values a window has."""
        listed = ", ".join(f"a.b{place}" for place in range(len(numbers)))
        (made,) = node_of(self._con, CONTENT.replace("$numbers", listed))["select_list"]
        references = [ref for ref in nodes(made) if ref.get("class") == "COLUMN_REF"]
        for reference in references:
            names = reference["column_names"]
            if names == ["x"]:
                reference.clear()
                reference |= _argument(window)
            else:
                reference["column_names"] = numbers[int(names[-1][1:])]
        return _called("bit_xor", window) | {"arguments": made["arguments"]}


def _argument(call: Node) -> Node:
    argument: Node = call["arguments"][0]["expression"]
    return argument


def _is_whole(window: Node) -> bool:
    """Return whether a window has all rows of its part."""
    frame = window["start"], window["end"]
    return not window["orders"] and not any(str(end).endswith("_ROWS") for end in frame)


def _is_mixed(item: Node, type_: str) -> bool:
    return item.get("type") == type_ and bool(item.get("arguments"))


def _called(name: str, call: Node) -> Node:
    """Return the call of another function with the same arguments, over the same rows."""
    named = {"qualified_name": {"path": [name]}} if call.get("qualified_name") else {}
    return call | {"function_name": name} | named


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
