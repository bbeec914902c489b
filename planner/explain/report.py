"""The privacy report of a plan and of a model: the releases and their guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlfl.base.errors import InternalError
from sqlfl.planner.explain.card import PrivacyReport, Release
from sqlfl.planner.explain.releases import releases
from sqlfl.planner.explain.sentences import assumptions, promises, summary
from sqlfl.planner.explain.setting import ReportSetting
from sqlfl.planner.federated.plan import FederatedPlan

if TYPE_CHECKING:
    from sqlfl.privacy.calibration import NoiseCalibration

__all__ = ["PrivacyReport", "Release", "expected_report", "report_of"]


def expected_report(plan: FederatedPlan) -> PrivacyReport:
    """Before anything runs. An ε that follows from noise_multiplier is not known yet."""
    return _report(ReportSetting(plan, None))


def report_of(plan: FederatedPlan, calibration: NoiseCalibration | None) -> PrivacyReport:
    """Return the report of a run of `plan` with the noise of `calibration`, which is None if
    features are not protected. Raise InternalError if the two do not fit.
    """
    asked = plan.protection.rows
    if asked != (calibration is not None):
        raise InternalError(f"features are {'' if asked else 'not '}protected, without an account")
    return _report(ReportSetting(plan, calibration))


def _report(setting: ReportSetting) -> PrivacyReport:
    training = bool(setting.plan.algorithm)
    noised = ["labels"] * (training and bool(setting.protection.labels))
    told = "columns" if setting.chosen else "moments" if setting.solved else "predictions"
    noised += [told] * (training and setting.together)
    return PrivacyReport(
        releases(setting), promises(setting), assumptions(setting), tuple(noised), summary(setting)
    )
