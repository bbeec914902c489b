"""The plan that `explain` returns, which prints itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from sqlfl.base.sanitize import line
from sqlfl.contract.request import Verdict
from sqlfl.contract.schema import Client
from sqlfl.planner.explain import document
from sqlfl.planner.explain.card import PrivacyReport
from sqlfl.planner.explain.rehearsed import RehearsalReport, rehearsed
from sqlfl.planner.explain.render import Document, to_html, to_text
from sqlfl.planner.federated.plan import FederatedPlan


@dataclass(frozen=True)
class ExplainedPlan(FederatedPlan):
    """A plan and its expected privacy; `str` is its EXPLAIN."""

    report: PrivacyReport | None = None
    """None without PRIVACY."""
    verdicts: Mapping[Client, tuple[Verdict, ...]] = field(default_factory=dict)
    """Client -> verdicts of its owner's training policies: what they refuse, or review first."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Party -> how the coordinator reaches it, 'in this process' or 'over TLS'; empty if that is
    not known."""

    @property
    def details(self) -> Document:
        """EXPLAIN (VERBOSE): every message of each client with its size, and all SQL."""
        return document.details(self, self.report, self.verdicts, self.links)

    def rehearsed(self, account: RehearsalReport, *, verbose: bool = False) -> Document:
        """EXPLAIN ANALYZE: how its rehearsal went, before the plan."""
        make = document.details if verbose else document.summary
        own = make(self, self.report, self.verdicts, self.links)
        return replace(own, sections=(rehearsed(self, account), *own.sections))

    def __str__(self) -> str:
        return to_text(document.summary(self, self.report, self.verdicts, self.links))

    def __repr__(self) -> str:
        return line(f"<sqlfl plan: {self.purpose} {self.kind} {self.name}; print it for EXPLAIN>")

    def _repr_html_(self) -> str:
        return to_html(document.page(self, self.report, self.verdicts, self.links))


def explained(
    plan: FederatedPlan,
    report: PrivacyReport | None,
    verdicts: Mapping[Client, tuple[Verdict, ...]] | None = None,
    links: Mapping[str, str] | None = None,
) -> ExplainedPlan:
    """Return the plan with what its EXPLAIN says beside it; arguments as the fields."""
    values = {item.name: getattr(plan, item.name) for item in fields(FederatedPlan)}
    return ExplainedPlan(**values, report=report, verdicts=verdicts or {}, links=links or {})
