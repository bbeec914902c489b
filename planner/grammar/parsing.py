"""Parts of DuckDB's grammar on sqlglot's parser, where the tree must keep the original text.

sqlglot reads the columns before a method call (`n.abs()`) and the parameters of lambdas as plain
words. It may lose fields of lambdas, and has a comma and a JOIN in one flat list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from sqlglot import exp
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

from sqlfl.planner.grammar.trees import nodes

COMMA = "sqlfl_comma"
"""Key in the meta of a join: it was written as a comma."""
_DECORATIONS = (exp.Window, exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup)
"""Nodes that may surround a method call: `x.sum() FILTER (...) OVER (...)`."""


class Naming(DuckDBParser):
    """Names stay columns until they are resolved; `x.f(y)` is `Dot(x, f(y))` for any x."""

    def _replace_lambda(self, node: exp.Expr | None, expressions: list[exp.Expr]) -> Any:
        """Keep parameters as columns; sqlglot makes plain words of them."""
        return node

    def _parse_join(
        self,
        skip_join_token: bool = False,
        parse_bracket: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
    ) -> exp.Join | None:
        """Mark a comma, which sqlglot's flat list of joins has like a JOIN."""
        comma = self._curr.token_type == TokenType.COMMA
        join: exp.Join | None = super()._parse_join(skip_join_token, parse_bracket, alias_tokens)
        if join is not None and comma:
            join.meta[COMMA] = True
        return join

    def _parse_column_ops(self, this: exp.Expr | None) -> exp.Expr | None:
        """Read dots, brackets and casts after an operand. sqlglot reads `t.array[1]` as a list."""
        this = self._bracketed(this)
        while True:
            if self._match(TokenType.DOT):
                this = _dotted(this, self._member())
            elif self._match(TokenType.DCOLON):
                type_ = self._parse_dcolon()
                if not type_:
                    self.raise_error("Expected A TYPE")
                this = self.build_cast(strict=self.STRICT_CAST, this=this, to=type_)
            else:
                return this
            this = self._bracketed(this)

    def _bracketed(self, this: exp.Expr | None) -> exp.Expr | None:
        while self._curr and self._curr.token_type in self.BRACKETS:
            bracketed = self._parse_bracket(this)
            if bracketed is this:
                break
            this = bracketed
        return this

    def _member(self) -> exp.Expr | None:
        """Read the word after a dot; `t.true` and `t.null` are columns."""
        word = self._curr
        if word.token_type in self.BRACKETS:
            self.raise_error("Expected A NAME", word)
        if self._next.token_type in self.BRACKETS:
            return self._parse_id_var(any_token=True)  # `t.array[1]` has no ARRAY[1] in it
        field: exp.Expr | None = self._parse_field(any_token=True, anonymous_func=True)
        if field is None:
            self.raise_error("Expected A NAME", word)
        if isinstance(field, exp.Null | exp.Boolean):
            return exp.Identifier(this=word.text, quoted=False).update_positions(word)
        return field


def _dotted(this: exp.Expr | None, member: exp.Expr | None) -> exp.Expr:
    """`this.member`; a name of up to four parts is a column."""
    call = member
    while isinstance(call, _DECORATIONS):
        call = call.this
    if isinstance(call, exp.Func) and member is not None:
        method = exp.Dot(this=this, expression=call.copy())
        if call is member:
            return method
        call.replace(method)
        return member
    parts = this.parts if isinstance(this, exp.Column) else ()
    if 0 < len(parts) < 4 and isinstance(member, exp.Identifier | exp.Star):
        names = (member, *reversed(parts))
        return exp.Column(**dict(zip(("this", "table", "db", "catalog"), names, strict=False)))
    return exp.Dot(this=this, expression=member)


# -- clauses after parentheses ---------------------------------------------------------------------


