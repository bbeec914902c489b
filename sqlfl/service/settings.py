"""Settings of a coordinator, a party and an analyst: TOML files, whose folder relative paths start
from.

Keys and secrets are neither in these files nor on a command line. An entry names a file, or with
`env:NAME` an environment variable.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

from sqlfl.base.codec import from_json, to_json
from sqlfl.base.errors import Error, nearest
from sqlfl.databases.sql_sources import SqlSources
from sqlfl.service import wrapping
from sqlfl.service.certificates import check_identity
from sqlfl.service.stream import Credentials

log = logging.getLogger("sqlfl.service")

T = TypeVar("T", bound="SettingsFile")
N = TypeVar("N", int, float)
Place: TypeAlias = str
"""A path, or `env:NAME`."""
VARIABLE = "env:"
PATHS = (
    "key", "certificate", "authority", "secret", "organisation", "store", "database", "sources",
)  # fmt: skip


def positive(default: N, most: float = math.inf) -> N:
    """A field of numbers above 0."""
    spec: N = field(default=default, metadata={"most": most})
    return spec


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """Entries of a TOML file."""


@dataclass(frozen=True, kw_only=True)
class Identity(SettingsFile):
    """Identity of this end: key, certificate and authority together, or with `--insecure` none of
    them."""

    certificate: Place | None = None
    key: Place | None = None
    authority: Place | None = None

    def credentials(self, expected: str | None = None) -> Credentials:
        """Return the checked identity. expected : name that the certificate must have. Raise Error
        if a file cannot be read, is missing, or does not match the others."""
        places = {name: getattr(self, name) for name in ("key", "certificate", "authority")}
        missing = [name for name, place in places.items() if place is None]
        if missing:
            raise Error(
                f"the configuration has no {' and no '.join(missing)}",
                hint="sqlfl keygen makes them; --insecure on this machine alone needs none",
            )
        contents = {name: content(place, name) for name, place in places.items()}
        _look_at(self.key)
        identity = check_identity(
            contents["key"], contents["certificate"], contents["authority"], expected
        )
        if identity.over_soon():
            log.warning("the certificate of %s ends on %s", identity.name, identity.ends.date())
        return Credentials(**contents)


@dataclass(frozen=True, kw_only=True)
class Member:
    """A party of a coordinator."""

    agents: tuple[str, ...]
    """Names of certificates, in the order of the party's clients: one agent, one database."""


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    parties: tuple[str, ...]
    analysts: tuple[str, ...]
    """Names of certificates."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings(Identity):
    name: str
    """That of its certificate."""
    parties: Mapping[str, Member]
    studies: Mapping[str, StudySettings]
    lease: float = positive(60.0)
    """Seconds for which a party that is away is waited for."""
    heartbeat: float = positive(5.0)
    """Seconds between two signs of life."""
    statements: int = positive(4)
    """That one analyst may have running at once."""
    streams: int = positive(16)
    """That one certificate may have open at once."""
    strangers: int = positive(256)
    """Streams, of all, that have not said yet who they are."""
    flight_sql: bool = False
    """Let `sqlfl coordinator` serve Flight SQL, by an analyst's certificate and pass."""


