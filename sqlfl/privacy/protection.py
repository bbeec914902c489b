"""What protects labels, features, predictions and statistics: a mechanism each, or `Exact`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sqlfl.options.privacy import Privacy
from sqlfl.privacy.specification import LabelNoise


@dataclass(frozen=True)
class Exact:
    """Nothing: it is false, and every mechanism is true."""

    def __bool__(self) -> Literal[False]:
        return False


EXACT = Exact()


@dataclass(frozen=True)
class NoisedGradients:
    """Of features: each row's gradient is clipped, and the sum of them noised."""

    clip: float | None
    """None: it follows from the join."""
    multiplier: float | None
    """Noise by clip, where it is given; else it follows from a budget."""

    words = "each row's gradient clipped, their sum noised"


@dataclass(frozen=True)
class NoisedPredictions:
    """Each row's prediction is clipped and noised at its client, in every round."""

    bound: str
    """As text; where it follows from the labels, by what."""

    words = "predictions clipped and noised"

    @property
    def told(self) -> str:
        """Of a message of them."""
        return f"each row clipped to {self.bound} and noised (Gaussian)"


@dataclass(frozen=True)
class PublicBounds:
    """Of statistics: nothing is measured, features are encoded by bounds that are public."""

    words = "encoding by public bounds"


@dataclass(frozen=True)
class NoisedStatistics:
    """Sums within public bounds, and counts of categories, are noised once."""

    words = "noised statistics"


Statistics: TypeAlias = Exact | PublicBounds | NoisedStatistics


@dataclass(frozen=True)
class Protection:
    """All that a statement has protected; exact by default, as without PRIVACY."""

    labels: LabelNoise | Exact = EXACT
    features: NoisedGradients | Exact = EXACT
    predictions: NoisedPredictions | Exact = EXACT
    """Only where features are protected too: then all that is worked out from them is."""
    statistics: Statistics = EXACT

    def __bool__(self) -> bool:
        return bool(self.labels or self.features)

    @property
    def bounded(self) -> bool:
        """Features have an ε: what they are encoded by is not exact."""
        return bool(self.features and self.statistics)


UNPROTECTED = Protection()


def protection_of(privacy: Privacy | None) -> Protection:
    """What the clause, settled, asks for."""
    if privacy is None:
        return UNPROTECTED
    labels = privacy.label or EXACT
    if not privacy.features:
        return Protection(labels)
    statistics: dict[str, Statistics] = {
        "none": EXACT, "bounds": PublicBounds(), "noised": NoisedStatistics()
    }  # fmt: skip
    noised = privacy.predictions == "gaussian"
    return Protection(
        labels,
        NoisedGradients(privacy.clip, privacy.noise_multiplier),
        NoisedPredictions(privacy.prediction_bound) if noised else EXACT,
        statistics[privacy.statistics],
    )
