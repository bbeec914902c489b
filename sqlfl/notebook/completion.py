"""Completion of a statement that is being written: words, options, tables, columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlglot.tokenizer_core import Token, TokenType

from sqlfl.base.errors import Error
from sqlfl.contract.schema import folded
from sqlfl.contract.transforms import COLUMN, FUNCTIONS
from sqlfl.federation.statements_api import StatementsApi
from sqlfl.models.kinds import KINDS
from sqlfl.options.diagnostics import ALL, Check, Export
from sqlfl.options.entries import entries_of
from sqlfl.options.resolve import privacy_options
from sqlfl.options.training import SCORING, with_options
from sqlfl.options.tuning import TUNING
from sqlfl.planner.grammar.dialect import STATEMENTS
from sqlfl.planner.grammar.statements import ANALYZE, REHEARSED, leading
from sqlfl.planner.grammar.tokens import tokenize

_TRAIN = ("USING", "TARGET", "WEIGHT", "OFFSET", "EXPOSURE", "TRANSFORM", "WITH", "PRIVACY", "FROM")
_CLAUSES: Mapping[str, tuple[str, ...]] = {
    "TRAIN": _TRAIN,
    "TUNE": tuple(word for word in _TRAIN if word != "PRIVACY"),
    "CREATE": ("TRANSFORM", "OPTIONS", "AS"),
    "EVALUATE": ("WITH", "PRIVACY", "FROM"),
    "PREDICT": ("ID", "WITH", "INTO", "FROM"),
    "CHECK": ("USING", "TARGET", "WITH", "FROM"),
    "EXPORT": ("TO", "WITH"),
    "IMPORT": ("FROM",),
    "COMMENT": ("IS",),
    **{look.upper(): ("AT", "WITH", "FROM") for look in ALL},
}
"""Clauses after the name of a model, in this order."""
_MADE = ("TRAIN", "TUNE", "CREATE", "IMPORT")
"""Statements that make a model, whose name is new."""
_ALSO_MADE = ("JOIN", "STUDY")
_OF = ("HISTORY", "FEATURES", "WEIGHTS", *(look.upper() for look in ALL))
_QUERY = ("SELECT", "FROM", "JOIN", "ON", "USING", "WHERE", "AND", "GROUP BY", "UNION ALL", "AS")
_SOURCES = ("FROM", "JOIN", "TABLE")
_LAST = re.compile(r'(?:"[^"]*"\.|[^\W\d]\w*\.)*(?:[^\W\d]\w*)?$')


@dataclass(frozen=True)
class KnownNames:
    """Names of models, tables and columns that exist."""

    models: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of each table, `party.table`, those that it has."""

    @classmethod
    def of(cls, fed: StatementsApi) -> KnownNames:
        """Return the names of models, and of the columns that the parties report; no columns if one
        fails."""
        try:
            rows = fed.tables().arrow().to_pylist()
        except Error:
            rows = []
        columns: dict[str, tuple[str, ...]] = {}
        for row in rows:
            name = f"{row['party']}.{row['table']}"
            columns[name] = (*columns.get(name, ()), row["column"])
        return cls(fed.models, columns)


def completions(text: str, at: int, names: KnownNames) -> tuple[int, tuple[str, ...]]:
    """Return the start of the word that ends at place `at` of the text, and its completions.

    Likelier completions come first. There are none within a string or a comment.
    """
    match = _LAST.search(text[:at])
    start = at if match is None else match.start()
    word = text[start:at]
    try:
        before = tokenize(text[:start])
    except Error:
        return start, ()
    if re.search(r"--[^\n]*$", text[:start]):
        return start, ()
    ends = [n for n, token in enumerate(before) if token.token_type is TokenType.SEMICOLON]
    statement = before[ends[-1] + 1 if ends else 0 :]
    path, _, last = word.rpartition(".")
    following = text[at:].split(";")[0]
    written = f"{text[statement[0].start : start] if statement else ''} {following}"
    likely = _within(path, names, written) if path else _likely(statement, names, written)
    close = [name for name in dict.fromkeys(likely) if folded(name).startswith(folded(last))]
    return start + len(word) - len(last), tuple(n for n in close if folded(n) != folded(last))


def _likely(statement: list[Token], names: KnownNames, written: str) -> Iterable[str]:
    words = [_word(token) for token in statement]
    while start := leading(words):
        explained, words = words[:start], words[start:]
        if not words and ANALYZE in explained:
            return REHEARSED
        if not words:
            others = ("CREATE", "EXPORT", "IMPORT")
            planned = (w for w in STATEMENTS if w in _CLAUSES and w not in others)
            return [*planned, *([ANALYZE] if start == 1 else [])]
    if not words:
        return STATEMENTS
    verb, last = words[0], words[-1]
    opened = _opened(words)
    if opened:
        return _inside(words, opened, names, written)
    if words == [verb] and verb != "CHECK":
        return _objects(verb)
    if last in ("OF", "REPLACE") or words == ["COMMENT", "ON"]:
        return ("MODEL", *(_ALSO_MADE if verb == "CREATE" else ()))
    if last == "MODEL":
        return ("IF NOT EXISTS",) if verb in _MADE[:3] else names.models
    if last == "USING":
        return KINDS
    if last in ("TARGET", "WEIGHT", "OFFSET", "EXPOSURE"):
        return _columns(names, written)
    if last in ("WITH", "PRIVACY", "FROM", "ID", "TRANSFORM", "OPTIONS", "INTO", "TO", "IS", "AS"):
        return tuple(_parties(names)) if last == "INTO" else ()
    clauses = _CLAUSES.get(verb, ())
    done = max((clauses.index(w) for w in _outside(words) if w in clauses), default=-1)
    return clauses[done + 1 :]


