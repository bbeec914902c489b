"""PBM-VFL (Tran et al., 2025, algorithm 2) over joins: gradient descent of towers whose embeddings
the coordinator sees as sums over all slots, joined row by joined row."""

from __future__ import annotations

import math

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.methods.pbm.messages import PbmResiduals, SendEmbeddings
from sqlfl.methods.pbm.options import PbmOptions
from sqlfl.methods.sgd.options import STEPS
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.method_spec import MethodSpec, Words, has_head, summed
from sqlfl.planner.federated.sizes import Content, content
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import Counts, Protection, SlotFacts


def _exchanges(run: Run) -> list[Exchange]:
    """Return the exchanges: each joined row is summed once an epoch; validation rows after the last
    step.
    """

    def residuals(slot: Slot, client: Client) -> Content:
        rows = sym.of_client("stepped", slot, client)
        return content(PbmResiduals, rows=rows, outputs=run.outputs)

    def ready(slot: Slot, client: Client) -> Content:
        return content(ms.Ready, rounds.ENCODED)

    return [
        rounds.start(run),
        *_keys(run),
        _sums(run),
        *rounds.step(run, "step", sym.STEPS, residuals, ready),
    ]


def _keys(run: Run) -> list[Exchange]:
    places = [(client, slot) for slot in run.towers for client in slot.clients]
    names = tuple(str(client) for client, _ in places)
    request = content(ms.SetPeers, clients=names, peers=len(names))
    key_exchanges = [
        RequestReply(c, s.index, content(ms.SendPublicKey), content(ms.PublicKey))
        for c, s in places
    ]
    told = [RequestReply(c, s.index, request, content(ms.Ready)) for c, s in places]
    return [exchange("secure sums", 1, key_exchanges), exchange("secure sums", 1, told)]


def _sums(run: Run) -> Exchange:
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            listed = sym.of_client("listed", slot, client)
            places = listed if len(slot.clients) > 1 else 0
            request = content(SendEmbeddings, listed=listed, places=places)
            drawn = run.protection.predictions
            words = ms.MaskedEmbeddings.words + (f"; {drawn.told}" if drawn else "")
            reply = content(ms.MaskedEmbeddings, words, packed=sym.PACKED)
            calls.append(RequestReply(client, slot.index, request, reply))
    return exchange("sums", sym.SUMS, calls)


def _words(options: TrainingOptions, protection: Protection) -> Words:
    drawn = bool(protection.predictions)
    estimate = "(Σ q − b M/2) / (θ b)" if drawn else "Σ_i h_i, row by row"
    head = "scores E W0 + b; step of the head W0 and b" if has_head(options.tower) else (
        "scores E + b; step of b"
    )  # fmt: skip
    join = f"E = {estimate}; {head}; scatter Y_i = A_iᵀ ∂ℓ/∂E"
    step = STEPS[options.of(PbmOptions).steps.optimizer]
    client = f"∂θ by backpropagation of Y / B, B the batch's rows; {step}; h of the tower, in "
    client += "[−1, 1]; q ~ Binomial(b, ½ + θ h), and masks" if drawn else "[−1, 1], and masks"
    return Words("step", join, client, summed(options))


def _private(part: SlotFacts) -> Counts:
    """Count N rows in S = ⌈N/B⌉ batches, as in sgd. A row is drawn for each joined row that it is
    in, for validation too, once an epoch.
    """
    epochs = part.options.epochs
    batches = math.ceil(part.joined / part.options.of(PbmOptions).batch_size.of(part.joined))
    return Counts(
        gradients=epochs * min(part.copies, batches),
        predictions=0,
        steps=epochs * batches,
        draws=epochs * part.summed,
    )


SPEC = MethodSpec(
    "pbm",
    _exchanges,
    _words,
    _private,
    row_bytes=lambda options, outputs: 16 + 24 * outputs,
    drawn=True,
)
