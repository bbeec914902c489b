"""The same models on the materialised join in one place, without a line of sqlfl."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from movielens import Encoded, Joined
from scipy import sparse

Array = npt.NDArray[Any]
L2 = 1e-4
"""The default of the option."""


def optimum(joined: Joined) -> dict[str, float]:
    """Test RMSE and objective of the linear model that minimises the objective: one linear system.

    The columns' products over the join follow from those over the tables and how often each pair of
    rows is joined.
    """
    train = ~joined.held_out
    total = int(train.sum())
    targets = joined.targets[train]
    mean = targets.mean()
    rows = [place[train] for place in joined.rows]
    dense = [np.hstack([t.numeric, t.onehot().toarray()]) - t.centre for t in joined.tables]
    left, right = dense
    pairs = sparse.csr_array((np.ones(total), tuple(rows)), shape=(len(left), len(right)))
    cross = left.T @ (pairs @ right)
    diagonal = [x.T @ (t.counts[:, None] * x) for x, t in zip(dense, joined.tables, strict=True)]
    matrix = np.block([[diagonal[0], cross], [cross.T, diagonal[1]]]) / total
    sums = [np.bincount(p, targets - mean, len(x)) for p, x in zip(rows, dense, strict=True)]
    side = np.concatenate([x.T @ s for x, s in zip(dense, sums, strict=True)]) / total
    theta = np.linalg.solve(matrix + L2 * np.eye(len(side)), side)
    parts = np.split(theta, [left.shape[1]])
    scores = mean + sum((x @ t)[p] for x, t, p in zip(dense, parts, joined.rows, strict=True))
    loss = 0.5 * float(np.mean((scores - joined.targets)[train] ** 2))
    return {
        "rmse": joined.test_rmse(scores),
        "objective": loss + 0.5 * L2 * float(theta @ theta),
    }


def train(
    joined: Joined, hidden: Sequence[int], epochs: int, batch: int, rate: float, seed: int
) -> list[dict[str, Any]]:
    """Mini-batches of joined rows: a tower of `hidden` units per table, by Adam; without, a linear
    model by plain steps that fall as 1/(1 + epoch/4). The test RMSE of every epoch."""
    import torch

    torch.manual_seed(seed)
    started = time.perf_counter()
    towers = [_Tower(torch, table, hidden) for table in joined.tables]
    intercept = torch.tensor(joined.targets[~joined.held_out].mean(), requires_grad=True)
    weights = [p for tower in towers for p in tower.parameters]
    penalised = [p for p in weights if p.ndim == 2]
    if hidden:
        optimizer: Any = torch.optim.Adam([*weights, intercept], rate)
    else:
        optimizer = torch.optim.SGD([*weights, intercept], rate)
    places = [torch.from_numpy(rows.astype(np.int64)) for rows in joined.rows]
    targets = torch.from_numpy(joined.targets)
    training = torch.from_numpy(np.flatnonzero(~joined.held_out))
    found: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate if hidden else rate / (1.0 + (epoch - 1) / 4.0)
        order = training[torch.randperm(len(training))]
        for rows in order.split(batch):
            scores = intercept + sum(t(p[rows]) for t, p in zip(towers, places, strict=True))
            loss = 0.5 * ((scores - targets[rows]) ** 2).mean()
            loss = loss + 0.5 * L2 * sum((p**2).sum() for p in penalised)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            parts = [t(torch.arange(t.rows))[p] for t, p in zip(towers, places, strict=True)]
            scores = (intercept + sum(parts)).numpy()
        found.append({
            "epoch": epoch,
            "rmse": joined.test_rmse(scores),
            "measured": time.perf_counter() - started,
        })  # fmt: skip
    return found


class _Tower:
    """One table's part of the score, with one hidden layer or none."""

    def __init__(self, torch: Any, table: Encoded, hidden: Sequence[int]) -> None:
        self._torch = torch
        self.rows = len(table.numeric)
        self._numeric = torch.from_numpy(table.numeric)
        self._codes = torch.from_numpy(table.codes.astype(np.int64))
        self._centre = torch.from_numpy(table.centre)
        self._split = table.numeric.shape[1]
        width = hidden[0] if hidden else 1
        bound = table.width**-0.5 if hidden else 0.0
        shapes: list[tuple[tuple[int, ...], float]] = [((table.width, width), bound)]
        if hidden:
            shapes += [((width,), bound), ((width, 1), width**-0.5)]
        self.parameters = [
            torch.empty(shape, dtype=torch.float64).uniform_(-limit, limit).requires_grad_()
            for shape, limit in shapes
        ]

    def __call__(self, rows: Any) -> Any:
        first, *upper = self.parameters
        bag = self._torch.nn.functional.embedding_bag
        values = self._numeric[rows] @ first[: self._split] - self._centre @ first
        values = values + bag(self._codes[rows], first[self._split :], mode="sum")
        if upper:
            values = self._torch.relu(values + upper[0]) @ upper[1]
        return values[:, 0]
