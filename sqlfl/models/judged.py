"""Metrics of scores of two classes, computed by the compiled library; see compiled.c."""

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
    """Scores h (n,) of class 1, that is their log-odds, for rows of classes 0 and 1 (n,), at least
    one. Weights are (n,), or 1 each.
    """

    def __init__(self, scores: Array, classes: Array, weights: Array | None) -> None:
        self.scores = np.ascontiguousarray(scores, np.float64)
        self._classes, self._type = typed(classes)
        self._weights = None if weights is None else np.ascontiguousarray(weights, np.float64)
        verdict = _Verdict(0.0, 0.0, 0.0, np.inf, -np.inf, 0)
        functions().sqlfl_judge(*self._rows, ctypes.byref(verdict))
        self.right = float(verdict.right)
        """Σ w of rows with a score on their side of 0. A score of 0 is on class 0's side."""
        self.surprise = float(verdict.surprise)
        """Σ −w log of the probability of a row's class, which counts as at least 2.2e-308."""
        self.weight = float(verdict.weight)
        """Σ w."""
        self.least = float(verdict.least)
        """Least score that its probability distinguishes from others."""
        self.largest = float(verdict.largest)
        self.undefined = bool(verdict.undefined)
        """True if a score is no number."""

    def count(self, level: int, first: int, counts: Array) -> None:
        """Add the weights to `counts` of bins, as `sqlfl.models.area` has them."""
        scale = c_double(2.0**level)
        functions().sqlfl_count(*self._rows, scale, c_int64(first), address(counts))

    @property
    def _rows(self) -> tuple[c_int64, c_void_p | None, c_void_p | None, int, c_void_p | None]:
        """Return the arguments of the functions."""
        return (
            c_int64(len(self.scores)),
            address(self.scores),
            address(self._classes),
            self._type,
            address(self._weights),
        )
