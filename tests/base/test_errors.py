"""Errors show the place, and no more of the line than helps."""

from __future__ import annotations

import sqlfl
from sqlfl.base.errors import EXCERPT, PlanError, nearest


def excerpt(sql: str, start: int, end: int) -> tuple[str, str]:
    """The line that is shown and the marked part of it."""
    _, _, line, marks = str(PlanError("no", sql=sql, span=(start, end))).split("\n")
    return line[4:], line[marks.index("^") : len(marks)]


def test_the_excerpt_marks_the_place() -> None:
    sql = "SELECT a\n\tFROM b"
    error = PlanError("no", sql=sql, span=(15, 16))
    assert (error.line, error.column) == (2, 7)
    assert excerpt(sql, 15, 16) == ("\tFROM b", "b")


def test_a_long_line_is_clipped_around_the_mark() -> None:
    sql = "x" * 5000 + "HERE" + "y" * 5000
    line, marked = excerpt(sql, 5000, 5004)
    assert marked == "HERE"
    assert len(line) <= EXCERPT + 2
    assert excerpt(sql, 0, 2)[1] == "xx"
    assert excerpt(sql, len(sql) - 3, len(sql))[1] == "yyy"


def test_nearest_ignores_case() -> None:
    assert nearest("EPOCH", ["epochs", "seed"]) == "epochs"
    assert nearest("qqq", ["epochs"]) is None


def test_deep_statements_and_no_statements_are_errors_of_sqlfl() -> None:
    with sqlfl.connect() as fed:
        for text in (None, 5, ["a"], "EVALUATE MODEL m FROM (" + "(" * 4000 + "SELECT 1"):
            try:
                fed.sql(text)
            except sqlfl.Error:
                continue
            raise AssertionError(f"no error for {str(text)[:20]}")
