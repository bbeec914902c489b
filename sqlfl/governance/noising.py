"""Runs over tables with an account: the data that may leave, and their cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from sqlfl import messages as ms
from sqlfl.base.codec import from_json
from sqlfl.base.errors import InternalError
from sqlfl.contract.privacy_specification import LabelNoise, SnapshotPrivacy
from sqlfl.contract.request import Asked, Request
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance.ledger import FEATURES, LABELS, Budget, LedgerEntry, account_epsilon
from sqlfl.governance.scopes import ScopeColumn, Table
from sqlfl.governance.tree import SelectReading
from sqlfl.options.policies import TrainingPolicy, strictest
from sqlfl.options.privacy import EPSILON, Privacy
from sqlfl.privacy.accountant import budget
from sqlfl.privacy.mechanisms import label_epsilon

NOISED = frozenset(
    kind.kind
    for kind in (
        ms.SendKeys, ms.Activate, ms.Weigh, ms.SetRanges, ms.SetEncoding, ms.SendLabels, ms.Start,
        ms.SendPredictions, ms.Residuals, ms.SumGradient, ms.SendGram, ms.SetGram,
        ms.ConsensusAverage, ms.SetParameters, ms.SendReleases, ms.Save, ms.SendIdentifiers,
    )
)  # fmt: skip
"""Requests that a party answers without disclosing features or labels, or with noise."""
SOUND = ("gaussian", "moments")
"""Ways to noise predictions, or to send none, that add only normal noise."""
STABLE = (
    "each row of it in one row of the query: without joins, groups and subqueries within the "
    "party; or grant a view, whose rows count then"
)
CONDITIONS = (
    "no condition on values, as the rows that fulfil it would show; or grant a view that has it"
)
SLACK = 1e-9
"""Relative slack of μ², for rounding in subtractions."""


def budgets_of(
    rules: Iterable[TrainingPolicy], totals: Iterable[TrainingPolicy]
) -> tuple[Budget, ...]:
    """Return the budgets of a table. That of one analyst follows from the `rules` of their grants.
    That of all together follows from all policies with an epsilon_total under which anybody has the
    table.
    """
    of_analyst, whole = tuple(rules), tuple(totals)
    budgets = []
    if of_analyst and (least := strictest(of_analyst)).epsilon is not None:
        budgets.append(Budget(least.epsilon, least.delta, least.per))
    if whole and (least := strictest(whole)).epsilon_total is not None:
        budgets.append(Budget(least.epsilon_total, least.delta, least.per, total=True))
    return tuple(budgets)


def hindrance(
    request: Request,
    item: SlotSpecification,
    asked: Sequence[Asked],
    readings: Sequence[SelectReading],
) -> Iterator[tuple[str, str]]:
    """Yield (data, reason) for all data of a slot under an account that would leave without noise,
    or with noise that no account covers. `readings` are of its fragments.
    """
    yield from of_labels(item, readings)
    if item.features:
        yield from of_features(request, item)
    for one in asked:
        if one.slot == item.slot and one.kind not in NOISED:
            yield one.what or one.kind, "nothing without noise"


def of_labels(
    item: SlotSpecification, readings: Sequence[SelectReading]
) -> Iterator[tuple[str, str]]:
    """The same of what leaves of its target, weights and offsets.

    Noise must follow from the whole row. Otherwise it would differ with each choice of a part, and
    with each order of rows that are alike in it.
    """
    label = None if item.privacy is None else item.privacy.label
    base = len(item.features) + item.target + item.weight + item.offset
    based = readings if item.base else ()
    if item.target and label is None:
        yield "its target", "noised labels: PRIVACY (label_epsilon = ...)"
    elif item.target and label is not None and not _sound_label(label):
        yield "its target", "noise of labels of an epsilon above 0, over public bounds or classes"
    elif item.target and not all(reading.nobodys or reading.outputs[base].row for reading in based):
        yield "its target", "noise of labels that follows from whole rows"
    if item.weight:
        yield "its weights", "nothing in clear"
    if item.offset:
        yield "its offsets", "nothing in clear"


def of_features(request: Request, item: SlotSpecification) -> Iterator[tuple[str, str]]:
    """Yield the same for its features in training."""
    noise, privacy = item.privacy, privacy_of(request)
    if noise is None or noise.delta is None or privacy is None or privacy.epsilon is None:
        yield "its features", "training under PRIVACY (epsilon = ...)"
    elif privacy.predictions not in SOUND or item.secure or item.masked_predictions or item.folds:
        yield "its features", "PRIVACY with predictions = 'gaussian' or 'moments', in plain sums"
    elif noise.statistics == "none" or any(feature.fitted for feature in item.features):
        yield "its features", "statistics that are public or noised"
    elif not _sound(item, noise, privacy):
        yield "its features", "statistics in public bounds, of noise that its epsilon allows"


def _sound(item: SlotSpecification, noise: SnapshotPrivacy, privacy: Privacy) -> bool:
    """Return True if statistics are measured within given bounds, with noise within the requested
    budget.
    """
    epsilon, threshold = EPSILON.read(privacy.epsilon), noise.statistics_delta
    if epsilon is None or not 0.0 < privacy.delta < 1.0:
        return False
    if not 0.0 <= threshold < privacy.delta or len(noise.bounds) != len(item.features):
        return False
    unlisted = [f for f, b in zip(item.features, noise.bounds, strict=True) if b is None]
    if noise.statistics == "bounds":
        return not unlisted and not threshold
    if any(feature.kind != "category" for feature in unlisted) or bool(unlisted) != (
        threshold > 0.0
    ):
        return False
    mu = budget(epsilon, privacy.delta - threshold)
    return noise.statistics_noise * mu * (1.0 + SLACK) >= 1.0


def _sound_label(label: LabelNoise) -> bool:
    if not 0.0 < label.epsilon < math.inf:
        return False
    if label.bounds is None:
        return len(set(label.classes)) >= 2
    low, high = label.bounds
    return label.mechanism == "laplace" and math.isfinite(high - low) and low < high


def privacy_of(request: Request) -> Privacy | None:
    try:
        return from_json(Privacy | None, request.privacy)  # type: ignore[arg-type]
    except ValueError as error:
        raise InternalError(f"the privacy of a request is none: {error}") from None


def unstable(
    tables: Iterable[Table],
    readings: Sequence[SelectReading],
    keys: Callable[[ScopeColumn], bool],
) -> Iterator[tuple[Table, str]]:
    """Yield tables of which a row may be in several rows of the query, or of which conditions are
    asked that no noise hides. `keys`: whether a column is granted for joins, whose NULLs are
    visible there. The row for missing partners of a LEFT JOIN belongs to no table.
    """
    readings = [reading for reading in readings if not reading.nobodys]
    for table in sorted(tables):
        of_table = [reading for reading in readings if table in reading.tables]
        if len(of_table) > 1 or not all(reading.stable for reading in of_table):
            yield table, STABLE
        elif any(
            reading.filters or not all(keys(column) for column in reading.links)
            for reading in of_table
        ):
            yield table, CONDITIONS


def entries(request: Request, item: SlotSpecification, draw: str) -> tuple[LedgerEntry, ...]:
    """Return the maximum release of a row of the slot's table in the whole run. `draw` names the
    draw of its labels (sqlfl.udfs.labels.label_noise.draw_of).
    """
    releases = []
    privacy = privacy_of(request)
    epsilon = None if privacy is None else privacy.epsilon
    if item.features and item.privacy is not None and privacy is not None and epsilon is not None:
        threshold = item.privacy.statistics_delta
        mu = budget(epsilon, privacy.delta - threshold)
        releases.append(LedgerEntry(FEATURES, multiplier=1.0 / mu, delta=threshold))
    label = None if item.privacy is None else item.privacy.label
    if item.target and label is not None:
        releases.append(LedgerEntry(LABELS, epsilon=epsilon_of(label), identity=draw))
    return tuple(releases)


def features_epsilon(request: Request, item: SlotSpecification, delta: float) -> float:
    """Return the ε of all that the run may disclose of a row's features, if nothing prevents
    that.
    """
    of_features = [entry for entry in entries(request, item, "") if entry.what == FEATURES]
    return account_epsilon(of_features, delta)


def allowance(item: SlotSpecification, entries_of_slot: Sequence[LedgerEntry]) -> float | None:
    """Return μ² that training may release of a row of the slot: the reservation, less the part of
    noised statistics. Return None without features.
    """
    of_features = [entry for entry in entries_of_slot if entry.what == FEATURES]
    if not of_features or item.privacy is None:
        return None
    whole = math.pow(of_features[0].multiplier, -2.0)
    noise = item.privacy.statistics_noise
    if item.privacy.statistics == "noised":
        whole -= math.pow(noise, -2.0) if noise > 0.0 else whole
    return max(whole, 0.0) * (1.0 + SLACK)


def epsilon_of(label: LabelNoise) -> float:
    """Return the ε that holds for a row's label."""
    classes = None if label.bounds is not None else len(label.classes)
    return label_epsilon(label.mechanism, label.epsilon, classes)
