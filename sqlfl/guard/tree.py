"""What a SELECT reads, by DuckDB's own parse of it: deny by default.

A text is taken apart by the parser that will run it, and every node of the tree is of a kind that
is known here, or the text is refused. Of each output it is found which columns of which tables its
value is made of, and which columns decide the rows: where a name may mean several things, all of
them are taken to be read. Nothing is bound, and nothing runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlfl.errors import PolicyError
from sqlfl.fragment_columns import KEPT
from sqlfl.guard.canonical import canonical, nobodys, nodes, stable
from sqlfl.guard.constants import WIDEST, beside, is_null, literal
from sqlfl.guard.functions import Functions
from sqlfl.guard.scopes import (
    NONE,
    Column,
    Output,
    Reads,
    Scope,
    Source,
    Table,
    all_common,
    by_name,
    meanings,
    merged,
    renamed,
    unknown,
    with_aliases,
)
from sqlfl.schema import folded
from sqlfl.udfs import sql

LONGEST = 200_000
"""Characters of a SELECT."""
DEEPEST = 60
"""Levels of queries and expressions."""
MOST = 20_000
"""Nodes."""
NORMALISING = ("lower", "upper", "lcase", "ucase", "trim", "ltrim", "rtrim", "strip_accents")
"""Functions of a column alone that a join key may have: they make no value of one's choice."""
NEUTRAL = ("", "0", "false", "1970-01-01", "00:00:00", "00000000-0000-0000-0000-000000000000")
"""Constants that a key may be, or that may stand in place of NULL: one value of each type."""
DECIDED = " in a query that a policy decides on"
PARSE = sql.constant(sql.query("SELECT json_serialize_sql($text)"))
_EXPRESSIONS = (
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT",
    "FUNCTION", "LAMBDA", "OPERATOR", "STAR", "SUBQUERY", "TYPE", "WINDOW",
)  # fmt: skip
_ORDERS = ("ORDER_MODIFIER", "LIMIT_MODIFIER", "DISTINCT_MODIFIER")
_JOINS = ("REGULAR", "CROSS")

Node: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Reading:
    """What a SELECT reads."""

    outputs: tuple[Output, ...]
    filters: Reads
    """By what rows are chosen, ordered or counted apart, by their values."""
    links: Reads
    """Columns that are compared with one another, grouped by, or tested for NULL, and no more."""
    tables: frozenset[Table]
    canonical: str = ""
    """The same for all that differ in layout, or the aliases of tables, alone."""
    stable: bool = False
    """Each row of its one table makes one row at most, whatever other rows there are."""
    nobodys: bool = False
    """It is one row that is of no table."""
    equal: Reads = NONE
    """Those of `links` that are compared with one another."""
    beside: frozenset[tuple[Column, str | None]] = frozenset()
    """Constants that columns are compared with, or else stand with; None of a test for NULL."""
    named: Reads = NONE
    """All columns that are named anywhere, whatever becomes of them."""


Columns: TypeAlias = "Callable[[Sequence[str]], tuple[Table, tuple[str, ...]] | None]"
"""Of the parts of a table's name the table and its columns; None where there is none."""


