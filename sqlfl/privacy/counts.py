"""How often a row of a slot takes part in what a method's private rounds release."""

from __future__ import annotations

from dataclasses import dataclass

from sqlfl.options.training import TrainingOptions


@dataclass(frozen=True)
class Part:
    """A slot in a run, as far as it decides that."""

    options: TrainingOptions
    joined: int
    """N, joined rows that train."""
    copies: int
    """F: of these, those that a row of the slot is in, at most."""
    clients: int
    summed: int = 0
    """Of all joined rows, those for validation too, those that a row of the slot is in, at most."""
    leads: bool = False
    """True of the query's leading slot (`Ucq.leading`)."""


@dataclass(frozen=True)
class Counts:
    """Of the whole run."""

    gradients: int
    """Sums of gradients that a row is in, at most."""
    predictions: int
    """Predictions of a row after steps, at most: that of a tower's first parameters apart."""
    steps: int
    selections: int = 0
    """Choices of one of the slot's columns, of each of which its values may be told once."""
    crosses: int = 0
    """Releases of a block's moments with the label, and with another table's fits, beside one of
    its second moments."""
    draws: int = 0
    """Joined rows' sums for which a row is drawn of, at most."""
