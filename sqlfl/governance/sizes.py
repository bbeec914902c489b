"""Bounds on sizes: of a query before anything recursive reads it, and of values and their sums.

Sizes of values are in bytes: of a text what it takes and OVERHEAD, of a number NUMBER_SIZE, which
its text takes at most, of a list, struct or map OVERHEAD and the sizes of all that is in it. A
bound is a sum: a constant, a multiple of the size of the data that the value is made of (a row of
the tables, or all rows where they are aggregated), and a multiple of each element that a lambda has
as its parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

import duckdb

from sqlfl.base.errors import PolicyError
from sqlfl.governance.value_types import kind_of_type


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


OVERHEAD = 16
NUMBER_SIZE = 96
"""Size of each number, time and interval, as a value and as a text."""
NUMBER, TEXT, OTHER = "number", "text", ""
"""Kinds of values; [] behind one is a list of such."""
_SIMPLE = (
    "integer", "decimal", "real", "BOOLEAN", "DATE", "HUGEINT", "UHUGEINT", "UUID", "INTERVAL",
)  # fmt: skip
_TEXTS = ("VARCHAR", "JSON", "BLOB", "BIT")


@dataclass(frozen=True)
class SizeBound:
    """A bound. terms : the constant, the multiple of the data, and that of each lambda's elements,
    from the outermost one."""

    terms: tuple[float, ...] = (0.0, 1.0)
    kind: str = OTHER
    copies: int = 1
    """Nodes of the expression, with those that names stand for."""

    @property
    def constant(self) -> bool:
        return not any(self.terms[1:])

    def times(self, factor: float, more: float = 0.0) -> SizeBound:
        first, *others = self.terms
        return SizeBound((first * factor + more, *(t * factor for t in others)), OTHER, self.copies)

    def of(self, kind: str) -> SizeBound:
        return replace(self, kind=kind)


SIMPLE = SizeBound((NUMBER_SIZE, 0.0), NUMBER)
DATA = SizeBound()


def total(sizes: Sequence[SizeBound], more: float = 0.0) -> SizeBound:
    """Return the size of all of them together."""
    terms = tuple(map(sum, zip_longest(*(s.terms for s in sizes), fillvalue=0.0)))
    first, *others = terms or (0.0, 0.0)
    return SizeBound((first + more, *others), OTHER, sum(size.copies for size in sizes) + 1)


def largest(sizes: Sequence[SizeBound]) -> SizeBound:
    """Return the size of one of them, where it is not known which."""
    terms = tuple(map(max, zip_longest(*(s.terms for s in sizes), fillvalue=0.0)))
    kinds = {size.kind for size in sizes}
    kind = kinds.pop() if len(kinds) == 1 else TEXT if kinds == {NUMBER, TEXT} else OTHER
    return SizeBound(terms or (0.0, 0.0), kind, sum(size.copies for size in sizes) + 1)


def size_of_column(type_: str | None) -> SizeBound:
    """Return the size of a value of a column of this type, as DuckDB writes the type."""
    if type_ is None:
        return DATA
    kind = kind_of_name(type_)
    return SIMPLE if kind == NUMBER else SizeBound(kind=kind)


def kind_of_name(type_: str) -> str:
    """Return the kind of values of a type, as DuckDB writes the type."""
    if type_.endswith("]") and not type_.startswith(("STRUCT", "MAP", "UNION", "ENUM")):
        return kind_of_name(type_[: type_.rindex("[")]) + "[]"
    base = kind_of_type(type_)
    if base in _SIMPLE or base.startswith(("DECIMAL(", "TIME")):
        return NUMBER
    return TEXT if base in _TEXTS or base.startswith("ENUM") else OTHER