def _objects(verb: str) -> tuple[str, ...]:
    """Return the words that may follow a verb."""
    if verb == "SHOW":
        return "MODELS", "JOINS", "STUDIES", "TABLES", "PARTIES"
    if verb == "USE":
        return "STUDY", "NO STUDY"
    if verb in _OF:
        return ("OF",)
    others = {"CREATE": _ALSO_MADE, "DROP": ("JOIN",)}.get(verb, ())
    return ("MODEL", *(("OR REPLACE MODEL",) if verb in _MADE else ()), *others)


def _inside(words: list[str], opened: list[int], names: KnownNames, written: str) -> Iterable[str]:
    """Return the words within parentheses, the first of which is at `opened[0]`."""
    verb, clause = words[0], words[opened[0] - 1]
    begins = words[-1] in ("(", ",")
    if clause in ("WITH", "PRIVACY", "OPTIONS") and len(opened) == 1:
        return _options(verb, clause) if begins else ()
    if clause == "TRANSFORM" and len(opened) == 1 and begins:
        return (*(f for f in FUNCTIONS if f != COLUMN), *_columns(names, written))
    if clause == "TRANSFORM":
        return _columns(names, written)
    if words[-1] in _SOURCES or (words[-1] == "," and _latest(words, _QUERY) in _SOURCES):
        return (*names.columns, *_parties(names))
    if begins and not _latest(words[opened[0] :], _QUERY):
        return ("SELECT", "FROM") if clause == "FROM" else _columns(names, written)
    return (*_columns(names, written), *_aliases(written), *_QUERY)


def _options(verb: str, clause: str) -> tuple[str, ...]:
    if clause == "PRIVACY":
        return tuple(privacy_options().entries)
    entries = {**ALL, "check": Check, "export": Export}.get(verb.lower())
    if entries is not None:
        return tuple(entry.name for entry in entries_of(entries))
    if verb in ("EVALUATE", "PREDICT"):
        return tuple(SCORING)
    return (*(TUNING if verb == "TUNE" else ()), *with_options().entries)


# -- what is written ------------------------------------------------------------------------------


def _word(token: Token) -> str:
    """Return the word in upper case; a quoted name is no word."""
    quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
    return token.text if quoted else token.text.upper()


def _opened(words: list[str]) -> list[int]:
    """Return the places of the parentheses and brackets that are not closed."""
    places: list[int] = []
    for place, word in enumerate(words):
        if word in ("(", "[", "{"):
            places.append(place)
        elif word in (")", "]", "}") and places:
            places.pop()
    return places


def _outside(words: list[str]) -> list[str]:
    """Return the words that stand in no parentheses."""
    outer, depth = [], 0
    for word in words:
        depth -= word in (")", "]", "}")
        if not depth:
            outer.append(word)
        depth += word in ("(", "[", "{")
    return outer


def _latest(words: list[str], among: Iterable[str]) -> str:
    keywords = {part for word in among for part in word.split()} - {"AS", "BY", "ALL"}
    return next((word for word in reversed(words) if word in keywords), "")


_TABLE = re.compile(r"\b(?:FROM|JOIN|,)\s*((?:\w+\.)+\w+)(?:\s+(?:AS\s+)?(\w+))?", re.IGNORECASE)


def _mentioned(names: KnownNames, written: str) -> dict[str, str]:
    """Return the tables of the statement, by their names in it."""
    by_name = {folded(name): name for name in names.columns}
    tables: dict[str, str] = {}
    for name, alias in _TABLE.findall(written):
        table = by_name.get(folded(name))
        if table is not None:
            called = alias if alias and alias.upper() not in _CONTINUES else name.rpartition(".")[2]
            tables[folded(called)] = table
    return tables


_CONTINUES = ("ON", "USING", "WHERE", "JOIN", "LEFT", "RIGHT", "INNER", "CROSS", "GROUP", "UNION")


def _within(path: str, names: KnownNames, written: str) -> Iterable[str]:
    """Return the names that may follow `path` and a point."""
    table = _mentioned(names, written).get(folded(path), path)
    by_name = {folded(name): columns for name, columns in names.columns.items()}
    columns = by_name.get(folded(table), ())
    inner = [name.partition(".")[2] for name in names.columns
             if folded(name).startswith(f"{folded(path)}.")]  # fmt: skip
    return [*columns, *inner]


def _columns(names: KnownNames, written: str) -> list[str]:
    """Return the columns of the tables that the statement mentions; of all tables if it mentions
    none."""
    tables = list(_mentioned(names, written).values()) or list(names.columns)
    return [column for table in tables for column in names.columns[table]]


def _aliases(written: str) -> list[str]:
    return [alias for _, alias in _TABLE.findall(written)
            if alias and alias.upper() not in _CONTINUES]  # fmt: skip


def _parties(names: KnownNames) -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in names.columns))
