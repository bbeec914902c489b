"""The federated side of speed.py: one TRAIN statement, from the databases to the stored model."""

from __future__ import annotations

import datetime as dt
import time
import warnings
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from measuring import Failed, Watch
from workloads import Stored

from sqlfl.base.errors import Error, Warning
from sqlfl.federation.session import Federation

PHASES = ("plan", "prepare", "mapping", "rounds", "saving")
TOLERANCES = tuple(10.0**-k for k in range(2, 11))
"""From loose to tight."""
Options = Mapping[str, object]


def run(stored: Stored, options: Options, first: Stored) -> dict[str, Any]:
    """Run the statement after one on the toy tables `first`. Return the measurements of `Watch`,
    `objective` and `epochs`. Raise Failed if the statement is refused."""
    train(first, {name: value for name, value in options.items() if name != "max_joined_rows"})
    return train(stored, options)


def train(stored: Stored, options: Options) -> dict[str, Any]:
    watch = Watch()
    begun = time.time()
    with stored.federation() as fed:
        try:
            with warnings.catch_warnings(action="ignore", category=Warning):
                fed.sql(stored.task.statement(**options))
        except Error as error:
            raise Failed(str(error)) from None
        ended = time.time()
        watch.ends("statement")
        measured = watch.measured()
        model = fed.model("m")
        measured["phases"] = phases(_audit(fed, model.run), begun, ended)
        measured["objective"] = model.metrics["objective"]
        measured["epochs"] = model.history.num_rows
        measured["joined"] = model.metrics["rows"] + model.metrics.get("valid_rows", 0)
        fed.sql("DROP MODEL m")
    return measured


def tolerance(stored: Stored, options: Options, goal: float) -> float:
    """Return the first of `TOLERANCES` with which the objective reaches `goal`. Raise Failed if
    none does."""
    for given in TOLERANCES:
        if train(stored, {**options, "tolerance": given})["objective"] <= goal:
            return given
    raise Failed("no tolerance leads to the gap")


def phases(audit: pa.Table, begun: float, ended: float) -> dict[str, float]:
    """Seconds of `PHASES`, by when messages crossed the border.

    plan: reading the statement, asking for tables and types; prepare: snapshots and hashed keys at
    the parties; mapping: the join of keys, which rows take part, labels; rounds: training, all
    metrics; saving: blocks at the parties, the model at the coordinator.
    """
    at = {
        "plan": begun,
        "prepare": _first(audit, "prepare"),
        "mapping": _last(audit, "join_keys"),
        "rounds": _first(audit, "start"),
        "saving": _first(audit, "save"),
    }
    ends = [*list(at.values())[1:], ended]
    return {name: end - at[name] for name, end in zip(PHASES, ends, strict=True)}


def _audit(fed: Federation, run: str) -> pa.Table:
    log = fed.audit().arrow()
    return log.filter(pc.equal(log["run"], run)).sort_by("seq")


def _first(audit: pa.Table, kind: str) -> float:
    return _seconds(audit.filter(pc.equal(audit["kind"], kind))["at"][0].as_py())


def _last(audit: pa.Table, kind: str) -> float:
    return _seconds(audit.filter(pc.equal(audit["kind"], kind))["at"][-1].as_py())


def _seconds(at: dt.datetime) -> float:
    return at.timestamp()
