"""Checks of each reply before and after the rounds, for `sqlfl.messages.checks.ask`. They follow
from the plan, from the party's earlier replies and from the join.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from sqlfl.base.arrays import PART, Array
from sqlfl.contract.schema import SlotSpecification
from sqlfl.messages import (
    Block,
    Collected,
    Contributions,
    Curves,
    EqualRows,
    Errors,
    ExactContributions,
    ExactPredictions,
    Findings,
    Folds,
    Identifiers,
    JoinKeys,
    Labels,
    MergedGroups,
    Predictions,
    Prepared,
    Profile,
    Ranges,
    Ready,
    Rotated,
    Saved,
    SealedGroups,
    Separated,
    SetEncoding,
    Skew,
    Statistics,
    Written,
)
from sqlfl.messages.checks import Expected
from sqlfl.options.training import MAX_TABLE_ROWS

ROUNDING = 1e-6
"""Relative rounding error of sums over rows."""
CLASSES = {
    re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?"): r"-?[0-9]+",
    re.compile(r"DECIMAL.*"): r"-?[0-9]+([.][0-9]+)?",
    re.compile(r"FLOAT|DOUBLE|REAL"): r"-?([0-9]+([.][0-9]*)?(e[-+]?[0-9]+)?|inf)",
    re.compile(r"BIGNUM"): r"-?[0-9]+",
    re.compile(r"BOOLEAN"): r"true|false",
}
"""Patterns of DuckDB's text for the values of a type other than text."""


def prepared(fragments: int, joins: int = 0) -> Expected[Prepared]:
    def fault(reply: Prepared) -> str | None:
        rows = int(reply.rows.sum(dtype=np.float64))
        if rows > MAX_TABLE_ROWS:
            return f"has {rows} rows; at most {MAX_TABLE_ROWS} can be numbered"
        return None

    return Expected(Prepared, {"fragments": fragments, "joins": joins}, fault)


def sealed_groups(item: SlotSpecification) -> Expected[SealedGroups]:
    """Return the expected groups: none for the client itself."""
    merging = item.merging
    assert merging is not None
    sizes = {"databases": merging.databases, f"sealed_bytes[{merging.place}]": 0}
    return Expected(SealedGroups, sizes)


def merged_groups(item: SlotSpecification) -> Expected[MergedGroups]:
    def fault(reply: MergedGroups) -> str | None:
        rows = int(reply.rows.sum(dtype=np.float64))
        if rows > MAX_TABLE_ROWS:
            return f"has {rows} rows; at most {MAX_TABLE_ROWS} can be numbered"
        return None

    return Expected(MergedGroups, {"fragments": len(item.fragments)}, fault)


def join_keys(item: SlotSpecification, rows: Sequence[int]) -> Expected[JoinKeys]:
    """Return the expected join keys. rows: rows of each fragment of the slot at the client."""

    def fault(reply: JoinKeys) -> str | None:
        if len(item.fragments) == 1:
            if reply.fragment.size:
                return "tells fragments where there is one"
        else:
            counts = np.bincount(reply.fragment, minlength=max(item.fragments) + 1)
            expected = np.zeros(len(counts), np.int64)
            expected[list(item.fragments)] = rows
            if not np.array_equal(counts, expected):
                return "has other rows of its fragments than it prepared"
        for key, tags, codes in zip(item.keys, reply.tags, reply.codes, strict=True):
            if len(tags) > len(codes):
                return f"has {len(tags)} tags of {len(codes)} rows"
            if not key.nullable and codes.size and int(codes.max()) >= len(tags):
                return "has NULL in a key that cannot be NULL"
        return None

    return Expected(JoinKeys, {"rows": sum(rows), "keys": len(item.keys)}, fault)


def folds(rows: int, number: int) -> Expected[Folds]:
    """Return the expected folds. number: number of all folds; 2 if one share is held out."""

    def fault(reply: Folds) -> str | None:
        largest = int(reply.folds.max(initial=0))
        return None if largest < number else f"has fold {largest}, of {number}"

    return Expected(Folds, {"active": rows}, fault)


def encoded(item: SlotSpecification, counts: float, *, now: bool) -> Expected[Any]:
    """Return the expected reply once the weights of active rows are known.

    counts: their total at the client. now: True if these weights are final.
    """
    privacy = item.privacy
    how = "none" if privacy is None else privacy.statistics
    if not (now and item.shared and how != "bounds"):
        return Expected(Ready)
    fitted = sum(feature.fitted for feature in item.features)
    if fitted:
        return Expected(Ranges, {"fitted": fitted}, _turned)
    return statistics(item, counts)


