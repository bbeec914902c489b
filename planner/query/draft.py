"""The plan in progress, which each rule hands to the next."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sqlglot import exp

from sqlfl.base.errors import LostError, PartyError, PlanError, ReplyError
from sqlfl.contract.fragment_columns import UNIT
from sqlfl.contract.schema import Client
from sqlfl.planner.grammar.refusals import function_name
from sqlfl.planner.grammar.sql import to_sql
from sqlfl.planner.grammar.statements import Path, Span
from sqlfl.planner.grammar.trees import plan_error
from sqlfl.planner.query.batches import BatchedCatalog
from sqlfl.planner.query.clock import Clock
from sqlfl.planner.query.items import PlacedItem
from sqlfl.planner.query.relations import ClientBranch, DraftBlock, DraftRelation, Term, substituted
from sqlfl.planner.query.scalars import SCALAR, Asker, has_calls, one_value
from sqlfl.planner.query.ucq import Ucq

_ONE = exp.Literal.number(1)


@dataclass(frozen=True)
class Roles:
    """Output columns of a query with a role in its statement, by name."""

    target: str | None = None
    identifiers: tuple[Path, ...] = ()
    """ID columns of PREDICT."""
    weight: str | None = None
    weight_may_lack: bool = False
    """True if a query without a column of that name has no weight; otherwise it is an error."""
    offset: str | None = None
    exposure: bool = False
    """`offset` is the column of EXPOSURE."""
    unit: str | None = None
    """The expression of the query's column UNIT, whose equal values make rows one unit."""


NO_ROLES = Roles()


