"""Reads of a SELECT, by DuckDB's own parse of it: deny by default.

The parser that will run a text takes it apart. Every node of the tree must be of a known kind, or
the text is refused. For each output it determines the columns of tables that its value is made of,
and the columns that decide the rows. If a name may mean several things, all of them count as read.
Nothing is bound, and nothing runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from sqlfl.base.errors import PolicyError
from sqlfl.contract.fragment_columns import BASE, KEPT
from sqlfl.contract.schema import folded
from sqlfl.governance.canonical import (
    canonical,
    groups_rows,
    in_order,
    nobodys,
    nodes,
    placeless_text,
    stable,
    unmatched,
)
from sqlfl.governance.constants import WIDEST, beside, literal
from sqlfl.governance.expressions import (
    Expressions,
    asserted,
    inside_normalising,
    null_tested,
)
from sqlfl.governance.measuring import SizeMeasures
from sqlfl.governance.names import Functions
from sqlfl.governance.scopes import (
    NONE,
    Bare,
    Reads,
    ScopeColumn,
    ScopeSource,
    SelectOutput,
    SelectScope,
    Table,
    all_common,
    by_name,
    has_table_twice,
    is_joined,
    meanings,
    merged,
    named,
    partnerless,
    renamed,
    unknown,
    unnamed,
    with_aliases,
)
from sqlfl.governance.sizes import (
    DATA,
    SizeBound,
    check_copies,
    check_size,
    largest,
    size_of_column,
)
from sqlfl.governance.value_forms import is_bounded, is_linked
from sqlfl.udfs import sql

MAX_CHARACTERS = 200_000
"""Maximum characters of a SELECT."""
MAX_DEPTH = 60
"""Maximum levels of queries and expressions."""
MAX_NODES = 20_000
"""Maximum number of nodes."""
MAX_GROUPINGS = 64
"""Maximum number of sets by which CUBE and the like group rows."""
DECIDED = " in a query that a policy decides on"
PARSE = sql.constant(sql.query("SELECT json_serialize_sql($text)"))
_EXPRESSIONS = (
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT",
    "FUNCTION", "LAMBDA", "OPERATOR", "STAR", "SUBQUERY", "TYPE", "WINDOW",
)  # fmt: skip
_ORDERS = {
    "ORDER_MODIFIER": "ORDER BY", "LIMIT_MODIFIER": "LIMIT", "DISTINCT_MODIFIER": "DISTINCT",
}  # fmt: skip
_CLAUSES = {"where_clause": "WHERE", "having": "HAVING", "qualify": "QUALIFY"}
_JOINS = ("REGULAR", "CROSS")
_EQUATING = ("INNER", "LEFT", "RIGHT", "OUTER", "SEMI")
"""Joins that keep a row for an equality that holds, or in any case."""
_LOOKING_UP = ("SEMI", "ANTI")

Node: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class SelectReading:
    """Reads of a SELECT."""

    outputs: tuple[SelectOutput, ...]
    filters: Mapping[ScopeColumn, str]
    """Columns whose values decide the rows, with the clause. Columns of `pairs` and `tests` are not
    among them.
    """
    links: Reads
    """All columns of `pairs` and `tests`."""
    tables: frozenset[Table]
    canonical: str = ""
    """Text that is equal for all queries that differ only in layout, or in the aliases of
    tables.
    """
    stable: bool = False
    """True if each row of its one table makes at most one row, whatever other rows there are."""
    nobodys: bool = False
    """True if it is one row of no table."""
    unmatched: bool = False
    """True if it is one row of nobody's data, though the unjoined side may be any query."""
    equal: Reads = NONE
    """Columns of `links` that are compared with one another."""
    beside: frozenset[tuple[ScopeColumn, str | None]] = frozenset()
    """Constants that columns are compared or combined with; None for a test for NULL."""
    named: Reads = NONE
    """All columns that are named anywhere, whatever their use."""
    pairs: tuple[tuple[Bare, Bare], ...] = ()
    """Equalities of two columns that rows must fulfil. A column is paired with itself if rows are
    grouped by it.
    """
    tests: tuple[NullTest, ...] = ()
    chosen: frozenset[str] = frozenset()
    """Clauses that choose among rows by something other than their values."""
    fallible: Reads = NONE
    """Columns of expressions that may fail on one of their values."""


