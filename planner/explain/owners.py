"""Verdicts of the tables' owners on a run, by their training policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from sqlfl.contract.request import ALLOWED, REFUSED, Verdict
from sqlfl.contract.schema import Client
from sqlfl.planner.explain.render import Notes, Section, TextTable, several
from sqlfl.planner.federated.plan import FederatedPlan

Verdicts: TypeAlias = Mapping[Client, tuple[Verdict, ...]]
NO_OWNERS: Verdicts = MappingProxyType({})
LATER = (
    "Policies are those of this moment. Rules on rows, such as min_rows and min_cell, are checked "
    "when the statement runs."
)


def owners(plan: FederatedPlan, verdicts: Verdicts) -> tuple[Section, ...]:
    """Return a section with the verdicts; empty if no owner has a policy."""
    rows = [
        row
        for client, client_verdicts in verdicts.items()
        for row in ([_told(plan, client, item) for item in client_verdicts] or [_allowed(client)])
    ]
    if not rows:
        return ()
    table = TextTable(("party", "what", "its owner", "by"), tuple(rows))
    return (Section("What the owners allow", (table, Notes((LATER,)))),)


def _told(plan: FederatedPlan, client: Client, item: Verdict) -> tuple[str, ...]:
    names = {slot.index: slot.name for slot in plan.ucq.slots}
    of = f" of {names[item.slot]}" if item.slot in names else ""
    return str(client), f"{item.what or 'all'}{of}", item.state, item.rule


def sentences(plan: FederatedPlan, verdicts: Verdicts) -> Iterator[str]:
    """Yield the verdicts as sentences; none if no owner has a policy."""
    groups: dict[str, list[str]] = {}
    for client, client_verdicts in verdicts.items():
        for text in [_sentence(plan, item) for item in client_verdicts] or ["allows it"]:
            groups.setdefault(text, []).append(str(client))
    for text, clients in groups.items():
        yield f"{several(clients)}: the owner {text}."
    if groups:
        yield LATER


def _sentence(plan: FederatedPlan, item: Verdict) -> str:
    names = {slot.index: slot.name for slot in plan.ucq.slots}
    of = f" of {names[item.slot]}" if item.slot in names else ""
    data = f"{item.what or 'all'}{of}" if item.what or of else "it"
    return f"{'refuses' if item.state == REFUSED else 'decides about'} {data}: {item.rule}"


def _allowed(client: Client) -> tuple[str, ...]:
    return str(client), "all", ALLOWED, ""
