"""Private training: the amount of noise of a run, once the join is known, and the check that it was
added.

The noise depends on the join graph, the labels and the statement, which stay fixed when the
features of a row change. It depends on no feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.join_limits import copies, max_partners
from sqlfl.coordinator.preparation import Joined, JoinedSlot, Targets
from sqlfl.coordinator.privacy_planning import bounds_of
from sqlfl.coordinator.rounds.chunk import Scores
from sqlfl.coordinator.rounds.problem import Problem
from sqlfl.messages import Message, Releases, SendReleases
from sqlfl.messages.checks import Expected, ReplyChannel, ask
from sqlfl.models.losses import loss_of
from sqlfl.options.privacy import DEVIATIONS, Privacy
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import CATEGORY, Slot
from sqlfl.privacy.block_moments import labels_change, moments_sensitivity, row_bound, weight_cap
from sqlfl.privacy.calibration import NoiseCalibration, calibrate, check_releases, shares_of_moments
from sqlfl.privacy.collusion import honest_slots
from sqlfl.privacy.protection import SlotFacts

WORTHLESS = 0.01
"""Share of what a constant leaves below which a model is hardly better than that."""


@dataclass(frozen=True, eq=False)
class RunProtection:
    """Noise of a run, and the plan that its clients' releases are checked against."""

    calibration: NoiseCalibration
    most: Mapping[int, PlannedReleases]
    """Slot -> its rounds with the virtual row counted. That row is nobody's data, and may be in
    more batches than any real row.
    """


def protect(plan: FederatedPlan, joined: Joined, target: Targets) -> RunProtection | None:
    """Return each client's clip and noise; None if features are not protected.

    Only joined rows that weigh something count, for the others take part in no gradient. The
    default clip is the mean number of joined rows per row of the slot, times the spread of a target
    that is a number: about the size of a row's gradient in a step. Predictions are clipped to
    DEVIATIONS of that spread, without the noise of labels. Draws are of all joined rows, those for
    validation and without weight too. Raises PrivacyError where the budget cannot be met over this
    join.
    """
    privacy = plan.privacy
    if privacy is None or not privacy.features:
        return None
    weights = np.ones(joined.total) if joined.weighting is None else joined.weighting.weights
    training = np.flatnonzero(weights)
    scale = _spread(target, training)
    slots = [slot for slot in plan.ucq.slots if slot.features]
    parts = {s.index: _Part.of(joined.slots[s.index], training, weights) for s in slots}
    one_sided = frozenset(
        slot
        for slot, part in parts.items()
        if _keeps_signs(plan, target) and _one_class(part, target, training)
    )
    planned: list[PlannedReleases] = []
    most: dict[int, PlannedReleases] = {}
    for slot in slots:
        part = parts[slot.index]
        met: dict[int, int] = {}
        if not privacy.together:
            met = {
                other: max_partners(part.rows, part.virtual, those.rows, len(those.virtual))
                for other, those in parts.items()
                if other != slot.index
            }
        clip = privacy.clip or scale * part.mean
        rounds_of = partial(_rounds, plan, slot, part, clip, met, one_sided & met.keys(), target)
        rows, nobody = joined.slots[slot.index].rows, np.zeros_like(part.virtual)
        planned.append(rounds_of(copies(part.rows, part.virtual), copies(rows, part.virtual)))
        most[slot.index] = rounds_of(copies(part.rows, nobody), copies(rows, nobody))
    if privacy.prediction_clip is None:
        privacy = replace(privacy, prediction_clip=DEVIATIONS * _unnoised(scale, privacy))
    calibration = calibrate(privacy, planned)
    return RunProtection(_scaled(calibration, scale), most)


