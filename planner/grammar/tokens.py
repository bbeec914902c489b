"""Tokens of a statement on sqlglot's DuckDB dialect: reading them, and errors that mark them."""

from __future__ import annotations

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import ParseError
from sqlfl.planner.grammar.decoding import unclosed
from sqlfl.planner.grammar.sql import Dialect
from sqlfl.planner.grammar.statements import Span, Word

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
