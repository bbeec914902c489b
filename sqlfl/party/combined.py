"""A party's clients as one: it asks them, and adds up their replies before they leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sqlfl import messages as ms
from sqlfl.base.errors import Error, ForgottenError, InternalError
from sqlfl.contract.schema import (
    Merging,
    SlotSpecification,
    specifications_from_json,
    specifications_to_json,
)
from sqlfl.party.combined_slot import CombinedSlot
from sqlfl.party.members import ClientGroup, Reply
from sqlfl.party.observers import Observers
from sqlfl.party.party import PartyClient
from sqlfl.party.rehearsals import StandIn
from sqlfl.party.server import Server
from sqlfl.party.slot_state import check_delta, protected
from sqlfl.party.torch_loading import check_device

Whole = TypeVar("Whole", ms.Prepare, ms.Rehearse)


class CombinedClient(Server):
    """Client that answers the coordinator as if it had the rows of all of them.

    Values of single rows leave as the party's, in an order that does not disclose which client has
    them. Sums over rows are summed over the clients too, and noised once after that. Steps,
    clipping and noise are those of one client, over the products of all
    (`sqlfl.party.combined_slot`). Each client keeps the whole block.
    """

    def __init__(self, clients: Sequence[PartyClient], observers: Observers | None = None) -> None:
        super().__init__(clients[0].client.whole, clients[0].secret, observers)
        self._members = ClientGroup(clients)
        self._runs: dict[str, dict[int, CombinedSlot]] = {}

    def interrupt(self) -> None:
        super().interrupt()
        self._members.interrupt()

    def close(self) -> None:
        """Close this object only: somebody else closes the clients."""
        super().close()
        self._runs.clear()
        self._members.close()

    def _answer(self, request: ms.Message) -> ms.Message:
        match request:
            case ms.Prepare():
                return self._prepare(request)
            case ms.Write():
                return self._write(request)
            case ms.Commit():
                return self._commit(request)
            case ms.Finish():
                self._runs.pop(request.run, None)
                return self._ask_all(request, ms.Ready)[0]
        return self._slot(request, request.slot).handle(request)

    def _keep(self, *_: object) -> None:
        """Do nothing: if a client has policies, none of them answers."""

    def _stand_in(self, request: ms.Rehearse) -> StandIn:
        """Return a stand-in over those of each client, including clients without a fragment, by
        their number.
        """
        shares, _ = self._shares(request.specification, request.fragments)

        def begin(number: int, client: PartyClient) -> PartyClient:
            stand_in = client.rehearse(shares[number].of(request))
            assert isinstance(stand_in, PartyClient)
            return stand_in

        clients = self._members.do(request, range(len(shares)), begin)
        return StandIn(CombinedClient(clients))

    def forget(self, run: str) -> None:
        super().forget(run)
        for client in self._members.clients:
            client.forget(run)

    def _ask_all(self, request: ms.Message, kind: type[Reply]) -> list[Reply]:
        return self._members.ask(dict.fromkeys(range(len(self._members)), request), kind)

    def _slot(self, request: ms.Message, slot: int) -> CombinedSlot:
        if request.run not in self._runs:
            raise ForgottenError(f"{request.kind} for a run that was not prepared")
        state = self._runs[request.run].get(slot)
        if state is None:
            raise InternalError(f"{request.kind} for a slot that was not prepared")
        return state

    def _prepare(self, request: ms.Prepare) -> ms.Message:
        shares, slots = self._shares(request.specification, request.fragments)
        for item in slots:
            if item.device is not None:
                check_device(item.device, private=protected(item))
        replies = self._members.ask({s.number: s.of(request) for s in shares}, ms.Prepared)
        rows, null_targets = (
            {
                key: int(count)
                for share, reply in zip(shares, replies, strict=True)
                for key, count in zip(share.keys, getattr(reply, name), strict=True)
            }
            for name in ("rows", "null_targets")
        )
        by_slot = {}
        for item in slots:
            sizes: dict[int, dict[int, int]] = {}
            for (number, slot, fragment), count in rows.items():
                if slot == item.slot:
                    sizes.setdefault(number, {})[fragment] = count
            slot_state = by_slot[item.slot] = CombinedSlot(item, self._members, sizes)
            check_delta(item, slot_state.size)
            if item.merging is None:
                slot_state.number(request)
        self._runs[request.run] = by_slot
        order = [(item.slot, fragment) for item in slots for fragment in item.fragments]
        counts = _summed(rows, order), _summed(null_targets, order)
        return ms.Prepared(request.run, request.slot, *counts, self._nonce(request, replies[0]))

    def _nonce(self, request: ms.Prepare, drawn: ms.Prepared) -> np.ndarray:
        """Give the nonce of one of the clients to all of them, and return it: the party sends one
        nonce.
        """
        nonce = bytes(drawn.nonce)
        every = range(len(self._members))
        self._members.do(request, every, lambda _, client: client.draw(request.run, nonce))
        return drawn.nonce

    def _shares(
        self, specification: str, fragments: tuple[str, ...]
    ) -> tuple[list[_Share], tuple[SlotSpecification, ...]]:
        """Return the share of each client, and the slots as specified."""
        slots = specifications_from_json(specification)
        shares = [_Share(number) for number in range(len(self._members))]
        texts = iter(fragments)
        for item in slots:
            parts = _parts(item)
            groups = ("",) * len(parts) if item.merging is None else item.merging.selects
            merging = sorted({n for (n, _), own in zip(parts, groups, strict=True) if own})
            for (number, fragment), own in zip(parts, groups, strict=True):
                if number not in range(len(shares)):
                    raise InternalError(f"slot {item.slot} is of client {number} of {len(shares)}")
                shares[number].add(item, fragment, next(texts, ""), own, merging)
        if sum(len(share.texts) for share in shares) != len(fragments):
            raise InternalError(f"{len(fragments)} fragments came for those of the slots")
        return shares, slots

    def _write(self, request: ms.Write) -> ms.Message:
        """Write each client's own rows into its own table."""
        slots = [self._slot(request, slot) for slot in request.slots.tolist()]
        if len(request.table) != 3 * len(self._members) or not slots:
            raise InternalError(f"{len(request.table)} names of {len(self._members)} tables")
        owned = [slot.rows.owned(rows) for slot, rows in zip(slots, request.rows, strict=True)]
        owners = owned[0][0]
        if any((other != owners).any() for other, _ in owned):
            raise InternalError("rows of several clients were to be written beside each other")
        requests: dict[int, ms.Message] = {}
        for number in range(len(self._members)):
            mine = np.flatnonzero(owners == number)
            requests[number] = replace(
                request,
                table=request.table[3 * number : 3 * number + 3],
                rows=tuple(rows[mine].astype(np.uint32) for _, rows in owned),
                prediction=request.prediction[mine],
                probabilities=request.probabilities[mine],
            )
        written = self._members.ask(requests, ms.Written)
        return replace(written[0], rows=sum(reply.rows for reply in written))

    def _commit(self, request: ms.Commit) -> ms.Message:
        try:
            return self._ask_all(request, ms.Ready)[0]
        except Error as error:
            raise Error(
                f"a table was made but could not be kept: {error.message}",
                hint="the party's other clients may have kept theirs: look there, and drop them "
                "before you try again",
            ) from error


