"""Noise that a budget asks for, and the check of a run's releases against its plan.

The unit is a change of the features of one row of slot i, the join graph fixed. μ² = Σ (Δ/σ)².

Noised predictions: all that the coordinator makes of them is post-processing, so that a row acts
through its own releases only. Its clipped gradient, and so a client's sum, moves by at most 2C; its
prediction by at most 2B. With z of noise/clip, a round has 1/z_eff² = 4/z_h² + 4/z_i², and G sums
with P predictions μ² = 4G/z_i² + 4P/z_h². Each client adds the whole noise z C to what it sends,
since the coordinator sees each client's sum. Where it sees their sum only, each of Q clients adds
z C/√(Q−1): to a client of the slot, which gets the sum back and knows its own noise, as to the
coordinator and one such client together, there is still all of it.

Exact predictions, of which the model's parameters alone are promised: the row moves the slopes of
its F joined rows, and by them the gradients of the F_ij rows of slot j that it is joined with, each
by at most a_j C_j, and the intercept's slopes, each clipped to 1, by at most b each. The sum over
slot j has noise z C_j (z C_j/√Q at each of Q clients), the intercept's z: a step adds
((a_j F_ij)² + (b F)²)/z², and 1/z_eff² = (4 + Σ_j (a_j F_ij)² + (b F)²)/z².
a_j = b = 2: two vectors of norm C may be 2C apart. Of classes b = 1. The slope of a joined row of
class y is v = w (p − e_y), w > 0 and p probabilities: a sum with positive coefficients of the
g_k = e_k − e_y, k ≠ y. For these g_k·g_l = 1 and g_k·g_k = 2, so that for u = Σ a_k g_k and
v = Σ b_k g_k, with A = Σ a_k and B = Σ b_k, u·v ≥ A B, ‖u‖² ≤ 2A² and ‖v‖² ≤ 2B²: the angle
between them is at most 60°. Clipped, both have norm 1 at most, and two such vectors are at most 1
apart: ‖u‖² + ‖v‖² − ‖u‖ ‖v‖ ≤ 1. (Of two classes they lie on one ray.) The same holds of a row's
gradient x̃ ⊗ Σ v where all its joined rows have one class, for the sum is in the same cone: a_j = 1
for slots all of whose rows are such. A tower's gradient Jᵀ Σ v may have any angles, but for two
classes, where it lies on a ray.
In S batches, f_b of the row's copies are in batch b, Σ f_b = F; they meet at most min(f_b, F_ij)
rows of slot j, and min(f, m)² is at most f m and m²: an epoch adds at most
a_j² min(F F_ij, S F_ij²)/z² for slot j and b² F²/z² for the intercept. One z serves all slots; the
one where it makes the largest μ decides.

Draws of predictions, of which sums over all slots are seen, are no Gaussian releases, and ε is not
of μ² alone: sqlfl.privacy.binomial. All else is as with noised predictions. Without noise of
gradients there is no ε over a run.

Shares of the budget are shares of μ², since these add up: statistics take theirs of the whole,
second moments 0.1 of what is left; of what is left then, predictions take theirs, and gradients the
rest. With a noise_multiplier, gradients are as they are, and the shares of the others follow.

Choices of columns and their sketches: PRIVACY asks for the noise of both.

The unit is a change of the features of one row of slot i, the join graph fixed. Requests
to a client follow from choices and sketches that were released before, and from labels: the row
acts through its own client's releases alone, in every choice and once in each released column.
It moves a column's score Σ_r x_r v_r by at most max|x − x'| max|v_r|, |v_r| ≤ cnt_r R/N, and a
column's sketch Σ_r x_r S_r by at most max|x − x'| max‖S_r‖, S_r = Σ_{j ∈ G(r)} J_·j. A client works
both out from the join and J, and adds noise relative to them (sqlfl.methods.frank_wolfe.client).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from sqlfl.base.errors import InternalError, PrivacyError
from sqlfl.contract.privacy_specification import PlannedReleases, RoundNoise, RunNoise
from sqlfl.options.privacy import PREDICTION_CLIP, Privacy
from sqlfl.privacy import events as of
from sqlfl.privacy.accountant import budget, epsilon_of, squared_mu
from sqlfl.privacy.binomial import Drawing, drawing_of
from sqlfl.privacy.events import CHOICES, COLUMNS, Event, Gaussian, Selection, Threshold
from sqlfl.privacy.limits import check_noise
from sqlfl.privacy.mechanisms import GUMBEL, LAPLACE

if TYPE_CHECKING:
    from sqlfl.messages import Releases

SLACK = 1e-6
"""Relative margin of all noise over the account's, for rounding to the samplers' grid and in
sums."""
MOMENTS_SHARE = 0.1
"""Share of second moments in the μ² that statistics leave."""
SECOND_SHARE = 0.25
"""The same share where only moments with the label are released beside them."""
CATEGORIES_SHARE = 0.1
"""Of δ, for the categories that are found out."""
INTERCEPT_CLIP = 1.0


@dataclass(frozen=True, eq=False)
class NoiseCalibration:
    """The noise of a run, and its ε."""

    privacy: Privacy
    rounds: Mapping[int, PlannedReleases]
    """Slot -> its planned releases."""
    training: RunNoise
    events: Mapping[int, tuple[Event, ...]]
    """Slot -> all releases that the features of one of its rows take part in."""
    epsilons: Mapping[int, float]
    """Slot -> ε at `delta`, that holds for a row of it; infinite where gradients are exact."""
    delta: float
    multipliers: Mapping[int, float]
    """Slot -> z: the noise of a gradient sum over its clip."""
    prediction_multipliers: Mapping[int, float]
    """Slot -> z_h: the noise of a prediction over its clip; empty where predictions are exact."""


def statistics_noise(privacy: Privacy) -> float:
    """Standard deviation of the noise of a slot's statistics over their ℓ2 sensitivity; 0 where
    statistics are not noised.

    From epsilon, by their share; with a noise_multiplier z as much as one gradient sum has, z/2.
    Raise PrivacyError where the budget is impossible.
    """
    return _statistics(privacy) * (1.0 + SLACK)


def statistics_delta(privacy: Privacy, categories_to_find: bool) -> float:
    """The part of δ that goes to showing which categories there are: 0 where they are given."""
    if privacy.statistics != "noised" or not categories_to_find:
        return 0.0
    return CATEGORIES_SHARE * privacy.delta


def calibrate(privacy: Privacy, slots: Sequence[PlannedReleases]) -> NoiseCalibration:
    """The noise of every slot, so that a run of these rounds has the ε asked for, or the noise
    multiplier.

    With noised or drawn predictions every slot has a z of its own; otherwise one z is for all, and
    the slot decides that needs most. With epsilon given, an ε is never above it. Where statistics
    are noised, every slot pays for finding its categories. Raise PrivacyError for a budget that
    asks for more noise than MAX_MULTIPLIER, and for options that exclude each other.
    """
    _check(privacy, slots)
    together = privacy.together
    statistics, rest = _statistics(privacy), _rest(privacy)
    spread = {} if together else {planned.slot: _spread_of(planned) for planned in slots}
    common = 0.0 if together else _common(privacy, slots, spread, rest)
    drawing = None
    if privacy.drawn:
        drawing = drawing_of(privacy, slots, _of_statistics(privacy, statistics), rest)
    rounds: dict[int, RoundNoise] = {}
    found: dict[int, tuple[Event, ...]] = {}
    multipliers: dict[int, float] = {}
    of_predictions: dict[int, float] = {}
    for planned in slots:
        listed = _of_statistics(privacy, statistics)
        if privacy.chosen:
            choosing = choosing_of(privacy, planned, listed, rest)
            rounds[planned.slot] = choosing.rounds(privacy, planned, SLACK)
            found[planned.slot] = (*listed, *choosing.events(planned, privacy.mechanism))
            continue
        if privacy.solved:
            second, cross = shares_of_moments(
                privacy, planned.crosses + planned.predictions, planned
            )
            rounds[planned.slot] = _of_moments(privacy, planned, second, cross)
            listed += [Gaussian(of.MOMENTS, second, planned.moments)]
            listed += [Gaussian(of.CROSSES, cross, planned.crosses)]
            if planned.predictions:
                listed += [Gaussian(of.PREDICTIONS, cross, planned.predictions)]
            found[planned.slot] = tuple(listed)
            continue
        if drawing is not None:
            z = drawing.multipliers[planned.slot]
            check_noise(privacy, of.GRADIENTS, z, planned, planned.gradients)
            rounds[planned.slot] = _drawn_rounds(planned, drawing)
            found[planned.slot] = (*listed, *drawing.events(planned))
            multipliers[planned.slot] = z
            continue
        if together:
            z, z_h, m = _own(privacy, planned, rest)
            listed.append(Gaussian(of.PREDICTIONS, z_h / 2.0, planned.predictions))
            if planned.moments:
                listed.append(Gaussian(of.MOMENTS, m, planned.moments))
            of_predictions[planned.slot] = z_h
            share = math.sqrt(max(planned.clients - 1, 1)) if planned.secret else 1.0
            rounds[planned.slot] = _of_rounds(privacy, planned, z / share, z_h, m / share)
        else:
            z = common
            listed += [Gaussian(what, z / f, count) for what, f, count in spread[planned.slot]]
            rounds[planned.slot] = _of_rounds(
                privacy, planned, z / math.sqrt(planned.clients), 0.0, 0.0
            )
        listed.append(Gaussian(of.GRADIENTS, z / 2.0, planned.gradients))
        multipliers[planned.slot] = z
        found[planned.slot] = tuple(listed)
    exact = not together
    training = RunNoise(
        rounds=MappingProxyType(rounds),
        intercept_clip=INTERCEPT_CLIP if exact else 0.0,
        intercept_noise=common * INTERCEPT_CLIP * (1.0 + SLACK) if exact else 0.0,
        labels=privacy.label if privacy.solved else None,
    )
    return NoiseCalibration(
        privacy=privacy,
        rounds=MappingProxyType({planned.slot: planned for planned in slots}),
        training=training,
        events=MappingProxyType(found),
        epsilons=MappingProxyType({s: _epsilon(privacy, e) for s, e in found.items()}),
        delta=privacy.delta,
        multipliers=MappingProxyType(multipliers),
        prediction_multipliers=MappingProxyType(of_predictions),
    )


def shares_of_moments(
    privacy: Privacy, releases: int, planned: PlannedReleases | None = None
) -> tuple[float, float]:
    """Return noise over sensitivity of second moments, and of each of the other `releases`: moments
    with the label, and in a second round fits or moments with fits. Raise PrivacyError for more
    noise than there may be.
    """
    rest = _rest(privacy)
    if not rest > 0.0:
        raise InternalError("moments are noised by a budget")
    second = 1.0 / math.sqrt(rest * SECOND_SHARE)
    cross = math.sqrt(releases / (rest * (1.0 - SECOND_SHARE)))
    if planned is not None:
        check_noise(privacy, of.MOMENTS, second, planned, 1)
        check_noise(privacy, of.CROSSES, cross, planned, releases)
    return second, cross


def joined_epsilon(
    privacy: Privacy, events: Mapping[int, Sequence[Event]] | int
) -> tuple[float, float]:
    """(ε, δ) of a change of the features of all rows, one of each slot, that a joined row is made
    of. events : of a row of each slot; before a run the number of slots, each of which spends its
    epsilon.

    With noised predictions a row acts through its own releases alone, so that those of all slots
    compose: M slots of one μ have √M μ. With exact ones all rows move the same releases, by no more
    than the sum of their parts: M μ. δ is that of the statement, or M times that where showing
    which categories there are would take all of it.
    """
    if isinstance(events, int):
        listed = _of_statistics(privacy, 1.0 / math.sqrt(_whole(privacy)))
        one = listed or [Gaussian(of.GRADIENTS, 1.0 / math.sqrt(_whole(privacy)))]
        events = dict.fromkeys(range(events), one)
    every = [event for planned in events.values() for event in planned]
    if not privacy.together:
        mu = math.fsum(math.sqrt(squared_mu(planned)) for planned in events.values())
        shown = [event for event in every if isinstance(event, Threshold)]
        every = [Gaussian(of.GRADIENTS, 1.0 / mu), *shown]
    epsilon = epsilon_of(every, privacy.delta)
    if math.isfinite(epsilon):
        return epsilon, privacy.delta
    delta = privacy.delta * len(events)
    return epsilon_of(every, delta), delta


def check_releases(
    calibration: NoiseCalibration, slot: int, releases: Releases, finished: bool
) -> None:
    """Raise InternalError if the reported releases of one client of a slot are not those planned.

    Its clip and noise are to be those of the plan, its counts at most the plan's. `finished`: an
    epoch of training has passed in which rows of this client counted, so that neither gradients nor
    predictions, nor draws, can be 0.
    """
    planned, own = calibration.training.rounds[slot], calibration.rounds[slot]
    asked = calibration.privacy
    wrong = [
        f"{name} {getattr(releases, name)!r}, planned {expected!r}"
        for name, count, expected in (
            ("labels", releases.labels, asked.label_epsilon or 0.0),
            ("statistics", 1, statistics_noise(asked)),
            *((name, releases.gradients, getattr(planned, name)) for name in _OF_GRADIENTS),
            *((name, releases.predictions, getattr(planned, name)) for name in _OF_PREDICTIONS),
            *((name, releases.moments, getattr(planned, name)) for name in _OF_MOMENTS),
            *((name, releases.draws, getattr(planned, name)) for name in _OF_DRAWS),
            *((name, releases.crosses, getattr(planned, name)) for name in _OF_CROSSES),
            *((name, releases.selections, getattr(planned, name)) for name in _OF_CHOICES),
            ("laplace", releases.selections, int(planned.mechanism == LAPLACE)),
            ("sketch_noise", releases.sketches, planned.sketch_noise),
        )
        if not _agrees(getattr(releases, name), expected, count)
    ]
    must = {
        of.GRADIENTS: asked.gradients and not (asked.chosen or asked.solved),
        of.PREDICTIONS: bool(own.predictions) and not (asked.drawn or asked.chosen),
        of.MOMENTS: asked.solved,
        "crosses": asked.solved,
        DRAWS: asked.drawn,
        "selections": asked.chosen,
        "sketches": False,
    }  # fmt: skip
    for name, counted in must.items():
        least = int(finished and counted)
        got, most = getattr(releases, name), getattr(own, name)
        if not least <= got <= most:
            wrong.append(f"{name} {got}, planned {least} to {most}")
    if wrong:
        listed = "; ".join(wrong)
        raise InternalError(f"slot {slot}: releases that were not planned: {listed}")


_OF_GRADIENTS = ("clip", "noise")
_OF_PREDICTIONS = ("prediction_clip", "prediction_noise")
_OF_MOMENTS = ("row_bound", "moments_noise")
_OF_DRAWS = ("bins", "theta")
_OF_CROSSES = ("row_weight", "labels_noise")
_OF_CHOICES = ("selection_noise", "column_bound", "residual_bound")
"""Fields of RoundNoise, and of Releases."""


DRAWS = "draws"
"""Of PlannedReleases, and of Releases."""


def _epsilon(privacy: Privacy, events: Sequence[Event]) -> float:
    return epsilon_of(events, privacy.delta) if privacy.gradients else math.inf


def _agrees(got: float, expected: float, count: float) -> bool:
    """A release that did not happen, its `count` being 0, may be reported as 0."""
    return math.isclose(got, expected, rel_tol=1e-12) or (not count and got == 0.0)


def _delta(privacy: Privacy) -> float:
    """Return the δ of the noise: the part that categories leave."""
    return privacy.delta - statistics_delta(privacy, True)


def _whole(privacy: Privacy) -> float:
    """μ² of the budget, with epsilon given; by 10⁻⁹ less, so that no rounding goes beyond it."""
    assert privacy.epsilon is not None
    return budget(privacy.epsilon, _delta(privacy)) ** 2 * (1.0 - 1e-9)


def _rest(privacy: Privacy) -> float:
    """μ² that is left when statistics have taken theirs; 0 with a noise_multiplier."""
    return 0.0 if privacy.epsilon is None else _whole(privacy) * (1.0 - _statistics_share(privacy))


def _statistics_share(privacy: Privacy) -> float:
    return privacy.statistics_share if privacy.statistics == "noised" else 0.0


def _statistics(privacy: Privacy) -> float:
    if privacy.statistics != "noised" or not privacy.features:
        return 0.0
    if privacy.noise_multiplier is not None:
        return privacy.noise_multiplier / 2.0
    noise = 1.0 / math.sqrt(_whole(privacy) * privacy.statistics_share)
    check_noise(privacy, of.STATISTICS, noise)
    return noise


def _of_statistics(privacy: Privacy, multiplier: float) -> list[Event]:
    if privacy.statistics != "noised":
        return []
    return [
        Gaussian(of.STATISTICS, multiplier),
        Threshold(of.CATEGORIES, statistics_delta(privacy, True)),
    ]


def _own(privacy: Privacy, planned: PlannedReleases, rest: float) -> tuple[float, float, float]:
    """z, z_h and the multiplier of second moments (0 without) of a slot with noised predictions."""
    share = privacy.prediction_share
    moments = MOMENTS_SHARE if planned.moments else 0.0
    z = privacy.noise_multiplier
    if z is None:
        gradients = rest * (1.0 - moments) * (1.0 - share)
        z = 2.0 * math.sqrt(planned.gradients / gradients)
    else:
        gradients = 4.0 * planned.gradients / z**2
        rest = gradients / ((1.0 - moments) * (1.0 - share))
    z_h = 2.0 * math.sqrt(planned.predictions / (rest * (1.0 - moments) * share))
    check_noise(privacy, of.GRADIENTS, z, planned, planned.gradients)
    check_noise(privacy, of.PREDICTIONS, z_h, planned, planned.predictions)
    m = math.sqrt(planned.moments / (rest * moments)) if moments else 0.0
    check_noise(privacy, of.MOMENTS, m, planned, planned.moments)
    return z, z_h, m


def _common(
    privacy: Privacy,
    slots: Sequence[PlannedReleases],
    spread: Mapping[int, tuple[tuple[str, float, int], ...]],
    rest: float,
) -> float:
    """z of all slots with exact predictions."""
    needed = {
        planned.slot: 4.0 * planned.gradients + sum(c * f * f for _, f, c in spread[planned.slot])
        for planned in slots
    }
    worst = max(slots, key=lambda planned: needed[planned.slot])
    z = privacy.noise_multiplier
    if z is None:
        z = math.sqrt(needed[worst.slot] / rest)
    check_noise(privacy, of.GRADIENTS, z, worst, worst.gradients)
    return z


def _of_rounds(
    privacy: Privacy, planned: PlannedReleases, z: float, z_h: float, m: float
) -> RoundNoise:
    larger = 1.0 + SLACK
    bound = privacy.prediction_clip or PREDICTION_CLIP
    return RoundNoise(
        clip=planned.clip,
        noise=z * planned.clip * larger,
        prediction_clip=bound if z_h else 0.0,
        prediction_noise=z_h * bound * larger,
        row_bound=planned.row_bound if m else 0.0,
        moments_noise=m * planned.moments_sensitivity * larger,
    )


def _of_moments(
    privacy: Privacy, planned: PlannedReleases, second: float, cross: float
) -> RoundNoise:
    """Return the noise of moments. Each client adds all of it to its own releases, or the part that
    a sum without this client needs. Fits are not summed, and have all of it."""
    if privacy.feature_bound is None:
        raise InternalError("columns without a bound")
    share = math.sqrt(max(planned.clients - 1, 1)) if planned.secret else 1.0
    larger = 1.0 + SLACK
    return RoundNoise(
        clip=0.0,
        noise=0.0,
        moments_noise=second / share * larger,
        column_bound=privacy.feature_bound,
        row_weight=planned.row_weight,
        categories=planned.categories,
        labels_noise=cross / share * larger,
        prediction_noise=cross * larger if planned.predictions else 0.0,
    )


def _drawn_rounds(planned: PlannedReleases, drawing: Drawing) -> RoundNoise:
    z = drawing.multipliers[planned.slot]
    return RoundNoise(
        clip=planned.clip if z else 0.0,
        noise=z * planned.clip * (1.0 + SLACK),
        bins=drawing.bins,
        theta=drawing.theta,
    )


def _spread_of(planned: PlannedReleases) -> tuple[tuple[str, float, int], ...]:
    """Return what else a row moves if predictions are exact: a description, by how many times the
    clip in an epoch, and the number of epochs."""
    epochs = planned.steps if planned.whole else planned.epochs
    batches = math.ceil(planned.steps / epochs)
    found = [
        (
            of.OTHERS.format(slot),
            _apart(slot in planned.one_sided) * math.sqrt(min(planned.copies * f, batches * f * f)),
            epochs,
        )
        for slot, f in planned.partners.items()
        if f
    ]
    return (*found, (of.INTERCEPT, _apart(planned.one_sided_slopes) * planned.copies, epochs))


def _apart(one_sided: bool) -> float:
    """Return the maximum distance of two clipped vectors, in units of the clip."""
    return 1.0 if one_sided else 2.0


def _check(privacy: Privacy, slots: Sequence[PlannedReleases]) -> None:
    if not slots:
        raise InternalError("no slot has rounds")
    given = privacy.epsilon is not None, privacy.noise_multiplier is not None
    if all(given) or not (any(given) or privacy.drawn):
        raise PrivacyError(
            f"PRIVACY needs one of epsilon and noise_multiplier for features, got "
            f"{privacy.epsilon} and {privacy.noise_multiplier}",
            hint="give one; the other is worked out",
        )
    for planned in slots:
        if not (math.isfinite(planned.clip) and planned.clip > 0.0):
            raise InternalError(f"slot {planned.slot}: a clip of {planned.clip}")
        if privacy.solved:
            releases = planned.crosses, planned.predictions
            once = planned.moments == 1 and releases in ((1, 0), (2, 0), (1, 1))
            if not (once and planned.row_weight > 0.0):
                raise InternalError(f"slot {planned.slot}: moments of nothing: {planned}")
            continue
        if privacy.chosen:
            if min(planned.selections, planned.sketches, planned.steps) < 1 or planned.clients != 1:
                raise InternalError(f"slot {planned.slot}: choices of nothing: {planned}")
            continue
        seen = (
            min(planned.draws, planned.outputs, planned.honest)
            if privacy.drawn
            else planned.predictions
        )
        if planned.gradients < 1 or seen < 1 or planned.steps < 1 or planned.clients < 1:
            raise InternalError(f"slot {planned.slot}: rounds of nothing: {planned}")
        if bool(planned.moments) != (planned.moments_sensitivity > 0.0):
            raise InternalError(
                f"slot {planned.slot}: second moments without a sensitivity: {planned}"
            )
        if privacy.together:
            continue
        if planned.moments:
            raise PrivacyError(
                "algorithm 'admm' needs predictions = 'gaussian' in PRIVACY, got 'exact': its "
                "steps are exact functions of the predictions",
                hint="predictions = 'gaussian', or algorithm = 'sgd'",
            )
        if not planned.whole and planned.epochs < 1:
            raise InternalError(f"slot {planned.slot}: batches, and no epochs: {planned}")


WIDEST = 64.0
"""Maximum factor by which noise may be smaller than from shares of μ²."""
PRECISION = 1e-4


@dataclass(frozen=True)
class Choosing:
    """The noise of choices and sketches of one slot."""

    epsilon: float
    """ε₀ of a choice."""
    multiplier: float
    """Standard deviation of a sketch's noise over its sensitivity."""

    def events(self, planned: PlannedReleases, mechanism: str) -> tuple[Event, ...]:
        return (
            Selection(CHOICES, mechanism, self.epsilon, planned.selections),
            Gaussian(COLUMNS, self.multiplier, planned.sketches),
        )

    def rounds(self, privacy: Privacy, planned: PlannedReleases, slack: float) -> RoundNoise:
        """Return the noise of each client, enlarged by `slack`, relatively."""
        if privacy.feature_bound is None:
            raise InternalError("columns without a bound")
        return RoundNoise(
            clip=0.0,
            noise=0.0,
            mechanism=privacy.mechanism,
            selection_noise=2.0 / self.epsilon * (1.0 + slack),
            column_bound=privacy.feature_bound,
            residual_bound=planned.residual_bound,
            sketch_noise=self.multiplier * (1.0 + slack),
        )


