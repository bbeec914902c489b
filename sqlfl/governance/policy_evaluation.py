"""Verdicts of an owner's policies on a proposed run, before any row is read for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping

from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.contract.methods import methods
from sqlfl.contract.request import CHECK, EVALUATE, PREDICT, REFUSED, TRAIN, Request, Verdict
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance.policies import Ruling
from sqlfl.governance.scopes import ASK, Table
from sqlfl.models.kinds import KINDS, kind_of, trains
from sqlfl.options.policies import NEVER, TrainingPolicy, within

SCORING = (EVALUATE, PREDICT)
"""Purposes of runs that score rows with a saved model."""
SCORES = frozenset(
    kind.kind
    for kind in (
        ms.Score, ms.ScoreExactly, ms.ScorePermuted, ms.PermuteExactly, ms.SendContributions,
        ms.SendExactContributions, ms.SendRotated, ms.SendErrors, ms.SendSkew,
    )
)  # fmt: skip
"""Requests about a saved block over rows, which need a grant of PREDICT."""
ANSWERED_ONCE = frozenset(
    kind.kind
    for kind in (
        ms.Prepare, ms.SendKeys, ms.Activate, ms.SendLabels, ms.SendWeights, ms.SendOffsets,
        ms.SendSplit,
        ms.SendFolds, ms.SetRanges, ms.SetEncoding, ms.SendFindings, ms.SendProfile,
        ms.SendExplained,
        ms.SendIdentifiers, ms.Score, ms.ScoreExactly,
        ms.SendRotated, ms.SendErrors, ms.SendContributions, ms.SendExactContributions,
        ms.SendSkew, ms.Write,
    )
)  # fmt: skip
"""Requests that may come once for a slot in a run: a second reply, about other rows or models,
would disclose more.
"""


def writes(request: Request) -> bool:
    """Return True if the request may write predictions into a table, whatever it says of itself."""
    return request.into or any(asked.kind == ms.Write.kind for asked in request.asked)


def check_words(request: Request) -> None:
    """Raise PolicyError for an unknown purpose, kind of model or method: owners read these words,
    and a coordinator could choose misleading ones.
    """
    if (
        request.purpose not in (*SCORING, TRAIN, CHECK)
        or request.kind not in KINDS
        or request.algorithm not in ("", *methods())
    ):
        raise PolicyError(
            "a run of a purpose, a kind of model or a method that sqlfl does not know"
        )


def refusal(rule: str, hint: str = ASK) -> PolicyError:
    """Return the error that the owner's policy has this rule."""
    return PolicyError(has(rule), hint=hint)


def has(rule: str) -> str:
    """Return the words that the owner's policy has this rule."""
    return f"its owner's policy has {rule}"


def refusals_of(
    request: Request,
    slots: tuple[SlotSpecification, ...],
    ruling: Ruling,
    tables: Mapping[int, frozenset[Table]],
    rules: Mapping[int, TrainingPolicy],
    every: TrainingPolicy,
) -> tuple[Verdict, ...]:
    """Return the refusals, with their rules; none for a run that the policies allow. `every` holds
    for the run as a whole, `rules` by slot.
    """
    refusals = [
        Verdict(ms.CLIENT, "", REFUSED, has(rule)) for rule in _broken_rules(request, every)
    ]
    specified = {item.slot: item for item in slots}
    refusals += _of_another_kind(request, slots)
    for item in slots:
        if item.identifiers and rules[item.slot].identifiers == NEVER:
            refusals.append(
                Verdict(item.slot, "columns of ID", REFUSED, has("identifiers = 'never'"))
            )
    refusals += _not_granted(request, slots, ruling, tables)
    often = request.often()
    for asked in request.asked:
        specification = specified.get(asked.slot)
        rule = ""
        if specification is None and asked.slot != ms.CLIENT:
            rule = "this slot of the query is another party's"
        folds = specification is not None and specification.folds
        is_once = asked.kind in ANSWERED_ONCE or (asked.kind == ms.Start.kind and not folds)
        if is_once and often[asked.slot, asked.kind] != 1:
            rule = rule or f"{asked.kind} is answered once in a run"
        if rule:
            refusals.append(Verdict(asked.slot, asked.what, REFUSED, rule))
    return tuple(refusals)


def _of_another_kind(request: Request, slots: tuple[SlotSpecification, ...]) -> Iterator[Verdict]:
    """Yield refusals of a training whose method or target does not fit the declared kind of model,
    as far as a party can see it.
    """
    if not _trains(request):
        return
    kind = kind_of(request.kind)
    if not request.algorithm or not trains(request.algorithm, kind.name):
        rule = f"{request.algorithm or 'no method'} does not train models of kind {kind.name}"
        yield Verdict(ms.CLIENT, "", REFUSED, rule)
    for item in slots:
        if item.target and item.classes is not kind.classifies:
            given = "classes" if item.classes else "numbers"
            rule = f"a target of {given} is not one of {kind.name}"
            yield Verdict(item.slot, "its target", REFUSED, rule)


def _trains(request: Request) -> bool:
    """Return True if the run may train a model, whatever it says of itself."""
    return request.purpose == TRAIN or any(asked.kind == ms.Start.kind for asked in request.asked)


def _broken_rules(request: Request, every: TrainingPolicy) -> Iterator[str]:
    """Yield the rules for the run as a whole that the request breaks."""
    scores = any(asked.kind in SCORES for asked in request.asked)
    of_model = request.purpose != CHECK or scores or _trains(request)
    if every.kinds is not None and of_model and request.kind not in every.kinds:
        yield f"kinds = {list(every.kinds)}"
    algorithms = every.algorithms
    if algorithms is not None and request.algorithm and request.algorithm not in algorithms:
        yield f"algorithms = {list(algorithms)}"
    if every.hours is not None and not within(every.hours, dt.datetime.now()):
        yield f"hours = '{every.hours}'"
    if writes(request) and every.into is None:
        yield "into = none"


def _not_granted(
    request: Request,
    slots: tuple[SlotSpecification, ...],
    ruling: Ruling,
    tables: Mapping[int, frozenset[Table]],
) -> Iterator[Verdict]:
    """Yield refusals of a scoring run: tables whose rows may not be scored. Which rows are joined
    decides which are scored, even for tables that give no column.
    """
    scores = {asked.slot: asked.what for asked in request.asked if asked.kind in SCORES}
    if request.purpose not in SCORING and not scores:
        return
    for item in slots:
        for table in sorted(tables[item.slot]):
            if not any(grant.roles.predict for grant in ruling.of(table)):
                rule = f"PREDICT on {'.'.join(table[1:])} is not granted to {ruling.analyst}"
                yield Verdict(item.slot, scores.get(item.slot, ""), REFUSED, rule)
