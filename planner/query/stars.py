"""`*`, `t.*` and their EXCLUDE, REPLACE and RENAME, `* LIKE pattern` and `COLUMNS(...)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, ReplyError
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import function_name, is_aggregate, own_nodes
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import plan_error, span_of
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.names import listed, nearest, struct_field
from sqlfl.planner.query.push import Pusher
from sqlfl.planner.query.relations import Item, Output, Term, fitted
from sqlfl.planner.query.scopes import Scope, StarColumn

Types: TypeAlias = Callable[[Term], tuple[str, ...]]
"""Function that tells the types of an expression at each database of its table."""
_PATTERNS = (exp.Like, exp.ILike, exp.SimilarTo, exp.Glob)
_NO_MATCH = ("No matching columns", "empty set of columns")
"""Words of DuckDB's errors where a pattern matches no name."""


def is_star(node: exp.Expr) -> bool:
    """Return whether a column of the SELECT list stands for any number of columns."""
    if isinstance(node, _PATTERNS):  # `* LIKE pattern` compares names
        node = node.this
        return not isinstance(node, exp.Columns) and is_star(node)
    return isinstance(node, exp.Star | exp.Columns) or (
        isinstance(node, exp.Column) and isinstance(node.this, exp.Star)
    )


def star_within(node: exp.Expr) -> exp.Expr | None:
    """Return the star, or the COLUMNS, that an expression holds: one that is the same wherever it
    stands. None for other expressions, and where it gives an aggregate or several arguments.
    """
    stars: dict[str, exp.Expr] = {}
    for inner in own_nodes(node):
        parent = inner.parent or inner
        if not is_star(inner) or (parent is not node.parent and is_star(parent)):
            continue
        unpacked = inner.args.get("unpack") or function_name(parent) == "unpack"
        if unpacked or is_aggregate(parent):
            return None
        stars[to_sql(inner)] = inner
    return next(iter(stars.values())) if len(stars) == 1 else None


def expand_within(
    node: exp.Expr, star: exp.Expr, scope: Scope, pusher: Pusher, known: Environment
) -> list[Output]:
    """Return a column of the SELECT list for each column of the star in it."""
    text, value = to_sql(star), node.unalias()
    outputs = expand_star(star, scope, pusher, known)
    names = [node.alias or output.name for output in outputs]
    if "\\" in node.alias:  # it refers to parts of the pattern
        if not isinstance(star, exp.Columns) or is_star(star.this):
            raise plan_error(
                "a name with a backslash goes with COLUMNS('pattern')",
                scope.sql,
                node,
                "name the columns",
            )
        alias = exp.Alias(this=star.copy(), alias=node.args["alias"].copy())
        names = _asked(alias, outputs, scope, pusher)
    expanded = []
    span = span_of(node, scope.sql)
    for name, output in zip(names, outputs, strict=True):
        holder = exp.Paren(this=value.copy())
        for inner in [inner for inner in own_nodes(holder.this) if to_sql(inner) == text]:
            inner.replace(fitted(output.term.expression.copy(), inner.parent, holder))
        expanded.append(Output(name, Term(pusher.term(holder.this, scope, known).expression, span)))
    return expanded


def expand_fields(
    node: exp.Expr, scope: Scope, pusher: Pusher, known: Environment, types: Types
) -> list[Output] | None:
    """Return a column for each field of `unnest(struct)`; None for other expressions."""
    if not isinstance(node, exp.Explode) or node.expressions:
        return None
    value = pusher.term(node.this, scope, known)
    value_types = types(value)
    struct = value_types[0] if value_types else ""
    if not struct.upper().startswith("STRUCT(") or not struct.endswith(")"):
        return None
    if len({*value_types}) > 1:
        return None
    empty = exp.Explode(this=trees.cast(exp.null(), struct))
    columns = pusher.tables.catalog.describe(pusher.tables.asked()[0], to_sql(exp.select(empty)))
    span = span_of(node, scope.sql)
    return [
        Output(c.name, Term(struct_field(value.expression.copy(), trees.identifier(c.name)), span))
        for c in columns
    ]


