"""Report texts on moments of columns, which clients release in place of predictions."""

from __future__ import annotations

from collections.abc import Iterator

from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.events import CROSSES, MOMENTS

KIND = "moments of columns"
SOLVED = "functions of noised moments, in parameters"


def mechanism(setting: ReportSetting, slot: Slot) -> str:
    """Describe the noise of a slot's sums and fits."""
    second, cross = setting.multiplier(slot, MOMENTS), setting.multiplier(slot, CROSSES)
    rounds, leads = setting.rounds(slot), setting.plan.ucq.leading == slot.index
    summed = "moments with the label"
    if two_rounds(setting):
        summed += ", and fits of its rows," if leads else " and with another table's fits"
    if rounds is None or second is None or cross is None:
        return f"second moments and {summed}, rows bounded, Gaussian noise, once each"
    secret = ", made in secret over the table's clients" * setting.secret("gram")
    secret += ", fits apart" * bool(secret and rounds.prediction_noise)
    return (
        f"second moments with Gaussian noise of {second:.4g} times what one row moves them by, and "
        f"{summed} with {cross:.4g} times that{secret}, once each; a row counts "
        f"{rounds.row_weight:.4g} at most, and its values are clipped to {rounds.column_bound:.4g}"
    )


def two_rounds(setting: ReportSetting) -> bool:
    """Return whether a table releases fits of its rows."""
    return setting.plan.training.listed()["rounds"] == 2


def rests(setting: ReportSetting) -> Iterator[str]:
    """Yield the conditions of noised moments."""
    yield (
        "A client works out by itself how far one row can move its sums: from how many columns "
        "they have, and from what it clips values, weights and label sums to. How much a row "
        "counts, and where label sums are cut, follows from labels and join graph alone."
    )
    if not two_rounds(setting):
        yield (
            "Weights, intercept and all estimates of how good the model is are made of noised "
            "moments and labels alone. No row's prediction leaves its client."
        )
        return
    (name,) = (s.name for s in setting.slots if s.index == setting.plan.ucq.leading)
    yield (
        "Weights, intercept and all estimates of how good the model is are made of noised moments "
        f"and fits, and labels, alone. Fits of rows, of {name} alone, leave once, noised by how "
        "far its weights and the bounds of columns let two rows be apart. With rounds = 1 none do."
    )
