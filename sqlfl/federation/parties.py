"""The parties attached to a federation: their databases and servers."""

from __future__ import annotations

import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

import pyarrow as pa

from sqlfl.base.errors import Error, nearest
from sqlfl.base.interrupts import deferred
from sqlfl.contract.schema import Client
from sqlfl.databases.files import Connection
from sqlfl.federation.user_warnings import Remarks
from sqlfl.messages.disclosed import listed
from sqlfl.party.attachment import Attachment, ClientPlace, Source, Store
from sqlfl.party.combined import CombinedClient
from sqlfl.party.observers import Observers
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.planner.explain.brief import ELSEWHERE, HERE
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.coordinator_file import CoordinatorFile
from sqlfl.store.registry import Model
from sqlfl.transport.base import Handlers
from sqlfl.udfs.labels.label_secret import Holders


class RemoteClient(Protocol):
    """A remote client. Its optional text `secret` distinguishes the secrets of parties that have
    one. Its optional text `link` says how it is reached: 'over TLS'.
    """

    def handle(self, data: pa.Buffer) -> pa.Buffer:
        """Return the reply to a request. Raise LostError if none arrives."""
        ...

    def interrupt(self) -> None:
        """Interrupt the current request; from any thread, and more than once."""
        ...


class Parties:
    """The attached parties; safe to use from several threads.

    file : the coordinator's file; None if models do not last.
    analyst : the coordinator's user, as parties see it.
    secret : the secret for hashing join keys, if remote parties share it; None: a new one.

    Attributes
    ----------
    clients : party -> its clients, in order; replaced as a whole, never changed.
    handlers : handlers of clients for a transport; clients come and go.
    interrupts : functions that end a client's current request.
    servers : servers of the clients in this process.
    observers : receivers of the clients' queries.
    shares : whether the secret was given.
    """

    def __init__(
        self, file: CoordinatorFile | None, analyst: str = "", secret: bytes | None = None
    ) -> None:
        self._file, self.analyst = file, analyst
        self._secret = secrets.token_bytes(32) if secret is None else secret
        self.shares = secret is not None
        self._reserved: frozenset[str] = frozenset()
        """Names of parties that dial in, in small letters."""
        self._holders = Holders()
        self._lock = threading.Lock()
        self._places: dict[Client, ClientPlace] = {}
        self._opened: dict[str, list[Connection]] = {}
        self._twins: set[frozenset[Client]] = set()
        """Pairs of clients of two parties that have the same tables."""
        self.clients: Mapping[str, tuple[Client, ...]] = {}
        self.handlers = Handlers()
        self.interrupts: dict[Client, Callable[[], None]] = {}
        self.servers: dict[Client, PartyClient] = {}
        self._ends: dict[Client, RemoteClient] = {}
        """Remote clients."""
        self._combined: dict[Client, CombinedClient] = {}
        self.observers = Observers()

    def attach(
        self,
        name: str,
        source: Source | Sequence[Source],
        store: Store | Sequence[Store],
        welcome: Callable[[Sequence[Client]], None],
        *,
        combine: bool = False,
    ) -> None:
        """Attach a party. `welcome` is called with the clients once they can be reached; if it
        raises, they are not attached. Raises the errors of `Federation.attach`.
        """
        check_name(name, "party name")
        with self._lock:
            if self._known(name) is not None:
                raise Error(
                    f"a party named {name} is attached already",
                    hint=f'choose another name, or fed.detach("{name}") first; several databases '
                    f'of one party are a list: fed.attach("{name}", [one, other])',
                )
            if name.lower() in self._reserved:
                raise _dials_in(name)
            self._attach(name, source, store, welcome, combine=combine)

    def _attach(
        self,
        name: str,
        source: Source | Sequence[Source],
        store: Store | Sequence[Store],
        welcome: Callable[[Sequence[Client]], None],
        *,
        combine: bool,
    ) -> None:
        keys = Secrets(self._secret, secrets.token_bytes(32), self._holders)
        with Attachment(name, source, store, self._file, combine=combine) as attachment:
            places = {place.client: place for place in attachment.places}
            servers = {
                client: PartyClient(
                    client,
                    place.con,
                    keys,
                    place.blocks,
                    place.labels,
                    place.instance,
                    self.observers,
                    self.analyst,
                    place.records,
                )
                for client, place in places.items()
            }
            twins = attachment.twins(self._places)
            said = Remarks()
            for text in attachment.remarks():
                said.add(text)
            ends: dict[Client, PartyClient | CombinedClient] = {**servers}
            if attachment.combined:
                combined = CombinedClient(list(servers.values()), self.observers)
                ends[combined.client] = combined
            self.handlers.here |= ends.keys()
            self.handlers |= {client: end.handle for client, end in ends.items()}
            self.interrupts |= {client: end.interrupt for client, end in ends.items()}
            try:
                welcome(tuple(servers))
            except BaseException:
                for client in ends:
                    self.handlers.leave(client)
                    del self.interrupts[client]
                raise
            with deferred():
                self._combined |= {c: e for c, e in ends.items() if isinstance(e, CombinedClient)}
                self._opened[name] = attachment.opened
                self._twins |= twins
                self._places |= places
                self.servers |= servers
                self.clients = {**self.clients, name: tuple(servers)}

    def admit(
        self,
        name: str,
        ends: Mapping[int, RemoteClient],
        welcome: Callable[[Sequence[Client]], None],
    ) -> None:
        """Admit a party with remote clients, by number; `welcome` as in `attach`. A known party
        stays unchanged.
        """
        check_name(name, "party name")
        with self._lock:
            if self._known(name) is not None:
                return
            new_clients = {Client(name, number): end for number, end in sorted(ends.items())}
            self.handlers |= {client: end.handle for client, end in new_clients.items()}
            self.interrupts |= {client: end.interrupt for client, end in new_clients.items()}
            try:
                welcome(tuple(new_clients))
            except BaseException:
                for client in new_clients:
                    self.handlers.leave(client)
                    del self.interrupts[client]
                raise
            self._ends |= new_clients
            self.clients = {**self.clients, name: tuple(new_clients)}

    @property
    def keeper(self) -> str:
        """Id by which parties recognise blocks of this coordinator's models; empty if models do not
        last.
        """
        return "" if self._file is None else self._file.id

    def reserve(self, names: Iterable[str]) -> None:
        """Parties of these names dial in, until `dismiss`: they are attached in no other way.
        Raises Error where one is there already."""
        with self._lock:
            for name in names:
                if self._known(name) is not None or name.lower() in self._reserved:
                    raise Error(
                        f"a party named {name} is there already, or may dial in already",
                        hint="a federation is listened to once",
                    )
            self._reserved |= {name.lower() for name in names}

    def dismiss(self, names: Iterable[str]) -> tuple[Client, ...]:
        """Remove the parties of these names and return their clients. Running statements get an
        error at their next request to them.
        """
        with self._lock:
            going = {name.lower() for name in names}
            self._reserved -= going
            gone = [name for name in self.clients if name.lower() in going]
            clients = tuple(client for name in gone for client in self.clients[name])
            self.clients = {
                name: members for name, members in self.clients.items() if name not in gone
            }
            for client in clients:
                self._ends.pop(client, None)
        return clients

    def links(self) -> dict[str, str]:
        """Return party -> how the coordinator reaches it, for EXPLAIN."""
        return {
            party: listed({self._link(client): None for client in clients})
            for party, clients in self.clients.items()
        }

    def _link(self, client: Client) -> str:
        if client in self.servers:
            return HERE
        return getattr(self._ends.get(client), "link", "") or ELSEWHERE

    def check_secrets(self, clients: Iterable[Client]) -> None:
        """Raises Error where some that serve elsewhere say that they have other secrets."""
        groups_: dict[str, list[str]] = {}
        for client in clients:
            secret = getattr(self._ends.get(client), "secret", "")
            if secret:
                groups_.setdefault(secret, []).append(str(client))
        if len(groups_) > 1:
            groups = "; ".join(", ".join(names_) for names_ in groups_.values())
            raise Error(
                "parties have different secrets, so that no join key of one would be found at "
                f"another: {groups}",
                hint="one of them wraps its own for the others: sqlfl keygen secret --from "
                "parties.secret --key ITS.key --certificate ITS.crt --to OTHER.crt",
            )

    def detach(self, name: str, leave: Callable[[Sequence[Client]], None]) -> None:
        """Remove the party, and close what was opened for it.

        `leave` is called with its clients first; if it raises, nothing changes. Raises Error for an
        unknown party, and while a run uses it.
        """
        with self._lock:
            known = self._known(name)
            if known is None:
                close = nearest(str(name), self.clients)
                listed = ", ".join(self.clients) or "none"
                raise Error(
                    f"there is no party {name}",
                    hint=f"did you mean {close}?" if close else f"the parties are: {listed}",
                )
            if known.lower() in self._reserved:
                raise _dials_in(known)
            clients = self.clients[known]
            here = [self.servers[client] for client in clients if client in self.servers]
            if any(server.working for server in here):
                raise Error(
                    f"party {known} takes part in a statement that another thread runs",
                    hint="wait for its end",
                )
            leave(clients)
            with deferred(), ExitStack() as stack:
                self.clients = {n: c for n, c in self.clients.items() if n != known}
                for con in self._opened.pop(known, ()):
                    stack.callback(con.close)
                for client in clients:
                    self.handlers.leave(client)
                    del self.interrupts[client]
                    self._ends.pop(client, None)
                    if self._places.pop(client, None) is not None:
                        stack.callback(self.servers.pop(client).close)
                whole = clients[0].whole
                if whole in self._combined:
                    self.handlers.leave(whole)
                    del self.interrupts[whole]
                    stack.callback(self._combined.pop(whole).close)
                self._twins = {pair for pair in self._twins if pair.isdisjoint(clients)}

    def counted_twice(self, plan: FederatedPlan) -> list[str]:
        """Return sentences about unions over two parties with one database, which count
        rows twice.
        """
        notes = []
        for slot in plan.ucq.slots:
            read = [f for f in slot.evaluated if not f.virtual]
            for place, fragment in enumerate(read):
                for other in read[:place]:
                    pair = frozenset((fragment.client, other.client))
                    if pair in self._twins and fragment.sql == other.sql:
                        notes.append(
                            f"{slot.name}: parties {other.client.party} and "
                            f"{fragment.client.party} have one database, so that each row counts "
                            "twice in the union of their tables"
                        )
        return notes

    def changed_since(self, model: Model, parties: Iterable[str]) -> list[str]:
        """Return sentences about parties with more or fewer databases than when the model was
        trained.
        """
        known = model.databases or Counter(client.party for client in model.clients)
        trained = {name.lower(): number for name, number in known.items()}
        notes = []
        for party in parties:
            before, now = trained.get(party.lower()), len(self.clients.get(party, ()))
            if before is None or before == now or not now:
                continue
            rows = "rows of the others are missing" if now < before else "so rows of more are taken"
            notes.append(
                f"party {party} had {_databases(before)} when model {model.name} was trained, and "
                f"has {_databases(now)} now: {rows}"
            )
        return notes

    def close(self) -> None:
        with ExitStack() as stack:
            for opened in self._opened.values():
                for con in opened:
                    stack.callback(con.close)
            for server in self.servers.values():
                stack.callback(server.close)
            for combined in self._combined.values():
                stack.callback(combined.close)

    def _known(self, name: str) -> str | None:
        """Return the party's name in its original spelling."""
        return next((n for n in self.clients if n.lower() == str(name).lower()), None)


def _dials_in(name: str) -> Error:
    return Error(
        f"party {name} dials in: it comes and goes by itself",
        hint="it is gone once what sqlfl.listen(...) has returned is closed",
    )


def _databases(number: int) -> str:
    return "one database" if number == 1 else f"{number} databases"


def check_name(name: object, label: str) -> None:
    """Raise Error unless the name is an identifier."""
    if isinstance(name, str) and name.isidentifier():
        return
    if not isinstance(name, str):
        hint = 'the name comes first: fed.attach("airline", database)'
    else:
        letters = re.sub(r"\W", "_", name)
        letters = letters if letters.isidentifier() else f"p{letters}"
        hint = f"use letters, digits and _, and no digit first: {letters:.60}"
    raise Error(f"{label} {name!r:.80} is not an identifier", hint=hint)
