"""A federation of this process to which parties elsewhere dial in, beside those attached here."""

from __future__ import annotations

import logging
import os
import threading
import time

from sqlfl.base.errors import Error, PartyError
from sqlfl.federation.session import Federation
from sqlfl.service.analyst_sessions import Admission
from sqlfl.service.federation import SETTINGS
from sqlfl.service.frames import Receiver
from sqlfl.service.members import ServiceMembers
from sqlfl.service.outbox import Outbox
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.passes import PassIssuer, checked
from sqlfl.service.server import ENDS, CoordinatorServer, Times
from sqlfl.service.service import ANALYST
from sqlfl.service.settings import (
    AnalystSettings,
    CoordinatorSettings,
    check_location,
    read_settings,
)
from sqlfl.service.stream import Credentials
from sqlfl.service.streams import Call, Most, RefusedStream

log = logging.getLogger("sqlfl.service")


def listen(
    fed: Federation,
    location: str,
    *,
    config: str | os.PathLike[str],
    study: str | None = None,
    analyst: str | os.PathLike[str] | None = None,
) -> Listener:
    """Let parties elsewhere dial in to a federation of this process (docs/distributed.md).

    fed : of `sqlfl.connect(..., party=..., analyst=...)`, with the party's database attached.
    location : where, "grpc+tls://0.0.0.0:8815"; port 0: any that is free. Without TLS
        "grpc://127.0.0.1:8815", for trying things out on this machine alone.
    config : the coordinator's settings, a TOML file. Of the study's parties those come that are not
        attached here.
    study : which of them; by default the one of the analyst's settings.
    analyst : the analyst's settings, by default what the variable SQLFL_CONFIG names: parties are
        asked by passes that are signed with that key.

    Leaving what is returned, a context, ends it: parties are told, and `fed` has them no more.
    Closing `fed` does the same. Raise Error where it cannot listen, the settings do not hang
    together, the analyst is none of the study or not that of `fed`, and where `fed` has not the
    secret that the parties share.
    """
    if not isinstance(fed, Federation):
        raise Error(
            "parties dial in to a federation whose coordinator is in this process",
            hint="that is what sqlfl.connect(path) returns, where path is a file or None",
        )
    path = os.environ.get(SETTINGS) if analyst is None else analyst
    analyst_settings = AnalystSettings() if path is None else read_settings(AnalystSettings, path)
    return Listener(
        fed, location, read_settings(CoordinatorSettings, config), analyst_settings, study
    )


