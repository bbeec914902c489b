"""Base of the algorithms that have a head at the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlfl.base.arrays import Array
from sqlfl.models.head import Head
from sqlfl.models.optimizers import Optimizer, PlainSteps


class Headed:
    """Base of an algorithm with a head: its parameters, and its steps.

    optimizer: makes an optimizer for each of the head's parameters.
    """

    def __init__(self, head: Head, optimizer: Callable[[], Optimizer] = PlainSteps) -> None:
        self._head = head
        self._optimizers = [optimizer() for _ in head.parameters]

    @property
    def intercept(self) -> Array:
        return self._head.intercept.copy()

    @property
    def head(self) -> Array | None:
        return None if self._head.weights is None else self._head.weights.copy()

    def _step_head(self, gradient: Sequence[Array], rate: float) -> None:
        """Step each of the head's parameters along its gradient."""
        pairs = zip(self._optimizers, self._head.parameters, gradient, strict=True)
        stepped = [optimizer.step(parameter, slope, rate) for optimizer, parameter, slope in pairs]
        self._head = self._head.replaced(stepped)
