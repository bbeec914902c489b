"""The other side of speed.py: the join made in one place, a float32 matrix, and scikit-learn.

Of linear models also sums of products in SQL, without a matrix; of towers, PyTorch.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import numpy as np
from encoding import CHUNK, Array, Encoding
from measuring import Failed, Watch
from products import Products
from reference import losses
from sklearn.linear_model import LogisticRegression, Ridge
from tasks import L2
from workloads import Stored, Workload

SUMS, TORCH = "sums", "torch"
"""Sums of products in SQL; PyTorch."""
SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky")
"""scikit-learn's for classes for dense matrices and l2, without those that draw."""
DIRECT = "cholesky"
"""Its solver for numbers and so few columns; it has no tolerance."""
TOLERANCES = tuple(10.0**-k for k in range(1, 10))
"""From loose to tight."""
STEPS = 1000
TOY = (("a1", "b1", "c1"), ("a2", "b2", "c2"))
"""The towers of workloads.toy."""


@dataclass(frozen=True)
class Solver:
    """How the model is fitted."""

    name: str
    tolerance: float = 0.0
    """Of those that have one."""

    def __str__(self) -> str:
        return f"{self.name}, {self.tolerance:.0e}" if self.tolerance else self.name


@dataclass(frozen=True, eq=False)
class Matrix:
    """The joined rows, encoded."""

    encoding: Encoding
    x: Array
    """float32 (N, width)"""
    y: Array
    """(N,) numbers, or codes of classes"""


class Model(Protocol):
    def objective(self) -> float: ...


@dataclass(frozen=True, eq=False)
class Linear:
    """weights: (width, outputs), intercept: (outputs,), of what `matrix` is after fitting."""

    kind: str
    matrix: Matrix
    weights: Array
    intercept: Array

    def objective(self) -> float:
        x, y = self.matrix.x, self.matrix.y
        total = 0.0
        for start in range(0, len(y), CHUNK):
            rows = slice(start, start + CHUNK)
            scores = x[rows].astype(np.float64) @ self.weights + self.intercept
            total += losses(self.kind, scores, y[rows]).sum()
        return total / len(y) + L2 * float((self.weights**2).sum()) / 2


@dataclass(frozen=True, eq=False)
class Summed:
    products: Products
    theta: Array

    def objective(self) -> float:
        return self.products.objective(self.theta)


@dataclass(frozen=True, eq=False)
class Towers:
    matrix: Matrix
    network: Any

    def objective(self) -> float:
        return float(self.network.objective(self.matrix.x, self.matrix.y))


def run(stored: Stored, solver: Solver, workload: Workload, first: Stored) -> dict[str, Any]:
    """One fit, after one on the toy tables `first`: what `Watch` measures, and `objective`."""
    fit(first, solver, TOY, workload.options)
    return fit(stored, solver, workload.towers, workload.options)


def fit(
    stored: Stored, solver: Solver, towers: Sequence[Sequence[str]], options: Mapping[str, Any]
) -> dict[str, Any]:
    watch = Watch()
    model: Model
    with stored.centre() as con:
        if solver.name == SUMS:
            products = Products.of(con, stored.task.query)
            watch.ends("join")
            model = Summed(products, products.solve())
        else:
            matrix = materialise(con, stored, watch)
    if solver.name == TORCH:
        from network import Network  # torch is for networks only

        network = Network.trained(matrix.encoding, matrix.x, matrix.y, towers, options)
        model = Towers(matrix, network)
    elif solver.name != SUMS:
        model = solve(stored.task.kind, solver, matrix)
    watch.ends("fit")
    return watch.measured() | {"objective": model.objective()}


def materialise(con: duckdb.DuckDBPyConnection, stored: Stored, watch: Watch) -> Matrix:
    rows = con.sql(f"SELECT * FROM ({stored.task.query}) WHERE y IS NOT NULL").to_arrow_table()
    watch.ends("join")
    classes = stored.task.kind != "linear_regression"
    con.register("joined_rows", rows)
    encoding = Encoding.of(con, "FROM joined_rows", classes=classes)
    con.unregister("joined_rows")
    x = np.zeros((encoding.rows, encoding.width), np.float32)
    start = 0
    for batch in rows.to_batches(CHUNK):
        encoding.fill(batch, x[start : start + len(batch)])
        start += len(batch)
    y = encoding.targets(rows)
    watch.ends("encode")
    return Matrix(encoding, x, y)


def solve(kind: str, solver: Solver, matrix: Matrix) -> Linear:
    """The matrix is centred in place where the model is linear."""
    penalty = L2 * len(matrix.y)
    if kind == "linear_regression":
        ridge = Ridge(penalty, solver=solver.name, copy_X=False).fit(matrix.x, matrix.y)
        weights = ridge.coef_.astype(np.float64)[:, None]
        return Linear(kind, matrix, weights, np.array([matrix.y.mean()]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tolerance that is too tight for float32
        model = LogisticRegression(
            C=1 / penalty, solver=solver.name, tol=solver.tolerance, max_iter=STEPS
        ).fit(matrix.x, matrix.y)
    return Linear(kind, matrix, model.coef_.astype(np.float64).T, model.intercept_)


def choose(stored: Stored, goal: float) -> Solver:
    """The fastest by which the objective comes to `goal`. Raises Failed where none does."""
    if stored.task.kind == "linear_regression":
        return Solver(DIRECT)
    times = dict(_tried(stored, goal))
    if not times:
        raise Failed("no solver leads to the gap")
    return min(times, key=lambda solver: times[solver])


def _tried(stored: Stored, goal: float) -> Iterator[tuple[Solver, float]]:
    """Those that come to the goal, each with its loosest tolerance, and their seconds."""
    with stored.centre() as con:
        matrix = materialise(con, stored, Watch())
    for name in SOLVERS:
        for tolerance in TOLERANCES:
            solver = Solver(name, tolerance)
            begun = time.perf_counter()
            model = solve(stored.task.kind, solver, matrix)
            seconds = time.perf_counter() - begun
            if model.objective() <= goal:
                yield solver, seconds
                break


def needs(rows: int, columns: int, width: int) -> int:
    """Bytes that the matrix takes, with the joined rows that it is made of, or a copy of it."""
    return rows * (4 * width + max(12 * columns, 4 * width))
