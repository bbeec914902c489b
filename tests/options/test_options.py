"""The table of options: defaults, values, refusals."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest

from sqlfl.base.codec import loads, to_json
from sqlfl.base.errors import ModelError, OptionError, ParseError
from sqlfl.models.kinds import KINDS
from sqlfl.options.resolve import resolve_scoring, resolve_training, training_options
from sqlfl.options.training import option_lines, options_markdown, with_options
from sqlfl.options.types import shown
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import EvaluateModel, Pairs, TrainModel


def resolved(options: str, kind: str = "linear_regression"):
    clause = f" WITH ({options})" if options else ""
    statement = parse(f"TRAIN MODEL m USING {kind} TARGET y{clause} FROM (SELECT 1)")
    assert isinstance(statement, TrainModel)
    return resolve_training(statement.kind, statement.options, statement.sql).listed()


@pytest.mark.parametrize("kind", ["linear_regression", "logistic_regression", "softmax_regression"])
def test_defaults(kind: str) -> None:
    found = resolved("", kind)
    assert found["algorithm"] == "lbfgs"
    assert found["l2"] == 1e-4
    assert found["engine"] == "auto"
    assert found["allow_cross_join"] is False
    assert "rho" not in found
    assert "batch_size" not in found
    assert (found["seed"], found["network"]) == (None, None)
    assert {"hidden", "head", "device", "optimizer", "momentum"}.isdisjoint(found)


@pytest.mark.parametrize("kind", ["mlp_regressor", "mlp_classifier"])
def test_defaults_of_neural_models(kind: str) -> None:
    sgd, admm = resolved("", kind), resolved("algorithm = 'admm'", kind)
    for found in (sgd, admm):
        assert (found["hidden"], found["activation"], found["dropout"]) == ((16,), "relu", 0.0)
        assert (found["head"], found["device"], found["epochs"]) == ("none", "auto", 20)
        assert found["learning_rate"] == 0.01
        assert {"embedding", "momentum"}.isdisjoint(found)
    assert (sgd["algorithm"], sgd["optimizer"], sgd["batch_size"]) == ("sgd", "adam", None)
    assert (admm["batch_size"], admm["local_epochs"]) == (512, 5)
    assert (admm["union"], admm["inner_rounds"], admm["rho"]) == ("consensus", 10, None)
    assert {"optimizer", "schedule"}.isdisjoint(admm)
    assert {"local_epochs", "rho"}.isdisjoint(sgd)
    assert sgd["union"] == "exact"


def test_options_of_neural_models() -> None:
    found = resolved(
        "hidden = [32, 8], activation = 'GELU', dropout = 0.25, head = 'linear', "
        "optimizer = 'momentum', device = 'cpu', network = 'US-US', learning_rate = 0.1",
        "mlp_classifier",
    )
    assert (found["hidden"], found["activation"], found["dropout"]) == ((32, 8), "gelu", 0.25)
    assert (found["head"], found["embedding"]) == ("linear", 16)
    assert (found["optimizer"], found["momentum"]) == ("momentum", 0.9)
    assert (found["network"], found["learning_rate"]) == ("us-us", 0.1)
    assert resolved("head = 'linear', embedding = 4", "mlp_regressor")["embedding"] == 4
    own = resolved("network = {'bandwidth': 1e6, 'Latency': 0}", "mlp_regressor")["network"]
    assert own == {"latency": 0.0, "bandwidth": 1e6}


def test_adam_has_a_step_length_and_other_steps_of_linear_models_are_estimated() -> None:
    assert resolved("algorithm = 'sgd', optimizer = 'adam'")["learning_rate"] is None
    momentum = resolved("algorithm = 'sgd', optimizer = 'momentum', momentum = 0.5")
    assert (momentum["learning_rate"], momentum["momentum"]) == (None, 0.5)
    written = resolved("algorithm = 'sgd', optimizer = 'adam', learning_rate = 1")
    assert (written["learning_rate"], written["batch_size"]) == (1.0, None)


@pytest.mark.parametrize("kind", ["mlp_poisson_regressor", "mlp_gamma_regressor"])
def test_towers_of_exponential_means_are_trained_by_sgd(kind: str) -> None:
    assert resolved("", kind)["algorithm"] == "sgd"
    with pytest.raises(OptionError, match=f"'admm' does not train {kind}: it relies on a bound"):
        resolved("algorithm = 'admm'", kind)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            "algorithm = 'lbfgs'",
            "algorithm 'lbfgs' does not train mlp_regressor: towers are not linear",
            "algorithm = 'sgd' or 'admm' or 'pbm'",
        ),
        (
            "algorithm = 'admm', union = 'exact'",
            "option union must be 'consensus' for mlp_regressor, got 'exact'",
            "towers have no second moments to sum; leave union out",
        ),
        (
            "embedding = 4",
            "option embedding applies only with head = 'linear'",
            None,
        ),
        (
            "head = 'none', embedding = 4",
            "option embedding applies only with head = 'linear'",
            None,
        ),
        (
            "hidden = 16",
            "option hidden must be a list of whole numbers from 1 to 65536, such as [16, 8], "
            "got 16",
            "[16]",
        ),
        (
            "hidden = []",
            "option hidden must be a list of whole numbers from 1 to 65536, such as [16, 8], "
            "got []",
            "a model without hidden layers is a linear one: USING linear_regression, ...",
        ),
        (
            "hidden = [16, 0]",
            "option hidden must be a list of whole numbers from 1 to 65536, such as [16, 8], "
            "got [16, 0]",
            None,
        ),
        ("dropout = 1", "option dropout must be a number from 0 up and below 1, got 1", None),
        (
            "local_epochs = 3",
            "option local_epochs does not apply to algorithm 'sgd', only to admm",
            None,
        ),
        (
            "algorithm = 'admm', optimizer = 'adam'",
            "option optimizer does not apply to algorithm 'admm', only to sgd, pbm",
            None,
        ),
        (
            "union = 'consensus'",
            "option union must be 'exact' or 'secure' with algorithm 'sgd', got 'consensus'",
            "consensus is of algorithm = 'admm'",
        ),
        (
            "class_weight = 'balanced'",
            "option class_weight does not apply to mlp_regressor, only to logistic_regression, "
            "softmax_regression, mlp_classifier",
            None,
        ),
    ],
)
def test_refusals_of_neural_models(options: str, message: str, hint: str | None) -> None:
    with pytest.raises(OptionError) as caught:
        resolved(options, "mlp_regressor")
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.line == 1


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
    assert resolved("l2 = .5")["l2"] == resolved("l2 = +5e-1")["l2"] == 0.5
    assert resolved("l2 = +.5e-1")["l2"] == 0.05
    assert resolved("memory_limit = 1000000")["memory_limit"] == "1000000B"
    consensus = resolved("algorithm = 'admm', union = 'consensus', inner_rounds = 4")
    assert (consensus["union"], consensus["inner_rounds"]) == ("consensus", 4)


@pytest.mark.parametrize("name", ["seed", "l2"])
def test_numbers_of_hundreds_of_digits_are_refused(name: str) -> None:
    text = f"TRAIN MODEL m USING linear_regression TARGET y WITH ({name} = 1{'0' * 330}) FROM ("
    with pytest.raises(ParseError, match="a number of 331 digits is too large"):
        parse(f"{text}SELECT * FROM a.t)")


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
        (
            "algorithm = 'lbgfs'",
            "option algorithm must be 'lbfgs', 'sgd', 'admm', 'pbm', 'frank_wolfe' or 'moments', "
            "got 'lbgfs'",
        ),
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
            "option batch_size does not apply to algorithm 'admm', only to sgd, pbm",
        ),
        (
            "algorithm = 'admm', inner_rounds = 3",
            "option inner_rounds applies only with union = 'consensus'",
        ),
        (
            "hidden = [16]",
            "option hidden does not apply to linear_regression, only to mlp_regressor, "
            "mlp_classifier, mlp_poisson_regressor, mlp_gamma_regressor",
        ),
        (
            "optimizer = 'adam'",
            "option optimizer does not apply to algorithm 'lbfgs', only to sgd, pbm",
        ),
        (
            "algorithm = 'sgd', momentum = 0.5",
            "option momentum applies only with optimizer = 'momentum'",
        ),
        (
            "algorithm = 'sgd', optimizer = 'momentum', momentum = 1",
            "option momentum must be a number from 0 up and below 1, got 1",
        ),
        (
            "algorithm = 'admm', learning_rate = 1",
            "option learning_rate does not apply to algorithm 'admm', only to sgd, pbm",
        ),
        ("algorithm = 'admm', local_epochs = 1", "option local_epochs does not apply to linear_"),
        ("head = 'linear'", "option head does not apply to linear_regression, only to mlp_"),
        ("device = 'cuda'", "option device does not apply to linear_regression, only to mlp_"),
        (
            "network = 'us-de'",
            "option network must be 'us-uk', 'us-us' or your own latency in seconds and bandwidth "
            "in bits per second, such as {'latency': 0.05, 'bandwidth': 1e9}, got 'us-de'",
        ),
        ("validation_fraction = 1", "option validation_fraction must be a number from 0 to 0.9"),
        ("patience = 3", "option patience needs rows to validate on"),
        ("patience = 3, validation_fraction = 0", "option patience needs rows to validate on"),
        ("patience = 0, validation_fraction = 0.1", "option patience must be a whole number"),
        (
            "class_weight = 'balanced'",
            "option class_weight does not apply to linear_regression, only to "
            "logistic_regression, softmax_regression",
        ),
        ("warm_start = ''", "option warm_start must be the name of a model, got ''"),
        ("warm_start = 3", "option warm_start must be the name of a model, got 3"),
        (
            "epochs = {'a': 1, 'b': 'x'}",
            "option epochs must be a whole number from 1 up, got {'a': 1, 'b': 'x'}",
        ),
        (
            "schedule = 'cosine'",
            "option schedule does not apply to algorithm 'lbfgs', only to sgd",
        ),
        ("decay = 0.5", "option decay does not apply to algorithm 'lbfgs', only to sgd"),
        (
            "algorithm = 'sgd', decay = 0.5",
            "option decay applies only with schedule = 'inverse' or 'exponential'",
        ),
        (
            "algorithm = 'sgd', schedule = 'cosine', decay = 0.5",
            "option decay applies only with schedule = 'inverse' or 'exponential'",
        ),
        (
            "algorithm = 'sgd', schedule = 'exponential', decay = 1.5",
            "option decay must be a number greater than 0 and at most 1 with schedule = "
            "'exponential', got 1.5",
        ),
        (
            "algorithm = 'sgd', schedule = 'exponential', decay = 0",
            "option decay must be a number greater than 0 and at most 1",
        ),
        (
            "algorithm = 'sgd', schedule = 'cosin'",
            "option schedule must be 'constant', 'inverse', 'exponential' or 'cosine', got 'cosin'",
        ),
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
        ("epochs = 1" + "0" * 30, "whole numbers go up to 1e+15"),
        ("network = 'us_uk'", "did you mean us-uk?"),
        ("network = {'latency': 0.1}", "bandwidth is missing"),
        ("network = {}", "latency is missing"),
        ("network = {'latency': 0.1, 'band': 3}", "did you mean bandwidth?"),
        ("network = {'latency': 0.1, 'ping': 3}", "it has the keys 'latency' and 'bandwidth'"),
        (
            "network = {'latency': -0.1, 'bandwidth': 3}",
            "latency must be a number from 0 up, got -0.1",
        ),
        (
            "network = {'latency': 0, 'bandwidth': 0}",
            "bandwidth must be a number greater than 0, got 0",
        ),
        ("network = {'Latency': 0, 'latency': 0, 'bandwidth': 1}", "each key stands once"),
    ):
        with pytest.raises(OptionError) as caught:
            resolved(options)
        assert caught.value.hint == hint


def test_kinds() -> None:
    with pytest.raises(OptionError, match="model kind must be one of linear_regression, "):
        resolved("", "ridge")
    with pytest.raises(OptionError, match="did you mean logistic_regression"):
        resolved("", "logistic_regresion")


def test_markdown_has_every_option() -> None:
    lines = options_markdown().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == list(option_lines())
    assert all(line.count("|") == 6 for line in lines)
    assert all(set(line.kinds) <= set(KINDS) for line in option_lines().values())


def test_class_weights_are_known_by_the_text_of_the_class() -> None:
    written = """class_weight = {'yes': 5, "no": 1.5, -1.50: 2, 3: 0, TRUE: 0.5, 'a''b': 1}"""
    found = resolved(written, "logistic_regression")["class_weight"]
    assert found == {"yes": 5.0, "no": 1.5, "-1.50": 2.0, "3": 0.0, "true": 0.5, "a'b": 1.0}
    assert resolved("class_weight = 'BALANCED'", "softmax_regression")["class_weight"] == "balanced"
    assert resolved("", "softmax_regression")["class_weight"] is None


@pytest.mark.parametrize("value", ["'even'", "{}", "{'a': -1}", "{'a': 'b'}", "{'a': NULL}", "2"])
def test_class_weights_that_are_none(value: str) -> None:
    with pytest.raises(OptionError, match="option class_weight must be 'balanced', or a number"):
        resolved(f"class_weight = {value}", "logistic_regression")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{a: 1}", "expected a key of option class_weight, got a"),
        ("{'a': 1, 'a': 2}", "option class_weight has the key 'a' twice"),
        ("{'a' 1}", "expected : after the key 'a' of option class_weight, got 1"),
        ("{'a': 1 'b': 2}", "expected , or } after a value of option class_weight, got 'b'"),
        ("{'a': }", "expected a value for option class_weight, got }"),
        ("{'a': 1", "expected , or } after a value of option class_weight, got )"),
        ("{NULL: 1}", "expected a key of option class_weight, got NULL"),
        ("{-'a': 1}", "expected a key of option class_weight, got 'a'"),
    ],
)
def test_dictionaries_that_are_none(value: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        resolved(f"class_weight = {value}", "logistic_regression")
    assert caught.value.message == message


def test_a_dictionary_is_a_frozen_value() -> None:
    statement = parse(
        "TRAIN MODEL m USING k TARGET y WITH (a = {'x': 1, 'y': [2]}) FROM (SELECT 1)"
    )
    assert isinstance(statement, TrainModel)
    value = statement.options[0].value
    assert value == Pairs((("x", 1), ("y", (2,))))
    assert hash(value) == hash(Pairs((("x", 1), ("y", (2,)))))
    assert statement.sql[slice(*statement.options[0].span)] == "{'x': 1, 'y': [2]}"


def test_options_of_schedules() -> None:
    found = resolved("algorithm = 'sgd', schedule = 'Exponential', decay = 0.9")
    assert (found["schedule"], found["decay"]) == ("exponential", 0.9)
    assert resolved("algorithm = 'sgd', schedule = 'inverse', decay = 3")["decay"] == 3.0
    assert resolved("algorithm = 'sgd'")["schedule"] is None


def test_options_of_validation_and_warm_starts() -> None:
    found = resolved("validation_fraction = 0.25, patience = 2, warm_start = 'Old'")
    assert (found["validation_fraction"], found["patience"]) == (0.25, 2)
    assert found["warm_start"] == "Old"


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("algorithm = 'adam'", "it is an optimizer: algorithm = 'sgd', optimizer = 'adam'"),
        ("optimizer = 'SGD'", "sgd is the algorithm; its steps without more are 'plain'"),
        ("network = 'uk-us'", "did you mean us-uk?"),
        ("network = 'us_us'", "did you mean us-us?"),
        ("lr = 0.1", "it is called learning_rate here"),
        ("hidden_layer_sizes = [8]", "it is called hidden here"),
        ("random_state = 1", "it is called seed here"),
        ("method = 'sgd'", "it is called algorithm here"),
        ("kind = 'lasso'", "USING says it: logistic_regression, poisson_regression, ..."),
        ("dp = true", "PRIVACY (epsilon = ...) is a clause, after WITH"),
        ("hiden = [8]", "did you mean hidden?"),
    ],
)
def test_words_of_elsewhere_are_understood(options: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolved(options, "mlp_regressor")
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("hidden = (16, 8)", "a list stands in square brackets: hidden = [...]"),
        ('activation = "tanh"', "text stands in single quotes: activation = 'tanh'"),
        ("activation = tanh", "text stands in single quotes: activation = 'tanh'"),
    ],
)
def test_values_are_written_otherwise(options: str, hint: str) -> None:
    with pytest.raises(ParseError) as caught:
        resolved(options, "mlp_regressor")
    assert caught.value.hint == hint


def test_names_of_elsewhere_are_of_options_that_there_are() -> None:
    known, elsewhere = set(with_options().entries), with_options().elsewhere
    assert known.isdisjoint(elsewhere)
    called = {
        text.removeprefix("it is called ").removesuffix(" here") for text in elsewhere.values()
    }
    assert {name for name in called if " " not in name} <= known


def test_values_are_shown_as_they_are_written() -> None:
    written = {
        20260101: "20260101", 0.5: "0.5", True: "true", None: "NULL", "a": "'a'",
        (16, 8): "[16, 8]",
    }  # fmt: skip
    for value, text in written.items():
        assert shown(value) == text
    weights = MappingProxyType({"yes": 5, "no": 0.5})
    assert shown(weights) == "{'yes': 5, 'no': 0.5}"


KEPT = {"engine": "sql", "memory_limit": None, "hidden": [8, 4], "head": "linear", "embedding": 3}
"""Of a model, as its document has them; the others are of before there were more."""


def test_scoring_takes_what_the_model_keeps_and_what_is_written() -> None:
    statement = parse("EVALUATE MODEL m WITH (engine = 'arrays') FROM (SELECT 1)")
    assert isinstance(statement, EvaluateModel)
    found = resolve_scoring("mlp_regressor", KEPT, statement.options, statement.sql)
    assert (found.engine, found.memory_limit, found.max_joined_rows) == ("arrays", None, 10**8)
    assert found.tower is not None
    assert (found.tower.hidden, found.tower.outputs) == ((8, 4), 3)
    assert (found.tower.activation, found.tower.dropout) == ("relu", 0.0)
    linear = resolve_scoring("linear_regression", KEPT)
    assert (linear.engine, linear.tower) == ("sql", None)


@pytest.mark.parametrize(
    ("name", "value"), [("hidden", [8, 0]), ("embedding", "3"), ("engine", "fast"), ("head", True)]
)
def test_options_of_a_damaged_model_are_refused(name: str, value: object) -> None:
    message = f"the options of the model are damaged: {name} must be "
    with pytest.raises(ModelError, match=message):
        resolve_scoring("mlp_regressor", KEPT | {name: value})


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("algorithm", ["lbfgs", "sgd", "admm"])
def test_what_is_listed_gives_the_same_options_again(kind: str, algorithm: str) -> None:
    if (kind.startswith("mlp"), algorithm) != (True, "lbfgs"):
        options = training_options(kind, {"algorithm": algorithm, "seed": 3, "network": "us-uk"})
        assert training_options(kind, json.loads(json.dumps(options.listed()))) == options
        loads(to_json(options))  # as owners' guards read them: numbers that JSON has
