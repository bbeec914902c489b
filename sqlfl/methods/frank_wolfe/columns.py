"""The encoded columns of a client's rows, as Frank-Wolfe chooses among them and tells of them."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.party.steps import Engine


class ActiveColumns(Protocol):
    """x̃ of the active rows."""

    def slopes(self, values: Array) -> Array:
        """X̃ᵀ v: (rows,) -> (d,)."""
        ...

    def column(self, number: int) -> Array:
        """x̃ of every row: (rows,)."""
        ...


class EngineColumns:
    """As they are."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def slopes(self, values: Array) -> Array:
        return self._engine.gradient(values[:, None])[:, 0]

    def column(self, number: int) -> Array:
        unit = np.zeros((self._engine.width, 1))
        unit[number] = 1.0
        return self._engine.predict(unit)[:, 0]


class ClippedColumns:
    """Numeric ones clipped to [−B, B], of which a row's value changes by at most 2B; of one-hot
    ones, which are centred by public or noised numbers, by at most 1."""

    def __init__(self, engine: Engine, bound: float) -> None:
        numeric, self._onehot = engine.columns()
        finite = np.nan_to_num(numeric, nan=0.0)
        self._numeric = np.clip(finite, -bound, bound)
        self._centre = engine.centre[engine.numeric :]
        changes = [2.0 * bound] * (engine.numeric > 0) + [1.0] * (engine.width > engine.numeric)
        self.change = max(changes, default=0.0)
        """By which one row's value in a column changes, at most."""

    def slopes(self, values: Array) -> Array:
        onehot = self._onehot.T @ values - self._centre * values.sum()
        return np.concatenate([self._numeric.T @ values, onehot])

    def column(self, number: int) -> Array:
        p = self._numeric.shape[1]
        if number < p:
            found: Array = self._numeric[:, number]
            return found
        own = number - p
        found = self._onehot[:, [own]].toarray()[:, 0] - self._centre[own]
        return found