@dataclass(frozen=True, kw_only=True)
class PartySettings(Identity):
    name: str
    """The party's, as it stands in statements."""
    coordinator: str
    """The name of its certificate: passes of analysts must be for it."""
    database: Place | None = None
    """Its file; or `sources`."""
    sources: Place | None = None
    """DuckDB statements that open the party's tables."""
    variables: Mapping[str, Place] = field(default_factory=dict)
    """Values that the statements read by `getvariable('name')`, such as passwords."""
    store: Place | None = None
    """File that keeps policies, records and blocks of models; `sources` need one."""
    index: int = 0
    """Which of the party's clients this is, by the order that the coordinator has."""
    secret: Place
    """Of all parties, wrapped for this party's certificate."""
    organisation: Place | None = None
    """Of the party's own clients: a secret of theirs, wrapped too; only where it has several."""
    agent: str | None = None
    """What it is called where there is no certificate."""
    open: bool = False
    """It serves without any training policy too."""
    notify: tuple[str, ...] | str | None = None
    """Command that runs when a request waits for the owner; `read_settings` splits a text."""
    page: int | None = field(default=None, metadata={"most": 65535})
    """Port of the owner's page, on 127.0.0.1."""

    @property
    def home(self) -> Place:
        """Return the file that gives the policies their name: the database, or the store beside
        `sources`."""
        home = self.database if self.sources is None else self.store
        assert home is not None, "check_sources has looked"
        return home

    def check_sources(self) -> None:
        """Raise Error unless the tables have one place, and the policies a file."""
        if self.sources is None and self.database is None:
            raise Error(
                "the entry database is missing",
                hint="database names the party's DuckDB file; or sources a file of statements that "
                "open its tables (docs/sources.md)",
            )
        if self.sources is None:
            if self.variables:
                raise Error("variables are for statements, and there is no entry sources")
            return
        if self.database is not None:
            raise Error(
                "there are database and sources",
                hint="give one of them: the statements may ATTACH the database",
            )
        if self.open:
            raise Error(
                "sources are served under policies alone, and there is open = true",
                hint="leave open out; the owner grants: sqlfl owner SETTINGS.toml 'CREATE TRAINING "
                "POLICY ...'",
            )
        if self.store is None:
            raise Error(
                "sources need a store, which keeps policies and what leaves",
                hint=f'store = "{self.name}-sqlfl.duckdb": a file that is made if it is missing',
            )

    def source(self) -> str | SqlSources:
        """Return the database's path, or the statements that open the tables. Raise Error."""
        self.check_sources()
        if self.sources is None or self.store is None:
            return self.home
        values = {
            name: content(place, f"the variable {name}").decode("utf-8", "replace").rstrip("\r\n")
            for name, place in self.variables.items()
        }
        text = content(self.sources, "sources").decode("utf-8", "replace")
        places = (*(getattr(self, name) for name in PATHS), *self.variables.values())
        private = tuple(Path(p) for p in places if p and not p.startswith(VARIABLE))
        return SqlSources(self.sources, text, Path(self.store), values, private)

    def environment(self) -> frozenset[str]:
        """Return the names of the environment variables that hold keys and secrets."""
        places = (*(getattr(self, name) for name in PATHS), *self.variables.values())
        return frozenset(p.removeprefix(VARIABLE) for p in places if p and p.startswith(VARIABLE))


@dataclass(frozen=True, kw_only=True)
class AnalystSettings(Identity):
    coordinator: str | None = None
    """Where it listens: 'grpc+tls://host:8815'."""
    name: str | None = None
    """The analyst's, where there is no certificate."""
    coordinator_name: str | None = None
    """That of its certificate, where it is not the host's."""
    study: str | None = None
    pass_hours: float = positive(12.0, most=24.0)
    """For how long, 24 hours at most, the coordinator may ask parties on the analyst's behalf."""


@dataclass(frozen=True, kw_only=True)
class StudyFile(SettingsFile):
    """Description of a study and its members."""

    study: str
    coordinator: str
    """Name of its certificate."""
    address: str | None = None
    """Host and port where it is reached; by default its name and port 8815."""
    parties: Mapping[str, Member]
    analysts: tuple[str, ...]
    """Names of certificates."""

    @property
    def place(self) -> str:
        return self.address or f"{self.coordinator}:8815"

    @property
    def port(self) -> int:
        return int(self.place.rpartition(":")[2])


