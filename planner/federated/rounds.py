"""Exchanges that methods share in their rounds. A method declares its other exchanges in its
`spec`."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.contract.transforms import COARSE_SIDE, FINE_SIDE
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.sizes import Content, FieldValue, Size, content
from sqlfl.planner.query.ucq import Slot

PENALTY = 1
"""The constant of sqlfl.contract.configuration, which the planner does not load."""
ENCODED = "number of encoded columns"


def start(run: Run) -> Exchange:
    calls, method = [], run.training.algorithm
    for slot in run.towers:
        for client in slot.clients:
            options = sym.of_client("configuration", slot, client)
            request = content(ms.Start, method=method, configuration=options)
            calls.append(RequestReply(client, slot.index, request, content(ms.Ready, ENCODED)))
    return exchange("start", 1, calls)


def first_predictions(run: Run) -> list[Exchange]:
    """Return the first predictions of blocks, which training starts from; none for linear blocks
    that start at 0."""
    calls, phase = [], "first predictions"
    for slot in run.towers:
        for client in slot.clients:
            warm = run.specification(client, slot.index).warm is not None
            if warm or run.tower is not None:
                phase = "warm start" if warm else phase
                start = "the model that training starts from" if warm else "first parameters"
                what = f"{outputs_of_rows(run)}, by {start}"
                reply = predicted(run, slot, client, what)
                calls.append(RequestReply(client, slot.index, ALL_ROWS, reply))
    return [exchange(phase, 1, calls)]


ALL_ROWS = content(ms.SendPredictions, "which rows: all", batch=0)


def outputs_of(run: Run) -> str:
    return "h = X θ" if run.tower is None else "h, outputs of the tower"


def outputs_of_rows(run: Run) -> str:
    return f"{outputs_of(run)} of {rows_of(run)}"


def predicted(run: Run, slot: Slot, client: Client, what: str, rows: Size | None = None) -> Content:
    """Return the block's outputs for these rows (all by default), and its penalty."""
    noise = run.protection.predictions
    what += f", {noise.told}" if noise else ""
    what += "; penalty of the block" if client == slot.clients[0] else ""
    return predictions(run, slot, client, what, PENALTY, outputs=run.outputs, rows=rows)


def grams(run: Run) -> list[Exchange]:
    """Return the exchanges of second moments of shared slots: up from each client, the sum back
    down."""
    up, down = [], []
    for slot in shared(run):
        for client in slot.clients:
            words = "second moments Σ cnt x xᵀ of the encoded columns"
            stored = sym.of_client("stored", slot, client)
            merged = sym.of_slot("merged_stored", slot)
            if run.protection.features:
                words += ": of numbers, and of categories the diagonal; rows clipped, all noised"
                stored = merged = sym.of_slot("onehot", slot)
            reply = content(ms.Gram, words, **moments(slot, stored))
            up.append(RequestReply(client, slot.index, content(ms.SendGram), reply))
            summed = content(ms.SetGram, **moments(slot, merged))
            down.append(RequestReply(client, slot.index, summed, content(ms.Ready, ENCODED)))
    return [exchange("second moments", 1, up), exchange("second moments", 1, down)]


def strengths(run: Run) -> list[Exchange]:
    """Return the exchange that updates strengths of column groups of `auto`."""
    calls = []
    for slot in run.shrunken:
        reply = content(ms.Strengths)
        calls += [
            RequestReply(client, slot.index, content(ms.SetStrengths), reply)
            for client in slot.clients
        ]
    return [exchange("strengths", sym.UPDATES, calls)] if calls else []


def pairs(run: Run) -> list[Exchange]:
    """Return the exchanges in which the clients of shared slots choose pairs of features."""
    calls: tuple[list[RequestReply], ...] = ([], [], [])
    for slot in run.shrunken:
        if not slot.pairs or slot not in shared(run):
            continue
        coarse: dict[str, FieldValue] = {
            "cells": COARSE_SIDE**2 * slot.crossings,
            "outputs": sym.OUTPUTS,
        }
        fine: dict[str, FieldValue] = {"pairs": slot.pairs, "cells": FINE_SIDE**2}
        for client in slot.clients:
            steps = (
                (content(ms.SendCells), content(ms.Cells, **coarse)),
                (content(ms.SetCells, **coarse), content(ms.PairCells, **fine)),
                (content(ms.SetPairCells, **fine), content(ms.Ready, ENCODED)),
            )
            for own, step_ in zip(calls, steps, strict=True):
                own.append(RequestReply(client, slot.index, *step_))
    return [exchange("pairs", sym.PAIRED, own) for own in calls if own]


def moments(slot: Slot, stored: Size) -> dict[str, Size]:
    """Return the sizes of a slot's second moments."""
    p, q = sym.of_slot("numeric", slot), sym.of_slot("onehot", slot)
    return {"numeric": p, "onehot": q, "columns": p + q, "stored": stored}


def shared(run: Run) -> tuple[Slot, ...]:
    return tuple(slot for slot in run.towers if len(slot.clients) > 1)


