"""Forms in which a value of a row may follow from other rows, under `min_cell`.

A cell of features is many rows that have a value. It stands for many rows of a table only where
each value follows from the row itself, or where it is bounded how many rows one row's value
reaches. So windows and subqueries in features and labels have one of these forms, and no other:

1. **Bounded reach.** If a row of a table has a part in the values of at most `c` rows, a value of
   fewer than `k` rows is in at most `(k - 1) c` rows. `reach` counts `c` in the data, and rules ask
   for more rows than that (`Copies.rows_of`). Bounded are:
   windows of any function over parts of rows (`PARTITION BY`): `c` is the size of a part;
   frames of n ROWS: at most n; `lag` and `lead`: one more row each;
   `(SELECT ... FROM v WHERE v.key = p.key ...)`, `EXISTS (...)` with such a WHERE, and
   `p.key IN (SELECT v.key FROM v ...)`: the rows that have one key;
   tables and aggregates in FROM and WITH: the rows that one of their rows is joined to.
2. **Means of many.** `avg`, `sum` and standard deviations of columns as they are, over whole parts
   by columns as they are, and `(SELECT avg(x) FROM t)`. Parts of several such windows in a run
   contain one another. So the sets of rows whose sums a row has differ by sets that are disjoint,
   and all that follows from these sums are sums over these sets. `reach` looks that each has no
   value, or as many as the rule says.
3. **Places.** `rank()` and the like, and `count(*)`, by columns as they are. They count rows, and
   have no value of another row. The difference of two of them counts few rows where their parts,
   or their orders, differ in few; `reach` looks that they do not.

Forms 1 and 2 may stand together: who takes all but a few values of a sum away must have each of
the others, so no more than `c` rows have what remains.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from sqlfl.contract.schema import folded
from sqlfl.governance.canonical import nodes, placeless
from sqlfl.governance.constants import literal

Node: TypeAlias = "dict[str, Any]"
MEANS = (
    "avg", "mean", "stddev", "stddev_pop", "stddev_samp", "sum", "var_pop", "var_samp", "variance",
)  # fmt: skip
"""Aggregates in which every row has a part."""
PLACES = (
    "WINDOW_CUME_DIST", "WINDOW_NTILE", "WINDOW_PERCENT_RANK", "WINDOW_RANK", "WINDOW_ROW_NUMBER",
)  # fmt: skip
"""Windows that give the place of a row among others. `dense_rank()` is none of them: it counts
values, and beside `rank()` tells of few rows that have one value.
"""
_FRAMED = (
    "WINDOW_AGGREGATE", "WINDOW_FIRST_VALUE", "WINDOW_LAST_VALUE", "WINDOW_NTH_VALUE",
)  # fmt: skip
"""Windows that read no row outside of their frame."""
_SHIFTS = ("WINDOW_LAG", "WINDOW_LEAD")
_COUNTS = ("count", "count_star")
_ODD = ("filter_expr", "ignore_nulls", "distinct", "arg_orders")
"""Parts of a window that choose among its rows."""
_ENDS = ("CURRENT_ROW_RANGE", "CURRENT_ROW_ROWS", "UNBOUNDED_FOLLOWING")
WRITE = (
    "write avg, sum or stddev of a column as it is OVER (PARTITION BY columns); a place, such as "
    "rank(), or count(*) OVER (...); other functions OVER (PARTITION BY key) or of n ROWS; EXISTS "
    "or a subquery with WHERE v.key = p.key; or JOIN (SELECT key, max(x) AS x FROM t GROUP BY key)"
)
"""The forms, as a hint."""


def is_place(window: Node) -> bool:
    """Return True for the place of a row, or a number of rows, by columns."""
    arguments = arguments_of(window)
    counts = window["type"] == "WINDOW_AGGREGATE" and _name(window) in _COUNTS and not arguments
    if not counts and window["type"] not in PLACES:
        return False
    constant = all(literal(argument) is not None for argument in arguments)
    return constant and _is_plain(window) and window["end"] in _ENDS


def is_mean(window: Node) -> bool:
    """Return True for a sum or a mean of a column over whole parts by columns."""
    arguments = arguments_of(window)
    if window["type"] != "WINDOW_AGGREGATE" or _name(window) not in MEANS or len(arguments) != 1:
        return False
    whole = not window["orders"] and window["end"] != "CURRENT_ROW_ROWS"
    return whole and is_column(arguments[0]) and _is_plain(window) and window["end"] in _ENDS


def further_rows(window: Node) -> int | None:
    """Return how many other rows one row's value reaches at most by a window of n ROWS, or by lag
    and lead. Return None where that is not bounded.
    """
    if window["type"] in _SHIFTS:
        known = all(_number(offset) is not None for offset in arguments_of(window)[1:2])
        return 1 if known and not any(window.get(name) for name in _ODD) else None
    start, end = (_bound(window, side) for side in ("start", "end"))
    if start is None or end is None or window["type"] not in _FRAMED:
        return None
    return max(0, end - start + 1) - (start <= 0 <= end)


def frame_of(window: Node) -> str:
    """Return one text for windows over the same rows."""
    names = ("type", "partitions", "orders", "start", "end", "start_expr", "end_expr")
    kept = {name: window[name] for name in names} | {"offset": arguments_of(window)[1:2]}
    if window["type"] not in _SHIFTS:
        kept |= {"type": "", "offset": []}
    return json.dumps(placeless(kept), sort_keys=True)


def is_bounded(window: Node) -> bool:
    """Return whether a window may have one of the forms, whatever the data."""
    if window["partitions"] or is_place(window) or is_mean(window):
        return True
    return further_rows(window) is not None


def is_linked(query: Node) -> bool:
    """Return whether a subquery has a form in which its reach can be counted."""
    inner = query["subquery"]["node"]
    if inner.get("type") != "SELECT_NODE" or (inner.get("cte_map") or {}).get("map"):
        return False
    source = inner.get("from_table") or {}
    if source.get("type") == "EMPTY":
        return query.get("subquery_type") != "ANY"
    if any(node.get("class") in ("SUBQUERY", "WINDOW") for node in _expressions(inner)):
        return False
    if is_mean_of_table(query):
        return True
    return source.get("type") in ("BASE_TABLE", "SUBQUERY") and any(linked_keys(query))


def is_mean_of_table(query: Node) -> bool:
    """Return True for `(SELECT avg(column) FROM t)`: the same as avg(column) OVER () in t."""
    inner = query["subquery"]["node"]
    source, items = inner.get("from_table") or {}, inner.get("select_list") or []
    if query.get("subquery_type") != "SCALAR":
        return False
    if source.get("type") not in ("BASE_TABLE", "SUBQUERY"):
        return False
    others = ("where_clause", "group_expressions", "having", "qualify", "modifiers", "sample")
    if any(inner.get(name) for name in others) or (inner.get("cte_map") or {}).get("map"):
        return False
    if len(items) != 1 or items[0].get("class") != "FUNCTION" or _name(items[0]) not in MEANS:
        return False
    (call,) = items
    odd = call.get("filter") or call.get("distinct") or call["order_bys"]["orders"]
    arguments = arguments_of(call)
    return not odd and len(arguments) == 1 and is_column(arguments[0])


def linked_keys(query: Node) -> Iterator[tuple[Node, Node]]:
    """Yield pairs of columns that are equal where a row of a subquery takes part: one of the
    subquery's table, and one of the query around it.
    """
    inner = query["subquery"]["node"]
    if query.get("subquery_type") == "ANY":
        items = inner["select_list"]
        same = query.get("comparison_type") == "COMPARE_EQUAL" and len(items) == 1
        if same and is_column(items[0]) and is_column(query["child"]):
            yield items[0], query["child"]
        return
    name = alias_of(inner["from_table"])
    for condition in _together(inner.get("where_clause")):
        if condition.get("type") != "COMPARE_EQUAL":
            continue
        left, right = condition["left"], condition["right"]
        for one, other in ((left, right), (right, left)):
            if _qualifier(one) == name and _qualifier(other) not in ("", name):
                yield one, other


def alias_of(source: Node) -> str:
    """Return the name of a source of FROM, folded."""
    path = (source.get("qualified_name") or {}).get("path") or [""]
    return folded(str(source.get("alias") or path[-1]))


def is_column(node: Node) -> bool:
    return node.get("class") == "COLUMN_REF"


def arguments_of(call: Node) -> list[Node]:
    return [item["expression"] for item in call.get("arguments") or ()]


def columns_of(window: Node) -> list[Node]:
    """Return the expressions by which a window divides and orders rows."""
    return [*window["partitions"], *(order["expression"] for order in window["orders"])]


def _is_plain(window: Node) -> bool:
    """Return True if it is by columns, and nothing chooses among the rows of a part."""
    ends = window["start"], window["start_expr"], window["end_expr"], window["exclude_clause"]
    if ends != ("UNBOUNDED_PRECEDING", None, None, "NO_OTHER"):
        return False
    return not any(window.get(name) for name in _ODD) and all(map(is_column, columns_of(window)))


def _bound(window: Node, side: str) -> int | None:
    """Return the end of a frame in rows after the present one."""
    kind, node = window[side], window[f"{side}_expr"]
    if kind == "CURRENT_ROW_ROWS":
        return 0
    number = None if node is None else _number(node)
    if number is None:
        return None
    return {"EXPR_PRECEDING_ROWS": -number, "EXPR_FOLLOWING_ROWS": number}.get(kind)


def _number(node: Node) -> int | None:
    """Return a whole number that is written without a cast: '00'::BLOB::BIT::BIGINT is 12,336."""
    text = literal(node) if node.get("class") == "CONSTANT" else None
    return int(text) if text is not None and text.isdecimal() else None


def _qualifier(node: Node) -> str:
    """Return the table's name before a column; empty for anything else."""
    names: Sequence[object] = node.get("column_names") or () if is_column(node) else ()
    return folded(str(names[0])) if len(names) == 2 else ""


def _together(condition: Node | None) -> list[Node]:
    """Return the parts of a condition that all must hold."""
    if condition is None or condition.get("type") != "CONJUNCTION_AND":
        return [] if condition is None else [condition]
    return [part for child in condition["children"] for part in _together(child)]


def _expressions(select: Node) -> Iterator[Node]:
    """Yield the parts of a SELECT's expressions, without its FROM."""
    return nodes({name: part for name, part in select.items() if name != "from_table"})


def _name(window: Node) -> str:
    return str(window["function_name"]).lower()
