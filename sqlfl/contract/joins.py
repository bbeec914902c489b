"""Joins that last: what their statements have in common."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from sqlfl.contract.schema import SlotSpecification


@dataclass(frozen=True)
class JoinUse:
    """Use of a join that lasts by one statement."""

    id: str
    name: str
    made: str
    """Time at which the join was made, in words."""
    kept: frozenset[int] = frozenset()
    """Slots whose rows are those of earlier statements, and whose keys were sent for them."""
    labels: bool = False
    """True if the coordinator has the targets of these rows from an earlier statement."""


def rows_of(item: SlotSpecification, fragments: tuple[str, ...]) -> Hashable:
    """Return what the rows of a slot's snapshot, and their numbers, follow from. Statements with
    equal ones can share a snapshot.

    >>> from sqlfl.contract.schema import SlotSpecification
    >>> one = SlotSpecification(0, (), False, False, (), (), (0,), False, "organisation", "sql")
    >>> rows_of(one, ("FROM t",)) == rows_of(replace(one, shared=True), ("FROM t",))
    True
    """
    noised = item.privacy is not None and item.privacy.label is not None
    features = tuple((f.raw.kind, f.raw.width) for f in item.features)
    plain = replace(
        item,
        features=(),
        shared=False,
        secret="",
        split=0.0,
        weighted=False,
        warm=None,
        name="",
        device=None,
        privacy=None,
        combination=None,
        secure=False,
        masked_predictions=False,
    )
    return plain, features, noised, fragments
