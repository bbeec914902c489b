"""Training over the materialised join, without sqlfl: the central side of speed.py.

The columns of a query become a matrix: numbers standardised over its rows, NULLs as the mean and an
indicator, categories as one-hots. sqlfl centres one-hots as well; the intercept is free, so the
optimum is the same. scikit-learn fits the matrix, or PyTorch a network of towers. Sums of products
that the database makes give linear models without a matrix. Newton's method over the streamed join
gives the least value of a linear model's objective; its memory does not grow with the join.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from measuring import Failed, Watch
from scipy import sparse
from scipy.special import expit, logsumexp
from sklearn.linear_model import LogisticRegression, Ridge
from workloads import L2, Stored, Task, Workload

# -- columns of a query as a matrix ----------------------------------------------------------------


Array = npt.NDArray[Any]
CHUNK = 1 << 15
"""Rows that are encoded at once."""
COUNT = "joined_rows"
"""The column that says how many joined rows a row stands for, where equal ones are one."""


@dataclass(frozen=True)
class Number:
    name: str
    mean: float
    spread: float
    """Standard deviation, NULLs as the mean; 1 of a constant."""
    missing: float
    """Share of NULLs."""

    @property
    def width(self) -> int:
        return 2 if self.missing else 1

    def fill(self, column: pa.Array, out: Array) -> None:
        """Write the column to `out` (n, width)."""
        values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
        if not self.missing:
            out[:, 0] = (values - self.mean) / self.spread
            return
        absent = column.is_null().to_numpy(zero_copy_only=False)
        out[:, 0] = np.where(absent, 0.0, (values - self.mean) / self.spread)
        out[:, 1] = (absent - self.missing) / np.sqrt(self.missing * (1 - self.missing))


@dataclass(frozen=True)
class Category:
    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.values)

    def fill(self, column: pa.Array, out: Array) -> None:
        codes = pc.index_in(column, pa.array(self.values, column.type)).to_numpy()
        out[np.arange(len(out)), codes] = 1


@dataclass(frozen=True)
class Encoding:
    """Facts about the columns of a query except y; `rows` and `classes` are the query's."""

    columns: tuple[Number | Category, ...]
    rows: int
    classes: tuple[Any, ...]
    """Values of y in their order; () where it is a number."""

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, query: str, *, classes: bool) -> Encoding:
        """Read the encoding from the rows that have a y, by one pass over them in the database."""
        types = {name: str(kind) for name, kind, *_ in con.execute(f"DESCRIBE {query}").fetchall()}
        weight = COUNT if COUNT in types else "1"
        asked = [f"sum({weight})"]
        if classes:
            asked.append("list_sort(list(DISTINCT y))")
        for name, kind in types.items():
            if name in ("y", COUNT):
                continue
            if kind == "VARCHAR":
                asked.append(f"list_sort(list(DISTINCT {name}))")
            else:
                present = f"FILTER ({name} IS NOT NULL)"
                asked += [
                    f"coalesce(sum({weight} * CAST({name} AS DOUBLE)), 0)",
                    f"coalesce(sum({weight} * CAST({name} AS DOUBLE) ** 2), 0)",
                    f"coalesce(sum({weight}) {present}, 0)",
                ]
        found = con.execute(f"SELECT {', '.join(asked)} FROM ({query}) WHERE y IS NOT NULL")
        values = iter(found.fetchall()[0])
        rows = int(next(values))
        known = tuple(next(values)) if classes else ()
        columns: list[Number | Category] = []
        for name, kind in types.items():
            if name in ("y", COUNT):
                continue
            if kind == "VARCHAR":
                columns.append(Category(name, tuple(next(values))))
            else:
                columns.append(_number(name, rows, *(float(next(values)) for _ in range(3))))
        return cls(tuple(columns), rows, known)

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns)

    @property
    def starts(self) -> dict[str, int]:
        """Return name -> the first column of the matrix for this feature."""
        ends = np.cumsum([column.width for column in self.columns])
        return {c.name: int(end) - c.width for c, end in zip(self.columns, ends, strict=True)}

    def fill(self, rows: pa.Table | pa.RecordBatch, out: Array) -> None:
        """Write the rows' features to `out` (n, width), which is all 0 before."""
        for column in self.columns:
            start = self.starts[column.name]
            values = rows.column(column.name)
            values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            column.fill(values, out[:, start : start + column.width])

    def targets(self, rows: pa.Table | pa.RecordBatch) -> Array:
        """Return float64 (n,) numbers, or int64 (n,) codes of `classes`."""
        y = rows.column("y")
        if not self.classes:
            return np.asarray(y.cast(pa.float64()).to_numpy())
        codes = pc.index_in(y, pa.array(self.classes, y.type))
        return np.asarray(codes.to_numpy(zero_copy_only=False)).astype(np.int64)


