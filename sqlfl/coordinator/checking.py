"""CHECK: a report on how the tables of a query join, on its features, and on likely mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.aggregation.slot_aggregation import merge_profiles
from sqlfl.base.arrays import Array, Float
from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import (
    few_rows,
    growth,
    is_constant,
    is_null,
    leaking,
    matching,
    multiplied,
    without_match,
)
from sqlfl.coordinator.join.join_limits import pair_words
from sqlfl.coordinator.join.join_size import SlotCodes
from sqlfl.coordinator.join.partners import partners, table_rows
from sqlfl.coordinator.preparation import Joined, Targets, prepare
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.separation import separation_of
from sqlfl.coordinator.weighting import labels
from sqlfl.messages import Message, Profile, SendExplained, SendProfile
from sqlfl.messages.checks import ReplyChannel, ask
from sqlfl.messages.preparation import IDENTIFIED, is_identifying
from sqlfl.models.kinds import TWO_CLASSES, kind_of
from sqlfl.options.diagnostics import Check
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.query.ucq import CATEGORY, Slot

SCHEMA = pa.schema([
    *((name, pa.string()) for name in ("part", "table", "name", "kind")),
    ("rows", pa.int64()), ("matched", pa.float64()),
    ("fan_out", pa.float64()), ("fan_out_p99", pa.float64()), ("fan_out_max", pa.float64()),
    ("share", pa.float64()), ("missing", pa.float64()), ("distinct", pa.int64()),
    *((name, pa.float64()) for name in ("low", "high", "mean", "explains")),
    ("finding", pa.string()),
])  # fmt: skip
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "query": ("rows",),
    "database": ("table", "name", "kind"),
    "key": (
        "table",
        "name",
        "rows",
        "distinct",
        "matched",
        "fan_out",
        "fan_out_p99",
        "fan_out_max",
    ),
    "table": ("table", "rows", "matched", "fan_out", "fan_out_p99", "fan_out_max"),
    "target": ("name", "kind", "rows", "share", "low", "high", "mean"),
    "feature": (
        *("table", "name", "kind", "missing", "distinct"),
        *("low", "high", "mean", "explains"),
    ),
}
"""Parts of the result, with the columns of each."""
MAX_TARGET_VALUES = 1 << 28
"""Maximum number of target values to send to a party."""
P99 = 0.99
Row = dict[str, Any]


def check(plan: FederatedPlan, channel: ReplyChannel, run: str, said: Scoring) -> pa.Table:
    """Return a row for the query, and for each difference of databases, side of a key, table, class
    and feature.
    """
    seen = _Seen()
    joined = prepare(plan, channel, run, said.tell, seen=seen.take, lasting=said.lasting)
    target = None
    if joined.total and any(slot.target for slot in plan.ucq.slots):
        target = labels(plan, joined, channel, run, said.lasting)
    said.tell("looking at features")
    profiles = _profiles(plan, joined, target, channel, run)
    separated: dict[int, str] = {}
    if target is not None:
        # infinite values, which TRAIN refuses, have no encoding
        asked = [s for s in plan.run.separated if not np.isinf(profiles[s.index].mean).any()]
        separated = separation_of(plan, asked, joined, target, channel, run, written=True)
    rows = [
        _of_query(plan, joined),
        *_of_databases(plan),
        *_of_keys(plan, seen.codes),
        *(
            _of_table(plan, slot, joined, seen, separated.get(slot.index))
            for slot in plan.ucq.slots
        ),
        *([] if target is None else _of_target(plan, joined, target)),
    ]
    for slot in plan.ucq.slots:
        if slot.index in profiles:
            rows += _of_features(plan, slot, joined, profiles[slot.index])
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@dataclass
class _Seen:
    """Rows of the slots, and those that are joined, as the preparation sees them."""

    codes: Mapping[int, SlotCodes] = field(default_factory=dict)
    active: Mapping[int, Array] = field(default_factory=dict)
    """Rows of each slot that occur in the join, ascending."""

    def take(self, codes: Mapping[int, SlotCodes], active: Mapping[int, Array]) -> None:
        self.codes, self.active = codes, active


# -- the join -------------------------------------------------------------------------------------


def _of_query(plan: FederatedPlan, joined: Joined) -> Row:
    finding = few_rows(joined) or growth(plan, joined)
    return {"part": "query", "name": "joined rows", "rows": joined.total, "finding": finding}


def _of_databases(plan: FederatedPlan) -> list[Row]:
    """Return a row for each table, column and type that not all databases of a party share."""
    return [
        {"part": "database", "table": d.table, "name": d.column, "kind": d.found, "finding": d.text}
        for d in plan.differences
    ]


def _of_keys(plan: FederatedPlan, seen: Mapping[int, SlotCodes]) -> list[Row]:
    """Return the rows of each key of each pair of tables, from either side, by that key alone."""
    rows: list[Row] = []
    for pair in partners(plan.ucq, seen):
        slots = [plan.ucq.slots[number] for number in (pair.join.left, pair.join.right)]
        name = pair_words(plan.ucq, pair)
        for slot, met, values, known in zip(
            slots, pair.counts, pair.values, pair.known, strict=True
        ):
            row: Row = {"part": "key", "table": slot.name, "name": name, "distinct": values}
            if known or not met.any():
                row |= _shares(len(met), met[met > 0])
            rows.append(row)
        matched = [(str(row["table"]), row.get("matched")) for row in rows[-2:]]
        rows[-2]["finding"] = matching(name, *matched) or multiplied(
            name, pair.means, [slot.name for slot in slots]
        )
    return rows


def _of_table(
    plan: FederatedPlan, slot: Slot, joined: Joined, seen: _Seen, separated: str | None
) -> Row:
    rows = table_rows(slot, seen.codes[slot.index])
    number = rows.number if rows.distinct else None
    row: Row = {"part": "table", "table": slot.name, "rows": number}
    active = joined.slots.get(slot.index)
    if active is None or not rows.known:  # no record is kept of the joined rows of a mere link
        return row | {"finding": separated}
    ids, often = rows.ids[seen.active[slot.index]], active.mapping.counts(slot.index)
    counts = np.bincount(ids[ids >= 0], often[ids >= 0], rows.number)
    row |= _shares(rows.number, counts[counts > 0]) | {"finding": separated}
    if slot.name in without_match(plan, joined):
        row["finding"] = f"LEFT JOIN {slot.name}: no row has a match in it"
    return row


def _shares(rows: int, often: Array) -> Row:
    """Return the share of rows that are joined, and how often each of them is. `often` has only
    joined rows.
    """
    if not often.size:
        return {"rows": rows, "matched": 0.0 if rows else None}
    return {
        "rows": rows,
        "matched": len(often) / rows,
        "fan_out": float(often.mean()),
        "fan_out_p99": float(np.quantile(often, P99, method="higher")),
        "fan_out_max": float(often.max()),
    }


# -- target and features --------------------------------------------------------------------------


def _of_target(plan: FederatedPlan, joined: Joined, target: Targets) -> list[Row]:
    slot = next(s for s in plan.ucq.slots if s.target)
    often = joined.slots[slot.index].mapping.counts(slot.index).astype(np.float64)
    name, missing = plan.ucq.target, joined.null_targets
    lost = f"{missing:,} rows have no target, and are left out" if missing else None
    if target.classes is None:
        values = target.values
        least = _check_of(plan).min_cell
        row: Row = {"part": "target", "name": name, "kind": "number", "rows": joined.total}
        if len(values) >= 2 * least:
            ends = np.partition(values, (least - 1, len(values) - least))
            row |= {"low": float(ends[least - 1]), "high": float(ends[len(values) - least])}
            row["mean"] = float(values @ often / often.sum())
        alone = len(np.unique(values)) == 1
        row["finding"] = f"target {name} is the same in all joined rows" if alone else lost
        return [row]
    counts = np.bincount(target.values, often, len(target.classes))
    two = kind_of(plan.kind).target == TWO_CLASSES
    wrong = (
        f"{plan.kind} takes two classes, and target {name} has {len(target.classes)}"
        if two and len(target.classes) != 2
        else None
    )
    rows: list[Row] = []
    for text, count in zip(target.classes, counts.tolist(), strict=True):
        share = count / joined.total
        few = share < FEW or count < FEWEST
        rare = f"class {text} has {count:,.0f} of {joined.total:,} joined rows"
        rows.append({
            "part": "target", "name": text, "kind": "class", "rows": round(count),
            "share": share, "finding": wrong or (rare if few else lost),
        })  # fmt: skip
        wrong = lost = None
    return rows


FEW = 0.01
"""Share of the joined rows below which a class is reported."""
FEWEST = 10
"""Number of joined rows below which a class is reported."""


def _of_features(plan: FederatedPlan, slot: Slot, joined: Joined, profile: Profile) -> list[Row]:
    rows: list[Row] = []
    explains = _explains(plan, slot, joined, profile)
    unmatched = slot.name in without_match(plan, joined)
    joined_slot = joined.slots[slot.index]
    active = int(joined_slot.offsets[-1]) - len(joined_slot.virtual)
    for place, feature in enumerate(slot.features):
        missing = float(profile.missing[place]) / joined.total
        distinct = int(profile.distinct[place]) if feature.kind != "array" else None
        row = {
            "part": "feature", "table": slot.name, "name": feature.name, "kind": feature.kind,
            "rows": joined.total, "missing": missing, "distinct": distinct,
            "low": _told(profile.low[place]), "high": _told(profile.high[place]),
            "mean": _told(profile.mean[place]), "explains": _told(explains[place]),
        }  # fmt: skip
        name = f"feature {feature.name} (of {slot.name})"
        category = feature.kind == CATEGORY
        if profile.missing[place] >= joined.total:
            row["finding"] = None if unmatched else is_null(name, joined.total, "tells nothing")
        elif np.isinf(profile.mean[place]):
            row["finding"] = f"{name} has infinite values, which TRAIN refuses"
        elif distinct == 1 and missing == 0:
            row["finding"] = is_constant(name)
        elif category and distinct and is_identifying(distinct, active):
            row["finding"] = f"{name} {LIKE_AN_IDENTIFIER}"
        elif feature.type in WHOLE and distinct == active >= IDENTIFIED:
            row["finding"] = f"{name} is another whole number in each row: is it an identifier?"
        elif explains[place] >= LEAKS:
            row["finding"] = leaking(name, plan.ucq.target or "", float(explains[place]))
        elif missing >= MOSTLY:
            row["finding"] = f"{name} is NULL in {missing:.0%} of the joined rows"
        rows.append(row)
    return rows


LIKE_AN_IDENTIFIER = "is a text with nearly as many values as there are rows: an identifier?"
WHOLE = ("INTEGER", "BIGINT", "UINTEGER", "UBIGINT", "HUGEINT")
LEAKS = 0.9
"""Share of the target that a feature alone explains. From here on, it may be made of the target."""
MOSTLY = 0.5


def _told(number: float) -> float | None:
    return None if np.isnan(number) else float(number)


def _explains(plan: FederatedPlan, slot: Slot, joined: Joined, profile: Profile) -> Float:
    """Return the share of the target's variance between groups that are alike in the feature:
    (features,). For classes it is Goodman and Kruskal's τ. It is adjusted for the number of groups
    (ε², Kelley 1935).
    """
    target = next((s for s in plan.ucq.slots if s.target), slot)
    n = min(
        joined.total, *(int(joined.slots[s.index].offsets[-1]) for s in (slot, target))
    )  # further joins of a row make it no more independent
    total = joined.total - profile.apart
    if total <= 1e-9 * joined.total:
        return np.full(len(profile.explained), np.nan)
    share = np.minimum(profile.explained / total, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        adjusted = 1.0 - (1.0 - share) * (n - 1.0) / (n - profile.groups)
    return np.where(profile.groups < n, np.maximum(adjusted, 0.0), np.nan)


def _profiles(
    plan: FederatedPlan, joined: Joined, target: Targets | None, channel: ReplyChannel, run: str
) -> dict[int, Profile]:
    """Return the profile of each slot with features; none for an empty join."""
    asked = _check_of(plan)
    slots = [slot for slot in plan.ucq.slots if slot.features and joined.total]
    columns = None
    if target is not None and asked.explains:
        columns = _columns(plan, target.spread(joined), joined.total)
    requests: dict[Address, Message] = {}
    for slot in slots:
        joined_slot = joined.slots[slot.index]
        if columns is None:
            requests |= {a: SendProfile(run, a[1], asked.min_cell) for a in joined_slot.addresses}
            continue
        size = int(joined_slot.offsets[-1])
        if size * columns.shape[1] > MAX_TARGET_VALUES:
            raise ModelError(
                f"{size:,} rows of {slot.name} and {columns.shape[1]:,} classes are too many to "
                "find out what each feature explains",
                hint="WITH (explains = false)",
            )
        sums = np.stack([np.bincount(joined_slot.rows, c, size) for c in columns.T], axis=1)
        for number, address in enumerate(joined_slot.addresses):
            mine = sums[joined_slot.offsets[number] : joined_slot.offsets[number + 1]].astype(
                np.float32
            )
            requests[address] = SendExplained(run, slot.index, asked.min_cell, mine)
    features = {slot.index: len(slot.features) for slot in slots}
    replies = ask(channel, requests, lambda a: expected.profile(features[a[1]], joined.total))
    return {
        slot.index: merge_profiles([replies[a] for a in joined.slots[slot.index].addresses])
        for slot in slots
    }


def _columns(plan: FederatedPlan, target: Targets, total: int) -> Float:
    """Return columns (N, K) of mean 0 whose squares add up to N; zeros if the target is
    constant.
    """
    if target.classes is None:
        columns = target.values.astype(np.float64)[:, None]
    elif kind_of(plan.kind).target == TWO_CLASSES:
        columns = (target.values == len(target.classes) - 1).astype(np.float64)[:, None]
    else:
        columns = np.eye(len(target.classes))[target.values]
    columns = columns - columns.mean(axis=0)
    with np.errstate(over="ignore"):
        squares = float(np.square(columns).sum())
    constant = squares <= 1e-24 * total
    return np.zeros_like(columns) if constant else columns * np.sqrt(total / squares)


def _check_of(plan: FederatedPlan) -> Check:
    assert isinstance(plan.look, Check)
    return plan.look


def parts_of(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each existing section with its columns that have values."""
    names = np.array(table.column("part").to_pylist(), object)
    for part, columns in SECTIONS.items():
        section = table.filter(pa.array(names == part))
        kept = [name for name in columns if section.column(name).null_count < section.num_rows]
        if kept:
            yield part, section.select(kept)