def _turned(reply: Ranges) -> str | None:
    if (reply.ends[:, 0] > reply.ends[:, 1]).any():
        return "has ends in no order"
    ascending = all((np.diff(points) > 0.0).all() for points in reply.points)
    return None if ascending else "has points in no order"


def statistics(item: SlotSpecification, counts: float) -> Expected[Statistics]:
    """Return the expected statistics of rows with total weight `counts` at the client."""
    privacy = item.privacy
    how = "none" if privacy is None else privacy.statistics
    numeric = [feature for feature in item.features if feature.kind != "category"]
    categories = [k for k, feature in enumerate(item.features) if feature.kind == "category"]
    sizes = {
        "numeric": sum(feature.width for feature in numeric),
        "features": len(numeric),
        "categories": len(categories),
    }
    if privacy is None or how == "none":
        if item.secure:  # sums over all clients
            return Expected(Statistics, sizes)
        return Expected(Statistics, sizes, lambda reply: _inconsistent(item, reply, counts))
    for number, position in enumerate(categories):
        listed = privacy.bounds[position]
        if listed is not None:
            sizes[f"entries[{number}]"] = len(listed)
    return Expected(Statistics, sizes)


def _inconsistent(item: SlotSpecification, reply: Statistics, counts: float) -> str | None:
    """Return the fault in exact sums over the same rows: negative sums, or parts that do not add up
    to the total.
    """
    slack = ROUNDING * max(counts, 1e-300)
    parts = (reply.weight, reply.m2, reply.missing, *reply.counts)
    if any(part.size and part.min() < 0 for part in parts):
        return "has negative sums of squares or counts"
    start = 0
    numeric = [feature for feature in item.features if feature.kind != "category"]
    for feature, missing in zip(numeric, reply.missing, strict=True):
        sums = reply.weight[start : start + feature.width] + missing
        start += feature.width
        whole = feature.kind != "array"  # in arrays, some of the elements may also be NULL
        if sums.max(initial=0.0) > counts + slack or (whole and sums.min() < counts - slack):
            return f"counts rows of {feature.name} that are not {counts:g}"
    categories = [feature for feature in item.features if feature.kind == "category"]
    for feature, category_counts in zip(categories, reply.counts, strict=True):
        beyond = category_counts.sum() - counts
        if beyond > slack or (beyond < -slack and not feature.frequent_values):
            return f"counts categories of {category_counts.sum():g} rows, and there are {counts:g}"
    return None


def encoding_set(message: SetEncoding) -> Expected[Ready]:
    """Return the expected width: the number of columns that follows from the encoding sent."""
    indicators = int(np.count_nonzero(message.missing > 0))
    width = len(message.mean) + indicators + sum(len(tags) for tags in message.tags)

    def fault(reply: Ready) -> str | None:
        return f"has {reply.width} encoded columns, of {width}" if reply.width != width else None

    return Expected(Ready, fault=fault)


def labels(item: SlotSpecification, active: int, type_: str) -> Expected[Labels]:
    """Return the expected labels. type_: the target's DuckDB type."""
    label = None if item.privacy is None else item.privacy.label
    forms = (form for kind, form in CLASSES.items() if kind.fullmatch(type_.upper()))
    written = re.compile(next(forms, "(?s).*"))

    def fault(reply: Labels) -> str | None:
        values = reply.codes if item.classes else reply.values
        if len(values) != active or (reply.values.size and item.classes):
            return f"has {len(values)} labels of {active} rows"
        if not item.classes:
            return "has classes of numbers" if reply.codes.size or reply.classes else None
        if label is not None and reply.classes != label.classes:
            return "has other classes than those that are public"
        if label is None and not _all_told(reply.codes, len(reply.classes)):
            return "has classes that no row is of"
        if not all(map(written.fullmatch, reply.classes)):
            return f"has classes that are no {type_}"
        return None

    return Expected(Labels, {}, fault)


def _all_told(codes: Array, classes: int) -> bool:
    """Return True if each class occurs in some row."""
    told = np.zeros(classes, bool)
    for start in range(0, len(codes), PART):
        told[codes[start : start + PART]] = True
    return bool(told.all())


