"""Runs over tables of which an account is kept: each condition where it is just met, and where it
is not, and what is reserved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sqlfl.base.codec import to_json
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.request import Asked, Request
from sqlfl.contract.schema import FeatureSpecification, FittedStep, Made, SlotSpecification
from sqlfl.governance import noising
from sqlfl.governance.ledger import FEATURES, LABELS, Budget, LedgerEntry
from sqlfl.governance.scopes import ScopeColumn, SelectOutput, Table
from sqlfl.governance.tree import SelectReading
from sqlfl.options.policies import TrainingPolicy
from sqlfl.options.privacy import Privacy
from sqlfl.privacy.accountant import budget
from sqlfl.udfs.labels.label_noise import draw_of

TABLE: Table = ("memory", "main", "patients")
OTHER: Table = ("memory", "main", "visits")
EPSILON, DELTA, FOUND = 2.0, 1e-3, 4e-4
MU = budget(EPSILON, DELTA)
NUMBER, CLASS = FeatureSpecification("age", "numeric"), FeatureSpecification("ward", "category")
FITTED = replace(NUMBER, made=Made((("age", "DOUBLE"),), "age", FittedStep("minmax", "numeric")))
BINARY = LabelNoise("randomized_response", 1.0, None, ("false", "true"))
REAL = LabelNoise("laplace", 1.0, (0.0, 1.0), ())
PRIVACY = Privacy(epsilon=EPSILON, delta=DELTA, predictions="gaussian")
PUBLIC = SnapshotPrivacy(None, "bounds", ((0.0, 1.0),), 0.0, 0.0, DELTA)
NOISED = replace(PUBLIC, statistics="noised", statistics_noise=1.0 / MU)
WITHIN = "statistics in public bounds"


def request(privacy: Privacy | None = PRIVACY) -> Request:
    text = to_json(privacy)
    return Request("train", "m", "sgd", "{}", text, "null", warm=False, into=False, asked=())


def slot(*features: FeatureSpecification, **own: Any) -> SlotSpecification:
    return SlotSpecification(
        0, features, **{"target": False, "classes": False, "identifiers": (), "keys": (),
        "fragments": (0,), "shared": False, "secret": "", "engine": "sql", **own},
    )  # fmt: skip


def of_features(
    own: SnapshotPrivacy | None = PUBLIC,
    privacy: Privacy | None = PRIVACY,
    features: tuple[FeatureSpecification, ...] = (NUMBER,),
    **given: Any,
) -> str:
    """What is asked for; empty where nothing is."""
    item = slot(*features, privacy=own, **given)
    found = list(noising.of_features(request(privacy), item))
    assert [what for what, _ in found] in ([], ["its features"])
    return " ".join(why for _, why in found)


def of_labels(label: LabelNoise | None, *readings: SelectReading, **own: Any) -> list[str]:
    privacy = replace(PUBLIC, label=label, statistics="none", bounds=())
    item = slot(**{"target": True, "base": True, "privacy": privacy, **own})
    return [f"{what}: {why}" for what, why in noising.of_labels(item, readings)]


def test_a_budget_is_of_a_policy_that_has_one() -> None:
    nothing = TrainingPolicy()
    assert noising.budgets_of([nothing], ()) == noising.budgets_of([], ()) == ()
    one, other = (TrainingPolicy(epsilon=e, delta=1e-5, per=60.0) for e in (3.0, 2.0))
    assert noising.budgets_of([one, nothing], ()) == (Budget(3.0, 1e-5, 60.0),)
    assert noising.budgets_of([one, other], ()) == (Budget(2.0, 1e-5, 60.0),)
    whole = TrainingPolicy(epsilon_total=5.0, delta=1e-7)
    less = TrainingPolicy(epsilon_total=4.0, delta=1e-4, per=60.0)
    assert noising.budgets_of([nothing], [whole]) == (Budget(5.0, 1e-7, None, total=True),)
    assert noising.budgets_of([one], [whole, less]) == (
        Budget(3.0, 1e-5, 60.0),
        Budget(4.0, 1e-7, None, total=True),
    )


def test_features_are_trained_on_with_noise() -> None:
    assert of_features() == ""
    assert "training under PRIVACY" in of_features(None)
    assert "training under PRIVACY" in of_features(replace(PUBLIC, delta=None))
    assert "training under PRIVACY" in of_features(privacy=None)
    multiplier = replace(PRIVACY, epsilon=None, noise_multiplier=1.0)
    assert "training under PRIVACY" in of_features(privacy=multiplier)
    for predictions in ("none", "binomial", "sketch"):
        other = replace(PRIVACY, predictions=predictions)
        assert "predictions = 'gaussian'" in of_features(privacy=other)


@pytest.mark.parametrize(
    "own", [{"secure": True}, {"masked_predictions": True}, {"folds": 1}], ids=str
)
def test_features_are_not_told_of_otherwise(own: dict[str, Any]) -> None:
    assert "in plain sums" in of_features(**own)


def test_statistics_are_public_or_noised() -> None:
    said = "statistics that are public or noised"
    assert said in of_features(replace(PUBLIC, statistics="none"))
    assert said in of_features(features=(FITTED,))
    both = replace(PUBLIC, bounds=((0.0, 1.0), (0.0, 1.0)))
    assert said in of_features(both, features=(NUMBER, FITTED))


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 2e6])
def test_statistics_have_an_epsilon(epsilon: float) -> None:
    assert WITHIN in of_features(privacy=replace(PRIVACY, epsilon=epsilon))


@pytest.mark.parametrize("delta", [0.0, -0.1, 1.0, 1.5])
@pytest.mark.parametrize("own", [PUBLIC, NOISED], ids=["public", "noised"])
def test_statistics_have_a_delta(own: SnapshotPrivacy, delta: float) -> None:
    found = min(delta, 0.0)  # so that it is not by this that it is refused
    own = replace(own, statistics_delta=found, statistics_noise=1e9)
    assert WITHIN in of_features(own, replace(PRIVACY, delta=delta))


def test_public_statistics_are_public_of_every_feature() -> None:
    assert WITHIN in of_features(replace(PUBLIC, bounds=()))
    assert WITHIN in of_features(replace(PUBLIC, bounds=((0.0, 1.0), (0.0, 1.0))))
    assert WITHIN in of_features(replace(PUBLIC, bounds=(None,)))
    assert WITHIN in of_features(replace(PUBLIC, bounds=(None,)), features=(CLASS,))
    assert WITHIN in of_features(replace(PUBLIC, statistics_delta=FOUND))


def test_noise_of_statistics_is_what_epsilon_allows() -> None:
    assert of_features(NOISED) == ""
    for much in (0.0, -1.0, 0.9999 / MU, math.nan):
        assert WITHIN in of_features(replace(NOISED, statistics_noise=much))


def test_delta_is_shared_where_categories_are_found_out() -> None:
    noise = 1.0 / budget(EPSILON, DELTA - FOUND)
    own = replace(NOISED, bounds=(None,), statistics_delta=FOUND, statistics_noise=noise)
    assert of_features(own, features=(CLASS,)) == ""
    # what is left of it takes more noise than the whole
    less = replace(own, statistics_noise=1.0 / MU)
    assert WITHIN in of_features(less, features=(CLASS,))
    for found in (-FOUND, 0.0, DELTA, 2 * DELTA):
        other = replace(own, statistics_delta=found, statistics_noise=1e9)
        assert WITHIN in of_features(other, features=(CLASS,))
    assert WITHIN in of_features(own)  # a number without bounds
    listed = replace(own, bounds=(("a", "b"),))
    assert WITHIN in of_features(listed, features=(CLASS,))
    mixed = replace(own, bounds=(None, None))
    assert WITHIN in of_features(mixed, features=(CLASS, NUMBER))


def test_labels_are_noised() -> None:
    assert of_labels(BINARY) == []
    assert of_labels(REAL) == []
    assert of_labels(None) == ["its target: noised labels: PRIVACY (label_epsilon = ...)"]
    (said,) = of_labels(None, privacy=None)
    assert "noised labels" in said
    assert of_labels(None, target=False) == []
    assert of_labels(replace(BINARY, epsilon=0.0), target=False) == []
    assert of_labels(BINARY, weight=True) == ["its weights: nothing in clear"]


@pytest.mark.parametrize(
    "label",
    [
        *(replace(own, epsilon=e) for own in (BINARY, REAL) for e in (0.0, -1.0, math.inf)),
        replace(BINARY, epsilon=math.nan), replace(BINARY, classes=()),
        replace(BINARY, classes=("a",)), replace(BINARY, classes=("a", "a")),
        replace(REAL, mechanism="randomized_response"), replace(REAL, bounds=(1.0, 1.0)),
        replace(REAL, bounds=(1.0, 0.0)), replace(REAL, bounds=(0.0, math.inf)),
        replace(REAL, bounds=(-1e308, 1e308)), replace(REAL, bounds=(math.nan, 1.0)),
    ],
)  # fmt: skip
def test_noise_of_labels_that_is_none(label: LabelNoise) -> None:
    (said,) = of_labels(label)
    assert "an epsilon above 0, over public bounds or classes" in said


def row(*, whole: bool, nobodys: bool = False, features: int = 0) -> SelectReading:
    """Of features, the target and what noise follows from."""
    first = tuple(SelectOutput(str(n)) for n in range(features + 1))
    return SelectReading(
        (*first, SelectOutput("base", row=whole)), frozenset(), frozenset(), frozenset({TABLE}),
        nobodys=nobodys,
    )  # fmt: skip


def test_noise_of_labels_follows_from_whole_rows() -> None:
    whole, part, nobodys = row(whole=True), row(whole=False), row(whole=False, nobodys=True)
    said = ["its target: noise of labels that follows from whole rows"]
    assert of_labels(BINARY, whole, whole) == []
    assert of_labels(BINARY, whole, nobodys) == []
    assert of_labels(BINARY, whole, part) == said
    assert of_labels(BINARY, part, target=False) == []
    # a slot that is not drawn by anything has no such column, and tells no label that is noised
    assert of_labels(BINARY, part, base=False) == []
    after = slot(NUMBER, target=True, base=True, privacy=replace(PUBLIC, label=BINARY))
    ones = [row(whole=True, features=1), row(whole=False, features=1)]
    assert list(noising.of_labels(after, ones[:1])) == []
    assert [f"{what}: {why}" for what, why in noising.of_labels(after, ones[1:])] == said


def test_all_else_is_told_without_noise() -> None:
    item = slot(NUMBER, privacy=PUBLIC)
    kinds = ("score", "send_gram", "send_profile")
    asked = [Asked(0, kinds[0], "", "scores", 1), Asked(0, kinds[1], "", "its moments", 1),
             Asked(0, kinds[2], "", "", 1), Asked(1, kinds[0], "", "another's", 1)]  # fmt: skip
    found = list(noising.hindrance(request(), item, asked, []))
    said = "nothing without noise"
    assert found == [("scores", said), ("send_profile", said)]
    labels = replace(item, features=(), target=True)
    assert [what for what, _ in noising.hindrance(request(None), labels, [], [])] == ["its target"]
    assert [what for what, _ in noising.hindrance(request(None), item, [], [])] == ["its features"]
    assert list(noising.hindrance(request(None), slot(), [], [])) == []


def test_privacy_that_is_none_ends_it() -> None:
    assert noising.privacy_of(request()) == PRIVACY
    with pytest.raises(InternalError, match="the privacy of a request is none"):
        noising.privacy_of(replace(request(), privacy="[1]"))


AGE, WARD = ScopeColumn(TABLE, "age"), ScopeColumn(TABLE, "ward")
STEADY = SelectReading((), frozenset(), frozenset(), frozenset({TABLE}), stable=True)


@pytest.mark.parametrize(
    ("readings", "why"),
    [
        ([STEADY], None),
        ([], None),
        ([STEADY, replace(STEADY, tables=frozenset({OTHER}), stable=False)], None),
        ([STEADY, STEADY], noising.STABLE),
        ([replace(STEADY, stable=False)], noising.STABLE),
        ([replace(STEADY, filters=frozenset({AGE}))], noising.CONDITIONS),
        ([replace(STEADY, links=frozenset({AGE}))], None),
        ([replace(STEADY, links=frozenset({AGE, WARD}))], noising.CONDITIONS),
    ],
)
def test_a_row_of_a_table_is_one_of_the_query(
    readings: list[SelectReading], why: str | None
) -> None:
    found = list(noising.unstable([TABLE], readings, lambda column: column == AGE))
    assert found == ([] if why is None else [(TABLE, why)])


def entries(item: SlotSpecification, asked: Request) -> list[str]:
    return [entry.what for entry in noising.entries(asked, item, "draw")]


def test_what_is_reserved() -> None:
    own = replace(NOISED, label=BINARY, statistics_delta=FOUND)
    features, label = noising.entries(request(), slot(NUMBER, target=True, privacy=own), "draw")
    mu = budget(EPSILON, DELTA - FOUND)
    assert features == LedgerEntry(FEATURES, multiplier=pytest.approx(1.0 / mu), delta=FOUND)
    assert (label.what, label.epsilon, label.multiplier, label.delta) == (LABELS, 1.0, 0.0, 0.0)
    assert entries(slot(target=True, privacy=own), request()) == [LABELS]
    assert entries(slot(NUMBER, privacy=own), request()) == [FEATURES]
    assert entries(slot(NUMBER, target=True), request()) == []
    assert entries(slot(NUMBER, target=True, privacy=PUBLIC), request()) == [FEATURES]
    assert entries(slot(NUMBER, privacy=own), request(None)) == []
    multiplier = replace(PRIVACY, epsilon=None, noise_multiplier=1.0)
    assert entries(slot(NUMBER, privacy=own), request(multiplier)) == []


def test_labels_are_reserved_once_where_they_are_drawn_once() -> None:
    def identity(
        label: LabelNoise, way: str = "way", secret: bytes = b"1", key: tuple[str, ...] = ()
    ) -> str:
        item = slot(target=True, privacy=replace(PUBLIC, label=label))
        (found,) = noising.entries(request(), item, draw_of(secret, label, [way], [key]))
        return found.identity

    backwards = replace(BINARY, classes=BINARY.classes[::-1])
    assert identity(BINARY) == identity(backwards) == identity(replace(BINARY, epsilon=1))
    different = [
        identity(BINARY), identity(REAL), identity(BINARY, "other"), identity(BINARY, secret=b"2"),
        identity(BINARY, key=("pid",)), identity(BINARY, key=("pid", "day")),
        identity(replace(BINARY, epsilon=1.5)), identity(replace(BINARY, mechanism="laplace")),
        identity(replace(BINARY, classes=("a", "b"))), identity(replace(REAL, bounds=(0.0, 2.0))),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    assert noising.epsilon_of(REAL) == noising.epsilon_of(BINARY) == 1.0
    assert 0.0 < noising.epsilon_of(replace(BINARY, mechanism="laplace")) < 1.0


def test_what_training_may_release() -> None:
    found = (LedgerEntry(LABELS, epsilon=1.0), LedgerEntry(FEATURES, multiplier=0.5))
    item = slot(NUMBER, privacy=PUBLIC)

    def allowed(**own: Any) -> float | None:
        return noising.allowance(replace(item, privacy=replace(PUBLIC, **own)), found)

    assert noising.allowance(item, found[:1]) is None
    assert noising.allowance(slot(NUMBER), found) is None
    assert allowed() == pytest.approx(4.0, rel=2e-9)
    # what noised statistics take is taken from it
    assert allowed(statistics="noised", statistics_noise=0.8) == pytest.approx(2.4375, rel=2e-9)
    for much in (0.0, 0.5, 0.25):
        assert allowed(statistics="noised", statistics_noise=much) == 0.0


def test_the_epsilon_of_features_is_that_of_what_is_reserved() -> None:
    item = slot(NUMBER, target=True, privacy=replace(NOISED, label=BINARY))
    assert noising.features_epsilon(request(), item, DELTA) == pytest.approx(EPSILON, rel=1e-2)