def expand_star(node: exp.Expr, scope: Scope, pusher: Pusher, known: Environment) -> list[Output]:
    """The outputs that the star stands for, in the order of FROM."""
    if isinstance(node, exp.Columns) and is_star(node.this):
        node = node.this  # COLUMNS(* EXCLUDE (a))
    if isinstance(node, _PATTERNS):
        pattern = node.copy()
        pattern.set("this", exp.Star())
        plain = node.this.this if isinstance(node.this, exp.Column) else node.this
        if any(plain.args.values()):
            raise plan_error(
                "a pattern of names is taken of a star without EXCLUDE, REPLACE and RENAME",
                scope.sql,
                node,
                "name the columns",
            )
        return _matching(
            pattern, _Star(node.this, scope, node).outputs(pusher, known), scope, pusher
        )
    if isinstance(node, exp.Columns):
        return _matching(node, _Star(exp.Star(), scope, node).outputs(pusher, known), scope, pusher)
    star = node.this if isinstance(node, exp.Column) else node
    if not star.args.get("ilike"):
        return _Star(node, scope, node).outputs(pusher, known)
    every = node.copy()
    (every.this if isinstance(node, exp.Column) else every).set("ilike", None)
    return _matching(star, _Star(every, scope, node).outputs(pusher, known), scope, pusher)


def _matching(
    pattern: exp.Expr, outputs: list[Output], scope: Scope, pusher: Pusher
) -> list[Output]:
    """Return the outputs whose names match, as a party's database says."""
    matching = {folded(name) for name in _asked(pattern, outputs, scope, pusher)}
    return [output for output in outputs if folded(output.name) in matching]


def _asked(pattern: exp.Expr, outputs: list[Output], scope: Scope, pusher: Pusher) -> list[str]:
    """Return the names that a party's database gives the matching ones of the outputs."""
    catalog = pusher.tables.catalog
    client = next((c for c in pusher.tables.asked() if not catalog.governed(c)), None)
    plain = not any(pattern.args.get(key) for key in ("except_", "replace", "rename"))
    if client is None or not plain:
        raise plan_error(
            "names of columns are compared with a pattern where a database without policies is, "
            "and without EXCLUDE, REPLACE and RENAME",
            scope.sql,
            pattern,
            "name the columns",
        )
    names = dict.fromkeys(output.name for output in outputs)
    shown = (exp.alias_(exp.null(), exp.to_identifier(name, quoted=True)) for name in names)
    row = exp.Subquery(this=exp.select(*shown), alias=exp.TableAlias(this=exp.to_identifier("q")))
    try:
        columns = catalog.describe(client, to_sql(exp.select(pattern.copy()).from_(row)))
    except (LostError, ReplyError):
        raise
    except PartyError as error:
        reason = error.message.split("\n")[0].partition(": ")[2]
        if any(text in reason for text in _NO_MATCH):
            message, hint = "no column of FROM has a name that matches", listed(names)
        else:
            message, hint = f"the columns cannot be chosen: {reason}", "name the columns"
        raise plan_error(message, scope.sql, pattern, hint) from error
    return [column.name for column in columns]


