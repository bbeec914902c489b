"""What is offered where a statement is being written, by itself and in IPython."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sqlfl.base.errors import Error
from sqlfl.models.kinds import KINDS
from sqlfl.notebook.completion import KnownNames, completions
from sqlfl.options.resolve import privacy_options
from sqlfl.options.training import with_options
from sqlfl.planner.grammar.dialect import STATEMENTS, parse

NAMES = KnownNames(
    ("delay", "Spend"),
    {
        "airline.flights": ("distance", "carrier", "late"),
        "airline.planes": ("tailnum", "seats"),
        "meteo.weather": ("wind", "visib"),
    },
)
FROM = "FROM (SELECT f.distance FROM airline.flights f JOIN meteo.weather w ON f.hour = w.hour"


def offered(text: str) -> tuple[str, ...]:
    """At the place that | marks."""
    at = text.index("|")
    return completions(text.replace("|", ""), at, NAMES)[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("|", STATEMENTS),
        ("tr|", ("TRAIN",)),
        ("SHOW MODELS; ev|", ("EVALUATE",)),
        ("EXPLAIN P|", ("PREDICT",)),
        ("TRAIN |", ("MODEL", "OR REPLACE MODEL")),
        ("EVALUATE MODEL |", ("delay", "Spend")),
        ("EVALUATE MODEL SP|", ("Spend",)),
        ("ROC |", ("OF",)),
        ("ROC OF MODEL d|", ("delay",)),
        ("TRAIN MODEL m USING |", KINDS),
        ("TRAIN MODEL m USING lo|", ("logistic_regression",)),
        ("TRAIN MODEL m USING lasso TARGET y |",
         ("WEIGHT", "OFFSET", "EXPOSURE", "TRANSFORM", "WITH", "PRIVACY", "FROM")),
        ("TRAIN MODEL m USING lasso TARGET y WITH (l2 = 1) |", ("PRIVACY", "FROM")),
        ("TRAIN MODEL m USING lasso TARGET y WITH (|", tuple(with_options().entries)),
        ("TRAIN MODEL m USING lasso TARGET y WITH (l2 = 1, max_j|", ("max_joined_rows",)),
        ("TRAIN MODEL m USING lasso TARGET y WITH (l2 = |", ()),
        ("TRAIN MODEL m USING lasso TARGET y PRIVACY (|", tuple(privacy_options().entries)),
        ("TUNE MODEL m USING lasso TARGET y WITH (fol|", ("folds",)),
        ("CHECK WITH (min|", ("min_cell",)),
        ("EXPORT MODEL delay TO 'x' WITH (|", ("formats",)),
        ("TRAIN MODEL m USING lasso TARGET y TRANSFORM (log|", ("log1p",)),
        (f"TRAIN MODEL m USING lasso TARGET | {FROM})",
         ("distance", "carrier", "late", "wind", "visib")),
        ("TRAIN MODEL m USING lasso TARGET y FROM (SELECT * FROM |",
         ("airline.flights", "airline.planes", "meteo.weather", "airline", "meteo")),
        ("TRAIN MODEL m USING lasso TARGET y FROM (SELECT * FROM airline.|", ("flights", "planes")),
        ("TRAIN MODEL m USING lasso TARGET y FROM (SELECT * FROM airline.flights f JOIN me|",
         ("meteo.weather", "meteo")),
        ("TRAIN MODEL m USING lasso TARGET y FROM (SELECT f.| FROM airline.flights AS f)",
         ("distance", "carrier", "late")),
        ("TRAIN MODEL m USING lasso TARGET y FROM (SELECT car| FROM airline.flights f)",
         ("carrier",)),
        (f"TRAIN MODEL m USING lasso TARGET y {FROM} WHERE w.v|", ("visib",)),
        ("TRAIN MODEL m USING lasso TARGET y FROM (|", ("SELECT", "FROM")),
        ("SHOW |", ("MODELS", "JOINS", "STUDIES", "TABLES", "PARTIES")),
        ("DROP MODEL de|", ("delay",)),
        ("EXPORT MODEL delay TO 'fo|", ()),
        ("SHOW MODELS -- and the|", ()),
        ("CREATE |", ("MODEL", "OR REPLACE MODEL", "JOIN", "STUDY")),
        ("CREATE OR REPLACE |", ("MODEL", "JOIN", "STUDY")),
        ("DROP |", ("MODEL", "JOIN")),
        ("USE |", ("STUDY", "NO STUDY")),
    ],
)  # fmt: skip
def test_what_may_follow(text: str, expected: tuple[str, ...]) -> None:
    assert offered(text) == expected


def test_every_statement_that_is_offered_is_one() -> None:
    """The grammar stumbles over what follows."""
    for word in STATEMENTS:
        with pytest.raises(Error) as error:
            parse(word)
        assert "expected a statement" not in str(error.value)


def test_the_word_that_is_replaced() -> None:
    text = "EVALUATE MODEL de FROM (SELECT 1)"
    start, found = completions(text, text.index(" FROM"), NAMES)
    assert text[start:17] == "de"
    assert found == ("delay",)


@given(some.text("TRAINMODELUSGFW ()',.;\"- \n=[]e", max_size=40), some.integers(0, 40))
def test_any_text_is_taken(text: str, at: int) -> None:
    at = min(at, len(text))
    start, found = completions(text, at, NAMES)
    assert 0 <= start <= at
    assert len(set(found)) == len(found)