def _number(name: str, rows: int, total: float, squares: float, present: float) -> Number:
    mean = total / present if present else 0.0
    variance = (squares - present * mean**2) / rows
    constant = variance <= 1e-12 * squares / rows  # nothing but rounding
    return Number(name, mean, 1.0 if constant else float(np.sqrt(variance)), 1 - present / rows)


def columns_of(encoding: Encoding, names: Sequence[str]) -> Array:
    """Return the columns of the matrix that belong to these features."""
    widths = {column.name: column.width for column in encoding.columns}
    return np.concatenate([encoding.starts[name] + np.arange(widths[name]) for name in names])


# -- the optimum, by Newton's method ---------------------------------------------------------------


FEW = 8_000_000
"""Joined rows of which equal ones are brought together first."""
SAMPLE = 1_000_000
"""Joined rows whose optimum is the start over more of them."""
PRECISION = 1e-6
"""Relative decrease that a last step may promise. What the step brings differs from the promise by
about the power 3/2 of it.
"""


@dataclass(frozen=True)
class Optimum:
    objective: float | None
    """None of a neural network, whose optimum nobody knows."""
    rows: int
    """Joined rows that have a target."""
    columns: int
    width: int
    """Number of columns of the encoded features."""


def optimum(con: duckdb.DuckDBPyConnection, task: Task) -> Optimum:
    """Return the optimum of the task, in a database that has all its tables.

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
    """Return the loss of each row: (n,). `scores`: (n, outputs)."""
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
    """Sums over joined rows: their number, loss, gradient (width + 1, K) and Hessian, by class and
    then by column."""

    count: float
    loss: float
    gradient: Array
    hessian: Array

    @classmethod
    def zeros(cls, width: int, classes: int) -> Sums:
        size = width * classes
        return cls(0.0, 0.0, np.zeros((width, classes)), np.zeros((size, size)))

    def add(self, kind: str, x: Array, y: Array, counts: Array, theta: Array) -> None:
        """Add rows x (n, width + 1), whose last column is 1; `counts` says how often each row
        occurs."""
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
    """Yield features and a 1, targets, and the number of joined rows that each row stands for."""
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


# -- sums of products ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Products:
    """Over the joined rows: XᵀX, Xᵀy, yᵀy and their number; X is encoded, its last column 1."""

    gram: Array
    side: Array
    squares: float
    rows: int

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, query: str) -> Products:
        """Sum numbers and their products for each combination of categories, in one pass.

        Sums of one-hots follow from these. Raise ValueError for NULLs.
        """
        types = {n: str(t) for n, t, *_ in con.execute(f"DESCRIBE {query}").fetchall()}
        texts = [name for name, kind in types.items() if kind == "VARCHAR"]
        numbers = [name for name in types if name not in texts]
        pairs = list(combinations_with_replacement(range(len(numbers)), 2))
        asked = [*texts, "count(*)"]
        asked += [f"count({name})" for name in numbers]
        asked += [f"sum(CAST({name} AS DOUBLE))" for name in numbers]
        asked += [f"sum(CAST({numbers[i]} AS DOUBLE) * {numbers[j]})" for i, j in pairs]
        found = con.sql(
            f"SELECT {', '.join(asked)} FROM ({query}) WHERE y IS NOT NULL GROUP BY ALL"
        ).to_arrow_table()
        values = np.column_stack(
            [c.cast(pa.float64()).to_numpy() for c in found.columns[len(texts) :]]
        )
        counts, present, sums, products = np.split(
            values, np.cumsum([1, len(numbers), len(numbers)]), axis=1
        )
        if (present != counts).any():
            raise ValueError("NULLs among the numbers")
        return cls._of(
            numbers.index("y"), counts[:, 0], sums, products, pairs, _onehots(found, texts)
        )

    @classmethod
    def _of(
        cls,
        y: int,
        counts: Array,
        sums: Array,
        products: Array,
        pairs: list[tuple[int, int]],
        onehots: sparse.csr_array,
    ) -> Products:
        """Return products from sums of groups: (g,), (g, numbers), (g, pairs), (g, categories)."""
        width = sums.shape[1]
        squares = np.zeros((width, width))
        for (i, j), total in zip(pairs, products.sum(axis=0), strict=True):
            squares[i, j] = squares[j, i] = total
        marks = sparse.hstack([onehots, np.ones((len(counts), 1))], format="csr")
        crossed = (marks.T @ sums).T
        among = (marks.T @ marks.multiply(counts[:, None])).toarray()
        raw = np.block([[squares, crossed], [crossed.T, among]])
        total = float(counts.sum())
        means = sums.sum(axis=0) / total
        spreads = np.sqrt(np.diag(squares) / total - means**2)
        standard = np.eye(len(raw))
        features = [i for i in range(width) if i != y]
        standard[features, features] = 1 / spreads[features]
        standard[features, -1] = -means[features] / spreads[features]
        own = np.delete(standard, y, axis=0)
        return cls(own @ raw @ own.T, own @ raw[:, y], float(raw[y, y]), int(total))

    def solve(self) -> Array:
        """Return the parameters with the least objective, the intercept last."""
        penalty = np.diag(self._penalty * self.rows)
        return np.linalg.lstsq(self.gram + penalty, self.side)[0]

    def objective(self, theta: Array) -> float:
        errors = self.squares - 2 * theta @ self.side + theta @ self.gram @ theta
        return float(errors / self.rows + self._penalty @ theta**2) / 2

    @property
    def _penalty(self) -> Array:
        return np.append(np.full(len(self.side) - 1, L2), 0.0)


def _onehots(groups: pa.Table, names: list[str]) -> sparse.csr_array:
    """Return the one-hots of each group: (g, categories)."""
    blocks = [sparse.csr_array((groups.num_rows, 0))]
    for name in names:
        codes = pc.dictionary_encode(groups[name].combine_chunks()).indices.to_numpy()
        entries = (np.ones(len(codes)), (np.arange(len(codes)), codes))
        blocks.append(sparse.csr_array(entries))
    return sparse.hstack(blocks, format="csr")


# -- the join in one place -------------------------------------------------------------------------


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
    """Algorithm that fits the model."""

    name: str
    tolerance: float = 0.0
    """Tolerance of the fit, where the solver has one."""

    def __str__(self) -> str:
        return f"{self.name}, {self.tolerance:.0e}" if self.tolerance else self.name


@dataclass(frozen=True, eq=False)
class Matrix:
    """Return the joined rows, encoded."""

    encoding: Encoding
    x: Array
    """float32 (N, width)"""
    y: Array
    """(N,) numbers, or codes of classes"""


class Model(Protocol):
    def objective(self) -> float: ...


@dataclass(frozen=True, eq=False)
class Linear:
    """Return weights (width, outputs) and intercept (outputs,), for the matrix after fitting."""

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
    """Run one fit after one on the toy tables `first`. Return the measurements of `Watch`, and
    `objective`."""
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
    """Fit the matrix; for a linear model it is centred in place."""
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
    """Return the fastest way by which the objective reaches `goal`. Raise Failed if none does."""
    if stored.task.kind == "linear_regression":
        return Solver(DIRECT)
    times = dict(_tried(stored, goal))
    if not times:
        raise Failed("no solver leads to the gap")
    return min(times, key=lambda solver: times[solver])


def _tried(stored: Stored, goal: float) -> Iterator[tuple[Solver, float]]:
    """Return the ways that reach the goal, each with its loosest tolerance, and their seconds."""
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
    """Return the bytes of the matrix, with its joined rows, or with a copy of it."""
    return rows * (4 * width + max(12 * columns, 4 * width))
