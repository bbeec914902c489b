"""Commands for a database's owner: statements, and the check of its audit log."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import click

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.base.result import Result
from sqlfl.cli import formats
from sqlfl.governance.admin_socket import door_of, through
from sqlfl.governance.owner import Owner
from sqlfl.service.settings import PartySettings, read_settings


@click.command()
@click.argument("database")
@click.argument("statements", metavar="[STATEMENT]...", nargs=-1)
@click.option("--store", help="The file that keeps its policies, where not itself.")
@formats.option
def owner(database: str, statements: tuple[str, ...], store: str | None, form: str) -> None:
    """Run statements of the owner of a database, up to the first that fails.

    DATABASE is its file, or the settings of the party, a file whose name ends with .toml. Without
    STATEMENT, statements come from standard input. Where an agent has the database open, it runs
    them. --format lines shows all columns, whole: what a request would read and what would leave.
    """
    texts = statements or (sys.stdin.read(),)
    settings = read_settings(PartySettings, database) if database.endswith(".toml") else None
    if settings is not None and store is not None:
        raise Error("the settings name the store", hint="leave --store out")
    place = door_of(database if settings is None else settings.home)
    run: Callable[[str], Result | None]
    with ExitStack() as stack:
        if through(place, "") is not None:
            run = partial(through, place)
        else:
            opened = (
                sqlfl.owner(database, store)
                if settings is None
                else Owner(settings.source(), settings.store, coordinator=settings.coordinator)
            )
            run = stack.enter_context(opened).sql
        for text in texts:
            result = run(text)
            if result is None:
                raise Error("the agent that had the database open has ended", hint="once more")
            click.echo(formats.shown(result, form))


@click.command()
@click.argument("party")
@click.argument("coordinator", required=False)
def verify(party: str, coordinator: str | None) -> None:
    """Look whether what a party has kept of messages hangs together.

    PARTY is its database file, COORDINATOR the coordinator's file, to compare with.
    """
    faults = sqlfl.verify(party, coordinator)
    if faults.fetchall():
        print(faults)
        sys.exit(1)
    print("nothing was changed, dropped, added or reordered")
