"""Sums of which the coordinator sees no part: keys, rounds, and masked numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, arrays, integer, text, texts

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SendPublicKey(Message):
    """Coordinator to client: the public key of this slot's masks, which is of this run only."""

    kind = "send_public_key"


@dataclass(frozen=True, eq=False)
class PublicKey(Message):
    """Client to coordinator, for the other clients, which alone can check the seal."""

    kind = "public_key"
    words = "a public key for this run, sealed by the parties' secret"
    key: Array = field(metadata=array("uint8", 32))
    """X25519 (RFC 7748)."""
    seal: Array = field(metadata=array("uint8", 32))


@dataclass(frozen=True, eq=False)
class SetPeers(Message):
    """Coordinator to client: who adds to the sums, and their public keys, its own among them."""

    kind = "set_peers"
    words = "public keys of those who add to the sums, sealed by the parties' secret"
    clients: tuple[str, ...] = field(metadata=texts("peers"))
    slots: Array = field(metadata=array("int64", "peers", least=0))
    """Of each: one slot of sums over a slot's clients, all slots of sums over these."""
    keys: Array = field(metadata=array("uint8", "peers", 32))
    seals: Array = field(metadata=array("uint8", "peers", 32))


@dataclass(frozen=True, eq=False)
class Repeat(Message):
    """Coordinator to client, before the requests of the same exchange: the last exchange was lost.

    What these slots are asked again is not computed again, and masked anew.
    """

    kind = "repeat"
    words = "slots whose requests are repeated"
    slots: Array = field(metadata=array("int64", "slots", least=0, ascending=True))


@dataclass(frozen=True, eq=False)
class Vocabularies(Message):
    """Client to coordinator, in place of statistics: the categories that these are of."""

    kind = "vocabularies"
    words = "hashed categories"
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )


@dataclass(frozen=True, eq=False)
class SendStatistics(Message):
    """Coordinator to client: your statistics, masked, of these categories."""

    kind = "send_statistics"
    words = "hashed categories of all the slot's clients"
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )


@dataclass(frozen=True, eq=False)
class Masked(Message):
    """Client to coordinator: numbers of which only the sum over all the slot's clients can be read.

    Their masks are of the number of the request, which is one for all clients of an exchange.
    Each is a whole number modulo 2^(64 limbs), its limbs from the lowest on.
    """

    kind = "masked"
    of: str = field(metadata=text())
    """What is summed (sqlfl.aggregation.summands)."""
    lengths: Array = field(metadata=array("int64", "axes", least=0))
    """Of its axes."""
    values: Array = field(metadata=array("uint64", "numbers", "limbs"))


@dataclass(frozen=True, eq=False)
class Embeddings(Message, travels=False):
    """What a client adds to the sums of joined rows; it leaves as `MaskedEmbeddings` alone."""

    kind = "embeddings"
    values: Array
    """Unsigned integers (joined · P,): of joined rows that the client has no row of, 0."""
    most: int
    """The largest that one of them may be."""
    summands: int
    """M, of these numbers in a sum that may be other than 0."""


@dataclass(frozen=True, eq=False)
class MaskedEmbeddings(Message):
    """Client to coordinator: numbers of which only the sum over all slots' clients can be read.

    Their masks are of the number of the request, which is one for all clients. They are the
    numbers of the first joined row, then those of the next one, each of so many bits
    (sqlfl.aggregation.packing).
    """

    kind = "masked_embeddings"
    words = "embeddings of the client's rows, under masks that cancel in the sum over all slots"
    numbers: int = field(metadata=integer())
    width: int = field(metadata=integer(least=1, most=64))
    """w, bits of a number."""
    packed: Array = field(metadata=array("uint8", "packed"))
