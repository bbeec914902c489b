"""What algorithms share that have a head at the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlfl.base.arrays import Array
from sqlfl.models.head import Head
from sqlfl.models.optimizers import Optimizer, PlainSteps


class Headed:
    """Base of such an algorithm: what it tells of its head, and how that steps.

    optimizer: makes one for each of the head's parameters.
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
        """By the gradient of each of its parameters."""
        pairs = zip(self._optimizers, self._head.parameters, gradient, strict=True)
        stepped = [own.step(parameter, slope, rate) for own, parameter, slope in pairs]
        self._head = self._head.replaced(stepped)
