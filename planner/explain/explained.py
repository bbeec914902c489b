"""A plan that prints itself: what `explain` gives."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlfl.planner.explain import document
from sqlfl.planner.explain.render import Document, to_html, to_text
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.printing import line
from sqlfl.report.card import PrivacyReport


@dataclass(frozen=True)
class ExplainedPlan(FederatedPlan):
    """A plan and the privacy that is to be expected of it; `str` is its EXPLAIN."""

    report: PrivacyReport | None = None
    """None without PRIVACY."""

    @property
    def details(self) -> Document:
        """EXPLAIN (VERBOSE): every message of each client with its size, and all SQL."""
        return document.details(self, self.report)

    def __str__(self) -> str:
        return to_text(document.summary(self, self.report))

    def __repr__(self) -> str:
        return line(f"<sqlfl plan: {self.purpose} {self.kind} {self.name}; print it for EXPLAIN>")

    def _repr_html_(self) -> str:
        return to_html(document.page(self, self.report))


def explained(plan: FederatedPlan, report: PrivacyReport | None) -> ExplainedPlan:
    values = {field.name: getattr(plan, field.name) for field in fields(FederatedPlan)}
    return ExplainedPlan(**values, report=report)
