"""SKEW OF MODEL: differences of features from those of the rows that a model was trained on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from sqlfl.base.errors import ModelError
from sqlfl.contract.schema import Address
from sqlfl.coordinator import expected
from sqlfl.coordinator.findings import remark_on_join
from sqlfl.coordinator.preparation import Weighting, prepare
from sqlfl.coordinator.scoring import Scoring
from sqlfl.coordinator.weighting import reweigh, sample_weights
from sqlfl.messages import SendSkew
from sqlfl.messages import Skew as Reply
from sqlfl.messages.replies import ReplyChannel, ask
from sqlfl.options.diagnostics import SkewOptions
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.store.registry import Model

SCHEMA = pa.schema(
    [
        ("client", pa.string()),
        ("feature", pa.string()),
        ("trained_mean", pa.float64()),
        ("mean", pa.float64()),
        ("trained_missing", pa.float64()),
        ("missing", pa.float64()),
        ("unseen", pa.float64()),
        ("distance", pa.float64()),
        ("psi", pa.float64()),
        ("jensen_shannon", pa.float64()),
        ("drifted", pa.bool_()),
    ]
)


def skew(
    plan: FederatedPlan,
    asked: SkewOptions,
    model: Model,
    channel: ReplyChannel,
    run: str,
    said: Scoring,
) -> pa.Table:
    """Return a row for each feature of each database. Unknown numbers, and numbers of too few rows,
    are NULL. Raise ModelError for an empty join.
    """
    joined = prepare(plan, channel, run, said.tell, lasting=said.lasting)
    remark_on_join(plan, joined, said.remark)
    if not joined.total:
        raise ModelError("the join is empty: there are no rows to compare with those of training")
    if plan.ucq.weight is not None:
        weights = sample_weights(plan, joined, channel, run)
        if not weights.any():
            raise ModelError(
                f"weight {plan.ucq.weight} is 0 in all rows", hint="at least one must be positive"
            )
        none = np.zeros(len(weights))
        weighting = Weighting(weights, weights, none.astype(bool), none)
        reweigh(plan, joined, weighting, channel, run)
    said.tell("comparing features")
    rows: list[dict[str, object]] = []
    for slot in (slot for slot in plan.ucq.slots if slot.features):
        joined_slot = joined.slots[slot.index]
        request = SendSkew(run, slot.index, model.run, plan.blocks[slot.index], asked.min_cell)
        requests = dict.fromkeys(joined_slot.addresses, request)
        replies = _asked(channel, requests, len(slot.features))
        for (client, _), reply in ((a, r) for a, r in replies.items() if joined_slot.active[a]):
            for place, feature in enumerate(slot.features):
                distance = _told(reply.distances[place])
                rows.append(
                    {
                        "client": str(client),
                        "feature": feature.name,
                        "trained_mean": _told(reply.trained_means[place]),
                        "mean": _told(reply.means[place]),
                        "trained_missing": _told(reply.trained_missing[place]),
                        "missing": _told(reply.missing[place]),
                        "unseen": _told(reply.unseen[place]),
                        "distance": distance,
                        "psi": _told(reply.indices[place]),
                        "jensen_shannon": _told(reply.divergences[place]),
                        "drifted": None if distance is None else distance > asked.threshold,
                    }
                )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _asked(
    channel: ReplyChannel, requests: Mapping[Address, SendSkew], features: int
) -> dict[Address, Reply]:
    return ask(channel, requests, lambda _: expected.skew(features))


def _told(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
