"""Query features beyond a select-project-join: one client evaluates such a query whole, or it is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.planner.grammar.parsing import items_of, joins_of
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Span

# A list of names that avoids some requests; the party's database decides
AGGREGATES = frozenset((
    "any_value", "approx_count_distinct", "approx_quantile", "approx_top_k", "arbitrary", "arg_max",
    "arg_max_null", "arg_max_nulls_last", "arg_min", "arg_min_null", "arg_min_nulls_last", "argmax",
    "argmin", "array_agg", "avg", "bit_and", "bit_or", "bit_xor", "bitstring_agg", "bool_and",
    "bool_or", "combine_aggr", "corr", "count", "count_if", "count_star", "countif", "covar_pop",
    "covar_samp", "decimal_average", "entropy", "favg", "first", "fsum", "geomean",
    "geometric_mean", "group_concat", "histogram", "histogram_exact", "json_group_array",
    "json_group_object", "json_group_structure", "kahan_sum", "kurtosis", "kurtosis_pop", "last",
    "list", "listagg", "lttb", "mad", "max", "max_by", "mean", "median", "min", "min_by", "mode",
    "product", "quantile", "quantile_cont", "quantile_disc", "regr_avgx", "regr_avgy", "regr_count",
    "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy",
    "reservoir_quantile", "sem", "skewness", "stddev", "stddev_pop", "stddev_samp", "string_agg",
    "sum", "sum_no_overflow", "sumkahan", "var_pop", "var_samp", "variance", "variant_group_array",
    "variant_group_object", "wavg", "weighted_avg",
))  # fmt: skip
SEVERAL_ROWS = frozenset(("generate_subscripts", "regexp_split_to_table"))
VOLATILE = frozenset((
    "current_connection_id", "current_query", "current_query_id", "current_transaction_id",
    "currval", "gen_random_uuid", "nextval", "random", "setseed", "setval", "sleep_ms", "uuid",
    "uuidv4", "uuidv7", "write_log",
))  # fmt: skip
CONNECTION = frozenset(("current_schemas", "getvariable", "in_search_path", "txid_current"))
"""Functions of a connection's own state, which a party's connections do not share."""
LOCAL_TABLE_FUNCTIONS = frozenset(("range", "generate_series", "unnest", "repeat", "repeat_row"))


@dataclass(frozen=True)
class Refusal:
    """A feature that several databases cannot evaluate, with its place and an alternative."""

    what: str
    """A noun phrase: 'GROUP BY'."""
    node: exp.Expr | Span | None
    hint: str
    of_rows: bool = False
    """It is an item of FROM that is no party's table."""
    of_join: bool = False
    """Reading FROM decides, as the join may be of two parties."""


_UNNEST = (
    "do it in a derived table over its own table: FROM (SELECT ..., unnest(list) AS element "
    "FROM party.table) AS t JOIN ..."
)
INSIDE = (
    "do it in one party's table first: FROM (SELECT ... FROM party.table ...) AS t JOIN ..., "
    "or leave it out"
)
_BESIDE = (
    "put it beside one party's table in a derived table: "
    "FROM (SELECT ... FROM party.table, unnest(list) AS u(element)) AS t JOIN ..."
)

HINTS = {
    "an aggregate": INSIDE,
    "a window function": INSIDE,
    "a function that gives several rows": _UNNEST,
}


def function_name(node: exp.Expr) -> str:
    name = node.name if isinstance(node, exp.Anonymous) else to_sql(node)
    return name.partition("(")[0].lower()


