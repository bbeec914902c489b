"""Statements at an analyst's desk, whichever client they come from."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sqlfl.base.errors import Error
from sqlfl.base.progress import ProgressStep
from sqlfl.base.result import Result
from sqlfl.federation.script import Values, whole
from sqlfl.planner.grammar import statements as st
from sqlfl.service.analyst_sessions import AnalystSession, stepping
from sqlfl.service.status import ServiceStatus

log = logging.getLogger("sqlfl.service")

_HERE = (st.ExportModel, st.ImportModel)
"""Statements whose files would be the coordinator's, and whose blocks are at the parties."""


def run_statement(
    desk: AnalystSession,
    board: ServiceStatus,
    text: str,
    parameters: Values = None,
    stepped: Callable[[ProgressStep], None] = lambda step: None,
) -> Result:
    """Run a statement at the desk, and show it on the board. Raises the statement's errors."""
    statement = whole(text, parameters).statement()
    if isinstance(statement, _HERE):
        raise Error(
            f"{_verb(statement)} MODEL is not built for parties on other machines: no message "
            "carries a block of a model",
            hint="where a party's database is, a federation of that process's own exports it",
        )
    running = board.begin(desk.study, desk.analyst, _verb(statement))
    known = {"study": desk.study, "analyst": desk.analyst, "statement": running.number}
    log.info("%s begins", running.verb, extra=known)

    def tell(step: ProgressStep) -> None:
        running.step(step)
        stepped(step)

    how, error = "failed", None
    try:
        with stepping(tell):
            result = desk.federation.sql(text, parameters)
        how = "done"
        return result
    except KeyboardInterrupt:
        how = "stopped"
        raise
    except Error as problem:
        error = problem.message
        raise
    finally:
        board.end(running, how, error)
        log.info("%s: %s after %.1f s", running.verb, how, running.seconds, extra=known)


class Runs(Protocol):
    """A federation, whose coordinator is in this process or elsewhere."""

    def sql(self, text: str, parameters: Values = None) -> Result: ...

    def result_schema(self, text: str, parameters: Values = None) -> pa.Schema: ...

    @property
    def parties(self) -> tuple[str, ...]: ...

    def tables(self) -> Result: ...


class DeskStatements:
    """Statements of a desk's analyst for a client that has no stream. most : that run at once."""

    def __init__(self, desk: AnalystSession, board: ServiceStatus, most: int) -> None:
        self._desk, self._board, self._most = desk, board, most

    def sql(self, text: str, parameters: Values = None) -> Result:
        """Run one statement, as `Federation.sql`. Raise Error too where many are running."""
        busy = self._desk.begin(self._most)
        if busy is not None:
            raise busy
        try:
            self._desk.admit()
            with self._desk.placed(text):
                return run_statement(self._desk, self._board, text, parameters)
        finally:
            self._desk.end()

    def result_schema(self, text: str, parameters: Values = None) -> pa.Schema:
        """As `Federation.result_schema`."""
        self._desk.admit()
        with self._desk.placed(text):
            return self._desk.federation.result_schema(text, parameters)

    @property
    def parties(self) -> tuple[str, ...]:
        self._desk.admit()
        return self._desk.federation.parties

    def tables(self) -> Result:
        self._desk.admit()
        return self._desk.federation.tables()


@dataclass(frozen=True)
class Caller:
    """Whose call of Flight SQL it is."""

    name: str
    """No other caller of the server has it."""
    federation: Runs
    works: Callable[[], AbstractContextManager[object]] = nullcontext
    """Block in which the server works, and waits for nothing of the client."""
    heard: Callable[[], object] = lambda: None
    """Called when the client has sent or taken something."""


def _verb(statement: st.Statement) -> str:
    """Return the verb, such as 'TRAIN' of a `TrainModel`. The text's first word may be a comment,
    so it is not used.
    """
    return re.split("(?<!^)(?=[A-Z])", type(statement).__name__)[0].upper()
