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

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from sqlfl.base.arrays import Array
from sqlfl.contract.schema import Address
from sqlfl.coordinator.join.scatter_gather import JoinedRows, SlotMembers
from sqlfl.coordinator.rounds.lateness import Lateness
from sqlfl.messages import Predictions, Residuals
from sqlfl.planner.query.ucq import tied

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
