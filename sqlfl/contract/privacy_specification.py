"""What each client is told of PRIVACY, and what is released in training: plain data.

`SnapshotPrivacy` goes to a client before it reads a row, with its `LabelNoise`. Once the join is
known there are the `PlannedReleases` of each slot, and from these `RunNoise`: for each slot a
`RoundNoise`, which goes to its clients. `sqlfl.options.privacy.Privacy` is what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Bounds: TypeAlias = tuple[float, float] | tuple[str, ...]
"""Of a feature: least and largest value, or all categories; public."""
LARGEST_BINS = 1 << 10
LARGEST_THETA = 0.25
"""Of binomial draws."""


@dataclass(frozen=True)
class LabelNoise:
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
class SnapshotPrivacy:
    """What a client must know of the privacy of one slot before training; see SlotSpecification."""

    label: LabelNoise | None
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
class RoundNoise:
    """What a client does to what it releases in each round of training; travels in `Start`."""

    clip: float
    """C: bound of the norm of a row's gradient, as it stands in the sum over joined rows; 0, with
    noise 0: gradients are exact, and rows are drawn of alone."""
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
    bins: int = 0
    """b: coins of the binomial draw that each number of a row's prediction leaves as; 0: it is not
    drawn."""
    theta: float = 0.0
    """θ of these draws; 0 without."""
    mechanism: str = ""
    """By what noise one of the block's columns is chosen, 'gumbel' or 'laplace'; empty where none
    is: with clip and noise 0 then, for no gradient is told."""
    selection_noise: float = 0.0
    """Scale of the noise in each column's score, relative to its sensitivity: 2/ε₀."""
    column_bound: float = 0.0
    """B: what values of numeric columns are clipped to."""
    residual_bound: float = 0.0
    """R: bound of |H − y| of a joined row, as it stands in scores."""
    sketch_noise: float = 0.0
    """Standard deviation of the noise in each number of a column's sketch, relative to its ℓ2
    sensitivity."""
    row_weight: float = 0.0
    """Most that a row counts in the block's moments; 0 where they are not all that is released.
    Their `moments_noise` is relative to their ℓ2 sensitivity then, which the client works out."""
    categories: int = 0
    """Category features of the block, likewise."""
    labels_noise: float = 0.0
    """Standard deviation of the noise in each number of the moments with the label, likewise."""


@dataclass(frozen=True)
class RunNoise:
    """What the noise of a run is, once the join is known."""

    rounds: Mapping[int, RoundNoise]
    """Slot -> what each of its clients does."""
    intercept_clip: float = 0.0
    """Where predictions are exact: what a joined row's part of the intercept's gradient is clipped
    to. 0 where they are noised: then all that the coordinator trains is post-processing."""
    intercept_noise: float = 0.0
    """Standard deviation of what it adds to every number of that gradient's sum."""
    labels: LabelNoise | None = None
    """Noise of the labels, where the method takes that into account; None where they are as they
    are."""


@dataclass(frozen=True)
class PlannedReleases:
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
    secret: bool = False
    """Gradients and second moments leave the clients as sums over all of them."""
    draws: int = 0
    """Sums over joined rows, each of as many numbers as a prediction has, for which one of its rows
    is drawn of, at most; 0 where predictions are not drawn."""
    outputs: int = 0
    """P, numbers of a draw; 0 without."""
    honest: int = 0
    """n: slots that draw in each of these sums, and of which nobody is told what, the slot itself
    among them; 0 without."""
    selections: int = 0
    """Choices of one of the block's columns by noised scores, at a client; 0 where none is."""
    sketches: int = 0
    """Columns that a client tells of, as noised sketches, at most."""
    residual_bound: float = 0.0
    """R; 0 without choices."""
    crosses: int = 0
    """Releases of moments with the label."""
    row_weight: float = 0.0
    """Most that a row counts in moments, where they are all that is released; 0 without."""
    categories: int = 0
    """Category features, likewise."""
    one_sided_slopes: bool = False
    """So do the slopes of the intercept: the target is a class."""
