"""The table of PRIVACY's options: defaults, values, refusals, and what they change of WITH."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from sqlfl.base.errors import OptionError
from sqlfl.options.entries import AUTO
from sqlfl.options.privacy import PRIVACY, Privacy, privacy_markdown
from sqlfl.options.resolve import resolve_privacy, resolve_training, written_algorithm
from sqlfl.options.training import with_options
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import TrainModel

LINEAR, LOGISTIC = "linear_regression", "logistic_regression"


def statement(privacy: str, options: str = "", kind: str = LINEAR) -> TrainModel:
    clause = f"WITH ({options}) " if options else ""
    found = parse(
        f"TRAIN MODEL m USING {kind} TARGET y {clause}PRIVACY ({privacy}) FROM (SELECT 1)"
    )
    assert isinstance(found, TrainModel)
    return found


def resolved(privacy: str, kind: str = LINEAR) -> Privacy:
    found = statement(privacy, kind=kind)
    return resolve_privacy(found.kind, found.privacy or (), found.sql)


def trained(privacy: str, options: str = "", kind: str = LINEAR):
    found = statement(privacy, options, kind)
    asked = resolve_privacy(found.kind, found.privacy or (), found.sql)
    return resolve_training(found.kind, found.options, found.sql, asked).listed()


def test_every_option_is_a_field() -> None:
    names = [field.name for field in dataclasses.fields(Privacy)]
    assert sorted(PRIVACY.entries) == sorted(names)


def test_defaults() -> None:
    assert resolved("epsilon = 2") == Privacy(
        epsilon=2.0, statistics=AUTO, label_mechanism="laplace"
    )
    found = resolved("label_epsilon = 1", LOGISTIC)
    assert found == Privacy(label_epsilon=1.0)
    gaussian = "epsilon = 1, predictions = 'gaussian'"
    assert resolved(gaussian).prediction_clip is None
    assert resolved(gaussian, LOGISTIC).prediction_clip == 1.0
    assert resolved(f"{gaussian}, prediction_clip = 3", LOGISTIC).prediction_clip == 3.0
    assert found.labels
    assert not found.features
    assert resolved("noise_multiplier = 3", LOGISTIC).features


def test_values() -> None:
    found = resolved(
        "EPSILON = 4, delta = 1e-5, clip = 2, predictions = 'Gaussian', prediction_clip = 3, "
        "prediction_share = .25, statistics = 'NOISED', statistics_share = 0.5, max_fan_out = 7, "
        "feature_bounds = {'Age': [-1, 120.5], \"sex\": ['f', 'm'], 'one': ['x']}, "
        "label_epsilon = 1, label_bounds = [-2, 2]"
    )
    assert (found.epsilon, found.delta, found.clip, found.max_fan_out) == (4.0, 1e-5, 2.0, 7)
    assert (found.predictions, found.prediction_clip) == ("gaussian", 3.0)
    assert (found.prediction_share, found.statistics_share) == (0.25, 0.5)
    assert found.statistics == "noised"
    expected = {"age": (-1.0, 120.5), "sex": ("f", "m"), "one": ("x",)}
    assert dict(found.feature_bounds) == expected
    assert (found.label_mechanism, found.label_bounds) == ("laplace", (-2.0, 2.0))
    classes = resolved("label_epsilon = 1, label_classes = [1, -2, true, 'a']", "mlp_classifier")
    assert classes.label_classes == ("1", "-2", "true", "a")
    assert classes.label_mechanism == "randomized_response"
    laplace = resolved("label_epsilon = 1, label_mechanism = 'Laplace'", LOGISTIC)
    assert laplace.label_mechanism == "laplace"


A_BOUND = "a list of the least and the largest value, such as [0, 100]"


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (
            "epsilon = 0",
            "PRIVACY option epsilon must be a number greater than 0 and at most 1e+06, got 0",
        ),
        (
            "epsilon = 1e7",
            "PRIVACY option epsilon must be a number greater than 0 and at most 1e+06",
        ),
        (
            "epsilon = 'x'",
            "PRIVACY option epsilon must be a number greater than 0 and at most 1e+06",
        ),
        ("epsilon = true", "PRIVACY option epsilon must be a number greater than 0 and at most 1e"),
        ("label_epsilon = -1", "PRIVACY option label_epsilon must be a number from 1e-06 to 1e+09"),
        ("noise_multiplier = 0", "PRIVACY option noise_multiplier must be a number from 1e-09"),
        ("epsilon = 1, delta = 0", "PRIVACY option delta must be a number greater than 0 and less"),
        ("epsilon = 1, delta = 1", "PRIVACY option delta must be a number greater than 0 and less"),
        (
            "epsilon = 1, clip = 0",
            "PRIVACY option clip must be a number from 1e-09 to 1e+09, got 0",
        ),
        ("epsilon = 1, clip = 1e10", "PRIVACY option clip must be a number from 1e-09 to 1e+09"),
        (
            "epsilon = 1, predictions = 'pbm'",
            "PRIVACY option predictions must be 'exact', 'gaussian', 'binomial', 'sketch' or "
            "'moments'",
        ),
        ("epsilon = 1, statistics = 'x'", "PRIVACY option statistics must be 'none', 'bounds' or"),
        ("epsilon = 1, max_fan_out = 0", "PRIVACY option max_fan_out must be a whole number from"),
        ("epsilon = 1, max_fan_out = 1.5", "PRIVACY option max_fan_out must be a whole number"),
        (
            "label_epsilon = 1, label_bounds = [2, 2]",
            f"PRIVACY option label_bounds must be {A_BOUND}, got [2, 2]",
        ),
        (
            "label_epsilon = 1, label_bounds = [0, 1, 2]",
            f"PRIVACY option label_bounds must be {A_BOUND}, got [0, 1, 2]",
        ),
        ("label_epsilon = 1, label_bounds = [0, 1e999]", "PRIVACY option label_bounds must be"),
        ("label_epsilon = 1, label_bounds = [0, 1e31]", "PRIVACY option label_bounds must be"),
        ("label_epsilon = 1, label_bounds = [true, 3]", "PRIVACY option label_bounds must be"),
        ("label_epsilon = 1, label_bounds = 3", "PRIVACY option label_bounds must be"),
        ("epsilon = 1, feature_bounds = {}", "PRIVACY option feature_bounds must be bounds of"),
        ("epsilon = 1, feature_bounds = [0, 1]", "PRIVACY option feature_bounds must be"),
        ("epsilon = 1, feature_bounds = {'x': 1}", "PRIVACY option feature_bounds must be"),
        ("epsilon = 1, feature_bounds = {'x': [1, 'a']}", "PRIVACY option feature_bounds must be"),
        ("epsilon = 1, feature_bounds = {'x': ['a', 'a']}", "PRIVACY option feature_bounds must"),
        ("epsilon = 1, noise_multiplier = 2", "PRIVACY options epsilon and noise_multiplier"),
        ("delta = 0.1", "PRIVACY asks for no noise: it needs label_epsilon, epsilon or noise_mul"),
        (
            "label_epsilon = 1, label_bounds = [0, 1], clip = 1",
            "PRIVACY option clip applies only with epsilon or noise_multiplier",
        ),
        (
            "label_epsilon = 1, label_bounds = [0, 1], predictions = 'gaussian'",
            "PRIVACY option predictions applies only with epsilon or noise_multiplier",
        ),
        (
            "epsilon = 1, label_bounds = [0, 1]",
            "PRIVACY option label_bounds applies only with label_epsilon",
        ),
        (
            "epsilon = 1, label_mechanism = 'laplace'",
            "PRIVACY option label_mechanism applies only with label_epsilon",
        ),
        (
            "epsilon = 1, prediction_clip = 2",
            "PRIVACY option prediction_clip applies only with predictions = 'gaussian'",
        ),
        (
            "epsilon = 1, predictions = 'exact', prediction_share = 0.2",
            "PRIVACY option prediction_share applies only with predictions = 'gaussian'",
        ),
        (
            "epsilon = 1, statistics = 'bounds', statistics_share = 0.2",
            "PRIVACY option statistics_share applies only with statistics = 'noised'",
        ),
        (
            "label_epsilon = 1, label_bounds = [0, 1], statistics_share = 0.2",
            "PRIVACY option statistics_share applies only with statistics = 'noised'",
        ),
        ("label_epsilon = 1", "PRIVACY option label_epsilon needs label_bounds for linear_regr"),
        (
            "label_epsilon = 1, label_classes = ['a', 'b']",
            "PRIVACY option label_classes does not apply to linear_regression, whose target is a "
            "number",
        ),
        (
            "label_epsilon = 1, label_bounds = [0, 1], label_mechanism = 'randomized_response'",
            "PRIVACY option label_mechanism = 'randomized_response' is for classes, and the target",
        ),
        ("zzz = 1", "there is no PRIVACY option zzz"),
    ],
)
def test_refusals(privacy: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolved(privacy)
    assert caught.value.message.startswith(message)
    assert caught.value.span is not None
    assert caught.value.line == 1


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        (
            "label_epsilon = 1, label_bounds = [0, 1]",
            "PRIVACY option label_bounds does not apply to logistic_regression, whose target is a "
            "class",
        ),
        ("label_epsilon = 1, label_classes = ['a']", "PRIVACY option label_classes must be a list"),
        ("label_epsilon = 1, label_classes = ['1', 1]", "PRIVACY option label_classes must be a"),
        ("label_epsilon = 1, label_classes = [1.5, 2]", "PRIVACY option label_classes must be a"),
        (
            "label_epsilon = 1, label_classes = ['a', 'b', 'c']",
            "PRIVACY option label_classes must list two classes for logistic_regression, got 3",
        ),
    ],
)
def test_refusals_of_classes(privacy: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolved(privacy, LOGISTIC)
    assert caught.value.message.startswith(message)
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("privacy", "hint"),
    [
        ("epsilom = 1", "did you mean epsilon?"),
        ("max_grad_norm = 1", "it is called clip here"),
        ("sigma = 1", "it is called noise_multiplier here"),
        ("seed = 1", "it is an option of WITH: WITH (seed = ...) PRIVACY (...)"),
        ("epsilon = 1, predictions = 'gausian'", "did you mean gaussian?"),
        (
            "label_epsilon = 1, label_mechanism = 'randomised_response'",
            "it is written 'randomized_response'",
        ),
        ("label_epsilon = 1, label_bounds = [5, 1]", "[1, 5]"),
        ("epsilon = 1, feature_bounds = {'x': [5, 1]}", "x has [5, 1]: write [1, 5]"),
        (
            "epsilon = 1, feature_bounds = {'x': 5}",
            "x has 5: write the least and the largest value, such as [0, 100], or all categories",
        ),
        (
            "epsilon = 1, feature_bounds = {'x': [5, 5]}",
            "x has [5, 5]: the largest value must be greater than the least",
        ),
        (
            "epsilon = 1, feature_bounds = {'x': [1, 2, NULL]}",
            "x has [1, 2, NULL]: categories are texts: ['1', '2']; NULL has a category of its own "
            "anyway",
        ),
        (
            "epsilon = 1, feature_bounds = {'x': ['a', 'b', 'a']}",
            "x has ['a', 'b', 'a']: 'a' stands twice",
        ),
        ("feature_epsilon = 1", "it is called epsilon here"),
        ("epsilon = 1, feature_bounds = {'x': [0, 1], 'X': [0, 1]}", "column x stands twice"),
        ("delta = 0.1", "label_epsilon protects labels, epsilon features; or leave PRIVACY out"),
        (
            "label_epsilon = 1",
            "add label_bounds = [least, largest]: the noise must cover that range",
        ),
        ("label_epsilon = 1, label_classes = ['a', 'b']", "give label_bounds"),
    ],
)
def test_hints(privacy: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolved(privacy)
    assert caught.value.hint == hint


def test_hints_of_classes() -> None:
    for classes, hint in (
        ("['a']", "one class alone tells nothing"),
        ("['1', 1]", "'1' stands twice"),
    ):
        with pytest.raises(OptionError) as caught:
            resolved(f"label_epsilon = 1, label_classes = {classes}", LOGISTIC)
        assert caught.value.hint == hint


def test_unknown_kinds_are_told_first() -> None:
    with pytest.raises(OptionError, match="did you mean logistic_regression"):
        resolved("zzz = 1", "logistic_regresion")


def test_an_option_of_the_other_clause_is_known() -> None:
    with pytest.raises(OptionError) as caught:
        trained("epsilon = 1", "epsilon = 1")
    assert caught.value.hint == "it is called PRIVACY (epsilon = ...) here"


GAUSSIAN = "epsilon = 1, predictions = 'gaussian'"
LABELS = "label_epsilon = 1, label_bounds = [0, 1]"


def test_defaults_of_training_where_features_are_protected() -> None:
    sgd = trained("epsilon = 1")
    assert (sgd["algorithm"], sgd["tolerance"], sgd["batch_size"]) == ("sgd", 0.0, None)
    assert sgd["learning_rate"] is None
    admm = trained(GAUSSIAN, "algorithm = 'admm'")
    assert (admm["tolerance"], admm["inner_rounds"]) == (0.0, 10)
    towers = trained("epsilon = 1", kind="mlp_regressor")
    assert (towers["batch_size"], towers["learning_rate"]) == (None, 0.03)
    local = trained(GAUSSIAN, "algorithm = 'admm'", "mlp_regressor")
    assert (local["batch_size"], local["local_epochs"], local["inner_rounds"]) == (None, 1, 1)
    assert local["tolerance"] == 0.0
    written = trained(
        GAUSSIAN, "algorithm = 'admm', batch_size = 9, local_epochs = 3, tolerance = 0.1",
        "mlp_regressor",
    )  # fmt: skip
    assert (written["batch_size"], written["local_epochs"], written["tolerance"]) == (9, 3, 0.1)


@pytest.mark.parametrize("kind", [LINEAR, "mlp_regressor"])
def test_noised_labels_alone_change_no_default(kind: str) -> None:
    found = statement("label_epsilon = 1", kind=kind)
    assert trained(LABELS, kind=kind) == resolve_training(found.kind, (), found.sql).listed()


@pytest.mark.parametrize(
    ("privacy", "options", "kind", "why"),
    [
        (LABELS, "seed = 3", LINEAR, "option seed = 3 does not go with PRIVACY: rows would be num"),
        ("epsilon = 1", "seed = 3", "mlp_regressor", "option seed = 3 does not go with PRIVACY"),
        (LABELS, "warm_start = 'm'", LINEAR, "option warm_start = 'm' does not go with PRIVACY"),
        (GAUSSIAN, "algorithm = 'lbfgs'", LINEAR, "option algorithm = 'lbfgs' does not go with"),
        ("epsilon = 1", "algorithm = 'admm'", LINEAR, "option algorithm = 'admm' does not go with"),
        ("noise_multiplier = 1", "algorithm = 'admm'", "mlp_regressor", "option algorithm = 'admm"),
        ("epsilon = 1", "tolerance = 0.1", LINEAR, "option tolerance = 0.1 does not go with"),
        (
            "epsilon = 1",
            "patience = 3, validation_fraction = 0.2",
            LINEAR,
            "option patience = 3 does not go with PRIVACY: when training ends would depend",
        ),
        ("epsilon = 1", "head = 'linear'", "mlp_regressor", "option head = 'linear' does not go"),
    ],
)
def test_options_that_would_tell_what_noise_hides(
    privacy: str, options: str, kind: str, why: str
) -> None:
    with pytest.raises(OptionError) as caught:
        trained(privacy, options, kind)
    assert caught.value.message.startswith(why)
    assert caught.value.hint is not None
    assert caught.value.span is not None
    if "gaussian" in caught.value.hint:
        trained(GAUSSIAN, options, kind)


def test_what_tells_nothing_may_be_given() -> None:
    for privacy in ("epsilon = 1", GAUSSIAN, LABELS):
        trained(privacy, "tolerance = 0, validation_fraction = 0.2, network = 'us-uk'")
    trained(LABELS, "algorithm = 'lbfgs', tolerance = 0.1, patience = 3, validation_fraction = 0.1")
    trained(LABELS, "head = 'linear', algorithm = 'admm'", "mlp_regressor")


def test_options_are_documented() -> None:
    """Where this fails, put what `privacy_markdown()` returns into the page."""
    page = (Path(__file__).parent.parent.parent / "docs" / "options.md").read_text()
    table, _, _ = page[page.index("| PRIVACY option |") :].partition("\n\n")
    assert f"{table}\n" == privacy_markdown()
    lines = privacy_markdown().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == list(PRIVACY.entries)
    assert all(line.count("|") == 6 for line in lines)


def test_towers_that_step_once_an_epoch_step_further() -> None:
    for privacy, options, rate in (
        ("epsilon = 1", "", 0.03),
        ("epsilon = 1", "batch_size = 9", 0.01),
        ("epsilon = 1", "learning_rate = 0.02", 0.02),
        ("epsilon = 1, predictions = 'gaussian'", "", 0.003),
        ("label_epsilon = 1, label_bounds = [0, 1]", "", 0.01),
    ):
        assert trained(privacy, options, "mlp_regressor")["learning_rate"] == rate


def test_names_are_of_one_clause_only() -> None:
    known = set(PRIVACY.entries)
    assert known.isdisjoint(with_options().entries)
    for name in known:
        with pytest.raises(OptionError, match=f"there is no option {name}") as caught:
            trained("label_epsilon = 1, label_bounds = [0, 1]", f"{name} = 1")
        assert caught.value.hint == f"it is called PRIVACY ({name} = ...) here"
    assert known.isdisjoint(PRIVACY.elsewhere)
    for text in PRIVACY.elsewhere.values():
        assert text.removeprefix("it is called ").removesuffix(" here") in known


# -- algorithm 'pbm' ------------------------------------------------------------------------------

NETWORK = "mlp_classifier"


def drawn(privacy: str, options: str = "algorithm = 'pbm'", kind: str = NETWORK) -> Privacy:
    found = statement(privacy, options, kind)
    algorithm = written_algorithm(found.options, found.sql)
    asked = resolve_privacy(found.kind, found.privacy or (), found.sql, algorithm)
    resolve_training(found.kind, found.options, found.sql, asked)
    return asked


def test_draws_are_what_pbm_has() -> None:
    alone = drawn("bins = 4, theta = 0.05")
    assert (alone.predictions, alone.bins, alone.theta) == ("binomial", 4, 0.05)
    assert (alone.features, alone.drawn, alone.together, alone.gradients) == (
        True, True, True, False,
    )  # fmt: skip
    noised = drawn("noise_multiplier = 2, bins = 4, theta = 0.05, clip = 3, honest_parties = 2")
    assert (noised.gradients, noised.drawn, noised.honest_parties) == (True, True, 2)
    budget = drawn("epsilon = 2, prediction_share = 0.3")
    assert (budget.predictions, budget.bins, budget.theta) == ("binomial", None, None)
    assert drawn("epsilon = 2, predictions = 'Binomial', bins = 1024").bins == 1024
    labels = drawn("label_epsilon = 1")
    assert (labels.predictions, labels.features, labels.drawn) == ("exact", False, False)
    others = drawn("epsilon = 2, predictions = 'gaussian'", "algorithm = 'sgd'")
    assert (others.drawn, others.together, others.gradients) == (False, True, True)
    assert drawn("epsilon = 2", "algorithm = 'sgd'").predictions == "gaussian"
    for exact in ("exact", "none", "NONE"):
        asked = drawn(f"epsilon = 2, predictions = '{exact}'", "algorithm = 'sgd'")
        assert (asked.predictions, asked.together) == ("exact", False)


@pytest.mark.parametrize(
    ("privacy", "options", "message", "hint"),
    [
        (
            "bins = 4",
            "algorithm = 'pbm'",
            "PRIVACY option bins needs theta, for algorithm 'pbm'",
            "add theta; or give epsilon, from which they follow",
        ),
        (
            "theta = 0.1",
            "algorithm = 'pbm'",
            "PRIVACY option theta needs bins, for algorithm 'pbm'",
            "add bins; or give epsilon, from which they follow",
        ),
        (
            "noise_multiplier = 2",
            "algorithm = 'pbm'",
            "PRIVACY option noise_multiplier needs bins and theta, for algorithm 'pbm'",
            "add bins and theta; or give epsilon, from which they follow",
        ),
        (
            "noise_multiplier = 2, theta = 0.1",
            "algorithm = 'pbm'",
            "PRIVACY option theta needs bins, for algorithm 'pbm'",
            "add bins; or give epsilon, from which they follow",
        ),
        (
            "epsilon = 1, predictions = 'gaussian'",
            "algorithm = 'pbm'",
            "PRIVACY option predictions = 'gaussian' does not go with algorithm 'pbm', whose "
            "clients send draws that are summed in secret",
            "leave it out, or algorithm = 'sgd'",
        ),
        (
            "epsilon = 1, predictions = 'exact'",
            "algorithm = 'pbm'",
            "PRIVACY option predictions = 'exact' does not go with algorithm 'pbm', whose clients "
            "send draws that are summed in secret",
            "leave it out, or algorithm = 'sgd'",
        ),
        (
            "epsilon = 1, predictions = 'binomial'",
            "algorithm = 'admm'",
            "PRIVACY option predictions = 'binomial' applies only to algorithm 'pbm'",
            "WITH (algorithm = 'pbm') USING mlp_classifier or mlp_regressor, or 'gaussian'",
        ),
        (
            "epsilon = 1, bins = 4",
            "",
            "PRIVACY option bins applies only with predictions = 'binomial'",
            "WITH (algorithm = 'pbm') draws what leaves a client",
        ),
        (
            "epsilon = 1, honest_parties = 2",
            "algorithm = 'sgd'",
            "PRIVACY option honest_parties applies only with predictions = 'binomial'",
            "WITH (algorithm = 'pbm') draws what leaves a client",
        ),
        (
            "bins = 4, theta = 0.1, clip = 2",
            "algorithm = 'pbm'",
            "PRIVACY option clip applies only with epsilon or noise_multiplier",
            None,
        ),
        (
            "epsilon = 1, prediction_clip = 2",
            "algorithm = 'pbm'",
            "PRIVACY option prediction_clip applies only with predictions = 'gaussian'",
            None,
        ),
        (
            "epsilon = 9, bins = 4, theta = 0.01, prediction_share = 0.4",
            "algorithm = 'pbm'",
            "PRIVACY option prediction_share does not go with bins and theta, which say what draws "
            "take",
            "leave it out: gradients have the rest of epsilon",
        ),
        (
            "bins = 4, theta = 0.1, noise_multiplier = 1, epsilon = 1",
            "algorithm = 'pbm'",
            "PRIVACY options epsilon and noise_multiplier exclude each other",
            "give one of them: the other follows from it",
        ),
        (
            "bins = 0, theta = 0.1",
            "algorithm = 'pbm'",
            "PRIVACY option bins must be a whole number from 1 to 1024, got 0",
            None,
        ),
        (
            "bins = 4, theta = 0.26",
            "algorithm = 'pbm'",
            "PRIVACY option theta must be a number from 1e-06 to 0.25, got 0.26",
            None,
        ),
        (
            "bins = 4, beta = 0.2",
            "algorithm = 'pbm'",
            "there is no PRIVACY option beta",
            "it is called theta here",
        ),
        (
            "bins = 4, theta = 0.2",
            "algorithm = 'pbm', seed = 3",
            "option seed = 3 does not go with PRIVACY: rows would be numbered by their content, "
            "which the coordinator could recognise",
            "leave seed out",
        ),
        (
            "bins = 4, theta = 0.2",
            "algorithm = 'pmb'",
            "option algorithm must be 'lbfgs', 'sgd', 'admm', 'pbm', 'frank_wolfe' or 'moments', "
            "got 'pmb'",
            "did you mean pbm?",
        ),
    ],
)
def test_refusals_of_draws(privacy: str, options: str, message: str, hint: str | None) -> None:
    with pytest.raises(OptionError) as caught:
        drawn(privacy, options)
    assert caught.value.message == message
    assert caught.value.hint == hint
    assert caught.value.span is not None


def test_what_ends_a_run_may_depend_on_draws() -> None:
    for privacy in ("bins = 4, theta = 0.2", "epsilon = 2"):
        drawn(privacy, "algorithm = 'pbm', patience = 2, validation_fraction = 0.2")
        drawn(privacy, "algorithm = 'pbm', head = 'none', tolerance = 0.1", "mlp_regressor")
