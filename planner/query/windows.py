"""Windows between two parties' days or whole numbers, as equalities.

`l.day BETWEEN v.day - 7 AND v.day` holds if one of `l.day`, `l.day + 1`, ..., `l.day + 7` equals
`v.day`. Then exactly one of them does. So the rows of one table are repeated, one with each of
these keys, and joined by equality. Each pair of rows within the window occurs once.

`v.id = l.x OR v.id = l.y` holds in the same way if one of the distinct values of `l.x` and `l.y` is
`v.id`.

`Step` is such a window in a subquery. `u.day BETWEEN t.day - 7 AND t.day` holds if `t.day` is one
of `u.day`, `u.day + 1`, ..., `u.day + 7`, and then exactly one. So the subquery's rows are joined
with the numbers 0 to 7, and `u.day` plus the number equals `t.day`. Each outer row meets each row
in its window once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from sqlglot import exp

from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.contract.schema import folded
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import nodes
from sqlfl.planner.query import types
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.groups import OF_NUMBERS
from sqlfl.planner.query.relations import DraftBlock, Group, OuterJoin, Term, operand
from sqlfl.planner.query.scalars import with_rows

MAX_WIDTH = 400
"""Days or whole numbers of a window."""
GOVERNED = (
    "a window needs computed keys of {}, and under its owner's policies a join compares columns as "
    "they are"
)
GOVERNED_HINT = (
    "compare columns of the tables, a.x = b.y; a view with a column for the week or month may be "
    "granted for JOIN"
)
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
"""The comparison that holds with its sides exchanged."""
_DAYS = re.compile(r"(-?\d{1,6}) ?(days?|weeks?)", re.IGNORECASE)
UNITS = frozenset(
    f"{unit}{end}" for unit in ("second", "minute", "hour", "month", "quarter", "year")
    for end in ("", "s")
)  # fmt: skip
"""Units of date_diff() that count boundaries between two times; of weeks it counts others."""
TIMES = frozenset(("TIMESTAMP", "DATE"))
"""Types of times without a time zone, which a party's database has for itself."""
_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER")
"""Types of whole numbers to which a BIGINT adds any window without overflow."""
_LARGE = ("BIGINT", "UBIGINT")
"""Types of whole numbers to which a HUGEINT does."""


def join_windows(draft: Draft) -> Draft:
    """Replace conditions that bound the difference of two parties' values by equalities.

    Both values have the type DATE, or one of whole numbers, and the window is of at most MAX_WIDTH
    values. The conditions are those of an inner join, or of the ON of a LEFT JOIN, whose right side
    is then repeated. Others are left to the rules that refuse them.
    """
    blocks = []
    remarks: list[str] = list(draft.remarks)
    for block in draft.blocks:
        found: DraftBlock | None = block
        while found is not None:
            block = found
            found = _with_one_window(draft, block, remarks)
        blocks.append(block)
    return replace(draft, blocks=tuple(blocks), remarks=tuple(dict.fromkeys(remarks)))


class Reads(Protocol):
    """Function that returns the tables which an expression reads."""

    def reads(self, term: Term) -> tuple[int, ...]:
        """Return numbers of the tables."""


