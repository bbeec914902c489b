"""Encoded columns of a client's rows, from which Frank-Wolfe chooses and sends some."""

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
    """Columns without changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def slopes(self, values: Array) -> Array:
        return self._engine.gradient(values[:, None])[:, 0]

    def column(self, number: int) -> Array:
        unit = np.zeros((self._engine.width, 1))
        unit[number] = 1.0
        return self._engine.predict(unit)[:, 0]


class ClippedColumns:
    """Clipped columns: numeric ones to [−B, B], where a row's value changes by at most 2B.

    Values of one-hot columns, centred by public or noised numbers, change by at most 1.
    """

    def __init__(self, engine: Engine, bound: float) -> None:
        numeric, self._onehot = engine.columns()
        finite = np.nan_to_num(numeric, nan=0.0)
        self._numeric = np.clip(finite, -bound, bound)
        self._centre = engine.centre[engine.numeric :]
        changes = [2.0 * bound] * (engine.numeric > 0) + [1.0] * (engine.width > engine.numeric)
        self.change = max(changes, default=0.0)
        """Maximum change of one row's value in a column."""

    def slopes(self, values: Array) -> Array:
        onehot = self._onehot.T @ values - self._centre * values.sum()
        return np.concatenate([self._numeric.T @ values, onehot])

    def column(self, number: int) -> Array:
        p = self._numeric.shape[1]
        if number < p:
            values: Array = self._numeric[:, number]
            return values
        place = number - p
        values = self._onehot[:, [place]].toarray()[:, 0] - self._centre[place]
        return values
