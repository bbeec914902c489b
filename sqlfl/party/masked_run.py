"""Run whose sums, over a slot's clients or over all slots, leave under masks."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from sqlfl import messages as ms
from sqlfl.aggregation import packing
from sqlfl.aggregation.keys import KeyPair
from sqlfl.aggregation.masks import Masks
from sqlfl.aggregation.peers import Peers
from sqlfl.aggregation.summands import SUMMED, statistics_summands, summands
from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.schema import SlotSpecification
from sqlfl.messages.wire import encode
from sqlfl.udfs.numbering.keys import derive


@dataclass(eq=False)
class _Slot:
    """Slot whose clients are summed in secret, or which is summed with all others."""

    specification: SlotSpecification
    pair: KeyPair = field(default_factory=KeyPair)
    masks: Masks | None = None
    clients: int = 0
    """Number of the slot's clients, once their keys are known."""
    statistics: ms.Statistics | None = None
    """Statistics whose categories have been sent, and which wait for those of all clients."""


class MaskedRun:
    """Masked run of the client of that name. The coordinator does not have `secret`, the parties'
    secret.

    For any request, partial gradients and second moments leave only under masks, once there are
    keys. Statistics do too, once the categories of all clients are known. A public key is accepted
    only with a seal by the parties' secret.
    """

    def __init__(self, client: str, secret: bytes, slots: Iterable[SlotSpecification]) -> None:
        self._client = client
        self._secret = secret
        self._slots = {item.slot: _Slot(item) for item in slots}
        self._repeated: set[int] = set()
        """Slots whose last request comes again."""
        self._answered: dict[int, tuple[ms.Message, ms.Message]] = {}
        """Slot -> the last request, and the answer to it before masking."""

    def answer(self, request: ms.Message, work: Callable[[], ms.Message]) -> ms.Message:
        """Return the reply to a request; `work` makes it if the request is not about masks."""
        match request:
            case ms.SendPublicKey():
                return self._public_key(request)
            case ms.SetPeers():
                return self._set_peers(request)
            case ms.Repeat():
                self._repeated = set(request.slots.tolist())
                return ms.Ready(request.run, request.slot)
        plain = self._plain(request, work)
        slot = self._slots.get(request.slot)
        return plain if slot is None else self._masked(request, slot, plain)

    def _plain(self, request: ms.Message, work: Callable[[], ms.Message]) -> ms.Message:
        known = self._answered.get(request.slot)
        repeated = request.slot in self._repeated
        self._repeated.discard(request.slot)
        if repeated and known is not None and _same(known[0], request):
            return known[1]
        if isinstance(request, ms.SendStatistics):
            return ms.Ready(request.run, request.slot)  # they have been measured
        reply = work()
        self._answered[request.slot] = request, reply
        return reply

    def _masked(self, request: ms.Message, slot: _Slot, plain: ms.Message) -> ms.Message:
        """Return the reply as it leaves."""
        spec = slot.specification
        if isinstance(plain, ms.Embeddings):
            return self._embeddings(request, slot, plain)
        if not spec.secure:
            return plain
        if isinstance(plain, ms.Statistics):
            slot.statistics = plain
            return ms.Vocabularies(plain.run, plain.slot, plain.tags)
        if not isinstance(plain, SUMMED) and not isinstance(request, ms.SendStatistics):
            return plain
        if slot.masks is None:
            raise InternalError(f"{request.kind} of slot {request.slot} before there are keys")
        clients, privacy = slot.clients, spec.privacy
        if isinstance(request, ms.SendStatistics):
            if slot.statistics is None:
                raise InternalError(f"no statistics of slot {request.slot} were measured")
            bounded = privacy is not None and privacy.statistics == "noised"
            what, sizes, numbers = statistics_summands(
                slot.statistics, request, clients, bounded=bounded
            )
        else:
            narrow = privacy is not None and privacy.delta is not None
            what, sizes, numbers = summands(plain, clients, narrow=narrow)
        masked = slot.masks.mask_limbs(numbers, request.number)
        return ms.Masked(request.run, request.slot, what, np.array(sizes, np.int64), masked)

    def _embeddings(self, request: ms.Message, slot: _Slot, plain: ms.Embeddings) -> ms.Message:
        if slot.masks is None:
            raise InternalError(f"{request.kind} of slot {request.slot} before there are keys")
        width = packing.width(plain.summands, plain.most)
        masked = slot.masks.mask(plain.values, request.number, width)
        packed = _array(packing.pack(masked, width))
        return ms.MaskedEmbeddings(request.run, request.slot, len(masked), width, packed)

    # -- keys -------------------------------------------------------------------------------------

    def _public_key(self, request: ms.SendPublicKey) -> ms.Message:
        public = self._slot(request).pair.public
        seal = self._seal(request, self._client, request.slot, public)
        return ms.PublicKey(request.run, request.slot, _array(public), _array(seal))

    def _set_peers(self, request: ms.SetPeers) -> ms.Message:
        slot = self._slot(request)
        numbers, keys = request.slots.tolist(), []
        if not slot.specification.masked_predictions and set(numbers) != {request.slot}:
            raise InternalError(f"slot {request.slot} is summed with slots {sorted(set(numbers))}")
        peers_told = zip(request.clients, numbers, request.keys, request.seals, strict=True)
        for name, number, key, seal in peers_told:
            expected_seal = self._seal(request, name, number, bytes(key))
            if not hmac.compare_digest(expected_seal, bytes(seal)):
                raise InternalError(f"the key of {name} is not sealed by the parties' secret")
            keys.append(bytes(key))
        peers = Peers(tuple(range(len(keys))), tuple(keys))
        sums = "embeddings" if slot.specification.masked_predictions else str(request.slot)
        slot.masks = Masks(slot.pair, peers, f"{request.run} {sums}")
        slot.clients = len(keys)
        return ms.Ready(request.run, request.slot)

    def _slot(self, request: ms.Message) -> _Slot:
        slot = self._slots.get(request.slot)
        if slot is None:
            raise InternalError(f"keys for slot {request.slot}, which sums nothing in secret")
        return slot

    def _seal(self, request: ms.Message, client: str, slot: int, public: bytes) -> bytes:
        seal_key = derive(self._secret, request.run, "public key", str(slot), client)
        return hmac.digest(seal_key, public, "sha256")


def _array(data: bytes) -> Array:
    return np.frombuffer(data, np.uint8)


def _same(one: ms.Message, other: ms.Message) -> bool:
    """Return True if both messages make the same request."""
    first, second = (encode(replace(message, number=0)) for message in (one, other))
    return bool(first.equals(second))