@dataclass(frozen=True)
class Window:
    """`low <= plus - minus <= high`; None for no bound."""

    plus: exp.Expr
    minus: exp.Expr
    low: int | None
    high: int | None
    has_days: bool
    """True if it names an INTERVAL, so that its values are days."""
    at_infinity: bool
    """True if it holds of two infinite days that are equal."""
    times: tuple[exp.Expr, ...] = ()
    """The times that plus and minus count hours, months and the like of."""

    @property
    def pair(self) -> tuple[str, str]:
        return to_sql(self.plus), to_sql(self.minus)

    @property
    def width(self) -> int | None:
        """Return the number of its values; None if an end is open."""
        return None if self.low is None or self.high is None else self.high - self.low + 1

    @property
    def turned(self) -> Window:
        """Return the same window, of `minus - plus`."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        times = self.times[::-1]
        return Window(self.minus, self.plus, low, high, self.has_days, self.at_infinity, times)

    def within(self, other: Window) -> Window:
        """Return the window in which both hold."""
        lows = [w.low for w in (self, other) if w.low is not None]
        highs = [w.high for w in (self, other) if w.high is not None]
        low, high = max(lows, default=None), min(highs, default=None)
        return replace(
            self,
            low=low,
            high=high,
            has_days=self.has_days or other.has_days,
            at_infinity=self.at_infinity and other.at_infinity,
        )


@dataclass(frozen=True)
class _Place:
    """Conditions that hold together, and a function that replaces them in the tree."""

    conditions: tuple[Term, ...]
    inside: frozenset[int]
    """Relations that a window may be of: of ON one of them, else two."""
    is_on: bool
    put: Callable[[tuple[Term, ...]], Group]


def _with_one_window(draft: Draft, block: DraftBlock, remarks: list[str]) -> DraftBlock | None:
    for place in _places(block, block.tree):
        windows: dict[tuple[str, str], tuple[Window, list[Term]]] = {}
        for term in place.conditions:
            window = window_of(block, term.expression)
            if window is None or not _is_apart(block, place, window):
                continue
            window = min(window, window.turned, key=lambda w: w.pair)
            earlier, terms = windows.get(window.pair, (window, []))
            windows[window.pair] = earlier.within(window), [*terms, term]
        for window, terms in windows.values():
            replaced = _joined(draft, block, place, window, terms, remarks)
            if replaced is not None:
                return replaced
        for term in place.conditions:
            replaced = _chosen(draft, block, place, term, remarks)
            if replaced is not None:
                return replaced
    return None


def _chosen(
    draft: Draft, block: DraftBlock, place: _Place, term: Term, remarks: list[str]
) -> DraftBlock | None:
    """Return the block with an equality in place of `b.x = a.k OR b.y = a.k`.

    Each row of b is repeated, once for each of its distinct keys x and y. Return None for other
    conditions.
    """
    choice = _choice(term.expression)
    if choice is None:
        return None
    value, keys = choice
    reads = [block.reads(Term(node, None)) for node in (value, *keys)]
    if any(len(read) != 1 for read in reads) or len({*reads[1:]}) != 1 or reads[0] == reads[1]:
        return None
    ends = [reads[0][0], reads[1][0]]
    repeated = ends[1]
    target = None if draft.target_position is None else block.outputs[draft.target_position].term
    if not _are_apart(block, place, ends) or (place.is_on and repeated not in place.inside):
        return None
    if target is not None and repeated in block.reads(target):
        return None
    kind = _kind(draft, block, (value, *keys), (ends[0], *(repeated for _ in keys)))
    if kind is None:
        return None
    if _is_governed(draft, block, repeated):
        raise draft.error(
            GOVERNED.format(block.relations[repeated].label), term.span, GOVERNED_HINT
        )
    each = exp.Array(expressions=[trees.cast(key, kind) for key in keys])
    distinct = system_call("unnest", system_call("list_distinct", each))
    block = _with_used_columns(block, repeated)
    fresh = _fresh(block)
    block, (name,) = with_rows(
        block, repeated, [Term(distinct, term.span)], fresh, "one of the keys"
    )
    equality = Term(exp.EQ(this=operand(value.copy()), expression=name), term.span)
    remaining = tuple(other for other in place.conditions if other is not term)
    remarks.append(
        f"{block.relations[repeated].name} sends {len(keys)} keys for each row, of which one or "
        "another is to be equal"
    )
    return replace(block, tree=place.put((*remaining, equality)))


def _choice(condition: exp.Expr) -> tuple[exp.Expr, list[exp.Expr]] | None:
    """Return the value and the keys of `value = key OR value = key`, also as IN; else None."""
    condition = condition.unnest()
    if isinstance(condition, exp.In):
        keys = condition.expressions
        return (condition.this, keys) if len(keys) > 1 and not condition.args.get("query") else None
    parts = [part.unnest() for part in condition.flatten()] if isinstance(condition, exp.Or) else []
    if len(parts) < 2 or not all(isinstance(part, exp.EQ) for part in parts):
        return None
    sides = [(part.args["this"], part.args["expression"]) for part in parts]
    for value in sides[0]:
        text = to_sql(value)
        keys = [next((s for s in pair if to_sql(s) != text), None) for pair in sides]
        if all(text in map(to_sql, pair) for pair in sides) and None not in keys:
            return value, [key for key in keys if key is not None]
    return None


def _places(block: DraftBlock, tree: Group) -> Iterator[_Place]:
    """Yield the conditions of the tree's groups and ONs."""

    def of_group(group: Group, put: Callable[[Group], Group]) -> Iterator[_Place]:
        core = frozenset(block.of(id_) for id_ in group.core)
        yield _Place(
            group.conditions, core, False, lambda terms: put(replace(group, conditions=terms))
        )
        for number, left in enumerate(group.lefts):
            put_left = _put_left(group, number, put)
            right = frozenset(block.of(id_) for id_ in left.group.core)
            yield _Place(left.on, right, True, _put_on(left, put_left))
            yield from of_group(left.group, _put_group(left, put_left))

    return of_group(tree, lambda group: group)


