"""Joins whose tables' columns nearly cancel, and their optimum by Newton's method in a basis of
orthonormal columns, which no correlation makes inaccurate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from sqlfl.models.losses import loss_of
from tests.methods.harness import Join


@dataclass(frozen=True)
class Shape:
    kind: str = "linear_regression"
    correlation: float = 1.0 - 1e-8
    tables: int = 2
    pairs: int = 1
    """Directions in which the columns of all tables together nearly cancel."""
    others: int = 3
    """Further columns of each table."""
    rows: int = 400
    l2: float = 0.0
    signal: float = 1.0
    """How much of the target depends on what is left where columns cancel."""
    noise: float = 0.5
    clients: tuple[int, ...] = ()
    weighted: bool = False
    mixed: bool = True
    """Every column of a table has a part in all of this."""
    seed: int = 0

    def but(self, **changes: object) -> Shape:
        return replace(self, **changes)  # type: ignore[arg-type]


def cancelling_join(shape: Shape) -> Join:
    rng = np.random.default_rng(shape.seed)
    tables = [list(rng.normal(size=(shape.others, shape.rows))) for _ in range(shape.tables)]
    differences = []
    for _ in range(shape.pairs):
        own = rng.normal(size=(shape.tables - 1, shape.rows))
        difference = rng.normal(size=shape.rows)
        for table, column in zip(tables, own, strict=False):
            table.append(column)
        size = np.sqrt(2.0 * (1.0 - shape.correlation) * (shape.tables - 1))
        tables[-1].append(own.sum(axis=0) + size * difference)
        differences.append(difference)
    encoded = []
    for columns in tables:
        x = np.array(columns).T
        if shape.mixed:
            x = x @ linalg.qr(rng.normal(size=(x.shape[1],) * 2))[0]
        x -= x.mean(axis=0)
        encoded.append(x / x.std(axis=0))
    return _labelled(shape, rng, encoded, np.array(differences).T)


def _labelled(
    shape: Shape, rng: np.random.Generator, tables: list[np.ndarray], differences: np.ndarray
) -> Join:
    loss = loss_of(shape.kind, 3)
    signal = np.hstack([*(x[:, : shape.others] for x in tables), shape.signal * differences])
    theta = rng.normal(size=(signal.shape[1], loss.outputs)) / np.sqrt(signal.shape[1])
    h = 0.3 + 2.0 * (signal - signal.mean(axis=0)) @ theta
    if loss.name == "squared":
        y = h[:, 0] + shape.noise * rng.normal(size=shape.rows)
    elif loss.name == "logistic":
        y = (rng.random(shape.rows) < 1.0 / (1.0 + np.exp(-h[:, 0]))).astype(np.int64)
    else:
        y = (h + rng.gumbel(size=h.shape)).argmax(axis=1)
    weights = rng.exponential(size=shape.rows) if shape.weighted else None
    return Join(
        loss,
        y,
        [np.arange(shape.rows, dtype=np.int32) for _ in tables],
        tables,
        [np.zeros(x.shape[1]) for x in tables],
        [0] * len(tables),
        list(shape.clients or (1,) * len(tables)),
        shape.l2,
        weights=weights,
    )


def least(join: Join) -> float:
    """The least objective. The penalty is that of the original columns."""
    x, loss = join.design, join.loss
    n = len(x)
    share = np.ones(n) if join.weights is None else join.weights * (n / join.weights.sum())
    u, s, _ = linalg.svd(x / np.sqrt(n), full_matrices=False)
    kept = s > 1e-13 * s[0]
    design = np.column_stack([np.ones(n), u[:, kept] * np.sqrt(n)])
    ridge = np.append(0.0, join.l2 / s[kept] ** 2)[:, None]
    theta = np.zeros((design.shape[1], loss.outputs))
    theta[0] = loss.initial_intercept(join.targets, join.weights)

    def value(theta: np.ndarray) -> float:
        penalty = 0.5 * float((ridge * theta**2).sum())
        return loss.value(design @ theta, join.targets, join.weights) + penalty

    for _ in range(100):
        scores = design @ theta
        slopes = loss.gradient(scores, join.targets) * share[:, None]
        gradient = (design.T @ slopes / n + ridge * theta).reshape(-1)
        hessian = _hessian(loss.name, design, scores, share) / n
        hessian += np.diag(np.repeat(ridge, loss.outputs))
        step = linalg.lstsq(hessian, gradient)[0].reshape(theta.shape)
        length, before = 1.0, value(theta)
        while value(theta - length * step) > before and length > 1e-10:
            length /= 2.0
        theta = theta - length * step
        if abs(gradient @ step.reshape(-1)) < 1e-22 * abs(before):
            break
    return value(theta)


def _hessian(name: str, design: np.ndarray, scores: np.ndarray, share: np.ndarray) -> np.ndarray:
    if name == "squared":
        return (design.T * share) @ design
    if name == "logistic":
        p = 1.0 / (1.0 + np.exp(-scores[:, 0]))
        return (design.T * (share * p * (1.0 - p))) @ design
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    bend = p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]
    bend *= share[:, None, None]
    full = np.einsum("na,nij,nb->aibj", design, bend, design, optimize=True)
    size = design.shape[1] * p.shape[1]
    return full.reshape(size, size)
