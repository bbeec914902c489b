"""The report's table: each kind of release, and each who sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from sqlfl.models.kinds import kind_of
from sqlfl.planner.explain import columns, draws, moments
from sqlfl.planner.explain.card import Release
from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.explain.units import features_of
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.events import GRADIENTS, PREDICTIONS, STATISTICS
from sqlfl.privacy.protection import NoisedGradients, NoisedPredictions, PublicBounds

OTHERS = "other parties"
CLIENTS = "other clients of the table"
USERS = "users of the model"
READERS = "who gets the metrics"
EXACT = "exact"

KNOWN = "exact predictions are beside it"
ALONE = "against who sees nothing but the model's parameters"
SUMMED = "exact predictions are in the residuals that they get"


def releases(own: ReportSetting) -> tuple[Release, ...]:
    """Of a plan or a run, in the order in which they happen."""
    parts = [_joins, _weights, _identifiers, _labels, _statistics, _moments, _equal_rows]
    parts += [_predictions]
    if own.plan.algorithm:
        parts += [_gradients, _history, _model]
    elif own.plan.purpose == "evaluate":
        parts += [_history]
    return tuple(release for part in parts for release in part(own))


def _none(kind: str, observer: str, mechanism: str = EXACT) -> Release:
    return Release(kind, observer, mechanism, "", None, None)


def _joins(own: ReportSetting) -> Iterator[Release]:
    if "join_keys" in own.kinds:
        yield _none("join keys", own.coordinator, "hashes under a key of this run")
    if own.kinds:
        yield _none("join graph", own.coordinator, "exact: sizes, multiplicities, matches")
        seen = "exact: how often each occurs, and how many joined rows there are"
        yield _none("join graph", "each party, of its own rows", seen)


def _weights(own: ReportSetting) -> Iterator[Release]:
    if "weights" in own.kinds:
        yield _none("weights", own.coordinator)
    if "split" in own.kinds:
        yield _none("rows for validation", own.coordinator)
    if "weigh" in own.kinds:
        yield _none("weights and rows for validation", OTHERS, "sums over joined rows")


def _identifiers(own: ReportSetting) -> Iterator[Release]:
    if "identifiers" in own.kinds:
        yield _none("identifiers", own.coordinator)


# -- labels ---------------------------------------------------------------------------------------


def _labels(own: ReportSetting) -> Iterator[Release]:
    """Whatever else is made of noised labels is no more than they are."""
    if not any(slot.target for slot in own.plan.ucq.slots):
        return
    epsilon = own.label_epsilon

    def release(observer: str, through: str) -> Release:
        if epsilon is None:
            return _none("labels", observer, through or EXACT)
        unit = str(own.label)
        if through:
            return Release("labels", observer, f"{through}, of the noised ones", unit, epsilon, 0.0)
        nominal = own.privacy.label_epsilon
        note = "" if nominal == epsilon else f"label_epsilon = {nominal:g} of this mechanism"
        noised = f"{own.label_mechanism}; once per row"
        return Release("labels", observer, noised, unit, epsilon, 0.0, note)

    if "labels" in own.kinds:
        yield release(own.coordinator, "")
    if own.training:
        if len(own.parties) > 1:
            yield release(OTHERS, "in sums of residuals")
        yield release(USERS, "in parameters, history and metrics")
    elif own.plan.purpose == "evaluate":
        yield release(READERS, "in metrics")


# -- features -------------------------------------------------------------------------------------


def _statistics(own: ReportSetting) -> Iterator[Release]:
    if not own.plan.algorithm or isinstance(own.protection.statistics, PublicBounds):
        return

    def mechanism(slot: Slot) -> str:
        if not own.protection.statistics:
            return EXACT
        found = own.multiplier(slot, STATISTICS)
        size = "" if found is None else f" of {found:.4g} times what one row moves them by"
        return f"sums within the bounds and counts, Gaussian noise{size}, once"

    shared = [slot for slot in own.slots if len(slot.clients) > 1]
    crossing = [slot for slot in shared if own.leaves(slot)]
    if "statistics" in own.kinds:
        seen = _in_secret(own, "statistics", mechanism)
        yield from _of(own, STATISTICS, own.coordinator, crossing, seen, why=KNOWN)
        yield from _of(own, STATISTICS, CLIENTS, shared, mechanism, why=SUMMED)
    note = "" if own.together else ALONE
    yield from _of(own, STATISTICS, USERS, own.slots, mechanism, note, alone=True)


def _moments(own: ReportSetting) -> Iterator[Release]:
    linear = own.plan.tower is None

    def mechanism(slot: Slot) -> str:
        rounds = own.rounds(slot)
        if not own.protection.features:
            return EXACT
        if rounds is None:
            return "rows clipped, Gaussian noise, once"
        if not rounds.moments_noise:
            return "not released"
        clipped = f"clipped to {rounds.row_bound:.4g}, " if rounds.row_bound else ""
        return f"{clipped}Gaussian noise of standard deviation {rounds.moments_noise:.4g}, once"

    if own.solved:
        return
    shared = [slot for slot in own.slots if len(slot.clients) > 1]
    if "gram" in own.kinds:
        crossing = [slot for slot in shared if own.leaves(slot)]
        seen = _in_secret(own, "gram", mechanism)
        yield from _of(own, "second moments", own.coordinator, crossing, seen)
        yield from _of(own, "second moments", CLIENTS, shared, mechanism)
    if own.plan.algorithm and own.together and linear and spec_of(own.plan.algorithm).moments:
        yield from _of(own, "second moments", USERS, own.slots, mechanism, alone=True)


def _equal_rows(own: ReportSetting) -> Iterator[Release]:
    if "equal_rows" in own.kinds:
        yield _none("which rows are equal", own.coordinator)


def _predictions(own: ReportSetting) -> Iterator[Release]:
    def mechanism(slot: Slot) -> str:
        noise, rounds = own.protection.predictions, own.rounds(slot)
        if not isinstance(noise, NoisedPredictions):
            return EXACT
        if rounds is None:
            return f"clipped to {noise.bound}, Gaussian noise in each round"
        return (
            f"clipped to {rounds.prediction_clip:.4g}, Gaussian noise of standard deviation "
            f"{rounds.prediction_noise:.4g}{_times(own, slot, PREDICTIONS)}"
        )

    def summed(slot: Slot) -> str:
        return f"{'' if own.together else 'exact '}sums over joined rows, in residuals"

    crossing = [slot for slot in own.slots if own.leaves(slot)]
    if own.summed:
        yield from _sums(own, crossing)
        return
    if own.chosen:
        how = partial(columns.mechanism, own)
        yield from _of(own, columns.KIND, own.coordinator, crossing, how)
        if len(own.parties) > 1:
            yield from _of(own, columns.KIND, OTHERS, own.slots, lambda slot: columns.SUMS)
        return
    if own.solved:
        how = partial(moments.mechanism, own)
        yield from _of(own, moments.KIND, own.coordinator, crossing, how)
        if len(own.parties) > 1:
            yield from _of(own, moments.KIND, OTHERS, own.slots, lambda slot: moments.SOLVED)
        return
    if "predictions" in own.kinds:
        yield from _of(own, "predictions", own.coordinator, crossing, mechanism)
    if "residuals" in own.kinds and len(own.parties) > 1:
        yield from _of(own, "predictions", OTHERS, own.slots, summed)


def _sums(own: ReportSetting, crossing: list[Slot]) -> Iterator[Release]:
    how = partial(draws.mechanism, own)
    why = draws.LEARNING
    if "masked_embeddings" in own.kinds:
        yield from _of(own, draws.KIND, own.coordinator, crossing, how, why=why)
    if "residuals" in own.kinds and len(own.parties) > 1:
        said = "functions of the sums, in residuals"
        yield from _of(own, draws.KIND, OTHERS, own.slots, lambda slot: said, why=why)


def _gradients(own: ReportSetting) -> Iterator[Release]:
    kinds = {"partial_gradient", "consensus_part"} & own.kinds
    if own.solved:
        return
    what = "parameters" if kinds == {"consensus_part"} else "gradients"
    shared = [slot for slot in own.slots if len(slot.clients) > 1]
    if kinds:
        crossing = [slot for slot in shared if own.leaves(slot)]
        how = partial(_gradient, own)
        seen = _in_secret(own, "partial_gradient", how)
        yield from _of(own, what, own.coordinator, crossing, seen, why=KNOWN)
        yield from _of(own, what, CLIENTS, shared, how, why=SUMMED)


def _in_secret(own: ReportSetting, kind: str, how: Callable[[Slot], str]) -> Callable[[Slot], str]:
    """What the coordinator gets of messages of this kind."""
    if not own.secret(kind):
        return how
    return lambda slot: f"sums over the table's clients, made in secret: {how(slot)}"


def _gradient(own: ReportSetting, slot: Slot) -> str:
    noise, rounds = own.protection.features, own.rounds(slot)
    if own.chosen and noise:
        return columns.mechanism(own, slot)
    if own.solved:
        return moments.mechanism(own, slot)
    if not isinstance(noise, NoisedGradients):
        return EXACT
    if rounds is None:
        clip = f"{noise.clip or 0.0:g}"
        if noise.clip is None:
            clip = "its number of joined rows on average"
            if not kind_of(own.plan.kind).classifies:
                clip += ", times the standard deviation of the labels"
        z = noise.multiplier
        size = "" if z is None else f" of {z:g} times that"
        return f"gradient of each row clipped to {clip}, Gaussian noise{size}"
    each = " at each client" if len(slot.clients) > 1 else ""
    return (
        f"gradient of each row clipped to {rounds.clip:.4g}, Gaussian noise of standard deviation "
        f"{rounds.noise:.4g} in the sum{each}{_times(own, slot, GRADIENTS)}"
    )


def _history(own: ReportSetting) -> Iterator[Release]:
    found = [
        word
        for word, noised in (
            ("labels", own.protection.labels),
            (_told(own), own.protection.predictions),
        )
        if noised
    ]
    mechanism = f"of noised {' and '.join(found)}" if found else EXACT
    if found and not own.together:
        mechanism += f" and exact {_told(own)}"
    kind, readers = ("history and metrics", USERS) if own.training else ("metrics", READERS)
    why = draws.LEARNING * own.drawn
    seen = f"{own.coordinator}; {readers}"
    yield from _of(own, kind, seen, own.slots, lambda slot: mechanism, why=why)


def _told(own: ReportSetting) -> str:
    """What clients tell of rows."""
    if own.solved:
        return "moments"
    return "embeddings" if own.summed else "columns" if own.chosen else "predictions"


def _model(own: ReportSetting) -> Iterator[Release]:
    training = own.calibration.training if own.calibration is not None else None

    def mechanism(slot: Slot) -> str:
        text = _gradient(own, slot)
        if training is not None and training.intercept_clip:
            text += (
                f"; the intercept's clipped to {training.intercept_clip:.4g} per joined row, noise "
                f"of standard deviation {training.intercept_noise:.4g}"
            )
        return text

    note = "" if own.together else ALONE
    kind, why = "the model's parameters", draws.LEARNING * own.drawn
    yield from _of(own, kind, USERS, own.slots, mechanism, note, why, alone=True)


def _of(
    own: ReportSetting,
    kind: str,
    observer: str,
    slots: Iterable[Slot],
    mechanism: Callable[[Slot], str],
    note: str = "",
    why: str = "",
    *,
    alone: bool = False,
) -> Iterator[Release]:
    """A release for all slots of the same ε, and one for those without.

    `alone`: it is a part of the model, and so protected where nothing but that is seen. `note` is
    said of an ε, `why` of none where noise was added.
    """
    slots = list(slots)
    told = own.drawn and (observer == CLIENTS or (observer == OTHERS and own.telling == 0))
    claimed = own.claimed(slots) if (own.together and not told) or alone else {}
    for claim, group in claimed.items():
        unit = str(features_of(group, own.plan.ucq.slots))
        words = _by_slot(group, mechanism)
        pending = claim.epsilon is None
        yield Release(kind, observer, words, unit, claim.epsilon, claim.delta, note, pending)
    rest = [slot for slot in slots if all(slot not in group for group in claimed.values())]
    if rest:
        protected = own.protection.rows
        if own.claims and told:
            why = draws.OWN_DRAWS
        if own.protection.features and not own.protection.statistics and kind != STATISTICS:
            why = "exact statistics are beside it, by which features are encoded"
        unit = "features" if own.protection else ""
        words = _by_slot(rest, mechanism)
        yield Release(kind, observer, words, unit, None, None, why if protected else "")


def _by_slot(slots: list[Slot], mechanism: Callable[[Slot], str]) -> str:
    """Once where it is the same for all, else by name."""
    found: dict[str, list[str]] = {}
    for slot in slots:
        found.setdefault(mechanism(slot), []).append(slot.name)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(names)}: {words}" for words, names in found.items())


def _times(own: ReportSetting, slot: Slot, what: str) -> str:
    count = own.count(slot, what)
    return f", at most {count} times" if count and count > 1 else ", once" if count else ""
