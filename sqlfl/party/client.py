"""The client's part of training: answers the coordinator's messages for one slot."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, ModelError
from sqlfl.contract.configuration import Configuration
from sqlfl.contract.transforms import updates
from sqlfl.messages import (
    Cells,
    ConsensusAverage,
    ConsensusPart,
    ExactPredictions,
    Message,
    PairCells,
    PartialGradient,
    Predictions,
    Probe,
    Ready,
    Residuals,
    SendCells,
    SendExactPredictions,
    SendGram,
    SendPredictions,
    SendReleases,
    SendSlope,
    SetCells,
    SetGram,
    SetPairCells,
    SetStrengths,
    Slope,
    Strengths,
    SumGradient,
)
from sqlfl.messages.grams import gram_to_message, message_to_gram
from sqlfl.models.gram import GramMatrix
from sqlfl.models.towers import TowerShape
from sqlfl.party.crossing import (
    CrossedEngine,
    PairFinder,
    SharedPairFinder,
    first_columns,
    joined_apart,
)
from sqlfl.party.effects import Precision
from sqlfl.party.moments import majorant, noised_moments
from sqlfl.party.release_guard import ReleaseGuard, releases_of
from sqlfl.party.requests import SlotExpectations
from sqlfl.party.shrinkage import ScaledEngine, Shrinkage, scaled_gram
from sqlfl.party.steps import Averaging, ClientStep, Engine, penalty
from sqlfl.privacy.samplers import Entropy, system
from sqlfl.udfs.encoding.pairs import Crossing

NOTHING = np.zeros(0)

RESOLVED = 1e-8
"""Least eigenvalue, relative to the preconditioner, that the proof of convergence reckons with."""
ROUNDING = 1e-6
"""Beyond what rounding may take from the norm of a row whose columns are centred to about 0."""

Build: TypeAlias = Callable[[Any, Engine, Array], ClientStep[Any]]
"""Of a method's configuration, an engine and θ."""


@dataclass(frozen=True, eq=False)
class Kept:
    """A block after an epoch."""

    theta: Array
    shrinkage: Shrinkage | None
    """Its strengths; None if there are none."""
    crossing: Crossing | None
    """Its pairs of features; None before there are some."""


