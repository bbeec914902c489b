"""The way to a label: an identity of the released label, independent of the statement's spelling.

A label requested in two ways is noised twice, and the ε add up. Requested again in the same way,
it has the same noise. So the way depends as little as possible on the spelling. It consists of the
label's expression over the columns of its table, without the case of names, aliases, parentheses
and the order of exchangeable parts, and of the table's whole name. The statement's other columns,
and its choice of rows, are not in it.

Two expressions may share a way only if they give the same label for every possible row. Otherwise
one noised label would disclose whether two labels are equal. So no rule here reads a row; each is
an equality for all values, NULL and NaN included. Other expressions stay unchanged, and DuckDB's
own parser reads the text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from sqlglot import exp

from sqlfl.contract.fragment_columns import TARGET
from sqlfl.udfs import sql
from sqlfl.udfs.describe import describe, place_of

Node: TypeAlias = "Mapping[str, Any]"
"""A node of DuckDB's syntax tree, as JSON."""
Form: TypeAlias = "tuple[Any, ...]"
"""A kind, then its parts: forms, texts, numbers."""

_COMPARED = {
    "COMPARE_EQUAL": ("=", False),
    "COMPARE_NOTEQUAL": ("<>", False),
    "COMPARE_LESSTHAN": ("<", False),
    "COMPARE_LESSTHANOREQUALTO": ("<=", False),
    "COMPARE_GREATERTHAN": ("<", True),
    "COMPARE_GREATERTHANOREQUALTO": ("<=", True),
}
"""The comparison that stands for it, and whether the sides are exchanged."""
_OPPOSITE = {"=": ("<>", False), "<>": ("=", False), "<": ("<=", True), "<=": ("<", True)}
_JOINED = {"CONJUNCTION_AND": "and", "CONJUNCTION_OR": "or"}
_BOOLEAN = ("=", "<>", "<", "<=", "and", "or", "not", "is null", "BOOLEAN")
_NUMBERS = ("INTEGER", "NUMERIC")
"""Types of numeric constants."""
_NUMERIC = (
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER",
    "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE",
)  # fmt: skip
_OF_TABLE = ("catalog_name", "schema_name", "table_name")
_EMPTY = (None, "", (), False, "STANDARD_HANDLING", ("ORDER_MODIFIER", ()))
_SAYS_NOTHING = (
    "query_location", "query_location_length", "qualified_name", "is_operator", "class"
)  # fmt: skip


_KINDS = {
    "bool": "BOOLEAN", "logical": "BOOLEAN", "int": "INTEGER", "int4": "INTEGER", "int8": "BIGINT",
    "long": "BIGINT", "short": "SMALLINT", "int2": "SMALLINT", "float8": "DOUBLE",
    "float4": "FLOAT", "real": "FLOAT",
}  # fmt: skip
"""Other names of types."""


@dataclass(frozen=True)
class NamePlace:
    """Meaning of table names at a fragment's evaluation, all in lower case."""

    catalog: str
    schema: str
    """The current ones."""
    schemas: frozenset[str]
    """Schemas of the current database."""


def way_to_label(con: sql.Connection, fragment: str) -> str:
    """Return the way to the label of a fragment that `con` can evaluate, as text; the fragment
    itself unless it is one plain SELECT.
    """
    place, select = _parsed(con, fragment)
    if select is None:
        return fragment
    reader = _Reader(place, _source(select))
    if reader.source is not None and select["from_table"]["type"] == "BASE_TABLE":
        catalog, schema, name = map(select["from_table"].get, _OF_TABLE)
        table = exp.table_(name, db=schema or None, catalog=catalog or None, quoted=True)
        every = sql.to_sql(exp.select(exp.Star()).from_(table))
        reader = replace(reader, types={c.name.lower(): c.type for c in describe(con, every)})
    return json.dumps(reader.way(select), separators=(",", ":"))


