"""Open runs of a guard: the time limits of their requests, and their ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.base.interrupts import limited
from sqlfl.governance.ledger import Ledger
from sqlfl.governance.policy_evaluation import has
from sqlfl.governance.runs import GovernedRun
from sqlfl.options.policies import TrainingPolicy
from sqlfl.options.types import written_length

AFTER = (ms.Finish, ms.Seal, ms.Keep, ms.Drop, ms.Collect, ms.CloseJoin)
"""Requests that may still come of a run that has ended."""


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
        """Return the result of the work. A request that exceeds the time limit is ended, and so is
        its run, because the work may have left it half changed.
        """
        failure: Exception | None = None
        with limited(rules.seconds, self._stop) as deadline:
            try:
                reply = work()
            except Exception as error:
                if not deadline.passed:
                    raise
                failure = error
        # committed writes cannot be undone
        if failure is None and (not deadline.passed or isinstance(request, ms.Commit)):
            run = self._runs.get(request.run)
            if run is not None:
                run.heard = time.monotonic()
            return reply
        rule = f"{has(f'seconds = {rules.seconds:g}')}, and {request.kind} took longer"
        self._end(request.run, rule)
        raise PolicyError(rule, hint="ask for fewer rows or columns; or ask its owner") from failure

    def _end(self, name: str, rule: str) -> None:
        self._ends(name)
        self.finish(name)
        if name:
            self._ended[name] = rule
