"""Errors of sqlfl: one base, one class for each kind of fault; and its warning."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sqlfl.base import sanitize

EXCERPT = 160
"""Maximum characters of a line that an error shows."""


class Error(Exception):
    """Base of every error that sqlfl raises on purpose.

    `message` says what was wrong, where, and what was got; `hint` says what to do instead. Both are
    safe to print, even with quoted text of others.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = self._printed(message)
        self.hint = None if hint is None else self._printed(hint)
        super().__init__(self._text())

    @staticmethod
    def _printed(text: str) -> str:
        return sanitize.lines(sanitize.shortened(text))

    def _text(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def say_where(self, words: str) -> None:
        """Add to the message the place where it happened."""
        self.message = self._printed(f"{self.message} ({words})")
        self.args = (self._text(),)

    def advise(self, words: str) -> None:
        """Add a sentence to the hint."""
        self.hint = self._printed(words if self.hint is None else f"{self.hint}; {words}")
        self.args = (self._text(),)


class Warning(UserWarning):
    """Warning that the result may not be what the user meant; its text says why. Python's
    `warnings` filters it.
    """


class StatementError(Error):
    """Error at a place of a statement: `line` and `column` count from 1.

    `span` is the half-open range of characters of `sql` that the excerpt marks. Names of tables and
    columns, which may hold line breaks, stay on one line.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        sql: str | None = None,
        span: tuple[int, int] | None = None,
    ) -> None:
        self.line: int | None = None
        self.column: int | None = None
        self._place(sql, span)
        super().__init__(message, hint=hint)

    def _place(self, sql: str | None, span: tuple[int, int] | None) -> None:
        self.sql = sql
        self.span = span
        if sql is not None and span is not None:
            start = min(max(span[0], 0), len(sql))
            self.line = sql.count("\n", 0, start) + 1
            self.column = start - (sql.rfind("\n", 0, start) + 1) + 1

    def move(self, sql: str, span: tuple[int, int] | None) -> None:
        """Show the place in the text that the statement was taken from."""
        self._place(sql, span)
        self.args = (self._text(),)

    @staticmethod
    def _printed(text: str) -> str:
        return sanitize.line(sanitize.shortened(text))

    def _text(self) -> str:
        if self.sql is None or self.span is None or self.line is None or self.column is None:
            return super()._text()
        start = self.span[0] - self.column + 1
        end = self.sql.find("\n", start)
        text = sanitize.lines(self.sql[start:] if end < 0 else self.sql[start:end])
        width = max(1, min(self.span[1], start + len(text)) - self.span[0])
        offset = self.column - 1
        if len(text) > EXCERPT:  # a window of the line, with some text before the mark
            left = max(0, min(offset - EXCERPT // 3, len(text) - EXCERPT))
            text = ("…" if left else "") + text[left : left + EXCERPT] + "…"
            offset += (1 if left else 0) - left
            width = min(width, len(text) - offset)
        indent = "".join("\t" if c == "\t" else " " for c in text[:offset])
        lines = [
            f"{self.message}",
            f"  at line {self.line}, column {self.column}:",
            f"    {text}",
            f"    {indent}{'^' * width}",
        ]
        if self.hint is not None:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class ParseError(StatementError):
    """The text is not a statement of sqlfl's grammar."""


class PlanError(StatementError):
    """The statement is well formed, and cannot be planned over these parties."""


class OptionError(StatementError):
    """An option is unknown, of the wrong type, out of range, or does not apply."""


class PolicyError(Error):
    """A party's policy refuses a request."""


class ApprovalError(PolicyError):
    """A run waits for the owner of a party's tables to approve it."""


class PrivacyError(StatementError):
    """A privacy demand cannot be met. It has a place if that is known before a run."""


class PartyError(Error):
    """A party's database failed. `party` names it, and `at` the failing part of its fragments."""

    def __init__(self, party: str, message: str, *, hint: str | None = None, at: str = "") -> None:
        self.party = party
        self.at = at
        super().__init__(f"party {party}: {message}", hint=hint)


class ReplyError(PartyError):
    """A party's reply does not fit the request."""


class LostError(PartyError):
    """No answer came from a party. Nobody knows whether it has served the request."""


class ForgottenError(Error):
    """A party does not know the run of a request: its process was restarted since the run began.
    Users see LostError.
    """


class WireError(Error):
    """Bytes from across a border are no message in its declared form. The reader names the sender;
    this class never reaches a user.
    """


class EvaluationError(Error):
    """A fragment fails on the party's data; `at` says which part of it. Users see PartyError."""

    def __init__(self, message: str, at: str) -> None:
        self.at = at
        super().__init__(message)


class ModelError(Error):
    """A model is missing, exists already, or does not fit the query or the data."""


class InternalError(Error):
    """A fault of sqlfl itself; please report it."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` most likely means, ignoring case; None without one."""
    folded = {item.lower(): item for item in known}
    cutoff = 0.5 if len(name) == 2 else 0.6  # of l3, l2 is a near name
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[close[0]] if close else None
