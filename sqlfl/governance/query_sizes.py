"""Checks of a query's size before anything recursive reads it."""

from __future__ import annotations

from itertools import pairwise

import duckdb

from sqlfl.base.errors import PolicyError


def check_size(tree: object, most: int, deepest: int) -> None:
    """Check the size before anything else, by hand, because a recursion might not return."""
    level: list[object] = [tree]
    number = depth = 0
    while level:
        number, depth = number + len(level), depth + 1
        if number > 12 * most or depth > 6 * deepest:
            raise PolicyError("a query is too large or too deep to be looked through")
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)  # type: ignore[attr-defined]
            if isinstance(inner, (dict, list))
        ]


def check_copies(text: str, most: int) -> None:
    """Check a text before it is parsed. The parser copies the operand of CASE for each WHEN, and
    the definition of a window for each OVER. Raise PolicyError if that would add more than `most`
    words.
    """
    data = text.encode()
    places = [*(start for start, _ in duckdb.tokenize(text)), len(data)]
    words = [data[start:end].strip().lower() for start, end in pairwise(places)]
    if b"case" not in words and b"window" not in words:
        return
    copies = 0
    if b"window" in words:
        copies = words.count(b"over") * (len(words) - words.index(b"window"))
    # of each CASE that is open: words of its operand, words of the rest, number of WHEN
    stack: list[list[int]] = []
    for word in words:
        if word == b"case":
            stack.append([0, 0, 0])
        elif word == b"when" and stack:
            stack[-1][2] += 1
        elif word == b"end" and stack:
            operand, rest, whens = stack.pop()
            copies += operand * max(0, whens - 1)
            whole = operand * max(1, whens) + rest + 1
            if stack:
                stack[-1][0 if stack[-1][2] == 0 else 1] += whole
        elif stack:
            stack[-1][0 if stack[-1][2] == 0 else 1] += 1
    if copies > most:
        raise PolicyError(
            f"a query whose CASE and WINDOW stand for {copies:,} words more; {most:,} are taken",
            hint="write CASE WHEN a = 1 ... in place of CASE a WHEN 1 ...; or use a subquery",
        )
