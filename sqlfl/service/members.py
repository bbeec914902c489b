"""The agents that may dial in to a coordinator, and the lines to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sqlfl.base.errors import Error
from sqlfl.service.certificates import checked_name
from sqlfl.service.party_connection import PartyConnection
from sqlfl.service.roster import Roster
from sqlfl.service.settings import CoordinatorSettings
from sqlfl.service.streams import RefusedStream

log = logging.getLogger("sqlfl.service")


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
