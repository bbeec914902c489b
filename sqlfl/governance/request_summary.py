"""Plain sentences about a request, for the owner who decides about it, and warnings.

All follows from what the party enforces: the kinds of messages that it answers, its own reading of
the SQL, and the specification of the snapshot. The coordinator's own words are not used.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlfl import messages as ms
from sqlfl.contract.request import Request
from sqlfl.contract.schema import SlotSpecification, specifications_from_json
from sqlfl.governance import noising
from sqlfl.governance.approvals import Filed
from sqlfl.governance.policies import FILTER, IDENTIFY, JOIN, KEY, LABEL, TRAIN, Grant
from sqlfl.governance.request_columns import OFFSET, WEIGHT, SlotColumns
from sqlfl.governance.scopes import Table
from sqlfl.governance.sizes import TEXT, kind_of_name
from sqlfl.governance.table_facts import ColumnFacts, TableFacts
from sqlfl.options.policies import ALWAYS, NOISED, TrainingPolicy, modes
from sqlfl.options.privacy import EXACT, Privacy

SMALL_GROUP = 10
"""Rows below which a value of a category is called rare; `min_cell` if that is more."""
IDENTIFYING = 0.9
"""Share of rows with a value of their own from which a column is called an identifier."""
MIN_ROWS = 20
"""Rows from which that share says something."""
MANY_VALUES = 40
"""Distinct values from which a text is called free text, without a policy's `max_categories`."""
EARLIER = (
    "An earlier version of sqlfl filed this request and did not note its columns: decide by SHOW "
    "REQUEST {number}, or refuse it and let {analyst} ask again."
)

SILENT = frozenset(
    kind.kind
    for kind in (
        ms.Propose, ms.Prepare, ms.Finish, ms.Seal, ms.Commit, ms.Activate, ms.Weigh, ms.SetRanges,
        ms.SetEncoding, ms.SetGram, ms.Start, ms.Save, ms.SendReleases, ms.SendSplit, ms.SendFolds,
        ms.SendPublicKey, ms.SetPeers, ms.Repeat, ms.Write,
    )
) | {"set_sketch", "column_weights"}  # fmt: skip
"""Requests whose replies hold no value of a row: counts, acknowledgements, random draws, keys."""
ROW_BY_ROW = frozenset(
    kind.kind
    for kind in (
        ms.Residuals, ms.SumGradient, ms.SendPredictions, ms.SendExactPredictions, ms.Probe,
        ms.ConsensusAverage, ms.SetParameters, ms.Score, ms.ScoreExactly, ms.ScorePermuted,
        ms.PermuteExactly,
    )
) | {"exact_residuals", "direction"}  # fmt: skip
"""Requests for numbers that a model makes of the features of each row."""
MASKED = frozenset(("send_embeddings",))
"""Requests that are answered in sums under masks alone."""
SUMS = frozenset((ms.SendGram.kind, ms.SendStatistics.kind))
"""Requests for sums over rows."""
OTHERS: Mapping[str, str] = {
    ms.SendFindings.kind: "remarks on features, such as which are empty or hold one value",
    ms.SendEqualRows.kind: "which rows have equal features",
    ms.SendProfile.kind: "of each feature the range, the mean and counts of values",
    ms.SendExplained.kind: (
        "of each feature the range, the mean, counts of values and how much of the label it "
        "explains"
    ),
    ms.SendSeparated.kind: "which categories have rows of one class only",
    ms.SendRotated.kind: "the features of each row, mixed by a secret rotation",
    ms.SendErrors.kind: "the model's coefficients with their errors, and names of categories",
    ms.SendContributions.kind: "for each row the part that each feature has in its score",
    ms.SendExactContributions.kind: "for each row the part that each feature has in its score",
    ms.SendSlope.kind: "a number that tells how far training has come",
    ms.SetStrengths.kind: "how many degrees of freedom its curves and categories have",
    ms.SendSkew.kind: "how the values of each feature are distributed",
}
"""What leaves with other requests."""
CHOOSING = "frank_wolfe"
"""Algorithm that sends columns, not numbers that a model makes of them."""
KNOWN = (
    SILENT | ROW_BY_ROW | MASKED | SUMS | OTHERS.keys()
    | {k.kind for k in (ms.SendKeys, ms.SendLabels, ms.SendWeights, ms.SendOffsets)}
    | {ms.SendIdentifiers.kind}
)  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """Sentences about a request, at most five, and warnings."""

    sentences: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass
class _Leaving:
    """What leaves of all slots, in the order in which it is said."""

    clear: list[str]
    noised: list[str]
    masked: list[str]
    learnt: list[str]
    rounds: float = 0.0
    labels: bool = False
    """True if labels leave: what other parties get then follows from them."""

    def add(self, where: list[str], words: str, learnt: str = "") -> None:
        if words not in where:
            where.append(words)
        if learnt and learnt not in self.learnt:
            self.learnt.append(learnt)


def summarise(
    filed: Filed,
    policy: TrainingPolicy | None,
    grants: Sequence[Grant],
    facts: Mapping[Table, TableFacts | None],
    now: dt.datetime,
) -> Summary:
    """Return the sentences and warnings of a request.

    policy : the strictest of those that the request's tables have for the analyst now; None if
        there is none. grants : all grants of the tables to the analyst that were not revoked.
    facts : tables that were measured; None for a table that cannot be read.
    """
    if not filed.columns:
        said = EARLIER.format(number=filed.number, analyst=filed.analyst)
        return Summary((said,), ())
    left = _leaving(filed, policy)
    return Summary(
        (
            _whose(filed, facts),
            _roles(filed.columns),
            _what_leaves(left),
            _how_often(filed, left, policy),
            _inferred(left),
        ),
        tuple(_warnings(filed, policy, grants, facts, now)),
    )


# -- sentences -------------------------------------------------------------------------------------


def _whose(filed: Filed, facts: Mapping[Table, TableFacts | None]) -> str:
    request, tables = filed.request, _tables(filed.columns)
    kind = request.kind.replace("_", " ")
    by = f" by the algorithm {request.algorithm}" if request.algorithm else ""
    look = json.loads(request.look)
    aim = {
        "train": f"train a model ({kind}{by})",
        "evaluate": f"measure a model ({kind})",
        "predict": f"predict by a model ({kind})",
        "check": f"check data before a model ({kind}) is trained",
    }.get(request.purpose, f"run {request.purpose} of a model ({kind})")
    if look is not None and request.purpose == "evaluate":
        aim = f"look into a model ({kind})"
    if request.into:
        aim += " and to write the predictions into a table"
    rows = listed(_rows(table, facts) for table in tables)
    yours = "your table" if len(tables) == 1 else "your tables"
    return f"{filed.analyst} asks to {aim}, with rows of {yours} {rows}."


def _rows(table: Table, facts: Mapping[Table, TableFacts | None]) -> str:
    name = _name(table)
    if table not in facts:
        return name
    found = facts[table]
    return f"{name} ({'rows cannot be counted now' if found is None else _count(found.rows)})"


def _count(rows: int) -> str:
    return f"{rows:,} row{'s' * (rows != 1)}"


def _roles(slots: Sequence[SlotColumns]) -> str:
    several = len(_tables(slots)) > 1
    words = {
        TRAIN: ("as a feature", "as features"),
        LABEL: ("as the label", "for the label"),
        JOIN: ("as the join key", "as join keys"),
        FILTER: ("as a condition on rows", "as conditions on rows"),
        WEIGHT: ("as the weight", "for the weight"),
        OFFSET: ("as the offset", "for the offset"),
        IDENTIFY: ("beside predictions", "beside predictions"),
    }
    told = []
    for role, (one, many) in words.items():
        uses = [use for slot in slots for use in slot.uses if use.role == role]
        names = list(dict.fromkeys(
            f"{use.table[2]}.{use.name}" if several else use.name for use in uses
        ))  # fmt: skip
        if names:
            told.append(f"{listed(names)} {one if len(names) == 1 else many}")
    chosen = sorted({clause for slot in slots for clause in slot.chosen})
    if chosen:
        told.append(f"{listed(chosen)} to choose among rows")
    return f"It uses {'; '.join(told)}." if told else "It uses no column of them."