def active(slot: Slot, client: Client) -> Size:
    return sym.of_client("active", slot, client)


def trained(run: Run, slot: Slot, client: Client) -> Size:
    """Return the rows of the rounds: the active ones, with equal rows merged if the client has
    reported them."""
    return sym.of_client("trained", slot, client) if run.merges else active(slot, client)


def rows_of(run: Run) -> str:
    return "distinct rows" if run.merges else "active rows"


def partial(run: Run, parameters: Size) -> Content:
    what = "Xᵀ Y" if run.tower is None else "of all parameters"
    what = f"partial gradient {what} of its own rows"
    if run.protection.features:
        what += ", each clipped; the sum noised (Gaussian)"
    return content(ms.PartialGradient, what, parameters=parameters, outputs=1)


def step(
    run: Run,
    phase: str,
    times: Size,
    sent: Callable[[Slot, Client], Content],
    answer: Callable[[Slot, Client], Content],
    parameters: Callable[[Slot], Size] | None = None,
) -> list[Exchange]:
    """Return one step of every block: an exchange, and one more that sums the gradients of shared
    slots.

    `sent` describes the request, and `answer` the predictions. `parameters` is the size of a
    gradient (by default the block's).
    """
    first, second = [], []
    for slot in run.towers:
        for client in slot.clients:
            request, last = sent(slot, client), answer(slot, client)
            if len(slot.clients) == 1:
                first.append(RequestReply(client, slot.index, request, last))
                continue
            size = (parameters or run.parameters)(slot)
            if slot.pairs and slot in run.shrunken:
                size = sym.of_slot("grown", slot)
            summed = content(ms.SumGradient, parameters=size, outputs=1)
            first.append(RequestReply(client, slot.index, request, partial(run, size)))
            second.append(RequestReply(client, slot.index, summed, last))
    return [exchange(phase, times, first), exchange(phase, times, second)]


def predictions(
    run: Run,
    slot: Slot,
    client: Client,
    what: str,
    products: int,
    *,
    kind: type[ms.Predictions] = ms.Predictions,
    outputs: Size | int = sym.OUTPUTS,
    rows: Size | None = None,
) -> Content:
    """Return predictions, of all rows by default; `products` numbers come from the slot's first
    client only.
    """
    rows = trained(run, slot, client) if rows is None else rows
    numbers = products if client == slot.clients[0] else 0
    return content(kind, what, rows=rows, outputs=outputs, products=numbers)


def scores(run: Run, phase: str, times: Size, *, exact: bool = True) -> Exchange:
    """Return the exchanges of h of all rows, by the current blocks."""
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            if not exact:
                reply = predicted(run, slot, client, outputs_of_rows(run))
                calls.append(RequestReply(client, slot.index, ALL_ROWS, reply))
                continue
            what = f"{outputs_of_rows(run)}, in 8 bytes"
            what += "; penalty of the block" if client == slot.clients[0] else ""
            reply = predictions(run, slot, client, what, PENALTY, kind=ms.ExactPredictions)
            calls.append(RequestReply(client, slot.index, content(ms.SendExactPredictions), reply))
    return exchange(phase, times, calls)


def proof(run: Run, measured: Callable[[Slot], bool], *, exact: bool = True) -> list[Exchange]:
    """Return the exchange that measures the gradient at the end, at refreshed scores.

    For towers the gradient proves nothing, and protected rows must not disclose it.

    measured : whether a slot's first client has its second moments, or computes them
    (`Configuration.metric`).
    """
    if run.tower is not None or run.protection.features:
        return []

    def sent(slot: Slot, client: Client) -> Content:
        return content(ms.SendSlope, rows=trained(run, slot, client), outputs=sym.OUTPUTS)

    def answer(slot: Slot, client: Client) -> Content:
        if client != slot.clients[0]:
            return content(ms.Slope, "", squares=0)
        what = "norm of the objective's gradient by the block"
        if measured(slot):
            what = f"{what}, as it is and by its second moments"
            return content(ms.Slope, what, squares=2)
        return content(ms.Slope, what, squares=1)

    refreshed = scores(run, "proof", sym.PROOFS, exact=exact)
    return [refreshed, *step(run, "proof", sym.PROOFS, sent, answer)]


def probes(run: Run, consensus: bool) -> list[Exchange]:
    """Return the power rounds of the curvature estimate, on one vector."""

    def sent(slot: Slot, client: Client) -> Content:
        return content(ms.Probe, rows=trained(run, slot, client))

    def answer(slot: Slot, client: Client) -> Content:
        return predictions(run, slot, client, "its image, per row", 0, outputs=1)

    if consensus:
        calls = [
            RequestReply(c, slot.index, sent(slot, c), answer(slot, c))
            for slot in run.towers
            for c in slot.clients
        ]
        return [exchange("curvature", sym.PROBES, calls)]
    return step(
        run, "curvature", sym.PROBES, sent, answer, lambda slot: sym.of_slot("columns", slot)
    )
