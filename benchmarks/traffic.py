"""What training sent, exchange by exchange, and how long that takes by the network model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sqlfl.transport.network import NETWORKS, Network

LINES = NETWORKS
MERGES = ("sum_gradient", "consensus_average")
"""What the coordinator sends to the clients of a slot after it has merged what they sent."""


@dataclass
class Exchange:
    """One round: a message to each client, and its reply."""

    kinds: set[str] = field(default_factory=set)
    down: Counter[str] = field(default_factory=Counter)
    """Bytes of values to each client."""
    up: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    """Rows that each client predicts for it."""
    merges: int = 0
    """Messages that carry a sum or mean of what the clients of a slot sent."""

    def add(self, client: str, direction: str, kind: str, size: int, rows: int) -> None:
        self.kinds.add(kind)
        (self.down if direction == "down" else self.up)[client] += size
        if kind == "predictions":
            self.rows[client] += rows
        if kind in MERGES:
            self.merges += 1

    def seconds(self, network: Network, *, shared: bool = False) -> float:
        """`shared`: all clients on one line of the coordinator, instead of one for each."""
        sizes = [self.down[client] + self.up[client] for client in self.down]
        return network.seconds([sum(sizes)] if shared and sizes else sizes)


@dataclass(frozen=True)
class Traffic:
    """Sums over exchanges."""

    rounds: int
    bytes_up: int
    bytes_down: int
    seconds: dict[str, float]
    """By network, each client on a line of its own."""
    shared: dict[str, float]
    """By network, all clients on one line."""
    client_rows: int
    """Rows that the busiest client predicted."""
    merges: int

    @classmethod
    def of(cls, exchanges: Sequence[Exchange]) -> Traffic:
        rows: Counter[str] = Counter()
        for exchange in exchanges:
            rows.update(exchange.rows)
        return cls(
            rounds=len(exchanges),
            bytes_up=sum(sum(e.up.values()) for e in exchanges),
            bytes_down=sum(sum(e.down.values()) for e in exchanges),
            seconds={n: sum(e.seconds(line) for e in exchanges) for n, line in LINES.items()},
            shared={
                n: sum(e.seconds(line, shared=True) for e in exchanges) for n, line in LINES.items()
            },
            client_rows=max(rows.values(), default=0),
            merges=sum(e.merges for e in exchanges),
        )


def of_audit(records: pa.Table) -> list[Exchange]:
    """The exchanges of a run from its records: a request after a reply begins the next one."""
    found: list[Exchange] = []
    before = "up"
    for record in records.to_pylist():
        if record["direction"] == "down" and before == "up":
            found.append(Exchange())
        before = record["direction"]
        found[-1].add(record["client"], before, record["kind"], record["bytes"], record["rows"])
    return found


def beginning(exchanges: Iterable[Exchange]) -> int:
    """How many exchanges there are before training: those that map the tables."""
    return next(number for number, e in enumerate(exchanges) if "start" in e.kinds)


def epochs(exchanges: Sequence[Exchange], ends: Sequence[int]) -> list[dict[str, Any]]:
    """Sums from the first exchange to that after which each epoch ended."""
    return [vars(Traffic.of(exchanges[:end])) for end in ends]
