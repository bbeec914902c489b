"""Repetition of lost exchanges, each time with another number."""

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
