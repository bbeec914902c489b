"""Sums over all slots, joined row by joined row, of which the coordinator sees no part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sqlfl.aggregation import packing
from sqlfl.base.arrays import Array
from sqlfl.base.errors import PartyError, WireError
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.mapping import TableMapping
from sqlfl.coordinator.join.scatter_gather import listed_rows
from sqlfl.coordinator.join.slot_members import SlotMembers
from sqlfl.coordinator.repeating import Repeating
from sqlfl.messages import MaskedEmbeddings, Message, PublicKey, Ready, SendPublicKey, SetPeers
from sqlfl.messages.replies import Expected, ReplyChannel, ask, refused


class SecretSums:
    """Of numbers that each slot has of each joined row: one of the slot's clients has the row.

    `most`: what a slot's number is at most. Raises PartyError where a reply is not of so many
    numbers, and where the numbers add up to what they cannot.
    """

    def __init__(
        self,
        channel: ReplyChannel,
        run: str,
        mapping: TableMapping,
        slots: Sequence[SlotMembers],
        most: int,
    ) -> None:
        self._channel = channel
        self._repeating = Repeating(channel, run)
        self._run = run
        self._mapping = mapping
        self._slots = slots
        self._most = most * len(slots)
        self._width = packing.width(len(slots), most)

    def agree(self) -> None:
        """The public key of each slot at each client, to all of them: two exchanges."""
        addresses = [address for members in self._slots for address in members.addresses]
        asked = {address: SendPublicKey(self._run, address[1]) for address in addresses}
        own = ask(self._channel, asked, lambda address: Expected(PublicKey))
        names = tuple(str(client) for client, _ in addresses)
        slots = np.array([slot for _, slot in addresses], np.int64)
        keys = np.stack([own[address].key for address in addresses])
        seals = np.stack([own[address].seal for address in addresses])
        told = {
            address: SetPeers(self._run, address[1], names, slots, keys, seals)
            for address in addresses
        }
        ask(self._channel, told, lambda address: Expected(Ready))

    def of(
        self,
        joined: Array,
        numbers: int,
        request: Callable[[Address, Array, Array], Message],
    ) -> Array:
        """Sums of the joined rows `joined` (b,), of so many numbers each: unsigned (b, numbers).

        request: to a client, from its active rows uint32 (k,) that these joined rows have, in their
        order, and which of them they are in (k,), or none where they are in all. One exchange.
        """
        requests = {
            address: request(address, rows, places)
            for address, (rows, places) in listed_rows(self._mapping, self._slots, joined).items()
        }
        count, width = len(joined) * numbers, self._width
        sizes = {"packed": packing.size(count, width)}

        def fault(own: MaskedEmbeddings) -> str | None:
            if (own.numbers, own.width) == (count, width):
                return None
            return f"has {own.numbers} numbers of {own.width} bits, of {count} of {width}"

        replies: Mapping[Address, MaskedEmbeddings] = ask(
            self._repeating, requests, lambda address: Expected(MaskedEmbeddings, sizes, fault)
        )
        parts = []
        for address, own in replies.items():
            try:
                parts.append(packing.unpack(own.packed.tobytes(), width, count))
            except WireError as error:
                raise refused(address[0], requests[address], error.message) from None
        total = packing.summed(parts, width)
        if total.size and int(total.max()) > self._most:
            parties = ", ".join(dict.fromkeys(str(client) for client, _ in requests))
            raise PartyError(
                parties,
                f"the sums of their masked numbers are above {self._most}: masks do not cancel",
                hint="see that all parties run this version of sqlfl, unchanged",
            )
        return total.reshape(len(joined), numbers)
