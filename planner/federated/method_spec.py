"""Specification of a method, for the planner, EXPLAIN and the privacy account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlfl.contract.methods import part_of
from sqlfl.options.training import TowerOptions, TrainingOptions
from sqlfl.planner.federated.exchanges import Exchange, Run
from sqlfl.privacy.protection import Counts, Protection, SlotFacts


@dataclass(frozen=True)
class Words:
    """Descriptions of the work in each round, for EXPLAIN."""

    every: str
    """The name of a round: 'iteration', 'epoch', 'step'."""
    join: str
    """Work at the coordinator, over the joined rows."""
    client: str
    union: str
    """Work at the coordinator for a slot with several clients."""
    averaging: tuple[str, str] | None = None
    """The last two for a slot whose clients average their parameters; None if they never do."""


@dataclass(frozen=True)
class MethodSpec:
    """`SPEC` of a method's module `spec`, which imports no more than the planner does."""

    name: str
    exchanges: Callable[[Run], list[Exchange]]
    """Exchanges of its rounds, from `Start` to the last one."""
    words: Callable[[TrainingOptions, Protection], Words]
    private: Callable[[SlotFacts], Counts] | None = None
    """Counts of a row's releases in its private rounds; None without private rounds."""
    row_bytes: Callable[[TrainingOptions, int], int] = lambda options, outputs: 16 + 96 * outputs
    """Memory of its rounds for each joined row with this number of outputs, if arrays have an
    element for each row.
    """
    sums_only: Callable[[TrainingOptions], bool] = lambda options: False
    """True if its rounds need only sums of joined rows over the rows of slots. Then no array has an
    element for each joined row.
    """
    moments: bool = False
    """True if its private rounds need second moments of linear blocks."""
    drawn: bool = False
    """Predictions leave clients under masks, as draws where PRIVACY asks for them: the coordinator
    gets their sums over all slots, joined row by joined row."""
    merges: Callable[[TrainingOptions], bool] = lambda options: False
    """True if a client may train equal rows as one row of their total weight: its rounds use rows
    only for sums and predictions.
    """
    whole: Callable[[TrainingOptions, int], bool] = lambda options, rows: True
    """True if a step takes all of this number of joined rows, each by its weight, if it
    `merges`.
    """
    usual_epochs: tuple[int, int] | None = None
    """Least and greatest number of epochs that training usually runs until it meets its default
    tolerance; None if it usually runs all. EXPLAIN estimates bytes by the greatest.
    """


def spec_of(name: str) -> MethodSpec:
    """Return the specification. Raise InternalError for an unknown method."""
    spec: MethodSpec = part_of(name, "spec")
    return spec


def has_head(tower: TowerOptions | None) -> bool:
    """Return whether the coordinator trains a linear head over the sum of the towers' outputs."""
    return tower is not None and tower.outputs is not None


def summed(options: TrainingOptions, what: str = "partial gradients Xᵀ Y") -> str:
    """Return the coordinator's work where a slot's clients sum their gradients."""
    words = f"sum of the clients' {what}, in client order, back to each of them"
    if options.method.secure:
        words = f"sum of the clients' masked {what}, which nobody sees apart, back to each of them"
    return words if options.tower is None else words.replace("Xᵀ Y", "∂θ")
