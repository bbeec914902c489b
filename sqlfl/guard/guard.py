"""What a party lets an analyst's coordinator do: by what its owner has granted, checked here.

Where the owner has made no policy, all is served as it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TypeVar

import duckdb
import numpy as np

from sqlfl import messages as ms
from sqlfl.errors import Error, PolicyError
from sqlfl.fragment_columns import BASE, KEPT, ROW
from sqlfl.guard.functions import Functions, functions_of
from sqlfl.guard.governance import (
    IDENTIFY,
    JOIN,
    LABEL,
    TRAIN,
    Governance,
    Ruling,
    definition_of,
)
from sqlfl.guard.names import Names
from sqlfl.guard.scopes import ASK, Column, Output, Table, unknown
from sqlfl.guard.tree import NEUTRAL, Reading, read
from sqlfl.options.policies import NEVER, TrainingPolicy, strictest
from sqlfl.schema import (
    SlotSpecification,
    specifications_from_json,
    tables_from_json,
    tables_to_json,
)
from sqlfl.udfs import sql
from sqlfl.udfs.describe import current_place

Serve = Callable[[ms.Message], ms.Message]
T = TypeVar("T")
MOMENTS = (
    ms.SendGram, ms.SendRotated, ms.SendErrors, ms.SendProfile, ms.SendExplained, ms.SendSkew,
    ms.SendStatistics,
)  # fmt: skip
SCORES = (
    ms.Score, ms.ScorePermuted, ms.SendContributions, ms.SendRotated, ms.SendErrors, ms.SendSkew,
)  # fmt: skip
"""Of a saved block over rows: what PREDICT is granted for."""
ONCE = (
    ms.SendKeys, ms.Activate, ms.SendLabels, ms.SendWeights, ms.SendSplit, ms.SendFolds,
    ms.SetRanges, ms.SetEncoding, ms.SendFindings, ms.SendProfile, ms.SendIdentifiers, ms.Score,
    ms.SendRotated, ms.SendErrors, ms.SendContributions, ms.SendSkew, ms.Write,
)  # fmt: skip
"""Of a slot in a run: what is told a second time, of other rows or models, tells more."""
MOST_FRAGMENTS = 256
"""Of one run."""


@dataclass
class _Run:
    """What was checked when a run began."""

    ruling: Ruling
    tables: dict[int, frozenset[Table]]
    """That each slot reads."""
    rules: dict[int, TrainingPolicy]
    """For each slot the strictest of its tables' policies."""
    every: TrainingPolicy
    active: dict[int, int] = field(default_factory=dict)
    folds: bool = False
    """Training begins several times."""
    asked: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Requests by kind and slot."""
    single: dict[int, int] = field(default_factory=dict)
    """Fragments of each slot that have one row at most."""


class Guard:
    """Of one client: `serve` answers a request by `answer`, or raises PolicyError.

    analyst : who uses the coordinator; empty where it does not say. `ends` forgets a run; `shape`
    tells of a run's slot, once it is encoded, how many categories a feature has at most, and how
    many rows its smallest cell.
    """

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        analyst: str,
        ends: Callable[[str], None],
        shape: Callable[[str, int], tuple[int, int | None]],
    ) -> None:
        self._con, self._analyst, self._ends, self._shape = con, analyst, ends, shape
        self._place = current_place(con)
        self._governance = Governance(con, self._place[0])
        self._functions: Functions | None = None
        self._runs: dict[str, _Run] = {}
        self._seen: set[str] = set()

    def serve(self, request: ms.Message, answer: Serve, *, combined: bool) -> ms.Message:
        if isinstance(request, ms.Finish):
            self._runs.pop(request.run, None)
            return answer(request)
        if not isinstance(request, _ASKED):
            run = self._runs.get(request.run)
            return answer(request) if run is None else self._in_run(request, run, answer)
        ruling = self._governance.ruling(self._analyst)
        if ruling is None:
            return answer(request)
        if combined:
            raise PolicyError(
                "its owner has made training policies, and these are not built for databases "
                "that a party combines"
            )
        if not self._analyst:
            raise PolicyError(
                "its owner has made training policies, and the federation names no analyst to "
                "whom something might be granted",
                hint="sqlfl.connect(analyst='name')",
            )
        match request:
            case ms.ListTables():
                return self._listed(request, answer, ruling)
            case ms.Describe():
                self._check_bound(request.select, ruling)
                return self._bound(lambda: answer(request))
            case ms.Prepare():
                return self._prepared(request, answer, ruling)
            case ms.SendBlock():
                if _strictest(ruling, None).weights == NEVER:
                    raise self._refusal("weights = 'never'")
        return answer(request)

    # -- planning ---------------------------------------------------------------------------------

    def _listed(self, request: ms.ListTables, answer: Serve, ruling: Ruling) -> ms.Message:
        """Granted columns of granted tables are all that there is."""
        reply = answer(request)
        assert isinstance(reply, ms.Tables)
        places, tables, fleeting = tables_from_json(reply.tables)
        kept = []
        for table in tables:
            path = (
                table.catalog or self._place[0],
                table.schema or self._place[1],
                table.name,
            )
            granted = ruling.columns(path)
            columns = tuple(c for c in table.columns if c.name in granted)
            if columns:
                kept.append(replace(table, columns=columns, rows=_about(table.rows)))
        schemas = {(t.catalog or self._place[0], t.schema or self._place[1]) for t in kept}
        own = tuple(
            place for place in places
            if (place.catalog, place.schema) in {*schemas, self._place}
        )  # fmt: skip
        return replace(reply, tables=tables_to_json(own, tuple(kept), fleeting))

    def _check_bound(self, select: str, ruling: Ruling) -> None:
        """It is not run: each column must be granted for something."""
        with closing(sql.waiting(self._con.cursor)) as cursor:
            reading = self._read(cursor, select, ruling)
        every = {c for output in reading.outputs for c in output.reads}
        for column in sorted({*every, *reading.filters, *reading.links}):
            if not ruling.may_any(column):
                raise unknown(column.name)

    # -- a run ------------------------------------------------------------------------------------

    def _prepared(self, request: ms.Prepare, answer: Serve, ruling: Ruling) -> ms.Message:
        slots = specifications_from_json(request.specification)
        if request.run in self._seen:
            raise PolicyError("a run of this name was there before: each has one of its own")
        if len(request.fragments) > MOST_FRAGMENTS:
            raise PolicyError(f"{len(request.fragments)} fragments; {MOST_FRAGMENTS} are taken")
        tables: dict[int, frozenset[Table]] = {}
        with closing(sql.waiting(self._con.cursor)) as cursor:
            start = 0
            for item in slots:
                texts = request.fragments[start : start + len(item.fragments)]
                start += len(item.fragments)
                read_ = [self._check_fragment(cursor, item, text, ruling) for text in texts]
                tables[item.slot] = frozenset().union(*(own.tables for own in read_))
        rules = {slot: _strictest(ruling, own) for slot, own in tables.items()}
        run = _Run(ruling, tables, rules, _strictest(ruling, frozenset().union(*tables.values())))
        for item in slots:
            if (item.target or item.weight) and rules[item.slot].labels == NEVER:
                raise self._refusal("labels = 'never'")
            if item.identifiers and rules[item.slot].identifiers == NEVER:
                raise self._refusal("identifiers = 'never'")
        reply = self._bound(lambda: answer(request))
        assert isinstance(reply, ms.Prepared)
        start = 0
        for item in slots:
            counted = reply.rows[start : start + len(item.fragments)]
            start += len(item.fragments)
            # the row that stands for partners that a LEFT JOIN does not find is nobody's
            run.single[item.slot] = int((counted <= 1).sum())
            if int(counted[counted > 1].sum()) < run.rules[item.slot].min_rows:
                self._ends(request.run)
                raise self._refusal(f"min_rows = {run.rules[item.slot].min_rows}")
        self._runs[request.run] = run
        self._seen.add(request.run)
        run.folds = any(item.folds for item in slots)
        return reply

    def _check_fragment(
        self, cursor: sql.Connection, item: SlotSpecification, text: str, ruling: Ruling
    ) -> Reading:
        reading = self._read(cursor, text, ruling)
        for role, output in zip(_roles(item, reading.outputs), reading.outputs, strict=True):
            if role == JOIN:
                self._check_key(output, ruling)
                continue
            if role in (BASE, ROW, KEPT):
                # a row is drawn by all that it has; whether it is kept is a condition
                others = [] if role != BASE or output.whole is not None else sorted(output.reads)
                for column in others:
                    if not ruling.may_any(column):
                        raise unknown(column.name)
                continue
            for column in sorted(output.reads):
                if not ruling.may(role, column):
                    raise self._not_granted(ruling, column, role.upper())
        for column in sorted(reading.filters):
            if not ruling.may(TRAIN, column):
                raise self._not_granted(ruling, column, "TRAIN, as a condition on its values takes")
        for column in sorted(reading.links):
            if not ruling.may_any(column):
                raise unknown(column.name)
        return reading

    def _check_key(self, output: Output, ruling: Ruling) -> None:
        """A column that is granted for it, normalised at most: hashes of values of one's choice
        would be a dictionary of other parties' keys."""
        if output.constant in NEUTRAL and not output.reads:
            return
        if output.same is None or output.reads != {output.same}:
            raise PolicyError(
                "a join key is to be a column that is granted for JOIN, at most in lower or upper "
                "case or trimmed",
                hint="the owner may grant a view that has the expression as a column",
            )
        if not ruling.may(JOIN, output.same):
            raise self._not_granted(ruling, output.same, "JOIN")

    def _in_run(self, request: ms.Message, run: _Run, answer: Serve) -> ms.Message:
        rules = run.rules.get(request.slot, run.every)
        self._count(request, run, rules)
        if isinstance(request, MOMENTS) and rules.moments == NEVER:
            raise self._refusal("moments = 'never'")
        if isinstance(request, SCORES):
            self._check_predict(run.ruling, run.tables.get(request.slot, frozenset()))
        match request:
            case ms.Activate():
                self._check_active(request, run, rules)
            case ms.Start():
                algorithms = rules.algorithms
                if algorithms is not None and request.method not in algorithms:
                    raise self._refusal(f"algorithms = {list(algorithms)}")
                reply = answer(request)
                assert isinstance(reply, ms.Ready)
                self._check_encoded(request, reply.width, run, rules)
                return reply
            case ms.Write():
                self._check_into(request, run)
            case ms.SendLabels():
                reply = answer(request)
                assert isinstance(reply, ms.Labels)
                self._check_classes(reply, rules)
                return reply
        return answer(request)

    def _count(self, request: ms.Message, run: _Run, rules: TrainingPolicy) -> None:
        if isinstance(request, ms.Commit):
            return
        run.asked[request.kind, request.slot] += 1
        once = isinstance(request, ONCE) or (isinstance(request, ms.Start) and not run.folds)
        if once and run.asked[request.kind, request.slot] > 1:
            raise PolicyError(f"{request.kind} is answered once in a run")
        if sum(n for (_, slot), n in run.asked.items() if slot == request.slot) > rules.rounds:
            raise self._refusal(f"rounds = {rules.rounds}")

    def _check_classes(self, reply: ms.Labels, rules: TrainingPolicy) -> None:
        if reply.classes:
            counts = np.bincount(reply.codes)
            if (counts[counts > 0] < rules.min_cell).any():
                raise self._refusal(f"min_cell = {rules.min_cell}, of classes of the target")

    def _check_active(self, request: ms.Activate, run: _Run, rules: TrainingPolicy) -> None:
        rows = len(request.rows) - run.single.get(request.slot, 0)
        run.active[request.slot] = rows
        if rows < rules.min_rows:
            raise self._refusal(f"min_rows = {rules.min_rows}, of rows that are joined")
        if rules.max_fan_out is not None and (request.counts > rules.max_fan_out).any():
            raise self._refusal(f"max_fan_out = {rules.max_fan_out}")

    def _check_encoded(
        self, request: ms.Start, width: int, run: _Run, rules: TrainingPolicy
    ) -> None:
        largest, cell = self._shape(request.run, request.slot)
        if cell is not None and cell < rules.min_cell:
            raise self._refusal(f"min_cell = {rules.min_cell}, of values of features")
        if largest > rules.max_categories:
            raise self._refusal(f"max_categories = {rules.max_categories}")
        ratio = rules.max_parameter_ratio
        if ratio is not None and width > ratio * run.active.get(request.slot, 0):
            raise self._refusal(f"max_parameter_ratio = {ratio:g}")

    def _check_predict(self, ruling: Ruling, tables: Iterable[Table]) -> None:
        for table in sorted(tables):
            if not any(g.roles.predict for g in ruling.of(table)):
                raise PolicyError(
                    f"PREDICT on {'.'.join(table[1:])} is not granted to {self._analyst}",
                    hint=ASK,
                )

    def _check_into(self, request: ms.Write, run: _Run) -> None:
        schema = request.table[1] if len(request.table) == 3 else ""
        if run.every.into is None or schema.lower() != run.every.into.lower():
            told = "none" if run.every.into is None else f"'{run.every.into}'"
            raise self._refusal(f"into = {told}")

    # -- names ------------------------------------------------------------------------------------

    def _read(self, cursor: sql.Connection, text: str, ruling: Ruling) -> Reading:
        if self._functions is None:
            self._functions = functions_of(cursor)
        names = Names(cursor, self._place)
        checked: set[Table] = set()

        def columns(parts: object) -> tuple[Table, tuple[str, ...]] | None:
            found = names.table(parts)  # type: ignore[arg-type]
            grants = () if found is None else ruling.of(found[0])
            if found is None or not grants:
                return None
            if found[0] not in checked:
                checked.add(found[0])
                now = definition_of(cursor, found[0])
                if any(grant.definition != now for grant in grants):
                    raise PolicyError(
                        f"view {'.'.join(found[0][1:])}, or what it reads, is another one than "
                        "when it was granted",
                        hint="the owner looks at it, and grants it again",
                    )
            return found

        return read(cursor, text, columns, self._functions)

    def _bound(self, work: Callable[[], T]) -> T:
        """What DuckDB says of names may tell of others than those that are granted."""
        try:
            return work()
        except (duckdb.BinderException, duckdb.CatalogException) as error:
            raise Error(
                "its database cannot bind what it was asked, though all of it is granted: an "
                "expression does not fit the types of its columns"
            ) from error

    def _not_granted(self, ruling: Ruling, column: Column, role: str) -> PolicyError:
        if not ruling.may_any(column):
            return unknown(column.name)
        return PolicyError(
            f"column {column.name} of {'.'.join(column.table[1:])} is not granted to "
            f"{self._analyst} for {role}",
            hint=ASK,
        )

    def _refusal(self, rule: str) -> PolicyError:
        return PolicyError(f"its owner's policy has {rule}", hint=ASK)


