"""Syntax trees written as SQL, faster than by sqlglot.

sqlglot writes any tree, for any dialect, and takes longer over a short query than DuckDB over its
answer. Trees of the usual nodes are written here, the same to the letter. A tree that has others,
or more parts than are known here, is left to sqlglot as a whole: what it writes of a part may
depend on what is around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from sqlglot import exp

Parts: TypeAlias = dict[str, Any]
"""The arguments of a node."""
_MOST = 4096


class _Unusual(Exception):
    """The tree is not one to be written here."""


class SqlWriter:
    """Called with a tree, returns its text. `other` is sqlglot's way, in the dialect that is meant,
    which is to leave a tree as it is."""

    def __init__(self, other: Callable[[exp.Expr], str]) -> None:
        self._other = other
        self._bare: dict[str, str] = {}
        self._types: dict[exp.DType, str] = {}

    def __call__(self, tree: exp.Expr) -> str:
        try:
            return self.part(tree)
        except _Unusual:
            return self._other(tree)

    def part(self, tree: exp.Expr) -> str:
        found = _WRITERS.get(tree.__class__)
        if found is None or tree.comments:
            raise _Unusual
        write, known = found
        return write(self, _known(tree.args, known))

    def listed(self, trees: Iterable[exp.Expr] | None) -> str:
        return ", ".join([self.part(tree) for tree in trees or ()])

    def bare(self, name: str) -> str:
        """A name without quotes, but where the dialect needs them."""
        found = self._bare.get(name)
        if found is None:
            if len(self._bare) >= _MOST:
                self._bare.clear()  # of other threads too
            found = self._bare[name] = self._other(exp.Identifier(this=name))
        return found

    def type(self, kind: exp.DType) -> str:
        if kind not in self._types:
            self._types[kind] = self._other(exp.DataType(this=kind))
        return self._types[kind]


def _known(parts: Parts, known: frozenset[str]) -> Parts:
    more = () if parts.keys() <= known else parts.keys() - known
    if any(_told(name, parts[name]) for name in more):
        raise _Unusual
    return parts


_Write: TypeAlias = Callable[[SqlWriter, Parts], str]


def _told(name: str, part: object) -> bool:
    """It changes the text: false means NULLS LAST, and GROUP BY DISTINCT."""
    return bool(part) or (part is False and name in ("nulls_first", "all"))


def _identifier(w: SqlWriter, parts: Parts) -> str:
    name: str = parts["this"]
    if parts.get("quoted"):
        return '"' + name.replace('"', '""') + '"'
    return w.bare(name)


def _column(w: SqlWriter, parts: Parts) -> str:
    name = w.part(parts["this"])
    table = parts.get("table")
    return name if table is None else f"{w.part(table)}.{name}"


def _table(w: SqlWriter, parts: Parts) -> str:
    path = [parts[name] for name in ("catalog", "db", "this") if parts.get(name) is not None]
    return ".".join([w.part(part) for part in path]) + _as(w, parts)


def _table_alias(w: SqlWriter, parts: Parts) -> str:
    if parts.get("this") is None:
        raise _Unusual
    name = w.part(parts["this"])
    columns = parts.get("columns")
    return f"{name}({w.listed(columns)})" if columns else name


def _as(w: SqlWriter, parts: Parts) -> str:
    alias = parts.get("alias")
    return "" if alias is None else f" AS {w.part(alias)}"


def _literal(w: SqlWriter, parts: Parts) -> str:
    text: str = parts["this"]
    return "'" + text.replace("'", "''") + "'" if parts["is_string"] else text


def _function(w: SqlWriter, parts: Parts) -> str:
    return f"{_name(w, parts['this']).upper()}({w.listed(parts.get('expressions'))})"


def _name(w: SqlWriter, name: str | exp.Expr) -> str:
    return name if isinstance(name, str) else w.part(name)


def _qualified(w: SqlWriter, parts: Parts) -> str:
    """A function's name is as it was given here."""
    last = parts["expression"]
    if isinstance(last, exp.Anonymous):
        written = f"{_name(w, last.this)}({w.listed(last.expressions)})"
    else:
        written = w.part(last)
    return f"{w.part(parts['this'])}.{written}"


def _cast(w: SqlWriter, parts: Parts) -> str:
    return f"CAST({w.part(parts['this'])} AS {w.part(parts['to'])})"


def _select(w: SqlWriter, parts: Parts) -> str:
    distinct = parts.get("distinct")
    first = "SELECT" if distinct is None else f"SELECT {w.part(distinct)}"
    written = [f"{first} {w.listed(parts.get('expressions'))}"]
    joins = parts.get("joins") or ()
    for clause in (parts.get("from_"), *joins, *(parts.get(name) for name in _CLAUSES)):
        if clause is not None:
            text = w.part(clause)
            written.append(text if text.startswith(",") else f" {text}")
    return "".join(written)


_CLAUSES = ("where", "group", "having", "order")


def _join(w: SqlWriter, parts: Parts) -> str:
    words = [parts[name] for name in ("side", "kind") if parts.get(name)]
    on = parts.get("on")
    condition = "" if on is None else f" ON {w.part(on)}"
    if not words and on is None:
        return f", {w.part(parts['this'])}"
    return f"{' '.join([*words, 'JOIN'])} {w.part(parts['this'])}{condition}"


