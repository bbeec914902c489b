"""Reach of a row: the rows of a SELECT whose values follow from it by windows and subqueries.

`value_forms` has the forms, and why they are safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import duckdb
import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.contract.schema import folded
from sqlfl.governance.canonical import nodes, placeless_text
from sqlfl.governance.select_trees import (
    Node,
    node_of,
    rows_with,
    sources_of,
    text_of,
    uncounted,
)
from sqlfl.governance.value_forms import (
    alias_of,
    arguments_of,
    columns_of,
    frame_of,
    further_rows,
    is_column,
    is_mean,
    is_place,
    linked_keys,
)
from sqlfl.udfs import sql

MAX_COUNTS = 100_000
_WHOLE: frozenset[str] = frozenset()
"""Division of a table into one part."""


@dataclass
class Means:
    """Means of many that a fragment's rows have: for each table the texts of the rows that they
    are of, with the columns that divide these.
    """

    of_table: dict[str, str] = field(default_factory=dict)

    def add(self, tables: Iterable[str], text: str) -> bool:
        """Note them. Return whether the tables have no others."""
        return all(self.of_table.setdefault(table, text) == text for table in tables)


def values_in(items: Iterable[Node]) -> Iterator[Node]:
    """Yield windows and subqueries in expressions, without those within a subquery that has rows
    of its own.
    """
    for item in items:
        yield from _values_in(item)


def _values_in(part: object) -> Iterator[Node]:
    if isinstance(part, list):
        for item in part:
            yield from _values_in(item)
    elif isinstance(part, dict):
        if part.get("class") in ("SUBQUERY", "WINDOW"):
            yield part
        if part.get("class") == "SUBQUERY" and not is_of_no_rows(part):
            yield from _values_in(part.get("child"))
            return
        for item in part.values():
            yield from _values_in(item)


def is_of_no_rows(query: Node) -> bool:
    """Return True for a subquery without FROM: its value follows from the row around it."""
    return bool((query["subquery"]["node"].get("from_table") or {}).get("type") == "EMPTY")


def rows_reached(
    con: sql.Connection, node: Node, windows: Sequence[Node], means: frozenset[str]
) -> Array:
    """Return how many rows of the SELECT each of its rows reaches by windows, other than those
    with the texts `means`: int64, descending, at most MAX_COUNTS + 1 of them.
    """
    names, plain = set(_names(node)), _is_plain_source(node["from_table"])
    frames: dict[str, int] = {}
    parts: dict[str, Node] = {}
    for window in windows:
        place = plain and is_place(window) and _are_plain(window, names)
        if place or placeless_text(window) in means:
            continue
        if node["group_expressions"]:
            raise uncounted()
        further = further_rows(window)
        if further is None:
            text = placeless_text({"of": window["partitions"]})
            parts[text] = _over(con, "count(*)", window["partitions"])
        else:
            frames[frame_of(window)] = further
    fixed = 1 + sum(frames.values()) - len(parts)
    if not parts:
        return np.array([fixed])
    items = [window | {"alias": f"n{place}"} for place, window in enumerate(parts.values())]
    text = text_of(con, rows_with(node, items))
    total = " + ".join(item["alias"] for item in items)
    counting = f"SELECT {total} AS n FROM ({text}) AS rows_ ORDER BY n DESC LIMIT {MAX_COUNTS + 1}"
    counts: Array = con.execute(counting).fetchnumpy()["n"].astype(np.int64)
    return counts + fixed


def means_of_many(
    con: sql.Connection, node: Node, windows: Sequence[Node], least: int
) -> dict[str, str]:
    """Return the windows of the SELECT that are means of at least `least` values each, by their
    texts, with the text of the rows that they are of and the columns that divide these.
    """
    names = set(_names(node))
    means = {
        placeless_text(window): window
        for window in windows
        if is_mean(window) and _are_plain(window, names)
    }
    if not means or node["group_expressions"] or not _is_plain_source(node["from_table"]):
        return {}
    divisions = {_division(window): window["partitions"] for window in means.values()}
    order = sorted(divisions, key=len, reverse=True)
    if any(not finer > coarser for finer, coarser in pairwise(order)):
        return {}
    of_column: dict[str, set[frozenset[str]]] = {}
    columns: dict[str, Node] = {}
    for window in means.values():
        (column,) = arguments_of(window)
        columns[placeless_text(column)] = column
        of_column.setdefault(placeless_text(column), set()).add(_division(window))
    groups: list[tuple[set[str], Node, list[frozenset[str]]]] = []
    for text, column in columns.items():
        counted = node_of(con, "SELECT count(a.b)")["select_list"][0]
        groups.append(({text}, _with(counted, [column]), _sorted(order, of_column[text])))
    for first, second in combinations(columns, 2):
        differ = "SELECT count(CASE WHEN a.b IS DISTINCT FROM a.c THEN 1 END)"
        call = _with(node_of(con, differ)["select_list"][0], [columns[first], columns[second]])
        both = of_column[first] | of_column[second]
        groups.append(({first, second}, call, _sorted(order, both)))
    counted = [(call, [divisions[d] for d in parts]) for _, call, parts in groups]
    few = zip(groups, _few(con, node, counted, least), strict=True)
    without = set().union(*(texts for (texts, _, _), is_few in few if is_few))
    rows = placeless_text(rows_with(node, [])) + repr([sorted(parts) for parts in order])
    if (
        node["from_table"]["type"] == "BASE_TABLE"
        and not node["where_clause"]
        and order == [_WHOLE]
    ):
        rows = ""  # of the whole table, whatever its alias
    return {
        text: rows
        for text, window in means.items()
        if placeless_text(arguments_of(window)[0]) not in without
    }


def mean_of_table(con: sql.Connection, query: Node, least: int) -> bool:
    """Return whether `(SELECT avg(x) FROM t)` is a mean of at least `least` values."""
    inner = query["subquery"]["node"]
    (call,) = inner["select_list"]
    window = _over(con, "avg(a)", []) | {"arguments": call["arguments"]}
    return bool(means_of_many(con, rows_with(inner, [window]), [window], least))


def most_linked(con: sql.Connection, node: Node, query: Node) -> int:
    """Return the maximum number of rows of a SELECT that one row of a subquery reaches."""
    listed = query.get("subquery_type") == "ANY"
    around = {alias_of(source) for source in sources_of(node["from_table"])}
    keys = [
        (key, outer)
        for key, outer in linked_keys(query)
        if listed or folded(outer["column_names"][0]) in around
    ]
    if not keys:
        raise uncounted()
    key, outer = keys[0]
    inner = query["subquery"]["node"]
    bare: Node = {"where_clause": None, "group_expressions": [], "group_sets": []}
    if not listed and _binds(con, rows_with(inner | bare, [outer])):
        raise uncounted()  # a field of a STRUCT of the subquery's own rows
    texts = [text_of(con, rows_with(inner | bare, [key])), text_of(con, rows_with(node, [outer]))]
    counting = f"""WITH a(k) AS ({texts[0]}), b(k) AS ({texts[1]})
      SELECT (SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n
          FROM (SELECT DISTINCT k FROM a) AS a, b WHERE a.k = b.k GROUP BY a.k)),
        (SELECT count(*) FROM b), (SELECT count(*) FROM b WHERE k IS NULL),
        (SELECT count(*) > 0 FROM a WHERE k IS NULL)"""
    ((most, every, missing, has_null),) = con.execute(counting).fetchall()
    if not listed:
        return int(most) or 1
    # IN gives NULL for all values that are not in a list with a NULL, and for NULL itself unless
    # the list is empty, as one row may decide where a condition chooses rows
    chosen = inner.get("where_clause") or inner["from_table"]["type"] != "BASE_TABLE"
    return int(every if has_null else most + (missing if chosen else 0)) or 1


def _binds(con: sql.Connection, node: Node) -> bool:
    """Return whether all names of a SELECT mean something by themselves."""
    try:
        con.execute(f"SELECT 1 FROM ({text_of(con, node)}) AS rows_ LIMIT 0")
    except duckdb.BinderException:
        return False
    return True


def _few(
    con: sql.Connection,
    node: Node,
    counted: Sequence[tuple[Node, Sequence[Sequence[Node]]]],
    least: int,
) -> list[bool]:
    """Return, for each call, whether some row's parts of the rows, each without the one within it,
    have some, but fewer than `least`.
    """
    items: list[Node] = []
    sizes: list[list[str]] = []
    for call, divisions in counted:
        own = []
        for columns in divisions:
            items.append(_over_call(con, call, columns) | {"alias": f"n{len(items)}"})
            own.append(items[-1]["alias"])
        sizes.append([own[0], *(f"{b} - {a}" for a, b in pairwise(own))])
    text = text_of(con, rows_with(node, items))
    tests = [
        " OR ".join(f"({size}) BETWEEN 1 AND {least - 1}" for size in of_one) for of_one in sizes
    ]
    chosen = ", ".join(f"coalesce(bool_or({test}), false)" for test in tests)
    (flags,) = con.execute(f"SELECT {chosen} FROM ({text}) AS rows_").fetchall()
    return list(flags)


def _sorted(order: Sequence[frozenset[str]], chosen: set[frozenset[str]]) -> list[frozenset[str]]:
    return [parts for parts in order if parts in chosen]


def _division(window: Node) -> frozenset[str]:
    return frozenset(placeless_text(column) for column in window["partitions"])


def _with(call: Node, columns: Sequence[Node]) -> Node:
    """Put the columns in the places of a template's."""
    references = [node for node in nodes(call) if is_column(node)]
    for reference, column in zip(references, columns, strict=True):
        reference.clear()
        reference |= column
    return call


