"""A model in the coordinator's file: a JSON document, and its history as an Arrow stream.

A file may be damaged, or come from somebody else. So it is read strictly: into values of the types
that a model has, or not at all.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pyarrow as pa

from sqlfl.base.arrays import Float
from sqlfl.base.codec import from_json, to_json
from sqlfl.base.stored_arrow import read_numbers
from sqlfl.contract.stopping import (
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
from sqlfl.contract.transforms import Transform
from sqlfl.models.kinds import KINDS
from sqlfl.planner.explain.card import PrivacyReport
from sqlfl.store.registry import Cost, Model, ModelBlock


@dataclass(frozen=True)
class _Document:
    """All of a model but its history; numbers keep all their bits. Older files lack the fields with
    a default; further fields of newer files are ignored.
    """

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
    intercept: Float
    classes: tuple[str, ...] | None
    metrics: Mapping[str, int | float | None]
    privacy: str
    cost: Cost
    interrupted: bool
    converged: bool
    stopped_early: bool
    epoch: int
    created_at: dt.datetime
    versions: Mapping[str, str]
    head: Float | None = None
    privacy_report: PrivacyReport | None = None
    """Report; older files, and their readers, have only its text."""
    ending: Ending | None = None
    databases: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    transforms: tuple[Transform, ...] = ()
    exact: bool = False
    offset: str | None = None
    exposure: bool = False
    version: int = 1
    comment: str = ""


_SAME = {spec.name for spec in fields(_Document)} - {"privacy", "privacy_report", "converged"}
"""Fields that a document and a model have in common."""


def model_to_json(model: Model) -> str:
    same: dict[str, Any] = {name: getattr(model, name) for name in _SAME}
    document = _Document(
        **same,
        privacy=str(model.privacy),
        privacy_report=model.privacy,
        converged=model.converged,
    )
    return to_json(document)


def history_to_bytes(history: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, history.schema) as writer:
        writer.write_table(history)
    return bytes(sink.getvalue())


def model_from(document: object, history: object, kept: str) -> Model:
    """Return the model that `model_to_json` and `history_to_bytes` wrote. Raise ValueError for
    anything else.
    """
    if not isinstance(document, str):
        raise ValueError("no document")
    parsed = from_json(_Document, document, finite=False, strict=False)
    same: dict[str, Any] = {name: getattr(parsed, name) for name in _SAME}
    table = read_numbers(history)
    if "epoch" not in table.column_names or not table.num_rows:
        raise ValueError("a history without epochs")
    if parsed.created_at.tzinfo is None or parsed.kind not in KINDS:
        raise ValueError(f"a model of kind {parsed.kind!r:.40}, made at {parsed.created_at}")
    _check_parameters(parsed.intercept, 1)
    if parsed.head is not None:
        _check_parameters(parsed.head, 2)
    changed = {
        "options": {name: _tuples(value) for name, value in parsed.options.items()},
        "privacy": parsed.privacy_report or PrivacyReport((), (parsed.privacy,)),
        "ending": _ending(parsed),
    }
    return Model(**same | changed, history=table, lasting=True, kept=kept)


def _ending(document: _Document) -> Ending:
    """Return the ending. Older files say only whether the changes of the objective had become
    small.
    """
    if document.ending is not None:
        return document.ending
    if document.interrupted:
        return untold(INTERRUPTED, INTERRUPTED_REASON)
    if document.stopped_early:
        return untold(EARLY, EARLY_REASON)
    return untold(STILL if document.converged else LIMIT, BEFORE)


def _check_parameters(values: Float, axes: int) -> None:
    """Raise ValueError for another shape, and for numbers that are not finite."""
    if values.ndim != axes or not np.isfinite(values).all():
        raise ValueError(f"parameters of {values.ndim} axes, or not finite")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
