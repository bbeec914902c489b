"""PRIVACY as each client receives it, and the releases of training: plain data.

A client receives `SnapshotPrivacy` with its `LabelNoise` before it reads a row. Once the join is
known, each slot has `PlannedReleases`. They determine `RunNoise`, which has a `RoundNoise` for the
clients of each slot. `sqlfl.options.privacy.Privacy` is the user's request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Bounds: TypeAlias = tuple[float, float] | tuple[str, ...]
"""Public bounds of a feature: least and largest value, or all categories."""
MAX_BINS = 1 << 10
MAX_THETA = 0.25
"""Limit of binomial draws."""


@dataclass(frozen=True)
class LabelNoise:
    """Noise of labels, which their owner adds once for each row. It computes the probabilities
    itself.
    """

    mechanism: str
    """'randomized_response' or 'laplace'."""
    epsilon: float
    """Nominal ε. For Laplace noise over classes, it is not the ε that holds."""
    bounds: tuple[float, float] | None
    """Bounds of numbers; None for classes."""
    classes: tuple[str, ...]
    """Classes as in `Labels.classes`: public, in order; none for numbers."""

    @property
    def words(self) -> str:
        """Return the mechanism in words, which may be public."""
        if self.bounds is not None:
            low, high = self.bounds
            scale = (high - low) / self.epsilon
            return f"clipped to [{low:g}, {high:g}], Laplace noise of scale {scale:.4g}"
        if self.mechanism == "laplace":
            return f"the largest of {len(self.classes)} Laplace-noised scores"
        return "randomised response"


@dataclass(frozen=True)
class SnapshotPrivacy:
    """Privacy of one slot, as a client must know it before training; see SlotSpecification."""

    label: LabelNoise | None
    """Noise of the labels, if the slot holds the target and labels are noised."""
    statistics: str
    """'none', 'bounds' or 'noised'."""
    bounds: tuple[Bounds | None, ...]
    """Bounds of each feature of the slot, in order; empty if statistics are 'none'."""
    statistics_noise: float
    """Standard deviation of noised statistics, relative to the ℓ2 sensitivity of all that the
    client measures of the slot.
    """
    statistics_delta: float
    """δ of finding the categories with noise; 0 if none are found so."""
    delta: float | None
    """δ of the features: a client with 1/δ rows or more refuses. None without epsilon."""


@dataclass(frozen=True)
class RoundNoise:
    """Clips and noise of a client's releases in each round of training; travels in `Start`."""

    clip: float
    """C: bound of the norm of a row's gradient, as it stands in the sum over joined rows. 0, with
    noise 0: gradients are exact, and only draws of rows protect.
    """
    noise: float
    """Standard deviation of this client's noise in every number of a gradient sum."""
    prediction_clip: float = 0.0
    """B: bound of the norm of a row's prediction; 0 for exact predictions."""
    prediction_noise: float = 0.0
    """Standard deviation of its noise in every number of a prediction. With `row_weight`, it is
    relative to the predictions' ℓ2 sensitivity, which the client computes.
    """
    row_bound: float = 0.0
    """R: bound of the norm of a row's numeric columns in second moments; 0 if there are none."""
    moments_noise: float = 0.0
    """Standard deviation of its noise in every number of its second moments."""
    bins: int = 0
    """b: coins of the binomial draw for each number of a row's prediction; 0 without draws."""
    theta: float = 0.0
    """θ of these draws; 0 without them."""
    mechanism: str = ""
    """Noise of the choice of one of the block's columns, 'gumbel' or 'laplace'; empty without a
    choice. With a choice, clip and noise are 0, because no gradient is disclosed.
    """
    selection_noise: float = 0.0
    """Scale of the noise in each column's score, relative to its sensitivity: 2/ε₀."""
    column_bound: float = 0.0
    """B: clip of the values of numeric columns."""
    residual_bound: float = 0.0
    """R: bound of |H − y| of a joined row, as it stands in scores."""
    sketch_noise: float = 0.0
    """Standard deviation of the noise in each number of a column's sketch, relative to its ℓ2
    sensitivity.
    """
    row_weight: float = 0.0
    """Maximum weight of a row in the block's moments; 0 if other values are released too. With a
    weight, `moments_noise` is relative to the moments' ℓ2 sensitivity, which the client computes.
    """
    categories: int = 0
    """Category features of the block, if only moments are released."""
    labels_noise: float = 0.0
    """Standard deviation of the noise in each number of the moments with the label or with fits,
    relative to their ℓ2 sensitivity, if only moments are released.
    """


@dataclass(frozen=True)
class RunNoise:
    """Noise of a run, once the join is known."""

    rounds: Mapping[int, RoundNoise]
    """Slot -> the noise of each of its clients."""
    intercept_clip: float = 0.0
    """Clip of a joined row's part of the intercept's gradient, for exact predictions. 0 for noised
    predictions: then all that the coordinator trains is post-processing.
    """
    intercept_noise: float = 0.0
    """Standard deviation of the noise in every number of that gradient's sum."""
    labels: LabelNoise | None = None
    """Noise of the labels, if the method takes it into account; None otherwise."""


@dataclass(frozen=True)
class PlannedReleases:
    """Releases of one slot in training, as far as the noise depends on them."""

    slot: int
    gradients: int
    """Maximum number of noised gradient sums that one of its rows takes part in."""
    predictions: int
    """Maximum number of predictions of one of its rows."""
    moments: int
    """Releases of second moments: 0 or 1."""
    moments_sensitivity: float
    """Their ℓ2 sensitivity for the change of one row; 0 without them."""
    clip: float
    """C"""
    clients: int
    """Q, clients of the slot."""
    copies: int
    """F: maximum number of joined rows with one of its rows."""
    partners: Mapping[int, int]
    """Other slot j -> F_ij: maximum number of rows of j that one of its rows is joined with."""
    steps: int
    """Steps of the intercept in the whole run."""
    whole: bool
    """True if each step covers all joined rows, not a batch of them."""
    epochs: int = 0
    """Passes over the joined rows, if steps cover batches; not used with `whole`."""
    row_bound: float = 0.0
    """R of second moments; 0 without them."""
    one_sided: frozenset[int] = frozenset()
    """Those of `partners` whose rows' gradients move by at most their clip, not twice that. The
    reason: a label's slopes keep their sign, and each of these rows is joined with labels of one
    class.
    """
    secret: bool = False
    """True if gradients and second moments leave the clients only as sums over all of them."""
    draws: int = 0
    """Maximum number of sums over joined rows, each with as many numbers as a prediction, for which
    one of its rows is drawn. 0 if predictions are not drawn.
    """
    outputs: int = 0
    """P, numbers of a draw; 0 without draws."""
    honest: int = 0
    """n: slots that draw in each of these sums and whose draws nobody learns, including this slot;
    0 without draws.
    """
    selections: int = 0
    """Choices of one of the block's columns by noised scores, at a client; 0 without them."""
    sketches: int = 0
    """Maximum number of columns that a client discloses as noised sketches."""
    residual_bound: float = 0.0
    """R; 0 without choices."""
    crosses: int = 0
    """Releases of moments with the label, and with another table's fits."""
    row_weight: float = 0.0
    """Maximum weight of a row in moments, if only moments are released; 0 otherwise."""
    categories: int = 0
    """Category features, if only moments are released."""
    one_sided_slopes: bool = False
    """True if the slopes of the intercept keep their sign too: the target is a class."""
