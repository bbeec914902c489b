"""Properties of an expression: the one column that it is, whether it may fail on a value, and
whether it can be NULL by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlfl.contract.schema import folded
from sqlfl.governance.canonical import nodes
from sqlfl.governance.constants import is_null, literal
from sqlfl.governance.scopes import (
    Bare,
    ScopeColumn,
    SelectOutput,
    SelectScope,
    is_field,
    meanings,
)
from sqlfl.governance.value_types import (
    NULL,
    NUMBERS,
    TEXT,
    UNKNOWN,
    kind_of_cast,
    kind_of_constant,
    kind_of_type,
    lossless,
    together,
    type_of,
)

Node: TypeAlias = "dict[str, Any]"

NORMALISING = ("lower", "upper", "lcase", "ucase", "trim", "ltrim", "rtrim", "strip_accents")
"""Functions of a column alone that a join key may have: they make no chosen value."""
NEUTRAL = ("", "0", "false", "1970-01-01", "00:00:00", "00000000-0000-0000-0000-000000000000")
"""Constants that a key may be, or that may replace NULL: one value of each type."""

_REALS = ("abs", "ceil", "ceiling", "floor", "round", "exp")
_TEXTS = ("lower", "upper", "lcase", "ucase", "trim", "ltrim", "rtrim", "strip_accents")
_SEARCHES = ("~~", "!~~", "contains", "starts_with", "ends_with", "prefix", "suffix")
_PARTS_OF_DATES = ("year", "month", "day", "quarter", "dayofweek", "isodow", "dayofyear")
_ROWS = ("row", "struct_pack")
"""Functions that fail for no value of their arguments."""
_COUNTS = ("count", "count_star")
"""Aggregates that are never NULL."""
_STRICT = ("OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "COMPARE_IN")


@dataclass(frozen=True)
class Expressions:
    """Expressions of one SELECT. types : types of columns, if known."""

    types: Callable[[ScopeColumn], str | None]
    aggregates: frozenset[str]

    def varies(self, node: Node) -> bool:
        """Return True if it follows from rows, whatever their values."""
        name = str(node.get("function_name", "")).lower()
        return node.get("class") in ("SUBQUERY", "WINDOW") or name in self.aggregates

    def follows_from_rows(self, node: object, scope: SelectScope) -> bool:
        """Return whether an expression may follow from rows, whatever their values."""
        return any(
            self.varies(inner)
            or (
                inner.get("class") == "COLUMN_REF"
                and any(output.of_rows for output in self.meant(inner, scope))
            )
            for inner in nodes(node)
        )

    def bare(self, node: Node, scope: SelectScope) -> Bare | None:
        """Return the column that the expression is, up to its type."""
        node, casts = _uncast(node)
        if node["class"] != "COLUMN_REF" or is_field(node["column_names"], scope):
            return None
        columns = {output.bare for output in self.meant(node, scope)}
        bare = columns.pop() if len(columns) == 1 else None
        return None if bare is None else Bare(bare.column, (*bare.casts, *casts))

    def meant(self, node: Node, scope: SelectScope) -> list[SelectOutput]:
        """Return all possible meanings of a name."""
        sure, unsure = meanings(node["column_names"], scope)
        return [*sure, *unsure]

    def passed(self, node: Node, scope: SelectScope) -> bool:
        """Return True if it is a column, of a query too, whose values are not computed. A cast to
        BOOLEAN computes: it sets the zeros of numbers apart.
        """
        inner, casts = _uncast(node)
        if inner["class"] != "COLUMN_REF" or is_field(inner["column_names"], scope):
            return False
        meanings = self.meant(inner, scope)
        if not meanings or any(output.computed for output in meanings):
            return False
        if "BOOLEAN" not in casts:
            return True
        bare = self.bare(inner, scope)
        return bare is not None and (self.types(bare.column) == "BOOLEAN" and not bare.casts)

    def kind(self, node: Node, scope: SelectScope) -> str | None:
        """Return the kind of the expression's values (`value_types`); None if it may fail on some
        value of its parts.
        """
        match node["class"]:
            case "CONSTANT":
                return kind_of_constant(node)
            case "COLUMN_REF":
                bare = self.bare(node, scope)
                return UNKNOWN if bare is None else self._kind_of_bare(bare)
            case "CAST":
                return self._kind_of_cast(node, scope)
            case "COLLATE" if bytewise(node):
                return self.kind(node["child"], scope)
            case "COMPARISON":
                operands = together([self.kind(node[side], scope) for side in ("left", "right")])
                return None if operands is None else "BOOLEAN"
            case "BETWEEN":
                sides = (node[name] for name in ("input", "lower", "upper"))
                operands = together([self.kind(side, scope) for side in sides])
                return None if operands is None else "BOOLEAN"
            case "CONJUNCTION":
                return self._kind_of_truths(node["children"], scope)
            case "CASE":
                checks = node.get("case_checks") or []
                if self._kind_of_truths([c["when_expr"] for c in checks], scope) is None:
                    return None
                results = [*(c["then_expr"] for c in checks), node["else_expr"]]
                return together([self.kind(result, scope) for result in results])
            case "OPERATOR":
                return self._kind_of_operator(node, scope)
            case "FUNCTION":
                return self._kind_of_call(node, scope)
        return None

    def _kind_of_bare(self, bare: Bare) -> str | None:
        type_ = self.types(bare.column)
        if type_ is None:
            return UNKNOWN if not bare.casts else None
        for target in bare.casts:
            if not lossless(type_, target):
                return None
            type_ = target
        return kind_of_type(type_)

    def _kind_of_cast(self, node: Node, scope: SelectScope) -> str | None:
        bare, target = self.bare(node, scope), type_of(node["type_expr"])
        if bare is not None and self._kind_of_bare(bare) is not None:
            return kind_of_type(target)
        inner = self.kind(node["child"], scope)
        if node.get("try_cast"):
            return None if inner is None else kind_of_type(target)
        return kind_of_cast(inner, node["child"], target)

    def _kind_of_truths(self, operands: Sequence[Node], scope: SelectScope) -> str | None:
        good = all(self.kind(node, scope) in ("BOOLEAN", NULL) for node in operands)
        return "BOOLEAN" if good else None

    def _kind_of_operator(self, node: Node, scope: SelectScope) -> str | None:
        children, kind = node["children"], node.get("type")
        match kind:
            case "OPERATOR_TRY":
                whole = any(self.varies(inner) for inner in nodes(node))
                return None if whole else UNKNOWN
            case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
                return None if self.kind(children[0], scope) is None else "BOOLEAN"
            case "OPERATOR_NOT":
                return self._kind_of_truths(children, scope)
        operands = together([self.kind(child, scope) for child in children])
        if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            return None if operands is None else "BOOLEAN"
        return operands if kind == "OPERATOR_COALESCE" else None

    def _kind_of_call(self, node: Node, scope: SelectScope) -> str | None:
        arguments = [item["expression"] for item in node.get("arguments") or ()]
        kinds = [self.kind(argument, scope) for argument in arguments]
        if None in kinds or node.get("filter") or node.get("distinct"):
            return None
        numbers = all(kind in NUMBERS for kind in kinds)
        match node["function_name"], kinds:
            case (("+" | "-" | "*"), _) if numbers and "real" in kinds:
                return "real"
            case "-", ["integer"] if arguments[0]["class"] == "CONSTANT":
                return "integer"
            case "/", [_, _] if numbers:
                return "real"
            case name, ["real"] if name in _REALS:
                return "real"
            case "isnan", ["real"]:
                return "BOOLEAN"
            case name, ["VARCHAR" | "literal"] if name in _TEXTS:
                return TEXT
            case "length", ["VARCHAR"]:
                return "integer"
            case name, ["VARCHAR", "literal"] if name in _SEARCHES:
                return "BOOLEAN"
            case name, ["DATE"] if name in _PARTS_OF_DATES:
                return "integer"
            case "count", _:
                return "integer"
            case (("min" | "max"), [one]):
                return one
            case (("sum" | "avg"), ["integer" | "decimal" | "real"]):
                return UNKNOWN
            case name, _ if name in _ROWS:
                return UNKNOWN
        return None

    def strict(self, node: Node, scope: SelectScope) -> bool:
        """Return True if it is NULL, or NaN, only if one of its columns is."""
        match node["class"]:
            case "COLUMN_REF":
                whole = not is_field(node["column_names"], scope)
                return whole and all(output.strict for output in self.meant(node, scope))
            case "CONSTANT":
                return not is_null(node)
            case "CAST":
                known = self.kind(node, scope) is not None
                return known and not node.get("try_cast") and self.strict(node["child"], scope)
            case "COMPARISON" | "BETWEEN" | "CONJUNCTION":
                parts = [part for part in node.values() if isinstance(part, dict)]
                parts += node.get("children") or []
            case "CASE":
                checks = node.get("case_checks") or []
                parts = [c[name] for c in checks for name in ("when_expr", "then_expr")]
                parts.append(node["else_expr"])
            case "OPERATOR" if node.get("type") in _STRICT:
                parts = node["children"]
            case "FUNCTION" if str(node["function_name"]).lower() in _COUNTS:
                return True
            case _:
                return False
        return all(self.strict(part, scope) for part in parts)


def _uncast(node: Node) -> tuple[Node, list[str]]:
    """Return the expression inside casts that fail or keep a value, and their types."""
    casts: list[str] = []
    while bytewise(node) or (node["class"] == "CAST" and not node.get("try_cast")):
        if node["class"] == "CAST":
            casts.insert(0, type_of(node["type_expr"]))
        node = node["child"]
    return node, casts


def bytewise(node: Node) -> bool:
    """Return True if it is a text as it is, compared byte by byte."""
    return node["class"] == "COLLATE" and folded(node["collation"]) == "binary"


def inside_normalising(node: Node) -> Node | None:
    """Return the expression inside one that normalises a key; None for any other."""
    match node["class"]:
        case "CAST":
            return dict(node["child"])
        case "COLLATE" if bytewise(node):
            return dict(node["child"])
        case "FUNCTION":
            inner = node.get("arguments") or []
            alone = len(inner) == 1 and node["function_name"] in NORMALISING
            return inner[0]["expression"] if alone else None
        case "OPERATOR" if node.get("type") == "OPERATOR_COALESCE":
            first, *others = node["children"]
            return first if all(literal(o) in NEUTRAL for o in others) else None
        case "CASE":
            checks, otherwise = node.get("case_checks") or [], node.get("else_expr")
            empty = otherwise is None or is_null(otherwise)
            never = len(checks) == 1 and literal(checks[0]["when_expr"]) == "false"
            return checks[0]["then_expr"] if never and empty else None
    return None


def asserted(node: Node) -> Node:
    """Return the condition without `IS TRUE`, which changes no row: `x` of `x IS TRUE`."""
    truth = {"kind": "BOOLEAN", "text": "true"}
    while node.get("type") == "COMPARE_NOT_DISTINCT_FROM" and node["right"].get("literal") == truth:
        node = node["left"]
        if node["class"] == "CAST" and type_of(node["type_expr"]) == "BOOLEAN":
            node = node["child"]
    return node


def null_tested(node: Node) -> Node | None:
    """Return the expression that is neither NULL nor NaN where the condition holds; None for other
    conditions."""
    inner: Node = node["children"][0] if node.get("type") == "OPERATOR_NOT" else node
    kind = "OPERATOR_IS_NULL" if inner is not node else "OPERATOR_IS_NOT_NULL"
    if inner.get("type") == kind:
        tested: Node = inner["children"][0]
        return tested
    call = inner.get("arguments") or []
    if inner is not node and inner.get("function_name") == "isnan" and len(call) == 1:
        tested = call[0]["expression"]
        return tested
    return None
