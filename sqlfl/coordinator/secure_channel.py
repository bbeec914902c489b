"""Channel on which the coordinator sees only sums of the clients' replies."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from sqlfl.aggregation import packing
from sqlfl.aggregation.fixed_point import added
from sqlfl.aggregation.summands import (
    BOUNDED,
    DIAGONAL,
    count_of,
    format_of,
    message_of,
    nothing_like,
)
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, LostError, PartyError, WireError
from sqlfl.contract.schema import Address, Client, SlotSpecification
from sqlfl.coordinator.join.scatter_gather import SlotMembers, listed_rows
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.messages import (
    CLIENT,
    Gram,
    Masked,
    MaskedEmbeddings,
    Message,
    PartialGradient,
    Prepare,
    Probe,
    PublicKey,
    Ready,
    Repeat,
    Residuals,
    SendGram,
    SendPublicKey,
    SendSlope,
    SendStatistics,
    SetPeers,
    Statistics,
    Vocabularies,
)
from sqlfl.messages.checks import Expected, ReplyChannel, ask, refused

REPEATS = 2
"""Number of times that a lost exchange is repeated."""


class Repeating:
    """Channel on which all requests of an exchange have one number, which rises from exchange to
    exchange.

    A client that has the answer to a repeated request does not compute it again, so that it
    discloses nothing more. Anything that depends on the number is made anew.
    """

    def __init__(self, inner: ReplyChannel, run: str) -> None:
        self._inner = inner
        self._run = run
        # Only the receivers of a request know them; several threads take them one by one.
        self._numbers = itertools.count(secrets.randbits(62) + 1)

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """Make the channel's exchange. Raise PartyError if it is lost more than REPEATS times."""
        repeats: dict[Address, Message] = {}
        for left in reversed(range(REPEATS + 1)):
            number = next(self._numbers)
            numbered = {a: replace(request, number=number) for a, request in requests.items()}
            try:
                replies = self._inner.exchange(repeats | numbered)
            except LostError:
                if not left:
                    raise
                repeats = self._repeats(requests)
                continue
            return {address: replies[address] for address in requests}
        raise InternalError("an exchange that was never made")

    def _repeats(self, requests: Iterable[Address]) -> dict[Address, Message]:
        slots: dict[Client, list[int]] = {}
        for client, slot in requests:
            slots.setdefault(client, []).append(slot)
        return {
            (client, CLIENT): Repeat(self._run, CLIENT, np.array(sorted(numbers), np.int64))
            for client, numbers in slots.items()
        }


_ASKED: Mapping[type[Message], tuple[str, ...]] = {
    SendStatistics: (Statistics.kind, BOUNDED),
    SendGram: (Gram.kind, DIAGONAL),
    Probe: (PartialGradient.kind,),
    SendSlope: (PartialGradient.kind,),
    Residuals: (PartialGradient.kind,),
}
"""Requests with masked answers, and the kinds of these answers."""


