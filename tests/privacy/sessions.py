"""A coordinator that asks for the same labels session after session, and takes the majority.

It knows a row again by how often it is joined, which it sees: row k is in k + 1 joined rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import sqlfl
from sqlfl.messages import Activate, Labels, Message
from sqlfl.messages.wire import decode
from sqlfl.party.attachment import Source, Store
from sqlfl.transport.base import Transport
from sqlfl.transport.recording import RecordingTransport
from tests.open_databases import in_memory

ROWS = 120
EPSILON = 1
VISITS = (
    "CREATE TABLE visits AS SELECT range AS id, range % 7 AS age, "
    f"(range * 17) % 23 < 11 AS ill FROM range({ROWS})"
)
TESTS = (
    f"CREATE TABLE tests AS SELECT r.range AS id, s.range % 3 AS sugar FROM range({ROWS}) r "
    f"JOIN range({ROWS}) s ON s.range <= r.range"
)
TRUTH = np.array([(k * 17) % 23 < 11 for k in range(ROWS)])

Array = np.ndarray


def train(label: str = "v.ill", source: str = "clinic.visits v", more: str = "") -> str:
    privacy = more or f"label_epsilon = {EPSILON}"
    return (
        f"TRAIN OR REPLACE MODEL m USING logistic_regression TARGET y WITH (epochs = 1) "
        f"PRIVACY ({privacy}) FROM (SELECT v.age, t.sugar, {label} AS y FROM {source} "
        "JOIN lab.tests t ON v.id = t.id)"
    )


class Session:
    """A federation of the clinic and a laboratory, and what its coordinator sees."""

    def __init__(self, fed: sqlfl.Federation, transport: RecordingTransport) -> None:
        self.fed = fed
        self._transport = transport

    def labels(self, statement: str) -> Array:
        """Codes of the rows in order, by what left in the statement."""
        taken = len(self._transport.recorded)
        with contextlib.suppress(sqlfl.PartyError):  # a run may fail once they have left
            self.fed.sql(statement)
        return seen([decode(item.data) for item in self._transport.recorded[taken:]])


def seen(messages: list[Message]) -> Array:
    (labels,) = (m for m in messages if isinstance(m, Labels))
    (active,) = (m for m in messages if isinstance(m, Activate) and m.slot == labels.slot)
    return by_row(active.counts, labels.codes)


def by_row(counts: Array, codes: Array) -> Array:
    """Codes of active rows that occur so often, in the order of the table's rows."""
    found = np.zeros(ROWS, int)
    found[np.asarray(counts, int) - 1] = codes
    return found


@contextlib.contextmanager
def session(
    source: Source, coordinator: Path | None = None, name: str = "clinic", store: Store = None
) -> Iterator[Session]:
    recorders: list[RecordingTransport] = []

    def wrap(inner: Transport) -> Transport:
        recorders.append(RecordingTransport(inner))
        return recorders[0]

    with in_memory() as lab:
        lab.execute(TESTS)
        with sqlfl.Federation(coordinator, progress=False, wrap=wrap) as fed:
            fed.attach(name, source, store)
            kept = None if coordinator is None else coordinator.with_suffix(".lab")
            fed.attach("lab", lab, kept)
            yield Session(fed, recorders[0])


def right(draws: list[Array]) -> float:
    """Share of the labels that a majority of the draws tells."""
    return float(np.mean((np.mean(draws, axis=0) > 0.5) == TRUTH))
