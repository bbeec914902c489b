"""The network model: how long a run's messages would take between parties that are apart.

It is that of TablePuppet's evaluation: an exchange takes the latency once, and then as long as the
party with most to send and receive needs for it, each on a line of its own. Nothing is measured and
nothing is slowed down; what clients and coordinator compute is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlfl.errors import InternalError
from sqlfl.options.training import NETWORKS

BITS = 8
"""Per byte; bandwidths are in bits."""


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
    """Seconds, for a message to a client and its reply together."""
    bandwidth: float
    """Bits per second, of what is sent and received together."""

    @classmethod
    def of(cls, option: object) -> Network | None:
        """The value of the option `network`; None where it is not set.

        >>> Network.of("us-us")
        Network(latency=0.067, bandwidth=1150000000.0)
        """
        if option is None:
            return None
        if isinstance(option, Mapping):
            return cls(float(option["latency"]), float(option["bandwidth"]))
        if option not in NETWORKS:
            raise InternalError(f"no network is known as {option!r}")
        return cls(*NETWORKS[str(option)])

    def seconds(self, sizes: Iterable[int]) -> float:
        """Of one exchange: latency + max(sizes)·8 / bandwidth.

        sizes : bytes of values that cross the border, up and down together, for each client that
            takes part; where there is none the exchange takes no time.
        """
        largest = max(sizes, default=None)
        return 0.0 if largest is None else self.latency + largest * BITS / self.bandwidth
