"""Analysts and agents that may dial in to a coordinator, by its settings' file as it is now, and
the connections to the agents.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from sqlfl.base.errors import Error
from sqlfl.service.certificates import checked_name
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.settings import CoordinatorSettings, read_settings
from sqlfl.service.streams import RefusedStream

log = logging.getLogger("sqlfl.service")

Mark: TypeAlias = tuple[int, int, int]
"""Node, size and time of a file."""


class Roster:
    """Names of a coordinator's settings that are still in their file.

    A name that is taken out of the file may not come any more, from the next question on. A name
    that is added comes with the coordinator's next start, as all else that changes. A file that
    cannot be read takes nobody out, and the log says so.

    path : the file; None if there is none. Safe to use from several threads.
    """

    def __init__(self, settings: CoordinatorSettings, path: Path | None) -> None:
        self._began, self._now, self._path = settings, settings, path
        self._lock = threading.Lock()
        self._mark: Mark | None = None

    def analyst(self, study: str, name: str) -> bool:
        """Return whether the analyst may come to the study."""
        return all(
            study in settings.studies and name in settings.studies[study].analysts
            for settings in (self._began, self._current())
        )

    def agent(self, party: str, number: int) -> bool:
        """Return whether the agent of a party's client may still come."""
        name = self._began.parties[party].agents[number]
        now = self._current().parties.get(party)
        return now is not None and name in now.agents

    def _current(self) -> CoordinatorSettings:
        if self._path is None:
            return self._now
        with self._lock:
            try:
                found = os.stat(self._path)
                mark = found.st_ino, found.st_size, found.st_mtime_ns
            except OSError as error:
                mark = (0, 0, error.errno or 0)
            if mark != self._mark:
                self._mark = mark
                try:
                    self._now = read_settings(CoordinatorSettings, self._path)
                    log.info("%s was read, for who may not come any more", self._path)
                except Error as error:
                    log.error(
                        "%s cannot be read, so that nobody is taken out by it: %s",
                        self._path, error.message,
                    )  # fmt: skip
            return self._now


class ServiceMembers:
    """As `sqlfl.service.server.Admits`.

    names : of the parties that may come; None: all that are configured. why : what agents of the
    others are told. roster : who may still come; None: all that are configured. Raise Error where
    what is configured does not hang together.
    """

    def __init__(
        self,
        settings: CoordinatorSettings,
        names: Iterable[str] | None = None,
        why: str = "",
        roster: Roster | None = None,
    ) -> None:
        check_settings(settings)
        self._why = why
        self._roster = Roster(settings, None) if roster is None else roster
        self.lines = {
            name: tuple(
                PartyConnection(name, settings.lease, n)
                for n, _ in enumerate(settings.parties[name].agents)
            )
            for name in (settings.parties if names is None else names)
        }
        self._agents = {
            agent: (name, n)
            for name, member in settings.parties.items()
            for n, agent in enumerate(member.agents)
        }

    @property
    def all(self) -> tuple[PartyConnection, ...]:
        return tuple(line for lines in self.lines.values() for line in lines)

    def party(self, identity: str, name: str, clients: int) -> PartyConnection:
        known = self._agents.get(identity)
        if known is None or known[0] != name or not self._roster.agent(*known):
            raise RefusedStream(f"there is no agent {identity!r:.80} of a party {name!r:.80} here")
        if name not in self.lines:
            raise RefusedStream(f"party {name} {self._why}")
        if clients != 1:
            raise RefusedStream("an agent serves one database")
        return self.lines[name][known[1]]

    def connected(self, line: PartyConnection) -> None:
        log.info("%s/%d is connected", line.party, line.first, extra={"party": line.party})

    def disconnected(self, line: PartyConnection) -> None:
        log.info("%s/%d is away", line.party, line.first, extra={"party": line.party})

    def close(self, why: str) -> None:
        for line in self.all:
            line.close(why)


def check_settings(settings: CoordinatorSettings) -> None:
    checked_name(settings.name)
    seen: dict[str, str] = {}
    for name, member in settings.parties.items():
        if not name.isidentifier():
            raise Error(f"party name {name!r} is not an identifier", hint="use letters, digits, _")
        for agent in member.agents:
            checked_name(agent)
            if agent in seen:
                raise Error(f"agent {agent} is of party {seen[agent]} and of {name}")
            seen[agent] = name
    for study, members in settings.studies.items():
        checked_name(study)
        for analyst in members.analysts:
            checked_name(analyst)
        unknown = [name for name in members.parties if name not in settings.parties]
        if unknown:
            raise Error(
                f"study {study} has parties that are not configured: {', '.join(unknown)}",
                hint=f"there are {', '.join(settings.parties) or 'none'}",
            )
