"""Verdicts of the tables' owners on a run, by their training policies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from sqlfl.contract.request import ALLOWED, Verdict
from sqlfl.contract.schema import Client
from sqlfl.planner.explain.render import Notes, Section, TextTable
from sqlfl.planner.federated.plan import FederatedPlan

Verdicts: TypeAlias = Mapping[Client, tuple[Verdict, ...]]
NO_OWNERS: Verdicts = MappingProxyType({})
LATER = (
    "Rules on rows, such as min_rows and min_cell, are looked at when the statement runs. What is "
    "allowed is so by the policies of this moment."
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


def _allowed(client: Client) -> tuple[str, ...]:
    return str(client), "all", ALLOWED, ""
