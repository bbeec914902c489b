"""The client's part of the solution by noised moments: two noised sums, each released once; in a
second round fits of its rows, or a third sum.

What a row adds to them is bounded here, whatever the coordinator sends: its numbers are clipped, it
counts no more than the cap, and its label sum has a norm of 1 at most. Rows that a LEFT JOIN made
up hold nobody's data, and are free of the last two.

Arrays of the sums are of one table (n, d). Where one-hot columns are dense too, they may be of a
stack of tables (..., n, d): `tests/privacy/test_neighbours.py` makes many at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.messages import (
    Constant,
    Gram,
    Message,
    PartialGradient,
    Predictions,
    Residuals,
    SendGram,
    SendPredictions,
    SendReleases,
    SetParameters,
)
from sqlfl.methods.moments.configuration import MomentsConfiguration
from sqlfl.models.towers import TowerShape
from sqlfl.party.client import finite, predictions_of
from sqlfl.party.operator import ClientPart
from sqlfl.party.release_guard import ReleaseGuard, releases_of
from sqlfl.party.requests import SlotExpectations
from sqlfl.party.steps import Engine
from sqlfl.privacy.block_moments import check_width, fits_change, labels_change, moments_change
from sqlfl.privacy.samplers import Entropy, system

OneHot: TypeAlias = sparse.csr_array | Array
"""One-hot columns (n, q)."""


# -- sums over bounded rows ------------------------------------------------------------------------


def bounded_numbers(numeric: Array, bound: float) -> Array:
    """Return numeric columns in units of their bound, clipped to [−1, 1]; NULL (NaN) is 0."""
    clipped: Array = np.clip(np.nan_to_num(numeric, nan=0.0) / bound, -1.0, 1.0)
    return clipped


def bounded_sums(values: Array) -> tuple[Array, Array]:
    """Return row sums Y (n, c), 0 where they are not finite, and the factors (n, 1) that make their
    norms 1 at most."""
    known = np.where(np.isfinite(values).all(axis=-1, keepdims=True), values, 0.0)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(known, axis=-1, keepdims=True)
    factors: Array = 1.0 / np.maximum(norms, 1.0)
    return known, factors


def second_moments(
    numeric: Array, onehot: OneHot, weights: Array, offsets: Sequence[int]
) -> list[Array]:
    """Σ w x xᵀ of pairs of numeric columns, of numeric and one-hot ones, of one-hot ones of two
    features; Σ w x of numeric columns, and of one-hot ones. Flat, by the weights (n,).

    offsets : first column of each category feature, and the number of columns.
    """
    weighed = numeric * weights[..., None]
    rows, columns = pairs_of(offsets)
    upper = np.triu_indices(numeric.shape[-1])
    apart = np.zeros((*numeric.shape[:-2], 0))
    if len(rows):
        apart = _dense(_product(onehot, onehot * weights[..., None]))[..., rows, columns]
    crossed = _dense(_product(onehot, weighed))
    return [
        _product(weighed, numeric)[(..., *upper)],
        crossed.reshape(*crossed.shape[:-2], -1),
        apart,
        weighed.sum(axis=-2),
        _dense(_product(onehot, weights[..., None]))[..., 0],
    ]


def scales_of(parts: Sequence[Array], numeric: int) -> Array:
    """Return how often numbers of `second_moments` stand in the symmetric matrix Σ w (x, 1)(x, 1)ᵀ,
    as factors of their norm.

    Numbers on the diagonal count once, and others twice: √2. The sum of a one-hot column is on the
    diagonal, and beside it twice: √3.
    """
    first, second = np.triu_indices(numeric)
    factors = (np.sqrt(2.0), np.sqrt(2.0), np.sqrt(2.0), np.sqrt(3.0))
    others = (
        np.full(part.shape[-1], factor) for part, factor in zip(parts[1:], factors, strict=True)
    )
    return np.concatenate([np.where(first == second, 1.0, np.sqrt(2.0)), *others])


def moments_with(numeric: Array, onehot: OneHot, sums: Array) -> Array:
    """Σ x Yᵀ (d, c), of row sums Y (n, c)."""
    parts = _product(numeric, sums), _dense(_product(onehot, sums))
    return np.concatenate(parts, axis=-2)


def fits_of(numeric: Array, onehot: OneHot, theta: Array) -> Array:
    """X θ (n, c), of weights θ (d, c)."""
    p = numeric.shape[-1]
    fits: Array = numeric @ theta[:p] + _dense(onehot @ theta[p:])
    return fits


def pairs_of(offsets: Sequence[int]) -> tuple[Array, Array]:
    """Return pairs of one-hot columns, counted from 0, of two category features, row after row."""
    start, size = offsets[0], offsets[-1] - offsets[0]
    later = np.concatenate(
        [np.full(end - first, end - start) for first, end in pairwise(offsets)] or [np.zeros(0)]
    ).astype(np.int64)
    lengths = size - later
    rows = np.repeat(np.arange(size), lengths)
    first = np.repeat(later - (np.cumsum(lengths) - lengths), lengths)
    return rows, np.arange(len(rows)) + first


def _product(one: OneHot, two: Any) -> Any:
    """oneᵀ two, of each table."""
    return one.T @ two if sparse.issparse(one) else np.swapaxes(one, -1, -2) @ two


def _dense(values: Any) -> Array:
    dense: Array = values.toarray() if hasattr(values, "toarray") else values
    return dense


# -- the operator ----------------------------------------------------------------------------------

MAX_DISTANCE = float(np.finfo(np.float32).max)
"""How far two rows' fits may be apart at most, to be sent."""


