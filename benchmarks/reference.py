"""The least value of a linear model's objective, by Newton's method over the streamed join.

Memory does not grow with the join: each step is a pass over batches of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

import duckdb
import numpy as np
import pyarrow as pa
from encoding import CHUNK, COUNT, Array, Encoding
from scipy.special import expit, logsumexp
from tasks import L2, Task

FEW = 8_000_000
"""Joined rows of which equal ones are brought together first."""
SAMPLE = 1_000_000
"""Joined rows whose optimum is the start over more of them."""
PRECISION = 1e-6
"""What a last step may promise, relatively; of what it does bring, the promise is that much off, to
the power of 3/2."""


@dataclass(frozen=True)
class Optimum:
    objective: float | None
    """None of a neural network, whose optimum nobody knows."""
    rows: int
    """Joined rows that have a target."""
    columns: int
    width: int
    """Of the features' `columns`, encoded."""


def optimum(con: duckdb.DuckDBPyConnection, task: Task) -> Optimum:
    """Of the task, in a database that has all its tables.

    Raises RuntimeError where Newton's method does not converge.
    """
    query = task.query
    encoding = Encoding.of(con, query, classes=task.kind != "linear_regression")
    size = encoding.rows, len(encoding.columns), encoding.width
    if task.kind.startswith("mlp"):
        return Optimum(None, *size)
    theta = None
    if encoding.rows <= FEW:
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE distinct_rows AS SELECT *, count(*) AS {COUNT} "
            f"FROM ({query}) WHERE y IS NOT NULL GROUP BY ALL"
        )
        query = "FROM distinct_rows"
    else:
        few = f"SELECT * FROM ({query}) LIMIT {SAMPLE}"
        theta, _ = _newton(con, few, task.kind, encoding, None)
    _, value = _newton(con, query, task.kind, encoding, theta)
    return Optimum(value, *size)


def losses(kind: str, scores: Array, y: Array) -> Array:
    """Of each row: (n,). `scores`: (n, outputs)."""
    if kind == "linear_regression":
        return (scores[:, 0] - y) ** 2 / 2
    if kind == "logistic_regression":
        return np.logaddexp(0, scores[:, 0]) - y * scores[:, 0]
    return logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]


def _newton(
    con: duckdb.DuckDBPyConnection,
    query: str,
    kind: str,
    encoding: Encoding,
    theta: Array | None,
) -> tuple[Array, float]:
    """Parameters (width + 1, outputs), the intercepts last, and the objective."""
    if theta is None:
        outputs = len(encoding.classes) if kind == "softmax_regression" else 1
        theta = np.zeros((encoding.width + 1, outputs))
    penalty = np.append(np.full(encoding.width, L2), 0.0)[:, None]
    for _ in range(50):
        sums = Sums.zeros(*theta.shape)
        for x, y, counts in _batches(con, query, encoding):
            sums.add(kind, x, y, counts, theta)
        value = float(sums.loss) / sums.count + float((penalty * theta**2).sum()) / 2
        gradient = sums.gradient / sums.count + penalty * theta
        diagonal = np.tile(penalty[:, 0], theta.shape[1])
        hessian = sums.hessian / sums.count + np.diag(diagonal)
        step = np.linalg.lstsq(hessian, gradient.T.ravel())[0]
        promised = float(step @ gradient.T.ravel()) / 2
        theta = theta - step.reshape(theta.shape[::-1]).T
        if promised < PRECISION * value:
            return theta, value - promised
    raise RuntimeError("Newton's method did not converge")


@dataclass(eq=False)
class Sums:
    """Over joined rows: their number, loss, gradient (width + 1, K) and Hessian, by class and then
    by column."""

    count: float
    loss: float
    gradient: Array
    hessian: Array

    @classmethod
    def zeros(cls, width: int, classes: int) -> Sums:
        size = width * classes
        return cls(0.0, 0.0, np.zeros((width, classes)), np.zeros((size, size)))

    def add(self, kind: str, x: Array, y: Array, counts: Array, theta: Array) -> None:
        """Rows x (n, width + 1), the last column 1, each as often as `counts` say."""
        scores = x @ theta
        if kind == "softmax_regression":
            p = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
            slope = p - np.eye(theta.shape[1])[y]
        elif kind == "logistic_regression":
            p = expit(scores)
            slope = p - y[:, None]
        else:
            p = np.zeros_like(scores)
            slope = scores - y[:, None]
        self.count += float(counts.sum())
        self.loss += float(counts @ losses(kind, scores, y))
        self.gradient += x.T @ (counts[:, None] * slope)
        width, classes = theta.shape
        for k, m in combinations_with_replacement(range(classes), 2):
            bend = 1.0 if kind == "linear_regression" else p[:, k] * ((k == m) - p[:, m])
            block = x.T @ (x * (counts * bend)[:, None])
            rows, columns = (slice(i * width, (i + 1) * width) for i in (k, m))
            self.hessian[rows, columns] += block
            if k != m:
                self.hessian[columns, rows] += block


def _batches(
    con: duckdb.DuckDBPyConnection, query: str, encoding: Encoding
) -> Iterator[tuple[Array, Array, Array]]:
    """Features and a 1, targets, and how many joined rows each row stands for."""
    reader = con.sql(f"SELECT * FROM ({query}) WHERE y IS NOT NULL").to_arrow_reader(CHUNK)
    for rows in reader:
        x = np.zeros((len(rows), encoding.width + 1))
        encoding.fill(rows, x[:, :-1])
        x[:, -1] = 1
        yield x, encoding.targets(rows), _counts(rows)


def _counts(rows: pa.RecordBatch) -> Array:
    if COUNT not in rows.schema.names:
        return np.ones(len(rows))
    return np.asarray(rows.column(COUNT).to_numpy()).astype(np.float64)
