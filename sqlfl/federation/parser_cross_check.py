"""Cross-check of two parsers: the planner's and DuckDB's must read a query alike.

The planner works on another parser's tree. If DuckDB reads the text of that tree differently from
the user's text, the plan would belong to another query, and it is refused. The fragments that the
planner writes are checked in the same way.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlglot import exp

from sqlfl.base.engine import empty_database
from sqlfl.base.errors import InternalError, ParseError
from sqlfl.planner.grammar.parsing import COMMA
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import (
    CreateJoin,
    EvaluateModel,
    ExplainStatement,
    PredictModel,
    Statement,
    TrainModel,
)
from sqlfl.planner.grammar.tokens import BRACES
from sqlfl.planner.grammar.trees import copied, nodes, span_of
from sqlfl.planner.query.joins import CONDITION
from sqlfl.planner.query.relations import binds, operand
from sqlfl.planner.query.ucq import Ucq

Tree: TypeAlias = Any
"""JSON that DuckDB returns for a query: objects, lists, texts, numbers, None."""

_VALUES = "valueslist"
"""DuckDB's name for a VALUES without a name."""
_PLACE, _LENGTH = "query_location", "query_location_length"
_confirmed: set[bytes] = set()
"""Hashes of queries that both parsers read alike. Their reading of a text never changes."""
_MAX_CHECKED = 4096
_BARE = (exp.Any, exp.All, exp.Exists)
"""Nodes that stand after an operator without parentheses of their own."""


@dataclass(frozen=True)
class _Fault:
    """DuckDB's reason for rejecting a text, and the byte where it stands."""

    said: str
    at: int = 0
    parsed: bool = False
    """DuckDB parsed it, but it is no SELECT."""


def confirm(statement: Statement) -> None:
    """Raises ParseError where DuckDB cannot read the statement's query, or reads it otherwise."""
    if isinstance(statement, ExplainStatement):
        statement = statement.statement
    if not isinstance(statement, TrainModel | EvaluateModel | PredictModel | CreateJoin):
        return
    if not isinstance(statement, CreateJoin) and statement.join is not None:
        return  # the query was confirmed when the join was made
    start, end = statement.place
    digest = hashlib.sha256(statement.sql[start:end].encode()).digest()
    if digest in _confirmed:
        return
    written, query = _without_paths_of_stars(statement.sql[start:end], start, statement.query)
    (read,) = _read(written)
    if isinstance(read, _Fault):
        raise _unreadable(read, written, statement)
    for other in _read(*{to_sql(query), to_sql(explicit(query))}):
        place = (0, 0) if isinstance(other, _Fault) else _difference(read, other, (0, 0))
        if place is not None:
            first, last = (_characters(written, byte) for byte in (place[0], sum(place)))
            raise ParseError(
                "DuckDB reads this otherwise than the planner does",
                hint="write it otherwise, or make it a view in the party's database",
                sql=statement.sql,
                span=(start + first, start + max(last, first + 1)),
            )
    _remember(digest)


def confirm_fragments(ucq: Ucq) -> None:
    """Raise InternalError if DuckDB reads a fragment's text differently from its tree.

    Text with parentheses around every operand expresses the tree. Texts that were checked before
    are skipped.
    """
    texts = {f.sql: f.select for slot in ucq.slots for f in slot.evaluated}
    digests = {hashlib.sha256(text.encode()).digest(): text for text in texts}
    unread = {digest: text for digest, text in digests.items() if digest not in _confirmed}
    if not unread:
        return
    explained = [to_sql(explicit(texts[text])) for text in unread.values()]
    trees = _read(*unread.values(), *explained)
    pairs = zip(unread.items(), trees[: len(unread)], trees[len(unread) :], strict=True)
    for (digest, text), one, other in pairs:
        fault = isinstance(one, _Fault) or isinstance(other, _Fault)
        if fault or _difference(one, other, (0, 0)) is not None:
            raise InternalError(f"DuckDB reads a fragment otherwise than it was planned: {text}")
        _remember(digest)


def _remember(digest: bytes) -> None:
    if len(_confirmed) >= _MAX_CHECKED:
        _confirmed.clear()
    _confirmed.add(digest)


def _unreadable(
    fault: _Fault,
    written: str,
    statement: TrainModel | EvaluateModel | PredictModel | CreateJoin,
) -> ParseError:
    start = statement.place[0] + _characters(written, fault.at)
    if fault.parsed:
        return ParseError(
            "this PIVOT names its columns after values of the table, which stay with its party",
            hint="list the values: PIVOT ... ON column IN ('a', 'b') USING ...",
            sql=statement.sql,
            span=statement.place,
        )
    bare = next((j for j in statement.query.find_all(exp.Join) if _is_bare(j)), None)
    place = None if bare is None else span_of(bare.this, statement.sql)
    if place is not None:
        return ParseError("a JOIN has no condition", hint=CONDITION, sql=statement.sql, span=place)
    at = _characters(written, fault.at)
    brace = any(c in "{}" for c in written[max(at - 1, 0) : at + 1])
    return ParseError(
        f"the query is not valid SQL: {fault.said}",
        hint=BRACES if brace else "try the query on a DuckDB connection",
        sql=statement.sql,
        span=(start, start + 1),
    )


