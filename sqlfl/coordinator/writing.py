"""PREDICT INTO: each client joins predictions with its identifiers, and all keep their tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Array
from sqlfl.base.errors import PartyError
from sqlfl.base.interrupts import deferred
from sqlfl.contract.schema import Client
from sqlfl.coordinator import expected
from sqlfl.coordinator.preparation import Joined
from sqlfl.messages import CLIENT, Commit, Ready, Write
from sqlfl.messages.checks import Expected, ReplyChannel, ask
from sqlfl.planner.federated.into import Into
from sqlfl.planner.grammar import trees

SCHEMA = pa.schema(
    [*((name, pa.string()) for name in ("party", "client", "table")), ("rows", pa.int64())]
)


def write(
    into: Into, joined: Joined, prediction: Array, channel: ReplyChannel, run: str
) -> pa.Table:
    """Return a row for each table made: party, client, table (as SQL names it), rows. A combining
    party has one row for all of its clients' tables.

    prediction : float64 (N, 1) numbers, or (N, K) probabilities of the classes.

    All clients make their tables before any keeps its own. Raise PartyError if one fails. Then no
    client has a table, unless it failed when keeping it, which the error says.
    """
    requests = {
        (client, CLIENT): _request(into, client, places, joined, prediction, run)
        for client, places in into.requests.items()
    }
    written = ask(channel, requests, lambda a: expected.written(len(requests[a].prediction)))
    with deferred():  # a Ctrl-C now would leave some tables, and not others
        _commit(into, channel, run)
    rows: list[dict[str, object]] = []
    for client, places in into.requests.items():
        reply = written[client, CLIENT]
        named = zip(places[::3], places[1::3], places[2::3], strict=True)
        names = [
            trees.table(last, schema, catalog).sql("duckdb") for catalog, schema, last in named
        ]
        table = ", ".join(dict.fromkeys(names))
        rows.append(
            {"party": client.party, "client": str(client), "table": table, "rows": reply.rows}
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _commit(into: Into, channel: ReplyChannel, run: str) -> None:
    try:
        requests = {(client, CLIENT): Commit(run, CLIENT) for client in into.clients}
        ask(channel, requests, lambda a: Expected(Ready))
    except PartyError as error:
        if len(into.clients) == 1:
            raise
        others = ", ".join(str(c) for c in into.clients if str(c) != error.party)
        raise PartyError(
            error.party,
            "its table was made but could not be kept",
            hint=f"{others} may have kept theirs: look there, and drop {into.path} before you "
            "try again",
        ) from error


def _request(
    into: Into,
    client: Client,
    places: tuple[str, ...],
    joined: Joined,
    prediction: Array,
    run: str,
) -> Write:
    """Return the client's share, in the order of its own rows. The order of other parties' rows
    would disclose facts about them.
    """
    mine, rows = _own_rows(into, client, joined)
    values = prediction[mine]
    order = np.lexsort([*values.T[::-1], *rows[::-1]])
    values = values[order]
    return Write(
        run,
        CLIENT,
        table=places,
        names=into.names,
        slots=np.array(into.slots, np.int32),
        rows=tuple(part[order].astype(np.uint32) for part in rows),
        prediction=values.argmax(axis=1).astype(np.uint32) if into.classes else values[:, 0],
        classes=into.classes,
        type=into.type,
        probabilities=values if into.classes else np.zeros((len(values), 0)),
        replace=int(into.replace),
    )


def _own_rows(into: Into, client: Client, joined: Joined) -> tuple[Array, list[Array]]:
    """Return which joined rows (m,) are the client's, and the active row of each for every slot of
    identifiers.
    """
    if len(into.clients) == 1:
        every = np.arange(joined.total)
        return every, [joined.slots[slot].rows for slot in into.slots]
    slot = joined.slots[into.slots[0]]
    place = slot.addresses.index((client, slot.slot))
    start, end = slot.offsets[place], slot.offsets[place + 1]
    mine = np.flatnonzero((slot.rows >= start) & (slot.rows < end))
    return mine, [slot.rows[mine] - start]
