"""Protection of labels, features, predictions and statistics: a mechanism each, or `Exact`.

`Counts` has a row's part in the releases of a method's private rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from sqlfl.contract.privacy_specification import LabelNoise
from sqlfl.options.privacy import Privacy
from sqlfl.options.training import TrainingOptions


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


@dataclass(frozen=True)
class BinomialSums:
    """Of predictions, in [−1, 1]: of each number of a joined row a client gives a binomial draw,
    and the coordinator sees the sum of all slots' draws."""

    bins: int | None
    """b; None: it follows from a budget."""
    theta: float | None
    """θ; likewise."""

    words = "embeddings drawn (Poisson binomial) and summed in secret"

    @property
    def told(self) -> str:
        """Of a message of them."""
        known = [f"{n} = {v:g}" for n, v in (("b", self.bins), ("θ", self.theta)) if v is not None]
        return f"each number a draw of Binomial(b, ½ + θ h){', ' * bool(known)}{', '.join(known)}"


@dataclass(frozen=True)
class NoisedColumns:
    """Of predictions there are none: a client tells by noised scores which column is to have a
    weight, and once a noised sketch of it."""

    mechanism: str
    """'gumbel' or 'laplace'"""

    words = "columns chosen by noised scores, their sketches noised"

    @property
    def told(self) -> str:
        """Of a message of them."""
        return f"scores noised ({self.mechanism.capitalize()}), sketches noised (Gaussian)"


@dataclass(frozen=True)
class NoisedMoments:
    """Protection of features and predictions: a client releases noised second moments of its
    columns, and noised moments with the label, once each."""

    words = "moments of the columns, and with the label, noised, once"

    @property
    def told(self) -> str:
        """Of a message of them."""
        return "rows bounded, sums noised (Gaussian), once"


Statistics: TypeAlias = Exact | PublicBounds | NoisedStatistics


@dataclass(frozen=True)
class Protection:
    """All that a statement has protected; exact by default, as without PRIVACY."""

    labels: LabelNoise | Exact = EXACT
    features: NoisedGradients | NoisedColumns | NoisedMoments | Exact = EXACT
    predictions: NoisedPredictions | BinomialSums | NoisedColumns | NoisedMoments | Exact = EXACT
    """Where features are protected too, all that is worked out from them is. Draws may be without:
    gradients are exact then, and no ε is of features."""
    statistics: Statistics = EXACT

    def __bool__(self) -> bool:
        return bool(self.labels or self.rows)

    @property
    def rows(self) -> bool:
        """Something that is made of the features of rows is noised: each is one for itself, and
        nothing is told of them beside."""
        return bool(self.features or self.predictions)

    @property
    def bounded(self) -> bool:
        """Features have an ε: what they are encoded by is not exact."""
        return bool(self.features and self.statistics)


UNPROTECTED = Protection()


def protection_of(privacy: Privacy | None) -> Protection:
    """Return the protection that the settled clause asks for."""
    if privacy is None:
        return UNPROTECTED
    labels = privacy.label or EXACT
    if not privacy.features:
        return Protection(labels)
    statistics: dict[str, Statistics] = {
        "none": EXACT, "bounds": PublicBounds(), "noised": NoisedStatistics()
    }  # fmt: skip
    predictions: dict[str, NoisedPredictions | BinomialSums | Exact] = {
        "exact": EXACT,
        "gaussian": NoisedPredictions(privacy.prediction_bound),
        "binomial": BinomialSums(privacy.bins, privacy.theta),
    }
    if privacy.chosen:
        columns = NoisedColumns(privacy.mechanism)
        return Protection(labels, columns, columns, statistics[privacy.statistics])
    if privacy.solved:
        moments = NoisedMoments()
        return Protection(labels, moments, moments, statistics[privacy.statistics])
    return Protection(
        labels,
        NoisedGradients(privacy.clip, privacy.noise_multiplier) if privacy.gradients else EXACT,
        predictions[privacy.predictions],
        statistics[privacy.statistics],
    )


@dataclass(frozen=True)
class SlotFacts:
    """Facts about a slot in a run that the counts depend on."""

    options: TrainingOptions
    joined: int
    """N, joined rows that train."""
    copies: int
    """F: maximum number of them that a row of the slot is in."""
    clients: int
    summed: int = 0
    """Maximum number of all joined rows, validation included, that a row of the slot is in."""
    leads: bool = False
    """True of the query's leading slot (`Ucq.leading`)."""


@dataclass(frozen=True)
class Counts:
    """Counts for the whole run."""

    gradients: int
    """Maximum number of sums of gradients that a row is in."""
    predictions: int
    """Predictions of a row after steps, at most: that of a tower's first parameters apart."""
    steps: int
    selections: int = 0
    """Choices of one of the slot's columns; the values of each may be sent once."""
    crosses: int = 0
    """Releases of a block's moments with the label, and with another table's fits, beside one of
    its second moments."""
    draws: int = 0
    """Joined rows' sums for which a row is drawn of, at most."""
