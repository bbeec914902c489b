"""Rehearsals: runs that a party serves from synthetic rows, and never from its tables.

After `Rehearse`, the messages of a run go to a stand-in. This is a client like any other, over a
database in memory. That has the tables that the run's fragments name, with columns of the same
types. The stand-in has no connection to the party's own database, no blocks of its models and none
of its secrets.

The name of such a run marks it. So no message of it is served in another way, whatever else the
party has forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import duckdb

from sqlfl import messages as ms
from sqlfl.base.errors import Error
from sqlfl.governance.scopes import ScopeColumn
from sqlfl.party.cursors import Cursors
from sqlfl.party.sketches import sketched
from sqlfl.udfs import sql
from sqlfl.udfs.describe import describe, place_of, use
from sqlfl.udfs.sandbox import staged

MOST = 8
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
        while len(self._all) >= MOST:  # their owner may be gone
            self.end(next(iter(self._all)))
        self._all[run] = make()
        return self._all[run].server

    def serve(self, request: ms.Message) -> ms.Message:
        if request.run in self._all:
            return self._all[request.run].server.serve(request)
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
    shown: Callable[[ScopeColumn], bool],
    make: Callable[[duckdb.DuckDBPyConnection], Served],
) -> StandIn:
    """Return a stand-in that `make` makes from a connection to a database with synthetic rows for
    the run's fragments. From the client's own database it reads names and types of columns that may
    be `shown`.

    Raise Error for fragments whose columns it cannot determine, and for types without synthetic
    values.
    """
    cursor = cursors.begin()
    try:
        place = place_of(cursor)
        tables = sketched(cursor, place, request, shown)
    finally:
        cursors.end(cursor)
    with sql.observed(None):  # the client's database runs nothing of this
        con = staged(tables, place)
        try:
            _check(con, place, request)
            return StandIn(make(con), con.close)
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