def _put_left(
    group: Group, number: int, put: Callable[[Group], Group]
) -> Callable[[OuterJoin], Group]:
    before, after = group.lefts[:number], group.lefts[number + 1 :]
    return lambda left: put(replace(group, lefts=(*before, left, *after)))


def _put_on(
    left: OuterJoin, put: Callable[[OuterJoin], Group]
) -> Callable[[tuple[Term, ...]], Group]:
    return lambda terms: put(replace(left, on=terms))


def _put_group(left: OuterJoin, put: Callable[[OuterJoin], Group]) -> Callable[[Group], Group]:
    return lambda group: put(replace(left, group=group))


def _is_apart(block: DraftBlock, place: _Place, window: Window) -> bool:
    """Return whether two databases have the values, and the conditions join their tables."""
    return _are_apart(block, place, [_relation(block, v) for v in (window.plus, window.minus)])


def _are_apart(block: DraftBlock, place: _Place, ends: Sequence[int]) -> bool:
    holders = {block.relations[at].client for at in ends}
    if len(holders) == 1 and None not in holders:
        return False
    inside = sum(at in place.inside for at in ends)
    return inside == (1 if place.is_on else 2)


def _relation(block: Reads, value: exp.Expr) -> int:
    return block.reads(Term(value, None))[0]


def _joined(
    draft: Draft,
    block: DraftBlock,
    place: _Place,
    window: Window,
    terms: Sequence[Term],
    remarks: list[str],
) -> DraftBlock | None:
    """Return the block with an equality in place of the window's conditions; None where that is
    not possible."""
    low, high = window.low, window.high
    if low is None or high is None or high - low >= MAX_WIDTH:
        return None
    ends = [_relation(block, value) for value in (window.plus, window.minus)]
    if not _are_times(draft, block, window.times, ends):
        return None
    kind = _kind(draft, block, [window.plus, window.minus], ends)
    if kind is None or (window.has_days and kind != "DATE"):
        return None
    target = None if draft.target_position is None else block.outputs[draft.target_position].term
    repeated = min(ends, key=lambda at: _cost(draft, block, place, at, target))
    if _is_governed(draft, block, repeated):
        raise draft.error(
            GOVERNED.format(block.relations[repeated].label), terms[0].span, GOVERNED_HINT
        )
    if repeated == ends[0]:
        window = window.turned  # the values of `minus` are repeated
        low, high = -high, -low
    span = terms[0].span
    key = Term(_shifted(window, kind, low, high), span)
    block = _with_used_columns(block, repeated)
    unit = "day" if kind == "DATE" else "number"
    block, (name,) = with_rows(block, repeated, [key], _fresh(block), f"a {unit} of the window")
    sides = operand(window.plus.copy()), name
    equality = Term(exp.EQ(this=sides[0], expression=sides[1]), span)
    remaining = tuple(term for term in place.conditions if term not in terms)
    remarks.append(
        f"{block.relations[repeated].name} sends {high - low + 1} keys for each row: one for each "
        f"{unit} of a window"
    )
    return replace(block, tree=place.put((*remaining, equality)))


