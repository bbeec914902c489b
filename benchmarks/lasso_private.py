"""Private Frank-Wolfe over columns of several parties, and of one that has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from lasso_split import Array, Run, Task, train

from sqlfl.contract.privacy_specification import PlannedReleases
from sqlfl.options.privacy import Privacy
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.calibration import calibrate
from sqlfl.privacy.events import CHOICES, Selection
from sqlfl.privacy.selection import noisy_max

DELTA = 1e-6
SKETCH = 256


def private(task: Task, epsilon: float, options: Mapping[str, Any], seed: int) -> Run:
    """ε is of one row of each party's table; columns lie in [−1, 1], which is public."""
    count = int(options["epochs"])
    planned = [_planned(task, slot, count) for slot in range(task.parties)]
    privacy = Privacy(
        epsilon=epsilon, delta=DELTA, predictions="sketch", statistics="bounds",
        feature_bound=1.0,
    )  # fmt: skip
    noise = calibrate(privacy, planned).training
    return train(task, {"sketch": SKETCH, **options, "seed": seed}, noise)


def _planned(task: Task, slot: int, count: int) -> PlannedReleases:
    return PlannedReleases(
        slot=slot, gradients=0, predictions=0, moments=0, moments_sensitivity=0.0, clip=1.0,
        clients=1, copies=1, partners={}, steps=count, whole=True, epochs=count, selections=count,
        sketches=count, residual_bound=residual(task),
    )  # fmt: skip


def residual(task: Task) -> float:
    return task.radius + float(np.abs(task.y - task.y.mean()).max())


def central(task: Task, epsilon: float, count: int, seed: int) -> Array:
    """Talwar, Thakurta and Zhang (2015), by Gumbel noise: the whole budget goes to choices, for
    slopes are exact where all columns are in one place. A change is of a whole row."""
    rows = len(task.y)
    low, high = 1e-6, 2.0 * epsilon
    for _ in range(60):
        middle = 0.5 * (low + high)
        spent = epsilon_of([Selection(CHOICES, "gumbel", middle, count)], DELTA)
        low, high = (middle, high) if spent <= epsilon else (low, middle)
    scale = 2.0 / low * 2.0 * residual(task) / rows
    theta = np.zeros(task.x.shape[1])
    y = task.y - task.y.mean()
    for step in range(count):
        slopes = task.x.T @ (task.x @ theta - y) / rows
        best = noisy_max(np.concatenate([-slopes, slopes]), scale, "gumbel")
        number, sign = best % len(theta), 1.0 if best < len(theta) else -1.0
        way = -theta
        way[number] += sign * task.radius
        theta = theta + 2.0 / (step + 2.0) * way
    return theta
