"""Who lets parties elsewhere dial in to a federation of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from sqlfl.base.errors import Error
from sqlfl.contract.schema import Client
from sqlfl.federation.parties import Parties


class Listens(Protocol):
    """As `sqlfl.service.listening.Listener`."""

    @property
    def names(self) -> frozenset[str]:
        """Of the parties that may dial in."""
        ...

    @property
    def analyst(self) -> str:
        """For whom these are asked."""
        ...

    def hurry(self) -> None:
        """Nobody waits any more for parties that are away."""
        ...

    def close(self) -> None:
        """Ends with `Listeners.leave`; may be called again."""
        ...


class Listeners:
    """Of a federation; safe to use from several threads.

    at : the party that the coordinator is at. forget : is told of clients that are gone.
    """

    def __init__(
        self, parties: Parties, at: str | None, forget: Callable[[Sequence[Client]], None]
    ) -> None:
        self._parties, self._at, self._forget = parties, at, forget
        self._lock = threading.Lock()
        self._all: list[Listens] = []
        self._closed = False

    @property
    def keeper(self) -> str:
        """As of `Parties`."""
        return self._parties.keeper

    def join(self, listener: Listens) -> None:
        """Its parties may come, and are attached in no other way. Raises Error where join keys
        could not be compared, a party of its names is there already, or it asks for somebody else.
        """
        at, analyst = self._at, self._parties.analyst
        if at is None or not self._parties.shares:
            raise Error(
                "this federation has not the parties' secret, under which parties elsewhere hash "
                "their join keys: none of them would be found again here",
                hint='sqlfl.connect(..., party="clinic.toml"), the settings of the party whose '
                "database is attached here",
            )
        if at.lower() not in {name.lower() for name in self._parties.clients}:
            raise Error(
                f"the coordinator is at {at}, whose database is not attached",
                hint=f'fed.attach("{at}", con) comes before sqlfl.listen(...)',
            )
        if listener.analyst != analyst:
            raise Error(
                f"parties elsewhere would be asked for {listener.analyst or 'nobody'}, and those "
                f"that are attached here for {analyst or 'nobody'}",
                hint=f'sqlfl.connect(..., analyst="{listener.analyst}")',
            )
        with self._lock:
            if self._closed:
                raise Error("the federation is closed", hint="sqlfl.connect() makes a new one")
            self._parties.reserve(listener.names)
            self._all.append(listener)

    def leave(self, listener: Listens) -> None:
        """Its parties are gone, and it has ended."""
        with self._lock:
            if listener in self._all:
                self._all.remove(listener)
                self._forget(self._parties.dismiss(listener.names))

    def hurry(self) -> None:
        """The federation is to be closed."""
        with self._lock:
            self._closed = True
            found = tuple(self._all)
        for listener in found:
            listener.hurry()

    def close(self) -> None:
        with self._lock:
            found = tuple(self._all)
        with ExitStack() as stack:
            for listener in found:
                stack.callback(listener.close)
