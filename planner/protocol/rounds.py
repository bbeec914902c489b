"""The exchanges of training, one function per algorithm; patterns as in sqlfl.methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlfl.methods.admm.options import AdmmOptions
from sqlfl.methods.sgd.options import SgdOptions
from sqlfl.options.batch import Whole
from sqlfl.planner.protocol import symbols as sym
from sqlfl.planner.protocol.exchanges import (
    NOTHING,
    Amount,
    Call,
    Exchange,
    Run,
    exchange,
    numbers,
    text,
)
from sqlfl.planner.protocol.sizes import Size
from sqlfl.planner.query.ucq import Slot
from sqlfl.schema import Client

READY = numbers(1, 8)
HISTORY = 10
"""m, the pairs that L-BFGS remembers."""
LBFGS_PRODUCTS = 6 * (3 + 3 * HISTORY)
LBFGS_COEFFICIENTS = 1 + 2 * HISTORY
ADMM_COEFFICIENTS = 1
SGD_COEFFICIENTS = 3
PENALTY = 1

Reply = tuple[str, str, Amount]
"""Kind, words and size of a reply."""


def start(run: Run) -> Exchange:
    method = text(run.training.algorithm)
    calls = [
        Call(
            client, slot.index,
            "start", "options of training",
            method + text(sym.of_client("configuration", slot, client)),
            "ready", "number of encoded columns", READY,
        )
        for slot in run.towers
        for client in slot.clients
    ]  # fmt: skip
    return exchange("start", 1, calls)


def first_predictions(run: Run) -> list[Exchange]:
    """Of the blocks that training starts from; nothing of linear ones that start from 0."""
    calls, phase = [], "first predictions"
    for slot in run.towers:
        for client in slot.clients:
            warm = run.specification(client, slot.index).warm is not None
            if warm or run.tower is not None:
                phase = "warm start" if warm else phase
                start = "the model that training starts from" if warm else "first parameters"
                reply = predicted(
                    run, slot, client, f"{outputs_of(run)} of active rows, by {start}"
                )
                calls.append(asked(slot, client, "which rows: all", NOTHING, reply))
    return [exchange(phase, 1, calls)]


def asked(slot: Slot, client: Client, what: str, rows: Amount, reply: Reply) -> Call:
    """Predictions without a step: whether units drop, and whether of all rows."""
    down = numbers(2, 8) + rows
    return replied(Call(client, slot.index, "send_predictions", what, down, "", "", NOTHING), reply)


def outputs_of(run: Run) -> str:
    return "h = X θ" if run.tower is None else "h, outputs of the tower"


def predicted(run: Run, slot: Slot, client: Client, what: str, rows: Size | None = None) -> Reply:
    """The block's outputs of so many rows (all active ones by default), and its penalty."""
    if run.noised and run.privacy is not None:
        what += f", each row clipped to {run.privacy.prediction_bound} and noised (Gaussian)"
    what += "; penalty of the block" if client == slot.clients[0] else ""
    count = sym.of_client("active", slot, client) if rows is None else rows
    return predictions(slot, client, what, numbers(count * run.outputs, 4), PENALTY)


def grams(run: Run) -> list[Exchange]:
    """Second moments of shared slots: up from each client, the sum back down."""
    up, down = [], []
    for slot in shared(run):
        for client in slot.clients:
            what = "second moments Σ cnt x xᵀ of the encoded columns"
            stored = sym.of_client("stored", slot, client)
            merged_stored = sym.of_slot("merged_stored", slot)
            if run.protected:
                what += ": of numbers, and of categories the diagonal; rows clipped, all noised"
                stored = merged_stored = sym.of_slot("onehot", slot)
            amount = second_moments(slot, stored)
            up.append(Call(client, slot.index, "send_gram", "", NOTHING, "gram", what, amount))
            merged = second_moments(slot, merged_stored)
            what = "second moments summed over the slot's clients"
            down.append(
                Call(
                    client,
                    slot.index,
                    "set_gram",
                    what,
                    merged,
                    "ready",
                    "number of encoded columns",
                    READY,
                )
            )
    return [exchange("second moments", 1, up), exchange("second moments", 1, down)]


