"""Regression from noised moments: each table releases two sums, once, and nothing by row."""

from __future__ import annotations

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import symbols as sym
from sqlfl.planner.federated.amounts import Content, content
from sqlfl.planner.federated.exchanges import Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.method_spec import MethodSpec, Words, summed
from sqlfl.planner.federated.sizes import Size
from sqlfl.planner.query.ucq import CATEGORY, Slot
from sqlfl.privacy.counts import Counts, Part
from sqlfl.privacy.protection import Protection

_MOMENTS = (
    "second moments Σ w x xᵀ of the encoded columns, rows bounded, the sum noised (Gaussian), once"
)
_LABELS = "moments with the label Σ x Y, rows bounded, the sum noised (Gaussian), once"
_CONSTANT = "what the centre of the encoded columns comes to"


def _exchanges(run: Run) -> list[Exchange]:
    moments, labels, blocks = [], [], []
    for slot in run.towers:
        for client in slot.clients:
            reply = content(ms.Gram, _MOMENTS, **rounds.moments(slot, _stored(slot, client)))
            moments.append(RequestReply(client, slot.index, content(ms.SendGram), reply))
            labels.append(RequestReply(client, slot.index, _sent(slot, client), _answer(slot)))
            blocks.append(RequestReply(client, slot.index, _block(slot), _constant()))
    return [
        rounds.start(run),
        exchange("second moments", 1, moments),
        exchange("moments with the label", 1, labels),
        exchange("solution", 1, blocks),
    ]


def _stored(slot: Slot, client: Client) -> Size:
    """Return the count of numbers: of one category feature the diagonal alone is sent."""
    if sum(feature.kind == CATEGORY for feature in slot.features) < 2:
        return sym.of_slot("onehot", slot)
    return sym.of_client("crossed", slot, client)


def _sent(slot: Slot, client: Client) -> Content:
    what = "Y, the labels less their mean, summed per row, cut at a level of labels and join graph"
    return content(ms.Residuals, what, rows=rounds.active(slot, client), outputs=sym.OUTPUTS)


def _answer(slot: Slot) -> Content:
    columns = sym.of_slot("columns", slot)
    return content(ms.PartialGradient, _LABELS, parameters=columns, outputs=sym.OUTPUTS)


def _block(slot: Slot) -> Content:
    return content(ms.SetParameters, parameters=sym.of_slot("columns", slot), outputs=sym.OUTPUTS)


def _constant() -> Content:
    return content(ms.Constant, _CONSTANT, outputs=sym.OUTPUTS)


def _words(options: TrainingOptions, protection: Protection) -> Words:
    return Words(
        "solution",
        "Y_i = w A_iᵀ (y − mean), cut; least squares from all tables' moments, or for classes the "
        "linear discriminant, as if columns of different tables were uncorrelated given the target",
        "Σ w x xᵀ and Σ x Y, w = min(n, cap), each noised and told once",
        summed(options, "moments"),
    )


def _private(part: Part) -> Counts:
    """A row is in its table's two sums, once each."""
    return Counts(gradients=0, predictions=0, steps=1, crosses=1)


SPEC = MethodSpec(
    "moments",
    _exchanges,
    _words,
    _private,
    row_bytes=lambda options, outputs: 16 + 24 * outputs,
)
