"""PRIVACY for the columns of a query: its checks, and the settings that each slot receives.

EVALUATE has options of its own, and notes on the metrics of noised labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from sqlfl.base.errors import OptionError, PlanError, PrivacyError, nearest
from sqlfl.contract.privacy_specification import Bounds, PlannedReleases, SnapshotPrivacy
from sqlfl.models.kinds import TWO_CLASSES, kind_of
from sqlfl.options.entries import AUTO, Given
from sqlfl.options.privacy import Privacy
from sqlfl.options.resolve import resolve_privacy
from sqlfl.options.training import TrainingOptions
from sqlfl.options.types import shown
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.grammar.statements import Span
from sqlfl.planner.query import types
from sqlfl.planner.query.ucq import BOOLEAN, CATEGORY, Feature, Slot, Ucq
from sqlfl.privacy.calibration import calibrate, statistics_delta, statistics_noise
from sqlfl.privacy.collusion import honest_slots, others
from sqlfl.privacy.mechanisms import keep_probability, label_epsilon, laplace_keep

if TYPE_CHECKING:
    from sqlfl.store.registry import Model


TRUTH = ("false", "true")
"""Classes of a BOOLEAN, as labels have them."""
ENCODED, SPREAD = 1.0, 3.0
"""Clip of encoded numbers: with public bounds, and in standard deviations without them."""
UNIT = (0.0, 1.0)
"""Bounds of a BOOLEAN feature."""


@dataclass(frozen=True)
class Clause:
    """The PRIVACY clause as written, for the places of errors."""

    given: Mapping[str, Given]
    sql: str

    @classmethod
    def of(cls, given: Iterable[Given], sql: str) -> Clause:
        return cls({str(option.name): option for option in given}, sql)

    def span(self, *names: str) -> Span | None:
        """Return the place of the value of the first of these options that is present."""
        return next((self.given[name].span for name in names if name in self.given), None)

    def error(self, message: str, name: str, hint: str | None = None) -> OptionError:
        return OptionError(message, hint=hint, sql=self.sql, span=self.span(name))


def settled(privacy: Privacy, kind: str, ucq: Ucq, clause: Clause) -> Privacy:
    """Return `privacy` with the classes of the labels and with the encoding of features.

    Raise OptionError and PlanError if bounds or classes do not fit the columns, or are missing.
    """
    if privacy.labels and kind_of(kind).classifies:
        privacy = replace(privacy, label_classes=_classes(privacy, kind, ucq, clause))
    if not privacy.features:
        return privacy
    for name, bounds in privacy.feature_bounds.items():
        _check_bounds(name, bounds, kind, ucq, clause)
    privacy = replace(privacy, statistics=_statistics(privacy, ucq, clause))
    if not (privacy.chosen or privacy.solved):
        return privacy
    bound = privacy.feature_bound or (ENCODED if privacy.statistics == "bounds" else SPREAD)
    privacy = replace(privacy, feature_bound=bound)
    if privacy.solved:
        return privacy
    shared = next((slot for slot in ucq.slots if slot.features and len(slot.clients) > 1), None)
    if shared is not None:
        raise PlanError(
            f"PRIVACY with epsilon is not built for lasso where a table lies in several databases, "
            f"and {shared.name} does: its databases would have to choose a column together",
            hint="label_epsilon alone, or a party that combines its databases: "
            "fed.attach(..., combine=True)",
            sql=clause.sql,
            span=clause.span("epsilon"),
        )
    return privacy


def _classes(privacy: Privacy, kind: str, ucq: Ucq, clause: Clause) -> tuple[str, ...]:
    given, type_ = privacy.label_classes, ucq.target_type or ""
    if types.kind(type_) == BOOLEAN:
        if given is not None and set(given) != set(TRUTH):
            message = f"PRIVACY option label_classes must be {shown(TRUTH)} for {ucq.target}, which"
            message += f" is BOOLEAN, got {shown(given)}"
            raise clause.error(message, "label_classes", "leave it out")
        return given or TRUTH
    if given is None:
        message = f"PRIVACY option label_epsilon needs label_classes for {ucq.target}, which is "
        first = "two" if kind_of(kind).target == TWO_CLASSES else "all"
        raise clause.error(
            f"{message}{type_}: the noise is over all classes that there could be",
            "label_epsilon",
            f"add label_classes = ['...', '...'] with {first} classes, or make it BOOLEAN",
        )
    return given


def _features(ucq: Ucq) -> tuple[Feature, ...]:
    return tuple(feature for slot in ucq.slots for feature in slot.features)


def _check_bounds(name: str, bounds: Bounds, kind: str, ucq: Ucq, clause: Clause) -> None:
    features = {feature.name.lower(): feature for feature in _features(ucq)}
    feature = features.get(name)
    if feature is None:
        message = f"PRIVACY option feature_bounds: the query has no feature {name}"
        near = nearest(name, [feature.name for feature in features.values()])
        hint = f"did you mean {near}?" if near else f"the features are {', '.join(features)}"
        if name == (ucq.target or "").lower():
            option = "label_classes" if kind_of(kind).classifies else "label_bounds"
            hint = f"{name} is the target, no feature; {option} goes with label_epsilon"
        elif name == (ucq.weight or "").lower():
            hint = f"{name} is the column of WEIGHT, no feature: leave it out"
        raise clause.error(message, "feature_bounds", hint)
    texts = isinstance(bounds[0], str)
    if texts != (feature.kind == CATEGORY):
        wanted = "the least and the largest value, such as [0, 100]"
        if feature.kind == CATEGORY:
            wanted = "all its categories as text, such as ['a', 'b']"
        message = f"PRIVACY option feature_bounds: {feature.name} is {feature.type}, and needs "
        raise clause.error(f"{message}{wanted}, got {shown(bounds)}", "feature_bounds")


def bounds_of(feature: Feature, privacy: Privacy) -> Bounds | None:
    """Return public bounds of the feature; None if nobody has given any."""
    bounds = privacy.feature_bounds.get(feature.name.lower())
    return UNIT if bounds is None and feature.kind == BOOLEAN else bounds


def _statistics(privacy: Privacy, ucq: Ucq, clause: Clause) -> str:
    """Return how features are encoded, according to the features that have bounds."""
    free = [f for f in _features(ucq) if bounds_of(f, privacy) is None]
    numbers = [f for f in free if f.kind != CATEGORY]
    statistics = privacy.statistics
    if statistics == AUTO:
        if numbers or (free and not privacy.gradients):
            asked = "epsilon or noise_multiplier" if privacy.gradients else "bins and theta"
            raise _unbounded(free, asked, "epsilon", clause, True, privacy.gradients)
        statistics = "noised" if free else "bounds"
    elif statistics == "bounds" and free:
        raise _unbounded(free, "statistics = 'bounds'", "statistics", clause, False)
    elif statistics == "noised" and numbers:
        raise _unbounded(numbers, "statistics = 'noised'", "statistics", clause, False)
    elif statistics == "noised" and not privacy.gradients:
        message = "PRIVACY option statistics = 'noised' applies only with epsilon or "
        hint = "give bounds of all features (feature_bounds)"
        raise clause.error(f"{message}noise_multiplier", "statistics", hint)
    if statistics == "none" and privacy.feature_bounds:
        message = "PRIVACY option feature_bounds applies only with statistics = 'bounds' or "
        raise clause.error(f"{message}'noised'", "feature_bounds")
    if statistics != "noised" and "statistics_share" in clause.given:
        message = "PRIVACY option statistics_share applies only with statistics = 'noised', and "
        message += f"statistics are '{statistics}': all features have bounds"
        raise clause.error(message, "statistics_share")
    return statistics


def _unbounded(
    features: list[Feature],
    what: str,
    name: str,
    clause: Clause,
    choosable: bool,
    noised: bool = True,
) -> PlanError:
    """Return the error about features without bounds. noised: True if categories may be found with
    noise.
    """
    names = ", ".join(feature.name for feature in features)
    have = "has" if len(features) == 1 else "have"
    written = ", ".join(
        f"'{f.name}': {'[categories]' if f.kind == CATEGORY else '[least, largest]'}"
        for f in features
    )
    hint = f"add feature_bounds = {{{written}}}, as you know them without looking at the data"
    if choosable:
        hint += "; categories may be left out, and are then found with noise" * noised
        hint += "; or statistics = 'none': the report then says none for features"
    return PlanError(
        f"PRIVACY with {what} needs bounds of the features, and {names} {have} none: how they are "
        "scaled would tell of the rows",
        hint=hint,
        sql=clause.sql,
        span=clause.span(name, "noise_multiplier", "bins"),
    )


def slots_of(privacy: Privacy, ucq: Ucq) -> Mapping[int, SnapshotPrivacy]:
    """Return slot -> the settings for its clients, for slots where anything is noised or bounded.

    `privacy` is settled. Raise PrivacyError if the noise of statistics would be too large for any
    use.
    """
    settings = {
        slot.index: _slot(privacy, slot)
        for slot in ucq.slots
        if (slot.features and privacy.features) or (slot.target and privacy.labels)
    }
    return MappingProxyType(settings)


def _slot(privacy: Privacy, slot: Slot) -> SnapshotPrivacy:
    label = privacy.label if slot.target else None
    if not (privacy.features and slot.features):
        return SnapshotPrivacy(label, "none", (), 0.0, 0.0, None)
    noised = privacy.statistics == "noised"
    return SnapshotPrivacy(
        label=label,
        statistics=privacy.statistics,
        bounds=()
        if privacy.statistics == "none"
        else tuple(bounds_of(feature, privacy) for feature in slot.features),
        statistics_noise=statistics_noise(privacy) if noised else 0.0,
        statistics_delta=statistics_delta(privacy, finds_categories(privacy, slot))
        if noised
        else 0.0,
        delta=privacy.delta,
    )


def finds_categories(privacy: Privacy, slot: Slot) -> bool:
    """Return True if some feature's categories are found with noise."""
    return privacy.statistics == "noised" and any(
        feature.kind == CATEGORY and bounds_of(feature, privacy) is None
        for feature in slot.features
    )


