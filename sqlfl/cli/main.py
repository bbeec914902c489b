"""The command `sqlfl`: its groups are loaded when they are used, so that each loads little."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

import sqlfl
from sqlfl.base.errors import Error, nearest

HOMES = {
    "docs": ("help", "print a page of the documentation"),
    "examples": ("help", "copy the examples into a folder"),
    "demo": ("help", "run parties, a coordinator and an analyst on this machine"),
    "owner": ("owning", "run statements of the owner of a database"),
    "verify": ("owning", "look whether kept messages hang together"),
    "keygen": ("keygen", "make keys, certificates and the secret of parties"),
    "provision": ("provision", "make a folder for each site of a study, and sign requests"),
    "coordinator": ("serving", "serve as the coordinator"),
    "party": ("serving", "serve a party's database to a coordinator"),
    "sql": ("asking", "run statements, at a coordinator or over databases here"),
    "status": ("asking", "show the parties and what is running"),
    "shell": ("shell", "enter statements at a prompt"),
    "gateway": ("gateway", "serve your statements to clients of Flight SQL: ADBC, JDBC, ODBC"),
}
"""Command -> its module, and its help text, which needs no import."""
INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


class Commands(click.Group):
    """Commands; an error of sqlfl is printed and ends the process with status 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in HOMES:
            close = nearest(cmd_name, HOMES)
            meant = f"; did you mean {close}?" if close else ""
            ctx.fail(f"there is no command {cmd_name!r}{meant}")
        module = import_module(f"sqlfl.cli.{HOMES[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in HOMES.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except Error as error:
            sys.exit(f"{type(error).__name__}: {error}")
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)


@click.group(cls=Commands, invoke_without_command=True)
@click.version_option(sqlfl.__version__, message="sqlfl %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train models in SQL over tables that several parties keep in their own databases."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends the process with status 2, and says why, where the arguments do not do."""
    try:
        cli.main(None if arguments is None else list(arguments), "sqlfl")
    except SystemExit as end:
        if end.code:
            raise
