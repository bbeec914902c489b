"""Owners of the blocks of trained models: the analyst of the run; and their use."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from sqlfl import messages as ms
from sqlfl.base.errors import PolicyError
from sqlfl.governance.noising import budgets_of
from sqlfl.governance.policies import LASTING, TRAIN, Lock, Ruling, locks_of
from sqlfl.governance.policy_evaluation import has
from sqlfl.governance.records import Records, time_of
from sqlfl.governance.runs import Serve
from sqlfl.governance.scopes import ASK, Table
from sqlfl.options.policies import EXACT, strictest
from sqlfl.udfs import sql

UNKNOWN: Table = ("", "", "not noted")
"""Stands for the tables of a model of which they are not noted, or not the analyst's to know."""
Outside: TypeAlias = ms.Keep | ms.Drop | ms.Collect


@dataclass(frozen=True)
class TrainedModel:
    """Facts about a model."""

    run: str
    analyst: str
    name: str
    tables: frozenset[Table]
    """Tables of its features at this client."""
    at: dt.datetime
    """Time of its training."""


class Models:
    """Models of a client. here : runs of which this coordinator has blocks at the client.

    Lasting models are recorded in the owner's database before they are kept. Some blocks are
    nobody's: those of runs from before the owner had policies, and of runs without an analyst. Only
    the owner removes these.
    """

    def __init__(self, records: Records, analyst: str, here: Callable[[], Collection[str]]) -> None:
        self._records, self._analyst, self._here = records, analyst, here
        self._own: dict[str, TrainedModel] = {}
        """Runs of this session."""
        self._unrecorded: set[str] = set()
        """Runs of this session without a record of their models."""
        self._locks: tuple[int, float, Sequence[Lock]] | None = None
        """Number of changes and time when these were read, and they."""

    def add(self, run: str, tables: Iterable[Table] = (), name: str = "") -> None:
        """Record a run of the analyst, with features of these tables."""
        if self._analyst:
            now = dt.datetime.now(dt.UTC)
            self._own[run] = TrainedModel(run, self._analyst, name, frozenset(tables), now)

    def begin(self, run: str, tables: Iterable[Table]) -> None:
        """Record a run that begins, of whose name no blocks were kept."""
        self.add(run, tables)
        self._unrecorded.add(run)

    def saved(self, request: ms.Save) -> None:
        """Record that a block of the analyst's run is held under this name."""
        begun = self._own.get(request.run)
        self.add(request.model, () if begun is None else begun.tables, request.name)

    def tables(self, run: str) -> frozenset[Table]:
        """Return the tables of the features of a model that training starts from: UNKNOWN where
        they are not noted, or the model is not the analyst's. Whatever is trained further holds its
        weights.
        """
        model = self._find(run)
        return frozenset({UNKNOWN}) if model is None or not self._is_own(run) else model.tables

    def is_of_session(self, run: str) -> bool:
        """Return True if the analyst has begun it, or saved such a block, in this session."""
        return run in self._own

    def is_recorded(self, run: str, cursor: sql.Connection) -> bool:
        """Return True if blocks of this name were kept, whoever's; `cursor`: one of the records."""
        return bool(_analysts(self._records, cursor, run))

    def know(self, changes: int, now: float, locks: Sequence[Lock]) -> None:
        """Take the owner's locks, read after so many changes, at this time."""
        self._locks = changes, now, locks

    def check_weights(self, run: str, ruling: Ruling) -> None:
        """Raise PolicyError if its weights are not for this analyst, or no longer."""
        self._check_tables(run, ruling)

    def check_statistics(self, run: str, ruling: Ruling) -> int:
        """Return the minimum number of rows that a statistic of its rows of training must be of.
        Raise PolicyError if such statistics, as means, are not for this analyst. The policies of
        these tables decide it, whatever rows they are compared with.
        """
        least = 1
        for table in self._check_tables(run, ruling):
            rules = strictest(ruling.rules([table]))
            budgets = budgets_of(ruling.rules([table]), ruling.total_rules(table))
            if rules.moments != EXACT or budgets:
                rule = f"moments = '{rules.moments}'"
                if budgets:
                    rule = f"{budgets[0].rule} = {budgets[0].epsilon:g}"
                said = f"{has(rule)}, for {'.'.join(table[1:])}, which the model was trained on"
                raise PolicyError(said, hint=ASK)
            least = max(least, rules.min_cell)
        return least

    def _check_tables(self, run: str, ruling: Ruling) -> list[Table]:
        """Return the tables that the model was trained on. Raise PolicyError if it is not one of
        this analyst's, and unless TRAIN on each of its tables is granted.
        """
        self.check_unlocked(run)
        if not self._is_own(run):
            raise PolicyError(
                "a model whose weights or statistics are asked for is not one of this analyst's"
            )
        model = self._find(run)
        if model is None or UNKNOWN in model.tables:
            raise PolicyError(
                "it is not noted which tables a model, whose weights or statistics are asked for, "
                "was trained on",
                hint="train it again: models from before that was noted tell neither",
            )
        for table in sorted(model.tables):
            if not any(grant.roles.columns.get(TRAIN) for grant in ruling.of(table)):
                raise PolicyError(
                    f"TRAIN on {'.'.join(table[1:])}, which the model was trained on, is not "
                    f"granted to {self._analyst} any more",
                    hint=ASK,
                )
        return sorted(model.tables)

    def check_unlocked(self, run: str) -> None:
        """Raise PolicyError if the owner has locked the model (REVOKE ... AND MODELS)."""
        model = self._find(run)
        if model is None:
            return
        for lock in self._current_locks():
            if lock.holds(model.analyst, model.tables, model.at):
                raise PolicyError(
                    f"its owner has locked models that {model.analyst} has trained on "
                    f"{'.'.join(lock.table[1:])}",
                    hint="train it again, where that is granted",
                )

    def _current_locks(self) -> Sequence[Lock]:
        changes, now, known = Records.changes, time.monotonic(), self._locks
        if known is None or known[0] != changes or now > known[1] + LASTING:
            with closing(self._records.cursor()) as cursor:
                known = self._locks = changes, now, locks_of(self._records, cursor)
        return known[2]

    def serve(self, request: Outside, answer: Serve) -> ms.Message:
        """Answer the request. Raise PolicyError for blocks that are not the analyst's, except for
        `Collect`, which leaves them.
        """
        match request:
            case ms.Collect():
                before = tuple(self._here())
                others = (run for run in before if not self._is_own(run))
                reply = answer(replace(request, models=(*request.models, *others)))
                self._forget({*before} - {*self._here()})
                return reply
            case ms.Keep() if request.model in self._own:
                self._note(self._own[request.model])
                return answer(request)
            case ms.Drop() if self._is_own(request.model):
                reply = answer(request)
                self._forget([request.model])
                return reply
            case ms.Drop() if request.model not in self._here():
                return ms.Ready(request.run, request.slot)
        raise PolicyError(
            f"a run whose blocks are to be {_DONE[request.kind]} is not one of this analyst's",
            hint="the analyst whose run it was keeps and drops them, or the owner deletes them",
        )

    def _is_own(self, run: str) -> bool:
        return run in self._own or self._analyst in self._noted(run)

    def _note(self, model: TrainedModel) -> None:
        if self._noted(model.run):
            return
        self._unrecorded.discard(model.run)
        with self._records.writing() as cursor:
            row = (model.run, self._analyst, dt.datetime.now(dt.UTC))
            self._records.insert(cursor, "models", row)
            for table in sorted(model.tables) or [("", "", "")]:
                told = (model.run, self._analyst, model.name, *table, model.at, None)
                self._records.insert(cursor, "trained", told)

    def _noted(self, run: str) -> list[str]:
        """Return the recorded analyst of the run; none without a record."""
        with closing(self._records.cursor()) as cursor:
            return _analysts(self._records, cursor, run)

    def _find(self, run: str) -> TrainedModel | None:
        if run in self._own:
            return self._own[run]
        with closing(self._records.cursor()) as cursor:
            return next(iter(models_of(self._records, cursor, run)), None)

    def _forget(self, runs: Collection[str]) -> None:
        """Record that their blocks are gone."""
        gone = [run for run in runs if run not in self._unrecorded and self._noted(run)]
        if gone:
            with self._records.writing() as cursor:
                self._records.rows(
                    cursor,
                    "UPDATE t SET dropped_at = $now "
                    "WHERE list_contains($runs, run) AND dropped_at IS NULL",
                    "trained",
                    {"now": dt.datetime.now(dt.UTC), "runs": gone},
                )