def _over(con: sql.Connection, call: str, partitions: Sequence[Node]) -> Node:
    (window,) = node_of(con, f"SELECT {call} OVER ()")["select_list"]
    return dict(window) | {"partitions": [*partitions]}


def _over_call(con: sql.Connection, call: Node, partitions: Sequence[Node]) -> Node:
    return _over(con, "count(1)", partitions) | {"arguments": call["arguments"]}


def _names(node: Node) -> Iterator[str]:
    """Yield names in a SELECT's list that mean something else than a column of FROM may."""
    for item in node["select_list"]:
        if item.get("alias") and not is_column(item):
            yield folded(str(item["alias"]))


def _are_plain(window: Node, names: set[str]) -> bool:
    """Return True if the columns of a window are those of FROM, as they are."""
    columns = [*columns_of(window), *filter(is_column, arguments_of(window))]
    return not any(folded(str(column["column_names"][0])) in names for column in columns)


def _is_plain_source(source: Node) -> bool:
    """Return True if the columns of FROM are those of tables, as they are."""
    return all(map(_is_plain_leaf, sources_of(source)))


def _is_plain_leaf(leaf: Node) -> bool:
    if leaf["type"] != "SUBQUERY":
        return bool(leaf["type"] == "BASE_TABLE")
    inner = leaf["subquery"]["node"]
    if inner["type"] != "SELECT_NODE" or inner["group_expressions"] or inner["modifiers"]:
        return False
    items = inner["select_list"]
    stars = (i for i in items if not is_column(i))
    plain = all(i.get("class") == "STAR" and not i.get("replace_list") for i in stars)
    return plain and not inner.get("qualify") and _is_plain_source(inner["from_table"])
