"""A document of tables, SQL and paragraphs, as plain text and as HTML."""

from __future__ import annotations

import html as markup
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlfl.base.sanitize import line, lines

WIDTH = 100
GAP = "  "
JOINED = "\u00a0"
"""A space at which no line breaks; it prints as a space."""
NARROW = 6
"""Columns are not squeezed below this."""


MANY = 12
"""Parties or clients, beyond which not all are named in short."""


def several(names: Sequence[str], first: int = 3) -> str:
    """The names, of many the first ones."""
    if len(names) <= MANY:
        return ", ".join(names)
    return f"{', '.join(names[:first])} and {len(names) - first} others"


@dataclass(frozen=True)
class TextTable:
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    sentences: tuple[str, ...] = ()
    """The rows as sentences. They replace a table that is too wide for text."""


@dataclass(frozen=True)
class Code:
    """SQL, unchanged; `caption` names its place."""

    caption: str
    text: str


@dataclass(frozen=True)
class Notes:
    items: tuple[str, ...]


@dataclass(frozen=True)
class HtmlPicture:
    """A picture for HTML only."""

    svg: str
    """Markup, in which all that comes from outside is escaped."""


Part: TypeAlias = TextTable | Code | Notes | HtmlPicture


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Part, ...]
    folded: bool = False
    """True if HTML shows only the title until the user clicks it."""


@dataclass(frozen=True)
class Document:
    """Text and tables under a title: `str` is the text; a notebook shows the HTML."""

    title: str
    sections: tuple[Section, ...]

    def __str__(self) -> str:
        return to_text(self)

    def _repr_html_(self) -> str:
        return to_html(self)


def to_text(document: Document) -> str:
    """Lines of at most WIDTH characters; only SQL may be longer."""
    document = _printable(document)
    lines = [*_wrap(document.title, WIDTH)] if document.title else []
    for section in document.sections:
        lines += ["", section.title.upper()] if lines else [section.title.upper()]
        for number, part in enumerate(section.parts):
            if number and not isinstance(section.parts[number - 1], Notes):
                lines.append("")
            lines += _part(part)
    return "\n".join(text.rstrip().replace(JOINED, " ") for text in lines)


def to_html(document: Document) -> str:
    """Return one self-contained element, with everything escaped."""
    document = _printable(document)
    title = f"<h3>{_escape(document.title)}</h3>" if document.title else ""
    pieces = [f'<div class="sqlfl-plan">{title}']
    for section in document.sections:
        shown = "" if section.folded else " open"
        pieces.append(
            f'<details{shown} style="margin:.6em 0"><summary style="cursor:pointer">'
            f"<strong>{_escape(section.title)}</strong></summary>"
        )
        pieces += [_part_html(part) for part in section.parts]
        pieces.append("</details>")
    return "\n".join([*pieces, "</div>"])


def _printable(document: Document) -> Document:
    """Names of tables and columns may hold anything: all but SQL stays on its line."""
    sections = (
        Section(line(s.title), tuple(map(_printable_part, s.parts)), s.folded)
        for s in document.sections
    )
    return Document(line(document.title), tuple(sections))


def _printable_part(part: Part) -> Part:
    match part:
        case TextTable(headers, rows, sentences):
            cells = tuple(tuple(map(line, row)) for row in rows)
            return TextTable(headers, cells, tuple(map(line, sentences)))
        case Code(caption, text):
            return Code(line(caption), lines(text))
        case Notes(items):
            return Notes(tuple(map(line, items)))
        case HtmlPicture():
            return part


def _part(part: Part) -> list[str]:
    if isinstance(part, TextTable):
        return _items(part.sentences) if part.sentences else _table(part)
    if isinstance(part, Notes):
        return _items(part.items)
    if isinstance(part, HtmlPicture):
        return []
    caption = [f"  {text}" for text in _wrap(part.caption, WIDTH - 2)] if part.caption else []
    return [*caption, *textwrap.indent(part.text, "    ").splitlines()]


def _items(items: tuple[str, ...]) -> list[str]:
    wrapped = (
        textwrap.wrap(
            item, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
        )
        for item in items
    )
    return [text for lines in wrapped for text in lines]


def _table(table: TextTable) -> list[str]:
    rows = [table.headers, *table.rows]
    widths = _widths(rows)
    lines = []
    for number, row in enumerate(rows):
        cells = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        for place in range(max(len(cell) for cell in cells)):
            lines.append(
                "  "
                + GAP.join(
                    (cell[place] if place < len(cell) else "").ljust(width)
                    for cell, width in zip(cells, widths, strict=True)
                )
            )
        if number == 0:
            lines.append("  " + GAP.join("-" * width for width in widths))
    return lines


def _widths(rows: list[tuple[str, ...]]) -> list[int]:
    """Natural widths, the widest column squeezed again and again until all fit."""
    columns = list(zip(*rows, strict=True))
    widths = [max(len(cell) for cell in column) for column in columns]
    words = [
        max((len(word) for cell in column for word in cell.split(" ")), default=0)
        for column in columns
    ]
    room = WIDTH - 2 - len(GAP) * (len(columns) - 1)
    while sum(widths) > room:
        loose = [i for i, width in enumerate(widths) if width > max(words[i], NARROW)]
        widest = max(
            loose or [i for i, width in enumerate(widths) if width > NARROW],
            key=lambda i: widths[i],
            default=None,
        )
        if widest is None:
            break
        widths[widest] -= 1
    return widths


def _wrap(text: str, width: int) -> list[str]:
    """Break at spaces; break longer words after '·', '@', '.', '_' or anywhere."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if len(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for piece in re.findall(r"[^·@._]*[·@._]|[^·@._]+", word) if len(word) > width else [word]:
            while piece:
                if len(lines[-1]) + len(piece) <= width:
                    lines[-1] += piece
                    break
                if lines[-1]:
                    lines.append("")
                else:
                    lines[-1], piece = piece[:width], piece[width:]
    return [part.rstrip(JOINED) for part in lines]


# Notebooks align cells to the right and give code the font of the text.
_CELL = "text-align:left;vertical-align:top;padding:.2em .8em"
_SQL = "font-family:monospace;margin:.2em 0 .8em 1.5em;white-space:pre-wrap"


def _part_html(part: Part) -> str:
    if isinstance(part, TextTable):
        head = _row(part.headers, 'th scope="col"')
        body = "\n".join(_row(row, "td") for row in part.rows)
        return (
            '<div style="overflow-x:auto"><table style="margin:.4em 0;border-collapse:collapse">'
            f"<thead>{head}</thead>\n<tbody>\n{body}\n</tbody></table></div>"
        )
    if isinstance(part, Notes):
        return "<ul>" + "".join(f"<li>{_escape(item)}</li>" for item in part.items) + "</ul>"
    if isinstance(part, HtmlPicture):
        return f'<div style="overflow-x:auto;margin:.4em 0">{part.svg}</div>'
    caption = f'<p style="margin:.4em 0 0">{_escape(part.caption)}</p>' if part.caption else ""
    return f'{caption}<pre style="{_SQL}">{_escape(part.text)}</pre>'


def _row(cells: tuple[str, ...], tag: str) -> str:
    end = tag.split(" ")[0]
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{_escape(c)}</{end}>' for c in cells) + "</tr>"


def _escape(text: str) -> str:
    return markup.escape(text.replace(JOINED, " "))