def _is_bare(join: exp.Join) -> bool:
    by_name = join.args.get("using") or join.method.upper() in ("NATURAL", "POSITIONAL")
    given = join.args.get("on") or by_name or join.kind.upper() == "CROSS"
    return not (given or join.meta_get(COMMA))


def _without_paths_of_stars(written: str, start: int, query: exp.Query) -> tuple[str, exp.Query]:
    """`party.table.*` as `table.*`: DuckDB takes one name before a star."""
    stars = [c for c in query.find_all(exp.Column) if isinstance(c.this, exp.Star)]
    if not any(column.args.get("db") for column in stars):
        return written, query
    for column in stars:
        path = column.parts[:-1]
        if len(path) > 1:
            first, last = (part.meta["start"] - start for part in (path[0], path[-1]))
            written = written[:first] + " " * (last - first) + written[last:]
    copy = query.copy()
    for column in copy.find_all(exp.Column):
        if isinstance(column.this, exp.Star):
            column.set("db", None)
            column.set("catalog", None)
    return written, copy


def _read(*texts: str) -> list[Tree | _Fault]:
    """The statements of each text as DuckDB's parser has them."""
    wanted = ", ".join(f"json_serialize_sql(${number})" for number in range(1, len(texts) + 1))
    with empty_database() as con:
        (answers,) = con.execute(f"SELECT {wanted}", list(texts)).fetchall()
    return [_tree(json.loads(answer)) for answer in answers]


def _tree(answer: dict[str, Any]) -> Tree | _Fault:
    if answer["error"]:
        parsed = answer["error_type"] != "parser"
        return _Fault(answer["error_message"], int(answer.get("position", 0)), parsed)
    return answer["statements"]


def _characters(text: str, byte: int) -> int:
    """Characters of `text` before one of its bytes."""
    return len(text.encode()[:byte].decode(errors="ignore"))


# -- the same but for spelling ---------------------------------------------------------------------


def _difference(left: Tree, right: Tree, place: tuple[int, int]) -> tuple[int, int] | None:
    """Return (byte, length) in the text of `left` of the first node that differs, or None. `place`
    is the position of the node around it.
    """
    if isinstance(left, dict) and isinstance(right, dict):
        left, right = _plain(left), _plain(right)
        at = left.get(_PLACE, -1)
        if 0 <= at < 1 << 32:
            place = at, left.get(_LENGTH, 0)
        for key in sorted((left.keys() | right.keys()) - {_PLACE, _LENGTH}):
            place_found = _difference(left.get(key), right.get(key), place)
            if place_found is not None:
                return place_found
        return None
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return place
        pairs = zip(left, right, strict=True)
        return next((d for a, b in pairs if (d := _difference(a, b, place)) is not None), None)
    return None if left == right else place


def _plain(node: dict[str, Tree]) -> dict[str, Tree]:
    """Return the node in its long form."""
    kind, alias = node.get("type"), node.get("alias")
    if kind == "OPERATOR_IS_NOT_NULL":
        return _negation({**node, "type": "OPERATOR_IS_NULL", "alias": ""}, alias)
    if kind == "COMPARE_DISTINCT_FROM" and "left" in node:
        return _negation({**node, "type": "COMPARE_NOT_DISTINCT_FROM", "alias": ""}, alias)
    if kind == "ARRAY_CONSTRUCTOR":
        items = [{"name": "", "expression": child} for child in node["children"]]
        return {"list": items, "alias": alias}
    if kind == "FUNCTION" and node["function_name"] == "list_value":
        return {"list": node["arguments"], "alias": alias}
    if kind == "FUNCTION" and node["function_name"] == "position":
        return {**node, "function_name": "strpos", "qualified_name": {"path": ["strpos"]}}
    if kind == "LAMBDA":
        return {**node, "syntax_type": ""}
    if kind == "SUBQUERY" and alias == _VALUES and not node["column_name_alias"]:
        inner: dict[str, Tree] = node["subquery"]["node"]
        values = inner.get("from_table") or {}
        return values if values.get("type") == "EXPRESSION_LIST" else node
    return node


def _negation(node: dict[str, Tree], alias: Tree) -> dict[str, Tree]:
    return {
        "class": "OPERATOR",
        "type": "OPERATOR_NOT",
        "alias": alias,
        _PLACE: node.get(_PLACE, -1),
        _LENGTH: node.get(_LENGTH, 0),
        "children": [node],
    }


def explicit(query: exp.Expr) -> exp.Expr:
    """Return a copy with parentheses around every operand, so that no precedence matters.

    DuckDB reads the copy's text like the original text, unless the two parsers disagree about the
    original.
    """
    copy = copied(query)
    for node in reversed(nodes(copy)):  # innermost first, because wrapping copies a node
        parent = node.parent
        if parent is None or not binds(parent) or isinstance(node, _BARE):
            continue
        if isinstance(parent, exp.Escape) and node.arg_key == "this":
            continue
        if isinstance(parent, exp.Connector) and type(node) is type(parent):
            continue  # a AND b AND c is one list, and may be a long one
        wrapped = operand(copied(node))
        if not isinstance(node, type(wrapped)):
            node.replace(wrapped)
    return copy
