"""Bounds on the size of each value that an expression makes, before anything is bound or folded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from sqlfl.base.errors import PolicyError
from sqlfl.contract.schema import folded
from sqlfl.governance import growth
from sqlfl.governance.constants import is_null, literal
from sqlfl.governance.scopes import is_joined
from sqlfl.governance.sizes import (
    DATA,
    NUMBER,
    NUMBER_SIZE,
    OTHER,
    OVERHEAD,
    SIMPLE,
    TEXT,
    SizeBound,
    kind_of_name,
    largest,
    total,
)
from sqlfl.governance.value_types import NUMBERS, kind_of_type, type_of

MAX_BYTES = 32_768
"""Limit of the part of a value that does not follow from data."""
MAX_TIMES = 64
"""Limit of a value, as a multiple of the data that it is made of."""
MAX_WORK = 1 << 21
"""Bytes that are made for one row, with all elements of all lists."""
MAX_WORK_TIMES = 1 << 15
"""Limit of the work, as a multiple of the data."""
HELD = 16
"""Values outside of lambdas count so many times: DuckDB holds them for 2,048 rows at once."""
MAX_COPIES = 2_000
"""Nodes that an expression has more than its text, where aliases and macros stand for others."""
MAX_PATTERN = 2_000
"""Characters of a regular expression, and how often its repetitions repeat in all."""

AS_TEXT = 4
"""Times that the text of a value is as large as the value, which may need quotes and escapes."""
FROM_TEXT = 48
"""Times that a value is as large as the text that it is read from: [1,2,3]."""
_REPEATED = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_DIGITS = re.compile(r"\d+")
_PLACES = re.compile(r"%|\{")

Node: TypeAlias = "dict[str, Any]"


class SizeMeasures:
    """Sizes of expressions of one SELECT. meant : sizes of all possible meanings of names, in a
    scope.
    """

    def __init__(self, meant: Callable[[Node, Any], list[SizeBound]]) -> None:
        self._meant = meant
        self._scope: Any = None
        self._parameters: list[dict[str, SizeBound]] = []
        self._lists: list[SizeBound] = []
        """Sizes of the lists whose elements the surrounding lambdas have."""
        self._framed = False
        """True within a window, which says how many rows there are."""
        self._work = SizeBound((0.0, 0.0))
        self._queries: dict[int, SizeBound] = {}
        self._nodes = 0

    def query(self, node: Node, outputs: Sequence[SizeBound]) -> None:
        """Remember the values of a subquery."""
        self._queries[id(node)] = largest([replace(o, copies=1) for o in outputs])

    def measure(self, value: object, scope: Any) -> SizeBound:
        """Return the size of an expression, or of a container of expressions. Raise PolicyError if
        a value in it may be too large, or take too long.
        """
        self._scope, self._nodes = scope, 0
        bound = self._any(value)
        if bound.copies - self._nodes > MAX_COPIES:
            raise PolicyError(
                f"an expression stands for {bound.copies:,} others, with what aliases and macros "
                f"(nullif, split_part, ...) in it stand for; {MAX_COPIES:,} are taken",
                hint="give its parts names in a subquery",
            )
        constant, times = self._work.terms[:2]
        if constant > MAX_WORK or times > MAX_WORK_TIMES:
            raise PolicyError(
                f"its expressions may make {_bytes(constant)} of one row, and {times:,.0f} times "
                f"the data; {_bytes(MAX_WORK)} and {MAX_WORK_TIMES:,} times are taken",
                hint="ask for fewer columns, or shorter texts and lists",
            )
        return bound

    def _any(self, value: object) -> SizeBound:
        if isinstance(value, list):
            return total([self._any(item) for item in value])
        if not isinstance(value, dict):
            return SizeBound((0.0, 0.0), NUMBER, 0)
        if value.get("class") is None:
            return total([self._any(item) for item in value.values()])
        return self._expression(value)

    def _expression(self, node: Node) -> SizeBound:
        self._nodes += 1
        match node["class"]:
            case "CONSTANT":
                return _size_of_constant(node)
            case "COLUMN_REF":
                return self._reference(node)
            case "CAST":
                bound = self._cast(node)
            case "COLLATE":
                return self._expression(node["child"])
            case "CASE":
                checks = node.get("case_checks") or []
                conditions = [self._expression(check["when_expr"]) for check in checks]
                results = [check["then_expr"] for check in checks] + [node["else_expr"]]
                bound = largest([self._expression(result) for result in results if result])
                bound = replace(bound, copies=bound.copies + sum(c.copies for c in conditions))
            case "FUNCTION":
                bound = self._call(node)
            case "WINDOW":
                bound = self._window(node)
            case "SUBQUERY":
                child = [] if node.get("child") is None else [self._expression(node["child"])]
                scalar = node.get("subquery_type") not in ("EXISTS", "NOT_EXISTS", "ANY")
                inner = self._queries.get(id(node), DATA) if scalar else SIMPLE
                bound = replace(inner, copies=1 + sum(size.copies for size in child))
            case "OPERATOR":
                bound = self._operator(node)
            case "LAMBDA":  # x -> 'path', of a JSON
                parts = [self._expression(node["lhs"]), self._expression(node["expr"])]
                bound = self._path("->", [node["lhs"], node["expr"]], parts)
            case "TYPE":
                return SizeBound((0.0, 0.0), NUMBER)
            case _:
                parts = [self._any(part) for part in node.values()]
                bound = replace(SIMPLE, copies=1 + sum(part.copies for part in parts))
        return self._made(bound, node)

    def _made(self, made: SizeBound, node: Node) -> SizeBound:
        """Count the value, and check its size."""
        name = str(node.get("function_name") or str(node["class"]).lower())
        bound = self._bound(made)
        if bound.terms[0] > MAX_BYTES or bound.terms[1] > MAX_TIMES:
            raise _too_large(name, bound)
        if self._lists:
            self._work = total([self._work, made])
        elif made.kind != NUMBER:
            self._work = total([self._work, made.times(HELD)])
        return made

    def _bound(self, size: SizeBound) -> SizeBound:
        """Return the bound without elements of lists: each is at most as large as its list."""
        while len(size.terms) > 2:
            *terms, last = size.terms
            inner = self._lists[len(size.terms) - 3]
            size = replace(size, terms=total([SizeBound(tuple(terms)), inner.times(last)]).terms)
        return size

    def _product(self, a: SizeBound, b: SizeBound, name: str, what: str) -> SizeBound:
        """Return the product. Raise PolicyError if none of the two has a bound."""
        pairs = [(a, b), (b, a)]
        pairs += [(self._bound(one), other) for one, other in pairs]
        for one, other in pairs:
            if one.constant:
                return other.times(one.terms[0])
        raise PolicyError(
            f"function {name} grows with {what}, of which none has a bounded size",
            hint="give one of them a length that a literal says: left(column, 100), column[1:100]",
        )

    # -- names ------------------------------------------------------------------------------------

    def _reference(self, node: Node) -> SizeBound:
        first = folded(str(node["column_names"][0]))
        meanings = [parameters[first] for parameters in self._parameters if first in parameters]
        if not meanings or len(node["column_names"]) > 1:
            meanings += self._meant(node, self._scope)
        size = largest(meanings) if meanings else DATA
        size = replace(size, copies=max([s.copies for s in meanings], default=1))
        if len(node["column_names"]) > 2:  # a field, perhaps
            size = size.of(NUMBER if size.kind == NUMBER else OTHER)
        if self._lists:
            self._work = total([self._work, size])
        return size

    # -- operators and casts ----------------------------------------------------------------------

    def _operator(self, node: Node) -> SizeBound:
        children = [self._expression(child) for child in node["children"]]
        copies = 1 + sum(child.copies for child in children)
        match node.get("type"):
            case "OPERATOR_COALESCE" | "OPERATOR_TRY":
                bound = largest(children)
            case "ARRAY_EXTRACT":
                bound = children[0].of(_element(children[0].kind))
            case "STRUCT_EXTRACT":
                bound = children[0].of(OTHER)
            case "ARRAY_SLICE":
                bound = self._slice(node["children"], children)
            case "ARRAY_CONSTRUCTOR":
                bound = total(children, OVERHEAD).of(_list_of(children))
            case _:
                bound = SIMPLE
        return replace(bound, copies=copies)

    def _cast(self, node: Node) -> SizeBound:
        child, target = self._expression(node["child"]), node["type_expr"]
        kind = kind_of_name(type_of(target))
        if kind == NUMBER:
            return replace(SIMPLE, copies=child.copies + 1)
        if kind == TEXT:
            name = type_of(target)
            bits = name in ("BLOB", "BIT") or (name == "JSON" and child.kind != TEXT)
            bound = child.times(8, OVERHEAD) if bits else _text(child)
            return replace(bound, kind=TEXT, copies=child.copies + 1)
        outer = target["children"][0] if _is_array(target) else target
        parts = _parts(outer)
        bound = child.times(FROM_TEXT * parts, _fixed(target))
        if parts == 1 and child.kind == _kind_of_node(target) and child.kind.endswith("[]"):
            bound = child.times(1.0, _fixed(target))
        return replace(bound, kind=_kind_of_node(target), copies=child.copies + 1)

    # -- functions --------------------------------------------------------------------------------

    def _window(self, node: Node) -> SizeBound:
        name = str(node["function_name"]).lower()
        if node.get("type") != "WINDOW_AGGREGATE":
            parts = [self._any(v) for k, v in node.items() if k != "arguments"]
            arguments = [self._expression(item["expression"]) for item in node["arguments"]]
            copies = 1 + sum(part.copies for part in [*parts, *arguments])
            default = node.get("default_expr")
            if default is not None:
                arguments.append(self._expression(default))
            bound = largest(arguments) if arguments else SIMPLE
            return replace(total([bound, SIMPLE]).of(bound.kind), copies=copies)
        for part in ("partitions", "orders", "arg_orders", "filter_expr", "start_expr", "end_expr"):
            self._any(node.get(part))
        if growth.GROWTH.get(name) not in (growth.GATHERED, growth.TOP):
            return self._call(node)
        rows = 0.0
        for side in ("start", "end"):
            value = _whole(node.get(f"{side}_expr"))
            bounded = str(node.get(side)) in ("EXPR_PRECEDING_ROWS", "EXPR_FOLLOWING_ROWS")
            if str(node.get(side)) != "CURRENT_ROW_ROWS":
                if not bounded or value is None:
                    raise PolicyError(
                        f"function {name} over a window gathers as many rows as there are, for "
                        "each row",
                        hint="say how many: ROWS BETWEEN 10 PRECEDING AND CURRENT ROW",
                    )
                rows += value
        self._framed = True
        try:
            bound = self._call(node)
        finally:
            self._framed = False
        return bound.times(rows + 1, OVERHEAD).of(bound.kind)

    def _call(self, node: Node) -> SizeBound:
        name = str(node["function_name"]).lower()
        nodes = [item["expression"] for item in node.get("arguments") or ()]
        names = sum(len(str(item.get("name") or "")) for item in node.get("arguments") or ())
        rule = growth.GROWTH.get(name)
        for part in ("filter", "order_bys"):
            self._any(node.get(part))
        if rule in (growth.TRANSFORMED, growth.FILTERED, growth.REDUCED):
            return self._of_elements(str(rule), name, nodes)
        sizes = [self._expression(item) for item in nodes]
        bound = self._by_rule(name, rule, nodes, sizes, names)
        copies = sum(size.copies for size in sizes) * (2 if name in growth.COPIED else 1)
        return replace(bound, copies=copies + 1)

    def _by_rule(
        self,
        name: str,
        rule: str | int | None,
        nodes: list[Node],
        sizes: list[SizeBound],
        names: int,
    ) -> SizeBound:
        every = total(sizes, OVERHEAD + names)
        match rule:
            case int():
                return _summed(name, rule, sizes, names)
            case growth.NUMBER | growth.TOTAL | growth.SHORT:
                if rule == growth.SHORT:
                    return SizeBound((OVERHEAD + 3_000.0, 0.0), TEXT)
                return SIMPLE.of(TEXT) if name in growth.SHORT_TEXTS else SIMPLE
            case growth.COMPARED:
                work = self._product(*_two(sizes), name, "the product of both texts' lengths")
                heavy = name in ("bit_position", "damerau_levenshtein")
                self._work = total([self._work, work if heavy else work.times(1 / 16)])
                return SIMPLE
            case growth.CHOSEN:
                return largest(sizes) if sizes else SIMPLE
            case growth.KEPT:
                return self._kept(name, nodes, sizes)
            case growth.GATHERED:
                return self._gathered(name, every, sizes)
            case growth.OF_LIST:
                return self._aggregated(name, nodes, sizes)
            case growth.PATTERN | growth.SPLIT:
                self._check_pattern(name, nodes, 1)
                return every.times(20).of("text[]") if rule == growth.SPLIT else SIMPLE
            case growth.PRINTED:
                return self._printed(name, nodes, sizes)
            case growth.PART:
                return self._part(name, nodes, sizes)
            case growth.SELECTED:
                count = sizes[1].times(1 / OVERHEAD)
                product = self._product(sizes[0], count, name, "the product of both lists' lengths")
                return product.times(1, OVERHEAD).of(sizes[0].kind)
            case growth.ZIPPED:
                return every.times(len(sizes) + 2)
            case growth.JOINED:
                return self._joined(name, sizes)
            case growth.REPLACED:
                return self._replaced(name, nodes, sizes)
            case growth.REPLACED_BY_PATTERN:
                return self._replaced_by_pattern(name, nodes, sizes)
            case growth.EXTRACTED:
                return self._extracted(name, nodes, sizes)
            case growth.PATH:
                return self._path(name, nodes, sizes)
        return self._by_literal(name, rule, nodes, sizes)

    def _by_literal(
        self, name: str, rule: str | None, nodes: list[Node], sizes: list[SizeBound]
    ) -> SizeBound:
        """Return the size of a result whose length is an argument's literal."""
        match rule:
            case growth.TOP:
                most = self._literal(name, nodes, 1)
                return sizes[0].times(most, OVERHEAD + OVERHEAD * most).of(f"{sizes[0].kind}[]")
            case growth.PADDED:
                return SizeBound((OVERHEAD + 4.0 * self._literal(name, nodes, 1), 0.0), TEXT)
            case growth.REPEATED:
                most = self._literal(name, nodes, 1)
                return sizes[0].times(most, OVERHEAD).of(sizes[0].kind)
            case growth.RANGED:
                most = self._range(name, nodes)
                return SizeBound((OVERHEAD + NUMBER_SIZE * most, 0.0), "number[]")
            case growth.BITS:
                most = self._literal(name, nodes, 1)
                return total([sizes[0], SizeBound((most, 0.0))], OVERHEAD)
            case growth.RESIZED:
                most = self._literal(name, nodes, 1)
                added = sizes[2] if len(sizes) > 2 else SIMPLE
                return total([sizes[0], added.times(most)], OVERHEAD).of(sizes[0].kind)
            case growth.BINS:
                most = self._literal(name, nodes, 2)
                return SizeBound((OVERHEAD + NUMBER_SIZE * (most + 2), 0.0), "number[]")
        raise PolicyError(f"function {name} is not among those that are allowed")

    def _kept(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        by_another = name.startswith(("arg", "max_by", "min_by"))
        if len(sizes) > (2 if by_another else 1):
            return self._several(name, nodes, sizes)
        return sizes[0] if sizes else SIMPLE

    def _gathered(self, name: str, every: SizeBound, sizes: list[SizeBound]) -> SizeBound:
        if is_joined(self._scope) and not self._framed:
            raise PolicyError(
                f"function {name} gathers rows of a join, which may be more than those of its "
                "tables",
                hint="gather in a subquery over one table, and join its result",
            )
        first, *rest = every.terms
        whole = sum(rest[:1]) + first / NUMBER_SIZE
        if len(rest) > 1:
            raise PolicyError(f"function {name} in a lambda")
        if name in ("string_agg", "group_concat", "listagg"):
            as_text = sizes[0].kind not in (TEXT, NUMBER)
            return SizeBound((OVERHEAD, AS_TEXT * whole if as_text else whole), TEXT)
        if name.startswith("histogram"):
            return SizeBound((OVERHEAD, 3 * whole), OTHER)
        return SizeBound((OVERHEAD, whole), f"{sizes[0].kind}[]" if sizes else OTHER)

    def _literal(self, name: str, nodes: list[Node], place: int) -> float:
        """Return a bound of the argument, which determines the size of the result."""
        largest_value = most(nodes[place]) if place < len(nodes) else None
        if largest_value is None:
            raise PolicyError(
                f"function {name} makes values as large as its argument {place + 1} says, which "
                "is to be a literal",
                hint=f"write a number, or least(..., 100); values of {MAX_BYTES:,} bytes are taken",
            )
        return max(0.0, largest_value) + 1.0  # as it may be rounded

    def _several(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        """Return the size of as many values as the last argument says, or has fractions."""
        if sizes[-1].kind == NUMBER and not name.startswith(("quantile", "approx")):
            number = self._literal(name, nodes, len(nodes) - 1)
            return sizes[0].times(number + 1, OVERHEAD * (number + 1)).of(f"{sizes[0].kind}[]")
        if sizes[-1].kind == NUMBER:
            return sizes[0]
        count = sizes[-1].times(1 / OVERHEAD)
        product = self._product(sizes[0], count, name, "a value for each fraction")
        return product.times(1, OVERHEAD).of(f"{sizes[0].kind}[]")

    def _aggregated(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        of = (literal(nodes[1]) or "").lower() if len(nodes) > 1 else ""
        rule = growth.GROWTH.get(of)
        if rule == growth.TOTAL:
            return SIMPLE
        if rule == growth.KEPT and len(nodes) == 2:
            return sizes[0].of(_element(sizes[0].kind))
        if of in ("string_agg", "group_concat", "listagg"):
            return self._joined(name, [*sizes[2:], sizes[0]])
        raise PolicyError(
            f"function {name} of {of or 'an aggregate that no literal names'} is not among those "
            "that are allowed"
        )

    def _range(self, name: str, nodes: list[Node]) -> float:
        """Return how many numbers a range has."""
        ends = [_whole(node) for node in nodes]
        if None in ends:
            raise PolicyError(
                f"function {name} makes as many values as its arguments say, which are to be "
                "literals",
                hint="write numbers: range(1, 10)",
            )
        low, high, step = [*([0.0] if len(ends) == 1 else []), *ends, 1.0][:3]
        return abs((high or 0.0) - (low or 0.0)) / max(1.0, abs(step or 1.0)) + 2

    def _printed(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        text = literal(nodes[0]) if nodes else None
        if text is None or "*" in text or re.search(r"\{[^}]*\{", text.replace("{{", "")):
            raise PolicyError(
                f"function {name} makes texts as long as its argument 1 says, which is to be a "
                "literal without * and without a width in {} of its own",
                hint=f"write the widths as numbers; values of {MAX_BYTES:,} bytes are taken",
            )
        widths = sum(float(width) for width in _DIGITS.findall(text))
        places = len(_PLACES.findall(text))
        values = largest([_text(size) for size in sizes[1:]]) if sizes[1:] else SIMPLE
        # 400 digits a number has at most
        bound = values.times(places, OVERHEAD + len(text.encode()) + 4 * widths + 400 * places)
        return bound.of(TEXT)

    def _part(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        if "slice" in name:
            return self._slice(nodes, sizes)
        number = most(nodes[-1]) if len(nodes) > (1 if "ub" not in name else 2) else None
        whole = _text(sizes[0])
        low = _whole(nodes[-1])
        if number is None or low is None or low < 0 or "grapheme" in name:
            return whole.of(TEXT)
        return _smaller(whole, SizeBound((OVERHEAD + 4 * number, 0.0))).of(TEXT)

    def _slice(self, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        """Return the size of list[a:b] and text[a:b]."""
        whole, ends = sizes[0], [_whole(node) for node in nodes[1:3]]
        if len(nodes) == 4 and isinstance(_whole(nodes[3]), float) and _whole(nodes[3]) != 1:
            return whole
        begin = ends[0] if _whole(nodes[1]) is not None else 1.0 if _open(nodes[1]) else None
        if len(ends) < 2 or begin is None or ends[1] is None or begin < 0 or ends[1] < 0:
            return whole
        number = max(0.0, ends[1] - begin + 1)
        if whole.kind == TEXT:
            return _smaller(whole, SizeBound((OVERHEAD + 4 * number, 0.0))).of(TEXT)
        if whole.kind == "number[]":
            return _smaller(whole, SizeBound((OVERHEAD + NUMBER_SIZE * number, 0.0))).of(whole.kind)
        return whole

    def _joined(self, name: str, sizes: list[SizeBound]) -> SizeBound:
        """Return the size of the other texts with the first one between them."""
        separator, *parts = [_text(size) for size in sizes]
        if name == "array_to_string":
            parts, separator = [separator], parts[-1] if parts else SIMPLE
        elif not parts:
            return _text(separator)
        count = total([p.times(1 / OVERHEAD) for p in parts], len(parts))
        between = SizeBound((0.0, 0.0))
        if separator.terms != (OVERHEAD, 0.0):
            content = separator.times(1, -OVERHEAD)
            between = self._product(content, count, name, "the parts and what is between them")
        return total([*parts, between], OVERHEAD).of(TEXT)

    def _replaced(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        text, _, by = map(_text, sizes)
        pattern = literal(nodes[1])
        length = 1 if not pattern else max(1, len(pattern.encode()))
        if by.constant and by.terms[0] - OVERHEAD <= length:
            return text.of(TEXT)
        matches = text.times(1 / length)
        more = self._product(by.times(1, -OVERHEAD), matches, name, "arguments 1 and 3")
        return total([text, more]).of(TEXT)

    def _replaced_by_pattern(
        self, name: str, nodes: list[Node], sizes: list[SizeBound]
    ) -> SizeBound:
        self._check_pattern(name, nodes, 1)
        text, _, by = map(_text, sizes[:3])
        options = "" if len(nodes) < 4 else literal(nodes[3])
        written = literal(nodes[2])
        if written is not None and not written and options is not None:
            return text.of(TEXT)
        if written is not None and options is not None and "g" not in options:
            return total([text.times(1 + written.count("\\")), by]).of(TEXT)
        more = self._product(by, text.times(1, 1.0), name, "arguments 1 and 3")
        return total([text, more]).of(TEXT)

    def _extracted(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        self._check_pattern(name, nodes, 1)
        text = _text(sizes[0])
        if len(sizes) > 2 and sizes[2].kind != NUMBER:
            pattern = literal(nodes[1]) or ""
            text = text.times(pattern.count("(") + 1, OVERHEAD * len(pattern))
            text = total([text, sizes[2]])
        return text.of(TEXT) if name == "regexp_extract" else text.times(20, OVERHEAD).of("text[]")

    @staticmethod
    def _check_pattern(name: str, nodes: list[Node], place: int) -> None:
        text = literal(nodes[place]) if place < len(nodes) else None
        if text is None:
            raise PolicyError(
                f"function {name} takes as long as its argument {place + 1} makes it, which is to "
                "be a literal",
                hint="write the regular expression as a text",
            )
        repeats = 1.0
        for low, high in _REPEATED.findall(text):
            repeats *= max(1.0, float(low or 1), float(high or 1))
        if len(text) > MAX_PATTERN or repeats > MAX_PATTERN:
            raise PolicyError(
                f"function {name} with a regular expression of {len(text):,} characters that "
                f"repeats {repeats:,.0f} times; {MAX_PATTERN:,} are taken"
            )

    def _path(self, name: str, nodes: list[Node], sizes: list[SizeBound]) -> SizeBound:
        """Return the size of parts of a JSON."""
        paths = nodes[1:]
        if len(paths) == 1 and paths[0].get("function_name") == "list_value":
            paths = [item["expression"] for item in paths[0].get("arguments") or ()]
        for path in paths:
            text = literal(path)
            if text is None or ".." in text:
                raise PolicyError(
                    f"function {name} takes as its argument 2 a literal without .., or a list of "
                    "such",
                )
        if not sizes:
            return SIMPLE
        bound = sizes[0].times(24 * max(1, len(paths)), OVERHEAD * (len(paths) + 1))
        return bound.of(OTHER if len(paths) > 1 else TEXT) if name != "->" else bound

    # -- lambdas ----------------------------------------------------------------------------------

    def _of_elements(self, rule: str, name: str, nodes: list[Node]) -> SizeBound:
        """Return the size of the result of a function with a lambda on a list."""
        if len(nodes) < 2 or nodes[1]["class"] != "LAMBDA":
            raise PolicyError(f"function {name} without a lambda")
        whole = self._expression(nodes[0])
        start = [self._expression(node) for node in nodes[2:]]
        self._nodes += 1
        names = [folded(str(ref["column_names"][0])) for ref in _refs(nodes[1]["lhs"])]
        count = whole.times(1 / (NUMBER_SIZE if whole.kind == "number[]" else OVERHEAD), 1.0)
        if nodes[0].get("function_name") in ("list_value", "list_pack"):
            count = SizeBound((float(len(nodes[0].get("arguments") or ())), 0.0))
        kind = _element(whole.kind)
        depth = len(self._lists) + 2
        element = SIMPLE if kind == NUMBER else SizeBound((0.0,) * depth + (1.0,), kind)
        parameters = dict(zip(names, [element, SIMPLE], strict=False))
        if rule == growth.REDUCED:
            # the result so far is an element, what the list starts with, or a number
            given = largest([element, *start, SIMPLE])
            parameters = dict(zip(names, [given, element, SIMPLE], strict=False))
        before, self._work = self._work, SizeBound((0.0, 0.0))
        self._lists.append(whole)
        self._parameters.append(parameters)
        try:
            body = self._expression(nodes[1]["expr"])
            if rule == growth.REDUCED and body.kind != NUMBER:
                raise PolicyError(
                    f"function {name} takes a lambda whose result is a number: others may grow "
                    "with each element",
                    hint="list_sum(...), array_to_string(...); or CAST(... AS DOUBLE)",
                )
        finally:
            self._lists.pop()
            self._parameters.pop()
        work, self._work = self._each(self._work, whole, count, name), before
        self._work = total([self._work, work])
        copies = whole.copies + body.copies + 1
        if rule == growth.FILTERED:
            return replace(whole, copies=copies)
        if rule == growth.REDUCED:
            result = largest([whole, *start, SIMPLE]) if kind != NUMBER else SIMPLE
            return replace(result, kind=kind, copies=copies)
        values = self._each(body.times(1, OVERHEAD), whole, count, name)
        return replace(values, kind=f"{body.kind}[]", copies=copies)

    def _each(self, size: SizeBound, whole: SizeBound, count: SizeBound, name: str) -> SizeBound:
        """Return the size of all elements together."""
        depth = len(self._lists) + 2
        each, last = SizeBound(size.terms[:depth]), size.terms[depth:]
        elements = self._product(each, count, name, "what its lambda makes of each element")
        return total([elements, whole.times(sum(last))], OVERHEAD)


def _summed(name: str, times: int, sizes: list[SizeBound], names: int) -> SizeBound:
    kinds = {size.kind for size in sizes}
    if kinds <= {NUMBER} and name in growth.OF_NUMBERS:
        return SIMPLE
    if NUMBER in kinds and name in growth.OF_NUMBERS:
        return largest(sizes).times(1, OVERHEAD)  # of many digits or bits, and no list
    if name in ("list_value", "list_pack", "array_value"):
        return total(sizes, OVERHEAD).of(_list_of(sizes))
    if name in growth.OF_TEXTS:
        bound = total([_text(size) for size in sizes], OVERHEAD)
    else:
        bound = total(sizes, OVERHEAD)
    return _kind_of_sum(name, bound.times(times, 2.0 * names), sizes)


def _kind_of_sum(name: str, bound: SizeBound, sizes: list[SizeBound]) -> SizeBound:
    """Return the bound with the result's kind; of functions that return one argument, or one
    element, its bound.
    """
    kinds = {size.kind for size in sizes}
    if name in growth.SAME_LISTS and len(kinds) == 1:
        return bound.of(sizes[0].kind)
    if name in ("list_append", "array_append", "array_push_back") and sizes:
        return bound.of(sizes[0].kind if sizes[0].kind == f"{sizes[1].kind}[]" else OTHER)
    if name in ("list_extract", "list_element", "array_extract", *growth.OF_ONE_LIST):
        return sizes[0].of(_element(sizes[0].kind))
    if name == "nullif":
        return sizes[0]
    if name in ("||", "concat") and all(kind.endswith("[]") for kind in kinds):
        return bound.of(kinds.pop() if len(kinds) == 1 else OTHER)
    if name in ("||", "concat") and kinds <= {NUMBER, TEXT}:
        return bound.of(TEXT)
    if "split" in name or name == "string_to_array":
        return bound.of(TEXT if name == "split_part" else "text[]")
    if "grade_up" in name:
        return bound.of("number[]")
    return bound.of(TEXT if name in growth.OF_TEXTS else OTHER)


def most(node: Node) -> float | None:
    """Return an upper bound of a node's value, from its literals; None without one."""
    if node["class"] == "CAST" and _of_number(node):
        return most(node["child"])
    if node.get("function_name") == "least":
        known = [most(item["expression"]) for item in node.get("arguments") or ()]
        return min((value for value in known if value is not None), default=None)
    if node["class"] == "CASE":
        checks = [check["then_expr"] for check in node.get("case_checks") or ()]
        known = [most(item) for item in [*checks, node["else_expr"]] if item]
        return None if None in known or not known else max(v for v in known if v is not None)
    return _whole(node)


def _whole(node: Node | None) -> float | None:
    """Return a number that is written as a literal."""
    if node is None:
        return None
    if node["class"] == "CAST" and _of_number(node):
        return _whole(node["child"])
    if node.get("function_name") == "-" and len(node.get("arguments") or ()) == 1:
        inner = _whole(node["arguments"][0]["expression"])
        return None if inner is None else -inner
    if node["class"] != "CONSTANT":
        return None
    if is_null(node):
        return 0.0
    try:
        value = float(str(node["literal"]["text"]).replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _of_number(cast: Node) -> bool:
    kind = kind_of_type(type_of(cast["type_expr"]))
    return kind in NUMBERS or kind.startswith(("HUGEINT", "UHUGEINT", "DECIMAL("))


def _open(node: Node) -> bool:
    """Return True if one end of a slice is not written."""
    return node.get("function_name") == "list_value" and not node.get("arguments")


def _size_of_constant(node: Node) -> SizeBound:
    value = node.get("literal") or {}
    if str(value.get("kind")) == "STRING":
        return SizeBound((OVERHEAD + float(len(str(value.get("text", "")).encode())), 0.0), TEXT)
    return SIMPLE


def _text(size: SizeBound) -> SizeBound:
    """Return the size of the value as a text."""
    if size.kind in (NUMBER, TEXT):
        return size
    return size.times(AS_TEXT, OVERHEAD)


def _smaller(whole: SizeBound, part: SizeBound) -> SizeBound:
    """Return a bound that is not large: both are bounds."""
    return part if not whole.constant or part.terms[0] < whole.terms[0] else whole


def _element(kind: str) -> str:
    return kind.removesuffix("[]") if kind.endswith("[]") else TEXT if kind == TEXT else OTHER


def _list_of(sizes: Sequence[SizeBound]) -> str:
    kinds = {size.kind for size in sizes}
    return f"{kinds.pop()}[]" if len(kinds) == 1 else OTHER


def _two(sizes: list[SizeBound]) -> tuple[SizeBound, SizeBound]:
    first, second = [*map(_text, sizes), SIMPLE, SIMPLE][:2]
    return first, second


def _refs(node: object) -> Iterator[Node]:
    if isinstance(node, dict):
        if node.get("class") == "COLUMN_REF":
            yield node
        for part in node.values():
            yield from _refs(part)
    elif isinstance(node, list):
        for part in node:
            yield from _refs(part)


def _kind_of_node(target: Node) -> str:
    name = str(target.get("type_name")).lower()
    children = target.get("children") or []
    if name in ("list", "array") and children:
        return _kind_of_node(children[0]) + "[]"
    return kind_of_name(type_of(target))


def _is_array(target: Node) -> bool:
    children = target.get("children") or []
    array = str(target.get("type_name")).lower() == "array"
    return array and bool(children) and children[0].get("class") == "TYPE"


def _parts(target: Node) -> float:
    """Return the minimum number of values in one value of a type, for each element of a list."""
    children = [c for c in target.get("children") or [] if c.get("class") == "TYPE"]
    inner = sum(_parts(child) for child in children)
    return max(1.0, inner * _length(target))


def _fixed(target: Node) -> float:
    """Return the part of the size that every value of the type has."""
    name = str(target.get("type_name")).lower()
    children = [c for c in target.get("children") or [] if c.get("class") == "TYPE"]
    if name in ("list", "map"):
        return OVERHEAD
    return OVERHEAD + NUMBER_SIZE + sum(_fixed(child) for child in children) * _length(target)


def _length(target: Node) -> float:
    """Return the number of elements of an array type; 1 of other types."""
    if str(target.get("type_name")).lower() != "array":
        return 1.0
    lengths = [_whole(c) for c in target.get("children") or [] if c.get("class") == "CONSTANT"]
    return max([1.0, *(value for value in lengths if value is not None)])


def _bytes(number: float) -> str:
    return f"{number:,.0f} bytes"


def _too_large(name: str, bound: SizeBound) -> PolicyError:
    constant, times = bound.terms[:2]
    if constant > MAX_BYTES:
        return PolicyError(
            f"function {name} may make a value of {_bytes(constant)}; {_bytes(MAX_BYTES)} are "
            "taken",
            hint="write smaller numbers and shorter texts in it",
        )
    return PolicyError(
        f"function {name} may make a value {times:,.0f} times as large as the data that it is "
        f"made of; {MAX_TIMES} times are taken",
        hint="write shorter texts in it; or take a part: left(column, 100), column[1:100]",
    )
