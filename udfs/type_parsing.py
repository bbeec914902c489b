"""Parser of DuckDB's types, in the form in which it writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_NAMED = re.compile(r'("(?:[^"]|"")*"|[^"\s]+)\s+(.*)', re.DOTALL)
_ELEMENTS = re.compile(r"(.*)\[(\d*)\]", re.DOTALL)
_QUOTED = re.compile(r"""("(?:[^"]|"")*"|'(?:[^']|'')*')""")


@dataclass(frozen=True)
class TypeTree:
    """A type and its parts."""

    text: str
    """The type as DuckDB reads it."""
    name: str
    """'DECIMAL', 'LIST', 'ARRAY', 'STRUCT', 'MAP', 'UNION' and so on, in upper case."""
    numbers: tuple[int, ...] = ()
    """The numbers of DECIMAL(9,2), or the length of an array."""
    parts: tuple[TypeTree, ...] = ()
    labels: tuple[str, ...] = ()
    """Names of the parts."""


def kind_of(text: str) -> TypeTree:
    """Parse a type. The values of an ENUM are left out: it is a text.

    >>> kind_of("STRUCT(a DECIMAL(4,1)[], \\"b c\\" ENUM('x, y'))").text
    'STRUCT("a" DECIMAL(4,1)[], "b c" VARCHAR)'
    """
    text = text.strip()
    elements = _ELEMENTS.fullmatch(text)
    if elements is not None:
        inner = kind_of(elements[1])
        numbers = (int(elements[2]),) if elements[2] else ()
        name = "ARRAY" if numbers else "LIST"
        return TypeTree(f"{inner.text}[{elements[2]}]", name, numbers, (inner,))
    head, bracket, rest = text.partition("(")
    name, inside = head.strip().upper(), rest.rpartition(")")[0]
    if name == "ENUM":  # with its values, or without
        return TypeTree("VARCHAR", "VARCHAR")
    if not bracket or name not in ("DECIMAL", "STRUCT", "MAP", "UNION"):
        return TypeTree(text, name)
    pieces = tuple(_pieces(inside))
    if name == "DECIMAL":
        return TypeTree(text, name, tuple(int(piece) for piece in pieces))
    if name == "MAP":
        parts = tuple(kind_of(piece) for piece in pieces)
        return TypeTree(f"MAP({', '.join(p.text for p in parts)})", name, (), parts)
    fields = [match for piece in pieces if (match := _NAMED.fullmatch(piece.strip()))]
    labels = tuple(_plain(match[1]) for match in fields)
    parts = tuple(kind_of(match[2]) for match in fields)
    named = (f"{_quoted(a)} {b.text}" for a, b in zip(labels, parts, strict=True))
    return TypeTree(f"{name}({', '.join(named)})", name, (), parts, labels)


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts between commas outside brackets and quotes."""
    depth, piece = 0, ""
    for token in _QUOTED.split(text):
        if token[:1] in ("'", '"'):
            piece += token
            continue
        for letter in token:
            depth += (letter == "(") - (letter == ")")
            if letter == "," and not depth:
                yield piece
                piece = ""
            else:
                piece += letter
    if piece.strip():
        yield piece


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name[:1] == '"' else name


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
