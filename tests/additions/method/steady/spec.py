"""What the planner, EXPLAIN and the account of noise know of it."""

from __future__ import annotations

from sqlfl.contract.schema import Client
from sqlfl.messages import Residuals
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, Run
from sqlfl.planner.federated.method_spec import MethodSpec, Words, summed
from sqlfl.planner.federated.sizes import Content, content
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import Counts, Protection, SlotFacts


def _exchanges(run: Run) -> list[Exchange]:
    def sent(slot: Slot, client: Client) -> Content:
        return content(Residuals, rows=rounds.active(slot, client), outputs=run.outputs)

    def answer(slot: Slot, client: Client) -> Content:
        return rounds.predicted(run, slot, client, rounds.outputs_of(run))

    def measured(slot: Slot) -> bool:
        return len(slot.clients) == 1 and run.training.l2 == 0.0

    return [
        rounds.start(run),
        *rounds.first_predictions(run),
        *rounds.step(run, "epoch", sym.ROUNDS, sent, answer),
        *rounds.proof(run, measured),
    ]


def _words(options: TrainingOptions, protection: Protection) -> Words:
    return Words(
        every="epoch",
        join="gather H = b + Σ A_i h_i; step of the intercept; scatter Y_i = A_iᵀ ∂ℓ/∂H",
        client="θ ← θ − η (Xᵀ Y / N + l2 θ); predictions h = X θ",
        union=summed(options),
    )


def _private(part: SlotFacts) -> Counts:
    epochs = part.options.epochs
    return Counts(gradients=epochs, predictions=epochs, steps=epochs)


SPEC = MethodSpec("steady", _exchanges, _words, _private)
