"""`%sqlfl` and `%%sqlfl` for IPython and Jupyter; `%load_ext sqlfl` defines them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from sqlfl.base.errors import Error, nearest
from sqlfl.base.result import Result
from sqlfl.federation.session import Federation
from sqlfl.notebook.completion import KnownNames, completions
from sqlfl.planner.grammar.tokens import decoded

MAGIC = "sqlfl"
DEFAULT = "fed"
"""The name under which a federation is looked for where none is given."""

_OPTION = re.compile(r"\s*--(\w+)(?:\s*=\s*|\s+|$)(\w*)")
_WORD = re.compile(r"\s*([^\W\d]\w*)(?=\s|$)")
_ARROW = re.compile(r"\s*([^\W\d]\w*)\s*<<")


@dataclass(frozen=True)
class MagicCall:
    """What one use of the magic asks for."""

    text: str
    """The statements; its lines are those of the cell."""
    fed: str | None = None
    """The name of a federation, as given."""
    into: str | None = None
    """The variable that takes the last result."""


def register(shell: Any) -> None:
    """Define the magic in IPython's `shell` (an InteractiveShell)."""
    from IPython.core.magic import no_var_expand

    def sqlfl(line: str, cell: str | None = None) -> Result | None:
        """Run statements of sqlfl on a federation of this session.

        %sqlfl STATEMENT              one line
        %%sqlfl                       the cell: one statement, or several with ; between

        After %sqlfl or %%sqlfl may stand

        NAME or --fed NAME            the variable of the federation; without it `fed`, or the
                                      only federation that there is
        NAME << or --into NAME        puts the result into that variable and shows nothing

        Several statements run in order up to the first that fails; the result is that of the
        last. Nothing is filled in for {name} or $name: for that, call fed.sql(...).
        """
        try:
            request = read(line, cell, shell.user_ns)
            result = run(request, shell.user_ns)
        except Error as error:
            raise _shown_short(error, shell) from error.__cause__
        if request.into is None:
            return result
        shell.user_ns[request.into] = result
        return None

    # IPython would else put values of variables into {name} and $name: SQL takes none from outside
    shell.register_magic_function(no_var_expand(sqlfl), "line_cell", MAGIC)
    completer = getattr(shell, "Completer", None)
    if completer is not None:
        completer.custom_matchers.append(_matcher(shell))
    lexers = _lexers(shell)
    if lexers is not None:
        from prompt_toolkit.lexers import PygmentsLexer
        from pygments.lexers.sql import SqlLexer

        lexers[MAGIC] = PygmentsLexer(SqlLexer)


def _matcher(shell: Any) -> Any:
    """Return the matcher for IPython's completer that completes statements behind the magic."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    def matcher(context: Any) -> dict[str, Any]:
        lines = context.full_text.split("\n")
        at = sum(len(line) + 1 for line in lines[: context.cursor_line]) + context.cursor_position
        start, texts = completed(context.full_text, at, shell.user_ns)
        return {
            "completions": [SimpleCompletion(text=text, type="keyword") for text in texts],
            "matched_fragment": context.full_text[start:at],
            "suppress": bool(texts),
            "ordered": True,
        }

    return context_matcher(identifier=MAGIC)(matcher)


def completed(text: str, at: int, namespace: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Return the completions in a cell, as `completions` does; none outside the magic."""
    cell = _CELL.match(text)
    line = _LINE.match(text, text.rfind("\n", 0, at) + 1)
    start = at + 1 if cell is None else cell.end()
    name = None
    if cell is not None and start <= at:
        with suppress(Error):
            name = read(cell[1], "", namespace).fed
    elif line is not None and line.end() <= at:
        start = line.end()
        word = _WORD.match(text, start)
        if word is not None and isinstance(namespace.get(word[1]), Federation) and word.end() < at:
            name, start = word[1], word.end()
    else:
        return at, ()
    end = len(text) if cell is not None else len(text[:at]) + len(text[at:].partition("\n")[0])
    try:
        names = KnownNames.of(federation(name, namespace))
    except Error:
        names = KnownNames()
    begins, words = completions(text[start:end], at - start, names)
    return start + begins, words


