"""HELP: every statement has its form, every option what it must be."""

from __future__ import annotations

import pytest

from sqlfl.base.errors import Error
from sqlfl.cli.help import help_on
from sqlfl.contract.methods import methods
from sqlfl.options.resolve import privacy_options
from sqlfl.options.training import option_lines, with_options
from sqlfl.planner.grammar.dialect import STATEMENTS


@pytest.mark.parametrize("word", STATEMENTS)
def test_every_statement_has_its_form(word: str) -> None:
    assert word in help_on(word.lower()).split("\n\n")[0]
    assert word in help_on("") or word == "FROM"


def test_every_option_is_told() -> None:
    for name in (*with_options().entries, *privacy_options().entries):
        assert help_on(name).startswith(f"{name}: ")


@pytest.mark.parametrize("algorithm", methods())
def test_an_algorithm_has_its_options(algorithm: str) -> None:
    text = help_on(algorithm.upper())
    assert text.startswith(f"WITH (algorithm = '{algorithm}')\n")
    for name, line in option_lines().items():
        has_own_text = f"\n{name}: " in text
        assert has_own_text == (line.methods is not None and algorithm in line.methods)


def test_a_form_is_whole() -> None:
    assert help_on("train").splitlines()[:2] == [
        "TRAIN [OR REPLACE] MODEL [IF NOT EXISTS] name", "  USING kind",
    ]  # fmt: skip
    assert "\nFROM ( query )\n" in help_on("TRAIN MODEL")
    assert "kinds: linear_regression, " in help_on("TRAIN")
    assert "FROM ( query )" not in help_on("SHOW")


def test_what_is_neither_is_an_error() -> None:
    with pytest.raises(Error, match="did you mean TRAIN"):
        help_on("TRAINN")
    with pytest.raises(Error, match="did you mean lbfgs"):
        help_on("lbfsg")
    with pytest.raises(Error, match="HELP alone lists"):
        help_on("qqqqqqqqqqq")
