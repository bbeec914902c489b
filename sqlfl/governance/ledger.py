"""What has left of each table, noised: an account for each granted table and analyst, in the schema
`sqlfl` of the party's records.

Each run writes entries of its own. An entry is reserved before anything of it leaves, and given
back only where nothing of it has: a run that fails, is killed, or is never finished leaves what it
has reserved. The ε of an account is that of all its entries together (sqlfl.privacy.accountant);
noise that is drawn once for ever counts once among those that were not given back.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.errors import PolicyError
from sqlfl.governance.records import Records, time_of
from sqlfl.governance.scopes import Table
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


@dataclass(frozen=True)
class LedgerEntry:
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
    """Noise that follows from rows and their labels: drawn once as long as these stay."""
    state: str = ""
    """That the rows were in; empty where nobody has looked, and they are taken to be as before."""
    most: int = 0
    """Draws of that identity that one row has had at most, in whatever states; 0 where rows are not
    known again, and each state may have drawn all of them."""

    def events(self) -> Iterator[Event]:
        if self.multiplier:
            yield Gaussian(self.what, self.multiplier)
        if self.epsilon:
            yield Pure(self.what, self.epsilon)
        if self.delta:
            yield Threshold(self.what, self.delta)


class Demand(NamedTuple):
    """What a run asks of the accounts of one table."""

    table: Table
    budgets: tuple[Budget, ...]
    entries: tuple[LedgerEntry, ...]
    slot: int = -1


Asking: TypeAlias = "tuple[Demand, ...]"


@dataclass(frozen=True, eq=False)
class Drawn:
    """The rows whose labels a run draws, as hashes."""

    who: Array
    """uint64 (n,): what stands for a row in the draw."""
    what: Array
    """uint64 (n,): that, and its label."""
    known_again: bool
    """What stands for a row stays the same for ever; else a row that changes is another one."""

    @cached_property
    def pairs(self) -> Array:
        """uint64 (m, 2): the distinct ones, in an order of their own."""
        found: Array = np.unique(np.column_stack([self.who, self.what]), axis=0)
        return found

    @cached_property
    def state(self) -> str:
        """The same for the same rows alone, each as often as it is there."""
        rows = np.sort(self.what).astype("<u8")
        return hashlib.sha256(rows.tobytes()).hexdigest()[:32]


@dataclass(frozen=True)
class Account:
    analyst: str
    table: Table
    entries: tuple[LedgerEntry, ...]
    """Those that count now."""

    def after(self, entries: tuple[LedgerEntry, ...]) -> Account:
        """Return the account with these entries too."""
        return replace(self, entries=(*self.entries, *entries))

    def epsilon(self, delta: float) -> float:
        return account_epsilon(self.entries, delta)


def account_epsilon(entries: Iterable[LedgerEntry], delta: float) -> float:
    """Return the ε at which all together are (ε, delta)-DP."""
    events = [event for entry in _released(entries) for event in entry.events()]
    return epsilon_of(events, delta) if events else 0.0


def _released(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Each release once: of a draw one for each state of its rows, but no more than one row can
    have had."""
    draws: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        if entry.identity:
            draws.setdefault(entry.identity, []).append(entry)
        else:
            yield entry
    for own in draws.values():
        states = {entry.state for entry in own if entry.state} or {""}
        most = max(entry.most for entry in own) or len(states)
        yield from [own[0]] * min(len(states), most)


class Ledger:
    def __init__(self, records: Records) -> None:
        self._records = records

    def check(self, analyst: str, asked: Asking) -> None:
        """Raises PolicyError where these would pass a budget."""
        with closing(self._records.cursor()) as cursor:
            for demand in asked:
                self._check(cursor, analyst, demand, demand.entries)

    def reserve(
        self, run: str, analyst: str, asked: Asking, drawn: Mapping[int, Drawn] | None = None
    ) -> tuple[int, ...]:
        """Write all of the run's entries, or none, and return their numbers; `drawn`: of slots that
        draw labels. Raises PolicyError where they would pass a budget."""
        numbers: list[int] = []

        def work(cursor: sql.Connection, _: int) -> None:
            numbers.clear()
            ((last,),) = self._records.rows(cursor, "SELECT max(number) FROM t", "ledger")
            number = last or 0
            for demand in asked:
                rows = (drawn or {}).get(demand.slot)
                entries = tuple(
                    self._in_state(cursor, entry, rows) if entry.identity and rows else entry
                    for entry in demand.entries
                )
                self._check(cursor, analyst, demand, entries)
                for entry in entries:
                    number += 1
                    identity = f"{entry.identity}:{entry.state}" if entry.state else entry.identity
                    row = (
                        number, run, analyst, *demand.table, entry.what, entry.multiplier,
                        entry.epsilon, entry.delta, identity, RESERVED,
                        dt.datetime.now(dt.UTC), None,
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
        demand: Demand,
        entries: tuple[LedgerEntry, ...],
    ) -> None:
        """Raise PolicyError where these add to an account, and it would pass its budget."""
        table = demand.table
        for budget in demand.budgets:
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

    def _in_state(self, cursor: sql.Connection, entry: LedgerEntry, rows: Drawn) -> LedgerEntry:
        """The entry as of these rows; a state that they have not been in before is noted."""
        known = self._records.rows(
            cursor,
            "SELECT state, most, who, what FROM t WHERE identity = $identity",
            "draws",
            {"identity": entry.identity},
        )
        most = max((most for _, most, *_ in known), default=0)
        if all(state != rows.state for state, *_ in known):
            new = np.zeros((0, 2), np.uint64)
            if rows.known_again:
                before = [_pairs(who, what) for *_, who, what in known]
                every = np.unique(np.concatenate([*before, rows.pairs]), axis=0)
                most = int(np.unique(every[:, 0], return_counts=True)[1].max(initial=1))
                new = _without(rows.pairs, before)
            halves = (np.ascontiguousarray(half).astype("<u8").tobytes() for half in new.T)
            row = (entry.identity, rows.state, most, *halves, dt.datetime.now(dt.UTC))
            self._records.insert(cursor, "draws", row)
        return replace(entry, state=rows.state, most=most)

    def _entries(
        self, cursor: sql.Connection, analyst: str, table: Table, budget: Budget
    ) -> tuple[LedgerEntry, ...]:
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
        draws = "SELECT identity, max(most) FROM t GROUP BY identity"
        drawn = dict(self._records.rows(cursor, draws, "draws"))
        since = None
        if budget.seconds is not None:
            since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=budget.seconds)
        found = []
        for what, multiplier, epsilon, delta, identity, begun, ended, state in rows:
            last = time_of(begun if ended is None else ended)
            # what a run that has not ended may still release counts on
            over = since is not None and last is not None and last < since and state == SPENT
            if not over:
                name, _, own = identity.partition(":")
                most = drawn.get(name, 0)
                found.append(LedgerEntry(what, multiplier, epsilon, delta, name, own, most))
        return tuple(found)


def _pairs(who: bytes, what: bytes) -> Array:
    """uint64 (m, 2), as they are kept."""
    return np.column_stack([np.frombuffer(who, "<u8"), np.frombuffer(what, "<u8")])


def _without(pairs: Array, before: Sequence[Array]) -> Array:
    """Those of the pairs (m, 2) that none of `before` has; all are distinct in each."""
    every = np.concatenate([*before, *before, pairs])
    distinct, counts = np.unique(every, axis=0, return_counts=True)
    found: Array = distinct[counts == 1]
    return found


def days(seconds: float) -> str:
    for name, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= length:
            return f"{seconds / length:g} {name}"
    return f"{seconds:g} seconds"