def check_budget(
    privacy: Privacy,
    kind: str,
    ucq: Ucq,
    options: TrainingOptions,
    clause: Clause,
    at: str | None = None,
) -> None:
    """Raise PrivacyError if the budget does not allow even one step, over rows that are joined
    once, with one class of label for each row.

    at: the coordinator's party. Raise OptionError for more honest parties than there are.
    """
    if not privacy.features:
        return
    _check_parties(privacy, ucq, at, clause)
    slots = [slot for slot in ucq.slots if slot.features]
    outputs = options.tower.outputs if options.tower is not None else None
    moments = not kind_of(kind).towers and spec_of(options.algorithm).moments
    least = [
        PlannedReleases(
            slot=slot.index,
            gradients=1,
            predictions=int(not privacy.solved),
            moments=int(moments or privacy.solved),
            moments_sensitivity=float(moments),
            clip=privacy.clip or 1.0,
            clients=len(slot.clients),
            copies=1,
            partners={other.index: 1 for other in slots if other is not slot},
            steps=1,
            whole=True,
            epochs=1,
            row_bound=float(moments),
            one_sided=frozenset(
                s.index for s in slots if s is not slot and kind_of(kind).classifies
            ),
            one_sided_slopes=kind_of(kind).classifies,
            draws=1,
            outputs=outputs or 1,
            honest=honest_slots(ucq.slots, slot, at, privacy.honest_parties),
            selections=1,
            sketches=1,
            residual_bound=1.0,
            crosses=int(str(options.listed().get("rounds", 1))),
            row_weight=1.0,
        )
        for slot in slots
    ]
    try:
        calibrate(privacy, least)
    except PrivacyError as error:
        raise PrivacyError(
            f"this budget cannot be met, not even by one step: {error.message}",
            hint=error.hint or "a larger epsilon, or leave features unprotected",
            sql=clause.sql,
            span=clause.span("epsilon", "noise_multiplier"),
        ) from error


