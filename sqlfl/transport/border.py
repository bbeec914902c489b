"""The coordinator's side of all borders: what carries its messages, and what records and chains
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from sqlfl.contract.schema import Client
from sqlfl.transport.audit_chain import AuditChain, Keep, MemoryLinks, Row
from sqlfl.transport.base import Audit, AuditLog, Channel, Note, Transport
from sqlfl.transport.network import Network


class Links(Protocol):
    """Where a chain's entries are kept."""

    @property
    def keep(self) -> Keep: ...

    def rows(self) -> list[Row]: ...


class Log(AuditLog, Links, Protocol):
    """A file that keeps both."""


class Border:
    """log : the coordinator's file; None where nothing is kept. at : as in `Audit`."""

    def __init__(self, transport: Transport, log: Log | None, at: str | None, analyst: str) -> None:
        self.transport = transport
        self.audit = Audit(log, at)
        self._links: Links = MemoryLinks() if log is None else log
        self._chain = AuditChain(analyst, self._links.keep)
        self._governed: set[Client] = set()

    def govern(self, clients: Iterable[Client]) -> None:
        """Their owners have policies, so that both sides keep what is said from now on."""
        self._governed.update(clients)

    def channel(
        self,
        check: Callable[[], None] | None = None,
        network: Network | None = None,
        note: Note | None = None,
    ) -> Channel:
        """`check`, `network` and `note` as in `Channel`."""
        chained = self._chain, self._governed
        return Channel(self.transport, self.audit, check, network, *chained, note)

    def links(self) -> list[Row]:
        """All entries of the chain, in order."""
        self._chain.flush()
        return self._links.rows()

    def close(self) -> None:
        """Keep what waits; nothing follows."""
        self.audit.flush()
        self._chain.close()

    def flush(self) -> None:
        """Keep what waits. Raises Error where the file takes nothing; then it waits on."""
        self.audit.flush()
        self._chain.flush()
