"""Rules for how labels, features and metrics may leave in each run, with or without an account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlfl import messages as ms
from sqlfl.contract.request import REFUSED, Asked, Request, Verdict
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance import noising
from sqlfl.governance.masked import BEFORE_ROUNDS, IN_SUMS
from sqlfl.governance.policy_evaluation import SCORES, has
from sqlfl.governance.proposals import Read
from sqlfl.governance.scopes import ScopeColumn, Table
from sqlfl.governance.tree import SelectReading
from sqlfl.options.policies import NEVER, NOISED, SECURE_SUM, TrainingPolicy, modes

EVALUATE = "evaluate"
SUMMED = frozenset((ms.SendGram.kind, ms.SendStatistics.kind))
MOMENTS = SUMMED | {
    kind.kind
    for kind in (
        ms.SendRotated,
        ms.SendErrors,
        ms.SendCells,
        ms.SetCells,
        ms.SetStrengths,
        ms.SendProfile,
        ms.SendExplained,
        ms.SendSkew,
    )
}
HELD_OUT = frozenset((ms.SendSplit.kind, ms.SendFolds.kind))
NOISED_KINDS = noising.NOISED | {
    ms.SendWeights.kind,
    ms.SendOffsets.kind,
    ms.SendSplit.kind,
}
"""What tells of features with noise, or nothing."""
BOTH = (
    "'noised' and 'secure_sum' of the same features, which no run is: noise under masks is shared "
    "among those who add it, so that none of them can count its own"
)
UNASKED = (
    "no rule that lets out which columns have rows of one class only: that would leave before rare "
    "values are looked for"
)
SLACK = 1e-6
"""Relative slack of an epsilon computed back from noise."""
Told = tuple[str, str]
"""Data that would leave, and the reason of a refusal."""


def mode_refusals(
    request: Request,
    proposed: Read,
    rules: Mapping[int, TrainingPolicy],
    every: TrainingPolicy,
    keys: Callable[[ScopeColumn], bool],
) -> tuple[Verdict, ...]:
    """Return the verdicts on all data of a run that leave in a forbidden way. `keys` as in
    `noising.unstable`.
    """
    verdicts = [
        Verdict(slot, what, REFUSED, has("metrics = 'never'"))
        for slot, what in _measured(request, proposed.slots)
        if every.metrics == NEVER
    ]
    for item in proposed.slots:
        policy = rules[item.slot]
        asked = _of(request, item)
        told = [
            *_labels(item, policy, proposed.readings[item.slot]),
            *_nothing(item, policy, asked),
        ]
        demanded = _demanded(item, policy, asked)
        if {NOISED, SECURE_SUM} <= demanded:
            told.append(("its features", has(BOTH)))
        elif NOISED in demanded:
            told += _noised(request, item, policy, asked)
        elif SECURE_SUM in demanded:
            told += [*_predictions(item, policy, asked), *_moments(item, policy, asked)]
        told += [(one.what, has(UNASKED)) for one in asked if one.kind == ms.SendSeparated.kind]
        if policy.weights == NEVER:
            errors = [one.what for one in asked if one.kind == ms.SendErrors.kind]
            told += [(what, has("weights = 'never'")) for what in errors]
        verdicts += [Verdict(item.slot, what, REFUSED, why) for what, why in told]
    return (*verdicts, *_unstable(request, proposed, rules, keys))


def allowances(
    request: Request, proposed: Read, rules: Mapping[int, TrainingPolicy]
) -> Iterator[tuple[int, float]]:
    """Yield μ² that training may release of a row, for each slot whose features must be noised.
    Nothing of the run may be refused.
    """
    for item in proposed.slots:
        if NOISED in _demanded(item, rules[item.slot], _of(request, item)):
            most = noising.allowance(item, noising.entries(request, item, ""))
            assert most is not None
            yield item.slot, most


def _of(request: Request, item: SlotSpecification) -> list[Asked]:
    return [one for one in request.asked if one.slot == item.slot]


def _demanded(
    item: SlotSpecification, policy: TrainingPolicy, asked: list[Asked]
) -> frozenset[str]:
    """Return how features must leave in this run. Rules cover only the data that leave."""
    demanded: frozenset[str] = frozenset()
    if _has_rounds(item, asked):
        demanded |= modes(policy.predictions)
    if _told_moments(item, asked):
        demanded |= modes(policy.moments)
    return demanded


# -- metrics ---------------------------------------------------------------------------------------


def _measured(request: Request, slots: tuple[SlotSpecification, ...]) -> Iterator[tuple[int, str]]:
    """Yield data that can measure a model. Labels leave for training too, but then nobody sees the
    coordinator's results.
    """
    every = {one.kind for one in request.asked}
    if request.purpose == EVALUATE:
        yield ms.CLIENT, ""
    elif ms.SendLabels.kind in every and every & SCORES:
        yield ms.CLIENT, "labels beside scores"
    for item in slots:
        kinds = {one.kind for one in _of(request, item)}
        if item.split or item.folds or kinds & HELD_OUT:
            yield item.slot, "rows that are held out"


# -- labels, predictions, moments ------------------------------------------------------------------


def _labels(
    item: SlotSpecification, policy: TrainingPolicy, readings: Sequence[SelectReading]
) -> Iterator[Told]:
    if policy.labels == NEVER and (item.target or item.weight or item.offset):
        yield "its target, weights or offsets", has("labels = 'never'")
    if policy.labels != NOISED:
        return
    hindered = False
    for what, why in noising.of_labels(item, readings):
        hindered = True
        yield what, _takes("labels = 'noised'", why)
    label = None if item.privacy is None else item.privacy.label
    if item.target and label is not None and not hindered:
        most = policy.max_label_epsilon
        if noising.epsilon_of(label) > most * (1.0 + SLACK):
            yield "its target", has(f"max_label_epsilon = {most:g}")


def _nothing(item: SlotSpecification, policy: TrainingPolicy, asked: list[Asked]) -> Iterator[Told]:
    if NEVER in modes(policy.predictions) and _has_rounds(item, asked):
        yield "its features", has("predictions = 'never'")
    if NEVER in modes(policy.moments):
        for _, what in _told_moments(item, asked):
            yield what, has("moments = 'never'")


def _predictions(
    item: SlotSpecification, policy: TrainingPolicy, asked: list[Asked]
) -> Iterator[Told]:
    """Yield data that is not in sums under masks."""
    if SECURE_SUM not in modes(policy.predictions) or not _has_rounds(item, asked):
        return
    rule = "predictions = 'secure_sum'"
    if not item.masked_predictions:
        yield "its features", _takes(rule, "sums under masks over several tables, as of 'pbm'")
        return
    for one in asked:
        if one.kind not in BEFORE_ROUNDS and one.reply not in IN_SUMS:
            yield one.what or one.kind, _takes(rule, "nothing in clear")


def _moments(item: SlotSpecification, policy: TrainingPolicy, asked: list[Asked]) -> Iterator[Told]:
    """Yield moments that are not in sums under masks."""
    rule = "moments = 'secure_sum'"
    for kind, what in _told_moments(item, asked) if SECURE_SUM in modes(policy.moments) else ():
        if kind not in SUMMED:
            yield what, _takes(rule, "nothing but statistics and products of training")
        elif not (item.secure and item.shared):
            yield what, _takes(rule, "sums under masks over its databases: union = 'secure'")
        elif any(feature.fitted for feature in item.features):
            why = "no TRANSFORM that is fitted to the rows, whose ranges leave in clear"
            yield what, _takes(rule, why)


def _noised(
    request: Request, item: SlotSpecification, policy: TrainingPolicy, asked: list[Asked]
) -> Iterator[Told]:
    rule = _noising_rule(item, policy, asked)
    hindered = False
    for what, why in noising.of_features(request, item):
        hindered = True
        yield what, _takes(rule, why)
    for one in asked:
        if one.kind not in NOISED_KINDS:
            yield one.what or one.kind, _takes(rule, "nothing of features without noise")
    if hindered:
        return
    most = policy.max_epsilon
    if noising.features_epsilon(request, item, policy.delta) > most * (1.0 + SLACK):
        yield "its features", has(f"max_epsilon = {most:g}, at delta = {policy.delta:g}")


def _noising_rule(item: SlotSpecification, policy: TrainingPolicy, asked: list[Asked]) -> str:
    """Return the rule by which features must be noised; empty without one."""
    if NOISED in modes(policy.predictions) and _has_rounds(item, asked):
        return "predictions = 'noised'"
    return "moments = 'noised'" if NOISED in _demanded(item, policy, asked) else ""


def _unstable(
    request: Request,
    proposed: Read,
    rules: Mapping[int, TrainingPolicy],
    keys: Callable[[ScopeColumn], bool],
) -> Iterator[Verdict]:
    """Yield tables of which a row may have its noise several times, or whose rows disclose what it
    hides.
    """
    readings = [reading for of_slot in proposed.readings.values() for reading in of_slot]
    ruled: dict[Table, str] = {}
    labelled: list[SelectReading] = []
    for item in proposed.slots:
        rule = _noising_rule(item, rules[item.slot], _of(request, item))
        if rule:
            ruled |= dict.fromkeys(proposed.tables[item.slot], rule)
        if item.target and rules[item.slot].labels == NOISED:
            labelled += proposed.readings[item.slot]
    for table, why in noising.unstable(ruled, readings, keys):
        yield Verdict(ms.CLIENT, _named(table), REFUSED, _takes(ruled[table], why))
    tables = frozenset().union(*(reading.tables for reading in labelled)) - set(ruled)
    for table, why in noising.unstable(tables, labelled, keys):
        if why == noising.STABLE:  # conditions disclose features
            yield Verdict(ms.CLIENT, _named(table), REFUSED, _takes("labels = 'noised'", why))


def _named(table: Table) -> str:
    return ".".join(table[1:])


def _has_rounds(item: SlotSpecification, asked: list[Asked]) -> bool:
    """Return True if something of features leaves, row by row or in sums with the coordinator's
    values.
    """
    return bool(item.features) and any(one.kind not in BEFORE_ROUNDS for one in asked)


def _told_moments(item: SlotSpecification, asked: list[Asked]) -> list[Told]:
    """Return (kind of the request, data). Statistics come without a request."""
    leaving = [(one.kind, one.what or one.kind) for one in asked if one.kind in MOMENTS]
    bounded = item.privacy is not None and item.privacy.statistics == "bounds"
    if item.shared and not bounded:
        leaving.append((ms.SendStatistics.kind, "statistics of its features"))
    return leaving if item.features else []


def _takes(rule: str, why: str) -> str:
    return f"{has(rule)}, which takes {why}"
