"""Block-preconditioned, vector-free L-BFGS, of linear blocks that are not protected."""

from __future__ import annotations

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.methods.lbfgs.messages import (
    ExactLbfgsResiduals,
    LbfgsResiduals,
    coefficients_length,
    products_length,
)
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated import rounds
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import Exchange, Run
from sqlfl.planner.federated.method_spec import MethodSpec, Words, summed
from sqlfl.planner.federated.sizes import Content, content
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.protection import Protection


def _exchanges(run: Run) -> list[Exchange]:
    def sent(slot: Slot, client: Client) -> Content:
        return _residuals(run, LbfgsResiduals, slot, client)

    def answer(slot: Slot, client: Client) -> Content:
        what = f"X P g of {rounds.rows_of(run)}"
        what += "; inner products of the block" if client == slot.clients[0] else ""
        return rounds.predictions(run, slot, client, what, products_length())

    exchanges = [rounds.start(run), *rounds.first_predictions(run), *rounds.grams(run)]
    exchanges += [*rounds.pairs(run), *rounds.strengths(run)]
    again = sym.UPDATES if run.shrunken else 0
    times = sym.ROUNDS + 1 + again + -1 * sym.EXACT
    exchanges += rounds.step(run, "iteration", times, sent, answer)
    return [*exchanges, *_exact_iterations(run), *rounds.proof(run, lambda slot: True, exact=False)]


def _exact_iterations(run: Run) -> list[Exchange]:
    """Return the exchanges of iterations for which 4-byte numbers are not exact enough."""

    def sent(slot: Slot, client: Client) -> Content:
        return _residuals(run, ExactLbfgsResiduals, slot, client)

    def answer(slot: Slot, client: Client) -> Content:
        what = f"X P g of {rounds.rows_of(run)}, in 8 bytes"
        what += "; inner products of the block" if client == slot.clients[0] else ""
        return rounds.predictions(
            run, slot, client, what, products_length(), kind=ms.ExactPredictions
        )

    times = sym.EXACT + sym.RENEWALS
    renewed = rounds.scores(run, "renewal", sym.RENEWALS)
    return [renewed, *rounds.step(run, "renewal", times, sent, answer)]


def _residuals(run: Run, kind: type[LbfgsResiduals], slot: Slot, client: Client) -> Content:
    rows, length = rounds.trained(run, slot, client), coefficients_length()
    return content(kind, rows=rows, outputs=sym.OUTPUTS, coefficients=length)


def _words(options: TrainingOptions, protection: Protection) -> Words:
    return Words(
        every="iteration",
        join="gather H = b + Σ A_i h_i along the direction; exact search by block; "
        "scatter Y_i = A_iᵀ ∂ℓ/∂H; coefficients of the next direction",
        client="gradient g = Xᵀ Y / N + l2 θ; preconditioned P g; predictions X P g; inner "
        "products",
        union=summed(options),
    )


SPEC = MethodSpec(
    "lbfgs",
    _exchanges,
    _words,
    row_bytes=lambda options, outputs: 0,
    sums_only=lambda options: True,
    merges=lambda options: True,
    usual_epochs=(6, 28),  # two rounds less than LbfgsOptions.usual
)