class _Share:
    """Part of a snapshot that one client must take."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.texts: list[str] = []
        self.keys: list[tuple[int, int, int]] = []
        """(client, slot, fragment) of each text."""
        self._slots: dict[int, SlotSpecification] = {}

    def add(
        self,
        item: SlotSpecification,
        fragment: int,
        text: str,
        groups: str,
        merging: Sequence[int],
    ) -> None:
        """Add a fragment, with the SELECT of its groups. `merging`: clients that have groups of the
        slot.
        """
        self.texts.append(text)
        self.keys.append((self.number, item.slot, fragment))
        before = self._slots.get(item.slot)
        fragments = (*(before.fragments if before else ()), fragment)
        combination = item.combination
        own = None
        if self.number in merging:
            known = () if before is None or before.merging is None else before.merging.selects
            own = Merging((*known, groups), merging.index(self.number), len(merging))
        self._slots[item.slot] = replace(
            item,
            merging=own,
            fragments=fragments,
            links=tuple(pair for pair in item.links if {*pair} <= {*fragments}),
            shared=combination is not None and combination.encodes,
            device=None,
            combination=None,
            secure=False,
        )

    def of(self, whole: Whole) -> Whole:
        text = specifications_to_json(tuple(self._slots.values()))
        return replace(whole, specification=text, fragments=tuple(self.texts))


def _parts(item: SlotSpecification) -> tuple[tuple[int, int], ...]:
    if item.combination is None:
        raise InternalError(f"slot {item.slot} is not said to be of several clients")
    return item.combination.parts


def _summed(
    counts: dict[tuple[int, int, int], int], order: Sequence[tuple[int, int]]
) -> np.ndarray:
    """Return the sum of each fragment (slot, index) over the clients: int64."""
    sums = dict.fromkeys(order, 0)
    for (_, slot, fragment), count in counts.items():
        sums[slot, fragment] += count
    return np.array(list(sums.values()), np.int64)
