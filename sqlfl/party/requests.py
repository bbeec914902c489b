"""Whether a request of training fits what the client holds: sizes, rows, and options in range.

It protects memory and tells faults where they are; what a client lets be asked is another matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlfl.arrays import Array
from sqlfl.errors import InternalError
from sqlfl.messages import (
    ConsensusAverage,
    Message,
    Probe,
    Residuals,
    SendPredictions,
    SendSlope,
    SetGram,
    SumGradient,
)
from sqlfl.messages.checks import mismatch, shapes_of
from sqlfl.models.basis import coefficients_length
from sqlfl.party.steps import ClientConfiguration, Engine

LARGEST = 1 << 31
"""Numbers that the parameters of a block and what a method remembers of them may take."""
MOST = 2**31
_COEFFICIENTS = {"sgd": 3, "admm": 1}


@dataclass(frozen=True)
class Held:
    """What the requests of one slot at one client must fit."""

    active: int
    width: int
    numeric: int
    outputs: int
    parameters: tuple[int, int]
    """The shape of a gradient."""
    coefficients: int

    @classmethod
    def of(cls, engine: Engine, configuration: ClientConfiguration) -> Held:
        """Raises InternalError for options that are out of range."""
        own = configuration
        _check_options(own)
        shape = own.tower(engine.width)
        parameters = (engine.width, own.outputs) if shape is None else (shape.size, 1)
        coefficients, often = _COEFFICIENTS.get(own.algorithm, 0), 1
        if own.algorithm == "lbfgs":
            coefficients, often = coefficients_length(own.memory), 3 + 3 * own.memory
        if math.prod(parameters) * often > LARGEST:
            raise InternalError(f"a block of {math.prod(parameters)} parameters is too large")
        return cls(engine.rows, engine.width, engine.numeric, own.outputs, parameters, coefficients)

    def check(self, message: Message, rows: Array | None, *, probing: bool = False) -> None:
        """Raises InternalError where the message does not fit. `rows`: those of the last
        predictions, None for all; `probing`: a power round is under way."""
        expected = self._expected(message, self.active if rows is None else len(rows), probing)
        fault = mismatch(shapes_of(message), expected)
        if fault is not None:
            raise InternalError(f"{message.kind} of other sizes: {fault}")
        if isinstance(message, (Residuals, SendPredictions)):
            batch = message.batch
            if batch.size and int(batch[-1]) >= self.active:  # they ascend
                raise InternalError(f"{message.kind} names row {batch[-1]} of {self.active}")

    def _expected(self, message: Message, rows: int, probing: bool) -> dict[str, int]:
        match message:
            case SetGram():
                return {"columns": self.width, "numeric": self.numeric}
            case Probe():
                return {"rows": self.active}
            case SendSlope():
                return {"rows": self.active, "outputs": self.outputs}
            case Residuals():
                return {
                    "rows": rows, "outputs": self.outputs, "coefficients": self.coefficients
                }  # fmt: skip
            case SumGradient() | ConsensusAverage():
                parameters, outputs = self.parameters
                return {"parameters": parameters, "outputs": 1 if probing else outputs}
        return {}


def _check_options(own: ClientConfiguration) -> None:
    least = {"outputs": 1, "clients": 1}
    for name in (
        "outputs", "rows", "clients", "inner_rounds", "memory", "keep", "local_epochs",
        "local_batch", "number",
    ):  # fmt: skip
        value = getattr(own, name)
        if not least.get(name, 0) <= value <= MOST:
            raise InternalError(f"option {name} is {value}, from {least.get(name, 0)} to {MOST}")
    for name in ("l2", "curvature", "rho", "total", "momentum", "dropout", "local_rate"):
        value = getattr(own, name)
        if not (math.isfinite(value) and value >= 0):
            raise InternalError(f"option {name} is {value}, and must be finite, from 0 up")
    if own.shares and (len(own.shares) != own.outputs or not all(0 < p < 1 for p in own.shares)):
        raise InternalError(f"shares of {own.outputs} classes are {own.shares!s:.60}")
    if len(own.hidden) > 100 or not all(1 <= width <= MOST for width in own.hidden):
        raise InternalError(f"hidden layers of {own.hidden!s:.60}")
