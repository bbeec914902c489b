"""A method of another distribution brings its options: in the table, in errors, in what is read."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from sqlfl.base.errors import InternalError, OptionError
from sqlfl.contract import methods as registry
from sqlfl.contract.methods import GROUP, methods
from sqlfl.methods.sgd.options import SgdOptions
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import resolve_training, training_options
from sqlfl.options.training import TrainingOptions, options_markdown
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import TrainModel
from tests.additions.hasty.options import HastyOptions

LINEAR, LOGISTIC = "linear_regression", "logistic_regression"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entry = EntryPoint("hasty", "tests.additions.hasty", GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == GROUP else [])
    methods.cache_clear()
    yield
    monkeypatch.undo()
    methods.cache_clear()


def resolved(written: str, kind: str = LINEAR, privacy: Privacy | None = None) -> TrainingOptions:
    statement = parse(f"TRAIN MODEL m USING {kind} TARGET y WITH ({written}) FROM (SELECT 1)")
    assert isinstance(statement, TrainModel)
    return resolve_training(statement.kind, statement.options, statement.sql, privacy)


def test_the_table_has_them() -> None:
    lines = {line.split("`")[1]: line for line in options_markdown().splitlines()[2:]}
    rows = {name: [cell.strip() for cell in line.split("|")[2:6]] for name, line in lines.items()}
    assert rows["haste"] == [
        "integer 1 to 9", "2", "hasty", "steps that are made at once",
    ]  # fmt: skip
    assert (
        rows["algorithm"][0] == "'lbfgs', 'sgd', 'admm', 'pbm', 'frank_wolfe', 'moments' or 'hasty'"
    )
    assert "7 (hasty)" in rows["epochs"][1]
    assert rows["tolerance"][1].endswith(", 0.5 (hasty)")
    assert rows["learning_rate"][1].endswith("; hasty: a quarter of haste")
    assert rows["learning_rate"][2] == "sgd, pbm, hasty; admm of mlp_*"
    assert rows["learning_rate"][3].endswith("; in hasty, of each of them")


def test_they_are_read_and_listed() -> None:
    options = resolved("algorithm = 'Hasty', haste = 3")
    assert (options.epochs, options.tolerance) == (7, 0.5)
    own = options.of(HastyOptions)
    assert (own.told.haste, own.told.rest, own.learning_rate) == (3, False, 0.75)
    listed = options.listed()
    assert "rest" not in listed
    names = list(listed)
    assert names[names.index("haste") :][:2] == ["haste", "l2"]
    assert resolved("algorithm = 'hasty', haste = 9, rest = true").listed()["rest"] is True
    assert training_options(LINEAR, listed) == options
    with pytest.raises(InternalError, match="options of hasty are no SgdOptions"):
        options.of(SgdOptions)


@pytest.mark.parametrize(
    ("written", "kind", "message"),
    [
        ("haste = 3", LINEAR, "option haste does not apply to algorithm 'lbfgs', only to hasty"),
        ("algorithm = 'hasty', rest = true", LINEAR, "option rest applies only with haste = 9"),
        ("algorithm = 'hasty', rho = 1", LINEAR, "option rho does not apply to algorithm 'hasty'"),
        (
            "algorithm = 'hasty', haste = 0", LINEAR,
            "option haste must be a whole number from 1 to 9, got 0",
        ),
        (
            "algorithm = 'hasty', haste = 9", LOGISTIC,
            "option haste must be at most 8 for classes, got 9",
        ),
        ("algorithm = 'hasty'", "mlp_regressor", "algorithm 'hasty' does not train mlp_regressor"),
    ],
)  # fmt: skip
def test_refusals(written: str, kind: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolved(written, kind)
    assert caught.value.message.startswith(message)
    assert caught.value.line == 1


def test_it_says_itself_what_it_protects() -> None:
    noised = Privacy(epsilon=1.0, predictions="gaussian")
    assert resolved("algorithm = 'hasty'", privacy=noised).of(HastyOptions).told.haste == 1
    with pytest.raises(OptionError, match="with PRIVACY: it looks at them too often"):
        resolved("algorithm = 'hasty'", privacy=Privacy(epsilon=1.0))