def scores(active: int, outputs: int, *, exact: bool = False) -> Expected[Predictions]:
    kind = ExactPredictions if exact else Predictions
    return Expected(kind, {"rows": active, "outputs": outputs, "products": 0})


def rotated(active: int, outputs: int) -> Expected[Rotated]:
    return Expected(Rotated, {"rows": active, "outputs": outputs})


def errors(columns: int, directions: int) -> Expected[Errors]:
    return Expected(Errors, {"columns": columns, "directions": directions})


def skew(features: int) -> Expected[Skew]:
    """Return the expected skew. Shares lie between 0 and 1; means may have any size."""

    def fault(reply: Skew) -> str | None:
        for shares in (reply.trained_missing, reply.missing, reply.unseen):
            if not (np.isnan(shares) | ((shares >= 0) & (shares <= 1 + ROUNDING))).all():
                return "has shares beyond 0 and 1"
        far = (reply.distances, reply.indices, reply.divergences)
        return (
            "has a negative distance" if any((distances < 0).any() for distances in far) else None
        )

    return Expected(Skew, {"features": features}, fault)


def contributions(active: int, parts: int, *, exact: bool = False) -> Expected[Contributions]:
    kind = ExactContributions if exact else Contributions
    return Expected(kind, {"rows": active, "parts": parts})


def block(outputs: int) -> Expected[Block]:
    def fault(reply: Block) -> str | None:
        return None if (reply.scales > 0).all() else "has scales that are not above 0"

    return Expected(Block, {"outputs": outputs}, fault)


def curves(outputs: int) -> Expected[Curves]:
    return Expected(Curves, {"outputs": outputs})


def findings(features: int, joined: int) -> Expected[Findings]:
    """Return the expected findings. joined: number of joined rows."""

    def fault(reply: Findings) -> str | None:
        most = int(reply.unseen.max(initial=0))
        return f"counts {most} joined rows of {joined}" if most > joined else None

    return Expected(Findings, {"features": features}, fault)


def separated(outputs: int, features: Collection[str]) -> Expected[Separated]:
    """Return the expected separation. features: names of the slot's features; arrays have names
    with the numbers of their elements.
    """

    def fault(reply: Separated) -> str | None:
        other = [name for name in reply.features if name and name not in features]
        return f"has columns of {other[0]:.40}" if other else None

    return Expected(Separated, {"outputs": outputs}, fault)


def profile(features: int, joined: int) -> Expected[Profile]:
    """Return the expected profile. joined: number of joined rows."""

    def fault(reply: Profile) -> str | None:
        most = max(reply.rows, float(reply.missing.max(initial=0.0)))
        if most > joined * (1.0 + ROUNDING) or (reply.missing > reply.rows * (1 + ROUNDING)).any():
            return f"counts {most:g} joined rows of {joined}"
        if max(reply.apart, float(np.nanmax(reply.explained, initial=0.0))) > joined * (1 + 1e-3):
            return "explains more of the target than there is"
        return None

    return Expected(Profile, {"features": features}, fault)


def equal_rows(active: int) -> Expected[EqualRows]:
    """Return the expected classes: one for each active row, or none at all."""

    def fault(reply: EqualRows) -> str | None:
        classes = reply.classes.astype(np.int64)
        if not classes.size:
            return None
        if len(classes) != active:
            return f"has classes of {len(classes)} rows, of {active}"
        # Each class is one more than the earlier ones at its first occurrence.
        highest = np.maximum.accumulate(classes)
        if classes[0] != 0 or (np.diff(highest) > 1).any():
            return "does not number classes as they come"
        return None

    return Expected(EqualRows, {}, fault)


def identifiers(item: SlotSpecification, active: int) -> Expected[Identifiers]:
    return Expected(Identifiers, {"identifiers": len(item.identifiers), "active": active})


def written(rows: int) -> Expected[Written]:
    def fault(reply: Written) -> str | None:
        return f"has {reply.rows} rows, of {rows}" if reply.rows != rows else None

    return Expected(Written, fault=fault)


def kept() -> Expected[Saved]:
    """Return the expected reply about blocks to be written to disk."""
    return Expected(
        Saved, fault=lambda saved: None if saved.lasting else "says that it does not last"
    )


def collected() -> Expected[Collected]:
    def fault(reply: Collected) -> str | None:
        return None if bool(reply.lasting) != bool(reply.reason) else "does not say why"

    return Expected(Collected, fault=fault)
