"""Commands for statements at a remote coordinator, and for its status."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import sqlfl
from sqlfl.base.errors import Error
from sqlfl.base.errors import Warning as Remark
from sqlfl.base.result import Result
from sqlfl.cli import formats
from sqlfl.cli.help import WORD, help_on
from sqlfl.planner.grammar.tokens import decoded
from sqlfl.service.federation import SETTINGS, RemoteFederation
from sqlfl.service.settings import AnalystSettings, check_location, read_settings

if TYPE_CHECKING:
    from sqlfl.federation.session import Federation

_DATABASE = re.compile(r"[^\W\d]\w*=")
"""Name that no statement begins with."""
ENDED = "ended at once; SHOW MODELS says what is kept"
"""After the second Ctrl-C."""

F = TypeVar("F", bound=Callable[..., Any])


def connecting(command: F) -> F:
    """The options by which `connected` finds a coordinator."""
    for option in (
        click.option("--insecure", is_flag=True, help="Without TLS, on 127.0.0.1 alone."),
        click.option("--analyst", help="Your name, where there is no certificate."),
        click.option("--study", help="By default the one of the settings."),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            envvar=SETTINGS,
            help=f"Your settings, a TOML file; by default what {SETTINGS} names.",
        ),
        click.option("--to", help="The coordinator's place, by default the one of the settings."),
    ):
        command = option(command)
    return command


def opening(command: F) -> F:
    """The options by which `opened` finds a federation: at a coordinator, or of databases here."""
    kept = click.option(
        "--models",
        type=click.Path(path_type=Path),
        help="With databases: the file that keeps models and their history; made if missing.",
    )
    return connecting(kept(command))


DATABASES = click.argument("databases", nargs=-1, metavar="[PARTY=DATABASE]...")


@contextmanager
def opened(
    databases: Sequence[str], models: Path | None, **given: Any
) -> Iterator[Federation | RemoteFederation]:
    """Open a federation of these databases, each PARTY=FILE; without any, connect to the
    coordinator.

    A party named several times has several databases. Raise Error if a file cannot be attached,
    and if both databases and a coordinator are given.
    """
    if not databases and models is None:
        with connected(**given) as remote:
            yield remote
        return
    wrong = [name for name in ("to", "study", "insecure") if given[name]]
    if wrong:
        raise Error(
            f"--{wrong[0]} is of a coordinator, and databases of this machine are given",
            hint="leave one of them out",
        )
    with sqlfl.connect(models, analyst=given["analyst"]) as fed:
        for party, files in _parties(databases).items():
            fed.attach(party, files)
        yield fed


def _parties(databases: Sequence[str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for text in databases:
        name, equals, file = text.partition("=")
        if not (name and equals and file):
            raise click.UsageError(f"a database is PARTY=FILE, got {text!r:.80}")
        if not Path(file).exists():
            raise Error(f"there is no file {file}", hint="airline=airline.duckdb names one")
        files.setdefault(name, []).append(file)
    return files


@contextmanager
def connected(
    to: str | None,
    config: Path | None,
    study: str | None,
    analyst: str | None,
    insecure: bool,
) -> Iterator[RemoteFederation]:
    """Connect to the coordinator. Raise Error if the settings do not lead to one."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors carry the same information
    settings = AnalystSettings() if config is None else read_settings(AnalystSettings, config)
    place = to or settings.coordinator
    if place is None:
        raise Error(
            "no coordinator is named",
            hint=f"`coordinator` in your settings, which --config or the variable {SETTINGS} "
            "names; or --to grpc+tls://host:8815; databases of this machine need none: "
            "airline=airline.duckdb",
        )
    check_location(place, insecure=insecure)
    if insecure and not (analyst or settings.name):
        raise Error("nobody is said to ask", hint="--analyst NAME, or `name` in the settings")
    if config is None and not insecure:
        raise Error(
            f"no settings are named, and {place} asks for a certificate",
            hint=f"--config alice.toml, or the variable {SETTINGS}",
        )
    with RemoteFederation(place, config=config, study=study, analyst=analyst) as fed:
        yield fed