def _check_parties(privacy: Privacy, ucq: Ucq, at: str | None, clause: Clause) -> None:
    there = dict.fromkeys(name for slot in ucq.slots for name in slot.parties)
    most = 1 + max(len(others(ucq.slots, party, at)) for party in there)
    if (privacy.honest_parties or 1) <= most:
        return
    message = f"PRIVACY option honest_parties must be at most {most}, got {privacy.honest_parties}"
    hint = f"the query's parties are {', '.join(there)}"
    raise clause.error(message, "honest_parties", hint)


APPLIES = ("label_epsilon", "label_mechanism", "label_bounds", "label_classes")
"""Options that a PRIVACY clause of EVALUATE may have."""
NOISED = "label_epsilon"


def resolve_evaluation(kind: str, given: Iterable[Given], sql: str) -> Privacy:
    """Return the clause's privacy for a model of this kind, before the columns are known.

    Raise OptionError as `resolve_privacy` does, and for options that concern training only.
    """
    given = tuple(given)
    for option in given:
        known = option.name in Privacy.__dataclass_fields__
        if known and option.name not in APPLIES:
            raise OptionError(
                f"PRIVACY option {option.name} does not apply to EVALUATE, whose predictions are "
                "exact",
                hint=f"EVALUATE noises labels only, by {', '.join(APPLIES)}",
                sql=sql,
                span=getattr(option.name, "span", option.span),
            )
    return resolve_privacy(kind, given, sql)


