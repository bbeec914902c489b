"""What is more than a select-project-join: it goes to one client whole, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlglot import exp

from sqlfl.planner.parsing import items_of, joins_of

# duckdb_functions(): aggregates that sqlglot does not know for such, and volatile functions
_AGGREGATES = """
arbitrary arg_max_null arg_max_nulls_last arg_min_null arg_min_nulls_last bitstring_agg
combine_aggr count_star decimal_average entropy favg fsum histogram histogram_exact kahan_sum
kurtosis_pop lttb mad mean product reservoir_quantile sem sum_no_overflow sumkahan
variant_group_object
"""
AGGREGATES = frozenset(_AGGREGATES.split())
_VOLATILE = """
random uuid gen_random_uuid uuidv4 uuidv7 nextval currval setval setseed sleep_ms write_log
current_query current_query_id current_transaction_id current_connection_id txid_current
getvariable
"""
VOLATILE = frozenset(_VOLATILE.split())
LOCAL_TABLE_FUNCTIONS = frozenset(("range", "generate_series", "unnest", "repeat", "repeat_row"))


@dataclass(frozen=True)
class Refusal:
    """What cannot be done over several databases, where, and what to write instead."""

    what: str
    """A noun phrase: 'GROUP BY'."""
    node: exp.Expr
    hint: str


_INSIDE = (
    "do it in one party's table first: FROM (SELECT ... FROM party.table ...) AS t JOIN ..., "
    "or leave it out"
)


def function_name(node: exp.Func) -> str:
    name = node.name if isinstance(node, exp.Anonymous) else node.sql(dialect="duckdb")
    return name.partition("(")[0].lower()


def own_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """The node and what is below it, without the insides of subqueries."""
    yield node
    for child in node.iter_expressions():
        if not isinstance(child, exp.Query):
            yield from own_nodes(child)


def is_aggregate(node: exp.Expr) -> bool:
    if isinstance(node, exp.Anonymous):  # a method's name is not looked up by sqlglot
        known = exp.FUNCTION_BY_NAME.get(node.name.upper(), exp.Anonymous)
        return node.name.lower() in AGGREGATES or issubclass(known, exp.AggFunc)
    return isinstance(node, exp.AggFunc)


def is_volatile(node: exp.Expr) -> bool:
    if isinstance(node, exp.Rand | exp.Randn | exp.Uuid):
        return True
    return isinstance(node, exp.Func) and function_name(node) in VOLATILE


def _clauses(select: exp.Query) -> Iterator[Refusal]:
    names = {
        "distinct": "DISTINCT", "group": "GROUP BY", "having": "HAVING", "qualify": "QUALIFY",
        "order": "ORDER BY", "limit": "LIMIT", "offset": "OFFSET", "sample": "a sample",
        "pivots": "PIVOT", "laterals": "LATERAL", "windows": "WINDOW", "fetch": "FETCH",
        "connect": "CONNECT BY", "match": "MATCH_RECOGNIZE", "into": "INTO",
    }  # fmt: skip
    for key, name in names.items():
        clause = select.args.get(key)
        if clause and not (key == "distinct" and isinstance(select, exp.SetOperation)):
            node = clause[0] if isinstance(clause, list) else clause
            hint = _INSIDE
            if key == "order":
                hint = "rows have no order in training; leave ORDER BY out"
            yield Refusal(name, node if isinstance(node, exp.Expr) else select, hint)


def _functions(select: exp.Query) -> Iterator[Refusal]:
    for projection in select.expressions:
        for node in own_nodes(projection):
            if isinstance(node, exp.Window):
                yield Refusal("a window function", node, _INSIDE)
            elif is_aggregate(node):
                yield Refusal("an aggregate", node, _INSIDE)
            elif isinstance(node, exp.Explode | exp.Unnest):
                yield Refusal("unnest", node, _INSIDE)


def _joins(select: exp.Query) -> Iterator[Refusal]:
    for join in joins_of(select):
        found = _join(join)
        if found is not None:
            yield Refusal(found[0], join.this if join.this.find(exp.Identifier) else join, found[1])
    for item in items_of(select):
        if isinstance(item, exp.Lateral):
            yield Refusal("LATERAL", item, "join on an equality instead")
        elif isinstance(item, exp.Unnest | exp.Values) or (
            isinstance(item, exp.Table) and isinstance(item.this, exp.Func)
        ):
            what = "VALUES" if isinstance(item, exp.Values) else "a table function"
            yield Refusal(what, item, "FROM joins tables of parties: party.table")
        if isinstance(item, exp.Table | exp.Subquery) and item.args.get("sample"):
            yield Refusal("a sample", item, _INSIDE)
        if isinstance(item, exp.Table | exp.Subquery) and item.args.get("pivots"):
            yield Refusal("PIVOT", item, _INSIDE)


def _join(join: exp.Join) -> tuple[str, str] | None:
    side, kind, method = join.side.upper(), join.kind.upper(), join.method.upper()
    if side == "FULL":
        return "FULL JOIN", "use a LEFT JOIN from the table whose rows must all be there"
    if kind == "SEMI" or side == "SEMI":
        return "SEMI JOIN", "use an inner JOIN with a table that has each key once"
    if kind == "ANTI" or side == "ANTI":
        return "ANTI JOIN", "mark the rows to leave out in their own database, and filter on that"
    if method == "ASOF":
        return "ASOF JOIN", "round both times to the same unit, and join on equality"
    if method == "POSITIONAL":
        return "POSITIONAL JOIN", "join on an equality of columns"
    if kind not in ("", "INNER", "CROSS", "OUTER") or method not in ("", "NATURAL"):
        return f"{method} {kind} JOIN".strip(), "use an inner JOIN"
    return None


def has_outer_join(select: exp.Query) -> bool:
    """Whether its FROM has a LEFT or RIGHT JOIN."""
    return any(join.side.upper() in ("LEFT", "RIGHT") for join in joins_of(select))


_CHECKS: tuple[Callable[[exp.Query], Iterator[Refusal]], ...] = (_joins, _clauses, _functions)


def refusals(select: exp.Query) -> Iterator[Refusal]:
    """All that makes the query more than a select-project-join."""
    for check in _CHECKS:
        yield from check(select)