class ClientOperator:
    """Training of one slot's linear block at one client.

    `step` makes the method's part of it. The block starts at `theta` (d, d_c), or at 0. Raises
    InternalError where that has another shape. `entropy` is for tests.

    In private runs a row's gradient x̃_r Y_rᵀ, Y_r being what the coordinator summed over the joined
    rows of the row, has the norm ‖x̃_r‖ ‖Y_r‖: Y_r is scaled so that this is at most C, once,
    however often the row is joined. The sum over the client's rows is noised before anything is
    made of it, whether the client's own step or a partial gradient; predictions are clipped and
    noised in every reply; second moments as in `sqlfl.party.moments`. Steps, penalties and
    inner rounds are functions of these alone. Power rounds take exact sums: they are refused.

    `shrinkage`: strengths of groups of columns, that training starts from and finds anew. `finder`:
    of the pairs of features that training adds; the operator owns the engine's columns of them.
    """

    shape: TowerShape | None = None

    def __init__(
        self,
        engine: Engine,
        configuration: Configuration,
        step: Build,
        run: str,
        slot: int,
        theta: Array | None = None,
        shrinkage: Shrinkage | None = None,
        finder: PairFinder | None = None,
        *,
        entropy: Entropy = system,
    ) -> None:
        self._base, self._finder = engine, finder
        self._crossing = None if finder is None else finder.first
        if self._crossing is not None:
            engine = CrossedEngine(engine, self._crossing, configuration.total)
        self._plain = self._engine = engine
        """The columns as they are encoded, with those of pairs, and as they are trained on."""
        self._slopes: Array | None = None
        """The last residuals of all rows, until pairs are chosen by them."""
        self._configuration = options = configuration
        self._shrinkage = shrinkage
        self._moments: GramMatrix | None = None
        """Gram matrix of the encoded columns, over all clients of the slot, once strengths have
        needed it."""
        self._base_moments: GramMatrix | None = None
        """The same without the cells of pairs, once pairs are added to rows of several clients."""
        self._agreed: Crossing | None = None
        """Pairs that all clients of the slot have found, until they are added."""
        self._told: SetStrengths | None = None
        """Dispersion and curvature of the last update of strengths."""
        self._updates = 0
        """Times that strengths were found anew."""
        self._run, self._slot = run, slot
        self._held = SlotExpectations.of(engine, options)
        start = np.zeros((engine.width, options.outputs))
        if theta is not None:
            if theta.shape != start.shape:
                raise InternalError(f"a start of shape {theta.shape} for a block {start.shape}")
            start = np.array(theta, np.float64)
        if shrinkage is not None:
            if options.privacy is not None or options.l2 <= 0.0:
                raise InternalError("strengths are found of exact rows, above l2 = 0")
            self._engine = ScaledEngine(engine, shrinkage.scales)
            start = start / shrinkage.scales[:, None]
        self._step = step(options, self._engine, start)
        if self._apart:
            self._step.restart(start, self._centre)
        self._averaging = cast("Averaging", self._step) if options.averagings else None
        self._kept: deque[Kept] = deque(maxlen=options.keep + 1)
        """After each of the last epochs, where `keep` asks for it."""
        self._rows: Array | None = None
        """Of the last predictions, whose residuals come next; None for all."""
        self._next: Array | None = None
        self._summed: Callable[[Array], Message] = self._advance
        """What is made of the sum of the partial gradients that comes next."""
        self._proof = b""
        """Digest of the residuals at which the slope was measured."""
        self._exact = False
        """The last residuals came in 8-byte numbers, and so do the predictions after them."""
        self._inner = 0
        self._guard: ReleaseGuard | None = None
        self._norms = NOTHING
        if options.privacy is not None:
            self._guard = ReleaseGuard(options.privacy, engine.rows, entropy)
            self._norms = np.hypot(engine.norms(), ROUNDING)
        if self._step.needs_gram and (not options.shared or options.averagings):
            self._set_gram(self._gram(), 1)

    @property
    def theta(self) -> Array:
        """(d, d_c)"""
        shrinkage = self._shrinkage
        return (
            self._step.theta if shrinkage is None else self._step.theta * shrinkage.scales[:, None]
        )

    @property
    def parameters(self) -> tuple[Array, ...]:
        """θ alone; of a tower these are several."""
        return (self.theta,)

    @property
    def guard(self) -> ReleaseGuard | None:
        return self._guard

    def kept(self, back: int) -> tuple[Array, ...]:
        """The parameters as they were `back` epochs ago: InternalError for more than are kept."""
        return (self._as_then(back).theta,)

    def strengths(self, back: int) -> Array | None:
        """Return the strengths of these parameters; None if there are none."""
        shrinkage = self._as_then(back).shrinkage
        return None if shrinkage is None else shrinkage.strengths

    def crossing(self, back: int) -> Crossing | None:
        """Return the pairs of these parameters; None if there are none."""
        return self._as_then(back).crossing

    def precision(self, back: int) -> Precision | None:
        """Return the precision of these parameters; None before strengths have been found."""
        shrinkage, told = self._as_then(back).shrinkage, self._told
        if shrinkage is None or told is None:
            return None
        configuration, width = self._configuration, self._base.width
        gram = self._plain_moments()
        if gram.width > width:
            gram = self._base.gram() if self._base_moments is None else self._base_moments
        return Precision(
            gram,
            self._base.centre,
            configuration.total,
            told.curvature,
            configuration.l2 / shrinkage.scales**2,
            told.dispersion,
        )

    def _as_then(self, back: int) -> Kept:
        if back == 0:
            return Kept(np.array(self.theta), self._shrinkage, self._crossing)
        if not 0 < back < len(self._kept):
            raise InternalError(f"{back} epochs back, of {len(self._kept)} that are kept")
        return self._kept[-1 - back]

    def handle(self, message: Message) -> Message:
        """The reply to a training message; InternalError where it does not belong here, or is of
        other rows or parameters."""
        self._held.check(message, self._rows, probing=self._summed == self._probed)
        match message:
            case SetGram():
                self._set_gram(message_to_gram(message), self._configuration.clients)
                return Ready(self._run, self._slot, self._engine.width)
            case SendPredictions():
                self._rows = None if message.whole else message.batch
                self._exact = False
                theta = self._step.theta
                return self._predictions(theta, penalty(theta, self._configuration))
            case SendExactPredictions() if self._guard is None:
                self._rows, self._exact = None, True
                theta = self._step.theta
                return self._predictions(theta, penalty(theta, self._configuration))
            case SendSlope() if self._guard is None:
                return self._measure(message.values)
            case SetStrengths():
                return self._renew(message)
            case SendCells():
                slopes, self._slopes = self._slopes, None
                if slopes is None and self._crossing is None:
                    raise InternalError("pairs are asked for before there are residuals")
                if slopes is None:
                    slopes = np.zeros((0, self._configuration.outputs))
                return Cells(self._run, self._slot, *self._shared_finder.cells(slopes))
            case SetCells():
                rows, total = self._configuration.rows, self._configuration.total
                counts, whole = self._shared_finder.choose(message, rows, total)
                return PairCells(self._run, self._slot, counts, int(whole))
            case SetPairCells():
                self._agreed = self._shared_finder.settle(message.counts)
                added = 0 if self._agreed is None else sum(self._agreed.sizes)
                return Ready(self._run, self._slot, self._plain.width + added)
            case SendGram():
                return gram_to_message(self._own_gram(), self._run, self._slot)
            case SendReleases():
                return releases_of(self._guard, self._run, self._slot)
            case Probe() if self._guard is None:
                return self._probe(message)
            case Residuals() if isinstance(message, self._step.takes):
                return self._residuals(message)
            case SumGradient():
                return self._summed(message.values)
            case ConsensusAverage():
                return self._average(message.values)
        raise InternalError(f"message {message.kind} is no part of training")

    def _renew(self, message: SetStrengths) -> Strengths:
        """New strengths for the block as it stands; training begins anew from there."""
        before, options = self._shrinkage, self._configuration
        if before is None:
            raise InternalError("no column of the block has a strength of its own")
        self._told = message
        self._updates += 1
        most = updates(pairs=True)  # another table may have pairs where this one has none
        if self._updates > most:
            raise InternalError(f"strengths are found {most} times at most")
        theta = self.theta
        after, freedom = before.renewed(
            self._plain_moments(),
            options.total,
            theta,
            message.dispersion,
            message.curvature,
            options.l2,
        )
        if message.pairs:
            theta, after = self._paired(message, theta, after)
        self._shrinkage = after
        self._engine = ScaledEngine(self._plain, after.scales)
        self._step.restart(theta / after.scales[:, None], self._centre)
        if self._step.needs_gram:
            self._set_gram(self._gram(), 1)
        return Strengths(self._run, self._slot, freedom)

    def _paired(
        self, message: SetStrengths, theta: Array, shrinkage: Shrinkage
    ) -> tuple[Array, Shrinkage]:
        """Choose pairs by the last residuals, once; θ is 0 in their cells."""
        options, finder = self._configuration, self._finder
        if finder is None:
            raise InternalError("the block has no features of which pairs were announced")
        if self._crossing is not None:
            return theta, shrinkage
        if finder.shared:
            crossing = self._agreed
        elif self._slopes is None:
            raise InternalError("pairs are asked for before there are residuals")
        else:
            slopes, self._slopes = self._slopes / options.rows, None
            curvature = message.curvature / options.total
            crossing = finder.chosen(slopes, curvature, message.dispersion, message.pairs)
        if crossing is None or not crossing.pairs:
            return theta, shrinkage
        if finder.shared:
            self._base_moments = self._plain_moments()
            self._moments = joined_apart(self._base_moments, np.concatenate(crossing.counts))
        else:
            self._moments = None
        self._crossing = crossing
        self._plain = CrossedEngine(self._base, crossing, options.total)
        self._held = SlotExpectations.of(self._plain, options)
        none = np.zeros((sum(crossing.sizes), theta.shape[1]))
        return np.concatenate([theta, none]), shrinkage.extended(crossing.sizes, options.l2)

    @property
    def _shared_finder(self) -> SharedPairFinder:
        finder = self._finder
        if not isinstance(finder, SharedPairFinder) or self._crossing is not finder.first:
            raise InternalError("no pairs of features are chosen over the databases of the slot")
        return finder

    @property
    def _apart(self) -> bool:
        """Cells of pairs, over several databases, are taken as if none occurred with another: that
        they do would tell rows."""
        return self._configuration.shared and self._crossing is not None

    def _bounds_below(self) -> bool:
        """The second derivatives are RESOLVED times those of the preconditioner at least, although
        this leaves out which cells occur together: by l2, as that is no more than so many times
        smaller than the preconditioner's largest eigenvalue."""
        options, shrinkage, width = self._configuration, self._shrinkage, self._base.width
        assert shrinkage is not None
        gram = scaled_gram(self._plain_moments(), shrinkage.scales)
        diagonal = np.concatenate([np.diag(gram.numeric), gram.onehot.diagonal()])
        largest = max(diagonal[:width].sum(), diagonal[width:].max(initial=0.0))
        largest = options.curvature / options.total * largest + options.l2
        return bool(RESOLVED * largest <= options.l2)

    @property
    def _centre(self) -> Array:
        """Centre of the columns by which steps are preconditioned."""
        centre = self._engine.centre
        if not self._apart:
            return centre
        return np.where(np.arange(len(centre)) < self._base.width, centre, 0.0)

    def _own_gram(self) -> GramMatrix:
        """The client's second moments, as they leave it."""
        if self._shrinkage is None:
            return self._gram()
        if self._apart and isinstance(self._plain, CrossedEngine):
            return self._plain.gram_apart(self._base.gram())
        return self._plain.gram()

    def _gram(self) -> GramMatrix:
        if self._shrinkage is not None:
            return scaled_gram(self._plain_moments(), self._shrinkage.scales)
        if self._guard is None:
            return self._engine.gram()
        return noised_moments(self._engine, self._guard)

    def _plain_moments(self) -> GramMatrix:
        if self._moments is None:
            self._moments = self._plain.gram()
        return self._moments

    def _set_gram(self, gram: GramMatrix, clients: int) -> None:
        """Second moments of that many clients, in sum."""
        if self._shrinkage is not None and clients > 1:
            self._moments, gram = gram, scaled_gram(gram, self._shrinkage.scales)
        if self._apart:
            self._base_moments = self._base_moments or first_columns(
                self._plain_moments(), self._base.width
            )
            kept = np.arange(gram.width) < self._base.width
            gram = replace(gram, moments=np.where(kept, gram.moments, 0.0))
        if self._guard is not None:
            deviation = self._guard.privacy.moments_noise * math.sqrt(clients)
            engine = self._engine
            gram = majorant(gram, engine.centre, engine.offsets, deviation)
        self._step.set_gram(gram)

    def _gradient(self, values: Array) -> Array:
        """Σ_r x̃_r Y_rᵀ of the rows of the last predictions, clipped and noised in private runs."""
        rows, guard = self._rows, self._guard
        if guard is None:
            return self._engine.gradient(values, rows)
        values = np.asarray(values, np.float64)
        taking = values
        if self._step.completes:  # by what is known of a row beside its features
            counts = self._engine.counts if rows is None else self._engine.counts[rows]
            taking, values = counts[:, None], self._step.completed(values, rows)
        lengths = self._norms if rows is None else self._norms[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            norms = lengths * np.linalg.norm(values, axis=1)
            clipped = values * guard.factors(norms)[:, None]
        return guard.gradient(self._engine.gradient(clipped, rows), taking, rows)

    def _probe(self, message: Probe) -> Message:
        gradient = self._engine.gradient(message.values)
        if self._configuration.averagings:
            return self._probed(gradient)
        return self._shared(gradient, self._probed)

    def _probed(self, gradient: Array) -> Message:
        return self._predictions(self._step.probe(gradient), NOTHING)

    def _shared(self, gradient: Array, then: Callable[[Array], Message]) -> Message:
        """Return the result of `then` for the slot's gradient. If several clients share the slot,
        return the gradient to be summed, and keep `then` for the sum."""
        if not self._configuration.shared:
            return then(gradient)
        self._summed = then
        return PartialGradient(self._run, self._slot, finite(gradient))

    def _measure(self, values: Array) -> Message:
        """Measure the slope, once in a fit: the norms of the gradients at many chosen residuals
        would tell the rows. Equal residuals are answered again.
        """
        proof = hashlib.sha256(np.ascontiguousarray(values).tobytes()).digest()
        if self._proof not in (b"", proof):
            raise InternalError("the slope is measured once, and is asked for at other residuals")
        self._proof = proof
        if self._configuration.metric and not self._step.needs_gram:
            self._step.set_gram(self._engine.gram())
        return self._shared(self._engine.gradient(values), self._slope)

    def _slope(self, gradient: Array) -> Message:
        squares = self._step.slope(gradient) if self._configuration.leader else NOTHING
        if self._apart and len(squares) == 2 and not self._bounds_below():
            squares[1] = squares[0] / self._configuration.l2  # as l2 alone bounds it
        return Slope(self._run, self._slot, finite(squares))

    def _residuals(self, message: Residuals) -> Message:
        self._step.begin(message)
        self._exact = message.exact
        if self._finder is not None and self._crossing is None and self._rows is None:
            self._slopes = message.values
        gradient = self._gradient(message.values)
        self._next = message.following
        if self._averaging is not None:
            self._inner = 0
            return ConsensusPart(self._run, self._slot, finite(self._averaging.part(gradient)))
        return self._shared(gradient, self._advance)

    def _average(self, mean: Array) -> Message:
        if self._averaging is None:
            raise InternalError("an average without consensus")
        self._inner += 1
        if self._inner < self._configuration.averagings:
            return ConsensusPart(self._run, self._slot, finite(self._averaging.average(mean)))
        vector, products = self._averaging.settle(mean)
        self._remember()
        return self._predictions(vector, products)

    def _advance(self, gradient: Array) -> Message:
        vector, products = self._step.advance(gradient)
        self._rows = self._next
        self._remember()
        return self._predictions(vector, products)

    def _remember(self) -> None:
        """An epoch ends with the step after which all rows are predicted; what only asks for the
        gradient anew is none."""
        if self._configuration.keep and self._rows is None and self._step.ends:
            self._kept.append(Kept(np.array(self.theta), self._shrinkage, self._crossing))

    def _predictions(self, vector: Array, products: Array) -> Predictions:
        values = self._engine.predict(vector, self._rows)
        if self._guard is not None:
            values = self._guard.predictions(values, self._rows)
        if not self._configuration.leader:
            products = NOTHING
        products = finite(products)
        if self._exact:
            return ExactPredictions(self._run, self._slot, exact_predictions_of(values), products)
        return Predictions(self._run, self._slot, predictions_of(values), products)


def predictions_of(values: Array) -> Array:
    """`values` as messages carry them, in float32; ModelError where they are not finite in it."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _finite(values.astype(np.float32))


def exact_predictions_of(values: Array) -> Array:
    """`values` in float64; ModelError where they would not fit float32 either."""
    predictions_of(values)
    return np.asarray(values, np.float64)


def _finite(values: Array) -> Array:
    if not np.isfinite(values).all():
        raise ModelError(
            "predictions of its rows do not fit the 4-byte numbers of messages: the steps "
            "diverge, or rows that count nothing in training (for validation, or of weight 0) "
            "have values far beyond those of the others",
            hint="give a smaller learning_rate, where the statement gives one",
        )
    return values


def finite(values: Array) -> Array:
    """Numbers of a block, as they are; ModelError where they are not finite."""
    if not np.isfinite(values).all():
        raise ModelError(
            "its part of the parameters is not finite: the steps diverge",
            hint="give a smaller learning_rate, where the statement gives one",
        )
    return values
