"""What has left of each table, noised: an account for each granted table and analyst, in the schema
`sqlfl` of the party's records.

Each run writes entries of its own. An entry is reserved before anything of it leaves, and given
back only where nothing of it has: a run that fails, is killed, or is never finished leaves what it
has reserved. The ε of an account is that of all its entries together (sqlfl.privacy.accountant);
noise that is drawn once for ever counts once among those that were not given back.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias

from sqlfl.errors import PolicyError
from sqlfl.guard.records import Records, time_of
from sqlfl.guard.scopes import Table
from sqlfl.privacy.accountant import epsilon_of
from sqlfl.privacy.events import Event, Gaussian, Pure, Threshold
from sqlfl.udfs import sql

RESERVED, SPENT, RETURNED = "reserved", "spent", "returned"
LABELS, FEATURES = "labels", "features"
TRIES = 200


@dataclass(frozen=True)
class Budget:
    """Of the rows of one table, for one analyst or for all together."""

    epsilon: float
    delta: float
    seconds: float | None
    """Of any window of this length; None for ever."""
    total: bool = False
    """Of all analysts together."""

    @property
    def rule(self) -> str:
        """The rule of a policy that it is of."""
        return "epsilon_total" if self.total else "epsilon"


Asking: TypeAlias = "tuple[tuple[Table, tuple[Budget, ...], tuple[Entry, ...]], ...]"
"""What a run asks of accounts: tables, their budgets, and what leaves of a row of each."""


@dataclass(frozen=True)
class Entry:
    """Of one run, and one table: what leaves of a row, at most."""

    what: str
    """LABELS or FEATURES."""
    multiplier: float = 0.0
    """Of normal noise, σ/Δ of all releases together, 1/μ; 0 where there are none."""
    epsilon: float = 0.0
    """Of pure mechanisms together."""
    delta: float = 0.0
    """Of thresholds."""
    identity: str = ""
    """Noise that is drawn once for ever: entries of the same one are one release."""

    def events(self) -> Iterator[Event]:
        if self.multiplier:
            yield Gaussian(self.what, self.multiplier)
        if self.epsilon:
            yield Pure(self.what, self.epsilon)
        if self.delta:
            yield Threshold(self.what, self.delta)


@dataclass(frozen=True)
class Account:
    analyst: str
    table: Table
    entries: tuple[Entry, ...]
    """Those that count now."""

    def after(self, entries: tuple[Entry, ...]) -> Account:
        """Return the account with these entries too."""
        return replace(self, entries=(*self.entries, *entries))

    def epsilon(self, delta: float) -> float:
        return account_epsilon(self.entries, delta)


def account_epsilon(entries: Iterable[Entry], delta: float) -> float:
    """Return the ε at which all together are (ε, delta)-DP."""
    events = [event for entry in _distinct(entries) for event in entry.events()]
    return epsilon_of(events, delta) if events else 0.0


def _distinct(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Each draw once."""
    known: set[str] = set()
    for entry in entries:
        if entry.identity not in known:
            yield entry
        if entry.identity:
            known.add(entry.identity)


