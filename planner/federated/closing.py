"""The last exchanges of a run: writing results, and the end."""

from __future__ import annotations

from sqlfl import messages as ms
from sqlfl.planner.federated import symbols as sym
from sqlfl.planner.federated.amounts import content
from sqlfl.planner.federated.exchanges import WHOLE, Exchange, RequestReply, Run, exchange
from sqlfl.planner.federated.into import Into

HEAD = "0" * 64
"""A placeholder with the length of a SHA-256 in hexadecimal digits."""


def writing(run: Run, into: Into) -> Exchange:
    what = "predictions" + (" and probabilities" if into.classes else "")
    what += ", the active rows that they are of; names of the table and its columns"
    what += ", which may take the place of another" if into.replace else ""
    calls = []
    for client, places in into.requests.items():
        rows = sym.JOINED
        if len(into.clients) > 1:
            rows = sym.of_client("written", run.ucq.slots[into.slots[0]], client)
        request = content(
            ms.Write,
            what,
            table=places,
            names=into.names,
            slots=len(into.slots),
            written=rows,
            prediction="uint32" if into.classes else "float64",
            classes=into.classes,
            type=into.type,
        )
        calls.append(RequestReply(client, WHOLE, request, content(ms.Written)))
    return exchange("write", 1, calls)


def commit(into: Into) -> Exchange:
    request, reply = content(ms.Commit), content(ms.Ready)
    return exchange(
        "commit", 1, [RequestReply(client, WHOLE, request, reply) for client in into.clients]
    )


def ending(run: Run) -> list[Exchange]:
    """Return the final exchanges: clients that keep an audit log compare its hash, and all forget
    the run.
    """
    heads = {"head": HEAD, "chain": HEAD}
    request, reply = content(ms.Seal, **heads), content(ms.Sealed, **heads)
    kept = [
        RequestReply(client, WHOLE, request, reply)
        for client in run.clients
        if client in run.governed
    ]
    request, reply = content(ms.Finish), content(ms.Ready)
    over = [RequestReply(client, WHOLE, request, reply) for client in run.clients]
    return [exchange("seal", 1, kept), exchange("finish", 1, over)]
