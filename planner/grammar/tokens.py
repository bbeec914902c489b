"""Text of statements to tokens of sqlglot's DuckDB dialect, and errors that mark them.

Text comes from files in any encoding, or is pasted from documents. Text in quotes or comments stays
unchanged. Elsewhere Unicode blanks become blanks, typographic quotes become quotes, and invisible
characters are removed. Ambiguous characters are refused with their place: an em dash may have been
`-` or `--`.
"""

from __future__ import annotations

import codecs
import os
import re
from typing import NoReturn

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import Error, ParseError
from sqlfl.planner.grammar.sql import Dialect
from sqlfl.planner.grammar.statements import Span, Word

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks; those of UTF-32 come first, because UTF-16's are a prefix of one."""
_SAVE = "save the file as UTF-8"

_SINGLE, _DOUBLE = "‘’‚‛", "“”„‟"
_BLANKS = "\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\u0085"
_INVISIBLE = "\u200b\u2060\ufeff\u00ad\u180e"
"""Characters of no width, which DuckDB takes for blanks or for parts of names: within a word
they are refused."""
_TURNING = "\u200c-\u200f\u202a-\u202e\u2061-\u2069"
"""Joiners and marks of writing direction: kept within names, removed elsewhere."""
_HYPHENS = "\u2010\u2011\u2212\ufe63\uff0d"
_DASHES = "\u2012-\u2015"
_WIDE = "\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1d\uff0a\uff0b\uff0f\uff1c\uff1e"
"""Punctuation of East Asian keyboards; each lies 0xFEE0 beyond its ASCII character."""
_TOKEN = re.compile(
    r"(?P<kept>--[^\n]*"
    r"|(?<!\w)[eE]'(?:[^'\\]|\\.|'')*'"
    r"|'(?:[^']|'')*'"
    r'|"(?:[^"]|"")*"'
    r"|`[^`]*`"
    r"|(?<!\w)\$(?P<tag>[^\W\d]\w*)?\$.*?\$(?(tag)(?P=tag))\$)"
    r"|(?P<comment>/\*)"
    rf"|(?P<single>[{_SINGLE}](?P<text>[^{_SINGLE}\n]*)[{_SINGLE}])"
    rf"|(?P<double>[{_DOUBLE}](?P<name>[^{_DOUBLE}\n]*)[{_DOUBLE}])"
    rf"|(?P<lone>[{_SINGLE}{_DOUBLE}])"
    r"|(?P<open>['\"`]|(?<!\w)\$(?:[^\W\d]\w*)?\$)"
    rf"|(?P<blank>[{_BLANKS}])"
    rf"|(?P<hyphen>[{_HYPHENS}])"
    rf"|(?P<dash>[{_DASHES}])"
    rf"|(?P<inside>(?<=\w)[{_INVISIBLE}]+(?=\w))"
    rf"|(?P<turning>(?<=\w)[{_TURNING}]+(?=\w))"
    rf"|(?P<unseen>[{_INVISIBLE}{_TURNING}]+)"
    rf"|(?P<wide>[{_WIDE}])"
    r"|(?P<nul>\x00)",
    re.DOTALL,
)
_EDGE = re.compile(r"/\*|\*/")


def decoded(given: object, label: str = "a statement") -> str:
    """Return the text of statements for the tokenizer. Raise ParseError, with its place, for bytes
    that are not UTF-8, UTF-16 or UTF-32, and for ambiguous characters. Raise Error for what is
    neither text nor bytes; `label` names it.
    """
    if not isinstance(given, str | bytes | bytearray):
        read = "path.read_bytes() gives" if isinstance(given, os.PathLike) else "give"
        raise Error(
            f"{label} must be text, got {type(given).__name__}",
            hint=f"{read} the text or the bytes of a file",
        )
    text = _of_bytes(bytes(given)) if isinstance(given, bytes | bytearray) else _of_text(given)
    if text.isascii() and "\0" not in text:
        return text
    return _cleaned(text)