def _with_used_columns(block: DraftBlock, at: int) -> DraftBlock:
    """Return the block without the columns of the relation that the block does not read."""
    relation = block.relations[at]
    shown = (*block.outputs, *block.identifiers, *block.sorted_by)
    terms = (*(o.term for o in shown), *block.tree.terms(), *(term for _, term in block.kept))
    used = {
        (node.table, folded(node.name))
        for term in terms
        for node in nodes(term.expression, exp.Column)
    }
    branches = tuple(
        replace(b, columns={key: e for key, e in b.columns.items() if key in used})
        for b in relation.branches
    )
    relation = replace(relation, branches=branches)
    return replace(block, relations=(*block.relations[:at], relation, *block.relations[at + 1 :]))


def _is_governed(draft: Draft, block: DraftBlock, at: int) -> bool:
    return any(draft.catalog.governed(branch.client) for branch in block.relations[at].branches)


def _cost(
    draft: Draft, block: DraftBlock, place: _Place, at: int, target: Term | None
) -> tuple[bool, bool, bool, int]:
    """Return the reasons against repeating the rows of a relation, the strongest first."""
    rows = [source.rows for b in block.relations[at].branches for source in b.sources]
    known_rows = [number for number in rows if number is not None]
    size = sum(known_rows) if len(known_rows) == len(rows) else 10**9
    has_target = target is not None and at in block.reads(target)
    is_outside = place.is_on and at not in place.inside
    return is_outside, has_target, _is_governed(draft, block, at), size


def _are_times(
    draft: Draft, block: DraftBlock, times: Iterable[exp.Expr], ends: Iterable[int]
) -> bool:
    """Return whether none of the times has a time zone at any database."""
    return all(
        {*draft.types(block.relations[at], [Term(time, block.relations[at].span)])[0]} <= TIMES
        for time, at in zip(times, ends, strict=False)
    )


def _kind(
    draft: Draft, block: DraftBlock, values: Iterable[exp.Expr], ends: Iterable[int]
) -> str | None:
    """Return DATE, BIGINT or HUGEINT, the type for both values at each database; else None."""
    types_of_values = (
        draft.types(block.relations[at], [Term(value, block.relations[at].span)])[0]
        for value, at in zip(values, ends, strict=True)
    )
    return kind_of(types_ for types_of_value in types_of_values for types_ in types_of_value)


def kind_of(given: Iterable[str]) -> str | None:
    """Return DATE, BIGINT or HUGEINT, the type in which values of these types are subtracted; else
    None."""
    kinds = {types.normal(type_) for type_ in given}
    if kinds == {"DATE"}:
        return "DATE"
    if kinds <= {*_WHOLE}:
        return "BIGINT"
    return "HUGEINT" if kinds <= {*_WHOLE, *_LARGE} else None


def _shifted(window: Window, kind: str, low: int, high: int) -> exp.Expr:
    """Return the value that is subtracted plus each number from low to high, a row for each."""
    numbers = system_call("range", exp.Literal.number(low), exp.Literal.number(high + 1))
    if kind != "DATE":
        value = trees.cast(window.minus, kind)
        return exp.Add(this=value, expression=system_call("unnest", numbers))
    finite = system_call("isfinite", window.minus.copy())
    itself = system_call(
        "range", exp.Literal.number(int(window.at_infinity))
    )  # one row with 0, or none
    numbers = exp.Case(ifs=[exp.If(this=finite, true=numbers)], default=itself)
    each = trees.cast(system_call("unnest", numbers), "INTEGER")
    return exp.Add(this=operand(window.minus.copy()), expression=each)