def choosing_of(
    privacy: Privacy, planned: PlannedReleases, beside: Sequence[Event], rest: float
) -> Choosing:
    """Choose the noise with which the slot's ε is at most the one asked for.

    beside : other releases of a row, such as statistics; rest : μ² that remains after them. Choices
    take their share of it as zCDP, ρ = μ²/2. Then both kinds of noise shrink alike as far as ε
    allows. Raise PrivacyError for too much noise.
    """
    from scipy.optimize import brentq  # half a second, which most processes can do without

    if privacy.epsilon is None:
        raise InternalError("columns are chosen by a budget")
    share, mechanism = privacy.prediction_share, privacy.mechanism
    parts = 8.0 if mechanism == GUMBEL else 2.0
    alone = math.sqrt(parts * rest * (1.0 - share) / (2.0 * planned.selections))
    noise = math.sqrt(planned.sketches / (rest * share))

    # a hopeless budget is refused before its tiny ε is computed
    check_noise(privacy, CHOICES, 1.0 / alone, planned, planned.selections)
    check_noise(privacy, COLUMNS, 0.5 * noise, planned, planned.sketches)

    def scaled(by: float) -> Choosing:
        return Choosing(alone * by, noise / by)

    def excess(by: float) -> float:
        events = (*beside, *scaled(by).events(planned, mechanism))
        return math.sqrt(epsilon_of(events, privacy.delta)) - math.sqrt(privacy.epsilon or 0.0)

    low = 1.0
    while excess(low) > 0.0:
        # the budget needs more noise than this
        check_noise(privacy, CHOICES, 2.0 / scaled(low).epsilon, planned, planned.selections)
        check_noise(privacy, COLUMNS, scaled(low).multiplier, planned, planned.sketches)
        low /= 2.0
    high = 2.0 * low
    while excess(high) <= 0.0 and high < WIDEST:
        high *= 2.0
    best = high if excess(high) <= 0.0 else float(brentq(excess, low, high, rtol=PRECISION))
    while excess(best) > 0.0:
        best *= 1.0 - PRECISION
    choosing = scaled(best)
    check_noise(privacy, CHOICES, 2.0 / choosing.epsilon, planned, planned.selections)
    check_noise(privacy, COLUMNS, choosing.multiplier, planned, planned.sketches)
    return choosing