def second_moments(slot: Slot, stored: Size) -> Amount:
    p, q = sym.of_slot("numeric", slot), sym.of_slot("onehot", slot)
    return numbers(p * p + q * p + p + q + 1, 8) + numbers(2 * stored, 4) + numbers(stored, 8)


def shared(run: Run) -> tuple[Slot, ...]:
    return tuple(slot for slot in run.towers if len(slot.clients) > 1)


def vectors(slot: Slot, client: Client, outputs: Size | int = sym.OUTPUTS) -> Amount:
    """A 4-byte number per active row and output."""
    return numbers(sym.of_client("active", slot, client) * outputs, 4)


def exact_vectors(slot: Slot, client: Client) -> Amount:
    """An 8-byte number per active row and output."""
    return numbers(sym.of_client("active", slot, client) * sym.OUTPUTS, 8)


def partial(run: Run, parameters: Size) -> Reply:
    what = "Xᵀ Y" if run.tower is None else "of all parameters"
    what = f"partial gradient {what} of its own rows"
    if run.protected:
        what += ", each clipped; the sum noised (Gaussian)"
    return "partial_gradient", what, numbers(parameters, 8)


def step(
    run: Run,
    phase: str,
    times: Size,
    sent: Callable[[Slot, Client], Call],
    answer: Callable[[Slot, Client], Reply],
    parameters: Callable[[Slot], Size] | None = None,
) -> list[Exchange]:
    """One step of every block: an exchange, and one more to sum the gradients of shared slots.

    `sent` gives the request, its reply left open; `answer` the predictions; `parameters` how many
    numbers a gradient has (the block's).
    """
    first, second = [], []
    for slot in run.towers:
        for client in slot.clients:
            call = sent(slot, client)
            if len(slot.clients) == 1:
                first.append(replied(call, answer(slot, client)))
                continue
            size = (parameters or run.parameters)(slot)
            first.append(replied(call, partial(run, size)))
            what = "sum of the clients' partial gradients"
            down = Call(client, slot.index, "sum_gradient", what, numbers(size, 8), "", "", NOTHING)
            second.append(replied(down, answer(slot, client)))
    return [exchange(phase, times, first), exchange(phase, times, second)]


def replied(call: Call, reply: Reply) -> Call:
    return replace(call, reply=reply[0], answered=reply[1], up=reply[2])


def residuals(slot: Slot, client: Client, amount: Amount, coefficients: int) -> Call:
    what = "Y, the residuals summed per row; scalars of the step"
    sent = amount + numbers(coefficients, 8)
    return Call(client, slot.index, "residuals", what, sent, "", "", NOTHING)


def predictions(slot: Slot, client: Client, what: str, amount: Amount, products: int) -> Reply:
    """`products` numbers come from the slot's first client only."""
    if client == slot.clients[0]:
        return "predictions", what, amount + numbers(products, 8)
    return "predictions", what, amount


def lbfgs(run: Run) -> list[Exchange]:
    def sent(slot: Slot, client: Client) -> Call:
        return residuals(slot, client, vectors(slot, client), LBFGS_COEFFICIENTS)

    def answer(slot: Slot, client: Client) -> Reply:
        what = "X P g of active rows"
        what += "; inner products of the block" if client == slot.clients[0] else ""
        return predictions(slot, client, what, vectors(slot, client), LBFGS_PRODUCTS)

    found = [start(run), *first_predictions(run), *grams(run)]
    found += step(run, "iteration", sym.ROUNDS + 1 + -1 * sym.EXACT, sent, answer)
    return [*found, *exact_iterations(run), *proof(run, exact=False)]


