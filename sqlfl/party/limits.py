"""What the guard of a party's database asks of a slot, and tells it."""

from __future__ import annotations

from sqlfl.errors import InternalError
from sqlfl.party.slot_state import SlotState
from sqlfl.privacy.second_moments import moments_sensitivity
from sqlfl.udfs.cells import smallest


def shape(state: SlotState) -> tuple[int, int | None]:
    """Categories of a feature of the slot, at most, and rows of its smallest cell."""
    largest = max(map(len, state.encoded().vocabularies), default=0)
    return largest, smallest(state.snapshot)


def limit(state: SlotState, squared_mu: float) -> None:
    """Training of the slot, which has begun, releases no more of a row than that. Raises
    PolicyError where it has already, or where its noise is of another kind."""
    if state.operator is None or state.operator.guard is None or state.engine is None:
        raise InternalError(f"slot {state.specification.slot} releases without noise")
    guard, sensitivity = state.operator.guard, 0.0
    if guard.privacy.moments_noise:
        categories = sum(f.kind == "category" for f in state.specification.features)
        largest = float(state.engine.counts.max(initial=0.0))
        sensitivity = moments_sensitivity(largest, guard.privacy.row_bound, categories)
    guard.limit(squared_mu, sensitivity)
