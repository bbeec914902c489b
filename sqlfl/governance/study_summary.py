"""Plain sentences about a study, for the owner who decides about it, and warnings."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from sqlfl import messages as ms
from sqlfl.base import sanitize
from sqlfl.contract.request import CHECK, TRAINING, Study
from sqlfl.governance.approvals import Filed
from sqlfl.governance.policies import FILTER, IDENTIFY, JOIN, LABEL, TRAIN, Grant
from sqlfl.governance.request_columns import OFFSET, WEIGHT
from sqlfl.governance.request_summary import (
    FOR_OTHERS,
    NUMBERS_OR_TARGETS,
    TARGETS,
    Summary,
    clear_labels,
    goes,
    inferred_of,
    roles_in_words,
    rows_in_words,
    tables_of,
    warnings_of,
)
from sqlfl.governance.scopes import Table
from sqlfl.governance.studies import SENDS
from sqlfl.governance.table_facts import TableFacts
from sqlfl.messages.disclosed import (
    ESTIMATES,
    OTHERS,
    Disclosed,
    guess,
    learnt_from,
    learnt_of_keys,
    listed,
)
from sqlfl.options.policies import TrainingPolicy

MAX_PURPOSE = 500
"""Characters of the purpose that are shown."""
_REFUSED = frozenset((ms.SendSeparated.kind,))
"""Requests that no policy lets a party answer."""
_PARTS = frozenset(
    kind.kind
    for kind in (
        ms.SendContributions, ms.SendExactContributions, ms.ScorePermuted, ms.PermuteExactly,
    )
)  # fmt: skip
"""Requests for parts of scores."""
_OF_ROWS = frozenset((ms.SendEqualRows.kind, ms.SendRotated.kind))
"""Other requests of OTHERS of which something leaves for each row."""


def summarise_study(
    filed: Filed,
    study: Study,
    policy: TrainingPolicy | None,
    grants: Sequence[Grant],
    facts: Mapping[Table, TableFacts | None],
    now: dt.datetime,
    coordinator: str = "",
) -> Summary:
    """Return the sentences and warnings of a request for a study. Arguments as of
    `request_summary.summarise`.
    """
    left = _disclosed(filed, study, brief=True)
    return Summary(
        (
            _aim(filed, study, facts),
            roles_in_words(filed.columns),
            left.leaves(),
            _how_often(filed, study, policy, coordinator),
            inferred_of(
                left,
                others=_trains(study) and clear_labels(filed),
                targets=_sends_targets(filed, study),
            ),
        ),
        (*_ended(study, now), *_scored(study), *warnings_of(filed, policy, grants, facts, now)),
    )


def _aim(filed: Filed, study: Study, facts: Mapping[Table, TableFacts | None]) -> str:
    kinds = "models of every kind"
    if study.kinds is not None:
        kinds = f"models ({listed(kind.replace('_', ' ') for kind in study.kinds)})"
    by = ""
    if study.algorithms is not None:
        many = "s" * (len(study.algorithms) > 1)
        by = f" by the method{many} {listed(study.algorithms)}"
    tables = tables_of(filed.columns)
    rows = listed(rows_in_words(table, facts) for table in tables)
    yours = "your table" if len(tables) == 1 else "your tables"
    # the analyst's words end where they seem to
    purpose = sanitize.line(study.purpose[:MAX_PURPOSE]).replace("'", "’")
    name = exp.to_identifier(study.name).sql("duckdb")
    statements = listed(statement.upper() for statement in study.statements)
    return (
        f"{filed.analyst} asks for study {name}, whose purpose is '{purpose}': "
        f"{statements} of {kinds}{by}, with rows of {yours} {rows}."
    )


def details_of_study(filed: Filed, study: Study) -> str:
    """Return all that may leave with each kind of statement."""
    parts = (
        (statement, _disclosed(filed, replace(study, statements=(statement,))))
        for statement in study.statements
    )
    return "\n".join(f"{statement.upper()}: {left.leaves()}" for statement, left in parts)


def _disclosed(filed: Filed, study: Study, *, brief: bool = False) -> Disclosed:
    """Return all that may leave. brief : with numbers of no single row as one."""
    asked = frozenset().union(*(SENDS[statement] for statement in study.statements))
    names = {
        role: tuple(dict.fromkeys(n for slot in filed.columns for n in slot.names(role)))
        for role in (TRAIN, LABEL, JOIN, FILTER, WEIGHT, OFFSET, IDENTIFY)
    }
    left = Disclosed()
    if names[JOIN]:
        left.clear.append(f"a keyed hash of {listed(names[JOIN])} for each row")
        left.learnt.append(learnt_of_keys())
    if names[FILTER]:
        left.learnt.append(
            f"that conditions on {listed(names[FILTER])} of the analyst's choice hold for each row "
            "that takes part"
        )
    if ms.SendLabels.kind in asked:
        _add_labels(left, study, names[LABEL])
    for role, kind in ((WEIGHT, ms.SendWeights.kind), (OFFSET, ms.SendOffsets.kind)):
        if names[role] and kind in asked:
            left.clear.append(f"the {role} {listed(names[role])} of each row")
            left.learnt.append(f"each row's {role}")
    if names[IDENTIFY] and ms.SendIdentifiers.kind in asked:
        left.clear.append(f"{listed(names[IDENTIFY])} of each row as it is")
        left.learnt.append(f"{listed(names[IDENTIFY])} of each row")
    if names[TRAIN]:
        features = listed(names[TRAIN])
        if brief:
            _add_briefly(left, study, features, filed.number)
        else:
            _add_features(left, study, features)
    return left


def _add_labels(left: Disclosed, study: Study, names: Sequence[str]) -> None:
    if not names:
        return
    label = f"the label {listed(names)} of each row"
    if study.label_epsilon is None:
        left.clear.append(label)
        left.learnt.append("labels row by row")
        return
    told = f"ε of at most {study.label_epsilon:g} in a run"
    left.noised.append(f"{label} (your database draws the noise, {told})")
    chance = guess(study.label_epsilon, 0.0)
    left.learnt.append(f"from one run, which of two likely values a label has, {chance} ({told})")


def _add_features(left: Disclosed, study: Study, names: str) -> None:
    """Add all that leaves of the features."""
    _add_training(left, study, names)
    if _scoring(study):
        left.clear.append(f"for each row, its score by a model of {names}")
        left.learnt.append(f"by the scores of many models, estimates of {names} row by row")
    others = _others(study)
    for kind in [kind for kind in OTHERS if kind in others]:
        if OTHERS[kind] not in left.clear:
            left.clear.append(OTHERS[kind])
        learnt = learnt_from(kind)
        if learnt and learnt not in left.learnt:
            left.learnt.append(learnt)


def _add_training(left: Disclosed, study: Study, names: str) -> None:
    sums = f"sums, means and counts over rows of {names}"
    rounds = f"for each row and round of training, numbers that the model makes of {names}"
    if _trains(study) and study.epsilon is not None:
        told = f"ε of at most {study.epsilon:g} at δ = {study.delta:g} in a run"
        left.noised += [f"{rounds} (your database draws the noise, {told})", sums]
        chance = guess(study.epsilon, study.delta)
        which = "which of two likely sets of features a row has"
        left.learnt.append(f"from one training, {which}, {chance} ({told})")
    elif _trains(study):
        left.clear += [rounds, sums]
        left.learnt.append(ESTIMATES.format(names))


def _add_briefly(left: Disclosed, study: Study, names: str, number: int) -> None:
    """Add what leaves of the features: in full what is of single rows, the rest as one."""
    exact, kinds = _trains(study) and study.epsilon is None, _others(study)
    if not exact:
        _add_training(left, study, names)
    uses = [
        words
        for told, words in (
            (exact, "in each round of training"),
            (_scoring(study), "as its score"),
            (kinds & _PARTS, "as the part of each feature in its score"),
        )
        if told
    ]
    if uses:
        left.clear.append(f"for each row, numbers that models make of {names}, {listed(uses)}")
        learnt = f"estimates of {names} row by row, better with every run"
        if exact:
            learnt = ESTIMATES.format(names)
        if kinds & _PARTS:
            learnt = f"{names} row by row, up to scale"
        left.learnt.append(learnt if exact else f"by scores in clear, {learnt}")
    rows = sorted(kinds & _OF_ROWS)
    left.clear += [OTHERS[kind] for kind in rows]
    left.learnt += [learnt_from(kind) for kind in rows if learnt_from(kind) != OTHERS[kind]]
    if exact:
        left.clear.append(f"sums, means and counts over rows of {names}")
    described = kinds - _OF_ROWS - _PARTS
    if described:
        left.clear.append(
            f"what describes their values and the models (SHOW REQUEST {number} lists it)"
        )
        left.learnt += sorted({learnt_from(kind) for kind in described} - {""})


def _trains(study: Study) -> bool:
    return bool({*TRAINING} & {*study.statements})


def _sends_targets(filed: Filed, study: Study) -> bool:
    """Return True if CHECK may send targets to other parties; noised labels it does not take."""
    return CHECK in study.statements and clear_labels(filed)


def _scoring(study: Study) -> list[str]:
    """Return the study's statements that score rows."""
    return [statement for statement in study.statements if ms.Score.kind in SENDS[statement]]