def system_call(name: str, *arguments: exp.Expr) -> exp.Expr:
    """Return a call of DuckDB's own function, which no macro of a party hides."""
    return exp.Dot.build(
        [exp.to_identifier("system"), exp.to_identifier("main"),
         exp.Anonymous(this=name, expressions=list(arguments))]
    )  # fmt: skip


def _fresh(block: DraftBlock) -> Callable[[str], str]:
    """Return a factory of ids that no source of the block has."""
    ids = {s.id for r in block.relations for b in r.branches for s in b.sources}
    free = (n for n in count() if f"@{n}" not in ids)
    return lambda prefix: f"{prefix}{next(free)}"


# -- conditions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sum:
    """A sum of values of relations, some of them subtracted, and a number."""

    plus: tuple[exp.Expr, ...] = ()
    minus: tuple[exp.Expr, ...] = ()
    number: int = 0
    has_days: bool = False
    is_diff: bool = False
    """True if date_diff() is in it."""
    plus_times: tuple[exp.Expr, ...] = ()
    minus_times: tuple[exp.Expr, ...] = ()
    """Times of which values that are added, or subtracted, count hours, months and the like."""

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(
            (*self.plus, *other.plus),
            (*self.minus, *other.minus),
            self.number + other.number,
            self.has_days or other.has_days,
            self.is_diff or other.is_diff,
            (*self.plus_times, *other.plus_times),
            (*self.minus_times, *other.minus_times),
        )

    def __neg__(self) -> _Sum:
        return _Sum(
            self.minus, self.plus, -self.number, self.has_days, self.is_diff,
            self.minus_times, self.plus_times,
        )  # fmt: skip


def window_of(block: Reads, condition: exp.Expr) -> Window | None:
    """Return the window that a condition states; None for other conditions."""
    condition = condition.unnest()
    if isinstance(condition, exp.Between):
        if condition.args.get("symmetric"):
            return None
        value, bounds = condition.this, (condition.args["low"], condition.args["high"])
        low = _compared(block, exp.GTE, value, bounds[0])
        high = _compared(block, exp.LTE, value, bounds[1])
        if low is None or high is None or low.pair != high.pair:
            return None
        return low.within(high)
    if isinstance(condition, exp.EQ):  # of one value; a.x = b.y is a key as it is
        ends = condition.args["this"], condition.args["expression"]
        is_mixed = any(len(block.reads(Term(end, None))) > 1 for end in ends)
        return _compared(block, exp.EQ, *ends) if is_mixed else None
    if type(condition) not in _MIRRORED:
        return None
    kind, sides = type(condition), (condition.this, condition.expression)
    for (side, other), way in ((sides, kind), (sides[::-1], _MIRRORED[kind])):
        size = _size(block, side)
        if size is not None:
            bound = _sum(block, other) if way in (exp.LT, exp.LTE) else None
            if bound is None or bound.plus or bound.minus:
                return None
            bounded = _compared(block, way, size, _number(bound.number))
            return None if bounded is None else bounded.within(_negative(bounded))
    return _compared(block, kind, *sides)


def _negative(window: Window) -> Window:
    """Return the window of a value from the window of its absolute value."""
    assert window.high is not None
    return replace(window, low=-window.high, high=None)


def _number(value: int) -> exp.Expr:
    literal = exp.Literal.number(abs(value))
    return exp.Neg(this=literal) if value < 0 else literal


def _size(block: Reads, node: exp.Expr) -> exp.Expr | None:
    """Return x of `abs(x)`, if x reads several relations."""
    inner = node.unnest()
    if not isinstance(inner, exp.Anonymous) or function_name(inner) != "abs":
        return None
    several = len(inner.expressions) == 1 and len(block.reads(Term(inner, None))) > 1
    return inner.expressions[0] if several else None


