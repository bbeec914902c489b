"""Ledger of the noised releases of each table: an account for each granted table and analyst, in
the schema `sqlfl` of the party's records.

Each run writes entries of its own. An entry is reserved before anything of it leaves. It is
returned only if nothing of it has left: a run that fails, is killed, or never finishes keeps its
reservation. The ε of an account covers all its entries together (sqlfl.privacy.accountant). Noise
that is drawn once for ever counts once among the entries that were not returned.
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
    """Budget of the rows of one table, for one analyst or for all together."""

    epsilon: float
    delta: float
    seconds: float | None
    """Length of any window that the budget covers; None for ever."""
    total: bool = False
    """True if it covers all analysts together."""

    @property
    def rule(self) -> str:
        """Return the rule of a policy that it comes from."""
        return "epsilon_total" if self.total else "epsilon"


@dataclass(frozen=True)
class LedgerEntry:
    """Maximum release of a row in one run, for one table."""

    what: str
    """LABELS or FEATURES."""
    multiplier: float = 0.0
    """Noise multiplier of normal noise, σ/Δ of all releases together, 1/μ; 0 without them."""
    epsilon: float = 0.0
    """ε of pure mechanisms together."""
    delta: float = 0.0
    """δ of thresholds."""
    identity: str = ""
    """Identity of noise that follows from rows and their labels: it is drawn once as long as these
    stay.
    """
    state: str = ""
    """State of the rows; empty if nobody has checked it, and then they count as unchanged."""
    most: int = 0
    """Maximum number of draws of that identity for one row, over all states. 0 if rows are not
    recognised: then each state may have drawn all of them.
    """

    def events(self) -> Iterator[Event]:
        if self.multiplier:
            yield Gaussian(self.what, self.multiplier)
        if self.epsilon:
            yield Pure(self.what, self.epsilon)
        if self.delta:
            yield Threshold(self.what, self.delta)


class Demand(NamedTuple):
    """Demand of a run on the accounts of one table."""

    table: Table
    budgets: tuple[Budget, ...]
    entries: tuple[LedgerEntry, ...]
    slot: int = -1


Asking: TypeAlias = "tuple[Demand, ...]"


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows whose labels a run draws, as hashes."""

    who: Array
    """uint64 (n,): the row's hash in the draw."""
    what: Array
    """uint64 (n,): the hash of the row and its label."""
    known_again: bool
    """True if a row's hash stays the same for ever; otherwise a changed row is another one."""

    @cached_property
    def pairs(self) -> Array:
        """Return the distinct pairs, in an order of their own: uint64 (m, 2)."""
        found: Array = np.unique(np.column_stack([self.who, self.what]), axis=0)
        return found

    @cached_property
    def state(self) -> str:
        """Return a digest that is equal only for the same rows, each as often as it occurs."""
        rows = np.sort(self.what).astype("<u8")
        return hashlib.sha256(rows.tobytes()).hexdigest()[:32]


@dataclass(frozen=True)
class Account:
    analyst: str
    table: Table
    entries: tuple[LedgerEntry, ...]
    """Entries that count now."""

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
    """Yield each release once. A draw counts once for each state of its rows, but at most as often
    as one row was drawn.
    """
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
        """Raise PolicyError if these would exceed a budget."""
        with closing(self._records.cursor()) as cursor:
            for demand in asked:
                self._check(cursor, analyst, demand, demand.entries)

    def reserve(
        self, run: str, analyst: str, asked: Asking, drawn: Mapping[int, Drawn] | None = None
    ) -> tuple[int, ...]:
        """Write all of the run's entries, or none, and return their numbers. `drawn`: rows of slots
        that draw labels. Raise PolicyError if they would exceed a budget.
        """
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
        """End the entries of these numbers: those in `left` have released something, the others
        nothing.

        A run's name does not identify its entries: another coordinator may give a run the same
        name.
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
        """Return the account as it counts now. For a budget of all analysts, `analyst` does not
        matter.
        """
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
        """Raise PolicyError if these add to an account and it would exceed its budget."""
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
        """Return the entry for these rows, and record a new state of them."""
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
            # future releases of a run that has not ended count on
            over = since is not None and last is not None and last < since and state == SPENT
            if not over:
                name, _, own = identity.partition(":")
                most = drawn.get(name, 0)
                found.append(LedgerEntry(what, multiplier, epsilon, delta, name, own, most))
        return tuple(found)


def _pairs(who: bytes, what: bytes) -> Array:
    """Return the pairs from their stored form: uint64 (m, 2)."""
    return np.column_stack([np.frombuffer(who, "<u8"), np.frombuffer(what, "<u8")])


def _without(pairs: Array, before: Sequence[Array]) -> Array:
    """Return the pairs (m, 2) that none of `before` has; each array has distinct pairs."""
    every = np.concatenate([*before, *before, pairs])
    distinct, counts = np.unique(every, axis=0, return_counts=True)
    found: Array = distinct[counts == 1]
    return found


def days(seconds: float) -> str:
    for name, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= length:
            return f"{seconds / length:g} {name}"
    return f"{seconds:g} seconds"
