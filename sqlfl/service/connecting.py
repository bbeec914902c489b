"""Where a federation's coordinator is: in this process, or by its place on another machine."""

from __future__ import annotations

import os
from typing import cast

from sqlfl.base.errors import Error
from sqlfl.base.foreign_names import CONNECT, with_call_hint
from sqlfl.coordinator.executors.base import Executor
from sqlfl.coordinator.executors.named import THREADS
from sqlfl.federation.session import Federation
from sqlfl.transport.named import LOCAL


@with_call_hint(CONNECT)
def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    progress: bool | None = None,
    at: str | None = None,
    transport: str = LOCAL,
    executor: str | Executor = THREADS,
    analyst: str | None = None,
    config: str | os.PathLike[str] | None = None,
    study: str | None = None,
    party: str | os.PathLike[str] | None = None,
) -> Federation:
    """A federation whose coordinator lives in this process, or, by its place, on another machine.

    path : the file, made where it is not there, in which the coordinator keeps models, their
        history and the audit; the parties keep their parts (docs/models.md). None: nothing is kept.
    progress : show progress of long statements; None: only in a terminal and in a notebook.
    at : the party that the coordinator is at; None: it is with none of them. What goes between it
        and that party's clients crosses no border, so that the labels of that party leave nobody.
        `fed.audit()` records these messages too, and says so; sums of bytes leave them out.
    transport : what carries messages: 'local', or a transport that another package offers.
    executor : what computes on the joined rows at the coordinator: 'threads' of this
        process, 'ray', or an object (docs/executors.md).
    analyst : your name, by which owners grant what may be done with their tables (docs/owner.md).
    party : the settings of the party that you attach here, where others dial in (`sqlfl.listen`):
        of its file the name, which `at` is then, and the secret of all parties, with the key that
        opens it. The database is attached as ever. Raise Error where the secret cannot be read.

    A coordinator on another machine (docs/distributed.md) is one of study `study`, with the keys of
    the settings `config`, or those that the variable SQLFL_CONFIG names:
    `sqlfl.connect("grpc+tls://host:8815", config="alice.toml", study="heart")`. Where that runs and
    who its parties are is its own matter: of the others `progress` and `analyst` alone are for it.

    >>> import sqlfl
    >>> with sqlfl.connect(at="clinic") as fed:
    ...     print(fed)
    <sqlfl federation at clinic: parties: none; models: none>
    """
    if isinstance(path, str) and path.startswith(("grpc://", "grpc+tls://")):
        defaults = {
            "at": at is None, "transport": transport == LOCAL, "executor": executor == THREADS,
            "party": party is None,
        }  # fmt: skip
        wrong = [name for name, left in defaults.items() if not left]
        if wrong:
            raise Error(f"{wrong[0]} is for a coordinator in this process, not for {path}")
        from sqlfl.service.federation import RemoteFederation

        there = RemoteFederation(
            path, config=config, study=study, analyst=analyst, progress=progress
        )
        return cast("Federation", there)  # with the same methods
    if config is not None or study is not None:
        raise Error(
            "config and study are for a coordinator on another machine",
            hint="sqlfl.connect('grpc+tls://host:8815', config='alice.toml', study='name')",
        )
    at, secret = (at, None) if party is None else _place(party, at)
    given = {"progress": progress, "at": at, "transport": transport, "executor": executor}
    return Federation(path, analyst=analyst, secret=secret, **given)  # type: ignore[arg-type]


def _place(party: str | os.PathLike[str], at: str | None) -> tuple[str, bytes]:
    """The party that the coordinator is at, and the secret that it has with others."""
    from sqlfl.service.settings import PartySettings, read_settings, shared_secret

    settings = read_settings(PartySettings, party)
    if at is not None and at.lower() != settings.name.lower():
        raise Error(
            f"party={os.fspath(party)!r} has the settings of {settings.name}, and at={at!r}: "
            "whoever has the parties' secret here, the coordinator is at that party",
            hint="leave at out",
        )
    return settings.name, shared_secret(settings)