def _compared(block: Reads, kind: type[exp.Expr], left: exp.Expr, right: exp.Expr) -> Window | None:
    sums = _sum(block, left), _sum(block, right)
    if sums[0] is None or sums[1] is None:
        return None
    difference = sums[0] + -sums[1]
    if len(difference.plus) != 1 or len(difference.minus) != 1:
        return None
    plus, minus = difference.plus[0], difference.minus[0]
    if _relation(block, plus) == _relation(block, minus):
        return None
    bound = -difference.number
    bounds: dict[type[exp.Expr], tuple[int | None, int | None]] = {
        exp.GTE: (bound, None),
        exp.GT: (bound + 1, None),
        exp.LTE: (None, bound),
        exp.LT: (None, bound - 1),
        exp.EQ: (bound, bound),
    }
    low, high = bounds[kind]
    if difference.is_diff:  # date_diff() of an infinite day is NULL
        at_infinity = False
    elif len(sums[0].plus) + len(sums[0].minus) == 1:  # infinity plus a number is infinity
        at_infinity = kind in (exp.GTE, exp.LTE)
    else:
        at_infinity = (low is None or low <= 0) and (high is None or high >= 0)
    times = (*difference.plus_times, *difference.minus_times)
    return Window(plus, minus, low, high, difference.has_days, at_infinity, times)


def _sum(block: Reads, node: exp.Expr) -> _Sum | None:
    """Return the expression as a sum; None for other forms."""
    node = node.unnest()
    sum_ = _parts(block, node)
    if len(block.reads(Term(node, None))) != 1:
        return sum_
    single = sum_ is not None and len(sum_.plus) == 1 and not sum_.minus
    return sum_ if single else _Sum((node,))


def _parts(block: Reads, node: exp.Expr) -> _Sum | None:
    if isinstance(node, exp.Literal):
        return _Sum(number=int(node.this)) if node.is_int and len(node.this) < 9 else None
    if isinstance(node, exp.Interval):
        return _days(node)
    if isinstance(node, exp.Neg):
        inner = _sum(block, node.this)
        return None if inner is None else -inner
    if isinstance(node, exp.Add | exp.Sub):
        left, right = _sum(block, node.left), _sum(block, node.right)
        if left is None or right is None:
            return None
        return left + (right if isinstance(node, exp.Add) else -right)
    if isinstance(node, exp.Anonymous) and function_name(node) in ("date_diff", "datediff"):
        return _difference(block, node)
    return None


def _difference(block: Reads, node: exp.Anonymous) -> _Sum | None:
    """Return days between two dates: `date_diff('day', a, b)` is `b - a`. Of hours and the like, it
    is the difference of their numbers since 1970.
    """
    if len(node.expressions) != 3:
        return None
    unit, first, last = node.expressions
    if isinstance(unit, exp.Literal) and unit.is_string and unit.this.lower() in UNITS:
        counts = [_counted(unit.this.lower(), time) for time in (last, first)]
        return _Sum(
            (counts[0],), (counts[1],), is_diff=True,
            plus_times=(last,), minus_times=(first,),
        )  # fmt: skip
    days = isinstance(unit, exp.Literal) and unit.is_string and unit.this.lower() in ("day", "days")
    sums = (_sum(block, last), _sum(block, first)) if days else (None, None)
    if sums[0] is None or sums[1] is None:
        return None
    return replace(sums[0] + -sums[1], has_days=True, is_diff=True)


def _counted(unit: str, time: exp.Expr) -> exp.Expr:
    """Return the number of hours, months and the like from 1970 to a time."""
    first = trees.cast(exp.Literal.string("1970-01-01"), "TIMESTAMP")
    arguments = [exp.Literal.string(unit), first, time.copy()]
    return exp.Anonymous(this="date_diff", expressions=arguments)


