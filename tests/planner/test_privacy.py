"""What PRIVACY makes of a plan: what clients are told, what is exchanged, what is said of it."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from sqlfl.base.errors import Error, InternalError, PrivacyError
from sqlfl.contract.privacy_specification import Bounds
from sqlfl.contract.schema import specifications_from_json, specifications_to_json
from sqlfl.federation.planning import explain, plan_training
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import training_options
from sqlfl.planner.explain.document import summary
from sqlfl.planner.explain.render import Notes
from sqlfl.planner.federated.plan import FederatedPlan, Noising, training_plan
from sqlfl.planner.grammar.dialect import parse
from sqlfl.planner.grammar.statements import TrainModel
from sqlfl.store.registry import Model
from tests.planner import goldens, plans
from tests.planner.conftest import DatabaseCatalog

CASES = goldens.cases("privacy.sql")


def no_models(name: str) -> Model:
    raise AssertionError(name)


def planned(sql: str, catalog: DatabaseCatalog) -> FederatedPlan:
    statement = parse(sql)
    assert isinstance(statement, TrainModel)
    return plan_training(statement, catalog, no_models)


def outcome(sql: str, catalog: DatabaseCatalog) -> str:
    """What each client is told, or the whole text of the refusal."""
    try:
        plan = planned(sql, catalog)
    except Error as error:
        return f"{type(error).__name__}: {error}"
    lines = [f"algorithm {plan.algorithm}"]
    for client in plan.clients:
        for item in plan.specifications[client]:
            fragments = plan.ucq.slots[item.slot].fragments
            assert all(item.base == ("sqlfl_base" in fragment.sql) for fragment in fragments)
            lines.append(f"{client} {item.name}, base {item.base}: {item.privacy}")
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_goldens(case: goldens.Case, catalog: DatabaseCatalog) -> None:
    goldens.check("privacy.sql", case, lambda sql: outcome(sql, catalog))


def test_what_clients_are_told_travels(catalog: DatabaseCatalog) -> None:
    for case in CASES:
        if case.expected.startswith("algorithm"):
            for told in planned(case.sql, catalog).specifications.values():
                assert specifications_from_json(specifications_to_json(told)) == told


BOUNDS: Mapping[str, Bounds] = {
    "balance": (0.0, 9.0), "trend": (-1.0, 1.0), "kind": ("gold", "blue"), "seats": (0.0, 500.0),
    "distance": (0.0, 5e3), "carrier": ("AA",), "wind_speed": (0.0, 60.0), "visib": (0.0, 10.0),
}  # fmt: skip
BOUND = Privacy(
    noise_multiplier=2.0, statistics="bounds", feature_bounds=MappingProxyType(dict(BOUNDS))
)
NOISED = replace(
    BOUND,
    statistics="noised",
    feature_bounds=MappingProxyType({n: b for n, b in BOUNDS.items() if n not in ("kind",)}),
)
GAUSSIAN = replace(BOUND, predictions="gaussian")
LABELS = Privacy(label_epsilon=2.0, label_mechanism="laplace", label_bounds=(0.0, 10.0))
CLASSES = Privacy(label_epsilon=2.0, label_classes=("false", "true"))
SGD = {"algorithm": "sgd", "batch_size": None, "learning_rate": None}
ADMM = {"algorithm": "admm", "union": "exact"}
CONSENSUS = {"algorithm": "admm", "union": "consensus", "inner_rounds": 3}


def cards(privacy: Privacy | None, kind: str = "linear_regression", **options: object):
    ucq = plans.cards()
    if privacy is not None and privacy.labels:
        ucq = plans.noised(ucq)
    return plans.train(ucq, kind, options, privacy=privacy)


def totals(plan: FederatedPlan) -> dict[tuple[str, int, str, str], tuple[str, str]]:
    return {
        (str(client), slot, kind, way): (str(times), str(size))
        for (client, slot, kind, way), (times, size) in plan.totals().items()
    }


RUNS = {
    "sgd": (BOUND, "linear_regression", SGD),
    "sgd noised": (NOISED, "linear_regression", SGD),
    "admm": (GAUSSIAN, "linear_regression", ADMM),
    "consensus": (GAUSSIAN, "linear_regression", CONSENSUS),
    "towers": (GAUSSIAN, "mlp_regressor", SGD | {"learning_rate": 0.01}),
    "towers of admm": (GAUSSIAN, "mlp_regressor", plans.LOCAL),
    "labels": (LABELS, "linear_regression", {}),
    "labels and towers": (LABELS, "mlp_regressor", {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_client_tells_what_it_released_before_anything_is_saved(name: str) -> None:
    privacy, kind, options = RUNS[name]
    plan = cards(privacy, kind, **options)
    phases = [item.phase for item in plan.exchanges]
    assert phases[-3:] == ["releases", "save", "finish"]
    asked = {(str(s.client), s.slot, str(s.bytes)) for s in plan.exchanges[-3].sends if s.bytes}
    assert asked == {("bank/0", 0, "192"), ("bank/1", 0, "192"), ("airline/0", 2, "192")}
    assert "releases" not in [item.phase for item in cards(None, kind, **options).exchanges]


MEASURED = {
    "send_exact_predictions", "exact_predictions", "send_slope", "slope", "partial_gradient",
    "sum_gradient",
}  # fmt: skip
"""Of the gradient at the end, which nobody measures where features are protected."""


@pytest.mark.parametrize("name", RUNS)
def test_nothing_else_is_exchanged_than_without_noise(name: str) -> None:
    """But what is noised has its own size, and what exact sums would tell is left out."""
    privacy, kind, options = RUNS[name]
    with_, without = totals(cards(privacy, kind, **options)), totals(cards(None, kind, **options))
    more, less = set(with_) - set(without), set(without) - set(with_)
    assert {kind for *_, kind, _ in more} <= {"releases", "send_releases", "ready"}
    left_out = {"probe"} if privacy.features else set()
    if privacy.statistics == "bounds":
        left_out |= {"statistics", "set_encoding"}
    if privacy.features:
        left_out |= {"findings", "send_findings", "equal_rows", "send_equal_rows"} | MEASURED
    assert {kind for *_, kind, _ in less} <= left_out
    changed = {k[2] for k in set(with_) & set(without) if with_[k][1] != without[k][1]}
    expected = {"prepare"}
    if privacy.features:
        # power rounds end in predictions and partial gradients; first batches are of all rows
        expected |= {"ready", "predictions", "partial_gradient", "sum_gradient", "residuals"}
        expected |= {"gram", "set_gram"}
    assert changed <= expected | ({"statistics", "set_encoding"} & {k[2] for k in with_})


def test_power_rounds_tell_too_much() -> None:
    for privacy, options in ((BOUND, SGD), (GAUSSIAN, ADMM), (GAUSSIAN, CONSENSUS)):
        plan = cards(privacy, **options)
        assert "probe" not in {s.kind for e in plan.exchanges for s in e.sends}
        assert "P" not in {symbol.name for symbol in plan.symbols}
        assert "probe" in {s.kind for e in cards(None, **options).exchanges for s in e.sends}
    assert "probe" in {s.kind for e in cards(LABELS, **ADMM).exchanges for s in e.sends}


def test_second_moments_are_a_block_and_a_diagonal() -> None:
    def sizes(plan: FederatedPlan) -> dict[str, str]:
        return {
            kind: size
            for (client, slot, kind, _), (_, size) in totals(plan).items()
            if (client, slot) == ("bank/0", 0) and kind in ("gram", "set_gram")
        }

    expected = "8·p[c]^2 + 8·p[c]·q[c] + 8·p[c] + 24·q[c] + 8"
    assert sizes(cards(GAUSSIAN, **ADMM)) == {"gram": expected, "set_gram": expected}
    assert "z[c@bank/0]" in sizes(cards(None, **ADMM))["gram"]
    assert sizes(cards(GAUSSIAN, **CONSENSUS)) == {}


def test_statistics_are_exchanged_where_bounds_do_not_do() -> None:
    def found(privacy: Privacy | None) -> dict[str, str]:
        return {
            kind: size
            for (client, slot, kind, _), (_, size) in totals(cards(privacy, **SGD)).items()
            if (client, slot) == ("bank/1", 0) and kind in ("statistics", "set_encoding")
        }

    assert found(BOUND) == {}
    noised = {
        "statistics": "24·x[c@bank/1.kind] + 112",
        "set_encoding": "24·t[c.kind] + 88",
    }
    assert found(NOISED) == noised
    plain = {
        "statistics": "24·v[c@bank/1.kind] + 112",
        "set_encoding": "24·y[c.kind] + 88",
    }
    assert found(None) == found(replace(BOUND, statistics="none")) == plain
    listed = found(replace(BOUND, statistics="noised"))
    assert listed == {"statistics": "160", "set_encoding": "136"}


def test_labels_travel_with_all_public_classes() -> None:
    def sent(plan: FederatedPlan) -> list[tuple[str, str]]:
        return [(d.what, str(d.bytes)) for d in plan.disclosures if d.kind == "labels"]

    ucq = plans.noised(plans.flights())
    plan = plans.train(ucq, "logistic_regression", privacy=CLASSES)
    what = "targets, noised: randomised response, once per row; all 2 classes, one code a row"
    assert sent(plan) == [(what, "4·a[f@airline/0] + 9")]
    numbers = "targets, noised: clipped to [0, 10], Laplace noise of scale 5, once per row"
    assert sent(cards(LABELS)) == [
        (numbers, "8·a[c@bank/0]"),
        (numbers, "8·a[c@bank/1]"),
    ]
    other = replace(CLASSES, label_mechanism="laplace", label_classes=("é", "b", "c"))
    (found,) = sent(plans.train(ucq, "softmax_regression", privacy=other))
    assert found[1] == "4·a[f@airline/0] + 4"
    assert found[0].startswith("targets, noised: the largest of 3 Laplace-noised scores")


def test_all_rows_are_in_a_step_unless_a_batch_size_is_given() -> None:
    options = SGD | {"learning_rate": 0.01}
    phases = [e.phase for e in cards(GAUSSIAN, "mlp_regressor", **options).exchanges]
    assert "batch" not in phases
    assert "first predictions" in phases
    assert "batch" in [e.phase for e in cards(None, "mlp_regressor", **options).exchanges]
    some = cards(GAUSSIAN, "mlp_regressor", **options | {"batch_size": 10})
    assert "batch" in [e.phase for e in some.exchanges]


def test_a_plan_of_privacy_protects_some_slot() -> None:
    ucq = plans.flights()
    usual = training_options("linear_regression", plans.OPTIONS)
    with pytest.raises(InternalError, match="it protects no slot"):
        training_plan("m", "linear_regression", ucq, usual, "TRAIN", noising=Noising(BOUND, {}))


def said(plan: FederatedPlan) -> str:
    return " ".join(str(explain(plan).details).split())


EXACT = "partial predictions of every active row leave in clear"
CLEAR = "labels are in clear at the coordinator"
NOTHING = "nothing here is differentially private"


def test_what_is_said_of_noise_is_what_there_is() -> None:
    none, labels, mode_a, mode_b = (
        said(cards(privacy, **SGD)) for privacy in (None, LABELS, BOUND, GAUSSIAN)
    )
    assert f"No noise is added: {NOTHING}" in none
    for text in (labels, mode_a, mode_b):
        assert "No noise is added:" not in text
    assert CLEAR not in labels
    assert "Features: none, predictions and gradients are exact" in labels
    assert "sums of noised label residuals" in labels
    assert "sums of label residuals" in mode_a
    assert EXACT in labels
    assert EXACT in mode_a
    assert EXACT not in mode_b
    for text in (mode_a, mode_b):
        assert CLEAR in text
        assert "Labels: none, the coordinator sees them in clear" in text
    assert "Features: none against the coordinator and the other parties" in mode_a
    assert "Features: none" not in mode_b
    assert "against the coordinator, the other parties, all other clients of its table" in mode_b
    assert "with only its share of the noise" in mode_a
    assert "each client adds the whole noise" in mode_b
    for text in (labels, mode_b, none):
        assert "share of the noise" not in text


def test_exact_statistics_are_never_called_protected() -> None:
    text = said(cards(replace(GAUSSIAN, statistics="none"), **SGD))
    assert "Features: none, as statistics = 'none': means, scales and categories are exact" in text
    assert "Features: (ε" not in text
    assert "each client's weighted means and variances" in text
    for privacy in (GAUSSIAN, replace(NOISED, predictions="gaussian")):
        text = said(cards(privacy, **SGD))
        assert "Features: (ε" in text
        assert "weighted means and variances" not in text
    assert "each client's statistics leave within public bounds and noised" in text


def test_rows_that_are_dropped_are_mentioned() -> None:
    for statistics in ("bounds", "none"):
        plan = cards(replace(BOUND, max_fan_out=3, statistics=statistics), **SGD)
        text = said(plan)
        assert "No row is in more than 3 joined rows: the coordinator drops further ones" in text
        assert "joined rows beyond 3 of a table row dropped at random" in text
        assert "max_fan_out = 3" in said(plan)
    assert "dropped at random" not in said(cards(BOUND, **SGD))


def test_the_expected_report_is_in_both_forms(catalog: DatabaseCatalog) -> None:
    plan = explain(planned(next(c.sql for c in CASES if c.name == "labels alone"), catalog))
    assert plan.report is not None
    page, short, full = (
        " ".join(text.split()) for text in (plan._repr_html_(), str(plan), str(plan.details))
    )
    assert full.index("WHAT IS PROMISED") < full.index("WHAT IS NOT PROTECTED")
    for sentence in plan.report.summary:
        assert sentence in short
    for sentence in (*plan.report.promises, *plan.report.assumptions):
        assert sentence in full
        assert sentence in html.unescape(page)
    assert explain(cards(None)).report is None
    assert "WHAT IS PROMISED" not in str(explain(cards(None)).details)


def test_nothing_is_said_twice() -> None:
    """No sentence of a plan, in either form."""
    for privacy, kind, options in (*RUNS.values(), (None, "linear_regression", {})):
        plan = explain(cards(privacy, kind, **options))
        for document in (summary(plan, plan.report), plan.details):
            notes = [p for s in document.sections for p in s.parts if isinstance(p, Notes)]
            sentences = [text for part in notes for item in part.items for text in item.split(". ")]
            assert len(sentences) == len(set(sentences)), Counter(sentences).most_common(1)


def test_an_impossible_budget_is_refused_before_anything_is_asked(catalog: DatabaseCatalog) -> None:
    case = next(case for case in CASES if case.name == "a budget for nothing")
    message = "this budget cannot be met, not even by one step"
    with pytest.raises(PrivacyError, match=message) as raised:
        planned(case.sql, catalog)
    assert raised.value.span is not None
    assert case.sql[slice(*raised.value.span)] == "1e-5"
    planned(case.sql.replace("1e-5", "0.1"), catalog)
