"""Requests about the features of a query before anything is trained on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlfl.messages.base import Message
from sqlfl.messages.forms import array, integer, real

if TYPE_CHECKING:
    from sqlfl.base.arrays import Array


@dataclass(frozen=True, eq=False)
class SendProfile(Message):
    """Coordinator to client: a request for a profile of the features of the active rows."""

    kind = "send_profile"
    words = "the least number of rows that is told of"
    least: int = field(metadata=integer(least=1))
    """Minimum number of rows behind each number that is disclosed."""


@dataclass(frozen=True, eq=False)
class SendExplained(SendProfile):
    """The same, and how well each feature alone explains the target."""

    kind = "send_explained"
    words = "targets, scaled and summed per row; the least number of rows that is told of"
    targets: Array = field(metadata=array("float32", "rows", "outputs"))
    """Sum of the targets over each active row's joined rows; a column for each class."""


@dataclass(frozen=True, eq=False)
class Profile(Message):
    """Client to coordinator: properties of each feature's values. NaN stands for a number that is
    not disclosed, or that the feature does not have.
    """

    kind = "profile"
    words = (
        "of each feature in how many rows it is NULL, how many values it has, its range and mean, "
        "and how much of the target it alone explains"
    )
    rows: float = field(metadata=real(least=0))
    """Joined rows of the client's rows."""
    missing: Array = field(metadata=array("float64", "features", least=0))
    """Joined rows where the feature is NULL."""
    distinct: Array = field(metadata=array("int64", "features", least=0))
    """Number of its different values; 0 for an array."""
    low: Array = field(metadata=array("float64", "features", finite=False))
    """Least value of numbers such that at least `least` rows have it or a smaller one."""
    high: Array = field(metadata=array("float64", "features", finite=False))
    mean: Array = field(metadata=array("float64", "features", finite=False))
    explained: Array = field(metadata=array("float64", "features", finite=False))
    """Between groups of rows that are alike in the feature: Σ n (mean of the target)²."""
    groups: Array = field(metadata=array("int64", "features", least=0))
    apart: float = field(metadata=real(least=0))
    """The same sum with all rows of the client as one group, against which each group was
    measured.
    """
