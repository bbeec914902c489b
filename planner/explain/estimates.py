"""Estimates of a plan's rounds and bytes, before anything runs.

The formulas of the plan's messages are evaluated with numbers from the catalog where it has them,
and with usual numbers elsewhere. They are estimates: only the formulas hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlfl.contract.schema import Client
from sqlfl.messages import SumGradient
from sqlfl.messages.disclosed import MASKED, row_by_row
from sqlfl.models.kinds import ANY_CLASSES, kind_of
from sqlfl.options.batch import Batch
from sqlfl.options.training import TrainingOptions
from sqlfl.planner.explain.totals import NAMES
from sqlfl.planner.federated.exchanges import DOWN, UP
from sqlfl.planner.federated.method_spec import spec_of
from sqlfl.planner.federated.plan import FederatedPlan
from sqlfl.planner.federated.sizes import Size, Symbol
from sqlfl.planner.query.ucq import CATEGORY, Slot

CATEGORIES = 20
"""Usual categories of a feature."""
CLASSES = 3
"""Usual classes of a target whose classes the statement does not list."""
MERGED = 20
"""Rows with equal features, usually at most, where these are trained as one."""
TEXT_BYTES = 10
"""Usual bytes of a class, an identifier or a category."""


@dataclass(frozen=True)
class Estimates:
    """Estimated rounds of a plan, and bytes that leave each party."""

    rounds: tuple[int, int]
    """Least and greatest usual number of rounds in which numbers are sent for each row."""
    most_rounds: int | None
    """Maximum number of rounds; None if the options set none."""
    bytes: Mapping[str, tuple[int, int]]
    """Party -> bytes that leave it, at least and at most; without parties whose number of rows is
    unknown."""


def estimated(plan: FederatedPlan) -> Estimates:
    """Return the estimates of a plan."""
    few, many = usual_epochs(plan)
    low, high = _Guess(plan, few, most=False), _Guess(plan, many)
    most = _Guess(plan, _most_epochs(plan))
    sizes = zip(_sent(plan, low).items(), _sent(plan, high).values(), strict=True)
    return Estimates(
        (_rounds(plan, low), _rounds(plan, high)),
        _rounds(plan, most) if many < _most_epochs(plan) else None,
        {party: (small, large) for (party, small), large in sizes if small and large},
    )


def _sent(plan: FederatedPlan, guess: _Guess) -> dict[str, int]:
    """Return party -> bytes that leave it; 0 if its number of rows is unknown."""
    sizes: dict[str, list[int | None]] = {}
    for item in plan.exchanges:
        for send in item.sends:
            if send.direction == UP and send.kind not in NAMES and plan.crosses(send.client):
                size = guess.value(item.times * send.bytes)
                sizes.setdefault(send.client.party, []).append(size)
    return {
        party: 0 if None in parts else sum(size for size in parts if size is not None)
        for party, parts in sizes.items()
    }


def rows_of(slot: Slot, client: Client | None = None) -> int | None:
    """Return the estimated rows of a slot's tables, of all clients or of one; None if unknown."""
    fragments = [
        f for f in (slot.fragments if client is None else slot.of(client)) if not f.virtual
    ]
    known = [f.rows for f in fragments if not f.links]
    return sum(n for n in known if n is not None) if None not in known else None


def usual_epochs(plan: FederatedPlan) -> tuple[int, int]:
    """Return the usual numbers of epochs of a training; (1, 1) if nothing is trained."""
    if not plan.algorithm:
        return 1, 1
    most = _most_epochs(plan)
    usual = spec_of(plan.algorithm).usual_epochs
    few, many = (most, most) if usual is None else usual
    return min(few, most), min(many, most)


def _most_epochs(plan: FederatedPlan) -> int:
    if plan.tuning is not None:
        return max(candidate.options.epochs for candidate in plan.tuning.candidates)
    return plan.epochs or 1


def _rounds(plan: FederatedPlan, guess: _Guess) -> int:
    """Return the rounds in which numbers are sent for each row, at the busiest client and slot."""
    times: dict[tuple[Client, int], int] = {}
    kinds = (row_by_row(plan.algorithm) | MASKED) - {SumGradient.kind}  # a part of its round
    for item in plan.exchanges:
        for send in item.sends:
            if send.direction == DOWN and send.kind in kinds:
                number = guess.value(item.times) or 0
                place = send.client, send.slot
                times[place] = times.get(place, 0) + number
    return max(times.values(), default=0)