def read(
    con: sql.Connection,
    text: str,
    columns: Columns,
    functions: Functions,
    shown: Callable[[Column], bool] = lambda _: True,
) -> Reading:
    """What `text`, one SELECT, reads. Raises PolicyError for all that is not known to be harmless,
    for tables and columns that `columns` does not know, and, in the same words, for columns by name
    that are not `shown`, whatever becomes of them."""
    if len(text) > LONGEST:
        raise PolicyError(f"a query of {len(text):,} characters; {LONGEST:,} are taken")
    if "\0" in text:
        raise PolicyError("a query with a character that ends texts elsewhere")
    ((found,),) = sql.fetch(con, PARSE, {"text": text})
    parsed = json.loads(found)
    if parsed.get("error"):
        raise PolicyError(
            "only SELECT is taken" if parsed.get("error_type") == "not implemented"
            else "a query cannot be read as SQL"
        )  # fmt: skip
    statements = parsed["statements"]
    if len(statements) != 1:
        raise PolicyError(f"one SELECT is taken, and {len(statements)} came")
    _check_size(statements[0])
    reader = _Reader(columns, functions, shown)
    outputs = reader.query(statements[0]["node"], Scope())
    tables = frozenset(reader.tables)
    links = frozenset(reader.links)
    return Reading(
        outputs,
        frozenset(reader.filters),
        links,
        tables,
        canonical(statements[0]),
        stable(statements[0], functions.aggregates),
        nobodys(statements[0], functions.aggregates),
        frozenset(reader.equal),
        frozenset(reader.beside),
        frozenset(reader.named),
    )


def _check_size(tree: object) -> None:
    """Before anything else is done with it; by hand, as a recursion might not come back."""
    level: list[object] = [tree]
    number = depth = 0
    while level:
        number, depth = number + len(level), depth + 1
        if number > 12 * MOST or depth > 6 * DEEPEST:
            raise PolicyError("a query is too large or too deep to be looked through")
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)  # type: ignore[attr-defined]
            if isinstance(inner, (dict, list))
        ]


