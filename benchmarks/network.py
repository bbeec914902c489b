"""Neural towers in PyTorch on the materialised join: a hidden layer per table, their outputs added.

Shape, objective, optimizer, batches and epochs are those of the package. Only the random start
differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from materialised import CHUNK, Array, Encoding, columns_of
from workloads import L2


@dataclass(frozen=True, eq=False)
class Network:
    slices: tuple[slice, ...]
    """Columns of the matrix for each tower."""
    towers: tuple[torch.nn.Module, ...]
    intercept: torch.nn.Parameter

    @classmethod
    def trained(
        cls,
        encoding: Encoding,
        x: Array,
        y: Array,
        features: Sequence[Sequence[str]],
        options: Mapping[str, Any],
    ) -> Network:
        """x: float32 (N, width); y: int64 (N,); the features of a tower are adjacent columns."""
        torch.manual_seed(options["seed"])
        found = [columns_of(encoding, names) for names in features]
        slices = tuple(slice(int(c[0]), int(c[-1]) + 1) for c in found)
        (hidden,) = options["hidden"]
        classes = len(encoding.classes)
        network = cls(
            slices,
            tuple(_tower(columns.stop - columns.start, hidden, classes) for columns in slices),
            torch.nn.Parameter(torch.zeros(classes)),
        )
        network._train(torch.from_numpy(x), torch.from_numpy(y), options)
        return network

    def objective(self, x: Array, y: Array) -> float:
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(y), CHUNK):
                rows = slice(start, start + CHUNK)
                scores = self._scores(torch.from_numpy(x[rows]))
                targets = torch.from_numpy(y[rows])
                total += float(torch.nn.functional.cross_entropy(scores, targets, reduction="sum"))
            return total / len(y) + float(self._penalty())

    def _train(self, x: torch.Tensor, y: torch.Tensor, options: Mapping[str, Any]) -> None:
        optimizer = torch.optim.Adam(
            [*self._parameters(), self.intercept], options["learning_rate"]
        )
        for _ in range(options["epochs"]):
            for rows in torch.randperm(len(y)).split(options["batch_size"]):
                loss = torch.nn.functional.cross_entropy(self._scores(x[rows]), y[rows])
                loss = loss + self._penalty()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        parts = [tower(x[:, own]) for tower, own in zip(self.towers, self.slices, strict=True)]
        return self.intercept + sum(parts)

    def _penalty(self) -> torch.Tensor:
        return L2 / 2 * sum((p**2).sum() for p in self._parameters() if p.ndim == 2)

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [p for tower in self.towers for p in tower.parameters()]


def _tower(width: int, hidden: int, classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(width, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, classes, bias=False),
    )
