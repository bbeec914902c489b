"""EVALUATE and PREDICT, and the diagnostics of a model over the same rows."""

from __future__ import annotations

import pyarrow as pa

from sqlfl.coordinator import scoring
from sqlfl.coordinator.contributions import contributions
from sqlfl.coordinator.importance import importance
from sqlfl.coordinator.inference import infer
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.skew import skew
from sqlfl.messages.replies import ReplyChannel
from sqlfl.options.diagnostics import ContributionsOptions, Importance, Inference, SkewOptions
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model


def evaluate(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring
) -> pa.Table:
    """Return the plan's diagnostic, or else the metrics in one row."""
    match plan.look:
        case Inference():
            return infer(plan, plan.look, model, channel, run, said)
        case Importance():
            return importance(plan, plan.look, model, channel, run, said)
    return scoring.evaluate(plan, model, channel, run, said)


def predict(
    plan: FederatedPlan, model: Model, channel: ReplyChannel, run: str, said: Scoring
) -> pa.Table:
    """Return the plan's diagnostic, or else the predictions."""
    if isinstance(plan.look, ContributionsOptions):
        return contributions(plan, plan.look, model, channel, run, said)
    if isinstance(plan.look, SkewOptions):
        return skew(plan, plan.look, model, channel, run, said)
    return scoring.predict(plan, model, channel, run, said)