def is_volatile(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and function_name(node) in VOLATILE


def own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the node and the nodes below it, without the insides of subqueries."""
    yield node
    for child in node.iter_expressions():
        if not isinstance(child, exp.Query):
            yield from own_nodes(child)


def is_aggregate(node: exp.Expr) -> bool:
    """Return whether it has the name of an aggregate of DuckDB; a macro may have it too."""
    return isinstance(node, exp.Anonymous) and function_name(node) in AGGREGATES


def has_hints(select: exp.Select) -> bool:
    """Return whether a column of the SELECT may have several values per row."""
    order = select.args.get("order")
    if order is not None and order.find(exp.Anonymous):
        return True
    shapes = exp.Explode | exp.Unnest | exp.Filter | exp.WithinGroup | exp.Ordered | exp.Distinct
    return any(
        isinstance(node, shapes) or function_name(node) in AGGREGATES | SEVERAL_ROWS
        for projection in select.expressions
        for node in own_nodes(projection)
        if isinstance(node, exp.Anonymous | shapes)
    )


_CLAUSES = {
    "distinct": "DISTINCT", "group": "GROUP BY", "having": "HAVING", "qualify": "QUALIFY",
    "limit": "LIMIT", "offset": "OFFSET", "sample": "a sample", "pivots": "PIVOT",
    "laterals": "LATERAL", "windows": "WINDOW", "into": "INTO",
}  # fmt: skip
_PLAIN = frozenset(
    ("with_", "expressions", "from_", "joins", "where", "order", "this", "expression", "by_name")
)
"""Arguments of a select-project-join; rows have no order in training."""
_PLAIN_TABLE = frozenset(("this", "alias", "db", "catalog", "joins", "pivots", "sample"))
_PLAIN_JOIN = frozenset(("this", "on", "side", "kind", "using", "method", "pivots"))


def _clauses(select: exp.Query) -> Iterator[Refusal]:
    for key, clause in select.args.items():
        if not clause or key in _PLAIN or (isinstance(select, exp.Subquery) and key == "alias"):
            continue
        if key == "distinct" and isinstance(select, exp.SetOperation):
            continue
        node = clause[0] if isinstance(clause, list) else clause
        where = node if isinstance(node, exp.Expr) else select
        hint = GROUPED if key == "group" else INSIDE
        yield Refusal(_CLAUSES.get(key, key.upper().strip("_")), where, hint)


GROUPED = (
    "group by the keys that join the table of the aggregates, or aggregate its rows before the "
    "join: JOIN (SELECT key, avg(x) AS x FROM party.table GROUP BY key) AS u ON u.key = t.key"
)


def _functions(select: exp.Query) -> Iterator[Refusal]:
    for projection in select.expressions:
        for node in own_nodes(projection):
            if isinstance(node, exp.Window):
                yield Refusal("a window function", node, INSIDE)


def _joins(select: exp.Query) -> Iterator[Refusal]:
    for join in joins_of(select):
        refusal = _join(join)
        if refusal is not None:
            place = join.this if join.this.find(exp.Identifier) else join
            yield Refusal(refusal[0], place, refusal[1], of_join=join.method.upper() == "ASOF")
    for item in items_of(select):
        odd = {key for key, value in item.args.items() if value} - _PLAIN_TABLE
        if isinstance(item, exp.Table) and odd:
            yield Refusal(f"{min(odd).upper()} of a table", item, INSIDE)
        elif isinstance(item, exp.Subquery) and (more := odd - {"order", "with_"}):
            yield Refusal(f"{min(more).upper()} after parentheses", item, INSIDE)
        if isinstance(item, exp.Lateral):
            yield Refusal("LATERAL", item, _BESIDE, of_join=True)
        elif isinstance(item, exp.Unnest | exp.Values) or (
            isinstance(item, exp.Table) and isinstance(item.this, exp.Func)
        ):
            what = "VALUES" if isinstance(item, exp.Values) else "a table function"
            yield Refusal(what, item, _BESIDE, of_rows=True)
        if isinstance(item, exp.Table | exp.Subquery) and item.args.get("sample"):
            yield Refusal("a sample", item, INSIDE)
        if isinstance(item, exp.Table | exp.Subquery) and item.args.get("pivots"):
            joined = bool(select.args.get("joins"))
            clause = "UNPIVOT" if item.args["pivots"][0].args.get("unpivot") else "PIVOT"
            yield Refusal(clause, item, INSIDE, of_join=joined)


def _join(join: exp.Join) -> tuple[str, str] | None:
    side, kind, method = join.side.upper(), join.kind.upper(), join.method.upper()
    if join.args.get("nearest"):
        return "NEAREST", "find the nearest row in one party's database, and join on its key"
    if odd := {key for key, value in join.args.items() if value} - _PLAIN_JOIN:
        return f"{min(odd).upper()} of a JOIN", "join on an equality of columns"
    if kind == "SEMI" or side == "SEMI":
        return "SEMI JOIN", "use an inner JOIN with a table that has each key once"
    if kind == "ANTI" or side == "ANTI":
        return "ANTI JOIN", "mark the rows to leave out in their own database, and filter on that"
    if method == "ASOF":
        return "ASOF JOIN", INSIDE
    if method == "POSITIONAL":
        return "POSITIONAL JOIN", "join on an equality of columns"
    if kind not in ("", "INNER", "CROSS", "OUTER") or method not in ("", "NATURAL"):
        return f"{method} {kind} JOIN".strip(), "use an inner JOIN"
    return None


def has_outer_join(select: exp.Query) -> bool:
    """Return whether its FROM has a LEFT, RIGHT or FULL JOIN."""
    return any(join.side.upper() in ("LEFT", "RIGHT", "FULL") for join in joins_of(select))


_CHECKS: tuple[Callable[[exp.Query], Iterator[Refusal]], ...] = (_joins, _clauses, _functions)


def refusals(select: exp.Query) -> Iterator[Refusal]:
    """Yield all features that make the query more than a select-project-join."""
    for check in _CHECKS:
        yield from check(select)
