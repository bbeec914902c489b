"""The exchanges of training, one function per algorithm; patterns as in sqlfl.methods."""

from __future__ import annotations

from collections.abc import Callable

from sqlfl import messages as ms
from sqlfl.planner.protocol import symbols as sym
from sqlfl.planner.protocol.amounts import Content, content
from sqlfl.planner.protocol.exchanges import Call, Exchange, Run, exchange
from sqlfl.planner.protocol.sizes import Size
from sqlfl.planner.query.ucq import Slot
from sqlfl.schema import Client

HISTORY = 10
"""m, the pairs that L-BFGS remembers."""
LBFGS_PRODUCTS = 6 * (3 + 3 * HISTORY)
LBFGS_COEFFICIENTS = 2 + 2 * HISTORY
ADMM_COEFFICIENTS = 1
SGD_COEFFICIENTS = 3
PENALTY = 1
INNER_ROUNDS = 10

ENCODED = "number of encoded columns"


def start(run: Run) -> Exchange:
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            options = sym.of_client("configuration", slot, client)
            request = content(ms.Start, configuration=options)
            calls.append(Call(client, slot.index, request, content(ms.Ready, ENCODED)))
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
                calls.append(Call(client, slot.index, ALL_ROWS, reply))
    return [exchange(phase, 1, calls)]


ALL_ROWS = content(ms.SendPredictions, "which rows: all", batch=0)


def outputs_of(run: Run) -> str:
    return "h = X θ" if run.tower is None else "h, outputs of the tower"


def predicted(run: Run, slot: Slot, client: Client, what: str, rows: Size | None = None) -> Content:
    """The block's outputs of so many rows (all active ones by default), and its penalty."""
    noise = run.protection.predictions
    what += f", {noise.told}" if noise else ""
    what += "; penalty of the block" if client == slot.clients[0] else ""
    return predictions(slot, client, what, PENALTY, outputs=run.outputs, rows=rows)


def grams(run: Run) -> list[Exchange]:
    """Second moments of shared slots: up from each client, the sum back down."""
    up, down = [], []
    for slot in shared(run):
        for client in slot.clients:
            what = "second moments Σ cnt x xᵀ of the encoded columns"
            stored = sym.of_client("stored", slot, client)
            merged = sym.of_slot("merged_stored", slot)
            if run.protection.features:
                what += ": of numbers, and of categories the diagonal; rows clipped, all noised"
                stored = merged = sym.of_slot("onehot", slot)
            reply = content(ms.Gram, what, **moments(slot, stored))
            up.append(Call(client, slot.index, content(ms.SendGram), reply))
            summed = content(ms.SetGram, **moments(slot, merged))
            down.append(Call(client, slot.index, summed, content(ms.Ready, ENCODED)))
    return [exchange("second moments", 1, up), exchange("second moments", 1, down)]


def moments(slot: Slot, stored: Size) -> dict[str, Size]:
    """Sizes of a slot's second moments."""
    p, q = sym.of_slot("numeric", slot), sym.of_slot("onehot", slot)
    return {"numeric": p, "onehot": q, "columns": p + q, "stored": stored}


def shared(run: Run) -> tuple[Slot, ...]:
    return tuple(slot for slot in run.towers if len(slot.clients) > 1)


def active(slot: Slot, client: Client) -> Size:
    return sym.of_client("active", slot, client)


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
    """One step of every block: an exchange, and one more to sum the gradients of shared slots.

    `sent` gives the request; `answer` the predictions; `parameters` how many numbers a gradient has
    (the block's).
    """
    first, second = [], []
    for slot in run.towers:
        for client in slot.clients:
            request, last = sent(slot, client), answer(slot, client)
            if len(slot.clients) == 1:
                first.append(Call(client, slot.index, request, last))
                continue
            size = (parameters or run.parameters)(slot)
            summed = content(ms.SumGradient, parameters=size, outputs=1)
            first.append(Call(client, slot.index, request, partial(run, size)))
            second.append(Call(client, slot.index, summed, last))
    return [exchange(phase, times, first), exchange(phase, times, second)]


def residuals(
    slot: Slot,
    client: Client,
    coefficients: int,
    *,
    kind: type[ms.Residuals] = ms.Residuals,
    outputs: Size = sym.OUTPUTS,
) -> Content:
    """Of all active rows."""
    rows = active(slot, client)
    return content(kind, rows=rows, outputs=outputs, coefficients=coefficients, batch=0)


