"""Server of a party's database to a remote coordinator, with a `PartyClient` for each analyst.

The coordinator is not trusted. Each message comes with a pass, and the analyst is whoever signed it
(`sqlfl.service.passes`). The owner's policies decide on the requests of that name.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sqlfl import messages as ms
from sqlfl.base.errors import Error, PolicyError, WireError
from sqlfl.base.interrupts import AGAIN
from sqlfl.contract.schema import Client
from sqlfl.databases.files import Connection
from sqlfl.governance.policy_store import Home
from sqlfl.governance.records import Records
from sqlfl.governance.trial import TrialWorkers
from sqlfl.messages.wire import encode, received
from sqlfl.party.attachment import Attachment, ClientPlace, Source, Store
from sqlfl.party.observers import Observers
from sqlfl.party.party import PartyClient, Secrets
from sqlfl.service.certificates import checked_name
from sqlfl.service.passes import Passes
from sqlfl.service.settings import PartySettings, secret_of
from sqlfl.service.stream import Credentials
from sqlfl.udfs.labels.label_secret import Holders
from sqlfl.udfs.numbering.keys import check_value

log = logging.getLogger("sqlfl.party")

MAX_ENDS = 256
"""Analysts in studies that are served beside each other."""

Known = Callable[[str, str], str]
"""Of a study and a pass: the analyst who asks. Raise PolicyError."""


@dataclass(frozen=True)
class Elsewhere:
    """A coordinator whose file is on another machine."""

    id: str
    path: Path | None = None


class Host:
    """Of one database, which is client `index` of the party `name`; a context.

    secret : of all parties. organisation : of this party's clients; None where it has this one
    alone. open : it serves without training policies too. Raise Error where the database cannot be
    used, or has no policies and is not `open`.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        store: Store = None,
        *,
        secret: bytes,
        known: Known,
        organisation: bytes | None = None,
        index: int = 0,
        open: bool = False,
    ) -> None:
        self.client = Client(name, index)
        self._known, self._open = known, open
        self._once = known.once if isinstance(known, Passes) else known
        shared = secrets.token_bytes(32) if organisation is None else organisation
        self._secrets = Secrets(secret, shared, Holders())
        self._attachment = Attachment(name, source, store, Elsewhere(""), first=index)
        self._place: ClientPlace | None = None
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._ends: dict[tuple[str, str], PartyClient] = {}
        self._busy: Counter[PartyClient] = Counter()
        """How many requests each is at."""
        self._coordinator, self._session = "", ""
        self._workers = TrialWorkers()

    def __enter__(self) -> Host:
        with ExitStack() as stack:
            attachment = stack.enter_context(self._attachment)
            for con in attachment.opened:
                stack.callback(con.close)
            (self._place,) = attachment.places
            for text in attachment.remarks():
                log.warning("%s", text, extra={"party": self.client.party})
            if not self._open:
                self._check_governed(self._place)
                self._workers.warm()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for con in self._attachment.opened:
                stack.callback(con.close)
            stack.callback(self._workers.close)
            self._retire()

    def welcome(self, coordinator: str, session: str) -> str:
        """As `sqlfl.service.agent.Serves`: runs of another process of the coordinator are
        forgotten; blocks of models stay."""
        if session != self._session:
            self._retire()
            self._coordinator, self._session = coordinator, session
        return check_value(self._secrets.federation, session)

    def forget(self) -> None:
        self._session = ""
        self._retire()

    def _retire(self) -> None:
        with self._idle:
            ends = list(self._ends.values())
            self._ends.clear()
            while any(self._busy[end] for end in ends):
                for end in ends:
                    end.interrupt()
                self._idle.wait(AGAIN)
        with ExitStack() as stack:
            for end in ends:
                stack.callback(end.close)

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        try:
            analyst = self._known(study, speaker)
        except PolicyError as error:
            if not self._left(data, study, speaker):
                return self._refused(data, error)
            analyst = self._once(study, speaker)
        with self._lock:
            end = self._ends.get((study, analyst))
            if end is None:
                if len(self._ends) >= MAX_ENDS:
                    raise Error(f"{MAX_ENDS} analysts are served already")
                end = self._ends[study, analyst] = self._made(study, analyst)
            self._busy[end] += 1
        try:
            return end.handle(data)
        finally:
            with self._idle:
                self._busy[end] -= 1
                self._busy += Counter()  # those at nothing are left out
                self._idle.notify_all()

    def interrupt(self, client: int, study: str, speaker: str) -> None:
        """By a pass that is over, too: the run began by it, or by one that came after."""
        end = self._served(study, speaker)
        if end is not None:
            end.interrupt()

    def _left(self, data: pa.Buffer, study: str, speaker: str) -> bool:
        """Return True if it is to end a run of the analyst whose pass this was. The run would stay
        open here until its own time is over. All else needs a pass that holds.
        """
        try:
            ends = isinstance(received(data), ms.Finish)
        except WireError:
            return False
        return ends and self._served(study, speaker) is not None

    def _served(self, study: str, speaker: str) -> PartyClient | None:
        """Return the server of the analyst whose pass this is, or was; None without one."""
        try:
            analyst = self._once(study, speaker)
        except PolicyError:
            return None
        with self._lock:
            return self._ends.get((study, analyst))

    def stop(self) -> None:
        with self._lock:
            ends = list(self._ends.values())
        for end in ends:
            end.interrupt()

    @property
    def databases(self) -> tuple[Connection, Connection | None]:
        """The database, and its store where it has one; both stay open as long as this is."""
        assert self._place is not None
        store = self._place.records
        return self._place.con, None if store is None else store.con

    @property
    def working(self) -> bool:
        """A run is in progress."""
        with self._lock:
            return any(end.working for end in self._ends.values())

    def _made(self, study: str, analyst: str) -> PartyClient:
        assert self._place is not None
        place = self._place
        told = hashlib.sha256("\n".join((self._coordinator, study, analyst)).encode())
        return PartyClient(
            self.client,
            place.con,
            self._secrets,
            place.blocks_for(told.hexdigest()[:32]),
            place.labels,
            None,
            Observers(),
            analyst,
            place.records,
            required=not self._open,
            workers=self._workers,
        )

    def _check_governed(self, place: ClientPlace) -> None:
        records = Records(place.con, place.located.catalog)
        if Home(records, place.records).ruling("") is None:
            raise Error(
                f"party {self.client.party}: its database has no training policies, so that "
                "nothing of it is granted to anybody",
                hint="its owner: sqlfl owner SETTINGS.toml 'CREATE TRAINING POLICY ...' "
                "(docs/owner.md)",
            )

    def _refused(self, data: pa.Buffer, error: PolicyError) -> pa.Buffer:
        try:
            request = received(data)
        except WireError:
            return encode(ms.Failure("", ms.CLIENT, "WireError", "it was sent what is no request"))
        known = {"party": self.client.party, "run": request.run}
        log.warning("%s refuses %s: %s", self.client, request.kind, error.message, extra=known)
        told = request.run, request.slot, type(error).__name__, str(error)
        return encode(ms.Failure(*told, number=request.number))


def hosted(settings: PartySettings, credentials: Credentials) -> Host:
    """Return the host of these settings. Without certificates, analysts' names are not verified.
    Raise Error if there is no database, or a secret cannot be read."""
    source = settings.source()
    if isinstance(source, str) and not Path(source).exists():
        raise Error(f"there is no database {source}", hint="`database` names its file")
    return Host(
        settings.name,
        source,
        settings.store,
        secret=secret_of(settings.secret, credentials),
        known=_known(credentials, settings.coordinator),
        organisation=None
        if settings.organisation is None
        else secret_of(settings.organisation, credentials),
        index=settings.index,
        open=settings.open,
    )


def _known(credentials: Credentials, coordinator: str) -> Known:
    if credentials.authority is None:
        return lambda study, speaker: checked_name(speaker)
    return Passes(credentials.authority, coordinator)
