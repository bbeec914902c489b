"""What privacy a statement asks for, and what each client is told of it: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

Bounds: TypeAlias = tuple[float, float] | tuple[str, ...]
"""Of a feature: least and largest value, or all categories; public."""

LABEL_MECHANISMS = ("randomized_response", "laplace")
PREDICTIONS = ("none", "gaussian")
STATISTICS = ("none", "bounds", "noised")
DELTA = 1e-6
PREDICTION_CLIP = 1.0
PREDICTION_SHARE = 0.5
STATISTICS_SHARE = 0.1
"""Defaults of options of the same names."""


@dataclass(frozen=True)
class LabelPrivacy:
    """How the labels' owner noises them, once per row; it works out the probabilities itself."""

    mechanism: str
    """'randomized_response' or 'laplace'."""
    epsilon: float
    """The nominal one: of Laplace over classes it is not the ε that holds."""
    bounds: tuple[float, float] | None
    """Of numbers; None for classes."""
    classes: tuple[str, ...]
    """As `Labels.classes` has them: public, in order; none for numbers."""

    @property
    def words(self) -> str:
        """The mechanism, as everybody may know it."""
        if self.bounds is not None:
            low, high = self.bounds
            scale = (high - low) / self.epsilon
            return f"clipped to [{low:g}, {high:g}], Laplace noise of scale {scale:.4g}"
        if self.mechanism == "laplace":
            return f"the largest of {len(self.classes)} Laplace-noised scores"
        return "randomised response"


@dataclass(frozen=True)
class Privacy:
    """The PRIVACY clause, resolved.

    Labels and features are protected apart: `label_epsilon` for the label of one row, `epsilon` and
    `delta` for the features of one row of one table position.
    """

    label_epsilon: float | None = None
    label_mechanism: str = "randomized_response"
    """For numbers always 'laplace'."""
    label_bounds: tuple[float, float] | None = None
    """Of numbers: labels are clipped to them."""
    label_classes: tuple[str, ...] | None = None
    """All classes that labels may have, in order; known from the type for BOOLEAN."""
    epsilon: float | None = None
    noise_multiplier: float | None = None
    """z: the noise of a gradient sum is z times `clip`. Exactly one of these two is given, or none
    where features are not protected."""
    delta: float = DELTA
    clip: float | None = None
    """C: what a table row's gradient of a step is clipped to, as it stands in the sum over joined
    rows. None: the mean number of joined rows per row of the table, times the deviation of
    labels that are numbers."""
    predictions: str = "none"
    """'gaussian': clipped and noised per table row and round."""
    prediction_clip: float | None = None
    """B: what a row's prediction is clipped to. None: PREDICTION_CLIP, times the deviation of
    labels that are numbers."""
    prediction_share: float = PREDICTION_SHARE
    """Of the budget of the rounds, in units of μ², that predictions take."""
    statistics: str = "none"
    """How features are encoded: by exact statistics, by public bounds, or by noised statistics."""
    statistics_share: float = STATISTICS_SHARE
    """Of the whole budget, in units of μ², that statistics take where they are noised."""
    feature_bounds: Mapping[str, Bounds] = field(default_factory=lambda: MappingProxyType({}))
    """By the feature's name as the query gives it, folded to lower case."""
    max_fan_out: int | None = None
    """Joined rows that a table row may occur in; others are dropped at random."""

    @property
    def prediction_bound(self) -> str:
        """B as text; where it follows from the labels, by what."""
        if self.prediction_clip is None:
            return "the standard deviation of the labels"
        return f"{self.prediction_clip:.4g}"

    @property
    def labels(self) -> bool:
        """Labels are noised."""
        return self.label_epsilon is not None

    @property
    def label(self) -> LabelPrivacy | None:
        """How labels are noised; None where they are not."""
        if self.label_epsilon is None:
            return None
        classes = () if self.label_bounds is not None else self.label_classes or ()
        return LabelPrivacy(self.label_mechanism, self.label_epsilon, self.label_bounds, classes)

    @property
    def features(self) -> bool:
        """Gradients are clipped and noised."""
        return self.epsilon is not None or self.noise_multiplier is not None


@dataclass(frozen=True)
class SlotPrivacy:
    """What a client must know of the privacy of one slot before training; see SlotSpecification."""

    label: LabelPrivacy | None
    """Where the slot holds the target, and labels are noised."""
    statistics: str
    """'none', 'bounds' or 'noised'."""
    bounds: tuple[Bounds | None, ...]
    """Per feature of the slot, in order; empty where statistics are 'none'."""
    statistics_noise: float
    """Where they are noised: the standard deviation, relative to the ℓ2 sensitivity of all that the
    client measures of the slot."""
    statistics_delta: float
    """Of finding out which categories there are; 0 where none is to be found out."""
    delta: float | None
    """The δ of the features: a client with 1/δ rows or more refuses. None without epsilon."""


@dataclass(frozen=True)
class RoundPrivacy:
    """What a client does to what it releases in each round of training; travels in `Start`."""

    clip: float
    """C: bound of the norm of a row's gradient, as it stands in the sum over joined rows."""
    noise: float
    """Standard deviation of what this client adds to every number of a gradient sum."""
    prediction_clip: float = 0.0
    """B: bound of the norm of a row's prediction; 0: predictions are exact."""
    prediction_noise: float = 0.0
    """Standard deviation of what it adds to every number of a prediction."""
    row_bound: float = 0.0
    """R: bound of the norm of a row's numeric columns in second moments; 0 where none are used."""
    moments_noise: float = 0.0
    """Standard deviation of what it adds to every number of its second moments."""


@dataclass(frozen=True)
class TrainingPrivacy:
    """What the noise of a run is, once the join is known."""

    rounds: Mapping[int, RoundPrivacy]
    """Slot -> what each of its clients does."""
    intercept_clip: float = 0.0
    """Where predictions are exact: what a joined row's part of the intercept's gradient is clipped
    to. 0 where they are noised: then all that the coordinator trains is post-processing."""
    intercept_noise: float = 0.0
    """Standard deviation of what it adds to every number of that gradient's sum."""


@dataclass(frozen=True)
class SlotRounds:
    """What is released of one slot in training, as far as its noise depends on it."""

    slot: int
    gradients: int
    """Noised gradient sums that one of its rows takes part in, at most."""
    predictions: int
    """Predictions of one of its rows, at most."""
    moments: int
    """Releases of second moments: 0 or 1."""
    moments_sensitivity: float
    """ℓ2, of these, for the change of one row; 0 without."""
    clip: float
    """C"""
    clients: int
    """Q, of the slot."""
    copies: int
    """F: joined rows that one of its rows occurs in, at most."""
    partners: Mapping[int, int]
    """Other slot j -> F_ij: rows of j that one of its rows is joined with, at most."""
    steps: int
    """Steps of the intercept, in the whole run."""
    whole: bool
    """Each step is of all joined rows, not of a batch of them."""
    epochs: int = 0
    """Passes over the joined rows, where steps are of batches; not used where they are `whole`."""
    row_bound: float = 0.0
    """R of second moments; 0 without."""
    one_sided: frozenset[int] = frozenset()
    """Those of `partners` whose rows' gradients move by their clip at most, not by twice that: a
    label's slopes keep their sign, and each of these rows is joined with labels of one class."""
    one_sided_slopes: bool = False
    """So do the slopes of the intercept: the target is a class."""