def exact_iterations(run: Run) -> list[Exchange]:
    """What lbfgs exchanges where 4-byte numbers do not do."""

    def sent(slot: Slot, client: Client) -> Call:
        call = residuals(slot, client, exact_vectors(slot, client), LBFGS_COEFFICIENTS)
        return replace(call, request="exact_residuals", sent=f"{call.sent}, in 8 bytes")

    def answer(slot: Slot, client: Client) -> Reply:
        what = "X P g of active rows, in 8 bytes"
        what += "; inner products of the block" if client == slot.clients[0] else ""
        reply = predictions(slot, client, what, exact_vectors(slot, client), LBFGS_PRODUCTS)
        return ("exact_predictions", *reply[1:])

    times = sym.EXACT + sym.RENEWALS
    return [scores(run, "renewal", sym.RENEWALS), *step(run, "renewal", times, sent, answer)]


def scores(run: Run, phase: str, times: Size, *, exact: bool = True) -> Exchange:
    """h of all active rows, as the blocks stand."""
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            if not exact:
                reply = predicted(run, slot, client, f"{outputs_of(run)} of active rows")
                calls.append(asked(slot, client, "which rows: all", NOTHING, reply))
                continue
            what = f"{outputs_of(run)} of active rows, in 8 bytes"
            what += "; penalty of the block" if client == slot.clients[0] else ""
            reply = predictions(slot, client, what, exact_vectors(slot, client), PENALTY)
            bare = Call(client, slot.index, "send_exact_predictions", "", NOTHING, "", "", NOTHING)
            calls.append(replied(bare, ("exact_predictions", *reply[1:])))
    return exchange(phase, times, calls)


def proof(run: Run, *, exact: bool = True) -> list[Exchange]:
    """How large the gradient is in the end, at refreshed scores. Of towers it would prove nothing;
    of protected rows it is not told."""
    if run.tower is not None or run.protected:
        return []

    def sent(slot: Slot, client: Client) -> Call:
        what = "Y, the residuals summed per row"
        amount = vectors(slot, client)
        return Call(client, slot.index, "send_slope", what, amount, "", "", NOTHING)

    def answer(slot: Slot, client: Client) -> Reply:
        if client != slot.clients[0]:
            return "slope", "", NOTHING
        what, count = "norm of the objective's gradient by the block", 1
        if measured(run, slot):
            what, count = f"{what}, as it is and by its second moments", 2
        return "slope", what, numbers(count, 8)

    refreshed = scores(run, "proof", sym.PROOFS, exact=exact)
    return [refreshed, *step(run, "proof", sym.PROOFS, sent, answer)]


def measured(run: Run, slot: Slot) -> bool:
    """The client has the slot's second moments, or makes them, as ClientConfiguration.metric."""
    if run.training.algorithm == "sgd":
        return len(slot.clients) == 1 and run.training.l2 == 0.0
    method = run.training.method
    return len(slot.clients) == 1 or not (isinstance(method, AdmmOptions) and method.consensus)


def admm(run: Run) -> list[Exchange]:
    """Towers have neither second moments nor a curvature that power rounds could tell."""
    consensus = run.training.of(AdmmOptions).consensus and bool(shared(run))
    found = [start(run), *first_predictions(run)]
    if run.tower is None:
        found += [] if consensus else grams(run)
        found += probes(run, consensus) if len(run.towers) > 1 and not run.protected else []

    def sent(slot: Slot, client: Client) -> Call:
        return residuals(slot, client, vectors(slot, client, run.outputs), ADMM_COEFFICIENTS)

    def answer(slot: Slot, client: Client) -> Reply:
        return predicted(run, slot, client, f"{outputs_of(run)} of active rows")

    if not consensus:
        return [*found, *step(run, "epoch", sym.ROUNDS, sent, answer), *proof(run)]
    return [*found, *consensus_epochs(run, sent, answer), *proof(run)]


