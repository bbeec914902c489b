"""What may stand between EXPLAIN and the statement that is explained."""

from __future__ import annotations

from collections.abc import Sequence

VERBOSE, ANALYZE = "VERBOSE", "ANALYZE"
REHEARSED = ("CHECK", "TRAIN", "TUNE")
"""Statements that are run over rows that are made up."""
NO_ROWS = (
    "the weights of a model follow from rows, and what it makes of rows that everybody knows would "
    "tell them: EXPLAIN says what the statement exchanges"
)
"""Why those of a model that is there are not."""


def leading(words: Sequence[str]) -> int:
    """How many of the words of a statement, in upper case, are EXPLAIN and its options.

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
