"""The coordinator as a service: parties dial in, and analysts, each to their own desk."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.flight as flight

from sqlfl.base.errors import Error, PolicyError, WireError
from sqlfl.service.agent import HELLO, WELCOME
from sqlfl.service.analyst_sessions import AnalystSession, Caller, DeskStatements
from sqlfl.service.calls import MAX_TEXT_BYTES, Calls
from sqlfl.service.frames import Frame, Receiver, spoken
from sqlfl.service.members import Roster, ServiceMembers
from sqlfl.service.outbox import Outbox
from sqlfl.service.pages import Pages
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.passes import checked, from_bearer, over_at, study_of
from sqlfl.service.server import ENDS, CoordinatorServer, FlightSql, Times
from sqlfl.service.settings import CoordinatorSettings, check_location
from sqlfl.service.status import ServiceStatus
from sqlfl.service.stream import PING, PONG, Credentials
from sqlfl.service.streams import Call, Most, RefusedStream

log = logging.getLogger("sqlfl.service")

ANALYST = "analyst"
"""The descriptor of an analyst's stream."""
LAST = 5.0
"""Seconds that a statement has to end in once its parties are gone."""
PASS = "pass"
"""Another pass, before the one that was given is over."""
FlightSqlMaker: TypeAlias = Callable[[Callable[[Any], Caller]], FlightSql]
"""Of who calls, by the context of a call: what answers."""


