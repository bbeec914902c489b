"""Listeners that let remote parties dial in to a federation of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

from sqlfl.base.errors import Error
from sqlfl.contract.schema import Client
from sqlfl.federation.parties import Parties


class Listens(Protocol):
    """Protocol of `sqlfl.service.listening.Listener`."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the parties that may dial in."""
        ...

    @property
    def analyst(self) -> str:
        """The analyst who sends requests to these parties."""
        ...

    def hurry(self) -> None:
        """Stop waiting for parties that are away."""
        ...

    def close(self) -> None:
        """Ends with `Listeners.leave`; may be called again."""
        ...


class Listeners:
    """Listeners of a federation; safe to use from several threads.

    at : party of the coordinator. forget : called with clients that have left.
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
        """See `Parties.keeper`."""
        return self._parties.keeper

    def join(self, listener: Listens) -> None:
        """Admit the listener's parties, which cannot be attached in another way.

        Raises Error if join keys could not be compared, if a party of the same name exists, or if
        the listener works for another analyst.
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
        """Remove the parties of a listener that has ended."""
        with self._lock:
            if listener in self._all:
                self._all.remove(listener)
                self._forget(self._parties.dismiss(listener.names))

    def hurry(self) -> None:
        """The federation is to be closed."""
        with self._lock:
            self._closed = True
            listeners = tuple(self._all)
        for listener in listeners:
            listener.hurry()

    def close(self) -> None:
        with self._lock:
            listeners = tuple(self._all)
        with ExitStack() as stack:
            for listener in listeners:
                stack.callback(listener.close)