def _parsed(con: sql.Connection, fragment: str) -> tuple[NamePlace, Node | None]:
    """Return the fragment as DuckDB's parser reads it, if it is a SELECT with one label."""
    here = place_of(con)
    schemas = exp.select(sql.call("list", sql.call("lower", sql.column("schema_name"))))
    schemas = schemas.from_(exp.Table(this=sql.call("duckdb_schemas")))
    schemas = schemas.where(sql.equal(sql.column("database_name"), sql.string(here[0])))
    wanted = [sql.call("lower", sql.string(name)) for name in here]
    parsed = sql.call("json_serialize_sql", sql.parameter("text"))
    query = exp.select(*wanted, schemas.subquery(), parsed)
    ((catalog, schema, known, text),) = sql.fetch(con, query, {"text": fragment})
    place = NamePlace(catalog, schema, frozenset(known))
    statements = json.loads(text).get("statements", [])
    select: Node = statements[0]["node"] if len(statements) == 1 else {"type": ""}
    plain = select["type"] == "SELECT_NODE" and len(_targets(select)) == 1
    return place, select if plain else None


def _targets(select: Node) -> list[Node]:
    return [item for item in select["select_list"] if _name(item) == TARGET]


def _name(item: Node) -> str:
    return str(item.get("alias") or (item.get("column_names") or [""])[-1]).lower()


def _source(select: Node) -> str | None:
    """Return the name of the one source of FROM; None for joins and renamed columns."""
    source = select["from_table"]
    if source["type"] not in ("BASE_TABLE", "SUBQUERY") or source.get("column_name_alias"):
        return None
    return str(source.get("alias") or source.get("table_name") or "").lower()


