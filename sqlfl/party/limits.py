"""Facts about a slot for the guard of a party's database, and the limits that the guard sets."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError
from sqlfl.contract.configuration import NUMBER, Extent
from sqlfl.contract.schema import SlotSpecification
from sqlfl.governance.runs import StartFacts
from sqlfl.party.operator import client_of
from sqlfl.party.requests import check_options
from sqlfl.party.slot_state import SlotState
from sqlfl.privacy.block_moments import moments_sensitivity
from sqlfl.udfs import sql
from sqlfl.udfs.connection import size_of
from sqlfl.udfs.encoding.cells import RowCounts, rare_feature
from sqlfl.udfs.encoding.curves import CellLimits
from sqlfl.udfs.labels.label_noise import drawn_rows


class SlotLimits:
    """Facts and limits of a client's runs (sqlfl.governance.runs.GuardedSlots)."""

    def __init__(
        self,
        find: Callable[[str, int], SlotState],
        draws: Callable[[SlotSpecification], bytes],
    ) -> None:
        self._find, self.draws = find, draws

    def categories(self, run: str, slot: int) -> int:
        """Return the maximum number of categories of a feature of the slot."""
        return max(map(len, self._find(run, slot).encoded().vocabularies), default=0)

    def govern(
        self, run: str, slot: int, least: int, most: int, ratio: float | None, rows: Array
    ) -> None:
        """Limit cells that the client makes of the values of active rows: `least` rows of a table
        in each, at most `most` of a feature; all columns are at most `ratio` of the active rows.

        rows: (a,), rows of a table that each active row stands for.
        """
        columns = None if ratio is None else int(ratio * np.count_nonzero(rows))
        state = self._find(run, slot)
        state.limits, state.passed = CellLimits(least, most, columns, rows), None

    def rare(
        self, run: str, slot: int, counted: RowCounts, computed: Collection[int], least: int
    ) -> tuple[str, str] | None:
        """Return a feature with a cell of fewer than `least` rows, and the reason
        (sqlfl.udfs.encoding.cells). Each value is checked only once."""
        state = self._find(run, slot)
        state.join_few()
        looked_at = (state.snapshot.fits, frozenset(computed), least)
        if state.passed == looked_at:
            return None
        rare = rare_feature(state.snapshot, counted, computed, least)
        if rare is None:
            state.passed = looked_at
        return rare

    def room(self, run: str, slot: int, method: str, configuration: str, most: int) -> StartFacts:
        """Return what training with this configuration does and takes, if a block changes `most`
        times. Raise InternalError for options out of range.
        """
        state = self._find(run, slot)
        configured = client_of(method).configuration.from_json(configuration)
        check_options(configured)
        encoding, rows = state.encoded(), state.snapshot.active
        room_of = dict(configured.room(Extent(rows, encoding.width, encoding.numeric), most))
        pairs = max((feature.pairs for feature in state.specification.features), default=0)
        if state.specification.engine == "arrays":
            # columns, and for each category the place of a 1
            room_of["engine"] = NUMBER * rows * (encoding.numeric + 2 * len(encoding.vocabularies))
        if pairs:
            room_of["TRANSFORM (auto(pairs))"] = NUMBER * rows * (encoding.numeric + 3 * pairs)
        tower = configured.tower is not None
        return StartFacts(room_of, configured.passes, tower, configured.outputs, configured.shared)

    def memory(self, run: str, slot: int) -> int | None:
        """Return memory_limit of the database; None without it."""
        con = self._find(run, slot).snapshot.con
        ((text,),) = sql.fetch(con, _MEMORY)
        return size_of(text)

    def taken(self, run: str, slot: int) -> tuple[Array, Array]:
        return self._find(run, slot).snapshot.taken()

    def drawn(self, run: str, slot: int) -> tuple[Array, Array]:
        """Return the source of the slot's label draws
        (sqlfl.udfs.labels.label_noise.drawn_rows).
        """
        return drawn_rows(self._find(run, slot).snapshot)

    def limit(self, run: str, slot: int, squared_mu: float, somebodys: Array) -> None:
        """Limit the releases of a row in training of the slot, which has begun. Rows that are not
        `somebodys`, bool (a,), hold no data. Raise PolicyError if more has been released, or for
        noise of another kind.
        """
        state = self._find(run, slot)
        if state.operator is None or state.operator.guard is None or state.engine is None:
            raise InternalError(f"slot {state.specification.slot} releases without noise")
        guard, sensitivity = state.operator.guard, 0.0
        if guard.privacy.moments_noise and not guard.solved:
            categories = sum(f.kind == "category" for f in state.specification.features)
            largest = float(state.engine.counts[somebodys].max(initial=0.0))
            sensitivity = moments_sensitivity(largest, guard.privacy.row_bound, categories)
        guard.limit(squared_mu, sensitivity, somebodys)


_MEMORY = sql.constant(sql.query("SELECT current_setting('memory_limit') AS memory_limit"))