def read_settings(kind: type[T], path: str | os.PathLike[str]) -> T:
    """Return the settings. Raise Error if the file is missing, is not TOML, or has entries that
    `kind` lacks."""
    file = Path(path)
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(
            f"cannot read {file}: {error.strerror}", hint="docs/distributed.md has examples"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Error(f"{file} is no TOML: {error}") from error
    try:
        _check_entries(kind, entries, "")
        settings = from_json(kind, to_json(entries))
    except ValueError as error:
        raise Error(f"{file}: {error}", hint=_meant(kind, str(error))) from error
    _check_numbers(settings, file)
    places = {name: getattr(settings, name, None) for name in PATHS}
    moved = {name: _moved(place, file.parent) for name, place in places.items() if place}
    settings = replace(settings, **moved)
    if not isinstance(settings, PartySettings):
        return settings
    try:
        settings.check_sources()
    except Error as error:
        raise Error(f"{file}: {error.message}", hint=error.hint) from None
    variables = {name: _moved(place, file.parent) for name, place in settings.variables.items()}
    notify = None if settings.notify is None else _command(settings.notify, file)
    return replace(settings, variables=variables, notify=notify)


def _command(given: tuple[str, ...] | str, file: Path) -> tuple[str, ...]:
    """Return the words of the command, with the path of a program that can be run."""
    try:
        words = tuple(shlex.split(given)) if isinstance(given, str) else given
    except ValueError as error:
        raise Error(f"{file}: notify is no command: {error}", hint=_NOTIFY) from error
    if not words or not words[0]:
        raise Error(f"{file}: notify names no program", hint=_NOTIFY)
    program = str(file.parent / words[0]) if "/" in words[0] else words[0]
    program_path = shutil.which(program)
    if program_path is None:
        raise Error(f"{file}: notify: there is no program {program} that can be run", hint=_NOTIFY)
    return program_path, *words[1:]


_NOTIFY = 'notify = ["/etc/sqlfl/notify", "bank"] runs this program (docs/owner.md)'


def content(place: Place, what: str) -> bytes:
    """Return the contents of an entry's file or variable. Raise Error, whose text never has the
    contents."""
    if place.startswith(VARIABLE):
        name = place.removeprefix(VARIABLE)
        value = os.environ.get(name)
        if value is None:
            raise Error(f"{what}: there is no variable {name} in the environment")
        return value.encode()
    try:
        return Path(place).read_bytes()
    except OSError as error:
        raise Error(f"{what}: cannot read {place}: {error.strerror}") from error


def _look_at(key: Place | None) -> None:
    if key is None or key.startswith(VARIABLE):
        return
    if Path(key).stat().st_mode & 0o077:
        log.warning("others on this machine can read the key %s: chmod 600 ends that", key)


def shared_secret(settings: PartySettings) -> bytes:
    """Return the secret of all parties, for a party whose own process coordinates. It is read
    without unwrapping if the party has neither key nor certificate. Raise Error."""
    bare = settings.key is None and settings.certificate is None and settings.authority is None
    return secret_of(
        settings.secret, Credentials() if bare else settings.credentials(settings.agent)
    )


def secret_of(place: Place, credentials: Credentials) -> bytes:
    """Return the secret that was wrapped for this certificate; if it is not wrapped, as it is."""
    data = content(place, "secret")
    if credentials.key is not None and credentials.certificate is not None:
        return wrapping.unwrap(
            data.decode("utf-8", "replace"), credentials.key, credentials.certificate
        )
    try:
        secret = bytes.fromhex(data.decode().strip())
    except ValueError:
        secret = b""
    if len(secret) != wrapping.BYTES:
        raise Error(
            f"secret: what stands there is none of {wrapping.BYTES} bytes, in hexadecimal",
            hint="sqlfl keygen secret --plain makes one, for parties on this machine alone",
        )
    return secret


def _check_entries(kind: type, entries: Mapping[str, object], path: str) -> None:
    """Raise ValueError for a missing entry, or an entry with an unknown name."""
    specs = {spec.name: spec for spec in fields(kind)}
    for name in entries:
        if name not in specs:
            close = nearest(name, specs)
            raise ValueError(
                f"there is no entry {path}{name:.40}"
                + (f"; did you mean {close}?" if close else f": there are {', '.join(specs)}")
            )
    for name, spec in specs.items():
        if name not in entries and spec.default is MISSING and spec.default_factory is MISSING:
            raise ValueError(f"the entry {path}{name} is missing")
    for name, inner in _TABLES.get(kind, {}).items():
        tables = entries.get(name)
        for key, table in tables.items() if isinstance(tables, dict) else ():
            if isinstance(table, dict):
                _check_entries(inner, table, f"{path}{name}.{key}.")


def _check_numbers(settings: SettingsFile, file: Path) -> None:
    for spec in fields(settings):
        most, value = spec.metadata.get("most"), getattr(settings, spec.name)
        if most is not None and value is not None and not 0 < value <= most:
            said = "above 0" if most == math.inf else f"above 0, and {most:g} at most"
            raise Error(f"{file}: {spec.name} must be {said}, got {value:g}")


def _meant(kind: type, said: str) -> str:
    for name, inner in _TABLES.get(kind, {}).items():
        if re.search(rf"\b{name}\b", said):
            lists = [f'{spec.name} = ["..."]' for spec in fields(inner)]
            return f"[{name}.NAME] has {' and '.join(lists)}; docs/distributed.md has examples"
    return "docs/distributed.md has examples"


_TABLES: Mapping[type, Mapping[str, type]] = {
    CoordinatorSettings: {"parties": Member, "studies": StudySettings},
    StudyFile: {"parties": Member},
}
"""Entries that are tables of tables."""


def _moved(place: Place, folder: Path) -> Place:
    return place if place.startswith(VARIABLE) else str(folder / place)


HERE = ("127.0.0.1", "::1", "localhost")


def check_location(location: str, *, insecure: bool) -> None:
    """Raise Error if TLS is missing. Only a connection on this machine may lack it, on request."""
    try:
        parts = urlsplit(location)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if scheme not in ("grpc+tls", "grpc") or host is None or port is None:
        raise Error(f"{location!r} is no place to connect to", hint="grpc+tls://host:8815 is one")
    if scheme == "grpc+tls" and insecure:
        raise Error(f"{location} is with TLS, and --insecure without", hint="use grpc://")
    if scheme == "grpc" and not insecure:
        raise Error(
            f"{location} is without TLS",
            hint="use grpc+tls://; --insecure is for this machine alone",
        )
    if insecure and host not in HERE:
        raise Error(
            f"--insecure is for this machine alone, not for {host}",
            hint="grpc://127.0.0.1:8815, or keys by sqlfl keygen",
        )