def predictions(
    slot: Slot,
    client: Client,
    what: str,
    products: int,
    *,
    kind: type[ms.Predictions] = ms.Predictions,
    outputs: Size | int = sym.OUTPUTS,
    rows: Size | None = None,
) -> Content:
    """Of all active rows by default; `products` numbers come from the slot's first client only."""
    rows = active(slot, client) if rows is None else rows
    own = products if client == slot.clients[0] else 0
    return content(kind, what, rows=rows, outputs=outputs, products=own)


def lbfgs(run: Run) -> list[Exchange]:
    def sent(slot: Slot, client: Client) -> Content:
        return residuals(slot, client, LBFGS_COEFFICIENTS)

    def answer(slot: Slot, client: Client) -> Content:
        what = "X P g of active rows"
        what += "; inner products of the block" if client == slot.clients[0] else ""
        return predictions(slot, client, what, LBFGS_PRODUCTS)

    found = [start(run), *first_predictions(run), *grams(run)]
    found += step(run, "iteration", sym.ROUNDS + 1 + -1 * sym.EXACT, sent, answer)
    return [*found, *exact_iterations(run), *proof(run, exact=False)]


def exact_iterations(run: Run) -> list[Exchange]:
    """What lbfgs exchanges where 4-byte numbers do not do."""

    def sent(slot: Slot, client: Client) -> Content:
        return residuals(slot, client, LBFGS_COEFFICIENTS, kind=ms.ExactResiduals)

    def answer(slot: Slot, client: Client) -> Content:
        what = "X P g of active rows, in 8 bytes"
        what += "; inner products of the block" if client == slot.clients[0] else ""
        return predictions(slot, client, what, LBFGS_PRODUCTS, kind=ms.ExactPredictions)

    times = sym.EXACT + sym.RENEWALS
    return [scores(run, "renewal", sym.RENEWALS), *step(run, "renewal", times, sent, answer)]


def scores(run: Run, phase: str, times: Size, *, exact: bool = True) -> Exchange:
    """h of all active rows, as the blocks stand."""
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            if not exact:
                reply = predicted(run, slot, client, f"{outputs_of(run)} of active rows")
                calls.append(Call(client, slot.index, ALL_ROWS, reply))
                continue
            what = f"{outputs_of(run)} of active rows, in 8 bytes"
            what += "; penalty of the block" if client == slot.clients[0] else ""
            reply = predictions(slot, client, what, PENALTY, kind=ms.ExactPredictions)
            calls.append(Call(client, slot.index, content(ms.SendExactPredictions), reply))
    return exchange(phase, times, calls)


def proof(run: Run, *, exact: bool = True) -> list[Exchange]:
    """How large the gradient is in the end, at refreshed scores. Of towers it would prove nothing;
    of protected rows it is not told."""
    if run.tower is not None or run.protection.features:
        return []

    def sent(slot: Slot, client: Client) -> Content:
        return content(ms.SendSlope, rows=active(slot, client), outputs=sym.OUTPUTS)

    def answer(slot: Slot, client: Client) -> Content:
        if client != slot.clients[0]:
            return content(ms.Slope, squares=0)
        what = "norm of the objective's gradient by the block"
        if measured(run, slot):
            what = f"{what}, as it is and by its second moments"
            return content(ms.Slope, what, squares=2)
        return content(ms.Slope, what, squares=1)

    refreshed = scores(run, "proof", sym.PROOFS, exact=exact)
    return [refreshed, *step(run, "proof", sym.PROOFS, sent, answer)]


def measured(run: Run, slot: Slot) -> bool:
    """The client has the slot's second moments, or makes them, as ClientConfiguration.metric."""
    if run.options["algorithm"] == "sgd":
        return len(slot.clients) == 1 and run.options["l2"] == 0.0
    return len(slot.clients) == 1 or run.options.get("union") != "consensus"


def admm(run: Run) -> list[Exchange]:
    """Towers have neither second moments nor a curvature that power rounds could tell."""
    consensus = run.options.get("union") == "consensus" and bool(shared(run))
    found = [start(run), *first_predictions(run)]
    if run.tower is None:
        found += [] if consensus else grams(run)
        found += (
            probes(run, consensus) if len(run.towers) > 1 and not run.protection.features else []
        )

    def sent(slot: Slot, client: Client) -> Content:
        return residuals(slot, client, ADMM_COEFFICIENTS, outputs=run.outputs)

    def answer(slot: Slot, client: Client) -> Content:
        return predicted(run, slot, client, f"{outputs_of(run)} of active rows")

    if not consensus:
        return [*found, *step(run, "epoch", sym.ROUNDS, sent, answer), *proof(run)]
    return [*found, *consensus_epochs(run, sent, answer), *proof(run)]