@dataclass(frozen=True)
class _Reader:
    place: NamePlace
    source: str | None
    """Name of the single source, in lower case; None if names are taken literally."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of its columns."""
    inner: bool = False
    """True if it is in a query or lambda within the expression, where a single name may
    be local.
    """

    def way(self, select: Node) -> Form:
        """Return the way of a label. With a window, the set of rows decides the label, so WHERE is
        included.
        """
        (target,) = _targets(select)
        label = {name: part for name, part in target.items() if name != "alias"}
        left_out = {"type", "select_list", "from_table"}
        left_out |= set() if '"WINDOW"' in json.dumps(label) else {"where_clause"}
        rest = {name: part for name, part in select.items() if name not in left_out}
        source = select["from_table"]
        if self.source is not None:
            source = {name: part for name, part in source.items() if name != "alias"}
        return ("label", self.form(label), self.form(source), self._rest(rest))

    def form(self, node: Node) -> Form:
        """Return the form of a node and its children."""
        kind, type_ = node.get("class"), str(node.get("type"))
        match kind or type_:
            case "COLUMN_REF":
                return self._column([str(name).lower() for name in node["column_names"]])
            case "CONSTANT":
                return (node["literal"]["kind"], node["literal"].get("text") or "")
            case "BASE_TABLE":
                return (*self.table(node), self._rest(node, "type", *_OF_TABLE))
            case "COMPARISON" if type_ in _COMPARED:
                operator, exchanged = _COMPARED[type_]
                sides = [self.form(node["left"]), self.form(node["right"])]
                return self._compared(operator, *(reversed(sides) if exchanged else sides))
            case "CONJUNCTION":
                return self._joined(_JOINED[type_], [self.form(c) for c in node["children"]])
            case "BETWEEN":
                return self._between(*(self.form(node[p]) for p in ("input", "lower", "upper")))
            case "OPERATOR":
                return self._operator(type_, [self.form(child) for child in node["children"]])
            case "CAST":
                return self._cast(node)
            case "FUNCTION":
                return self._call(node)
            case "SUBQUERY" | "SELECT_NODE" | "LAMBDA":
                return (type_, replace(self, inner=True, types={})._rest(node, "type"))
        return (type_, self._rest(node, "type"))

    def _column(self, names: Sequence[str]) -> Form:
        """Return a column of the source, where that is certain; a field's names follow the
        column's.
        """
        if self.source is not None and len(names) > 1 and names[0] == self.source:
            return ("column", *names[1:])
        return ("name" if self.inner or self.source is None else "column", *names)

    def table(self, node: Node) -> Form:
        """('table', database, schema, name); the current database is '', for files are renamed."""
        catalog, schema, name = (str(node.get(part) or "").lower() for part in _OF_TABLE)
        here = self.place
        if not catalog and not schema:
            return ("table", "", here.schema, name)
        if not catalog and schema not in here.schemas:
            catalog, schema = schema, "main"
        return ("table", "" if catalog == here.catalog else catalog, schema, name)

    def _operator(self, type_: str, parts: list[Form]) -> Form:
        if type_ == "OPERATOR_NOT":
            return self._negated(parts[0])
        if type_ == "OPERATOR_IS_NULL":
            return ("is null", parts[0])
        if type_ == "OPERATOR_IS_NOT_NULL":
            return ("not", ("is null", parts[0]))
        if type_ == "COMPARE_IN":
            return (type_, parts[0], *sorted(set(parts[1:]), key=repr))
        return (type_, *parts)

    def _cast(self, node: Node) -> Form:
        """Return a cast, unless the column has the type already. A cast of a text may remove a
        collation.
        """
        value = self.form(node["child"])
        name = str(node["type_expr"].get("type_name")).lower()
        kind = _KINDS.get(name, name.upper())
        if kind != "VARCHAR" and kind == self._type(value):
            return value
        return ("cast", value, self._rest(node, "type", "child"))

    def _call(self, node: Node) -> Form:
        """Return a function call; `r.text.upper()` is one with three names."""
        names = [str(name).lower() for name in node["qualified_name"]["path"]]
        if len(names) > 1 and names[0] == self.source:
            names = ["column", *names[1:]]
        rest = self._rest(node, "type", "function_name", "schema", "catalog", "arguments")
        given = tuple(
            (str(part.get("name") or ""), self.form(part["expression"]))
            for part in node.get("arguments") or ()
        )
        if names in (["+"], ["*"]) and any(part[1][0] in _NUMBERS for part in given):
            given = tuple(sorted(given, key=repr))
        return ("call", tuple(names), given, rest)

    def _rest(self, node: Node, *without: str) -> Form:
        """Return all other parts by name."""
        parts = (
            (name, self._part(name, part))
            for name, part in sorted(node.items())
            if name not in (*_SAYS_NOTHING, *without)
        )
        return tuple(item for item in parts if item[1] not in _EMPTY)

    def _part(self, name: str, part: Any) -> Any:
        if isinstance(part, Mapping):
            return self.form(part) if "type" in part else self._rest(part)
        if isinstance(part, list):
            return tuple(self._part(name, item) for item in part)
        return part.lower() if name in ("type_name", "column_names") else part

    # -- equalities -------------------------------------------------------------------------------

    def _compared(self, operator: str, left: Form, right: Form) -> Form:
        """Return a comparison. A boolean compared with true is the boolean itself."""
        if operator not in ("=", "<>"):
            return (operator, left, right)
        for one, other in ((left, right), (right, left)):
            if one[0] == "BOOLEAN" and self._boolean(other):
                same = (one[1] == "true") == (operator == "=")
                return other if same else self._negated(other)
        return (operator, *sorted((left, right), key=repr))

    def _between(self, value: Form, low: Form, high: Form) -> Form:
        """Return BETWEEN of numbers: DuckDB compares the three as one type."""
        if self._type(value) in _NUMERIC and low[0] in _NUMBERS and high[0] in _NUMBERS:
            return self._joined("and", [("<=", low, value), ("<=", value, high)])
        return ("between", value, low, high)

    def _negated(self, form: Form) -> Form:
        if form[0] in _OPPOSITE:
            operator, exchanged = _OPPOSITE[form[0]]
            return self._compared(operator, *(form[:0:-1] if exchanged else form[1:]))
        if form[0] in ("and", "or"):
            other = "or" if form[0] == "and" else "and"
            return self._joined(other, [self._negated(part) for part in form[1:]])
        if form[0] == "not" and self._boolean(form[1]):
            inner: Form = form[1]
            return inner
        return ("not", form)

    def _joined(self, operator: str, parts: Sequence[Form]) -> Form:
        """Return conditions under AND or OR: in any order, each once, without neutral ones."""
        flat = {p for part in parts for p in (part[1:] if part[0] == operator else (part,))}
        nothing = ("BOOLEAN", "true" if operator == "and" else "false")
        parts_ = sorted(flat - {nothing}, key=repr) or [nothing]
        return parts_[0] if len(parts_) == 1 and self._boolean(parts_[0]) else (operator, *parts_)

    def _boolean(self, form: Form) -> bool:
        return form[0] in _BOOLEAN or self._type(form) == "BOOLEAN"

    def _type(self, form: Form) -> str | None:
        """Return the type of a column of the source."""
        return self.types.get(form[1]) if form[0] == "column" and len(form) == 2 else None
