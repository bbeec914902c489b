"""Checks of the clients' replies in the rounds of training.

The configurations and the widths from the start of a run say which reply each client must send. Any
other reply raises a PartyError (`sqlfl.messages.replies`) before a method uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import PENALTY, Configuration
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.scatter_gather import JoinedRows
from sqlfl.coordinator.join.slot_members import SlotMembers
from sqlfl.messages import (
    ConsensusPart,
    ExactPredictions,
    Gram,
    Message,
    PartialGradient,
    Predictions,
    Ready,
    Slope,
)
from sqlfl.messages.replies import Expected, refused

Expect: TypeAlias = Callable[[Address], Expected[Any]]


@dataclass(frozen=True, eq=False)
class _Client:
    configuration: Configuration
    width: int
    """Number of encoded columns."""

    @property
    def merging(self) -> tuple[type[Message], int]:
        """Return the type of the messages that a step sends to be merged, and their number."""
        averagings = self.configuration.averagings
        if averagings or not self.configuration.shared:
            return ConsensusPart, averagings
        return PartialGradient, 1

    def products(self, number: int) -> int:
        return number if self.configuration.leader else 0


class Answers:
    """Expected replies of the clients of some slots. `begin` must have received their widths first.

    outputs : number of values in the prediction of a row.
    """

    def __init__(self, slots: Sequence[SlotMembers], outputs: int) -> None:
        self._slots = slots
        self._outputs = outputs
        self._clients: dict[Address, _Client] = {}

    @staticmethod
    def started(address: Address) -> Expected[Ready]:
        """Return the expected reply to `Start`."""
        return Expected(Ready)

    def begin(
        self,
        requests: Mapping[Address, Message],
        configurations: Mapping[Address, Configuration],
        replies: Mapping[Address, Ready],
    ) -> None:
        """Keep configurations and widths. Raise PartyError where clients of one slot have different
        numbers of columns.
        """
        for members in self._slots:
            first = replies[members.addresses[0]].width
            for address in members.addresses:
                width = replies[address].width
                if width != first:
                    what = f"has {width} encoded columns, and others of its slot have {first}"
                    raise refused(address[0], requests[address], what)
                self._clients[address] = _Client(configurations[address], width)

    def ready(self, address: Address) -> Expected[Ready]:
        """Return the expected reply to a request without a result: the same width as before."""
        width = self._of(address).width
        return Expected(
            Ready,
            fault=lambda own: None if own.width == width else f"has {own.width} columns of {width}",
        )

    def gram(self, address: Address) -> Expected[Gram]:
        """Return the expected Gram matrix, which has as many columns as the client reported."""
        return Expected(Gram, {"columns": self._of(address).width})

    def partial(self, address: Address) -> Expected[PartialGradient]:
        """Return the expected part of a sum over the slot's rows. It is as large as the block."""
        client = self._of(address)
        parameters, outputs = client.configuration.parameters(client.width)
        return Expected(PartialGradient, {"parameters": parameters, "outputs": outputs})

    def predictions(self, rows: JoinedRows) -> Callable[[Address], Expected[Predictions]]:
        """Return the expected predictions of these rows, where no step comes before them."""
        return lambda address: self._predicted(address, rows, PENALTY, self._outputs)

    def exact_predictions(self, rows: JoinedRows) -> Callable[[Address], Expected[Any]]:
        """Return the expected predictions of these rows in 8-byte numbers."""
        return lambda address: self._predicted(address, rows, PENALTY, self._outputs, exact=True)

    def step(self, following: JoinedRows, *, exact: bool = False) -> list[Expect]:
        """Return the expected replies to a step and to its merged parts, one for each exchange. The
        last replies are predictions of the rows `following`.
        """
        first = next(iter(self._clients.values()))
        products = first.configuration.products

        def last(address: Address) -> Expected[Any]:
            return self._predicted(address, following, products, self._outputs, exact=exact)

        return self._merged({a: c.merging for a, c in self._clients.items()}, self._outputs, last)

    def settled(self, last: Expect) -> list[Expect]:
        """Return the expected replies to merged parts. The last ones are as `last` says."""
        return self._merged({a: c.merging for a, c in self._clients.items()}, self._outputs, last)

    @property
    def widths(self) -> Mapping[Address, int]:
        return {address: client.width for address, client in self._clients.items()}

    def stepped(self) -> list[Expect]:
        """Return the expected replies to a step after which the clients send no predictions."""
        merging = {a: c.merging for a, c in self._clients.items()}
        return self._merged(merging, self._outputs, self.ready)

    def probe(self, rows: JoinedRows) -> list[Expect]:
        """Return the expected replies to a power round. Consensus has no parts to merge in it."""
        merging = {a: c.merging for a, c in self._clients.items()}
        merging |= {a: (k, 0) for a, (k, _) in merging.items() if k is not PartialGradient}
        return self._merged(merging, 1, lambda a: self._predicted(a, rows, 0, 1))

    def slopes(self) -> list[Expect]:
        """Return the expected replies to a request for gradient norms. Several clients of a slot
        first sum their gradients.
        """
        merging = {
            a: (PartialGradient, int(c.configuration.shared)) for a, c in self._clients.items()
        }

        def last(address: Address) -> Expected[Any]:
            client = self._of(address)
            return Expected(
                Slope, {"squares": client.products(1 + int(client.configuration.metric))}
            )

        return self._merged(merging, self._outputs, last)

    def _merged(
        self,
        merging: Mapping[Address, tuple[type[Message], int]],
        outputs: int,
        last: Expect,
    ) -> list[Expect]:
        """Return the expected replies of each exchange.

        merging: the message type that each client sends to be merged, and how often, before its
        `last` reply.
        """

        def at(exchange: int) -> Expect:
            def expected(address: Address) -> Expected[Any]:
                kind, often = merging[address]
                if exchange >= often:
                    return last(address)
                client = self._of(address)
                parameters, wide = client.configuration.parameters(client.width)
                return Expected(
                    kind, {"parameters": parameters, "outputs": 1 if outputs == 1 else wide}
                )

            return expected

        return [at(exchange) for exchange in range(max(n for _, n in merging.values()) + 1)]

    def _predicted(
        self,
        address: Address,
        rows: JoinedRows,
        products: int,
        outputs: int,
        *,
        exact: bool = False,
    ) -> Expected[Any]:
        sizes = {
            "rows": rows.sizes[address],
            "outputs": outputs,
            "products": self._of(address).products(products),
        }
        return Expected(ExactPredictions if exact else Predictions, sizes)

    def _of(self, address: Address) -> _Client:
        if address not in self._clients:
            raise InternalError(f"client {address[0]} has not been started")
        return self._clients[address]