@dataclass(frozen=True, eq=False)
class _Part:
    """A slot's rows in the joined rows that train."""

    rows: Array
    """int32 (n,)"""
    virtual: Array
    """bool (active rows,)"""
    counts: Array
    """Return the weights of rows that are not virtual: float64 (n,)."""

    @classmethod
    def of(cls, slot: JoinedSlot, training: Array, weights: Array) -> _Part:
        rows, virtual = slot.rows[training], slot.made_up
        counts = np.bincount(rows, weights[training], len(virtual))
        return cls(rows, virtual, counts[~virtual])

    @property
    def largest(self) -> float:
        """Return the largest weight of a row that is not virtual."""
        return float(self.counts.max(initial=0.0))

    @property
    def mean(self) -> float:
        """Return the mean number of joined rows per non-virtual row; 1 without such rows."""
        counts = np.bincount(self.rows, minlength=len(self.virtual))[~self.virtual]
        return float(counts[counts > 0].mean()) if counts.any() else 1.0


def _rounds(
    plan: FederatedPlan,
    slot: Slot,
    part: _Part,
    clip: float,
    met: Mapping[int, int],
    one_sided: frozenset[int],
    target: Targets,
    often: int,
    summed: int,
) -> PlannedReleases:
    scores = loss_of(plan.kind, len(target.classes or ()), plan.training.listed()).outputs
    outputs = None if plan.tower is None else plan.tower.outputs
    asked = None if plan.privacy is None else plan.privacy.honest_parties
    exposure = SlotExposure(
        slot=slot.index,
        joined=len(part.rows),
        clip=clip,
        clients=len(slot.clients),
        copies=often,
        partners=met,
        numeric=sum(feature.width for feature in slot.features if feature.kind != CATEGORY),
        categories=sum(feature.kind == CATEGORY for feature in slot.features),
        largest=part.largest or 1.0,
        one_sided=one_sided,
        one_sided_slopes=target.classes is not None,
        summed=summed,
        outputs=outputs or scores,
        honest=honest_slots(plan.ucq.slots, slot, plan.at, asked),
        residual=_residual(plan, target),
        columns=_columns(plan, slot),
        row_weight=_row_weight(plan, slot, part),
        leads=plan.ucq.leading == slot.index,
    )
    return planned_releases(plan.training, exposure)


def _residual(plan: FederatedPlan, target: Targets) -> float:
    """Return R = r max(B, 1) + Y, with r the radius. No residual of a joined row is larger if
    labels differ from their mean by at most Y. Return 0 if no column is chosen.
    """
    privacy = plan.privacy
    if privacy is None or not privacy.chosen:
        return 0.0
    radius = float(str(plan.training.listed()["radius"]))
    bound = privacy.label_bound
    if bound is None:
        values = np.asarray(target.values, np.float64)
        bound = float(np.abs(values - values.mean()).max()) or 1.0
    return radius * max(privacy.feature_bound or 1.0, 1.0) + bound


def _columns(plan: FederatedPlan, slot: Slot) -> int | None:
    """Return the number of the slot's encoded columns where it follows from public bounds: then no
    NULL has a column of its own, and categories are those listed. None if it is of the data.
    """
    privacy = plan.privacy
    if privacy is None or privacy.statistics != "bounds":
        return None
    listed = (bounds_of(feature, privacy) for feature in slot.features if feature.kind == CATEGORY)
    numeric = sum(feature.width for feature in slot.features if feature.kind != CATEGORY)
    return numeric + sum(len(bounds or ()) for bounds in listed)


def _row_weight(plan: FederatedPlan, slot: Slot, part: _Part) -> float:
    """Return the cap of rows in moments, by the join graph and the weights alone. Return 0 unless
    moments are all that is released.
    """
    if plan.privacy is None or not plan.privacy.solved:
        return 0.0
    rounds = int(str(plan.training.listed()["rounds"]))
    _, multiplier = shares_of_moments(plan.privacy, rounds)
    numeric = sum(feature.width for feature in slot.features if feature.kind != CATEGORY)
    categories = sum(feature.kind == CATEGORY for feature in slot.features)
    change = labels_change(numeric, categories)
    return weight_cap(part.counts, numeric + categories, change, multiplier)


