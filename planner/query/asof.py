"""ASOF JOIN of two parties' tables, by days or whole numbers, as an equality.

`a ASOF JOIN b ON b.k = a.k AND b.day <= a.day` joins each row of a with the last row of b up to its
day. A row of b is that from its day to the day before the next row with its key. So the rows of b
are repeated with each of these days, and joined by equality. As these would be infinitely many, ON
must say how far away b may be, `a.day - b.day <= 90`, or WHERE between which days those of a are.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sqlfl.base.errors import PlanError
from sqlfl.contract.fragment_columns import RESERVED
from sqlfl.planner.grammar import trees
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.trees import plan_error, span_of
from sqlfl.planner.query import types
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.ctes import Environment
from sqlfl.planner.query.draft import Draft
from sqlfl.planner.query.equalities import BYTES, collation, conjuncts
from sqlfl.planner.query.joins import Joiner, State
from sqlfl.planner.query.relations import DraftBlock, DraftRelation, Term, ids_of, operand
from sqlfl.planner.query.scopes import Scope
from sqlfl.planner.query.sources import Sources
from sqlfl.planner.query.windows import (
    GOVERNED,
    GOVERNED_HINT,
    kind_of,
    system_call,
    window_of,
)

MAX_PERIOD = 4000
"""Days or whole numbers between which WHERE may say that those of the left table are."""
_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
_EPOCH = dt.date(1970, 1, 1)
_DAY = RESERVED + "day"
_OTHER = RESERVED + "other"
_FIRST, _LAST = RESERVED + "first", RESERVED + "last"
_HINT = (
    "join by equalities and one comparison of days, or of whole numbers: a ASOF JOIN party.table "
    "AS b ON b.key = a.key AND b.day <= a.day AND a.day - b.day <= 90, or without the last one "
    "WHERE a.day BETWEEN DATE '2024-01-01' AND DATE '2024-12-31'; of times compare the day, "
    "b.moment::DATE <= a.moment::DATE"
)


@dataclass(frozen=True)
class _Nearest:
    """The comparison `outer kind inner` of a value of the left tables with one of the right."""

    kind: type[exp.Expr]
    outer: exp.Expr
    inner: exp.Expr
    limit: int | None = None
    """Days, or numbers, that the nearest row may be away."""
    has_days: bool = False
    """True if the limit is of days."""

    @property
    def is_before(self) -> bool:
        """Return whether the nearest row is one before, or at, the left value."""
        return self.kind in (exp.GT, exp.GTE)


@dataclass(frozen=True)
class _On:
    """The condition of an ASOF JOIN, in its parts."""

    nearest: _Nearest
    keys: tuple[tuple[exp.Expr, exp.Expr], ...]
    """(left, right) of each equality."""
    rights: tuple[exp.Expr, ...]
    """Conditions of the right table alone, which choose its rows."""
    others: tuple[exp.Expr, ...]
    """Equalities, and conditions of the left tables alone."""


@dataclass(frozen=True)
class AsofJoins:
    """ASOF JOINs between databases."""

    sources: Sources
    catalog: BatchedCatalog
    joiner: Joiner
    remarks: list[str]

    @property
    def sql(self) -> str:
        return self.sources.sql

    def joined(
        self,
        left: State,
        right: State,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
        where: exp.Expr | None,
    ) -> State:
        """Return the join of the tables so far with `right`, the item of `join`."""
        if join.side.upper() not in ("", "LEFT") or join.args.get("on") is None:
            raise self._refused(join, "ASOF JOIN is taken as ASOF [LEFT] JOIN ... ON")
        client = self.sources.pusher.only_client(join.this, known)
        if client is None or len(right.relations) != 1 or len(right.items) != 1:
            raise self._refused(join, "the right table of an ASOF JOIN lies in one database")
        if self.catalog.governed(client):
            message = GOVERNED.replace("a window", "ASOF JOIN").format(right.relations[0].label)
            raise plan_error(message, self.sql, join.this, GOVERNED_HINT)
        scope = Scope((*left.items, *right.items), self.sql, left.merged, outer=outer)
        on = self._on(left, right, join, scope, known)
        kind = self._kind(left, right, on.nearest, scope, known)
        if kind is None or (on.nearest.has_days and kind != "DATE"):
            message = "ASOF JOIN over two parties compares two DATEs, or two whole numbers"
            raise self._refused(join, message)
        low, high = self._period(left, on.nearest, join, known, outer, where)
        query = self._valid(left, right, on, (low, high), kind, join, scope, known)
        block = self.sources.whole(query, known, client)
        (item,) = right.items
        relation = replace(block.relations[0], name=right.relations[0].name)
        shown = [output.term for output in block.outputs]
        names = [name for name, _ in item.columns]
        valid = f"{_DAY}_{self.sources.fresh('')}"
        columns = tuple(zip([*names, valid], shown, strict=True))
        right = State((relation,), block.tree, (replace(item, columns=columns, hidden=()),))
        equal = exp.EQ(this=operand(on.nearest.outer.copy()), expression=exp.column(valid))
        plain = join.copy()
        plain.set("method", None)
        plain.set("on", exp.and_(*(operand(part.copy()) for part in on.others), equal, copy=False))
        (state,) = self.joiner.join(left, right, plain, known, outer)
        last = state.items[-1]
        kept = tuple((name, term) for name, term in last.columns if name != valid)
        unit = "day" if kind == "DATE" else "number"
        self.remarks.append(
            f"{relation.name} sends a key for each {unit} for which a row of it is the nearest"
        )
        return replace(state, items=(*state.items[:-1], replace(last, columns=kept)))

    # -- the condition -----------------------------------------------------------------------------

    def _on(
        self, left: State, right: State, join: exp.Join, scope: Scope, known: Environment
    ) -> _On:
        sides = [{i for r in state.relations for i in r.ids} for state in (left, right)]

        def side(node: exp.Expr) -> int | None:
            read = ids_of(self.sources.pusher.term(node, scope, known))
            return next((n for n, ids in enumerate(sides) if read and read <= ids), None)

        nearest: list[_Nearest] = []
        keys: list[tuple[exp.Expr, exp.Expr]] = []
        rights: list[exp.Expr] = []
        others: list[exp.Expr] = []
        limits: list[exp.Expr] = []
        for part in conjuncts(join.args["on"]):
            whole = side(part)
            if whole is not None:
                (others, rights)[whole].append(part)
                continue
            kind, ends = type(part), (part.args.get("this"), part.args.get("expression"))
            one, two = (side(end) if isinstance(end, exp.Expr) else None for end in ends)
            if kind not in (exp.EQ, *_FLIPPED) or {one, two} != {0, 1}:
                limits.append(part)
                continue
            outer, inner = ends if one == 0 else ends[::-1]
            assert isinstance(outer, exp.Expr)
            assert isinstance(inner, exp.Expr)
            if kind is exp.EQ:
                keys.append((outer, inner))
                others.append(part)
            else:
                nearest.append(_Nearest(kind if one == 0 else _FLIPPED[kind], outer, inner))
        if len(nearest) != 1:
            raise self._refused(join, "an ASOF JOIN has one comparison of the two tables")
        both = DraftBlock((*left.relations, *right.relations), left.tree, ())
        comparison = nearest[0]
        for part in limits:
            comparison = self._limited(comparison, part, both, scope, known)
        return _On(comparison, tuple(keys), tuple(rights), tuple(others))

    def _limited(
        self, nearest: _Nearest, part: exp.Expr, both: DraftBlock, scope: Scope, known: Environment
    ) -> _Nearest:
        """Return the comparison with the condition `part`, that the two values are near."""
        term = self.sources.pusher.term(part, scope, known)
        inside = ids_of(term) <= {id_ for relation in both.relations for id_ in relation.ids}
        window = window_of(both, term.expression) if inside else None
        values = [self._text(end, scope, known) for end in (nearest.outer, nearest.inner)]
        if window is not None and window.pair[0] == values[1]:
            window = window.turned
        if window is not None and list(window.pair) == values:
            turned = window if nearest.is_before else window.turned
            near, far = turned.low or 0, turned.high
            if far is not None and near <= int(nearest.kind in (exp.GT, exp.LT)):
                limit = far if nearest.limit is None else min(far, nearest.limit)
                has_days = window.has_days or nearest.has_days
                return replace(nearest, limit=limit, has_days=has_days)
        raise self._refused(part, "this condition of an ASOF JOIN is not taken")

    def _kind(
        self, left: State, right: State, nearest: _Nearest, scope: Scope, known: Environment
    ) -> str | None:
        """Return DATE, BIGINT or HUGEINT, in which both values are; else None."""
        value_types: list[str] = []
        for state, node in ((left, nearest.outer), (right, nearest.inner)):
            types_ = self._types(state, self.sources.pusher.term(node, scope, known))
            if types_ is None:
                return None
            value_types += types_
        return kind_of(value_types)

    def _types(self, state: State, term: Term) -> tuple[str, ...] | None:
        """Return the types of a term at each database of its relation; None if it reads several."""
        relation = _relation(state, term)
        draft = Draft(exp.select(), self.sql, self.catalog, None, (), False)
        return None if relation is None else draft.types(relation, [term])[0]

    def _period(
        self,
        left: State,
        nearest: _Nearest,
        join: exp.Join,
        known: Environment,
        outer: Scope | None,
        where: exp.Expr | None,
    ) -> tuple[int | None, int | None]:
        """Return between which days, from 1970, or numbers WHERE says that the value is."""
        scope = left.scope(self.sql, outer)
        wanted = self._text(nearest.outer, scope, known)
        lows: list[int] = []
        highs: list[int] = []
        for part in () if where is None else conjuncts(where):
            for kind, node, bound in _bounds(part):
                number = _number(bound)
                if number is None or self._text(node, scope, known) != wanted:
                    continue
                if kind in (exp.GT, exp.GTE, exp.EQ):
                    lows.append(number + (kind is exp.GT))
                if kind in (exp.LT, exp.LTE, exp.EQ):
                    highs.append(number - (kind is exp.LT))
        low, high = max(lows, default=None), min(highs, default=None)
        if nearest.limit is None and (low is None or high is None):
            message = (
                "ASOF JOIN over two parties needs how far away the nearest row may be, or in WHERE "
                f"between which days {to_sql(nearest.outer)} is"
            )
            raise self._refused(join, message)
        width = MAX_PERIOD if low is None or high is None else high - low
        if min(width, MAX_PERIOD if nearest.limit is None else nearest.limit) >= MAX_PERIOD:
            message = f"the period of an ASOF JOIN is longer than {MAX_PERIOD} days or numbers"
            raise self._refused(join, message)
        return low, high

    def _text(self, node: exp.Expr, scope: Scope, known: Environment) -> str | None:
        """Return the meaning of an expression as text; None if it has none before SELECT."""
        try:
            return to_sql(self.sources.pusher.term(node, scope, known).expression)
        except PlanError:
            return None

    # -- the right table ---------------------------------------------------------------------------

    def _valid(
        self,
        left: State,
        right: State,
        on: _On,
        period: tuple[int | None, int | None],
        kind: str,
        join: exp.Join,
        scope: Scope,
        known: Environment,
    ) -> exp.Select:
        """Return the rows of the right table, each with every value for which it is the nearest."""
        (item,) = right.items
        names = [name for name, _ in item.columns]
        shown = [
            exp.alias_(exp.column(name, table=item.name or None, quoted=True), f"{RESERVED}c{n}")
            for n, name in enumerate(names)
        ]
        value = trees.cast(on.nearest.inner.copy(), kind)
        by = [self._compared(left, right, pair, scope, known) for pair in on.keys]
        before = on.nearest.is_before
        other = exp.Window(
            this=exp.Anonymous(this="lead" if before else "lag", expressions=[value.copy()]),
            partition_by=by,
            order=exp.Order(expressions=[exp.Ordered(this=value.copy())]),
        )
        there = exp.Is(this=operand(value.copy()), expression=exp.Null()).not_()
        tests: list[exp.Expr] = [there, *(part.copy() for part in on.rights)]
        day, other_day = exp.column(_DAY), exp.column(_OTHER)
        low, high = ([] if end is None else [_constant(end, kind)] for end in period)
        limit = [] if on.nearest.limit is None else [on.nearest.limit]
        if limit and kind == "DATE":
            tests.append(system_call("isfinite", value.copy()))
        open_ = int(on.nearest.kind in (exp.GT, exp.LT))
        if before:
            firsts: list[exp.Expr] = [_plus(day, open_), *low]
            lasts = [_plus(other_day, open_ - 1), *(_plus(day, n) for n in limit), *high]
        else:
            firsts = [_plus(other_day, 1 - open_), *(_plus(day, -n) for n in limit), *low]
            lasts = [_plus(day, -open_), *high]
        rows = exp.select(*shown, exp.alias_(value, _DAY), exp.alias_(other, _OTHER))
        rows = rows.from_(join.this.copy()).where(*map(operand, tests), copy=False)
        kept = [exp.column(f"{RESERVED}c{n}") for n in range(len(names))]
        clipped = exp.select(
            *kept,
            exp.alias_(_outmost("greatest", firsts), _FIRST),
            exp.alias_(_outmost("least", lasts), _LAST),
        ).from_(rows.subquery("q"))
        steps: list[exp.Expr] = [exp.column(_FIRST), exp.column(_LAST)]
        if kind != "DATE":
            steps = [trees.cast(step, "BIGINT") for step in steps]  # they are within the period
        steps[1] = _plus(steps[1], 1)
        if kind == "DATE":
            steps.append(exp.Interval(this=exp.Literal.string("1"), unit=exp.var("DAY")))
        each = system_call("unnest", exp.Anonymous(this="range", expressions=steps))
        within = exp.LTE(this=exp.column(_FIRST), expression=exp.column(_LAST))
        every = exp.select(*(c.copy() for c in kept), exp.alias_(trees.cast(each, kind), _DAY))
        return every.from_(clipped.subquery("q")).where(within)

    def _compared(
        self,
        left: State,
        right: State,
        pair: tuple[exp.Expr, exp.Expr],
        scope: Scope,
        known: Environment,
    ) -> exp.Expr:
        """Return the right side of an equality, as the type that both sides are compared as: rows
        with equal values have one next row.
        """
        terms = [self.sources.pusher.term(node, scope, known) for node in pair]
        sides = [self._types(s, t) for s, t in zip((left, right), terms, strict=True)]
        outer, inner = (None if types_ is None else types.union_type(types_) for types_ in sides)
        wanted = None if outer is None or inner is None else types.comparison_type(inner, outer)
        if wanted is None:
            raise self._refused(pair[1], "an equality of an ASOF JOIN is of one table on each side")
        if wanted == "VARCHAR":
            draft = Draft(exp.select(), self.sql, self.catalog, None, (), False)
            for state, term in zip((left, right), terms, strict=True):
                relation = _relation(state, term)
                if relation is None or collation(draft, relation, [term]) != BYTES:
                    raise self._refused(pair[1], "texts of an ASOF JOIN have no collation")
        return (
            pair[1].copy() if wanted == types.normal(inner or "") else trees.cast(pair[1], wanted)
        )

    def _refused(self, where: exp.Expr, message: str) -> PlanError:
        place = where.this if isinstance(where, exp.Join) else where
        return plan_error(message, self.sql, span_of(place, self.sql), _HINT)


def _relation(state: State, term: Term) -> DraftRelation | None:
    """Return the one relation that a term reads."""
    read = [r for r in state.relations if ids_of(term) & {*r.ids}]
    return read[0] if len(read) == 1 else None


def _bounds(part: exp.Expr) -> Sequence[tuple[type[exp.Expr], exp.Expr, exp.Expr]]:
    """Return comparisons (kind, value, bound) that a condition may be."""
    part = part.unnest()
    if isinstance(part, exp.Between) and not part.args.get("symmetric"):
        low, high = part.args["low"], part.args["high"]
        return [(exp.GTE, part.this, low), (exp.LTE, part.this, high)]
    mirrored = exp.EQ if isinstance(part, exp.EQ) else _FLIPPED.get(type(part))
    if mirrored is None:
        return []
    left, right = part.args["this"], part.args["expression"]
    return [(type(part), left, right), (mirrored, right, left)]


def _number(node: exp.Expr) -> int | None:
    """Return a constant as a number, a day as the number of days from 1970; None for others."""
    node = node.unnest()
    if isinstance(node, exp.Neg):
        inner = _number(node.this)
        return None if inner is None else -inner
    if isinstance(node, exp.Cast) and node.to.sql("duckdb").upper() == "DATE":
        node = node.this.unnest()
    if not isinstance(node, exp.Literal):
        return None
    if not node.is_string:
        return int(node.this) if node.is_int and len(node.this) < 18 else None
    try:
        return (dt.date.fromisoformat(node.this.strip()) - _EPOCH).days
    except ValueError:
        return None


def _constant(number: int, kind: str) -> exp.Expr:
    if kind == "DATE":
        return trees.cast(exp.Literal.string(_said(number, kind)), "DATE")
    text = exp.Literal.number(abs(number))
    return trees.cast(exp.Neg(this=text) if number < 0 else text, kind)


def _outmost(function: str, values: Sequence[exp.Expr]) -> exp.Expr:
    """Return the least or greatest of values; the first ones may be NULL, and then do not count."""
    *others, last = (value.copy() for value in values)
    known = [exp.Coalesce(this=value, expressions=[last.copy()]) for value in others]
    return exp.Anonymous(this=function, expressions=[*known, last])


def _said(number: int, kind: str) -> str:
    return (_EPOCH + dt.timedelta(days=number)).isoformat() if kind == "DATE" else str(number)


def _plus(value: exp.Expr, number: int) -> exp.Expr:
    if not number:
        return value
    kind = exp.Add if number > 0 else exp.Sub
    return kind(this=value, expression=exp.Literal.number(abs(int(number))))
