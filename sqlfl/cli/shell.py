"""`sqlfl shell`: statements one after the other, at a prompt."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click
from sqlglot.tokenizer_core import TokenType

from sqlfl.base.errors import Error
from sqlfl.base.errors import Warning as Remark
from sqlfl.cli.asking import DATABASES, ENDED, opened, opening, read_file, value_of
from sqlfl.cli.help import WORD, help_on
from sqlfl.notebook.completion import KnownNames, completions
from sqlfl.planner.grammar.parameters import places
from sqlfl.planner.grammar.tokens import tokenize

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document

    from sqlfl.federation.session import Federation
    from sqlfl.service.federation import RemoteFederation

HELP = """\
A statement ends with ; and may have several lines.
TAB completes; the arrow keys go through what was entered before.
Ctrl-C ends a training at the end of its round, and the model is kept; twice, at once. At the
prompt it drops what is written.
\\d  the tables; \\d party.table: its columns; \\dm: the models
\\h  all statements; \\h TRAIN, as HELP TRAIN: how one is written; \\h epochs: an option;
    \\h admm: an algorithm's options
\\i file.sql  runs the statements of a file
\\set name value  gives $name in statements from now on; \\set: all that are given
\\?  this help          \\q  leave, as does Ctrl-D"""
WORDS = {"exit": "\\q", "quit": "\\q", "help": "\\?"}
"""Names of commands in other shells; no statement begins with them."""
Opened: TypeAlias = "Federation | RemoteFederation"
FIRST, FURTHER = "sqlfl> ", "  ...> "


@click.command()
@DATABASES
@opening
def shell(databases: tuple[str, ...], models: Path | None, **given: Any) -> None:
    """Enter statements at a prompt, with completion and history.

    They run at a coordinator, or over databases of this machine: airline=airline.duckdb.
    """
    try:
        import prompt_toolkit  # noqa: F401
    except ModuleNotFoundError as error:
        raise Error(
            "sqlfl shell needs prompt_toolkit", hint="pip install 'sqlfl[shell]'"
        ) from error
    if not all(os.isatty(number) for number in (0, 1)):
        raise Error("sqlfl shell needs a terminal", hint="sqlfl sql reads from standard input")
    with opened(databases, models, **given) as fed:
        click.echo(f"{fed!r}; \\? helps")
        loop(fed, session(fed, history_file()))


def loop(fed: Opened, prompts: PromptSession[str]) -> None:
    r"""Read and run input until \q or its end."""
    values: dict[str, Any] = {}
    while True:
        try:
            text = prompts.prompt(FIRST).strip()
            text = WORDS.get(text.lower().rstrip("; \n"), text)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text == "\\q":
            return
        if not text.strip("; \n"):
            continue
        with _answering():
            if text.startswith("\\"):
                _command(fed, text, values)
            elif asked := WORD.fullmatch(text):
                click.echo(help_on(asked["of"]))
            else:
                _run(fed, text, values)
        cast("_Completer", prompts.completer).forget()


def _command(fed: Opened, text: str, values: dict[str, Any]) -> None:
    """A command, which begins with a backslash."""
    name, _, rest = text.partition(" ")
    rest = rest.strip().rstrip(";")
    match name:
        case "\\?":
            click.echo(HELP)
        case "\\h":
            click.echo(help_on(rest))
        case "\\d":
            _run(fed, f"DESCRIBE {rest}" if rest else "SHOW TABLES", {})
        case "\\dm":
            _run(fed, "SHOW MODELS", {})
        case "\\i":
            _run(fed, read_file(Path(rest)), values)
        case "\\set" if rest:
            variable, _, value = rest.partition(" ")
            if not variable.isidentifier() or not value.strip():
                raise Error("a variable is set by a name and a value", hint="\\set least 0.5")
            values[variable] = value_of(value.strip())
        case "\\set":
            click.echo(
                "\n".join(f"${shown} = {value!r}" for shown, value in values.items()) or "none"
            )
        case _:
            raise Error(f"there is no {name:.20}", hint="\\? lists the commands")


@contextmanager
def _answering() -> Iterator[None]:
    """Errors and warnings of the block are printed, and the prompt goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", Remark)
        warnings.showwarning = lambda message, *_, **__: click.echo(f"Warning: {message}")
        try:
            yield
        except Error as error:
            click.echo(f"{type(error).__name__}: {error}")
        except KeyboardInterrupt:
            click.echo(ENDED)


def _run(fed: Opened, text: str, values: Mapping[str, Any]) -> None:
    """Run statements, with the variables that they name."""
    named = {place.name for place in places(text)}
    used = {name: value for name, value in values.items() if name in named}
    click.echo(str(fed.sql(text, used or None)))


def ends(text: str) -> bool:
    """Return whether the input is complete: a statement with `;` at its end, a command,
    or empty.
    """
    first = text.strip()
    if not first or first.startswith("\\") or first.lower() in WORDS:
        return True
    try:
        tokens = tokenize(text)
    except Error:  # an unclosed quote or comment
        return False
    return not tokens or tokens[-1].token_type is TokenType.SEMICOLON


def history_file() -> Path:
    """A file that its owner alone can read, as statements may hold values."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(home) / "sqlfl" / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        path.chmod(0o600)
    except OSError as error:
        raise Error(f"no history can be kept in {path}: {error.strerror}") from error
    return path


def session(fed: Opened, history: Path, **terminal: Any) -> PromptSession[str]:
    """terminal : `input` and `output`, where these are not the process's."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.filters import is_done
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter", filter=~is_done)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if ends(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return PromptSession(
        history=FileHistory(str(history)),
        completer=_completer(fed),
        complete_in_thread=True,
        complete_while_typing=False,
        key_bindings=keys,
        multiline=True,
        prompt_continuation=FURTHER,
        **terminal,
    )


class _Completer:
    """Names are asked of the coordinator when they are first needed, and after each statement."""

    def __init__(self, fed: Opened) -> None:
        self._fed = fed
        self._names: KnownNames | None = None

    def forget(self) -> None:
        self._names = None

    def found(self, text: str, at: int) -> tuple[int, tuple[str, ...]]:
        names = self._names
        if names is None:
            names = self._names = KnownNames.of(cast("Federation", self._fed))
        return completions(text, at, names)


def _completer(fed: Opened) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Own(_Completer, Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            at = document.cursor_position
            try:
                start, words = self.found(document.text, at)
            except Error:  # the coordinator is away
                return
            for word in words:
                yield Completion(word, start_position=start - at)

    return Own(fed)
