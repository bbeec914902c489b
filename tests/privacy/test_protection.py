"""What a clause protects, as values: a mechanism each, or none."""

from __future__ import annotations

import itertools
import re

import pytest

from sqlfl.contract.privacy_specification import LabelNoise
from sqlfl.federation.planning import explain
from sqlfl.options.privacy import Privacy
from sqlfl.privacy.protection import (
    EXACT,
    UNPROTECTED,
    BinomialSums,
    NoisedGradients,
    NoisedPredictions,
    NoisedStatistics,
    PublicBounds,
    protection_of,
)
from tests.planner import plans

LABELS = {"label_epsilon": 3.0, "label_mechanism": "laplace", "label_bounds": (0.0, 10.0)}


def test_without_the_clause_nothing_is_protected() -> None:
    for privacy in (None, Privacy()):
        found = protection_of(privacy)
        assert found == UNPROTECTED
        assert not found
        assert not found.bounded
        assert not any((found.labels, found.features, found.predictions, found.statistics))


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("features", [None, {"epsilon": 1.0}, {"noise_multiplier": 2.0}])
def test_labels_and_features_are_protected_apart(
    labels: bool, features: dict[str, float] | None
) -> None:
    gaussian = NoisedPredictions("1.5")
    given: dict[str, object] = (LABELS if labels else {}) | (features or {})
    for statistics, predictions in itertools.product(
        ("none", "bounds", "noised"), ("exact", "gaussian")
    ):
        asked = given | {"statistics": statistics, "predictions": predictions, "clip": 2.0}
        asked |= {"prediction_clip": 1.5}
        found = protection_of(Privacy(**asked))  # type: ignore[arg-type]
        assert bool(found) == (labels or features is not None)
        assert found.labels == (LabelNoise("laplace", 3.0, (0.0, 10.0), ()) if labels else EXACT)
        if features is None:
            assert (found.features, found.predictions, found.statistics) == (EXACT,) * 3
            continue
        assert found.features == NoisedGradients(2.0, features.get("noise_multiplier"))
        assert found.predictions == (gaussian if predictions == "gaussian" else EXACT)
        kinds = {"none": EXACT, "bounds": PublicBounds(), "noised": NoisedStatistics()}
        assert found.statistics == kinds[statistics]
        assert found.bounded == (statistics != "none")


@pytest.mark.parametrize("z", [None, 2.0])
def test_draws_protect_features_where_gradients_are_noised(z: float | None) -> None:
    asked = Privacy(
        bins=4, theta=0.05, noise_multiplier=z, predictions="binomial", statistics="bounds"
    )
    found = protection_of(asked)
    assert found.predictions == BinomialSums(4, 0.05)
    assert found.features == (EXACT if z is None else NoisedGradients(None, z))
    assert found.bounded is (z is not None)
    assert found
    assert found.rows
    assert found.predictions.told == ("each number a draw of Binomial(b, ½ + θ h), b = 4, θ = 0.05")
    open_ = protection_of(Privacy(epsilon=1.0, predictions="binomial"))
    assert open_.predictions
    assert open_.predictions.told == "each number a draw of Binomial(b, ½ + θ h)"


def test_rows_of_draws_are_told_nothing_of_beside() -> None:
    """Neither which are equal nor what looks like a mistake, though gradients are exact."""
    asked = Privacy(bins=4, theta=0.05, predictions="binomial", statistics="bounds")
    for privacy, told in ((asked, False), (None, True)):
        plan = plans.train(plans.flights(), "mlp_classifier", {"algorithm": "pbm"}, privacy=privacy)
        kinds = {disclosure.kind for disclosure in plan.disclosures}
        assert ("findings" in kinds) is told
        assert plan.merges is False


@pytest.mark.parametrize(
    ("label", "words"),
    [
        (
            LabelNoise("laplace", 3.0, (0.0, 10.0), ()),
            "clipped to [0, 10], Laplace noise of scale 3.333",
        ),
        (LabelNoise("laplace", 1.0, None, ("a", "b", "c")), "the largest of 3 Laplace-noised"),
        (LabelNoise("randomized_response", 1.0, None, ("a", "b")), "randomised response"),
    ],
)
def test_a_mechanism_has_its_words(label: LabelNoise, words: str) -> None:
    assert label.words.startswith(words)


def test_a_number_has_the_same_digits_wherever_it_is_told() -> None:
    privacy = Privacy(**LABELS)  # type: ignore[arg-type]
    plan = explain(plans.train(plans.noised(plans.cards()), "linear_regression", privacy=privacy))
    scales = re.findall(r"scale\s+([0-9.]+\d)", str(plan.details))
    assert len(scales) > 1
    assert set(scales) == {"3.333"}
