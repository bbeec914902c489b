"""Plain sentences about a request, for the owner who decides about it, and warnings.

All follows from what the party enforces: the kinds of messages that it answers, its own reading of
the SQL, and the specification of the snapshot. The coordinator's own words are not used.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlfl.base import sanitize
from sqlfl.contract.methods import part_of
from sqlfl.contract.request import Request
from sqlfl.contract.schema import SlotSpecification, specifications_from_json
from sqlfl.governance import noising
from sqlfl.governance.approvals import Filed
from sqlfl.governance.policies import FILTER, IDENTIFY, JOIN, KEY, LABEL, TRAIN, Grant
from sqlfl.governance.policy_evaluation import writes
from sqlfl.governance.request_columns import LINK, OFFSET, WEIGHT, SlotColumns
from sqlfl.governance.scopes import Table
from sqlfl.governance.sizes import TEXT, kind_of_name
from sqlfl.governance.studies import WRITING, foreign, statement_of
from sqlfl.governance.table_facts import ColumnFacts, TableFacts
from sqlfl.messages import SendLabels
from sqlfl.messages.disclosed import Disclosed, NamesByUse, SlotNoise, guess, listed
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
FOR_OTHERS = {
    True: "sends other parties, for each of their rows, numbers that it makes of the labels, and ",
    False: "sends other parties what their part of the work takes and ",
}
"""Words for the data that other parties get where labels are sent; True if a model is trained."""
TARGETS = (
    "sends other parties with features the target of each of their rows, scaled and summed (of a "
    "row joined once: its label), and "
)
"""Words for the data that other parties get in CHECK with a target."""
NUMBERS_OR_TARGETS = (
    "sends other parties, for each of their rows, numbers that it makes of the labels (in CHECK, "
    "if they have features, the target, scaled and summed: of a row joined once its label), and "
)
"""Words for the data that other parties get where a study both trains and has such a CHECK."""
EARLIER = (
    "An earlier version of sqlfl filed this request and did not note its columns: decide by SHOW "
    "REQUEST {number}, or refuse it and let {analyst} ask again."
)


@dataclass(frozen=True)
class Summary:
    """Sentences about a request, at most five, and warnings."""

    sentences: tuple[str, ...]
    warnings: tuple[str, ...]


def summarise(
    filed: Filed,
    policy: TrainingPolicy | None,
    grants: Sequence[Grant],
    facts: Mapping[Table, TableFacts | None],
    now: dt.datetime,
    coordinator: str = "",
) -> Summary:
    """Return the sentences and warnings of a request.

    policy : the strictest of those that the request's tables have for the analyst now; None if
        there is none. grants : all grants of the tables to the analyst that were not revoked.
    facts : tables that were measured; None for a table that cannot be read.
    coordinator : its name, by which the party's agent knows it; empty where there is no agent.
    """
    if not filed.columns:
        said = EARLIER.format(number=filed.number, analyst=filed.analyst)
        return Summary((said,), ())
    left = _disclosed(filed, policy)
    return Summary(
        (
            _whose(filed, facts),
            roles_in_words(filed.columns),
            left.leaves(),
            _how_often(filed, left, policy, coordinator),
            inferred_of(
                left,
                others=_trains(filed) and clear_labels(filed),
                targets=_sends_targets(filed.request) and clear_labels(filed),
            ),
        ),
        tuple(warnings_of(filed, policy, grants, facts, now)),
    )


def goes(coordinator: str) -> str:
    """Return the beginning of the sentence about who gets what leaves. coordinator : its name, as
    far as the party knows it.
    """
    named = f" {coordinator}" if coordinator else ""
    return (
        f"All of it goes to the coordinator{named} (the computer that puts all parties' parts "
        "together), which"
    )


# -- sentences -------------------------------------------------------------------------------------


def _whose(filed: Filed, facts: Mapping[Table, TableFacts | None]) -> str:
    tables = tables_of(filed.columns)
    rows = listed(rows_in_words(table, facts) for table in tables)
    yours = "your table" if len(tables) == 1 else "your tables"
    return f"{filed.analyst} asks to {_aim(filed.request)}, with rows of {yours} {rows}."


def _aim(request: Request) -> str:
    kind = request.kind.replace("_", " ")
    by = f" by the algorithm {request.algorithm}" if request.algorithm else ""
    look = json.loads(request.look)
    aim = {
        "train": f"train a model ({kind}{by})",
        "evaluate": f"measure a model ({kind})",
        "predict": f"predict by a model ({kind})",
        "check": "check data, and train nothing",
    }.get(request.purpose, f"run {request.purpose} of a model ({kind})")
    if look is not None and request.purpose == "evaluate":
        aim = f"look into a model ({kind})"
    if writes(request):
        aim += " and to write the predictions into a table"
    return aim


def _foreign(filed: Filed) -> str:
    """Return requests that the statement does not make, in words; the coordinator says which
    statement it is.
    """
    if filed.study is not None or not filed.specification:
        return ""
    folds = any(item.folds for item in specifications_from_json(filed.specification))
    statement = statement_of(filed.request, folds=folds)
    request = filed.request
    if request.into:
        asked = tuple(one for one in request.asked if one.kind not in WRITING)
        request = replace(request, asked=asked)
    return foreign(request, (statement,)) if statement else ""


def rows_in_words(table: Table, facts: Mapping[Table, TableFacts | None]) -> str:
    name = _name(table)
    if table not in facts:
        return name
    counted = facts[table]
    return f"{name} ({'rows cannot be counted now' if counted is None else _count(counted.rows)})"


def _count(rows: int) -> str:
    return f"{rows:,} row{'s' * (rows != 1)}"


def roles_in_words(slots: Sequence[SlotColumns]) -> str:
    several = len(tables_of(slots)) > 1
    words = {
        TRAIN: ("as a feature", "as features"),
        LABEL: ("as the label", "for the label"),
        JOIN: ("as the join key", "as join keys"),
        LINK: ("to link rows of your tables", "to link rows of your tables"),
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
            beside = _constants(slots) if role == FILTER else ""
            told.append(f"{listed(names)} {one if len(names) == 1 else many}{beside}")
    chosen = sorted({clause for slot in slots for clause in slot.chosen})
    if chosen:
        told.append(f"{listed(chosen)} to choose among rows")
    return f"It uses {'; '.join(told)}." if told else "It uses no column of them."


def _constants(slots: Sequence[SlotColumns]) -> str:
    """Return the constants beside columns of conditions, as ' (constants: age 30 and 60)'."""
    by_column: dict[str, list[str]] = {}
    for slot in slots:
        for name, text in slot.constants or ():
            by_column.setdefault(name, []).append(sanitize.clipped(sanitize.line(text), 40))
    if not by_column:
        return ""
    parts = (f"{name} {listed(dict.fromkeys(texts))}" for name, texts in by_column.items())
    return f" (constants: {'; '.join(parts)})"


def inferred_of(left: Disclosed, *, others: bool, targets: bool = False) -> str:
    """Return the sentence of what can be inferred. others : the labels are sent in clear, and train
    a model: other parties get numbers that the coordinator makes of them. targets : they are sent
    in clear, and CHECK sends other parties the targets.
    """
    said = left.inferred()
    if targets:
        said = f"{said[:-1]}; other parties with features could learn labels row by row."
    elif others:
        said = f"{said[:-1]}; other parties could estimate labels of the rows that join theirs."
    return said


def _sends_targets(request: Request) -> bool:
    """Return True for CHECK, unless `explains = false` leaves the targets out."""
    look = json.loads(request.look)
    explains = look.get("explains", True) if isinstance(look, dict) else True
    return request.purpose == "check" and explains is not False


def _trains(filed: Filed) -> bool:
    return filed.request.purpose == "train"


def _how_often(
    filed: Filed, left: Disclosed, policy: TrainingPolicy | None, coordinator: str
) -> str:
    request = filed.request
    gets = {
        "train": "lets {} use the model",
        "evaluate": "sends {} the measures",
        "predict": "sends {} the predictions",
        "check": "sends {} a report",
    }.get(request.purpose, "works for {}").format(filed.analyst)
    if request.purpose == "predict" and (beside := _identifiers(filed.columns)):
        gets += f" beside {beside}"
    others = ""
    if left.labels:
        others = TARGETS if _sends_targets(request) else FOR_OTHERS[_trains(filed)]
    most = left.rounds if policy is None else min(left.rounds, policy.rounds)
    if not most:
        often = "there are no rounds of training or scoring"
    elif math.isinf(most):
        often = "there are as many rounds as the data take"
    else:
        often = f"one run has at most {most:,.0f} round{'s' * (most != 1)}{_usually(filed, most)}"
    return f"{goes(coordinator)} {others}{gets}; {often}, and {_runs(policy, filed.analyst)}."


def _usually(filed: Filed, most: float) -> str:
    """Return the usual rounds of a training in words; '' if it usually has all."""
    request = filed.request
    items = specifications_from_json(filed.specification)
    fits_once = request.purpose == "train" and request.privacy == "null"
    if not fits_once or any(item.folds or item.device for item in items):
        return ""
    usual = part_of(request.algorithm, "options").usual.usual_rounds
    return "" if usual is None or usual[1] >= most else f", usually {usual[0]} to {usual[1]}"


def _identifiers(slots: Sequence[SlotColumns]) -> str:
    names = [use.name for slot in slots for use in slot.uses if use.role == IDENTIFY]
    return listed(dict.fromkeys(names)) if names else ""


def _runs(policy: TrainingPolicy | None, analyst: str) -> str:
    if policy is None:
        return "your policy no longer lets it run"
    daily = policy.runs_per_day
    limit = "" if daily is None else f", at most {daily} a day with all others of the analyst"
    if policy.approval == ALWAYS:
        return f"an approval is for one run{limit}"
    return f"an approval lets {analyst} repeat this run until you refuse it{limit}"


# -- what leaves -----------------------------------------------------------------------------------


def _disclosed(filed: Filed, policy: TrainingPolicy | None) -> Disclosed:
    request = filed.request
    disclosed = Disclosed()
    columns = {slot_columns.slot: slot_columns for slot_columns in filed.columns}
    for item in specifications_from_json(filed.specification):
        often = {
            kind: most for (slot, kind), most in request.often().items()
            if slot == item.slot and most
        }  # fmt: skip
        names = _names(columns[item.slot])
        noise = _noise(request, item, policy)
        disclosed.add_slot(item, often, request.algorithm, names, noise)
    return disclosed


def _names(columns: SlotColumns) -> NamesByUse:
    return NamesByUse(
        keys=columns.names(JOIN),
        conditions=columns.names(FILTER),
        features=columns.names(TRAIN),
        label=columns.names(LABEL),
        weight=columns.names(WEIGHT),
        offset=columns.names(OFFSET),
        identifiers=columns.names(IDENTIFY),
    )


def _noise(request: Request, item: SlotSpecification, policy: TrainingPolicy | None) -> SlotNoise:
    label = None if item.privacy is None else item.privacy.label
    return SlotNoise(
        None if label is None else noising.epsilon_of(label),
        "your database draws the noise, ",
        lambda rows: _feature_noise(request, item, _enforced(policy, rows=rows)),
        _binomial(noising.privacy_of(request)),
    )


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
    chance = guess(privacy.epsilon, privacy.delta)
    kept = "" if enforced else ", if the coordinator keeps to it"
    return f" (your database draws the noise, {told}, {by})", (
        f"from one run, which of two likely sets of features a row has, {chance} ({told}{kept})"
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


def warnings_of(
    filed: Filed,
    policy: TrainingPolicy | None,
    grants: Sequence[Grant],
    facts: Mapping[Table, TableFacts | None],
    now: dt.datetime,
) -> Iterator[str]:
    if filed.outside:
        named = sanitize.clipped(sanitize.line(filed.request.study or ""), 80)
        yield f"It exceeds study {named}: {'; '.join(filed.outside)}."
    elif asked := _foreign(filed):
        yield f"It is said to {_aim(filed.request)}, but {asked}."
    keys = _keys(filed.columns, grants)
    most = MANY_VALUES if policy is None else policy.max_categories
    least = SMALL_GROUP if policy is None else max(SMALL_GROUP, policy.min_cell)
    uses = sorted({use for slot in filed.columns for use in slot.uses})
    for use in uses:
        if use.role == TRAIN:
            column_facts = _facts_of(use.table, use.name, facts)
            named = f"{use.table[2]}.{use.name}"
            a = "is a feature" if use.bare else "is in the expression of a feature"
            if (use.table, use.name) in keys:
                yield (
                    f"{named} {a} though it is {keys[use.table, use.name]}: what the model makes "
                    "of it can point to single rows."
                )
            elif column_facts is not None and is_free_text(column_facts, most):
                yield (
                    f"{named} {a} and is free text ({column_facts.distinct:,} different texts in "
                    f"{_count(column_facts.present)}): it may hold names."
                )
            elif column_facts is not None and is_identifier(column_facts):
                yield (
                    f"{named} {a} and nearly every row has a value of its own, as an identifier "
                    f"has ({column_facts.distinct:,} values in {_count(column_facts.present)})."
                )
    if clear_labels(filed):
        yield (
            "Labels leave in clear: the analyst can ask for PRIVACY (label_epsilon = ...), and "
            "labels = 'noised' in your policy makes that a duty."
        )
    for use in uses:
        column_facts = _facts_of(use.table, use.name, facts)
        if use.role not in (TRAIN, LABEL) or not use.bare or column_facts is None:
            continue
        if is_grouped(column_facts, most) and 0 < column_facts.smallest < least:
            rows = _count(column_facts.smallest)
            yield (
                f"A value of {use.table[2]}.{use.name} is in {rows} only, fewer than {least}: "
                "whoever has it can be singled out."
            )
    yield from _wide_grants(filed, grants, facts, most)
    yield from _ended(filed, grants, now)


def _keys(slots: Sequence[SlotColumns], grants: Sequence[Grant]) -> dict[tuple[Table, str], str]:
    """Return (table, column) -> why it identifies rows."""
    keys: dict[tuple[Table, str], str] = {}
    for grant in grants:
        keys |= {(grant.table, name): "a join key" for name in grant.roles.columns.get(JOIN, ())}
    for slot in slots:
        keys |= {(use.table, use.name): "a join key" for use in slot.uses if use.role == JOIN}
    for grant in grants:
        if len(key := grant.roles.columns.get(KEY, ())) == 1:
            keys[grant.table, key[0]] = "the KEY of its table"
    return keys


def _facts_of(
    table: Table, name: str, facts: Mapping[Table, TableFacts | None]
) -> ColumnFacts | None:
    table_facts = facts.get(table)
    return None if table_facts is None else table_facts.columns.get(name)


def is_free_text(column: ColumnFacts, most: int) -> bool:
    """Return True for a text with more than `most` values, or of which most rows have their own."""
    return kind_of_name(column.type) == TEXT and (
        column.distinct > most
        or (column.present >= MIN_ROWS and 2 * column.distinct > column.present)
    )


def is_identifier(column: ColumnFacts) -> bool:
    """Return True if nearly every row has a value of its own. Measured numbers have that too, so
    DOUBLE, FLOAT and DECIMAL do not count.
    """
    if column.type.startswith(("DOUBLE", "FLOAT", "DECIMAL")) or column.present < MIN_ROWS:
        return False
    return column.distinct >= IDENTIFYING * column.present


def is_grouped(column: ColumnFacts, most: int) -> bool:
    """Return True for a column of categories: texts of few values, booleans, ENUMs."""
    texts = kind_of_name(column.type) == TEXT and not is_free_text(column, most)
    return texts or column.type == "BOOLEAN"


def clear_labels(filed: Filed) -> bool:
    if filed.study is not None:
        labels = any(use.role == LABEL for slot in filed.columns for use in slot.uses)
        return labels and filed.study.label_epsilon is None
    often = filed.request.often()
    return any(
        bool(often.get((item.slot, SendLabels.kind)))
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
    for table in tables_of(filed.columns):
        table_facts = facts.get(table)
        if table_facts is None:
            continue
        for role in (TRAIN, LABEL, IDENTIFY, FILTER):
            given = {
                name for grant in grants if grant.table == table
                for name in grant.roles.columns.get(role, ())
            }  # fmt: skip
            known = table_facts.columns
            named = [
                name for name in table_facts.names
                if name in known
                and (is_free_text(known[name], most) or is_identifier(known[name]))
            ]  # fmt: skip
            if named and given >= set(table_facts.names):
                yield (
                    f"{filed.analyst} has every column of {_name(table)} granted for "
                    f"{role.upper()}, as * gives, also {listed(named)}, which may name single rows."
                )


def _ended(filed: Filed, grants: Sequence[Grant], now: dt.datetime) -> Iterator[str]:
    for table in tables_of(filed.columns):
        table_grants = [grant for grant in grants if grant.table == table]
        for grant in table_grants:
            if grant.until is not None and grant.until <= now:
                yield (
                    f"The grant of {_name(table)} to {filed.analyst} ended on "
                    f"{grant.until:%Y-%m-%d %H:%M} {grant.until.tzname() or ''}".rstrip()
                    + "."
                )
        if not table_grants:
            yield f"Nothing of {_name(table)} is granted to {filed.analyst} any more."


# -- words -----------------------------------------------------------------------------------------


def tables_of(slots: Iterable[SlotColumns]) -> list[Table]:
    return sorted({table for slot in slots for table in slot.tables})


def _name(table: Table) -> str:
    return ".".join(table[1:])
