"""The table of options: defaults, values, refusals."""

from __future__ import annotations

import pytest

from sqlfl.errors import OptionError
from sqlfl.options import KINDS, OPTIONS, options_markdown, resolve
from sqlfl.planner.dialect import parse
from sqlfl.planner.statements import TrainModel


def resolved(options: str, kind: str = "linear_regression"):
    clause = f" WITH ({options})" if options else ""
    statement = parse(f"TRAIN MODEL m USING {kind} TARGET y{clause} FROM (SELECT 1)")
    assert isinstance(statement, TrainModel)
    return resolve(statement.kind, statement.options, statement.sql)


@pytest.mark.parametrize("kind", ["linear_regression", "logistic_regression", "softmax_regression"])
def test_defaults(kind: str) -> None:
    found = resolved("", kind)
    assert found["algorithm"] == "lbfgs"
    assert found["l2"] == 1e-4
    assert found["engine"] == "auto"
    assert found["allow_cross_join"] is False
    assert "rho" not in found
    assert "batch_size" not in found


def test_defaults_depend_on_the_algorithm() -> None:
    sgd, admm = resolved("algorithm = 'sgd'"), resolved("algorithm = 'ADMM'")
    assert sgd["batch_size"] is None
    assert sgd["learning_rate"] is None
    assert (admm["union"], admm["rho"]) == ("exact", None)
    assert {sgd["algorithm"], admm["algorithm"]} == {"sgd", "admm"}


def test_values() -> None:
    found = resolved("EPOCHS = 3, l2 = 0, seed = 7, memory_limit = '1.5 GB', tolerance = 1e-3")
    assert (found["epochs"], found["l2"], found["seed"]) == (3, 0.0, 7)
    assert found["memory_limit"] == "1.5GB"
    assert found["tolerance"] == 1e-3
    assert resolved("memory_limit = 1000000")["memory_limit"] == "1000000B"
    consensus = resolved("algorithm = 'admm', union = 'consensus', inner_rounds = 4")
    assert (consensus["union"], consensus["inner_rounds"]) == ("consensus", 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("epoch = 3", "there is no option epoch"),
        ("zzz = 3", "there is no option zzz"),
        ("epochs = 0", "option epochs must be a whole number from 1 up, got 0"),
        ("epochs = 1.5", "option epochs must be a whole number from 1 up, got 1.5"),
        ("epochs = true", "option epochs must be a whole number from 1 up, got true"),
        ("epochs = NULL", "option epochs must be a whole number from 1 up, got NULL"),
        ("epochs = [1, 2]", "option epochs must be a whole number from 1 up, got [1, 2]"),
        ("l2 = -1", "option l2 must be a number from 0 up, got -1"),
        ("l2 = 'a'", "option l2 must be a number from 0 up, got 'a'"),
        ("seed = -1", "option seed must be a whole number from 0 up, got -1"),
        ("algorithm = 'lbgfs'", "option algorithm must be 'lbfgs', 'sgd' or 'admm', got 'lbgfs'"),
        ("engine = 'gpu'", "option engine must be 'auto', 'sql' or 'arrays', got 'gpu'"),
        ("memory_limit = 'much'", "option memory_limit must be a size such as '4GB'"),
        ("allow_cross_join = 1", "option allow_cross_join must be true or false, got 1"),
        (
            "algorithm = 'sgd', learning_rate = 0",
            "option learning_rate must be a number greater than 0, got 0",
        ),
        ("rho = 1", "option rho does not apply to algorithm 'lbfgs', only to admm"),
        (
            "algorithm = 'admm', batch_size = 3",
            "option batch_size does not apply to algorithm 'admm', only to sgd",
        ),
        (
            "algorithm = 'admm', inner_rounds = 3",
            "option inner_rounds applies only with union = 'consensus'",
        ),
        ("hidden = [16]", "option hidden is not built yet"),
        ("validation_fraction = 0.1", "option validation_fraction is not built yet"),
    ],
)
def test_refusals(options: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolved(options)
    assert caught.value.message.startswith(message)
    assert caught.value.span is not None
    assert caught.value.line == 1


def test_hints_name_the_nearest() -> None:
    for options, hint in (
        ("epoch = 3", "did you mean epochs?"),
        ("algorithm = 'lbgfs'", "did you mean lbfgs?"),
    ):
        with pytest.raises(OptionError) as caught:
            resolved(options)
        assert caught.value.hint == hint


def test_kinds() -> None:
    with pytest.raises(OptionError, match="model kind lasso is not built yet"):
        resolved("", "lasso")
    with pytest.raises(OptionError, match="did you mean logistic_regression"):
        resolved("", "logistic_regresion")


def test_markdown_has_every_option() -> None:
    lines = options_markdown().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == [entry.name for entry in OPTIONS]
    assert all(line.count("|") == 6 for line in lines)
    assert all(set(entry.kinds) <= set(KINDS) for entry in OPTIONS)
