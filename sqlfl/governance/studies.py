"""Studies at a party: whether a proposed run is within one that its owner has approved.

The party decides by its own reading of the request: the kinds of messages that it would answer, the
SQL, and the specification of the snapshot.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from sqlfl import messages as ms
from sqlfl.base import sanitize
from sqlfl.base.errors import InternalError, PolicyError
from sqlfl.contract.request import (
    CHECK,
    EVALUATE,
    PREDICT,
    STUDY,
    TRAIN,
    TRAINING,
    TUNE,
    WAITING,
    ApprovedStudy,
    Request,
    Study,
    StudyTable,
    measures,
)
from sqlfl.contract.schema import folded
from sqlfl.governance import noising
from sqlfl.governance.approvals import Filed
from sqlfl.governance.modes import mode_refusals
from sqlfl.governance.policies import JOIN, Ruling
from sqlfl.governance.policy_evaluation import has, writes
from sqlfl.governance.proposals import Read
from sqlfl.governance.request_columns import LINK, ColumnUse, SlotColumns
from sqlfl.governance.scopes import ASK, ScopeColumn, Table, unknown
from sqlfl.messages.disclosed import KNOWN, ROUNDS, listed
from sqlfl.options.policies import EXACT, NOISED, TrainingPolicy, modes
from sqlfl.options.studies import check_limits

_LOOKS: Mapping[str, frozenset[str]] = {
    "inference": frozenset((ms.SendRotated.kind, ms.SendErrors.kind)),
    "importance": frozenset((ms.ScorePermuted.kind, ms.PermuteExactly.kind)),
    "contributions": frozenset((ms.SendContributions.kind, ms.SendExactContributions.kind)),
    "skew": frozenset((ms.SendSkew.kind,)),
    CHECK: frozenset((ms.SendProfile.kind, ms.SendExplained.kind)),
}
"""Requests that one kind of statement has alone."""
_SCORES = frozenset((ms.Score.kind, ms.ScoreExactly.kind))
WRITING = frozenset((ms.Write.kind, ms.Commit.kind))
"""Requests of PREDICT INTO."""
_OUTSIDE = WRITING | frozenset(
    kind.kind
    for kind in (
        ms.OpenJoin, ms.SendJoinState, ms.CloseJoin, ms.ProposeStudy, ms.SendIdentifiers,
    )
)  # fmt: skip
"""Requests that belong to no training."""
_TRAINING = KNOWN - frozenset().union(*_LOOKS.values()) - _SCORES - _OUTSIDE
_RUN = frozenset(
    kind.kind
    for kind in (ms.Propose, ms.Prepare, ms.SendKeys, ms.Activate, ms.Seal, ms.Finish)
)  # fmt: skip
"""Requests of every run."""
_PREDICTING = _RUN | _SCORES | {ms.SendOffsets.kind, ms.SendFindings.kind}
_SCORING = _PREDICTING | {ms.SendLabels.kind, ms.SendWeights.kind, ms.SendReleases.kind}
SENDS: Mapping[str, frozenset[str]] = {
    TRAIN: _TRAINING,
    TUNE: _TRAINING,
    CHECK: _RUN | {ms.SendLabels.kind} | _LOOKS[CHECK],
    EVALUATE: _SCORING,
    PREDICT: _PREDICTING | {ms.SendIdentifiers.kind},
    "inference": _SCORING | _LOOKS["inference"],
    "importance": _SCORING | _LOOKS["importance"],
    "contributions": _PREDICTING | _LOOKS["contributions"] | {ms.SendIdentifiers.kind},
    "skew": _RUN | {ms.SendWeights.kind, ms.Weigh.kind} | _LOOKS["skew"],
}
"""Requests that each kind of statement may make."""
_ROLES = {
    "train": "as a feature",
    "label": "as the label",
    "weight": "as the weight",
    "offset": "as the offset",
    "join": "as a join key",
    "filter": "in a condition on rows",
    "identify": "beside predictions",
}


def filed_study(
    study: Study, analyst: str, place: tuple[str, str], ruling: Ruling
) -> tuple[Filed, frozenset[Table]]:
    """Return the request for a study, and its tables as they are named in full. Raise PolicyError
    for a table without a grant, and for a column that is not granted for anything. Raise
    InternalError for a name or limits that no statement gives.
    """
    if folded(study.name) != study.name:
        raise InternalError("the description of a study has a name that is not folded")
    check_limits(study)
    tables: dict[Table, StudyTable] = {}
    for item in study.tables:
        database, schema, name = item.table
        table = (database or place[0], schema or place[1], name)
        tables[table] = replace(item, table=table)
        if not ruling.of(table):
            raise PolicyError("a table of the study is not granted", hint=ASK)
        for role in item.roles:
            for column in role.columns:
                if not ruling.may_any(ScopeColumn(table, column)):
                    raise unknown(column)
    uses = tuple(sorted(
        ColumnUse(role.role, table, name)
        for table, item in tables.items() for role in item.roles for name in role.columns
    ))  # fmt: skip
    whole = replace(study, tables=tuple(tables.values()))
    request = Request(
        STUDY, "", "", "{}", "null", "null", warm=False, into=False, asked=(), study=study.name
    )
    names = tuple(sorted(".".join(table[1:]) for table in tables))
    filed = Filed(
        whole.digest, analyst, names, request, (), state=WAITING, specification="[]",
        columns=(SlotColumns(0, tuple(sorted(tables)), uses),), study=whole,
    )  # fmt: skip
    return filed, frozenset(tables)


def statement_of(request: Request, *, folds: bool) -> str:
    """Return the kind of statement that sends such messages; empty for one that looks into a model
    by what other parties send. folds : rows are parted for comparing candidates.
    """
    kinds = {one.kind for one in request.asked}
    for statement, requests in _LOOKS.items():
        if kinds & requests:
            return statement
    if request.purpose == TRAIN:
        return TUNE if folds else TRAIN
    if request.purpose in (CHECK, PREDICT) or measures(request.purpose, request.look):
        return request.purpose
    return ""


def noised(
    study: Study, rules: Mapping[int, TrainingPolicy], *, trains: bool
) -> dict[int, TrainingPolicy]:
    """Return the rules with the noise that the study promises, by slot."""
    return {slot: _noised(study, policy, trains=trains) for slot, policy in rules.items()}


def _noised(study: Study, policy: TrainingPolicy, *, trains: bool) -> TrainingPolicy:
    noised_policy = replace(policy, conditions=policy.filters)
    if study.label_epsilon is not None:
        least = study.label_epsilon
        if policy.labels == NOISED:
            least = min(least, policy.max_label_epsilon)
        labels = NOISED if policy.labels == EXACT else policy.labels
        noised_policy = replace(noised_policy, labels=labels, max_label_epsilon=least)
    if study.epsilon is not None and trains:
        least = min(study.epsilon, policy.max_epsilon) if policy.noises_features else study.epsilon
        noised_policy = replace(
            noised_policy,
            predictions=_with_noise(policy.predictions),
            moments=_with_noise(policy.moments),
            max_epsilon=least,
            delta=min(policy.delta, study.delta) if policy.noises_features else study.delta,
        )
    return noised_policy


def _with_noise(mode: str) -> str:
    strict = sorted((modes(mode) - {EXACT}) | {NOISED})
    return " and ".join(strict)


def differences(
    approved: ApprovedStudy | None,
    filed: Filed,
    proposed: Read,
    rules: Mapping[int, TrainingPolicy],
    every: TrainingPolicy,
    keys: Callable[[ScopeColumn], bool],
) -> tuple[str, ...]:
    """Return how the run exceeds the study that it names; nothing if it is within it.

    approved : None if no such study of the analyst is approved. rules, every, keys : as in
        `modes.against`; the run must be within the rules.
    """
    if approved is None:
        named = sanitize.clipped(sanitize.line(filed.request.study or ""), 80)
        return (f"no study {named} of {filed.analyst} is approved",)
    study, request = approved.study, filed.request
    return (
        *_over(approved, dt.datetime.now(dt.UTC)),
        *_aims(study, request, proposed),
        *_rounds(study, request, proposed),
        *_columns(study, filed.columns),
        *_privacy(study, request, proposed, rules, every, keys),
    )


def _over(approved: ApprovedStudy, now: dt.datetime) -> Iterator[str]:
    study = approved.study
    if now >= study.until:
        yield f"the study ended on {study.until:%Y-%m-%d %H:%M} UTC"
    if approved.used >= study.runs:
        yield f"the study allows {study.runs} runs, and {approved.used} have begun"


def foreign(request: Request, statements: Collection[str]) -> str:
    """Return the requests that are no part of such statements, in words; empty without one."""
    known = frozenset().union(*(SENDS[statement] for statement in statements))
    asked = sorted({one.kind for one in request.asked} - known)
    verb = "is" if len(asked) == 1 else "are"
    return (
        f"{listed(asked)} {verb} asked for, which is no part of such a statement" if asked else ""
    )


def _aims(study: Study, request: Request, proposed: Read) -> Iterator[str]:
    statement = statement_of(request, folds=any(item.folds for item in proposed.slots))
    scores = set(study.statements) - {*TRAINING, CHECK}
    of = {statement} if statement else scores
    asked = foreign(request, of)
    if not of or not of <= set(study.statements):
        said = (statement or "a statement that looks into a model").upper()
        yield f"the study allows {listed(s.upper() for s in study.statements)}; this is {said}"
    elif asked:
        yield asked
    if statement not in TRAINING and any(item.shared and item.features for item in proposed.slots):
        yield "statistics of features are asked for, which is no part of such a statement"
    if writes(request):
        yield "the study writes no predictions into a table"
    if study.kinds is not None and request.kind not in study.kinds:
        yield f"the study allows models of kind {listed(study.kinds)}; this is {request.kind}"
    method = request.algorithm
    if study.algorithms is not None and method and method not in study.algorithms:
        yield f"the study allows the method {listed(study.algorithms)}; this is {method}"


def _rounds(study: Study, request: Request, proposed: Read) -> Iterator[str]:
    """Yield a difference in the rounds that are known. Where more follow from the data, the party
    ends the run at the study's limit.
    """
    often = request.often()
    asked = max(
        (sum(n for (slot, kind), n in often.items()
             if slot == item.slot and kind in ROUNDS and math.isfinite(n))
         for item in proposed.slots),
        default=0,
    )  # fmt: skip
    if study.rounds is not None and asked > study.rounds:
        yield f"the study allows at most {study.rounds:,} rounds; this asks for {asked:,.0f}"


def _columns(study: Study, slots: tuple[SlotColumns, ...]) -> Iterator[str]:
    tables = {item.table: item for item in study.tables}
    for table in sorted({table for slot in slots for table in slot.tables}):
        if table not in tables:
            yield f"table {'.'.join(table[1:])} is not in the study"
    for use in sorted({use for slot in slots for use in slot.uses}):
        item, role = tables.get(use.table), JOIN if use.role == LINK else use.role
        if item is None or use.name in item.columns(role):
            continue
        roles = [role.role for role in item.roles if use.name in role.columns]
        where = "is in the study, but not" if roles else "is not in the study"
        name = f"{use.table[2]}.{use.name}" if len(tables) > 1 else use.name
        yield f"column {name} {where}{f' {_ROLES[role]}' if roles else ''}"
    for clause in sorted({clause for slot in slots for clause in slot.chosen}):
        yield f"{clause} chooses among rows, which the study has no words for"


def _privacy(
    study: Study,
    request: Request,
    proposed: Read,
    rules: Mapping[int, TrainingPolicy],
    every: TrainingPolicy,
    keys: Callable[[ScopeColumn], bool],
) -> Iterator[str]:
    """Yield noise of the study that the run lacks."""
    trains = request.purpose == TRAIN
    strict = noised(study, rules, trains=trains)
    told = []
    for verdict in mode_refusals(request, proposed, strict, every, keys):
        label = next((i.privacy.label for i in proposed.slots
                      if i.slot == verdict.slot and i.privacy is not None), None)  # fmt: skip
        privacy = noising.privacy_of(request)
        if "max_label_epsilon" in verdict.rule and label is not None:
            told.append(
                f"the study allows labels with ε of at most {study.label_epsilon:g}; this asks for "
                f"{noising.epsilon_of(label):g}"
            )
        elif "max_epsilon" in verdict.rule and privacy is not None and privacy.epsilon is not None:
            told.append(
                f"the study allows features with ε of at most {study.epsilon:g} at δ = "
                f"{study.delta:g}; this asks for {privacy.epsilon:g} at δ = {privacy.delta:g}"
            )
        else:
            told.append(verdict.rule.replace(has(""), "the study has "))
    yield from dict.fromkeys(told)
