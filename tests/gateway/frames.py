"""Frames of Flight SQL that no client sends."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.flight as flight

from sqlfl.gateway import calls
from sqlfl.gateway import messages as ms
from tests.depth import SEED

SAMPLES = [
    *(kind() for kind in ms.KINDS.values()),
    ms.CommandStatementQuery("SHOW MODELS"), ms.CommandStatementUpdate("SELECT 1"),
    ms.CommandGetTables("bank", "%", "c_s%", ("TABLE",), True), ms.CommandGetSqlInfo((0, 508, 9)),
    ms.ActionCreatePreparedStatementRequest("SHOW MODELS WHERE $a"),
    ms.CommandGetDbSchemas("bank", "\\%m_"), ms.TicketStatementQuery(bytes(16)),
]  # fmt: skip
KINDS = ("info", "schema", "get", "put", "prepare", "close", "path", "others")


def send_frames(client: flight.FlightClient, token: str, count: int) -> None:
    """Send mutated frames. Each is answered, or refused by an error without a traceback."""
    chance = random.Random(SEED)
    options = flight.FlightCallOptions(
        headers=[(b"authorization", f"Bearer {token}".encode())], timeout=20
    )

    def call(kind: str, data: bytes) -> None:
        command = flight.FlightDescriptor.for_command(data)
        if kind == "info":
            client.get_flight_info(command, options)
        elif kind == "path":
            client.get_flight_info(flight.FlightDescriptor.for_path(data[:100].hex()), options)
        elif kind == "schema":
            client.get_schema(command, options)
        elif kind == "others":
            next(iter(client.list_flights(data, options)))
        elif kind == "get":
            client.do_get(flight.Ticket(data), options).read_all()
        elif kind == "put":
            writer, _ = client.do_put(command, pa.schema([("x", pa.int64())]), options)
            with writer:
                writer.write_batch(pa.record_batch({"x": [1]}))
        else:
            name = calls.PREPARE if kind == "prepare" else calls.CLOSE
            list(client.do_action(flight.Action(name, data), options))

    errors: list[tuple[str, bytes]] = []
    for number in range(count):
        data = bytearray(ms.pack(chance.choice(SAMPLES)))
        for _ in range(chance.choice((0, 0, 1, 1, 2, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        try:
            call(KINDS[number % len(KINDS)], bytes(data))
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            errors.append((str(error), bytes(data)))
    assert len(errors) > count // 3
    for word in ("Traceback", "its log says how", "Deadline"):
        assert not [own for own in errors if word in own[0]]
