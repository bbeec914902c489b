"""Central training on materialised rows: normal equations, and Newton to a gradient of 1e-10."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
from scipy.special import expit, log_softmax, softmax, xlogy

from tests.oracle.encoder import Encoder

L2 = 1e-4
NUMBERS = ("linear_regression", "poisson_regression")
"""Kinds whose target is a number."""


@dataclass(frozen=True)
class Fitted:
    """Parameters over the encoded columns: `weights` (d, c), `intercept` (c,)."""

    weights: np.ndarray
    intercept: np.ndarray


@dataclass(frozen=True)
class Central:
    """The materialised rows of one statement, encoded, and what can be asked of them."""

    kind: str
    rows: pa.Table
    """With a label; the features and whatever else the query gave, in the query's order."""
    null_labels: int
    encoder: Encoder
    x: np.ndarray
    y: np.ndarray
    """Numbers, or class codes in the type's order."""
    classes: tuple[object, ...]
    l2: float = L2

    @property
    def outputs(self) -> int:
        return len(self.classes) if self.kind == "softmax_regression" else 1

    def scores(self, fitted: Fitted, x: np.ndarray | None = None) -> np.ndarray:
        return (self.x if x is None else x) @ fitted.weights + fitted.intercept

    def loss(self, fitted: Fitted) -> float:
        return float(np.mean(self._losses(self.scores(fitted))))

    def objective(self, fitted: Fitted) -> float:
        return self.loss(fitted) + self.l2 / 2 * float((fitted.weights**2).sum())

    @property
    def floor(self) -> float:
        """The loss of scores that are right in all rows."""
        if self.kind == "poisson_regression":
            return float(np.mean(self.y - xlogy(self.y, self.y)))
        return 0.0

    def gradient(self, fitted: Fitted) -> tuple[np.ndarray, np.ndarray]:
        residual = self._residual(self.scores(fitted)) / len(self.y)
        return self.x.T @ residual + self.l2 * fitted.weights, residual.sum(axis=0)

    def start(self) -> Fitted:
        """θ = 0 and the constant that is best alone."""
        weights = np.zeros((self.x.shape[1], self.outputs))
        if self.kind == "linear_regression":
            return Fitted(weights, np.array([self.y.mean()]))
        if self.kind == "poisson_regression":
            return Fitted(weights, np.log([self.y.mean()]))
        share = np.bincount(self.y, minlength=len(self.classes)) / len(self.y)
        if self.kind == "logistic_regression":
            return Fitted(weights, np.array([np.log(share[1] / share[0])]))
        return Fitted(weights, np.log(share))

    def step(self, learning_rate: float, *, move_intercept: bool = True) -> Fitted:
        """One step of full-batch gradient descent from `start`."""
        begin = self.start()
        weights, intercept = self.gradient(begin)
        moved = begin.intercept - learning_rate * intercept if move_intercept else begin.intercept
        return Fitted(begin.weights - learning_rate * weights, moved)

    def optimum(self) -> Fitted:
        if self.kind == "linear_regression":
            return self._normal_equations()
        return self._newton()

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes) for classifiers, (n, 1) predictions otherwise."""
        if self.kind == "linear_regression":
            return scores
        if self.kind == "poisson_regression":
            return np.exp(scores)
        if self.kind == "logistic_regression":
            positive = expit(scores[:, 0])
            return np.column_stack([1 - positive, positive])
        return softmax(scores, axis=1)

    def predict(self, fitted: Fitted, rows: pa.Table | None = None) -> np.ndarray:
        x = None if rows is None else self.encoder.transform(rows)
        return self.probabilities(self.scores(fitted, x))

    def _losses(self, scores: np.ndarray) -> np.ndarray:
        if self.kind == "linear_regression":
            return (scores[:, 0] - self.y) ** 2 / 2
        if self.kind == "poisson_regression":
            return np.exp(scores[:, 0]) - self.y * scores[:, 0]
        if self.kind == "logistic_regression":
            return np.logaddexp(0.0, scores[:, 0]) - self.y * scores[:, 0]
        return -log_softmax(scores, axis=1)[np.arange(len(self.y)), self.y]

    def _residual(self, scores: np.ndarray) -> np.ndarray:
        if self.kind == "linear_regression":
            return scores - self.y[:, None]
        if self.kind == "poisson_regression":
            return np.exp(scores) - self.y[:, None]
        if self.kind == "logistic_regression":
            return expit(scores) - self.y[:, None]
        return softmax(scores, axis=1) - np.eye(len(self.classes))[self.y]

    def _normal_equations(self) -> Fitted:
        n, d = self.x.shape
        design = np.column_stack([self.x, np.ones(n)])
        penalty = self.l2 * np.diag(np.append(np.ones(d), 0.0))
        solution = np.linalg.lstsq(design.T @ design / n + penalty, design.T @ self.y / n)[0]
        return Fitted(solution[:d, None], solution[d:])

    def _newton(self) -> Fitted:
        fitted = self.start()
        design = np.column_stack([self.x, np.ones(len(self.y))])
        for _ in range(200):
            weights, intercept = self.gradient(fitted)
            flat = np.vstack([weights, intercept]).reshape(-1)
            if np.linalg.norm(flat) < 1e-10:
                return fitted
            direction = -np.linalg.lstsq(self._hessian(design, fitted), flat)[0]
            fitted = self._search(fitted, direction.reshape(-1, self.outputs), flat @ direction)
        if np.linalg.norm(flat) < 1e-8:
            return fitted
        raise AssertionError(f"the oracle did not converge: gradient {np.linalg.norm(flat):.1e}")

    def _hessian(self, design: np.ndarray, fitted: Fitted) -> np.ndarray:
        n, columns = design.shape
        outputs = self.outputs
        scores = self.scores(fitted)
        if self.kind == "poisson_regression":
            curvature = np.exp(scores)[:, :, None]
        elif outputs == 1:
            p = expit(scores[:, 0])
            curvature = (p * (1 - p))[:, None, None]
        else:
            p = softmax(scores, axis=1)
            curvature = p[:, :, None] * np.eye(outputs) - p[:, :, None] * p[:, None, :]
        hessian = np.einsum("na,nij,nb->aibj", design, curvature / n, design, optimize=True)
        hessian = hessian.reshape(columns * outputs, columns * outputs)
        penalty = np.full((columns, outputs), self.l2)
        penalty[-1] = 0.0
        return hessian + np.diag(penalty.reshape(-1))

    def _search(self, fitted: Fitted, direction: np.ndarray, slope: float) -> Fitted:
        value, length = self.objective(fitted), 1.0
        while True:
            moved = Fitted(
                fitted.weights + length * direction[:-1],
                fitted.intercept + length * direction[-1],
            )
            if self.objective(moved) <= value + 1e-4 * length * slope + 1e-15 * abs(value):
                return moved
            length /= 2
            if length < 1e-12:
                return fitted


def central(
    con: duckdb.DuckDBPyConnection,
    query: str,
    kind: str,
    target: str,
    ignore: tuple[str, ...] = (),
    l2: float = L2,
) -> Central:
    """Run the inner SELECT on a database that has all the tables, and encode its rows.

    `ignore` names columns of the query that are not features (row identifiers).
    """
    table = materialised(con, query)
    label = table.column(target).combine_chunks()
    labelled = table.filter(label.is_valid())
    features = labelled.drop_columns([target, *ignore])
    y, classes = _targets(labelled.column(target).combine_chunks(), kind)
    encoder = Encoder.fit(features)
    return Central(
        kind=kind,
        rows=labelled,
        null_labels=table.num_rows - labelled.num_rows,
        encoder=encoder,
        x=encoder.transform(features),
        y=y,
        classes=classes,
        l2=l2,
    )


def materialised(con: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """The rows of a query, by way of a table: DuckDB 2.0 fails to give Arrow some outer joins."""
    con.execute(f"CREATE OR REPLACE TEMP TABLE materialised_rows AS {query}")
    return con.sql("FROM temp.materialised_rows").to_arrow_table()


def _targets(label: pa.Array, kind: str) -> tuple[np.ndarray, tuple[object, ...]]:
    if kind in NUMBERS:
        if pa.types.is_boolean(label.type):
            label = label.cast(pa.int8())
        return np.array(label.cast(pa.float64(), safe=False), dtype=float), ()
    values = label.to_pylist()
    classes = tuple(sorted(set(values)))
    code = {value: number for number, value in enumerate(classes)}
    return np.array([code[v] for v in values], dtype=int), classes
