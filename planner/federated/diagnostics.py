"""Exchanges of diagnostics over saved blocks, and their disclosures."""

from __future__ import annotations

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.options.diagnostics import Inference
from sqlfl.planner.federated import symbols as sym
from sqlfl.planner.federated.amounts import Amount, Content, content
from sqlfl.planner.federated.exchanges import Run
from sqlfl.planner.federated.rounds import active as active_rows
from sqlfl.planner.federated.sizes import Size
from sqlfl.planner.query.ucq import Slot


def rotated(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    reply = content(
        ms.Rotated,
        "encoded features of active rows, mixed by a random rotation that the party keeps",
        rows=active_rows(slot, client),
        columns=sym.of_slot("block_columns", slot),
        outputs=run.outputs,
    )
    return content(ms.SendRotated, model=sym.RUN, **_compared(run, slot)), reply


def errors(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    columns = sym.of_slot("block_columns", slot)
    sizes = {"columns": columns, "directions": sym.of_slot("directions", slot)}
    request = content(ms.SendErrors, model=sym.RUN, **sizes, **_compared(run, slot))
    names = Amount(columns, sym.of_client("names", slot, client))
    categories = Amount(columns, Size())
    reply = content(ms.Errors, **sizes, features=names, categories=categories)
    return request, reply


def _compared(run: Run, slot: Slot) -> dict[str, tuple[str, ...]]:
    """Return the slot's features whose base category the statement names, and these categories."""
    names = tuple(feature.name for feature in slot.features)
    compared, bases = run.look.compared(names) if isinstance(run.look, Inference) else ((), ())
    return {"compared": compared, "bases": bases}


def permuted(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    reply = content(
        ms.ExactPredictions if run.exact else ms.Predictions,
        "partial predictions of active rows, a feature's values being those of other rows"
        + (", in 8 bytes" if run.exact else ""),
        rows=active_rows(slot, client),
        outputs=run.outputs,
        products=0,
    )
    return content(ms.PermuteExactly if run.exact else ms.ScorePermuted, model=sym.RUN), reply


def skew(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    return content(ms.SendSkew, model=sym.RUN), content(ms.Skew, features=len(slot.features))


def contributions(run: Run, slot: Slot, client: Client) -> tuple[Content, Content]:
    reply = content(
        ms.ExactContributions if run.exact else ms.Contributions,
        "what each feature adds to the score of each active row"
        + (", in 8 bytes" if run.exact else ""),
        rows=active_rows(slot, client),
        parts=run.outputs * len(slot.features),
    )
    request = ms.SendExactContributions if run.exact else ms.SendContributions
    return content(request, model=sym.RUN), reply