class Ledger:
    def __init__(self, records: Records) -> None:
        self._records = records

    def check(self, analyst: str, asked: Asking) -> None:
        """Raises PolicyError where these would pass a budget."""
        with closing(self._records.cursor()) as cursor:
            for table, budgets, entries in asked:
                self._check(cursor, analyst, table, budgets, entries)

    def reserve(self, run: str, analyst: str, asked: Asking) -> tuple[int, ...]:
        """Write all of the run's entries, or none, and return their numbers. Raises PolicyError
        where they would pass a budget."""
        numbers: list[int] = []

        def work(cursor: sql.Connection, _: int) -> None:
            numbers.clear()
            ((last,),) = self._records.rows(cursor, "SELECT max(number) FROM t", "ledger")
            number = last or 0
            for table, budgets, entries in asked:
                self._check(cursor, analyst, table, budgets, entries)
                for entry in entries:
                    number += 1
                    row = (
                        number, run, analyst, *table, entry.what, entry.multiplier, entry.epsilon,
                        entry.delta, entry.identity, RESERVED, dt.datetime.now(dt.UTC), None,
                    )  # fmt: skip
                    self._records.insert(cursor, "ledger", row)
                    numbers.append(number)

        self._records.in_turn(work)
        return tuple(numbers)

    def settle(self, numbers: Collection[int], left: Iterable[str]) -> None:
        """End the entries of these numbers: of `left` something has left, of others nothing.

        A run's name does not tell its entries: another coordinator may give a run the same one.
        """
        kept = set(left)

        def work(cursor: sql.Connection, _: int) -> None:
            for what in (LABELS, FEATURES):
                self._records.rows(
                    cursor,
                    "UPDATE t SET state = $state, ended_at = $now "
                    "WHERE list_contains($numbers, number) AND what = $what "
                    "AND state = 'reserved'",
                    "ledger",
                    {
                        "state": SPENT if what in kept else RETURNED,
                        "now": dt.datetime.now(dt.UTC),
                        "numbers": list(numbers),
                        "what": what,
                    },
                )

        self._records.in_turn(work)

    def account(self, analyst: str, table: Table, budget: Budget) -> Account:
        """Return what counts now; `analyst` does not matter of a budget of all."""
        with closing(self._records.cursor()) as cursor:
            return Account(analyst, table, self._entries(cursor, analyst, table, budget))

    def accounts(self) -> tuple[tuple[str, Table], ...]:
        """Return the analyst and the table of each account of one analyst."""
        with closing(self._records.cursor()) as cursor:
            rows = self._records.rows(
                cursor,
                'SELECT analyst, "database", "schema", name FROM t GROUP BY ALL ORDER BY ALL',
                "ledger",
            )
        return tuple((analyst, (a, b, c)) for analyst, a, b, c in rows)

    def _check(
        self,
        cursor: sql.Connection,
        analyst: str,
        table: Table,
        budgets: Iterable[Budget],
        entries: tuple[Entry, ...],
    ) -> None:
        """Raise PolicyError where these add to an account, and it would pass its budget."""
        for budget in budgets:
            before = Account(analyst, table, self._entries(cursor, analyst, table, budget))
            after = before.after(entries).epsilon(budget.delta)
            if after > budget.epsilon and after > before.epsilon(budget.delta):
                window = "" if budget.seconds is None else f" within {days(budget.seconds)}"
                raise PolicyError(
                    f"its owner's policy has {budget.rule} = {budget.epsilon:g} of "
                    f"{'.'.join(table[1:])} at delta = {budget.delta:g}{window}, and this run "
                    "would pass it",
                    hint="EXPLAIN tells what is spent",
                )

    def _entries(
        self, cursor: sql.Connection, analyst: str, table: Table, budget: Budget
    ) -> tuple[Entry, ...]:
        rows = self._records.rows(
            cursor,
            """SELECT what, multiplier, epsilon, delta, identity, epoch_us(reserved_at),
            epoch_us(ended_at), state FROM t
            WHERE ($total OR analyst = $analyst) AND lower("database") = lower($a)
            AND lower("schema") = lower($b) AND lower(name) = lower($c) AND state <> 'returned'
            ORDER BY number""",
            "ledger",
            {
                "total": budget.total,
                "analyst": analyst,
                "a": table[0],
                "b": table[1],
                "c": table[2],
            },
        )
        since = None
        if budget.seconds is not None:
            since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=budget.seconds)
        found = []
        for what, multiplier, epsilon, delta, identity, begun, ended, state in rows:
            last = time_of(begun if ended is None else ended)
            # what a run that has not ended may still release counts on
            over = since is not None and last is not None and last < since and state == SPENT
            if not over:
                found.append(Entry(what, multiplier, epsilon, delta, identity))
        return tuple(found)


def days(seconds: float) -> str:
    for name, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= length:
            return f"{seconds / length:g} {name}"
    return f"{seconds:g} seconds"