def move_clauses(query: exp.Query) -> exp.Expr | None:
    """Give `(SELECT ...) ORDER BY x LIMIT 3` its clauses without the parentheses, in place, as
    DuckDB does. An order alone may stay: it changes no rows.

    Return a LIMIT or OFFSET that stays, None if there is none: the query in the parentheses has
    such a clause or an order itself, or is no SELECT.
    """
    for node in reversed(nodes(query, exp.Subquery)):
        clauses = _of_whole(node)
        inner, given = node.this, dict[str, exp.Expr]()
        while isinstance(inner, exp.Subquery):
            given |= _of_whole(inner)
            inner = inner.this
        ordered = {*given}  # by what is between the parentheses
        given |= _of_whole(inner)
        several = ordered or {*given} - {"order"} or {*given} & {*clauses}
        movable = isinstance(inner, exp.Select | exp.SetOperation) and not several
        for key, clause in clauses.items():
            if movable:
                node.set(key, None)
                inner.set(key, clause)
            elif key != "order":
                return clause
    return None


def _of_whole(node: exp.Expr) -> dict[str, exp.Expr]:
    """Return the clauses of a query's rows that hang on the node."""
    return {key: node.args[key] for key in ("limit", "offset", "order") if node.args.get(key)}


# -- FROM ------------------------------------------------------------------------------------------


def group_joins(query: exp.Query) -> None:
    """Put the joins after a comma into parentheses, in place: a comma binds loosest.

    `a, b JOIN c ON ...` is `a, (b JOIN c ON ...)`, in FROM, in parentheses and in subqueries.
    """
    for node in nodes(query):
        joins = node.args.get("joins")
        if isinstance(joins, list) and any(join.meta_get(COMMA) for join in joins[:-1]):
            node.set("joins", _grouped(joins))


def _grouped(joins: list[exp.Join]) -> list[exp.Join]:
    """Attach joins that follow a comma to its item."""
    grouped: list[exp.Join] = []
    following: list[exp.Join] = []
    for join in joins:
        if grouped and grouped[-1].meta_get(COMMA) and not join.meta_get(COMMA):
            following.append(join)
            continue
        _take(grouped, following)
        following = []
        grouped.append(join)
    _take(grouped, following)
    return grouped


def _take(grouped: list[exp.Join], following: list[exp.Join]) -> None:
    if not following:
        return
    item = grouped[-1].this
    if not isinstance(item, exp.Table | exp.Subquery):
        item = exp.Table(this=item)  # a list, values or LATERAL has no joins of its own
    item.set("joins", [*(item.args.get("joins") or []), *following])
    grouped[-1].set("this", exp.Subquery(this=item))


def unions_of(query: exp.SetOperation) -> list[exp.SetOperation]:
    """Return the set operations of `a UNION ALL b UNION ALL c`, the last one first. Each is the
    left operand of the one before it, without parentheses. There may be one for each of many
    parties, so this does not recurse.
    """
    unions = [query]
    while isinstance(unions[-1].this, exp.SetOperation):
        unions.append(unions[-1].this)
    return unions


def is_from(node: exp.Expr) -> bool:
    """Return whether the node is an item of FROM, in parentheses or not, and no SELECT: a table,
    joins, or a SELECT with a name, a PIVOT or a sample.
    """
    if isinstance(node, exp.Subquery):
        given = ("joins", "pivots", "sample")
        return bool(node.alias or any(map(node.args.get, given))) or is_from(node.this)
    return isinstance(node, exp.Table)


def joins_of(item: exp.Expr) -> Iterator[exp.Join]:
    """Yield the joins of a SELECT or of an item of FROM, those in parentheses too."""
    from_ = item.args.get("from_")
    inner = item.this if from_ is None else from_.this
    if isinstance(inner, exp.Expr) and is_from(inner):
        yield from joins_of(inner)
    for join in item.args.get("joins") or []:
        yield join
        yield from joins_of(join.this)


def items_of(select: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the tables, derived tables and calls in the FROM of a SELECT; parentheses before their
    contents.
    """
    from_ = select.args.get("from_")
    for item in [] if from_ is None else [from_.this]:
        yield from _items(item)
    for join in select.args.get("joins") or []:
        yield from _items(join.this)


def _items(node: exp.Expr) -> Iterator[exp.Expr]:
    held = isinstance(node, exp.Table) and isinstance(node.this, exp.UDTF)
    yield node.this if held else node
    if isinstance(node, exp.Subquery) and is_from(node.this):
        yield from _items(node.this)
    for join in node.args.get("joins") or []:
        yield from _items(join.this)