@dataclass(frozen=True)
class Draft:
    query: exp.Query
    sql: str
    catalog: BatchedCatalog
    target: str | None
    identifiers: tuple[Path, ...]
    allow_cross_join: bool
    weight: str | None = None
    weight_may_lack: bool = False
    """True if a query without a column of that name has no weight; otherwise it is an error."""
    offset: str | None = None
    exposure: bool = False
    """`offset` is the column of EXPOSURE."""
    unit: str | None = None
    """The expression of the query's column UNIT, whose equal values make rows one unit."""
    split: bool = False
    """True if validation rows are drawn: some slot then has the whole row of its sources."""
    folds: bool = False
    """True if folds are drawn: by the target's slot, which then has its whole rows, or by the
    coordinator.
    """
    noised: bool = False
    """Labels are noised per row: so does the target's slot."""
    clock: Clock = field(default_factory=lambda: Clock(dt.datetime.now(dt.UTC)))
    transforms: tuple[PlacedItem, ...] = ()
    careful: bool = False
    """True if each SELECT is checked at once for columns with one value per row."""
    blocks: tuple[DraftBlock, ...] = ()
    claims: tuple[Term, ...] = ()
    """Terms over several relations that must be one value per row."""
    parted: bool = False
    """True if blocks were parted by tests of several parties."""
    remarks: tuple[str, ...] = ()
    """Sentences for EXPLAIN about forms that are planned as others."""
    ucq: Ucq | None = None
    described: dict[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)
    """Types that a party has reported: (client, sources, expression) -> type; with "" first,
    conditions that it can bind.
    """

    def error(
        self, message: str, where: exp.Expr | Span | None = None, hint: str | None = None
    ) -> PlanError:
        return plan_error(message, self.sql, where, hint)

    def each_block(self, rule: Callable[[DraftBlock], DraftBlock]) -> Draft:
        blocks = self.catalog.each([partial(rule, block) for block in self.blocks])
        return replace(self, blocks=tuple(blocks))

    @property
    def target_position(self) -> int | None:
        return None if self.target is None else self._position(self.target)

    @property
    def weight_position(self) -> int | None:
        return None if self.weight is None else self._position(self.weight)

    @property
    def offset_clause(self) -> str:
        """Return the clause that the statement has."""
        return "EXPOSURE" if self.exposure else "OFFSET"

    @property
    def offset_position(self) -> int | None:
        return None if self.offset is None else self._position(self.offset)

    @property
    def unit_position(self) -> int | None:
        return None if self.unit is None else self._position(UNIT)

    def _position(self, name: str) -> int:
        return [o.name.lower() for o in self.blocks[0].outputs].index(name.lower())

    def types(self, relation: DraftRelation, terms: Sequence[Term]) -> list[tuple[str, ...]]:
        """DuckDB types of the terms over the relation: for each term, its type at each branch."""
        rows = self.catalog.each(
            [partial(self._branch_types, relation, branch, terms) for branch in relation.branches]
        )
        return list(zip(*rows, strict=True))

    def _branch_types(
        self, relation: DraftRelation, branch: ClientBranch, terms: Sequence[Term]
    ) -> tuple[str, ...]:
        expressions = [substituted(t, branch).expression for t in terms]
        place = (str(branch.client), *(s.id for s in branch.sources))
        keys = [(*place, to_sql(e)) for e in expressions]
        missing = {k: e for k, e in zip(keys, expressions, strict=True) if k not in self.described}
        conditions = [*(f.expression for f in branch.filters), *branch.claims]
        tests = {(*place, "", to_sql(condition)): "" for condition in conditions}
        if missing or tests.keys() - self.described.keys():
            asked = [*missing.values()] or [_ONE]
            try:
                described = self._describe(branch, asked, branch.filters, True)
            except LostError:
                raise
            except ReplyError as error:
                raise self._unable(branch, Term(_ONE, relation.span), error) from error
            except PartyError as error:
                self._refuse_culprit(relation, branch, terms)
                try:
                    described = self._describe(branch, asked, branch.filters, False)
                except LostError:
                    raise
                except PartyError:
                    raise self._unable(branch, Term(_ONE, relation.span), error) from error
            self.described.update(zip(missing, described, strict=False))
            self.described.update(tests)
        return tuple(self.described[key] for key in keys)

    def _describe(
        self,
        branch: ClientBranch,
        expressions: Sequence[exp.Expr],
        filters: Iterable[Term],
        tested: bool,
    ) -> tuple[str, ...]:
        """Types of the expressions; `tested`: they and the branch's claims must be scalars."""
        conditions = [f.expression for f in filters]
        if tested:
            every = [*expressions, *branch.claims, *conditions]
            conditions += [one_value(e) for e in every if has_calls(e)]
        columns = Asker(self.catalog).columns(
            branch.client, branch.sources, expressions, conditions
        )
        if len(columns) != len(expressions):
            what = f"its reply to describe has {len(columns)} columns of {len(expressions)}"
            raise PartyError(str(branch.client), what)
        return tuple(c.type for c in columns)

    def _refuse_culprit(
        self, relation: DraftRelation, branch: ClientBranch, terms: Sequence[Term]
    ) -> None:
        """Raise PlanError for the term that made a description fail; return if none did."""
        claims = [Term(claim, relation.span) for claim in branch.claims]
        for term in (*(substituted(t, branch) for t in terms), *branch.filters, *claims):
            try:
                self._describe(branch, [term.expression], (), True)
            except LostError:
                raise
            except PartyError as own:
                self._refuse_term(branch, term, own)
        for condition in branch.filters:
            try:
                self._describe(branch, [_ONE], [condition], False)
            except LostError:
                raise
            except PartyError as own:
                raise self._unable(branch, condition, own) from own

    def _refuse_term(self, branch: ClientBranch, term: Term, error: PartyError) -> None:
        asker = Asker(self.catalog)
        kind = asker.kind(branch.client, branch.sources, term.expression)
        if kind != SCALAR:
            raise self._unable(branch, term, error) from error
        volatile = asker.volatile(branch.client, branch.sources, term.expression)
        if volatile is not None:
            raise self.volatile(volatile, term.span) from error

    def volatile(self, call: exp.Expr, span: Span | None) -> PlanError:
        return self.error(
            f"{function_name(call)}() gives another value each time",
            span,
            "store the values in a column of the table, or take hash(column) for a fixed draw",
        )

    def _unable(self, branch: ClientBranch, term: Term, error: PartyError) -> PlanError:
        return self.unable(branch.client, error, term.span)

    def unable(self, client: Client, error: PartyError, span: Span | None) -> PlanError:
        said = error.message.split("\n")[0].partition(": ")[2]
        return self.error(
            f"party {client.party} cannot evaluate this: {said}",
            span,
            "try the expression on that party's own connection",
        )
