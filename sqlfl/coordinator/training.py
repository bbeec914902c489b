"""TRAIN: rounds of the chosen algorithm until it has converged, is done, or is interrupted."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sqlfl.algorithms import ALGORITHMS, Problem, Step
from sqlfl.coordinator.preparation import Joined, Targets, prepare, targets
from sqlfl.errors import InternalError, ModelError
from sqlfl.mapping import TableMapping
from sqlfl.messages import Save
from sqlfl.models.losses import Loss, loss_of
from sqlfl.models.metrics import accuracy, classification_metrics, regression_metrics, rmse
from sqlfl.operators.lou import Members
from sqlfl.planner.federated import FederatedPlan
from sqlfl.progress import Progress
from sqlfl.transport.base import Channel

Array = npt.NDArray[Any]

HISTORY = pa.schema(
    [
        ("epoch", pa.int64()),
        ("rounds", pa.int64()),
        ("train_loss", pa.float64()),
        ("train_metric", pa.float64()),
        ("valid_loss", pa.float64()),
        ("valid_metric", pa.float64()),
        ("bytes_up", pa.int64()),
        ("bytes_down", pa.int64()),
        ("comm_seconds", pa.float64()),
        ("seconds", pa.float64()),
    ]
)


@dataclass(frozen=True, eq=False)
class Trained:
    """What the coordinator keeps of a training run; the blocks stay with the clients."""

    intercept: Array
    """float64 (d_c,)"""
    classes: tuple[str, ...] | None
    history: pa.Table
    """A row per epoch, columns of `HISTORY`; `train_loss` is the objective, penalty included."""
    metrics: dict[str, float | int | None]
    interrupted: bool
    converged: bool


def train(plan: FederatedPlan, channel: Channel, run: str, progress: Progress) -> Trained:
    """Run `plan` and leave each block saved at its clients under the name `run`.

    Ctrl-C ends the training after the current round; the model so far is kept. Raises ModelError
    for an empty join or a target with fewer than two classes, PartyError for a failing client.
    """
    started = time.perf_counter()
    progress.stage("joining keys")
    joined = prepare(plan, channel, run)
    if joined.total == 0:
        raise ModelError(
            "the join has no rows, so there is nothing to train on",
            hint="check the WHERE conditions, and that the join keys of the tables do match",
        )
    target = targets(plan, joined, channel, run)
    loss = _loss(plan, target)
    algorithm = ALGORITHMS[plan.algorithm](_problem(plan, joined, target, loss, run), channel)
    rows: list[dict[str, float | int | None]] = []
    step: Step | None = None
    with _interruptible() as interrupt:
        algorithm.start()
        for step in algorithm.steps():
            rows.append(
                {
                    "epoch": step.epoch,
                    "rounds": channel.rounds,
                    "train_loss": step.objective,
                    "train_metric": _headline(loss, algorithm.scores, target),
                    "bytes_up": channel.bytes_up,
                    "bytes_down": channel.bytes_down,
                    "seconds": time.perf_counter() - started,
                }
            )
            progress.epoch(step.epoch, step.objective)
            if not math.isfinite(step.objective):
                raise ModelError(
                    f"training with {plan.algorithm} diverged in epoch {step.epoch}",
                    hint="leave the step options (learning_rate, rho) at their defaults, or use "
                    "algorithm = 'lbfgs'",
                )
            if interrupt.is_set():
                break
        channel.exchange(
            {
                address: Save(run, slot.index, run, plan.name, 0)
                for slot in plan.ucq.slots
                if slot.features
                for address in joined.slots[slot.index].addresses
            }
        )
    if step is None:
        raise InternalError(f"{plan.algorithm} made no step")
    metrics = _metrics(loss, algorithm.scores, target)
    return Trained(
        intercept=np.array(algorithm.intercept, dtype=np.float64),
        classes=target.classes,
        history=pa.Table.from_pylist(rows, schema=HISTORY),
        metrics={
            "rows": joined.total,
            "null_targets": joined.null_targets,
            "objective": step.objective,
            "loss": float(loss.value(algorithm.scores, target.values)),
            **metrics,
        },
        interrupted=interrupt.is_set(),
        converged=step.converged,
    )


def _problem(plan: FederatedPlan, joined: Joined, target: Targets, loss: Loss, run: str) -> Problem:
    slots = [joined.slots[slot.index] for slot in plan.ucq.slots if slot.features]
    return Problem(
        run=run,
        mapping=TableMapping(
            tuple(slot.rows for slot in slots), tuple(int(slot.offsets[-1]) for slot in slots)
        ),
        slots=tuple(Members(slot.slot, slot.addresses, slot.offsets) for slot in slots),
        loss=loss,
        targets=target.values,
        outputs=loss.outputs,
        l2=float(str(plan.options["l2"])),
        options=plan.options,
    )


def _loss(plan: FederatedPlan, target: Targets) -> Loss:
    if target.classes is None:
        return loss_of(plan.kind, 1)
    if len(target.classes) < 2:
        raise ModelError(
            f"target {plan.ucq.target} has one class only ({target.classes[0]})",
            hint="a classifier needs rows of at least two classes",
        )
    if plan.kind == "logistic_regression" and len(target.classes) > 2:
        raise ModelError(
            f"target {plan.ucq.target} has {len(target.classes)} classes; "
            "logistic_regression takes two",
            hint="USING softmax_regression, or make the target a condition, as in rating >= 4",
        )
    return loss_of(plan.kind, len(target.classes))


def _metrics(loss: Loss, scores: Array, target: Targets) -> dict[str, float | None]:
    prediction = loss.predict(scores)
    if target.classes is None:
        return regression_metrics(prediction[:, 0], target.values)
    return classification_metrics(prediction, target.values)


def _headline(loss: Loss, scores: Array, target: Targets) -> float:
    """The metric of the history: accuracy of a classifier, rmse of a regression."""
    prediction = loss.predict(scores)
    if target.classes is None:
        return rmse(prediction[:, 0], target.values)
    return accuracy(prediction, target.values)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; a second one interrupts at once.

    Signals reach the main thread only; elsewhere the event is never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)