def _others(study: Study) -> set[str]:
    """Return the requests of OTHERS that the study's statements make, and that leave in clear."""
    statements = [s for s in study.statements if s not in TRAINING or study.epsilon is None]
    kinds = {
        kind for statement in statements for kind in SENDS[statement] & OTHERS.keys()
    } - _REFUSED
    if ms.SendExplained.kind in kinds:  # says as much, and more
        kinds.discard(ms.SendProfile.kind)
    return kinds


def _how_often(filed: Filed, study: Study, policy: TrainingPolicy | None, coordinator: str) -> str:
    rounds = study.rounds
    if policy is not None:
        rounds = policy.rounds if rounds is None else min(rounds, policy.rounds)
    of = "" if rounds is None else f" of at most {rounds:,} round{'s' * (rounds != 1)} each"
    runs = f"{study.runs:,} run{'s' * (study.runs != 1)}"
    others = FOR_OTHERS[_trains(study) and any(slot.names(LABEL) for slot in filed.columns)]
    if _sends_targets(filed, study):
        others = NUMBERS_OR_TARGETS if _trains(study) else TARGETS
    return (
        f"{goes(coordinator)} {others}lets {filed.analyst} use the results; "
        f"until {study.until:%Y-%m-%d %H:%M} UTC "
        f"there {'is' if study.runs == 1 else 'are'} at most {runs}{of}, and none of them asks you "
        "again; a run that exceeds the study does."
    )


def _scored(study: Study) -> Iterator[str]:
    scoring = _scoring(study)
    if study.epsilon is not None and scoring:
        scores = listed(statement.upper() for statement in scoring)
        yield (
            f"Scores of {scores} leave in clear: noise of ε = {study.epsilon:g} is in training "
            "alone."
        )


def _ended(study: Study, now: dt.datetime) -> Iterator[str]:
    if study.until <= now:
        yield f"The study ended on {study.until:%Y-%m-%d %H:%M} UTC: an approval allows nothing."
