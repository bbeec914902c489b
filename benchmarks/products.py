"""A linear model from sums of products that the database makes: no matrix of the joined rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from encoding import Array
from scipy import sparse
from tasks import L2


@dataclass(frozen=True, eq=False)
class Products:
    """Over the joined rows: XᵀX, Xᵀy, yᵀy and their number; X is encoded, its last column 1."""

    gram: Array
    side: Array
    squares: float
    rows: int

    @classmethod
    def of(cls, con: duckdb.DuckDBPyConnection, query: str) -> Products:
        """One pass: sums of numbers and of their products for each combination of categories, from
        which those of one-hots follow. Raises ValueError for NULLs."""
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
        """Of groups: (g,), (g, numbers), (g, pairs) and (g, categories)."""
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
        """The parameters with the least objective, the intercept last."""
        penalty = np.diag(self._penalty * self.rows)
        return np.linalg.lstsq(self.gram + penalty, self.side)[0]

    def objective(self, theta: Array) -> float:
        errors = self.squares - 2 * theta @ self.side + theta @ self.gram @ theta
        return float(errors / self.rows + self._penalty @ theta**2) / 2

    @property
    def _penalty(self) -> Array:
        return np.append(np.full(len(self.side) - 1, L2), 0.0)


def _onehots(groups: pa.Table, names: list[str]) -> sparse.csr_array:
    """Of each group: (g, categories)."""
    blocks = [sparse.csr_array((groups.num_rows, 0))]
    for name in names:
        codes = pc.dictionary_encode(groups[name].combine_chunks()).indices.to_numpy()
        entries = (np.ones(len(codes)), (np.arange(len(codes)), codes))
        blocks.append(sparse.csr_array(entries))
    return sparse.hstack(blocks, format="csr")
