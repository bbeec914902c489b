"""Steps that go on without clients that are late, with clients that answer when they are told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue

import numpy as np
import pytest

from sqlfl.base.arrays import Array
from sqlfl.base.errors import InternalError, PartyError
from sqlfl.base.interrupts import Interrupts, heeding, interrupted
from sqlfl.contract.schema import Address, Client
from sqlfl.coordinator.join.scatter_gather import JoinedRows, SlotMembers, all_rows, batch_of
from sqlfl.coordinator.join.table_mapping import TableMapping
from sqlfl.coordinator.rounds.stragglers import Lateness, Replies, Stragglers
from sqlfl.messages import Predictions, Residuals
from sqlfl.methods.admm.messages import AdmmResiduals
from sqlfl.methods.sgd.messages import SgdResiduals

A, B, C = ((Client("p", 0), 0), (Client("p", 1), 0), (Client("q", 0), 1))
ROWS = [np.array([0, 2, 2, 4, 1, 3], np.int32), np.array([1, 0, 1, 0, 1, 0], np.int32)]
MEMBERS = (SlotMembers(0, (A, B), np.array([0, 3, 5])), SlotMembers(1, (C,), np.array([0, 2])))
SHORT, LONG = 0.02, 30.0
"""Seconds: where somebody is held, and where nobody is."""


class Clients:
    """What they predict is the number of the residuals that they were sent last; those that are
    `held` answer once they are let go."""

    def __init__(self) -> None:
        self.asked: list[Address] = []
        self.seen: dict[Address, list[Residuals]] = {A: [], B: [], C: []}
        self.held: dict[Address, threading.Event] = {}
        self.fault: Exception | None = None

    def hold(self, *addresses: Address) -> threading.Event:
        event = threading.Event()
        self.held |= dict.fromkeys(addresses, event)
        return event

    def ask(self, requests: Mapping[Address, Residuals]) -> Replies:
        found: Replies = {}
        for address, message in requests.items():
            self.seen[address].append(message)
            event = self.held.pop(address, None)
            if event is not None:
                assert event.wait(30)
            if self.fault is not None and address == C:
                raise self.fault
            rows = SIZES[address] if message.following is None else len(message.following)
            value = float(message.values[0, 0]) if len(message.values) else -1.0
            found[address] = reply(address, np.full((rows, 1), value, np.float32))
        return found


def reply(address: Address, values: Array) -> Predictions:
    return Predictions("r", address[1], values, np.zeros(int(address != B)))


WHOLE = all_rows(TableMapping(ROWS, [5, 2]), MEMBERS)
SIZES = WHOLE.sizes


def sent(number: float, rows: JoinedRows, following: JoinedRows) -> dict[Address, Residuals]:
    def one(address: Address) -> Residuals:
        values = np.full((rows.sizes[address], 1), number, np.float32)
        if following.rows is None:
            return SgdResiduals("r", address[1], values, 1.0, 1, 1)
        return SgdResiduals("r", address[1], values, 1.0, 1, 0, following.rows[address])

    return {address: one(address) for address in (A, B, C)}


@pytest.fixture
def lateness() -> Iterator[Lateness]:
    with closing(Lateness(SHORT, 2)) as own:
        yield own


def patient(lateness: Lateness) -> None:
    lateness.seconds = LONG


def stragglers(lateness: Lateness) -> Stragglers:
    return Stragglers("r", MEMBERS, WHOLE, 1, lateness)


def known(found: Replies) -> dict[Address, list[float]]:
    return {address: reply.values[:, 0].tolist() for address, reply in found.items()}


def ended(group: Stragglers) -> None:
    """Whoever was let go has answered."""
    work = [own.work for own in group._groups if own.work is not None]
    for future in work:
        assert isinstance(future, Future)
        future.exception(30)


def test_a_step_goes_on_without_who_is_late(lateness: Lateness) -> None:
    own, clients = stragglers(lateness), Clients()
    free = clients.hold(C)
    found = own.step(WHOLE, WHOLE, sent(1, WHOLE, WHOLE), clients.ask)
    assert known(found) == {A: [1] * 3, B: [1] * 2, C: [0, 0]}
    assert (own.late, own.missed(), own.missed()) == (1, 1, 0)
    found = own.step(WHOLE, WHOLE, sent(2, WHOLE, WHOLE), clients.ask)
    assert known(found) == {A: [2] * 3, B: [2] * 2, C: [0, 0]}
    assert [len(clients.seen[a]) for a in (A, B, C)] == [2, 2, 1]
    free.set()
    ended(own)
    patient(lateness)
    found = own.step(WHOLE, WHOLE, sent(3, WHOLE, WHOLE), clients.ask)
    assert known(found) == {A: [3] * 3, B: [3] * 2, C: [3, 3]}
    assert (own.late, own.missed()) == (0, 1)
    # what it was not asked for is not asked for later
    assert [m.values[0, 0] for m in clients.seen[C]] == [1.0, 3.0]


def test_clients_of_a_slot_are_late_together(lateness: Lateness) -> None:
    own, clients = stragglers(lateness), Clients()
    free = clients.hold(B)
    found = own.step(WHOLE, WHOLE, sent(1, WHOLE, WHOLE), clients.ask)
    assert known(found) == {A: [0] * 3, B: [0] * 2, C: [1, 1]}
    assert (own.late, own.missed()) == (2, 2)
    free.set()


def test_clients_of_two_slots_tie_them(lateness: Lateness) -> None:
    both = (Client("p", 0), 1)
    members = (MEMBERS[0], SlotMembers(1, (both,), np.array([0, 2])))
    whole = all_rows(TableMapping(ROWS, [5, 2]), members)
    own, free = Stragglers("r", members, whole, 1, lateness), threading.Event()

    def ask(requests: Mapping[Address, Residuals]) -> Replies:
        assert set(requests) == {A, B, both}
        assert free.wait(30)
        return {a: reply(a, np.ones((whole.sizes[a], 1), np.float32)) for a in requests}

    timer = threading.Timer(3 * SHORT, free.set)
    timer.start()
    requests = {a: Residuals("r", a[1], np.zeros((1, 1), np.float32)) for a in (A, B, both)}
    found = own.step(whole, whole, requests, ask)  # nothing else could be waited for
    assert known(found) == {A: [1] * 3, B: [1] * 2, both: [1, 1]}
    timer.join()


def test_of_a_batch_who_was_late_steps_by_the_residuals_of_its_turn(lateness: Lateness) -> None:
    own, clients = stragglers(lateness), Clients()
    first, second, third = (batch_of(WHOLE, np.array(rows)) for rows in ([0, 3], [1, 2], [4, 5]))
    free = clients.hold(C)
    own.step(WHOLE, first, sent(1, WHOLE, first), clients.ask)
    own.step(first, second, sent(2, first, second), clients.ask)  # of the rows it is to predict
    own.step(second, third, sent(3, second, third), clients.ask)
    assert [m.values[0, 0] for m in clients.seen[C]] == [1.0]
    free.set()
    ended(own)
    patient(lateness)
    found = own.step(third, WHOLE, sent(4, third, WHOLE), clients.ask)
    # of the first batch: 2; predictions of all rows next
    assert [m.values[0, 0] for m in clients.seen[C]] == [1.0, 2.0]
    assert clients.seen[C][-1].following is None
    assert known(found)[C] == [2, 2]
    assert known(found)[A] == [4, 4, 4]
    assert [m.values[0, 0] for m in clients.seen[A]] == [1.0, 2.0, 3.0, 4.0]


def test_predictions_are_those_that_came_last_row_by_row(lateness: Lateness) -> None:
    own, clients = stragglers(lateness), Clients()
    one = batch_of(WHOLE, np.array([1]))  # of q the first row, of p the third
    own.predicted(WHOLE, {C: reply(C, np.array([[7.0], [8.0]], np.float32))})
    patient(lateness)
    own.step(WHOLE, one, sent(1, WHOLE, one), clients.ask)
    lateness.seconds = SHORT
    free = clients.hold(C)
    found = own.step(one, WHOLE, sent(2, one, WHOLE), clients.ask)
    assert known(found)[C] == [1, 8]
    free.set()


def test_all_are_waited_for_where_what_follows_is_of_all(lateness: Lateness) -> None:
    own, clients = stragglers(lateness), Clients()
    first, second = (batch_of(WHOLE, np.array(rows)) for rows in ([0, 3], [1, 2]))
    free = clients.hold(C)
    own.step(WHOLE, first, sent(1, WHOLE, first), clients.ask)
    lateness.everyone = True
    timer = threading.Timer(4 * SHORT, free.set)
    timer.start()
    found = own.step(first, second, sent(2, first, second), clients.ask)
    assert (own.late, own.missed()) == (0, 1)
    assert known(found)[C] == [2, 2]  # the step of its turn, after the one that was late
    assert [m.values[0, 0] for m in clients.seen[C]] == [1.0, 2.0]
    timer.join()


def test_a_step_of_nobody_waits_for_one(lateness: Lateness) -> None:
    own, clients = stragglers(lateness), Clients()
    free = clients.hold(A, C)
    timer = threading.Timer(5 * SHORT, free.set)
    timer.start()
    found = own.step(WHOLE, WHOLE, sent(1, WHOLE, WHOLE), clients.ask)
    assert [1, 1] in (known(found)[B], known(found)[C])
    timer.join()


def test_what_fails_is_raised_at_the_next_step(lateness: Lateness) -> None:
    own, clients = stragglers(lateness), Clients()
    clients.fault = PartyError("q/0", "gone")
    free = clients.hold(C)
    own.step(WHOLE, WHOLE, sent(1, WHOLE, WHOLE), clients.ask)
    free.set()
    ended(own)
    with pytest.raises(PartyError, match="q/0: gone"):
        own.step(WHOLE, WHOLE, sent(2, WHOLE, WHOLE), clients.ask)


def test_what_fails_in_time_is_raised_before_the_others_have_answered() -> None:
    with closing(Lateness(LONG, 2)) as lateness:
        own, clients = stragglers(lateness), Clients()
        clients.fault = PartyError("q/0", "gone")
        free = clients.hold(A)
        with pytest.raises(PartyError, match="q/0: gone"):
            own.step(WHOLE, WHOLE, sent(1, WHOLE, WHOLE), clients.ask)
        free.set()


def test_ctrl_c_ends_a_wait_and_closing_ends_the_work() -> None:
    lateness, heard, begun = Lateness(LONG, 2), threading.Event(), threading.Event()

    def endless() -> None:
        begun.set()
        while not interrupted(SimpleQueue()):
            time.sleep(0.001)
        heard.set()

    own = Interrupts()
    found: list[BaseException] = []

    def work() -> None:
        try:
            with heeding(own):
                lateness.wait([lateness.begin(endless)])
        except KeyboardInterrupt as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    own.interrupt()
    thread.join(30)
    assert len(found) == 1
    assert not heard.is_set()
    lateness.close()
    assert heard.is_set()
    assert not [t for t in threading.enumerate() if t.name.startswith("sqlfl-step")]


def test_only_a_step_of_batches_can_be_turned_to_other_rows() -> None:
    step = AdmmResiduals("r", 0, np.zeros((1, 1), np.float32), 1.0)
    assert step.towards(None) is step
    with pytest.raises(InternalError, match="residuals of admm is of all rows"):
        step.towards(np.zeros(1, np.uint32))
