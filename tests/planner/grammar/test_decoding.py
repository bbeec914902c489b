"""Text of statements in any encoding, and as documents have it."""

from __future__ import annotations

import pytest

from sqlfl.base.errors import ParseError
from sqlfl.planner.grammar.tokens import decoded

PLAIN = "TRAIN MODEL m WITH (l2 = 1e-3) -- c'est ça\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_bytes_in_encodings_that_are_told(encoding: str) -> None:
    assert decoded(PLAIN.encode(encoding)) == PLAIN


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_its_mark(encoding: str) -> None:
    assert decoded("SHOW MODELS".encode(encoding)) == "SHOW MODELS"
    assert decoded(("\ufeff" + PLAIN).encode(encoding)) == PLAIN


def test_text_that_was_read_in_the_wrong_encoding() -> None:
    assert decoded("SHOW MODELS".encode("utf-16").decode("latin-1")) == "SHOW MODELS"
    assert decoded("SHOW MODELS".encode("utf-8-sig").decode("latin-1")) == "SHOW MODELS"
    named = "SHOW 'é'".encode("utf-8-sig")
    with pytest.raises(ParseError, match="written in UTF-8, and read as Latin-1"):
        decoded(named.decode("latin-1"))
    assert decoded(named.decode("utf-8", errors="surrogateescape")) == "SHOW 'é'"


@pytest.mark.parametrize(
    "given", [b"SHOW\n 'caf\xe9'", b"SHOW\n 'caf\xe9'".decode("utf-8", errors="surrogateescape")]
)
def test_latin_1_is_named_with_its_place(given: str | bytes) -> None:
    with pytest.raises(ParseError, match="0xe9 is a letter in Latin-1") as caught:
        decoded(given)
    assert (caught.value.line, caught.value.column) == (2, 6)
    assert "café" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("\ufeffSHOW;\ufeff SHOW", "SHOW; SHOW"),
        ("u.g = ‘it's’ AND “a b” = ’x’", "u.g = 'it''s' AND \"a b\" = 'x'"),
        ("„g“ = ‚x‘", "\"g\" = 'x'"),
        ("a\u00a0b\u3000c\u2028d", "a b c d"),
        ("x \u2212 1 \u2010 2", "x - 1 - 2"),
        ("FROM\u200b (\u2060SELECT\ufeff)", "FROM (SELECT)"),
        ("\u202ax\u202c = 1", "x = 1"),
        ("f（a，b）", "f(a,b)"),
    ],
)
def test_what_documents_make_of_sql(given: str, meant: str) -> None:
    assert decoded(given) == meant


@pytest.mark.parametrize(
    "text",
    [
        "'it’s “x” – \u00a0\u200b\ufeff—'",
        '"‘a–b\u200b’"',
        "-- ‘ — \u00a0\n",
        "/* ‘ /* – */ ’\u200b */",
        r"E'\'‘–'",
        "$$ ‘–\u200b $$",
        "$t$ ‘– $t$",
        "`‘–`",
        "می‌خواهم",  # a joiner within a word is a part of it
        "größe, 名前",
    ],
)
def test_quotes_comments_and_names_stay(text: str) -> None:
    assert decoded(text) == text


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("l2 = 1e–3", r"– \(U\+2013\) is a dash of texts", 8),
        ("x — y", r"— \(U\+2014\) is a dash of texts", 3),
        ("u.g = ‘g", "the quote ‘ .* has no partner", 7),
        ("t.k\u200bey", r"invisible character \(U\+200B\) stands within a word", 4),
        ("SHOW\0", "a NUL character", 5),
        ("a \ud800", "half a character", 3),
        (b"\xff\xfeS\0H", "not UTF-16", 2),
    ],
)
def test_what_may_mean_two_things_is_refused(text: str, message: str, column: int) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        decoded(text)
    assert caught.value.column == column
    assert caught.value.hint is not None


def test_what_is_decoded_stays() -> None:
    once = decoded("u.g = ‘it's – “x”’ AND\u00a0t.x = $1 -- ’")
    assert decoded(once) == once
