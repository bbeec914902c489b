"""Conformance of transports, and what the channel counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.errors import ApprovalError, Error, InternalError, PartyError, PolicyError
from sqlfl.messages import Failure, PartialGradient, Ready, Residuals, SendGram
from sqlfl.schema import Client
from sqlfl.transport.base import Audit, Channel, Transport
from sqlfl.transport.local import LocalTransport
from sqlfl.transport.recording import RecordingTransport
from sqlfl.wire import decode, encode

A, B = Client("a"), Client("b")


def residuals(number: int, slot: int = 0) -> Residuals:
    return Residuals("r", slot, np.full((2, 1), number, np.float32))


def doubling(data: pa.Buffer) -> pa.Buffer:
    message = decode(data)
    assert isinstance(message, Residuals)
    values = 2.0 * message.values.astype(np.float64)
    return encode(PartialGradient(message.run, message.slot, values, number=message.number))


class TransportConformance:
    """Every transport passes these; `make` gives one that serves the handlers."""

    def make(self, handlers: dict[Client, Callable[[pa.Buffer], pa.Buffer]]) -> Transport:
        raise NotImplementedError

    def test_replies_come_in_the_order_of_requests(self) -> None:
        transport = self.make({A: doubling, B: doubling})
        order = [(A, 1), (B, 2), (A, 3), (B, 4)]
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

        transport = self.make({A: note, B: meet})
        order = [(A, 1), (B, 0), (A, 2), (A, 3)]
        transport.exchange([(c, encode(residuals(n))) for c, n in order])
        assert seen == [1.0, 2.0, 3.0]

    def test_an_unknown_client_is_an_error(self) -> None:
        with pytest.raises(PartyError, match="b/0: it is not attached"):
            self.make({A: doubling}).exchange([(B, encode(residuals(1)))])


class TestLocal(TransportConformance):
    def make(self, handlers: dict[Client, Callable[[pa.Buffer], pa.Buffer]]) -> Transport:
        return LocalTransport(handlers)


class TestRecording(TransportConformance):
    def make(self, handlers: dict[Client, Callable[[pa.Buffer], pa.Buffer]]) -> Transport:
        return RecordingTransport(LocalTransport(handlers))

    def test_keeps_every_byte(self) -> None:
        transport = RecordingTransport(LocalTransport({A: doubling}))
        request = encode(residuals(1))
        reply = transport.exchange([(A, request)])[0]
        assert [(r.direction, r.data) for r in transport.recorded] == [
            ("down", request.to_pybytes()),
            ("up", reply.to_pybytes()),
        ]


def test_the_channel_counts_and_audits() -> None:
    audit = Audit()
    channel = Channel(LocalTransport({A: doubling, B: doubling}), audit)
    replies = channel.exchange({(A, 0): residuals(1), (B, 1): residuals(5, slot=1)})
    assert replies[B, 1].values[0, 0] == 10.0
    assert (channel.rounds, channel.bytes_down, channel.bytes_up) == (1, 16, 32)
    rows = audit.table().to_pylist()
    assert [(r["seq"], r["client"], r["direction"], r["kind"], r["bytes"]) for r in rows] == [
        (1, "a/0", "down", "residuals", 8),
        (2, "b/0", "down", "residuals", 8),
        (3, "a/0", "up", "partial_gradient", 16),
        (4, "b/0", "up", "partial_gradient", 16),
    ]


def test_an_empty_exchange_is_no_round() -> None:
    channel = Channel(LocalTransport({}), Audit())
    assert channel.exchange({}) == {}
    assert channel.rounds == 0


@pytest.mark.parametrize("error", [PartyError, PolicyError, ApprovalError])
def test_the_first_failure_in_order_is_raised_and_all_replies_are_audited(
    error: type[Error],
) -> None:
    def fail(data: pa.Buffer) -> pa.Buffer:
        return encode(Failure("r", 0, error.__name__, "no such thing"))

    audit = Audit()
    channel = Channel(LocalTransport({A: fail, B: fail}), audit)
    with pytest.raises(error, match="party a/0: no such thing"):
        channel.exchange({(A, 0): SendGram("r", 0), (B, 0): SendGram("r", 0)})
    assert len(audit.records) == 4


def test_a_message_for_another_slot_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="slot"):
        Channel(LocalTransport({A: doubling}), Audit()).exchange({(A, 1): Ready("r", 0)})
