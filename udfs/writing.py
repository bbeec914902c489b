"""The text of the SQL that parties run.

sqlglot writes any tree, for any dialect, and takes longer over a short query than DuckDB over its
answer. What the party's queries are mostly made of is written here, the same to the letter; all
else, and what has more parts than is known here, by sqlglot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

Parts: TypeAlias = dict[str, Any]
"""The arguments of a node."""
_Writer: TypeAlias = Callable[[Parts], str]

_DUCKDB = Dialect.get_or_raise("duckdb")
_types: dict[exp.DType, str] = {}


def to_sql(tree: exp.Expr) -> str:
    """The tree as DuckDB reads it."""
    found = _WRITERS.get(tree.__class__)
    if found is None or tree.comments:
        return _other(tree)
    write, known = found
    parts = tree.args
    if not parts.keys() <= known and any(v for k, v in parts.items() if k not in known):
        return _other(tree)
    return write(parts)


def _other(tree: exp.Expr) -> str:
    # sqlglot would copy the tree, which takes as long as to write it, lest it changes something: of
    # what is built here, it changes nothing
    return _DUCKDB.generate(tree, copy=False)


def _listed(trees: Iterable[exp.Expr] | None) -> str:
    return ", ".join([to_sql(tree) for tree in trees or ()])


def _identifier(parts: Parts) -> str:
    name: str = parts["this"]
    if parts.get("quoted"):
        return '"' + name.replace('"', '""') + '"'
    return _bare(name)


@lru_cache(maxsize=256)
def _bare(name: str) -> str:
    return _other(exp.Identifier(this=name))


def _column(parts: Parts) -> str:
    name = to_sql(parts["this"])
    table = parts.get("table")
    return name if table is None else f"{to_sql(table)}.{name}"


def _table(parts: Parts) -> str:
    path = [parts[name] for name in ("catalog", "db", "this") if parts.get(name) is not None]
    return ".".join([to_sql(part) for part in path]) + _as(parts)


def _table_alias(parts: Parts) -> str:
    name = to_sql(parts["this"])
    columns = parts.get("columns")
    return f"{name}({_listed(columns)})" if columns else name


def _as(parts: Parts) -> str:
    alias = parts.get("alias")
    return "" if alias is None else f" AS {to_sql(alias)}"


def _literal(parts: Parts) -> str:
    text: str = parts["this"]
    return "'" + text.replace("'", "''") + "'" if parts["is_string"] else text


def _function(parts: Parts) -> str:
    return f"{parts['this'].upper()}({_listed(parts.get('expressions'))})"


def _qualified(parts: Parts) -> str:
    """A function's name is as it was given here."""
    last = parts["expression"]
    if isinstance(last, exp.Anonymous):
        written = f"{last.this}({_listed(last.expressions)})"
    else:
        written = to_sql(last)
    return f"{to_sql(parts['this'])}.{written}"


def _cast(parts: Parts) -> str:
    return f"CAST({to_sql(parts['this'])} AS {to_sql(parts['to'])})"


def _type(parts: Parts) -> str:
    kind = parts["this"]
    if kind not in _types:
        _types[kind] = _other(exp.DataType(this=kind))
    return _types[kind]


def _select(parts: Parts) -> str:
    distinct = " DISTINCT" if parts.get("distinct") else ""
    written = [f"SELECT{distinct} {_listed(parts.get('expressions'))}"]
    joins = parts.get("joins") or ()
    for clause in (parts.get("from_"), *joins, *(parts.get(name) for name in _CLAUSES)):
        if clause is not None:
            text = to_sql(clause)
            written.append(text if text.startswith(",") else f" {text}")
    return "".join(written)


_CLAUSES = ("where", "group", "having", "order")


def _join(parts: Parts) -> str:
    words = [parts[name] for name in ("side", "kind") if parts.get(name)]
    on = parts.get("on")
    condition = "" if on is None else f" ON {to_sql(on)}"
    if not words and on is None:
        return f", {to_sql(parts['this'])}"
    return f"{' '.join([*words, 'JOIN'])} {to_sql(parts['this'])}{condition}"


def _ordered(parts: Parts) -> str:
    asked = parts.get("desc")
    return to_sql(parts["this"]) + ("" if asked is None else " DESC" if asked else " ASC")


