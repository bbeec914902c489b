"""A coordinator's service, parties' agents and an analyst, in one process over real streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import duckdb

from sqlfl.gateway.calls import FlightSqlCalls
from sqlfl.service import certificates as ct
from sqlfl.service import wrapping
from sqlfl.service.agent import Agent
from sqlfl.service.federation import RemoteFederation
from sqlfl.service.hosting import Host
from sqlfl.service.passes import Passes
from sqlfl.service.service import Service
from sqlfl.service.settings import AnalystSettings, CoordinatorSettings, Member, StudySettings
from sqlfl.service.stream import Credentials
from tests.service.party import AUTHORITY, credentials, running

COORDINATOR = "coordinator.example"
SECRET = wrapping.make_secret()


@cache
def identity(name: str) -> Credentials:
    hosts = ("localhost", "127.0.0.1") if name == COORDINATOR else ()
    return credentials(name, *hosts)


def written(folder: Path, name: str) -> dict[str, str]:
    """The paths of what makes the identity."""
    own = identity(name)
    found = {}
    for what in ("key", "certificate", "authority"):
        path = folder / f"{name}.{what}"
        data = getattr(own, what)
        if not path.exists():
            (ct.write_private if what == "key" else ct.write_public)(path, data)
        found[what] = str(path)
    return found


@dataclass
class Running:
    """What a test has of it."""

    folder: Path
    service: Service
    location: str
    hosts: dict[str, Host] = field(default_factory=dict)
    agents: dict[str, Agent] = field(default_factory=dict)

    def analyst(self, name: str = "alice", study: str = "heart") -> RemoteFederation:
        own = AnalystSettings(**written(self.folder, name), coordinator_name=COORDINATOR)
        path = self.folder / f"{name}.toml"
        lines = [f'{k} = "{v}"' for k, v in vars(own).items() if isinstance(v, str)]
        path.write_text("\n".join(lines))
        return RemoteFederation(self.location, config=path, study=study, progress=False)


def settings(folder: Path, parties: Mapping[str, int], **other: float) -> CoordinatorSettings:
    return CoordinatorSettings(
        name=COORDINATOR,
        parties={
            p: Member(agents=tuple(f"{p}{i}.example" for i in range(n))) for p, n in parties.items()
        },
        studies={
            "heart": StudySettings(parties=tuple(parties), analysts=("alice", "carol")),
            "lung": StudySettings(parties=tuple(parties)[:1], analysts=("carol",)),
        },
        **written(folder, COORDINATOR),
        **other,  # type: ignore[arg-type]
    )


def write_settings(path: Path, own: CoordinatorSettings) -> None:
    """Write these as the file of a coordinator's settings."""
    lines = [f'{name} = "{getattr(own, name)}"' for name in
             ("name", "key", "certificate", "authority")]  # fmt: skip
    lines += [f"{name} = {getattr(own, name)}" for name in ("lease", "heartbeat")]
    for party, member in own.parties.items():
        lines += [f"[parties.{party}]", f"agents = {list(member.agents)}"]
    for study, members in own.studies.items():
        lines += [f"[studies.{study}]", f"parties = {list(members.parties)}"]
        lines.append(f"analysts = {list(members.analysts)}")
    path.write_text("\n".join(lines))


@contextmanager
def serving(
    folder: Path,
    own: CoordinatorSettings,
    state: Path | None = None,
    status: str | None = None,
    path: Path | None = None,
) -> Iterator[Running]:
    service = Service(
        own, "grpc+tls://127.0.0.1:0", state, insecure=False, status=status,
        flight_sql=FlightSqlCalls, path=path,
    )  # fmt: skip
    try:
        yield Running(folder, service, f"grpc+tls://127.0.0.1:{service.port}")
    finally:
        service.close()


@contextmanager
def joined(
    study: Running, party: str, con: object, number: int = 0, **given: object
) -> Iterator[Host]:
    """A party's agent, which serves the connection."""
    own = identity(f"{party}{number}.example")
    assert own.authority is not None
    known = Passes(own.authority, COORDINATOR)
    given = {"secret": SECRET, **given}
    with Host(party, con, known=known, index=number, **given) as host:  # type: ignore[arg-type]
        agent = Agent(study.location, party, 1, host, own, server=COORDINATOR)
        with running(agent):
            line = study.service._lines[party][number]
            deadline = threading.Event()
            for _ in range(400):
                if not line.away:
                    break
                deadline.wait(0.05)
            assert not line.away
            study.hosts[party], study.agents[party] = host, agent
            yield host


@contextmanager
def studied(
    folder: Path,
    databases: Mapping[str, duckdb.DuckDBPyConnection],
    state: Path | None = None,
    *,
    open: bool = True,
    path: Path | None = None,
    **other: float,
) -> Iterator[Running]:
    """A study `heart` of `alice` and `carol` over these parties, of one client each. path : the
    file that the coordinator's settings are in."""
    given = {"lease": 5.0, "heartbeat": 0.5, **other}
    own = settings(folder, dict.fromkeys(databases, 1), **given)
    if path is not None:
        write_settings(path, own)
    with ExitStack() as stack:
        study = stack.enter_context(serving(folder, own, state, path=path))
        for party, con in databases.items():
            stack.enter_context(joined(study, party, con, open=open))
        yield study


__all__ = ["AUTHORITY", "closing", "identity", "joined", "serving", "settings", "studied",
           "write_settings"]  # fmt: skip
