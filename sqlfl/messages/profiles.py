"""What is asked of the features of a query before anything is trained on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, integer, real

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SendProfile(Message):
    """Coordinator to client: what are the features of the active rows like?"""

    kind = "send_profile"
    words = "the least number of rows that is told of"
    least: int = field(metadata=integer(least=1))
    """Rows that a number must be of to be told."""


@dataclass(frozen=True, eq=False)
class SendExplained(SendProfile):
    """Likewise, and how well does each feature alone tell the target?"""

    kind = "send_explained"
    words = "targets, scaled and summed per row; the least number of rows that is told of"
    targets: Array = field(metadata=array("float32", "rows", "outputs"))
    """Of each active row the sum over its joined rows; a column for each class."""


@dataclass(frozen=True, eq=False)
class Profile(Message):
    """Client to coordinator: of each feature what its values are like. NaN is what is not told, and
    what a feature does not have."""

    kind = "profile"
    words = (
        "of each feature in how many rows it is NULL, how many values it has, its range and mean, "
        "and how much of the target it alone explains"
    )
    rows: float = field(metadata=real(least=0))
    """Joined rows of the client's rows."""
    missing: Array = field(metadata=array("float64", "features", least=0))
    """Joined rows where it is NULL."""
    distinct: Array = field(metadata=array("int64", "features", least=0))
    """Its different values; 0 of an array."""
    low: Array = field(metadata=array("float64", "features", finite=False))
    """The least value of numbers that so many rows have or are below."""
    high: Array = field(metadata=array("float64", "features", finite=False))
    mean: Array = field(metadata=array("float64", "features", finite=False))
    explained: Array = field(metadata=array("float64", "features", finite=False))
    """Between groups of rows, alike in the feature: Σ n (mean of the target)²."""
    groups: Array = field(metadata=array("int64", "features", least=0))
    apart: float = field(metadata=real(least=0))
    """That sum over all rows of the client as one group, from which each group's was measured."""
