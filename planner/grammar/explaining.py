"""Options between EXPLAIN and its statement."""

from __future__ import annotations

from collections.abc import Sequence

VERBOSE, ANALYZE = "VERBOSE", "ANALYZE"
REHEARSED = ("CHECK", "TRAIN", "TUNE")
"""Statements that can run over synthetic rows."""
NO_ROWS = (
    "the weights of a model follow from rows, and what it makes of rows that everybody knows would "
    "tell them: EXPLAIN says what the statement exchanges"
)
"""The reason why statements about an existing model cannot."""


def leading(words: Sequence[str]) -> int:
    """Return the number of words, in upper case, of EXPLAIN and its options at a statement's start.

    >>> leading("EXPLAIN ( ANALYZE , VERBOSE ) TRAIN MODEL m".split()), leading(["TRAIN"])
    (6, 0)
    """
    if not words or words[0] != "EXPLAIN":
        return 0
    if len(words) > 1 and words[1] == ANALYZE:
        return 2
    for place, word in enumerate(words[1:], 1):
        if word == ")" and place > 1:
            return place + 1
        if word not in (("(",) if place == 1 else (VERBOSE, ANALYZE, ",")):
            break
    return 1