def consensus_epochs(
    run: Run, sent: Callable[[Slot, Client], Content], answer: Callable[[Slot, Client], Content]
) -> list[Exchange]:
    """Eq. 22-24: per epoch inner_rounds averages of shared slots, the last one answered by h."""
    inner = int(str(run.options.get("inner_rounds") or INNER_ROUNDS))
    first, between, last = [], [], []
    for slot in run.towers:
        size = run.parameters(slot)
        own = ", by clipped and noised gradients (Gaussian)" if run.protection.features else ""
        what = f"θ + u of its own rows{own}"
        part = content(ms.ConsensusPart, what, parameters=size, outputs=1)
        average = content(ms.ConsensusAverage, parameters=size, outputs=1)
        for client in slot.clients:
            request, answered = sent(slot, client), answer(slot, client)
            if len(slot.clients) == 1:
                first.append(Call(client, slot.index, request, answered))
                continue
            first.append(Call(client, slot.index, request, part))
            between.append(Call(client, slot.index, average, part))
            last.append(Call(client, slot.index, average, answered))
    return [
        exchange("epoch", sym.ROUNDS, first),
        *([exchange("epoch", sym.ROUNDS * (inner - 1), between)] if inner > 1 else []),
        exchange("epoch", sym.ROUNDS, last),
    ]


def probes(run: Run, consensus: bool) -> list[Exchange]:
    """Power rounds of the curvature estimate, on one vector."""

    def sent(slot: Slot, client: Client) -> Content:
        return content(ms.Probe, rows=active(slot, client))

    def answer(slot: Slot, client: Client) -> Content:
        return predictions(slot, client, "its image, per active row", 0, outputs=1)

    if consensus:
        calls = [
            Call(c, slot.index, sent(slot, c), answer(slot, c))
            for slot in run.towers
            for c in slot.clients
        ]
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
    scalars: dict[str, Size | int] = {"outputs": run.outputs, "coefficients": SGD_COEFFICIENTS}

    def first(slot: Slot, client: Client) -> Content:
        rows = sym.of_client("first_batch" if drops else "active", slot, client)
        return content(ms.Residuals, rows=rows, batch=0, **scalars)

    def all_rows(slot: Slot, client: Client) -> Content:
        return predicted(run, slot, client, outputs)

    def next_batch(slot: Slot, client: Client) -> Content:
        rows = sym.of_client("batch", slot, client)
        what = f"{ms.Residuals.words}; rows of the next batch"
        return content(ms.Residuals, what, rows=rows, batch=rows, **scalars)

    def batch_rows(slot: Slot, client: Client) -> Content:
        return predicted(run, slot, client, outputs, sym.of_client("batch", slot, client))

    found = [start(run), *first_predictions(run)]
    if not run.options.get("learning_rate") and not run.protection.features:
        found += probes(run, consensus=False)
    if drops:
        found.append(dropping(run))
    found += step(run, "epoch", sym.ROUNDS, first, all_rows)
    if run.options.get("batch_size") or (run.tower is not None and not run.protection.features):
        between = sym.STEPS + -1 * sym.ROUNDS
        found += step(run, "batch", between, next_batch, batch_rows)
    return [*found, *proof(run)]


def dropping(run: Run) -> Exchange:
    """Predictions of an epoch's first batch with the units left out that its step leaves out."""
    calls = []
    for slot in run.towers:
        for client in slot.clients:
            rows = sym.of_client("first_batch", slot, client)
            listed = sym.of_client("first_listed", slot, client)
            request = content(ms.SendPredictions, "rows of the first batch", batch=listed)
            reply = predicted(run, slot, client, outputs_of(run), rows)
            calls.append(Call(client, slot.index, request, reply))
    return exchange("epoch", sym.ROUNDS, calls)


ROUNDS: dict[str, Callable[[Run], list[Exchange]]] = {"lbfgs": lbfgs, "admm": admm, "sgd": sgd}
"""Algorithm -> its exchanges."""
