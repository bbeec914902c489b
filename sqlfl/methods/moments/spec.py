"""Regression from noised moments: each table releases two sums, once; in a second round one table
releases fits of its rows, and each other one another sum.
"""

from __future__ import annotations

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.method_spec import MethodSpec, Words, summed
from sqlfl.planner.federated.sizes import Content, Size, content
from sqlfl.planner.query.ucq import CATEGORY, Slot
from sqlfl.privacy.protection import Counts, Protection, SlotFacts

_MOMENTS = (
    "second moments Σ w x xᵀ of the encoded columns, rows bounded, the sum noised (Gaussian), once"
)
_LABEL_SUMS = (
    "Y, the labels less their mean, summed per row, cut at a level of labels and join graph"
)
_FIT_SUMS = "Y, what the target does not say of the noised fits, summed per row, cut"
_WITH_FITS = "moments with the fits Σ x Y, rows bounded, the sum noised (Gaussian), once"
_FITS = "fits x θ of each row, noised (Gaussian) by the most that they can be apart, once"
_LABELS = "moments with the label Σ x Y, rows bounded, the sum noised (Gaussian), once"
_CONSTANT = "what the centre of the encoded columns comes to"


def _exchanges(run: Run) -> list[Exchange]:
    moments, labels, blocks, fitted, fits, others = [], [], [], [], [], []
    for slot in run.towers:
        for client in slot.clients:

            def call(
                request: Content, reply: Content, slot: Slot = slot, client: Client = client
            ) -> RequestReply:
                return RequestReply(client, slot.index, request, reply)

            reply = content(ms.Gram, _MOMENTS, **rounds.moments(slot, _stored(slot, client)))
            moments.append(call(content(ms.SendGram), reply))
            labels.append(call(_sent(slot, client, _LABEL_SUMS), _answer(slot, _LABELS)))
            blocks.append(call(_block(slot), _constant()))
            if slot.index == run.ucq.leading:
                fitted.append(call(_block(slot), _constant()))
                fits.append(call(rounds.ALL_ROWS, _fits(run, slot, client)))
            else:
                others.append(call(_sent(slot, client, _FIT_SUMS), _answer(slot, _WITH_FITS)))
    second = [
        exchange("weights of fits", 1, fitted),
        exchange("fits", 1, fits),
        exchange("moments with fits", 1, others),
    ]
    return [
        rounds.start(run),
        exchange("second moments", 1, moments),
        exchange("moments with the label", 1, labels),
        *(second if run.training.listed()["rounds"] == 2 else []),
        exchange("solution", 1, blocks),
    ]


def _stored(slot: Slot, client: Client) -> Size:
    """Return the count of numbers: of one category feature the diagonal alone is sent."""
    if sum(feature.kind == CATEGORY for feature in slot.features) < 2:
        return sym.of_slot("onehot", slot)
    return sym.of_client("crossed", slot, client)


def _sent(slot: Slot, client: Client, what: str) -> Content:
    return content(ms.Residuals, what, rows=rounds.active(slot, client), outputs=sym.OUTPUTS)


def _answer(slot: Slot, what: str) -> Content:
    columns = sym.of_slot("columns", slot)
    return content(ms.PartialGradient, what, parameters=columns, outputs=sym.OUTPUTS)


def _fits(run: Run, slot: Slot, client: Client) -> Content:
    rows = rounds.active(slot, client)
    return rounds.predictions(run, slot, client, _FITS, 1, outputs=sym.OUTPUTS, rows=rows)


def _block(slot: Slot) -> Content:
    return content(ms.SetParameters, parameters=sym.of_slot("columns", slot), outputs=sym.OUTPUTS)


def _constant() -> Content:
    return content(ms.Constant, _CONSTANT, outputs=sym.OUTPUTS)


def _words(options: TrainingOptions, protection: Protection) -> Words:
    given, more = "the target", ""
    if options.listed()["rounds"] == 2:
        given += " and the fits of one table"
        more = ", and once more with the noised fits h of one table in place of y"
    return Words(
        "solution",
        f"Y_i = w A_iᵀ (y − mean), cut{more}; least squares from all tables' moments, or for "
        "classes the linear discriminant, as if columns of different tables were uncorrelated "
        f"given {given}",
        f"Σ w x xᵀ and Σ x Y, w = min(n, cap), each noised and told once{more}",
        summed(options, "moments"),
    )


def _private(part: SlotFacts) -> Counts:
    """A row is in its table's two sums, once each; in a second round its fit is told once, or it is
    in a third sum."""
    second = part.options.listed()["rounds"] == 2
    fits = int(second and part.leads)
    return Counts(gradients=0, predictions=fits, steps=1, crosses=1 + int(second) - fits)


SPEC = MethodSpec(
    "moments",
    _exchanges,
    _words,
    _private,
    row_bytes=lambda options, outputs: 16 + 24 * outputs,
)
