"""Report texts on moments of columns, which clients release in place of predictions."""

from __future__ import annotations

from collections.abc import Iterator

from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.query.ucq import Slot
from sqlfl.privacy.events import CROSSES, MOMENTS

KIND = "moments of columns"
SOLVED = "functions of noised moments, in parameters"


def mechanism(setting: ReportSetting, slot: Slot) -> str:
    """Describe the noise of a slot's two sums."""
    second, cross = setting.multiplier(slot, MOMENTS), setting.multiplier(slot, CROSSES)
    rounds = setting.rounds(slot)
    if rounds is None or second is None or cross is None:
        return "second moments and moments with the label, rows bounded, Gaussian noise, once each"
    secret = ", made in secret over the table's clients" * setting.secret("gram")
    return (
        f"second moments with Gaussian noise of {second:.4g} times what one row moves them by, and "
        f"moments with the label with {cross:.4g} times that{secret}, once each; a row counts "
        f"{rounds.row_weight:.4g} at most, and its values are clipped to {rounds.column_bound:.4g}"
    )


def rests(setting: ReportSetting) -> Iterator[str]:
    """Say what the noise of moments rests on."""
    yield (
        "A client works out by itself how far one row can move its sums: from how many columns "
        "they have, and from what it clips values, weights and label sums to. How much a row "
        "counts, and where label sums are cut, follows from labels and join graph alone."
    )
    yield (
        "Weights, intercept and all estimates of how good the model is are made of noised moments "
        "and labels alone. No row's prediction leaves its client."
    )