_CELL = re.compile(rf"\s*%%{MAGIC}\b([^\n]*)\n")
_LINE = re.compile(rf"[ \t]*(?:\w+\s*=\s*)?%{MAGIC}[ \t]+")


def _lexers(shell: Any) -> dict[str, Any] | None:
    """Return the lexers that colour cells by their magic; None if the front end has none."""
    prompt = getattr(getattr(shell, "pt_app", None), "lexer", None)
    lexers = getattr(prompt, "magic_lexers", None)
    return lexers if isinstance(lexers, dict) else None


def unregister(shell: Any) -> None:
    (_lexers(shell) or {}).pop(MAGIC, None)
    matchers = getattr(getattr(shell, "Completer", None), "custom_matchers", [])
    matchers[:] = [m for m in matchers if getattr(m, "matcher_identifier", "") != MAGIC]
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop(MAGIC, None)


def read(line: str, cell: str | None, namespace: Mapping[str, Any]) -> MagicCall:
    """Return the call of %sqlfl or %%sqlfl with its cell. Raise Error for a wrong option."""
    given: dict[str, str] = {}
    while option := _OPTION.match(line):
        name, value = option.groups()
        known = [field.name for field in fields(MagicCall) if field.name != "text"]
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean --{close}?" if close else "the options are --fed, --into"
            raise Error(f"there is no option --{name}", hint=hint)
        if not value.isidentifier():
            raise Error(f"--{name} needs the name of a variable, got {value or 'nothing'}")
        given[name] = value
        line = line[option.end() :]
    word = _WORD.match(line)
    if word is not None and "fed" not in given:
        alone = cell is not None and not line[word.end() :].strip()
        arrow = line[word.end() :].lstrip().startswith("<<")
        if alone or (not arrow and isinstance(namespace.get(word[1]), Federation)):
            given["fed"] = word[1]
            line = line[word.end() :]
    text = decoded(line if cell is None else f"{line}\n{cell}")
    if "into" not in given and (arrow_of := _ARROW.match(text)):
        given["into"] = arrow_of[1]
        text = " " * arrow_of.end() + text[arrow_of.end() :]
    into = given.get("into")
    if into is not None and isinstance(namespace.get(into), Federation):
        raise Error(
            f"the result would replace the federation {into}", hint="choose another variable"
        )
    return MagicCall(text, **given)


def federation(name: str | None, namespace: Mapping[str, Any]) -> Federation:
    """The federation that is meant. Raise Error where there is none, or no one is."""
    federations = {
        key: value
        for key, value in namespace.items()
        if isinstance(value, Federation) and not key.startswith("_")
    }
    if name is not None:
        if isinstance(value := namespace.get(name), Federation):
            return value
        if name in namespace:
            said = f"{name} is no federation but a value of type {type(value).__name__}"
        else:
            said = f"there is no variable {name}, which would be a federation"
        known = f"the federations are: {', '.join(federations)}" if federations else _CONNECT
        raise Error(said, hint=known)
    if DEFAULT in federations:
        return federations[DEFAULT]
    if not federations:
        raise Error("there is no federation in this session", hint=_CONNECT)
    if len({id(value) for value in federations.values()}) > 1:
        names = sorted(federations)
        raise Error(
            f"there are several federations in this session: {', '.join(names)}",
            hint=f"name one: %%{MAGIC} {names[0]}",
        )
    return next(iter(federations.values()))


_CONNECT = "make one first: fed = sqlfl.connect(), then fed.attach(name, database) for each party"


def run(request: MagicCall, namespace: Mapping[str, Any]) -> Result:
    """Run the statements in order; the last one's result. The first error ends it."""
    return federation(request.fed, namespace).sql(request.text)


def _shown_short(error: Error, shell: Any) -> Error:
    """`error`, which IPython will show without its traceback, except after `%xmode Verbose`."""

    def render() -> list[str]:
        # Also where it is not shown: this is how `%debug` learns of the traceback.
        whole = shell.InteractiveTB.structured_traceback(type(error), error, error.__traceback__)
        verbose = shell.InteractiveTB.mode == "Verbose"
        return list(whole) if verbose else f"{type(error).__name__}: {error}".splitlines()

    error._render_traceback_ = render  # type: ignore[attr-defined]
    return error
