"""Messages of sums of which the coordinator sees no part: keys, rounds, and masked numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, arrays, integer, text, texts

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SendPublicKey(Message):
    """Coordinator to client: a request for the public key of this slot's masks, which serves this
    run only.
    """

    kind = "send_public_key"


@dataclass(frozen=True, eq=False)
class PublicKey(Message):
    """Client to coordinator, for the other clients, which alone can check the seal."""

    kind = "public_key"
    words = "a public key for this run, sealed by the parties' secret"
    key: Array = field(metadata=array("uint8", 32))
    """Public key of X25519 (RFC 7748)."""
    seal: Array = field(metadata=array("uint8", 32))


@dataclass(frozen=True, eq=False)
class SetPeers(Message):
    """Coordinator to client: the participants of the sums with their public keys, including its
    own.
    """

    kind = "set_peers"
    words = "public keys of those who add to the sums, sealed by the parties' secret"
    clients: tuple[str, ...] = field(metadata=texts("peers"))
    slots: Array = field(metadata=array("int64", "peers", least=0))
    """Slot of each. For sums over a slot's clients it is that slot; for sums over all slots, all
    slots occur.
    """
    keys: Array = field(metadata=array("uint8", "peers", 32))
    seals: Array = field(metadata=array("uint8", "peers", 32))


@dataclass(frozen=True, eq=False)
class Repeat(Message):
    """Coordinator to client, before the requests of the same exchange: the last exchange was lost.

    Repeated requests of these slots are not computed again, but masked anew.
    """

    kind = "repeat"
    words = "slots whose requests are repeated"
    slots: Array = field(metadata=array("int64", "slots", least=0, ascending=True))


@dataclass(frozen=True, eq=False)
class Vocabularies(Message):
    """Client to coordinator, in place of statistics: the categories that the statistics would
    have.
    """

    kind = "vocabularies"
    words = "hashed categories"
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )


@dataclass(frozen=True, eq=False)
class SendStatistics(Message):
    """Coordinator to client: a request for masked statistics of these categories."""

    kind = "send_statistics"
    words = "hashed categories of all the slot's clients"
    tags: tuple[Array, ...] = field(
        metadata=arrays("categories", "uint8", "entries[k]", 16, ascending=True)
    )


@dataclass(frozen=True, eq=False)
class Masked(Message):
    """Client to coordinator: numbers of which only the sum over all the slot's clients can be read.

    Their masks depend on the number of the request, which all clients of an exchange share. Each is
    a whole number modulo 2^(64 limbs), its limbs from the lowest on.
    """

    kind = "masked"
    words = "numbers under masks, of which only the sum over all clients can be read"
    of: str = field(metadata=text())
    """Kind of the summed values (sqlfl.aggregation.summands)."""
    lengths: Array = field(metadata=array("int64", "axes", least=0))
    """Lengths of its axes."""
    values: Array = field(metadata=array("uint64", "numbers", "limbs"))


@dataclass(frozen=True, eq=False)
class Embeddings(Message, travels=False):
    """A client's part of the sums of joined rows. It leaves only as `MaskedEmbeddings`."""

    kind = "embeddings"
    values: Array
    """Unsigned integers (joined · P,); 0 for joined rows that the client has no row of."""
    most: int
    """Maximum of one of them."""
    summands: int
    """M, the number of summands that may differ from 0."""


@dataclass(frozen=True, eq=False)
class MaskedEmbeddings(Message):
    """Client to coordinator: numbers of which only the sum over all slots' clients can be read.

    Their masks depend on the number of the request, which all clients share. The numbers are those
    of the first joined row, then those of the next one, each of `width` bits
    (sqlfl.aggregation.packing).
    """

    kind = "masked_embeddings"
    words = "embeddings of the client's rows, under masks that cancel in the sum over all slots"
    numbers: int = field(metadata=integer())
    width: int = field(metadata=integer(least=1, most=64))
    """w, the bits of a number."""
    packed: Array = field(metadata=array("uint8", "packed"))