def _of_bytes(data: bytes) -> str:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return _read(data[len(mark) :], encoding)
    if b"\0" in data[:64] and len(data) % 2 == 0:  # UTF-16 without its mark
        ends = data[: len(data) // 2 * 2]
        if not any(ends[:64:2]):
            return _read(data, "utf-16-be")
        if not any(ends[1:64:2]):
            return _read(data, "utf-16-le")
    return _read(data, "utf-8")


def _read(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        before = data[: error.start].decode(encoding, errors="replace")
        name = encoding[:-3].upper() if encoding.endswith("e") else "UTF-8"
        what = f"the text is not {name}"
        if encoding == "utf-8":
            what += f": byte 0x{data[error.start]:02x} is a letter in Latin-1 or Windows-1252"
        shown = before + data[error.start :].decode("latin-1" if encoding == "utf-8" else encoding,
                                                    errors="replace")  # fmt: skip
        raise ParseError(what, hint=_SAVE, sql=shown, span=(len(before), len(before) + 1)) from None


def _of_text(text: str) -> str:
    text = str.__str__(text)
    if text.isascii():
        return text
    start = next((n for n, c in enumerate(text) if "\ud800" <= c <= "\udfff"), None)
    if start is not None:
        try:
            data = text.encode("utf-8", errors="surrogateescape")
        except UnicodeEncodeError:
            _refuse(text, start, start + 1, "half a character stands here (a lone surrogate)",
                    "read the text anew, as UTF-8")  # fmt: skip
        return _of_bytes(data)
    if text.startswith(("ÿþ", "þÿ")) and "\0" in text:  # UTF-16, read as Latin-1
        try:
            return _of_bytes(text.encode("latin-1"))
        except UnicodeEncodeError:
            pass
    if text.startswith("ï»¿"):  # the mark of UTF-8, read as Latin-1
        if not text[3:].isascii():
            _refuse(text, 0, 3, "the text was written in UTF-8, and read as Latin-1", "read it "
                    "as UTF-8: open(path, encoding='utf-8')")  # fmt: skip
        return text[3:]
    return text.removeprefix("\ufeff")


def _refuse(text: str, start: int, end: int, message: str, hint: str) -> NoReturn:
    raise ParseError(message, hint=hint, sql=text, span=(start, end))


def _cleaned(text: str) -> str:
    parts: list[str] = []
    at = 0
    while (match := _TOKEN.search(text, at)) is not None:
        parts.append(text[at : match.start()])
        kind = next(name for name in _GROUPS if match[name] is not None)
        if kind == "open":  # not closed: the tokenizer says so
            at = match.start()
            break
        at = match.end()
        if kind == "comment":
            at = _end_of_comment(text, at)
            parts.append(text[match.start() : at])
        else:
            parts.append(_meant(text, match, kind))
    parts.append(text[at:])
    return "".join(parts)


_GROUPS = (
    *("kept", "comment", "single", "double", "lone", "open", "blank", "hyphen", "dash", "inside"),
    *("turning", "unseen", "wide", "nul"),
)


def _meant(text: str, match: re.Match[str], kind: str) -> str:
    written = match[0]
    if kind in ("kept", "turning"):
        return written
    if kind == "single":
        return "'" + match["text"].replace("''", "'").replace("'", "''") + "'"
    if kind == "double":
        return '"' + match["name"].replace('""', '"').replace('"', '""') + '"'
    if kind in ("blank", "hyphen"):
        return " " if kind == "blank" else "-"
    if kind == "wide":
        return chr(ord(written) - 0xFEE0)
    if kind == "unseen":
        return ""
    code = f"U+{ord(written[0]):04X}"
    message, hint = {
        "lone": (
            f"the quote {written} ({code}) has no partner in its line",
            "a text stands in straight single quotes, 'text', and a name in double ones",
        ),
        "dash": (
            f"{written} ({code}) is a dash of texts",
            "write - for a minus, and -- before a comment; a name that has it stands in double "
            "quotes",
        ),
        "inside": (
            f"an invisible character ({code}) stands within a word",
            "delete it, or write a blank where two words are meant",
        ),
        "nul": (
            "a NUL character stands in the text",
            "read the file in its encoding, as open(path, encoding='utf-16') does",
        ),
    }[kind]
    _refuse(text, match.start(), match.end(), message, hint)


def unclosed(text: str) -> tuple[int, str] | None:
    """Return place and kind of an unclosed quote or comment; None if all are closed."""
    at = 0
    while (match := _TOKEN.search(text, at)) is not None:
        at = match.end()
        if match["open"] is not None:
            kind = "the quoted name" if match["open"] in ('"', "`") else "the string"
            return match.start(), kind
        if match["comment"] is not None:
            at = _end_of_comment(text, at)
            if at == len(text) and not text.endswith("*/"):
                return match.start(), "the comment"
    return None


def _end_of_comment(text: str, at: int) -> int:
    """Return the end of the comment whose text begins at `at`; comments nest."""
    depth = 1
    while depth:
        edge = _EDGE.search(text, at)
        if edge is None:
            return len(text)
        depth += 1 if edge[0] == "/*" else -1
        at = edge.end()
    return at


BRACES = 'in Python, a text with {names} to fill in starts with f: f"..."'
"""The hint for braces that SQL does not allow."""
QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)


def tokenize(sql: str) -> list[Token]:
    try:
        tokens = Dialect().tokenize(sql)
    except TokenError as error:
        open_ = (max(0, len(sql) - 1), "a string, a quoted name or a comment")
        start, what = unclosed(sql) or open_
        message = f"{what} is not closed"
        raise ParseError(message, sql=sql, span=(start, start + 1)) from error
    for token in tokens:
        if token.token_type is TokenType.IDENTIFIER and not token.text:
            raise ParseError(
                "the quoted name is empty",
                hint="write a name between the quotes; a text stands in single ones",
                sql=sql,
                span=(token.start, token.end + 1),
            )
    return tokens


class Tokens:
    """The tokens of a text, and a place among them."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens = tokenize(sql)
        self.at = 0
        while self.tokens and self.tokens[-1].token_type is TokenType.SEMICOLON:
            self.tokens.pop()

    # -- tokens ------------------------------------------------------------------------------------

    @property
    def token(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def word(self, offset: int = 0) -> str:
        """The token as a keyword in upper case; empty for strings, quoted names and the end."""
        place = self.at + offset
        if place >= len(self.tokens) or self.tokens[place].token_type in QUOTED:
            return ""
        return self.tokens[place].text.upper()

    def span(self, token: Token | None = None) -> Span:
        token = token or self.token
        if token is None:
            end = len(self.sql.rstrip().rstrip(";").rstrip())
            return end, end + 1
        return token.start, token.end + 1

    def got(self) -> str:
        if self.token is None:
            return "the end of the statement"
        start, end = self.span()
        return self.sql[start:end]

    def fail(
        self, message: str, *, hint: str | None = None, span: Span | None = None
    ) -> ParseError:
        return ParseError(message, hint=hint, sql=self.sql, span=span or self.span())

    def accept(self, *words: str) -> bool:
        if all(self.word(i) == word for i, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, word: str, where: str, hint: str | None = None) -> None:
        if not self.accept(word):
            raise self.fail(f"expected {word} {where}, got {self.got()}", hint=hint)

    def name(self, what: str) -> Word:
        token = self.token
        if token is None or not self.is_name(token):
            hint = BRACES if self.got() in ("{", "}") else None
            if token is not None and token.token_type is TokenType.STRING:
                quoted = token.text.replace('"', '""')
                hint = f'names stand without quotes, or in double quotes: "{quoted}"'
            raise self.fail(f"expected {what}, got {self.got()}", hint=hint)
        self.at += 1
        return Word(token.text, self.span(token))

    @staticmethod
    def is_name(token: Token) -> bool:
        if token.token_type is TokenType.IDENTIFIER:
            return True
        if token.token_type in (TokenType.STRING, TokenType.NUMBER):
            return False
        return token.text.replace("_", "a").isalnum() and not token.text[0].isdigit()


_KINDS = {
    "(": TokenType.L_PAREN,
    ")": TokenType.R_PAREN,
    ",": TokenType.COMMA,
    "FROM": TokenType.FROM,
}


def made(word: str, like: Token) -> Token:
    """Make a token for an implied word, at the place of the token that implies it."""
    return at_place(_KINDS.get(word, TokenType.VAR), word, like, like)


def at_place(kind: TokenType, text: str, first: Token, last: Token) -> Token:
    """Make a token in place of those from `first` to `last`."""
    return Token(kind, text, first.line, first.col, first.start, last.end)
