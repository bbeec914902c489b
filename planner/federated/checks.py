"""Exchanges of CHECK."""

from __future__ import annotations

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.planner.federated import symbols as sym
from sqlfl.planner.federated.amounts import Content, content
from sqlfl.planner.federated.exchanges import Run
from sqlfl.planner.federated.rounds import active as active_rows
from sqlfl.planner.query.ucq import Slot


def profile(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    features = len(slot.features)
    if getattr(run.look, "explains", False) and run.ucq.target is not None:
        rows = active_rows(slot, client)
        request = content(ms.SendExplained, rows=rows, outputs=sym.OUTPUTS)
        return request, content(ms.Profile, features=features)
    what = "of each feature in how many rows it is NULL, how many values it has, its range and mean"
    return content(ms.SendProfile), content(ms.Profile, what, features=features)