def settled_evaluation(privacy: Privacy, model: Model, ucq: Ucq, clause: Clause) -> Privacy:
    """Return the privacy with the classes of the labels. They come from the statement or the type.
    A model whose own labels were noised has public classes, which serve too.

    Raise OptionError if they are missing, or if the model does not know them.
    """
    boolean = types.kind(ucq.target_type or "") == BOOLEAN
    public = "labels" in model.privacy.noised and not boolean
    if kind_of(model.kind).classifies and privacy.label_classes is None and public:
        privacy = replace(privacy, label_classes=model.classes)
    privacy = settled(privacy, model.kind, ucq, clause)
    unknown = [c for c in privacy.label_classes or () if c not in (model.classes or ())]
    if unknown:
        raise clause.error(
            f"PRIVACY option label_classes has {shown(tuple(unknown))}, which model {model.name} "
            "does not know",
            "label_classes" if "label_classes" in clause.given else NOISED,
            f"the model knows {', '.join(model.classes or ())}",
        )
    return privacy


def notes_of(model: Model, privacy: Privacy | None) -> tuple[str, ...]:
    """Return the notes beside the metrics of a model trained with noise, or of noised labels."""
    if privacy is None:
        if not model.privacy.assumptions:
            return ()
        return (
            f"Loss and metrics are of the true labels, which the ε of model {model.name} does not "
            "cover: the metrics of one row tell its label. EVALUATE MODEL ... PRIVACY "
            "(label_epsilon = ...) noises them.",
        )
    notes = ["Loss and metrics are of noised labels."]
    if privacy.label_classes is not None:
        notes.append(
            "accuracy_estimate is an estimate of the accuracy over the true labels, right on "
            "average over the noise."
        )
    return (" ".join(notes),)


def true_label_epsilon(privacy: Privacy) -> float:
    """Return the ε that holds for a label."""
    assert privacy.label_epsilon is not None
    classes = None if privacy.label_classes is None else len(privacy.label_classes)
    return label_epsilon(privacy.label_mechanism, privacy.label_epsilon, classes)


def accuracy_estimate(privacy: Privacy, accuracy: float) -> float | None:
    """Return an unbiased estimate of the accuracy over the true labels, from that over noised ones.

    A right prediction stays right with the probability p that a label is kept. A wrong one becomes
    right with q = (1 − p)/(K − 1). So the measured accuracy is on average q + (p − q) times the
    true one. The estimate may be below 0 or above 1. It is None if the noise leaves no information.
    """
    assert privacy.label_epsilon is not None
    assert privacy.label_classes is not None
    size = len(privacy.label_classes)
    keep = laplace_keep if privacy.label_mechanism == "laplace" else keep_probability
    kept = keep(privacy.label_epsilon, size)
    moved = (1.0 - kept) / (size - 1)
    return (accuracy - moved) / (kept - moved) if kept > moved else None
