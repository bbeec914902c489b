"""Steps that go on without late clients: the option `stragglers`.

Slots without common clients do not wait for one another. Each group of slots with common clients
makes its step by itself, with sums and inner rounds of shared slots. If a group is late, the others
go on with its rows' last predictions. The source for ADMM is Chang, Hong, Liao and Wang,
'Asynchronous Distributed ADMM for Large-Scale Optimization', 2016; its bound of delays is a time
limit here.

Once the late group has answered, it makes its next step by the residuals of the rows that it
predicted. For a batch, these are the residuals that the others had in that batch's turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.base.interrupts import AGAIN, HEARD, Interrupts, caught, heeding, interrupted
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.scatter_gather import JoinedRows, SlotMembers
from sqlfl.messages import Predictions, Residuals
from sqlfl.planner.query.ucq import tied

T = TypeVar("T")


class Lateness:
    """Time limit of steps.

    seconds : time that a step waits. groups : number of pieces of work that may run at once.
    """

    def __init__(self, seconds: float, groups: int) -> None:
        self.seconds = seconds
        self.everyone = False
        """True if the next step waits for all clients, however long that takes."""
        self._pool = ThreadPoolExecutor(groups, thread_name_prefix="sqlfl-step")
        self._working: dict[Future[Any], Interrupts] = {}

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Start the work in a thread of its own."""
        interrupts = Interrupts()

        def done() -> T:
            with heeding(interrupts):
                return work()

        future = self._pool.submit(done)
        self._working = {f: i for f, i in self._working.items() if not f.done()}
        self._working[future] = interrupts
        return future

    def wait(self, work: Sequence[Future[T]]) -> None:
        """Wait until all work is done or some of it has failed. After the time limit, wait only
        until some of it is done.
        """
        due = math.inf if self.everyone else time.monotonic() + self.seconds
        left = set(work)
        with caught() as events:
            while left:
                over = time.monotonic() >= due
                if over and len(left) < len(work):
                    return
                pause = HEARD if over else min(HEARD, due - time.monotonic())
                when = FIRST_COMPLETED if over else FIRST_EXCEPTION
                done, left = wait(left, max(0.0, pause), when)
                if any(future.exception() is not None for future in done):
                    return
                if interrupted(events):
                    raise KeyboardInterrupt

    def close(self) -> None:
        """Interrupt all work that runs, and wait until none is left."""
        with caught():
            while left := {f for f in self._working if not f.done()}:
                for future in left:
                    self._working[future].interrupt()
                wait(left, AGAIN)
            self._pool.shutdown()


Replies: TypeAlias = dict[Address, Predictions]
Ask: TypeAlias = Callable[[Mapping[Address, Residuals]], Replies]


@dataclass(eq=False)
class _Group:
    """Slots that wait for one another."""

    addresses: tuple[Address, ...]
    at: JoinedRows
    """Rows of its last predictions, whose residuals come next. While the group works, these are the
    rows that it must predict.
    """
    due: Mapping[Address, Residuals] = field(default_factory=dict)
    """Residuals of these rows, from their turn while the group was at work."""
    work: Future[Replies] | None = None


@dataclass(eq=False)
class _Held:
    values: Array
    """float32 (rows, c): the last predicted h of every row."""
    reply: Predictions
    """The last reply."""


class Stragglers:
    """Groups of the slots of one run. At the start, the last prediction of each of the rows `whole`
    is 0.
    """

    def __init__(
        self,
        run: str,
        slots: Sequence[SlotMembers],
        whole: JoinedRows,
        outputs: int,
        lateness: Lateness,
    ) -> None:
        self._whole, self._lateness = whole, lateness
        clients = [{client for client, _ in members.addresses} for members in slots]
        self._groups = [
            _Group(tuple(a for slot in group for a in slots[slot].addresses), whole)
            for group in tied(clients)
        ]
        self._held = {
            address: _Held(
                np.zeros((whole.sizes[address], outputs), np.float32),
                Predictions(run, address[1], np.zeros((0, outputs)), np.zeros(int(number == 0))),
            )
            for members in slots
            for number, address in enumerate(members.addresses)
        }
        self._missed = 0

    @property
    def late(self) -> int:
        """Return the number of clients that have not ended their step."""
        return len({c for group in self._groups if group.work for c, _ in group.addresses})

    def missed(self) -> int:
        """Return how many replies the steps have gone on without since the last call."""
        missed, self._missed = self._missed, 0
        return missed

    def predicted(self, rows: JoinedRows, replies: Mapping[Address, Predictions]) -> None:
        """Keep predictions that all clients made in an exchange of their own."""
        for group in self._groups:
            group.at = rows
        for address, reply in replies.items():
            self._hold(address, rows, reply)

    def step(
        self,
        rows: JoinedRows,
        following: JoinedRows,
        requests: Mapping[Address, Residuals],
        ask: Ask,
    ) -> Replies:
        """Make a step, and return each client's last known predictions of the rows `following`.

        requests: the step, by residuals of `rows`. ask: returns the resulting predictions; its
        errors are raised here.
        """
        self._collect(self._groups)
        before = [group for group in self._groups if group.work is not None]
        for group in self._groups:
            mine = {address: requests[address] for address in group.addresses}
            if group.at is rows:
                group.due = mine
            if group.work is None:
                self._begin(group, following, ask)
        self._wait(self._groups)
        if self._lateness.everyone:
            others = [group for group in before if group.at is not following]
            for group in others:
                self._begin(group, following, ask)
            self._wait(others)
        self._missed += self.late
        return {
            address: replace(held.reply, values=np.array(held.values[_chosen(following, address)]))
            for address, held in self._held.items()
        }

    def _begin(self, group: _Group, following: JoinedRows, ask: Ask) -> None:
        requests = {a: message.towards(_batch(following, a)) for a, message in group.due.items()}
        group.at = following
        group.work = self._lateness.begin(lambda: ask(requests))

    def _wait(self, groups: Sequence[_Group]) -> None:
        self._lateness.wait([group.work for group in groups if group.work is not None])
        self._collect(groups)

    def _collect(self, groups: Sequence[_Group]) -> None:
        for group in groups:
            if group.work is not None and group.work.done():
                for address, reply in group.work.result().items():
                    self._hold(address, group.at, reply)
                group.work = None

    def _hold(self, address: Address, rows: JoinedRows, reply: Predictions) -> None:
        held = self._held[address]
        held.values[_chosen(rows, address)] = reply.values
        held.reply = reply


def _batch(rows: JoinedRows, address: Address) -> Array | None:
    return None if rows.rows is None else rows.rows[address]


def _chosen(rows: JoinedRows, address: Address) -> slice | Array:
    return slice(None) if rows.rows is None else rows.rows[address]