def _window(parts: Parts) -> str:
    groups = parts.get("partition_by")
    terms = [f"PARTITION BY {_listed(groups)}"] if groups else []
    if parts.get("order") is not None:
        terms.append(to_sql(parts["order"]))
    return f"{to_sql(parts['this'])} OVER ({' '.join(terms)})"


def _case(parts: Parts) -> str:
    whens = [f"WHEN {to_sql(when.this)} THEN {to_sql(when.args['true'])}" for when in parts["ifs"]]
    default = parts.get("default")
    last = [] if default is None else [f"ELSE {to_sql(default)}"]
    return " ".join(["CASE", *whens, *last, "END"])


def _drop(parts: Parts) -> str:
    exists = " IF EXISTS" if parts.get("exists") else ""
    return f"DROP {parts['kind']}{exists} {_listed(parts['tables'])}"


def _union(parts: Parts) -> str:
    word = "UNION" if parts.get("distinct") else "UNION ALL"
    return f"{to_sql(parts['this'])} {word} {to_sql(parts['expression'])}"


def _between(operator: str) -> _Writer:
    """Of two operands; the first may be one of the same operator, and so on for long."""

    def write(parts: Parts) -> str:
        last = [to_sql(parts["expression"])]
        first = parts["this"]
        while _OPERATORS.get(first.__class__) == operator and first.args.keys() <= _OPERANDS:
            last.append(to_sql(first.args["expression"]))
            first = first.args["this"]
        return f" {operator} ".join([to_sql(first), *reversed(last)])

    return write


_OPERANDS = frozenset({"this", "expression", "safe", "typed"})
_OPERATORS = {
    exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=",
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.DPipe: "||",
    exp.Is: "IS", exp.NullSafeEQ: "IS NOT DISTINCT FROM", exp.NullSafeNEQ: "IS DISTINCT FROM",
    exp.And: "AND", exp.Or: "OR",
}  # fmt: skip

_SIMPLE: dict[type[exp.Expr], tuple[_Writer, str]] = {
    exp.Alias: (lambda p: f"{to_sql(p['this'])} AS {to_sql(p['alias'])}", "this alias"),
    exp.Anonymous: (_function, "this expressions"),
    exp.Case: (_case, "ifs default"),
    exp.Cast: (_cast, "this to"),
    exp.Column: (_column, "this table"),
    exp.DataType: (_type, "this"),
    exp.Dot: (_qualified, "this expression"),
    exp.Drop: (_drop, "tables kind exists"),
    exp.From: (lambda p: f"FROM {to_sql(p['this'])}", "this"),
    exp.Group: (lambda p: f"GROUP BY {_listed(p['expressions'])}", "expressions"),
    exp.Having: (lambda p: f"HAVING {to_sql(p['this'])}", "this"),
    exp.Identifier: (_identifier, "this quoted"),
    exp.In: (lambda p: f"{to_sql(p['this'])} IN ({_listed(p['expressions'])})", "this expressions"),
    exp.Join: (_join, "this side kind on"),
    exp.Literal: (_literal, "this is_string"),
    exp.Not: (lambda p: f"NOT {to_sql(p['this'])}", "this"),
    exp.Null: (lambda p: "NULL", ""),
    exp.Order: (lambda p: f"ORDER BY {_listed(p['expressions'])}", "expressions"),
    exp.Ordered: (_ordered, "this desc"),
    exp.Paren: (lambda p: f"({to_sql(p['this'])})", "this"),
    exp.Placeholder: (lambda p: f"${p['this']}", "this"),
    exp.Select: (_select, "expressions distinct from_ joins where group having order"),
    exp.Star: (lambda p: "*", ""),
    exp.Subquery: (lambda p: f"({to_sql(p['this'])}){_as(p)}", "this alias"),
    exp.Table: (_table, "this db catalog alias"),
    exp.TableAlias: (_table_alias, "this columns"),
    exp.Union: (_union, "this expression distinct"),
    exp.Var: (lambda p: p["this"], "this"),
    exp.Where: (lambda p: f"WHERE {to_sql(p['this'])}", "this"),
    exp.Window: (_window, "this partition_by order over"),
}

_WRITERS = {kind: (write, frozenset(known.split())) for kind, (write, known) in _SIMPLE.items()}
_WRITERS |= {kind: (_between(word), _OPERANDS) for kind, word in _OPERATORS.items()}
