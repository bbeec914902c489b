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
PHASE = "secure sums"


def secured(run: Run, exchanges: tuple[Exchange, ...]) -> tuple[Exchange, ...]:
    """Return the exchanges of a run, with masks on the messages that are summed over a slot's
    clients.
    """
    slots = _slots(run)
    exchanges_: list[Exchange] = []
    for item in exchanges:
        exchanges_ += _masked(run, item, slots)
        if item.phase == "snapshot" and slots:
            exchanges_ += _keys(list(slots.values()))
    return tuple(exchanges_)


def secret_kinds(run: Run) -> frozenset[str]:
    """Return kinds of messages in secure sums; empty without such sums."""
    slots = _slots(run)
    if not slots:
        return frozenset()
    sends = (send for item in protocol(run) for send in item.sends)
    return frozenset(s.kind for s in sends if s.slot in slots and s.kind in _MASKED)


def _slots(run: Run) -> dict[int, Slot]:
    return {
        slot.index: slot
        for slot in run.towers
        if len(slot.clients) > 1 and run.specification(slot.clients[0], slot.index).secure
    }


def _keys(slots: list[Slot]) -> list[Exchange]:
    key_exchanges = [
        RequestReply(client, slot.index, content(ms.SendPublicKey), content(ms.PublicKey))
        for slot in slots
        for client in slot.clients
    ]
    told = []
    for slot in slots:
        names = tuple(str(client) for client in slot.clients)
        request = content(ms.SetPeers, clients=names, peers=len(names))
        told += [RequestReply(c, slot.index, request, content(ms.Ready)) for c in slot.clients]
    return [exchange(PHASE, 1, key_exchanges), exchange(PHASE, 1, told)]


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
        sends.append(_replaced(send, _content(run, send, slot)))
    whole = replace(item, sends=tuple(sends))
    return [whole, *([_statistics(run, item, statistics)] if statistics else [])]


_MASKED = (ms.PartialGradient.kind, ms.Gram.kind, ms.Statistics.kind)


def _replaced(send: Send, content_: Content) -> Send:
    amount = content_.amount
    return replace(
        send, kind=content_.kind, what=content_.words, count=amount.count, bytes=amount.bytes
    )


def _content(run: Run, send: Send, slot: Slot) -> Content:
    if send.kind == ms.PartialGradient.kind:
        return _of(send.kind, f"{send.what}, masked", 2, send.count, LIMBS)
    p, q = sym.of_slot("numeric", slot), sym.of_slot("onehot", slot)
    # of several category features, pairs of categories leave where moments are all that does
    several = sum(feature.kind == CATEGORY for feature in slot.features) > 1
    narrow = bool(run.protection.features) and not (several and _solved(run))
    pairs = q if narrow else sym.of_slot("pairs", slot)
    numbers = p * p + p * q + pairs + p + q + 1
    return _of("diagonal_gram" if narrow else send.kind, f"{send.what}, masked", 2, numbers, LIMBS)


def _solved(run: Run) -> bool:
    return isinstance(run.protection.features, NoisedMoments)


def _of(kind: str, what: str, axes: Size | int, numbers: Size, limbs: int) -> Content:
    return content(ms.Masked, what, of=kind, axes=axes, numbers=numbers, limbs=limbs)


def _statistics(run: Run, item: Exchange, slots: list[Slot]) -> Exchange:
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
        what = "weighted sums of values and their squares, missing values and categories, masked"
        what = f"noised {what}" if bounded else what
        reply = _of(kind, what, axes, numbers, EXACT_LIMBS)
        request = content(ms.SendStatistics, **_categories(run, slot, None))
        calls += [RequestReply(client, slot.index, request, reply) for client in slot.clients]
    return exchange(item.phase, 1, calls)


def _total(told: int | tuple[Size, ...]) -> Size:
    return sum(told, Size()) if isinstance(told, tuple) else Size(told)


def _categories(run: Run, slot: Slot, client: Client | None) -> dict[str, int | tuple[Size, ...]]:
    sizes = encoded(run, slot, client)
    return {name: sizes[name] for name in ("categories", "entries")}
