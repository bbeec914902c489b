"""Central training of a network of towers on materialised rows, in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from tests.oracle.encoder import Encoder
from tests.oracle.trainer import Central

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "gelu": torch.nn.functional.gelu}


@dataclass(frozen=True)
class Start:
    """One tower before the first step."""

    columns: tuple[str, ...]
    numeric: np.ndarray
    """(p, h): rows of W₁ of the numeric columns; those of one-hot columns start at 0."""
    upper: tuple[np.ndarray, ...]
    """b₁, W₂, b₂, …, W_out"""


class CentralNetwork:
    """H = b + (Σ towers) head, over joined rows; the head is left out where there is none."""

    def __init__(
        self,
        data: Central,
        starts: Sequence[Start],
        intercept: np.ndarray,
        head: np.ndarray | None,
        activation: str,
        *,
        bounded: bool = False,
    ) -> None:
        self.data = data
        self._bounded = bounded
        self._activation = ACTIVATIONS[activation]
        self._columns = [start.columns for start in starts]
        self._encoders = [Encoder.fit(data.rows.select(start.columns)) for start in starts]
        self._towers: list[list[torch.Tensor]] = []
        for start, encoder in zip(starts, self._encoders, strict=True):
            first = np.zeros((encoder.width, start.numeric.shape[1]))
            first[: len(start.numeric)] = start.numeric
            self._towers.append([parameter(a) for a in (first, *start.upper)])
        self._intercept = parameter(intercept)
        self._head = None if head is None else parameter(head)
        self._y = torch.tensor(data.y)

    def fit(self, steps: int, optimizer: str, learning_rate: float) -> None:
        """Steps on all rows."""
        everything = [p for tower in self._towers for p in tower]
        everything += [self._intercept] + ([] if self._head is None else [self._head])
        if optimizer == "adam":
            method: torch.optim.Optimizer = torch.optim.Adam(everything, lr=learning_rate)
        else:
            momentum = 0.9 if optimizer == "momentum" else 0.0
            method = torch.optim.SGD(everything, lr=learning_rate, momentum=momentum)
        inputs = self._inputs(self.data.rows)
        for _ in range(steps):
            method.zero_grad()
            value = self._objective(inputs)
            value.backward()
            method.step()

    def objective(self) -> float:
        with torch.no_grad():
            return float(self._objective(self._inputs(self.data.rows)))

    def predict(self, rows: pa.Table) -> np.ndarray:
        """(n, 1) numbers, or (n, classes) probabilities."""
        with torch.no_grad():
            scores = self._scores(self._inputs(rows))
            if self.data.classes:
                scores = torch.softmax(scores, 1)
            return scores.numpy()

    def _inputs(self, rows: pa.Table) -> list[torch.Tensor]:
        return [
            torch.tensor(encoder.transform(rows.select(columns)))
            for encoder, columns in zip(self._encoders, self._columns, strict=True)
        ]

    def _scores(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for values, (first, *upper) in zip(inputs, self._towers, strict=True):
            values = values @ first
            for bias, weights in zip(upper[0::2], upper[1::2], strict=True):
                values = self._activation(values + bias) @ weights
            total = total + (torch.tanh(values) if self._bounded else values)
        return (total if self._head is None else total @ self._head) + self._intercept

    def _objective(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        scores = self._scores(inputs)
        if self.data.classes:
            loss = torch.nn.functional.cross_entropy(scores, self._y)
        else:
            loss = 0.5 * ((scores[:, 0] - self._y) ** 2).mean()
        weights = [w for first, *upper in self._towers for w in (first, *upper[1::2])]
        weights += [] if self._head is None else [self._head]
        return loss + self.data.l2 / 2 * sum((w**2).sum() for w in weights)


def parameter(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.asarray(values, np.float64), requires_grad=True)
