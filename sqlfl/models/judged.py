"""What the compiled library makes of scores of two classes, for metrics; see compiled.c."""

from __future__ import annotations

import ctypes
from ctypes import c_double, c_int64, c_void_p

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.models.native import address, functions, typed


class _Verdict(ctypes.Structure):
    _fields_ = (
        ("right", c_double),
        ("surprise", c_double),
        ("weight", c_double),
        ("least", c_double),
        ("largest", c_double),
        ("undefined", c_int64),
    )


class Judged:
    """Scores h (n,) of class 1, their log-odds, of rows of classes 0 and 1 (n,), not none, with
    weights (n,) or 1 each."""

    def __init__(self, scores: Array, classes: Array, weights: Array | None) -> None:
        self.scores = np.ascontiguousarray(scores, np.float64)
        self._classes, self._type = typed(classes)
        self._weights = None if weights is None else np.ascontiguousarray(weights, np.float64)
        found = _Verdict(0.0, 0.0, 0.0, np.inf, -np.inf, 0)
        functions().sqlfl_judge(*self._rows, ctypes.byref(found))
        self.right = float(found.right)
        """Σ w of those with a score on their side of 0, which is class 0's."""
        self.surprise = float(found.surprise)
        """Σ −w log of the probability of a row's class, which counts as 2.2e-308 at least."""
        self.weight = float(found.weight)
        """Σ w."""
        self.least = float(found.least)
        """Of the scores that can be told apart from others by their probabilities."""
        self.largest = float(found.largest)
        self.undefined = bool(found.undefined)
        """A score is no number."""

    def count(self, level: int, first: int, counts: Array) -> None:
        """Adds the weights to `counts` of bins, as `sqlfl.models.area` has them."""
        scale = c_double(2.0**level)
        functions().sqlfl_count(*self._rows, scale, c_int64(first), address(counts))

    @property
    def _rows(self) -> tuple[c_int64, c_void_p | None, c_void_p | None, int, c_void_p | None]:
        """As the functions take them."""
        return (
            c_int64(len(self.scores)),
            address(self.scores),
            address(self._classes),
            self._type,
            address(self._weights),
        )