def _what_leaves(left: _Leaving) -> str:
    numbers = itertools.count(1)
    parts = [
        f"{where} {listed(f'({next(numbers)}) {one}' for one in words)}"
        for where, words in (
            ("in clear leave", left.clear),
            ("with noise leave", left.noised),
            ("only in sums under masks leave", left.masked),
        )
        if words
    ]
    found = "; ".join(parts)
    return f"{found[0].upper()}{found[1:]}."


def _how_often(filed: Filed, left: _Leaving, policy: TrainingPolicy | None) -> str:
    request = filed.request
    gets = {
        "train": "lets {} use the model",
        "evaluate": "sends {} the measures",
        "predict": "sends {} the predictions",
        "check": "sends {} a report",
    }.get(request.purpose, "works for {}").format(filed.analyst)
    others = "sends other parties what their part of the work takes and " * bool(left.labels)
    most = left.rounds if policy is None else min(left.rounds, policy.rounds)
    if not most:
        often = "there are no rounds of training or scoring"
    elif math.isinf(most):
        often = "there are as many rounds as the data take"
    else:
        often = f"one run has at most {most:,.0f} round{'s' * (most != 1)}"
    return f"All of it goes to the coordinator, which {others}{gets}; {often}, and {_runs(policy)}."


def _runs(policy: TrainingPolicy | None) -> str:
    if policy is None:
        return "your policy no longer lets it run"
    daily = policy.runs_per_day
    limit = "" if daily is None else f", at most {daily} a day with all others of the analyst"
    if policy.approval == ALWAYS:
        return f"an approval is for one run{limit}"
    return f"an approval is for every repetition of this run, until you refuse it{limit}"


def _inferred(left: _Leaving) -> str:
    if not left.learnt:
        return (
            "No number that leaves is of a single row; exact counts and sums may still tell an "
            "insider at the coordinator of rows in small groups."
        )
    found = listed(f"({chr(ord('a') + n)}) {one}" for n, one in enumerate(left.learnt))
    return f"An insider at the coordinator could learn {found}."


# -- what leaves -----------------------------------------------------------------------------------


def _leaving(filed: Filed, policy: TrainingPolicy | None) -> _Leaving:
    request = filed.request
    left = _Leaving(["how many rows take part"], [], [], [])
    columns = {own.slot: own for own in filed.columns}
    for item in specifications_from_json(filed.specification):
        often = {
            kind: most for (slot, kind), most in request.often().items()
            if slot == item.slot and most
        }  # fmt: skip
        _of_slot(left, request, item, columns[item.slot], often, policy)
    return left


def _of_slot(
    left: _Leaving,
    request: Request,
    item: SlotSpecification,
    columns: SlotColumns,
    often: Mapping[str, float],
    policy: TrainingPolicy | None,
) -> None:
    if ms.SendKeys.kind in often and columns.names(JOIN):
        keys = listed(columns.names(JOIN))
        left.add(
            left.clear,
            f"a keyed hash of {keys} for each row",
            "which of your rows have a partner in the other tables",
        )
    conditions = columns.names(FILTER)
    if conditions:
        told = f"that the conditions on {listed(conditions)} hold for each row that takes part"
        left.learnt.append(told)
    if ms.SendLabels.kind in often:
        _labels(left, item, columns)
    for kind, role in ((ms.SendWeights.kind, WEIGHT), (ms.SendOffsets.kind, OFFSET)):
        if kind in often:
            names = listed(columns.names(role)) or "a constant"
            left.add(left.clear, f"the {role} {names} of each row", f"each row's {role}")
    if ms.SendIdentifiers.kind in often:
        names = listed(columns.names(IDENTIFY))
        left.add(left.clear, f"{names} of each row as it is", f"{names} of each row")
    _features(left, request, item, columns, often, policy)
    for kind in sorted(often):
        if kind in OTHERS:
            left.add(left.clear, OTHERS[kind], _LEARNT.get(kind, ""))
        elif kind not in KNOWN:
            left.add(left.clear, f"replies to {kind}, which sqlfl has no words for",
                     "more than these sentences say")  # fmt: skip