class SecureChannel:
    """Channel on which clients of some slots answer under masks that cancel in their sum.

    Callers get messages as without masks. For each such slot, the first client's message is the sum
    of all, and the others' add nothing to it.

    The requests of such an exchange share one number, from which the masks are derived. A lost
    exchange is repeated with another number. Its results are not computed again, and its lost
    replies disclose nothing.

    Raise PartyError if an answer is not masked, or differs in form from the others of its slot.
    """

    def __init__(
        self,
        inner: ReplyChannel,
        run: str,
        specifications: Mapping[Client, Sequence[SlotSpecification]],
    ) -> None:
        self._inner = inner
        self._run = run
        self._repeating = Repeating(inner, run)
        self._slots: dict[int, list[Address]] = {}
        for client, items in specifications.items():
            for item in items:
                if item.secure and item.shared:
                    self._slots.setdefault(item.slot, []).append((client, item.slot))
        self._secure = [address for addresses in self._slots.values() for address in addresses]

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """Make the channel's exchange."""
        replies = self._carried(requests)
        if any(isinstance(request, Prepare) for request in requests.values()):
            self._share_keys()
        told = [slot for slot in self._slots if self._all(slot, replies, Vocabularies)]
        return replies | (self._statistics(told, requests, replies) if told else {})

    def _all(self, slot: int, replies: Mapping[Address, Message], kind: type[Message]) -> bool:
        return all(isinstance(replies.get(address), kind) for address in self._slots[slot])

    # -- rounds -----------------------------------------------------------------------------------

    def _carried(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        asked = {a: _answer_to(m) for a, m in requests.items() if a in self._secure}
        wanted = {address: kinds for address, kinds in asked.items() if kinds}
        if not wanted:
            return self._inner.exchange(requests)
        replies = self._repeating.exchange(requests)
        for address, kinds in wanted.items():
            fault = _fault(replies[address], kinds)
            if fault is not None:
                raise refused(address[0], requests[address], fault)
        for slot in dict.fromkeys(slot for _, slot in wanted):
            replies |= self._summed(slot, requests, replies)
        return replies

    def _summed(
        self, slot: int, requests: Mapping[Address, Message], replies: Mapping[Address, Message]
    ) -> dict[Address, Message]:
        """Return the messages for the sum of a slot's masked replies."""
        first, *others = self._slots[slot]
        reply = replies.get(first)
        if not isinstance(reply, Masked) or not self._all(slot, replies, Masked):
            raise InternalError(f"slot {slot}: not all of its clients were asked")
        total = reply.values
        for address in others:
            part = replies[address]
            assert isinstance(part, Masked)
            if part.of != reply.of or not np.array_equal(part.lengths, reply.lengths):
                what = f"is masked {part.of} of sizes {part.lengths.tolist()}, and others of its "
                what += f"slot sent {reply.of} of {reply.lengths.tolist()}"
                raise refused(address[0], requests[address], what)
            total = added(total, part.values)
        request = requests[first]
        tags = request.tags if isinstance(request, SendStatistics) else ()
        whole = message_of(total, reply, tags)
        return {first: whole, **dict.fromkeys(others, nothing_like(whole))}

    # -- keys and statistics ----------------------------------------------------------------------

    def _share_keys(self) -> None:
        """Send each client's public key to the others of its slots."""
        asked = {address: SendPublicKey(self._run, address[1]) for address in self._secure}
        public = ask(self._inner, asked, lambda address: Expected(PublicKey))
        requests: dict[Address, Message] = {}
        for slot, addresses in self._slots.items():
            keys = [public[address] for address in addresses]
            peers = SetPeers(
                self._run,
                slot,
                tuple(str(client) for client, _ in addresses),
                np.full(len(addresses), slot, np.int64),
                np.stack([key.key for key in keys]),
                np.stack([key.seal for key in keys]),
            )
            requests |= dict.fromkeys(addresses, peers)
        ask(self._inner, requests, lambda address: Expected(Ready))

    def _statistics(
        self,
        slots: Sequence[int],
        requests: Mapping[Address, Message],
        replies: Mapping[Address, Message],
    ) -> dict[Address, Message]:
        """Ask for statistics of the categories that the clients of these slots have reported."""
        asked: dict[Address, Message] = {}
        for slot in slots:
            parts: list[Vocabularies] = []
            for address in self._slots[slot]:
                part = replies[address]
                assert isinstance(part, Vocabularies)
                if parts and len(part.tags) != len(parts[0].tags):
                    what = f"tells {len(part.tags)} categories, of {len(parts[0].tags)}"
                    raise refused(address[0], requests[address], what)
                parts.append(part)
            tags = tuple(
                _union(tag_parts) for tag_parts in zip(*(part.tags for part in parts), strict=True)
            )
            asked |= dict.fromkeys(self._slots[slot], SendStatistics(self._run, slot, tags))
        return self._carried(asked)


def _answer_to(request: Message) -> tuple[str, ...]:
    """Return the kinds of a masked answer; empty if the answer is in clear."""
    return next((kinds for kind, kinds in _ASKED.items() if isinstance(request, kind)), ())


def _fault(reply: Message, kinds: Sequence[str]) -> str | None:
    if not isinstance(reply, Masked):
        return f"is {reply.kind}, which is not masked"
    if reply.of not in kinds:
        return f"is masked {reply.of}, expected {' or '.join(kinds)}"
    sizes, limbs = reply.lengths.tolist(), format_of(reply.of).limbs
    try:
        numbers = count_of(reply.of, sizes)
    except InternalError as error:
        return f"cannot be summed: {error.message}"
    if reply.values.shape != (numbers, limbs):
        return f"has {reply.values.shape} numbers and limbs, of {(numbers, limbs)}"
    return None


def _union(parts: Sequence[Array]) -> Array:
    """Return all tags, each once, ascending: uint8 (n, 16)."""
    stacked = np.concatenate(parts)
    rows = np.ascontiguousarray(stacked).view(f"V{stacked.shape[1]}").reshape(-1)
    order = np.unique(rows, return_index=True)[1]
    return stacked[order]


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

        def fault(reply: MaskedEmbeddings) -> str | None:
            if (reply.numbers, reply.width) == (count, width):
                return None
            return f"has {reply.numbers} numbers of {reply.width} bits, of {count} of {width}"

        replies: Mapping[Address, MaskedEmbeddings] = ask(
            self._repeating, requests, lambda address: Expected(MaskedEmbeddings, sizes, fault)
        )
        parts = []
        for address, reply in replies.items():
            try:
                parts.append(packing.unpack(reply.packed.tobytes(), width, count))
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
