"""A kind of message is added by its definition alone: it travels, is checked, and has its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from sqlfl.base.errors import InternalError, PartyError, WireError
from sqlfl.contract.schema import Client
from sqlfl.messages import KINDS, Message
from sqlfl.messages.checks import Expected, ask
from sqlfl.messages.wire import decode, encode, encoded, received
from sqlfl.planner.federated.exchanges import DOWN, UP, WHOLE, RequestReply, disclosures, exchange
from sqlfl.planner.federated.sizes import Amount, Size, Symbol, content
from sqlfl.transport.base import Audit, Channel
from sqlfl.transport.local import LocalTransport
from tests.additions.quantiles import Quantiles, SendQuantiles

ADDED = {cls.kind: KINDS.pop(cls.kind) for cls in (SendQuantiles, Quantiles)}
"""Out of the way of tests that go over all kinds."""
CLIENT, SLOT = Client("clinic"), 0
VALUES = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 4.0]], np.float32)
ASKED = SendQuantiles("run", SLOT, np.array([0.1, 0.5, 0.9]))
ANSWER = Quantiles("run", SLOT, VALUES, ("age", "weight"), 40)
Answer = Callable[[SendQuantiles], Message]


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    with patch.dict(KINDS, ADDED):
        yield


def answered(answer: Answer, audit: Audit | None = None) -> Quantiles:
    """What the coordinator has of a client that answers so."""

    def handle(data: pa.Buffer) -> pa.Buffer:
        request = received(data)
        assert isinstance(request, SendQuantiles)
        return encoded(replace(answer(request), number=request.number))

    channel = Channel(LocalTransport({CLIENT: handle}), audit or Audit())
    expected = Expected(Quantiles, {"shares": len(ASKED.shares)})
    return ask(channel, {(CLIENT, SLOT): ASKED}, lambda address: expected)[CLIENT, SLOT]


def test_it_travels_and_is_audited() -> None:
    audit = Audit()
    reply = answered(lambda request: ANSWER, audit)
    assert (reply.values == VALUES).all()
    assert (reply.names, reply.rows) == (("age", "weight"), 40)
    records = [(r.direction, r.kind, r.rows, r.columns, r.bytes) for r in audit.records]
    assert records == [("down", "send_quantiles", 3, 1, 24), ("up", "quantiles", 3, 2, 41)]


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "another type": ({"values": VALUES.astype(np.float64)}, "an array"),
    "another shape": ({"values": VALUES[:, 0]}, "an array"),
    "sizes that differ": ({"names": ("age",)}, "has 1 where columns is 2"),
    "no number": ({"values": VALUES * np.nan}, "is not finite"),
    "a name twice": ({"names": ("age", "age")}, "names one twice"),
    "a negative count": ({"rows": -1}, "must be from 0"),
    "values that do not fit each other": ({"values": VALUES[::-1]}, "quantiles that fall"),
    "other sizes than asked for": ({"values": VALUES[:2]}, "shares is 2, expected 3"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_it_is_refused_where_it_is_malformed(case: str) -> None:
    changed, text = MALFORMED[case]
    with pytest.raises(PartyError, match=rf"clinic/0: its reply to send_quantiles .*{text}"):
        answered(lambda request: replace(ANSWER, **changed))


def test_a_request_is_checked_on_both_sides() -> None:
    with pytest.raises(InternalError, match=r"send_quantiles.shares must be float64"):
        encode(SendQuantiles("run", SLOT, np.ones(3, np.float32)))
    falling = encode(SendQuantiles("run", SLOT, np.array([0.9, 0.1])))
    assert isinstance(decode(falling), SendQuantiles)
    with pytest.raises(WireError, match=r"send_quantiles.shares is not strictly ascending"):
        received(falling)


def test_the_planner_has_its_size_and_words() -> None:
    columns = Size(Symbol("d", "columns"))
    call = RequestReply(
        CLIENT,
        WHOLE,
        content(SendQuantiles, shares=3),
        content(Quantiles, shares=3, columns=columns, names=Amount(columns, Size(9))),
    )
    both = disclosures((exchange("quantiles", 1, [call]),), lambda client: True)
    found = [(d.direction, d.kind, d.what, str(d.values), str(d.bytes)) for d in both]
    assert found == [
        (UP, "quantiles", "quantiles of the columns", "4·d + 1", "12·d + 17"),
        (DOWN, "send_quantiles", "shares of the rows", "3", "24"),
    ]
    assert both[0].bytes.evaluate({"d": 2}) == ANSWER.nbytes == 41


def test_only_its_own_sizes_are_expected() -> None:
    with pytest.raises(InternalError, match="message quantiles has no size share"):
        Expected(Quantiles, {"share": 3})
