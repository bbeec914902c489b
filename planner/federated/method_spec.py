"""What a method is, as data: what the planner, EXPLAIN and the account of noise know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlfl.contract.methods import part_of
from sqlfl.options.training import TowerOptions, TrainingOptions
from sqlfl.planner.federated.exchanges import Exchange, Run
from sqlfl.privacy.counts import Counts, Part
from sqlfl.privacy.protection import Protection


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
    words: Callable[[TrainingOptions, Protection], Words]
    private: Callable[[Part], Counts] | None = None
    """How often its private rounds release something of a row; None where there are none."""
    row_bytes: Callable[[TrainingOptions, int], int] = lambda options, outputs: 16 + 96 * outputs
    """What its rounds take of memory for each joined row of so many outputs, where arrays have a
    row for each."""
    sums_only: Callable[[TrainingOptions], bool] = lambda options: False
    """Its rounds need of joined rows no more than sums over the rows of slots: of very many, no
    array has a row for each."""
    moments: bool = False
    """Its private rounds need second moments of linear blocks."""
    drawn: bool = False
    """Predictions leave clients under masks, as draws where PRIVACY asks for them: the coordinator
    gets their sums over all slots, joined row by joined row."""
    merges: Callable[[TrainingOptions], bool] = lambda options: False
    """A client may train equal rows as one that counts as they do together: in its rounds, all that
    a client makes of rows is sums over them and predictions."""
    whole: Callable[[TrainingOptions, int], bool] = lambda options, rows: True
    """Where it `merges`: a step is of all of so many joined rows, each by its weight."""


def spec_of(name: str) -> MethodSpec:
    """Raises InternalError for a method that is not known."""
    spec: MethodSpec = part_of(name, "spec")
    return spec


def has_head(tower: TowerOptions | None) -> bool:
    """The coordinator trains a linear head over the sum of the towers' outputs."""
    return tower is not None and tower.outputs is not None


def summed(options: TrainingOptions, what: str = "partial gradients Xᵀ Y") -> str:
    """At the coordinator, where a slot's clients sum their gradients."""
    words = f"sum of the clients' {what}, in client order, back to each of them"
    if options.method.secure:
        words = f"sum of the clients' masked {what}, which nobody sees apart, back to each of them"
    return words if options.tower is None else words.replace("Xᵀ Y", "∂θ")