_ASKED = (ms.ListTables, ms.Describe, ms.Prepare, ms.SendBlock)
"""Requests for which grants are looked at anew."""


def _roles(item: SlotSpecification, outputs: tuple[Output, ...]) -> list[str]:
    """What each output of a fragment is for: by its place, as that is how it is taken."""
    parts = sum(len(key.types) for key in item.keys)
    found = [TRAIN] * len(item.features) + [LABEL] * (item.target + item.weight)
    found += [BASE] * item.base + [IDENTIFY] * len(item.identifiers) + [JOIN] * parts
    if len(outputs) == len(found) + 1 and outputs[-1].name == KEPT:
        return [*found, KEPT]
    found = found or [ROW]
    if len(outputs) != len(found):
        raise PolicyError(f"a fragment of {len(outputs)} columns, of {len(found)}")
    return found


def _about(rows: int | None) -> int | None:
    """To one digit: what the choice of an engine needs."""
    return None if rows is None else int(float(f"{rows:.0e}"))


def _strictest(ruling: Ruling, tables: Iterable[Table] | None) -> TrainingPolicy:
    """Over these tables, or over all that is granted to the analyst."""
    own = [grant.table for grant in ruling.grants] if tables is None else tables
    rules = ruling.rules(own)
    return strictest(rules or ruling.policies.values())
