"""Steps of gradient descent on arrays of any shape: plain, with momentum, and Adam.

The arithmetic is that of torch.optim, for numpy arrays and torch tensors alike. Weight decay is not
part of it: the gradient already has it.
"""

from __future__ import annotations

from typing import Any, Protocol

from sqlfl.base.errors import InternalError

BETAS = (0.9, 0.999)
"""Shares that Adam's averages of the gradient and of its square keep per step."""
EPSILON = 1e-8


class Optimizer(Protocol):
    """Optimizer with its state over steps, whose arrays all have one shape."""

    def step(self, parameters: Any, gradient: Any, rate: float) -> Any:
        """Return the new parameters; the given ones stay unchanged. `rate` may differ each time."""
        ...


class PlainSteps:
    """Steps θ ← θ − η g."""

    def step(self, parameters: Any, gradient: Any, rate: float) -> Any:
        return parameters - rate * gradient


class Momentum:
    """Steps v ← μ v + g, θ ← θ − η v: the heavy ball, as torch.optim.SGD(momentum=μ)."""

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._velocity: Any = None

    def step(self, parameters: Any, gradient: Any, rate: float) -> Any:
        old = self._velocity
        self._velocity = gradient if old is None else self._momentum * old + gradient
        return parameters - rate * self._velocity


class Adam:
    """Steps of Kingma and Ba (2015), as torch.optim.Adam with its usual β and ε."""

    def __init__(self) -> None:
        self._steps = 0
        self._mean: Any = 0.0
        self._square: Any = 0.0

    def step(self, parameters: Any, gradient: Any, rate: float) -> Any:
        first, second = BETAS
        self._steps += 1
        self._mean = first * self._mean + (1.0 - first) * gradient
        self._square = second * self._square + (1.0 - second) * (gradient * gradient)
        unbiased = self._mean / (1.0 - first**self._steps)
        root = (self._square / (1.0 - second**self._steps)) ** 0.5
        return parameters - rate * (unbiased / (root + EPSILON))


def optimizer_of(name: str, momentum: float = 0.9) -> Optimizer:
    """Return a new optimizer called `name`: 'plain', 'momentum' or 'adam'."""
    match name:
        case "plain":
            return PlainSteps()
        case "momentum":
            return Momentum(momentum)
        case "adam":
            return Adam()
    raise InternalError(f"there is no optimizer {name!r}")
