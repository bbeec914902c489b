"""Choice of the operator that trains a slot's block: the client's part of the method, linear or of
towers.
"""

from __future__ import annotations

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
from sqlfl.party.crossing import PairFinder
from sqlfl.party.release_guard import ReleaseGuard
from sqlfl.party.shrinkage import Shrinkage
from sqlfl.party.steps import Engine
from sqlfl.party.torch_loading import load_opacus


class Operator(Protocol):
    """Training of one slot's block at one client, linear or neural."""

    @property
    def shape(self) -> TowerShape | None:
        """Return the tower's shape; None for a linear block."""
        ...

    @property
    def parameters(self) -> tuple[Array, ...]:
        """Return θ alone, or W₁, b₁, …, W_out of a tower."""
        ...

    @property
    def guard(self) -> ReleaseGuard | None:
        """Return the guard that clips, noises and counts releases; None if features are not
        protected.
        """
        ...

    def kept(self, back: int) -> tuple[Array, ...]:
        """Return the parameters of `back` epochs ago."""
        ...

    def handle(self, message: Message) -> Message:
        """Return the reply to a training message."""
        ...


BuildOperator: TypeAlias = Callable[..., Operator]
"""Makes an operator from an engine, a method's configuration, the run, the slot and first
parameters.
"""


@dataclass(frozen=True)
class ClientPart:
    """A method's part at a client: `CLIENT` of its module `client`."""

    configuration: type[Configuration]
    step: Build | None = None
    """Step of linear blocks that send predictions; None without such blocks."""
    tower: Callable[[], BuildOperator] | None = None
    """Loads the operator of towers; None if the method trains none."""
    linear: BuildOperator | None = None
    """Operator that trains linear blocks in another way."""
    masked: bool = False
    """True if predictions leave only under masks."""

    def operator(
        self,
        engine: Engine,
        configuration: Configuration,
        run: str,
        slot: int,
        parameters: Sequence[Array] | None = None,
        shrinkage: Shrinkage | None = None,
        finder: PairFinder | None = None,
    ) -> Operator:
        """Return the operator of a linear block, or of a tower if `configuration` has hidden
        layers.

        `parameters`: where training starts, as `Operator.parameters`; `shrinkage`: strengths of
        its columns, which a linear block that sends predictions has, and `finder` of its pairs.
        Raises ModelError where a tower is to be trained without torch, privately without opacus, or
        without the device that is asked for.
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
            told = run, slot, theta, shrinkage, finder
            return ClientOperator(engine, configuration, self.step, *told)
        if shrinkage is not None:
            raise InternalError("a tower has no strengths")
        if self.tower is None:
            raise InternalError(f"towers are not trained by {configuration.method!r}")
        build = self.tower()
        if configuration.privacy is not None:
            load_opacus()
        return build(engine, configuration, run, slot, parameters)


def client_of(method: str) -> ClientPart:
    """Return the client's part of a method. Raise InternalError for an unknown method."""
    part: ClientPart = part_of(method, "client")
    return part