class _Guess:
    """Values of symbols for a number of epochs. `most`: whether all rows differ, and all their
    keys.
    """

    def __init__(self, plan: FederatedPlan, epochs: int, *, most: bool = True) -> None:
        self._plan, self._most = plan, most
        known = [rows_of(slot) for slot in plan.ucq.slots]
        self._joined = max((rows for rows in known if rows is not None), default=None)
        fits = 1 if plan.tuning is None else plan.tuning.fits
        several = kind_of(plan.kind).target == ANY_CLASSES
        classes = CLASSES if several else 2
        if plan.privacy is not None and plan.privacy.label_classes:
            classes = len(plan.privacy.label_classes)
        batch = self._batch()
        batches = 1 if batch is None or not self._joined else math.ceil(self._joined / batch)
        steps = epochs * batches * fits
        once: Mapping[str, int] = {
            "outputs": classes if several else 1,
            "classes": classes,
            "class_text": TEXT_BYTES * classes,
            "rounds": epochs * fits,
            "steps": steps,
            "sums": steps,
            "settled": fits,
            "proofs": fits,
            "mergers": fits,
            "exact": 0,
            "renewals": 0,
            "updates": 5 * fits,
            "checkpoints": epochs // (self._checkpoint() or epochs + 1),
            "probes": 5,
            "run": 16,
            "configuration": 1_000,
            "names": 1_000,
            "described": 1,
            "select_text": 200,
            "column_text": 100,
            "column_names": 5,
            "request_text": 2_000,
            "schema_text": 1_000,
            **dict.fromkeys(
                ("vocabulary", "merged_vocabulary", "frequent", "merged_frequent"), CATEGORIES
            ),
        }
        batched = ("batch", "first_batch", "first_listed", "stepped", "listed")
        rows = ("rows", "active", "told")
        self._roles: dict[str, Callable[[Symbol], int | None]] = {
            **{role: (lambda s, n=number: n) for role, number in once.items()},  # type: ignore[misc]
            **dict.fromkeys(rows, self._rows),
            **dict.fromkeys(batched, lambda s: self._within(s, batch)),
            "trained": self._trained,
            "tags": self._tags,
            "new_column": lambda s: self._new_column(s, epochs),
            "joined": lambda s: self._joined,
            "written": lambda s: self._joined,
            "identifiers": self._identifiers,
            "columns": lambda s: self._numeric(s) + self._onehot(s),
            "block_columns": lambda s: self._numeric(s) + self._onehot(s),
            "numeric": self._numeric,
            "onehot": self._onehot,
            **dict.fromkeys(("pairs", "stored", "crossed", "merged_stored"), self._pairs),
            **dict.fromkeys(
                ("chosen", "chosen_in_all"),
                lambda s: min(epochs, self._numeric(s) + self._onehot(s)),
            ),
            "packed": lambda s: self._packed(batch),
        }

    def value(self, size: Size) -> int | None:
        """Return the value of a size; None if it depends on an unknown number of rows."""
        bindings: dict[str, int] = {}
        for symbol in size.symbols:
            known = self._roles.get(symbol.role)
            number = None if known is None else known(symbol)
            if number is None:
                return None
            bindings[symbol.name] = number
        return max(0, size.evaluate(bindings))

    def _slot(self, symbol: Symbol) -> Slot:
        return self._plan.ucq.slots[symbol.slot or 0]

    def _rows(self, symbol: Symbol) -> int | None:
        return rows_of(self._slot(symbol), symbol.client)

    def _trained(self, symbol: Symbol) -> int | None:
        """Return the rows that differ in a feature: of merged rows, one in MERGED at least."""
        rows = self._rows(symbol)
        merged = not self._most and self._plan.merges
        return -(-rows // MERGED) if rows is not None and merged else rows

    def _tags(self, symbol: Symbol) -> int | None:
        """Return the distinct values of a key: at least those of the smallest of its tables."""
        rows = self._rows(symbol)
        if self._most or rows is None:
            return rows
        others = (rows_of(slot) for slot in self._plan.ucq.slots if symbol.part in slot.keys)
        return min([rows, *(number for number in others if number is not None)])

    def _new_column(self, symbol: Symbol, epochs: int) -> int | None:
        """Return the numbers of a new column, on average: each column is sent once."""
        rows, columns = self._rows(symbol), self._numeric(symbol) + self._onehot(symbol)
        return None if rows is None else rows * min(columns, epochs) // epochs

    def _within(self, symbol: Symbol, batch: int | None) -> int | None:
        rows = self._rows(symbol)
        return rows if rows is None or batch is None else min(rows, batch)

    def _identifiers(self, symbol: Symbol) -> int | None:
        rows = self._rows(symbol)
        return None if rows is None else TEXT_BYTES * rows * len(self._slot(symbol).identifiers)

    def _numeric(self, symbol: Symbol) -> int:
        return sum(f.width for f in self._slot(symbol).features if f.kind != CATEGORY)

    def _onehot(self, symbol: Symbol) -> int:
        return CATEGORIES * sum(f.kind == CATEGORY for f in self._slot(symbol).features)

    def _pairs(self, symbol: Symbol) -> int:
        columns = self._onehot(symbol)
        return columns * (columns + 1) // 2

    def _packed(self, batch: int | None) -> int | None:
        """Return the bytes of a sum's masked numbers: 2 to 4 for each output of a tower and row."""
        tower, rows = self._plan.tower, self._joined
        if rows is None:
            return None
        outputs = 1 if tower is None or tower.outputs is None else tower.outputs
        return (4 if self._most else 2) * outputs * (rows if batch is None else min(rows, batch))

    def _batch(self) -> int | None:
        options = self._plan.options
        if not isinstance(options, TrainingOptions) or self._joined is None:
            return None
        batch: Batch | None = getattr(options.method, "batch_size", None)
        return None if batch is None else batch.of(self._joined)

    def _checkpoint(self) -> int | None:
        options = self._plan.options
        return options.checkpoint if isinstance(options, TrainingOptions) else None