def _ordered(w: SqlWriter, parts: Parts) -> str:
    asked = parts.get("desc")
    return w.part(parts["this"]) + ("" if asked is None else " DESC" if asked else " ASC")


def _window(w: SqlWriter, parts: Parts) -> str:
    groups = parts.get("partition_by")
    terms = [f"PARTITION BY {w.listed(groups)}"] if groups else []
    if parts.get("order") is not None:
        terms.append(w.part(parts["order"]))
    return f"{w.part(parts['this'])} OVER ({' '.join(terms)})"


def _case(w: SqlWriter, parts: Parts) -> str:
    whens = [f"WHEN {w.part(when.this)} THEN {w.part(when.args['true'])}" for when in parts["ifs"]]
    default = parts.get("default")
    last = [] if default is None else [f"ELSE {w.part(default)}"]
    return " ".join(["CASE", *whens, *last, "END"])


def _drop(w: SqlWriter, parts: Parts) -> str:
    exists = " IF EXISTS" if parts.get("exists") else ""
    return f"DROP {parts['kind']}{exists} {w.listed(parts['tables'])}"


def _in(w: SqlWriter, parts: Parts) -> str:
    return f"{w.part(parts['this'])} IN ({w.listed(parts.get('expressions'))})"


def _union(w: SqlWriter, parts: Parts) -> str:
    """The left operand may be a union again, and so on for long."""
    last: list[str] = []
    while True:
        word = "UNION" if parts.get("distinct") else "UNION ALL"
        last += [w.part(parts["expression"]), word]
        first = parts["this"]
        if first.__class__ is not exp.Union or first.comments:
            return " ".join([w.part(first), *reversed(last)])
        parts = _known(first.args, _UNION)


def _between(operator: str) -> _Write:
    """Of two operands; the first may be one of the same operator, and so on for long."""

    def write(w: SqlWriter, parts: Parts) -> str:
        last = [w.part(parts["expression"])]
        first = parts["this"]
        while _is_plain(first, operator):
            last.append(w.part(first.args["expression"]))
            first = first.args["this"]
        return f" {operator} ".join([w.part(first), *reversed(last)])

    return write


def _is_plain(tree: exp.Expr, operator: str) -> bool:
    same = _OPERATORS.get(tree.__class__) == operator
    return same and not tree.comments and tree.args.keys() <= _OPERANDS


_UNION = frozenset({"this", "expression", "distinct"})
_OPERANDS = frozenset({"this", "expression", "safe", "typed"})
_OPERATORS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=",
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.DPipe: "||",
    exp.Is: "IS", exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.And: "AND", exp.Or: "OR",
}  # fmt: skip

_SIMPLE: dict[type[exp.Expr], tuple[_Write, str]] = {
    exp.Alias: (lambda w, p: f"{w.part(p['this'])} AS {w.part(p['alias'])}", "this alias"),
    exp.Anonymous: (_function, "this expressions"),
    exp.Case: (_case, "ifs default"),
    exp.Cast: (_cast, "this to"),
    exp.Column: (_column, "this table"),
    exp.DataType: (lambda w, p: w.type(p["this"]), "this"),
    exp.Distinct: (lambda w, p: "DISTINCT", ""),
    exp.Dot: (_qualified, "this expression"),
    exp.Drop: (_drop, "tables kind exists"),
    exp.From: (lambda w, p: f"FROM {w.part(p['this'])}", "this"),
    exp.Group: (lambda w, p: f"GROUP BY {w.listed(p['expressions'])}", "expressions"),
    exp.Having: (lambda w, p: f"HAVING {w.part(p['this'])}", "this"),
    exp.Identifier: (_identifier, "this quoted"),
    exp.In: (_in, "this expressions"),
    exp.Join: (_join, "this side kind on"),
    exp.Literal: (_literal, "this is_string"),
    exp.Not: (lambda w, p: f"NOT {w.part(p['this'])}", "this"),
    exp.Null: (lambda w, p: "NULL", ""),
    exp.Order: (lambda w, p: f"ORDER BY {w.listed(p['expressions'])}", "expressions"),
    exp.Ordered: (_ordered, "this desc"),
    exp.Paren: (lambda w, p: f"({w.part(p['this'])})", "this"),
    exp.Placeholder: (lambda w, p: f"${_name(w, p['this'])}" if p.get("this") else "?", "this"),
    exp.Select: (_select, "expressions distinct from_ joins where group having order"),
    exp.Star: (lambda w, p: "*", ""),
    exp.Subquery: (lambda w, p: f"({w.part(p['this'])}){_as(w, p)}", "this alias"),
    exp.Table: (_table, "this db catalog alias"),
    exp.TableAlias: (_table_alias, "this columns"),
    exp.Union: (_union, "this expression distinct"),
    exp.Var: (lambda w, p: p["this"], "this"),
    exp.Where: (lambda w, p: f"WHERE {w.part(p['this'])}", "this"),
    exp.Window: (_window, "this partition_by order over"),
}

_WRITERS = {kind: (write, frozenset(known.split())) for kind, (write, known) in _SIMPLE.items()}
_WRITERS |= {kind: (_between(word), _OPERANDS) for kind, word in _OPERATORS.items()}