def _keeps_signs(plan: FederatedPlan, target: Targets) -> bool:
    """Return True if a row's gradients are at most 60° apart when all its labels are of one class.
    This holds for linear blocks, and for towers whose slopes are one number.
    """
    return target.classes is not None and (plan.tower is None or len(target.classes) == 2)


def _one_class(part: _Part, target: Targets, training: Array) -> bool:
    """Return True if all joined rows of any one row of the slot have one label. Virtual rows count
    too.
    """
    labels = np.asarray(target.values)[training].astype(np.int64)
    pairs = np.unique(part.rows.astype(np.int64) * (labels.max(initial=0) + 1) + labels)
    return len(pairs) == len(np.unique(part.rows))


def _spread(target: Targets, training: Array) -> float:
    """Return the standard deviation of a numeric target; 1 for classes and for a constant target.

    Labels are no features: if they are protected, they are noised already.
    """
    if target.classes is not None:
        return 1.0
    return float(target.values[training].std()) or 1.0


def _unnoised(spread: float, privacy: Privacy) -> float:
    """Return the standard deviation of a target before its labels were noised, at least a tenth of
    `spread`.

    Laplace noise of scale b has the variance 2b².
    """
    if privacy.label_epsilon is None or privacy.label_bounds is None:
        return spread
    low, high = privacy.label_bounds
    noise = 2.0 * ((high - low) / privacy.label_epsilon) ** 2
    return math.sqrt(max(spread**2 - noise, 0.01 * spread**2))


def _scaled(calibration: NoiseCalibration, scale: float) -> NoiseCalibration:
    """Return the calibration with the intercept's clip and noise for slopes that are `scale` times
    as large.
    """
    training = calibration.training
    scaled = replace(
        training,
        intercept_clip=scale * training.intercept_clip,
        intercept_noise=scale * training.intercept_noise,
    )
    return replace(calibration, training=scaled)


def remark_on_worth(
    problem: Problem, scores: Scores | None, loss: float, remark: Callable[[str], None]
) -> None:
    """Warn of a private model that nothing shows to be better than a constant.

    `loss` is that of the model, whose `scores` these are, as the coordinator saw them. Where noise
    is on them, what they explain follows from the loss's second-order expansion at the best
    constant: with g its slopes and c its curvature there,

        −(2c ⟨g, H⟩ + c² (⟨H, H⟩ − noise)) / ⟨g, g⟩,

    the share of the variance of a number. No message is exchanged.
    """
    if problem.privacy is None or scores is None or problem.pieces is not None:
        return
    if problem.linear_head or problem.summed or not scores.slots:
        return
    if problem.noise > 0.0:
        explained, doubt = _explained(problem, scores)
    else:
        none = tuple(np.zeros_like(values) for values in scores.slots)
        start = problem.loss.initial_intercept(problem.targets, problem.shares)
        constant = problem.passes.look(Scores(none, start), sums=False).value
        explained, doubt = 1.0 - loss / constant if constant > 0.0 else 0.0, 0.0
    if explained - doubt > WORTHLESS:
        return
    told = "noise of predictions hides how much the model explains"
    if doubt < 1.0:
        told = f"by what the coordinator saw the model explains {explained:.1%} of the target's "
        told += "variance" if problem.loss.quadratic else "loss"
        told += f", give or take {doubt:.1%} for the noise" if doubt else ""
    remark(
        f"{told}: nothing shows that it is better than a constant; linear, logistic and softmax "
        "regression by algorithm = 'moments', a larger epsilon, tighter feature_bounds and fewer "
        "columns have less noise"
    )