@dataclass(frozen=True)
class _Star:
    node: exp.Expr
    scope: Scope
    written: exp.Expr
    """The node of the query that it comes from."""

    def outputs(self, pusher: Pusher, known: Environment) -> list[Output]:
        star = self.node.this if isinstance(self.node, exp.Column) else self.node
        places = self._places()
        left_out = self._listed(star.args.get("except_") or [], places)
        renames = star.args.get("rename") or []
        names = {e: self._listed([e.this], places) for e in renames}
        replaced = {folded(e.alias): e for e in star.args.get("replace") or []}
        self._refuse_both(star)
        for name, expression in replaced.items():
            self._refuse_none(name, expression, self._columns(name, places))
        self._refuse_lacking(places, left_out)
        outputs: list[Output] = []
        used: set[str] = set()
        span = span_of(self.written, self.scope.sql)
        for shown in self._shown(places, left_out):
            term = Term(shown.term.expression.copy(), span)
            name = shown.name
            if folded(name) in replaced:
                if folded(name) in used:
                    continue  # DuckDB lists it once, however many tables have it
                used.add(folded(name))
                term = pusher.term(replaced[folded(name)].this, self.scope, known)
            pair = (shown.item, folded(name))
            name = next((e.alias for e, pairs in names.items() if pair in pairs), name)
            outputs.append(Output(name, term))
        return outputs

    def _places(self) -> list[int]:
        """Return the places of the star's items."""
        if not isinstance(self.node, exp.Column):
            return list(range(len(self.scope.items)))
        words = [part.name for part in self.node.parts[:-1]]
        places = self.scope.named(words)
        table = ".".join(words)
        if not places:
            raise plan_error(
                f"{table}.*: there is no table {table} in FROM",
                self.scope.sql,
                self.node,
                nearest(table, (i.name for i in self.scope.items)),
            )
        if len(places) > 1:
            raise plan_error(
                f"{table}.* is ambiguous: {len(places)} tables go by the name {table}",
                self.scope.sql,
                self.node,
                "give each table an alias of its own: FROM party.table AS alias",
            )
        return places

    def _shown(self, places: list[int], left_out: frozenset[tuple[int, str]]) -> list[StarColumn]:
        if not isinstance(self.node, exp.Column):
            return list(self.scope.shown(left_out))
        return [
            StarColumn(place, name, term)
            for place in places
            for name, term in self.scope.items[place].columns
            if (place, folded(name)) not in left_out
        ]

    def _listed(self, written: list[exp.Expr], places: list[int]) -> frozenset[tuple[int, str]]:
        """Return (item, column in lower case) of columns written `column` or `table.column`."""
        pairs_listed: set[tuple[int, str]] = set()
        for node in written:
            words = [p.name for p in node.parts] if isinstance(node, exp.Column) else [node.name]
            among = [p for p in self.scope.named(words[:-1]) if p in places]
            pairs = self._columns(words[-1], among if len(words) > 1 else places)
            self._refuse_none(".".join(words), node, pairs)
            pairs_listed |= pairs
        return frozenset(pairs_listed)

    def _columns(self, name: str, places: list[int]) -> set[tuple[int, str]]:
        items = {place: self.scope.items[place] for place in places}
        return {(p, folded(name)) for p, item in items.items() if folded(name) in _names(item)}

    def _refuse_none(self, name: str, node: exp.Expr, pairs: set[tuple[int, str]]) -> None:
        if not pairs:
            names = [n for item in self.scope.items for n, _ in item.columns]
            raise plan_error(
                f"the star has no column {name}",
                self.scope.sql,
                node,
                nearest(name, names) or listed(names),
            )

    def _refuse_both(self, star: exp.Expr) -> None:
        """A column stands in one of the clauses, and once, as in DuckDB."""
        seen: list[tuple[str, ...]] = []
        for key in ("except_", "replace", "rename"):
            for node in star.args.get(key) or []:
                place = {"replace": node.args.get("alias"), "rename": node.this}.get(key, node)
                written = place.parts if isinstance(place, exp.Column) else [place]
                words = tuple(folded(word.name) for word in written)
                if any(_same_column(words, other) for other in seen):
                    raise plan_error(
                        f"EXCLUDE, REPLACE and RENAME name column {'.'.join(words)} twice",
                        self.scope.sql,
                        place,
                        "name it once; of two tables' columns, write table.column",
                    )
                seen.append(words)

    def _refuse_lacking(self, places: list[int], left_out: frozenset[tuple[int, str]]) -> None:
        for place in places:
            item = self.scope.items[place]
            away: dict[str, list[str]] = {}
            for name, client in item.lacking:
                if (place, folded(name)) not in left_out:
                    away.setdefault(client, []).append(name)
            if away:
                listed = "; ".join(f"{c} lacks {', '.join(names)}" for c, names in away.items())
                names = [name for name, _ in item.lacking]
                raise plan_error(
                    f"the star of {item.name} is not the same at all clients: {listed}",
                    self.scope.sql,
                    self.written,
                    f"name the columns, or leave these out: * EXCLUDE ({', '.join(names)})",
                )


def _names(item: Item) -> set[str]:
    return {folded(name) for name, _ in (*item.columns, *item.lacking)}


def _same_column(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    length = min(len(words), len(others))
    return words[-1] == others[-1] and (length == 1 or words == others)