@dataclass(frozen=True)
class NullTest:
    """Test over the whole SELECT: a value must not be NULL, or NaN."""

    reads: Reads
    place: str
    column: ScopeColumn | None
    """The column that it is, whatever its type."""
    outputs: frozenset[int]
    """The SELECT's own outputs with the same text."""


Columns: TypeAlias = "Callable[[Sequence[str]], tuple[Table, tuple[str, ...]] | None]"
"""Returns the table and its columns from the parts of a table's name; None if there is none."""


def read(
    con: sql.Connection,
    text: str,
    columns: Columns,
    functions: Functions,
    shown: Callable[[ScopeColumn], bool] = lambda _: True,
    types: Callable[[ScopeColumn], str | None] = lambda _: None,
) -> SelectReading:
    """Return the reads of `text`, one SELECT. Raise PolicyError for everything that is not known to
    be harmless, and for tables and columns that `columns` does not know. Raise it, in the same
    words, for named columns that are not `shown`, whatever their use. `types` are those of columns,
    if known.
    """
    if len(text) > MAX_CHARACTERS:
        raise PolicyError(f"a query of {len(text):,} characters; {MAX_CHARACTERS:,} are taken")
    if "\0" in text:
        raise PolicyError("a query with a character that ends texts elsewhere")
    check_copies(text, MAX_NODES)
    ((json_text,),) = sql.fetch(con, PARSE, {"text": text})
    parsed = json.loads(json_text)
    if parsed.get("error"):
        raise PolicyError(
            "only SELECT is taken" if parsed.get("error_type") == "not implemented"
            else "a query cannot be read as SQL"
        )  # fmt: skip
    statements = parsed["statements"]
    if len(statements) != 1:
        raise PolicyError(f"one SELECT is taken, and {len(statements)} came")
    check_size(statements[0], MAX_NODES, MAX_DEPTH)
    reader = _Reader(columns, functions, shown, types)
    outputs = reader.query(statements[0]["node"], SelectScope())
    reader.keep(statements[0]["node"], outputs)
    links = {side.column for pair in reader.pairs for side in pair}
    return SelectReading(
        outputs,
        reader.filters,
        frozenset(links.union(*(test.reads for test in reader.tests))),
        frozenset(reader.tables),
        canonical(statements[0]),
        stable(statements[0], functions.aggregates),
        nobodys(statements[0], functions.aggregates),
        unmatched(statements[0], functions.aggregates),
        frozenset(reader.equal),
        frozenset(reader.beside),
        frozenset(reader.named),
        tuple(reader.pairs),
        tuple(reader.tests),
        frozenset(reader.chosen),
        frozenset(reader.fallible),
    )