_EXTREMES = "the smallest and the largest value of each number, which single rows may have"
_LEARNT = {
    ms.SendProfile.kind: _EXTREMES,
    ms.SendExplained.kind: _EXTREMES,
    ms.SendEqualRows.kind: "which rows have equal features",
    ms.SendRotated.kind: (
        "how similar the features of any two rows are and, from a few rows that it knows, those of "
        "all rows"
    ),
    ms.SendContributions.kind: "features row by row, up to the scale of each",
    ms.SendExactContributions.kind: "features row by row, up to the scale of each",
}
"""What an insider learns about single rows from some of these."""


def _labels(left: _Leaving, item: SlotSpecification, columns: SlotColumns) -> None:
    left.labels = True
    names = listed(columns.names(LABEL)) or "a constant"
    label = None if item.privacy is None else item.privacy.label
    if label is None:
        left.add(left.clear, f"the label {names} of each row", "labels row by row")
        return
    epsilon = noising.epsilon_of(label)
    told = f"ε = {epsilon:.3g}"
    left.add(
        left.noised,
        f"the label {names} of each row (your database draws the noise, {told})",
        f"which of two likely values a label has, {_guess(epsilon, 0.0)} ({told})",
    )


def _guess(epsilon: float, delta: float) -> str:
    """Return how good a guess between two equally likely values can be: a test of (ε, δ)-DP is
    right with probability at most (exp(ε) + δ) / (exp(ε) + 1).
    """
    odds = math.exp(min(epsilon, 700.0))
    return f"right at most {math.ceil(100 * (odds + delta) / (odds + 1))} times of 100"


def _features(
    left: _Leaving,
    request: Request,
    item: SlotSpecification,
    columns: SlotColumns,
    often: Mapping[str, float],
    policy: TrainingPolicy | None,
) -> None:
    """Add what leaves of the slot's features, and count its rounds."""
    if not item.features:
        return
    names = listed(columns.names(TRAIN)) or "constants"
    masked = MASKED & often.keys()
    rows = (ROW_BY_ROW & often.keys()) if not masked else frozenset()
    left.rounds = max(left.rounds, sum(often[kind] for kind in rows | masked))
    sums = SUMS & often.keys()
    if masked:
        noise = _binomial(noising.privacy_of(request))
        left.add(left.masked, f"numbers that the model makes of {names} for each row{noise}",
                 "sums of such numbers over one row of each table, from which features can be "
                 "estimated, better with the help of other parties" + noise)  # fmt: skip
    bounded = item.privacy is not None and item.privacy.statistics == "bounds"
    merged = item.shared and not bounded
    noise, bound = _feature_noise(request, item, _enforced(policy, rows=bool(rows)))
    where = left.noised if noise else left.clear
    if rows:
        if request.algorithm == CHOOSING:
            told = f"those of {names} that training chooses, row by row"
            infer = bound or f"{names} row by row, where training chooses them"
        elif left.rounds == 1:
            told = f"for each row, numbers that the model makes of {names}"
            infer = bound or f"what one round of such numbers tells of {names} row by row"
        else:
            told = f"for each row and round, numbers that the model makes of {names}"
            infer = bound or f"estimates of {names} row by row, better with every round"
        left.add(where, f"{told}{noise}", infer)
    if sums or merged:
        told = f"sums, means and counts over rows of {names}"
        if item.secure and item.shared:
            left.add(left.masked, told)
        else:
            infer = bound or "what exact sums tell of rows in small groups"
            left.add(where, f"{told}{noise}", infer)


