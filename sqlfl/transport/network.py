"""Network model: an estimate of the time of a run's messages between separate parties.

It is the model of TablePuppet's evaluation. An exchange takes the latency once. Then it takes as
long as the party with most to send and receive needs, each on a line of its own. Nothing is
measured, and nothing is slowed down. The computing time of clients and coordinator is not included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

BITS = 8
"""Bits per byte; bandwidths are in bits."""


@dataclass(frozen=True)
class Network:
    """Lines between the coordinator and each client, all alike.

    >>> line = Network(latency=0.1, bandwidth=8e6)
    >>> line.seconds([1_000_000, 3_000_000])
    3.1
    >>> line.seconds([])
    0.0
    """

    latency: float
    """Seconds for a message to a client and its reply together."""
    bandwidth: float
    """Bits per second, sent and received together."""
    name: str | None = field(default=None, repr=False, compare=False)
    """Name if it is one of NETWORKS."""

    def seconds(self, sizes: Iterable[int]) -> float:
        """Return the seconds of one exchange: latency + max(sizes)·8 / bandwidth.

        sizes : bytes of values that cross the border, up and down together, for each client that
            takes part. Without clients the exchange takes no time.
        """
        largest = max(sizes, default=None)
        return 0.0 if largest is None else self.latency + largest * BITS / self.bandwidth


NETWORKS = {
    network.name: network
    for network in (Network(0.136, 0.42e9, "us-uk"), Network(0.067, 1.15e9, "us-us"))
    if network.name is not None
}
"""Networks as TablePuppet measured them."""
