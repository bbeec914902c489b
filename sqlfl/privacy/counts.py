"""Counts of a row's part in the releases of a method's private rounds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.options.training import TrainingOptions


@dataclass(frozen=True)
class SlotFacts:
    """Facts about a slot in a run that the counts depend on."""

    options: TrainingOptions
    joined: int
    """N, joined rows that train."""
    copies: int
    """F: maximum number of them that a row of the slot is in."""
    clients: int
    summed: int = 0
    """Maximum number of all joined rows, validation included, that a row of the slot is in."""
    leads: bool = False
    """True of the query's leading slot (`Ucq.leading`)."""


@dataclass(frozen=True)
class Counts:
    """Counts for the whole run."""

    gradients: int
    """Maximum number of sums of gradients that a row is in."""
    predictions: int
    """Predictions of a row after steps, at most: that of a tower's first parameters apart."""
    steps: int
    selections: int = 0
    """Choices of one of the slot's columns; the values of each may be sent once."""
    crosses: int = 0
    """Releases of a block's moments with the label, and with another table's fits, beside one of
    its second moments."""
    draws: int = 0
    """Joined rows' sums for which a row is drawn of, at most."""