def consensus_epochs(
    run: Run, sent: Callable[[Slot, Client], Call], answer: Callable[[Slot, Client], Reply]
) -> list[Exchange]:
    """Eq. 22-24: per epoch inner_rounds averages of shared slots, the last one answered by h."""
    inner = run.training.of(AdmmOptions).inner_rounds
    first, between, last = [], [], []
    for slot in run.towers:
        size = numbers(run.parameters(slot), 8)
        own = ", by clipped and noised gradients (Gaussian)" if run.protected else ""
        part = ("consensus_part", f"θ + u of its own rows{own}", size)
        for client in slot.clients:
            if len(slot.clients) == 1:
                first.append(replied(sent(slot, client), answer(slot, client)))
                continue
            first.append(replied(sent(slot, client), part))
            what = "w, the average of the clients' θ + u"
            down = Call(client, slot.index, "consensus_average", what, size, "", "", NOTHING)
            between.append(replied(down, part))
            last.append(replied(down, answer(slot, client)))
    return [
        exchange("epoch", sym.ROUNDS, first),
        *([exchange("epoch", sym.ROUNDS * (inner - 1), between)] if inner > 1 else []),
        exchange("epoch", sym.ROUNDS, last),
    ]


def probes(run: Run, consensus: bool) -> list[Exchange]:
    """Power rounds of the curvature estimate, on one vector."""

    def sent(slot: Slot, client: Client) -> Call:
        what = "a vector of the curvature estimate"
        return Call(client, slot.index, "probe", what, vectors(slot, client, 1), "", "", NOTHING)

    def answer(slot: Slot, client: Client) -> Reply:
        what = "its image, per active row"
        return predictions(slot, client, what, vectors(slot, client, 1), 0)

    if consensus:
        calls = [replied(sent(s, c), answer(s, c)) for s in run.towers for c in s.clients]
        return [exchange("curvature", sym.PROBES, calls)]
    return step(
        run, "curvature", sym.PROBES, sent, answer, lambda slot: sym.of_slot("columns", slot)
    )


def sgd(run: Run) -> list[Exchange]:
    """All rows travel once an epoch, around its end; between, those of the batches.

    Where units drop, the first batch of an epoch is predicted anew, and only its rows' residuals go
    down.
    """
    drops = run.tower is not None and run.tower.dropout > 0.0
    outputs = outputs_of(run)

    def first(slot: Slot, client: Client) -> Call:
        rows = sym.of_client("first_batch" if drops else "active", slot, client)
        return residuals(slot, client, numbers(rows * run.outputs, 4), SGD_COEFFICIENTS)

    def all_rows(slot: Slot, client: Client) -> Reply:
        return predicted(run, slot, client, outputs)

    def next_batch(slot: Slot, client: Client) -> Call:
        rows = sym.of_client("batch", slot, client)
        call = residuals(slot, client, numbers(rows * run.outputs, 4), SGD_COEFFICIENTS)
        sent = f"{call.sent}; rows of the next batch"
        return replace(call, sent=sent, down=call.down + numbers(rows, 4))

    def batch_rows(slot: Slot, client: Client) -> Reply:
        return predicted(run, slot, client, outputs, sym.of_client("batch", slot, client))

    found = [start(run), *first_predictions(run)]
    own = run.training.of(SgdOptions)
    if own.learning_rate is None and not run.protected:
        found += probes(run, consensus=False)
    if drops:
        found.append(dropping(run))
    found += step(run, "epoch", sym.ROUNDS, first, all_rows)
    if not isinstance(own.batch_size, Whole):
        between = sym.STEPS + -1 * sym.ROUNDS
        found += step(run, "batch", between, next_batch, batch_rows)
    return [*found, *proof(run)]


def dropping(run: Run) -> Exchange:
    """Predictions of an epoch's first batch with the units left out that its step leaves out."""
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            rows = sym.of_client("first_batch", slot, client)
            listed = numbers(sym.of_client("first_listed", slot, client), 4)
            reply = predicted(run, slot, client, outputs_of(run), rows)
            calls.append(asked(slot, client, "rows of the first batch", listed, reply))
    return exchange("epoch", sym.ROUNDS, calls)


ROUNDS: dict[str, Callable[[Run], list[Exchange]]] = {"lbfgs": lbfgs, "admm": admm, "sgd": sgd}
"""Algorithm -> its exchanges."""
