"""Open runs of a guard: the time limits of their requests, and their ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.base.interrupts import limited
from sqlfl.governance.ledger import Ledger
from sqlfl.governance.policy_evaluation import has
from sqlfl.governance.runs import GovernedRun
from sqlfl.governance.scopes import ScopeColumn
from sqlfl.options.policies import TrainingPolicy
from sqlfl.options.types import written_length

T = TypeVar("T")
AFTER = (ms.Finish, ms.Seal, ms.Keep, ms.Drop, ms.Collect, ms.CloseJoin)
"""Requests that may still come of a run that has ended."""


@dataclass(frozen=True)
class RehearsalRules:
    """Rules for a rehearsal."""

    may_show: Callable[[ScopeColumn], bool] = lambda column: True
    """Returns whether a column's name and type may be shown."""
    seconds: float | None = None
    """Maximum seconds of each request; None without a limit."""


class OpenRuns:
    """Open runs. ends : forgets a run at the party. `stop` : ends the request being answered, from
    another thread.
    """

    def __init__(
        self, ends: Callable[[str], None], stop: Callable[[], None], ledger: Ledger
    ) -> None:
        self._ends, self._stop, self._ledger = ends, stop, ledger
        self._runs: dict[str, GovernedRun] = {}
        self._ended: dict[str, str] = {}
        """Runs that were ended by a rule, with the rule, until they are finished."""

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, name: str) -> GovernedRun | None:
        return self._runs.get(name)

    def begin(self, name: str, run: GovernedRun) -> None:
        run.heard = time.monotonic()
        self._runs[name] = run

    def finish(self, name: str) -> None:
        """End the run, and return its reservations of which nothing has left."""
        self._ended.pop(name, None)
        ended = self._runs.pop(name, None)
        if ended is not None and ended.reserved:
            self._ledger.settle(ended.reserved, ended.left)

    def check(self, request: ms.Message) -> None:
        """End the runs that were silent for long. Raise PolicyError if the request belongs to a run
        that was ended.
        """
        now = time.monotonic()
        for name, run in tuple(self._runs.items()):
            if now > run.heard + run.every.lease:
                lease = has(f"lease = '{written_length(run.every.lease)}'")
                self._end(name, f"{lease}, and nothing was heard of this run for longer")
        if request.run in self._ended and not isinstance(request, AFTER):
            raise PolicyError(self._ended[request.run])

    def in_time(
        self, request: ms.Message, rules: TrainingPolicy, work: Callable[[], ms.Message]
    ) -> ms.Message:
        """Return the result of the work, as `in_time` does. The request's run ends with it, because
        the work may have left it half changed.
        """
        reply = in_time(request, rules.seconds, self._stop, work, partial(self._end, request.run))
        run = self._runs.get(request.run)
        if run is not None:
            run.heard = time.monotonic()
        return reply

    def _end(self, name: str, rule: str) -> None:
        self._ends(name)
        self.finish(name)
        if name:
            self._ended[name] = rule


def in_time(
    request: ms.Message,
    seconds: float,
    stop: Callable[[], None],
    work: Callable[[], T],
    ends: Callable[[str], None],
) -> T:
    """Return the result of the work, which `stop` ends, from another thread, after so many seconds.
    Then `ends` receives the rule, and PolicyError is raised.
    """
    failure: Exception | None = None
    with limited(seconds, stop) as deadline:
        try:
            reply = work()
        except Exception as error:
            if not deadline.passed:
                raise
            failure = error
    # committed writes cannot be undone
    if failure is None and (not deadline.passed or isinstance(request, ms.Commit)):
        return reply
    rule = f"{has(f'seconds = {seconds:g}')}, and {request.kind} took longer"
    ends(rule)
    raise PolicyError(rule, hint="ask for fewer rows or columns; or ask its owner") from failure
