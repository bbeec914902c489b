"""Exchanges that are made again where they were lost, each time under another number."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from sqlfl.base.errors import InternalError, LostError
from sqlfl.contract.schema import Address, Client
from sqlfl.messages import CLIENT, Message, Repeat
from sqlfl.messages.replies import ReplyChannel

REPEATS = 2
"""How often an exchange is made again that was lost on the way."""


class Repeating:
    """All requests of an exchange have one number, which rises from exchange to exchange.

    A repeated request is not computed again where the client has its answer, so that nothing more
    is told; whatever depends on its number is made anew.
    """

    def __init__(self, inner: ReplyChannel, run: str) -> None:
        self._inner = inner
        self._run = run
        # known to those alone who get a request; taken one by one from several threads
        self._numbers = itertools.count(secrets.randbits(62) + 1)

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """As the channel does; raises PartyError for what is lost more than REPEATS times."""
        repeats: dict[Address, Message] = {}
        for left in reversed(range(REPEATS + 1)):
            own = next(self._numbers)
            numbered = {a: replace(request, number=own) for a, request in requests.items()}
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
            (client, CLIENT): Repeat(self._run, CLIENT, np.array(sorted(own), np.int64))
            for client, own in slots.items()
        }