class Service:
    """Server of parties, analysts and their statements.

    location : address to listen on, 'grpc+tls://0.0.0.0:8815'. state : folder of its files, made if
    it is missing; None: nothing is stored. Raise Error if the address cannot be used, or the
    settings are inconsistent.

    status : 'host:port' of the status pages by HTTP (`sqlfl.service.pages`); None: no pages.
    status_open : they may have an address beyond this machine, without any login.

    flight_sql : makes the server of Flight SQL clients, if `flight_sql` of the settings enables
    them.

    path : file of the settings, whose names are read again at every call (`Roster`).
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        location: str,
        state: Path | None,
        *,
        insecure: bool,
        status: str | None = None,
        status_open: bool = False,
        flight_sql: FlightSqlMaker | None = None,
        path: Path | None = None,
    ) -> None:
        check_location(location, insecure=insecure)
        if settings.flight_sql and insecure:
            raise Error(
                "flight_sql is for clients with certificates, and there are none without TLS",
                hint="sqlfl gateway serves clients on this machine",
            )
        self._roster = Roster(settings, path)
        members = ServiceMembers(settings, roster=self._roster)
        credentials = Credentials() if insecure else settings.credentials(settings.name)
        self._settings, self._state = settings, state
        self._authority = credentials.authority
        self._members, self._lines = members, members.lines
        self.board = ServiceStatus(members.all)
        self._lock = threading.Lock()
        self._desks: dict[tuple[str, str], AnalystSession] = {}
        self._calls: dict[tuple[str, str, str], Calls] = {}
        """By study, analyst, and what the analyst's end calls itself, which nobody else knows."""
        self._statements: dict[tuple[str, str], DeskStatements] = {}
        self._sql: FlightSql | None = None
        if settings.flight_sql:
            assert flight_sql is not None, "what serves knows how"
            self._sql = flight_sql(self._caller)
        self._closing = False
        times = Times(settings.lease, settings.heartbeat)
        doors = {ANALYST: self._analyst}
        made = state is not None and _make(state)
        self._pages: Pages | None = None
        try:
            if status is not None:
                self._pages = Pages(status, self.board, lambda: self._closing, open=status_open)
            self._server = CoordinatorServer(
                location, settings.name, members, credentials, times, doors,
                each=self._forget, most=Most(settings.streams, settings.strangers),
                flight_sql=self._sql,
            )  # fmt: skip
        except BaseException:
            if self._pages is not None:
                self._pages.close()
            if state is not None and made:
                state.rmdir()
            raise
        if self._pages is not None:
            self._pages.start()

    @property
    def port(self) -> int:
        return int(self._server.port)

    @property
    def status_port(self) -> int | None:
        """Return the address of the status page; None without one."""
        return None if self._pages is None else self._pages.port

    def close(self, seconds: float = 30.0) -> bool:
        """End statements as Ctrl-C does, within that time, and keep their results; then end the
        service.

        Return True if all who were connected have left: a process waits for the others when it
        ends.
        """
        with self._lock:
            self._closing = True
            calls, desks = tuple(self._calls.values()), tuple(self._desks.values())
        until = time.monotonic() + seconds
        for caller in calls:
            caller.end()
        if self._sql is not None:
            self._sql.end(seconds)
        for caller in calls:
            caller.join(until)
        late = sum(caller.running for caller in calls)
        if late:
            log.warning(
                "%d statements have not ended in %g seconds, and are given up", late, seconds
            )
        self._members.close(ENDS)
        for caller in calls:
            caller.interrupt_all()
            caller.join(LAST)
        gone = self._server.shutdown()
        with ExitStack() as stack:
            if self._pages is not None:
                stack.callback(self._pages.close)
            for desk in desks:
                stack.callback(desk.close)
        return gone

    # -- analysts ---------------------------------------------------------------------------------

    def _analyst(self, identity: str, receiver: Receiver, sender: Outbox, call: Call) -> None:
        hello = receiver.receive()
        if hello.kind != HELLO:
            raise WireError(f"{hello.kind} came where a hello does")
        version = spoken(hello.told.get("versions"))
        study, speaker = hello.text("study"), hello.text("pass")
        end = hello.text("end")
        if not 32 <= len(end) <= 64:
            raise WireError(f"an end of {len(end)} letters")
        analyst = self._known(identity, study, speaker)
        call.known(analyst)
        call.enter()
        try:
            desk = self._desk(study, analyst)
        except Error as error:
            raise RefusedStream(error.message) from error
        desk.speak(speaker, self._until(speaker))
        told = {
            "version": version, "coordinator": self._settings.name, "study": study,
            "analyst": analyst, "session": self._server.session,
            "heartbeat_ms": int(1e3 * self._settings.heartbeat),
            "lease_ms": int(1e3 * self._settings.lease),
        }  # fmt: skip
        sender.send(Frame(WELCOME, told))
        receiver.most_bytes = MAX_TEXT_BYTES
        calls = self._end(study, analyst, end, desk, sender)
        try:
            while calls.carries(sender):
                frame = receiver.receive()
                if not self._roster.analyst(study, analyst):
                    raise RefusedStream(_gone(study, analyst))
                if sender.full:
                    raise RefusedStream("the analyst asks, and does not read the answers")
                if frame.kind == PING:
                    sender.offer(Frame(PONG))
                elif frame.kind == PASS:
                    speaker = frame.text("pass")
                    if self._known(identity, study, speaker) != analyst:
                        raise RefusedStream("the pass is of another analyst")
                    desk.speak(speaker, self._until(speaker))
                else:
                    calls.take(frame)
        finally:
            calls.disconnect(sender)
            self._forget()

    def _end(
        self, study: str, analyst: str, end: str, desk: AnalystSession, sender: Outbox
    ) -> Calls:
        """Return the calls of this end, connected to its new stream if the old one was lost."""
        self._forget()
        with self._lock:
            if self._closing:
                raise RefusedStream(ENDS)
            calls = self._calls.get((study, analyst, end))
            if calls is not None:
                calls.connect(sender)
                return calls
            caller = Calls(desk, sender, self._settings.statements, self.board)
            self._calls[study, analyst, end] = caller
            return caller

    def _forget(self) -> None:
        with self._lock:
            lease = self._settings.lease
            self._calls = {
                key: caller for key, caller in self._calls.items() if not caller.over(lease)
            }

    def _caller(self, context: Any) -> Caller:
        """Return the analyst who makes a call of Flight SQL.

        The connection has the analyst's certificate, and the call has the pass. Raise FlightError
        unless both belong to the same analyst of the study.
        """
        try:
            call = self._server.call_of(context)
        except RefusedStream as error:
            raise flight.FlightUnavailableError(error.message) from None
        identity = bytes(context.peer_identity()).decode("utf-8", "replace")
        try:
            speaker = from_bearer(call.bearer)
            study = study_of(speaker)
            analyst = self._known(identity, study, speaker)
        except Error as error:
            log.warning("%s (%s) is sent away: %s", identity, context.peer(), error)
            raise flight.FlightUnauthenticatedError(
                f"{error.message}\nhint: sqlfl keygen pass prints a new pass"
            ) from None
        try:
            call.known(analyst)
            desk = self._desk(study, analyst)
        except Error as error:
            raise flight.FlightUnavailableError(error.message) from None
        call.enter()
        call.stay()
        desk.speak(speaker, self._until(speaker))
        with self._lock:
            statements = self._statements.get((study, analyst))
            if statements is None:
                statements = DeskStatements(desk, self.board, self._settings.statements)
                self._statements[study, analyst] = statements
        return Caller(f"{study}/{analyst}", statements, call.works, call.heard)

    def _until(self, speaker: str) -> dt.datetime:
        """Return the end of a checked pass. Without certificates it is a name, which never ends."""
        return (
            dt.datetime.max.replace(tzinfo=dt.UTC) if self._authority is None else over_at(speaker)
        )

    def _known(self, identity: str, study: str, speaker: str) -> str:
        """Return the analyst. Raise RefusedStream if it is not one of the study."""
        if self._authority is None:
            analyst = speaker
        else:
            try:
                analyst = checked(speaker, self._authority, self._settings.name, study)
            except PolicyError as error:
                raise RefusedStream(error.message) from error
            if analyst != identity:
                raise RefusedStream("the pass is of another analyst than the certificate")
        if not self._roster.analyst(study, analyst):
            raise RefusedStream(_gone(study, analyst))
        return analyst

    def _check(self, study: str, analyst: str, line: PartyConnection) -> None:
        """Raise PolicyError if the analyst, or the agent, was taken out of the settings."""
        if not self._roster.analyst(study, analyst):
            raise PolicyError(_gone(study, analyst), hint="ask who runs the coordinator")
        if not self._roster.agent(line.party, line.first):
            raise PolicyError(
                f"the agent of {line.party}/{line.first} may not come here any more",
                hint="ask who runs the coordinator",
            )

    def _desk(self, study: str, analyst: str) -> AnalystSession:
        with self._lock:
            session = self._desks.get((study, analyst))
            if session is None:
                path = None
                if self._state is not None:
                    folder = self._state / study
                    folder.mkdir(exist_ok=True, mode=0o700)
                    path = folder / f"{analyst}.duckdb"
                names = self._settings.studies[study].parties
                parties = {name: self._lines[name] for name in names}
                session = self._desks[study, analyst] = AnalystSession(
                    study, analyst, parties, path, partial(self._check, study, analyst)
                )
            return session


def _gone(study: str, analyst: str) -> str:
    return f"there is no study {study!r:.80} of analyst {analyst!r:.80} here"


def _make(folder: Path) -> bool:
    """Make the folder if it is missing, and return True then. Raise Error if it cannot be used."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Error(f"{folder} cannot be a folder for files: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise Error(f"nothing can be written into {folder}", hint="give another --state")
    return new
