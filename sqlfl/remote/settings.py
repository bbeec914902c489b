"""What a coordinator, a party and an analyst are set to: TOML files; paths are relative to these.

Keys and secrets are never in these files themselves, nor on a command line: an entry names a file,
or with `env:NAME` a variable of the environment.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from sqlfl.codec import from_json, to_json
from sqlfl.errors import Error
from sqlfl.remote import wrapping
from sqlfl.remote.stream import Credentials

T = TypeVar("T", bound="Identity")
Place: TypeAlias = str
"""A path, or `env:NAME`."""
VARIABLE = "env:"
PATHS = ("key", "certificate", "authority", "secret", "organisation", "store", "database")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Whose end it is: all three, or with `--insecure` none."""

    certificate: Place | None = None
    key: Place | None = None
    authority: Place | None = None

    def credentials(self) -> Credentials:
        """Raises Error where one cannot be read, or some are missing."""
        given = {name: getattr(self, name) for name in ("key", "certificate", "authority")}
        missing = [name for name, place in given.items() if place is None]
        if missing:
            raise Error(
                f"the configuration has no {' and no '.join(missing)}",
                hint="sqlfl keygen makes them; --insecure on this machine alone needs none",
            )
        return Credentials(**{name: content(place, name) for name, place in given.items()})


@dataclass(frozen=True, kw_only=True)
class Member:
    """A party of a coordinator."""

    agents: tuple[str, ...]
    """Names of certificates, in the order of the party's clients: one agent, one database."""


@dataclass(frozen=True, kw_only=True)
class Study:
    parties: tuple[str, ...]
    analysts: tuple[str, ...]
    """Names of certificates."""


@dataclass(frozen=True, kw_only=True)
class CoordinatorSettings(Identity):
    name: str
    """That of its certificate."""
    parties: Mapping[str, Member]
    studies: Mapping[str, Study]
    lease: float = 60.0
    """Seconds for which a party that is away is waited for."""
    heartbeat: float = 5.0
    """Seconds between two signs of life."""
    statements: int = 4
    """That one analyst may have running at once."""


@dataclass(frozen=True, kw_only=True)
class PartySettings(Identity):
    name: str
    """The party's, as it stands in statements."""
    coordinator: str
    """The name of its certificate: passes of analysts must be for it."""
    database: Place
    store: Place | None = None
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


@dataclass(frozen=True, kw_only=True)
class AnalystSettings(Identity):
    coordinator: str | None = None
    """Where it listens: 'grpc+tls://host:8815'."""
    name: str | None = None
    """The analyst's, where there is no certificate."""
    coordinator_name: str | None = None
    """That of its certificate, where it is not the host's."""
    study: str | None = None
    pass_hours: float = field(default=12.0)
    """For how long the coordinator may ask parties on the analyst's behalf."""


def read_settings(kind: type[T], path: str | os.PathLike[str]) -> T:
    """Raises Error for a file that is not there, is no TOML, or has what `kind` does not."""
    file = Path(path)
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(f"cannot read {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Error(f"{file} is no TOML: {error}") from error
    try:
        own = from_json(kind, to_json(found))
    except ValueError as error:
        raise Error(
            f"{file}: {error}",
            hint=f"there are {', '.join(spec.name for spec in fields(kind))}; "
            "docs/distributed.md has examples",
        ) from error
    places = {name: getattr(own, name, None) for name in PATHS}
    moved = {name: _moved(place, file.parent) for name, place in places.items() if place}
    return replace(own, **moved)


def content(place: Place, what: str) -> bytes:
    """What stands there. Raises Error; never with what it is."""
    if place.startswith(VARIABLE):
        name = place.removeprefix(VARIABLE)
        found = os.environ.get(name)
        if found is None:
            raise Error(f"{what}: there is no variable {name} in the environment")
        return found.encode()
    try:
        return Path(place).read_bytes()
    except OSError as error:
        raise Error(f"{what}: cannot read {place}: {error.strerror}") from error


def secret_of(place: Place, own: Credentials) -> bytes:
    """A secret that was wrapped for this certificate; where there is none, as it stands there."""
    data = content(place, "secret")
    if own.key is not None and own.certificate is not None:
        return wrapping.unwrap(data.decode("utf-8", "replace"), own.key, own.certificate)
    try:
        found = bytes.fromhex(data.decode().strip())
    except ValueError:
        found = b""
    if len(found) != wrapping.BYTES:
        raise Error(
            f"secret: what stands there is none of {wrapping.BYTES} bytes, in hexadecimal",
            hint="sqlfl keygen secret --plain makes one, for parties on this machine alone",
        )
    return found


def _moved(place: Place, folder: Path) -> Place:
    return place if place.startswith(VARIABLE) else str(folder / place)
