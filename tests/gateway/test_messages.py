"""Flight SQL's messages, as Protocol Buffers writes them."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlfl.base.errors import WireError
from sqlfl.gateway import messages as ms
from tests.depth import SEED, THOROUGH

TABLES = ms.CommandGetTables("bank", None, "cust%", ("TABLE", "VIEW"), True)


def test_bytes_are_those_of_protocol_buffers() -> None:
    """Written by hand from the encoding's specification."""
    own = b"\x0a\x04bank\x1a\x05cust%\x22\x05TABLE\x22\x04VIEW\x28\x01"
    assert ms.encode(TABLES) == own
    assert ms.decode(ms.CommandGetTables, own) == TABLES
    assert ms.encode(ms.DoPutUpdateResult(-1)) == b"\x08" + b"\xff" * 9 + b"\x01"
    assert ms.decode(ms.DoPutUpdateResult, b"\x08" + b"\xff" * 9 + b"\x01").record_count == -1
    assert ms.pack(ms.CommandGetCatalogs()) == (
        b"\x0a\x40type.googleapis.com/arrow.flight.protocol.sql.CommandGetCatalogs"
    )


def test_numbers_are_packed_or_single() -> None:
    wanted = ms.CommandGetSqlInfo((0, 1, 300))
    assert ms.decode(ms.CommandGetSqlInfo, b"\x0a\x04\x00\x01\xac\x02") == wanted
    assert ms.decode(ms.CommandGetSqlInfo, b"\x08\x00\x08\x01\x08\xac\x02") == wanted


def test_what_a_newer_client_adds_is_skipped() -> None:
    more = b"\x78\x01" + b"\x81\x01" + bytes(8) + b"\x8d\x01" + bytes(4) + b"\xf2\x07\x02ab"
    assert ms.decode(ms.CommandGetTables, more + ms.encode(TABLES) + more) == TABLES


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a", b"\x0a\x05bank", b"\x0a" + b"\xff" * 11, b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0a\x01\xff", b"\x08\x01", b"\x2a\x01a", b"\x0b", b"\x0c", b"\x0f", b"\x02\x00",
        b"\x28" + b"\xff" * 9 + b"\x02", b"\x80", b"\x22\x01a" * (ms.MAX_ITEMS + 1),
        bytes(ms.MAX_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        ms.decode(ms.CommandGetTables, data)


def test_types_that_are_not_served_are_refused() -> None:
    for name in ("", "CommandStatementQuery", f"{ms.PREFIX}Nothing", f"x{ms.PREFIX}"):
        with pytest.raises(WireError, match="is not served here"):
            ms.unpack(ms.encode(ms._Any(name, b"")))


texts = st.none() | st.text(min_size=1)


@given(
    st.builds(
        ms.CommandGetTables, texts, texts, texts, st.lists(st.text(min_size=1)).map(tuple),
        st.booleans(),
    )
)  # fmt: skip
def test_messages_are_read_as_they_were_written(message: ms.CommandGetTables) -> None:
    assert ms.unpack(ms.pack(message)) == message


def test_any_bytes_are_a_message_or_a_wire_error() -> None:
    chance = random.Random(SEED)
    for _ in range(20_000 if THOROUGH else 500):
        data = bytearray(ms.pack(chance.choice(SAMPLES)))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(WireError):
            ms.unpack(bytes(data[: chance.choice((None, chance.randrange(len(data) + 1)))]))


SAMPLES = (
    TABLES,
    ms.CommandGetSqlInfo((1, 2, 300)),
    ms.CommandStatementQuery("SHOW MODELS", b"1"),
    ms.ActionCreatePreparedStatementRequest("SHOW MODELS"),
    ms.CommandPreparedStatementQuery(b"\x00" * 16),
)
