"""Rehearsals: runs that a party serves from synthetic rows, and never from its tables.

After `Rehearse`, the messages of a run go to a stand-in. This is a client like any other, over a
database in memory. That has the tables that the run's fragments name, with columns of the same
types. The stand-in has no connection to the party's own database, no blocks of its models and none
of its secrets.

The name of such a run marks it. So no message of it is served in another way, whatever else the
party has forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import duckdb

from sqlfl import messages as ms
from sqlfl.base.codec import loads
from sqlfl.base.errors import Error, PolicyError
from sqlfl.contract.fragment_columns import ROW
from sqlfl.contract.request import Request, request_from_json
from sqlfl.contract.schema import SlotSpecification, specifications_from_json
from sqlfl.governance.fragments import roles_of
from sqlfl.governance.names import NameLookup, every_function
from sqlfl.governance.open_runs import RehearsalRules, in_time
from sqlfl.governance.policies import JOIN, LABEL, TRAIN
from sqlfl.governance.scopes import ScopeColumn, SelectOutput, Table
from sqlfl.governance.tree import DECIDED, SelectReading, read
from sqlfl.models.kinds import TWO_CLASSES, kind_of
from sqlfl.party.cursors import Cursors
from sqlfl.udfs import sql
from sqlfl.udfs.describe import describe, place_of, types_of, use
from sqlfl.udfs.synthetic import SyntheticColumn, staged

LABELS, WEIGHTS = (1.0, 10.0), (1.0, 2.0)
"""Default bounds of numbers: logarithms of them exist."""
CLASSES = ("1", "2", "3")
BOOLEAN = "BOOLEAN"
MAX_BOUND = 1e15
"""Maximum of bounds."""


def sketched(
    cursor: sql.Connection,
    place: tuple[str, str],
    request: ms.Rehearse,
    shown: Callable[[ScopeColumn], bool],
) -> dict[Table, dict[str, tuple[str, SyntheticColumn]]]:
    """Return, for each table that the fragments name, the named columns that may be shown, with
    type and use.

    `place` is the database and the schema of names without them. Only names of tables are bound,
    and nothing runs. Raise Error if the columns of a fragment cannot be determined.
    """
    names, functions = NameLookup(lambda: cursor, place), every_function(cursor)
    proposal = request_from_json(request.request)
    uses = _Uses(proposal)
    texts = iter(request.fragments)
    for item in specifications_from_json(request.specification):
        for _ in item.fragments:
            text = next(texts, "")
            try:
                reading = read(cursor, text, names.table, functions)
            except PolicyError as error:
                why = error.message.removesuffix(DECIDED)
                raise Error(
                    f"of what a query reads no rows can be made up: {why}",
                    hint="a view that has it as columns can be rehearsed",
                ) from error
            uses.add(item, reading)
    if next(texts, None) is not None:
        raise Error("more fragments came than the slots have")
    return {table: dict(_typed(cursor, table, uses, shown)) for table in sorted(uses.tables)}


def _typed(
    cursor: sql.Connection, table: Table, uses: _Uses, shown: Callable[[ScopeColumn], bool]
) -> Iterator[tuple[str, tuple[str, SyntheticColumn]]]:
    for name, kind in types_of(cursor, table).items():
        column = ScopeColumn(table, name)
        if column in uses.named and shown(column):
            yield name, (kind, uses.use(column, kind))


@dataclass
class _Uses:
    """Uses of columns, gathered over all fragments of a client."""

    request: Request
    tables: set[Table] = field(default_factory=set)
    named: set[ScopeColumn] = field(default_factory=set)
    keys: set[ScopeColumn] = field(default_factory=set)
    bounds: dict[ScopeColumn, tuple[float, float]] = field(default_factory=dict)
    listed: dict[ScopeColumn, tuple[str, ...]] = field(default_factory=dict)
    classes: set[ScopeColumn] = field(default_factory=set)
    """Labels without further information."""
    beside: dict[ScopeColumn, set[str | None]] = field(default_factory=dict)

    def add(self, item: SlotSpecification, reading: SelectReading) -> None:
        self.tables |= reading.tables
        self.named |= reading.named | reading.links
        self.keys |= reading.equal
        for column, text in reading.beside:
            self.beside.setdefault(column, set()).add(text)
        roles = roles_of(item, reading.outputs)
        for place, (role, output) in enumerate(zip(roles, reading.outputs, strict=True)):
            if role == ROW or output.whole is not None:
                continue
            if role == JOIN:
                self.keys |= output.reads
            elif role == TRAIN:
                self._feature(item, place, output)
            elif role == LABEL and item.target and place == len(item.features):
                self._label(item, output)
            elif role == LABEL and output.same is not None:
                self.bounds[output.same] = WEIGHTS

    def _feature(self, item: SlotSpecification, place: int, output: SelectOutput) -> None:
        public = item.privacy.bounds if item.privacy is not None else ()
        bounds = public[place] if public else None
        if output.same is not None and bounds:
            self._bound(output.same, bounds)

    def _label(self, item: SlotSpecification, output: SelectOutput) -> None:
        noise = item.privacy.label if item.privacy is not None else None
        if output.same is None:
            for column in output.reads:
                self.bounds.setdefault(column, LABELS)
        elif noise is not None:
            self._bound(output.same, noise.classes or noise.bounds or LABELS)
        elif not item.classes:
            self.bounds[output.same] = LABELS
        elif weighed := _weighed(self.request):
            self.listed[output.same] = weighed
        else:
            self.classes.add(output.same)

    def _bound(self, column: ScopeColumn, public: Sequence[float] | Sequence[str]) -> None:
        texts = tuple(value for value in public if isinstance(value, str))
        numbers = [value for value in public if not isinstance(value, str)]
        if texts:
            self.listed[column] = texts
        elif len(numbers) == 2 and all(abs(number) <= MAX_BOUND for number in numbers):
            self.bounds[column] = min(numbers), max(numbers)
        else:
            raise Error(f"the bounds of {column.name} are no two numbers up to {MAX_BOUND:g}")

    def use(self, column: ScopeColumn, kind: str) -> SyntheticColumn:
        listed = self.listed.get(column, ())
        if column in self.classes and kind != BOOLEAN:
            two = kind_of(self.request.kind).target == TWO_CLASSES
            listed = CLASSES[: 2 if two else 3]
        beside = self.beside.get(column, set())
        return SyntheticColumn(
            key=column in self.keys,
            bounds=self.bounds.get(column),
            listed=listed,
            beside=tuple(sorted(beside, key=lambda text: (text is not None, text or ""))),
        )


def _weighed(request: Request) -> tuple[str, ...]:
    """Return the classes to which the statement gives weights."""
    options = loads(request.options)
    first = options[0] if isinstance(options, list) and options else None
    weights = first.get("class_weight") if isinstance(first, dict) else None
    return tuple(weights) if isinstance(weights, dict) else ()


MAX_REHEARSALS = 8
"""Maximum rehearsals of a client at once: a further one ends the first."""


class Served(Protocol):
    """Server of a rehearsal's messages."""

    def serve(self, request: ms.Message) -> ms.Message: ...
    def interrupt(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class StandIn:
    """Stand-in of one run."""

    server: Served
    seconds: float | None = None
    """Maximum seconds of each request; None without a limit."""
    end: Callable[[], None] = lambda: None
    """Removes its data."""

    def close(self) -> None:
        self.server.interrupt()
        try:
            self.server.close()
        finally:
            self.end()


class Rehearsals:
    """Rehearsals of one client, by the names of the runs."""

    def __init__(self) -> None:
        self._all: dict[str, StandIn] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def begin(self, run: str, make: Callable[[], StandIn]) -> Served:
        """Start a rehearsal. Raise Error if none of that name can start."""
        if not run.startswith(ms.REHEARSAL):
            raise Error(f"the name of a rehearsal begins with {ms.REHEARSAL}")
        if run in self._all:
            raise Error("a rehearsal of this name has begun already")
        while len(self._all) >= MAX_REHEARSALS:  # their owner may be gone
            self.end(next(iter(self._all)))
        self._all[run] = make()
        return self._all[run].server

    def serve(self, request: ms.Message) -> ms.Message:
        """Return the stand-in's reply. A request that takes too long ends its rehearsal. Raise
        Error where none of that name has begun, or it is over.
        """
        stand_in = self._all.get(request.run)
        if stand_in is not None:
            server = stand_in.server
            if stand_in.seconds is None:
                return server.serve(request)
            work, ends = partial(server.serve, request), lambda _: self.end(request.run)
            return in_time(request, stand_in.seconds, server.interrupt, work, ends)
        if isinstance(request, ms.Finish):
            return ms.Ready(request.run, request.slot)
        raise Error("no rehearsal of this name has begun, or it is over")

    def end(self, run: str) -> None:
        stand_in = self._all.pop(run, None)
        if stand_in is not None:
            stand_in.close()

    def interrupt(self) -> None:
        for stand_in in tuple(self._all.values()):
            stand_in.server.interrupt()

    def close(self) -> None:
        for run in tuple(self._all):
            self.end(run)


def standing_in(
    cursors: Cursors,
    request: ms.Rehearse,
    rules: RehearsalRules,
    make: Callable[[duckdb.DuckDBPyConnection], Served],
) -> StandIn:
    """Return a stand-in that `make` makes from a connection to a database with synthetic rows for
    the run's fragments. From the client's own database it reads names and types of columns that
    `rules` lets it show.

    Raise Error for fragments whose columns it cannot determine, and for types without synthetic
    values.
    """
    cursor = cursors.begin()
    try:
        place = place_of(cursor)
        tables = sketched(cursor, place, request, rules.may_show)
    finally:
        cursors.end(cursor)
    with sql.observed(None):  # the client's database runs nothing of this
        con = staged(tables, place)
        try:
            _check(con, place, request)
            return StandIn(make(con), rules.seconds, con.close)
        except BaseException:
            con.close()
            raise


def _check(con: duckdb.DuckDBPyConnection, place: tuple[str, str], request: ms.Rehearse) -> None:
    """Raise Error for a fragment that needs more than a database without extensions, macros and
    types of its own.
    """
    with closing(con.cursor()) as cursor:
        use(cursor, place)
        for text in request.fragments:
            try:
                describe(cursor, text)
            except (duckdb.BinderException, duckdb.CatalogException) as error:
                raise Error(
                    "a rehearsal has the tables that a query names, and no macros, types and "
                    f"extensions of its database: {str(error).splitlines()[0]}",
                    hint="a view that has the expression as a column can be rehearsed",
                ) from error
