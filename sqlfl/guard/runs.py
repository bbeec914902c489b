"""A run that a party has let begin: which messages may come, how often, and of which rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from sqlfl import messages as ms
from sqlfl.arrays import Array
from sqlfl.errors import PolicyError
from sqlfl.guard.judging import refusal
from sqlfl.guard.ledger import FEATURES, LABELS
from sqlfl.options.policies import TrainingPolicy
from sqlfl.request import Request

Serve: TypeAlias = Callable[[ms.Message], ms.Message]
Shape: TypeAlias = Callable[[str, int], "tuple[int, int | None]"]
"""Of a run's slot, once it is encoded: how many categories a feature has at most, and how many rows
its smallest cell."""
Limit: TypeAlias = Callable[[str, int, float], None]
"""Of a run's slot, once it is started: what training may release."""
BEFORE = (ms.SendKeys, ms.Activate)
"""What may come before a slot's active rows are told."""
MEASURING = (ms.Activate, ms.Weigh, ms.SetRanges, ms.SetEncoding, ms.Start)
"""From when on something noised of features may leave."""


class GovernedRun:
    """What was checked when it was proposed holds of all that follows.

    rules : for each slot the strictest of its tables' policies, `every` that of all. `allowed` :
    μ² that training may release of a row of a slot, where an account is kept. `left` : what
    something has left of, as the ledger calls it.
    """

    def __init__(
        self,
        request: Request,
        rules: Mapping[int, TrainingPolicy],
        every: TrainingPolicy,
        shape: Shape,
        limit: Limit,
        allowed: Mapping[int, float],
    ) -> None:
        self.rules, self.every = rules, every
        self._request, self._shape = request, shape
        self._limit, self._allowed = limit, allowed
        self.left: set[str] = set()
        self._most = request.often()
        self._asked: Counter[tuple[int, str]] = Counter()
        self._rows: dict[int, int] = {}
        self._single: dict[int, int] = {}

    def prepared(self, slot: int, rows: Array) -> None:
        """rows: of each fragment of the slot's snapshot. Raises PolicyError where they are few."""
        # the row that stands for partners that a LEFT JOIN does not find is nobody's
        self._single[slot] = int((rows <= 1).sum())
        least = self.rules[slot].min_rows
        if int(rows[rows > 1].sum()) < least:
            raise refusal(f"min_rows = {least}")

    def serve(self, request: ms.Message, answer: Serve) -> ms.Message:
        rules = self.rules.get(request.slot, self.every)
        self._count(request, rules)
        if request.slot >= 0 and not isinstance(request, BEFORE) and request.slot not in self._rows:
            raise PolicyError(f"{request.kind} before the rows that are joined are told")
        if isinstance(request, ms.Activate):
            self._check_active(request, rules)
        elif isinstance(request, ms.Write):
            self._check_into(request)
        elif isinstance(request, ms.Start) and request.method != self._request.algorithm:
            raise _beyond(f"training by {request.method}")
        reply = answer(request)
        if isinstance(request, MEASURING):
            self.left.add(FEATURES)
        if isinstance(request, ms.Activate):
            self._rows[request.slot] = len(request.rows) - self._single.get(request.slot, 0)
        if isinstance(request, ms.Start):
            assert isinstance(reply, ms.Ready)
            self._check_encoded(request, reply.width, rules)
            if request.slot in self._allowed:
                self._limit(request.run, request.slot, self._allowed[request.slot])
        if isinstance(reply, ms.Labels):
            _check_classes(reply, rules)
            self.left.add(LABELS)
        return reply

    def _count(self, request: ms.Message, rules: TrainingPolicy) -> None:
        key = (request.slot, request.kind)
        if key not in self._most:
            raise _beyond(f"message {request.kind} of slot {request.slot}")
        self._asked[key] += 1
        if self._asked[key] > self._most[key]:
            raise _beyond(f"message {request.kind} more than {self._most[key]:g} times")
        if sum(n for (slot, _), n in self._asked.items() if slot == request.slot) > rules.rounds:
            raise refusal(f"rounds = {rules.rounds}")

    def _check_active(self, request: ms.Activate, rules: TrainingPolicy) -> None:
        if int(request.counts.sum(dtype=np.int64)) > request.total:
            raise PolicyError("rows that are told active count more than all that are joined")
        if len(request.rows) - self._single.get(request.slot, 0) < rules.min_rows:
            raise refusal(f"min_rows = {rules.min_rows}, of rows that are joined")
        if rules.max_fan_out is not None and (request.counts > rules.max_fan_out).any():
            raise refusal(f"max_fan_out = {rules.max_fan_out}")

    def _check_encoded(self, request: ms.Start, width: int, rules: TrainingPolicy) -> None:
        largest, cell = self._shape(request.run, request.slot)
        if cell is not None and cell < rules.min_cell:
            raise refusal(f"min_cell = {rules.min_cell}, of values of features")
        if largest > rules.max_categories:
            raise refusal(f"max_categories = {rules.max_categories}")
        ratio = rules.max_parameter_ratio
        if ratio is not None and width > ratio * self._rows.get(request.slot, 0):
            raise refusal(f"max_parameter_ratio = {ratio:g}")

    def _check_into(self, request: ms.Write) -> None:
        schema = request.table[1] if len(request.table) == 3 else ""
        if self.every.into is None or schema.lower() != self.every.into.lower():
            told = "none" if self.every.into is None else f"'{self.every.into}'"
            raise refusal(f"into = {told}")


def _check_classes(reply: ms.Labels, rules: TrainingPolicy) -> None:
    if reply.classes:
        counts = np.bincount(reply.codes)
        if (counts[counts > 0] < rules.min_cell).any():
            raise refusal(f"min_cell = {rules.min_cell}, of classes of the target")


def _beyond(what: str) -> PolicyError:
    return PolicyError(
        f"{what} is not of the run that was proposed",
        hint="a run is what its proposal says; another one is proposed anew",
    )
