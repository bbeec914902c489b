"""The coordinator's side of all borders: the transport of its messages, their audit and their
chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sqlfl.contract.schema import Client
from sqlfl.transport.audit_chain import AuditChain, Keep, MemoryLinks, Row
from sqlfl.transport.base import Audit, AuditLog, Channel, Note, Transport
from sqlfl.transport.network import Network


class Links(Protocol):
    """Store of a chain's entries."""

    @property
    def keep(self) -> Keep: ...

    def rows(self) -> list[Row]: ...


class Log(AuditLog, Links, Protocol):
    """File that keeps both an audit and a chain."""


class Border:
    """The coordinator's side of all borders.

    log : the coordinator's file; None to keep nothing. at : as in `Audit`.
    """

    def __init__(self, transport: Transport, log: Log | None, at: str | None, analyst: str) -> None:
        self.transport = transport
        self.audit = Audit(log, at)
        self._links: Links = MemoryLinks() if log is None else log
        self._chain = AuditChain(analyst, self._links.keep)
        self._governed: set[Client] = set()

    def govern(self, clients: Iterable[Client]) -> None:
        """Keep the messages of these clients on both sides from now on, because their owners have
        policies.
        """
        self._governed.update(clients)

    def channel(
        self,
        check: Callable[[], None] | None = None,
        network: Network | None = None,
        note: Note | None = None,
    ) -> Channel:
        """Return a channel with `check`, `network` and `note` as in `Channel`."""
        chained = self._chain, self._governed
        return Channel(self.transport, self.audit, check, network, *chained, note)

    def links(self) -> list[Row]:
        """Return all entries of the chain, in order."""
        self._chain.flush()
        return self._links.rows()

    def close(self) -> None:
        """Keep the waiting entries; nothing may follow."""
        self.audit.flush()
        self._chain.close()

    def flush(self) -> None:
        """Keep the waiting entries. Raise Error if the file refuses them; then they wait on."""
        self.audit.flush()
        self._chain.flush()
