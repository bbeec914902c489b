"""Statements that nobody meant end in an answer or in an error of sqlfl's, and soon."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

import sqlfl
from tests.depth import SEED, THOROUGH
from tests.mutated import DEEP, Asked, file, statement

STATEMENTS, FILES = (9_000, 2_000) if THOROUGH else (150, 40)
PARTS = 10


@pytest.fixture(scope="module")
def asked() -> Iterator[Asked]:
    found = Asked()
    yield found
    found.close()


@pytest.mark.parametrize("part", range(PARTS if THOROUGH else 1))
def test_mutated_statements(asked: Asked, part: int) -> None:
    for number in range(part, STATEMENTS, PARTS if THOROUGH else 1):
        given = statement(random.Random(f"{SEED} {number}"))
        try:
            asked(given, run=number % 8 == 0)
        except Exception as error:  # whose type is the finding
            error.add_note(f"statement {number}: {given[:500]!r}")
            raise


def test_mutated_files(asked: Asked) -> None:
    for number in range(FILES):
        given = file(random.Random(f"{SEED} {number}"))
        try:
            asked(given, run=number % 8 == 0)
        except Exception as error:  # whose type is the finding
            error.add_note(f"file {number}: {given[:500]!r}")
            raise


@pytest.mark.parametrize("opening", DEEP)
def test_deep_statements_are_refused_soon(asked: Asked, opening: str) -> None:
    text = f"TRAIN MODEL m USING linear_regression TARGET y FROM (SELECT {opening * 3000}"
    start = time.process_time()
    with pytest.raises(sqlfl.Error):
        asked.fed.sql(text)
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1e", "1e is not a number"),
        ("1e3.5", "1e3.5 is not a number"),
        ("1e–3", "is a dash of texts"),
        ("1" * 5000, "a number of 5,000 digits is too large"),
        ("-1e+", "expected|not a number"),
    ],
)
def test_numbers_that_are_none(asked: Asked, value: str, message: str) -> None:
    text = f"TRAIN MODEL m USING linear_regression TARGET y WITH (l2 = {value}) FROM (FROM a.t)"
    with pytest.raises(sqlfl.ParseError, match=message):
        asked.fed.sql(text)


@pytest.mark.parametrize(
    "query", ["SHOW a CASE WHEN x END AS x", "DESCRIBE a b", "SELECT abs(", "SELECT f(x, "]
)
def test_queries_that_end_or_begin_oddly(
    asked: Asked, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    with pytest.raises(sqlfl.ParseError):
        asked.fed.explain(f"TRAIN MODEL m USING lasso TARGET y FROM ({query})")
    with pytest.raises(sqlfl.ParseError):
        asked.fed.explain(f"TRAIN MODEL m USING lasso TARGET y FROM (SELECT 1); {query}")
    assert not caplog.records


@pytest.mark.parametrize("path", ["x" * 5000, "a/" * 3000, "a\0b"])
def test_paths_that_cannot_be(asked: Asked, path: str) -> None:
    for text in (f"EXPORT MODEL old TO '{path}'", f"IMPORT MODEL n FROM '{path}'"):
        with pytest.raises(sqlfl.Error):
            asked.fed.sql(text)


def test_a_statement_of_a_document_is_run(asked: Asked) -> None:
    joined = "FROM a.t t\u200b JOIN b.u u ON t.k = u.k WHERE u.g <> ‘it's’"
    text = f"\ufeffEVALUATE MODEL old\u00a0FROM (SELECT t.x, u.z, t.y {joined})"
    for given in (text, text.encode(), text.encode("utf-16")):
        assert asked.fed.sql(given).fetchall()[0][0] == 40


def test_the_owner_reads_statements_so_too(asked: Asked) -> None:
    with sqlfl.owner(asked._databases[0]) as owner:
        owner.sql("\ufeffSHOW\u00a0POLICIES")
        with pytest.raises(sqlfl.ParseError, match="0xe9 is a letter in Latin-1"):
            owner.sql(b"SHOW POLICIES -- \xe9")
        with pytest.raises(sqlfl.ParseError, match="expected the number of a request"):
            owner.sql(f"APPROVE REQUEST {'9' * 5000}")
