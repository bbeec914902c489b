"""Plain sentences about a study, for the owner who decides about it, and warnings."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

from sqlglot import exp

from sqlfl import messages as ms
from sqlfl.base import sanitize
from sqlfl.contract.study import CHECK, PREDICT, TRAINING, Study
from sqlfl.governance.approvals import Filed
from sqlfl.governance.policies import FILTER, IDENTIFY, JOIN, LABEL, TRAIN, Grant
from sqlfl.governance.request_columns import OFFSET, WEIGHT
from sqlfl.governance.request_summary import (
    Summary,
    roles_in_words,
    rows_in_words,
    tables_of,
    warnings_of,
)
from sqlfl.governance.scopes import Table
from sqlfl.governance.studies import SENDS
from sqlfl.governance.table_facts import TableFacts
from sqlfl.messages.disclosed import OTHERS, Disclosed, guess, learnt_from, listed
from sqlfl.options.policies import TrainingPolicy

MAX_PURPOSE = 500
"""Characters of the purpose that are shown."""
_REFUSED = frozenset((ms.SendSeparated.kind,))
"""Requests that no policy lets a party answer."""


def summarise_study(
    filed: Filed,
    study: Study,
    policy: TrainingPolicy | None,
    grants: Sequence[Grant],
    facts: Mapping[Table, TableFacts | None],
    now: dt.datetime,
) -> Summary:
    """Return the sentences and warnings of a request for a study. Arguments as of
    `request_summary.summarise`.
    """
    left = _disclosed(filed, study)
    return Summary(
        (
            _aim(filed, study, facts),
            roles_in_words(filed.columns),
            left.leaves(),
            _how_often(filed, study, policy),
            left.inferred(),
        ),
        (*_ended(study, now), *warnings_of(filed, policy, grants, facts, now)),
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
    return (
        f"{filed.analyst} asks for study {name}, whose purpose is '{purpose}': "
        f"{listed(own.upper() for own in study.statements)} of {kinds}{by}, with rows of {yours} "
        f"{rows}."
    )


def _disclosed(filed: Filed, study: Study) -> Disclosed:
    names = {
        role: tuple(dict.fromkeys(n for slot in filed.columns for n in slot.names(role)))
        for role in (TRAIN, LABEL, JOIN, FILTER, WEIGHT, OFFSET, IDENTIFY)
    }
    left = Disclosed()
    if names[JOIN]:
        left.clear.append(f"a keyed hash of {listed(names[JOIN])} for each row")
        left.learnt.append("which of your rows have a partner in the other tables")
    if names[FILTER]:
        left.learnt.append(
            f"that conditions on {listed(names[FILTER])} of the analyst's choice hold for each row "
            "that takes part"
        )
    _add_labels(left, study, names[LABEL])
    for role in (WEIGHT, OFFSET):
        if names[role]:
            left.clear.append(f"the {role} {listed(names[role])} of each row")
            left.learnt.append(f"each row's {role}")
    if names[IDENTIFY] and any(ms.SendIdentifiers.kind in SENDS[own] for own in study.statements):
        left.clear.append(f"{listed(names[IDENTIFY])} of each row as it is")
        left.learnt.append(f"{listed(names[IDENTIFY])} of each row")
    if names[TRAIN]:
        _add_features(left, study, listed(names[TRAIN]))
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
    trains = bool({*TRAINING} & {*study.statements})
    scores = bool({*study.statements} - {*TRAINING, CHECK})
    sums = f"sums, means and counts over rows of {names}"
    rounds = f"for each row and round of training, numbers that the model makes of {names}"
    others = [own for own in study.statements if own not in TRAINING or study.epsilon is None]
    if trains and study.epsilon is not None:
        told = f"ε of at most {study.epsilon:g} at δ = {study.delta:g} in a run"
        left.noised += [f"{rounds} (your database draws the noise, {told})", sums]
        chance = guess(study.epsilon, study.delta)
        which = "which of two likely sets of features a row has"
        left.learnt.append(f"from one training, {which}, {chance} ({told})")
    elif trains:
        left.clear += [rounds, sums]
        left.learnt.append(f"estimates of {names} row by row, better with every round and run")
    if scores:
        scored = f"for each row of {PREDICT.upper()} and the like, its score by a model of {names}"
        if PREDICT not in study.statements:
            scored = f"for each row that measures a model, its score by a model of {names}"
        left.clear.append(scored)
        left.learnt.append(f"by the scores of many models, estimates of {names} row by row")
    kinds = sorted({kind for own in others for kind in SENDS[own] & OTHERS.keys()} - _REFUSED)
    if ms.SendExplained.kind in kinds:  # says as much, and more
        kinds.remove(ms.SendProfile.kind)
    for kind in kinds:
        if OTHERS[kind] not in left.clear:
            left.clear.append(OTHERS[kind])
        learnt = learnt_from(kind)
        if learnt and learnt not in left.learnt:
            left.learnt.append(learnt)


def _how_often(filed: Filed, study: Study, policy: TrainingPolicy | None) -> str:
    rounds = study.rounds
    if policy is not None:
        rounds = policy.rounds if rounds is None else min(rounds, policy.rounds)
    of = "" if rounds is None else f" of at most {rounds:,} round{'s' * (rounds != 1)} each"
    runs = f"{study.runs:,} run{'s' * (study.runs != 1)}"
    return (
        "All of it goes to the coordinator, which sends other parties what their part of the work "
        f"takes and lets {filed.analyst} use the results; until {study.until:%Y-%m-%d %H:%M} UTC "
        f"there are at most {runs}{of}, and none of them asks you again; a run that exceeds the "
        "study does."
    )


def _ended(study: Study, now: dt.datetime) -> Iterator[str]:
    if study.until <= now:
        yield f"The study ended on {study.until:%Y-%m-%d %H:%M} UTC: an approval allows nothing."
