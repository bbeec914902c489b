"""Safe printing of others' text: characters that would steer a terminal or break a line become
visible.

Names of tables and columns, categories, class labels and error texts come from a party, and may
hold anything: escape sequences, line breaks, overrides of the direction of writing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_WORD_CHARACTERS = 300
"""Characters without a blank that a message shows."""
_LONG = re.compile(rf"\S{{{MAX_WORD_CHARACTERS + 1},}}")
_NEWLINE, _TAB = 0x0A, 0x09
_UNSEEN = (0x00AD, 0x061C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x2028, 0x202F), 0xFEFF,
           *range(0x2060, 0x2070), *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080))  # fmt: skip
"""Without the joiners of scripts and emoji, U+200C and U+200D."""
_LINE = (
    {code: chr(0x2400 + code) for code in range(0x20)}
    | {0x7F: "\u2421"}
    | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
    | dict.fromkeys(_UNSEEN, "\ufffd")
    | dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
)
_LINES = {code: shown for code, shown in _LINE.items() if code not in (_NEWLINE, _TAB)}


def line(text: str) -> str:
    """Return `text` on one line, character for character. Control characters become the symbols of
    their names (␛ for escape, ␊ for a line break). Characters that change the direction of writing,
    or that nobody sees, become �.
    """
    return text if _plain(text) else text.translate(_LINE)


def lines(text: str) -> str:
    """Return the same, but keep line breaks and tabs."""
    return text if _plain(text) else text.translate(_LINES)


def listed(names: Iterable[str]) -> str:
    """Return all names on one line."""
    return line(", ".join(names))


def clipped(text: str, longest: int) -> str:
    """Return at most `longest` characters."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shortened(text: str) -> str:
    """Clip each name, number or other run of characters without a blank that nobody reads to the
    end.
    """
    return _LONG.sub(lambda match: clipped(match[0], MAX_WORD_CHARACTERS), text)


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
