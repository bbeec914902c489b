"""Checks that a request of training fits the client's data: sizes, rows, and options in range.

They protect memory and report faults at their place. They do not decide which requests a client
allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import Configuration
from sqlfl.messages import (
    ConsensusAverage,
    Message,
    Probe,
    Residuals,
    SendPredictions,
    SendSlope,
    SetGram,
    SetParameters,
    SumGradient,
)
from sqlfl.messages.checks import mismatch, shapes_of
from sqlfl.party.steps import Engine

MAX_NUMBERS = 1 << 31
"""Maximum numbers in the parameters of a block and in a method's memory of them."""
MAX_COUNT = 2**31


@dataclass(frozen=True)
class SlotExpectations:
    """Sizes that the requests of one slot at one client must have."""

    active: int
    width: int
    numeric: int
    outputs: int
    parameters: tuple[int, int]
    """Shape of a gradient."""
    sizes: Mapping[str, int]
    """Sizes of the method's residuals."""

    @classmethod
    def of(cls, engine: Engine, configuration: Configuration) -> SlotExpectations:
        """Return the sizes. Raise InternalError for options out of range."""
        check_options(configuration)
        parameters = configuration.parameters(engine.width)
        if math.prod(parameters) * configuration.remembered > MAX_NUMBERS:
            raise InternalError(f"a block of {math.prod(parameters)} parameters is too large")
        return cls(
            engine.rows,
            engine.width,
            engine.numeric,
            configuration.outputs,
            parameters,
            configuration.sizes,
        )

    def check(self, message: Message, rows: Array | None, *, probing: bool = False) -> None:
        """Raise InternalError if the message does not fit. `rows`: those of the last predictions,
        None for all. `probing`: a power round is running.
        """
        expected = self._expected(message, self.active if rows is None else len(rows), probing)
        fault = mismatch(shapes_of(message), expected)
        if fault is not None:
            raise InternalError(f"{message.kind} of other sizes: {fault}")
        batch = None
        if isinstance(message, Residuals):
            batch = message.following
        elif isinstance(message, SendPredictions):
            batch = message.batch
        if batch is not None and batch.size and int(batch[-1]) >= self.active:  # they ascend
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
                return {"rows": rows, "outputs": self.outputs, **self.sizes}
            case SetParameters():
                parameters, outputs = self.parameters
                return {"parameters": parameters, "outputs": outputs}
            case SumGradient() | ConsensusAverage():
                parameters, outputs = self.parameters
                return {"parameters": parameters, "outputs": 1 if probing else outputs}
        return {}


def check_options(configuration: Configuration) -> None:
    """Raise InternalError for options out of range."""
    least = {"outputs": 1, "clients": 1, "batch": 1}
    for name, value in _numbers(configuration):
        whole = isinstance(value, int)
        if whole and not least.get(name, 0) <= value <= MAX_COUNT:
            raise InternalError(
                f"option {name} is {value}, from {least.get(name, 0)} to {MAX_COUNT}"
            )
        if not whole and not (math.isfinite(value) and value >= 0):
            raise InternalError(f"option {name} is {value}, and must be finite, from 0 up")
    fault = configuration.fault()
    if fault is not None:
        raise InternalError(fault)
    if configuration.tower is not None:
        hidden = configuration.tower.hidden
        if not (1 <= len(hidden) <= 100 and all(1 <= width <= MAX_COUNT for width in hidden)):
            raise InternalError(f"hidden layers of {hidden!s:.60}")


def _numbers(options: Any) -> Iterator[tuple[str, int | float]]:
    """Yield the numbers of a configuration and of its parts, without the guard's and without seeds,
    which may be any.
    """
    for spec in fields(options):
        value = getattr(options, spec.name)
        if spec.name in ("privacy", "seed") or isinstance(value, bool):
            continue
        if is_dataclass(value):
            yield from _numbers(value)
        elif isinstance(value, (int, float)):
            yield spec.name, value
