"""Whose the blocks of trained models are: of the analyst whose run it was."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from typing import TypeAlias

from sqlfl import messages as ms
from sqlfl.errors import PolicyError
from sqlfl.guard.records import Records
from sqlfl.guard.runs import Serve

Outside: TypeAlias = ms.Keep | ms.Drop | ms.Collect


class Models:
    """here : the runs that this coordinator has blocks of at the client.

    What lasts is noted in the owner's database before it is kept. Blocks of runs from before the
    owner had policies, and of such as named no analyst, are nobody's: only the owner removes them.
    """

    def __init__(self, records: Records, analyst: str, here: Callable[[], Collection[str]]) -> None:
        self._records, self._analyst, self._here = records, analyst, here
        self._own: set[str] = set()
        """Runs of this session."""

    def add(self, run: str) -> None:
        """It is the analyst's."""
        if self._analyst:
            self._own.add(run)

    def is_known(self, run: str) -> bool:
        """Somebody's, of this session or noted."""
        return run in self._own or bool(self._noted(run))

    def serve(self, request: Outside, answer: Serve) -> ms.Message:
        """Raises PolicyError for blocks that are not the analyst's, but for `Collect`, which leaves
        them."""
        match request:
            case ms.Collect():
                others = (run for run in self._here() if not self._is_own(run))
                return answer(replace(request, models=(*request.models, *others)))
            case ms.Keep() if request.model in self._own:
                self._note(request.model)
                return answer(request)
            case ms.Drop() if self._is_own(request.model):
                return answer(request)
            case ms.Drop() if request.model not in self._here():
                return ms.Ready(request.run, request.slot)
        raise PolicyError(
            f"a run whose blocks are to be {_DONE[request.kind]} is not one of this analyst's",
            hint="the analyst whose run it was keeps and drops them, or the owner deletes them",
        )

    def _is_own(self, run: str) -> bool:
        return run in self._own or self._analyst in self._noted(run)

    def _note(self, run: str) -> None:
        if self._noted(run):
            return
        with self._records.writing() as cursor:
            row = (run, self._analyst, dt.datetime.now(dt.UTC))
            self._records.insert(cursor, "models", row)

    def _noted(self, run: str) -> list[str]:
        """The analyst that it is noted as a run of; none where it is not."""
        with closing(self._records.cursor()) as cursor:
            rows = self._records.rows(
                cursor, "SELECT analyst FROM t WHERE run = $run", "models", {"run": run}
            )
        return [analyst for (analyst,) in rows]


_DONE = {ms.Keep.kind: "kept", ms.Drop.kind: "dropped"}