class _Reader:
    def __init__(
        self, columns: Columns, functions: Functions, shown: Callable[[Column], bool]
    ) -> None:
        self._columns, self._functions, self._shown = columns, functions, shown
        self.filters: set[Column] = set()
        self.links: set[Column] = set()
        self.equal: set[Column] = set()
        self.named: set[Column] = set()
        self.beside: set[tuple[Column, str | None]] = set()
        self.tables: set[Table] = set()

    # -- queries -----------------------------------------------------------------------------------

    def query(self, node: Node, outer: Scope) -> tuple[Output, ...]:
        kind = node.get("type")
        scope = Scope(outer, common=self._common(node, outer))
        if kind == "SET_OPERATION_NODE":
            parts = [self.query(child, scope) for child in node["children"]]
            if len({len(part) for part in parts}) != 1:
                raise PolicyError("the parts of a union have different numbers of columns")
            found = tuple(merged(own) for own in zip(*parts, strict=True))
            scope.aliases = with_aliases(found)
            if node.get("setop_type") not in ("UNION", "EXCEPT", "INTERSECT"):
                raise _refused(node.get("setop_type"))
            if node["setop_type"] != "UNION" or not node.get("setop_all"):
                # which rows there are follows from all values of all parts
                self.filters.update(*(output.reads for output in found))
        elif kind == "SELECT_NODE":
            if node.get("sample") is not None:
                raise _refused("TABLESAMPLE")
            self._from(node["from_table"], scope)
            found = self._outputs(node["select_list"], scope)
            scope.aliases = with_aliases(found)
            for clause in ("where_clause", "having", "qualify"):
                self._condition(node.get(clause), scope)
            for group in node.get("group_expressions") or ():
                self._group(group, scope, found)
            if node.get("aggregate_handling") == "FORCE_AGGREGATES":
                raise _refused("GROUP BY ALL")
        else:
            raise _refused(kind)
        for modifier in node.get("modifiers") or ():
            if modifier.get("type") not in _ORDERS:
                raise _refused(modifier.get("type"))
            self.filters |= self.reads([v for v in modifier.values() if v], scope)
            for order in modifier.get("orders") or ():
                if (output := _placed(order["expression"], found)) is not None:
                    self.filters |= output.reads
        return found

    def _common(self, node: Node, outer: Scope) -> dict[str, Source]:
        found: dict[str, Source] = {}
        scope = Scope(outer, common=found)
        for item in (node.get("cte_map") or {}).get("map") or ():
            value = item["value"]
            inner = value.get("query_node") or value.get("query", {}).get("node")
            if inner is None:
                raise _refused("WITH")
            outputs = renamed(self.query(inner, scope), value.get("aliases") or ())
            found[folded(item["key"])] = Source(outputs)
        return found

    def _outputs(self, items: Sequence[Node], scope: Scope) -> tuple[Output, ...]:
        found: list[Output] = []
        for item in items:
            if item.get("class") == "STAR":
                found += self._star(item, scope)
            elif folded(item.get("alias") or "") == KEPT:
                # whether a row is kept: a condition
                found.append(Output(KEPT, self._condition(item, scope)))
            else:
                found.append(self.output(item, scope))
                scope.aliases = with_aliases(found)
        return tuple(found)

    def _star(self, item: Node, scope: Scope) -> list[Output]:
        odd = ("columns", "expr", "rename_list", "unpacked", "exclude_list_qualified")
        if any(item.get(name) for name in odd):
            raise _refused("COLUMNS, or * that renames")
        relation = folded(item.get("relation_name") or "")
        sources = [s for name, s in scope.sources.items() if relation in ("", name)]
        if not sources:
            raise PolicyError(f"{relation or ''}* stands for no table")
        gone = {folded(str(name)) for name in item.get("exclude_list") or ()}
        put = {
            folded(r["key"]): self.reads(r["value"], scope) for r in item.get("replace_list") or ()
        }
        outputs = [o for source in sources for o in source.outputs if o.name not in gone]
        self.named.update(*(output.reads for output in outputs))
        return [Output(o.name, put[o.name]) if o.name in put else o for o in outputs]

    # -- FROM --------------------------------------------------------------------------------------

    def _from(self, node: Node, scope: Scope) -> None:
        """Put what there is in FROM into the scope; what comes first is there for what follows."""
        match node.get("type"):
            case "EMPTY":
                return
            case "BASE_TABLE":
                self._table(node, scope)
            case "SUBQUERY":
                inner = Scope(scope.outer, dict(scope.sources), common=all_common(scope))
                self._add(scope, node, Source(self.query(node["subquery"]["node"], inner)))
            case "EXPRESSION_LIST":
                rows = [[self.output(e, scope) for e in row] for row in node["values"]]
                outputs = tuple(
                    Output(f"col{n}", frozenset().union(*(o.reads for o in own)))
                    for n, own in enumerate(zip(*rows, strict=True))
                )
                self._add(scope, node, Source(outputs))
            case "JOIN":
                if node.get("ref_type") not in _JOINS:
                    raise _refused(f"a {str(node.get('ref_type')).lower()} join")
                self._from(node["left"], scope)
                self._from(node["right"], scope)
                self._condition(node.get("condition"), scope)
                if node.get("duplicate_eliminated_columns"):
                    raise _refused("a join of columns without duplicates")
                for name in node.get("using_columns") or ():
                    self.links |= by_name(scope, name)
                    self.equal |= by_name(scope, name)
            case other:
                raise _refused(other)
        if node.get("sample") is not None:
            raise _refused("TABLESAMPLE")

    def _table(self, node: Node, scope: Scope) -> None:
        path = [str(part) for part in node["qualified_name"]["path"]]
        if node.get("at_clause"):
            raise _refused("AT")
        common = next(
            (s.common[folded(path[0])] for s in scope.chain() if folded(path[0]) in s.common), None
        )
        if len(path) == 1 and common is not None:
            self._add(scope, node, common, path[-1])
            return
        found = self._columns(path)
        if found is None:
            raise PolicyError(f"table {'.'.join(path)} is not granted")
        table, names = found
        self.tables.add(table)
        outputs = tuple(
            Output(folded(name), frozenset({Column(table, name)}), Column(table, name))
            for name in names
        )
        self._add(scope, node, Source(outputs, table), path[-1])

    def _add(self, scope: Scope, node: Node, source: Source, name: str = "") -> None:
        alias = folded(str(node.get("alias") or name)) or f"{len(scope.sources)}"
        if alias in scope.sources:
            raise PolicyError(f"two tables of one FROM are named {alias}")
        outputs = renamed(source.outputs, node.get("column_name_alias") or ())
        scope.sources[alias] = Source(outputs, source.table)

    # -- conditions --------------------------------------------------------------------------------

    def _condition(self, node: Node | None, scope: Scope) -> Reads:
        """A link is an equality of two columns, whether one is among those of a query, or whether
        one is NULL; all else filters. What it reads."""
        if node is None:
            return NONE
        if node["class"] == "CONJUNCTION" and node.get("type") == "CONJUNCTION_AND":
            return frozenset().union(*(self._condition(p, scope) for p in node["children"]))
        inner = node
        while inner.get("type") == "OPERATOR_NOT":
            inner = inner["children"][0]
        kind = inner.get("type")
        linked = False
        if kind == "SUBQUERY" and inner.get("subquery_type") == "ANY":
            outputs = self.query(inner["subquery"]["node"], scope)
            reads = self.reads(inner.get("child"), scope).union(*(o.reads for o in outputs))
            linked = inner.get("comparison_type") == "COMPARE_EQUAL"
            linked = linked and all(o.same is not None for o in outputs)
            linked = linked and self._plain(inner["child"], scope) is not None
        else:
            reads = self.reads(inner, scope)
            sides: list[Node] = []
            if kind in ("COMPARE_EQUAL", "COMPARE_NOT_DISTINCT_FROM"):
                sides = [inner["left"], inner["right"]]
            elif kind in ("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"):
                sides = inner["children"]
            linked = bool(sides) and all(self._plain(side, scope) for side in sides)
        (self.links if linked else self.filters).update(reads)
        if linked and not str(kind).endswith("NULL"):
            self.equal.update(reads)
        return reads

    def _group(self, node: Node, scope: Scope, outputs: tuple[Output, ...]) -> None:
        placed = _placed(node, outputs)
        reads = self.reads(node, scope) if placed is None else placed.reads
        same = self._plain(node, scope) if placed is None else placed.same
        (self.filters if same is None else self.links).update(reads)

    # -- expressions -------------------------------------------------------------------------------

    def output(self, node: Node, scope: Scope) -> Output:
        reads = self.reads(node, scope)
        name = node.get("alias") or ""
        if node["class"] == "COLUMN_REF":
            name = name or node["column_names"][-1]
        source = self._source(node, scope)
        return Output(
            folded(str(name)),
            reads,
            self._plain(node, scope),
            literal(node),
            None if source is None else source.table,
            source is not None,
        )

    def _plain(self, node: Node, scope: Scope) -> Column | None:
        """The column that the expression is, normalised at most; NULL, or a neutral constant in
        place of NULL, may stand beside it."""
        while node["class"] != "COLUMN_REF":
            inner = _inside(node)
            if inner is None:
                return None
            node = inner
        sure, unsure = meanings(node["column_names"], scope)
        found = {output.same for output in (*sure, *unsure)}
        return found.pop() if len(found) == 1 else None

    def _source(self, node: Node, scope: Scope) -> Source | None:
        """Whose whole row it is."""
        names: list[object] = node["column_names"] if node["class"] == "COLUMN_REF" else []
        first = str(names[0]) if len(names) == 1 else ""
        source = next((s.sources[folded(first)] for s in scope.chain()
                       if folded(first) in s.sources), None)  # fmt: skip
        taken = any(o.name == folded(first) for s in scope.chain()
                    for own in s.sources.values() for o in own.outputs)  # fmt: skip
        return None if not first or taken else source

    def reads(self, node: object, scope: Scope) -> Reads:
        """Of expressions, or of what holds them."""
        if isinstance(node, list):
            return frozenset().union(*(self.reads(item, scope) for item in node))
        if not isinstance(node, dict):
            return NONE
        kind = node.get("class")
        if kind is None:
            if "node" in node or node.get("type") in ("SELECT_NODE", "SET_OPERATION_NODE"):
                raise _refused("a query that stands here")
            return self._inner(node, scope)
        if kind not in _EXPRESSIONS:
            raise _refused(kind)
        match kind:
            case "COLUMN_REF":
                return self._column(node, scope)
            case "SUBQUERY":
                return self._subquery(node, scope)
            case "STAR":
                raise _refused("* that stands here")
            case "LAMBDA":
                return self._lambda(node, scope)
            case "TYPE":
                self._check_type(node)
            case "FUNCTION":
                self._check_function(node)
            case "WINDOW":
                if node.get("type") == "WINDOW_AGGREGATE":
                    self._check_function(node)
        return self._inner(node, scope)

    def _inner(self, node: Node, scope: Scope) -> Reads:
        found = frozenset().union(*(self.reads(value, scope) for value in node.values()))
        if 0 < len(found) <= WIDEST and node.get("class"):
            self.beside.update((column, text) for text in beside(node) for column in found)
        return found

    def _column(self, node: Node, scope: Scope) -> Reads:
        names = node["column_names"]
        found, unsure = meanings(names, scope)
        first = folded(str(names[0]))
        given = any(first in own.names for own in scope.chain())
        if given and len(names) > 1:  # what a parameter has, and not what a table of its name has
            given = not any(first in own.sources for own in scope.chain())
        hidden = any(not self._shown(c) for o in found if o.name for c in o.reads)
        if hidden or (not found and not given):
            raise unknown(str(names[min(1, len(names) - 1)]))
        self.named.update(*(output.reads for output in found if output.name))
        return frozenset().union(*(output.reads for output in (*found, *unsure)))

    def _subquery(self, node: Node, scope: Scope) -> Reads:
        outputs = self.query(node["subquery"]["node"], scope)
        own = self.reads(node.get("child"), scope)
        if node.get("subquery_type") in ("EXISTS", "NOT_EXISTS"):
            return own
        return own.union(*(output.reads for output in outputs))

    def _lambda(self, node: Node, scope: Scope) -> Reads:
        names: set[str] = set()
        for item in _refs(node.get("lhs")):
            names.add(folded(item["column_names"][0]))
        inner = Scope(scope, names=frozenset(names))
        return self.reads(node.get("lhs"), inner) | self.reads(node.get("expr"), inner)

    def _check_function(self, node: Node) -> None:
        path = [str(part) for part in (node.get("qualified_name") or {}).get("path") or ()]
        name = str(node.get("function_name"))
        near = [p.lower() for p in path[:-1]] in ([], ["main"], ["pg_catalog"], ["system", "main"])
        if not near or not self._functions.allows(name) or path[-1:] not in ([name], []):
            raise PolicyError(
                f"function {'.'.join(path) or name} is not among those that are allowed"
            )

    def _check_type(self, node: Node) -> None:
        path = [str(part) for part in (node.get("qualified_name") or {}).get("path") or ()]
        name = str(node.get("type_name"))
        if len(path) > 1 or name.lower() not in self._functions.types:
            raise PolicyError(f"type {'.'.join(path) or name} is not one that is allowed")


def _inside(node: Node) -> Node | None:
    """What a normalising expression is of."""
    match node["class"]:
        case "CAST":
            found: Node = node["child"]
            return found
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


def _placed(node: Node, outputs: tuple[Output, ...]) -> Output | None:
    """The output that a number in GROUP BY or ORDER BY stands for."""
    text = literal(node)
    if text is None or not text.isdecimal() or not 1 <= int(text) <= len(outputs):
        return None
    return outputs[int(text) - 1]


def _refs(node: object) -> Iterator[Node]:
    return (found for found in nodes(node) if found.get("class") == "COLUMN_REF")


def _refused(what: object) -> PolicyError:
    return PolicyError(f"{what} is not taken{DECIDED}")
