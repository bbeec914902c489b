"""The request of a run (sqlfl.contract.request) for a client, from the run's exchanges."""

from __future__ import annotations

from sqlfl.base.codec import to_json
from sqlfl.contract.request import Asked, Request
from sqlfl.contract.schema import Client
from sqlfl.contract.transforms import updates
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated.exchanges import COORDINATOR, Exchange, Run
from sqlfl.planner.federated.sizes import Size

ONCE = ("settled", "proofs", "mergers", "paired")
"""Roles of symbols that are 0 or 1."""
UPDATED = "updates"
"""Role of the symbol that counts updates of strengths."""
ROUNDS = ("rounds", "exact")
"""Roles of symbols that count epochs, or a part of them."""


def request_of(
    run: Run, exchanges: tuple[Exchange, ...], client: Client, privacy: Privacy | None
) -> Request:
    """Planning is not of the run."""
    training = isinstance(run.options, TrainingOptions)
    most: dict[tuple[int, str, str, str], int | None] = {}
    for item in exchanges:
        replies = {
            send.slot: send
            for send in item.sends
            if send.client == client and send.receiver == COORDINATOR
        }
        for send in item.sends:
            if send.client != client or send.sender != COORDINATOR or item.phase == "plan":
                continue
            reply = replies[send.slot]
            key = (send.slot, send.kind, reply.kind, reply.what)
            before, times = most.get(key, 0), at_most(run, item.times)
            most[key] = None if before is None or times is None else before + times
    return Request(
        purpose=run.purpose,
        kind=run.kind,
        algorithm=run.training.algorithm if training else "",
        options=to_json([run.options, run.tuning]),
        privacy=to_json(privacy),
        look=to_json(run.look),
        warm=training and run.training.warm_start is not None,
        into=run.into is not None,
        asked=tuple(Asked(*key, often) for key, often in sorted(most.items())),
        study=run.study,
    )


def at_most(run: Run, times: Size) -> int | None:
    """Return a bound that follows from the options alone; None without one."""
    total = 0
    for symbols, number in times.terms:
        if number < 0:
            continue
        product = number
        for symbol in symbols:
            if symbol.role in ONCE:
                largest = 1 if run.tuning is None else run.tuning.fits
            elif symbol.role == UPDATED:
                largest = updates(pairs=run.paired) * (1 if run.tuning is None else run.tuning.fits)
            elif symbol.role in ROUNDS:
                largest = _epochs(run)
            elif symbol.role == "checkpoints":
                largest = _epochs(run) // (run.training.checkpoint or 1)
            else:
                return None
            product *= largest
        total += product
    return total


def _epochs(run: Run) -> int:
    """Return the epochs of all fits."""
    if run.tuning is None:
        return run.training.epochs
    return run.tuning.fits * max(c.options.epochs for c in run.tuning.candidates)