def _feature_noise(request: Request, item: SlotSpecification, enforced: bool) -> tuple[str, str]:
    """Return the noise of the features in words, and what it bounds; '' if they leave in clear."""
    privacy = noising.privacy_of(request)
    if privacy is None or not _asks(privacy) or privacy.predictions == EXACT:
        return "", ""
    if any(noising.of_features(request, item)):
        unbound = "noise that your database cannot count"
        return f" (with {unbound})", f"features as far as {unbound} allows"
    assert privacy.epsilon is not None
    told = f"ε = {privacy.epsilon:g} at δ = {privacy.delta:g}"
    by = "which your policy enforces" if enforced else "which no rule of your policy enforces"
    guess = _guess(privacy.epsilon, privacy.delta)
    kept = "" if enforced else ", if the coordinator keeps to it"
    return f" (your database draws the noise, {told}, {by})", (
        f"from one run, which of two likely sets of features a row has, {guess} ({told}{kept})"
    )


def _enforced(policy: TrainingPolicy | None, *, rows: bool) -> bool:
    """Return True if the party itself stops a run that would release more than it has asked for."""
    if policy is None:
        return False
    account = policy.epsilon is not None or policy.epsilon_total is not None
    return account or NOISED in modes(policy.predictions if rows else policy.moments)


def _asks(privacy: Privacy) -> bool:
    return privacy.epsilon is not None or privacy.noise_multiplier is not None or bool(privacy.bins)


def _binomial(privacy: Privacy | None) -> str:
    if privacy is None or not _asks(privacy):
        return ""
    return "" if privacy.epsilon is None else f" (with noise of ε = {privacy.epsilon:g} in the sum)"


# -- warnings --------------------------------------------------------------------------------------


def _warnings(
    filed: Filed,
    policy: TrainingPolicy | None,
    grants: Sequence[Grant],
    facts: Mapping[Table, TableFacts | None],
    now: dt.datetime,
) -> Iterator[str]:
    keys = _keys(filed.columns, grants)
    most = MANY_VALUES if policy is None else policy.max_categories
    least = SMALL_GROUP if policy is None else max(SMALL_GROUP, policy.min_cell)
    uses = sorted({use for slot in filed.columns for use in slot.uses})
    for use in uses:
        if use.role == TRAIN:
            found = _facts_of(use.table, use.name, facts)
            named = f"{use.table[2]}.{use.name}"
            a = "is a feature" if use.bare else "is in the expression of a feature"
            if (use.table, use.name) in keys:
                yield (
                    f"{named} {a} though it is {keys[use.table, use.name]}: what the model makes "
                    "of it can point to single rows."
                )
            elif found is not None and is_free_text(found, most):
                yield (
                    f"{named} {a} and is free text ({found.distinct:,} different texts in "
                    f"{_count(found.present)}): it may hold names."
                )
            elif found is not None and is_identifier(found):
                yield (
                    f"{named} {a} and nearly every row has a value of its own, as an identifier "
                    f"has ({found.distinct:,} values in {_count(found.present)})."
                )
    if _labels_in_clear(filed):
        yield (
            "Labels leave in clear: the analyst can ask for PRIVACY (label_epsilon = ...), and "
            "labels = 'noised' in your policy makes that a duty."
        )
    for use in uses:
        found = _facts_of(use.table, use.name, facts)
        if use.role not in (TRAIN, LABEL) or not use.bare or found is None:
            continue
        if is_grouped(found, most) and 0 < found.smallest < least:
            yield (
                f"A value of {use.table[2]}.{use.name} is in {_count(found.smallest)} only, fewer "
                f"than {least}: whoever has it can be singled out."
            )
    yield from _wide_grants(filed, grants, facts, most)
    yield from _ended(filed, grants, now)


