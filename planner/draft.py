"""The plan in the making: what one rule hands to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sqlfl.errors import PartyError, PlanError
from sqlfl.planner import emit
from sqlfl.planner.relations import Block, Branch, Relation, Term, substituted
from sqlfl.planner.spans import plan_error
from sqlfl.planner.statements import Path, Span
from sqlfl.planner.ucq import Ucq
from sqlfl.schema import Catalog


@dataclass(frozen=True)
class Draft:
    query: exp.Query
    sql: str
    catalog: Catalog
    target: str | None
    identifiers: tuple[Path, ...]
    allow_cross_join: bool
    weight: str | None = None
    split: bool = False
    """Validation rows are drawn: some slot shows the whole row of its sources."""
    noised: bool = False
    """Labels are noised per row: so does the target's slot."""
    blocks: tuple[Block, ...] = ()
    ucq: Ucq | None = None
    described: dict[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)
    """Types that a party has told: (client, sources, expression) -> type."""

    def error(
        self, message: str, where: exp.Expr | Span | None = None, hint: str | None = None
    ) -> PlanError:
        return plan_error(message, self.sql, where, hint)

    def each_block(self, rule: Callable[[Block], Block]) -> Draft:
        return replace(self, blocks=tuple(rule(block) for block in self.blocks))

    @property
    def target_position(self) -> int | None:
        return None if self.target is None else self._position(self.target)

    @property
    def weight_position(self) -> int | None:
        return None if self.weight is None else self._position(self.weight)

    def _position(self, name: str) -> int:
        return [o.name.lower() for o in self.blocks[0].outputs].index(name.lower())

    def types(self, relation: Relation, terms: Sequence[Term]) -> list[tuple[str, ...]]:
        """DuckDB types of the terms over the relation: for each term, its type at each branch."""
        if not terms:
            return []
        rows = [self._branch_types(relation, branch, terms) for branch in relation.branches]
        return list(zip(*rows, strict=True))

    def _branch_types(
        self, relation: Relation, branch: Branch, terms: Sequence[Term]
    ) -> tuple[str, ...]:
        expressions = [substituted(t, branch).expression for t in terms]
        place = (str(branch.client), *(s.id for s in branch.sources))
        keys = [(*place, e.sql(dialect="duckdb")) for e in expressions]
        missing = {k: e for k, e in zip(keys, expressions, strict=True) if k not in self.described}
        try:
            if missing:
                found = self._describe(branch, missing.values(), branch.filters)
                self.described.update(zip(missing, found, strict=True))
            return tuple(self.described[key] for key in keys)
        except PartyError as error:
            failed = self._culprit(branch, terms, expressions)
            span = relation.span if failed is None else failed.span
            said = error.message.split("\n")[0].partition(": ")[2]
            message = f"party {branch.client.party} cannot evaluate this: {said}"
            raise self.error(message, span) from error

    def _describe(
        self, branch: Branch, expressions: Iterable[exp.Expr], filters: Iterable[Term]
    ) -> tuple[str, ...]:
        projections = [(e, f"c{i}") for i, e in enumerate(expressions)]
        conditions = [f.expression for f in filters]
        select = emit.fragment_select(branch.sources, projections, conditions, alone=True)
        columns = self.catalog.describe(branch.client, select.sql(dialect="duckdb"))
        return tuple(c.type for c in columns)

    def _culprit(
        self, branch: Branch, terms: Sequence[Term], expressions: list[exp.Expr]
    ) -> Term | None:
        one = exp.Literal.number(1)
        for term, expression in zip(terms, expressions, strict=True):
            try:
                self._describe(branch, [expression], ())
            except PartyError:
                return term
        for condition in branch.filters:
            try:
                self._describe(branch, [one], [condition])
            except PartyError:
                return condition
        return None
