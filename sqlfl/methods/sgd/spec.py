"""Gradient descent on all joined rows or on batches, of linear blocks and of towers."""

from __future__ import annotations

import math

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.methods.sgd.messages import SgdResiduals
from sqlfl.methods.sgd.options import STEPS, SgdOptions
from sqlfl.options.training import TrainingOptions
from sqlfl.options.types import Whole
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.method_spec import MethodSpec, Words, has_head, summed
from sqlfl.planner.federated.sizes import Content, content
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import Counts, Protection, SlotFacts

INTERCEPT = "gradient of the intercept, each row's clipped, the sum noised"
EXPANDED = (
    "; where noise hides the slopes, ∂ℓ/∂H is of the loss's second-order expansion at the best "
    "constant, and the intercept follows from the mean of H"
)


def _exchanges(run: Run) -> list[Exchange]:
    """Return the exchanges. All rows travel once an epoch, around its end; in between, the rows of
    batches. With dropout, the first batch of an epoch is predicted again, and only its rows'
    residuals are sent.
    """
    drops = run.tower is not None and run.tower.dropout > 0.0
    outputs = rounds.outputs_of(run)

    def first(slot: Slot, client: Client) -> Content:
        rows = rounds.trained(run, slot, client)
        rows = sym.of_client("first_batch", slot, client) if drops else rows
        return content(SgdResiduals, rows=rows, outputs=run.outputs, batch=0)

    def all_rows(slot: Slot, client: Client) -> Content:
        return rounds.predicted(run, slot, client, outputs)

    def next_batch(slot: Slot, client: Client) -> Content:
        rows = sym.of_client("batch", slot, client)
        words = f"{SgdResiduals.words}; rows of the next batch"
        return content(SgdResiduals, words, rows=rows, outputs=run.outputs, batch=rows)

    def batch_rows(slot: Slot, client: Client) -> Content:
        return rounds.predicted(run, slot, client, outputs, sym.of_client("batch", slot, client))

    exchanges = [rounds.start(run), *rounds.first_predictions(run)]
    options = run.training.of(SgdOptions)
    if options.estimated and not run.protection.features:
        exchanges += rounds.probes(run, consensus=False)
    if drops:
        exchanges.append(_dropping(run))
    exchanges += rounds.step(run, "epoch", sym.ROUNDS, first, all_rows)
    if not isinstance(options.batch_size, Whole):
        between = sym.STEPS + -1 * sym.ROUNDS
        exchanges += rounds.step(run, "batch", between, next_batch, batch_rows)
    return [
        *exchanges,
        *rounds.proof(run, lambda slot: len(slot.clients) == 1 and run.training.l2 == 0.0),
    ]


def _dropping(run: Run) -> Exchange:
    """Predictions of an epoch's first batch with the units left out that its step leaves out."""
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            rows = sym.of_client("first_batch", slot, client)
            listed = sym.of_client("first_listed", slot, client)
            request = content(ms.SendPredictions, "rows of the first batch", batch=listed)
            reply = rounds.predicted(run, slot, client, rounds.outputs_of(run), rows)
            calls.append(RequestReply(client, slot.index, request, reply))
    return exchange("epoch", sym.ROUNDS, calls)


def _words(options: TrainingOptions, protection: Protection) -> Words:
    join = "gather H = b + Σ A_i h_i; step of the intercept; scatter Y_i = A_iᵀ ∂ℓ/∂H"
    if has_head(options.tower):
        join = (
            "gather E = Σ A_i h_i; scores H = E W0 + b; step of the head W0 and b; "
            "scatter Y_i = A_iᵀ ∂ℓ/∂E"
        )
    if protection.predictions and not has_head(options.tower):
        join += EXPANDED
    elif protection.features:
        join = join.replace("step of the intercept", f"{INTERCEPT}; its step")
    optimizer = options.of(SgdOptions).steps.optimizer
    client = f"∂θ = Xᵀ Y / B + l2 θ, B the batch's rows; {STEPS[optimizer]}; predictions h = X θ"
    if options.tower is not None:
        client = "∂θ by backpropagation of Y / B, B the batch's rows; "
        client += f"{STEPS[optimizer]}; predictions h of the tower"
    elif optimizer == "plain":
        client = "θ ← θ − η (Xᵀ Y / B + l2 θ), B the batch's rows; predictions h = X θ"
    return Words("step", join, client, summed(options))


def _private(part: SlotFacts) -> Counts:
    """Count releases of N rows in S = ⌈N/B⌉ batches.

    In an epoch a row is in at most min(F, S) batches, each of which sums its gradient once. It is
    predicted at the end of an epoch and for each of its batches, except the first, whose
    predictions are the last epoch's; with dropout for the first one too. All rows at once: S = 1.
    """
    epochs, tower = part.options.epochs, part.options.tower
    batches = math.ceil(part.joined / part.options.of(SgdOptions).batch_size.of(part.joined))
    asked = batches if tower is not None and tower.dropout > 0.0 else batches - 1
    return Counts(
        gradients=epochs * min(part.copies, batches),
        predictions=epochs * (1 + min(part.copies, asked)),
        steps=epochs * batches,
    )


def _whole(options: TrainingOptions, rows: int) -> bool:
    return options.of(SgdOptions).batch_size.of(rows) == rows


SPEC = MethodSpec(
    "sgd",
    _exchanges,
    _words,
    _private,
    row_bytes=lambda options, outputs: 16 + 24 * outputs,
    merges=lambda options: True,
    whole=_whole,
)
