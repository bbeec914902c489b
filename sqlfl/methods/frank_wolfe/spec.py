"""Block-coordinate Frank-Wolfe for the LASSO (Lou and Cheung, 2018, algorithm 2), over joins."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.methods.frank_wolfe.messages import (
    ColumnDirection,
    ColumnResiduals,
    ColumnWeights,
    SetSketch,
    SteepestColumn,
)
from sqlfl.methods.frank_wolfe.options import CORRECTIVE, SEARCH, FrankWolfeOptions
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.method_spec import MethodSpec, Words, summed
from sqlfl.planner.federated.sizes import Content, Size, content
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import Counts, Protection, SlotFacts

_STEPS = {
    CORRECTIVE: "the best weights of all columns that were told",
    SEARCH: "the best step towards it",
}


def _exchanges(run: Run) -> list[Exchange]:
    """Return the exchanges: every iteration asks each slot for one column, the first before there
    are weights. The last weights are sent without a request where an answer would cost budget.
    """
    protected = bool(run.protection.features)
    asked = sym.ROUNDS + 1 + (-1 * sym.SETTLED if protected else 0)
    exchanges = [rounds.start(run), *_sketches(run), *_iterations(run, asked)]
    return [*exchanges, _settled(run)] if protected else exchanges


def _iterations(run: Run, times: Size) -> list[Exchange]:
    return rounds.step(run, "iteration", times, _question(run), _answer(run))


def _sketches(run: Run) -> list[Exchange]:
    if run.training.of(FrankWolfeOptions).sketch is None:
        return []
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            listed = sym.of_client("listed", slot, client)
            places = listed if len(slot.clients) > 1 else 0
            request = content(SetSketch, listed=listed, places=places)
            calls.append(
                RequestReply(client, slot.index, request, content(ms.Ready, rounds.ENCODED))
            )
    return [exchange("sketch", 1, calls)]


def _question(run: Run) -> Callable[[Slot, Client], Content]:
    sketch = run.training.of(FrankWolfeOptions).sketch

    def sent(slot: Slot, client: Client) -> Content:
        weights = sym.of_slot("chosen", slot)
        if sketch is not None:
            return content(ColumnDirection, sketch=sketch, weights=weights)
        rows = rounds.trained(run, slot, client)
        return content(ColumnResiduals, rows=rows, outputs=1, weights=weights)

    return sent


def _answer(run: Run) -> Callable[[Slot, Client], Content]:
    sketch, protected = run.training.of(FrankWolfeOptions).sketch, run.protection.features
    column = "the column's values, standardised or one-hot"
    if sketch is not None:
        column = f"{sketch} random sums of the column's values over the joined rows"
    words = "which encoded column lowers the loss fastest, and which way"
    words += f"; when it is told first, {column}"
    if protected:
        words = "which encoded column, by noised slopes, lowers the loss fastest, and which way; "
        words += f"when it is told first, {column}, clipped and noised (Gaussian)"

    def answer(slot: Slot, client: Client) -> Content:
        return content(SteepestColumn, words, part=sym.of_client("new_column", slot, client))

    return answer


def _settled(run: Run) -> Exchange:
    calls = [
        RequestReply(
            client,
            slot.index,
            content(ColumnWeights, weights=sym.of_slot("chosen_in_all", slot)),
            content(ms.Ready, rounds.ENCODED),
        )
        for slot in run.towers
        for client in slot.clients
    ]
    return exchange("last weights", sym.SETTLED, calls)


def _words(options: TrainingOptions, protection: Protection) -> Words:
    own = options.of(FrankWolfeOptions)
    step = _STEPS.get(own.step, "a step towards it of 2/(p t + 2)")
    way = "Y_i = A_iᵀ (H − y)" if own.sketch is None else "u = J (H − y)"
    gradient = "g = Xᵀ Y / N" if own.sketch is None else "g = Xᵀ (J A)ᵀ u / N"
    looked = "all columns" if own.sample is None else f"{own.sample} columns drawn at random"
    chosen = f"the largest |g| of {looked}"
    if protection.features:
        chosen = f"the largest ±g of {looked}, each noised"
    return Words(
        "iteration",
        f"of the columns told, the one with the largest slope; {step}, Σ |θ| ≤ r; {way}",
        f"{gradient}; {chosen}",
        summed(options),
    )


def _private(part: SlotFacts) -> Counts:
    """Count a row in every choice of its client, and once in each column that is sent."""
    epochs = part.options.epochs
    return Counts(gradients=0, predictions=0, steps=epochs, selections=epochs)


def _exact(options: TrainingOptions) -> bool:
    return options.of(FrankWolfeOptions).sketch is None


def _row_bytes(options: TrainingOptions, outputs: int) -> int:
    return 0 if _exact(options) else 16 * 8


SPEC = MethodSpec(
    "frank_wolfe",
    _exchanges,
    _words,
    _private,
    row_bytes=_row_bytes,
    sums_only=_exact,
    merges=_exact,
)
