"""Sums over all slots for each joined row. The coordinator sees no part of them."""

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
    """Sums of numbers that each slot has for each joined row. One of the slot's clients has the
    row.

    most: the maximum of a slot's number. Raise PartyError if a reply has another count of numbers,
    and if the numbers add up to an impossible sum.
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
        """Send the public key of each slot at each client to all of them: two exchanges."""
        addresses = [address for members in self._slots for address in members.addresses]
        asked = {address: SendPublicKey(self._run, address[1]) for address in addresses}
        replies = ask(self._channel, asked, lambda address: Expected(PublicKey))
        names = tuple(str(client) for client, _ in addresses)
        slots = np.array([slot for _, slot in addresses], np.int64)
        keys = np.stack([replies[address].key for address in addresses])
        seals = np.stack([replies[address].seal for address in addresses])
        peers = {
            address: SetPeers(self._run, address[1], names, slots, keys, seals)
            for address in addresses
        }
        ask(self._channel, peers, lambda address: Expected(Ready))

    def of(
        self,
        joined: Array,
        numbers: int,
        request: Callable[[Address, Array, Array], Message],
    ) -> Array:
        """Return sums of the joined rows `joined` (b,), with `numbers` numbers each: unsigned (b,
        numbers).

        request: makes the message to a client. It takes the client's active rows of these joined
        rows, uint32 (k,), in their order. It also takes their positions (k,), which are empty if
        the client has all rows. This is one exchange.
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
