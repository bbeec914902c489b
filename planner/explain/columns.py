"""Sentences of the report about chosen columns, which clients send in place of predictions."""

from __future__ import annotations

from collections.abc import Iterator

from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.events import CHOICES, COLUMNS, Gaussian, Selection
from sqlfl.privacy.protection import NoisedColumns

KIND = "chosen columns"
SUMS = "functions of chosen columns, in residuals"


def seen(setting: ReportSetting) -> str:
    """Return what the coordinator learns from a run without noise."""
    values = "the values of the columns that are chosen, for each row,"
    if setting.sketched:
        values = "random sums of the columns that are chosen, over the joined rows,"
    return f"keyed hashes of the join keys, the join graph, {values} and their weights."


def exact(setting: ReportSetting) -> str:
    """Return why features have no guarantee."""
    values = "exact random sums of" if setting.sketched else "the exact values of"
    return f"the coordinator sees {values} the columns that are chosen, and which these are."


def mechanism(setting: ReportSetting, slot: Slot) -> str:
    """Return the mechanism that releases a slot's columns."""
    noise = setting.protection.features
    if not isinstance(noise, NoisedColumns):
        return "random sums of each, exact" if setting.sketched else "the values of each, exact"
    told = _told(setting, slot)
    if told is None:
        return noise.told
    choices, columns, rounds = told
    return (
        f"at most {choices.count} choices by scores with {noise.mechanism.capitalize()} noise, "
        f"ε = {choices.epsilon:.4g} each; at most {columns.count} random sums of columns with "
        f"Gaussian noise of {columns.multiplier:.4g} times what one row moves them by; values "
        f"clipped to {rounds[0]:.4g}, residuals to {rounds[1]:.4g}"
    )


def _told(
    setting: ReportSetting, slot: Slot
) -> tuple[Selection, Gaussian, tuple[float, float]] | None:
    rounds = setting.rounds(slot)
    if setting.calibration is None or rounds is None:
        return None
    events = setting.calibration.events[slot.index]
    choices = next(e for e in events if isinstance(e, Selection) and e.what == CHOICES)
    columns = next(e for e in events if isinstance(e, Gaussian) and e.what == COLUMNS)
    return choices, columns, (rounds.column_bound, rounds.residual_bound)


def rests(setting: ReportSetting) -> Iterator[str]:
    """Yield the conditions of noised choices and columns."""
    yield (
        "A client tells of a choice which column it is and its direction, never the noised score. "
        "It works out by itself how far one row can move a score and a random sum: from how often "
        "its rows are joined, the residuals and the public seed that it is sent, and the bounds, "
        "to which it clips."
    )
    yield (
        "Which columns are looked at (sample) is not counted as secret. Weights, intercept and "
        "loss are made of choices, noised sums and labels alone."
    )
