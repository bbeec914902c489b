"""`sqlfl gateway`: the analyst's statements for ADBC, JDBC and ODBC clients, by Flight SQL."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sqlfl.base.errors import Error
from sqlfl.cli.asking import DATABASES, opened, opening
from sqlfl.cli.serving import HEARD, LOGS, serving
from sqlfl.service.certificates import names_of, write_private
from sqlfl.service.settings import AnalystSettings, content, read_settings
from sqlfl.service.stream import Credentials

log = logging.getLogger("sqlfl.cli")

PLACE = "grpc://127.0.0.1:8817"
MIN_TOKEN_CHARACTERS = 16
"""Characters."""


@click.command()
@DATABASES
@click.option(
    "--listen", default=PLACE, help=f"By default {PLACE}; grpc+tls://host:8817 for others."
)
@click.option(
    "--token",
    type=click.Path(path_type=Path),
    help="Without TLS: the file of the token that clients give; made if missing. By default a "
    "new token, which is printed.",
)
@click.option(
    "--client",
    "clients",
    multiple=True,
    help="With TLS: the name of a client's certificate; repeatable. By default your own.",
)
@opening
@LOGS
def gateway(
    databases: Sequence[str],
    listen: str,
    token: Path | None,
    clients: tuple[str, ...],
    models: Path | None,
    log_format: str,
    **given: Any,
) -> None:
    """Serve Flight SQL to your own clients, until SIGTERM or Ctrl-C; twice, end at once.

    Whoever is let in acts as you: on this machine who has the token, and with TLS who has a
    certificate of your name, or of a --client.
    """
    insecure = listen.startswith("grpc://")
    if clients and insecure:
        raise Error("--client is of certificates, and there are none without TLS", hint=_TLS)
    if token is not None and not insecure:
        raise Error("--token is of a gateway without TLS", hint="leave it out")
    with serving(log_format) as stop:
        from sqlfl.gateway.server import Gateway  # pyarrow.flight takes a while

        credentials = _credentials(given["config"]) if not insecure else None
        if credentials is not None and credentials.certificate is not None:
            clients = clients or names_of(credentials.certificate)[:1]
        word = _token(token) if insecure else None
        with (
            opened(databases, models, **given) as fed,
            Gateway(fed, listen, token=word, credentials=credentials, clients=clients) as served,
        ):
            log.info("listening at %s, for %s", served.location, fed)
            if word is not None and token is None:
                click.echo(f"token: {word}")
            while not stop.wait(HEARD):
                pass


_TLS = "--listen grpc+tls://0.0.0.0:8817 is with TLS"


def _credentials(config: Path | None) -> Credentials:
    if config is None:
        raise Error("TLS needs your key and your certificate", hint="--config alice.toml")
    return read_settings(AnalystSettings, config).credentials()


def _token(file: Path | None) -> str:
    """A new one, or that of the file, which its owner alone can read."""
    if file is None:
        return secrets.token_urlsafe(32)
    if not file.exists():
        write_private(file, f"{secrets.token_urlsafe(32)}\n".encode())
    word = content(str(file), "token").decode("utf-8", "replace").strip()
    if len(word) < MIN_TOKEN_CHARACTERS:
        raise Error(f"{file} has a token of less than {MIN_TOKEN_CHARACTERS} characters")
    if os.name == "posix" and file.stat().st_mode & 0o077:
        log.warning("others on this machine can read the token %s: chmod 600 ends that", file)
    return word