def _explained(problem: Problem, scores: Scores) -> tuple[float, float]:
    """Return what noised scores explain, without what their noise adds, and its deviation."""
    loss, mapping = problem.loss, problem.mapping
    shares = np.ones(mapping.total) if problem.shares is None else problem.shares
    weights = shares / shares.sum()
    start = loss.initial_intercept(problem.targets, problem.shares)
    start_scores = np.tile(start, (mapping.total, 1))
    curvature = loss.mean_curvature(start_scores[:1])
    slopes = loss.gradient(start_scores, problem.targets)
    moved = mapping.gather_sum([values.T for values in scores.slots]) + scores.constant - start
    spread = float(weights @ np.square(slopes).sum(axis=1))
    along = float(weights @ (slopes * moved).sum(axis=1))
    square = float(weights @ np.square(moved).sum(axis=1)) - slopes.shape[1] * problem.noise**2
    of_slopes = of_squares = 0.0
    rounds = problem.privacy.rounds if problem.privacy is not None else {}
    for place, members in enumerate(problem.slots):
        noise = rounds[members.slot].prediction_noise
        weighed = mapping.scatter(place, weights[:, None] * slopes)
        of_slopes += noise**2 * float(np.square(weighed).sum())
        counts = mapping.scatter(place, weights[:, None])
        of_squares += noise**2 * float(np.square(counts).sum())
    # between two slots' noise no more than what each has with itself
    of_squares *= 2.0 * problem.noise**2 * slopes.shape[1]
    doubt = 2.0 * curvature * math.sqrt(of_slopes) + curvature**2 * math.sqrt(of_squares)
    spread = max(spread, 1e-300)
    return -(2.0 * curvature * along + curvature**2 * square) / spread, doubt / spread


class Watched:
    """Channel that records which clients were sent a residual other than 0."""

    def __init__(self, channel: ReplyChannel) -> None:
        self._channel = channel
        self.told: set[Address] = set()

    def exchange(self, requests: Mapping[Address, Message]) -> dict[Address, Message]:
        """Make the channel's exchange."""
        for address, message in requests.items():
            if address in self.told or not message.residual:
                continue
            if np.any(getattr(message, "values")):  # noqa: B009  # of those that have the mark
                self.told.add(address)
        return self._channel.exchange(requests)


def check_run(
    plan: FederatedPlan,
    joined: Joined,
    protection: RunProtection | None,
    channel: ReplyChannel,
    run: str,
    told: Collection[Address],
) -> None:
    """Ask all clients for their releases, and check them against the plan.

    This is one exchange, before anything is saved; none if the statement asks for no privacy. told:
    clients that were sent residuals, and so must have noised a gradient.

    Raise PartyError if noise, clip or counts do not support the claimed ε. With fewer epochs than
    planned, after Ctrl-C or by patience, the ε of the plan is claimed all the same.
    """
    if plan.privacy is None:
        return
    slots = [slot for slot in plan.ucq.slots if slot.features or slot.target]
    asked = {
        address: SendReleases(run, slot.index)
        for slot in slots
        for address in joined.slots[slot.index].addresses
    }
    known = {slot.index: slot for slot in slots}

    def expected(address: Address) -> Expected[Releases]:
        slot = known[address[1]]
        return Expected(
            Releases,
            fault=lambda releases: _fault(plan, slot, protection, releases, address in told),
        )

    ask(channel, asked, expected)


def _fault(
    plan: FederatedPlan,
    slot: Slot,
    protection: RunProtection | None,
    releases: Releases,
    told: bool,
) -> str | None:
    try:
        _check(plan, slot, protection, releases, told)
    except InternalError as error:
        return f"tells of other releases than were planned: {error.message}"
    return None


def _check(
    plan: FederatedPlan,
    slot: Slot,
    protection: RunProtection | None,
    releases: Releases,
    told: bool,
) -> None:
    epsilon = plan.privacy.label_epsilon if plan.privacy is not None and slot.target else None
    if releases.labels != (epsilon or 0.0):
        raise InternalError(
            f"slot {slot.index}: labels were noised with ε = {releases.labels}, planned {epsilon}"
        )
    if protection is None or not slot.features:
        unplanned = [
            name for name in releases.forms() if name != "labels" and getattr(releases, name)
        ]
        if unplanned:
            raise InternalError(
                f"slot {slot.index}: releases without a plan: {', '.join(unplanned)}"
            )
        return
    calibration = replace(protection.calibration, rounds=protection.most)
    check_releases(calibration, slot.index, releases, told)


