"""Observers of the SQL that a party's clients run while they answer messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sqlfl.contract.schema import Client
from sqlfl.udfs import sql

Observer: TypeAlias = Callable[[Client, str, str, float, int | None], None]
"""Takes the client, the kind of the message in progress, and the arguments of `sql.Observer`. The
threads that serve clients call it.
"""


class Observers:
    """Observers that the clients of a federation share. They may change while clients work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: tuple[Observer, ...] = ()

    @contextmanager
    def added(self, observer: Observer) -> Iterator[None]:
        with self._lock:
            self._all = (*self._all, observer)
        try:
            yield
        finally:
            with self._lock:
                self._all = tuple(other for other in self._all if other is not observer)

    @contextmanager
    def of(self, client: Client, kind: str) -> Iterator[None]:
        """Observe the SQL of this thread in the block, as part of a message of `kind` to
        `client`.
        """

        def tell(text: str, seconds: float, rows: int | None) -> None:
            for observer in self._all:
                observer(client, kind, text, seconds, rows)

        with sql.observed(tell if self._all else None):
            yield
