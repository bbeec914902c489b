"""Sharing ADMM, of linear blocks and of towers."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.admm.options import AdmmOptions, local_rounds
from sqlfl.options.training import TrainingOptions
from sqlfl.options.types import Whole
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.method_spec import MethodSpec, Words, has_head, summed
from sqlfl.planner.federated.sizes import Content, content
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import Counts, Protection, SlotFacts


def _exchanges(run: Run) -> list[Exchange]:
    """Return the exchanges. Towers have no second moments, and no curvature for power rounds."""
    consensus = run.training.of(AdmmOptions).consensus and bool(rounds.shared(run))
    exchanges = [rounds.start(run), *rounds.first_predictions(run)]
    if run.tower is None:
        exchanges += [] if consensus else rounds.grams(run)
        exchanges += (
            rounds.probes(run, consensus)
            if len(run.towers) > 1 and not run.protection.features
            else []
        )

    def sent(slot: Slot, client: Client) -> Content:
        return content(AdmmResiduals, rows=rounds.trained(run, slot, client), outputs=run.outputs)

    def answer(slot: Slot, client: Client) -> Content:
        return rounds.predicted(run, slot, client, rounds.outputs_of_rows(run))

    def measured(slot: Slot) -> bool:
        return len(slot.clients) == 1 or not consensus

    if consensus:
        exchanges += _consensus_epochs(run, sent, answer)
    else:
        exchanges += rounds.step(run, "epoch", sym.ROUNDS, sent, answer)
    return [*exchanges, *rounds.proof(run, measured)]


def _consensus_epochs(
    run: Run, sent: Callable[[Slot, Client], Content], answer: Callable[[Slot, Client], Content]
) -> list[Exchange]:
    """Eq. 22-24: per epoch inner_rounds averages of shared slots, the last one answered by h."""
    inner = run.training.of(AdmmOptions).inner_rounds
    first, between, last = [], [], []
    for slot in run.towers:
        size = run.parameters(slot)
        noising = ", by clipped and noised gradients (Gaussian)" if run.protection.features else ""
        words = f"θ + u of its own rows{noising}"
        part = content(ms.ConsensusPart, words, parameters=size, outputs=1)
        average = content(ms.ConsensusAverage, parameters=size, outputs=1)
        for client in slot.clients:
            request, answered = sent(slot, client), answer(slot, client)
            if len(slot.clients) == 1:
                first.append(RequestReply(client, slot.index, request, answered))
                continue
            first.append(RequestReply(client, slot.index, request, part))
            between.append(RequestReply(client, slot.index, average, part))
            last.append(RequestReply(client, slot.index, average, answered))
    return [
        exchange("epoch", sym.ROUNDS, first),
        *([exchange("epoch", sym.ROUNDS * (inner - 1), between)] if inner > 1 else []),
        exchange("epoch", sym.ROUNDS, last),
    ]


def _words(options: TrainingOptions, protection: Protection) -> Words:
    join = (
        "gather H = b + Σ A_i h_i; z- and λ-update per joined row; intercept; "
        "scatter Y_i = A_iᵀ (λ + ρ (H − z))"
    )
    if has_head(options.tower):
        join = (
            "gather E = Σ A_i h_i; z- and λ-update per joined row, for scores H = z W0 + b; head "
            "W0 and b fitted to E; scatter Y_i = A_iᵀ (λ + ρ (E − z))"
        )
    client = "θ-update by a factorised ridge system; predictions h = X θ"
    near = "own θ by a ridge system with θ near w − u; u ← u + θ − w; predictions h = X θ"
    if options.tower is not None:
        often = options.of(AdmmOptions).local_epochs
        by = f"by {often} pass{'es' * (often != 1)} of Adam over its own rows in batches"
        client = f"θ-update {by}; predictions h of the tower"
        near = f"own θ near w − u {by}; u ← u + θ − w; predictions h of the tower"
    mean = "w = mean of the clients' θ + u, back to each of them"
    return Words("epoch", join, client, summed(options, "Xᵀ Y"), (near, mean))


def _private(part: SlotFacts) -> Counts:
    """Count a sum and a prediction per epoch. For towers, each pass over the client's rows sums
    each row's gradient once, in any batches; `local_rounds` gives the number of passes.
    """
    options, epochs = part.options.of(AdmmOptions), part.options.epochs
    if part.options.tower is None:
        return Counts(epochs, epochs, epochs)
    inner, passes = local_rounds(options.local_epochs, options.inner_rounds, part.clients)
    return Counts(epochs * inner * passes, epochs, epochs)


def _merges(options: TrainingOptions) -> bool:
    """Return whether equal rows may be merged: not where local steps of towers draw batches of
    rows.
    """
    return options.tower is None or isinstance(options.of(AdmmOptions).batch_size, Whole)


def _row_bytes(options: TrainingOptions, outputs: int) -> int:
    return 8 + (24 if options.tower is None else 96) * outputs


SPEC = MethodSpec(
    "admm",
    _exchanges,
    _words,
    _private,
    row_bytes=_row_bytes,
    moments=True,
    merges=_merges,
    usual_epochs=(10, 60),
)
