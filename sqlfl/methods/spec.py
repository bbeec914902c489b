"""What a method is, as data: what the planner, EXPLAIN and the account of noise know of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from sqlfl.methods import part_of
from sqlfl.planner.federated.towers import Tower
from sqlfl.planner.protocol.exchanges import Exchange, Run
from sqlfl.privacy.schedule import Counts, Part
from sqlfl.privacy.specification import Privacy


class Training(Protocol):
    """What words depend on; a plan has it."""

    @property
    def options(self) -> Mapping[str, object]: ...
    @property
    def tower(self) -> Tower | None: ...
    @property
    def privacy(self) -> Privacy | None: ...


@dataclass(frozen=True)
class Words:
    """What is computed in each round, for EXPLAIN."""

    every: str
    """What a round is called: 'iteration', 'epoch', 'step'."""
    join: str
    """At the coordinator, over the joined rows."""
    client: str
    union: str
    """At the coordinator, where a slot has several clients."""
    averaging: tuple[str, str] | None = None
    """The last two of a slot whose clients average their parameters; None where they never do."""


@dataclass(frozen=True)
class MethodSpec:
    """`SPEC` of a method's module `spec`, which imports no more than the planner does."""

    name: str
    exchanges: Callable[[Run], list[Exchange]]
    """Of its rounds, from `Start` to the last one."""
    words: Callable[[Training], Words]
    private: Callable[[Part], Counts] | None = None
    """How often its private rounds release something of a row; None where there are none."""
    moments: bool = False
    """Its private rounds need second moments of linear blocks."""


def spec_of(name: str) -> MethodSpec:
    """Raises InternalError for a method that is not known."""
    spec: MethodSpec = part_of(name, "spec")
    return spec


def has_head(plan: Training) -> bool:
    """The coordinator trains a linear head over the sum of the towers' outputs."""
    return plan.tower is not None and plan.tower.embedding is not None


def summed(plan: Training, what: str = "partial gradients Xᵀ Y") -> str:
    """At the coordinator, where a slot's clients sum their gradients."""
    words = f"sum of the clients' {what}, in client order, back to each of them"
    return words if plan.tower is None else words.replace("Xᵀ Y", "∂θ")
