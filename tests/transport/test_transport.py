"""Conformance of transports in this process, and what the channel counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import pyarrow as pa
import pytest

from sqlfl.base.errors import ApprovalError, Error, InternalError, PartyError, PolicyError
from sqlfl.contract.schema import Client
from sqlfl.messages import Failure, Ready, SendGram
from sqlfl.messages.wire import encode
from sqlfl.transport.base import Audit, Channel, Handler, Transport
from sqlfl.transport.local import LocalTransport
from sqlfl.transport.recording import RecordingTransport
from tests.transport.conformance import (
    A,
    B,
    Interrupting,
    TransportConformance,
    doubling,
    residuals,
)


class TestLocal(TransportConformance):
    @contextmanager
    def opened(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> Iterator[Transport]:
        with closing(LocalTransport(handlers, interrupts)) as transport:
            yield transport


class TestRecording(TransportConformance):
    @contextmanager
    def opened(
        self, handlers: Mapping[Client, Handler], interrupts: Interrupting
    ) -> Iterator[Transport]:
        with closing(LocalTransport(handlers, interrupts)) as transport:
            yield RecordingTransport(transport)

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
