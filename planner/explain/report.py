"""The privacy report of a plan and of a model: the releases and their guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlfl.base.errors import InternalError
from sqlfl.planner.explain.card import PrivacyReport, Release
from sqlfl.planner.explain.sentences import assumptions, promises, summary
from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.federated.plan import FederatedPlan

if TYPE_CHECKING:
    from sqlfl.privacy.calibration import NoiseCalibration
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from sqlfl.models.kinds import kind_of
from sqlfl.planner.explain import draws, sentences
from sqlfl.planner.explain.setting import features_of
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.events import GRADIENTS, PREDICTIONS, STATISTICS
from sqlfl.privacy.protection import NoisedGradients, NoisedPredictions, PublicBounds

__all__ = ["PrivacyReport", "Release", "expected_report", "report_of"]


def expected_report(plan: FederatedPlan) -> PrivacyReport:
    """Before anything runs. An ε that follows from noise_multiplier is not known yet."""
    return _report(ReportSetting(plan, None))


def report_of(plan: FederatedPlan, calibration: NoiseCalibration | None) -> PrivacyReport:
    """Return the report of a run of `plan` with the noise of `calibration`, which is None if
    features are not protected. Raise InternalError if the two do not fit.
    """
    asked = plan.protection.rows
    if asked != (calibration is not None):
        raise InternalError(f"features are {'' if asked else 'not '}protected, without an account")
    return _report(ReportSetting(plan, calibration))


def _report(setting: ReportSetting) -> PrivacyReport:
    training = bool(setting.plan.algorithm)
    noised = ["labels"] * (training and bool(setting.protection.labels))
    told = "columns" if setting.chosen else "moments" if setting.solved else "predictions"
    noised += [told] * (training and setting.together)
    return PrivacyReport(
        releases(setting), promises(setting), assumptions(setting), tuple(noised), summary(setting)
    )


# The report's table: each kind of release, and each who sees it.

OTHERS = "other parties"
CLIENTS = "other clients of the table"
USERS = "users of the model"
READERS = "who gets the metrics"
EXACT = "exact"

KNOWN = "exact predictions are beside it"
ALONE = "against who sees nothing but the model's parameters"
SUMMED = "exact predictions are in the residuals that they get"


def releases(setting: ReportSetting) -> tuple[Release, ...]:
    """Return the releases of a plan or a run, in the order in which they happen."""
    parts = [_joins, _weights, _identifiers, _labels, _statistics, _moments, _equal_rows]
    parts += [_predictions]
    if setting.plan.algorithm:
        parts += [_gradients, _history, _model]
    elif setting.plan.purpose == "evaluate":
        parts += [_history]
    return tuple(release for part in parts for release in part(setting))


def _none(kind: str, observer: str, mechanism: str = EXACT) -> Release:
    return Release(kind, observer, mechanism, "", None, None)


def _joins(setting: ReportSetting) -> Iterator[Release]:
    if "join_keys" in setting.kinds:
        yield _none("join keys", setting.coordinator, "hashes under a key of this run")
    if setting.kinds:
        yield _none("join graph", setting.coordinator, "exact: sizes, multiplicities, matches")
        seen = "exact: how often each occurs, and how many joined rows there are"
        yield _none("join graph", "each party, of its own rows", seen)


def _weights(setting: ReportSetting) -> Iterator[Release]:
    if "weights" in setting.kinds:
        yield _none("weights", setting.coordinator)
    if "split" in setting.kinds:
        yield _none("rows for validation", setting.coordinator)
    if "weigh" in setting.kinds:
        yield _none("weights and rows for validation", OTHERS, "sums over joined rows")


def _identifiers(setting: ReportSetting) -> Iterator[Release]:
    if "identifiers" in setting.kinds:
        yield _none("identifiers", setting.coordinator)


# -- labels ---------------------------------------------------------------------------------------


def _labels(setting: ReportSetting) -> Iterator[Release]:
    """Yield the releases of labels. Anything computed from noised labels has the same guarantee."""
    if not any(slot.target for slot in setting.plan.ucq.slots):
        return
    epsilon = setting.label_epsilon

    def release(observer: str, through: str) -> Release:
        if epsilon is None:
            return _none("labels", observer, through or EXACT)
        unit = str(setting.label)
        if through:
            return Release("labels", observer, f"{through}, of the noised ones", unit, epsilon, 0.0)
        nominal = setting.privacy.label_epsilon
        note = "" if nominal == epsilon else f"label_epsilon = {nominal:g} of this mechanism"
        noised = f"{setting.label_mechanism}; once per row"
        return Release("labels", observer, noised, unit, epsilon, 0.0, note)

    if "labels" in setting.kinds:
        yield release(setting.coordinator, "")
    if setting.training:
        if len(setting.parties) > 1:
            yield release(OTHERS, "in sums of residuals")
        yield release(USERS, "in parameters, history and metrics")
    elif setting.plan.purpose == "evaluate":
        yield release(READERS, "in metrics")


# -- features -------------------------------------------------------------------------------------


def _statistics(setting: ReportSetting) -> Iterator[Release]:
    if not setting.plan.algorithm or isinstance(setting.protection.statistics, PublicBounds):
        return

    def mechanism(slot: Slot) -> str:
        if not setting.protection.statistics:
            return EXACT
        noise = setting.multiplier(slot, STATISTICS)
        size = "" if noise is None else f" of {noise:.4g} times what one row moves them by"
        return f"sums within the bounds and counts, Gaussian noise{size}, once"

    shared = [slot for slot in setting.slots if len(slot.clients) > 1]
    crossing = [slot for slot in shared if setting.leaves(slot)]
    if "statistics" in setting.kinds:
        seen = _in_secret(setting, "statistics", mechanism)
        yield from _of(setting, STATISTICS, setting.coordinator, crossing, seen, why=KNOWN)
        yield from _of(setting, STATISTICS, CLIENTS, shared, mechanism, why=SUMMED)
    note = "" if setting.together else ALONE
    yield from _of(setting, STATISTICS, USERS, setting.slots, mechanism, note, alone=True)


def _moments(setting: ReportSetting) -> Iterator[Release]:
    linear = setting.plan.tower is None

    def mechanism(slot: Slot) -> str:
        rounds = setting.rounds(slot)
        if not setting.protection.features:
            return EXACT
        if rounds is None:
            return "rows clipped, Gaussian noise, once"
        if not rounds.moments_noise:
            return "not released"
        clipped = f"clipped to {rounds.row_bound:.4g}, " if rounds.row_bound else ""
        return f"{clipped}Gaussian noise of standard deviation {rounds.moments_noise:.4g}, once"

    if setting.solved:
        return
    shared = [slot for slot in setting.slots if len(slot.clients) > 1]
    if "gram" in setting.kinds:
        crossing = [slot for slot in shared if setting.leaves(slot)]
        seen = _in_secret(setting, "gram", mechanism)
        yield from _of(setting, "second moments", setting.coordinator, crossing, seen)
        yield from _of(setting, "second moments", CLIENTS, shared, mechanism)
    if (
        setting.plan.algorithm
        and setting.together
        and linear
        and spec_of(setting.plan.algorithm).moments
    ):
        yield from _of(setting, "second moments", USERS, setting.slots, mechanism, alone=True)


def _equal_rows(setting: ReportSetting) -> Iterator[Release]:
    if "equal_rows" in setting.kinds:
        yield _none("which rows are equal", setting.coordinator)


def _predictions(setting: ReportSetting) -> Iterator[Release]:
    def mechanism(slot: Slot) -> str:
        noise, rounds = setting.protection.predictions, setting.rounds(slot)
        if not isinstance(noise, NoisedPredictions):
            return EXACT
        if rounds is None:
            return f"clipped to {noise.bound}, Gaussian noise in each round"
        return (
            f"clipped to {rounds.prediction_clip:.4g}, Gaussian noise of standard deviation "
            f"{rounds.prediction_noise:.4g}{_times(setting, slot, PREDICTIONS)}"
        )

    def summed(slot: Slot) -> str:
        return f"{'' if setting.together else 'exact '}sums over joined rows, in residuals"

    crossing = [slot for slot in setting.slots if setting.leaves(slot)]
    if setting.summed:
        yield from _sums(setting, crossing)
        return
    if setting.chosen:
        how = partial(sentences.column_mechanism, setting)
        yield from _of(setting, sentences.COLUMN_KIND, setting.coordinator, crossing, how)
        if len(setting.parties) > 1:
            kind, sums = sentences.COLUMN_KIND, sentences.COLUMN_SUMS
            yield from _of(setting, kind, OTHERS, setting.slots, lambda slot: sums)
        return
    if setting.solved:
        how = partial(sentences.mechanism, setting)
        yield from _of(setting, sentences.KIND, setting.coordinator, crossing, how)
        if len(setting.parties) > 1:
            yield from _of(
                setting, sentences.KIND, OTHERS, setting.slots, lambda slot: sentences.SOLVED
            )
        return
    if "predictions" in setting.kinds:
        yield from _of(setting, "predictions", setting.coordinator, crossing, mechanism)
    if "residuals" in setting.kinds and len(setting.parties) > 1:
        yield from _of(setting, "predictions", OTHERS, setting.slots, summed)


def _sums(setting: ReportSetting, crossing: list[Slot]) -> Iterator[Release]:
    how = partial(draws.mechanism, setting)
    why = draws.LEARNING
    if "masked_embeddings" in setting.kinds:
        yield from _of(setting, draws.KIND, setting.coordinator, crossing, how, why=why)
    if "residuals" in setting.kinds and len(setting.parties) > 1:
        said = "functions of the sums, in residuals"
        yield from _of(setting, draws.KIND, OTHERS, setting.slots, lambda slot: said, why=why)


def _gradients(setting: ReportSetting) -> Iterator[Release]:
    kinds = {"partial_gradient", "consensus_part"} & setting.kinds
    if setting.solved:
        return
    content = "parameters" if kinds == {"consensus_part"} else "gradients"
    shared = [slot for slot in setting.slots if len(slot.clients) > 1]
    if kinds:
        crossing = [slot for slot in shared if setting.leaves(slot)]
        how = partial(_gradient, setting)
        seen = _in_secret(setting, "partial_gradient", how)
        yield from _of(setting, content, setting.coordinator, crossing, seen, why=KNOWN)
        yield from _of(setting, content, CLIENTS, shared, how, why=SUMMED)


def _in_secret(
    setting: ReportSetting, kind: str, how: Callable[[Slot], str]
) -> Callable[[Slot], str]:
    """Describe secure sums, if messages of this kind reach the coordinator as such."""
    if not setting.secret(kind):
        return how
    return lambda slot: f"sums over the table's clients, made in secret: {how(slot)}"


def _gradient(setting: ReportSetting, slot: Slot) -> str:
    noise, rounds = setting.protection.features, setting.rounds(slot)
    if setting.chosen and noise:
        return sentences.column_mechanism(setting, slot)
    if setting.solved:
        return sentences.mechanism(setting, slot)
    if not isinstance(noise, NoisedGradients):
        return EXACT
    if rounds is None:
        clip = f"{noise.clip or 0.0:g}"
        if noise.clip is None:
            clip = "its number of joined rows on average"
            if not kind_of(setting.plan.kind).classifies:
                clip += ", times the standard deviation of the labels"
        z = noise.multiplier
        size = "" if z is None else f" of {z:g} times that"
        return f"gradient of each row clipped to {clip}, Gaussian noise{size}"
    each = " at each client" if len(slot.clients) > 1 else ""
    return (
        f"gradient of each row clipped to {rounds.clip:.4g}, Gaussian noise of standard deviation "
        f"{rounds.noise:.4g} in the sum{each}{_times(setting, slot, GRADIENTS)}"
    )


def _history(setting: ReportSetting) -> Iterator[Release]:
    history = [
        word
        for word, noised in (
            ("labels", setting.protection.labels),
            (_told(setting), setting.protection.predictions),
        )
        if noised
    ]
    mechanism = f"of noised {' and '.join(history)}" if history else EXACT
    if history and not setting.together:
        mechanism += f" and exact {_told(setting)}"
    kind, readers = ("history and metrics", USERS) if setting.training else ("metrics", READERS)
    why = draws.LEARNING * setting.drawn
    seen = f"{setting.coordinator}; {readers}"
    yield from _of(setting, kind, seen, setting.slots, lambda slot: mechanism, why=why)


def _told(setting: ReportSetting) -> str:
    """Return the quantity that clients send about rows."""
    if setting.solved:
        return "moments"
    return "embeddings" if setting.summed else "columns" if setting.chosen else "predictions"


def _model(setting: ReportSetting) -> Iterator[Release]:
    training = setting.calibration.training if setting.calibration is not None else None

    def mechanism(slot: Slot) -> str:
        text = _gradient(setting, slot)
        if training is not None and training.intercept_clip:
            text += (
                f"; the intercept's clipped to {training.intercept_clip:.4g} per joined row, noise "
                f"of standard deviation {training.intercept_noise:.4g}"
            )
        return text

    note = "" if setting.together else ALONE
    kind, why = "the model's parameters", draws.LEARNING * setting.drawn
    yield from _of(setting, kind, USERS, setting.slots, mechanism, note, why, alone=True)


def _of(
    setting: ReportSetting,
    kind: str,
    observer: str,
    slots: Iterable[Slot],
    mechanism: Callable[[Slot], str],
    note: str = "",
    why: str = "",
    *,
    alone: bool = False,
) -> Iterator[Release]:
    """Yield a release for all slots with the same ε, and one for those without.

    `alone`: the release is part of the model, and protected against observers of the model only.
    `note` comments on an ε; `why` explains the absence of one despite noise.
    """
    slots = list(slots)
    told = setting.drawn and (observer == CLIENTS or (observer == OTHERS and setting.telling == 0))
    claimed = setting.claimed(slots) if (setting.together and not told) or alone else {}
    for claim, group in claimed.items():
        unit = str(features_of(group, setting.plan.ucq.slots))
        words = _by_slot(group, mechanism)
        pending = claim.epsilon is None
        yield Release(kind, observer, words, unit, claim.epsilon, claim.delta, note, pending)
    rest = [slot for slot in slots if all(slot not in group for group in claimed.values())]
    if rest:
        protected = setting.protection.rows
        if setting.claims and told:
            why = draws.OWN_DRAWS
        if setting.protection.features and not setting.protection.statistics and kind != STATISTICS:
            why = "exact statistics are beside it, by which features are encoded"
        unit = "features" if setting.protection else ""
        words = _by_slot(rest, mechanism)
        yield Release(kind, observer, words, unit, None, None, why if protected else "")


def _by_slot(slots: list[Slot], mechanism: Callable[[Slot], str]) -> str:
    """Return one text if it is the same for all slots, else a text for each."""
    groups: dict[str, list[str]] = {}
    for slot in slots:
        groups.setdefault(mechanism(slot), []).append(slot.name)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{', '.join(names)}: {words}" for words, names in groups.items())


def _times(setting: ReportSetting, slot: Slot, kind: str) -> str:
    count = setting.count(slot, kind)
    return f", at most {count} times" if count and count > 1 else ", once" if count else ""
