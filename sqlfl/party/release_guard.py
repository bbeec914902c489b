"""Guard of a client's releases in training: it bounds, noises and counts them. The guard that holds
a coordinator to an owner's policies is `sqlfl.governance.guard`.
"""

from __future__ import annotations

import math

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, PolicyError
from sqlfl.contract.privacy_specification import RoundNoise
from sqlfl.messages import Releases
from sqlfl.privacy.mechanisms import LAPLACE, noisy_max
from sqlfl.privacy.poisson_binomial.sampling import draw
from sqlfl.privacy.samplers import Entropy, add_gaussian, system

SOLVED = (
    "row_weight",
    "categories",
    "column_bound",
    "moments_noise",
    "labels_noise",
    "prediction_noise",
)
"""Fields of RoundNoise of the method 'moments'. No other method has all of them."""


class ReleaseGuard:
    """Guard of one slot at one client with `rows` active rows.

    It counts how often each row takes part in noised sums and in noised predictions. The account of
    a run is checked against these counts. `entropy` is for tests; noise comes from the system's
    generator. `solved` : the method's operator releases moments alone, as 'moments' does. `rounds`:
    of such a method, how often it releases a block's moments or its fits. Raise InternalError for
    noise of another method.
    """

    def __init__(
        self,
        privacy: RoundNoise,
        rows: int,
        entropy: Entropy = system,
        *,
        solved: bool = False,
        rounds: int = 1,
    ) -> None:
        self.privacy = privacy
        self._rounds = rounds
        self._entropy = entropy
        self._gradients = np.zeros(rows, np.int64)
        self._predictions = np.zeros(rows, np.int64)
        self._moments = 0
        self._draws = np.zeros(rows, np.int64)
        self.selections = 0
        """Choices of a column."""
        self.sketches = 0
        """Columns disclosed."""
        self.crosses = 0
        """Moments with the label and with fits."""
        self._exempt = np.zeros(0, np.int64)
        self.solved = solved
        if solved and privacy != RoundNoise(0.0, 0.0, **{n: getattr(privacy, n) for n in SOLVED}):
            raise InternalError("noise of another method than moments")
        if not solved and (privacy.row_weight or privacy.categories or privacy.labels_noise):
            raise InternalError("noise of moments, which this method does not release")
        self._most = math.inf
        self._sensitivity = 0.0
        self._limited = np.ones(rows, bool)

    def limit(self, squared_mu: float, moments_sensitivity: float, limited: Array) -> None:
        """Refuse releases of a row whose total μ², past and future, exceeds `squared_mu`.

        limited : bool (rows,), rows with this limit: all but the row that a LEFT JOIN takes without
        a partner, which holds no data. moments_sensitivity : ℓ2, for the change of one row.

        Raise PolicyError for noise of other kinds, which have no such limit, and if more has left
        already.
        """
        noise = self.privacy
        self._most, self._sensitivity, self._limited = squared_mu, moments_sensitivity, limited
        if self.solved:
            if limited[self._exempt].any():
                raise PolicyError("its owner keeps an account, and a row counts beyond its cap")
            self._check()
            return
        plain = noise.clip > 0.0 and noise.noise > 0.0 and not noise.bins and not noise.mechanism
        if not (plain and noise.prediction_clip > 0.0 and noise.prediction_noise > 0.0):
            raise PolicyError("its owner keeps an account, which has no place for this noise")
        self._check()

    def exempt(self, rows: Array) -> None:
        """Exempt these rows, which hold no data: they count in moments as often as they are
        joined.
        """
        self._exempt = rows

    def _check(self) -> None:
        """Check the limit before anything leaves."""
        if math.isinf(self._most):
            return
        noise = self.privacy
        released = self._gradients * _squared(2.0 * noise.clip, noise.noise)
        released += self._predictions * _squared(
            2.0 * noise.prediction_clip, noise.prediction_noise
        )
        moments = _squared(self._sensitivity, noise.moments_noise) if self._moments else 0.0
        if self.solved:
            moments = self._moments * _squared(1.0, noise.moments_noise)
            moments += self.crosses * _squared(1.0, noise.labels_noise)
            released = self._predictions * _squared(1.0, noise.prediction_noise)
        if float(released[self._limited].max(initial=0.0)) + moments > self._most:
            raise PolicyError(
                "more would leave than was reserved for this run by its owner's ledger"
            )

    def factors(self, norms: Array) -> Array:
        """Return the factor of each row's gradient from these norms (n,): min(1, C/norm); 0 for a
        norm beyond all numbers.
        """
        with np.errstate(divide="ignore"):
            factors: Array = np.minimum(1.0, self.privacy.clip / np.asarray(norms, np.float64))
        return np.nan_to_num(factors, copy=False)

    def gradient(self, total: Array, values: Array, rows: Array | None) -> Array:
        """Return a sum of clipped rows with noise: (d, c) or (size,), as `total`.

        values: (n, c), the coordinator's values of the `rows` (None: all), which multiply their
        gradients. A row of zeros takes no part in the sum, whatever it holds. The sum stays
        unchanged if the specification leaves gradients exact.
        """
        if not self.privacy.clip:
            return total
        part = np.any(np.asarray(values) != 0, axis=1)
        taking = np.flatnonzero(part) if rows is None else np.asarray(rows, np.int64)[part]
        self._gradients[taking] += 1
        self._check()
        return add_gaussian(total, self.privacy.noise, self._entropy)

    def predictions(self, values: Array, rows: Array | None) -> Array:
        """Return predictions (n, c) of the `rows` (None: all), clipped and noised; unchanged if the
        specification leaves them exact. Predictions that are not finite count as 0, without an
        error.
        """
        noise = self.privacy
        self._predictions[slice(None) if rows is None else np.asarray(rows, np.int64)] += 1
        self._check()
        if not noise.prediction_clip:
            return values
        finite = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, 0.0)
        with np.errstate(over="ignore", divide="ignore"):
            norms = np.linalg.norm(finite, axis=1, keepdims=True)
            clipped = finite * np.minimum(1.0, noise.prediction_clip / norms)
        return add_gaussian(clipped, noise.prediction_noise, self._entropy)

    def embeddings(self, values: Array, rows: Array) -> Array:
        """Return binomial draws of the rows' embeddings in [−1, 1], (n, P): uint32, new ones for
        each joined row. Embeddings that are not finite count as 0.
        """
        noise = self.privacy
        self._draws += np.bincount(rows, minlength=len(self._draws))
        bounded = np.clip(np.nan_to_num(values, nan=0.0), -1.0, 1.0)
        return draw(bounded, 1.0, noise.bins, noise.theta, self._entropy).astype(np.uint32)

    def choose(self, scores: Array, sensitivity: float) -> int:
        """Return the place of the largest of the scores (k,), with noise. The change of one row
        moves each score by at most `sensitivity`.
        """
        noise = self.privacy
        self.selections += 1
        scale = noise.selection_noise * sensitivity
        return noisy_max(scores, scale, noise.mechanism, self._entropy)

    def sketch(self, values: Array, sensitivity: float) -> Array:
        """Return a column's sketch (m,), with noise. The change of one row moves it by at most
        `sensitivity` in ℓ2. A sketch that is not finite counts as 0.
        """
        self.sketches += 1
        finite = values if np.isfinite(values).all() else np.zeros_like(values)
        return add_gaussian(finite, self.privacy.sketch_noise * sensitivity, self._entropy)

    def moments(self, values: Array) -> Array:
        """Return numbers of the second moments, with noise."""
        if self._moments:
            raise InternalError("second moments are released once")
        self._moments = 1
        self._check()
        return add_gaussian(values, self.privacy.moments_noise, self._entropy)

    def block_moments(self, values: Array, sensitivity: float) -> Array:
        """Return numbers of a block's second moments, with noise. The change of one row moves them
        by at most `sensitivity` in ℓ2.
        """
        if self._moments:
            raise InternalError("second moments are released once")
        self._moments = 1
        self._check()
        return add_gaussian(values, self.privacy.moments_noise * sensitivity, self._entropy)

    def label_moments(self, values: Array, sensitivity: float) -> Array:
        """Return numbers of moments with the label or with fits, noised as those of
        `block_moments`.
        """
        if self.crosses >= (1 if self.privacy.prediction_noise else self._rounds):
            raise InternalError("moments with the label are released once")
        self.crosses += 1
        self._check()
        return add_gaussian(values, self.privacy.labels_noise * sensitivity, self._entropy)

    def fits(self, values: Array, sensitivity: float) -> tuple[Array, float]:
        """Return fits (n, c) of all rows with noise, and its standard deviation. The change of one
        row moves its fit by at most `sensitivity` in ℓ2, and is not 0.
        """
        noise = self.privacy.prediction_noise
        if not (self.solved and self._rounds > 1 and noise > 0.0):
            raise InternalError("fits, which this block does not release")
        if self._predictions.any():
            raise InternalError("fits are released once")
        self._predictions += 1
        self._check()
        return add_gaussian(values, noise * sensitivity, self._entropy), noise * sensitivity

    @property
    def draws(self) -> int:
        """Return the number of draws of the row that was drawn most often."""
        return int(self._draws.max(initial=0))

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return the maximum numbers of gradient sums and predictions of a row, and the releases of
        moments.
        """
        gradients, predictions = self._gradients, self._predictions
        return int(gradients.max(initial=0)), int(predictions.max(initial=0)), self._moments


def _squared(sensitivity: float, noise: float) -> float:
    """Return μ² of one release. It is never infinite, because 0 times it must be 0."""
    return math.pow(min(sensitivity / max(noise, 1e-150), 1e150), 2.0)


def releases_of(guard: ReleaseGuard | None, run: str, slot: int) -> Releases:
    """Return an operator's report on its rounds, all 0 without a guard. The party, which noises
    labels and statistics, fills in theirs.
    """
    if guard is None:
        return Releases(run, slot, 0.0, 0.0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0, 0.0, 0.0)
    noise = guard.privacy
    gradients, predictions, moments = guard.counts
    return Releases(
        run,
        slot,
        labels=0.0,
        statistics=0.0,
        gradients=gradients,
        clip=noise.clip,
        noise=noise.noise,
        predictions=predictions,
        prediction_clip=noise.prediction_clip,
        prediction_noise=noise.prediction_noise,
        moments=moments,
        row_bound=noise.row_bound,
        moments_noise=noise.moments_noise,
        draws=guard.draws,
        bins=noise.bins,
        theta=noise.theta,
        selections=guard.selections,
        laplace=int(noise.mechanism == LAPLACE),
        selection_noise=noise.selection_noise,
        column_bound=noise.column_bound,
        residual_bound=noise.residual_bound,
        sketches=guard.sketches,
        sketch_noise=noise.sketch_noise,
        crosses=guard.crosses,
        row_weight=noise.row_weight,
        labels_noise=noise.labels_noise,
    )
