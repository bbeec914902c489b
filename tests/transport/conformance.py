"""What every transport passes: in this process, over Flight, and over what others bring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sqlfl
from sqlfl.base.errors import LostError, PartyError
from sqlfl.base.interrupts import Interrupts, heeding
from sqlfl.contract.schema import Client
from sqlfl.messages import Failure, PartialGradient, Residuals
from sqlfl.messages.wire import decode, encode
from sqlfl.transport.base import Handler, Transport
from tests import open_databases

A, B = Client("a"), Client("b")
PASS = "alice"
"""Of the analyst for whom requests are sent, where they are told."""
LARGE = 8_000_000
"""Doubles of a large message: 64 MB."""
Interrupting = Mapping[Client, Callable[[], None]]


def residuals(number: int, slot: int = 0) -> Residuals:
    return Residuals("r", slot, np.full((2, 1), number, np.float32))


def doubling(data: pa.Buffer) -> pa.Buffer:
    message = decode(data)
    assert isinstance(message, Residuals)
    values = 2.0 * message.values.astype(np.float64)
    return encode(PartialGradient(message.run, message.slot, values, number=message.number))


class TransportConformance:
    """`opened` gives a transport that serves the handlers, until the block ends."""

    def opened(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> AbstractContextManager[Transport]:
        raise NotImplementedError

    def test_replies_come_in_the_order_of_requests(self) -> None:
        order = [(A, 1), (B, 2), (A, 3), (B, 4)]
        with self.opened({A: doubling, B: doubling}, {}) as transport:
            replies = transport.exchange([(c, encode(residuals(n))) for c, n in order])
        values = [decode(r).values[0, 0] for r in replies]
        assert values == [2.0, 4.0, 6.0, 8.0]

    def test_clients_work_in_parallel_and_one_client_in_order(self) -> None:
        meeting = threading.Barrier(2, timeout=10)
        seen: list[float] = []

        def meet(data: pa.Buffer) -> pa.Buffer:
            meeting.wait()
            return doubling(data)

        def note(data: pa.Buffer) -> pa.Buffer:
            seen.append(float(decode(data).values[0, 0]))
            time.sleep(0.001)
            return meet(data) if len(seen) == 1 else doubling(data)

        order = [(A, 1), (B, 0), (A, 2), (A, 3)]
        with self.opened({A: note, B: meet}, {}) as transport:
            transport.exchange([(c, encode(residuals(n))) for c, n in order])
        assert seen == [1.0, 2.0, 3.0]

    def test_exchanges_of_different_clients_do_not_wait_for_one_another(self) -> None:
        late = threading.Event()

        def slow(data: pa.Buffer) -> pa.Buffer:
            assert late.wait(30), "the other exchange waits for it"
            return doubling(data)

        found: list[pa.Buffer] = []
        with self.opened({A: slow, B: doubling}, {}) as transport:
            ask = lambda: found.extend(transport.exchange([(A, encode(residuals(1)))]))  # noqa: E731
            thread = threading.Thread(target=ask)
            thread.start()
            for number in (2, 3):
                (other,) = transport.exchange([(B, encode(residuals(number)))])
                assert decode(other).values[0, 0] == 2.0 * number
            assert not found
            late.set()
            thread.join(30)
        assert decode(found[0]).values[0, 0] == 2.0

    def test_an_unknown_client_is_an_error(self) -> None:
        with (
            self.opened({A: doubling}, {}) as transport,
            pytest.raises(PartyError, match="b/0: it is not attached"),
        ):
            transport.exchange([(B, encode(residuals(1)))])

    def test_bytes_arrive_as_they_were_however_many(self) -> None:
        values = np.arange(LARGE, dtype=np.float64).reshape(-1, 1)
        sizes = []

        def back(data: pa.Buffer) -> pa.Buffer:
            sizes.append(len(data))
            return data

        large = encode(PartialGradient("r", 0, values))
        with self.opened({A: back, B: back}, {}) as transport:
            for data in (large, pa.py_buffer(b""), pa.py_buffer(b"\0")):
                found = transport.exchange([(A, data), (B, pa.py_buffer(b"small"))])
                assert found[0].equals(data)
                assert found[1].to_pybytes() == b"small"
        assert max(sizes) > 8 * LARGE

    def test_what_is_served_ends_by_an_interrupt(self) -> None:
        begun, told = threading.Event(), threading.Event()
        others, heard = threading.Event(), threading.Event()

        def slow(data: pa.Buffer) -> pa.Buffer:
            begun.set()
            assert told.wait(30), "nobody interrupted it"
            return encode(Failure("r", 0, "PartyError", "it was interrupted"))

        def quick(data: pa.Buffer) -> pa.Buffer:
            heard.set()
            return doubling(data)

        own = Interrupts()
        ended: list[BaseException] = []

        def ask(transport: Transport) -> None:
            try:
                with heeding(own):
                    data = encode(residuals(1))
                    transport.exchange([(A, data), (B, data)])
            except KeyboardInterrupt as error:
                ended.append(error)

        handlers = {A: slow, B: quick}
        with self.opened(handlers, {A: told.set, B: others.set}) as transport:
            work = threading.Thread(target=ask, args=(transport,))
            work.start()
            assert begun.wait(30)
            assert heard.wait(30)
            transport.exchange([(B, encode(residuals(2)))])  # b has answered the first one, too
            own.interrupt()
            work.join(30)
            assert not work.is_alive()
            assert len(ended) == 1
            found = transport.exchange([(B, encode(residuals(3)))])  # and it serves on
            assert decode(found[0]).values[0, 0] == 6.0
        assert told.is_set()
        assert not others.is_set(), "b was at nothing"


COLUMNS = st.sampled_from(["i % 3", "sin(i)", "i * 0.25", "(i * 7 % 5)::DOUBLE", "-i"])
JOINS = st.fixed_dictionaries(
    {
        "rows": st.integers(20, 60),
        "others": st.integers(10, 60),
        "own": COLUMNS,
        "theirs": COLUMNS,
        "algorithm": st.sampled_from(["lbfgs", "sgd", "admm"]),
        "seed": st.integers(0, 1000),
    }
)


class ElsewhereConformance(TransportConformance):
    """Of transports to parties in other processes, which may be lost."""

    def losing(
        self, handlers: Mapping[Client, Handler]
    ) -> AbstractContextManager[tuple[Transport, Callable[[Client], None]]]:
        """A transport, and what takes a client away for good."""
        raise NotImplementedError

    def federated(
        self, parties: Mapping[str, duckdb.DuckDBPyConnection]
    ) -> AbstractContextManager[sqlfl.Federation]:
        """A federation with these admitted, as those that a host of the analyst PASS serves."""
        raise NotImplementedError

    def test_a_party_that_is_gone_is_lost_and_others_are_not(self) -> None:
        with self.losing({A: doubling, B: doubling}) as (transport, lose):
            lose(A)
            data = encode(residuals(1))
            with pytest.raises(LostError, match="party a/0"):
                transport.exchange([(A, data), (B, data)])
            assert decode(transport.exchange([(B, data)])[0]).values[0, 0] == 2.0

    def test_a_party_that_goes_while_it_serves_is_lost(self) -> None:
        begun, gone = threading.Event(), threading.Event()

        def slow(data: pa.Buffer) -> pa.Buffer:
            begun.set()
            assert gone.wait(30)
            return doubling(data)

        problems: list[BaseException] = []

        def ask(transport: Transport) -> None:
            try:
                transport.exchange([(A, encode(residuals(1)))])
            except LostError as error:
                problems.append(error)
                gone.set()

        with self.losing({A: slow}) as (transport, lose):
            work = threading.Thread(target=ask, args=(transport,))
            work.start()
            assert begun.wait(30)
            late = threading.Timer(10.0, gone.set)  # to lose it may end only with what it serves
            late.start()
            lose(A)
            work.join(30)
            late.cancel()
            assert not work.is_alive()
        assert len(problems) == 1

    @given(JOINS)
    @settings(
        max_examples=3, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
    )
    def test_a_model_is_bit_equal_to_that_of_one_process(self, join: dict[str, object]) -> None:
        with databases_of(join) as (here, there):
            with sqlfl.connect(progress=False) as fed:
                for name, con in here.items():
                    fed.attach(name, con)
                expected = trained(fed, join)
            with self.federated(there) as fed:
                found = trained(fed, join)
        for one, other in zip(found, expected, strict=True):
            assert one.equals(other)


@contextmanager
def databases_of(
    join: Mapping[str, object],
) -> Iterator[tuple[dict[str, duckdb.DuckDBPyConnection], ...]]:
    """The tables of two parties twice, each in a database of its own."""
    texts = {
        "a": "CREATE TABLE t AS SELECT i AS id, {own} AS x, i % 7 > 2 AS y FROM range({rows}) r(i)",
        "b": "CREATE TABLE u AS SELECT i AS id, {theirs} AS z FROM range({others}) r(i)",
    }
    with ExitStack() as stack:
        found = tuple(
            {name: stack.enter_context(open_databases.in_memory()) for name in texts}
            for _ in range(2)
        )
        for parties in found:
            for name, con in parties.items():
                con.execute(texts[name].format(**join))
        yield found


def trained(fed: sqlfl.Federation, join: Mapping[str, object]) -> list[pa.Table]:
    """Losses of every epoch, all weights, and all predictions."""
    query = "SELECT t.x, t.y, u.z FROM a.t JOIN b.u USING (id)"
    fed.sql(
        f"""TRAIN MODEL m USING logistic_regression TARGET y WITH (
        algorithm = '{join["algorithm"]}', epochs = 4, seed = {join["seed"]}, tolerance = 0)
        FROM ({query})"""
    )
    scores = fed.sql(f"PREDICT MODEL m FROM ({query})").arrow()
    order = [(name, "ascending") for name in scores.column_names]
    losses = fed.model("m").history.select(["train_loss"])
    return [losses, fed.sql("WEIGHTS OF MODEL m").arrow(), scores.sort_by(order)]


class Handling:
    """What an agent serves, of one client: a handler, and what interrupts it."""

    def __init__(self, handler: Handler, interrupt: Callable[[], None] | None) -> None:
        self._handler, self._interrupt = handler, interrupt

    def welcome(self, coordinator: str, session: str) -> None:
        pass

    def forget(self) -> None:
        pass

    def handle(self, client: int, data: pa.Buffer, study: str, speaker: str) -> pa.Buffer:
        assert (client, study, speaker) == (0, "heart", PASS)
        return self._handler(data)

    def interrupt(self, client: int, study: str, speaker: str) -> None:
        assert (client, study, speaker) == (0, "heart", PASS)
        if self._interrupt is not None:
            self._interrupt()

    def stop(self) -> None:
        pass