def _keys(slots: Sequence[SlotColumns], grants: Sequence[Grant]) -> dict[tuple[Table, str], str]:
    """Return (table, column) -> why it identifies rows."""
    found: dict[tuple[Table, str], str] = {}
    for grant in grants:
        found |= {(grant.table, name): "a join key" for name in grant.roles.columns.get(JOIN, ())}
    for slot in slots:
        found |= {(use.table, use.name): "a join key" for use in slot.uses if use.role == JOIN}
    for grant in grants:
        if len(key := grant.roles.columns.get(KEY, ())) == 1:
            found[grant.table, key[0]] = "the KEY of its table"
    return found


def _facts_of(
    table: Table, name: str, facts: Mapping[Table, TableFacts | None]
) -> ColumnFacts | None:
    found = facts.get(table)
    return None if found is None else found.columns.get(name)


def is_free_text(found: ColumnFacts, most: int) -> bool:
    """Return True for a text with more than `most` values, or of which most rows have their own."""
    return kind_of_name(found.type) == TEXT and (
        found.distinct > most or (found.present >= MIN_ROWS and 2 * found.distinct > found.present)
    )


def is_identifier(found: ColumnFacts) -> bool:
    """Return True if nearly every row has a value of its own. Measured numbers have that too, so
    DOUBLE, FLOAT and DECIMAL do not count.
    """
    if found.type.startswith(("DOUBLE", "FLOAT", "DECIMAL")) or found.present < MIN_ROWS:
        return False
    return found.distinct >= IDENTIFYING * found.present


def is_grouped(found: ColumnFacts, most: int) -> bool:
    """Return True for a column of categories: texts of few values, booleans, ENUMs."""
    texts = kind_of_name(found.type) == TEXT and not is_free_text(found, most)
    return texts or found.type == "BOOLEAN"


def _labels_in_clear(filed: Filed) -> bool:
    often = filed.request.often()
    return any(
        bool(often.get((item.slot, ms.SendLabels.kind)))
        and (item.privacy is None or item.privacy.label is None)
        for item in specifications_from_json(filed.specification)
    )


def _wide_grants(
    filed: Filed,
    grants: Sequence[Grant],
    facts: Mapping[Table, TableFacts | None],
    most: int,
) -> Iterator[str]:
    """Yield grants of all columns of a table in a role that lets values leave, if some of these
    columns are free text or identifiers.
    """
    for table in _tables(filed.columns):
        found = facts.get(table)
        if found is None:
            continue
        for role in (TRAIN, LABEL, IDENTIFY, FILTER):
            given = {
                name for grant in grants if grant.table == table
                for name in grant.roles.columns.get(role, ())
            }  # fmt: skip
            named = [
                name for name in found.names
                if name in found.columns and (
                    is_free_text(found.columns[name], most) or is_identifier(found.columns[name])
                )
            ]  # fmt: skip
            if named and given >= set(found.names):
                yield (
                    f"{filed.analyst} has every column of {_name(table)} granted for "
                    f"{role.upper()}, as * gives, also {listed(named)}, which may name single rows."
                )


def _ended(filed: Filed, grants: Sequence[Grant], now: dt.datetime) -> Iterator[str]:
    for table in _tables(filed.columns):
        own = [grant for grant in grants if grant.table == table]
        for grant in own:
            if grant.until is not None and grant.until <= now:
                yield (
                    f"The grant of {_name(table)} to {filed.analyst} ended on "
                    f"{grant.until:%Y-%m-%d %H:%M} {grant.until.tzname() or ''}".rstrip()
                    + "."
                )
        if not own:
            yield f"Nothing of {_name(table)} is granted to {filed.analyst} any more."


# -- words -----------------------------------------------------------------------------------------


def _tables(slots: Iterable[SlotColumns]) -> list[Table]:
    return sorted({table for slot in slots for table in slot.tables})


def _name(table: Table) -> str:
    return ".".join(table[1:])


def listed(words: Iterable[str]) -> str:
    """Return the words with commas, and 'and' before the last one."""
    *first, last = tuple(words) or ("",)
    return f"{', '.join(first)} and {last}" if first else last