class Listener:
    """Use `sqlfl.listen`. Safe to use from several threads."""

    def __init__(
        self,
        fed: Federation,
        location: str,
        settings: CoordinatorSettings,
        analyst_settings: AnalystSettings,
        study: str | None = None,
    ) -> None:
        insecure = location.startswith("grpc://")
        check_location(location, insecure=insecure)
        self._fed = fed
        self.study = _study(settings, study or analyst_settings.study)
        here = {name.lower() for name in fed.parties}
        names = [n for n in settings.studies[self.study].parties if n.lower() not in here]
        if not names:
            raise Error(f"all parties of study {self.study} are attached here: nobody may dial in")
        why = f"does not dial in: it is attached here, or not of study {self.study}"
        self._members = ServiceMembers(settings, names, why)
        self.names = frozenset(names)
        """Of the parties that may dial in."""
        credentials = Credentials() if insecure else settings.credentials(settings.name)
        issuer = _issuer(settings, analyst_settings, self.study, credentials)
        self.analyst = issuer.analyst
        self._admission = Admission(fed, self.study, self._members.lines, issuer, issuer.analyst)
        self._changed = threading.Condition()
        self._woken = self._closing = False
        self._ending = threading.Lock()
        self._closed = False
        self._admitting = threading.Thread(target=self._admit, name="sqlfl-admit", daemon=True)
        fed.listeners.join(self)
        # by what it is called parties know whose models are whose, and each file has its own
        called = ", file ".join((settings.name, *filter(None, (fed.listeners.keeper,))))
        try:
            self._server = CoordinatorServer(
                location, called, self, credentials,
                Times(settings.lease, settings.heartbeat), {ANALYST: _no_analysts},
                most=Most(settings.streams, settings.strangers),
            )  # fmt: skip
        except BaseException:
            fed.listeners.leave(self)
            raise
        self.location = f"{location.rpartition(':')[0]}:{self.port}"
        """With the port that was free, where it was to be any."""
        self._admitting.start()
        log.info("listening at %s", self.location)

    @property
    def port(self) -> int:
        return int(self._server.port)

    def wait(self, *names: str, seconds: float = 60.0) -> None:
        """Until these parties are connected and take part, by default all that may dial in. Raises
        PartyError where one does not within that time, and Error for one that may not."""
        wanted = names or tuple(sorted(self.names))
        for name in wanted:
            if name not in self.names:
                raise Error(
                    f"no party {name} may dial in",
                    hint=f"those of study {self.study} that may: {', '.join(sorted(self.names))}",
                )
        until = time.monotonic() + seconds
        with self._changed:
            while away := [name for name in wanted if not self._takes_part(name)]:
                if self._closing:
                    raise Error("nobody dials in any more: it was closed")
                left = until - time.monotonic()
                if left <= 0.0:
                    raise PartyError(away[0], self._why_not(away[0], seconds))
                self._changed.wait(left)

    def _takes_part(self, name: str) -> bool:
        there = not any(line.away for line in self._members.lines[name])
        return there and name in self._fed.parties

    def _why_not(self, name: str, seconds: float) -> str:
        refused = self._admission.refused.get(name)
        if refused is not None:
            return f"is not used in study {self.study}: {refused}"
        lines = self._members.lines[name]
        there = sum(not line.away for line in lines)
        if there == len(lines):
            return f"is connected, and has not been admitted within {seconds:g} seconds"
        of = f", but for {there} of its {len(lines)} agents" if there else ""
        return f"is not connected, after {seconds:g} seconds{of}"

    # -- parties, called from their streams' threads ----------------------------------------------

    def party(self, identity: str, name: str, clients: int) -> PartyConnection:
        """As `sqlfl.service.server.Admits`; so are those below."""
        return self._members.party(identity, name, clients)

    def connected(self, line: PartyConnection) -> None:
        self._members.connected(line)
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def disconnected(self, line: PartyConnection) -> None:
        self._members.disconnected(line)

    def _admit(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._woken or self._closing)
                if self._closing:
                    return
                self._woken = False
            try:
                self._admission.admit()
            except Exception:
                log.exception("a party could not be admitted to %s", self.study)
            with self._changed:
                self._changed.notify_all()

    # -- the end ----------------------------------------------------------------------------------

    def hurry(self) -> None:
        """Parties that are away are not waited for any more."""
        for line in self._members.all:
            line.hurry()

    def close(self) -> None:
        """Parties are told that the coordinator ends; statements that wait for one end with an
        error. Models that the federation's file keeps stay."""
        with self._ending:
            if self._closed:
                return
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._members.close(ENDS)
            self._admitting.join()
            self._server.shutdown()
            self._fed.listeners.leave(self)
            self._closed = True

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        listed = ", ".join(sorted(self.names))
        return f"<sqlfl listening at {self.location}, study {self.study}: {listed}>"


def _study(settings: CoordinatorSettings, study: str | None) -> str:
    if study is None:
        raise Error("no study is named", hint='sqlfl.listen(..., study="name")')
    if study not in settings.studies:
        listed = ", ".join(settings.studies) or "none"
        raise Error(f"there is no study {study!r:.80} in config", hint=f"there are: {listed}")
    return study


def _issuer(
    settings: CoordinatorSettings, analyst: AnalystSettings, study: str, coordinator: Credentials
) -> PassIssuer:
    """Raise Error where parties would not take its passes."""
    given = Credentials() if coordinator.authority is None else analyst.credentials(analyst.name)
    issuer = PassIssuer(given, analyst.name or "", settings.name, study, analyst.pass_hours)
    if coordinator.authority is not None:
        checked(issuer(), coordinator.authority, settings.name, study)
    known = settings.studies[study].analysts
    if issuer.analyst not in known:
        raise Error(
            f"{issuer.analyst or 'nobody'} is no analyst of study {study}",
            hint=f"config has {', '.join(known) or 'none'}; analyst= names the settings",
        )
    return issuer


def _no_analysts(identity: str, receiver: Receiver, sender: Outbox, call: Call) -> None:
    receiver.receive()  # who is still writing would not read why
    raise RefusedStream(
        "no analysts are taken here: this is the process of one who works with a database of its "
        "own (sqlfl.listen); sqlfl coordinator takes several"
    )
