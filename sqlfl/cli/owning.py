"""The statements of a database's owner, and whether what it has kept of messages is as it was."""

from __future__ import annotations

import sys

import click

import sqlfl
from sqlfl.ownership.door import door_of, through


@click.command()
@click.argument("database")
@click.argument("statements", metavar="[STATEMENT]...", nargs=-1)
@click.option("--store", help="The file that keeps its policies, where not itself.")
def owner(database: str, statements: tuple[str, ...], store: str | None) -> None:
    """Run statements of the owner of a database, up to the first that fails.

    Without any, they come from standard input. Where an agent has the database open, it runs them.
    """
    texts = statements or (sys.stdin.read(),)
    place = door_of(database)
    if through(place, "") is not None:
        for text in texts:
            print(through(place, text))
        return
    with sqlfl.owner(database, store) as own:
        for text in texts:
            print(own.sql(text))


@click.command()
@click.argument("party")
@click.argument("coordinator", required=False)
def verify(party: str, coordinator: str | None) -> None:
    """Look whether what a party has kept of messages hangs together.

    PARTY is its database file, COORDINATOR the coordinator's file, to compare with.
    """
    found = sqlfl.verify(party, coordinator)
    if found.fetchall():
        print(found)
        sys.exit(1)
    print("nothing was changed, dropped, added or reordered")
