"""Reach of a row: the rows of a SELECT whose values follow from it by windows and subqueries.

`value_forms` has the forms, and why they are safe.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import duckdb
import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import folded
from sqlfl.governance.canonical import nodes, placeless_text
from sqlfl.governance.select_trees import (
    Node,
    node_of,
    rows_with,
    sources_of,
    tables_of,
    text_of,
    uncounted,
)
from sqlfl.governance.value_forms import (
    WRITE,
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
SEVERAL = (
    "min_cell: a run has sums or means of a table over several sets of rows, or by columns of "
    "which neither set contains the other: their differences may be of few rows"
)


@dataclass
class Means:
    """Means of many, and places, that a run's rows have."""

    of_table: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name in the query of each base table, and a text of the rows that its means are of."""
    bases: dict[str, frozenset[str]] = field(default_factory=dict)
    """Base tables of the tables and views that the run's queries name."""
    windows: dict[tuple[str, ...], tuple[Node, ...]] = field(default_factory=dict)
    """Windows over these rows, by the text and the tables' names."""

    def add(self, tables: Iterable[str], text: str, windows: Iterable[Node]) -> bool:
        """Note windows over rows. Return whether the tables have none of other rows, and under
        no other name: a view may leave out a few rows.
        """
        known = {base: (name, text) for name in tables for base in self.bases.get(name, {name})}
        if any(self.of_table.get(base, rows) != rows for base, rows in known.items()):
            return False
        self.of_table |= known
        self.windows[(text, *tables)] = (*self.windows.get((text, *tables), ()), *windows)
        return True


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
    con: sql.Connection, node: Node, windows: Sequence[Node], known: frozenset[str]
) -> Array:
    """Return how many rows of the SELECT each of its rows reaches by windows, other than those
    with the texts `known`: int64, descending, at most MAX_COUNTS + 1 of them.
    """
    frames: dict[str, int] = {}
    parts: dict[str, Node] = {}
    for window in windows:
        if placeless_text(window) in known:
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


def windows_of_many(
    con: sql.Connection, node: Node, windows: Sequence[Node], least: int, noted: Means
) -> frozenset[str]:
    """Return the texts of the windows of the SELECT that are means, or places, which with those
    noted have nothing of fewer than `least` rows. Note them. Raise PolicyError for means that
    disagree with those noted.
    """
    if not _is_plain_source(node["from_table"]):
        return frozenset()
    names, grouped = set(_names(node)), bool(node["group_expressions"])
    known = {
        placeless_text(window): _unqualified(window, node["from_table"])
        for window in windows
        if (is_place(window) or (is_mean(window) and not grouped)) and _are_plain(window, names)
    }
    tables, rows = tables_of(node["from_table"]), _text_of_rows(node)
    before = noted.windows.get((rows, *tables), ())
    means = {text: window for text, window in known.items() if is_mean(window)}
    places = {text: window for text, window in known.items() if text not in means}
    if means:
        few, kept = _kept_means(con, node, before, means, least)
        divisions = {_division(window): window["partitions"] for window in means.values()}
        fails = len(kept) < len(means)
        sizes = {d: _largest_part(con, node, by) for d, by in divisions.items() if fails}
        for division in sorted(sizes, key=lambda d: sizes[d]):
            # without this one, whose reach is counted
            others = {t: w for t, w in means.items() if _division(w) != division}
            if len(kept) >= len(others):
                continue
            fewer, rest = _kept_means(con, node, before, others, least)
            if len(rest) > len(kept):
                few, kept = fewer, rest
        means = kept
        both = [*before, *means.values()]
        disagree = any(few is None or _column_of(w) in few for w in filter(is_mean, before))
        disagree |= any(map(is_place, before)) and not _differ_in_many(con, node, both, least)
        if disagree or (means and not noted.add(tables, rows, means.values())):
            raise PolicyError(SEVERAL, hint=WRITE)
    every = [*before, *means.values(), *places.values()]
    if places and not (
        _differ_in_many(con, node, every, least) and noted.add(tables, rows, places.values())
    ):
        places = {}  # their reach is counted
    return frozenset(means | places)


def _largest_part(con: sql.Connection, node: Node, partitions: Sequence[Node]) -> int:
    text = text_of(con, rows_with(node, [_over(con, "count(*)", partitions) | {"alias": "n"}]))
    ((largest,),) = con.execute(f"SELECT coalesce(max(n), 0) FROM ({text}) AS rows_").fetchall()
    return int(largest)


def _kept_means(
    con: sql.Connection,
    node: Node,
    before: Sequence[Node],
    means: dict[str, Node],
    least: int,
) -> tuple[set[str] | None, dict[str, Node]]:
    """Return `_columns_of_few` of means with those noted before, and the means of many."""
    few = _columns_of_few(con, node, [*filter(is_mean, before), *means.values()], least)
    if few is None:
        return None, {}
    return few, {text: window for text, window in means.items() if _column_of(window) not in few}


def _columns_of_few(
    con: sql.Connection, node: Node, means: Sequence[Node], least: int
) -> set[str] | None:
    """Return the texts of columns of which such means would be of fewer than `least` values; None
    if sets of columns do not contain one another.
    """
    divisions = {_division(window): window["partitions"] for window in means}
    order = sorted(divisions, key=len, reverse=True)
    if any(not finer > coarser for finer, coarser in pairwise(order)):
        return None
    of_column: dict[str, set[frozenset[str]]] = {}
    columns: dict[str, Node] = {}
    for window in means:
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
    return without | {text for text in columns if _has_rare_value(con, node, columns[text], least)}