class _Reader:
    def __init__(
        self,
        columns: Columns,
        functions: Functions,
        shown: Callable[[ScopeColumn], bool],
        types: Callable[[ScopeColumn], str | None] = lambda _: None,
    ) -> None:
        self._columns, self._functions, self._shown = columns, functions, shown
        self._types = types
        self._made = Expressions(types, functions.aggregates)
        self._sizes: SizeMeasures | None = None
        if functions.bounded:
            self._sizes = SizeMeasures(
                lambda n, scope: [o.size for o in self._made.meant(n, scope)]
            )
        self._deep = 0
        """Number of queries around the present node."""
        self._opaque = False
        """True within a condition that is no equality by itself."""
        self._texts: list[str] = []
        """Texts of the outputs of the whole SELECT."""
        self.filters: dict[ScopeColumn, str] = {}
        self.pairs: dict[tuple[Bare, Bare], None] = {}
        self.tests: list[NullTest] = []
        self.chosen: set[str] = set()
        self._conditions = 0
        """Number of conditions other than links that were read."""
        self._drawn = False
        """True within the output from which draws follow."""
        self._spreads = 0
        """Number of windows and subqueries of other forms than `value_forms` lists."""
        self.fallible: set[ScopeColumn] = set()
        self.equal: set[ScopeColumn] = set()
        self.named: set[ScopeColumn] = set()
        self.beside: set[tuple[ScopeColumn, str | None]] = set()
        self.tables: set[Table] = set()

    # -- queries -----------------------------------------------------------------------------------

    def query(self, node: Node, outer: SelectScope) -> tuple[SelectOutput, ...]:
        self._deep += 1
        try:
            return self._query(node, outer)
        finally:
            self._deep -= 1

    def keep(self, node: Node, outputs: tuple[SelectOutput, ...]) -> None:
        """Take an output that says whether a row is kept for a condition, where it has its name
        from elsewhere than its own alias: from a subquery, a CTE, `*` or a union.
        """
        items = node.get("select_list") or []
        for place, output in enumerate(outputs):
            alone = len(items) == len(outputs) and folded(items[place].get("alias") or "") == KEPT
            if output.name == KEPT and not alone:
                self._decide("WHERE", output.reads)
                self._choose("WHERE", [output])

    def _query(self, node: Node, outer: SelectScope) -> tuple[SelectOutput, ...]:
        kind = node.get("type")
        scope = SelectScope(outer, common=self._common(node, outer))
        before = self._conditions
        if kind == "SET_OPERATION_NODE":
            outputs = self._set_operation(node, scope)
        elif kind == "SELECT_NODE":
            outputs = self._select(node, scope)
        else:
            raise _refused(kind)
        for modifier in node.get("modifiers") or ():
            self._modified(modifier, node, scope, outputs)
        sources = (output for source in scope.sources.values() for output in source.outputs)
        if self._conditions > before or any(output.conditional for output in sources):
            outputs = tuple(replace(output, conditional=True) for output in outputs)
        return outputs

    def _set_operation(self, node: Node, scope: SelectScope) -> tuple[SelectOutput, ...]:
        parts = [self.query(child, scope) for child in node["children"]]
        self._check_whole([output for part in parts for output in part])
        if len({len(part) for part in parts}) != 1:
            raise PolicyError("the parts of a union have different numbers of columns")
        outputs = tuple(merged(columns) for columns in zip(*parts, strict=True))
        scope.aliases = with_aliases(outputs)
        if node.get("setop_type") not in ("UNION", "EXCEPT", "INTERSECT"):
            raise _refused(node.get("setop_type"))
        if node["setop_type"] != "UNION" or not node.get("setop_all"):
            # which rows there are follows from all values of all parts
            self._decide(node["setop_type"], *(output.reads for output in outputs))
            self._choose(node["setop_type"], outputs)
        return outputs

    def _select(self, node: Node, scope: SelectScope) -> tuple[SelectOutput, ...]:
        if node.get("sample") is not None:
            raise _refused("TABLESAMPLE")
        self._from(node["from_table"], scope)
        if self._deep == 1:
            self._texts = [placeless_text(item) for item in node["select_list"]]
        outputs = self._outputs(node["select_list"], scope)
        if is_joined(scope):
            outputs = tuple(replace(output, joined=True) for output in outputs)
        scope.aliases = with_aliases(outputs)
        for clause, place in _CLAUSES.items():
            self._condition(node.get(clause), scope, place)
            windows = any(n.get("class") == "WINDOW" for n in nodes(node.get(clause)))
            if windows and not in_order(node):
                self._decide(place, self.named)
        if len(node.get("group_sets") or ()) > MAX_GROUPINGS:
            raise PolicyError(f"{len(node['group_sets'])} grouping sets; {MAX_GROUPINGS} are taken")
        for group in node.get("group_expressions") or ():
            self._group(group, scope, outputs)
        if node.get("aggregate_handling") == "FORCE_AGGREGATES":
            raise _refused("GROUP BY ALL")
        if scope.choosing:
            outputs = tuple(replace(output, computed=True) for output in outputs)
        return outputs

    def _modified(
        self, modifier: Node, node: Node, scope: SelectScope, outputs: tuple[SelectOutput, ...]
    ) -> None:
        """Read an ORDER BY, LIMIT or DISTINCT of the query `node`."""
        if modifier.get("type") not in _ORDERS:
            raise _refused(modifier.get("type"))
        place = _ORDERS[modifier["type"]]
        with self._hidden():
            self._decide(place, self.reads([v for v in modifier.values() if v], scope))
        for order in modifier.get("orders") or ():
            if (output := self._placed(order["expression"], outputs)) is not None:
                self._decide(place, output.reads)
        if modifier["type"] == "LIMIT_MODIFIER":
            self._choose_rows(place)
        first = modifier["type"] == "LIMIT_MODIFIER" or modifier.get("distinct_on_targets")
        if first and (not in_order(node) or groups_rows(node)):
            self._decide(place, self.named)
        if modifier["type"] == "DISTINCT_MODIFIER" and not modifier.get("distinct_on_targets"):
            for output in outputs:
                self._apart(output, place)
        elif modifier["type"] == "DISTINCT_MODIFIER" and self._made.follows_from_rows(
            modifier["distinct_on_targets"], scope
        ):
            self._choose_rows(place)

    def _decide(self, place: str, *reads: Iterable[ScopeColumn]) -> None:
        """Record that these decide the rows."""
        for column in frozenset().union(*reads):
            self._conditions += 1
            self.filters.setdefault(column, place)

    def _choose(self, place: str, outputs: Iterable[SelectOutput]) -> None:
        """Record that these decide the rows, for those that follow from no column's values."""
        if any(output.of_rows_alone for output in outputs):
            self._choose_rows(place)

    def _choose_rows(self, place: str) -> None:
        """Record that something other than values decides the rows."""
        self._conditions += 1
        self.chosen.add(place)

    def _apart(self, output: SelectOutput, place: str) -> None:
        """Record that rows equal in it become one."""
        self._choose(place, [output])
        if output.bare is None or self._opaque:
            self._decide(place, output.reads)
        else:
            self.pairs[output.bare, output.bare] = None

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Treat no equality in the block as one that a row must fulfil."""
        before, self._opaque = self._opaque, True
        try:
            yield
        finally:
            self._opaque = before

    def _common(self, node: Node, outer: SelectScope) -> dict[str, ScopeSource]:
        common: dict[str, ScopeSource] = {}
        scope = SelectScope(outer, common=common)
        for item in (node.get("cte_map") or {}).get("map") or ():
            value = item["value"]
            inner = value.get("query_node") or value.get("query", {}).get("node")
            if inner is None:
                raise _refused("WITH")
            outputs = self.query(inner, scope)
            if aliases := value.get("aliases"):
                self._check_whole(outputs)
                outputs = renamed(outputs, aliases)
            common[folded(item["key"])] = ScopeSource(outputs)
        return common

    def _outputs(self, items: Sequence[Node], scope: SelectScope) -> tuple[SelectOutput, ...]:
        outputs: list[SelectOutput] = []
        for item in items:
            if item.get("class") == "STAR":
                outputs += self._star(item, scope)
            elif self._deep == 1 and folded(item.get("alias") or "") == KEPT:
                # whether a row is kept: a condition
                outputs.append(SelectOutput(KEPT, self._condition(item, scope, "WHERE")))
            else:
                outputs.append(self.output(item, scope))
                scope.aliases = with_aliases(outputs)
            if len(outputs) > MAX_NODES:
                raise PolicyError(f"a query of more than {MAX_NODES:,} columns")
        return tuple(outputs)

    def _star(self, item: Node, scope: SelectScope) -> list[SelectOutput]:
        odd = ("columns", "expr", "rename_list", "unpacked", "exclude_list_qualified")
        if any(item.get(name) for name in odd):
            raise _refused("COLUMNS, or * that renames")
        relation = folded(item.get("relation_name") or "")
        sources = [s for name, s in scope.sources.items() if relation in ("", name)]
        if not sources:
            raise PolicyError(f"{relation or ''}* stands for no table")
        gone = {folded(str(name)) for name in item.get("exclude_list") or ()}
        put = {
            name: replace(self.output(r["value"], scope), name=name)
            for r in item.get("replace_list") or ()
            for name in [folded(r["key"])]
        }
        every = [output for source in sources for output in source.outputs]
        for name in sorted({*gone, *put}):
            self._check_named(name, every)
        outputs = [output for output in every if output.name not in gone]
        hidden = [c for o in outputs if o.name not in put for c in o.reads if not self._shown(c)]
        if hidden and self._deep == 1:  # its columns leave; how many there are would show
            raise unnamed(min(hidden).table)
        self.named.update(*(output.reads for output in outputs))
        return [put.get(o.name, o) for o in outputs]

    # -- FROM --------------------------------------------------------------------------------------

    def _from(self, node: Node, scope: SelectScope) -> None:
        """Add the sources of FROM to the scope; earlier ones are visible to later ones."""
        match node.get("type"):
            case "EMPTY":
                return
            case "BASE_TABLE":
                self._table(node, scope)
            case "SUBQUERY":
                inner = SelectScope(scope.outer, dict(scope.sources), common=all_common(scope))
                self._add(scope, node, ScopeSource(self.query(node["subquery"]["node"], inner)))
            case "EXPRESSION_LIST":
                rows = [[self.output(e, scope) for e in row] for row in node["values"]]
                outputs = tuple(
                    SelectOutput(
                        f"col{n}",
                        frozenset().union(*(o.reads for o in column)),
                        computed=True,
                        strict=all(o.strict for o in column),
                        size=largest([o.size for o in column]),
                        of_rows=any(o.of_rows for o in column),
                        spread=any(o.spread for o in column),
                    )
                    for n, column in enumerate(zip(*rows, strict=True))
                )
                self._add(scope, node, ScopeSource(outputs))
            case "JOIN":
                if node.get("ref_type") not in _JOINS:
                    raise _refused(f"a {str(node.get('ref_type')).lower()} join")
                left = self._added(node["left"], scope)
                right = self._added(node["right"], scope)
                before = self._conditions
                if node.get("join_type") in _EQUATING:
                    self._condition(node.get("condition"), scope, "a join")
                else:
                    with self._hidden():
                        self._condition(node.get("condition"), scope, "a join")
                if node.get("duplicate_eliminated_columns"):
                    raise _refused("a join of columns without duplicates")
                for name in node.get("using_columns") or ():
                    for side in (left, right):
                        self._check_named(name, [o for s in side.values() for o in s.outputs])
                    self._same_names(by_name(scope, name), str(node.get("join_type")))
                chosen = self._conditions > before
                if node.get("join_type") in _LOOKING_UP:
                    scope.looked_up |= right.keys()
                scope.sources |= partnerless(node.get("join_type"), left, right, chosen=chosen)
            case other:
                raise _refused(other)
        if node.get("sample") is not None:
            raise _refused("TABLESAMPLE")

    def _added(self, node: Node, scope: SelectScope) -> dict[str, ScopeSource]:
        """Add the sources of a part of FROM to the scope, and return them."""
        before = set(scope.sources)
        self._from(node, scope)
        return {name: source for name, source in scope.sources.items() if name not in before}

    def _check_named(self, name: str, outputs: Iterable[SelectOutput]) -> None:
        """Raise PolicyError unless it is the name of an output that may be shown."""
        own = named(outputs, name)
        if not own or any(not self._shown(column) for output in own for column in output.reads):
            raise unknown(name)

    def _same_names(self, outputs: Sequence[SelectOutput], join: str) -> None:
        """Record columns of USING."""
        reads: Reads = frozenset().union(*(output.reads for output in outputs))
        self.named |= reads
        self._choose("USING", outputs)
        bare = [output.bare for output in outputs if output.bare is not None]
        if len(bare) < len(outputs) or join not in _EQUATING or self._opaque:
            self._decide("USING", reads)
        else:
            self.equal |= reads
            self.pairs.update(((bare[0], other), None) for other in bare[1:])

    def _table(self, node: Node, scope: SelectScope) -> None:
        path = [str(part) for part in node["qualified_name"]["path"]]
        if node.get("at_clause"):
            raise _refused("AT")
        common = next(
            (s.common[folded(path[0])] for s in scope.chain() if folded(path[0]) in s.common), None
        )
        if len(path) == 1 and common is not None:
            self._add(scope, node, common, path[-1])
            return
        named = self._columns(path)
        if named is None:
            raise PolicyError(f"table {'.'.join(path)} is not granted")
        table, names = named
        self.tables.add(table)
        outputs = tuple(
            SelectOutput(
                folded(column.name),
                frozenset({column}),
                column,
                bare=Bare(column),
                size=size_of_column(self._types(column)),
            )
            for column in (ScopeColumn(table, name) for name in names)
        )
        self._add(scope, node, ScopeSource(outputs, table), path[-1])

    def _add(self, scope: SelectScope, node: Node, source: ScopeSource, name: str = "") -> None:
        alias = folded(str(node.get("alias") or name)) or f"{len(scope.sources)}"
        if alias in scope.sources:
            raise PolicyError(f"two tables of one FROM are named {alias}")
        outputs = source.outputs
        if aliases := node.get("column_name_alias"):
            self._check_whole(outputs)
            outputs = renamed(outputs, aliases)
        outputs = tuple(
            o if o.size.copies == 1 else replace(o, size=replace(o.size, copies=1)) for o in outputs
        )
        scope.sources[alias] = ScopeSource(outputs, source.table)

    # -- conditions --------------------------------------------------------------------------------

    def _condition(self, node: Node | None, scope: SelectScope, place: str) -> Reads:
        """Return the reads of a condition. They all decide the rows, with two exceptions: an
        equality of two columns that rows must fulfil, and a test for a value that is not NULL.
        """
        if node is None:
            return NONE
        if node["class"] == "CONJUNCTION" and node.get("type") == "CONJUNCTION_AND":
            parts = (self._condition(part, scope, place) for part in node["children"])
            return frozenset().union(*parts)
        node = asserted(node)
        if self._opaque:
            return self._decided(node, scope, place)
        if node["class"] == "CONJUNCTION" and node.get("type") == "CONJUNCTION_AND":
            return self._condition(node, scope, place)
        match node.get("type"), node.get("subquery_type"):
            case "SUBQUERY", "EXISTS":
                self.query(node["subquery"]["node"], scope)
                return NONE
            case "SUBQUERY", "ANY" if node.get("comparison_type") == "COMPARE_EQUAL":
                outputs = self.query(node["subquery"]["node"], scope)
                operand_reads = self.reads(node["child"], scope)
                reads = operand_reads.union(*(output.reads for output in outputs))
                self._choose(place, outputs)
                if not operand_reads and self._made.follows_from_rows(node["child"], scope):
                    self._choose_rows(place)
                sides = [self._made.bare(node["child"], scope), *(o.bare for o in outputs)]
                return self._equality(sides, reads, place)
            case "COMPARE_EQUAL", _:
                sides = [self._made.bare(node[name], scope) for name in ("left", "right")]
                if None not in sides:
                    return self._equality(sides, self.reads(node, scope), place)
            case _ if self._deep == 1 and (tested := null_tested(node)) is not None:
                reads, bare = self.reads(node, scope), self._made.bare(tested, scope)
                same = (n for n, text in enumerate(self._texts) if text == placeless_text(tested))
                column = None if bare is None else bare.column
                if not reads and not self._made.strict(tested, scope):
                    self._decided(tested, scope, place)
                self.tests.append(NullTest(reads, place, column, frozenset(same)))
                return reads
        return self._decided(node, scope, place)

    def _equality(self, sides: Sequence[Bare | None], reads: Reads, place: str) -> Reads:
        left, *others = sides
        if left is None or len(others) != 1 or others[0] is None:
            self._decide(place, reads)
        else:
            self.pairs[left, others[0]] = None
            self.equal |= reads
        return reads

    def _decided(self, node: Node, scope: SelectScope, place: str) -> Reads:
        with self._hidden():
            reads = self.reads(node, scope)
        self._decide(place, reads)
        if not reads and self._made.follows_from_rows(node, scope):
            self._choose_rows(place)
        for level in scope.chain():
            several = len(reads) > 1 or (bool(reads) and has_table_twice(level))
            level.choosing |= several and is_joined(level)
        return reads

    def _group(self, node: Node, scope: SelectScope, outputs: tuple[SelectOutput, ...]) -> None:
        placed = self._placed(node, outputs)
        output = self.output(node, scope) if placed is None else placed
        self._apart(output, "GROUP BY")

    def _placed(self, node: Node, outputs: tuple[SelectOutput, ...]) -> SelectOutput | None:
        """Return the output that a number in GROUP BY or ORDER BY stands for."""
        text = literal(node)
        if text is None or not text.isdecimal():
            return None
        self._check_whole(outputs)
        return outputs[int(text) - 1] if 1 <= int(text) <= len(outputs) else None

    def _check_whole(self, outputs: Iterable[SelectOutput]) -> None:
        """Raise PolicyError if there are columns among these that may not be shown: the number and
        the places of columns would tell of them.
        """
        hidden = [c for output in outputs for c in output.reads if not self._shown(c)]
        if hidden:
            raise unnamed(min(hidden).table)

    # -- expressions -------------------------------------------------------------------------------

    def output(self, node: Node, scope: SelectScope) -> SelectOutput:
        before = self._spreads
        # of the row of which draws follow, the granted columns are taken
        self._drawn = self._deep == 1 and folded(node.get("alias") or "") == BASE
        reads, size = self._reads(node, scope), self._measured(node, scope)
        meant = (self._made.meant(reference, scope) for reference in _refs(node))
        spread = self._spreads > before or any(o.spread for outputs in meant for o in outputs)
        name = node.get("alias") or ""
        if node["class"] == "COLUMN_REF":
            name = name or node["column_names"][-1]
        source, bare = self._source(node, scope), self._made.bare(node, scope)
        if self._made.kind(node, scope) is None:
            self.fallible |= reads
        return SelectOutput(
            folded(str(name)),
            reads,
            self._plain(node, scope),
            literal(node),
            None if source is None else source.table,
            source is not None,
            bare,
            source is None and not self._made.passed(node, scope),
            self._made.strict(node, scope),
            size,
            of_rows=self._made.follows_from_rows(node, scope),
            spread=spread,
        )

    def _plain(self, node: Node, scope: SelectScope) -> ScopeColumn | None:
        """Return the column that the expression is, at most normalised. NULL, or a neutral constant
        in place of NULL, may stand beside it.
        """
        while node["class"] != "COLUMN_REF":
            inner = inside_normalising(node)
            if inner is None:
                return None
            node = inner
        sure, unsure = meanings(node["column_names"], scope)
        columns = {output.same for output in (*sure, *unsure)}
        return columns.pop() if len(columns) == 1 else None

    def _check_named_row(self, names: Sequence[str], scope: SelectScope) -> None:
        """Raise PolicyError for a name that may mean a whole row, or a field of a lambda's
        parameter, where there are columns that may not be shown. Such a column of that name would
        be taken first: another error, or none, would tell of it.
        """
        first, alone = folded(str(names[0])), len(names) == 1
        for level in scope.chain():
            sources = list(level.sources.values())
            if first in level.names:
                if not alone:
                    every = (s for own in level.chain() for s in own.sources.values())
                    self._check_whole(output for source in every for output in source.outputs)
                return
            if alone and any(
                output.name == first and all(map(self._shown, output.reads))
                for source in sources
                for output in source.outputs
            ):
                return
            if alone and first in level.sources:
                self._check_whole(level.sources[first].outputs)

    def _source(self, node: Node, scope: SelectScope) -> ScopeSource | None:
        """Return the source whose whole row it is."""
        names: list[object] = node["column_names"] if node["class"] == "COLUMN_REF" else []
        first = str(names[0]) if len(names) == 1 else ""
        source = next((s.sources[folded(first)] for s in scope.chain()
                       if folded(first) in s.sources), None)  # fmt: skip
        taken = any(o.name == folded(first) for s in scope.chain()
                    for level in s.sources.values() for o in level.outputs)  # fmt: skip
        return None if not first or taken else source

    def reads(self, node: object, scope: SelectScope) -> Reads:
        """Return the columns that expressions read; PolicyError where a value may be too large."""
        columns = self._reads(node, scope)
        self._measured(node, scope)
        return columns

    def _measured(self, node: object, scope: SelectScope) -> SizeBound:
        return DATA if self._sizes is None else self._sizes.measure(node, scope)

    def _reads(self, node: object, scope: SelectScope) -> Reads:
        if isinstance(node, list):
            return frozenset().union(*(self._reads(item, scope) for item in node))
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
                self._functions.check_type(node)
            case "FUNCTION":
                self._functions.check_call(node)
            case "WINDOW":
                if node.get("type") == "WINDOW_AGGREGATE":
                    self._functions.check_call(node)
                self._spreads += not is_bounded(node)
        for name in ("filter", "filter_expr"):
            self._condition(node.get(name), scope, "FILTER")
        return self._inner(node, scope)

    def _inner(self, node: Node, scope: SelectScope) -> Reads:
        columns = frozenset().union(*(self._reads(value, scope) for value in node.values()))
        if 0 < len(columns) <= WIDEST and node.get("class"):
            self.beside.update((column, text) for text in beside(node) for column in columns)
        return columns

    def _column(self, node: Node, scope: SelectScope) -> Reads:
        names = node["column_names"]
        if not self._drawn:
            self._check_named_row(names, scope)
        sure, unsure = meanings(names, scope)
        first = folded(str(names[0]))
        given = any(first in level.names for level in scope.chain())
        if given and len(names) > 1:  # what a parameter has, and not what a table of its name has
            given = not any(first in level.sources for level in scope.chain())
        hidden = any(not self._shown(c) for o in sure if o.name for c in o.reads)
        if hidden or (not sure and not given):
            raise unknown(str(names[min(1, len(names) - 1)]))
        self.named.update(*(output.reads for output in sure if output.name))
        return frozenset().union(*(output.reads for output in (*sure, *unsure)))

    def _subquery(self, node: Node, scope: SelectScope) -> Reads:
        outputs = self.query(node["subquery"]["node"], scope)
        self._spreads += not is_linked(node)
        if node.get("subquery_type") == "ANY" and not self._opaque:
            sides = [self._made.bare(node["child"], scope), *(o.bare for o in outputs)]
            if node.get("comparison_type") == "COMPARE_EQUAL" and None not in sides:
                self._equality(sides, NONE, "IN")
        if self._sizes is not None:
            self._sizes.query(node, [output.size for output in outputs])
        operand_reads = self._reads(node.get("child"), scope)
        if node.get("subquery_type") in ("EXISTS", "NOT_EXISTS"):
            return operand_reads
        return operand_reads.union(*(output.reads for output in outputs))

    def _lambda(self, node: Node, scope: SelectScope) -> Reads:
        names: set[str] = set()
        for item in _refs(node.get("lhs")):
            names.add(folded(item["column_names"][0]))
        inner = SelectScope(scope, names=frozenset(names))
        return self._reads(node.get("lhs"), inner) | self._reads(node.get("expr"), inner)


def _refs(node: object) -> Iterator[Node]:
    return (reference for reference in nodes(node) if reference.get("class") == "COLUMN_REF")


def _refused(what: object) -> PolicyError:
    return PolicyError(f"{what} is not taken{DECIDED}")
