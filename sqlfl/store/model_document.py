"""A model as the coordinator's file has it: a JSON document, and its history as an Arrow stream.

A file may be damaged, or come from somebody else: it is read strictly, into values of the types
that a model has, or not at all.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.codec import parse
from sqlfl.endings import (
    BEFORE,
    EARLY,
    EARLY_REASON,
    INTERRUPTED,
    INTERRUPTED_REASON,
    LIMIT,
    STILL,
    Ending,
    untold,
)
from sqlfl.models.kinds import BUILT_KINDS
from sqlfl.report.card import PrivacyReport
from sqlfl.store.registry import Cost, Model, ModelBlock
from sqlfl.store.stored_arrow import read_numbers


@dataclass(frozen=True)
class _Document:
    """All of a model but its history; numbers keep all their bits. Files of before lack what has a
    default here; what newer ones have besides is left alone."""

    name: str
    kind: str
    target: str
    target_type: str
    weight: str | None
    features: tuple[str, ...]
    algorithm: str
    options: Mapping[str, object]
    given: tuple[str, ...]
    sql: str
    run: str
    blocks: tuple[ModelBlock, ...]
    intercept: tuple[float, ...]
    classes: tuple[str, ...] | None
    metrics: Mapping[str, int | float | None]
    privacy: str
    cost: Cost
    interrupted: bool
    converged: bool
    stopped_early: bool
    epoch: int
    created_at: str
    versions: Mapping[str, str]
    head: tuple[tuple[float, ...], ...] | None = None
    privacy_report: object = None
    ending: Ending | None = None
    databases: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def model_to_json(model: Model) -> str:
    own = {name: getattr(model, name) for name in _Document.__dataclass_fields__ if name in _PLAIN}
    own |= {
        "options": dict(model.options),
        "blocks": [asdict(block) for block in model.blocks],
        "intercept": model.intercept.tolist(),
        "head": None if model.head is None else model.head.tolist(),
        "privacy": str(model.privacy),
        "privacy_report": json.loads(model.privacy.to_json()),
        "cost": asdict(model.cost),
        "ending": asdict(model.ending),
        "created_at": model.created_at.isoformat(),
        "versions": dict(model.versions),
        "databases": dict(model.databases),
    }
    return json.dumps(own, separators=(",", ":"))


_PLAIN = {
    "name", "kind", "target", "target_type", "weight", "features", "algorithm", "given", "sql",
    "run", "classes", "metrics", "interrupted", "converged", "stopped_early", "epoch",
    "remarks",
}  # fmt: skip
"""Fields that JSON takes as they are."""


def history_to_bytes(history: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, history.schema) as writer:
        writer.write_table(history)
    return bytes(sink.getvalue())


def model_from(document: object, history: object, kept: str) -> Model:
    """What `model_to_json` and `history_to_bytes` wrote. Raises ValueError for anything else."""
    if not isinstance(document, str):
        raise ValueError("no document")
    found = parse(_Document, document, finite=False, strict=False)
    own: dict[str, Any] = {name: getattr(found, name) for name in _PLAIN if name != "converged"}
    table = read_numbers(history)
    created = dt.datetime.fromisoformat(found.created_at)
    if "epoch" not in table.column_names or not table.num_rows:
        raise ValueError("a history without epochs")
    if created.tzinfo is None or found.kind not in BUILT_KINDS:
        raise ValueError(f"a model of kind {found.kind!r:.40}, made at {found.created_at!r:.40}")
    return Model(
        **own | {"metrics": dict(found.metrics)},
        options={name: _tuples(value) for name, value in found.options.items()},
        blocks=found.blocks,
        intercept=_numbers(found.intercept),
        head=None if found.head is None else _numbers(found.head),
        privacy=_report(found),
        ending=_ending(found),
        cost=found.cost,
        created_at=created,
        versions=found.versions,
        databases=found.databases,
        history=table,
        lasting=True,
        kept=kept,
    )


def _ending(found: _Document) -> Ending:
    """Files of before say only whether the changes of the objective had become small."""
    if found.ending is not None:
        return found.ending
    if found.interrupted:
        return untold(INTERRUPTED, INTERRUPTED_REASON)
    if found.stopped_early:
        return untold(EARLY, EARLY_REASON)
    return untold(STILL if found.converged else LIMIT, BEFORE)


def _report(found: _Document) -> PrivacyReport:
    """Files of before, and their readers, have its text only."""
    if found.privacy_report is None:
        return PrivacyReport((), (found.privacy,))
    return PrivacyReport.from_json(json.dumps(found.privacy_report))


def _numbers(values: tuple[Any, ...]) -> Any:
    """Raises ValueError for rows of several lengths, and for numbers that are not finite."""
    array = np.array(values, np.float64)
    if not np.isfinite(array).all():
        raise ValueError("parameters that are not finite")
    return array


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