def _has_rare_value(con: sql.Connection, node: Node, column: Node, least: int) -> bool:
    """Return whether a column has two values, one of them in fewer than `least` rows: as a feature
    it is refused, and its sum would be that of these rows.
    """
    text = text_of(con, rows_with(node, [column | {"alias": "c"}]))
    counting = f"""SELECT count(*) BETWEEN 1 AND 2 AND min(n) < {least} FROM (
      SELECT count(*) AS n FROM ({text}) AS rows_ WHERE c IS NOT NULL GROUP BY c)"""
    ((rare,),) = con.execute(counting).fetchall()
    return bool(rare)


def _differ_in_many(con: sql.Connection, node: Node, windows: Sequence[Node], least: int) -> bool:
    """Return whether places, and numbers of rows of means, differ by those of no row, or of at
    least `least` rows, each two of them.
    """
    parts = {_division(window): window["partitions"] for window in windows}
    for one, other in combinations(parts, 2):
        joined = {placeless_text(column): column for column in [*parts[one], *parts[other]]}
        if not (one < other or other < one) and frozenset(joined) in parts:
            return False  # (), (a), (b) and (a, b) count the rows with neither
        call = node_of(con, "SELECT count(1)")["select_list"][0]
        within = [*joined.values()]
        sides = [(call, [within, parts[side]]) for side in (one, other)]
        if any(_few(con, node, sides, least, beyond=True)):
            return False
    orders = {
        placeless_text({"of": [order["expression"] for order in window["orders"]]}): window
        for window in windows
        if window["orders"]
    }
    divided = {_division(window) for window in windows if window["orders"]}
    if len(orders) > 1 and len(divided) > 1:
        return False
    pairs = combinations(orders.values(), 2)
    return all(_orders_differ(con, node, one, other, least) for one, other in pairs)


def _orders_differ(con: sql.Connection, node: Node, one: Node, other: Node, least: int) -> bool:
    """Return whether two orders differ in many rows of each part, or in none. If they were one
    order without fewer than `least` rows, no other row's ranks would differ by so many.
    """
    rank = _over(con, "rank()", one["partitions"])
    backwards = [
        order
        | {
            "type": "ASCENDING" if order["type"] == "DESCENDING" else "DESCENDING",
            "null_order": "NULLS LAST" if "FIRST" in order["null_order"] else "NULLS FIRST",
        }
        for order in other["orders"]
    ]
    ranks = [one["orders"], other["orders"], backwards]
    items = [rank | {"orders": order, "alias": f"r{n}"} for n, order in enumerate(ranks)]
    keys = [column | {"alias": f"k{n}"} for n, column in enumerate(one["partitions"])]
    text = text_of(con, rows_with(node, [*items, *keys]))
    groups = f"GROUP BY {', '.join(key['alias'] for key in keys)}" if keys else ""
    flags = ", ".join(
        f"bool_and(r0 = {r}) OR count(*) FILTER (abs(r0 - {r}) >= {least}) >= {least} AS {r}"
        for r in ("r1", "r2")
    )
    testing = f"""SELECT coalesce(bool_and(r1 AND r2), true) FROM (
      SELECT {flags} FROM ({text}) AS rows_ {groups})"""
    ((differ,),) = con.execute(testing).fetchall()
    return bool(differ)


def mean_of_table(con: sql.Connection, query: Node, least: int, noted: Means) -> bool:
    """Return whether `(SELECT avg(x) FROM t)` is a mean of at least `least` values, and note it."""
    inner = query["subquery"]["node"]
    if not _is_plain_source(inner["from_table"]):
        raise uncounted()
    (call,) = inner["select_list"]
    window = _over(con, "avg(a)", []) | {
        "arguments": call["arguments"], "function_name": call["function_name"],
    }  # fmt: skip
    return bool(windows_of_many(con, rows_with(inner, [window]), [window], least, noted))


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
    *,
    beyond: bool = False,
) -> list[bool]:
    """Return, for each call, whether some row's parts of the rows, each without the one within it,
    have some, but fewer than `least`. beyond : leave the innermost part out.
    """
    items: list[Node] = []
    sizes: list[list[str]] = []
    for call, divisions in counted:
        own = []
        for columns in divisions:
            items.append(_over_call(con, call, columns) | {"alias": f"n{len(items)}"})
            own.append(items[-1]["alias"])
        sizes.append([*([] if beyond else own[:1]), *(f"{b} - {a}" for a, b in pairwise(own))])
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


def _column_of(mean: Node) -> str:
    return placeless_text(arguments_of(mean)[0])


def _text_of_rows(node: Node) -> str:
    """Return one text for SELECTs over the same rows; empty for all rows of a table."""
    source, chosen = node["from_table"], node["where_clause"] or node["group_expressions"]
    if source["type"] == "BASE_TABLE" and not chosen and not source.get("column_name_alias"):
        return ""  # its columns have their own names
    return placeless_text(rows_with(node, []))


def _unqualified(window: Node, source: Node) -> Node:
    """Return the window without the name of the one table before its columns."""
    if source["type"] != "BASE_TABLE":
        return window
    changed: Node = json.loads(json.dumps(window))
    for node in nodes(changed):
        names = node.get("column_names") if is_column(node) else None
        if names and len(names) == 2 and folded(str(names[0])) == alias_of(source):
            node["column_names"] = names[1:]
    return changed


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
