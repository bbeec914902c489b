"""Steps of gradient descent whose gradients are clipped per table row, on materialised rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracle.trainer import Central, Fitted


@dataclass(frozen=True)
class Table:
    """One table position of the join."""

    row_id: str
    """The column that tells which of its rows a joined row comes from."""
    features: tuple[str, ...]


def clipped_steps(
    data: Central,
    tables: Sequence[Table],
    steps: int,
    rate: float,
    clip: float | None,
    *,
    intercept: bool,
) -> Fitted:
    """From `data.start()`. `clip`: of each table row's gradient; None: N over the table's rows,
    times the deviation of a label that is a number. `intercept`: each joined row's slope of it is
    clipped to that deviation too, or 1.
    """
    now = data.start()
    spread = float(np.std(data.y)) or 1.0 if data.kind == "linear_regression" else 1.0
    for _ in range(steps):
        residual = data._residual(data.scores(now))
        slopes = _bounded(residual, spread) if intercept else residual
        gradient = np.zeros_like(now.weights)
        for table in tables:
            columns = _columns(data, table.features)
            ids = data.rows.column(table.row_id).to_numpy()
            rows, first, place = np.unique(ids, return_index=True, return_inverse=True)
            bound = spread * len(ids) / len(rows) if clip is None else clip
            for number, row in enumerate(first):
                summed = residual[place == number].sum(axis=0)
                own = np.outer(data.x[row, columns], summed)
                norm = np.linalg.norm(own)
                gradient[columns] += own * min(1.0, bound / norm) if norm > 0 else own
        weights = now.weights - rate * (gradient / len(data.y) + data.l2 * now.weights)
        now = Fitted(weights, now.intercept - rate * slopes.sum(axis=0) / len(data.y))
    return now


def _bounded(rows: np.ndarray, bound: float) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, bound / np.maximum(norms, 1e-300))


def _columns(data: Central, features: Sequence[str]) -> np.ndarray:
    """The encoded columns of these features."""
    encoder = data.encoder
    names = [n.name for n in encoder.numeric for _ in n.mean]
    names += [n.name for n in encoder.numeric if n.indicator is not None]
    names += [c.name for c in encoder.categories for _ in c.values]
    wanted = {name.lower() for name in features}
    return np.flatnonzero([name.lower() in wanted for name in names])


def tables_of(blocks: Mapping[int, tuple[str, ...]], row_ids: Sequence[str]) -> list[Table]:
    """`blocks`: slot -> its features."""
    return [Table(row_ids[slot], features) for slot, features in blocks.items()]
