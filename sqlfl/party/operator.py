"""Which operator trains a slot's block: the client's part of the method, linear or of towers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import Configuration
from sqlfl.contract.methods import part_of
from sqlfl.messages import Message
from sqlfl.models.towers import TowerShape
from sqlfl.party.client import Build, ClientOperator
from sqlfl.party.guard import ReleaseGuard
from sqlfl.party.shrinkage import Shrinkage
from sqlfl.party.steps import Engine

_LOADING = threading.Lock()
"""Threads that load torch at once would get in each other's way where it is missing."""


class Operator(Protocol):
    """Training of one slot's block at one client, linear or neural."""

    @property
    def shape(self) -> TowerShape | None:
        """None for a linear block."""
        ...

    @property
    def parameters(self) -> tuple[Array, ...]:
        """θ alone, or W₁, b₁, …, W_out of a tower."""
        ...

    @property
    def guard(self) -> ReleaseGuard | None:
        """What clips, noises and counts releases; None where features are not protected."""
        ...

    def kept(self, back: int) -> tuple[Array, ...]:
        """The parameters as they were `back` epochs ago."""
        ...

    def handle(self, message: Message) -> Message:
        """The reply to a training message."""
        ...


BuildOperator: TypeAlias = Callable[..., Operator]
"""Of an engine, a method's configuration, the run, the slot and parameters to start from."""


@dataclass(frozen=True)
class ClientPart:
    """What a method is at a client: `CLIENT` of its module `client`."""

    configuration: type[Configuration]
    step: Build | None = None
    """Of linear blocks that send predictions; None where there are none such."""
    tower: Callable[[], BuildOperator] | None = None
    """Loads what trains towers, and torch with it; None where the method trains none."""
    linear: BuildOperator | None = None
    """What trains linear blocks in another way."""
    masked: bool = False
    """Predictions leave under masks alone."""

    def operator(
        self,
        engine: Engine,
        configuration: Configuration,
        run: str,
        slot: int,
        parameters: Sequence[Array] | None = None,
        shrinkage: Shrinkage | None = None,
    ) -> Operator:
        """The operator of a linear block or, where `configuration` has hidden layers, of a tower.

        `parameters`: where training starts, as `Operator.parameters`; `shrinkage`: strengths of
        its columns, which a linear block that sends predictions has. Raises ModelError where a
        tower is to be trained without torch, privately without opacus, or without the device that
        is asked for.
        """
        if configuration.tower is None:
            if shrinkage is not None and self.linear is not None:
                raise InternalError("strengths are of blocks that send predictions")
            if self.linear is not None:
                return self.linear(engine, configuration, run, slot, parameters)
            if self.step is None:
                raise InternalError(f"linear blocks are not trained by {configuration.method!r}")
            theta = None
            if parameters is not None:
                (theta,) = parameters
            return ClientOperator(engine, configuration, self.step, run, slot, theta, shrinkage)
        if shrinkage is not None:
            raise InternalError("a tower has no strengths")
        if self.tower is None:
            raise InternalError(f"towers are not trained by {configuration.method!r}")
        with _LOADING:
            build = self.tower()
            if configuration.privacy is not None:
                import sqlfl.models.per_row  # noqa: F401  # loads opacus

        return build(engine, configuration, run, slot, parameters)


def client_of(method: str) -> ClientPart:
    """Raises InternalError for a method that is not known here."""
    part: ClientPart = part_of(method, "client")
    return part


def check_device(name: str, *, private: bool = False) -> None:
    """Raise ModelError where no tower can be trained: without torch, or without this device; and
    where it is to be private, without opacus."""
    with _LOADING:
        from sqlfl.models.neural import device_of  # loads torch

        if private:
            import sqlfl.models.per_row  # noqa: F401  # loads opacus

    device_of(name)
