"""Exchanges under masks: the coordinator's view of clients whose slot uses secure sums."""

from __future__ import annotations

from dataclasses import replace

from sqlfl import messages as ms
from sqlfl.contract.schema import Client
from sqlfl.planner.federated import sizes as sym
from sqlfl.planner.federated.exchanges import (
    Exchange,
    RequestReply,
    Run,
    Send,
    exchange,
)
from sqlfl.planner.federated.phases import encoded, protocol
from sqlfl.planner.federated.sizes import Content, Size, content
from sqlfl.planner.query.ucq import CATEGORY, Slot
from sqlfl.privacy.protection import NoisedMoments

LIMBS, EXACT_LIMBS = 2, 16
"""Limbs of masked numbers, and of masked statistics: as in sqlfl.aggregation.fixed_point, which the
planner does not load.
"""
DIAGONAL = "diagonal_gram"
"""Part of sqlfl.aggregation.summands: second moments with only the diagonal of one-hot columns."""
PHASE = "secure sums"


def secured(run: Run, exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    """Return the exchanges of a run, with masks on the messages that are summed over a slot's
    clients.
    """
    slots = _slots(run)
    masked: list[Exchange] = []
    for item in exchanges:
        masked += _masked(run, item, slots)
        if item.phase == "snapshot" and slots:
            masked += _keys(list(slots.values()))
    return tuple(masked)


def secret_kinds(run: Run) -> frozenset[str]:
    """Return kinds of messages in secure sums; empty without such sums."""
    slots = _slots(run)
    if not slots:
        return frozenset()
    sends = (send for item in protocol(run) for send in item.sends)
    return frozenset(s.kind for s in sends if s.slot in slots and s.kind in _MASKED)


def _slots(run: Run) -> dict[int, Slot]:
    """Return the slots of several clients that use secure sums, by index."""
    return {
        slot.index: slot
        for slot in run.towers
        if len(slot.clients) > 1 and run.specification(slot.clients[0], slot.index).secure
    }


def _keys(slots: list[Slot]) -> list[Exchange]:
    """Return the exchanges of the clients' public keys, and then of all keys of a slot."""
    key_exchanges = [
        RequestReply(client, slot.index, content(ms.SendPublicKey), content(ms.PublicKey))
        for slot in slots
        for client in slot.clients
    ]
    peer_exchanges = []
    for slot in slots:
        names = tuple(str(client) for client in slot.clients)
        request = content(ms.SetPeers, clients=names, peers=len(names))
        peer_exchanges += [
            RequestReply(c, slot.index, request, content(ms.Ready)) for c in slot.clients
        ]
    return [exchange(PHASE, 1, key_exchanges), exchange(PHASE, 1, peer_exchanges)]


def _masked(run: Run, item: Exchange, slots: dict[int, Slot]) -> list[Exchange]:
    """Return an exchange with masks, and one more if statistics are summed."""
    sends: list[Send] = []
    statistics: list[Slot] = []
    for send in item.sends:
        slot = slots.get(send.slot)
        if slot is None or send.kind not in _MASKED:
            sends.append(send)
            continue
        if send.kind == ms.Statistics.kind:
            vocabulary = content(ms.Vocabularies, **_categories(run, slot, send.client))
            sends.append(_replaced(send, vocabulary))
            statistics += [slot] if slot not in statistics else []
            continue
        sends.append(_replaced(send, _masked_content(run, send, slot)))
    whole = replace(item, sends=tuple(sends))
    return [whole, *([_statistics(run, item, statistics)] if statistics else [])]


_MASKED = (ms.PartialGradient.kind, ms.Gram.kind, ms.Statistics.kind)
"""Kinds of messages that leave under masks."""


def _replaced(send: Send, new: Content) -> Send:
    """Return the message with another content."""
    amount = new.amount
    return replace(send, kind=new.kind, what=new.words, count=amount.count, bytes=amount.bytes)


def _masked_content(run: Run, send: Send, slot: Slot) -> Content:
    """Return the content of a gradient or of second moments under masks."""
    words = f"{send.what}, masked"
    if send.kind == ms.PartialGradient.kind:
        return _masked_numbers(send.kind, words, 2, send.count, LIMBS)
    p, q = sym.of_slot("numeric", slot), sym.of_slot("onehot", slot)
    # Without noise, moments of all pairs of one-hot columns leave. With noise, only the diagonal
    # does, unless noised moments are all that leaves of several category features: then training
    # also needs the pairs of their categories.
    several_categories = sum(feature.kind == CATEGORY for feature in slot.features) > 1
    is_solved_from_moments = isinstance(run.protection.features, NoisedMoments)
    has_pairs = not run.protection.features or (several_categories and is_solved_from_moments)
    one_hot = sym.of_slot("pairs", slot) if has_pairs else q
    # numeric by numeric, numeric by one-hot, one-hot by one-hot; sums of the columns; the weight
    numbers = p * p + p * q + one_hot + p + q + 1
    return _masked_numbers(send.kind if has_pairs else DIAGONAL, words, 2, numbers, LIMBS)


def _masked_numbers(kind: str, words: str, axes: Size | int, numbers: Size, limbs: int) -> Content:
    """Return the content of masked numbers in place of a message of `kind`."""
    return content(ms.Masked, words, of=kind, axes=axes, numbers=numbers, limbs=limbs)


def _statistics(run: Run, item: Exchange, slots: list[Slot]) -> Exchange:
    """Return the exchange of masked statistics, once the vocabularies of all clients are known."""
    calls = []
    for slot in slots:
        sizes = encoded(run, slot, None)
        privacy = run.specification(slot.clients[0], slot.index).privacy
        bounded = privacy is not None and privacy.statistics == "noised"
        kind = "bounded_statistics" if bounded else ms.Statistics.kind
        numbers = (
            3 * _total(sizes["numeric"]) + _total(sizes["features"]) + _total(sizes["entries"])
        )
        axes = 2 + _total(sizes["categories"])
        words = "weighted sums of values and their squares, missing values and categories, masked"
        words = f"noised {words}" if bounded else words
        reply = _masked_numbers(kind, words, axes, numbers, EXACT_LIMBS)
        request = content(ms.SendStatistics, **_categories(run, slot, None))
        calls += [RequestReply(client, slot.index, request, reply) for client in slot.clients]
    return exchange(item.phase, 1, calls)


def _total(sizes: int | tuple[Size, ...]) -> Size:
    """Return the number, or the sum of the sizes of all items."""
    return sum(sizes, Size()) if isinstance(sizes, tuple) else Size(sizes)


def _categories(run: Run, slot: Slot, client: Client | None) -> dict[str, int | tuple[Size, ...]]:
    """Return the sizes of the vocabularies of one client, or of all together for None."""
    sizes = encoded(run, slot, client)
    return {name: sizes[name] for name in ("categories", "entries")}