def models_of(records: Records, cursor: sql.Connection, run: str = "") -> list[TrainedModel]:
    """Return the kept models, in the order of their training; or the one of the run, even if it was
    dropped.
    """
    rows = records.rows(
        cursor,
        """SELECT run, analyst, model, epoch_us(trained_at), list("database"), list("schema"),
        list(name) FROM t WHERE run = $run OR ($run = '' AND dropped_at IS NULL)
        GROUP BY ALL ORDER BY 4, 1""",
        "trained",
        {"run": run},
    )
    return [
        TrainedModel(
            model_run,
            analyst,
            name,
            frozenset(table for table in zip(*tables, strict=True) if table[2]),
            time_of(at),
        )
        for model_run, analyst, name, at, *tables in rows
    ]


def _analysts(records: Records, cursor: sql.Connection, run: str) -> list[str]:
    rows = records.rows(cursor, "SELECT analyst FROM t WHERE run = $run", "models", {"run": run})
    return [analyst for (analyst,) in rows]


_DONE = {ms.Keep.kind: "kept", ms.Drop.kind: "dropped"}


def without_small_cells(reply: ms.Message, min_cell: int) -> ms.Message:
    """Curves without the points that fewer rows of the table are at. The rows of all points of a
    feature are known: so those left out are two and have `min_cell` rows together at least.
    """
    assert isinstance(reply, ms.Curves)
    shown = reply.rows >= min_cell
    names = np.array(reply.features)
    for name in np.unique(names[~shown & (reply.rows > 0)]):
        own = np.flatnonzero((names == name) & (reply.rows > 0))
        own = own[np.argsort(reply.rows[own], kind="stable")]
        few = int((~shown[own]).sum())
        enough = int(np.searchsorted(np.cumsum(reply.rows[own]), min_cell)) + 1
        shown[own[: max(few, enough, 2)]] = False
    kept = np.flatnonzero(shown)
    return replace(
        reply,
        features=tuple(reply.features[n] for n in kept),
        values=tuple(reply.values[n] for n in kept),
        kinds=reply.kinds[kept],
        effects=reply.effects[kept],
        errors=reply.errors[kept],
        rows=reply.rows[kept],
    )