@dataclass(frozen=True)
class SlotExposure:
    """Facts about a slot and its rows in the join that its releases follow from."""

    slot: int
    joined: int
    """N, joined rows that train."""
    clip: float
    clients: int
    copies: int
    """F: maximum number of these joined rows with one of the slot's rows."""
    partners: Mapping[int, int] = field(default_factory=dict)
    """Other slot j -> F_ij: maximum number of rows of j that one of its rows is joined with."""
    numeric: int = 0
    """Encoded numeric columns, for second moments."""
    categories: int = 0
    """Category features, for second moments."""
    largest: float = 0.0
    """Largest count (sum of weights) of a row, for second moments."""
    one_sided: frozenset[int] = frozenset()
    """Field of `PlannedReleases` of that name."""
    one_sided_slopes: bool = False
    """Field of `PlannedReleases` of that name."""
    summed: int = 0
    """F over all joined rows, validation rows too, for draws."""
    outputs: int = 0
    """P, numbers of a draw."""
    honest: int = 0
    """Field of `PlannedReleases` of that name, for draws."""
    residual: float = 0.0
    """R: bound of a residual, for choices of columns."""
    columns: int | None = None
    """Encoded columns, for choices of them: each is sent once at most. None if not known."""
    row_weight: float = 0.0
    """Maximum weight of a row, where moments alone are released."""
    leads: bool = False
    """True of the query's leading slot."""


def planned_releases(options: TrainingOptions, exposure: SlotExposure) -> PlannedReleases:
    """Return the planned releases of one slot, from the options of WITH.

    Towers predict once before the first step. Raise InternalError for a method that cannot be
    private.
    """
    epochs, tower, method = options.epochs, options.tower is not None, spec_of(options.algorithm)
    if exposure.joined < 1 or exposure.clients < 1:
        rows = f"{exposure.joined} joined rows at {exposure.clients} clients"
        raise InternalError(f"{epochs} epochs over {rows}")
    if method.private is None:
        raise InternalError(f"{method.name!r} has no private rounds")
    part = SlotFacts(
        options,
        exposure.joined,
        max(exposure.copies, 1),
        exposure.clients,
        max(exposure.summed, exposure.copies, 1),
        exposure.leads,
    )
    counts, moments = method.private(part), method.moments and not tower
    columns = counts.selections if exposure.columns is None else exposure.columns
    bound = sensitivity = 0.0
    if moments:
        bound = row_bound(exposure.numeric)
        sensitivity = moments_sensitivity(exposure.largest, bound, exposure.categories)
    return PlannedReleases(
        slot=exposure.slot,
        gradients=counts.gradients,
        predictions=counts.predictions + int(tower and not method.drawn),
        moments=int(moments or counts.crosses > 0),
        moments_sensitivity=sensitivity,
        clip=exposure.clip,
        clients=exposure.clients,
        copies=part.copies,
        partners=dict(exposure.partners),
        steps=counts.steps,
        draws=counts.draws,
        outputs=exposure.outputs if counts.draws else 0,
        honest=exposure.honest if counts.draws else 0,
        selections=counts.selections,
        sketches=min(counts.selections, columns),
        residual_bound=exposure.residual if counts.selections else 0.0,
        crosses=counts.crosses,
        row_weight=exposure.row_weight if counts.crosses else 0.0,
        categories=exposure.categories if counts.crosses else 0,
        whole=counts.steps == epochs,
        epochs=epochs,
        row_bound=bound,
        secret=options.method.secure,
        one_sided=exposure.one_sided,
        one_sided_slopes=exposure.one_sided_slopes,
    )