@click.command()
@click.argument("arguments", nargs=-1, metavar="[STATEMENT] [PARTY=DATABASE]...")
@click.option("--command", "-c", help="The statement, instead of the argument.")
@click.option(
    "--file", "-f", type=click.Path(path_type=Path), help="The .sql file of the statements."
)
@opening
@click.option(
    "--parameter", "-p", "parameters", multiple=True, metavar="NAME=VALUE", help="Of $NAME."
)
@formats.option
def sql(
    arguments: tuple[str, ...],
    command: str | None,
    file: Path | None,
    models: Path | None,
    parameters: tuple[str, ...],
    form: str,
    **given: Any,
) -> None:
    """Run a statement, or several with ; between; the last one's result is printed.

    Without one, they come from standard input. HELP, or HELP TRAIN, says how they are written. They
    run at a coordinator, or over databases of this machine: airline=airline.duckdb.

    Ctrl-C ends a training at the end of its round, and the model is kept; twice, at once. A
    parameter's value is a number, true, false or null where it is written like one, and else text,
    which may stand in double quotes.
    """
    with _answering(form) as remarks:
        text, databases = _written(arguments, command, file)
        if not text.strip():
            raise Error("there is no statement", hint='sqlfl sql "SHOW PARTIES"')
        help_request = WORD.fullmatch(text)
        if help_request:
            click.echo(help_on(help_request["of"]))
            return
        values = values_of(parameters)
        with opened(databases, models, **given) as fed:
            try:
                result = fed.sql(text, values or None)
            except KeyboardInterrupt:
                click.echo(ENDED, err=True)
                raise
        click.echo(formats.shown(result, form, remarks))
        if form == formats.CSV:
            for note in result.notes:
                click.echo(note, err=True)


def _written(
    arguments: tuple[str, ...], command: str | None, file: Path | None
) -> tuple[str, tuple[str, ...]]:
    """The statements, and the databases among the arguments."""
    statements = [text for text in arguments if not _DATABASE.match(text)]
    databases = tuple(text for text in arguments if _DATABASE.match(text))
    places = [command is not None, file is not None, bool(statements)]
    if len(statements) > 1 or sum(places) > 1:
        raise click.UsageError(
            "statements come from one argument, from -c, from -f, or from standard input"
        )
    if file is not None:
        return read_file(file), databases
    if command is not None:
        return decoded(command), databases
    return decoded(statements[0] if statements else sys.stdin.buffer.read()), databases


def read_file(file: Path) -> str:
    """The text of a .sql file. Raise Error where it cannot be read."""
    try:
        return decoded(file.read_bytes())
    except OSError as error:
        raise Error(f"cannot read {file}: {error.strerror}") from error


@click.command()
@connecting
@click.option(
    "--format", "form", type=click.Choice((formats.TABLE, formats.JSON)), default=formats.TABLE
)
def status(form: str, **given: Any) -> None:
    """The parties of a study, and your statements that are running there."""
    with _answering(form), connected(**given) as fed:
        parties, statements = fed.status(), fed.statements().arrow()
        ended = statements.column("ended")
        running = Result(statements.filter(ended.is_null()).drop_columns(["ended", "error"]))
        if form == formats.JSON:
            answer = {"parties": _objects(parties), "running": _objects(running)}
            click.echo(json.dumps(answer, allow_nan=False))
            return
        click.echo(str(parties))
        click.echo(str(running) if len(running) else "nothing of yours is running")


def _objects(result: Result) -> list[dict[str, Any]]:
    return [
        {name: formats.plain(value) for name, value in row.items()}
        for row in result.arrow().to_pylist()
    ]


@contextmanager
def _answering(form: str) -> Iterator[list[str]]:
    """Collect warnings of the block. Print them on standard error if the answer does not contain
    them. Errors are JSON if the answer is.
    """
    remarks: list[str] = []

    def remarked(message: Warning | str, *_: Any, **__: Any) -> None:
        remarks.append(str(message))
        if form != formats.JSON:
            click.echo(f"Warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", Remark)
        warnings.showwarning = remarked
        try:
            yield remarks
        except Error as error:
            if form != formats.JSON:
                raise
            click.echo(formats.error_told(error))
            sys.exit(1)


def values_of(given: tuple[str, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"a parameter is NAME=VALUE, got {text!r}")
        if name in values:
            raise click.UsageError(f"the parameter {name} is given twice")
        values[name] = value_of(value)
    return values


def value_of(text: str) -> Any:
    """Read a number, a truth value, NULL or a text from its spelling."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if isinstance(value, (list, dict)) else value