class MomentsOperator:
    """Operator of one slot's linear block at one client. θ is 0 until it is sent.

    Raises InternalError without noise, for a block to start from, and for options out of range.
    """

    shape: TowerShape | None = None

    def __init__(
        self,
        engine: Engine,
        configuration: MomentsConfiguration,
        run: str,
        slot: int,
        parameters: Sequence[Array] | None = None,
        *,
        entropy: Entropy = system,
    ) -> None:
        own, privacy = configuration, configuration.privacy
        if parameters is not None:
            raise InternalError("what moments give starts from nothing")
        if (
            privacy is None
            or not min(
                privacy.row_weight,
                privacy.column_bound,
                privacy.moments_noise,
                privacy.labels_noise,
            )
            > 0.0
        ):
            raise InternalError("moments leave with noise, of rows that are bounded")
        check_width(engine.width)
        self._held = SlotExpectations.of(engine, own)
        self._engine, self._run, self._slot = engine, run, slot
        self._theta = np.zeros((engine.width, own.outputs))
        self._weights = np.zeros((engine.width, own.outputs))
        """θ of columns in [−1, 1]."""
        self._leader = own.leader
        self._guard = ReleaseGuard(privacy, engine.rows, entropy, solved=True, rounds=own.rounds)
        self._bound = privacy.column_bound
        self._exempt = np.array(own.exempt, np.int64)
        if len(self._exempt) and int(self._exempt.max()) >= engine.rows:
            raise InternalError(f"row {self._exempt.max()} is exempt, of {engine.rows}")
        self._guard.exempt(self._exempt)
        self._columns: tuple[Array, sparse.csr_array] | None = None

    @property
    def parameters(self) -> tuple[Array, ...]:
        return (self._theta,)

    @property
    def guard(self) -> ReleaseGuard | None:
        return self._guard

    def kept(self, back: int) -> tuple[Array, ...]:
        """The parameters; InternalError for those of an epoch before, of which there is none."""
        if back:
            raise InternalError(f"{back} epochs back, of none that are kept")
        return (np.array(self._theta),)

    def handle(self, message: Message) -> Message:
        """The reply to a training message; InternalError where it does not belong here, or is of
        other rows or columns."""
        self._held.check(message, None)
        match message:
            case SendGram():
                return self._moments()
            case Residuals() if not message.of_method:
                return self._label_moments(np.asarray(message.values, np.float64))
            case SendPredictions() if message.whole and not message.training:
                return self._fits()
            case SetParameters():
                return self._set(message.values)
            case SendReleases():
                return releases_of(self._guard, self._run, self._slot)
        raise InternalError(f"message {message.kind} is no part of training by moments")

    def _bounded(self) -> tuple[Array, sparse.csr_array]:
        """The numeric columns clipped to [−1, 1], in units of their bound, and the one-hot ones."""
        if self._columns is None:
            numeric, onehot = self._engine.columns()
            self._columns = bounded_numbers(numeric, self._bound), onehot
        return self._columns

    @property
    def _sizes(self) -> tuple[int, int]:
        """Numeric columns, and category features."""
        return self._engine.numeric, len(self._engine.offsets) - 1

    # -- second moments ---------------------------------------------------------------------------

    def _moments(self) -> Message:
        """Σ w x xᵀ, Σ w x and Σ w, in units of the cap.

        All but the last are noised so that in the symmetric matrix Σ w (x, 1)(x, 1)ᵀ numbers on the
        diagonal have noise of one deviation s, and others of s/√2: these stand there twice. The
        noise in the sum of a one-hot column is s/√3.
        """
        cap = self._guard.privacy.row_weight
        weights = np.asarray(self._engine.counts, np.float64) / cap
        bounded = np.minimum(weights, 1.0)
        bounded[self._exempt] = 0.0
        parts = self._sums_of(bounded)
        rows, columns = pairs_of(self._engine.offsets)
        p, q = self._engine.numeric, self._engine.width - self._engine.numeric
        upper = np.triu_indices(p)
        scale = scales_of(parts, p)
        noised = self._guard.block_moments(
            np.concatenate(parts) * scale, moments_change(*self._sizes)
        )
        released = noised / scale
        if len(self._exempt):  # after the noise, which their size would round away
            weights[np.setdiff1d(np.arange(len(weights)), self._exempt)] = 0.0
            released += np.concatenate(self._sums_of(weights))
            bounded += weights
        found = np.split(released, np.cumsum([len(part) for part in parts])[:-1])
        whole = np.zeros((p, p))
        whole[upper] = found[0]
        whole.T[upper] = found[0]
        places = np.append(np.arange(q), rows), np.append(np.arange(q), columns)
        order = np.lexsort(places[::-1])
        return Gram(
            self._run,
            self._slot,
            numeric=whole,
            cross=found[1].reshape(q, p),
            rows=places[0][order].astype(np.uint32),
            columns=places[1][order].astype(np.uint32),
            values=np.append(found[4], found[2])[order],
            moments=np.append(found[3], found[4]),
            weight=float(bounded.sum()),  # of the join and the weights, which are not protected
        )

    def _sums_of(self, weights: Array) -> list[Array]:
        return second_moments(*self._bounded(), weights, self._engine.offsets)

    # -- moments with the label, and with fits ----------------------------------------------------

    def _label_moments(self, values: Array) -> Message:
        """Σ x Yᵀ, no row's Y being larger than 1."""
        numeric, onehot = self._bounded()
        known, factors = bounded_sums(values)
        factors[self._exempt] = 0.0
        sums = moments_with(numeric, onehot, known * factors)
        noised = self._guard.label_moments(finite(sums), labels_change(*self._sizes))
        if len(self._exempt):  # after the noise, which their size would round away
            own, told = self._exempt, known[self._exempt]
            noised = finite(noised + moments_with(numeric[own], onehot[own], told))
        return PartialGradient(self._run, self._slot, noised)

    def _fits(self) -> Message:
        """Return x θ of each row, and beside them the noise in each number.

        Raise InternalError, before rows are looked at, for θ of which fits may be beyond all
        numbers: whether those of the rows are would tell of them.
        """
        change = fits_change(self._weights, self._engine.offsets) or 1.0  # where θ is 0
        if change > MAX_DISTANCE:
            raise InternalError(f"fits of weights by which two rows may be {change:.3g} apart")
        noised, noise = self._guard.fits(fits_of(*self._bounded(), self._weights), change)
        told = np.full(int(self._leader), noise)
        return Predictions(self._run, self._slot, predictions_of(noised), told)

    def _set(self, values: Array) -> Message:
        """θ of columns in [−1, 1], as it is of the encoded ones."""
        theta = np.array(values, np.float64)
        self._weights = np.array(theta)
        constant = self._engine.centre @ theta
        theta[: self._engine.numeric] /= self._bound
        self._theta = theta
        self._columns = None
        return Constant(self._run, self._slot, finite(constant))


CLIENT = ClientPart(MomentsConfiguration, linear=MomentsOperator)