def _days(node: exp.Interval) -> _Sum | None:
    value, unit = node.this.unnest(), node.args.get("unit")
    sign = 1
    if isinstance(value, exp.Neg):
        value, sign = value.this.unnest(), -1
    if not isinstance(value, exp.Literal):
        return None
    text = value.this if unit is None else f"{value.this} {unit.name}"
    match = _DAYS.fullmatch(text.strip())
    if match is None:
        return None
    size = 7 if match[2].lower().startswith("week") else 1
    return _Sum(number=sign * size * int(match[1]), has_days=True)


_NUMBERS, _STEP = f"{RESERVED}steps_", f"{RESERVED}step"
"""Names of a derived table of numbers, and of its column."""


@dataclass(frozen=True)
class Sides:
    """The two sides of a condition of a subquery: 0 for its rows, 1 for outer rows."""

    is_inside: Callable[[exp.Expr], bool]
    """Return whether an expression reads rows of the subquery alone."""
    is_outside: Callable[[exp.Expr], bool]
    """Return whether it reads one table of outside alone."""

    def reads(self, term: Term) -> tuple[int, ...]:
        node = term.expression
        if not any(True for _ in nodes(node, exp.Column)):
            return ()
        if self.is_inside(node):
            return (0,)
        return (1,) if self.is_outside(node) else (0, 1)

    def window(self, condition: exp.Expr) -> Window | None:
        """Return the window that a condition states, of an outer value minus one of the rows."""
        stated = window_of(self, condition)
        if stated is None:
            return None
        return stated if self.reads(Term(stated.minus, None)) == (0,) else stated.turned


@dataclass(frozen=True)
class Step:
    """A window of a subquery: its rows are repeated with each number of the window."""

    window: Window
    kind: str
    """DATE, BIGINT or HUGEINT, in which the values are added."""
    place: int

    @property
    def join(self) -> exp.Join:
        """Return the numbers, to be joined with the rows."""
        low, high = (exp.Literal.number(n or 0) for n in (self.window.low, self.window.high))
        end = exp.Add(this=high, expression=exp.Literal.number(1))
        each = system_call("unnest", system_call("range", low, end))
        numbers = exp.select(exp.alias_(each, _STEP))
        alias = exp.TableAlias(this=exp.to_identifier(f"{_NUMBERS}{self.place}"))
        join = exp.Join(this=exp.Subquery(this=numbers, alias=alias), kind="CROSS")
        join.meta[OF_NUMBERS] = numbers.meta[OF_NUMBERS] = True
        return join

    @property
    def key(self) -> exp.Expr:
        """Return the value of the rows plus a number of the window."""
        value = self.window.minus
        if self.kind != "DATE":
            return exp.Add(this=trees.cast(value, self.kind), expression=self._number)
        later = exp.Add(this=operand(value.copy()), expression=trees.cast(self._number, "INTEGER"))
        finite = system_call("isfinite", value.copy())
        return exp.Case(ifs=[exp.If(this=finite, true=later)], default=value.copy())

    @property
    def test(self) -> exp.Expr | None:
        """Return the condition by which an infinite day matches at most one number; None for
        numbers."""
        if self.kind != "DATE":
            return None
        finite = system_call("isfinite", self.window.minus.copy())
        if not self.window.at_infinity:
            return finite
        first = exp.EQ(this=self._number, expression=exp.Literal.number(self.window.low or 0))
        return exp.Or(this=finite, expression=first)

    @property
    def _number(self) -> exp.Expr:
        return exp.column(_STEP, table=f"{_NUMBERS}{self.place}")


def step_of(window: Window, types: Iterable[str], times: Iterable[str], place: int) -> Step | None:
    """Return the step of a window between values of these types; None if there is none.

    `times` are the types of the times whose hours, months and other units the values count.
    """
    kind = kind_of(types)
    width = window.width
    if width is None or width > MAX_WIDTH or kind is None:
        return None
    if window.times and not {*times} <= TIMES:
        return None
    return None if window.has_days and kind != "DATE" else Step(window, kind, place)
